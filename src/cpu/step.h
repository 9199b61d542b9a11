/* One pass of one rank on the CPU: everything a task needs to find its operands.
 *
 * src/layer fills a mok_step from the caller's tensors, the schedule and the layer's memory; the
 * executor walks the task list of its plan; the bodies of the tasks are in step_forward.c and
 * step_backward.c. */
#ifndef MOK_CPU_STEP_H
#define MOK_CPU_STEP_H

#include <stdatomic.h>

#include "comm/comm.h"
#include "plan/layout.h"
#include "plan/schedule.h"

/* One matrix of every expert: element (e, row, col) is data[e * expert_stride + row * row_stride +
 * col]. */
typedef struct mok_weight {
    const uint16_t *data;
    int64_t expert_stride, row_stride;
} mok_weight;

typedef struct mok_grad {
    void *data;
    mok_dtype dtype;
    mok_grad_mode mode;
    int64_t expert_stride, row_stride;
} mok_grad;

typedef struct mok_expert_weights {
    mok_weight gate, up, down;
} mok_expert_weights;

typedef struct mok_expert_grads {
    mok_grad gate, up, down;
} mok_expert_grads;

/* A rank's part of the arena. */
typedef struct mok_arena {
    uint16_t *x, *dy, *slots;
    float *router_weights, *d_router_weights;
    int32_t *routes[2];
    int64_t *tokens;
} mok_arena;

/* Rows of intermediates, routed (ring) or shared (tokens). */
typedef struct mok_buffers {
    int64_t inner; /* I or I_s: the row length of g, u, h, dg, du */
    uint16_t *x, *g, *u;
    uint16_t *h, *y, *dy, *dg, *du;
    float *row_weight;  /* NULL for the shared expert: weight 1 */
    float *router_part; /* NULL for the shared expert */
} mok_buffers;

typedef struct mok_step {
    mok_comm *comm;
    const mok_shape *shape;
    mok_plan plan;
    mok_phase phase;
    mok_product_fn product;
    mok_swiglu swiglu;

    const mok_rows *rows;
    const int32_t *routes; /* [T, K] of this rank */
    int64_t tokens;
    mok_arena arena[MOK_MAX_RANKS];
    const mok_symmetric *symmetric; /* where the arenas lie */

    mok_buffers ring, shared;
    float *chain[2];
    mok_expert_weights weights, shared_weights;
    mok_expert_grads grads, shared_grads;

    bool fold_backward;
    uint16_t *fold_out; /* y or dx, [T, H] */
    int64_t fold_out_stride;
    float *fold_router; /* d_router_weights [T, K], NULL in forward */
    int64_t fold_router_stride;

    _Atomic uint32_t *counters;
    _Atomic int64_t next_task;
    _Atomic int64_t done_count;
    _Atomic int64_t left_task; /* the last task that a worker left undone; -1: none */
    mok_task_hook hook;
    void *hook_context;
} mok_step;

/* Walks the pass on this rank's workers. Errors: PEER. */
mok_status mok_step_run(mok_step *step);

/* Bodies; scratch is the worker's. */
void mok_step_forward_task(mok_step *step, const mok_task *task, const mok_worker_scratch *scratch);
void mok_step_backward_task(mok_step *step, const mok_task *task,
                            const mok_worker_scratch *scratch);
void mok_step_fold_task(mok_step *step, const mok_task *task);

/* The rows of one block and the weights of their expert. */
typedef struct mok_block_view {
    int64_t row_count; /* rows that hold a route or token: padding is neither read nor computed */
    int64_t inner;
    uint16_t *x, *g, *u, *h, *y, *dy, *dg, *du;
    const float *row_weight;
    float *router_part;
    mok_weight gate, up, down; /* data at this expert's matrix */
} mok_block_view;

mok_block_view mok_step_block(const mok_step *step, const mok_task *task);

/* bf16 rows of a finished product tile. */
void mok_step_store_tile(const mok_step *step, uint16_t *out, int64_t out_stride, const float *tile,
                         int64_t rows, int64_t cols);

/* Clears the tile and runs or, with `more`, continues a chain. */
void mok_step_product(const mok_step *step, float *tile, bool more, const mok_operand *a,
                      const mok_operand *b, int64_t m, int64_t n, int64_t k,
                      const mok_worker_scratch *scratch);

#endif
