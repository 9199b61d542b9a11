/* SwiGLU forward and backward, eight columns at a time (numerics/swiglu.h is the scalar form).
 *
 * The router weight's tree over 128 columns adds at distances 64 to 8 between whole vectors and at
 * 4, 2, 1 inside the last one. */
#include "cpu/x86/kernels_avx2.h"
#include "cpu/x86/vec_avx2.h"

#define CHUNK_VECTORS 16

/* g and u as the activation uses them. Not clamped is a limit that no comparison exceeds. */
typedef struct clamp {
    __m256 limit, minus_limit;
} clamp;

static inline clamp clamp_of(const mok_swiglu *swiglu)
{
    const float limit = swiglu->clamped ? swiglu->limit : mok_f32_of_bits(MOK_F32_INF_BITS);
    clamp c;
    c.limit = _mm256_set1_ps(limit);
    c.minus_limit = _mm256_set1_ps(-limit);
    return c;
}

static inline __m256 above(const clamp *c, __m256 x)
{
    return _mm256_cmp_ps(x, c->limit, _CMP_GT_OQ);
}

static inline __m256 below(const clamp *c, __m256 x)
{
    return _mm256_cmp_ps(x, c->minus_limit, _CMP_LT_OQ);
}

static inline __m256 clamp_gate(const clamp *c, __m256 g)
{
    return _mm256_blendv_ps(g, c->limit, above(c, g));
}

static inline __m256 clamp_up(const clamp *c, __m256 u)
{
    const __m256 low = _mm256_blendv_ps(u, c->minus_limit, below(c, u));
    return _mm256_blendv_ps(low, c->limit, above(c, u));
}

void mok_avx2_swiglu_forward(uint16_t *h, uint16_t *g, uint16_t *u, const float *acc_g,
                             const float *acc_u, int64_t n, const mok_swiglu *swiglu)
{
    const clamp c = clamp_of(swiglu);
    for (int64_t i = 0; i < n; i += 8) {
        const __m128i g16 = vec_round(vec_load_f32(acc_g + i, n - i));
        const __m128i u16 = vec_round(vec_load_f32(acc_u + i, n - i));
        const vec_logistic l = vec_logistic_of(clamp_gate(&c, vec_widen(g16)));
        const __m256 h32 = _mm256_mul_ps(vec_silu(&l), clamp_up(&c, vec_widen(u16)));
        vec_store_u16(g + i, g16, n - i);
        vec_store_u16(u + i, u16, n - i);
        vec_store_u16(h + i, vec_round(h32), n - i);
    }
}

static float tree_sum(__m256 tree[CHUNK_VECTORS])
{
    __m128 four, two, one;
    for (int distance = CHUNK_VECTORS / 2; distance > 0; distance /= 2) {
        for (int i = 0; i < distance; i++) {
            tree[i] = _mm256_add_ps(tree[i], tree[i + distance]);
        }
    }
    four = _mm_add_ps(_mm256_castps256_ps128(tree[0]), _mm256_extractf128_ps(tree[0], 1));
    two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    one = _mm_add_ss(two, _mm_shuffle_ps(two, two, 1));
    return mok_f32_canonical(_mm_cvtss_f32(one));
}

float mok_avx2_swiglu_backward(uint16_t *dg, uint16_t *du, uint16_t *hw, const float *s,
                               const uint16_t *g, const uint16_t *u, float w, int64_t n,
                               const mok_swiglu *swiglu)
{
    const clamp c = clamp_of(swiglu);
    const __m256 weight = _mm256_set1_ps(w);
    __m256 tree[CHUNK_VECTORS];
    for (int i = 0; i < CHUNK_VECTORS; i++) {
        tree[i] = _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < n; i += 8) {
        const int64_t left = n - i;
        const __m256 s32 = vec_load_f32(s + i, left);
        const __m256 g32 = vec_widen(vec_load_u16(g + i, left));
        const __m256 u32 = vec_widen(vec_load_u16(u + i, left));
        const __m256 up = clamp_up(&c, u32);
        const vec_logistic l = vec_logistic_of(clamp_gate(&c, g32));
        const __m256 silu = vec_silu(&l);
        const __m256 h32 = _mm256_mul_ps(silu, up);
        const __m256 dh = _mm256_mul_ps(weight, s32);
        const __m256 dg32 = _mm256_mul_ps(_mm256_mul_ps(dh, up), vec_dsilu(&l));
        const __m256 du32 = _mm256_mul_ps(dh, silu);
        const __m256 cut = _mm256_or_ps(above(&c, u32), below(&c, u32));
        vec_store_u16(dg + i, vec_round(_mm256_andnot_ps(above(&c, g32), dg32)), left);
        vec_store_u16(du + i, vec_round(_mm256_andnot_ps(cut, du32)), left);
        vec_store_u16(hw + i, vec_round(_mm256_mul_ps(weight, h32)), left);
        /* Columns past n count as +0 whatever silu made of them; s is loaded as +0 there and u as
         * +0, so the product is already +0. */
        tree[i / 8] = _mm256_mul_ps(s32, vec_widen(vec_round(h32)));
    }
    return tree_sum(tree);
}
