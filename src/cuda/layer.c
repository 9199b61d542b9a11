/* Opening and closing a layer on a device: memory, self-test, the shape of the launch. */
#include "cuda/layer.h"

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

static mok_status check_config(const mok_layer_config *config, const mok_cuda_config *cuda)
{
    MOK_REQUIRE(cuda != NULL, MOK_ERROR_ARGUMENT, "cuda is NULL");
    MOK_REQUIRE(cuda->struct_bytes == sizeof *cuda, MOK_ERROR_ARGUMENT,
                "cuda.struct_bytes is %zu, must be %zu", cuda->struct_bytes, sizeof *cuda);
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
    layer->blocks_per_rank = device->multiProcessorCount / layer->cuda.ranks;
    MOK_REQUIRE(layer->blocks_per_rank >= 2, MOK_ERROR_DEVICE,
                "%d ranks need %d multiprocessors, the device has %d", layer->cuda.ranks,
                2 * layer->cuda.ranks, device->multiProcessorCount);
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
    const size_t blocks = (size_t)layer->cuda.ranks * (size_t)layer->blocks_per_rank;
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

static mok_status take_memory(mok_cuda_layer *layer)
{
    void *memory = NULL;
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        mok_cuda_rank *rank = &layer->rank[r];
        rank->tokens = -1;
        MOK_TRY(mok_cuda_shape_make(&rank->shape, &layer->config, layer->cuda.ranks, r,
                                    layer->blocks_per_rank));
        MOK_REQUIRE(mok_cuda_layout_make(&rank->layout, &rank->shape, layer->cuda.forward_only),
                    MOK_ERROR_MEMORY, "rank %d needs more bytes than an address can name", r);
        MOK_CUDA_TRY(cudaMalloc(&memory, rank->layout.bytes));
        rank->memory = memory;
        layer->bytes += rank->layout.bytes;
        MOK_CUDA_TRY(cudaMemset(rank->memory + rank->layout.words, 0,
                                rank->layout.bytes - rank->layout.words));
    }
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

static mok_status open_on_device(mok_cuda_layer *layer)
{
    MOK_TRY(check_device(layer));
    MOK_TRY(take_memory(layer));
    MOK_TRY(mok_device_self_test((float *)(void *)(layer->common + layer->common_layout.silu)));
    MOK_CUDA_TRY(cudaDeviceSynchronize());
    return MOK_OK;
}

mok_status mok_cuda_layer_open(mok_cuda_layer **out, const mok_layer_config *config,
                               const mok_cuda_config *cuda)
{
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    *out = NULL;
    MOK_TRY(check_config(config, cuda));
    mok_cuda_layer *layer = calloc(1, sizeof *layer);
    MOK_REQUIRE(layer != NULL, MOK_ERROR_MEMORY, "no memory for a layer");
    layer->config = *config;
    layer->cuda = *cuda;
    layer->silu_limit = mok_silu_f32(config->swiglu_limit);
    layer->dsilu_limit = mok_dsilu_f32(config->swiglu_limit);
    int previous = 0;
    mok_status status = mok_cuda_enter(layer, &previous);
    if (status == MOK_OK) {
        status = mok_cuda_leave(open_on_device(layer), previous);
    }
    if (status != MOK_OK) {
        (void)cudaGetLastError();
        mok_cuda_layer_close(&layer);
        return status;
    }
    *out = layer;
    return MOK_OK;
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
        for (int32_t r = 0; r < mine->cuda.ranks; r++) {
            (void)cudaFree(mine->rank[r].memory);
        }
        (void)cudaFree(mine->common);
        (void)cudaFree(mine->trace);
        (void)cudaFree(mine->trace_head);
        (void)cudaFreeHost(mine->fault);
        (void)mok_cuda_leave(MOK_OK, previous);
    }
    free(mine);
    *layer = NULL;
}

size_t mok_cuda_layer_bytes(const mok_cuda_layer *layer)
{
    return layer != NULL ? layer->bytes : 0;
}
