/* What the library demands of a device before it computes with it.
 *
 *   silu       the tables of silu and its slope over all bf16 values, by the shared exact functions
 *   products   chains of directed and random cases through the very instruction of the megakernel,
 * from the same shared-memory layout, to be compared with the scalar rule on the CPU */
#include "cuda/sm90/params.h"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/sync.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"
#include "cuda/sm90/silu.cuh"
#include "numerics/exp.h"

/* silu of all bf16 values, then pairs of it and its slope, then what gives such pairs. The pairs
 * that backward computes from the last are computed the same way here, so that comparing the table
 * with the CPU's functions tests them. */
extern "C" __global__ void mok_sm90_silu_table(float *table)
{
    const uint32_t bits = blockIdx.x * blockDim.x + threadIdx.x;
    if (bits < 65536) {
        const float x = mok_f32_of_bits(bits << 16);
        const uint32_t at = (bits & 0x7FFF) - SM90_SLOPE_FIRST;
        float2 pair = {mok_silu_f32(x), mok_dsilu_f32(x)};
        table[bits] = pair.x;
        if (at < SM90_SLOPE_HALF) {
            const float e = mok_exp_f32(mok_exp_argument(x));
            const float2 part = {e, __fdiv_rn(1.0f, __fadd_rn(1.0f, e))};
            pair = sm90_silu_of_part(part, x);
            if (bits < 32768) {
                table[3 * 65536 + 2 * at] = part.x;
                table[3 * 65536 + 2 * at + 1] = part.y;
            }
        }
        table[65536 + 2 * bits] = pair.x;
        table[65536 + 2 * bits + 1] = pair.y;
    }
}

/* One warpgroup: c[64][256] = a[64][64] . b[256][64]^T continued from c. Both operands are
 * row-major. */
extern "C" __global__ void __launch_bounds__(128, 1)
    mok_sm90_product_test(float *c, const uint16_t *a, const uint16_t *b)
{
    extern __shared__ __align__(1024) unsigned char tile[];
    const int thread = threadIdx.x;
    for (int i = thread; i < 320 * 64; i += 128) {
        const int row = i / 64;
        const int col = i % 64;
        const uint16_t value = row < 64 ? a[row * 64 + col] : b[(row - 64) * 64 + col];
        const int chunk = (col / 8) ^ (row % 8); /* the 128-byte swizzle */
        *(uint16_t *)(void *)(tile + row * 128 + chunk * 16 + col % 8 * 2) = value;
    }
    ptx_fence_proxy_async();
    __syncthreads();
    const int row = thread / 32 * 16 + thread % 32 / 4;
    const int col = thread % 4 * 2;
    float d[128];
#pragma unroll
    for (int j = 0; j < 32; j++) {
        d[4 * j] = c[row * 256 + 8 * j + col];
        d[4 * j + 1] = c[row * 256 + 8 * j + col + 1];
        d[4 * j + 2] = c[(row + 8) * 256 + 8 * j + col];
        d[4 * j + 3] = c[(row + 8) * 256 + 8 * j + col + 1];
    }
    const uint64_t left = wgmma_descriptor(ptx_shared_address(tile));
    const uint64_t right = wgmma_descriptor(ptx_shared_address(tile + 8192));
    ptx_wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        ptx_wgmma_m64n256k16<0, 0>(d, left + 2 * i, right + 2 * i, 1);
    }
    ptx_wgmma_commit();
    ptx_wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < 32; j++) {
        c[row * 256 + 8 * j + col] = d[4 * j];
        c[row * 256 + 8 * j + col + 1] = d[4 * j + 1];
        c[(row + 8) * 256 + 8 * j + col] = d[4 * j + 2];
        c[(row + 8) * 256 + 8 * j + col + 1] = d[4 * j + 3];
    }
}

extern "C" const void *mok_sm90_silu_table_function(void)
{
    return (const void *)mok_sm90_silu_table;
}

extern "C" const void *mok_sm90_product_test_function(void)
{
    return (const void *)mok_sm90_product_test;
}
