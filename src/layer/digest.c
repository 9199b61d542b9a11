/* Digests of logical units: XXH3 over shape, dtype, class and bytes. */
#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL /* compiled in: the library then needs nothing beside the C library */
#include <xxhash.h>

#include "layer/check.h"

static void update_word(XXH3_state_t *state, int64_t word)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)((uint64_t)word >> (8 * i));
    }
    (void)XXH3_128bits_update(state, bytes, sizeof bytes);
}

static void finish(mok_digest *out, XXH3_state_t *state)
{
    const XXH128_hash_t hash = XXH3_128bits_digest(state);
    out->low = hash.low64;
    out->high = hash.high64;
    (void)XXH3_freeState(state);
}

/* Rows in row-major order: the axes but the last count up like an odometer. */
static void update_rows(XXH3_state_t *state, const mok_tensor *tensor)
{
    const size_t element = mok_dtype_bytes(tensor->dtype);
    const int32_t last = tensor->rank - 1;
    int64_t at[MOK_TENSOR_MAX_RANK] = {0};
    int32_t axis;
    do {
        int64_t offset = 0;
        for (int32_t i = 0; i < last; i++) {
            offset += at[i] * tensor->stride[i];
        }
        (void)XXH3_128bits_update(state,
                                  (const unsigned char *)tensor->data + (size_t)offset * element,
                                  (size_t)tensor->shape[last] * element);
        for (axis = last - 1; axis >= 0; axis--) {
            if (++at[axis] < tensor->shape[axis]) {
                break;
            }
            at[axis] = 0;
        }
    } while (axis >= 0);
}

mok_status mok_digest_tensor(mok_digest *out, const mok_tensor *tensor, mok_arith arith)
{
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    MOK_REQUIRE(tensor != NULL && tensor->struct_bytes == sizeof *tensor, MOK_ERROR_ARGUMENT,
                "tensor is NULL or its struct_bytes is not %zu", sizeof *tensor);
    MOK_REQUIRE(tensor->rank >= 1 && tensor->rank <= MOK_TENSOR_MAX_RANK &&
                    mok_dtype_bytes(tensor->dtype) > 0,
                MOK_ERROR_SHAPE, "tensor.rank is %d or tensor.dtype %d is unknown", tensor->rank,
                (int)tensor->dtype);
    MOK_REQUIRE(arith == MOK_ARITH_TC16 || arith == MOK_ARITH_FMA, MOK_ERROR_ARGUMENT,
                "arith is %d, unknown", (int)arith);
    bool empty = false;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        MOK_REQUIRE(tensor->shape[axis] >= 0, MOK_ERROR_SHAPE, "tensor.shape[%d] is %lld", axis,
                    (long long)tensor->shape[axis]);
        empty = empty || tensor->shape[axis] == 0;
    }
    MOK_REQUIRE(empty || tensor->data != NULL, MOK_ERROR_ARGUMENT, "tensor.data is NULL");
    MOK_REQUIRE(empty || tensor->stride[tensor->rank - 1] == 1, MOK_ERROR_SHAPE,
                "tensor.stride[%d] is %lld, must be 1", tensor->rank - 1,
                (long long)tensor->stride[tensor->rank - 1]);
    XXH3_state_t *state = XXH3_createState();
    MOK_REQUIRE(state != NULL, MOK_ERROR_MEMORY, "no memory for a digest");
    (void)XXH3_128bits_reset(state);
    update_word(state, (int64_t)arith);
    update_word(state, (int64_t)tensor->dtype);
    update_word(state, tensor->rank);
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        update_word(state, tensor->shape[axis]);
    }
    if (!empty) {
        update_rows(state, tensor);
    }
    finish(out, state);
    return MOK_OK;
}

mok_status mok_digest_combine(mok_digest *out, const mok_digest *digests, int64_t count)
{
    MOK_REQUIRE(out != NULL && count >= 0 && (count == 0 || digests != NULL), MOK_ERROR_ARGUMENT,
                "out or digests is NULL, or count is negative");
    XXH3_state_t *state = XXH3_createState();
    MOK_REQUIRE(state != NULL, MOK_ERROR_MEMORY, "no memory for a digest");
    (void)XXH3_128bits_reset(state);
    update_word(state, count);
    for (int64_t i = 0; i < count; i++) {
        update_word(state, (int64_t)digests[i].low);
        update_word(state, (int64_t)digests[i].high);
    }
    finish(out, state);
    return MOK_OK;
}

void mok_digest_hex(char hex[MOK_DIGEST_HEX_BYTES], const mok_digest *digest)
{
    (void)snprintf(hex, MOK_DIGEST_HEX_BYTES, "%016llx%016llx", (unsigned long long)digest->high,
                   (unsigned long long)digest->low);
}
