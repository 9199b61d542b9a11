/* Rounding and storing of accumulator fragments: one PTX instruction a wrapper. */
#ifndef MOK_PTX_MATRIX_CUH
#define MOK_PTX_MATRIX_CUH

#include <stdint.h>

/* Two bf16, round to nearest even, NaN 0x7FFF; low goes to bits 0-15. */
static __device__ __forceinline__ uint32_t ptx_round_bf16x2(float low, float high)
{
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

/* Four 8 x 8 matrices of bf16; lane l gives the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void ptx_stmatrix_x4(uint32_t address, uint32_t m0, uint32_t m1,
                                                       uint32_t m2, uint32_t m3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}

/* Reads of shared memory by its own 32-bit addresses: half the registers of a generic pointer. */
static __device__ __forceinline__ uint4 ptx_load_shared_16(uint32_t address)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

static __device__ __forceinline__ float2 ptx_load_shared_pair(uint32_t address)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}

static __device__ __forceinline__ void ptx_store_shared_pair(uint32_t address, float x, float y)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

#endif
