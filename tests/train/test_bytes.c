/* The state of a run: one digest for any ranks, threads and levels, and for a run that is stopped
 * and resumed at another rank count.
 *
 * The last test is the others' counterpart: a digest that ignored something would pass them all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 6

static bool same(const mok_digest *a, const mok_digest *b)
{
    return a->low == b->low && a->high == b->high;
}

static void expect_same(const train_outcome *want, const train_outcome *got, const char *what)
{
    char hex[2][MOK_DIGEST_HEX_BYTES];
    mok_digest_hex(hex[0], &want->digest);
    mok_digest_hex(hex[1], &got->digest);
    if (!same(&want->digest, &got->digest)) {
        fail_msg("%s: digest %s, expected %s", what, hex[1], hex[0]);
    }
    assert_int_equal(got->step, want->step);
    assert_memory_equal(&got->loss, &want->loss, sizeof got->loss);
    assert_memory_equal(&got->held_out, &want->held_out, sizeof got->held_out);
}

static void check_ranks_and_threads(mok_arith arith)
{
    static const int32_t ranks[] = {2, 3, 4, 8};
    scratch s;
    scratch_open(&s);
    train_config config = scratch_config(&s, "out", STEPS);
    config.arith = arith;
    config.sample_bytes = 40; /* longer than a window: it must turn over */
    const train_outcome want = scratch_run(&config);
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0] + 1; i++) {
        char what[64];
        config.ranks = i == 0 ? 1 : ranks[i - 1];
        config.threads = i % 2 == 0 ? 2 : 1;
        (void)snprintf(what, sizeof what, "%d ranks of %d threads", config.ranks, config.threads);
        const train_outcome got = scratch_run(&config);
        expect_same(&want, &got, what);
        assert_string_equal(got.sample, want.sample);
        free(got.sample);
    }
    free(want.sample);
    scratch_close(&s);
}

static void any_ranks_and_threads_give_one_state_in_tc16(void **state)
{
    (void)state;
    check_ranks_and_threads(MOK_ARITH_TC16);
}

static void any_ranks_and_threads_give_one_state_in_fma(void **state)
{
    (void)state;
    check_ranks_and_threads(MOK_ARITH_FMA);
}

static void every_level_gives_one_state(void **state)
{
    (void)state;
    int compared = 0;
    scratch s;
    scratch_open(&s);
    train_config config = scratch_config(&s, "out", 2);
    config.threads = 2;
    config.level = MOK_LEVEL_REF;
    const train_outcome want = scratch_run(&config);
    for (mok_level level = MOK_LEVEL_AVX2; level <= MOK_LEVEL_AVX512; level++) {
        if (mok_level_available(level)) {
            config.level = level;
            const train_outcome got = scratch_run(&config);
            expect_same(&want, &got, mok_level_string(level));
            compared++;
        } else {
            print_message("level %s: skipped, this processor lacks it\n", mok_level_string(level));
        }
    }
    scratch_close(&s);
    if (compared == 0) {
        skip();
    }
}

static void a_run_resumed_at_another_rank_count_ends_as_if_undisturbed(void **state)
{
    (void)state;
    static const int32_t pairs[][2] = {{1, 3}, {3, 1}, {4, 2}, {2, 8}};
    scratch s;
    scratch_open(&s);
    train_config config = scratch_config(&s, "whole", STEPS);
    const train_outcome want = scratch_run(&config);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char what[64];
        (void)snprintf(what, sizeof what, "%d ranks, then %d", pairs[i][0], pairs[i][1]);
        config = scratch_config(&s, "half", STEPS);
        config.ranks = pairs[i][0];
        config.stop_at = STEPS / 2;
        const train_outcome half = scratch_run(&config);
        assert_int_equal(half.step, STEPS / 2);
        assert_false(same(&half.digest, &want.digest));
        config.ranks = pairs[i][1];
        config.stop_at = 0;
        (void)snprintf(config.resume_path, sizeof config.resume_path, "%s", config.out_path);
        scratch_path(config.out_path, sizeof config.out_path, &s, "rest");
        const train_outcome rest = scratch_run(&config);
        assert_int_equal(rest.first_step, STEPS / 2);
        expect_same(&want, &rest, what);
    }
    scratch_close(&s);
}

static void resuming_a_finished_run_changes_nothing(void **state)
{
    (void)state;
    scratch s;
    scratch_open(&s);
    train_config config = scratch_config(&s, "out", 2);
    const train_outcome want = scratch_run(&config);
    (void)snprintf(config.resume_path, sizeof config.resume_path, "%s", config.out_path);
    config.ranks = 2;
    const train_outcome got = scratch_run(&config);
    assert_int_equal(got.step, 2);
    assert_true(same(&want.digest, &got.digest));
    scratch_close(&s);
}

/* Reports and saves are no part of the computation. */
static void evaluating_and_saving_more_often_changes_nothing(void **state)
{
    (void)state;
    scratch s;
    scratch_open(&s);
    train_config config = scratch_config(&s, "out", STEPS);
    const train_outcome want = scratch_run(&config);
    config.eval_every = 2;
    config.save_every = 1;
    const train_outcome got = scratch_run(&config);
    expect_same(&want, &got, "eval_every 2, save_every 1");
    scratch_close(&s);
}

static void whatever_matters_changes_the_digest(void **state)
{
    (void)state;
    mok_digest seen[8];
    int count = 0;
    scratch s;
    scratch_open(&s);
    for (int variant = 0; variant < 8; variant++) {
        train_config config = scratch_config(&s, "out", 3);
        config.seed += variant == 1;
        config.arith = variant == 2 ? MOK_ARITH_FMA : MOK_ARITH_TC16;
        config.lr *= variant == 3 ? 1.0001 : 1.0;
        config.steps += variant == 4;
        config.batch += variant == 5;
        config.decay *= variant == 6 ? 0.5 : 1.0;
        config.bias_rate *= variant == 7 ? 2.0 : 1.0;
        const train_outcome got = scratch_run(&config);
        for (int i = 0; i < count; i++) {
            if (same(&seen[i], &got.digest)) {
                fail_msg("variants %d and %d have one digest", i, variant);
            }
        }
        seen[count++] = got.digest;
    }
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_ranks_and_threads_give_one_state_in_tc16),
        cmocka_unit_test(any_ranks_and_threads_give_one_state_in_fma),
        cmocka_unit_test(every_level_gives_one_state),
        cmocka_unit_test(a_run_resumed_at_another_rank_count_ends_as_if_undisturbed),
        cmocka_unit_test(resuming_a_finished_run_changes_nothing),
        cmocka_unit_test(evaluating_and_saving_more_often_changes_nothing),
        cmocka_unit_test(whatever_matters_changes_the_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
