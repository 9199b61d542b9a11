/* Ranks in other processes: their memory, and what is exchanged around a pass.
 *
 * What is exchanged on the host goes over the communicator, so that all ranks know of a failure and
 * give the same status. What is exchanged on the device is ordered by the stream and by meetings.
 */
#include "cuda/peers.h"

#include <string.h>

/* Device memory of small size may share an allocation, and a handle, with other memory. */
#define IPC_GRANULE ((size_t)2 << 20)

/* ---- Memory ---- */

/* One rank's side of mapping: what must be alike, and its handle. */
typedef struct offer {
    int32_t mapping, blocks;
    uint64_t bytes[MOK_CUDA_MAX_RANKS]; /* of each rank, by this one's reckoning */
    int64_t config[12];
    cudaIpcMemHandle_t handle;
} offer;

static void fill_offer(offer *o, const mok_cuda_layer *layer)
{
    const mok_layer_config *c = &layer->config;
    uint32_t limit = 0;
    memcpy(&limit, &c->swiglu_limit, sizeof limit);
    const int64_t config[12] = {c->hidden,
                                c->intermediate,
                                c->shared_intermediate,
                                c->experts,
                                c->slots,
                                c->max_tokens,
                                c->capacity_rows,
                                c->macrobatch_rows,
                                c->minibatch_rows,
                                (int64_t)c->activation,
                                (int64_t)limit,
                                layer->cuda.forward_only};
    memset(o, 0, sizeof *o);
    o->mapping = (int32_t)layer->peers->mapping;
    o->blocks = layer->blocks_per_rank;
    memcpy(o->config, config, sizeof config);
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        o->bytes[r] = layer->rank[r].layout.bytes;
    }
}

/* Every rank compares all with rank 0's, so all find the same first difference. */
static mok_status compare_offers(const mok_cuda_layer *layer, const offer *all)
{
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        const offer *o = &all[r];
        MOK_REQUIRE(memcmp(o->config, all[0].config, sizeof o->config) == 0, MOK_ERROR_MISMATCH,
                    "rank %d has another layer configuration than rank 0", r);
        MOK_REQUIRE(o->mapping == all[0].mapping, MOK_ERROR_MISMATCH,
                    "rank %d has memory.mapping %d, rank 0 has %d", r, o->mapping, all[0].mapping);
        MOK_REQUIRE(o->blocks == all[0].blocks &&
                        memcmp(o->bytes, all[0].bytes, sizeof o->bytes) == 0,
                    MOK_ERROR_MISMATCH, "rank %d has a GPU of %d multiprocessors, rank 0 of %d", r,
                    o->blocks, all[0].blocks);
    }
    return MOK_OK;
}

static mok_status zero_words(const mok_cuda_rank *rank)
{
    MOK_CUDA_TRY(
        cudaMemset(rank->memory + rank->layout.words, 0, rank->layout.bytes - rank->layout.words));
    MOK_CUDA_TRY(cudaDeviceSynchronize());
    return MOK_OK;
}

static mok_status take_ipc(mok_cuda_layer *layer, cudaIpcMemHandle_t *handle)
{
    void *memory = NULL;
    mok_cuda_rank *rank = &layer->rank[layer->first];
    const size_t bytes = (rank->layout.bytes + IPC_GRANULE - 1) / IPC_GRANULE * IPC_GRANULE;
    MOK_CUDA_TRY(cudaMalloc(&memory, bytes));
    rank->memory = memory;
    layer->peers->own_memory = true;
    layer->bytes += bytes;
    MOK_CUDA_TRY(cudaIpcGetMemHandle(handle, memory));
    return zero_words(rank);
}

static mok_status take_external(mok_cuda_layer *layer, const mok_cuda_memory *memory)
{
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        MOK_REQUIRE(memory->peer[r] != NULL && (uintptr_t)memory->peer[r] % 256 == 0,
                    MOK_ERROR_ARGUMENT, "memory.peer[%d] is NULL or not 256-byte aligned", r);
        MOK_REQUIRE(memory->bytes[r] >= layer->rank[r].layout.bytes, MOK_ERROR_ARGUMENT,
                    "memory.bytes[%d] is %zu, must be at least %zu", r, memory->bytes[r],
                    layer->rank[r].layout.bytes);
        layer->rank[r].memory = memory->peer[r];
    }
    return zero_words(&layer->rank[layer->first]);
}

static mok_status map_ipc(mok_cuda_layer *layer, const offer *all)
{
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        void *memory = NULL;
        if (r == layer->first) {
            continue;
        }
        const cudaError_t error =
            cudaIpcOpenMemHandle(&memory, all[r].handle, cudaIpcMemLazyEnablePeerAccess);
        MOK_REQUIRE(error == cudaSuccess, MOK_ERROR_DEVICE,
                    "rank %d cannot map rank %d's memory: %s", layer->first, r,
                    cudaGetErrorString(error));
        layer->rank[r].memory = memory;
        layer->peers->mapped[r] = true;
    }
    return MOK_OK;
}

/* All ranks make the same windows, so none is made before all are known to be alike. */
static mok_status map_nccl(mok_cuda_layer *layer)
{
    void *peer[MOK_CUDA_MAX_RANKS] = {NULL};
    size_t most = 0;
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        most = layer->rank[r].layout.bytes > most ? layer->rank[r].layout.bytes : most;
    }
    MOK_TRY(mok_nccl_open(&layer->peers->nccl, layer->peers->comm, most, peer));
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        layer->rank[r].memory = peer[r];
    }
    layer->bytes += most;
    return zero_words(&layer->rank[layer->first]);
}

mok_status mok_cuda_peers_map(mok_cuda_layer *layer, const mok_cuda_memory *memory)
{
    mok_cuda_peers *peers = layer->peers;
    offer all[MOK_CUDA_MAX_RANKS];
    offer mine;
    peers->joined = true;
    fill_offer(&mine, layer);
    mok_status status = peers->mapping == MOK_CUDA_MAP_IPC        ? take_ipc(layer, &mine.handle)
                        : peers->mapping == MOK_CUDA_MAP_EXTERNAL ? take_external(layer, memory)
                                                                  : MOK_OK;
    MOK_TRY(mok_comm_agree(peers->comm, status));
    MOK_TRY(mok_comm_allgather(peers->comm, all, &mine, sizeof mine));
    MOK_TRY(compare_offers(layer, all));
    status = peers->mapping == MOK_CUDA_MAP_IPC    ? map_ipc(layer, all)
             : peers->mapping == MOK_CUDA_MAP_NCCL ? map_nccl(layer)
                                                   : MOK_OK;
    return mok_comm_agree(peers->comm, status);
}

/* Peers may still write here until they have waited for their devices, too; and an owner frees only
 * what nobody has mapped any more. A rank that is gone keeps nobody waiting: after a fault the
 * communicator returns at once. */
void mok_cuda_peers_unmap(mok_cuda_layer *layer)
{
    mok_cuda_peers *peers = layer->peers;
    if (!peers->joined) {
        return;
    }
    (void)mok_comm_barrier(peers->comm);
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        if (peers->mapped[r]) {
            (void)cudaIpcCloseMemHandle(layer->rank[r].memory);
            peers->mapped[r] = false;
        }
    }
    if (mok_comm_barrier(peers->comm) != MOK_OK) {
        return; /* a rank is gone: what waits for it, or was mapped by it, ends with the process */
    }
    if (peers->own_memory) {
        (void)cudaFree(layer->rank[layer->first].memory);
    }
    mok_nccl_close(&peers->nccl);
}

/* ---- Around a pass ---- */

mok_status mok_cuda_peers_count(mok_cuda_layer *layer, mok_status status, int64_t tokens,
                                mok_dtype dtype, int64_t all[MOK_CUDA_MAX_RANKS])
{
    typedef struct count {
        int64_t dtype, tokens;
    } count;
    count each[MOK_CUDA_MAX_RANKS];
    const count mine = {(int64_t)dtype, tokens};
    MOK_TRY(mok_comm_agree(layer->peers->comm, status));
    MOK_TRY(mok_comm_allgather(layer->peers->comm, each, &mine, sizeof mine));
    for (int32_t r = 0; r < layer->cuda.ranks; r++) {
        MOK_REQUIRE(each[r].dtype == each[0].dtype, MOK_ERROR_MISMATCH,
                    "rank %d has routes of dtype %d, rank 0 of %d", r, (int)each[r].dtype,
                    (int)each[0].dtype);
        all[r] = each[r].tokens;
    }
    return MOK_OK;
}

mok_status mok_cuda_peers_meet(mok_cuda_layer *layer, mok_phase phase, cudaStream_t stream)
{
    mok_sm90_meeting p;
    memset(&p, 0, sizeof p);
    p.ranks = layer->cuda.ranks;
    p.rank = layer->first;
    p.phase = (int32_t)phase;
    p.deadline = mok_cuda_deadline(layer);
    for (int32_t r = 0; r < p.ranks; r++) {
        const mok_cuda_rank *rank = &layer->rank[r];
        p.slot[r] = (uint32_t *)(void *)(rank->memory + rank->layout.meet_slot);
    }
    const mok_cuda_rank *mine = &layer->rank[layer->first];
    p.epoch = (uint32_t *)(void *)(mine->memory + mine->layout.meet_epoch);
    void *arguments[] = {&p};
    const dim3 one = {1, 1, 1};
    MOK_CUDA_TRY(cudaLaunchKernel(mok_sm90_meet_function(), one, one, arguments, 0, stream));
    return MOK_OK;
}

mok_status mok_cuda_peers_send(const mok_cuda_layer *layer, size_t offset, const mok_tensor *tensor,
                               cudaStream_t stream)
{
    const size_t element = mok_dtype_bytes(tensor->dtype);
    const size_t width = (size_t)tensor->shape[1] * element;
    const size_t pitch = tensor->shape[0] > 1 ? (size_t)tensor->stride[0] * element : width;
    unsigned char *to = layer->rank[layer->first].memory + offset;
    if (tensor->shape[0] > 0) {
        MOK_CUDA_TRY(cudaMemcpy2DAsync(to, width, tensor->data, pitch, width,
                                       (size_t)tensor->shape[0], cudaMemcpyDeviceToDevice, stream));
    }
    return MOK_OK;
}

mok_status mok_cuda_peers_receive(const mok_cuda_layer *layer, const mok_tensor *to,
                                  cudaStream_t stream)
{
    const mok_cuda_rank *mine = &layer->rank[layer->first];
    mok_sm90_receipt p;
    memset(&p, 0, sizeof p);
    p.from = (const float *)(const void *)(mine->memory + mine->layout.received_weights);
    p.to = to->data;
    p.rows = to->shape[0];
    p.cols = to->shape[1];
    p.stride = to->stride[0];
    p.abort = mok_cuda_abort_flag(layer);
    void *arguments[] = {&p};
    const dim3 blocks = {32, 1, 1};
    const dim3 threads = {256, 1, 1};
    MOK_CUDA_TRY(
        cudaLaunchKernel(mok_sm90_receive_function(), blocks, threads, arguments, 0, stream));
    return MOK_OK;
}
