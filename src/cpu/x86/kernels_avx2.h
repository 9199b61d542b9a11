/* The AVX2 kernels. The elementwise ones serve level avx512 as well: they wait for memory, not for
 * lanes. */
#ifndef MOK_CPU_X86_KERNELS_AVX2_H
#define MOK_CPU_X86_KERNELS_AVX2_H

#include "cpu/kernels.h"

void mok_avx2_product_tc16(float *c, int64_t c_stride, const mok_operand *a, const mok_operand *b,
                           int64_t m, int64_t n, int64_t k, void *scratch);
void mok_avx2_product_fma(float *c, int64_t c_stride, const mok_operand *a, const mok_operand *b,
                          int64_t m, int64_t n, int64_t k, void *scratch);
void mok_avx2_swiglu_forward(uint16_t *h, uint16_t *g, uint16_t *u, const float *acc_g,
                             const float *acc_u, int64_t n, const mok_swiglu *swiglu);
float mok_avx2_swiglu_backward(uint16_t *dg, uint16_t *du, uint16_t *hw, const float *s,
                               const uint16_t *g, const uint16_t *u, float w, int64_t n,
                               const mok_swiglu *swiglu);
void mok_avx2_combine_forward(uint16_t *out, const uint16_t *shared, const uint16_t *y,
                              const float *weights, const int32_t *routes, int64_t slots,
                              int64_t n);
void mok_avx2_combine_backward(uint16_t *out, const uint16_t *shared, const uint16_t *dx,
                               const int32_t *routes, int64_t slots, int64_t n);
void mok_avx2_accumulate(float *main, const float *x, int64_t n);
void mok_avx2_bf16_from_f32(uint16_t *out, const float *x, int64_t n);
void mok_avx2_f32_from_bf16(float *out, const uint16_t *x, int64_t n);
void mok_avx2_exp(float *out, const float *x, int64_t n);
void mok_avx2_sigmoid(float *out, const float *x, int64_t n);

#endif
