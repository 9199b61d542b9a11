/* From routes to rows. */
#include "plan/schedule.h"

#include <string.h>

mok_status mok_routes_convert(int32_t *out, const mok_tensor *routes, int64_t experts)
{
    const int64_t slots = routes->shape[1];
    for (int64_t token = 0; token < routes->shape[0]; token++) {
        for (int64_t slot = 0; slot < slots; slot++) {
            const int64_t at = token * routes->stride[0] + slot;
            const int64_t expert = routes->dtype == MOK_DTYPE_I64
                                       ? ((const int64_t *)routes->data)[at]
                                       : ((const int32_t *)routes->data)[at];
            MOK_REQUIRE(expert >= -1 && expert < experts, MOK_ERROR_ROUTE,
                        "routes[token %lld][slot %lld] is %lld, must be -1 or in [0, %lld)",
                        (long long)token, (long long)slot, (long long)expert, (long long)experts);
            out[token * slots + slot] = (int32_t)expert;
        }
    }
    return MOK_OK;
}

static void count_experts(int64_t *expert_counts, const mok_shape *shape, const mok_routes *routes)
{
    memset(expert_counts, 0, (size_t)shape->experts * sizeof *expert_counts);
    for (int32_t rank = 0; rank < shape->ranks; rank++) {
        for (int64_t i = 0; i < routes->count[rank]; i++) {
            const int32_t expert = routes->route[rank][i];
            if (expert >= 0) {
                expert_counts[expert]++;
            }
        }
    }
}

static mok_status check_capacity(const mok_shape *shape, const int64_t *expert_counts)
{
    const int64_t available = shape->capacity_blocks * MOK_ROW_BLOCK;
    int64_t needed = 0;
    int32_t rank = 0;
    for (int64_t expert = 0; expert < shape->experts; expert++) {
        const int32_t owner = mok_rank_of_expert(shape->experts, shape->ranks, expert);
        if (owner != rank) {
            rank = owner;
            needed = 0;
        }
        needed += mok_round_up(expert_counts[expert], MOK_ROW_BLOCK);
        MOK_REQUIRE(needed <= available ||
                        (expert + 1 < shape->experts &&
                         mok_rank_of_expert(shape->experts, shape->ranks, expert + 1) == owner),
                    MOK_ERROR_CAPACITY,
                    "the schedule of rank %d needs %lld rows, capacity_rows is %lld", owner,
                    (long long)needed, (long long)available);
    }
    return MOK_OK;
}

/* Segments of this rank's experts, and which expert each row block belongs to. */
static void lay_out_segments(mok_rows *rows, const mok_shape *shape, const int64_t *expert_counts)
{
    int64_t begin = 0;
    for (int64_t expert = 0; expert < shape->expert_count; expert++) {
        const int64_t count = expert_counts[shape->expert_begin + expert];
        const int64_t padded = mok_round_up(count, MOK_ROW_BLOCK);
        rows->counts[expert] = count;
        rows->rows[expert] = padded;
        rows->begin[expert] = begin;
        for (int64_t block = begin / MOK_ROW_BLOCK; block < (begin + padded) / MOK_ROW_BLOCK;
             block++) {
            rows->block_expert[block] = (int32_t)expert;
        }
        for (int64_t row = begin + count; row < begin + padded; row++) {
            rows->peer_rank[row] = -1;
            rows->peer_slot[row] = -1;
        }
        begin += padded;
    }
    rows->begin[shape->expert_count] = begin;
    rows->row_count = begin;
}

mok_status mok_rows_build(mok_rows *rows, const mok_shape *shape, const mok_routes *routes,
                          int64_t *expert_counts)
{
    rows->row_count = 0;
    count_experts(expert_counts, shape, routes);
    MOK_TRY(check_capacity(shape, expert_counts));
    lay_out_segments(rows, shape, expert_counts);
    int64_t *next = expert_counts; /* counts are copied; from here on: the next free row */
    for (int64_t expert = 0; expert < shape->expert_count; expert++) {
        next[shape->expert_begin + expert] = rows->begin[expert];
    }
    for (int32_t rank = 0; rank < shape->ranks; rank++) {
        for (int64_t i = 0; i < routes->count[rank]; i++) {
            const int64_t expert = routes->route[rank][i];
            if (expert >= shape->expert_begin &&
                expert < shape->expert_begin + shape->expert_count) {
                const int64_t row = next[expert]++;
                rows->peer_rank[row] = rank;
                rows->peer_slot[row] = (int32_t)i;
            }
        }
    }
    return MOK_OK;
}
