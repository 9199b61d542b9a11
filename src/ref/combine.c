/* Combine: a token's owner folds the results of its slots, slot ascending; masked slots are
 * skipped. */
#include "numerics/bf16.h"
#include "ref/kernels.h"

void mok_ref_combine_forward(uint16_t *out, const uint16_t *shared, const uint16_t *y,
                             const float *weights, const int32_t *routes, int64_t slots, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float acc = shared != NULL ? mok_bf16_widen(shared[i]) : 0.0f;
        for (int64_t k = 0; k < slots; k++) {
            if (routes[k] >= 0) {
                acc = mok_fma(weights[k], mok_bf16_widen(y[k * n + i]), acc);
            }
        }
        out[i] = mok_bf16_round(acc);
    }
}

void mok_ref_combine_backward(uint16_t *out, const uint16_t *shared, const uint16_t *dx,
                              const int32_t *routes, int64_t slots, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float acc = shared != NULL ? mok_bf16_widen(shared[i]) : 0.0f;
        for (int64_t k = 0; k < slots; k++) {
            if (routes[k] >= 0) {
                acc = acc + mok_bf16_widen(dx[k * n + i]);
            }
        }
        out[i] = mok_bf16_round(acc);
    }
}
