/* The lists of a rank's tasks, from the pure functions of plan/tasks.h: a thread a task.
 *
 * Runs once a schedule, when the counts of rows are known on the device. A task's record also holds
 * what would need the schedule's tables: the expert of its rows and how many of them are live. */
#include "cuda/sm90/params.h"
#include "cuda/sm90/wait.cuh"

static_assert(sizeof(mok_sm90_task) == MOK_SM90_TASK_BYTES,
              "records are loaded 16 bytes at a time");

static __device__ __forceinline__ int32_t at_most(int64_t value, int64_t limit)
{
    return (int32_t)(value < limit ? value : limit);
}

static __device__ bool is_shared(int32_t kind)
{
    return kind >= MOK_TASK_SHARED_GATE_UP && kind <= MOK_TASK_SHARED_WGRAD_DOWN;
}

/* A tile of rows: which ones, and whose weights they meet. */
static __device__ void place_rows(mok_sm90_task *to, const mok_sm90_schedule_rank &mine,
                                  const mok_plan *plan, const mok_task *task)
{
    const int64_t first = task->block * 128;
    to->source_row = (int32_t)first;
    if (is_shared(task->kind)) {
        to->expert = 0;
        to->store_row = (int32_t)first;
        to->row_count = at_most(mine.tokens - first, 128);
        return;
    }
    to->expert = mine.block_expert[task->block];
    to->store_row = (int32_t)((task->block - mok_macro_begin(plan, task->macro)) * 128);
    to->row_count =
        at_most(mine.segment_begin[to->expert] + mine.segment_count[to->expert] - first, 128);
}

/* gate/up, down, d_hidden, dx. */
static __device__ void tile_of_rows(mok_sm90_task *to, const mok_sm90_schedule_rank &mine,
                                    const mok_plan *plan, const mok_task *task)
{
    const mok_shape *shape = &mine.shape;
    const int64_t inner = is_shared(task->kind) ? shape->shared_inner : shape->inner;
    const bool to_hidden = task->kind == MOK_TASK_DOWN || task->kind == MOK_TASK_SHARED_DOWN ||
                           task->kind == MOK_TASK_DX || task->kind == MOK_TASK_SHARED_DX;
    const bool twice =
        task->kind == MOK_TASK_DX || task->kind == MOK_TASK_SHARED_DX; /* dg, then du */
    const int64_t outputs = to_hidden ? shape->hidden : inner;
    const int64_t step = to_hidden ? shape->hidden_cols : shape->inner_cols;
    to->k_steps = (int32_t)mok_blocks_of(to_hidden ? inner : shape->hidden, 64) * (twice ? 2 : 1);
    to->col = (int32_t)(task->tile * step);
    to->cols = at_most(outputs - to->col, step);
    place_rows(to, mine, plan, task);
}

/* A tile of a weight gradient: store_row is its first row, source_row where its contraction begins.
 */
static __device__ void tile_of_gradient(mok_sm90_task *to, const mok_sm90_schedule_rank &mine,
                                        const mok_task *task)
{
    const bool shared = is_shared(task->kind);
    const int64_t inner = shared ? mine.shape.shared_inner : mine.shape.inner;
    const bool down = task->kind == MOK_TASK_WGRAD_DOWN || task->kind == MOK_TASK_SHARED_WGRAD_DOWN;
    const int64_t rows = down ? mine.shape.hidden : inner;
    const int64_t cols = down ? inner : mine.shape.hidden;
    const int64_t across = mok_blocks_of(cols, MOK_WGRAD_COLS);
    to->store_row = (int32_t)(task->tile / across * MOK_WGRAD_ROWS);
    to->col = (int32_t)(task->tile % across * MOK_WGRAD_COLS);
    to->row_count = at_most(rows - to->store_row, MOK_WGRAD_ROWS);
    to->cols = at_most(cols - to->col, MOK_WGRAD_COLS);
    to->expert = (int32_t)task->expert;
    const int64_t contraction =
        shared ? mine.tokens / (mine.lanes > 0 ? mine.lanes : 1) : mine.segment_count[task->expert];
    to->source_row = shared ? 0 : (int32_t)mine.segment_begin[task->expert];
    to->k_steps = (int32_t)mok_blocks_of(contraction, 64);
}

static __device__ mok_sm90_task record_of(const mok_sm90_schedule_rank &mine, const mok_plan *plan,
                                          int64_t idx)
{
    const mok_task task = mok_task_at(plan, idx);
    mok_sm90_task to;
    to.kind = task.kind;
    to.block = (int32_t)task.block;
    switch (task.kind) {
    case MOK_TASK_WGRAD_GATE:
    case MOK_TASK_WGRAD_UP:
    case MOK_TASK_WGRAD_DOWN:
    case MOK_TASK_SHARED_WGRAD_GATE:
    case MOK_TASK_SHARED_WGRAD_UP:
    case MOK_TASK_SHARED_WGRAD_DOWN:
        tile_of_gradient(&to, mine, &task);
        break;
    default:
        tile_of_rows(&to, mine, plan, &task);
        break;
    }
    for (int i = 0; i < MOK_TASK_MAX_WAITS; i++) {
        to.wait_idx[i] = i < task.wait_count ? (int32_t)task.wait_idx[i] : -1;
        to.wait_value[i] = i < task.wait_count ? task.wait_value[i] : 0;
    }
    if (task.kind == MOK_TASK_GATE_UP || task.kind == MOK_TASK_D_HIDDEN) {
        to.wait_value[0] *=
            MOK_SM90_COURIERS; /* the row block's dispatch: each courier raises it once */
    }
    for (int i = 0; i < MOK_TASK_MAX_RAISES; i++) {
        to.raise_idx[i] = i < task.raise_count ? (int32_t)task.raise_idx[i] : -1;
    }
    to.unused = 0;
    return to;
}

static __device__ void write_list(mok_sm90_task *out, const mok_sm90_schedule_rank &mine,
                                  const mok_plan *plan, int64_t count)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t idx = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; idx < count; idx += step) {
        out[idx] = record_of(mine, plan, idx);
    }
}

/* Forward's tasks, and the dispatch with which both passes begin. */
extern "C" __global__ void __launch_bounds__(128)
    mok_sm90_plan_forward(const __grid_constant__ mok_sm90_schedule p)
{
    const mok_sm90_schedule_rank &mine = p.rank[blockIdx.y];
    if (*(volatile uint32_t *)p.abort != 0) {
        return;
    }
    mok_plan compute =
        mok_plan_make(MOK_PASS_FORWARD, &mine.shape, *mine.row_count / 128, mine.tokens, 0);
    compute.fused_combine = true;
    mok_plan comm = compute;
    compute.list_comm = false;
    comm.list_compute = false;
    const int64_t compute_count = mok_task_count(&compute);
    const int64_t comm_count = mok_task_count(&comm);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        mine.list.count[0] = (int32_t)compute_count;
        mine.list.count[2] = (int32_t)comm_count;
    }
    write_list(mine.list.forward, mine, &compute, compute_count);
    write_list(mine.list.comm, mine, &comm, comm_count);
}

/* Backward's tasks; mine.shape holds its own tile widths. */
extern "C" __global__ void __launch_bounds__(128)
    mok_sm90_plan_backward(const __grid_constant__ mok_sm90_schedule p)
{
    const mok_sm90_schedule_rank &mine = p.rank[blockIdx.y];
    if (*(volatile uint32_t *)p.abort != 0) {
        return;
    }
    const int64_t ring = mine.shape.macro_blocks * 128;
    if (*mine.row_count > ring) {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            const mok_sm90_fault bad = {MOK_SM90_FAULT_CAPACITY,
                                        (int32_t)blockIdx.y,
                                        (int32_t)blockIdx.y,
                                        MOK_SM90_PHASE_BACKWARD,
                                        -1,
                                        0,
                                        *mine.row_count,
                                        ring};
            sm90_report(p.abort, p.fault, bad);
        }
        return;
    }
    mok_plan plan = mok_plan_make(MOK_PASS_BACKWARD, &mine.shape, *mine.row_count / 128,
                                  mine.tokens, mine.lanes);
    plan.fused_combine = true;
    plan.list_comm = false;
    const int64_t count = mok_task_count(&plan);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        mine.list.count[1] = (int32_t)count;
    }
    write_list(mine.list.backward, mine, &plan, count);
}

extern "C" const void *mok_sm90_plan_forward_function(void)
{
    return (const void *)mok_sm90_plan_forward;
}

extern "C" const void *mok_sm90_plan_backward_function(void)
{
    return (const void *)mok_sm90_plan_backward;
}
