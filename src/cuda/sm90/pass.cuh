/* The body of both megakernels.
 *
 * The grid is cut into R equal parts, one block an SM. A rank's first comm_blocks blocks begin with
 * the communication list and join the computing blocks when it is done. Each computing block splits
 * into a producer thread, three store warps and two consumer warpgroups; then all blocks meet and
 * fold. `role` is the pass's sequence of roles. */
#ifndef MOK_CUDA_SM90_PASS_CUH
#define MOK_CUDA_SM90_PASS_CUH

#include "cuda/sm90/dispatch.cuh"
#include "cuda/sm90/fold.cuh"
#include "cuda/sm90/trace.cuh"

template <int pass>
struct sm90_roles; /* load: a table into shared memory; run: a computing block */

template <int pass>
static __device__ __forceinline__ void sm90_pass(const mok_sm90_pass &p, unsigned char *shared)
{
    sm90_control *control = sm90_control_of(shared);
    const int32_t rank = p.first_rank + (int32_t)blockIdx.x / p.blocks_per_rank;
    const int32_t local = (int32_t)blockIdx.x % p.blocks_per_rank;
    if (rank == p.stalled_rank || sm90_aborted(p)) {
        return; /* an earlier kernel of the step has failed: nothing may be written */
    }
    const mok_sm90_rank &mine = p.rank[rank];
    const uint32_t epoch = *mine.epoch + 1;
    if (threadIdx.x == 0) {
        sm90_control_init(control);
        sm90_trace_mark(p, 0);
    }
    sm90_roles<pass>::load(p, shared);
    __syncthreads();
    if (local < p.comm_blocks) {
        sm90_dispatch(p, rank, local, shared, control);
        __syncthreads();
    }
    sm90_roles<pass>::run(p, rank, shared, control);
    const int64_t computed = sm90_clock();
    if (sm90_rank_barrier(p, rank, epoch, control)) {
        const int64_t met = sm90_clock();
        sm90_fold<pass>(mine, local, p.blocks_per_rank);
        if (threadIdx.x == 0) {
            sm90_trace(p, MOK_SM90_ROLE_COMM, MOK_SM90_BARRIER, MOK_TASK_FOLD, -1, 0, computed,
                       met);
            sm90_trace(p, MOK_SM90_ROLE_COMM, MOK_SM90_FOLD, MOK_TASK_FOLD, -1, 0, met,
                       sm90_clock());
            sm90_trace_mark(p, 1);
        }
    }
    sm90_leave(p, mine, epoch, control);
}

#endif
