/* Digests: golden values, and what they must and must not depend on. */
#include <mok/mok.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool same(const mok_digest *a, const mok_digest *b)
{
    return a->low == b->low && a->high == b->high;
}

static mok_digest digest_of(const mok_tensor *tensor, mok_arith arith)
{
    mok_digest out = {1, 2};
    assert_int_equal(mok_digest_tensor(&out, tensor, arith), MOK_OK);
    return out;
}

/* Each value is also what another build of XXH3-128 gives in one call over class, dtype, rank and
 * extents as little-endian 64-bit words, then the rows. A change of them breaks every digest ever
 * written. */
static void golden_values(void **state)
{
    (void)state;
    float ramp[24];
    for (int i = 0; i < 24; i++) {
        ramp[i] = (float)i * 0.5f - 3.0f;
    }
    const mok_tensor cube = mok_tensor_3d(ramp, MOK_DTYPE_F32, 2, 3, 4);
    const mok_tensor line = mok_tensor_1d(ramp, MOK_DTYPE_F32, 1);
    const mok_tensor empty = mok_tensor_2d(NULL, MOK_DTYPE_BF16, 0, 7);
    char hex[MOK_DIGEST_HEX_BYTES];
    mok_digest d = digest_of(&cube, MOK_ARITH_TC16);
    mok_digest_hex(hex, &d);
    assert_string_equal(hex, "753529dc693350e57644d3d0fb291860");
    d = digest_of(&line, MOK_ARITH_FMA);
    mok_digest_hex(hex, &d);
    assert_string_equal(hex, "8ed4f72e05d75851832201952389283e");
    d = digest_of(&empty, MOK_ARITH_TC16);
    mok_digest_hex(hex, &d);
    assert_string_equal(hex, "6e2b08968a7487e94317490e7acc542a");
    const mok_digest parts[] = {{1, 2}, {3, 4}};
    assert_int_equal(mok_digest_combine(&d, parts, 2), MOK_OK);
    mok_digest_hex(hex, &d);
    assert_string_equal(hex, "e1ecf22921f33c3d20d14db4a38721f0");
}

static void strides_and_addresses_do_not_count(void **state)
{
    (void)state;
    uint16_t packed[2 * 3 * 5];
    static uint16_t loose[2 * 40 + 3];
    memset(loose, 0xEE, sizeof loose);
    for (int i = 0; i < 2 * 3 * 5; i++) {
        packed[i] = (uint16_t)(i * 257);
    }
    mok_tensor view = mok_tensor_3d(loose + 3, MOK_DTYPE_BF16, 2, 3, 5);
    view.stride[0] = 40;
    view.stride[1] = 11;
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 3; j++) {
            memcpy(loose + 3 + i * 40 + j * 11, packed + (i * 3 + j) * 5, 10);
        }
    }
    const mok_tensor tensor = mok_tensor_3d(packed, MOK_DTYPE_BF16, 2, 3, 5);
    const mok_digest one = digest_of(&tensor, MOK_ARITH_TC16);
    const mok_digest two = digest_of(&view, MOK_ARITH_TC16);
    assert_true(same(&one, &two));
    loose[3 + 5] ^= 1; /* between two rows */
    const mok_digest gap = digest_of(&view, MOK_ARITH_TC16);
    assert_true(same(&one, &gap));
    loose[3 + 40 + 22 + 4] ^= 1; /* the last element */
    const mok_digest last = digest_of(&view, MOK_ARITH_TC16);
    assert_false(same(&one, &last));
}

static void shape_dtype_class_and_every_bit_count(void **state)
{
    (void)state;
    uint32_t words[12];
    memset(words, 0, sizeof words);
    const mok_tensor tensors[] = {
        mok_tensor_2d(words, MOK_DTYPE_F32, 3, 4), mok_tensor_2d(words, MOK_DTYPE_F32, 4, 3),
        mok_tensor_1d(words, MOK_DTYPE_F32, 12),   mok_tensor_3d(words, MOK_DTYPE_F32, 1, 3, 4),
        mok_tensor_2d(words, MOK_DTYPE_I32, 3, 4), mok_tensor_2d(words, MOK_DTYPE_BF16, 6, 4),
        mok_tensor_2d(words, MOK_DTYPE_F32, 0, 4), mok_tensor_2d(words, MOK_DTYPE_F32, 3, 0),
    };
    enum { COUNT = sizeof tensors / sizeof tensors[0] };
    mok_digest digests[COUNT + 1];
    for (int i = 0; i < COUNT; i++) {
        digests[i] = digest_of(&tensors[i], MOK_ARITH_TC16);
    }
    digests[COUNT] = digest_of(&tensors[0], MOK_ARITH_FMA);
    for (int i = 0; i <= COUNT; i++) {
        for (int j = 0; j < i; j++) {
            assert_false(same(&digests[i], &digests[j]));
        }
    }
    for (int bit = 0; bit < 12 * 32; bit++) { /* the sign of a zero too */
        words[bit / 32] ^= 1u << (bit % 32);
        const mok_digest changed = digest_of(&tensors[0], MOK_ARITH_TC16);
        assert_false(same(&changed, &digests[0]));
        words[bit / 32] ^= 1u << (bit % 32);
    }
}

/* Units are combined in the order given: the same units held by other ranks give the same digest.
 */
static void combining_counts_order_and_number(void **state)
{
    (void)state;
    mok_digest parts[8];
    mok_digest swapped[8];
    for (int i = 0; i < 8; i++) {
        parts[i].low = (uint64_t)i * 0x9E3779B97F4A7C15U;
        parts[i].high = ~(uint64_t)i;
    }
    memcpy(swapped, parts, sizeof parts);
    swapped[2] = parts[5];
    swapped[5] = parts[2];
    mok_digest all;
    mok_digest again;
    mok_digest other;
    assert_int_equal(mok_digest_combine(&all, parts, 8), MOK_OK);
    assert_int_equal(mok_digest_combine(&again, parts, 8), MOK_OK);
    assert_true(same(&all, &again));
    assert_int_equal(mok_digest_combine(&other, swapped, 8), MOK_OK);
    assert_false(same(&all, &other));
    for (int64_t count = 0; count < 8; count++) {
        assert_int_equal(mok_digest_combine(&other, count > 0 ? parts : NULL, count), MOK_OK);
        assert_false(same(&all, &other));
    }
    /* in place */
    assert_int_equal(mok_digest_combine(&parts[0], parts, 8), MOK_OK);
    assert_true(same(&all, &parts[0]));
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float data[4] = {0};
    const mok_tensor good = mok_tensor_2d(data, MOK_DTYPE_F32, 2, 2);
    mok_digest out = {5, 6};
    mok_tensor bad = good;
    assert_int_equal(mok_digest_tensor(NULL, &good, MOK_ARITH_FMA), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_digest_tensor(&out, NULL, MOK_ARITH_FMA), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_digest_tensor(&out, &good, (mok_arith)0), MOK_ERROR_ARGUMENT);
    bad.data = NULL;
    assert_int_equal(mok_digest_tensor(&out, &bad, MOK_ARITH_FMA), MOK_ERROR_ARGUMENT);
    bad = good;
    bad.struct_bytes = 8;
    assert_int_equal(mok_digest_tensor(&out, &bad, MOK_ARITH_FMA), MOK_ERROR_ARGUMENT);
    bad = good;
    bad.rank = 5;
    assert_int_equal(mok_digest_tensor(&out, &bad, MOK_ARITH_FMA), MOK_ERROR_SHAPE);
    bad.rank = 0;
    assert_int_equal(mok_digest_tensor(&out, &bad, MOK_ARITH_FMA), MOK_ERROR_SHAPE);
    bad = good;
    bad.dtype = (mok_dtype)77;
    assert_int_equal(mok_digest_tensor(&out, &bad, MOK_ARITH_FMA), MOK_ERROR_SHAPE);
    bad = good;
    bad.shape[1] = -1;
    assert_int_equal(mok_digest_tensor(&out, &bad, MOK_ARITH_FMA), MOK_ERROR_SHAPE);
    bad = good;
    bad.stride[1] = 2;
    assert_int_equal(mok_digest_tensor(&out, &bad, MOK_ARITH_FMA), MOK_ERROR_SHAPE);
    assert_int_equal(mok_digest_combine(NULL, &out, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_digest_combine(&out, NULL, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_digest_combine(&out, &out, -1), MOK_ERROR_ARGUMENT);
    assert_int_equal(out.low, 5);
    assert_int_equal(out.high, 6);
}

static void hex_is_high_half_first_and_terminated(void **state)
{
    (void)state;
    char hex[MOK_DIGEST_HEX_BYTES + 1];
    memset(hex, 'z', sizeof hex);
    const mok_digest d = {0x00000000000000AFULL, 0x0123456789ABCDEFULL};
    mok_digest_hex(hex, &d);
    assert_string_equal(hex, "0123456789abcdef00000000000000af");
    assert_int_equal(hex[MOK_DIGEST_HEX_BYTES], 'z');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_values),
        cmocka_unit_test(strides_and_addresses_do_not_count),
        cmocka_unit_test(shape_dtype_class_and_every_bit_count),
        cmocka_unit_test(combining_counts_order_and_number),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(hex_is_high_half_first_and_terminated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
