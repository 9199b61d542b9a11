/* The producer: one thread that takes compute tasks, waits for their operands and feeds the stages.
 */
#ifndef MOK_CUDA_SM90_PRODUCER_CUH
#define MOK_CUDA_SM90_PRODUCER_CUH

#include "cuda/sm90/block.cuh"
#include "cuda/sm90/feed.cuh"
#include "cuda/sm90/ptx/bulk.cuh"
#include "cuda/sm90/trace.cuh"
#include "cuda/sm90/wait.cuh"

/* The task after the one whose stages are being filled. It is prepared in small steps between
 * fills, since the consumers drain three stages in the time that one long step would take. */
typedef enum sm90_step {
    SM90_STEP_LOAD = 0, /* the record, into the ring's slot */
    SM90_STEP_WAIT,     /* are its operands there */
    SM90_STEP_READY     /* published to the other roles */
} sm90_step;

typedef struct sm90_next {
    uint32_t idx;
    sm90_step step;
    uint32_t number; /* of this block's tasks: its slot and parity follow */
} sm90_next;

static __device__ __forceinline__ uint32_t sm90_next_slot(const sm90_next *next)
{
    return next->number % MOK_SM90_TASK_SLOTS;
}

static __device__ __forceinline__ void sm90_publish(const mok_sm90_pass &p, sm90_next *next,
                                                    mok_sm90_task *task, sm90_control *control,
                                                    bool stop)
{
    if (stop) {
        task->kind = MOK_SM90_STOP;
    }
    next->step = SM90_STEP_READY;
    ptx_fence_proxy_async();
    ptx_mbarrier_arrive(ptx_shared_address(&control->task_full[sm90_next_slot(next)]));
    sm90_trace(p, MOK_SM90_ROLE_PRODUCER, MOK_SM90_WAIT, task->kind, task->block, task->col,
               control->prepared, sm90_clock());
}

static __device__ __forceinline__ bool sm90_task_ready(const mok_sm90_rank &mine,
                                                       const mok_sm90_task *task)
{
    uint32_t value[MOK_TASK_MAX_WAITS];
    bool ready = true;
#pragma unroll
    for (int i = 0; i < MOK_TASK_MAX_WAITS; i++) {
        value[i] =
            task->wait_idx[i] >= 0 ? ptx_load_acquire_gpu(&mine.counters[task->wait_idx[i]]) : 0;
    }
#pragma unroll
    for (int i = 0; i < MOK_TASK_MAX_WAITS; i++) {
        ready = ready && (task->wait_idx[i] < 0 || (int32_t)(value[i] - task->wait_value[i]) >= 0);
    }
    return ready;
}

/* One step of the preparation; only with `block` set does it wait for other blocks. */
static __device__ __forceinline__ void sm90_prepare(const mok_sm90_pass &p, int32_t rank,
                                                    sm90_next *next, const mok_sm90_task *list,
                                                    sm90_control *control, bool block)
{
    const mok_sm90_rank &mine = p.rank[rank];
    mok_sm90_task *task = &control->task[sm90_next_slot(next)];
    if (next->step == SM90_STEP_LOAD) {
        mbarrier_wait(ptx_shared_address(&control->task_empty[sm90_next_slot(next)]),
                      next->number / MOK_SM90_TASK_SLOTS % 2 ^ 1);
        control->prepared = sm90_clock();
        if (next->idx >= control->task_count) {
            sm90_publish(p, next, task, control, true);
            return;
        }
        const unsigned char *from = (const unsigned char *)(const void *)(list + next->idx);
#pragma unroll
        for (int i = 0; i < MOK_SM90_TASK_BYTES; i += 16) {
            ptx_copy_async_16(ptx_shared_address(task) + i, from + i);
        }
        next->step = SM90_STEP_WAIT;
        return;
    }
    ptx_copy_async_wait();
    if (!block) {
        if (sm90_task_ready(mine, task)) {
            sm90_publish(p, next, task, control, false);
        }
        return;
    }
    bool ready = true;
    for (int i = 0; i < MOK_TASK_MAX_WAITS && ready; i++) {
        if (task->wait_idx[i] >= 0) {
            ready = sm90_wait<false>(p, &mine.counters[task->wait_idx[i]], task->wait_value[i],
                                     rank, rank, p.phase, next->idx);
        }
    }
    sm90_publish(p, next, task, control, !ready);
}

template <int pass>
static __device__ __noinline__ void sm90_producer(const mok_sm90_pass &p, int32_t rank,
                                                  unsigned char *shared, sm90_control *control)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const uint32_t stages = ptx_shared_address(shared);
    const mok_sm90_task *list = pass == MOK_PASS_FORWARD ? mine.list.forward : mine.list.backward;
    control->task_count = (uint32_t)mine.list.count[pass == MOK_PASS_FORWARD ? 0 : 1];
    sm90_ring stage = {0, 0};
    sm90_next next = {atomicAdd(mine.next_compute, 1u), SM90_STEP_LOAD, 0};
    for (;;) {
        while (next.step != SM90_STEP_READY) {
            sm90_prepare(p, rank, &next, list, control, true);
        }
        const mok_sm90_task *task = &control->task[sm90_next_slot(&next)];
        if (task->kind == MOK_SM90_STOP) {
            break;
        }
        const sm90_feed<pass> feed = sm90_feed<pass>::make(p.map[rank], task);
        next.number++;
        next.step = SM90_STEP_LOAD;
        next.idx = atomicAdd(mine.next_compute, 1u); /* its latency hides behind the first fills */
        for (int32_t k = 0; k < feed.steps(task); k++) {
            mbarrier_wait(ptx_shared_address(&control->empty[stage.slot]), stage.parity ^ 1);
            feed.fill(stages + stage.slot * MOK_SM90_STAGE_BYTES,
                      ptx_shared_address(&control->full[stage.slot]), k);
            sm90_ring_next<MOK_SM90_STAGES>(&stage);
            if (k > 0 && next.step != SM90_STEP_READY) {
                sm90_prepare(p, rank, &next, list, control, false);
            }
        }
    }
}

#endif
