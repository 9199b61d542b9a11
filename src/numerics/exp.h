/* exp, sigmoid, silu and its derivative as fixed sequences of IEEE operations (docs/numerics.md,
 * 2).
 *
 * exp reduces x to r = x - n ln 2 with ln 2 in two parts, evaluates a polynomial q of degree 6 and
 * scales by 2^n in two factors, so that neither factor leaves the normal range and a subnormal
 * result is rounded once. The sigmoid family takes exp of -|x| only: nothing overflows and 1 + e
 * lies in [1, 2]. */
#ifndef MOK_NUMERICS_EXP_H
#define MOK_NUMERICS_EXP_H

#include "numerics/bits.h"

#define MOK_EXP_MIN (-104.0f)
#define MOK_EXP_MAX 88.72283f
#define MOK_EXP_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
#define MOK_EXP_LOG2E 0x1.715476p+0f
#define MOK_EXP_LN2_HIGH (-0x1.62e4p-1f)
#define MOK_EXP_LN2_LOW (-0x1.7f7d1cp-20f)
#define MOK_EXP_C6 0x1.6a2406p-10f
#define MOK_EXP_C5 0x1.1239fep-7f
#define MOK_EXP_C4 0x1.5558f2p-5f
#define MOK_EXP_C3 0x1.555492p-3f
#define MOK_EXP_C2 0x1.fffffcp-2f

/* exp(x) = q * s1 * s2, not yet multiplied. */
typedef struct mok_exp_parts {
    float q;
    float s1;
    float s2;
} mok_exp_parts;

/* x in [MOK_EXP_MIN, MOK_EXP_MAX]. */
MOK_HD static inline mok_exp_parts mok_exp_split(float x)
{
    const float t = mok_fma(x, MOK_EXP_LOG2E, MOK_EXP_MAGIC);
    const float n = t - MOK_EXP_MAGIC;
    const int32_t n_int = (int32_t)(mok_f32_bits(t) - mok_f32_bits(MOK_EXP_MAGIC));
    /* n >> 1 rounded down, without shifting a negative number. */
    const int32_t half = (n_int + 512) / 2 - 256;
    float r = mok_fma(n, MOK_EXP_LN2_HIGH, x);
    mok_exp_parts parts;
    r = mok_fma(n, MOK_EXP_LN2_LOW, r);
    parts.q = MOK_EXP_C6;
    parts.q = mok_fma(parts.q, r, MOK_EXP_C5);
    parts.q = mok_fma(parts.q, r, MOK_EXP_C4);
    parts.q = mok_fma(parts.q, r, MOK_EXP_C3);
    parts.q = mok_fma(parts.q, r, MOK_EXP_C2);
    parts.q = mok_fma(parts.q, r, 1.0f);
    parts.q = mok_fma(parts.q, r, 1.0f);
    parts.s1 = mok_f32_exp2(half);
    parts.s2 = mok_f32_exp2(n_int - half);
    return parts;
}

/* Below MOK_EXP_MIN +0, above MOK_EXP_MAX infinity. */
MOK_HD static inline float mok_exp_f32(float x)
{
    mok_exp_parts parts;
    if (mok_f32_is_nan(x)) {
        return mok_f32_nan();
    }
    if (x < MOK_EXP_MIN) {
        return 0.0f;
    }
    if (x > MOK_EXP_MAX) {
        return mok_f32_of_bits(MOK_F32_INF_BITS);
    }
    parts = mok_exp_split(x);
    return parts.q * parts.s1 * parts.s2;
}

/* max(-|x|, MOK_EXP_MIN), x not NaN. */
MOK_HD static inline float mok_exp_argument(float x)
{
    const float a = x < 0.0f ? x : -x;
    return a < MOK_EXP_MIN ? MOK_EXP_MIN : a;
}

MOK_HD static inline float mok_sigmoid_f32(float x)
{
    float e;
    if (mok_f32_is_nan(x)) {
        return mok_f32_nan();
    }
    e = mok_exp_f32(mok_exp_argument(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* For negative x the numerator is formed before scaling, so that a subnormal e costs no precision.
 */
MOK_HD static inline float mok_silu_f32(float x)
{
    mok_exp_parts parts;
    float a, e;
    if (mok_f32_is_nan(x)) {
        return mok_f32_nan();
    }
    a = mok_exp_argument(x);
    parts = mok_exp_split(a);
    e = parts.q * parts.s1 * parts.s2;
    return (x < 0.0f ? a * parts.q * parts.s1 * parts.s2 : x) / (1.0f + e);
}

/* s * fma(x, t, 1), s = sigmoid(x), t = sigmoid(-x). At an infinity it is NaN: 0 * inf. */
MOK_HD static inline float mok_dsilu_f32(float x)
{
    float e, s, t;
    if (mok_f32_is_nan(x)) {
        return mok_f32_nan();
    }
    e = mok_exp_f32(mok_exp_argument(x));
    s = (x < 0.0f ? e : 1.0f) / (1.0f + e);
    t = (x < 0.0f ? 1.0f : e) / (1.0f + e);
    return mok_f32_canonical(s * mok_fma(x, t, 1.0f));
}

#endif
