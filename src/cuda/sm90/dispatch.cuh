/* Communication: rows of x from their sources into this rank's ring, a row block at a time.
 *
 * Plain loads and stores of 16 bytes; a source may be another rank's memory. Rows of padding are zeroed,
 * since the copy engine reads whole blocks. The writer's proxy fence orders its ordinary stores before the
 * release that lets a producer read the block through the copy engine. */
#ifndef MOK_CUDA_SM90_DISPATCH_CUH
#define MOK_CUDA_SM90_DISPATCH_CUH

#include "cuda/sm90/block.cuh"
#include "cuda/sm90/wait.cuh"

/* A warp copies one row; eight 16-byte loads are in flight a lane. */
static __device__ __forceinline__ void sm90_copy_row(uint4 *to, const uint4 *from, int64_t chunks)
{
    const int lane = threadIdx.x & 31;
    int64_t at = lane;
    for (; at + 7 * 32 < chunks; at += 8 * 32) {
        uint4 part[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            part[i] = __ldg(from + at + i * 32);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            to[at + i * 32] = part[i];
        }
    }
    for (; at < chunks; at += 32) {
        to[at] = __ldg(from + at);
    }
}

static __device__ __forceinline__ void sm90_zero_row(uint4 *to, int64_t chunks)
{
    const uint4 zero = {0, 0, 0, 0};
    for (int64_t at = threadIdx.x & 31; at < chunks; at += 32) {
        to[at] = zero;
    }
}

static __device__ void sm90_dispatch_block(const mok_sm90_forward &p, const mok_sm90_rank &mine,
                                           const mok_plan *plan, const mok_task *task)
{
    const int64_t hidden = mine.shape.hidden;
    const int64_t chunks = hidden / 8;
    const int64_t first = task->block * 128;
    const int64_t ring_row = (task->block - mok_macro_begin(plan, task->macro)) * 128;
    for (int row = threadIdx.x / 32; row < 128; row += MOK_SM90_THREADS / 32) {
        const int32_t peer = mine.peer_rank[first + row];
        uint4 *to = (uint4 *)(void *)(mine.ring_x + (ring_row + row) * hidden);
        if (peer < 0) {
            sm90_zero_row(to, chunks);
            continue;
        }
        const int64_t token = mine.peer_slot[first + row] / mine.shape.slots;
        const mok_sm90_rank &source = p.rank[peer];
        sm90_copy_row(to, (const uint4 *)(const void *)(source.x + token * source.x_stride), chunks);
    }
    ptx_fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 0; i < task->raise_count; i++) {
            ptx_add_release_gpu(&mine.counters[task->raise_idx[i]], 1);
        }
    }
}

/* The communication list of this rank, dealt out to its communication blocks in turn. */
static __device__ __noinline__ void sm90_dispatch(const mok_sm90_forward &p, int32_t rank, int32_t local,
                                     sm90_control *control)
{
    const mok_sm90_rank &mine = p.rank[rank];
    mok_plan plan = control->plan;
    plan.list_compute = false;
    mok_cursor cursor = mok_cursor_make();
    const int64_t count = mok_task_count(&plan);
    for (int64_t idx = local; idx < count; idx += p.comm_blocks) {
        const mok_task task = mok_cursor_task(&plan, &cursor, idx);
        if (threadIdx.x == 0) {
            bool ready = true;
            for (int i = 0; i < task.wait_count && ready; i++) {
                ready = sm90_wait<false>(p, &mine.counters[task.wait_idx[i]], task.wait_value[i], rank,
                                         rank, MOK_SM90_PHASE_FORWARD, idx);
            }
            control->flag = ready ? 1u : 0u;
        }
        __syncthreads();
        const bool go = control->flag != 0u;
        __syncthreads();
        if (!go) {
            return;
        }
        sm90_dispatch_block(p, mine, &plan, &task);
    }
}

#endif
