/* Views of the caller's memory. */
#include <string.h>

#include "core/status.h"

size_t mok_dtype_bytes(mok_dtype dtype)
{
    switch (dtype) {
    case MOK_DTYPE_BF16:
        return 2;
    case MOK_DTYPE_F32:
    case MOK_DTYPE_I32:
        return 4;
    case MOK_DTYPE_I64:
        return 8;
    case MOK_DTYPE_E4M3:
    case MOK_DTYPE_E8M0:
        return 1;
    }
    return 0;
}

/* Strides of extents whose product passes 2^63 wrap here and are refused by the checks of a call.
 */
static mok_tensor contiguous(void *data, mok_dtype dtype, int32_t rank, const int64_t *shape)
{
    mok_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.struct_bytes = sizeof tensor;
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.rank = rank;
    int64_t stride = 1;
    for (int32_t axis = rank - 1; axis >= 0; axis--) {
        tensor.shape[axis] = shape[axis];
        tensor.stride[axis] = stride;
        if (__builtin_mul_overflow(stride, shape[axis], &stride)) {
            stride = INT64_MAX;
        }
    }
    return tensor;
}

mok_tensor mok_tensor_1d(void *data, mok_dtype dtype, int64_t n0)
{
    return contiguous(data, dtype, 1, &n0);
}

mok_tensor mok_tensor_2d(void *data, mok_dtype dtype, int64_t n0, int64_t n1)
{
    const int64_t shape[] = {n0, n1};
    return contiguous(data, dtype, 2, shape);
}

mok_tensor mok_tensor_3d(void *data, mok_dtype dtype, int64_t n0, int64_t n1, int64_t n2)
{
    const int64_t shape[] = {n0, n1, n2};
    return contiguous(data, dtype, 3, shape);
}
