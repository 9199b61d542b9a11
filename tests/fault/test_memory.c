/* Every allocation fails once: the call ends in MOK_ERROR_MEMORY on every rank, nothing is written,
 * nothing leaks, and the same handles work once there is memory again.
 *
 * What must stay true: a pass allocates nothing, so that a step can only fail for memory before it
 * starts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "counting.h"
#include "rig.h"

static mok_comm_config config_of(counting *c, int32_t threads)
{
    mok_comm_config config;
    mok_comm_config_init(&config);
    config.threads = threads;
    config.timeout_ms = 10000;
    config.allocator = counting_allocator(c);
    return config;
}

static void expect_nothing_held(const counting *c)
{
    assert_int_equal(c->live_count, 0);
    assert_int_equal(c->live_bytes, 0);
    assert_int_equal(c->bad_releases, 0);
}

static void close_all(mok_comm **comms, int32_t ranks)
{
    for (int32_t rank = 0; rank < ranks; rank++) {
        mok_comm_close(&comms[rank]);
        assert_null(comms[rank]);
    }
}

static void opening_ranks_survives_every_failing_allocation(void **state)
{
    (void)state;
    static const int32_t ranks[] = {1, 2, 5};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        counting c;
        counting_open(&c);
        const mok_comm_config config = config_of(&c, 2);
        mok_comm *comms[MOK_MAX_RANKS];
        assert_int_equal(mok_comm_open_local(comms, ranks[i], &config), MOK_OK);
        const int64_t calls = c.calls;
        assert_true(calls >= 3 * ranks[i]);
        close_all(comms, ranks[i]);
        expect_nothing_held(&c);
        for (int64_t n = 0; n < calls; n++) {
            memset(comms, 0x7F, sizeof comms);
            counting_arm(&c, n);
            assert_int_equal(mok_comm_open_local(comms, ranks[i], &config), MOK_ERROR_MEMORY);
            assert_non_null(strstr(mok_last_error(), "no memory"));
            for (int32_t rank = 0; rank < ranks[i]; rank++) {
                assert_null(comms[rank]);
            }
            expect_nothing_held(&c);
        }
        counting_arm(&c, calls);
        assert_int_equal(mok_comm_open_local(comms, ranks[i], &config), MOK_OK);
        close_all(comms, ranks[i]);
        expect_nothing_held(&c);
        counting_close(&c);
    }
}

/* What every rank does; rank 0 arms the allocator while all others wait. */
typedef struct scene {
    const problem *p;
    counting *c;
    int64_t fail_at;
    int64_t calls; /* allocations of a whole rig */
    bool untouched[MOK_MAX_RANKS];
    int64_t held_before, held_after;
} scene;

static mok_status arm(mok_comm *comm, scene *s, int64_t n)
{
    mok_status status = mok_comm_barrier(comm);
    if (status == MOK_OK && mok_comm_rank(comm) == 0) {
        counting_arm(s->c, n);
    }
    return status == MOK_OK ? mok_comm_barrier(comm) : status;
}

/* Opens with allocation fail_at refused, tries again with memory, and runs a step. */
static mok_status open_twice(mok_comm *comm, void *context)
{
    scene *s = context;
    const int32_t rank = mok_comm_rank(comm);
    rig r;
    rig_init(&r, s->p, comm);
    mok_status status = arm(comm, s, s->fail_at);
    const mok_status refused = status == MOK_OK ? rig_open(&r) : status;
    char text[240];
    (void)strncpy(text, mok_last_error(), sizeof text - 1);
    text[sizeof text - 1] = '\0';
    s->untouched[rank] = rig_untouched(&r);
    if (s->fail_at < 0 && rank == 0) {
        s->calls = s->c->calls;
    }
    rig_close(&r);
    if (s->fail_at >= 0 && (refused != MOK_ERROR_MEMORY || strstr(text, "no memory") == NULL)) {
        return MOK_ERROR_STATE; /* not what was promised */
    }
    status = arm(comm, s, -1);
    rig_init(&r, s->p, comm);
    if (status == MOK_OK) {
        status = rig_open(&r);
    }
    if (status == MOK_OK) {
        status = rig_step(&r);
    }
    if (status == MOK_OK && rig_untouched(&r)) {
        status = MOK_ERROR_STATE;
    }
    rig_close(&r);
    return status;
}

static void opening_a_layer_survives_every_failing_allocation(void **state)
{
    (void)state;
    static const int32_t ranks[] = {1, 2, 4};
    problem p = rig_problem(MOK_ARITH_FMA);
    problem_open(&p);
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        counting c;
        counting_open(&c);
        const mok_comm_config config = config_of(&c, 1);
        scene s = {&p, &c, -1, 0, {false}, 0, 0};
        assert_int_equal(group_run(ranks[i], &config, open_twice, &s, NULL, NULL), MOK_OK);
        assert_true(s.calls >= 8 * ranks[i]);
        for (s.fail_at = 0; s.fail_at < s.calls; s.fail_at++) {
            mok_status status[MOK_MAX_RANKS];
            (void)group_run(ranks[i], &config, open_twice, &s, status, NULL);
            for (int32_t rank = 0; rank < ranks[i]; rank++) {
                if (status[rank] != MOK_OK) {
                    fail_msg("ranks %d, allocation %lld, rank %d: %s", ranks[i],
                             (long long)s.fail_at, rank, mok_status_string(status[rank]));
                }
                assert_true(s.untouched[rank]);
            }
            expect_nothing_held(&c);
        }
        counting_close(&c);
    }
    problem_close(&p);
}

/* A refused layer gives everything back at once, not only when the communicator closes. */
static mok_status open_until_refused(mok_comm *comm, void *context)
{
    scene *s = context;
    mok_status status = arm(comm, s, -1);
    if (mok_comm_rank(comm) == 0) {
        s->held_before = s->c->live_bytes;
    }
    for (int64_t n = 0; n < s->calls && status == MOK_OK; n++) {
        rig r;
        rig_init(&r, s->p, comm);
        status = arm(comm, s, n);
        if (status == MOK_OK) {
            const mok_status refused = rig_open(&r);
            status = refused == MOK_ERROR_MEMORY ? MOK_OK : MOK_ERROR_STATE;
        }
        rig_close(&r);
    }
    if (status == MOK_OK) {
        status = arm(comm, s, -1);
    }
    if (mok_comm_rank(comm) == 0) {
        s->held_after = s->c->live_bytes;
    }
    return status == MOK_OK ? mok_comm_barrier(comm) : status;
}

static void a_refused_layer_holds_nothing_while_ranks_stay_open(void **state)
{
    (void)state;
    problem p = rig_problem(MOK_ARITH_FMA);
    problem_open(&p);
    counting c;
    counting_open(&c);
    const mok_comm_config config = config_of(&c, 1);
    scene s = {&p, &c, -1, 0, {false}, 0, 0};
    assert_int_equal(group_run(3, &config, open_twice, &s, NULL, NULL), MOK_OK);
    assert_int_equal(group_run(3, &config, open_until_refused, &s, NULL, NULL), MOK_OK);
    assert_int_equal(s.held_after, s.held_before);
    expect_nothing_held(&c);
    counting_close(&c);
    problem_close(&p);
}

static mok_status step_without_memory(mok_comm *comm, void *context)
{
    scene *s = context;
    rig r;
    rig_init(&r, s->p, comm);
    r.config.macrobatch_rows = 128;
    r.config.minibatch_rows = 128;
    mok_status status = rig_open(&r);
    if (status == MOK_OK) {
        status = arm(comm, s, 0);
    }
    for (int i = 0; i < 2 && status == MOK_OK; i++) {
        status = rig_step(&r);
        if (status == MOK_OK) {
            status = rig_recompute(&r);
        }
    }
    float sum[3];
    const float partial[3] = {1, 2, 3};
    if (status == MOK_OK) {
        status = mok_lane_reduce(comm, sum, partial, 1, 3);
    }
    if (status == MOK_OK) {
        status = mok_comm_barrier(comm);
    }
    if (mok_comm_rank(comm) == 0) {
        s->calls = s->c->calls;
    }
    if (status == MOK_OK) {
        status = mok_comm_barrier(comm);
    }
    rig_close(&r);
    return status;
}

static void passes_and_reductions_allocate_nothing(void **state)
{
    (void)state;
    problem p = rig_problem(MOK_ARITH_FMA);
    p.tokens = 200;
    problem_open(&p);
    counting c;
    counting_open(&c);
    const mok_comm_config config = config_of(&c, 2);
    scene s = {&p, &c, -1, -1, {false}, 0, 0};
    assert_int_equal(group_run(2, &config, step_without_memory, &s, NULL, NULL), MOK_OK);
    assert_int_equal(s.calls, 0);
    expect_nothing_held(&c);
    counting_close(&c);
    problem_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_ranks_survives_every_failing_allocation),
        cmocka_unit_test(opening_a_layer_survives_every_failing_allocation),
        cmocka_unit_test(a_refused_layer_holds_nothing_while_ranks_stay_open),
        cmocka_unit_test(passes_and_reductions_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
