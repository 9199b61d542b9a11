/* The AVX-512 kernels: products only. The elementwise ones of level avx2 serve this level as well:
 * they wait for memory, not for lanes. */
#ifndef MOK_CPU_X86_KERNELS_AVX512_H
#define MOK_CPU_X86_KERNELS_AVX512_H

#include "cpu/kernels.h"

void mok_avx512_product_tc16(float *c, int64_t c_stride, const mok_operand *a, const mok_operand *b,
                             int64_t m, int64_t n, int64_t k, void *scratch);
void mok_avx512_product_fma(float *c, int64_t c_stride, const mok_operand *a, const mok_operand *b,
                            int64_t m, int64_t n, int64_t k, void *scratch);

#endif
