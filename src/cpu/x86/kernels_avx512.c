/* The table of level avx512. */
#include "cpu/x86/kernels_avx512.h"
#include "cpu/x86/kernels_avx2.h"
#include "cpu/x86/pack.h"

const mok_kernels mok_kernels_avx512 = {
    .level = MOK_LEVEL_AVX512,
    .product_scratch_bytes = sizeof(mok_pack_scratch),
    .product_tc16 = mok_avx512_product_tc16,
    .product_fma = mok_avx512_product_fma,
    .swiglu_forward = mok_avx2_swiglu_forward,
    .swiglu_backward = mok_avx2_swiglu_backward,
    .combine_forward = mok_avx2_combine_forward,
    .combine_backward = mok_avx2_combine_backward,
    .accumulate = mok_avx2_accumulate,
    .bf16_from_f32 = mok_avx2_bf16_from_f32,
    .f32_from_bf16 = mok_avx2_f32_from_bf16,
    .exp = mok_avx2_exp,
    .sigmoid = mok_avx2_sigmoid,
};
