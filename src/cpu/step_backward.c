/* The backward tasks: dispatch of dy, the hidden gradient with SwiGLU backward, dx, weight
 * gradients, combine. docs/layer.md, "Backward". */
#include <string.h>

#include "cpu/step.h"

/* Step 1: dy, the row's weight, and in a replayed macrobatch x too. */
static void dispatch(mok_step *step, const mok_task *task)
{
    const mok_block_view view = mok_step_block(step, task);
    const int64_t hidden = step->shape->hidden;
    const int64_t first = task->block * MOK_ROW_BLOCK;
    const size_t row_bytes = (size_t)hidden * sizeof *view.dy;
    float *row_weight = step->ring.row_weight +
                        (task->block - mok_macro_begin(&step->plan, task->macro)) * MOK_ROW_BLOCK;
    for (int64_t row = 0; row < view.row_count; row++) {
        const int64_t slot = step->rows->peer_slot[first + row];
        const int64_t token = slot / step->shape->slots;
        const mok_arena *source = &step->arena[step->rows->peer_rank[first + row]];
        memcpy(view.dy + row * hidden, source->dy + token * hidden, row_bytes);
        row_weight[row] = source->router_weights[slot];
        if (task->macro > 0) {
            memcpy(view.x + row * hidden, source->x + token * hidden, row_bytes);
        }
    }
}

/* Steps 2, 3 and 4, and hw of step 6. */
static void d_hidden(mok_step *step, const mok_task *task, const mok_worker_scratch *scratch)
{
    const mok_block_view view = mok_step_block(step, task);
    const int64_t hidden = step->shape->hidden;
    const int64_t chunks = mok_ceil_div(view.inner, MOK_ROUTER_CHUNK);
    const int64_t col = task->tile * step->shape->inner_cols;
    const int64_t cols = mok_min64(view.inner - col, step->shape->inner_cols);
    const mok_operand dy = {view.dy, hidden, false};
    const mok_operand weight = {view.down.data + col, view.down.row_stride, true};
    mok_step_product(step, scratch->tile[0], false, &dy, &weight, view.row_count, cols, hidden,
                     scratch);
    for (int64_t row = 0; row < view.row_count; row++) {
        const float w = view.row_weight != NULL ? view.row_weight[row] : 1.0f;
        for (int64_t c = 0; c < cols; c += MOK_ROUTER_CHUNK) {
            const int64_t at = row * view.inner + col + c;
            const float part = step->comm->kernels->swiglu_backward(
                view.dg + at, view.du + at, view.h + at, scratch->tile[0] + row * MOK_TILE_COLS + c,
                view.g + at, view.u + at, w, mok_min64(cols - c, MOK_ROUTER_CHUNK), &step->swiglu);
            if (view.router_part != NULL) {
                view.router_part[row * chunks + (col + c) / MOK_ROUTER_CHUNK] = part;
            }
        }
    }
}

/* Step 5: one chain over the gate columns, then over the up columns. */
static void dx(mok_step *step, const mok_task *task, const mok_worker_scratch *scratch)
{
    const mok_block_view view = mok_step_block(step, task);
    const int64_t hidden = step->shape->hidden;
    const int64_t col = task->tile * step->shape->hidden_cols;
    const int64_t cols = mok_min64(hidden - col, step->shape->hidden_cols);
    const mok_operand dg = {view.dg, view.inner, false};
    const mok_operand du = {view.du, view.inner, false};
    const mok_operand gate = {view.gate.data + col, view.gate.row_stride, true};
    const mok_operand up = {view.up.data + col, view.up.row_stride, true};
    float *tile = scratch->tile[0];
    mok_step_product(step, tile, false, &dg, &gate, view.row_count, cols, view.inner, scratch);
    mok_step_product(step, tile, true, &du, &up, view.row_count, cols, view.inner, scratch);
    mok_step_store_tile(step, view.y + col, hidden, tile, view.row_count, cols);
}

/* dx rows and router-weight gradients to their sources. Chunks are added ascending, from +0. */
static void combine(mok_step *step, const mok_task *task)
{
    const mok_block_view view = mok_step_block(step, task);
    const int64_t hidden = step->shape->hidden;
    const int64_t chunks = mok_ceil_div(view.inner, MOK_ROUTER_CHUNK);
    const int64_t first = task->block * MOK_ROW_BLOCK;
    for (int64_t row = 0; row < view.row_count; row++) {
        const int64_t slot = step->rows->peer_slot[first + row];
        const int32_t source = step->rows->peer_rank[first + row];
        const mok_arena *arena = &step->arena[source];
        mok_symmetric_put(step->comm, step->symmetric, source, arena->slots + slot * hidden,
                          view.y + row * hidden, (size_t)hidden * sizeof *view.y);
        float sum = 0.0f;
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const float part = view.router_part[row * chunks + chunk];
            step->comm->kernels->accumulate(&sum, &part, 1);
        }
        mok_symmetric_put(step->comm, step->symmetric, source, arena->d_router_weights + slot, &sum,
                          sizeof sum);
    }
}

/* ---- Weight gradients ---- */

/* One chain over rows: which rows, where it starts from and where it goes. */
typedef struct wgrad_view {
    int64_t row_count;
    int64_t inner;
    const uint16_t *x, *dy, *dg, *du, *hw; /* at the first row */
    const float *chain_in;                 /* NULL: from +0 */
    float *chain_out;                      /* NULL: the chain ends here */
    int64_t expert;
} wgrad_view;

static void finish_tile(const mok_step *step, const mok_grad *grad, int64_t expert, int64_t row,
                        int64_t col, const float *tile, int64_t rows, int64_t cols)
{
    const mok_kernels *kernels = step->comm->kernels;
    for (int64_t r = 0; r < rows; r++) {
        const float *from = tile + r * MOK_TILE_COLS;
        const int64_t at = expert * grad->expert_stride + (row + r) * grad->row_stride + col;
        if (grad->dtype == MOK_DTYPE_BF16) {
            kernels->bf16_from_f32((uint16_t *)grad->data + at, from, cols);
        } else if (grad->mode == MOK_GRAD_ADD) {
            kernels->accumulate((float *)grad->data + at, from, cols);
        } else {
            memcpy((float *)grad->data + at, from, (size_t)cols * sizeof *from);
        }
    }
}

static void wgrad(mok_step *step, const mok_task *task, const wgrad_view *view, int matrix,
                  const mok_expert_grads *grads, const mok_worker_scratch *scratch)
{
    const int64_t hidden = step->shape->hidden;
    const bool is_down = matrix == 2;
    const int64_t all_rows = is_down ? hidden : view->inner;
    const int64_t all_cols = is_down ? view->inner : hidden;
    const int64_t tiles_across = mok_ceil_div(all_cols, MOK_WGRAD_COLS);
    const int64_t row = task->tile / tiles_across * MOK_WGRAD_ROWS;
    const int64_t col = task->tile % tiles_across * MOK_WGRAD_COLS;
    const int64_t rows = mok_min64(all_rows - row, MOK_WGRAD_ROWS);
    const int64_t cols = mok_min64(all_cols - col, MOK_WGRAD_COLS);
    const uint16_t *left = is_down ? view->dy : matrix == 1 ? view->du : view->dg;
    const uint16_t *right = is_down ? view->hw : view->x;
    const mok_operand a = {left + row, all_rows, true};
    const mok_operand b = {right + col, all_cols, true};
    const int64_t chain_at = matrix * view->inner * hidden + row * all_cols + col;
    float *tile = scratch->tile[0];
    const bool more = view->chain_in != NULL;
    for (int64_t r = 0; more && r < rows; r++) {
        memcpy(tile + r * MOK_TILE_COLS, view->chain_in + chain_at + r * all_cols,
               (size_t)cols * sizeof *tile);
    }
    mok_step_product(step, tile, more, &a, &b, rows, cols, view->row_count, scratch);
    if (view->chain_out != NULL) {
        for (int64_t r = 0; r < rows; r++) {
            memcpy(view->chain_out + chain_at + r * all_cols, tile + r * MOK_TILE_COLS,
                   (size_t)cols * sizeof *tile);
        }
        return;
    }
    const mok_grad *grad = is_down ? &grads->down : matrix == 1 ? &grads->up : &grads->gate;
    finish_tile(step, grad, view->expert, row, col, tile, rows, cols);
}

/* The part of an expert's rows that lies in this macrobatch. Macrobatches hand an interrupted chain
 * on in halves by turns: while m reads what m - 1 left of one expert, it may leave another. */
static void wgrad_routed(mok_step *step, const mok_task *task, const mok_worker_scratch *scratch)
{
    const int64_t macro_row = mok_macro_begin(&step->plan, task->macro) * MOK_ROW_BLOCK;
    const int64_t macro_end = macro_row + step->shape->macro_blocks * MOK_ROW_BLOCK;
    const int64_t begin = step->rows->begin[task->expert];
    const int64_t end = begin + step->rows->counts[task->expert];
    const int64_t from = mok_max64(begin, macro_row);
    const int64_t to = mok_min64(end, macro_end);
    const bool empty = begin == end;
    if (empty ? task->macro > 0 || step->grads.gate.mode == MOK_GRAD_ADD : from >= to) {
        return;
    }
    const int64_t row = empty ? 0 : from - macro_row;
    const mok_buffers *ring = &step->ring;
    wgrad_view view;
    view.row_count = empty ? 0 : to - from;
    view.inner = ring->inner;
    view.x = ring->x + row * step->shape->hidden;
    view.dy = ring->dy + row * step->shape->hidden;
    view.dg = ring->dg + row * ring->inner;
    view.du = ring->du + row * ring->inner;
    view.hw = ring->h + row * ring->inner;
    view.chain_in = begin < macro_row && !empty ? step->chain[(task->macro + 1) & 1] : NULL;
    view.chain_out = end > macro_end && !empty ? step->chain[task->macro & 1] : NULL;
    view.expert = task->expert;
    wgrad(step, task, &view, (int)task->kind - (int)MOK_TASK_WGRAD_GATE, &step->grads, scratch);
}

/* One token lane of the shared expert. */
static void wgrad_shared(mok_step *step, const mok_task *task, const mok_worker_scratch *scratch)
{
    const int64_t lane_tokens = step->tokens / step->plan.lanes;
    const int64_t row = task->expert * lane_tokens;
    const mok_buffers *shared = &step->shared;
    wgrad_view view;
    view.row_count = lane_tokens;
    view.inner = shared->inner;
    view.x = shared->x + row * step->shape->hidden;
    view.dy = shared->dy + row * step->shape->hidden;
    view.dg = shared->dg + row * shared->inner;
    view.du = shared->du + row * shared->inner;
    view.hw = shared->h + row * shared->inner;
    view.chain_in = NULL;
    view.chain_out = NULL;
    view.expert = task->expert;
    wgrad(step, task, &view, (int)task->kind - (int)MOK_TASK_SHARED_WGRAD_GATE, &step->shared_grads,
          scratch);
}

void mok_step_backward_task(mok_step *step, const mok_task *task, const mok_worker_scratch *scratch)
{
    switch (task->kind) {
    case MOK_TASK_DISPATCH:
        dispatch(step, task);
        break;
    case MOK_TASK_D_HIDDEN:
    case MOK_TASK_SHARED_D_HIDDEN:
        d_hidden(step, task, scratch);
        break;
    case MOK_TASK_DX:
    case MOK_TASK_SHARED_DX:
        dx(step, task, scratch);
        break;
    case MOK_TASK_COMBINE:
        combine(step, task);
        break;
    case MOK_TASK_WGRAD_GATE:
    case MOK_TASK_WGRAD_UP:
    case MOK_TASK_WGRAD_DOWN:
        wgrad_routed(step, task, scratch);
        break;
    case MOK_TASK_SHARED_WGRAD_GATE:
    case MOK_TASK_SHARED_WGRAD_UP:
    case MOK_TASK_SHARED_WGRAD_DOWN:
        wgrad_shared(step, task, scratch);
        break;
    default:
        MOK_ASSERT(false);
        break;
    }
}
