/* exact_log, exact_exp, exact_sin, exact_cos and the powers against the C library in long double,
 * over the ranges the trainer uses; and the values at the edges. Only the trainer's own results
 * must not depend on the C library; a test may. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data.h"
#include "exact_math.h"

#include <math.h>

#define SAMPLES 200000

static double uniform(uint64_t key, uint64_t i, double least, double most)
{
    return least + (most - least) * (double)(train_random(key, i) >> 11) * 0x1p-53;
}

/* Distance in units of the last place of the true value. */
static double ulps(double got, long double want)
{
    int exponent;
    (void)frexpl(want, &exponent);
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, exponent - 53));
}

static void log_is_within_two_units_of_the_last_place(void **state)
{
    (void)state;
    double worst = 0.0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        const double near_one = uniform(1, i, 0.5, 2.0);
        const double wide = ldexp(uniform(2, i, 1.0, 2.0), (int)(train_random(3, i) % 2000) - 1000);
        worst = fmax(worst, ulps(exact_log(near_one), logl((long double)near_one)));
        worst = fmax(worst, ulps(exact_log(wide), logl((long double)wide)));
    }
    assert_true(worst <= 2.0);
    assert_true(exact_log(1.0) == 0.0);
    assert_true(isinf(exact_log(0.0)) && exact_log(0.0) < 0.0);
    assert_true(isinf(exact_log((double)INFINITY)));
    assert_true(isnan(exact_log(-1.0)));
    assert_true(isnan(exact_log((double)NAN)));
    assert_true(ulps(exact_log(0x1p-1074), logl(0x1p-1074L)) <= 2.0);
}

static void exp_is_within_two_units_of_the_last_place(void **state)
{
    (void)state;
    double worst = 0.0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        const double small = uniform(4, i, -1.0, 1.0);
        const double wide = uniform(5, i, -700.0, 700.0);
        worst = fmax(worst, ulps(exact_exp(small), expl((long double)small)));
        worst = fmax(worst, ulps(exact_exp(wide), expl((long double)wide)));
    }
    assert_true(worst <= 2.0);
    assert_true(exact_exp(0.0) == 1.0);
    assert_true(exact_exp(-701.0) == 0.0);
    assert_true(isinf(exact_exp(701.0)));
}

/* Near a zero of sine or cosine the relative error grows, so the bound is on the absolute one. */
static void sine_and_cosine_are_within_a_unit_of_one(void **state)
{
    (void)state;
    double worst = 0.0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        const double near = uniform(6, i, -7.0, 7.0);
        const double far = uniform(7, i, 0.0, 0x1p+20);
        worst = fmax(worst, (double)fabsl((long double)exact_sin(near) - sinl((long double)near)));
        worst = fmax(worst, (double)fabsl((long double)exact_cos(near) - cosl((long double)near)));
        worst = fmax(worst, (double)fabsl((long double)exact_sin(far) - sinl((long double)far)));
        worst = fmax(worst, (double)fabsl((long double)exact_cos(far) - cosl((long double)far)));
    }
    assert_true(worst <= 0x1p-52);
    assert_true(exact_sin(0.0) == 0.0);
    assert_true(exact_cos(0.0) == 1.0);
}

static void powers_agree_with_the_library(void **state)
{
    (void)state;
    assert_true(exact_pow_int(0.9, 0) == 1.0);
    assert_true(exact_pow_int(2.0, 30) == 0x1p+30);
    for (int64_t power = 1; power < 2000; power++) {
        const long double want = powl(0.95L, (long double)power);
        assert_true(fabsl((long double)exact_pow_int(0.95, power) - want) <= want * 1e-12L);
    }
    for (int i = 1; i < 64; i++) {
        const long double want = powl(10000.0L, -(long double)i / 64.0L);
        assert_true(fabsl((long double)exact_pow(10000.0, -(double)i / 64.0) - want) <=
                    want * 1e-14L);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_is_within_two_units_of_the_last_place),
        cmocka_unit_test(exp_is_within_two_units_of_the_last_place),
        cmocka_unit_test(sine_and_cosine_are_within_a_unit_of_one),
        cmocka_unit_test(powers_agree_with_the_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
