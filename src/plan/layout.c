/* The shape from the configuration, and where everything lies. */
#include "plan/layout.h"

#include <math.h>
#include <string.h>

#define BF16 sizeof(uint16_t)
#define F32 sizeof(float)

/* Limits on single fields keep every product of three of them inside 64 bits; sizes are checked
 * apart. */
#define MOK_MAX_EXTENT ((int64_t)1 << 24)
#define MOK_MAX_EXPERTS ((int64_t)1 << 20)
#define MOK_MAX_SLOTS ((int64_t)1 << 16)
#define MOK_MAX_ROUTES ((int64_t)INT32_MAX)

static mok_status check_range(const char *name, int64_t value, int64_t low, int64_t high)
{
    MOK_REQUIRE(value >= low && value <= high, MOK_ERROR_SHAPE,
                "config.%s is %lld, must be %lld..%lld", name, (long long)value, (long long)low,
                (long long)high);
    return MOK_OK;
}

static mok_status check_choices(const mok_layer_config *config)
{
    MOK_REQUIRE(config->arith == MOK_ARITH_TC16 || config->arith == MOK_ARITH_FMA,
                MOK_ERROR_ARGUMENT, "config.arith is %d, unknown", (int)config->arith);
    MOK_REQUIRE(config->weights == MOK_WEIGHTS_BF16 || config->weights == MOK_WEIGHTS_MXFP8,
                MOK_ERROR_ARGUMENT, "config.weights is %d, unknown", (int)config->weights);
    MOK_REQUIRE(config->weights == MOK_WEIGHTS_BF16, MOK_ERROR_UNSUPPORTED,
                "config.weights: MXFP8 is not in this version");
    MOK_REQUIRE(config->activation == MOK_ACTIVATION_SWIGLU ||
                    config->activation == MOK_ACTIVATION_SWIGLU_CLAMPED,
                MOK_ERROR_ARGUMENT, "config.activation is %d, unknown", (int)config->activation);
    if (config->activation == MOK_ACTIVATION_SWIGLU_CLAMPED) {
        MOK_REQUIRE(isfinite(config->swiglu_limit) && config->swiglu_limit >= 0, MOK_ERROR_ARGUMENT,
                    "config.swiglu_limit is %g, must be finite and >= 0",
                    (double)config->swiglu_limit);
    }
    return MOK_OK;
}

static mok_status check_fields(const mok_layer_config *config, int32_t ranks, int32_t rank)
{
    MOK_REQUIRE(config != NULL, MOK_ERROR_ARGUMENT, "config is NULL");
    MOK_REQUIRE(config->struct_bytes == sizeof *config, MOK_ERROR_ARGUMENT,
                "config.struct_bytes is %zu, must be %zu", config->struct_bytes, sizeof *config);
    MOK_REQUIRE(ranks >= 1 && ranks <= MOK_MAX_RANKS && rank >= 0 && rank < ranks,
                MOK_ERROR_ARGUMENT, "rank %d of %d ranks: ranks must be 1..%d", rank, ranks,
                MOK_MAX_RANKS);
    MOK_TRY(check_range("hidden", config->hidden, 1, MOK_MAX_EXTENT));
    MOK_TRY(check_range("intermediate", config->intermediate, 1, MOK_MAX_EXTENT));
    MOK_TRY(check_range("shared_intermediate", config->shared_intermediate, 0, MOK_MAX_EXTENT));
    MOK_TRY(check_range("experts", config->experts, 1, MOK_MAX_EXPERTS));
    MOK_TRY(check_range("slots", config->slots, 1, MOK_MAX_SLOTS));
    MOK_TRY(check_range("max_tokens", config->max_tokens, 0, MOK_MAX_ROUTES / config->slots));
    return check_choices(config);
}

/* A count of rows that the caller may leave at 0; the result is in row blocks. */
static mok_status pick_rows(int64_t *blocks, const char *name, int64_t rows, int64_t otherwise,
                            int64_t most)
{
    MOK_REQUIRE(rows >= 0 && rows % MOK_ROW_BLOCK == 0, MOK_ERROR_SHAPE,
                "config.%s is %lld, must be 0 or a multiple of %d", name, (long long)rows,
                MOK_ROW_BLOCK);
    *blocks = (rows > 0 ? rows : otherwise) / MOK_ROW_BLOCK;
    if (*blocks > most) {
        *blocks = most;
    }
    return MOK_OK;
}

mok_status mok_shape_make(mok_shape *out, const mok_layer_config *config, int32_t ranks,
                          int32_t rank)
{
    MOK_TRY(check_fields(config, ranks, rank));
    mok_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.hidden = config->hidden;
    shape.inner = config->intermediate;
    shape.shared_inner = config->shared_intermediate;
    shape.experts = config->experts;
    shape.slots = config->slots;
    shape.max_tokens = config->max_tokens;
    shape.ranks = ranks;
    shape.rank = rank;
    shape.expert_begin = mok_experts_before(config->experts, ranks, rank);
    shape.expert_count = mok_experts_before(config->experts, ranks, rank + 1) - shape.expert_begin;
    shape.inner_cols = MOK_TILE_COLS_INNER;
    shape.hidden_cols = MOK_TILE_COLS_HIDDEN;

    const int64_t routes = config->max_tokens * config->slots;
    const int64_t worst = mok_round_up(ranks * routes + 127 * shape.expert_count, MOK_ROW_BLOCK);
    const int64_t limit = (int64_t)1 << 40;
    MOK_TRY(
        pick_rows(&shape.capacity_blocks, "capacity_rows", config->capacity_rows, worst, limit));
    const int64_t balanced =
        mok_round_up(2 * routes + MOK_ROW_BLOCK * shape.expert_count, MOK_ROW_BLOCK);
    const int64_t most = mok_max64(shape.capacity_blocks, 1);
    MOK_TRY(pick_rows(&shape.macro_blocks, "macrobatch_rows", config->macrobatch_rows,
                      mok_max64(balanced, MOK_ROW_BLOCK), most));
    MOK_TRY(pick_rows(&shape.mini_blocks, "minibatch_rows", config->minibatch_rows,
                      MOK_DEFAULT_MINIBATCH_ROWS, shape.macro_blocks));
    *out = shape;

    mok_arena_layout arena;
    mok_workspace_layout workspace;
    mok_activations_layout activations;
    mok_schedule_layout schedule;
    MOK_REQUIRE(
        mok_arena_layout_make(&arena, out) && mok_workspace_layout_make(&workspace, out) &&
            mok_activations_layout_make(&activations, out) &&
            mok_schedule_layout_make(&schedule, out),
        MOK_ERROR_MEMORY,
        "a layer of hidden %lld, intermediate %lld, max_tokens %lld, slots %lld needs more bytes "
        "than an address can name",
        (long long)config->hidden, (long long)config->intermediate, (long long)config->max_tokens,
        (long long)config->slots);
    return MOK_OK;
}

bool mok_arena_layout_make(mok_arena_layout *out, const mok_shape *shape)
{
    const int64_t tokens = shape->max_tokens;
    mok_extent extent = {0, false};
    out->x = mok_extent_add(&extent, tokens, shape->hidden, 1, BF16);
    out->dy = mok_extent_add(&extent, tokens, shape->hidden, 1, BF16);
    out->slots = mok_extent_add(&extent, tokens, shape->slots, shape->hidden, BF16);
    out->router_weights = mok_extent_add(&extent, tokens, shape->slots, 1, F32);
    out->d_router_weights = mok_extent_add(&extent, tokens, shape->slots, 1, F32);
    out->routes[0] = mok_extent_add(&extent, tokens, shape->slots, 1, sizeof(int32_t));
    out->routes[1] = mok_extent_add(&extent, tokens, shape->slots, 1, sizeof(int32_t));
    out->tokens = mok_extent_add(&extent, 2, 1, 1, sizeof(int64_t));
    out->bytes = extent.bytes;
    return !extent.overflow;
}

bool mok_workspace_layout_make(mok_workspace_layout *out, const mok_shape *shape)
{
    const int64_t ring = shape->macro_blocks * MOK_ROW_BLOCK;
    const int64_t tokens = shape->shared_inner > 0 ? shape->max_tokens : 0;
    /* A weight gradient can only be interrupted where there may be a second macrobatch; each half
     * holds gate, up and down of the one expert whose rows stand on the border. */
    const int64_t chains = shape->capacity_blocks > shape->macro_blocks ? 3 : 0;
    mok_extent extent = {0, false};
    out->h = mok_extent_add(&extent, ring, shape->inner, 1, BF16);
    out->y = mok_extent_add(&extent, ring, shape->hidden, 1, BF16);
    out->dy = mok_extent_add(&extent, ring, shape->hidden, 1, BF16);
    out->dg = mok_extent_add(&extent, ring, shape->inner, 1, BF16);
    out->du = mok_extent_add(&extent, ring, shape->inner, 1, BF16);
    out->row_weight = mok_extent_add(&extent, ring, 1, 1, F32);
    out->router_part =
        mok_extent_add(&extent, ring, mok_ceil_div(shape->inner, MOK_ROUTER_CHUNK), 1, F32);
    out->shared_h = mok_extent_add(&extent, tokens, shape->shared_inner, 1, BF16);
    out->shared_y = mok_extent_add(&extent, tokens, shape->hidden, 1, BF16);
    out->shared_dg = mok_extent_add(&extent, tokens, shape->shared_inner, 1, BF16);
    out->shared_du = mok_extent_add(&extent, tokens, shape->shared_inner, 1, BF16);
    out->chain[0] = mok_extent_add(&extent, chains, shape->inner, shape->hidden, F32);
    out->chain[1] = mok_extent_add(&extent, chains, shape->inner, shape->hidden, F32);
    out->counters =
        mok_extent_add(&extent, MOK_COUNTERS, mok_counter_blocks(shape), 1, sizeof(uint32_t));
    out->expert_counts = mok_extent_add(&extent, shape->experts, 1, 1, sizeof(int64_t));
    out->bytes = extent.bytes;
    return !extent.overflow;
}

bool mok_activations_layout_make(mok_activations_layout *out, const mok_shape *shape)
{
    const int64_t ring = shape->macro_blocks * MOK_ROW_BLOCK;
    mok_extent extent = {0, false};
    out->x = mok_extent_add(&extent, ring, shape->hidden, 1, BF16);
    out->g = mok_extent_add(&extent, ring, shape->inner, 1, BF16);
    out->u = mok_extent_add(&extent, ring, shape->inner, 1, BF16);
    out->shared_g = mok_extent_add(&extent, shape->max_tokens, shape->shared_inner, 1, BF16);
    out->shared_u = mok_extent_add(&extent, shape->max_tokens, shape->shared_inner, 1, BF16);
    out->bytes = extent.bytes;
    return !extent.overflow;
}

bool mok_schedule_layout_make(mok_schedule_layout *out, const mok_shape *shape)
{
    const int64_t rows = shape->capacity_blocks;
    mok_extent extent = {0, false};
    out->peer_rank = mok_extent_add(&extent, rows, MOK_ROW_BLOCK, 1, sizeof(int32_t));
    out->peer_slot = mok_extent_add(&extent, rows, MOK_ROW_BLOCK, 1, sizeof(int32_t));
    out->block_expert = mok_extent_add(&extent, rows, 1, 1, sizeof(int32_t));
    out->rows = mok_extent_add(&extent, shape->expert_count, 1, 1, sizeof(int64_t));
    out->counts = mok_extent_add(&extent, shape->expert_count, 1, 1, sizeof(int64_t));
    out->begin = mok_extent_add(&extent, shape->expert_count + 1, 1, 1, sizeof(int64_t));
    out->routes = mok_extent_add(&extent, shape->max_tokens, shape->slots, 1, sizeof(int32_t));
    out->bytes = extent.bytes;
    return !extent.overflow;
}
