/* The layer's bytes: equal to the reference, whatever the ranks, threads and chunks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "problem.h"

static problem small_problem(mok_arith arith, routing kind)
{
    problem p = {0};
    p.tokens = 264;
    p.hidden = 48;
    p.inner = 40;
    p.shared_inner = 24;
    p.experts = 7;
    p.slots = 3;
    p.lanes = 8;
    p.arith = arith;
    p.routing = kind;
    p.seed = 11;
    return p;
}

static void expect_equal(const problem *p, const result *want, const run_config *config,
                         const char *what)
{
    result got;
    result_open(&got, p, 0xA5);
    const mok_status status = problem_run(p, config, &got);
    if (status != MOK_OK) {
        fail_msg("%s: %s: %s", what, mok_status_string(status), mok_last_error());
    }
    const char *difference = result_difference(p, want, &got, config->split == NULL);
    if (difference != NULL) {
        fail_msg("%s, ranks %d, threads %d, macrobatch %lld, minibatch %lld: %s", what,
                 config->ranks, config->threads, (long long)config->macrobatch_rows,
                 (long long)config->minibatch_rows, difference);
    }
    result_close(&got);
}

/* The reference's bytes for a problem, then every configuration that must give them. */
static void check_matrix(problem p)
{
    static const int32_t ranks[] = {1, 2, 3, 4, 6, 8};
    static const int64_t chunks[][2] = {{0, 0}, {128, 128}, {256, 128}, {384, 256}, {1024, 384}};
    problem_open(&p);
    result want;
    result_open(&want, &p, 0x5A);
    assert_int_equal(problem_reference(&p, &want), MOK_OK);
    run_config config = run_config_default();
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        for (size_t j = 0; j < sizeof chunks / sizeof chunks[0]; j++) {
            config.ranks = ranks[i];
            config.threads = 1 + (int32_t)((i + j) % 3);
            config.macrobatch_rows = chunks[j][0];
            config.minibatch_rows = chunks[j][1];
            config.recompute = (i + j) % 2 == 1;
            config.int64_routes = j % 2 == 0;
            expect_equal(&p, &want, &config, "layer");
        }
    }
    result_close(&want);
    problem_close(&p);
}

static void every_configuration_equals_the_reference_in_tc16(void **state)
{
    (void)state;
    check_matrix(small_problem(MOK_ARITH_TC16, ROUTING_UNIFORM));
}

static void every_configuration_equals_the_reference_in_fma(void **state)
{
    (void)state;
    check_matrix(small_problem(MOK_ARITH_FMA, ROUTING_SKEWED));
}

static void masked_routes_and_clamping_equal_the_reference(void **state)
{
    (void)state;
    problem p = small_problem(MOK_ARITH_FMA, ROUTING_MASKED);
    p.clamped = true;
    p.limit = 0.75f;
    check_matrix(p);
}

static void one_expert_with_everything_equals_the_reference(void **state)
{
    (void)state;
    problem p = small_problem(MOK_ARITH_FMA, ROUTING_ONE);
    p.shared_inner = 0;
    check_matrix(p);
}

static void empty_experts_equal_the_reference(void **state)
{
    (void)state;
    problem p = small_problem(MOK_ARITH_FMA, ROUTING_SPARSE);
    p.tokens = 16;
    p.experts = 12;
    check_matrix(p);
}

static void uneven_token_counts_change_no_routed_byte(void **state)
{
    (void)state;
    problem p = small_problem(MOK_ARITH_TC16, ROUTING_UNIFORM);
    static const int64_t split3[] = {0, 263, 1};
    static const int64_t split4[] = {100, 0, 33, 131};
    problem_open(&p);
    result want;
    result_open(&want, &p, 0x5A);
    assert_int_equal(problem_reference(&p, &want), MOK_OK);
    run_config config = run_config_default();
    config.ranks = 3;
    config.split = split3;
    expect_equal(&p, &want, &config, "split 0/263/1");
    config.ranks = 4;
    config.split = split4;
    config.macrobatch_rows = 128;
    expect_equal(&p, &want, &config, "split 100/0/33/131");
    result_close(&want);
    problem_close(&p);
}

static void more_ranks_than_experts_is_no_special_case(void **state)
{
    (void)state;
    problem p = small_problem(MOK_ARITH_FMA, ROUTING_UNIFORM);
    p.experts = 3;
    p.tokens = 64;
    check_matrix(p);
}

static void repeated_passes_give_equal_bytes(void **state)
{
    (void)state;
    problem p = small_problem(MOK_ARITH_TC16, ROUTING_SKEWED);
    problem_open(&p);
    result want;
    result_open(&want, &p, 0x5A);
    assert_int_equal(problem_reference(&p, &want), MOK_OK);
    run_config config = run_config_default();
    config.ranks = 4;
    config.threads = 2;
    config.macrobatch_rows = 256;
    config.repeats = 20;
    expect_equal(&p, &want, &config, "20 repeats");
    result_close(&want);
    problem_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_configuration_equals_the_reference_in_tc16),
        cmocka_unit_test(every_configuration_equals_the_reference_in_fma),
        cmocka_unit_test(masked_routes_and_clamping_equal_the_reference),
        cmocka_unit_test(one_expert_with_everything_equals_the_reference),
        cmocka_unit_test(empty_experts_equal_the_reference),
        cmocka_unit_test(uneven_token_counts_change_no_routed_byte),
        cmocka_unit_test(more_ranks_than_experts_is_no_special_case),
        cmocka_unit_test(repeated_passes_give_equal_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
