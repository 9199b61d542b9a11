/* Ranks that share no memory, or only some of it: the bytes of ranks that do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "problem.h"

/* Nobody maps anybody's memory; ranks 0, 1 and 4 do; all but rank 2 do. */
static const uint64_t mappings[] = {0, 0x13, ~(uint64_t)4};
#define MAPPINGS (sizeof mappings / sizeof mappings[0])

static problem small_problem(mok_arith arith, routing kind)
{
    problem p = {0};
    p.tokens = 136;
    p.hidden = 48;
    p.inner = 40;
    p.shared_inner = 24;
    p.experts = 7;
    p.slots = 3;
    p.lanes = 8;
    p.arith = arith;
    p.routing = kind;
    p.seed = 17;
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
        fail_msg("%s, ranks %d, mapped %llx, macrobatch %lld: %s", what, config->ranks,
                 (unsigned long long)config->apart->mapped, (long long)config->macrobatch_rows,
                 difference);
    }
    result_close(&got);
}

static void check_matrix(problem p, const char *what)
{
    static const int32_t ranks[] = {1, 2, 3, 4, 6, 8};
    static const int64_t chunks[][2] = {{0, 0}, {128, 128}, {384, 256}};
    problem_open(&p);
    result want;
    result_open(&want, &p, 0x5A);
    assert_int_equal(problem_reference(&p, &want), MOK_OK);
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        for (size_t j = 0; j < MAPPINGS; j++) {
            apart_plan plan = {0};
            run_config config = run_config_default();
            plan.mapped = mappings[j];
            plan.slow = (int32_t)((i + j) % 3);
            config.apart = &plan;
            config.ranks = ranks[i];
            config.threads = 1 + (int32_t)((i + j) % 2);
            config.macrobatch_rows = chunks[(i + j) % 3][0];
            config.minibatch_rows = chunks[(i + j) % 3][1];
            config.recompute = (i + j) % 2 == 1;
            expect_equal(&p, &want, &config, what);
        }
    }
    result_close(&want);
    problem_close(&p);
}

static void any_split_of_memory_gives_the_reference_in_tc16(void **state)
{
    (void)state;
    check_matrix(small_problem(MOK_ARITH_TC16, ROUTING_UNIFORM), "uniform");
}

static void masked_routes_and_clamping_give_the_reference_in_fma(void **state)
{
    (void)state;
    problem p = small_problem(MOK_ARITH_FMA, ROUTING_MASKED);
    p.clamped = true;
    p.limit = 0.75f;
    check_matrix(p, "masked");
}

static void one_expert_and_empty_experts_give_the_reference(void **state)
{
    (void)state;
    problem p = small_problem(MOK_ARITH_FMA, ROUTING_ONE);
    p.shared_inner = 0;
    check_matrix(p, "one expert");
    p.routing = ROUTING_SPARSE;
    p.tokens = 16;
    p.experts = 12;
    check_matrix(p, "sparse");
}

static void ranks_without_tokens_change_no_routed_byte(void **state)
{
    (void)state;
    static const int64_t split[] = {0, 135, 1};
    problem p = small_problem(MOK_ARITH_TC16, ROUTING_SKEWED);
    problem_open(&p);
    result want;
    result_open(&want, &p, 0x5A);
    assert_int_equal(problem_reference(&p, &want), MOK_OK);
    for (size_t j = 0; j < MAPPINGS; j++) {
        apart_plan plan = {0};
        run_config config = run_config_default();
        plan.mapped = mappings[j];
        config.apart = &plan;
        config.ranks = 3;
        config.split = split;
        expect_equal(&p, &want, &config, "split 0/135/1");
    }
    result_close(&want);
    problem_close(&p);
}

static void more_rows_than_an_outbox_holds_and_repeats(void **state)
{
    (void)state;
    problem p = small_problem(MOK_ARITH_FMA, ROUTING_UNIFORM);
    p.hidden = 256; /* 512 bytes a row: about 700 KB cross in each direction */
    p.inner = 16;
    p.shared_inner = 0;
    p.tokens = 1024;
    p.slots = 4;
    problem_open(&p);
    result want;
    result_open(&want, &p, 0x5A);
    assert_int_equal(problem_reference(&p, &want), MOK_OK);
    apart_plan plan = {0};
    run_config config = run_config_default();
    plan.slow = 2;
    config.apart = &plan;
    config.ranks = 3;
    config.threads = 2;
    config.repeats = 4;
    expect_equal(&p, &want, &config, "large rows");
    result_close(&want);
    problem_close(&p);
}

/* ---- Collective calls ---- */

#define BIG ((size_t)200000) /* more than a message, nearly what staging holds */

static mok_status use_collectives(mok_comm *comm, void *context)
{
    const int32_t rank = mok_comm_rank(comm);
    const int32_t ranks = mok_comm_size(comm);
    unsigned char *all = malloc(BIG * (size_t)ranks);
    unsigned char *mine = malloc(BIG);
    mok_status status = MOK_OK;
    (void)context;
    for (int32_t round = 0; round < 20 && status == MOK_OK; round++) {
        const size_t bytes = round % 4 == 3 ? BIG : (size_t)(1 + round * 37);
        memset(mine, 16 * round + rank, bytes);
        status = mok_comm_allgather(comm, all, mine, bytes);
        for (int32_t r = 0; r < ranks && status == MOK_OK; r++) {
            for (size_t i = 0; i < bytes; i++) {
                if (all[(size_t)r * bytes + i] != (unsigned char)(16 * round + r)) {
                    status = MOK_ERROR_VALUE;
                }
            }
        }
        const int32_t root = round % ranks;
        if (status == MOK_OK) {
            status = mok_comm_broadcast(comm, mine, bytes, root);
        }
        if (status == MOK_OK && mine[bytes - 1] != (unsigned char)(16 * round + root)) {
            status = MOK_ERROR_VALUE;
        }
        float sum[3];
        const float part[3] = {(float)(rank + 1), 1e20f * (float)(rank % 2 == 0 ? 1 : -1), 0.5f};
        if (status == MOK_OK) {
            status = mok_lane_reduce(comm, sum, part, 1, 3);
        }
        if (status == MOK_OK && sum[2] != 0.5f * (float)ranks) {
            status = MOK_ERROR_VALUE;
        }
        if (status == MOK_OK) {
            status = mok_comm_agree(comm, MOK_OK);
        }
    }
    free(mine);
    free(all);
    return status;
}

static void collective_calls_work_behind_a_link(void **state)
{
    (void)state;
    mok_comm_config config;
    mok_comm_config_init(&config);
    for (int32_t ranks = 1; ranks <= 5; ranks++) {
        for (size_t j = 0; j < MAPPINGS; j++) {
            char text[5][240];
            apart_plan plan = {0};
            plan.mapped = mappings[j];
            plan.slow = ranks % 3;
            if (apart_run(ranks, &plan, &config, use_collectives, NULL, NULL, text) != MOK_OK) {
                fail_msg("ranks %d, mapping %zu: %s", ranks, j, text[0]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_of_memory_gives_the_reference_in_tc16),
        cmocka_unit_test(masked_routes_and_clamping_give_the_reference_in_fma),
        cmocka_unit_test(one_expert_and_empty_experts_give_the_reference),
        cmocka_unit_test(ranks_without_tokens_change_no_routed_byte),
        cmocka_unit_test(more_rows_than_an_outbox_holds_and_repeats),
        cmocka_unit_test(collective_calls_work_behind_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
