/* Combine, eight columns at a time: the columns are independent, the slots stay in order. */
#include "cpu/x86/kernels_avx2.h"
#include "cpu/x86/vec_avx2.h"

static __m256 start(const uint16_t *shared, int64_t i, int64_t left)
{
    return shared != NULL ? vec_widen(vec_load_u16(shared + i, left)) : _mm256_setzero_ps();
}

void mok_avx2_combine_forward(uint16_t *out, const uint16_t *shared, const uint16_t *y,
                              const float *weights, const int32_t *routes, int64_t slots, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        __m256 acc = start(shared, i, n - i);
        for (int64_t k = 0; k < slots; k++) {
            if (routes[k] >= 0) {
                const __m256 row = vec_widen(vec_load_u16(y + k * n + i, n - i));
                acc = _mm256_fmadd_ps(_mm256_set1_ps(weights[k]), row, acc);
            }
        }
        vec_store_u16(out + i, vec_round(acc), n - i);
    }
}

void mok_avx2_combine_backward(uint16_t *out, const uint16_t *shared, const uint16_t *dx,
                               const int32_t *routes, int64_t slots, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        __m256 acc = start(shared, i, n - i);
        for (int64_t k = 0; k < slots; k++) {
            if (routes[k] >= 0) {
                acc = _mm256_add_ps(acc, vec_widen(vec_load_u16(dx + k * n + i, n - i)));
            }
        }
        vec_store_u16(out + i, vec_round(acc), n - i);
    }
}
