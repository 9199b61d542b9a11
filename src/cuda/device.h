/* The device behind a layer: errors of the CUDA runtime as statuses, tensor maps, the self-test. */
#ifndef MOK_CUDA_DEVICE_H
#define MOK_CUDA_DEVICE_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "core/status.h"

#define MOK_CUDA_TRY(call)                                                                         \
    do {                                                                                           \
        const cudaError_t mok_cuda_error_ = (call);                                                \
        if (mok_cuda_error_ != cudaSuccess) {                                                      \
            return mok_fail(mok_cuda_error_ == cudaErrorMemoryAllocation ? MOK_ERROR_MEMORY        \
                                                                         : MOK_ERROR_DEVICE,       \
                            "%s: %s", #call, cudaGetErrorString(mok_cuda_error_));                 \
        }                                                                                          \
    } while (0)

typedef CUresult (*mok_encode_tiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                     const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                     const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                     CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* cuTensorMapEncodeTiled, through the driver's entry point: nothing links to the driver. */
mok_status mok_device_encoder(mok_encode_tiled *out);

/* A bf16 matrix [rows, cols], or [experts, rows, cols] with experts > 0, as tiles of 64 columns and
 * box_rows rows with the 128-byte swizzle. Strides count elements. An empty matrix gives an empty
 * map. */
mok_status mok_device_map(CUtensorMap *out, mok_encode_tiled encode, const void *data, int64_t cols,
                          int64_t rows, int64_t row_stride, int64_t experts, int64_t expert_stride,
                          int32_t box_rows);

/* bf16 of up to four axes: extent[0] columns, contiguous, then rows, batches, parts; stride[i]
 * elements between two of axis i + 1. Boxes are 64 columns and box_rows rows, with the 128-byte
 * swizzle. */
typedef struct mok_device_tensor {
    const void *data;
    int64_t extent[4];
    int64_t stride[3];
    int32_t box_rows;
} mok_device_tensor;

/* An empty tensor gives an empty map. */
mok_status mok_device_map_4d(CUtensorMap *out, mok_encode_tiled encode,
                             const mok_device_tensor *tensor);

/* Fills silu [3, 65536] (values, then pairs of value and slope) in device memory and compares it,
 * and the product instruction on directed and random cases, with the CPU. Errors: DEVICE (naming
 * the first difference), MEMORY. */
mok_status mok_device_self_test(float *silu);

#endif
