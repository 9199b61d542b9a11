/* The forward tasks: dispatch, gate/up with SwiGLU, down, combine, fold. docs/layer.md, "Forward".
 */
#include <string.h>

#include "cpu/step.h"

void mok_step_product(const mok_step *step, float *tile, bool more, const mok_operand *a,
                      const mok_operand *b, int64_t m, int64_t n, int64_t k,
                      const mok_worker_scratch *scratch)
{
    if (!more) {
        memset(tile, 0, (size_t)m * MOK_TILE_COLS * sizeof *tile);
    }
    step->product(tile, MOK_TILE_COLS, a, b, m, n, k, scratch->product);
}

void mok_step_store_tile(const mok_step *step, uint16_t *out, int64_t out_stride, const float *tile,
                         int64_t rows, int64_t cols)
{
    for (int64_t row = 0; row < rows; row++) {
        step->comm->kernels->bf16_from_f32(out + row * out_stride, tile + row * MOK_TILE_COLS,
                                           cols);
    }
}

static mok_weight weight_of(mok_weight weight, int64_t expert)
{
    if (weight.data != NULL) {
        weight.data += expert * weight.expert_stride;
    }
    return weight;
}

/* Rows of a routed block that hold a route. */
static int64_t rows_in_block(const mok_rows *rows, int64_t block, int64_t expert)
{
    const int64_t left = rows->begin[expert] + rows->counts[expert] - block * MOK_ROW_BLOCK;
    return mok_min64(left, MOK_ROW_BLOCK);
}

static bool is_shared(mok_task_kind kind)
{
    return kind >= MOK_TASK_SHARED_GATE_UP && kind <= MOK_TASK_SHARED_WGRAD_DOWN;
}

mok_block_view mok_step_block(const mok_step *step, const mok_task *task)
{
    const bool shared = is_shared(task->kind);
    const mok_buffers *from = shared ? &step->shared : &step->ring;
    const mok_expert_weights *weights = shared ? &step->shared_weights : &step->weights;
    const int64_t in_ring =
        shared ? task->block : task->block - mok_macro_begin(&step->plan, task->macro);
    const int64_t row = in_ring * MOK_ROW_BLOCK;
    const int64_t hidden = step->shape->hidden;
    const int64_t expert = shared ? 0 : step->rows->block_expert[task->block];
    mok_block_view view;
    view.row_count = shared ? mok_min64(step->tokens - row, MOK_ROW_BLOCK)
                            : rows_in_block(step->rows, task->block, expert);
    view.inner = from->inner;
    view.x = from->x + row * hidden;
    view.y = from->y + row * hidden;
    view.dy = from->dy != NULL ? from->dy + row * hidden : NULL;
    view.g = from->g + row * from->inner;
    view.u = from->u + row * from->inner;
    view.h = from->h + row * from->inner;
    view.dg = from->dg != NULL ? from->dg + row * from->inner : NULL;
    view.du = from->du != NULL ? from->du + row * from->inner : NULL;
    view.row_weight = from->row_weight != NULL ? from->row_weight + row : NULL;
    view.router_part = from->router_part != NULL
                           ? from->router_part + row * mok_ceil_div(from->inner, MOK_ROUTER_CHUNK)
                           : NULL;
    view.gate = weight_of(weights->gate, expert);
    view.up = weight_of(weights->up, expert);
    view.down = weight_of(weights->down, expert);
    return view;
}

/* x rows from their sources. */
static void dispatch(mok_step *step, const mok_task *task)
{
    const mok_block_view view = mok_step_block(step, task);
    const int64_t hidden = step->shape->hidden;
    const int64_t first = task->block * MOK_ROW_BLOCK;
    for (int64_t row = 0; row < view.row_count; row++) {
        const int64_t token = step->rows->peer_slot[first + row] / step->shape->slots;
        const mok_arena *source = &step->arena[step->rows->peer_rank[first + row]];
        memcpy(view.x + row * hidden, source->x + token * hidden, (size_t)hidden * sizeof *view.x);
    }
}

/* Steps 2 and 3: both products of a tile, then h while they are in cache. */
static void gate_up(mok_step *step, const mok_task *task, const mok_worker_scratch *scratch)
{
    const mok_block_view view = mok_step_block(step, task);
    const int64_t hidden = step->shape->hidden;
    const int64_t col = task->tile * step->shape->inner_cols;
    const int64_t cols = mok_min64(view.inner - col, step->shape->inner_cols);
    const mok_operand x = {view.x, hidden, false};
    const mok_operand gate = {view.gate.data + col * view.gate.row_stride, view.gate.row_stride,
                              false};
    const mok_operand up = {view.up.data + col * view.up.row_stride, view.up.row_stride, false};
    mok_step_product(step, scratch->tile[0], false, &x, &gate, view.row_count, cols, hidden,
                     scratch);
    mok_step_product(step, scratch->tile[1], false, &x, &up, view.row_count, cols, hidden, scratch);
    for (int64_t row = 0; row < view.row_count; row++) {
        const int64_t at = row * view.inner + col;
        step->comm->kernels->swiglu_forward(
            view.h + at, view.g + at, view.u + at, scratch->tile[0] + row * MOK_TILE_COLS,
            scratch->tile[1] + row * MOK_TILE_COLS, cols, &step->swiglu);
    }
}

/* Step 4. */
static void down(mok_step *step, const mok_task *task, const mok_worker_scratch *scratch)
{
    const mok_block_view view = mok_step_block(step, task);
    const int64_t hidden = step->shape->hidden;
    const int64_t col = task->tile * step->shape->hidden_cols;
    const int64_t cols = mok_min64(hidden - col, step->shape->hidden_cols);
    const mok_operand h = {view.h, view.inner, false};
    const mok_operand weight = {view.down.data + col * view.down.row_stride, view.down.row_stride,
                                false};
    mok_step_product(step, scratch->tile[0], false, &h, &weight, view.row_count, cols, view.inner,
                     scratch);
    mok_step_store_tile(step, view.y + col, hidden, scratch->tile[0], view.row_count, cols);
}

/* Step 5, first half: y rows to the slots of their sources. */
static void combine(mok_step *step, const mok_task *task)
{
    const mok_block_view view = mok_step_block(step, task);
    const int64_t hidden = step->shape->hidden;
    const int64_t first = task->block * MOK_ROW_BLOCK;
    for (int64_t row = 0; row < view.row_count; row++) {
        const int32_t source = step->rows->peer_rank[first + row];
        mok_symmetric_put(step->comm, step->symmetric, source,
                          step->arena[source].slots + step->rows->peer_slot[first + row] * hidden,
                          view.y + row * hidden, (size_t)hidden * sizeof *view.y);
    }
}

void mok_step_forward_task(mok_step *step, const mok_task *task, const mok_worker_scratch *scratch)
{
    switch (task->kind) {
    case MOK_TASK_DISPATCH:
        dispatch(step, task);
        break;
    case MOK_TASK_GATE_UP:
    case MOK_TASK_SHARED_GATE_UP:
        gate_up(step, task, scratch);
        break;
    case MOK_TASK_DOWN:
    case MOK_TASK_SHARED_DOWN:
        down(step, task, scratch);
        break;
    case MOK_TASK_COMBINE:
        combine(step, task);
        break;
    default:
        MOK_ASSERT(false);
        break;
    }
}

/* The owner's sum over a token's slots, ascending; and in backward its router-weight gradients. */
void mok_step_fold_task(mok_step *step, const mok_task *task)
{
    const int64_t hidden = step->shape->hidden;
    const int64_t slots = step->shape->slots;
    const mok_kernels *kernels = step->comm->kernels;
    const mok_arena *mine = &step->arena[step->comm->rank];
    const int64_t begin = task->block * MOK_FOLD_TOKENS;
    const int64_t end = mok_min64(begin + MOK_FOLD_TOKENS, step->tokens);
    for (int64_t token = begin; token < end; token++) {
        uint16_t *out = step->fold_out + token * step->fold_out_stride;
        const uint16_t *shared =
            step->shape->shared_inner > 0 ? step->shared.y + token * hidden : NULL;
        const uint16_t *rows = mine->slots + token * slots * hidden;
        const int32_t *routes = step->routes + token * slots;
        if (!step->fold_backward) {
            kernels->combine_forward(out, shared, rows, mine->router_weights + token * slots,
                                     routes, slots, hidden);
            continue;
        }
        kernels->combine_backward(out, shared, rows, routes, slots, hidden);
        for (int64_t slot = 0; slot < slots; slot++) {
            step->fold_router[token * step->fold_router_stride + slot] =
                routes[slot] >= 0 ? mine->d_router_weights[token * slots + slot] : 0.0f;
        }
    }
}
