/* Tensor copies by the bulk copy engine: one PTX instruction a wrapper. */
#ifndef MOK_PTX_TMA_CUH
#define MOK_PTX_TMA_CUH

#include <cuda.h>
#include <stdint.h>

static __device__ __forceinline__ void ptx_prefetch_tensormap(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* c0 is the innermost coordinate; elements outside the tensor arrive as zeros and count as bytes. */
static __device__ __forceinline__ void ptx_tma_load_2d(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                                       int32_t c0, int32_t c1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1)
                 : "memory");
}

static __device__ __forceinline__ void ptx_tma_load_3d(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                                       int32_t c0, int32_t c1, int32_t c2)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}

static __device__ __forceinline__ void ptx_tma_load_4d(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                                       int32_t c0, int32_t c1, int32_t c2, int32_t c3)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}

/* From shared to global memory, in a group of the issuing thread; what lies outside the tensor is not stored. */
static __device__ __forceinline__ void ptx_tma_store_3d(const CUtensorMap *map, uint32_t from, int32_t c0,
                                                        int32_t c1, int32_t c2)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(from), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}

#endif
