/* bf16, exp, sigmoid, silu: directed values and error against double; and the floating-point
 * environment. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/fpenv.h"
#include "mok/mok_experimental.h"
#include "numerics/bf16.h"
#include "numerics/exp.h"
#include "numerics/swiglu.h"

static uint32_t bits_of(float x)
{
    return mok_f32_bits(x);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(mok_bf16_round(mok_f32_of_bits(0x3F808000)),
                     0x3F80); /* a tie below an odd one */
    assert_int_equal(mok_bf16_round(mok_f32_of_bits(0x3F818000)),
                     0x3F82); /* a tie above an odd one */
    assert_int_equal(mok_bf16_round(mok_f32_of_bits(0x3F808001)), 0x3F81);
    assert_int_equal(mok_bf16_round(mok_f32_of_bits(0x3F807FFF)), 0x3F80);
    assert_int_equal(mok_bf16_round(mok_f32_of_bits(0xBF808001)), 0xBF81);
    assert_int_equal(mok_bf16_round(mok_f32_of_bits(0x7F7FFFFF)), 0x7F80); /* up to infinity */
    assert_int_equal(mok_bf16_round(mok_f32_of_bits(0x00008000)), 0x0000); /* a subnormal tie */
    assert_int_equal(mok_bf16_round(mok_f32_of_bits(0x00018000)), 0x0002);
    assert_int_equal(mok_bf16_round(-0.0f), 0x8000);
}

static void bf16_of_any_nan_is_7fff(void **state)
{
    (void)state;
    static const uint32_t nans[] = {0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0xFF800100};
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        assert_int_equal(mok_bf16_round(mok_f32_of_bits(nans[i])), 0x7FFF);
    }
}

static void widening_then_rounding_returns_every_bf16(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float wide = mok_bf16_widen((uint16_t)bits);
        const bool nan = (bits & 0x7FFF) > 0x7F80;
        assert_int_equal(mok_bf16_round(wide), nan ? 0x7FFF : bits);
    }
}

/* Distance of x from the true value in units of x's last place. */
static double ulps(float x, double truth)
{
    int exponent;
    (void)frexp(truth, &exponent);
    const double unit = ldexp(1.0, exponent - 24 > -149 ? exponent - 24 : -149);
    return fabs((double)x - truth) / unit;
}

static void exp_stays_within_0_9_ulp(void **state)
{
    (void)state;
    double worst = 0.0;
    for (uint32_t bits = 0; bits < 0x42B17218u; bits += 4099) { /* to 88.72 */
        const float x = mok_f32_of_bits(bits);
        worst = fmax(worst, ulps(mok_exp_f32(x), exp((double)x)));
    }
    for (uint32_t bits = 0x80000000u; bits < 0xC2AE0000u;
         bits += 4099) { /* to -87, normal results */
        const float x = mok_f32_of_bits(bits);
        worst = fmax(worst, ulps(mok_exp_f32(x), exp((double)x)));
    }
    assert_true(worst > 0.5 && worst < 0.9);
}

static void exp_has_the_documented_ends(void **state)
{
    (void)state;
    assert_int_equal(bits_of(mok_exp_f32(0.0f)), 0x3F800000);
    assert_int_equal(bits_of(mok_exp_f32(-0.0f)), 0x3F800000);
    assert_int_equal(bits_of(mok_exp_f32(-104.5f)), 0);
    assert_int_equal(bits_of(mok_exp_f32(-INFINITY)), 0);
    assert_int_equal(bits_of(mok_exp_f32(89.0f)), 0x7F800000);
    assert_int_equal(bits_of(mok_exp_f32(INFINITY)), 0x7F800000);
    assert_int_equal(bits_of(mok_exp_f32(NAN)), 0x7FFFFFFF);
    assert_true(mok_exp_f32(88.72283f) < INFINITY);
    assert_true(mok_exp_f32(-103.0f) > 0.0f); /* a subnormal, kept */
}

static void sigmoid_and_silu_are_near_the_truth_and_never_leave_their_range(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float x = mok_bf16_widen((uint16_t)bits);
        if ((bits & 0x7FFF) >= 0x7F80) {
            continue;
        }
        const double truth = 1.0 / (1.0 + exp(-(double)x));
        const float s = mok_sigmoid_f32(x);
        assert_true(s >= 0.0f && s <= 1.0f);
        assert_true(fabs((double)s - truth) <= 3e-7 * truth + 1e-44);
        const float silu = mok_silu_f32(x);
        assert_true(fabs((double)silu - (double)x * truth) <=
                    3e-7 * fabs((double)x * truth) + 1e-43);
    }
}

/* dsilu = s (1 + x (1 - s)): the slope of silu. */
static void dsilu_is_the_slope_of_silu(void **state)
{
    (void)state;
    for (double x = -20.0; x <= 20.0; x += 0.0625) {
        const double s = 1.0 / (1.0 + exp(-x));
        const double slope = s * (1.0 + x * (1.0 - s));
        assert_true(fabs((double)mok_dsilu_f32((float)x) - slope) < 2e-6);
    }
    assert_int_equal(bits_of(mok_dsilu_f32(0.0f)), bits_of(0.5f));
}

#if defined(__x86_64__)
/* Flush-to-zero, denormals-are-zero and rounding up, as a host process may have left them. */
static void a_callers_floating_point_state_changes_nothing_and_is_given_back(void **state)
{
    (void)state;
    const float in[2] = {mok_f32_of_bits(0x00000123),
                         -100.0f}; /* a subnormal, and one with a subnormal exp */
    float want[2];
    float got[2];
    mok_exp(want, in, 2);
    const uint32_t saved = _mm_getcsr();
    _mm_setcsr((saved | 0x8040u | 0x4000u) & ~0x3Fu);
    const uint32_t foreign = _mm_getcsr();
    mok_exp(got, in, 2);
    const uint32_t after = _mm_getcsr();
    _mm_setcsr(saved);
    assert_memory_equal(got, want, sizeof want);
    assert_true(want[1] > 0.0f);
    assert_int_equal(after & ~0x3Fu, foreign & ~0x3Fu);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_of_any_nan_is_7fff),
        cmocka_unit_test(widening_then_rounding_returns_every_bf16),
        cmocka_unit_test(exp_stays_within_0_9_ulp),
        cmocka_unit_test(exp_has_the_documented_ends),
        cmocka_unit_test(sigmoid_and_silu_are_near_the_truth_and_never_leave_their_range),
        cmocka_unit_test(dsilu_is_the_slope_of_silu),
#if defined(__x86_64__)
        cmocka_unit_test(a_callers_floating_point_state_changes_nothing_and_is_given_back),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
