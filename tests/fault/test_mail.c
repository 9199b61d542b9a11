/* Ranks behind a link when something goes wrong: every rank ends within its deadline, with a
 * message that names a rank and a phase; ends close in any order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "problem.h"

#define RANKS 3

static mok_comm_config quick(int32_t timeout_ms)
{
    mok_comm_config config;
    mok_comm_config_init(&config);
    config.timeout_ms = timeout_ms;
    return config;
}

static double now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void pause_ms(int64_t ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

/* Runs the plan; every rank must end with `want` and a text that holds `words`. */
static void expect_all(const apart_plan *plan, int32_t timeout_ms, rank_main run, mok_status want,
                       const char *words, double most_s)
{
    const mok_comm_config config = quick(timeout_ms);
    mok_status status[RANKS];
    char text[RANKS][240];
    const double begin = now_s();
    (void)apart_run(RANKS, plan, &config, run, NULL, status, text);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        if (status[rank] != want || strstr(text[rank], words) == NULL) {
            fail_msg("rank %d: %s: '%s', must be %s with '%s'", rank,
                     mok_status_string(status[rank]), text[rank], mok_status_string(want), words);
        }
    }
    assert_true(now_s() - begin < most_s);
}

static mok_status many_gatherings(mok_comm *comm, void *context)
{
    mok_status status = MOK_OK;
    (void)context;
    for (int32_t round = 0; round < 400 && status == MOK_OK; round++) {
        int32_t all[RANKS];
        status = mok_comm_allgather(comm, all, &round, sizeof round);
        if (status == MOK_OK && (all[0] != round || all[1] != round || all[2] != round)) {
            return MOK_ERROR_VALUE;
        }
    }
    return status;
}

static void a_link_that_breaks_names_the_rank(void **state)
{
    (void)state;
    static const int32_t at[] = {1, 2, 7, 100};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        apart_plan plan = {0};
        plan.from = 1;
        plan.to = 2;
        plan.break_at = at[i];
        expect_all(&plan, 20000, many_gatherings, MOK_ERROR_PEER, "in phase", 15.0);
    }
}

static void a_message_that_makes_no_sense_is_a_fault(void **state)
{
    (void)state;
    static const int32_t at[] = {1, 2, 30};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        apart_plan plan = {0};
        plan.from = 2;
        plan.to = 0;
        plan.garble_at = at[i];
        expect_all(&plan, 20000, many_gatherings, MOK_ERROR_PEER, "rank 0 waited for rank 2", 15.0);
    }
}

static mok_status rank_1_sleeps(mok_comm *comm, void *context)
{
    (void)context;
    if (mok_comm_rank(comm) == 1) {
        pause_ms(900);
    }
    return mok_comm_barrier(comm);
}

static void a_rank_that_stops_is_named_after_the_deadline(void **state)
{
    (void)state;
    const apart_plan plan = {0};
    expect_all(&plan, 300, rank_1_sleeps, MOK_ERROR_PEER, "waited for rank 1 in phase exchange",
               15.0);
}

/* Rank 1 goes while its last words are on their way: rank 2 has them, passes, and then waits for
 * rank 0, which waits for rank 1. Both must name rank 1. */
static void the_rank_that_others_wait_for_in_turn_is_named(void **state)
{
    (void)state;
    int32_t wrong = 0;
    for (int32_t at = 3; at < 23; at += 4) {
        apart_plan plan = {0};
        plan.from = 1;
        plan.to = 0;
        plan.hold_at = at;
        const mok_comm_config config = quick(200);
        mok_status status[RANKS];
        char text[RANKS][240];
        (void)apart_run(RANKS, &plan, &config, many_gatherings, NULL, status, text);
        for (int32_t rank = 0; rank < RANKS; rank += 2) {
            assert_int_equal(status[rank], MOK_ERROR_PEER);
            wrong += strstr(text[rank], "rank 0 waited for rank 1 in phase") == NULL;
        }
    }
    assert_int_equal(wrong, 0);
}

static mok_status rank_1_leaves(mok_comm *comm, void *context)
{
    (void)context;
    return mok_comm_rank(comm) == 1 ? MOK_OK : mok_comm_barrier(comm);
}

static void a_rank_that_leaves_early_is_named(void **state)
{
    (void)state;
    const apart_plan plan = {0};
    const mok_comm_config config = quick(300);
    mok_status status[RANKS];
    char text[RANKS][240];
    (void)apart_run(RANKS, &plan, &config, rank_1_leaves, NULL, status, text);
    assert_int_equal(status[1], MOK_OK);
    for (int32_t rank = 0; rank < RANKS; rank += 2) {
        assert_int_equal(status[rank], MOK_ERROR_PEER);
        assert_non_null(strstr(text[rank], "waited for rank 1 in phase exchange"));
    }
}

/* Sizes that differ are a mismatch on every rank, and leave the ranks in step. */
static mok_status sizes_differ(mok_comm *comm, void *context)
{
    char all[RANKS * 8];
    const char mine[8] = "";
    (void)context;
    const mok_status status = mok_comm_allgather(comm, all, mine, mok_comm_rank(comm) == 2 ? 8 : 4);
    if (status != MOK_ERROR_MISMATCH) {
        return MOK_ERROR_STATE;
    }
    const mok_status after = mok_comm_allgather(comm, all, mine, 8);
    return after == MOK_OK ? mok_comm_allgather(comm, all, mine, mok_comm_rank(comm) == 2 ? 8 : 4)
                           : MOK_ERROR_STATE;
}

static void sizes_that_differ_are_a_mismatch_everywhere(void **state)
{
    (void)state;
    const apart_plan plan = {0};
    expect_all(&plan, 20000, sizes_differ, MOK_ERROR_MISMATCH, "rank 2", 15.0);
}

static mok_status layers_differ(mok_comm *comm, void *context)
{
    mok_layer *layer = NULL;
    mok_layer_config config;
    (void)context;
    mok_layer_config_init(&config);
    config.hidden = config.intermediate = 16;
    config.experts = mok_comm_rank(comm) == 1 ? 5 : 4;
    config.slots = 2;
    config.max_tokens = 8;
    const mok_status status = mok_layer_open(&layer, comm, &config);
    mok_layer_close(&layer);
    return status;
}

static void layers_that_differ_are_a_mismatch_everywhere(void **state)
{
    (void)state;
    const apart_plan plan = {0};
    expect_all(&plan, 20000, layers_differ, MOK_ERROR_MISMATCH, "rank 1", 15.0);
}

static void ranks_without_memory_or_link_are_refused(void **state)
{
    (void)state;
    apart_plan plan = {0};
    plan.linkless = true;
    plan.mapped = 3;
    expect_all(&plan, 20000, many_gatherings, MOK_ERROR_UNSUPPORTED,
               "ranks 0 and 2 share no memory", 15.0);
    plan.mapped = 7; /* without need of a link nothing is refused */
    expect_all(&plan, 20000, many_gatherings, MOK_OK, "", 15.0);
}

static void a_gathering_that_fails_ends_opening(void **state)
{
    (void)state;
    for (int32_t at = 1; at <= 3; at++) {
        apart_plan plan = {0};
        plan.mapped = 6;
        plan.refuse_gathering = at;
        expect_all(&plan, 20000, many_gatherings, MOK_ERROR_PEER,
                   "in phase open: refused by the plan", 15.0);
    }
}

static mok_status leave_at_odds(mok_comm *comm, void *context)
{
    int32_t *order = context;
    const mok_status status = mok_comm_barrier(comm);
    pause_ms((mok_comm_rank(comm) * 7 + *order) % 5 * 4);
    return status;
}

static void ends_close_in_any_order(void **state)
{
    (void)state;
    const mok_comm_config config = quick(20000);
    const double begin = now_s();
    for (int32_t order = 0; order < 5; order++) {
        apart_plan plan = {0};
        plan.slow = order;
        assert_int_equal(apart_run(RANKS, &plan, &config, leave_at_odds, &order, NULL, NULL),
                         MOK_OK);
    }
    assert_true(now_s() - begin < 15.0);
}

/* Layers come and go, several at once; late rows of a closed one hurt nobody. */
static mok_status layers_come_and_go(mok_comm *comm, void *context)
{
    mok_layer *layer[4] = {NULL, NULL, NULL, NULL};
    mok_layer_config config;
    mok_status status = MOK_OK;
    (void)context;
    mok_layer_config_init(&config);
    config.hidden = config.intermediate = 16;
    config.experts = 4;
    config.slots = 2;
    for (int32_t round = 0; round < 12 && status == MOK_OK; round++) {
        mok_layer_close(&layer[round % 4]);
        config.max_tokens = 8 + round;
        status = mok_layer_open(&layer[round % 4], comm, &config);
    }
    for (int i = 0; i < 4; i++) {
        mok_layer_close(&layer[i]);
    }
    return status;
}

static void layers_open_and_close_behind_a_link(void **state)
{
    (void)state;
    apart_plan plan = {0};
    plan.mapped = 3;
    plan.slow = 2;
    expect_all(&plan, 20000, layers_come_and_go, MOK_OK, "", 15.0);
}

static int no_send(void *context, int32_t peer, int32_t slot, const void *message, size_t bytes)
{
    (void)context, (void)peer, (void)slot, (void)message, (void)bytes;
    return -1;
}

static int not_sent(void *context, int32_t peer, int32_t slot)
{
    (void)context, (void)peer, (void)slot;
    return -1;
}

static int nothing_there(void *context, int32_t peer, const void **message, size_t *bytes)
{
    (void)context, (void)peer, (void)message, (void)bytes;
    return -1;
}

static void count_close(void *context, bool healthy)
{
    int *closed = context;
    closed[healthy ? 1 : 0]++;
}

static int gather_one(void *context, void *out, const void *in, size_t bytes)
{
    (void)context;
    memcpy(out, in, bytes);
    return 0;
}

static void a_link_is_closed_once_however_opening_ends(void **state)
{
    (void)state;
    int closed[2] = {0, 0};
    const mok_link link = {sizeof link, closed, no_send, not_sent, nothing_there, count_close};
    mok_comm *comm = NULL;
    mok_bootstrap bootstrap;
    mok_comm_config config = quick(1000);
    mok_bootstrap_init(&bootstrap);
    bootstrap.ranks = 1;
    bootstrap.allgather = gather_one;
    bootstrap.link = &link;
    assert_int_equal(mok_comm_open_bootstrap(&comm, &bootstrap, &config), MOK_OK);
    assert_int_equal(closed[1], 1); /* a single rank needs none */
    mok_comm_close(&comm);
    config.threads = 0;
    assert_int_equal(mok_comm_open_bootstrap(&comm, &bootstrap, &config), MOK_ERROR_ARGUMENT);
    assert_int_equal(closed[0], 1);
    assert_int_equal(closed[1], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_link_that_breaks_names_the_rank),
        cmocka_unit_test(a_message_that_makes_no_sense_is_a_fault),
        cmocka_unit_test(a_rank_that_stops_is_named_after_the_deadline),
        cmocka_unit_test(a_rank_that_leaves_early_is_named),
        cmocka_unit_test(the_rank_that_others_wait_for_in_turn_is_named),
        cmocka_unit_test(sizes_that_differ_are_a_mismatch_everywhere),
        cmocka_unit_test(layers_that_differ_are_a_mismatch_everywhere),
        cmocka_unit_test(ranks_without_memory_or_link_are_refused),
        cmocka_unit_test(a_gathering_that_fails_ends_opening),
        cmocka_unit_test(ends_close_in_any_order),
        cmocka_unit_test(layers_open_and_close_behind_a_link),
        cmocka_unit_test(a_link_is_closed_once_however_opening_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
