/* A worker that stops, at every phase and many tasks: every rank returns MOK_ERROR_PEER within a
 * bound of time, the fault names who waited for whom and where, nothing hangs and everything can be
 * closed.
 *
 * Cases spend their time waiting, so several run at once; each has a group of ranks of its own. */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "rig.h"

#define TIMEOUT_MS 200
#define MOST_MS 20000 /* far above the timeout: other programs and sanitizers slow the machine */
#define AT_ONCE_MS                                                                                 \
    (6 * TIMEOUT_MS) /* of a dozen calls: half of what they take if each of them waits */
#define MAX_CASES 512
#define AT_ONCE 6

typedef struct fault_case {
    int32_t ranks, threads;
    mok_phase phase;
    int32_t occurrence; /* which pass of this phase: the fold comes twice */
    int32_t stop_rank;
    int64_t task_idx;
    const problem *p;
    /* what happened */
    _Atomic int32_t seen;
    _Atomic int32_t stopped;
    mok_status status[MOK_MAX_RANKS];
    mok_status
        after[MOK_MAX_RANKS]; /* worst status of the calls that follow; PEER when all gave it */
    int64_t took_ms[MOK_MAX_RANKS];
    int64_t after_ms[MOK_MAX_RANKS];
    mok_fault fault[MOK_MAX_RANKS];
    char text[MOK_MAX_RANKS][240];
} fault_case;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool stop_at(void *context, int32_t rank, int32_t worker, mok_phase phase, int64_t task_idx)
{
    fault_case *c = context;
    (void)worker;
    if (rank != c->stop_rank || phase != c->phase || task_idx != c->task_idx) {
        return true;
    }
    if (atomic_fetch_add(&c->seen, 1) != c->occurrence) {
        return true;
    }
    atomic_store(&c->stopped, 1);
    return false;
}

static void nothing(void *context, int64_t idx, int32_t worker)
{
    (void)context;
    (void)idx;
    (void)worker;
}

/* Every call that a faulted communicator must refuse. */
static mok_status call_again(rig *r)
{
    const mok_product empty = {.struct_bytes = sizeof empty, .c_dtype = MOK_DTYPE_F32};
    int64_t gathered[MOK_MAX_RANKS];
    const int64_t own = 1;
    int64_t data = 2;
    float sum = 0;
    const float partial = 1;
    mok_layer *second = NULL;
    const mok_status all[] = {
        mok_comm_barrier(r->comm),
        mok_comm_agree(r->comm, MOK_OK),
        mok_comm_allgather(r->comm, gathered, &own, sizeof own),
        mok_comm_broadcast(r->comm, &data, sizeof data, 0),
        mok_lane_reduce(r->comm, &sum, &partial, 1, 1),
        mok_product_run(r->comm, &empty, 1, MOK_ARITH_FMA),
        mok_comm_parallel(r->comm, 1, nothing, NULL),
        mok_layer_open(&second, r->comm, &r->config),
        rig_build(r),
        rig_forward(r),
        rig_recompute(r),
        rig_backward(r),
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i] != MOK_ERROR_PEER) {
            return all[i];
        }
    }
    return second == NULL ? MOK_ERROR_PEER : MOK_OK;
}

static mok_status run_case(mok_comm *comm, void *context)
{
    fault_case *c = context;
    const int32_t rank = mok_comm_rank(comm);
    rig r;
    rig_init(&r, c->p, comm);
    r.config.macrobatch_rows = 256;
    r.config.minibatch_rows = 128;
    mok_status status = rig_open(&r);
    mok_layer_set_task_hook(r.layer, stop_at, c);
    const int64_t begin = now_ms();
    if (status == MOK_OK) {
        status = rig_build(&r);
    }
    if (status == MOK_OK) {
        status = rig_forward(&r);
    }
    if (status == MOK_OK) {
        status = rig_recompute(&r);
    }
    if (status == MOK_OK) {
        status = rig_backward(&r);
    }
    c->took_ms[rank] = now_ms() - begin;
    (void)snprintf(c->text[rank], sizeof c->text[rank], "%s", mok_last_error());
    c->status[rank] = status;
    c->fault[rank].struct_bytes = sizeof(mok_fault);
    (void)mok_fault_read(comm, &c->fault[rank]);
    const int64_t again = now_ms();
    c->after[rank] = call_again(&r);
    c->after_ms[rank] = now_ms() - again;
    rig_close(&r);
    return status;
}

/* ---- Which tasks there are ---- */

typedef struct census {
    const problem *p;
    _Atomic int64_t count[MOK_MAX_RANKS][16]; /* highest task number + 1, by phase */
} census;

static bool count_tasks(void *context, int32_t rank, int32_t worker, mok_phase phase,
                        int64_t task_idx)
{
    census *all = context;
    (void)worker;
    _Atomic int64_t *most = &all->count[rank][phase];
    int64_t seen = atomic_load(most);
    while (task_idx + 1 > seen && !atomic_compare_exchange_weak(most, &seen, task_idx + 1)) {
    }
    return true;
}

static mok_status run_census(mok_comm *comm, void *context)
{
    census *all = context;
    rig r;
    rig_init(&r, all->p, comm);
    r.config.macrobatch_rows = 256;
    r.config.minibatch_rows = 128;
    mok_status status = rig_open(&r);
    mok_layer_set_task_hook(r.layer, count_tasks, all);
    if (status == MOK_OK) {
        status = rig_step(&r);
    }
    if (status == MOK_OK) {
        status = rig_recompute(&r);
    }
    rig_close(&r);
    return status;
}

/* ---- Running them ---- */

static fault_case cases[MAX_CASES];
static int32_t case_count;

static void add_cases(const problem *p, int32_t ranks, int32_t threads)
{
    static const struct {
        mok_phase phase;
        int32_t occurrence;
    } where[] = {{MOK_PHASE_FORWARD, 0},
                 {MOK_PHASE_RECOMPUTE, 0},
                 {MOK_PHASE_BACKWARD, 0},
                 {MOK_PHASE_FOLD, 0},
                 {MOK_PHASE_FOLD, 1}};
    census all;
    memset(&all, 0, sizeof all);
    all.p = p;
    assert_int_equal(group_run(ranks, NULL, run_census, &all, NULL, NULL), MOK_OK);
    for (size_t i = 0; i < sizeof where / sizeof where[0]; i++) {
        const int32_t stop_rank = (int32_t)i % ranks;
        const int64_t count = all.count[stop_rank][where[i].phase];
        assert_true(count > 0);
        const int64_t at[] = {0, 1, count / 4, count / 2, count * 3 / 4, count - 1};
        for (size_t j = 0; j < sizeof at / sizeof at[0]; j++) {
            if (at[j] >= count || (j > 0 && at[j] <= at[j - 1])) {
                continue;
            }
            assert_true(case_count < MAX_CASES);
            fault_case *c = &cases[case_count++];
            memset(c, 0, sizeof *c);
            c->ranks = ranks;
            c->threads = threads;
            c->phase = where[i].phase;
            c->occurrence = where[i].occurrence;
            c->stop_rank = stop_rank;
            c->task_idx = at[j];
            c->p = p;
        }
    }
}

static _Atomic int32_t next_case;

/* Where the machine is so busy that a wait of some rank ends before the worker stops, the case says
 * nothing: it is run again with more time. */
static void run_until_stopped(fault_case *c)
{
    mok_comm_config config;
    mok_comm_config_init(&config);
    config.threads = c->threads;
    for (config.timeout_ms = TIMEOUT_MS; config.timeout_ms <= 16 * TIMEOUT_MS;
         config.timeout_ms *= 2) {
        atomic_store(&c->seen, 0);
        (void)group_run(c->ranks, &config, run_case, c, NULL, NULL);
        if (atomic_load(&c->stopped) != 0) {
            return;
        }
    }
}

static void *case_runner(void *unused)
{
    (void)unused;
    for (;;) {
        const int32_t idx = atomic_fetch_add(&next_case, 1);
        if (idx >= case_count) {
            return NULL;
        }
        run_until_stopped(&cases[idx]);
    }
}

static int threads_alive(void)
{
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    if (folder == NULL) {
        return -1;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

static void expect_fault(const fault_case *c)
{
    for (int32_t rank = 0; rank < c->ranks; rank++) {
        const mok_fault *fault = &c->fault[rank];
        const char *wrong =
            c->status[rank] != MOK_ERROR_PEER            ? "status"
            : c->took_ms[rank] > MOST_MS                 ? "time"
            : c->after[rank] != MOK_ERROR_PEER           ? "calls after the fault"
            : c->after_ms[rank] > AT_ONCE_MS             ? "time of calls after the fault"
            : fault->rank < 0 || fault->rank >= c->ranks ? "fault.rank"
            : fault->peer != c->stop_rank                ? "fault.peer"
            : fault->phase != c->phase                   ? "fault.phase"
            : (fault->rank == c->stop_rank) != (fault->task_idx >= 0)   ? "fault.task_idx"
            : memcmp(fault, &c->fault[0], sizeof *fault) != 0           ? "one fault for all"
            : strstr(c->text[rank], mok_phase_string(c->phase)) == NULL ? "phase in the text"
            : strncmp(c->text[rank], "rank ", 5) != 0                   ? "rank in the text"
                                                                        : NULL;
        if (wrong != NULL) {
            fail_msg("%s: ranks %d, threads %d, stop rank %d phase %s task %lld; rank %d: %s, %s, "
                     "after %s "
                     "(%lld ms), fault {%d, %d, %s, %lld, %lld ms}",
                     wrong, c->ranks, c->threads, c->stop_rank, mok_phase_string(c->phase),
                     (long long)c->task_idx, rank, mok_status_string(c->status[rank]),
                     c->text[rank], mok_status_string(c->after[rank]), (long long)c->after_ms[rank],
                     fault->rank, fault->peer, mok_phase_string(fault->phase),
                     (long long)fault->task_idx, (long long)fault->waited_ms);
        }
    }
}

static void a_worker_that_stops_ends_every_rank_in_peer(void **state)
{
    (void)state;
    static const int32_t configs[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {3, 1}, {4, 1}, {4, 2}};
    problem p = rig_problem(MOK_ARITH_FMA);
    p.tokens = 160;
    problem_open(&p);
    case_count = 0;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        add_cases(&p, configs[i][0], configs[i][1]);
    }
    /* Counted after the first groups have run: a sanitizer starts a thread of its own with the
     * first. */
    const int before = threads_alive();
    pthread_t runners[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        assert_int_equal(pthread_create(&runners[i], NULL, case_runner, NULL), 0);
    }
    for (int i = 0; i < AT_ONCE; i++) {
        pthread_join(runners[i], NULL);
    }
    assert_true(case_count > 100);
    for (int32_t i = 0; i < case_count; i++) {
        assert_int_equal(cases[i].stopped, 1);
        expect_fault(&cases[i]);
    }
    /* The kernel takes a joined thread out of the list a moment later. */
    int after = threads_alive();
    for (int i = 0; i < 100 && after > before; i++) {
        const struct timespec pause = {0, 10000000};
        nanosleep(&pause, NULL);
        after = threads_alive();
    }
    assert_int_equal(after, before);
    problem_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_that_stops_ends_every_rank_in_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
