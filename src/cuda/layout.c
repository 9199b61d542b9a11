/* Offsets of a virtual rank's device memory. */
#include "cuda/layout.h"

#define BF16 sizeof(uint16_t)
#define LINE 128 /* bytes of a cache line on the device */

static mok_status check_multiple(const char *name, int64_t value)
{
    MOK_REQUIRE(value % 16 == 0, MOK_ERROR_SHAPE,
                "config.%s is %lld, must be a multiple of 16 on the device", name,
                (long long)value);
    return MOK_OK;
}

mok_shape mok_cuda_backward_shape(const mok_shape *shape)
{
    mok_shape wide = *shape;
    wide.inner_cols = 256;
    return wide;
}

/* Tasks of a pass's longest compute list that the capacity allows. */
static int64_t most_tasks(mok_pass pass, const mok_shape *shape)
{
    mok_plan plan =
        mok_plan_make(pass, shape, shape->capacity_blocks, shape->max_tokens, MOK_CUDA_MAX_LANES);
    plan.list_comm = false;
    plan.fused_combine = true;
    return mok_task_count(&plan);
}

mok_status mok_cuda_shape_make(mok_shape *out, const mok_layer_config *config, int32_t ranks,
                               int32_t rank, int32_t blocks)
{
    MOK_TRY(mok_shape_make(out, config, ranks, rank));
    MOK_TRY(check_multiple("hidden", config->hidden));
    MOK_TRY(check_multiple("intermediate", config->intermediate));
    MOK_TRY(check_multiple("shared_intermediate", config->shared_intermediate));
    out->inner_cols = 128;
    out->hidden_cols = 256;
    MOK_REQUIRE(MOK_COUNTERS * mok_counter_blocks(out) <= INT32_MAX &&
                    most_tasks(MOK_PASS_FORWARD, out) <= INT32_MAX &&
                    out->capacity_blocks <= INT32_MAX / MOK_ROW_BLOCK,
                MOK_ERROR_SHAPE, "rank %d: %lld rows are more than the device can number", rank,
                (long long)out->capacity_blocks * MOK_ROW_BLOCK);
    if (config->minibatch_rows == 0) {
        /* As many rows of x as half the second-level cache keeps while every column tile reads them
         * again, as a power of two (measured best on five shapes, docs/perf-log.md), but a round of
         * tiles for all blocks. */
        const int64_t bytes = MOK_ROW_BLOCK * config->hidden * (int64_t)BF16;
        int64_t wanted = 1;
        while (wanted * 2 * bytes <= 30000000) {
            wanted *= 2;
        }
        wanted = mok_max64(wanted, mok_ceil_div(blocks, mok_ceil_div(config->intermediate, 128)));
        out->mini_blocks = mok_min64(wanted, out->macro_blocks);
    }
    return MOK_OK;
}

static size_t add_words(mok_extent *extent, int64_t count)
{
    return mok_extent_add(extent, mok_round_up(count * (int64_t)sizeof(uint32_t), LINE), 1, 1, 1);
}

bool mok_cuda_layout_make(mok_cuda_layout *out, const mok_shape *shape, bool forward_only,
                          bool apart)
{
    const mok_shape wide = mok_cuda_backward_shape(shape);
    const int64_t trains = forward_only ? 0 : 1;
    const int64_t ring = shape->macro_blocks * MOK_ROW_BLOCK;
    const int64_t tokens = shape->max_tokens;
    const int64_t shared_tokens = shape->shared_inner > 0 ? tokens : 0;
    mok_extent extent = {0, false};
    out->ring_x = mok_extent_add(&extent, ring, shape->hidden, 1, BF16);
    out->ring_gu = mok_extent_add(&extent, 2, ring, shape->inner, BF16);
    out->ring_h = mok_extent_add(&extent, ring, shape->inner, 1, BF16);
    out->shared_gu = mok_extent_add(&extent, 2, shared_tokens, shape->shared_inner, BF16);
    out->shared_h = mok_extent_add(&extent, shared_tokens, shape->shared_inner, 1, BF16);
    out->shared_y = mok_extent_add(&extent, shared_tokens, shape->hidden, 1, BF16);
    out->ring_dy = mok_extent_add(&extent, trains * ring, shape->hidden, 1, BF16);
    out->ring_d = mok_extent_add(&extent, trains * 3, ring, shape->inner, BF16);
    out->shared_d = mok_extent_add(&extent, trains * 3, shared_tokens, shape->shared_inner, BF16);
    out->router_part = mok_extent_add(
        &extent, trains * ring, mok_ceil_div(shape->inner, MOK_ROUTER_CHUNK), 1, sizeof(float));
    out->slots = mok_extent_add(&extent, tokens, shape->slots, shape->hidden, BF16);
    out->routes = mok_extent_add(&extent, tokens, shape->slots, 1, sizeof(int32_t));
    out->peer_rank =
        mok_extent_add(&extent, shape->capacity_blocks, MOK_ROW_BLOCK, 1, sizeof(int32_t));
    out->peer_slot =
        mok_extent_add(&extent, shape->capacity_blocks, MOK_ROW_BLOCK, 1, sizeof(int32_t));
    out->block_expert = mok_extent_add(&extent, shape->capacity_blocks, 1, 1, sizeof(int32_t));
    out->segment_begin = mok_extent_add(&extent, shape->expert_count + 1, 1, 1, sizeof(int64_t));
    out->segment_count = mok_extent_add(&extent, shape->expert_count, 1, 1, sizeof(int64_t));
    out->forward =
        mok_extent_add(&extent, most_tasks(MOK_PASS_FORWARD, shape), 1, 1, sizeof(mok_sm90_task));
    out->backward = mok_extent_add(&extent, trains * most_tasks(MOK_PASS_BACKWARD, &wide), 1, 1,
                                   sizeof(mok_sm90_task));
    out->comm = mok_extent_add(&extent, shape->capacity_blocks, 1, 1, sizeof(mok_sm90_task));
    out->words = mok_extent_add(&extent, LINE, 1, 1, 1);
    out->row_count = add_words(&extent, 2);
    out->list_count = add_words(&extent, 3);
    out->counters = add_words(&extent, MOK_COUNTERS * mok_counter_blocks(shape));
    out->next_compute = add_words(&extent, 1);
    out->done = add_words(&extent, 1);
    out->left = add_words(&extent, 1);
    out->epoch = add_words(&extent, 1);
    out->slot = add_words(&extent, shape->ranks);
    const int64_t copies = apart ? tokens : 0;
    out->meet_epoch = add_words(&extent, 1);
    out->meet_slot = add_words(&extent, shape->ranks);
    out->sent = mok_extent_add(&extent, copies, shape->hidden, 1, BF16);
    out->sent_routes = mok_extent_add(&extent, copies, shape->slots, 1, sizeof(int64_t));
    out->sent_weights = mok_extent_add(&extent, copies, shape->slots, 1, sizeof(float));
    out->received_weights = mok_extent_add(&extent, copies, shape->slots, 1, sizeof(float));
    out->bytes = extent.bytes;
    return !extent.overflow;
}

int64_t mok_cuda_chunks_of(int64_t tokens, int64_t slots)
{
    return mok_ceil_div(tokens * slots, MOK_SM90_CHUNK_ROUTES);
}

bool mok_cuda_common_layout_make(mok_cuda_common_layout *out, const mok_shape *shape)
{
    const int64_t chunks = shape->ranks * mok_cuda_chunks_of(shape->max_tokens, shape->slots);
    mok_extent extent = {0, false};
    out->chunk_count = mok_extent_add(&extent, shape->experts, chunks, 1, sizeof(uint32_t));
    out->total = mok_extent_add(&extent, shape->experts, 1, 1, sizeof(uint32_t));
    out->abort = mok_extent_add(&extent, LINE, 1, 1, 1);
    out->silu = mok_extent_add(&extent, MOK_SM90_SILU_FLOATS, 1, 1, sizeof(float));
    out->bytes = extent.bytes;
    return !extent.overflow;
}
