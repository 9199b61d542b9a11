/* Opening and closing a layer on a device: memory, self-test, the shape of the launch. */
#include "cuda/layer.h"
#include "cuda/peers.h"

#include <stdlib.h>
#include <string.h>

#include "numerics/exp.h"

_Static_assert(MOK_SM90_MAX_RANKS == MOK_CUDA_MAX_RANKS, "kernel parameters hold every rank");
_Static_assert(MOK_SM90_MAX_EXPERTS == MOK_CUDA_MAX_EXPERTS, "one limit");
_Static_assert(MOK_SM90_PHASE_SCHEDULE == (int)MOK_PHASE_SCHEDULE, "phases are the library's");
_Static_assert(MOK_SM90_PHASE_FORWARD == (int)MOK_PHASE_FORWARD, "phases are the library's");
_Static_assert(MOK_SM90_PHASE_BACKWARD == (int)MOK_PHASE_BACKWARD, "phases are the library's");
_Static_assert(MOK_SM90_PHASE_FOLD == (int)MOK_PHASE_FOLD, "phases are the library's");
_Static_assert(MOK_SM90_FAULT_PEER == (int)MOK_ERROR_PEER, "fault states are statuses");
_Static_assert(MOK_SM90_FAULT_ROUTE == (int)MOK_ERROR_ROUTE, "fault states are statuses");
_Static_assert(MOK_SM90_FAULT_CAPACITY == (int)MOK_ERROR_CAPACITY, "fault states are statuses");
_Static_assert(MOK_SM90_FAULT_VALUE == (int)MOK_ERROR_VALUE, "fault states are statuses");
_Static_assert(sizeof(mok_sm90_pass) <= 32764, "kernel parameters have a limit");

void mok_cuda_config_init(mok_cuda_config *config)
{
    if (config != NULL) {
        memset(config, 0, sizeof *config);
        config->struct_bytes = sizeof *config;
        config->ranks = 1;
        config->timeout_ms = 10000;
        config->stalled_rank = -1;
    }
}

mok_status mok_cuda_enter(const mok_cuda_layer *layer, int *previous)
{
    MOK_CUDA_TRY(cudaGetDevice(previous));
    MOK_CUDA_TRY(cudaSetDevice(layer->cuda.device));
    return MOK_OK;
}

mok_status mok_cuda_leave(mok_status status, int previous)
{
    const cudaError_t error = cudaSetDevice(previous);
    if (status == MOK_OK && error != cudaSuccess) {
        return mok_fail(MOK_ERROR_DEVICE, "cudaSetDevice: %s", cudaGetErrorString(error));
    }
    return status;
}

static mok_status check_size(const mok_cuda_config *cuda)
{
    MOK_REQUIRE(cuda != NULL, MOK_ERROR_ARGUMENT, "cuda is NULL");
    MOK_REQUIRE(cuda->struct_bytes == sizeof *cuda, MOK_ERROR_ARGUMENT,
                "cuda.struct_bytes is %zu, must be %zu", cuda->struct_bytes, sizeof *cuda);
    return MOK_OK;
}

static mok_status check_config(const mok_layer_config *config, const mok_cuda_config *cuda)
{
    MOK_TRY(check_size(cuda));
    MOK_REQUIRE(cuda->ranks >= 1 && cuda->ranks <= MOK_CUDA_MAX_RANKS, MOK_ERROR_ARGUMENT,
                "cuda.ranks is %d, must be 1..%d", cuda->ranks, MOK_CUDA_MAX_RANKS);
    MOK_REQUIRE(cuda->timeout_ms >= 1 && cuda->timeout_ms <= 86400000, MOK_ERROR_ARGUMENT,
                "cuda.timeout_ms is %d, must be 1..86400000", cuda->timeout_ms);
    MOK_REQUIRE(cuda->stalled_rank >= -1 && cuda->stalled_rank < cuda->ranks, MOK_ERROR_ARGUMENT,
                "cuda.stalled_rank is %d, must be -1..%d", cuda->stalled_rank, cuda->ranks - 1);
    MOK_REQUIRE(cuda->trace_events >= 0 && cuda->trace_events <= 65536, MOK_ERROR_ARGUMENT,
                "cuda.trace_events is %d, must be 0..65536", cuda->trace_events);
    mok_shape shape;
    MOK_TRY(mok_shape_make(&shape, config, cuda->ranks, 0));
    MOK_REQUIRE(config->arith == MOK_ARITH_TC16, MOK_ERROR_UNSUPPORTED,
                "config.arith: the device computes in class tc16 only");
    MOK_REQUIRE(config->experts <= MOK_CUDA_MAX_EXPERTS, MOK_ERROR_SHAPE,
                "config.experts is %lld, must be 1..%d on the device", (long long)config->experts,
                MOK_CUDA_MAX_EXPERTS);
    return MOK_OK;
}

/* One block an SM: a rank gets an equal share, and at least one block must compute beside the
 * communication. */
static mok_status cut_grid(mok_cuda_layer *layer, const struct cudaDeviceProp *device)
{
    layer->blocks_per_rank = device->multiProcessorCount / layer->own;
    MOK_REQUIRE(layer->blocks_per_rank >= 2, MOK_ERROR_DEVICE,
                "%d ranks need %d multiprocessors, the device has %d", layer->own, 2 * layer->own,
                device->multiProcessorCount);
    const int32_t most = layer->blocks_per_rank - 1;
    const int32_t otherwise = layer->blocks_per_rank / 8 > 0 ? layer->blocks_per_rank / 8 : 1;
    layer->comm_blocks = layer->cuda.comm_blocks != 0 ? layer->cuda.comm_blocks : otherwise;
    MOK_REQUIRE(layer->comm_blocks >= 1 && layer->comm_blocks <= most, MOK_ERROR_ARGUMENT,
                "cuda.comm_blocks is %d, must be 1..%d", layer->cuda.comm_blocks, most);
    return MOK_OK;
}

static mok_status check_device(mok_cuda_layer *layer)
{
    struct cudaDeviceProp device;
    MOK_CUDA_TRY(cudaGetDeviceProperties(&device, layer->cuda.device));
    MOK_REQUIRE(device.major == 9 && device.minor == 0, MOK_ERROR_DEVICE,
                "device %d (%s) has compute capability %d.%d, this version needs 9.0",
                layer->cuda.device, device.name, device.major, device.minor);
    MOK_REQUIRE(device.cooperativeLaunch != 0, MOK_ERROR_DEVICE,
                "device %d has no cooperative launch", layer->cuda.device);
    MOK_TRY(cut_grid(layer, &device));
    MOK_TRY(mok_device_encoder(&layer->encode));
    const void *passes[] = {mok_sm90_forward_function(), mok_sm90_backward_function()};
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        MOK_CUDA_TRY(cudaFuncSetAttribute(passes[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          mok_sm90_forward_shared_bytes()));
    }
    return MOK_OK;
}

static mok_status take_trace(mok_cuda_layer *layer)
{
    const size_t blocks = (size_t)layer->own * (size_t)layer->blocks_per_rank;
    const size_t events =
        blocks * MOK_SM90_TRACE_ROLES * (size_t)layer->cuda.trace_events * sizeof(mok_sm90_event);
    const size_t heads = blocks * sizeof(mok_sm90_trace_head);
    void *memory = NULL;
    MOK_CUDA_TRY(cudaMalloc(&memory, events));
    layer->trace = memory;
    MOK_CUDA_TRY(cudaMalloc(&memory, heads));
    layer->trace_head = memory;
    MOK_CUDA_TRY(cudaMemset(layer->trace_head, 0, heads));
    layer->bytes += events + heads;
    return MOK_OK;
}

static mok_status lay_out_ranks(mok_cuda_layer *layer)
{
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        mok_cuda_rank *rank = &layer->rank[r];
        rank->tokens = -1;
        MOK_TRY(mok_cuda_shape_make(&rank->shape, &layer->config, layer->cuda.ranks, r,
                                    layer->blocks_per_rank));
        MOK_REQUIRE(mok_cuda_layout_make(&rank->layout, &rank->shape, layer->cuda.forward_only,
                                         layer->peers != NULL),
                    MOK_ERROR_MEMORY, "rank %d needs more bytes than an address can name", r);
    }
    return MOK_OK;
}

/* Of virtual ranks. */
static mok_status take_ranks(mok_cuda_layer *layer)
{
    void *memory = NULL;
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        mok_cuda_rank *rank = &layer->rank[r];
        MOK_CUDA_TRY(cudaMalloc(&memory, rank->layout.bytes));
        rank->memory = memory;
        rank->plan = rank->memory + mok_cuda_plan_begin(&rank->layout);
        layer->bytes += rank->layout.bytes;
        MOK_CUDA_TRY(cudaMemset(rank->memory + rank->layout.words, 0,
                                rank->layout.bytes - rank->layout.words));
    }
    return MOK_OK;
}

/* Schedules of ranks in other processes. */
static mok_status take_plans(mok_cuda_layer *layer)
{
    void *memory = NULL;
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        mok_cuda_rank *rank = &layer->rank[r];
        const size_t bytes = mok_cuda_plan_bytes(&rank->layout);
        if (mok_cuda_owns(layer, r)) {
            rank->plan = rank->memory + mok_cuda_plan_begin(&rank->layout);
            continue;
        }
        MOK_CUDA_TRY(cudaMalloc(&memory, bytes));
        rank->plan = memory;
        layer->bytes += bytes;
        MOK_CUDA_TRY(cudaMemset(rank->plan, 0, bytes));
    }
    return MOK_OK;
}

static mok_status take_common(mok_cuda_layer *layer)
{
    void *memory = NULL;
    MOK_REQUIRE(mok_cuda_common_layout_make(&layer->common_layout, &layer->rank[0].shape),
                MOK_ERROR_MEMORY, "the schedule needs more bytes than an address can name");
    MOK_CUDA_TRY(cudaMalloc(&memory, layer->common_layout.bytes));
    layer->common = memory;
    layer->bytes += layer->common_layout.bytes;
    MOK_CUDA_TRY(cudaMemset(layer->common, 0, layer->common_layout.bytes));
    if (layer->cuda.trace_events > 0) {
        MOK_TRY(take_trace(layer));
    }
    MOK_CUDA_TRY(cudaHostAlloc(&memory, sizeof *layer->fault, cudaHostAllocMapped));
    layer->fault = memory;
    memset(layer->fault, 0, sizeof *layer->fault);
    return MOK_OK;
}

static mok_status test_device(mok_cuda_layer *layer)
{
    MOK_TRY(mok_device_self_test((float *)(void *)(layer->common + layer->common_layout.silu)));
    MOK_CUDA_TRY(cudaDeviceSynchronize());
    return MOK_OK;
}

static mok_status open_virtual(mok_cuda_layer *layer)
{
    MOK_TRY(check_device(layer));
    MOK_TRY(lay_out_ranks(layer));
    MOK_TRY(take_ranks(layer));
    MOK_TRY(take_common(layer));
    return test_device(layer);
}

/* What this process can do by itself, agreed on; then memory that all must see. */
static mok_status open_alone(mok_cuda_layer *layer)
{
    MOK_TRY(check_device(layer));
    return lay_out_ranks(layer);
}

static mok_status open_together(mok_cuda_layer *layer)
{
    MOK_TRY(take_plans(layer));
    MOK_TRY(take_common(layer));
    return test_device(layer);
}

static mok_status make_layer(mok_cuda_layer **out, const mok_layer_config *config,
                             const mok_cuda_config *cuda)
{
    mok_cuda_layer *layer = calloc(1, sizeof *layer);
    MOK_REQUIRE(layer != NULL, MOK_ERROR_MEMORY, "no memory for a layer");
    layer->config = *config;
    layer->cuda = *cuda;
    layer->own = cuda->ranks;
    layer->silu_limit = mok_silu_f32(config->swiglu_limit);
    layer->dsilu_limit = mok_dsilu_f32(config->swiglu_limit);
    *out = layer;
    return MOK_OK;
}

mok_status mok_cuda_layer_open(mok_cuda_layer **out, const mok_layer_config *config,
                               const mok_cuda_config *cuda)
{
    mok_cuda_layer *layer = NULL;
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    *out = NULL;
    MOK_TRY(check_config(config, cuda));
    MOK_TRY(make_layer(&layer, config, cuda));
    int previous = 0;
    mok_status status = mok_cuda_enter(layer, &previous);
    if (status == MOK_OK) {
        status = mok_cuda_leave(open_virtual(layer), previous);
    }
    if (status != MOK_OK) {
        (void)cudaGetLastError();
        mok_cuda_layer_close(&layer);
        return status;
    }
    *out = layer;
    return MOK_OK;
}

/* ---- Ranks in processes ---- */

void mok_cuda_memory_init(mok_cuda_memory *memory)
{
    if (memory != NULL) {
        memset(memory, 0, sizeof *memory);
        memory->struct_bytes = sizeof *memory;
        memory->mapping = MOK_CUDA_MAP_IPC;
    }
}

mok_status mok_cuda_memory_bytes(size_t *out, const mok_layer_config *config,
                                 const mok_cuda_config *cuda, int32_t blocks, int32_t rank,
                                 int32_t ranks)
{
    mok_shape shape;
    mok_cuda_layout layout;
    MOK_REQUIRE(out != NULL && config != NULL, MOK_ERROR_ARGUMENT, "out or config is NULL");
    MOK_TRY(check_size(cuda));
    MOK_REQUIRE(ranks >= 1 && ranks <= MOK_CUDA_MAX_RANKS && rank >= 0 && rank < ranks,
                MOK_ERROR_ARGUMENT, "rank is %d of %d, must be 0..ranks - 1 of 1..%d", rank, ranks,
                MOK_CUDA_MAX_RANKS);
    MOK_REQUIRE(blocks >= 2, MOK_ERROR_ARGUMENT, "blocks is %d, must be at least 2", blocks);
    MOK_TRY(mok_cuda_shape_make(&shape, config, ranks, rank, blocks));
    MOK_REQUIRE(mok_cuda_layout_make(&layout, &shape, cuda->forward_only, true), MOK_ERROR_MEMORY,
                "rank %d needs more bytes than an address can name", rank);
    *out = layout.bytes;
    return MOK_OK;
}

static mok_status check_member(const mok_layer_config *config, const mok_cuda_config *cuda,
                               const mok_cuda_memory *memory)
{
    MOK_TRY(check_config(config, cuda));
    MOK_REQUIRE(memory->struct_bytes == sizeof *memory, MOK_ERROR_ARGUMENT,
                "memory.struct_bytes is %zu, must be %zu", memory->struct_bytes, sizeof *memory);
    MOK_REQUIRE(memory->mapping >= MOK_CUDA_MAP_IPC && memory->mapping <= MOK_CUDA_MAP_EXTERNAL,
                MOK_ERROR_ARGUMENT, "memory.mapping is %d, unknown", (int)memory->mapping);
    return MOK_OK;
}

/* This rank's end as far as it comes without the others. *layer is NULL on failure. */
static mok_status begin_member(mok_cuda_layer **out, const mok_layer_config *config,
                               const mok_cuda_config *cuda, mok_comm *comm,
                               const mok_cuda_memory *memory)
{
    int previous = 0;
    MOK_TRY(check_member(config, cuda, memory));
    MOK_TRY(make_layer(out, config, cuda));
    mok_cuda_layer *layer = *out;
    layer->first = mok_comm_rank(comm);
    layer->own = 1;
    layer->peers = calloc(1, sizeof *layer->peers);
    mok_status status = layer->peers != NULL
                            ? mok_cuda_enter(layer, &previous)
                            : mok_fail(MOK_ERROR_MEMORY, "no memory for a layer's peers");
    if (status == MOK_OK) {
        layer->peers->comm = comm;
        layer->peers->mapping = memory->mapping;
        status = mok_cuda_leave(open_alone(layer), previous);
    }
    return status;
}

mok_status mok_cuda_layer_open_ranks(mok_cuda_layer **out, const mok_layer_config *config,
                                     const mok_cuda_config *cuda, mok_comm *comm,
                                     const mok_cuda_memory *memory)
{
    mok_cuda_layer *layer = NULL;
    mok_cuda_memory defaults;
    mok_cuda_config mine;
    int previous = 0;
    mok_cuda_memory_init(&defaults);
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    *out = NULL;
    MOK_REQUIRE(comm != NULL, MOK_ERROR_ARGUMENT, "comm is NULL");
    mok_cuda_config_init(&mine);
    if (cuda != NULL && cuda->struct_bytes == sizeof mine) {
        mine = *cuda;
        mine.ranks = mok_comm_size(comm);
        mine.stalled_rank = -1;
    }
    const mok_cuda_memory *use = memory != NULL ? memory : &defaults;
    const mok_status begun = begin_member(&layer, config, cuda != NULL ? &mine : NULL, comm, use);
    mok_status status = mok_comm_agree(comm, begun);
    if (status == MOK_OK) {
        status = mok_cuda_enter(layer, &previous);
        status = status == MOK_OK ? mok_cuda_peers_map(layer, use) : status;
        status = status == MOK_OK ? open_together(layer) : status;
        status = mok_cuda_leave(status, previous);
        status = mok_comm_agree(comm, status); /* and all memory is zeroed */
    }
    if (status != MOK_OK) {
        (void)cudaGetLastError();
        mok_cuda_layer_close(&layer);
        return status;
    }
    *out = layer;
    return MOK_OK;
}

/* ---- Closing ---- */

static void close_ranks(mok_cuda_layer *layer)
{
    if (layer->peers != NULL) {
        mok_cuda_peers_unmap(layer);
    }
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        if (layer->peers == NULL) {
            (void)cudaFree(layer->rank[r].memory);
        } else if (!mok_cuda_owns(layer, r)) {
            (void)cudaFree(layer->rank[r].plan);
        }
    }
}

void mok_cuda_layer_close(mok_cuda_layer **layer)
{
    if (layer == NULL || *layer == NULL) {
        return;
    }
    int previous = 0;
    mok_cuda_layer *mine = *layer;
    if (mok_cuda_enter(mine, &previous) == MOK_OK) {
        (void)cudaDeviceSynchronize();
        close_ranks(mine);
        (void)cudaFree(mine->common);
        (void)cudaFree(mine->trace);
        (void)cudaFree(mine->trace_head);
        (void)cudaFreeHost(mine->fault);
        (void)mok_cuda_leave(MOK_OK, previous);
    }
    free(mine->peers);
    free(mine);
    *layer = NULL;
}

size_t mok_cuda_layer_bytes(const mok_cuda_layer *layer)
{
    return layer != NULL ? layer->bytes : 0;
}
