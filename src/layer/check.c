/* The caller's tensors, checked before anything is written. */
#include "layer/check.h"

static mok_status check_header(const mok_tensor *tensor, const mok_wanted *wanted)
{
    MOK_REQUIRE(tensor != NULL, MOK_ERROR_ARGUMENT, "%s is NULL", wanted->name);
    MOK_REQUIRE(tensor->struct_bytes == sizeof *tensor, MOK_ERROR_ARGUMENT,
                "%s.struct_bytes is %zu, must be %zu", wanted->name, tensor->struct_bytes,
                sizeof *tensor);
    MOK_REQUIRE(tensor->dtype != MOK_DTYPE_E4M3 && tensor->dtype != MOK_DTYPE_E8M0,
                MOK_ERROR_UNSUPPORTED, "%s: MXFP8 is not in this version", wanted->name);
    MOK_REQUIRE(tensor->dtype == wanted->dtype ||
                    (wanted->dtype_other != 0 && tensor->dtype == wanted->dtype_other),
                MOK_ERROR_SHAPE,
                wanted->dtype_other != 0 ? "%s.dtype is %d, must be %d or %d"
                                         : "%s.dtype is %d, must be %d",
                wanted->name, (int)tensor->dtype, (int)wanted->dtype, (int)wanted->dtype_other);
    MOK_REQUIRE(tensor->rank == wanted->rank, MOK_ERROR_SHAPE, "%s.rank is %d, must be %d",
                wanted->name, tensor->rank, wanted->rank);
    return MOK_OK;
}

static mok_status check_shape(const mok_tensor *tensor, const mok_wanted *wanted)
{
    for (int32_t axis = 0; axis < wanted->rank; axis++) {
        const int64_t extent = tensor->shape[axis];
        if (axis == 0 && wanted->at_most) {
            MOK_REQUIRE(extent >= 0, MOK_ERROR_SHAPE, "%s.shape[0] is %lld, must be >= 0",
                        wanted->name, (long long)extent);
            MOK_REQUIRE(extent <= wanted->shape[0], MOK_ERROR_CAPACITY,
                        "%s.shape[0] is %lld, the layer was opened for %lld tokens", wanted->name,
                        (long long)extent, (long long)wanted->shape[0]);
        } else {
            MOK_REQUIRE(extent == wanted->shape[axis], MOK_ERROR_SHAPE,
                        "%s.shape[%d] is %lld, must be %lld", wanted->name, axis, (long long)extent,
                        (long long)wanted->shape[axis]);
        }
    }
    return MOK_OK;
}

static bool is_empty(const mok_tensor *tensor)
{
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        if (tensor->shape[axis] == 0) {
            return true;
        }
    }
    return false;
}

/* Bytes from the first element to behind the last; false when that passes the address space. */
static bool hull_bytes(size_t *out, const mok_tensor *tensor)
{
    int64_t last = 0;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        int64_t step;
        if (__builtin_mul_overflow(tensor->shape[axis] - 1, tensor->stride[axis], &step) ||
            __builtin_add_overflow(last, step, &last)) {
            return false;
        }
    }
    size_t bytes;
    if (__builtin_mul_overflow((size_t)last + 1, mok_dtype_bytes(tensor->dtype), &bytes) ||
        bytes > (size_t)PTRDIFF_MAX || (uintptr_t)tensor->data > UINTPTR_MAX - bytes) {
        return false;
    }
    *out = bytes;
    return true;
}

static mok_status check_strides(const mok_tensor *tensor, const char *name)
{
    int64_t inside = 1; /* elements that one step of the next outer axis must at least pass */
    for (int32_t axis = tensor->rank - 1; axis >= 0; axis--) {
        const int64_t stride = tensor->stride[axis];
        if (axis == tensor->rank - 1) {
            MOK_REQUIRE(stride == 1, MOK_ERROR_SHAPE, "%s.stride[%d] is %lld, must be 1", name,
                        axis, (long long)stride);
        }
        MOK_REQUIRE(stride >= inside || tensor->shape[axis] == 1, MOK_ERROR_SHAPE,
                    "%s.stride[%d] is %lld, rows of %lld elements would overlap", name, axis,
                    (long long)stride, (long long)inside);
        const int64_t step = tensor->shape[axis] == 1 ? inside : stride;
        MOK_REQUIRE(!__builtin_mul_overflow(step, tensor->shape[axis], &inside), MOK_ERROR_SHAPE,
                    "%s.stride[%d] is %lld: its extent passes 2^63", name, axis, (long long)stride);
    }
    return MOK_OK;
}

mok_status mok_check_tensor(const mok_tensor *tensor, const mok_wanted *wanted)
{
    MOK_TRY(check_header(tensor, wanted));
    MOK_TRY(check_shape(tensor, wanted));
    if (is_empty(tensor)) {
        return MOK_OK;
    }
    MOK_REQUIRE(tensor->data != NULL, MOK_ERROR_ARGUMENT, "%s.data is NULL", wanted->name);
    const size_t element = mok_dtype_bytes(tensor->dtype);
    MOK_REQUIRE((uintptr_t)tensor->data % element == 0, MOK_ERROR_SHAPE,
                "%s.data is not aligned to its element size, %zu bytes", wanted->name, element);
    MOK_TRY(check_strides(tensor, wanted->name));
    size_t bytes;
    MOK_REQUIRE(hull_bytes(&bytes, tensor), MOK_ERROR_SHAPE,
                "%s passes the end of the address space", wanted->name);
    return MOK_OK;
}

/* ---- Overlap ---- */

/* The rows of a tensor, lowest address first: inner axes are folded while they are contiguous. */
typedef struct row_set {
    uintptr_t base;
    size_t row_bytes;
    int64_t inner_count, outer_count;
    size_t inner_step, outer_step;
} row_set;

static row_set rows_of(const mok_tensor *tensor)
{
    const size_t element = mok_dtype_bytes(tensor->dtype);
    int64_t count[MOK_TENSOR_MAX_RANK] = {1, 1, 1, 1};
    int64_t step[MOK_TENSOR_MAX_RANK] = {0, 0, 0, 0};
    int64_t row = 1;
    int axes = 0;
    for (int32_t axis = tensor->rank - 1; axis >= 0; axis--) {
        if (tensor->shape[axis] == 1) {
            continue;
        }
        if (axes == 0 && tensor->stride[axis] == row) {
            row *= tensor->shape[axis];
        } else {
            count[axes] = tensor->shape[axis];
            step[axes] = tensor->stride[axis];
            axes++;
        }
    }
    const row_set set = {(uintptr_t)tensor->data,   (size_t)row * element,    count[0], count[1],
                         (size_t)step[0] * element, (size_t)step[1] * element};
    return set;
}

static uintptr_t row_begin(const row_set *set, int64_t idx)
{
    return set->base + (size_t)(idx / set->inner_count) * set->outer_step +
           (size_t)(idx % set->inner_count) * set->inner_step;
}

static bool rows_overlap(const mok_tensor *a, const mok_tensor *b)
{
    size_t a_bytes = 0;
    size_t b_bytes = 0;
    if (is_empty(a) || is_empty(b) || !hull_bytes(&a_bytes, a) || !hull_bytes(&b_bytes, b) ||
        (uintptr_t)a->data + a_bytes <= (uintptr_t)b->data ||
        (uintptr_t)b->data + b_bytes <= (uintptr_t)a->data) {
        return false;
    }
    const row_set left = rows_of(a);
    const row_set right = rows_of(b);
    int64_t i = 0;
    int64_t j = 0;
    while (i < left.inner_count * left.outer_count && j < right.inner_count * right.outer_count) {
        const uintptr_t left_begin = row_begin(&left, i);
        const uintptr_t right_begin = row_begin(&right, j);
        if (left_begin + left.row_bytes <= right_begin) {
            i++;
        } else if (right_begin + right.row_bytes <= left_begin) {
            j++;
        } else {
            return true;
        }
    }
    return false;
}

mok_status mok_check_overlap(const mok_named_tensor *tensors, int count)
{
    for (int i = 0; i < count; i++) {
        for (int j = i + 1; j < count; j++) {
            if (tensors[i].output || tensors[j].output) {
                MOK_REQUIRE(!rows_overlap(tensors[i].tensor, tensors[j].tensor), MOK_ERROR_OVERLAP,
                            "%s overlaps %s", tensors[i].name, tensors[j].name);
            }
        }
    }
    return MOK_OK;
}
