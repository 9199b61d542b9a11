/* The caller's tensors, checked before anything is written. Texts name the argument, its value and
 * what was wanted. */
#ifndef MOK_LAYER_CHECK_H
#define MOK_LAYER_CHECK_H

#include "core/memory.h"
#include "plan/shape.h"

/* What a tensor must look like. dtype_other is a second dtype that will do, or 0. shape[i] is the
 * extent, or with token_axis the first extent is bounded by shape[0] instead. */
typedef struct mok_wanted {
    const char *name;
    mok_dtype dtype, dtype_other;
    int32_t rank;
    int64_t shape[3];
    bool at_most; /* shape[0] is a bound */
} mok_wanted;

/* Errors: ARGUMENT, SHAPE, CAPACITY (more tokens than shape[0] with at_most), UNSUPPORTED (MXFP8).
 */
mok_status mok_check_tensor(const mok_tensor *tensor, const mok_wanted *wanted);

typedef struct mok_named_tensor {
    const char *name;
    const mok_tensor *tensor;
    bool output;
} mok_named_tensor;

/* No output shares a byte with any other tensor of the list. Rows are compared, not hulls: gate and
 * up may be interleaved views of one tensor. Tensors must have passed mok_check_tensor. Errors:
 * OVERLAP. */
mok_status mok_check_overlap(const mok_named_tensor *tensors, int count);

/* Struct, dtypes, shapes and strides of a rank's weights. Errors: ARGUMENT, SHAPE, UNSUPPORTED. */
mok_status mok_weights_check(const mok_shape *shape, const mok_weights_view *weights);

/* The same of where backward puts its results. Errors: as above. */
mok_status mok_gradients_check(const mok_shape *shape, const mok_gradients *gradients,
                               int64_t tokens);

#endif
