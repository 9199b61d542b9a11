/* Opening and closing: the layer, its schedules and its activations. */
#include "layer/layer.h"

#include <stdio.h>
#include <string.h>

void mok_layer_config_init(mok_layer_config *config)
{
    if (config != NULL) {
        memset(config, 0, sizeof *config);
        config->struct_bytes = sizeof *config;
        config->arith = MOK_ARITH_TC16;
        config->activation = MOK_ACTIVATION_SWIGLU;
        config->weights = MOK_WEIGHTS_BF16;
    }
}

mok_status mok_expert_range(int64_t experts, int32_t ranks, int32_t rank, int64_t *begin,
                            int64_t *count)
{
    MOK_REQUIRE(begin != NULL && count != NULL, MOK_ERROR_ARGUMENT, "begin or count is NULL");
    MOK_REQUIRE(experts >= 0, MOK_ERROR_ARGUMENT, "experts is %lld, must be >= 0",
                (long long)experts);
    MOK_REQUIRE(ranks >= 1 && rank >= 0 && rank < ranks, MOK_ERROR_ARGUMENT,
                "rank %d is outside [0, %d)", rank, ranks);
    *begin = mok_experts_before(experts, ranks, rank);
    *count = mok_experts_before(experts, ranks, rank + 1) - *begin;
    return MOK_OK;
}

mok_status mok_layer_sizes_query(mok_layer_sizes *out, const mok_layer_config *config,
                                 int32_t ranks, int32_t rank, int32_t threads)
{
    MOK_REQUIRE(out != NULL && out->struct_bytes == sizeof *out, MOK_ERROR_ARGUMENT,
                "out is NULL or its struct_bytes is not %zu", sizeof *out);
    MOK_REQUIRE(threads >= 1 && threads <= 256, MOK_ERROR_ARGUMENT, "threads is %d, must be 1..256",
                threads);
    mok_shape shape;
    MOK_TRY(mok_shape_make(&shape, config, ranks, rank));
    mok_arena_layout arena;
    mok_workspace_layout workspace;
    mok_activations_layout activations;
    mok_schedule_layout schedule;
    (void)mok_arena_layout_make(&arena, &shape); /* mok_shape_make has seen that these fit */
    (void)mok_workspace_layout_make(&workspace, &shape);
    (void)mok_activations_layout_make(&activations, &shape);
    (void)mok_schedule_layout_make(&schedule, &shape);
    out->arena_bytes = arena.bytes;
    out->workspace_bytes = workspace.bytes;
    out->activations_bytes = activations.bytes;
    out->schedule_bytes = schedule.bytes;
    out->comm_bytes = mok_comm_bytes(mok_kernels_select(MOK_LEVEL_AUTO), threads);
    return MOK_OK;
}

/* ---- Open ---- */

/* What every rank must have alike, as plain words: a struct's padding says nothing. */
typedef struct identity {
    int64_t word[16];
} identity;

static identity identity_of(const mok_layer_config *config)
{
    uint32_t limit_bits = 0;
    if (config->activation == MOK_ACTIVATION_SWIGLU_CLAMPED) {
        memcpy(&limit_bits, &config->swiglu_limit, sizeof limit_bits);
    }
    const identity id = {{mok_version(), config->hidden, config->intermediate,
                          config->shared_intermediate, config->experts, config->slots,
                          config->max_tokens, config->capacity_rows, config->macrobatch_rows,
                          config->minibatch_rows, (int64_t)config->arith,
                          (int64_t)config->activation, limit_bits, (int64_t)config->weights, 0, 0}};
    return id;
}

static const char *const identity_names[] = {
    "version",         "hidden",         "intermediate", "shared_intermediate",
    "experts",         "slots",          "max_tokens",   "capacity_rows",
    "macrobatch_rows", "minibatch_rows", "arith",        "activation",
    "swiglu_limit",    "weights"};

/* Every rank reads all identities, so every rank finds the same first difference. */
static mok_status compare_identities(mok_comm *comm, const mok_layer_config *config)
{
    const identity own = identity_of(config);
    unsigned char *stage;
    MOK_TRY(mok_comm_stage(comm, &stage, sizeof own));
    memcpy(stage, &own, sizeof own);
    MOK_TRY(mok_comm_exchange(comm, MOK_PHASE_OPEN));
    identity first;
    memcpy(&first, mok_comm_staged(comm, 0), sizeof first);
    for (int32_t rank = 1; rank < comm->size; rank++) {
        identity other;
        memcpy(&other, mok_comm_staged(comm, rank), sizeof other);
        for (size_t i = 0; i < sizeof identity_names / sizeof identity_names[0]; i++) {
            MOK_REQUIRE(other.word[i] == first.word[i], MOK_ERROR_MISMATCH,
                        "config.%s is %lld on rank %d and %lld on rank 0", identity_names[i],
                        (long long)other.word[i], rank, (long long)first.word[i]);
        }
    }
    return MOK_OK;
}

static mok_arena arena_of(unsigned char *base, const mok_arena_layout *layout)
{
    mok_arena arena;
    arena.x = (uint16_t *)(void *)(base + layout->x);
    arena.dy = (uint16_t *)(void *)(base + layout->dy);
    arena.slots = (uint16_t *)(void *)(base + layout->slots);
    arena.router_weights = (float *)(void *)(base + layout->router_weights);
    arena.d_router_weights = (float *)(void *)(base + layout->d_router_weights);
    arena.routes[0] = (int32_t *)(void *)(base + layout->routes[0]);
    arena.routes[1] = (int32_t *)(void *)(base + layout->routes[1]);
    arena.tokens = (int64_t *)(void *)(base + layout->tokens);
    return arena;
}

static mok_status prepare(mok_layer **out, mok_comm *comm, const mok_layer_config *config)
{
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    mok_shape shape;
    MOK_TRY(mok_shape_make(&shape, config, comm->size, comm->rank));
    mok_layer *layer = mok_allocate(&comm->allocator, sizeof *layer);
    MOK_REQUIRE(layer != NULL, MOK_ERROR_MEMORY, "no memory for a layer");
    memset(layer, 0, sizeof *layer);
    layer->comm = comm;
    layer->config = *config;
    layer->shape = shape;
    (void)mok_arena_layout_make(&layer->arena_layout, &layer->shape);
    (void)mok_workspace_layout_make(&layer->workspace_layout, &layer->shape);
    (void)mok_activations_layout_make(&layer->activations_layout, &layer->shape);
    (void)mok_schedule_layout_make(&layer->schedule_layout, &layer->shape);
    *out = layer;
    layer->workspace = mok_allocate(&comm->allocator, layer->workspace_layout.bytes);
    MOK_REQUIRE(layer->workspace != NULL, MOK_ERROR_MEMORY,
                "no memory for a workspace of %zu bytes", layer->workspace_layout.bytes);
    return MOK_OK;
}

mok_status mok_layer_open(mok_layer **out, mok_comm *comm, const mok_layer_config *config)
{
    MOK_REQUIRE(comm != NULL, MOK_ERROR_ARGUMENT, "comm is NULL");
    mok_layer *layer = NULL;
    if (out != NULL) {
        *out = NULL;
    }
    mok_status status = prepare(out != NULL ? &layer : NULL, comm, config);
    status = mok_comm_agree_in(comm, status, MOK_PHASE_OPEN);
    if (status == MOK_OK) {
        status = compare_identities(comm, config);
    }
    if (status == MOK_OK) {
        status = mok_symmetric_allocate(comm, &layer->symmetric, layer->arena_layout.bytes,
                                        MOK_PHASE_OPEN);
    }
    if (status != MOK_OK) {
        mok_layer_close(&layer);
        return status;
    }
    for (int32_t rank = 0; rank < comm->size; rank++) {
        layer->arena[rank] = arena_of(layer->symmetric.peer[rank], &layer->arena_layout);
    }
    *out = layer;
    return MOK_OK;
}

void mok_layer_close(mok_layer **layer)
{
    if (layer == NULL || *layer == NULL) {
        return;
    }
    mok_layer *old = *layer;
    *layer = NULL;
    mok_symmetric_release(old->comm, &old->symmetric);
    mok_release(&old->comm->allocator, old->workspace, old->workspace_layout.bytes);
    mok_release(&old->comm->allocator, old, sizeof *old);
}

mok_status mok_layer_describe(const mok_layer *layer, char *buffer, size_t buffer_bytes)
{
    MOK_REQUIRE(layer != NULL && buffer != NULL && buffer_bytes > 0, MOK_ERROR_ARGUMENT,
                "layer or buffer is NULL, or buffer_bytes is 0");
    const mok_shape *shape = &layer->shape;
    (void)snprintf(
        buffer, buffer_bytes,
        "rank %d of %d: hidden %lld, intermediate %lld, shared %lld, experts %lld "
        "(%lld from %lld on here), slots %lld, class %s, level %s, threads %d, macrobatch %lld, "
        "minibatch %lld",
        shape->rank, shape->ranks, (long long)shape->hidden, (long long)shape->inner,
        (long long)shape->shared_inner, (long long)shape->experts, (long long)shape->expert_count,
        (long long)shape->expert_begin, (long long)shape->slots,
        mok_arith_string(layer->config.arith), mok_level_string(mok_comm_level(layer->comm)),
        layer->comm->threads, (long long)(shape->macro_blocks * MOK_ROW_BLOCK),
        (long long)(shape->mini_blocks * MOK_ROW_BLOCK));
    return MOK_OK;
}

void mok_layer_set_task_hook(mok_layer *layer, mok_task_hook hook, void *context)
{
    if (layer != NULL) {
        layer->hook = hook;
        layer->hook_context = context;
    }
}

/* ---- Activations ---- */

mok_status mok_activations_open(mok_activations **out, mok_layer *layer)
{
    MOK_REQUIRE(out != NULL && layer != NULL, MOK_ERROR_ARGUMENT, "out or layer is NULL");
    *out = NULL;
    const mok_allocator *allocator = &layer->comm->allocator;
    mok_activations *activations = mok_allocate(allocator, sizeof *activations);
    MOK_REQUIRE(activations != NULL, MOK_ERROR_MEMORY, "no memory for activations");
    activations->layer = layer;
    activations->stamp = 0;
    activations->memory = mok_allocate(allocator, layer->activations_layout.bytes);
    if (activations->memory == NULL) {
        mok_release(allocator, activations, sizeof *activations);
        return mok_fail(MOK_ERROR_MEMORY, "no memory for activations of %zu bytes",
                        layer->activations_layout.bytes);
    }
    *out = activations;
    return MOK_OK;
}

void mok_activations_close(mok_activations **activations)
{
    if (activations == NULL || *activations == NULL) {
        return;
    }
    mok_activations *old = *activations;
    *activations = NULL;
    const mok_allocator *allocator = &old->layer->comm->allocator;
    mok_release(allocator, old->memory, old->layer->activations_layout.bytes);
    mok_release(allocator, old, sizeof *old);
}
