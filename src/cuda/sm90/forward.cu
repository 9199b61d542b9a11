/* The forward megakernel: dispatch, products, SwiGLU, combine and fold of every virtual rank in one launch.
 *
 * The grid is cut into R equal parts, one block an SM. A rank's first comm_blocks blocks begin with the
 * communication list and join the computing blocks when it is done. Each computing block splits into a
 * producer thread, three store warps and two consumer warpgroups; then all blocks meet and fold. */
#include "cuda/sm90/block.cuh"
#include "cuda/sm90/consumer.cuh"
#include "cuda/sm90/dispatch.cuh"
#include "cuda/sm90/fold.cuh"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/store.cuh"
#include "cuda/sm90/trace.cuh"

static __device__ __forceinline__ void sm90_compute(const mok_sm90_pass &p, int32_t rank,
                                                    unsigned char *shared, sm90_control *control)
{
    const int group = threadIdx.x / 128;
    if (group == 0) {
        ptx_registers_lower<104>();
        if (threadIdx.x == 0) {
            sm90_producer<MOK_PASS_FORWARD>(p, rank, shared, control);
        } else if (threadIdx.x >= 32) {
            sm90_stores<MOK_PASS_FORWARD>(p, rank, shared, control);
        }
        __syncwarp();
        ptx_registers_raise<168>(); /* the fold is compiled for what the launch gave each thread */
    } else {
        ptx_registers_raise<200>();
        sm90_consumer(p, shared, control, group - 1);
        ptx_registers_lower<168>();
    }
}

extern "C" __global__ void __launch_bounds__(MOK_SM90_THREADS, 1)
    mok_sm90_forward_kernel(const __grid_constant__ mok_sm90_pass p)
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
    sm90_silu_load(p, (float *)(void *)(shared + SM90_SILU_OFFSET));
    __syncthreads();
    if (local < p.comm_blocks) {
        sm90_dispatch(p, rank, local, shared, control);
        __syncthreads();
    }
    sm90_compute(p, rank, shared, control);
    const int64_t computed = sm90_clock();
    if (sm90_rank_barrier(p, rank, epoch, control)) {
        const int64_t met = sm90_clock();
        sm90_fold<MOK_PASS_FORWARD>(mine, local, p.blocks_per_rank);
        if (threadIdx.x == 0) {
            sm90_trace(p, MOK_SM90_ROLE_COMM, MOK_SM90_BARRIER, MOK_TASK_FOLD, -1, 0, computed, met);
            sm90_trace(p, MOK_SM90_ROLE_COMM, MOK_SM90_FOLD, MOK_TASK_FOLD, -1, 0, met, sm90_clock());
            sm90_trace_mark(p, 1);
        }
    }
    sm90_leave(p, mine, epoch, control);
}

extern "C" const void *mok_sm90_forward_function(void)
{
    return (const void *)mok_sm90_forward_kernel;
}

extern "C" int mok_sm90_forward_shared_bytes(void)
{
    return SM90_SHARED_BYTES;
}
