/* The backward megakernel: dispatch of dy, s = dy . Wdown^T with SwiGLU's slopes, dx, weight
 * gradients, combine and fold of every virtual rank in one launch. x, g and u are still in the ring
 * from forward.
 *
 * A weight gradient waits until all of its rank's d_hidden tiles are done; its chain runs over the
 * expert's rows in schedule order and is never split. */
#include "cuda/sm90/consumer_backward.cuh"
#include "cuda/sm90/pass.cuh"
#include "cuda/sm90/producer.cuh"

template <> struct sm90_roles<MOK_PASS_BACKWARD> {
    static __device__ __forceinline__ void load(const mok_sm90_pass &p, unsigned char *shared)
    {
        sm90_slopes_load(p, (float2 *)(void *)(shared + SM90_SILU_OFFSET));
    }

    static __device__ __forceinline__ void run(const mok_sm90_pass &p, int32_t rank,
                                               unsigned char *shared, sm90_control *control)
    {
        const int group = threadIdx.x / 128;
        if (group == 0) {
            ptx_registers_lower<56>();
            if (threadIdx.x == 0) {
                sm90_producer<MOK_PASS_BACKWARD>(p, rank, shared, control);
            } else if (threadIdx.x >= 32) {
                sm90_stores<MOK_PASS_BACKWARD>(p, rank, shared, control);
            }
            __syncwarp();
            ptx_registers_raise<168>();
        } else {
            ptx_registers_raise<224>();
            sm90_consumer_backward(p, rank, shared, control, group - 1);
            ptx_registers_lower<168>();
        }
    }
};

extern "C" __global__ void __launch_bounds__(MOK_SM90_THREADS, 1)
    mok_sm90_backward_kernel(const __grid_constant__ mok_sm90_pass p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    sm90_pass<MOK_PASS_BACKWARD>(p, shared);
}

extern "C" const void *mok_sm90_backward_function(void)
{
    return (const void *)mok_sm90_backward_kernel;
}
