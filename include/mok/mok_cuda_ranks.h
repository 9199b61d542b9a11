/* A layer on GPUs whose ranks are processes: one GPU each, or several processes on one.
 *
 * The calls of mok_cuda.h serve it as they serve virtual ranks, with these differences:
 *
 *   arrays        routes, io and gradients hold one element: this process's rank
 *   collective    opening, closing, mok_cuda_schedule_build and mok_cuda_fault_clear also speak
 * over the communicator, on the host (token counts differ from step to step); forward and backward
 * do not, and must be called by every rank in the same order memory        peers read copies of x,
 * dy, routes and router weights in the layer's own memory, made by stream-ordered copies, since
 * only that is mapped bytes         those of virtual ranks and of the CPU library
 *
 * Waits between ranks happen on the device, at system scope, with the deadline of
 * mok_cuda_config.timeout_ms; a rank that does not come is named by mok_cuda_fault_read. Multicast
 * is never used. */
#ifndef MOK_MOK_CUDA_RANKS_H
#define MOK_MOK_CUDA_RANKS_H

#include <mok/mok_cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How ranks come to see each other's device memory. */
typedef enum mok_cuda_mapping {
    MOK_CUDA_MAP_IPC = 0, /* cudaMalloc and cudaIpc handles: processes on one host; several may
                             share a GPU, where their kernels take turns */
    MOK_CUDA_MAP_NCCL,    /* ncclMemAlloc and windows of a libnccl.so.2 that is loaded at run time,
                             2.28 or newer; with more than one rank 2.29 */
    MOK_CUDA_MAP_EXTERNAL /* the caller's: PyTorch's symmetric memory, NVSHMEM, JAX */
} mok_cuda_mapping;

typedef struct mok_cuda_memory {
    size_t struct_bytes;
    mok_cuda_mapping mapping; /* the same on all ranks. Default MOK_CUDA_MAP_IPC */
    /* Of MOK_CUDA_MAP_EXTERNAL: device addresses, 256-byte aligned, at which this process reaches
     * each rank's memory, its own included; bytes as mok_cuda_memory_bytes says for that rank. The
     * caller's, until the layer is closed. */
    void *peer[MOK_CUDA_MAX_RANKS];
    size_t bytes[MOK_CUDA_MAX_RANKS];
} mok_cuda_memory;

MOK_API void mok_cuda_memory_init(mok_cuda_memory *memory);

/* Bytes of device memory that `rank` of `ranks` needs for the caller to map. Needs no GPU; blocks
 * is the number of multiprocessors of the GPU. Errors: ARGUMENT, SHAPE, MEMORY. */
MOK_API mok_status mok_cuda_memory_bytes(size_t *out, const mok_layer_config *config,
                                         const mok_cuda_config *cuda, int32_t blocks, int32_t rank,
                                         int32_t ranks);

/* Opens this process's rank: comm's rank of comm's size, at most MOK_CUDA_MAX_RANKS.
 *
 *   config   the same on all ranks
 *   cuda     device and timeout_ms may differ between ranks; ranks and stalled_rank are not looked
 * at comm     used while the layer is open; not owned memory   NULL for the defaults
 *
 * Collective. All ranks return the same status. Errors as mok_cuda_layer_open; MISMATCH (another
 * config, mapping or kind of GPU), UNSUPPORTED (no NCCL, or one that is too old), PEER. */
MOK_API mok_status mok_cuda_layer_open_ranks(mok_cuda_layer **out, const mok_layer_config *config,
                                             const mok_cuda_config *cuda, mok_comm *comm,
                                             const mok_cuda_memory *memory);

#ifdef __cplusplus
}
#endif
#endif
