/* SwiGLU forward and backward over a row; the element's formulas are in numerics/swiglu.h. */
#include "numerics/swiglu.h"
#include "ref/kernels.h"

#define CHUNK 128

void mok_ref_swiglu_forward(uint16_t *h, uint16_t *g, uint16_t *u, const float *acc_g,
                            const float *acc_u, int64_t n, const mok_swiglu *swiglu)
{
    for (int64_t i = 0; i < n; i++) {
        g[i] = mok_bf16_round(acc_g[i]);
        u[i] = mok_bf16_round(acc_u[i]);
        h[i] = mok_bf16_round(mok_swiglu_h32(g[i], u[i], swiglu->clamped, swiglu->limit));
    }
}

float mok_ref_swiglu_backward(uint16_t *dg, uint16_t *du, uint16_t *hw, const float *s,
                              const uint16_t *g, const uint16_t *u, float w, int64_t n,
                              const mok_swiglu *swiglu)
{
    float tree[CHUNK] = {0.0f};
    for (int64_t i = 0; i < n; i++) {
        const mok_swiglu_gradient one =
            mok_swiglu_backward_one(s[i], g[i], u[i], w, swiglu->clamped, swiglu->limit);
        dg[i] = one.dg;
        du[i] = one.du;
        hw[i] = one.hw;
        tree[i] = one.product;
    }
    for (int distance = CHUNK / 2; distance > 0; distance /= 2) {
        for (int i = 0; i < distance; i++) {
            tree[i] = tree[i] + tree[i + distance];
        }
    }
    return mok_f32_canonical(tree[0]);
}
