/* What a pass must send to ranks behind a link before it agrees: the rows that they compute, and no
 * others. */
#include "layer/layer.h"

/* A token that `peer` computes a row of. */
static bool goes_to(const mok_schedule *schedule, int64_t token, int64_t expert_begin,
                    int64_t expert_end)
{
    const int64_t slots = schedule->layer->shape.slots;
    for (int64_t slot = 0; slot < slots; slot++) {
        const int32_t expert = schedule->routes[token * slots + slot];
        if (expert >= expert_begin && expert < expert_end) {
            return true;
        }
    }
    return false;
}

static void show_tokens(const mok_arguments *arguments, int32_t peer, int64_t begin, int64_t end)
{
    const mok_layer *layer = arguments->layer;
    mok_comm *comm = layer->comm;
    const mok_arena *mine = &layer->arena[comm->rank];
    const int64_t hidden = layer->shape.hidden;
    const int64_t slots = layer->shape.slots;
    const size_t tokens = (size_t)(end - begin);
    const size_t row_bytes = (size_t)hidden * sizeof *mine->x;
    mok_symmetric_show(comm, &layer->symmetric, peer, mine->x + begin * hidden, tokens * row_bytes);
    if (arguments->dy != NULL) {
        mok_symmetric_show(comm, &layer->symmetric, peer, mine->dy + begin * hidden,
                           tokens * row_bytes);
        mok_symmetric_show(comm, &layer->symmetric, peer, mine->router_weights + begin * slots,
                           tokens * (size_t)slots * sizeof *mine->router_weights);
    }
}

void mok_arguments_show(const mok_arguments *arguments)
{
    const mok_layer *layer = arguments->layer;
    const mok_schedule *schedule = arguments->schedule;
    for (int32_t peer = 0; peer < layer->comm->size; peer++) {
        if (!layer->comm->remote[peer]) {
            continue;
        }
        const int64_t first = mok_experts_before(layer->shape.experts, layer->comm->size, peer);
        const int64_t end = mok_experts_before(layer->shape.experts, layer->comm->size, peer + 1);
        int64_t begin = 0; /* of a run of tokens that go there */
        for (int64_t token = 0; token <= schedule->tokens; token++) {
            if (token < schedule->tokens && goes_to(schedule, token, first, end)) {
                continue;
            }
            if (token > begin) {
                show_tokens(arguments, peer, begin, token);
            }
            begin = token + 1;
        }
    }
}

void mok_routes_show(const mok_layer *layer, int half, int64_t tokens)
{
    mok_comm *comm = layer->comm;
    const mok_arena *mine = &layer->arena[comm->rank];
    for (int32_t peer = 0; peer < comm->size; peer++) {
        mok_symmetric_show(comm, &layer->symmetric, peer, mine->routes[half],
                           (size_t)(tokens * layer->shape.slots) * sizeof(int32_t));
        mok_symmetric_show(comm, &layer->symmetric, peer, &mine->tokens[half],
                           sizeof mine->tokens[half]);
    }
}
