/* The product of class fma: per element one fused multiply-add a step, k ascending. */
#include "numerics/bf16.h"
#include "ref/kernels.h"
#include "ref/operand.h"

void mok_ref_product_fma(float *c, int64_t c_stride, const mok_operand *a, const mok_operand *b,
                         int64_t m, int64_t n, int64_t k, void *scratch)
{
    (void)scratch;
    for (int64_t row = 0; row < m; row++) {
        for (int64_t col = 0; col < n; col++) {
            float acc = c[row * c_stride + col];
            for (int64_t i = 0; i < k; i++) {
                acc = mok_fma(mok_bf16_widen(mok_operand_at(a, row, i)),
                              mok_bf16_widen(mok_operand_at(b, col, i)), acc);
            }
            c[row * c_stride + col] = mok_f32_finish(acc);
        }
    }
}
