/* A pass as a numbered list of tasks: pure functions from (shape, row count, index) to a task.
 *
 * Nothing is materialised: a worker that takes number i asks mok_task_at what that is, which
 * counters it must wait for and which it raises. Compiles for host and device. Rows of a schedule
 * are cut in macrobatches (what the ring of intermediates holds) and those in minibatches (the
 * pipeline's step); j numbers the minibatches in the order in which a pass walks them.
 *
 *   forward     macrobatches from the last to the first, so that the ring is left holding the first
 *     stage 0          dispatch(0), then the shared expert's gate/up and down, which hide it
 *     stage s          combine(s-2-lag), gate_up(s-1), dispatch(s), down(s-1-lag)
 *                      lag is 1 where no minibatch stands right behind the occupant of its ring
 * slots: then a down task never follows the gate_up tasks that it needs at once recompute   stage
 * s: gate_up(s-1), dispatch(s), over the first macrobatch only backward    macrobatches ascending;
 * those after the first are replayed. dx follows d_hidden a stage later, since a macrobatch's rows
 * are all in the ring stage s of m     combine(s-3), [gate_up(s-1)], d_hidden(s-1), dispatch(s),
 * dx(s-2) end of m         the weight-gradient tiles of m for every expert of this rank fold one
 * task a 32 tokens
 *
 * Progress: a task waits only for tasks of smaller number on its own rank; peers are met at
 * barriers between passes. So any executor that takes tasks in order makes progress. A ring slot is
 * reused when its last reader is done: the counters are indexed by the absolute row block, and the
 * occupant before block b of a forward pass is block b + macro_blocks. */
#ifndef MOK_PLAN_TASKS_H
#define MOK_PLAN_TASKS_H

#include "plan/shape.h"

typedef enum mok_pass {
    MOK_PASS_FORWARD = 0,
    MOK_PASS_RECOMPUTE = 1,
    MOK_PASS_BACKWARD = 2,
    MOK_PASS_FOLD = 3
} mok_pass;

typedef enum mok_task_kind {
    MOK_TASK_DISPATCH = 0,   /* rows of one block from their sources: x, and dy in backward */
    MOK_TASK_GATE_UP,        /* g, u and h of one block and one tile of I */
    MOK_TASK_DOWN,           /* y of one block and one tile of H */
    MOK_TASK_COMBINE,        /* one block's rows, y or dx, to their sources' slots */
    MOK_TASK_D_HIDDEN,       /* dg, du, hw of one block and one tile of I */
    MOK_TASK_DX,             /* dx of one block and one tile of H */
    MOK_TASK_WGRAD_GATE,     /* one tile of an expert's [I, H] */
    MOK_TASK_WGRAD_UP,       /* likewise */
    MOK_TASK_WGRAD_DOWN,     /* one tile of an expert's [H, I] */
    MOK_TASK_SHARED_GATE_UP, /* the same kinds for the shared expert; block counts 128 tokens, */
    MOK_TASK_SHARED_DOWN,    /* expert counts token lanes */
    MOK_TASK_SHARED_D_HIDDEN,
    MOK_TASK_SHARED_DX,
    MOK_TASK_SHARED_WGRAD_GATE,
    MOK_TASK_SHARED_WGRAD_UP,
    MOK_TASK_SHARED_WGRAD_DOWN,
    MOK_TASK_FOLD, /* block counts MOK_FOLD_TOKENS tokens */
    MOK_TASK_KINDS
} mok_task_kind;

/* A counter of a pass: one row of counters a name, indexed by row block, token block or macrobatch.
 */
typedef enum mok_counter {
    MOK_COUNTER_X = 0,         /* by row block: dispatched */
    MOK_COUNTER_H,             /* by row block: gate_up tiles done */
    MOK_COUNTER_Y,             /* by row block: down or dx tiles done */
    MOK_COUNTER_OUT,           /* by row block: combined */
    MOK_COUNTER_DH,            /* by row block: d_hidden tiles done */
    MOK_COUNTER_MACRO_DH,      /* by macrobatch: d_hidden tiles done */
    MOK_COUNTER_RETIRED,       /* by macrobatch: dx, combine and weight-gradient tasks done */
    MOK_COUNTER_SHARED_H,      /* by token block: shared gate_up or d_hidden tiles done */
    MOK_COUNTER_SHARED_DH_ALL, /* one: shared d_hidden tiles done */
    MOK_COUNTERS
} mok_counter;

#define MOK_TASK_MAX_WAITS 2
#define MOK_TASK_MAX_RAISES 2

typedef struct mok_task {
    mok_task_kind kind;
    int64_t macro; /* macrobatch */
    int64_t block; /* row block of this rank's schedule, or block of tokens */
    int64_t tile;  /* tile of columns; for weight gradients row tile * column tiles + column tile */
    int64_t expert; /* local expert or lane of a weight gradient */
    int32_t wait_count, raise_count;
    int64_t wait_idx[MOK_TASK_MAX_WAITS]; /* into the pass's counters */
    uint32_t wait_value[MOK_TASK_MAX_WAITS];
    int64_t raise_idx[MOK_TASK_MAX_RAISES];
} mok_task;

/* What a pass needs to know beyond the shape. */
typedef struct mok_plan {
    mok_pass pass;
    const mok_shape *shape;
    int64_t blocks;       /* row blocks walked */
    int64_t macro_count;  /* at least 1 in backward, where empty experts are written too */
    int64_t token_blocks; /* blocks of the shared expert, or of the fold */
    int64_t lanes;        /* token lanes of the shared expert's weight gradients */
    /* Which tasks are numbered: an executor may give communication (dispatch, combine) and
     * computing lists of their own, and may let down and dx write to the slots themselves, which
     * leaves no combine. */
    bool list_comm, list_compute, fused_combine;
    /* derived */
    int64_t lag;
    int64_t inner_tiles, hidden_tiles;
    int64_t shared_inner_tiles;
    int64_t wgrad_tiles, shared_wgrad_tiles; /* tiles of one [I, H], gate, up or down alike */
    int64_t counter_blocks;                  /* length of each row of counters */
} mok_plan;

/* Tiles of a weight gradient: down is [H, I], so it has its own count. */
static inline MOK_HD int64_t mok_wgrad_tiles(int64_t rows, int64_t cols)
{
    return mok_blocks_of(rows, MOK_WGRAD_ROWS) * mok_blocks_of(cols, MOK_WGRAD_COLS);
}

/* Length of a row of counters that serves every pass of this shape. */
static inline MOK_HD int64_t mok_counter_blocks(const mok_shape *shape)
{
    const int64_t token_blocks = mok_blocks_of(shape->max_tokens, 128);
    const int64_t blocks =
        shape->capacity_blocks > token_blocks ? shape->capacity_blocks : token_blocks;
    return blocks + 1;
}

static inline MOK_HD int64_t mok_counter_at(const mok_plan *plan, mok_counter counter, int64_t idx)
{
    return (int64_t)counter * plan->counter_blocks + idx;
}

/* ---- Macrobatches and minibatches
 * -------------------------------------------------------------------- */

static inline MOK_HD int64_t mok_macro_begin(const mok_plan *plan, int64_t macro)
{
    return macro * plan->shape->macro_blocks;
}

static inline MOK_HD int64_t mok_macro_size(const mok_plan *plan, int64_t macro)
{
    const int64_t left = plan->blocks - mok_macro_begin(plan, macro);
    return left < plan->shape->macro_blocks ? left : plan->shape->macro_blocks;
}

/* Minibatches of a macrobatch. */
static inline MOK_HD int64_t mok_macro_minis(const mok_plan *plan, int64_t macro)
{
    return mok_blocks_of(mok_macro_size(plan, macro), plan->shape->mini_blocks);
}

/* Row blocks in the first `minis` minibatches of a macrobatch. */
static inline MOK_HD int64_t mok_blocks_in_minis(const mok_plan *plan, int64_t macro, int64_t minis)
{
    const int64_t blocks = minis * plan->shape->mini_blocks;
    const int64_t all = mok_macro_size(plan, macro);
    return blocks < all ? blocks : all;
}

/* A stretch of consecutive row blocks of one macrobatch. */
typedef struct mok_stretch {
    int64_t macro, begin, count;
} mok_stretch;

/* Minibatch j of a forward walk: the last macrobatch comes first and may be the only partial one.
 */
static inline MOK_HD mok_stretch mok_forward_mini(const mok_plan *plan, int64_t j)
{
    mok_stretch stretch = {0, 0, 0};
    const int64_t last = plan->macro_count - 1;
    const int64_t minis_last = last >= 0 ? mok_macro_minis(plan, last) : 0;
    int64_t mini = j;
    if (j < 0 || last < 0) {
        return stretch;
    }
    stretch.macro = last;
    if (j >= minis_last) {
        const int64_t minis_full =
            mok_blocks_of(plan->shape->macro_blocks, plan->shape->mini_blocks);
        stretch.macro = last - 1 - (j - minis_last) / minis_full;
        mini = (j - minis_last) % minis_full;
    }
    if (stretch.macro < 0) {
        stretch.macro = 0;
        return stretch;
    }
    const int64_t begin = mok_blocks_in_minis(plan, stretch.macro, mini);
    stretch.begin = mok_macro_begin(plan, stretch.macro) + begin;
    stretch.count = mok_blocks_in_minis(plan, stretch.macro, mini + 1) - begin;
    return stretch;
}

/* Row blocks in the first j minibatches of a forward walk. */
static inline MOK_HD int64_t mok_forward_blocks_before(const mok_plan *plan, int64_t j)
{
    const int64_t last = plan->macro_count - 1;
    if (j <= 0 || last < 0) {
        return 0;
    }
    const int64_t minis_last = mok_macro_minis(plan, last);
    if (j < minis_last) {
        return mok_blocks_in_minis(plan, last, j);
    }
    const int64_t minis_full = mok_blocks_of(plan->shape->macro_blocks, plan->shape->mini_blocks);
    const int64_t macros = (j - minis_last) / minis_full;
    const int64_t before = mok_macro_size(plan, last) + macros * plan->shape->macro_blocks;
    if (macros >= last) {
        return plan->blocks;
    }
    return before + mok_blocks_in_minis(plan, last - 1 - macros, (j - minis_last) % minis_full);
}

static inline MOK_HD int64_t mok_forward_minis(const mok_plan *plan)
{
    const int64_t last = plan->macro_count - 1;
    return last < 0 ? 0
                    : mok_macro_minis(plan, last) +
                          last * mok_blocks_of(plan->shape->macro_blocks, plan->shape->mini_blocks);
}

/* ---- The plan
 * --------------------------------------------------------------------------------------- */

/* Minibatches between a ring slot's occupants are those of one macrobatch; all but the last are
 * alike. */
static inline MOK_HD int64_t mok_plan_lag(const mok_plan *plan)
{
    if (plan->pass != MOK_PASS_FORWARD) {
        return 0;
    }
    return plan->macro_count <= 1 || mok_macro_minis(plan, plan->macro_count - 1) > 1 ? 1 : 0;
}

static inline MOK_HD mok_plan mok_plan_make(mok_pass pass, const mok_shape *shape,
                                            int64_t row_blocks, int64_t tokens, int64_t lanes)
{
    mok_plan plan;
    plan.pass = pass;
    plan.shape = shape;
    plan.blocks = pass == MOK_PASS_FOLD ? 0 : row_blocks;
    if (pass == MOK_PASS_RECOMPUTE && plan.blocks > shape->macro_blocks) {
        plan.blocks = shape->macro_blocks;
    }
    plan.macro_count = mok_blocks_of(plan.blocks, shape->macro_blocks);
    if (pass == MOK_PASS_BACKWARD && plan.macro_count == 0) {
        plan.macro_count = 1;
    }
    plan.token_blocks = pass == MOK_PASS_FOLD      ? mok_blocks_of(tokens, MOK_FOLD_TOKENS)
                        : shape->shared_inner == 0 ? 0
                                                   : mok_blocks_of(tokens, 128);
    plan.lanes = shape->shared_inner == 0 ? 0 : lanes;
    plan.list_comm = true;
    plan.list_compute = true;
    plan.fused_combine = false;
    plan.lag = mok_plan_lag(&plan);
    plan.inner_tiles = mok_blocks_of(shape->inner, shape->inner_cols);
    plan.hidden_tiles = mok_blocks_of(shape->hidden, shape->hidden_cols);
    plan.shared_inner_tiles = mok_blocks_of(shape->shared_inner, shape->inner_cols);
    plan.wgrad_tiles = 2 * mok_wgrad_tiles(shape->inner, shape->hidden) +
                       mok_wgrad_tiles(shape->hidden, shape->inner);
    plan.shared_wgrad_tiles = 2 * mok_wgrad_tiles(shape->shared_inner, shape->hidden) +
                              mok_wgrad_tiles(shape->hidden, shape->shared_inner);
    plan.counter_blocks = mok_counter_blocks(shape);
    return plan;
}

static inline MOK_HD int64_t mok_if(bool condition, int64_t count)
{
    return condition ? count : 0;
}

/* ---- What each kind waits for and raises
 * --------------------------------------------------------------- */

static inline MOK_HD void mok_task_wait(mok_task *task, int64_t idx, int64_t value)
{
    task->wait_idx[task->wait_count] = idx;
    task->wait_value[task->wait_count] = (uint32_t)value;
    task->wait_count++;
}

static inline MOK_HD void mok_task_raise(mok_task *task, int64_t idx)
{
    task->raise_idx[task->raise_count] = idx;
    task->raise_count++;
}

static inline MOK_HD void mok_task_link_forward(const mok_plan *plan, mok_task *task)
{
    const int64_t b = task->block;
    const int64_t before = b + plan->shape->macro_blocks; /* the ring slot's last occupant */
    const bool reused = before < plan->blocks;
    switch (task->kind) {
    case MOK_TASK_DISPATCH:
        if (reused) {
            mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_H, before), plan->inner_tiles);
        }
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_X, b));
        break;
    case MOK_TASK_GATE_UP:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_X, b), 1);
        if (reused) {
            mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_Y, before), plan->hidden_tiles);
        }
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_H, b));
        break;
    case MOK_TASK_DOWN:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_H, b), plan->inner_tiles);
        if (reused && !plan->fused_combine) {
            mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_OUT, before), 1);
        }
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_Y, b));
        break;
    case MOK_TASK_COMBINE:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_Y, b), plan->hidden_tiles);
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_OUT, b));
        break;
    case MOK_TASK_SHARED_GATE_UP:
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_SHARED_H, b));
        break;
    case MOK_TASK_SHARED_DOWN:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_SHARED_H, b),
                      plan->shared_inner_tiles);
        break;
    default:
        break;
    }
}

/* Tasks of macrobatch m that must be done before its ring may be filled again. */
static inline MOK_HD int64_t mok_macro_retire_count(const mok_plan *plan, int64_t macro)
{
    return mok_macro_size(plan, macro) * (plan->hidden_tiles + mok_if(!plan->fused_combine, 1)) +
           plan->shape->expert_count * plan->wgrad_tiles;
}

static inline MOK_HD void mok_task_link_backward(const mok_plan *plan, mok_task *task)
{
    const int64_t b = task->block;
    const int64_t m = task->macro;
    switch (task->kind) {
    case MOK_TASK_DISPATCH:
        if (m > 0) {
            mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_RETIRED, m - 1),
                          mok_macro_retire_count(plan, m - 1));
        }
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_X, b));
        break;
    case MOK_TASK_GATE_UP:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_X, b), 1);
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_H, b));
        break;
    case MOK_TASK_D_HIDDEN:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_X, b), 1);
        if (m > 0) {
            mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_H, b), plan->inner_tiles);
        }
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_DH, b));
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_MACRO_DH, m));
        break;
    case MOK_TASK_DX:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_DH, b), plan->inner_tiles);
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_Y, b));
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_RETIRED, m));
        break;
    case MOK_TASK_COMBINE:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_Y, b), plan->hidden_tiles);
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_RETIRED, m));
        break;
    case MOK_TASK_WGRAD_GATE:
    case MOK_TASK_WGRAD_UP:
    case MOK_TASK_WGRAD_DOWN:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_MACRO_DH, m),
                      mok_macro_size(plan, m) * plan->inner_tiles);
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_RETIRED, m));
        break;
    case MOK_TASK_SHARED_D_HIDDEN:
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_SHARED_H, b));
        mok_task_raise(task, mok_counter_at(plan, MOK_COUNTER_SHARED_DH_ALL, 0));
        break;
    case MOK_TASK_SHARED_DX:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_SHARED_H, b),
                      plan->shared_inner_tiles);
        break;
    case MOK_TASK_SHARED_WGRAD_GATE:
    case MOK_TASK_SHARED_WGRAD_UP:
    case MOK_TASK_SHARED_WGRAD_DOWN:
        mok_task_wait(task, mok_counter_at(plan, MOK_COUNTER_SHARED_DH_ALL, 0),
                      plan->token_blocks * plan->shared_inner_tiles);
        break;
    default:
        break;
    }
}

/* ---- From a number to a task
 * -------------------------------------------------------------------------- */

/* Takes `tiles` tasks a block from a stretch: true when idx falls into it, else idx is reduced.
 * Blocks of one tile follow each other, so that the weights of a tile serve several blocks. */
static inline MOK_HD bool mok_take_stretch(mok_task *task, int64_t *idx, mok_task_kind kind,
                                           mok_stretch stretch, int64_t tiles)
{
    if (*idx >= stretch.count * tiles) {
        *idx -= stretch.count * tiles;
        return false;
    }
    task->kind = kind;
    task->macro = stretch.macro;
    if (((uint64_t)*idx | (uint64_t)stretch.count) >> 32 ==
        0) { /* a device divides 32 bits far faster */
        task->tile = (uint32_t)*idx / (uint32_t)stretch.count;
    } else {
        task->tile = *idx / stretch.count;
    }
    task->block = stretch.begin + (*idx - task->tile * stretch.count);
    return true;
}

/* Takes gate, up and down tiles of `experts` experts (or lanes); `kind` is the gate's, up and down
 * follow. */
static inline MOK_HD bool mok_take_wgrad(mok_task *task, int64_t *idx, mok_task_kind kind,
                                         int64_t macro, int64_t experts, int64_t tiles_each,
                                         int64_t gate_tiles)
{
    if (*idx >= experts * tiles_each) {
        *idx -= experts * tiles_each;
        return false;
    }
    const int64_t within = *idx % tiles_each;
    const int64_t matrix = within < gate_tiles ? 0 : within < 2 * gate_tiles ? 1 : 2;
    task->kind = (mok_task_kind)((int)kind + (int)matrix);
    task->macro = macro;
    task->expert = *idx / tiles_each;
    task->tile = within - matrix * gate_tiles;
    return true;
}

/* Tasks before stage s of a forward or recompute walk. */
static inline MOK_HD int64_t mok_forward_before(const mok_plan *plan, int64_t s)
{
    const bool whole = plan->pass == MOK_PASS_FORWARD;
    int64_t count = 0;
    if (plan->list_comm) {
        count += mok_forward_blocks_before(plan, s);
        if (whole && !plan->fused_combine) {
            count += mok_forward_blocks_before(plan, s - 2 - plan->lag);
        }
    }
    if (plan->list_compute) {
        count += mok_forward_blocks_before(plan, s - 1) * plan->inner_tiles;
        if (whole) {
            count += mok_forward_blocks_before(plan, s - 1 - plan->lag) * plan->hidden_tiles;
        }
        if (s > 0) {
            count +=
                plan->token_blocks * (plan->shared_inner_tiles + mok_if(whole, plan->hidden_tiles));
        }
    }
    return count;
}

static inline MOK_HD int64_t mok_forward_stages(const mok_plan *plan)
{
    return mok_forward_minis(plan) + 2 + plan->lag;
}

/* The minibatches that a stage of a forward walk works on. */
typedef struct mok_forward_stage {
    mok_stretch combine, gate_up, dispatch, down;
} mok_forward_stage;

static inline MOK_HD mok_forward_stage mok_forward_stage_of(const mok_plan *plan, int64_t s)
{
    const mok_stretch none = {0, 0, 0};
    const bool whole = plan->pass == MOK_PASS_FORWARD;
    mok_forward_stage stage = {none, none, none, none};
    if (plan->list_comm) {
        stage.dispatch = mok_forward_mini(plan, s);
        if (whole && !plan->fused_combine) {
            stage.combine = mok_forward_mini(plan, s - 2 - plan->lag);
        }
    }
    if (plan->list_compute) {
        stage.gate_up = mok_forward_mini(plan, s - 1);
        if (whole) {
            stage.down = mok_forward_mini(plan, s - 1 - plan->lag);
        }
    }
    return stage;
}

/* A task of a stage; left counts from the stage's first. What the minibatches leave is the shared
 * expert's. */
static inline MOK_HD void mok_forward_task_of(const mok_plan *plan, const mok_forward_stage *stage,
                                              int64_t left, mok_task *task)
{
    const mok_stretch tokens = {0, 0, plan->token_blocks};
    if (mok_take_stretch(task, &left, MOK_TASK_COMBINE, stage->combine, 1) ||
        mok_take_stretch(task, &left, MOK_TASK_GATE_UP, stage->gate_up, plan->inner_tiles) ||
        mok_take_stretch(task, &left, MOK_TASK_DISPATCH, stage->dispatch, 1) ||
        mok_take_stretch(task, &left, MOK_TASK_DOWN, stage->down, plan->hidden_tiles) ||
        mok_take_stretch(task, &left, MOK_TASK_SHARED_GATE_UP, tokens, plan->shared_inner_tiles) ||
        mok_take_stretch(task, &left, MOK_TASK_SHARED_DOWN, tokens, plan->hidden_tiles)) {
        mok_task_link_forward(plan, task);
    }
}

static inline MOK_HD void mok_forward_task(const mok_plan *plan, int64_t idx, mok_task *task)
{
    int64_t low = 0;
    int64_t high = mok_forward_stages(plan);
    while (high - low > 1) { /* the last stage that begins at or before idx */
        const int64_t middle = low + (high - low) / 2;
        if (mok_forward_before(plan, middle) <= idx) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const mok_forward_stage stage = mok_forward_stage_of(plan, low);
    mok_forward_task_of(plan, &stage, idx - mok_forward_before(plan, low), task);
}

/* Tasks of the shared expert in backward. */
static inline MOK_HD int64_t mok_shared_backward_tasks(const mok_plan *plan)
{
    return plan->token_blocks * (plan->shared_inner_tiles + plan->hidden_tiles) +
           plan->lanes * plan->shared_wgrad_tiles;
}

/* Tasks of macrobatch m in backward: the first also has the shared expert's. */
static inline MOK_HD int64_t mok_backward_macro_tasks(const mok_plan *plan, int64_t macro)
{
    const int64_t blocks = mok_macro_size(plan, macro);
    const int64_t replay = macro > 0 ? plan->inner_tiles : 0;
    int64_t count = 0;
    if (plan->list_comm) {
        count += blocks * (plan->fused_combine ? 1 : 2);
    }
    if (plan->list_compute) {
        count += blocks * (plan->inner_tiles + replay + plan->hidden_tiles) +
                 plan->shape->expert_count * plan->wgrad_tiles +
                 mok_if(macro == 0, mok_shared_backward_tasks(plan));
    }
    return count;
}

/* Tasks of the shared expert, after the first dispatch. */
static inline MOK_HD bool mok_take_shared_backward(const mok_plan *plan, mok_task *task,
                                                   int64_t *left)
{
    const mok_stretch tokens = {0, 0, plan->token_blocks};
    return mok_take_stretch(task, left, MOK_TASK_SHARED_D_HIDDEN, tokens,
                            plan->shared_inner_tiles) ||
           mok_take_stretch(task, left, MOK_TASK_SHARED_DX, tokens, plan->hidden_tiles) ||
           mok_take_wgrad(task, left, MOK_TASK_SHARED_WGRAD_GATE, 0, plan->lanes,
                          plan->shared_wgrad_tiles,
                          mok_wgrad_tiles(plan->shape->shared_inner, plan->shape->hidden));
}

static inline MOK_HD mok_stretch mok_backward_mini(const mok_plan *plan, int64_t macro,
                                                   int64_t mini)
{
    mok_stretch stretch = {macro, 0, 0};
    if (mini >= 0) {
        const int64_t begin = mok_blocks_in_minis(plan, macro, mini);
        stretch.begin = mok_macro_begin(plan, macro) + begin;
        stretch.count = mok_blocks_in_minis(plan, macro, mini + 1) - begin;
    }
    return stretch;
}

/* Tasks of macrobatch m before its stage s. */
static inline MOK_HD int64_t mok_backward_before(const mok_plan *plan, int64_t macro, int64_t s)
{
    const int64_t replay = macro > 0 ? plan->inner_tiles : 0;
    int64_t count = 0;
    if (plan->list_comm) {
        count += mok_blocks_in_minis(plan, macro, s);
        if (s > 2 && !plan->fused_combine) {
            count += mok_blocks_in_minis(plan, macro, s - 3);
        }
    }
    if (plan->list_compute && s > 0) {
        count += mok_blocks_in_minis(plan, macro, s - 1) * (replay + plan->inner_tiles) +
                 mok_if(macro == 0, mok_shared_backward_tasks(plan));
    }
    if (plan->list_compute && s > 1) {
        count += mok_blocks_in_minis(plan, macro, s - 2) * plan->hidden_tiles;
    }
    return count;
}

static inline MOK_HD void mok_backward_task(const mok_plan *plan, int64_t idx, mok_task *task)
{
    int64_t left = idx;
    int64_t m = 0;
    const int64_t first = mok_backward_macro_tasks(plan, 0);
    if (left >= first) { /* all but the last of the following macrobatches are alike */
        const int64_t each = mok_backward_macro_tasks(plan, 1);
        left -= first;
        m = 1;
        if (each > 0) {
            const int64_t skip = left / each;
            const int64_t most = plan->macro_count - 2;
            m += skip < most ? skip : most;
            left -= (m - 1) * each;
        }
    }
    int64_t low = 0;
    int64_t high = mok_macro_minis(plan, m) + 3;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (mok_backward_before(plan, m, middle) <= left) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const int64_t s = low;
    left -= mok_backward_before(plan, m, s);
    const bool comm = plan->list_comm;
    const bool compute = plan->list_compute;
    if ((comm && !plan->fused_combine &&
         mok_take_stretch(task, &left, MOK_TASK_COMBINE, mok_backward_mini(plan, m, s - 3), 1)) ||
        (compute && m > 0 &&
         mok_take_stretch(task, &left, MOK_TASK_GATE_UP, mok_backward_mini(plan, m, s - 1),
                          plan->inner_tiles)) ||
        (compute && mok_take_stretch(task, &left, MOK_TASK_D_HIDDEN,
                                     mok_backward_mini(plan, m, s - 1), plan->inner_tiles)) ||
        (comm &&
         mok_take_stretch(task, &left, MOK_TASK_DISPATCH, mok_backward_mini(plan, m, s), 1)) ||
        (compute && mok_take_stretch(task, &left, MOK_TASK_DX, mok_backward_mini(plan, m, s - 2),
                                     plan->hidden_tiles)) ||
        (m == 0 && s == 0 && mok_take_shared_backward(plan, task, &left)) ||
        mok_take_wgrad(task, &left, MOK_TASK_WGRAD_GATE, m, plan->shape->expert_count,
                       plan->wgrad_tiles,
                       mok_wgrad_tiles(plan->shape->inner, plan->shape->hidden))) {
        mok_task_link_backward(plan, task);
    }
}

/* Tasks of the pass. */
static inline MOK_HD int64_t mok_task_count(const mok_plan *plan)
{
    if (plan->pass == MOK_PASS_FOLD) {
        return plan->token_blocks;
    }
    if (plan->pass != MOK_PASS_BACKWARD) {
        return mok_forward_before(plan, mok_forward_stages(plan));
    }
    int64_t count = mok_backward_macro_tasks(plan, 0);
    if (plan->macro_count > 1) {
        count += (plan->macro_count - 2) * mok_backward_macro_tasks(plan, 1) +
                 mok_backward_macro_tasks(plan, plan->macro_count - 1);
    }
    return count;
}

static inline MOK_HD mok_task mok_task_empty(int64_t idx)
{
    mok_task task;
    task.kind = MOK_TASK_FOLD;
    task.macro = 0;
    task.block = idx;
    task.tile = 0;
    task.expert = 0;
    task.wait_count = 0;
    task.raise_count = 0;
    return task;
}

/* Task idx in [0, mok_task_count). */
static inline MOK_HD mok_task mok_task_at(const mok_plan *plan, int64_t idx)
{
    mok_task task = mok_task_empty(idx);
    if (plan->pass == MOK_PASS_BACKWARD) {
        mok_backward_task(plan, idx, &task);
    } else if (plan->pass != MOK_PASS_FOLD) {
        mok_forward_task(plan, idx, &task);
    }
    return task;
}

/* A walk through a forward list with rising numbers: finds the stage by moving on instead of
 * searching, and keeps its minibatches, so that most steps need no more than one division. */
typedef struct mok_cursor {
    int64_t stage, begin, end; /* tasks of the stage are [begin, end) */
    mok_forward_stage parts;
} mok_cursor;

static inline MOK_HD mok_cursor mok_cursor_make(void)
{
    mok_cursor cursor;
    const mok_stretch none = {0, 0, 0};
    cursor.stage = -1;
    cursor.begin = 0;
    cursor.end = 0;
    cursor.parts.combine = cursor.parts.gate_up = cursor.parts.dispatch = cursor.parts.down = none;
    return cursor;
}

/* The same task as mok_task_at, for a forward or recompute plan and an idx not below the last one.
 */
static inline MOK_HD mok_task mok_cursor_task(const mok_plan *plan, mok_cursor *cursor, int64_t idx)
{
    mok_task task = mok_task_empty(idx);
    if (idx >= cursor->end) {
        do {
            cursor->stage++;
            cursor->begin = cursor->end;
            cursor->end = mok_forward_before(plan, cursor->stage + 1);
        } while (idx >= cursor->end);
        cursor->parts = mok_forward_stage_of(plan, cursor->stage);
    }
    mok_forward_task_of(plan, &cursor->parts, idx - cursor->begin, &task);
    return task;
}

#endif
