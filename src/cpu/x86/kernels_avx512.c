/* The table of level ref, which defines what every other level must give byte for byte. */
#include "ref/kernels.h"

const mok_kernels mok_kernels_avx512 = {
    .level = MOK_LEVEL_AVX512,
    .product_scratch_bytes = 0,
    .product_tc16 = mok_ref_product_tc16,
    .product_fma = mok_ref_product_fma,
    .swiglu_forward = mok_ref_swiglu_forward,
    .swiglu_backward = mok_ref_swiglu_backward,
    .combine_forward = mok_ref_combine_forward,
    .combine_backward = mok_ref_combine_backward,
    .accumulate = mok_ref_accumulate,
    .bf16_from_f32 = mok_ref_bf16_from_f32,
    .f32_from_bf16 = mok_ref_f32_from_bf16,
    .exp = mok_ref_exp,
    .sigmoid = mok_ref_sigmoid,
};
