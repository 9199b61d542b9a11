/* Memory order between threads, blocks, ranks and the copy engine: one PTX instruction a wrapper. */
#ifndef MOK_PTX_SYNC_CUH
#define MOK_PTX_SYNC_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t ptx_load_acquire_gpu(const uint32_t *address)
{
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

static __device__ __forceinline__ uint32_t ptx_load_acquire_sys(const uint32_t *address)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

static __device__ __forceinline__ void ptx_store_release_sys(uint32_t *address, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

static __device__ __forceinline__ void ptx_add_release_gpu(uint32_t *address, uint32_t value)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

static __device__ __forceinline__ uint32_t ptx_add_acq_rel_sys(uint32_t *address, uint32_t value)
{
    uint32_t before;
    asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(value)
                 : "memory");
    return before;
}

/* Loads that leave their result as it is where `wanted` is 0: no branch, so that several are in flight. */
static __device__ __forceinline__ void ptx_load_if(float &x, const float *address, uint32_t wanted)
{
    asm("{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %2, 0;\n"
        "@p ld.global.nc.f32 %0, [%1];\n"
        "}"
        : "+f"(x)
        : "l"(address), "r"(wanted));
}

/* x stays as it is where at < limit. */
static __device__ __forceinline__ void ptx_load_pair_from(float2 &x, const float2 *address, uint32_t at,
                                                          uint32_t limit)
{
    asm("{\n"
        ".reg .pred p;\n"
        "setp.ge.u32 p, %3, %4;\n"
        "@p ld.global.nc.v2.f32 {%0, %1}, [%2];\n"
        "}"
        : "+f"(x.x), "+f"(x.y)
        : "l"(address), "r"(at), "r"(limit));
}

/* Orders ordinary accesses and those of the copy engine and tensor core, global and shared. */
static __device__ __forceinline__ void ptx_fence_proxy_async(void)
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

static __device__ __forceinline__ uint64_t ptx_global_timer_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

static __device__ __forceinline__ void ptx_nanosleep(uint32_t ns)
{
    asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}

template <int registers> static __device__ __forceinline__ void ptx_registers_raise(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> static __device__ __forceinline__ void ptx_registers_lower(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* threadIdx.x, read anew: a comparison with it is not kept in a register between two places. */
static __device__ __forceinline__ uint32_t ptx_thread(void)
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

#endif
