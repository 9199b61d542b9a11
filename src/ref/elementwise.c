/* Conversions, exp, sigmoid and the addition into a main gradient, element by element. */
#include "numerics/bf16.h"
#include "numerics/exp.h"
#include "ref/kernels.h"

void mok_ref_accumulate(float *main, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        main[i] = mok_f32_canonical(main[i] + x[i]);
    }
}

void mok_ref_bf16_from_f32(uint16_t *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = mok_bf16_round(x[i]);
    }
}

void mok_ref_f32_from_bf16(float *out, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = mok_f32_canonical(mok_bf16_widen(x[i]));
    }
}

void mok_ref_exp(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = mok_exp_f32(x[i]);
    }
}

void mok_ref_sigmoid(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = mok_sigmoid_f32(x[i]);
    }
}
