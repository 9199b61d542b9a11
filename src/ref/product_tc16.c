/* The product of class tc16: per element, blocks of 16 along k ascending, each the fused sum of
 * numerics/tc16.h. A last block that is not whole is filled with zeros. */
#include "numerics/tc16.h"
#include "ref/kernels.h"
#include "ref/operand.h"

static float chain(float acc, const mok_operand *a, const mok_operand *b, int64_t row, int64_t col,
                   int64_t k)
{
    for (int64_t begin = 0; begin < k; begin += MOK_TC16_BLOCK) {
        uint16_t block_a[MOK_TC16_BLOCK] = {0};
        uint16_t block_b[MOK_TC16_BLOCK] = {0};
        for (int64_t i = 0; i < MOK_TC16_BLOCK && begin + i < k; i++) {
            block_a[i] = mok_operand_at(a, row, begin + i);
            block_b[i] = mok_operand_at(b, col, begin + i);
        }
        acc = mok_tc16_block(acc, block_a, block_b);
    }
    return mok_f32_finish(acc);
}

void mok_ref_product_tc16(float *c, int64_t c_stride, const mok_operand *a, const mok_operand *b,
                          int64_t m, int64_t n, int64_t k, void *scratch)
{
    (void)scratch;
    for (int64_t row = 0; row < m; row++) {
        for (int64_t col = 0; col < n; col++) {
            c[row * c_stride + col] = chain(c[row * c_stride + col], a, b, row, col, k);
        }
    }
}
