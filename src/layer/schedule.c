/* Schedules: memory, and the collective build. */
#include <string.h>

#include "layer/layer.h"

mok_status mok_schedule_open(mok_schedule **out, mok_layer *layer)
{
    MOK_REQUIRE(out != NULL && layer != NULL, MOK_ERROR_ARGUMENT, "out or layer is NULL");
    *out = NULL;
    const mok_allocator *allocator = &layer->comm->allocator;
    const mok_schedule_layout *layout = &layer->schedule_layout;
    mok_schedule *schedule = mok_allocate(allocator, sizeof *schedule);
    MOK_REQUIRE(schedule != NULL, MOK_ERROR_MEMORY, "no memory for a schedule");
    memset(schedule, 0, sizeof *schedule);
    schedule->layer = layer;
    schedule->memory = mok_allocate(allocator, layout->bytes);
    if (schedule->memory == NULL) {
        mok_release(allocator, schedule, sizeof *schedule);
        return mok_fail(MOK_ERROR_MEMORY, "no memory for a schedule of %zu bytes", layout->bytes);
    }
    unsigned char *base = schedule->memory;
    schedule->rows.peer_rank = (int32_t *)(void *)(base + layout->peer_rank);
    schedule->rows.peer_slot = (int32_t *)(void *)(base + layout->peer_slot);
    schedule->rows.block_expert = (int32_t *)(void *)(base + layout->block_expert);
    schedule->rows.rows = (int64_t *)(void *)(base + layout->rows);
    schedule->rows.counts = (int64_t *)(void *)(base + layout->counts);
    schedule->rows.begin = (int64_t *)(void *)(base + layout->begin);
    schedule->routes = (int32_t *)(void *)(base + layout->routes);
    *out = schedule;
    return MOK_OK;
}

void mok_schedule_close(mok_schedule **schedule)
{
    if (schedule == NULL || *schedule == NULL) {
        return;
    }
    mok_schedule *old = *schedule;
    *schedule = NULL;
    const mok_allocator *allocator = &old->layer->comm->allocator;
    mok_release(allocator, old->memory, old->layer->schedule_layout.bytes);
    mok_release(allocator, old, sizeof *old);
}

/* This rank's own routes, checked, into the half of the arena that this build uses. */
static mok_status publish_routes(mok_schedule *schedule, mok_layer *layer, const mok_tensor *routes,
                                 int half)
{
    MOK_TRY(
        mok_comm_check(layer->comm)); /* a peer may still read what another build would overwrite */
    MOK_REQUIRE(schedule != NULL, MOK_ERROR_ARGUMENT, "schedule is NULL");
    schedule->stamp = 0;
    MOK_REQUIRE(schedule->layer == layer, MOK_ERROR_ARGUMENT, "schedule belongs to another layer");
    const mok_wanted wanted = {
        "routes", MOK_DTYPE_I32, MOK_DTYPE_I64, 2, {layer->shape.max_tokens, layer->shape.slots, 0},
        true};
    MOK_TRY(mok_check_tensor(routes, &wanted));
    const mok_arena *mine = &layer->arena[layer->comm->rank];
    MOK_TRY(mok_routes_convert(mine->routes[half], routes, layer->shape.experts));
    mine->tokens[half] = routes->shape[0];
    mok_routes_show(layer, half, routes->shape[0]);
    return MOK_OK;
}

/* Builds alternate between two halves of the arena. Two suffice: a rank that writes half p again
 * has agreed with every peer in the build in between, and by then each had finished reading p. */
mok_status mok_schedule_build(mok_schedule *schedule, mok_layer *layer, const mok_tensor *routes)
{
    MOK_REQUIRE(layer != NULL, MOK_ERROR_ARGUMENT, "layer is NULL");
    mok_comm *comm = layer->comm;
    const int half = (int)(layer->builds & 1);
    layer->builds++;
    MOK_TRY(
        mok_comm_agree_in(comm, publish_routes(schedule, layer, routes, half), MOK_PHASE_SCHEDULE));
    mok_routes all;
    for (int32_t rank = 0; rank < comm->size; rank++) {
        all.route[rank] = layer->arena[rank].routes[half];
        all.count[rank] = layer->arena[rank].tokens[half] * layer->shape.slots;
    }
    int64_t *expert_counts =
        (int64_t *)(void *)(layer->workspace + layer->workspace_layout.expert_counts);
    /* An overflow is found by every rank alike, so nothing needs agreement here. */
    MOK_TRY(mok_rows_build(&schedule->rows, &layer->shape, &all, expert_counts));
    schedule->tokens = routes->shape[0];
    memcpy(schedule->routes, layer->arena[comm->rank].routes[half],
           (size_t)all.count[comm->rank] * sizeof *schedule->routes);
    schedule->stamp = layer->builds;
    return MOK_OK;
}

mok_status mok_schedule_read(const mok_schedule *schedule, mok_schedule_view *out)
{
    MOK_REQUIRE(schedule != NULL, MOK_ERROR_ARGUMENT, "schedule is NULL");
    MOK_REQUIRE(out != NULL && out->struct_bytes == sizeof *out, MOK_ERROR_ARGUMENT,
                "out is NULL or its struct_bytes is not %zu", sizeof *out);
    MOK_REQUIRE(schedule->stamp != 0, MOK_ERROR_STATE, "schedule was never built");
    const mok_schedule_view view = {sizeof view,
                                    schedule->tokens,
                                    schedule->rows.row_count,
                                    schedule->layer->shape.expert_begin,
                                    schedule->layer->shape.expert_count,
                                    schedule->rows.peer_rank,
                                    schedule->rows.peer_slot,
                                    schedule->rows.rows,
                                    schedule->rows.counts};
    *out = view;
    return MOK_OK;
}
