/* Calls on an open layer: check what can be checked on the host, fill the kernels' parameters,
 * launch. */
#include <stdlib.h>
#include <string.h>

#include "cuda/layer.h"
#include "cuda/peers.h"
#include "layer/check.h"

static mok_status check_layer(const mok_cuda_layer *layer)
{
    MOK_REQUIRE(layer != NULL, MOK_ERROR_ARGUMENT, "layer is NULL");
    return MOK_OK;
}

/* ---- Schedule ---- */

static mok_status check_routes(const mok_cuda_layer *layer, const mok_tensor *routes)
{
    MOK_REQUIRE(routes != NULL, MOK_ERROR_ARGUMENT, "routes is NULL");
    for (int32_t r = 0; r < layer->own; r++) {
        const mok_shape *shape = &layer->rank[layer->first + r].shape;
        const mok_wanted wanted = {
            "routes", MOK_DTYPE_I32, MOK_DTYPE_I64, 2, {shape->max_tokens, shape->slots, 0}, true};
        MOK_TRY(mok_check_tensor(&routes[r], &wanted));
        MOK_REQUIRE(routes[r].dtype == routes[0].dtype, MOK_ERROR_SHAPE,
                    "routes[%d].dtype is %d, routes[0].dtype is %d: they must be alike", r,
                    (int)routes[r].dtype, (int)routes[0].dtype);
    }
    return MOK_OK;
}

static mok_sm90_list list_of(const mok_cuda_rank *rank)
{
    const mok_cuda_layout *at = &rank->layout;
    const mok_sm90_list list = {(mok_sm90_task *)(void *)mok_cuda_plan_at(rank, at->forward),
                                (mok_sm90_task *)(void *)mok_cuda_plan_at(rank, at->backward),
                                (mok_sm90_task *)(void *)mok_cuda_plan_at(rank, at->comm),
                                (int32_t *)(void *)mok_cuda_plan_at(rank, at->list_count)};
    return list;
}

void mok_cuda_fill_plan(mok_sm90_schedule *p, mok_cuda_layer *layer)
{
    memset(p, 0, sizeof *p);
    p->ranks = layer->cuda.ranks;
    p->experts = (int32_t)layer->config.experts;
    p->slots = (int32_t)layer->config.slots;
    p->chunk_count = (uint32_t *)(void *)(layer->common + layer->common_layout.chunk_count);
    p->total = (uint32_t *)(void *)(layer->common + layer->common_layout.total);
    p->abort = mok_cuda_abort_flag(layer);
    p->fault = layer->fault;
    for (int32_t r = 0; r < p->ranks; r++) {
        const mok_cuda_rank *rank = &layer->rank[r];
        const mok_cuda_layout *at = &rank->layout;
        mok_sm90_schedule_rank *to = &p->rank[r];
        to->shape = rank->shape;
        to->tokens = rank->tokens;
        to->routes_out = (int32_t *)(void *)mok_cuda_plan_at(rank, at->routes);
        to->peer_rank = (int32_t *)(void *)mok_cuda_plan_at(rank, at->peer_rank);
        to->peer_slot = (int32_t *)(void *)mok_cuda_plan_at(rank, at->peer_slot);
        to->block_expert = (int32_t *)(void *)mok_cuda_plan_at(rank, at->block_expert);
        to->segment_begin = (int64_t *)(void *)mok_cuda_plan_at(rank, at->segment_begin);
        to->segment_count = (int64_t *)(void *)mok_cuda_plan_at(rank, at->segment_count);
        to->row_count = (int64_t *)(void *)mok_cuda_plan_at(rank, at->row_count);
        to->list = list_of(rank);
    }
}

static void fill_schedule(mok_sm90_schedule *p, mok_cuda_layer *layer, const mok_tensor *routes,
                          const int64_t tokens[MOK_CUDA_MAX_RANKS])
{
    mok_cuda_fill_plan(p, layer);
    p->wide = routes[0].dtype == MOK_DTYPE_I64 ? 1 : 0;
    for (int32_t r = 0; r < p->ranks; r++) {
        mok_sm90_schedule_rank *to = &p->rank[r];
        to->tokens = tokens[r];
        if (layer->peers != NULL) {
            to->routes = layer->rank[r].memory + layer->rank[r].layout.sent_routes;
            to->routes_stride = layer->config.slots;
        } else {
            to->routes = routes[r].data;
            to->routes_stride = routes[r].stride[0];
        }
        p->chunk_begin[r + 1] =
            p->chunk_begin[r] + (int32_t)mok_cuda_chunks_of(to->tokens, layer->config.slots);
    }
}

static mok_status launch_schedule(mok_sm90_schedule *p, cudaStream_t stream)
{
    const void *functions[4];
    mok_sm90_schedule_functions(functions);
    void *arguments[] = {p};
    const unsigned chunk_blocks = ((unsigned)p->chunk_begin[p->ranks] + 3) / 4;
    const size_t shared = 4 * (size_t)p->experts * sizeof(uint32_t);
    const dim3 narrow = {128, 1, 1};
    const dim3 wide = {256, 1, 1};
    const dim3 chunks = {chunk_blocks, 1, 1};
    const dim3 experts = {(unsigned)p->experts, 1, 1};
    const dim3 ranks = {(unsigned)p->ranks, 1, 1};
    const dim3 plans = {128 / (unsigned)p->ranks + 1, (unsigned)p->ranks, 1};
    if (chunk_blocks > 0) {
        MOK_CUDA_TRY(cudaLaunchKernel(functions[0], chunks, narrow, arguments, shared, stream));
    }
    MOK_CUDA_TRY(cudaLaunchKernel(functions[1], experts, wide, arguments, 0, stream));
    MOK_CUDA_TRY(cudaLaunchKernel(functions[2], ranks, wide, arguments, 0, stream));
    if (chunk_blocks > 0) {
        MOK_CUDA_TRY(cudaLaunchKernel(functions[3], chunks, narrow, arguments, shared, stream));
    }
    MOK_CUDA_TRY(
        cudaLaunchKernel(mok_sm90_plan_forward_function(), plans, narrow, arguments, 0, stream));
    return MOK_OK;
}

/* Every process builds every rank's schedule, from copies of all routes: none waits for another's
 * result, and what is wrong with one rank's routes is seen by all. Nobody reads the copies any more
 * when all have met, and all are there when they have met again. */
static mok_status share_routes(mok_cuda_layer *layer, const mok_tensor *routes, cudaStream_t stream)
{
    const size_t at = layer->rank[layer->first].layout.sent_routes;
    if (layer->peers == NULL) {
        return MOK_OK;
    }
    MOK_TRY(mok_cuda_peers_meet(layer, MOK_PHASE_SCHEDULE, stream));
    MOK_TRY(mok_cuda_peers_send(layer, at, routes, stream));
    return mok_cuda_peers_meet(layer, MOK_PHASE_SCHEDULE, stream);
}

static mok_status build_on_device(mok_cuda_layer *layer, const mok_tensor *routes,
                                  const int64_t tokens[MOK_CUDA_MAX_RANKS], cudaStream_t stream)
{
    mok_sm90_schedule p;
    MOK_TRY(share_routes(layer, routes, stream));
    fill_schedule(&p, layer, routes, tokens);
    return launch_schedule(&p, stream);
}

static mok_status count_tokens(mok_cuda_layer *layer, const mok_tensor *routes,
                               int64_t tokens[MOK_CUDA_MAX_RANKS])
{
    const mok_status mine = check_routes(layer, routes);
    if (layer->peers != NULL) {
        return mok_cuda_peers_count(layer, mine, mine == MOK_OK ? routes[0].shape[0] : 0,
                                    mine == MOK_OK ? routes[0].dtype : MOK_DTYPE_I32, tokens);
    }
    for (int32_t r = 0; r < layer->own && mine == MOK_OK; r++) {
        tokens[r] = routes[r].shape[0];
    }
    return mine;
}

mok_status mok_cuda_schedule_build(mok_cuda_layer *layer, const mok_tensor *routes, void *stream)
{
    int64_t tokens[MOK_CUDA_MAX_RANKS] = {0};
    MOK_TRY(check_layer(layer));
    MOK_TRY(count_tokens(layer, routes, tokens));
    int previous = 0;
    MOK_TRY(mok_cuda_enter(layer, &previous));
    const mok_status status =
        mok_cuda_leave(build_on_device(layer, routes, tokens, stream), previous);
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        layer->rank[r].tokens = status == MOK_OK ? tokens[r] : -1;
    }
    layer->progress = status == MOK_OK ? MOK_CUDA_SCHEDULED : MOK_CUDA_NOTHING;
    return status;
}

/* ---- Forward ---- */

/* The copy engine and 16-byte accesses need more than element alignment. */
mok_status mok_cuda_check_aligned(const mok_tensor *tensor, const char *name, int32_t rank)
{
    bool aligned = (uintptr_t)tensor->data % 16 == 0;
    for (int32_t axis = 0; axis + 1 < tensor->rank; axis++) {
        aligned = aligned && (tensor->shape[axis] <= 1 || tensor->stride[axis] % 8 == 0);
    }
    MOK_REQUIRE(aligned, MOK_ERROR_SHAPE, "io[%d].%s: address and rows must be aligned to 16 bytes",
                rank, name);
    return MOK_OK;
}

static mok_status check_weights(const mok_shape *shape, const mok_weights_view *weights,
                                int32_t rank)
{
    MOK_TRY(mok_weights_check(shape, weights));
    MOK_TRY(mok_cuda_check_aligned(&weights->gate, "weights.gate", rank));
    MOK_TRY(mok_cuda_check_aligned(&weights->up, "weights.up", rank));
    MOK_TRY(mok_cuda_check_aligned(&weights->down, "weights.down", rank));
    if (shape->shared_inner > 0) {
        MOK_TRY(mok_cuda_check_aligned(&weights->shared_gate, "weights.shared_gate", rank));
        MOK_TRY(mok_cuda_check_aligned(&weights->shared_up, "weights.shared_up", rank));
        MOK_TRY(mok_cuda_check_aligned(&weights->shared_down, "weights.shared_down", rank));
    }
    return MOK_OK;
}

mok_status mok_cuda_check_inputs(const mok_cuda_layer *layer, const mok_cuda_rank_io *io, int32_t r)
{
    const mok_cuda_rank *rank = &layer->rank[r];
    const mok_shape *shape = &rank->shape;
    MOK_REQUIRE(rank->tokens >= 0, MOK_ERROR_STATE, "no schedule was built");
    const mok_wanted rows = {"x", MOK_DTYPE_BF16, 0, 2, {rank->tokens, shape->hidden, 0}, false};
    const mok_wanted weights = {
        "router_weights", MOK_DTYPE_F32, 0, 2, {rank->tokens, shape->slots, 0}, false};
    MOK_TRY(mok_check_tensor(&io->x, &rows));
    MOK_TRY(mok_check_tensor(&io->router_weights, &weights));
    MOK_TRY(mok_cuda_check_aligned(&io->x, "x", r));
    return check_weights(shape, &io->weights, r);
}

static mok_status check_io(const mok_cuda_layer *layer, const mok_cuda_rank_io *io, int32_t r)
{
    const mok_shape *shape = &layer->rank[r].shape;
    MOK_TRY(mok_cuda_check_inputs(layer, io, r));
    const mok_wanted out = {"out", MOK_DTYPE_BF16, 0, 2, {layer->rank[r].tokens, shape->hidden, 0},
                            false};
    MOK_TRY(mok_check_tensor(&io->out, &out));
    MOK_TRY(mok_cuda_check_aligned(&io->out, "out", r));
    const mok_weights_view *w = &io->weights;
    const mok_named_tensor tensors[] = {
        {"out", &io->out, true},
        {"x", &io->x, false},
        {"router_weights", &io->router_weights, false},
        {"weights.gate", &w->gate, false},
        {"weights.up", &w->up, false},
        {"weights.down", &w->down, false},
        {"weights.shared_gate", &w->shared_gate, false},
        {"weights.shared_up", &w->shared_up, false},
        {"weights.shared_down", &w->shared_down, false},
    };
    return mok_check_overlap(tensors, shape->shared_inner > 0 ? 9 : 6);
}

static uint32_t *word_at(const mok_cuda_rank *rank, size_t offset)
{
    return (uint32_t *)(void *)(rank->memory + offset);
}

static void fill_rank(mok_sm90_rank *to, const mok_cuda_rank *rank, const mok_cuda_rank_io *io)
{
    const mok_cuda_layout *at = &rank->layout;
    to->shape = rank->shape;
    to->tokens = rank->tokens;
    to->peer_rank = (const int32_t *)(const void *)mok_cuda_plan_at(rank, at->peer_rank);
    to->peer_slot = (const int32_t *)(const void *)mok_cuda_plan_at(rank, at->peer_slot);
    to->block_expert = (const int32_t *)(const void *)mok_cuda_plan_at(rank, at->block_expert);
    to->segment_begin = (const int64_t *)(const void *)mok_cuda_plan_at(rank, at->segment_begin);
    to->segment_count = (const int64_t *)(const void *)mok_cuda_plan_at(rank, at->segment_count);
    to->row_count = (const int64_t *)(const void *)mok_cuda_plan_at(rank, at->row_count);
    to->router_weights = io->router_weights.data;
    to->router_stride = io->router_weights.stride[0];
    to->routes = (const int32_t *)(const void *)mok_cuda_plan_at(rank, at->routes);
    to->ring_h = mok_cuda_bf16_at(rank, at->ring_h);
    to->shared_h = mok_cuda_bf16_at(rank, at->shared_h);
    to->shared_y = mok_cuda_bf16_at(rank, at->shared_y);
    to->ring_gu = mok_cuda_bf16_at(rank, at->ring_gu);
    to->shared_gu = mok_cuda_bf16_at(rank, at->shared_gu);
    to->ring_rows = rank->shape.macro_blocks * MOK_ROW_BLOCK;
    to->shared_rows = rank->shape.max_tokens;
    to->slots = mok_cuda_bf16_at(rank, at->slots);
    to->list = list_of(rank);
    to->counters = word_at(rank, at->counters);
    to->next_compute = word_at(rank, at->next_compute);
    to->done = word_at(rank, at->done);
    to->left = word_at(rank, at->left);
    to->epoch = word_at(rank, at->epoch);
    to->slot = word_at(rank, at->slot);
}

/* What a rank needs of another process's: what it sends, where its results go, where it waits. All
 * ranks' router weights are looked at before a pass, so that all see what is wrong with one's. */
static void fill_peer(mok_sm90_rank *to, const mok_cuda_rank *rank)
{
    const mok_cuda_layout *at = &rank->layout;
    to->shape = rank->shape;
    to->tokens = rank->tokens;
    to->routes = (const int32_t *)(const void *)mok_cuda_plan_at(rank, at->routes);
    to->send = mok_cuda_bf16_at(rank, at->sent);
    to->send_stride = rank->shape.hidden;
    to->router_weights = (const float *)(const void *)(rank->memory + at->sent_weights);
    to->router_stride = rank->shape.slots;
    to->d_router = (float *)(void *)(rank->memory + at->received_weights);
    to->d_router_stride = rank->shape.slots;
    to->slots = mok_cuda_bf16_at(rank, at->slots);
    to->slot = word_at(rank, at->slot);
}

static mok_status map_weights(CUtensorMap *out, mok_encode_tiled encode, const mok_tensor *tensor,
                              int32_t box_rows)
{
    const bool deep = tensor->rank == 3;
    return mok_device_map(out, encode, tensor->data, tensor->shape[deep ? 2 : 1],
                          tensor->shape[deep ? 1 : 0], tensor->stride[deep ? 1 : 0],
                          deep ? tensor->shape[0] : 1, deep ? tensor->stride[0] : 0, box_rows);
}

static mok_status fill_maps(CUtensorMap map[MOK_SM90_MAPS], mok_encode_tiled encode,
                            const mok_cuda_rank *rank, const mok_cuda_rank_io *io)
{
    const mok_shape *shape = &rank->shape;
    const mok_cuda_layout *at = &rank->layout;
    const mok_weights_view *weights = &io->weights;
    const int64_t ring = shape->macro_blocks * MOK_ROW_BLOCK;
    const int64_t h = shape->hidden;
    const int64_t i = shape->inner;
    MOK_TRY(mok_device_map(&map[MOK_MAP_X], encode, mok_cuda_bf16_at(rank, at->ring_x), h, ring, h,
                           0, 0, 128));
    MOK_TRY(mok_device_map(&map[MOK_MAP_H], encode, mok_cuda_bf16_at(rank, at->ring_h), i, ring, i,
                           0, 0, 128));
    MOK_TRY(mok_device_map(&map[MOK_MAP_GU], encode, mok_cuda_bf16_at(rank, at->ring_gu), i, ring,
                           i, 2, ring * i, 128));
    MOK_TRY(map_weights(&map[MOK_MAP_GATE], encode, &weights->gate, 128));
    MOK_TRY(map_weights(&map[MOK_MAP_UP], encode, &weights->up, 128));
    MOK_TRY(map_weights(&map[MOK_MAP_DOWN], encode, &weights->down, 256));
    if (shape->shared_inner == 0) {
        return MOK_OK;
    }
    MOK_TRY(mok_device_map(&map[MOK_MAP_SHARED_X], encode, io->x.data, h, rank->tokens,
                           io->x.stride[0], 0, 0, 128));
    MOK_TRY(mok_device_map(&map[MOK_MAP_SHARED_H], encode, mok_cuda_bf16_at(rank, at->shared_h),
                           shape->shared_inner, shape->max_tokens, shape->shared_inner, 0, 0, 128));
    const int64_t shared = shape->shared_inner;
    MOK_TRY(mok_device_map(&map[MOK_MAP_SHARED_GU], encode, mok_cuda_bf16_at(rank, at->shared_gu),
                           shared, shape->max_tokens, shared, 2, shape->max_tokens * shared, 128));
    MOK_TRY(map_weights(&map[MOK_MAP_SHARED_GATE], encode, &weights->shared_gate, 128));
    MOK_TRY(map_weights(&map[MOK_MAP_SHARED_UP], encode, &weights->shared_up, 128));
    return map_weights(&map[MOK_MAP_SHARED_DOWN], encode, &weights->shared_down, 256);
}

void mok_cuda_fill_pass(mok_sm90_pass *p, mok_cuda_layer *layer, const mok_cuda_rank_io *io)
{
    const float *silu = (const float *)(const void *)(layer->common + layer->common_layout.silu);
    memset(p, 0, sizeof *p);
    p->ranks = layer->cuda.ranks;
    p->blocks_per_rank = layer->blocks_per_rank;
    p->comm_blocks = layer->comm_blocks;
    p->stalled_rank = layer->cuda.stalled_rank;
    p->clamped = layer->config.activation == MOK_ACTIVATION_SWIGLU_CLAMPED ? 1 : 0;
    p->limit = layer->config.swiglu_limit;
    p->silu_limit = layer->silu_limit;
    p->dsilu_limit = layer->dsilu_limit;
    p->silu = silu;
    p->slopes = silu + 65536;
    p->parts = silu + 3 * 65536;
    p->deadline = mok_cuda_deadline(layer);
    p->trace = layer->trace;
    p->trace_head = layer->trace_head;
    p->trace_events = layer->cuda.trace_events;
    p->first_rank = layer->first;
    for (int32_t r = 0; r < p->ranks; r++) {
        if (layer->peers != NULL) {
            fill_peer(&p->rank[r], &layer->rank[r]);
        }
        if (mok_cuda_owns(layer, r)) {
            fill_rank(&p->rank[r], &layer->rank[r], mok_cuda_io_of(layer, io, r));
        }
    }
}

static mok_status fill_forward(mok_sm90_pass *p, mok_cuda_layer *layer, const mok_cuda_rank_io *io)
{
    mok_cuda_fill_pass(p, layer, io);
    p->phase = MOK_SM90_PHASE_FORWARD;
    for (int32_t r = layer->first; r < layer->first + layer->own; r++) {
        const mok_cuda_rank_io *mine = mok_cuda_io_of(layer, io, r);
        mok_sm90_rank *to = &p->rank[r];
        to->send = mine->x.data;
        to->send_stride = mine->x.stride[0];
        to->ring_in = mok_cuda_bf16_at(&layer->rank[r], layer->rank[r].layout.ring_x);
        to->out = mine->out.data;
        to->out_stride = mine->out.stride[0];
        MOK_TRY(fill_maps(p->map[r], layer->encode, &layer->rank[r], mine));
    }
    return MOK_OK;
}

mok_status mok_cuda_launch_check(const mok_sm90_pass *pass, int32_t slots, cudaStream_t stream)
{
    mok_sm90_check p;
    memset(&p, 0, sizeof p);
    p.slots = slots;
    p.abort = pass->deadline.abort;
    p.fault = pass->deadline.fault;
    for (int32_t r = 0; r < pass->ranks; r++) {
        p.rank[r].tokens = pass->rank[r].tokens;
        p.rank[r].routes = pass->rank[r].routes;
        p.rank[r].router_weights = pass->rank[r].router_weights;
        p.rank[r].router_stride = pass->rank[r].router_stride;
    }
    void *arguments[] = {&p};
    const dim3 blocks = {16, (unsigned)pass->ranks, 1};
    const dim3 threads = {256, 1, 1};
    MOK_CUDA_TRY(
        cudaLaunchKernel(mok_sm90_check_weights_function(), blocks, threads, arguments, 0, stream));
    return MOK_OK;
}

mok_status mok_cuda_launch_pass(const void *function, mok_sm90_pass *p, int32_t own,
                                cudaStream_t stream)
{
    cudaLaunchAttribute cooperative;
    memset(&cooperative, 0, sizeof cooperative);
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    cudaLaunchConfig_t launch;
    memset(&launch, 0, sizeof launch);
    launch.gridDim.x = (unsigned)(own * p->blocks_per_rank);
    launch.gridDim.y = launch.gridDim.z = 1;
    launch.blockDim.x = MOK_SM90_THREADS;
    launch.blockDim.y = launch.blockDim.z = 1;
    launch.dynamicSmemBytes = (size_t)mok_sm90_forward_shared_bytes();
    launch.stream = stream;
    launch.attrs = &cooperative;
    launch.numAttrs = 1;
    void *arguments[] = {p};
    MOK_CUDA_TRY(cudaLaunchKernelExC(&launch, function, arguments));
    return MOK_OK;
}

static mok_status forward_on_device(mok_cuda_layer *layer, const mok_cuda_rank_io *io,
                                    cudaStream_t stream)
{
    mok_sm90_pass p;
    MOK_TRY(fill_forward(&p, layer, io));
    if (layer->peers != NULL) {
        const mok_cuda_layout *at = &layer->rank[layer->first].layout;
        MOK_TRY(mok_cuda_peers_send(layer, at->sent, &io->x, stream));
        MOK_TRY(mok_cuda_peers_send(layer, at->sent_weights, &io->router_weights, stream));
        MOK_TRY(mok_cuda_peers_meet(layer, MOK_PHASE_FORWARD, stream));
    }
    MOK_TRY(mok_cuda_launch_check(&p, (int32_t)layer->config.slots, stream));
    MOK_TRY(mok_cuda_launch_pass(mok_sm90_forward_function(), &p, layer->own, stream));
    layer->progress = MOK_CUDA_FORWARDED;
    return MOK_OK;
}

mok_status mok_cuda_forward(mok_cuda_layer *layer, const mok_cuda_rank_io *io, void *stream)
{
    MOK_TRY(check_layer(layer));
    MOK_REQUIRE(io != NULL, MOK_ERROR_ARGUMENT, "io is NULL");
    for (int32_t r = layer->first; r < layer->first + layer->own; r++) {
        MOK_TRY(check_io(layer, mok_cuda_io_of(layer, io, r), r));
    }
    int previous = 0;
    MOK_TRY(mok_cuda_enter(layer, &previous));
    return mok_cuda_leave(forward_on_device(layer, io, stream), previous);
}

/* ---- Faults and copies ---- */

static mok_status fault_status(const mok_sm90_fault *fault, int64_t slots)
{
    const long long token = fault->task_idx / slots;
    const long long slot = fault->task_idx % slots;
    switch (fault->state) {
    case MOK_SM90_FAULT_ROUTE:
        return mok_fail(MOK_ERROR_ROUTE, "rank %d: routes[%lld][%lld] is %lld, must be -1..%lld",
                        fault->rank, token, slot, (long long)fault->value,
                        (long long)fault->limit - 1);
    case MOK_SM90_FAULT_CAPACITY:
        return mok_fail(MOK_ERROR_CAPACITY, "rank %d needs %lld rows, the layer has %lld",
                        fault->rank, (long long)fault->value, (long long)fault->limit);
    case MOK_SM90_FAULT_VALUE:
        return mok_fail(MOK_ERROR_VALUE, "rank %d: router_weights[%lld][%lld] is not finite",
                        fault->rank, token, slot);
    default:
        return mok_fail(MOK_ERROR_PEER, "rank %d waited %lld ms for rank %d in phase %s, task %lld",
                        fault->rank, (long long)fault->waited_ms, fault->peer,
                        mok_phase_string((mok_phase)fault->phase), (long long)fault->task_idx);
    }
}

mok_status mok_cuda_fault_read(mok_cuda_layer *layer, mok_fault *out)
{
    MOK_TRY(check_layer(layer));
    MOK_REQUIRE(out != NULL && out->struct_bytes == sizeof *out, MOK_ERROR_ARGUMENT,
                "out is NULL or out->struct_bytes is not %zu", sizeof *out);
    const mok_sm90_fault fault = *(volatile mok_sm90_fault *)layer->fault;
    out->rank = fault.state != 0 ? fault.rank : -1;
    out->peer = fault.state != 0 ? fault.peer : -1;
    out->phase = (mok_phase)fault.phase;
    out->task_idx = fault.task_idx;
    out->waited_ms = fault.waited_ms;
    return fault.state != 0 ? fault_status(&fault, layer->config.slots) : MOK_OK;
}

mok_status mok_cuda_fault_clear(mok_cuda_layer *layer)
{
    MOK_TRY(check_layer(layer));
    MOK_REQUIRE(layer->fault->state != MOK_SM90_FAULT_PEER, MOK_ERROR_STATE,
                "a rank did not arrive: the layer cannot go on, close it");
    int previous = 0;
    MOK_TRY(mok_cuda_enter(layer, &previous));
    cudaError_t error = cudaDeviceSynchronize();
    if (layer->peers != NULL) { /* nobody's kernels still look at what failed */
        const mok_status met = mok_comm_barrier(layer->peers->comm);
        if (met != MOK_OK) {
            return mok_cuda_leave(met, previous);
        }
    }
    if (error == cudaSuccess) {
        error = cudaMemset(mok_cuda_abort_flag(layer), 0, sizeof(uint32_t));
    }
    memset(layer->fault, 0, sizeof *layer->fault);
    layer->progress = MOK_CUDA_NOTHING;
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        layer->rank[r].tokens = -1;
    }
    return mok_cuda_leave(
        error == cudaSuccess ? MOK_OK : mok_fail(MOK_ERROR_DEVICE, "%s", cudaGetErrorString(error)),
        previous);
}

static mok_status copy_schedule(const mok_cuda_rank *rank, int64_t *row_count, int32_t *peer_rank,
                                int32_t *peer_slot, int64_t *counts)
{
    const mok_cuda_layout *at = &rank->layout;
    const size_t rows = (size_t)(rank->shape.capacity_blocks * MOK_ROW_BLOCK);
    const struct {
        void *to;
        size_t from, bytes;
    } parts[] = {
        {row_count, at->row_count, sizeof(int64_t)},
        {peer_rank, at->peer_rank, rows * sizeof(int32_t)},
        {peer_slot, at->peer_slot, rows * sizeof(int32_t)},
        {counts, at->segment_count, (size_t)rank->shape.expert_count * sizeof(int64_t)},
    };
    MOK_CUDA_TRY(cudaDeviceSynchronize());
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].to != NULL) {
            const unsigned char *from =
                parts[i].from >= mok_cuda_plan_begin(at) && parts[i].from < at->counters
                    ? mok_cuda_plan_at(rank, parts[i].from)
                    : rank->memory + parts[i].from;
            MOK_CUDA_TRY(cudaMemcpy(parts[i].to, from, parts[i].bytes, cudaMemcpyDeviceToHost));
        }
    }
    return MOK_OK;
}

mok_status mok_cuda_schedule_copy(mok_cuda_layer *layer, int32_t rank, int64_t *row_count,
                                  int32_t *peer_rank, int32_t *peer_slot, int64_t *counts)
{
    MOK_TRY(check_layer(layer));
    MOK_REQUIRE(rank >= 0 && rank < layer->cuda.ranks, MOK_ERROR_ARGUMENT,
                "rank is %d, must be 0..%d", rank, layer->cuda.ranks - 1);
    int previous = 0;
    MOK_TRY(mok_cuda_enter(layer, &previous));
    return mok_cuda_leave(
        copy_schedule(&layer->rank[rank], row_count, peer_rank, peer_slot, counts), previous);
}
