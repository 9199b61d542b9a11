/* The same step again: equal bytes, whatever ran beside it, before it or on the other ranks. */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

/* Repeats of schedule, forward and backward within one run are compared by the helper itself. */
static void check_repeats(problem *p, int32_t ranks, int32_t threads, int32_t repeats)
{
    result r;
    run_config config = run_config_default();
    config.ranks = ranks;
    config.threads = threads;
    config.repeats = repeats;
    const int64_t split[4] = {p->tokens / 4, p->tokens / 4, p->tokens / 4,
                              p->tokens - 3 * (p->tokens / 4)};
    const int64_t whole[1] = {p->tokens};
    config.split = ranks == 4 ? split : whole;
    case_run(p, &config, &r, 0xFF);
    result_close(&r);
}

static void d1_a_large_schedule_is_the_same_a_hundred_times(void **state)
{
    (void)state;
    problem p = case_sizes(4097, 2, 2, 0, 128, 4);
    problem_open(&p);
    check_repeats(&p, 4, 1, 25);
    problem_close(&p);
}

static void d3_d4_a_hundred_backward_passes_give_one_result(void **state)
{
    (void)state;
    problem p = case_sizes(60, 32, 48, 16, 6, 3);
    problem_open(&p);
    check_repeats(&p, 1, 3, 100);
    problem_close(&p);
}

static void d14_a_zero_column_and_full_blocks_repeat_200_times(void **state)
{
    (void)state;
    static const int64_t rows[] = {256, 128, 128, 256};
    problem p;
    case_rows(&p, rows, 4, 16, 16, MOK_ARITH_FMA);
    for (int64_t t = 0; t < p.tokens; t++) {
        p.x[t * p.hidden + 3] = 0;
    }
    check_repeats(&p, 1, 2, 200);
    problem_close(&p);
}

static void d18_d19_a_shared_expert_beside_few_active_ones_repeats(void **state)
{
    (void)state;
    problem p = case_sizes(64, 24, 16, 40, 8, 2);
    p.routing = ROUTING_ONE;
    problem_open(&p);
    check_repeats(&p, 4, 2, 100);
    problem_close(&p);
}

/* Rank 0 keeps its tokens; rank 1 brings 16 or 1024 rows to the same experts. */
static void d8_what_other_ranks_hold_does_not_reach_y_and_dx(void **state)
{
    (void)state;
    static const int64_t others[2] = {16, 1024};
    const int64_t mine = 20;
    result r[2];
    problem p[2];
    for (int i = 0; i < 2; i++) {
        p[i] = case_sizes(mine + others[i], 24, 16, 0, 4, 2);
        problem_open(&p[i]);
        if (i == 1) { /* weights and the first tokens are those of the first problem */
            const size_t matrix =
                (size_t)(p[0].experts * p[0].inner * p[0].hidden) * sizeof(uint16_t);
            memcpy(p[1].gate, p[0].gate, matrix);
            memcpy(p[1].up, p[0].up, matrix);
            memcpy(p[1].down, p[0].down, matrix);
            memcpy(p[1].x, p[0].x, (size_t)(mine * 24) * sizeof(uint16_t));
            memcpy(p[1].dy, p[0].dy, (size_t)(mine * 24) * sizeof(uint16_t));
            memcpy(p[1].routes, p[0].routes, (size_t)(mine * 2) * sizeof(int32_t));
            memcpy(p[1].router_weights, p[0].router_weights, (size_t)(mine * 2) * sizeof(float));
        }
        run_config config = run_config_default();
        const int64_t split[2] = {mine, others[i]};
        config.ranks = 2;
        config.split = split;
        case_run(&p[i], &config, &r[i], 0xFF);
    }
    assert_memory_equal(r[0].y, r[1].y, (size_t)(mine * 24) * sizeof(uint16_t));
    assert_memory_equal(r[0].dx, r[1].dx, (size_t)(mine * 24) * sizeof(uint16_t));
    for (int i = 0; i < 2; i++) {
        result_close(&r[i]);
        problem_close(&p[i]);
    }
}

/* Two separate runs have other addresses, threads and allocations; the promise holds between them
 * too. */
static void d7_two_runs_of_their_own_give_equal_bytes(void **state)
{
    (void)state;
    problem p = case_sizes(90, 40, 24, 16, 5, 2);
    result a;
    result b;
    run_config config = run_config_default();
    problem_open(&p);
    case_run(&p, &config, &a, 0xFF);
    void *between = malloc(123457);
    config.threads = 3;
    case_run(&p, &config, &b, 0x00);
    case_equal(&p, &a, &b);
    free(between);
    result_close(&a);
    result_close(&b);
    problem_close(&p);
}

static void e17_three_macrobatches_give_the_bits_of_one(void **state)
{
    (void)state;
    problem p = case_sizes(150, 32, 24, 0, 3, 2);
    result a;
    result b;
    run_config config = run_config_default();
    problem_open(&p);
    case_run(&p, &config, &a, 0xFF);
    config.macrobatch_rows = 128;
    config.minibatch_rows = 128;
    case_run(&p, &config, &b, 0xFF);
    case_equal(&p, &a, &b);
    result_close(&a);
    result_close(&b);
    problem_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(d1_a_large_schedule_is_the_same_a_hundred_times),
        cmocka_unit_test(d3_d4_a_hundred_backward_passes_give_one_result),
        cmocka_unit_test(d14_a_zero_column_and_full_blocks_repeat_200_times),
        cmocka_unit_test(d18_d19_a_shared_expert_beside_few_active_ones_repeats),
        cmocka_unit_test(d8_what_other_ranks_hold_does_not_reach_y_and_dx),
        cmocka_unit_test(d7_two_runs_of_their_own_give_equal_bytes),
        cmocka_unit_test(e17_three_macrobatches_give_the_bits_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
