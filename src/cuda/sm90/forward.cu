/* The forward megakernel: dispatch, products, SwiGLU, combine and fold of every virtual rank in one
 * launch. */
#include "cuda/sm90/consumer.cuh"
#include "cuda/sm90/pass.cuh"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/store.cuh"

template <> struct sm90_roles<MOK_PASS_FORWARD> {
    static __device__ __forceinline__ void load(const mok_sm90_pass &p, unsigned char *shared)
    {
        sm90_silu_load(p, (float *)(void *)(shared + SM90_SILU_OFFSET));
    }

    static __device__ __forceinline__ void run(const mok_sm90_pass &p, int32_t rank,
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
            ptx_registers_raise<168>(); /* the fold is compiled for what the launch gave each thread
                                         */
        } else {
            ptx_registers_raise<200>();
            sm90_consumer(p, shared, control, group - 1);
            ptx_registers_lower<168>();
        }
    }
};

extern "C" __global__ void __launch_bounds__(MOK_SM90_THREADS, 1)
    mok_sm90_forward_kernel(const __grid_constant__ mok_sm90_pass p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    sm90_pass<MOK_PASS_FORWARD>(p, shared);
}

extern "C" const void *mok_sm90_forward_function(void)
{
    return (const void *)mok_sm90_forward_kernel;
}

extern "C" int mok_sm90_forward_shared_bytes(void)
{
    return SM90_SHARED_BYTES;
}
