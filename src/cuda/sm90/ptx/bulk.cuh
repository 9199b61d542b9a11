/* Plain copies by the bulk copy engine: one PTX instruction a wrapper. Addresses and bytes are multiples of
 * 16. Loads complete on an mbarrier, stores in groups of the issuing thread. */
#ifndef MOK_PTX_BULK_CUH
#define MOK_PTX_BULK_CUH

#include <stdint.h>

static __device__ __forceinline__ void ptx_bulk_load(uint32_t to, const void *from, uint32_t bytes,
                                                     uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void ptx_bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void ptx_bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* The thread's groups but the last `pending` have read their source. */
template <int pending> static __device__ __forceinline__ void ptx_bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/* The thread's groups but the last `pending` have written. */
template <int pending> static __device__ __forceinline__ void ptx_bulk_wait(void)
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

/* 16 bytes from global to shared memory, past the registers; awaited by the issuing thread. */
static __device__ __forceinline__ void ptx_copy_async_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void ptx_copy_async_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#endif
