/* The lists of a rank's tasks, from the pure functions of plan/tasks.h: a thread a task.
 *
 * Runs once a schedule, when the counts of rows are known on the device. A task's record also holds what would
 * need the schedule's tables: the expert of its rows and how many of them are live. */
#include "cuda/sm90/params.h"

static_assert(sizeof(mok_sm90_task) == MOK_SM90_TASK_BYTES, "records are loaded 16 bytes at a time");

static __device__ __forceinline__ int32_t at_most(int64_t value, int64_t limit)
{
    return (int32_t)(value < limit ? value : limit);
}

static __device__ void place_rows(mok_sm90_task *to, const mok_sm90_schedule_rank &mine, const mok_plan *plan,
                                  const mok_task *task, bool shared)
{
    const int64_t first = task->block * 128;
    to->source_row = (int32_t)first;
    if (shared) {
        to->expert = 0;
        to->store_row = (int32_t)first;
        to->row_count = at_most(mine.tokens - first, 128);
        return;
    }
    to->expert = mine.block_expert[task->block];
    to->store_row = (int32_t)((task->block - mok_macro_begin(plan, task->macro)) * 128);
    to->row_count = at_most(mine.segment_begin[to->expert] + mine.segment_count[to->expert] - first, 128);
}

static __device__ mok_sm90_task record_of(const mok_sm90_schedule_rank &mine, const mok_plan *plan, int64_t idx)
{
    const mok_task task = mok_task_at(plan, idx);
    const mok_shape *shape = &mine.shape;
    const bool shared = task.kind == MOK_TASK_SHARED_GATE_UP || task.kind == MOK_TASK_SHARED_DOWN;
    const bool down = task.kind == MOK_TASK_DOWN || task.kind == MOK_TASK_SHARED_DOWN;
    const int64_t inner = shared ? shape->shared_inner : shape->inner;
    const int64_t outputs = down ? shape->hidden : inner;
    const int64_t step = down ? shape->hidden_cols : shape->inner_cols;
    mok_sm90_task to;
    to.kind = task.kind;
    to.block = (int32_t)task.block;
    to.k_steps = (int32_t)mok_blocks_of(down ? inner : shape->hidden, 64);
    to.col = (int32_t)(task.tile * step);
    to.cols = at_most(outputs - to.col, step);
    place_rows(&to, mine, plan, &task, shared);
    for (int i = 0; i < MOK_TASK_MAX_WAITS; i++) {
        to.wait_idx[i] = i < task.wait_count ? (int32_t)task.wait_idx[i] : -1;
        to.wait_value[i] = i < task.wait_count ? task.wait_value[i] : 0;
    }
    if (task.kind == MOK_TASK_GATE_UP) {
        to.wait_value[0] *= MOK_SM90_COURIERS; /* the row block's dispatch: each courier raises it once */
    }
    for (int i = 0; i < MOK_TASK_MAX_RAISES; i++) {
        to.raise_idx[i] = i < task.raise_count ? (int32_t)task.raise_idx[i] : -1;
    }
    to.unused = 0;
    return to;
}

static __device__ void write_list(mok_sm90_task *out, const mok_sm90_schedule_rank &mine, const mok_plan *plan,
                                  int64_t count)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t idx = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; idx < count; idx += step) {
        out[idx] = record_of(mine, plan, idx);
    }
}

extern "C" __global__ void __launch_bounds__(128)
    mok_sm90_plan_forward(const __grid_constant__ mok_sm90_schedule p)
{
    const mok_sm90_schedule_rank &mine = p.rank[blockIdx.y];
    if (*(volatile uint32_t *)p.abort != 0) {
        return;
    }
    mok_plan compute = mok_plan_make(MOK_PASS_FORWARD, &mine.shape, *mine.row_count / 128, mine.tokens, 0);
    compute.fused_combine = true;
    mok_plan comm = compute;
    compute.list_comm = false;
    comm.list_compute = false;
    const int64_t compute_count = mok_task_count(&compute);
    const int64_t comm_count = mok_task_count(&comm);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        mine.list.count[0] = (int32_t)compute_count;
        mine.list.count[1] = (int32_t)comm_count;
    }
    write_list(mine.list.compute, mine, &compute, compute_count);
    write_list(mine.list.comm, mine, &comm, comm_count);
}

extern "C" const void *mok_sm90_plan_forward_function(void)
{
    return (const void *)mok_sm90_plan_forward;
}
