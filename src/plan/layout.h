/* Where everything lies: one function a block of memory gives its size to callers and its offsets
 * to the layer. docs/layer.md, "Memory", shows the same formulas; tests/unit/test_layout.c holds
 * them equal. */
#ifndef MOK_PLAN_LAYOUT_H
#define MOK_PLAN_LAYOUT_H

#include "core/memory.h"
#include "plan/shape.h"
#include "plan/tasks.h"

/* Memory that peers read and write, one a rank. */
typedef struct mok_arena_layout {
    size_t x;                /* [max_tokens, H] bf16 */
    size_t dy;               /* [max_tokens, H] bf16 */
    size_t slots;            /* [max_tokens * K, H] bf16: y in forward, dx in backward */
    size_t router_weights;   /* [max_tokens, K] f32 */
    size_t d_router_weights; /* [max_tokens, K] f32 */
    size_t routes[2];        /* [max_tokens * K] i32, builds alternate between the two */
    size_t tokens;           /* [2] i64: T of the build in either half */
    size_t bytes;
} mok_arena_layout;

/* A rank's own scratch. Ring rows are those of one macrobatch. */
typedef struct mok_workspace_layout {
    size_t h;             /* [ring, I] bf16: h in forward, hw in backward */
    size_t y;             /* [ring, H] bf16: y in forward, dx in backward */
    size_t dy;            /* [ring, H] bf16 */
    size_t dg, du;        /* [ring, I] bf16 */
    size_t row_weight;    /* [ring] f32 */
    size_t router_part;   /* [ring, ceil(I / 128)] f32 */
    size_t shared_h;      /* [max_tokens, I_s] bf16: h, then hw */
    size_t shared_y;      /* [max_tokens, H] bf16: y, then dx */
    size_t shared_dg;     /* [max_tokens, I_s] bf16 */
    size_t shared_du;     /* [max_tokens, I_s] bf16 */
    size_t chain[2];      /* [3 * I * H] f32: weight gradients that the next macrobatch continues */
    size_t counters;      /* [MOK_COUNTERS * counter_blocks] u32 */
    size_t expert_counts; /* [E] i64 */
    size_t bytes;
} mok_workspace_layout;

/* What forward keeps. */
typedef struct mok_activations_layout {
    size_t x;                  /* [ring, H] bf16 */
    size_t g, u;               /* [ring, I] bf16 */
    size_t shared_g, shared_u; /* [max_tokens, I_s] bf16 */
    size_t bytes;
} mok_activations_layout;

typedef struct mok_schedule_layout {
    size_t peer_rank;    /* [capacity] i32 */
    size_t peer_slot;    /* [capacity] i32 */
    size_t block_expert; /* [capacity / 128] i32: local expert of each row block */
    size_t rows;         /* [E_r] i64, padded */
    size_t counts;       /* [E_r] i64 */
    size_t begin;        /* [E_r + 1] i64: first row of each segment */
    size_t routes;       /* [max_tokens * K] i32: this rank's own */
    size_t bytes;
} mok_schedule_layout;

/* Derives the shape of one rank and checks every limit of the configuration. The texts name the
 * field, its value and the limit. Errors: ARGUMENT, SHAPE, UNSUPPORTED, MEMORY (a size passes the
 * address space). */
mok_status mok_shape_make(mok_shape *out, const mok_layer_config *config, int32_t ranks,
                          int32_t rank);

/* Each returns false when the sum passes SIZE_MAX. */
bool mok_arena_layout_make(mok_arena_layout *out, const mok_shape *shape);
bool mok_workspace_layout_make(mok_workspace_layout *out, const mok_shape *shape);
bool mok_activations_layout_make(mok_activations_layout *out, const mok_shape *shape);
bool mok_schedule_layout_make(mok_schedule_layout *out, const mok_shape *shape);

#endif
