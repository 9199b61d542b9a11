/* Conversions, exp, sigmoid and the addition into a main gradient, eight lanes at a time. The last
 * lanes of a row go through the same arithmetic, loaded and stored under a mask. */
#include "cpu/x86/kernels_avx2.h"
#include "cpu/x86/vec_avx2.h"

void mok_avx2_accumulate(float *main, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 sum = _mm256_add_ps(vec_load_f32(main + i, n - i), vec_load_f32(x + i, n - i));
        vec_store_f32(main + i, vec_canonical(sum), n - i);
    }
}

void mok_avx2_bf16_from_f32(uint16_t *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        vec_store_u16(out + i, vec_round(vec_load_f32(x + i, n - i)), n - i);
    }
}

void mok_avx2_f32_from_bf16(float *out, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        vec_store_f32(out + i, vec_canonical(vec_widen(vec_load_u16(x + i, n - i))), n - i);
    }
}

void mok_avx2_exp(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        vec_store_f32(out + i, vec_exp(vec_load_f32(x + i, n - i)), n - i);
    }
}

void mok_avx2_sigmoid(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        const vec_logistic l = vec_logistic_of(vec_load_f32(x + i, n - i));
        vec_store_f32(out + i, vec_sigmoid(&l), n - i);
    }
}
