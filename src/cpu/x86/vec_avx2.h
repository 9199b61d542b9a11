/* Eight lanes of the elementwise arithmetic, step for step as in src/numerics.
 *
 * Each function here is the vector form of the scalar function that its comment names; a lane's
 * result is the scalar's bits. Only for files compiled with -mavx2 -mfma (and AVX-512 files, which
 * have both). */
#ifndef MOK_CPU_X86_VEC_AVX2_H
#define MOK_CPU_X86_VEC_AVX2_H

#include <immintrin.h>

#include "numerics/bf16.h"
#include "numerics/exp.h"

static inline __m256 vec_bits(uint32_t bits)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)bits));
}

/* Eight bf16 at p, or fewer with zeros behind them; nothing is read past p[count - 1]. */
static inline __m128i vec_load_u16(const uint16_t *p, int64_t count)
{
    uint16_t part[8] = {0};
    if (count >= 8) {
        return _mm_loadu_si128((const __m128i *)(const void *)p);
    }
    for (int64_t i = 0; i < count; i++) {
        part[i] = p[i];
    }
    return _mm_loadu_si128((const __m128i *)(const void *)part);
}

static inline void vec_store_u16(uint16_t *p, __m128i x, int64_t count)
{
    uint16_t part[8];
    if (count >= 8) {
        _mm_storeu_si128((__m128i *)(void *)p, x);
        return;
    }
    _mm_storeu_si128((__m128i *)(void *)part, x);
    for (int64_t i = 0; i < count; i++) {
        p[i] = part[i];
    }
}

static inline __m256i vec_tail_mask(int64_t count)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count < 8 ? (int32_t)count : 8), lane);
}

static inline __m256 vec_load_f32(const float *p, int64_t count)
{
    return count >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, vec_tail_mask(count));
}

static inline void vec_store_f32(float *p, __m256 x, int64_t count)
{
    if (count >= 8) {
        _mm256_storeu_ps(p, x);
    } else {
        _mm256_maskstore_ps(p, vec_tail_mask(count), x);
    }
}

/* mok_f32_canonical. where_nan is compared, so that a caller may canonicalise by an input. */
static inline __m256 vec_canonical_by(__m256 x, __m256 where_nan)
{
    return _mm256_blendv_ps(x, vec_bits(MOK_F32_NAN_BITS),
                            _mm256_cmp_ps(where_nan, where_nan, _CMP_UNORD_Q));
}

static inline __m256 vec_canonical(__m256 x)
{
    return vec_canonical_by(x, x);
}

/* mok_bf16_widen */
static inline __m256 vec_widen(__m128i x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/* mok_bf16_round */
static inline __m128i vec_round(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_srli_epi32(up, 16);
    const __m256i all = _mm256_blendv_epi8(rounded, _mm256_set1_epi32((int32_t)MOK_BF16_NAN), nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(all, all), 0x08);
    return _mm256_castsi256_si128(packed);
}

typedef struct vec_exp_parts {
    __m256 q, s1, s2;
} vec_exp_parts;

/* mok_exp_split */
static inline vec_exp_parts vec_exp_split(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(MOK_EXP_MAGIC);
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(MOK_EXP_LOG2E), magic);
    const __m256 n = _mm256_sub_ps(t, magic);
    const __m256i n_int = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic));
    const __m256i half = _mm256_srai_epi32(n_int, 1);
    const __m256i rest = _mm256_sub_epi32(n_int, half);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(MOK_EXP_LN2_HIGH), x);
    __m256 q = _mm256_set1_ps(MOK_EXP_C6);
    vec_exp_parts parts;
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(MOK_EXP_LN2_LOW), r);
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(MOK_EXP_C5));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(MOK_EXP_C4));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(MOK_EXP_C3));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(MOK_EXP_C2));
    q = _mm256_fmadd_ps(q, r, one);
    q = _mm256_fmadd_ps(q, r, one);
    parts.q = q;
    parts.s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    parts.s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return parts;
}

/* mok_exp_f32 */
static inline __m256 vec_exp(__m256 x)
{
    const __m256 low = _mm256_set1_ps(MOK_EXP_MIN);
    const __m256 high = _mm256_set1_ps(MOK_EXP_MAX);
    const __m256 inside = _mm256_min_ps(_mm256_max_ps(x, low), high);
    const vec_exp_parts parts = vec_exp_split(inside);
    __m256 e = _mm256_mul_ps(_mm256_mul_ps(parts.q, parts.s1), parts.s2);
    e = _mm256_blendv_ps(e, _mm256_setzero_ps(), _mm256_cmp_ps(x, low, _CMP_LT_OQ));
    e = _mm256_blendv_ps(e, vec_bits(MOK_F32_INF_BITS), _mm256_cmp_ps(x, high, _CMP_GT_OQ));
    return vec_canonical_by(e, x);
}

/* What sigmoid, silu and dsilu share: the argument max(-|x|, -104), its exp, and x < 0. */
typedef struct vec_logistic {
    __m256 x, a, e, negative, divisor;
    vec_exp_parts parts;
} vec_logistic;

static inline vec_logistic vec_logistic_of(__m256 x)
{
    vec_logistic l;
    l.x = x;
    /* The sign bit set is -|x|; a NaN in the first operand gives the second, and is restored at the
     * end. */
    l.a = _mm256_max_ps(_mm256_or_ps(x, vec_bits(0x80000000u)), _mm256_set1_ps(MOK_EXP_MIN));
    l.parts = vec_exp_split(l.a);
    l.e = _mm256_mul_ps(_mm256_mul_ps(l.parts.q, l.parts.s1), l.parts.s2);
    l.negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
    l.divisor = _mm256_add_ps(_mm256_set1_ps(1.0f), l.e);
    return l;
}

/* mok_sigmoid_f32 */
static inline __m256 vec_sigmoid(const vec_logistic *l)
{
    const __m256 top = _mm256_blendv_ps(_mm256_set1_ps(1.0f), l->e, l->negative);
    return vec_canonical_by(_mm256_div_ps(top, l->divisor), l->x);
}

/* mok_silu_f32 */
static inline __m256 vec_silu(const vec_logistic *l)
{
    const __m256 scaled =
        _mm256_mul_ps(_mm256_mul_ps(_mm256_mul_ps(l->a, l->parts.q), l->parts.s1), l->parts.s2);
    const __m256 top = _mm256_blendv_ps(l->x, scaled, l->negative);
    return vec_canonical_by(_mm256_div_ps(top, l->divisor), l->x);
}

/* mok_dsilu_f32 */
static inline __m256 vec_dsilu(const vec_logistic *l)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 s = _mm256_div_ps(_mm256_blendv_ps(one, l->e, l->negative), l->divisor);
    const __m256 t = _mm256_div_ps(_mm256_blendv_ps(l->e, one, l->negative), l->divisor);
    return vec_canonical(_mm256_mul_ps(s, _mm256_fmadd_ps(l->x, t, one)));
}

#endif
