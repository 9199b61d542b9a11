/* Floats as bits, and the few IEEE steps that every other header here is made of.
 *
 * The headers of this folder are C11 that nvcc also compiles, for host and device: MOK_HD marks the
 * functions. They use only + - * / and fma in round-to-nearest and integer operations, so that a
 * CPU and a GPU give the same bits; NaN results are made canonical because the two keep different
 * payloads. */
#ifndef MOK_NUMERICS_BITS_H
#define MOK_NUMERICS_BITS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MOK_HD __host__ __device__
#else
#define MOK_HD
#endif

#define MOK_F32_NAN_BITS 0x7FFFFFFFu
#define MOK_F32_INF_BITS 0x7F800000u

MOK_HD static inline uint32_t mok_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

MOK_HD static inline float mok_f32_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

MOK_HD static inline bool mok_f32_is_nan(float x)
{
    return (mok_f32_bits(x) & 0x7FFFFFFFu) > MOK_F32_INF_BITS;
}

MOK_HD static inline float mok_f32_nan(void)
{
    return mok_f32_of_bits(MOK_F32_NAN_BITS);
}

/* Every NaN becomes the one NaN that leaves the library. */
MOK_HD static inline float mok_f32_canonical(float x)
{
    return mok_f32_is_nan(x) ? mok_f32_nan() : x;
}

/* The end of a product's chain: zeros are +0 and NaNs canonical. */
MOK_HD static inline float mok_f32_finish(float x)
{
    return x == 0.0f ? 0.0f : mok_f32_canonical(x);
}

/* 2^e for a normal result, e in [-126, 127]. */
MOK_HD static inline float mok_f32_exp2(int32_t e)
{
    return mok_f32_of_bits((uint32_t)(e + 127) << 23);
}

/* One rounding. The CPU's fmaf is an instruction or the C library's exact emulation of it. */
MOK_HD static inline float mok_fma(float a, float b, float c)
{
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return fmaf(a, b, c);
#endif
}

#endif
