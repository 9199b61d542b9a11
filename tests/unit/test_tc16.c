/* The rule of the tc16 block, case by case, with results worked out by hand
 * (docs/numerics.md, 1.1).
 *
 * Each case runs on every level that this CPU has, in every lane of a tile. unit is 2^(e_max - 25).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/kernels.h"

#define ROWS 3
#define COLS 37
#define MAX_K 64

/* Operands of one chain. */
typedef struct chain {
    float c;
    uint16_t a[MAX_K], b[MAX_K];
    int64_t k;
} chain;

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A power of two as bf16, -126 <= exponent <= 127; times significand / 128 where that is given. */
static uint16_t pow2(int exponent)
{
    return (uint16_t)((exponent + 127) << 7);
}

static uint16_t scaled(int exponent, int significand_128)
{
    return (uint16_t)(pow2(exponent) | (significand_128 - 128));
}

static uint16_t minus(uint16_t x)
{
    return (uint16_t)(x ^ 0x8000);
}

static void add(chain *x, int64_t count, uint16_t a, uint16_t b)
{
    for (int64_t i = 0; i < count; i++) {
        x->a[x->k] = a;
        x->b[x->k] = b;
        x->k++;
    }
}

static void expect_on(const mok_kernels *kernels, const chain *x, uint32_t want)
{
    uint16_t a[ROWS * MAX_K];
    uint16_t b[COLS * MAX_K];
    float c[ROWS * COLS];
    void *scratch = aligned_alloc(64, (kernels->product_scratch_bytes + 127) / 64 * 64);
    assert_non_null(scratch);
    for (int64_t i = 0; i < COLS; i++) {
        memcpy(b + i * MAX_K, x->b, sizeof x->b);
        if (i < ROWS) {
            memcpy(a + i * MAX_K, x->a, sizeof x->a);
        }
    }
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        c[i] = x->c;
    }
    const mok_operand left = {a, MAX_K, false};
    const mok_operand right = {b, MAX_K, false};
    kernels->product_tc16(c, COLS, &left, &right, ROWS, COLS, x->k, scratch);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        uint32_t got;
        memcpy(&got, &c[i], sizeof got);
        if (got != want) {
            print_error("level %s, lane %d: %08x, must be %08x\n", mok_level_string(kernels->level),
                        (int)i, got, want);
        }
        assert_int_equal(got, want);
    }
    free(scratch);
}

static void expect(const chain *x, uint32_t want)
{
    static const mok_level levels[] = {MOK_LEVEL_REF, MOK_LEVEL_AVX2, MOK_LEVEL_AVX512};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        const mok_kernels *kernels = mok_kernels_select(levels[i]);
        if (kernels != NULL) {
            expect_on(kernels, x, want);
        }
    }
}

/* c = 1: unit 2^-25. Four products of one unit make 2^-23, the last place of fp32. */
static void terms_are_kept_to_25_places_below_the_largest(void **state)
{
    (void)state;
    chain x = {.c = 1.0f};
    add(&x, 4, pow2(-12), pow2(-13));
    expect(&x, 0x3F800001);
    chain y = {.c = 1.0f};
    add(&y, 8, pow2(-13), pow2(-13)); /* half a unit each: nothing, though their sum is 2^-23 */
    expect(&y, 0x3F800000);
}

/* -1.5 units become -1 unit, not -2: eight of them take 2^-22 off, four places below 1. */
static void negative_terms_are_cut_toward_zero(void **state)
{
    (void)state;
    chain x = {.c = 1.0f};
    add(&x, 8, minus(scaled(-12, 192)), pow2(-13));
    expect(&x, 0x3F7FFFFC);
    chain y = {.c = 1.0f};
    add(&y, 16, minus(pow2(-13)), pow2(-13));
    expect(&y, 0x3F800000);
}

/* 16 products of 1.9375 half units: each is cut alone, so nothing is left of 15.5 units. */
static void every_product_is_cut_by_itself(void **state)
{
    (void)state;
    chain x = {.c = 1.0f};
    add(&x, 16, scaled(-13, 248), pow2(-13));
    expect(&x, 0x3F800000);
}

/* 1 + 3 units is nearer to 1 + 2^-23 but is cut to 1; 1 - 1 unit is cut to 1 - 2^-24. */
static void the_sum_is_cut_toward_zero(void **state)
{
    (void)state;
    chain x = {.c = 1.0f};
    add(&x, 3, pow2(-12), pow2(-13));
    expect(&x, 0x3F800000);
    chain y = {.c = -1.0f};
    add(&y, 3, minus(pow2(-12)), pow2(-13));
    expect(&y, 0xBF800000);
    chain z = {.c = 1.0f};
    add(&z, 1, minus(pow2(-12)), pow2(-13));
    expect(&z, 0x3F7FFFFF);
}

/* 1.5 * 1.5 = 2.25 keeps exponent 0, so the unit stays 2^-25 and eight units reach the last place,
 * 2^-22. */
static void products_are_not_renormalised(void **state)
{
    (void)state;
    chain x = {.c = 0.0f};
    add(&x, 1, scaled(0, 192), scaled(0, 192));
    add(&x, 8, pow2(-12), pow2(-13));
    expect(&x, 0x40100001);
}

/* c is one term among the others: 1 + 3 units + c of 1 unit is 1 + 2^-23. Added afterwards it would
 * be lost. */
static void the_accumulator_is_aligned_with_the_products(void **state)
{
    (void)state;
    chain x = {.c = 0x1p-25f};
    add(&x, 1, pow2(0), pow2(0));
    add(&x, 3, pow2(-12), pow2(-13));
    expect(&x, 0x3F800001);
}

/* 16 * (255/128)^2 + (2 - 2^-23) = 65.5009765625 - 2^-23: seven places above e_max, cut to 24 bits.
 */
static void carries_above_the_largest_term_are_kept(void **state)
{
    (void)state;
    chain x = {.c = of_bits(0x3FFFFFFF)};
    add(&x, 16, scaled(0, 255), scaled(0, 255));
    expect(&x, 0x4283007F);
}

static void a_nan_operand_gives_the_one_nan(void **state)
{
    (void)state;
    static const uint16_t nans[] = {0x7FC0, 0x7F81, 0xFFFF};
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        chain x = {.c = 1.0f};
        add(&x, 1, pow2(0), nans[i]);
        expect(&x, 0x7FFFFFFF);
        chain y = {.c = 1.0f};
        add(&y, 1, nans[i], 0);
        expect(&y, 0x7FFFFFFF);
    }
    chain z = {.c = of_bits(0xFFC00001)};
    add(&z, 1, pow2(0), pow2(0));
    expect(&z, 0x7FFFFFFF);
}

static void infinities_follow_their_sign_or_give_nan(void **state)
{
    (void)state;
    const uint16_t infinity = 0x7F80;
    chain x = {.c = 1.0f};
    add(&x, 1, infinity, pow2(-3));
    add(&x, 3, minus(pow2(100)), pow2(20));
    expect(&x, 0x7F800000);
    chain y = {.c = 1.0f};
    add(&y, 1, minus(infinity), pow2(0));
    expect(&y, 0xFF800000);
    chain zero = {.c = 0.0f};
    add(&zero, 1, infinity, 0);
    expect(&zero, 0x7FFFFFFF);
    chain both = {.c = 0.0f};
    add(&both, 1, infinity, pow2(0));
    add(&both, 1, infinity, minus(pow2(0)));
    expect(&both, 0x7FFFFFFF);
    chain against = {.c = of_bits(0xFF800000)};
    add(&against, 1, infinity, pow2(0));
    expect(&against, 0x7FFFFFFF);
    chain alone = {.c = of_bits(0xFF800000)};
    add(&alone, 1, pow2(0), pow2(0));
    expect(&alone, 0xFF800000);
}

/* The smallest bf16, 2^-133, counts with exponent -126: unit 2^-151, so that 2^-152 is cut, eight
 * times. */
static void subnormals_are_honoured_and_not_normalised(void **state)
{
    (void)state;
    chain x = {.c = 0.0f};
    add(&x, 1, 0x0001, pow2(0));
    expect(&x, 0x00010000);
    add(&x, 8, pow2(-76), pow2(-76));
    expect(&x, 0x00010000);
    chain y = {.c = of_bits(0x00000001)};
    add(&y, 4, 0, pow2(3));
    expect(&y, 0x00000001);
}

/* Without c, exponents below -133 count as -133: unit 2^-158, and 16 products of 2^-152 are 2^-148.
 */
static void a_zero_accumulator_counts_as_exponent_minus_133(void **state)
{
    (void)state;
    chain x = {.c = 0.0f};
    add(&x, 16, pow2(-76), pow2(-76));
    expect(&x, 0x00000002);
    chain y = {.c = 0.0f};
    add(&y, 16, pow2(-80), pow2(-79)); /* half a unit each */
    expect(&y, 0x00000000);
}

static void a_zero_result_is_plus_zero(void **state)
{
    (void)state;
    chain x = {.c = 0.0f};
    add(&x, 1, pow2(0), pow2(0));
    add(&x, 1, pow2(0), minus(pow2(0)));
    expect(&x, 0x00000000);
    chain y = {.c = -0.0f};
    add(&y, 5, minus(0), pow2(2));
    expect(&y, 0x00000000);
    chain z = {.c = -0.0f};
    expect(&z, 0x00000000); /* an empty chain */
}

/* Inside a block exponents have no limit: 2^200 - 2^200 is 0, and what is left at 2^180 is
 * infinite. */
static void products_beyond_fp32_cancel_exactly(void **state)
{
    (void)state;
    chain x = {.c = 1.0f};
    add(&x, 1, pow2(100), pow2(100));
    add(&x, 1, pow2(100), minus(pow2(100)));
    expect(&x, 0x00000000); /* c is below the unit, 2^175 */
    add(&x, 1, pow2(100), pow2(80));
    expect(&x, 0x7F800000);
}

static void overflow_gives_infinity_of_the_sign(void **state)
{
    (void)state;
    chain x = {.c = of_bits(0x7F7FFFFF)};
    add(&x, 1, 0, 0);
    expect(&x, 0x7F7FFFFF);
    chain y = {.c = 0.0f};
    add(&y, 2, minus(pow2(127)), pow2(0));
    expect(&y, 0xFF800000);
}

/* Order inside a block is free; blocks are not: the same terms in another block give other bits. */
static void order_matters_between_blocks_only(void **state)
{
    (void)state;
    chain x = {.c = 0.0f};
    add(&x, 4, pow2(-12), pow2(-13));
    add(&x, 1, pow2(0), pow2(0));
    expect(&x, 0x3F800001);
    chain y = {.c = 0.0f};
    add(&y, 1, pow2(0), pow2(0));
    add(&y, 15, 0, 0);
    add(&y, 3, pow2(-12), pow2(-13)); /* 1 + 3 units, cut to 1 */
    add(&y, 13, 0, 0);
    add(&y, 1, pow2(-12), pow2(-13));
    expect(&y, 0x3F800000);
}

static void zeros_behind_a_chain_change_nothing(void **state)
{
    (void)state;
    chain x = {.c = of_bits(0x3F9ABCDE)};
    add(&x, 5, scaled(-3, 201), scaled(1, 133));
    chain y = x;
    add(&y, 43, 0, pow2(30));
    const mok_kernels *ref = mok_kernels_select(MOK_LEVEL_REF);
    float want = x.c;
    const mok_operand left = {x.a, MAX_K, false};
    const mok_operand right = {x.b, MAX_K, false};
    uint32_t bits;
    ref->product_tc16(&want, 1, &left, &right, 1, 1, x.k, NULL);
    memcpy(&bits, &want, sizeof bits);
    expect(&x, bits);
    expect(&y, bits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terms_are_kept_to_25_places_below_the_largest),
        cmocka_unit_test(negative_terms_are_cut_toward_zero),
        cmocka_unit_test(every_product_is_cut_by_itself),
        cmocka_unit_test(the_sum_is_cut_toward_zero),
        cmocka_unit_test(products_are_not_renormalised),
        cmocka_unit_test(the_accumulator_is_aligned_with_the_products),
        cmocka_unit_test(carries_above_the_largest_term_are_kept),
        cmocka_unit_test(a_nan_operand_gives_the_one_nan),
        cmocka_unit_test(infinities_follow_their_sign_or_give_nan),
        cmocka_unit_test(subnormals_are_honoured_and_not_normalised),
        cmocka_unit_test(a_zero_accumulator_counts_as_exponent_minus_133),
        cmocka_unit_test(a_zero_result_is_plus_zero),
        cmocka_unit_test(products_beyond_fp32_cancel_exactly),
        cmocka_unit_test(overflow_gives_infinity_of_the_sign),
        cmocka_unit_test(order_matters_between_blocks_only),
        cmocka_unit_test(zeros_behind_a_chain_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
