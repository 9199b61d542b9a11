/* The backward megakernel: dispatch of dy, s = dy . Wdown^T with SwiGLU's slopes, dx, weight gradients, combine and
 * fold of every virtual rank in one launch. x, g and u are still in the ring from forward.
 *
 * Blocks and roles are those of forward.cu. A weight gradient waits until all of its rank's d_hidden tiles are
 * done; its chain runs over the expert's rows in schedule order and is never split. */
#include "cuda/sm90/block.cuh"
#include "cuda/sm90/consumer_backward.cuh"
#include "cuda/sm90/dispatch.cuh"
#include "cuda/sm90/fold.cuh"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/trace.cuh"

static __device__ __forceinline__ void sm90_compute(const mok_sm90_pass &p, int32_t rank, unsigned char *shared,
                                                    sm90_control *control)
{
    const int group = threadIdx.x / 128;
    if (group == 0) {
        ptx_registers_lower<88>();
        if (threadIdx.x == 0) {
            sm90_producer<MOK_PASS_BACKWARD>(p, rank, shared, control);
        } else if (threadIdx.x >= 32) {
            sm90_stores<MOK_PASS_BACKWARD>(p, rank, shared, control);
        }
        __syncwarp();
        ptx_registers_raise<168>();
    } else {
        ptx_registers_raise<208>();
        sm90_consumer_backward(p, rank, shared, control, group - 1);
        ptx_registers_lower<168>();
    }
}

extern "C" __global__ void __launch_bounds__(MOK_SM90_THREADS, 1)
    mok_sm90_backward_kernel(const __grid_constant__ mok_sm90_pass p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    sm90_control *control = sm90_control_of(shared);
    const int32_t rank = (int32_t)blockIdx.x / p.blocks_per_rank;
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
    sm90_slopes_load(p, (float2 *)(void *)(shared + SM90_SILU_OFFSET));
    __syncthreads();
    if (local < p.comm_blocks) {
        sm90_dispatch(p, rank, local, shared, control);
        __syncthreads();
    }
    sm90_compute(p, rank, shared, control);
    const int64_t computed = sm90_clock();
    if (sm90_rank_barrier(p, rank, epoch, control)) {
        const int64_t met = sm90_clock();
        sm90_fold<MOK_PASS_BACKWARD>(mine, local, p.blocks_per_rank);
        if (threadIdx.x == 0) {
            sm90_trace(p, MOK_SM90_ROLE_COMM, MOK_SM90_BARRIER, MOK_TASK_FOLD, -1, 0, computed, met);
            sm90_trace(p, MOK_SM90_ROLE_COMM, MOK_SM90_FOLD, MOK_TASK_FOLD, -1, 0, met, sm90_clock());
            sm90_trace_mark(p, 1);
        }
    }
    sm90_leave(p, mine, epoch, control);
}

extern "C" const void *mok_sm90_backward_function(void)
{
    return (const void *)mok_sm90_backward_kernel;
}
