/* A rank's workers: every index once, whatever the threads; a job cannot hand out another; nothing
 * of a caller's floating-point state reaches a worker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "core/fpenv.h"
#include "group.h"

#define MOST 3000

static mok_comm *open_one(int32_t threads)
{
    mok_comm_config config;
    mok_comm *comm = NULL;
    mok_comm_config_init(&config);
    config.threads = threads;
    assert_int_equal(mok_comm_open_local(&comm, 1, &config), MOK_OK);
    assert_int_equal(mok_comm_threads(comm), threads);
    return comm;
}

typedef struct visits {
    _Atomic int32_t count[MOST];
    _Atomic int32_t outside; /* worker numbers that do not exist, or an index that does not */
    int64_t total;
    int32_t threads;
    _Atomic int32_t inside[256]; /* indices that a worker is in */
} visits;

static void visit(void *context, int64_t idx, int32_t worker)
{
    visits *v = context;
    if (idx < 0 || idx >= v->total || worker < 0 || worker >= v->threads) {
        atomic_fetch_add(&v->outside, 1);
        return;
    }
    if (atomic_fetch_add(&v->inside[worker], 1) != 0) {
        atomic_fetch_add(&v->outside,
                         1); /* two at once with one worker number would share scratch */
    }
    atomic_fetch_add(&v->count[idx], 1);
    atomic_fetch_sub(&v->inside[worker], 1);
}

static void every_index_runs_once(void **state)
{
    (void)state;
    static visits v;
    static const int32_t threads[] = {1, 2, 3, 7};
    static const int64_t totals[] = {0, 1, 2, 5, 64, MOST};
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        mok_comm *comm = open_one(threads[i]);
        for (int round = 0; round < 40; round++) {
            memset(&v, 0, sizeof v);
            v.total = totals[(size_t)round % (sizeof totals / sizeof totals[0])];
            v.threads = threads[i];
            assert_int_equal(mok_comm_parallel(comm, v.total, visit, &v), MOK_OK);
            assert_int_equal(v.outside, 0);
            for (int64_t idx = 0; idx < MOST; idx++) {
                assert_int_equal(v.count[idx], idx < v.total ? 1 : 0);
            }
        }
        mok_comm_close(&comm);
        assert_null(comm);
    }
}

/* Plain writes of one job must be visible to the next job and to the caller. */
static int64_t plain[MOST];

static void add_one(void *context, int64_t idx, int32_t worker)
{
    (void)context;
    (void)worker;
    plain[idx] += idx;
}

static void a_jobs_writes_are_seen_by_the_next(void **state)
{
    (void)state;
    memset(plain, 0, sizeof plain);
    mok_comm *comm = open_one(4);
    for (int round = 0; round < 200; round++) {
        assert_int_equal(mok_comm_parallel(comm, 100, add_one, NULL), MOK_OK);
    }
    for (int64_t idx = 0; idx < 100; idx++) {
        assert_int_equal(plain[idx], 200 * idx);
    }
    mok_comm_close(&comm);
}

typedef struct nesting {
    mok_comm *comm;
    visits *inner;
    _Atomic int32_t refused, other;
} nesting;

static void hand_out_another(void *context, int64_t idx, int32_t worker)
{
    nesting *n = context;
    const mok_product empty = {.struct_bytes = sizeof empty, .c_dtype = MOK_DTYPE_F32};
    const mok_status status = idx % 2 == 0 ? mok_comm_parallel(n->comm, 10, visit, n->inner)
                                           : mok_product_run(n->comm, &empty, 1, MOK_ARITH_FMA);
    (void)worker;
    atomic_fetch_add(status == MOK_ERROR_STATE ? &n->refused : &n->other, 1);
}

static void a_job_that_hands_out_another_is_refused(void **state)
{
    (void)state;
    static visits inner;
    for (int32_t threads = 1; threads <= 3; threads++) {
        memset(&inner, 0, sizeof inner);
        inner.total = 10;
        inner.threads = threads;
        nesting n = {open_one(threads), &inner, 0, 0};
        assert_int_equal(mok_comm_parallel(n.comm, 20, hand_out_another, &n), MOK_OK);
        assert_int_equal(n.refused, 20);
        assert_int_equal(n.other, 0);
        for (int idx = 0; idx < 10; idx++) {
            assert_int_equal(inner.count[idx], 0);
        }
        /* and afterwards the workers are free again */
        assert_int_equal(mok_comm_parallel(n.comm, 10, visit, &inner), MOK_OK);
        for (int idx = 0; idx < 10; idx++) {
            assert_int_equal(inner.count[idx], 1);
        }
        mok_comm_close(&n.comm);
    }
}

static void bad_arguments_run_nothing(void **state)
{
    (void)state;
    static visits v;
    memset(&v, 0, sizeof v);
    mok_comm *comm = open_one(2);
    assert_int_equal(mok_comm_parallel(NULL, 1, visit, &v), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_parallel(comm, 1, NULL, &v), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_parallel(comm, -1, visit, &v), MOK_ERROR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "-1"));
    assert_int_equal(v.count[0], 0);
    assert_int_equal(v.outside, 0);
    mok_comm_close(&comm);
}

#if defined(__x86_64__)
typedef struct modes {
    _Atomic int32_t right, wrong;
} modes;

static void look_at_mode(void *context, int64_t idx, int32_t worker)
{
    modes *m = context;
    (void)idx;
    (void)worker;
    const bool right = (_mm_getcsr() & ~0x3Fu) == 0x1F80u;
    atomic_fetch_add(right ? &m->right : &m->wrong, 1);
}

static void workers_round_to_nearest_whatever_the_caller_does(void **state)
{
    (void)state;
    for (int32_t threads = 1; threads <= 3; threads++) {
        const uint32_t saved = _mm_getcsr();
        _mm_setcsr(saved | 0x8040u | 0x2000u); /* inherited by threads that start now */
        const uint32_t set = _mm_getcsr();
        mok_comm *comm = open_one(threads);
        modes m = {0, 0};
        const mok_status status = mok_comm_parallel(comm, 64, look_at_mode, &m);
        const uint32_t after = _mm_getcsr();
        mok_comm_close(&comm);
        _mm_setcsr(saved);
        assert_int_equal(status, MOK_OK);
        assert_int_equal(m.right, 64);
        assert_int_equal(m.wrong, 0);
        assert_int_equal(after & ~0x3Fu, set & ~0x3Fu);
    }
}
#endif

static void many_ranks_with_many_threads_open_and_close(void **state)
{
    (void)state;
    mok_comm_config config;
    mok_comm_config_init(&config);
    config.threads = 9;
    for (int round = 0; round < 3; round++) {
        mok_comm *comms[5];
        assert_int_equal(mok_comm_open_local(comms, 5, &config), MOK_OK);
        for (int rank = 4; rank >= 0; rank--) { /* any order */
            mok_comm_close(&comms[(rank * 3) % 5]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_runs_once),
        cmocka_unit_test(a_jobs_writes_are_seen_by_the_next),
        cmocka_unit_test(a_job_that_hands_out_another_is_refused),
        cmocka_unit_test(bad_arguments_run_nothing),
#if defined(__x86_64__)
        cmocka_unit_test(workers_round_to_nearest_whatever_the_caller_does),
#endif
        cmocka_unit_test(many_ranks_with_many_threads_open_and_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
