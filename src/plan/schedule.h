/* From routes to rows: the counting sort that every rank does on all ranks' routes.
 *
 * A schedule lists, for each expert of this rank ascending, that expert's routes in ascending
 * (source rank, token, slot), each segment padded with -1 to whole row blocks. Since every rank
 * sees all routes, every rank counts every rank's rows: all of them know of an overflow before
 * anything is written. */
#ifndef MOK_PLAN_SCHEDULE_H
#define MOK_PLAN_SCHEDULE_H

#include "plan/layout.h"

/* All ranks' routes: idx of route (token, slot) is token * slots + slot; values are in [-1,
 * experts). */
typedef struct mok_routes {
    const int32_t *route[MOK_MAX_RANKS];
    int64_t count[MOK_MAX_RANKS]; /* tokens * slots */
} mok_routes;

typedef struct mok_rows {
    int64_t row_count;     /* padded */
    int32_t *peer_rank;    /* [row_count] */
    int32_t *peer_slot;    /* [row_count] */
    int32_t *block_expert; /* [row_count / 128] local expert */
    int64_t *rows;         /* [E_r] padded */
    int64_t *counts;       /* [E_r] */
    int64_t *begin;        /* [E_r + 1] */
} mok_rows;

/* Checks one rank's routes and copies them as int32. Errors: ROUTE. */
mok_status mok_routes_convert(int32_t *out, const mok_tensor *routes, int64_t experts);

/* expert_counts is [E] scratch. Errors: CAPACITY, and then rows holds nothing. */
mok_status mok_rows_build(mok_rows *rows, const mok_shape *shape, const mok_routes *routes,
                          int64_t *expert_counts);

#endif
