/* Tensor maps and the self-test of a device. */
#include "cuda/device.h"

#include <stdlib.h>
#include <string.h>

#include "numerics/exp.h"
#include "numerics/tc16.h"

extern const void *mok_sm90_silu_table_function(void);
extern const void *mok_sm90_product_test_function(void);

mok_status mok_device_encoder(mok_encode_tiled *out)
{
    void *entry = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    MOK_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                  cudaEnableDefault, &found));
    MOK_REQUIRE(entry != NULL && found == cudaDriverEntryPointSuccess, MOK_ERROR_DEVICE,
                "the driver has no cuTensorMapEncodeTiled");
    memcpy(out, &entry, sizeof *out);
    return MOK_OK;
}

static mok_status encode_map(CUtensorMap *out, mok_encode_tiled encode,
                             const mok_device_tensor *tensor, int axes)
{
    cuuint64_t extent[4];
    cuuint64_t stride[3];
    cuuint32_t box[4] = {64, (cuuint32_t)tensor->box_rows, 1, 1};
    const cuuint32_t step[4] = {1, 1, 1, 1};
    void *base = NULL;
    memcpy(&base, &tensor->data, sizeof base);
    for (int i = 0; i < axes; i++) {
        extent[i] = (cuuint64_t)tensor->extent[i];
    }
    for (int i = 0; i + 1 < axes; i++) {
        stride[i] = (cuuint64_t)tensor->stride[i] * 2;
    }
    const CUresult result =
        encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)axes, base, extent, stride, box,
               step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    MOK_REQUIRE(result == CUDA_SUCCESS, MOK_ERROR_DEVICE,
                "tensor map of %d axes, %lld x %lld, strides %lld and %lld: driver error %d", axes,
                (long long)tensor->extent[1], (long long)tensor->extent[0],
                (long long)tensor->stride[0], (long long)(axes > 2 ? tensor->stride[1] : 0),
                (int)result);
    return MOK_OK;
}

mok_status mok_device_map(CUtensorMap *out, mok_encode_tiled encode, const void *data, int64_t cols,
                          int64_t rows, int64_t row_stride, int64_t experts, int64_t expert_stride,
                          int32_t box_rows)
{
    memset(out, 0, sizeof *out);
    if (data == NULL || cols == 0 || rows == 0) {
        return MOK_OK; /* no task names it */
    }
    const mok_device_tensor tensor = {
        data,
        {cols, rows, experts, 1},
        {row_stride, experts > 1 ? expert_stride : rows * row_stride, 0},
        box_rows};
    return encode_map(out, encode, &tensor, experts > 0 ? 3 : 2);
}

mok_status mok_device_map_4d(CUtensorMap *out, mok_encode_tiled encode,
                             const mok_device_tensor *tensor)
{
    memset(out, 0, sizeof *out);
    if (tensor->data == NULL || tensor->extent[0] == 0 || tensor->extent[1] == 0 ||
        tensor->extent[2] == 0) {
        return MOK_OK; /* no task names it */
    }
    return encode_map(out, encode, tensor, 4);
}

/* ---- Self-test ---- */

static uint64_t random_word(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545F4914F6CDD1DULL;
}

/* Operands by row: near one, wide exponents, subnormal, cancelling, special, zeros and any bits. */
static uint16_t test_value(uint64_t *state, int kind)
{
    const uint64_t word = random_word(state);
    const uint32_t sign = (uint32_t)(word & 1) << 15;
    const uint32_t fraction = (uint32_t)(word >> 1) & 0x7F;
    const uint32_t draw = (uint32_t)(word >> 32);
    switch (kind) {
    case 0:
        return (uint16_t)(sign | ((125 + draw % 4) << 7) | fraction);
    case 1:
        return (uint16_t)(sign | ((90 + draw % 76) << 7) | fraction);
    case 2:
        return (uint16_t)(sign | (draw % 3 == 0 ? 0 : (1 + draw % 60) << 7) | fraction);
    case 3:
        return (uint16_t)(sign | ((120 + draw % 14) << 7));
    case 4:
        return (uint16_t)(draw % 16 == 0 ? sign | 0x7F80 | (draw % 32 == 0 ? fraction : 0)
                                         : sign | ((127 + draw % 3) << 7) | fraction);
    case 5:
        return (uint16_t)(draw % 2 == 0 ? sign : sign | (127 << 7));
    case 6:
        return (uint16_t)(sign | ((180 + draw % 75) << 7) | fraction);
    default:
        return (uint16_t)draw;
    }
}

typedef struct product_cases {
    uint16_t a[64 * 64], b[256 * 64];
    float c[64 * 256], got[64 * 256];
} product_cases;

static void fill_cases(product_cases *cases, uint64_t seed)
{
    uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
    for (int i = 0; i < 64 * 64; i++) {
        cases->a[i] = test_value(&state, i / 64 % 8);
    }
    for (int i = 0; i < 256 * 64; i++) {
        cases->b[i] = test_value(&state, i / 64 / 8 % 8);
    }
    for (int i = 0; i < 64 * 256; i++) {
        const uint32_t bits = (uint32_t)test_value(&state, i / 256 % 8) << 16 |
                              (uint32_t)(random_word(&state) & 0xFFFF);
        memcpy(&cases->c[i], &bits, sizeof bits);
        if (i % 3 == 0) {
            cases->c[i] = 0.0f;
        }
    }
}

static mok_status compare_cases(const product_cases *cases, uint64_t seed)
{
    for (int row = 0; row < 64; row++) {
        for (int col = 0; col < 256; col++) {
            float want = cases->c[row * 256 + col];
            for (int k = 0; k < 64; k += 16) {
                want = mok_tc16_block(want, cases->a + row * 64 + k, cases->b + col * 64 + k);
            }
            const uint32_t want_bits = mok_f32_bits(mok_f32_finish(want));
            const uint32_t got_bits = mok_f32_bits(mok_f32_finish(cases->got[row * 256 + col]));
            MOK_REQUIRE(
                want_bits == got_bits, MOK_ERROR_DEVICE,
                "the device is not of class tc16: case %llu, row %d, column %d gives %08x, must "
                "be %08x",
                (unsigned long long)seed, row, col, got_bits, want_bits);
        }
    }
    return MOK_OK;
}

static mok_status run_cases(product_cases *cases, unsigned char *device, uint64_t seed)
{
    float *c = (float *)(void *)(device + offsetof(product_cases, c));
    uint16_t *a = (uint16_t *)(void *)(device + offsetof(product_cases, a));
    uint16_t *b = (uint16_t *)(void *)(device + offsetof(product_cases, b));
    void *arguments[] = {&c, &a, &b};
    const dim3 one = {1, 1, 1};
    const dim3 threads = {128, 1, 1};
    const size_t shared = 320 * 128 + 1024;
    fill_cases(cases, seed);
    MOK_CUDA_TRY(cudaMemcpy(device, cases, sizeof *cases, cudaMemcpyHostToDevice));
    MOK_CUDA_TRY(
        cudaLaunchKernel(mok_sm90_product_test_function(), one, threads, arguments, shared, NULL));
    MOK_CUDA_TRY(cudaMemcpy(cases->got, c, sizeof cases->got, cudaMemcpyDeviceToHost));
    return compare_cases(cases, seed);
}

/* The first of 65,536 values, `step` apart, that differs from the CPU's function, or 65,536. */
static uint32_t first_difference(const float *table, int step, float (*function)(float))
{
    uint32_t bits = 0;
    while (bits < 65536 && mok_f32_bits(table[(int)bits * step]) ==
                               mok_f32_bits(function(mok_f32_of_bits(bits << 16)))) {
        bits++;
    }
    return bits;
}

static mok_status test_silu(float *silu)
{
    void *arguments[] = {&silu};
    const dim3 blocks = {256, 1, 1};
    const dim3 threads = {256, 1, 1};
    const size_t bytes = 3 * 65536 * sizeof(float); /* the parts are tested by the pairs */
    MOK_CUDA_TRY(
        cudaLaunchKernel(mok_sm90_silu_table_function(), blocks, threads, arguments, 0, NULL));
    float *table = malloc(bytes);
    MOK_REQUIRE(table != NULL, MOK_ERROR_MEMORY, "no memory for the self-test");
    const cudaError_t error = cudaMemcpy(table, silu, bytes, cudaMemcpyDeviceToHost);
    const uint32_t value = first_difference(table, 1, mok_silu_f32);
    const uint32_t again = first_difference(table + 65536, 2, mok_silu_f32);
    const uint32_t slope = first_difference(table + 65537, 2, mok_dsilu_f32);
    free(table);
    MOK_CUDA_TRY(error);
    MOK_REQUIRE(value == 65536 && again == 65536, MOK_ERROR_DEVICE,
                "the device's silu of bf16 %04x differs from the CPU's",
                value < again ? value : again);
    MOK_REQUIRE(slope == 65536, MOK_ERROR_DEVICE,
                "the device's dsilu of bf16 %04x differs from the CPU's", slope);
    return MOK_OK;
}

mok_status mok_device_self_test(float *silu)
{
    MOK_TRY(test_silu(silu));
    MOK_CUDA_TRY(cudaFuncSetAttribute(mok_sm90_product_test_function(),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      320 * 128 + 1024));
    product_cases *cases = malloc(sizeof *cases);
    MOK_REQUIRE(cases != NULL, MOK_ERROR_MEMORY, "no memory for the self-test");
    void *device = NULL;
    mok_status status = MOK_OK;
    if (cudaMalloc(&device, sizeof *cases) != cudaSuccess) {
        status = mok_fail(MOK_ERROR_MEMORY, "no device memory for the self-test");
    }
    for (uint64_t seed = 1; seed <= 4 && status == MOK_OK; seed++) {
        status = run_cases(cases, device, seed);
    }
    (void)cudaFree(device);
    free(cases);
    return status;
}
