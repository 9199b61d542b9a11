/* Routes that repeat, are masked or tie, and router weights of every kind. */
#include "cases.h"

#include <math.h>
#include <string.h>

static void c1_a_token_may_name_an_expert_k_times(void **state)
{
    (void)state;
    problem p = case_sizes(6, 24, 16, 0, 4, 4);
    result r;
    run_config config = run_config_default();
    problem_open(&p);
    for (int64_t k = 0; k < 4; k++) {
        p.routes[k] = 0;
        p.routes[4 + k] = k < 2 ? 3 : 1;
    }
    config.ranks = 2;
    const int64_t split[2] = {3, 3};
    config.split = split;
    case_run(&p, &config, &r, 0xFF);
    case_near_oracle(&p, &r);
    result_close(&r);
    problem_close(&p);
}

static void c4_a10_masked_slots_are_skipped_and_get_zero_weight_gradient(void **state)
{
    (void)state;
    problem p = case_sizes(3, 24, 16, 16, 2, 2);
    result r;
    run_config config = run_config_default();
    static const int32_t routes[6] = {-1, 1, -1, -1, 0, -1};
    problem_open(&p);
    memcpy(p.routes, routes, sizeof routes);
    p.router_weights[0] = NAN; /* never looked at */
    p.router_weights[3] = INFINITY;
    config.ranks = 2;
    const int64_t split[2] = {2, 1};
    config.split = split;
    case_run(&p, &config, &r, 0xFF);
    for (int i = 0; i < 6; i++) {
        if (routes[i] < 0) {
            assert_true(case_all_bits_zero(&r.d_router_weights[i], 1));
        } else {
            assert_true(r.d_router_weights[i] != 0.0f);
        }
    }
    p.router_weights[0] = p.router_weights[3] =
        0.0f; /* for the oracle, which multiplies nothing by them either */
    case_near_oracle(&p, &r);
    result_close(&r);
    problem_close(&p);
}

static void c4_a_token_without_routes_gets_the_shared_result_alone(void **state)
{
    (void)state;
    problem p = case_sizes(2, 24, 16, 0, 2, 2);
    result r;
    const run_config config = run_config_default();
    problem_open(&p);
    p.routes[0] = p.routes[1] = -1;
    case_run(&p, &config, &r, 0xFF);
    for (int64_t i = 0; i < p.hidden; i++) {
        assert_int_equal(r.y[i], 0);
        assert_int_equal(r.dx[i], 0);
    }
    result_close(&r);
    problem_close(&p);
}

/* d(w) must be <dy, expert output>, not something divided by w. */
static void c5_c8_weight_gradients_hold_for_zero_negative_and_tiny_weights(void **state)
{
    (void)state;
    static const float weights[4] = {0.0f, -0.5f, 1e-20f, 1.0f};
    problem p = case_sizes(8, 32, 16, 0, 4, 4);
    result r;
    const run_config config = run_config_default();
    problem_open(&p);
    for (int64_t i = 0; i < p.tokens * p.slots; i++) {
        p.router_weights[i] = weights[i % 4];
        p.routes[i] = (int32_t)(i % 4);
    }
    case_run(&p, &config, &r, 0xFF);
    for (int64_t i = 0; i < p.tokens * p.slots; i++) {
        assert_true(isfinite(r.d_router_weights[i]) && r.d_router_weights[i] != 0.0f);
    }
    oracle o;
    oracle_open(&o, &p);
    oracle_backward(&o);
    for (int64_t i = 0; i < p.tokens * p.slots; i++) {
        assert_true(fabs((double)r.d_router_weights[i] - o.d_router_weights[i]) < 0.05);
    }
    oracle_close(&o);
    result_close(&r);
    problem_close(&p);
}

/* Twice the weight of a single slot is twice the output, exactly: nothing is renormalised. */
static void c9_weights_of_one_slot_are_applied_as_given(void **state)
{
    (void)state;
    problem p = case_sizes(10, 32, 16, 0, 4, 1);
    result a;
    result b;
    const run_config config = run_config_default();
    problem_open(&p);
    for (int64_t i = 0; i < p.tokens; i++) {
        p.router_weights[i] = 0.25f;
    }
    case_run(&p, &config, &a, 0xFF);
    for (int64_t i = 0; i < p.tokens; i++) {
        p.router_weights[i] = 0.5f;
    }
    case_run(&p, &config, &b, 0xFF);
    for (int64_t i = 0; i < p.tokens * p.hidden; i++) {
        assert_true(f32_of(b.y[i]) == 2.0f * f32_of(a.y[i]));
    }
    result_close(&a);
    result_close(&b);
    problem_close(&p);
}

static void c16_a_heavy_expert_on_one_of_two_ranks_drops_nothing(void **state)
{
    (void)state;
    static const int64_t rows[] = {150, 2, 1, 3, 4, 2, 1, 2};
    problem p;
    result r;
    run_config config = run_config_default();
    case_rows(&p, rows, 8, 24, 16, MOK_ARITH_FMA);
    const int64_t split[2] = {p.tokens / 2, p.tokens - p.tokens / 2};
    config.ranks = 2;
    config.split = split;
    case_run(&p, &config, &r, 0xFF);
    case_near_oracle(&p, &r);
    result_close(&r);
    problem_close(&p);
}

/* gate=20, up=-20 at limit 10: both are clamped, so neither passes a gradient on; limit 40 lets
 * them pass. */
static void check_clamp(float limit, bool passes)
{
    problem p = case_sizes(1, 1, 1, 0, 1, 1);
    result r;
    const run_config config = run_config_default();
    p.clamped = true;
    p.limit = limit;
    problem_open(&p);
    p.x[0] = bf16_of(1.0f);
    p.dy[0] = bf16_of(1.0f);
    p.gate[0] = bf16_of(20.0f);
    p.up[0] = bf16_of(-20.0f);
    p.down[0] = bf16_of(1.0f);
    p.router_weights[0] = 1.0f;
    case_run(&p, &config, &r, 0xFF);
    const float reach = limit < 20.0f ? limit : 20.0f;
    assert_true(fabsf(f32_of(r.y[0]) + reach * reach) <= 1.0f);
    assert_true((r.gate[0] != 0.0f) == passes);
    assert_true((r.up[0] != 0.0f) == passes);
    result_close(&r);
    problem_close(&p);
}

static void h2_h3_clamping_applies_its_limit_and_stops_gradients(void **state)
{
    (void)state;
    check_clamp(10.0f, false);
    check_clamp(7.0f, false);
    check_clamp(40.0f, true);
    check_clamp(20.0f, true); /* equality passes it on */
}

static void h5_a_limit_that_is_no_limit_is_refused(void **state)
{
    (void)state;
    static const float bad[] = {-1.0f, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        problem p = case_sizes(1, 4, 4, 0, 1, 1);
        result r;
        const run_config config = run_config_default();
        p.clamped = true;
        p.limit = bad[i];
        problem_open(&p);
        result_open(&r, &p, 0xFF);
        assert_int_equal(problem_run(&p, &config, &r), MOK_ERROR_ARGUMENT);
        result_close(&r);
        problem_close(&p);
    }
    problem p = case_sizes(2, 4, 4, 0, 1, 1); /* 0 is a limit */
    result r;
    const run_config config = run_config_default();
    p.clamped = true;
    p.limit = 0.0f;
    problem_open(&p);
    case_run(&p, &config, &r, 0xFF);
    result_close(&r);
    problem_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c1_a_token_may_name_an_expert_k_times),
        cmocka_unit_test(c4_a10_masked_slots_are_skipped_and_get_zero_weight_gradient),
        cmocka_unit_test(c4_a_token_without_routes_gets_the_shared_result_alone),
        cmocka_unit_test(c5_c8_weight_gradients_hold_for_zero_negative_and_tiny_weights),
        cmocka_unit_test(c9_weights_of_one_slot_are_applied_as_given),
        cmocka_unit_test(c16_a_heavy_expert_on_one_of_two_ranks_drops_nothing),
        cmocka_unit_test(h2_h3_clamping_applies_its_limit_and_stops_gradients),
        cmocka_unit_test(h5_a_limit_that_is_no_limit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
