/* silu and its slope of a bf16, from a table by magnitude.
 *
 * Entry m holds e = exp(-m) and the rounded reciprocal of d = 1 + e. A quotient n / d is then n *
 * r, one remainder and one correction, all by fused multiply-adds: as a correctly rounded
 * reciprocal makes the corrected quotient the correctly rounded one. That the bits are those of
 * numerics/exp.h is not taken from this argument: the self-test at open compares all of them. */
#ifndef MOK_CUDA_SM90_SILU_CUH
#define MOK_CUDA_SM90_SILU_CUH

#include "cuda/sm90/params.h"
#include "cuda/sm90/ptx/matrix.cuh"

/* Magnitudes in [2^-11, 8); others come from the whole table of pairs. */
#define SM90_SLOPE_FIRST (116 << 7) /* bf16 bits of 2^-11 */
#define SM90_SLOPE_HALF MOK_SM90_SILU_PARTS

static __device__ __forceinline__ float sm90_quotient(float n, float d, float reciprocal)
{
    const float q = __fmul_rn(n, reciprocal);
    return __fmaf_rn(__fmaf_rn(-q, d, n), reciprocal, q);
}

/* x: silu, y: its slope, of g. part: the entry of its magnitude. */
static __device__ __forceinline__ float2 sm90_silu_of_part(float2 part, float g)
{
    const bool negative = g < 0.0f;
    const float d = __fadd_rn(1.0f, part.x);
    const float high = part.y; /* sigmoid of the magnitude */
    const float low = sm90_quotient(part.x, d, part.y);
    float2 out;
    out.x = sm90_quotient(negative ? __fmul_rn(g, part.x) : g, d, part.y);
    out.y = __fmul_rn(negative ? low : high, __fmaf_rn(g, negative ? high : low, 1.0f));
    return out;
}

#endif
