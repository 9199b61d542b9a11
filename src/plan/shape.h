/* The shape of a layer as every executor sees it, derived once from mok_layer_config. Compiles for
 * host and device. */
#ifndef MOK_PLAN_SHAPE_H
#define MOK_PLAN_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#ifndef MOK_HD
#ifdef __CUDACC__
#define MOK_HD __host__ __device__
#else
#define MOK_HD
#endif
#endif

#define MOK_ROUTER_CHUNK 128 /* columns of one tree of the router-weight gradient */
#define MOK_FOLD_TOKENS 32   /* tokens of one fold task */
#define MOK_TILE_COLS_INNER                                                                        \
    256 /* columns of I, and of H, that a product task covers on the CPU                           \
         */
#define MOK_TILE_COLS_HIDDEN 256
#define MOK_DEFAULT_MINIBATCH_ROWS 1024
#define MOK_WGRAD_ROWS 128 /* tile of a weight gradient */
#define MOK_WGRAD_COLS 256

typedef struct mok_shape {
    int64_t hidden, inner, shared_inner; /* H, I, I_s */
    int64_t experts, slots, max_tokens;  /* E, K, most tokens of a rank */
    int32_t ranks, rank;
    int64_t expert_begin, expert_count; /* this rank's experts */
    int64_t capacity_blocks;            /* row blocks of 128 that a schedule may have */
    int64_t macro_blocks, mini_blocks;  /* row blocks of a macrobatch and of a minibatch */
    int64_t inner_cols, hidden_cols;    /* columns of I, and of H, that one product task covers;
                                           inner_cols is a multiple of MOK_ROUTER_CHUNK */
} mok_shape;

static inline MOK_HD int64_t mok_blocks_of(int64_t count, int64_t step)
{
    return (count + step - 1) / step;
}

/* The experts of a rank: the first E % R ranks hold one more. */
static inline MOK_HD int64_t mok_experts_before(int64_t experts, int32_t ranks, int32_t rank)
{
    const int64_t each = experts / ranks;
    const int64_t extra = experts % ranks;
    return rank * each + (rank < extra ? rank : extra);
}

/* Which rank holds an expert: the inverse of the above. */
static inline MOK_HD int32_t mok_rank_of_expert(int64_t experts, int32_t ranks, int64_t expert)
{
    const int64_t each = experts / ranks;
    const int64_t extra = experts % ranks;
    const int64_t in_large = extra * (each + 1);
    return (int32_t)(expert < in_large ? expert / (each + 1) : extra + (expert - in_large) / each);
}

#endif
