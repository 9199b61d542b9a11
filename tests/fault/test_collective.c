/* Ranks that do not do the same: one never comes, makes another call, has another configuration or
 * refuses its input. Every rank returns the same status in bounded time, no output is touched, and
 * where nothing was lost the same handles work afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "rig.h"

#define RANKS 3
#define LATE_MS 5000 /* how far past its deadline a wait may end on a machine that is busy */

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- Every collective call, by name ---- */

static mok_status do_barrier(rig *r)
{
    return mok_comm_barrier(r->comm);
}

static mok_status do_agree(rig *r)
{
    return mok_comm_agree(r->comm, MOK_OK);
}

static mok_status do_allgather(rig *r)
{
    int64_t all[MOK_MAX_RANKS];
    const int64_t own = mok_comm_rank(r->comm);
    return mok_comm_allgather(r->comm, all, &own, sizeof own);
}

static mok_status do_allgather_half(rig *r)
{
    int32_t all[MOK_MAX_RANKS];
    const int32_t own = mok_comm_rank(r->comm);
    return mok_comm_allgather(r->comm, all, &own, sizeof own);
}

static mok_status do_broadcast(rig *r)
{
    int64_t data = 1;
    return mok_comm_broadcast(r->comm, &data, sizeof data, 0);
}

static mok_status do_broadcast_of_1(rig *r)
{
    int64_t data = 1;
    return mok_comm_broadcast(r->comm, &data, sizeof data, 1);
}

static mok_status do_reduce(rig *r)
{
    float sum[2];
    const float partials[4] = {1, 2, 3, 4};
    return mok_lane_reduce(r->comm, sum, partials, 2, 2);
}

static mok_status do_reduce_shorter(rig *r)
{
    float sum[1];
    const float partials[2] = {1, 2};
    return mok_lane_reduce(r->comm, sum, partials, 2, 1);
}

static mok_status do_open(rig *r)
{
    mok_layer *layer = NULL;
    const mok_status status = mok_layer_open(&layer, r->comm, &r->config);
    mok_layer_close(&layer);
    return status;
}

typedef struct action {
    const char *name;
    mok_status (*run)(rig *r);
    mok_phase phase;
} action;

static const action actions[] = {
    {"barrier", do_barrier, MOK_PHASE_EXCHANGE},
    {"agree", do_agree, MOK_PHASE_AGREE},
    {"allgather", do_allgather, MOK_PHASE_EXCHANGE},
    {"broadcast", do_broadcast, MOK_PHASE_EXCHANGE},
    {"reduce", do_reduce, MOK_PHASE_REDUCE},
    {"open", do_open, MOK_PHASE_OPEN},
    {"build", rig_build, MOK_PHASE_SCHEDULE},
    {"forward", rig_forward, MOK_PHASE_FORWARD},
    {"recompute", rig_recompute, MOK_PHASE_RECOMPUTE},
    {"backward", rig_backward, MOK_PHASE_BACKWARD},
};

#define ACTIONS (sizeof actions / sizeof actions[0])

/* ---- A scene: what each rank does, and what it saw ---- */

typedef struct scene {
    const problem *p;
    const action *usual; /* what ranks do */
    const action *odd;   /* what rank odd_rank does; NULL: nothing */
    int32_t odd_rank;
    int32_t timeout_ms;
    void (*spoil)(rig *r);
    mok_status status[RANKS];
    mok_status after[RANKS];
    bool untouched[RANKS];
    int64_t took_ms[RANKS];
    mok_fault fault[RANKS];
    char text[RANKS][240];
} scene;

/* Up to where every call is allowed: a build and a forward, outputs poisoned again. */
static mok_status prepare(rig *r, const problem *p, mok_comm *comm)
{
    rig_init(r, p, comm);
    mok_status status = rig_open(r);
    if (status == MOK_OK) {
        status = rig_build(r);
    }
    if (status == MOK_OK) {
        status = rig_forward(r);
    }
    rig_poison(r);
    return status;
}

static mok_status run_scene(mok_comm *comm, void *context)
{
    scene *s = context;
    const int32_t rank = mok_comm_rank(comm);
    rig r;
    mok_status status = prepare(&r, s->p, comm);
    if (status != MOK_OK) {
        rig_close(&r);
        return status;
    }
    rig spoiled = r;
    if (rank == s->odd_rank && s->spoil != NULL) {
        s->spoil(&spoiled);
    }
    const action *mine = rank == s->odd_rank ? s->odd : s->usual;
    const int64_t begin = now_ms();
    s->status[rank] = mine != NULL ? mine->run(&spoiled) : MOK_OK;
    s->took_ms[rank] = now_ms() - begin;
    (void)snprintf(s->text[rank], sizeof s->text[rank], "%s", mok_last_error());
    s->untouched[rank] = rig_untouched(&r);
    s->fault[rank].struct_bytes = sizeof(mok_fault);
    (void)mok_fault_read(comm, &s->fault[rank]);
    /* A schedule that failed to build is empty, so the step begins with a build. */
    s->after[rank] = mine != NULL ? rig_step(&r) : MOK_OK;
    rig_close(&r);
    return MOK_OK;
}

static void play(scene *s)
{
    mok_comm_config config;
    mok_comm_config_init(&config);
    config.timeout_ms = s->timeout_ms;
    assert_int_equal(group_run(RANKS, &config, run_scene, s, NULL, NULL), MOK_OK);
}

static problem open_problem(void)
{
    problem p = rig_problem(MOK_ARITH_FMA);
    problem_open(&p);
    return p;
}

static void a_rank_that_never_calls_is_named_after_the_deadline(void **state)
{
    (void)state;
    problem p = open_problem();
    for (size_t i = 0; i < ACTIONS; i++) {
        scene s = {
            .p = &p, .usual = &actions[i], .odd_rank = (int32_t)i % RANKS, .timeout_ms = 150};
        play(&s);
        for (int32_t rank = 0; rank < RANKS; rank++) {
            if (rank == s.odd_rank) {
                continue;
            }
            char names[40];
            (void)snprintf(names, sizeof names, "waited for rank %d", s.odd_rank);
            if (s.status[rank] != MOK_ERROR_PEER || s.after[rank] != MOK_ERROR_PEER ||
                s.fault[rank].peer != s.odd_rank || s.fault[rank].phase != actions[i].phase ||
                s.fault[rank].task_idx != -1 || strstr(s.text[rank], names) == NULL ||
                !s.untouched[rank] ||
                (s.fault[rank].rank == rank && s.took_ms[rank] < s.timeout_ms - 2) ||
                s.took_ms[rank] > s.timeout_ms + LATE_MS) {
                fail_msg("%s, rank %d: %s after %lld ms, %s", actions[i].name, rank,
                         mok_status_string(s.status[rank]), (long long)s.took_ms[rank],
                         s.text[rank]);
            }
        }
    }
    problem_close(&p);
}

static void the_configured_timeout_is_honoured(void **state)
{
    (void)state;
    static const int32_t timeouts[] = {60, 400, 900};
    problem p = open_problem();
    for (size_t i = 0; i < sizeof timeouts / sizeof timeouts[0]; i++) {
        scene s = {.p = &p, .usual = &actions[0], .odd_rank = 1, .timeout_ms = timeouts[i]};
        play(&s);
        for (int32_t rank = 0; rank < RANKS; rank += 2) {
            assert_int_equal(s.status[rank], MOK_ERROR_PEER);
            /* Whoever came first waited the whole time; the other may have come later. */
            assert_true(s.fault[rank].rank != rank || s.took_ms[rank] >= timeouts[i] - 2);
            assert_true(s.took_ms[rank] <= timeouts[i] + LATE_MS);
            assert_true(s.fault[rank].waited_ms >= timeouts[i]);
        }
    }
    problem_close(&p);
}

/* One scene of ranks that differ without anything being lost. */
static void expect_refusal(scene *s, const char *what, mok_status want)
{
    s->timeout_ms = 20000;
    play(s);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        if (s->status[rank] != want || !s->untouched[rank] || s->after[rank] != MOK_OK ||
            s->fault[rank].rank != -1) {
            fail_msg("%s: rank %d returned %s (%s), wanted %s; outputs %s; the step after gave %s",
                     what, rank, mok_status_string(s->status[rank]), s->text[rank],
                     mok_status_string(want), s->untouched[rank] ? "untouched" : "touched",
                     mok_status_string(s->after[rank]));
        }
    }
}

static void ranks_in_different_calls_all_return_mismatch(void **state)
{
    (void)state;
    problem p = open_problem();
    for (size_t i = 0; i < ACTIONS; i++) {
        for (size_t j = 0; j < ACTIONS; j++) {
            if (i == j) {
                continue;
            }
            char what[64];
            (void)snprintf(what, sizeof what, "%s against %s", actions[i].name, actions[j].name);
            scene s = {.p = &p,
                       .usual = &actions[i],
                       .odd = &actions[j],
                       .odd_rank = (int32_t)(i + j) % RANKS};
            expect_refusal(&s, what, MOK_ERROR_MISMATCH);
            assert_non_null(strstr(s.text[0], "different calls"));
            assert_string_equal(s.text[0], s.text[RANKS - 1]);
        }
    }
    problem_close(&p);
}

static void the_same_call_with_other_sizes_is_a_mismatch(void **state)
{
    (void)state;
    static const action pairs[][2] = {
        {{"allgather", do_allgather, 0}, {"shorter allgather", do_allgather_half, 0}},
        {{"broadcast", do_broadcast, 0}, {"broadcast of rank 1", do_broadcast_of_1, 0}},
        {{"reduce", do_reduce, 0}, {"shorter reduce", do_reduce_shorter, 0}},
    };
    problem p = open_problem();
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        for (int32_t odd = 0; odd < RANKS; odd++) {
            scene s = {.p = &p, .usual = &pairs[i][0], .odd = &pairs[i][1], .odd_rank = odd};
            expect_refusal(&s, pairs[i][1].name, MOK_ERROR_MISMATCH);
        }
    }
    problem_close(&p);
}

/* ---- Configurations that differ ---- */

#define CONFIGS 10

static const char *other_config(mok_layer_config *config, int which)
{
    switch (which) {
    case 0:
        config->hidden++;
        return "hidden";
    case 1:
        config->intermediate++;
        return "intermediate";
    case 2:
        config->shared_intermediate = 0;
        return "shared_intermediate";
    case 3:
        config->experts++;
        return "experts";
    case 4:
        config->slots++;
        return "slots";
    case 5:
        config->max_tokens++;
        return "max_tokens";
    case 6:
        config->capacity_rows = 1024;
        return "capacity_rows";
    case 7:
        config->macrobatch_rows = 256;
        return "macrobatch_rows";
    case 8:
        config->minibatch_rows = 128;
        return "minibatch_rows";
    default:
        config->arith = MOK_ARITH_TC16;
        return "arith";
    }
}

typedef struct config_scene {
    const problem *p;
    int which;
    int32_t odd_rank;
    const char *name;
    char text[RANKS][240];
} config_scene;

static mok_status run_other_config(mok_comm *comm, void *context)
{
    config_scene *s = context;
    rig r;
    rig_init(&r, s->p, comm);
    mok_layer_config config = r.config;
    const char *name = other_config(&config, s->which);
    if (mok_comm_rank(comm) == s->odd_rank) {
        s->name = name;
    } else {
        config = r.config;
    }
    mok_layer *layer = (mok_layer *)&r; /* must be cleared on failure */
    mok_status status = mok_layer_open(&layer, comm, &config);
    (void)snprintf(s->text[mok_comm_rank(comm)], 240, "%s", mok_last_error());
    const bool refused = status == MOK_ERROR_MISMATCH && layer == NULL;
    status = rig_open(&r);
    if (status == MOK_OK) {
        status = rig_step(&r);
    }
    rig_close(&r);
    return refused ? status : MOK_ERROR_STATE;
}

static void ranks_with_different_configurations_all_return_mismatch(void **state)
{
    (void)state;
    problem p = open_problem();
    for (int which = 0; which < CONFIGS; which++) {
        config_scene s = {.p = &p, .which = which, .odd_rank = which % RANKS};
        mok_status status[RANKS];
        (void)group_run(RANKS, NULL, run_other_config, &s, status, NULL);
        for (int32_t rank = 0; rank < RANKS; rank++) {
            if (status[rank] != MOK_OK || strstr(s.text[rank], s.name) == NULL) {
                fail_msg("%s, rank %d: %s, %s", s.name, rank, mok_status_string(status[rank]),
                         s.text[rank]);
            }
        }
    }
    problem_close(&p);
}

/* ---- Input that one rank refuses ---- */

static int32_t bad_routes[128];
static float bad_weights[128];

static void spoil_route(rig *r)
{
    memcpy(bad_routes, r->routes.data, (size_t)(r->routes.shape[0] * r->routes.shape[1]) * 4);
    bad_routes[3] = (int32_t)r->config.experts;
    r->routes.data = bad_routes;
}

static void spoil_weight(rig *r)
{
    memcpy(bad_weights, r->router_weights.data,
           (size_t)(r->router_weights.shape[0] * r->router_weights.shape[1]) * 4);
    const uint32_t infinity = 0x7F800000;
    memcpy(&bad_weights[2], &infinity, sizeof infinity);
    r->router_weights.data = bad_weights;
}

static void spoil_null(rig *r)
{
    r->x.data = NULL;
}

static void spoil_shape(rig *r)
{
    r->x.shape[1]++;
}

static void spoil_overlap(rig *r)
{
    r->y.data = r->x.data;
    r->gradients.dx.data = r->dy.data;
}

static void spoil_tokens(rig *r)
{
    r->routes.shape[0] = r->config.max_tokens + 1;
}

static void a_rank_that_refuses_its_input_stops_all_ranks_alike(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*spoil)(rig *r);
        int action; /* index into actions */
        mok_status want;
        const char *text;
    } inputs[] = {
        {"route", spoil_route, 6, MOK_ERROR_ROUTE, "routes[token 1][slot 1] is 5"},
        {"tokens", spoil_tokens, 6, MOK_ERROR_CAPACITY, "routes.shape[0] is 41"},
        {"weight, forward", spoil_weight, 7, MOK_ERROR_VALUE,
         "router_weights[token 1][slot 0] is inf"},
        {"weight, backward", spoil_weight, 9, MOK_ERROR_VALUE,
         "router_weights[token 1][slot 0] is inf"},
        {"null, forward", spoil_null, 7, MOK_ERROR_ARGUMENT, "x.data is NULL"},
        {"null, recompute", spoil_null, 8, MOK_ERROR_ARGUMENT, "x.data is NULL"},
        {"null, backward", spoil_null, 9, MOK_ERROR_ARGUMENT, "x.data is NULL"},
        {"shape, forward", spoil_shape, 7, MOK_ERROR_SHAPE, "x.shape[1] is 33, must be 32"},
        {"shape, backward", spoil_shape, 9, MOK_ERROR_SHAPE, "x.shape[1] is 33, must be 32"},
        {"overlap, forward", spoil_overlap, 7, MOK_ERROR_OVERLAP, "x overlaps out"},
        {"overlap, backward", spoil_overlap, 9, MOK_ERROR_OVERLAP, "dy overlaps gradients.dx"},
    };
    problem p = open_problem();
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        for (int32_t odd = 0; odd < RANKS; odd++) {
            scene s = {.p = &p,
                       .usual = &actions[inputs[i].action],
                       .odd = &actions[inputs[i].action],
                       .odd_rank = odd,
                       .spoil = inputs[i].spoil};
            expect_refusal(&s, inputs[i].name, inputs[i].want);
            for (int32_t rank = 0; rank < RANKS; rank++) {
                char prefix[16];
                (void)snprintf(prefix, sizeof prefix, "rank %d: ", odd);
                const bool prefixed = strncmp(s.text[rank], prefix, strlen(prefix)) == 0;
                if (prefixed != (rank != odd) || strstr(s.text[rank], inputs[i].text) == NULL) {
                    fail_msg("%s, rank %d of odd %d: %s", inputs[i].name, rank, odd, s.text[rank]);
                }
            }
        }
    }
    problem_close(&p);
}

static mok_status agree_on(mok_comm *comm, void *context)
{
    const mok_status *mine = context;
    const mok_status own = mine[mok_comm_rank(comm)];
    return mok_comm_agree(comm, own);
}

static void agreement_takes_the_lowest_rank_that_has_an_error(void **state)
{
    (void)state;
    static const mok_status tables[][RANKS] = {
        {MOK_OK, MOK_OK, MOK_OK},
        {MOK_OK, MOK_ERROR_ROUTE, MOK_ERROR_VALUE},
        {MOK_ERROR_MEMORY, MOK_OK, MOK_ERROR_VALUE},
        {MOK_OK, MOK_OK, MOK_ERROR_FILE},
    };
    static const mok_status want[] = {MOK_OK, MOK_ERROR_ROUTE, MOK_ERROR_MEMORY, MOK_ERROR_FILE};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mok_status status[RANKS];
        mok_status table[RANKS];
        memcpy(table, tables[i], sizeof table);
        (void)group_run(RANKS, NULL, agree_on, table, status, NULL);
        for (int32_t rank = 0; rank < RANKS; rank++) {
            assert_int_equal(status[rank], want[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_never_calls_is_named_after_the_deadline),
        cmocka_unit_test(the_configured_timeout_is_honoured),
        cmocka_unit_test(ranks_in_different_calls_all_return_mismatch),
        cmocka_unit_test(the_same_call_with_other_sizes_is_a_mismatch),
        cmocka_unit_test(ranks_with_different_configurations_all_return_mismatch),
        cmocka_unit_test(a_rank_that_refuses_its_input_stops_all_ranks_alike),
        cmocka_unit_test(agreement_takes_the_lowest_rank_that_has_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
