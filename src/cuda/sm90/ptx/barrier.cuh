/* mbarriers in shared memory: one PTX instruction a wrapper. Addresses are 32-bit shared addresses. */
#ifndef MOK_PTX_BARRIER_CUH
#define MOK_PTX_BARRIER_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t ptx_shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

static __device__ __forceinline__ void ptx_mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

static __device__ __forceinline__ void ptx_fence_mbarrier_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void ptx_mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void ptx_mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* True when the phase of this parity is complete; may suspend the thread for a while. */
static __device__ __forceinline__ bool ptx_mbarrier_try_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Waits inside one block only: what it waits for needs no other block, so it always comes. */
static __device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    while (!ptx_mbarrier_try_wait(barrier, parity)) {
    }
}

/* A barrier among `threads` threads of a block; id 1..15 (0 is __syncthreads). */
template <int id, int threads> static __device__ __forceinline__ void ptx_bar_sync(void)
{
    asm volatile("bar.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

#endif
