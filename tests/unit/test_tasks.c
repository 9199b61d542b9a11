/* The task lists of src/plan/tasks.h over many shapes: what an executor relies on, checked by
 * walking every list once.
 *
 *   progress   all raises that a wait needs come from tasks of smaller number
 *   exactness  a counter that is waited for ends at exactly the value waited for, and a wait names
 * the value that stands for "all of them" coverage   every (kind, block or expert, tile) of a pass
 * is there once lists      communication and computing together are the whole list, in the same
 * order cursor     walking is the same as asking by number */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/tasks.h"
#include "problem.h"

typedef struct draw {
    mok_shape shape;
    int64_t row_blocks, tokens, lanes;
    char text[200];
} draw;

static int64_t between(uint64_t *state, int64_t low, int64_t high)
{
    return low + (int64_t)((random_next(state) >> 11) % (uint64_t)(high - low + 1));
}

static draw random_draw(uint64_t *state)
{
    draw d;
    memset(&d, 0, sizeof d);
    mok_shape *s = &d.shape;
    s->hidden = between(state, 1, 700);
    s->inner = between(state, 1, 700);
    s->shared_inner = between(state, 0, 2) == 0 ? 0 : between(state, 1, 600);
    s->experts = between(state, 1, 9);
    s->ranks = 1;
    s->expert_count = between(state, 0, s->experts);
    s->slots = between(state, 1, 4);
    s->max_tokens = between(state, 0, 600);
    s->capacity_blocks = between(state, 0, 40);
    s->macro_blocks = between(state, 1, s->capacity_blocks > 0 ? s->capacity_blocks : 1);
    s->mini_blocks = between(state, 1, s->macro_blocks);
    s->inner_cols = 128 * between(state, 1, 2);
    s->hidden_cols = 128 * between(state, 1, 2);
    d.row_blocks = s->expert_count == 0 ? 0 : between(state, 0, s->capacity_blocks);
    d.tokens = between(state, 0, s->max_tokens);
    d.lanes = s->shared_inner > 0 && d.tokens > 0 ? between(state, 1, 3) : 0;
    (void)snprintf(
        d.text, sizeof d.text,
        "H %lld I %lld Is %lld E_r %lld blocks %lld of %lld macro %lld mini %lld tokens %lld "
        "lanes %lld cols %lld/%lld",
        (long long)s->hidden, (long long)s->inner, (long long)s->shared_inner,
        (long long)s->expert_count, (long long)d.row_blocks, (long long)s->capacity_blocks,
        (long long)s->macro_blocks, (long long)s->mini_blocks, (long long)d.tokens,
        (long long)d.lanes, (long long)s->inner_cols, (long long)s->hidden_cols);
    return d;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* ---- Coverage ---- */

typedef struct seen_set {
    unsigned char *seen;
    int64_t items, tiles; /* items: blocks, experts or lanes of a kind */
    int64_t expected;     /* tasks of the kind; -1: none may exist */
} seen_set;

typedef struct coverage {
    seen_set kind[MOK_TASK_KINDS];
} coverage;

static void expect_kind(coverage *c, mok_task_kind kind, int64_t items, int64_t tiles)
{
    seen_set *set = &c->kind[kind];
    set->items = items;
    set->tiles = tiles;
    set->expected = items * tiles;
    set->seen = calloc((size_t)(items * tiles) + 1, 1);
    if (set->seen == NULL) {
        abort();
    }
}

/* What a pass must do, written from the definition of the layer, not from the list. */
static coverage wanted(const draw *d, const mok_plan *plan)
{
    coverage c;
    memset(&c, 0, sizeof c);
    for (int kind = 0; kind < MOK_TASK_KINDS; kind++) {
        expect_kind(&c, (mok_task_kind)kind, 0, 0);
        free(c.kind[kind].seen);
        c.kind[kind].seen = NULL;
    }
    const mok_shape *s = &d->shape;
    const int64_t inner = ceil_div(s->inner, s->inner_cols);
    const int64_t hidden = ceil_div(s->hidden, s->hidden_cols);
    const int64_t shared = s->shared_inner > 0 ? ceil_div(s->shared_inner, s->inner_cols) : 0;
    const int64_t token_blocks = s->shared_inner > 0 ? ceil_div(d->tokens, 128) : 0;
    const int64_t blocks = plan->pass == MOK_PASS_RECOMPUTE && d->row_blocks > s->macro_blocks
                               ? s->macro_blocks
                               : d->row_blocks;
    const int64_t replayed = blocks > s->macro_blocks ? blocks - s->macro_blocks : 0;
    const bool backward = plan->pass == MOK_PASS_BACKWARD;
    if (plan->pass == MOK_PASS_FOLD) {
        expect_kind(&c, MOK_TASK_FOLD, ceil_div(d->tokens, 32), 1);
        return c;
    }
    if (plan->list_comm) {
        expect_kind(&c, MOK_TASK_DISPATCH, blocks, 1);
        if (plan->pass != MOK_PASS_RECOMPUTE && !plan->fused_combine) {
            expect_kind(&c, MOK_TASK_COMBINE, blocks, 1);
        }
    }
    if (!plan->list_compute) {
        return c;
    }
    if (!backward) {
        expect_kind(&c, MOK_TASK_GATE_UP, blocks, inner);
        expect_kind(&c, MOK_TASK_SHARED_GATE_UP, token_blocks, shared);
        if (plan->pass == MOK_PASS_FORWARD) {
            expect_kind(&c, MOK_TASK_DOWN, blocks, hidden);
            expect_kind(&c, MOK_TASK_SHARED_DOWN, token_blocks, hidden);
        }
        return c;
    }
    const int64_t macros = blocks > 0 ? ceil_div(blocks, s->macro_blocks) : 1;
    const int64_t gate_tiles = ceil_div(s->inner, 128) * ceil_div(s->hidden, 256);
    const int64_t down_tiles = ceil_div(s->hidden, 128) * ceil_div(s->inner, 256);
    const int64_t shared_gate = ceil_div(s->shared_inner, 128) * ceil_div(s->hidden, 256);
    const int64_t shared_down = ceil_div(s->hidden, 128) * ceil_div(s->shared_inner, 256);
    expect_kind(&c, MOK_TASK_GATE_UP, blocks, inner);
    c.kind[MOK_TASK_GATE_UP].expected = replayed * inner; /* the first macrobatch is still there */
    expect_kind(&c, MOK_TASK_D_HIDDEN, blocks, inner);
    expect_kind(&c, MOK_TASK_DX, blocks, hidden);
    expect_kind(&c, MOK_TASK_WGRAD_GATE, macros * s->expert_count, gate_tiles);
    expect_kind(&c, MOK_TASK_WGRAD_UP, macros * s->expert_count, gate_tiles);
    expect_kind(&c, MOK_TASK_WGRAD_DOWN, macros * s->expert_count, down_tiles);
    expect_kind(&c, MOK_TASK_SHARED_D_HIDDEN, token_blocks, shared);
    expect_kind(&c, MOK_TASK_SHARED_DX, token_blocks, hidden);
    expect_kind(&c, MOK_TASK_SHARED_WGRAD_GATE, d->lanes, shared_gate);
    expect_kind(&c, MOK_TASK_SHARED_WGRAD_UP, d->lanes, shared_gate);
    expect_kind(&c, MOK_TASK_SHARED_WGRAD_DOWN, d->lanes, shared_down);
    return c;
}

static void mark(coverage *c, const draw *d, const mok_task *task)
{
    seen_set *set = &c->kind[task->kind];
    const bool by_expert = task->kind >= MOK_TASK_WGRAD_GATE && task->kind <= MOK_TASK_WGRAD_DOWN;
    const bool by_lane =
        task->kind >= MOK_TASK_SHARED_WGRAD_GATE && task->kind <= MOK_TASK_SHARED_WGRAD_DOWN;
    const int64_t item = by_expert ? task->macro * d->shape.expert_count + task->expert
                         : by_lane ? task->expert
                                   : task->block;
    if (item < 0 || item >= set->items || task->tile < 0 || task->tile >= set->tiles ||
        set->seen[item * set->tiles + task->tile] != 0) {
        fail_msg("%s: kind %d, item %lld, tile %lld is outside %lld x %lld, or there twice",
                 d->text, (int)task->kind, (long long)item, (long long)task->tile,
                 (long long)set->items, (long long)set->tiles);
    }
    set->seen[item * set->tiles + task->tile] = 1;
    set->expected--;
    if (!by_expert && !by_lane && task->kind != MOK_TASK_FOLD &&
        task->kind < MOK_TASK_SHARED_GATE_UP &&
        task->macro != task->block / d->shape.macro_blocks) {
        fail_msg("%s: block %lld is not of macrobatch %lld", d->text, (long long)task->block,
                 (long long)task->macro);
    }
}

static void expect_covered(coverage *c, const draw *d)
{
    for (int kind = 0; kind < MOK_TASK_KINDS; kind++) {
        if (c->kind[kind].expected != 0) {
            fail_msg("%s: %lld tasks of kind %d are missing", d->text,
                     (long long)c->kind[kind].expected, kind);
        }
        free(c->kind[kind].seen);
    }
}

/* ---- Progress and exactness ---- */

typedef struct tally {
    uint32_t *raised; /* by tasks so far */
    int64_t counters;
} tally;

static void check_waits(const tally *t, const draw *d, const mok_task *task, int64_t idx)
{
    for (int32_t i = 0; i < task->wait_count; i++) {
        const int64_t at = task->wait_idx[i];
        if (at < 0 || at >= t->counters || t->raised[at] < task->wait_value[i]) {
            fail_msg(
                "%s: task %lld (kind %d, block %lld) waits for counter %lld to reach %u; smaller "
                "numbers raise it to %u",
                d->text, (long long)idx, (int)task->kind, (long long)task->block, (long long)at,
                task->wait_value[i], at >= 0 && at < t->counters ? t->raised[at] : 0);
        }
    }
}

static bool same_task(const mok_task *a, const mok_task *b)
{
    bool same = a->kind == b->kind && a->macro == b->macro && a->block == b->block &&
                a->tile == b->tile && a->expert == b->expert && a->wait_count == b->wait_count &&
                a->raise_count == b->raise_count;
    for (int32_t i = 0; same && i < a->wait_count; i++) {
        same = a->wait_idx[i] == b->wait_idx[i] && a->wait_value[i] == b->wait_value[i];
    }
    for (int32_t i = 0; same && i < a->raise_count; i++) {
        same = a->raise_idx[i] == b->raise_idx[i];
    }
    return same;
}

/* Every wait must name a counter's final value: executors that raise out of order rely on it. */
static void check_final_values(const mok_plan *plan, const tally *t, const draw *d)
{
    const int64_t count = mok_task_count(plan);
    for (int64_t idx = 0; idx < count; idx++) {
        const mok_task task = mok_task_at(plan, idx);
        for (int32_t i = 0; i < task.wait_count; i++) {
            if (t->raised[task.wait_idx[i]] != task.wait_value[i]) {
                fail_msg("%s: task %lld waits for %u of counter %lld, which ends at %u", d->text,
                         (long long)idx, task.wait_value[i], (long long)task.wait_idx[i],
                         t->raised[task.wait_idx[i]]);
            }
        }
    }
}

/* What has been walked, so that a test can say that it was not about empty lists. */
static int64_t tasks_walked, replays_walked;

static void walk(const draw *d, const mok_plan *plan)
{
    const int64_t count = mok_task_count(plan);
    coverage c = wanted(d, plan);
    mok_cursor cursor = mok_cursor_make();
    const bool has_cursor = plan->pass == MOK_PASS_FORWARD || plan->pass == MOK_PASS_RECOMPUTE;
    const bool whole = plan->list_comm && plan->list_compute && !plan->fused_combine;
    tally t;
    t.counters = MOK_COUNTERS * plan->counter_blocks;
    t.raised = calloc((size_t)t.counters, sizeof *t.raised);
    if (t.raised == NULL) {
        abort();
    }
    for (int64_t idx = 0; idx < count; idx++) {
        const mok_task task = mok_task_at(plan, idx);
        if (has_cursor) {
            const mok_task walked = mok_cursor_task(plan, &cursor, idx);
            if (!same_task(&task, &walked)) {
                fail_msg("%s: the cursor gives another task %lld", d->text, (long long)idx);
            }
        }
        mark(&c, d, &task);
        tasks_walked++;
        replays_walked += task.macro > 0;
        if (whole) {
            check_waits(&t, d, &task, idx);
        }
        for (int32_t i = 0; i < task.raise_count; i++) {
            assert_in_range(task.raise_idx[i], 0, t.counters - 1);
            t.raised[task.raise_idx[i]]++;
        }
    }
    expect_covered(&c, d);
    if (whole) {
        check_final_values(plan, &t, d);
    }
    free(t.raised);
}

static void every_pass_covers_makes_progress_and_counts_exactly(void **state)
{
    (void)state;
    static const mok_pass passes[] = {MOK_PASS_FORWARD, MOK_PASS_RECOMPUTE, MOK_PASS_BACKWARD,
                                      MOK_PASS_FOLD};
    uint64_t random = 3;
    for (int i = 0; i < 1500; i++) {
        const draw d = random_draw(&random);
        for (size_t j = 0; j < sizeof passes / sizeof passes[0]; j++) {
            const mok_plan plan =
                mok_plan_make(passes[j], &d.shape, d.row_blocks, d.tokens, d.lanes);
            walk(&d, &plan);
        }
    }
    assert_true(tasks_walked > 300000);
    assert_true(replays_walked > 100000);
}

/* The two lists' tasks, merged by kind, are the whole list: same tasks, each list in the whole's
 * order. */
static void check_lists(const draw *d, mok_pass pass, bool fused)
{
    mok_plan whole = mok_plan_make(pass, &d->shape, d->row_blocks, d->tokens, d->lanes);
    whole.fused_combine = fused;
    mok_plan comm = whole;
    comm.list_compute = false;
    mok_plan compute = whole;
    compute.list_comm = false;
    int64_t next_comm = 0;
    int64_t next_compute = 0;
    const int64_t count = mok_task_count(&whole);
    assert_int_equal(mok_task_count(&comm) + mok_task_count(&compute), count);
    for (int64_t idx = 0; idx < count; idx++) {
        const mok_task task = mok_task_at(&whole, idx);
        const bool moves = task.kind == MOK_TASK_DISPATCH || task.kind == MOK_TASK_COMBINE;
        const mok_task other =
            moves ? mok_task_at(&comm, next_comm++) : mok_task_at(&compute, next_compute++);
        if (!same_task(&task, &other)) {
            fail_msg("%s, fused %d: task %lld differs between the whole list and its part", d->text,
                     fused, (long long)idx);
        }
    }
    walk(d, &comm);
    walk(d, &compute);
}

static void the_lists_of_communication_and_computing_partition_the_whole(void **state)
{
    (void)state;
    uint64_t random = 9;
    for (int i = 0; i < 600; i++) {
        const draw d = random_draw(&random);
        check_lists(&d, MOK_PASS_FORWARD, i % 2 == 1);
        check_lists(&d, MOK_PASS_RECOMPUTE, false);
    }
}

/* ---- Ring slots ---- */

/* Forward reuses a ring slot: whatever reads the old rows must be waited for, directly or through
 * another wait, before they are overwritten. Simulated as the most eager executor that the waits
 * allow: a task runs as soon as its counters are there, out of order, which is more than any
 * executor here does. */
typedef struct ring {
    int64_t *x_owner, *h_owner, *y_owner; /* block whose rows the slot holds */
} ring;

static void touch(const draw *d, const ring *r, const mok_task *task)
{
    const int64_t slot = task->block % d->shape.macro_blocks;
    switch (task->kind) {
    case MOK_TASK_DISPATCH:
        r->x_owner[slot] = task->block;
        break;
    case MOK_TASK_GATE_UP:
        assert_int_equal(r->x_owner[slot], task->block);
        r->h_owner[slot] = task->block;
        break;
    case MOK_TASK_DOWN:
        assert_int_equal(r->h_owner[slot], task->block);
        r->y_owner[slot] = task->block;
        break;
    case MOK_TASK_COMBINE:
        assert_int_equal(r->y_owner[slot], task->block);
        break;
    default:
        break;
    }
}

static bool is_ready(const mok_task *task, const uint32_t *raised)
{
    for (int32_t i = 0; i < task->wait_count; i++) {
        if (raised[task->wait_idx[i]] < task->wait_value[i]) {
            return false;
        }
    }
    return true;
}

/* In backward the ring is filled again when everything of the macrobatch before is done. */
static void check_retired(const draw *d, const mok_plan *plan, const mok_task *task,
                          const bool *done)
{
    if (plan->pass != MOK_PASS_BACKWARD || task->kind != MOK_TASK_DISPATCH || task->macro == 0) {
        return;
    }
    const int64_t count = mok_task_count(plan);
    for (int64_t idx = 0; idx < count; idx++) {
        const mok_task other = mok_task_at(plan, idx);
        const bool routed = other.kind < MOK_TASK_SHARED_GATE_UP;
        if (routed && other.macro < task->macro && !done[idx]) {
            fail_msg("%s: block %lld is dispatched before task %lld of macrobatch %lld is done",
                     d->text, (long long)task->block, (long long)idx, (long long)other.macro);
        }
    }
}

/* Runs ready tasks in a random order until all are done. */
static void run_eagerly(const draw *d, mok_pass pass, uint64_t *random)
{
    const mok_plan plan = mok_plan_make(pass, &d->shape, d->row_blocks, d->tokens, 0);
    const int64_t count = mok_task_count(&plan);
    const size_t slots = (size_t)d->shape.macro_blocks;
    bool *done = calloc((size_t)count + 1, sizeof *done);
    uint32_t *raised = calloc((size_t)(MOK_COUNTERS * plan.counter_blocks), sizeof *raised);
    ring r = {calloc(slots, 8), calloc(slots, 8), calloc(slots, 8)};
    if (done == NULL || raised == NULL || r.x_owner == NULL || r.h_owner == NULL ||
        r.y_owner == NULL) {
        abort();
    }
    for (int64_t left = count; left > 0; left--) {
        const int64_t start = (int64_t)((random_next(random) >> 11) % (uint64_t)count);
        int64_t i = 0;
        mok_task task = mok_task_empty(0);
        for (; i < count; i++) {
            task = mok_task_at(&plan, (start + i) % count);
            if (!done[(start + i) % count] && is_ready(&task, raised)) {
                break;
            }
        }
        if (i == count) {
            fail_msg("%s: no task is ready", d->text);
        }
        if (pass == MOK_PASS_FORWARD) {
            touch(d, &r, &task);
        }
        check_retired(d, &plan, &task, done);
        for (int32_t j = 0; j < task.raise_count; j++) {
            raised[task.raise_idx[j]]++;
        }
        done[(start + i) % count] = true;
    }
    free(done);
    free(raised);
    free(r.x_owner);
    free(r.h_owner);
    free(r.y_owner);
}

static void a_ring_slot_is_never_overwritten_before_its_readers_are_done(void **state)
{
    (void)state;
    uint64_t random = 21;
    int several = 0;
    for (int i = 0; i < 4000 && several < 100; i++) {
        draw d = random_draw(&random);
        d.shape.hidden = between(&random, 1, 300);
        d.shape.inner = between(&random, 1, 300);
        d.shape.shared_inner = 0;
        if (d.row_blocks <= d.shape.macro_blocks || d.row_blocks > 24) {
            continue; /* nothing is reused, or too slow for a test */
        }
        several++;
        run_eagerly(&d, MOK_PASS_FORWARD, &random);
        run_eagerly(&d, MOK_PASS_BACKWARD, &random);
    }
    assert_int_equal(several, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pass_covers_makes_progress_and_counts_exactly),
        cmocka_unit_test(the_lists_of_communication_and_computing_partition_the_whole),
        cmocka_unit_test(a_ring_slot_is_never_overwritten_before_its_readers_are_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
