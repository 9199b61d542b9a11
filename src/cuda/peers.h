/* A layer's peers in other processes: how their memory is mapped, and what is exchanged before a
 * pass. */
#ifndef MOK_CUDA_PEERS_H
#define MOK_CUDA_PEERS_H

#include <mok/mok_cuda_ranks.h>

#include "cuda/layer.h"

typedef struct mok_nccl mok_nccl;

typedef struct mok_cuda_peers {
    mok_comm *comm;
    mok_cuda_mapping mapping;
    bool joined;                     /* all ranks came to mapping, so all come to its end */
    bool mapped[MOK_CUDA_MAX_RANKS]; /* by an IPC handle that is to be closed */
    bool own_memory;                 /* rank[first].memory is ours to free */
    mok_nccl *nccl;                  /* of MOK_CUDA_MAP_NCCL */
} mok_cuda_peers;

/* This rank's device memory, and the peers' as this process sees it. Collective. Errors: MEMORY,
 * DEVICE, UNSUPPORTED, PEER; alike on all ranks. */
mok_status mok_cuda_peers_map(mok_cuda_layer *layer, const mok_cuda_memory *memory);

/* Undoes it; waits for the peers first, unless the communicator has a fault. */
void mok_cuda_peers_unmap(mok_cuda_layer *layer);

/* Token counts and the type of all ranks' routes, for a schedule: status is this rank's of its own
 * checks. Errors: that of the first rank that has one; MISMATCH. */
mok_status mok_cuda_peers_count(mok_cuda_layer *layer, mok_status status, int64_t tokens,
                                mok_dtype dtype, int64_t all[MOK_CUDA_MAX_RANKS]);

/* On the stream: all ranks come to this place; behind it, what each did before is seen by all. */
mok_status mok_cuda_peers_meet(mok_cuda_layer *layer, mok_phase phase, cudaStream_t stream);

/* On the stream: rows of a tensor, copied into this rank's memory at `offset`. */
mok_status mok_cuda_peers_send(const mok_cuda_layer *layer, size_t offset, const mok_tensor *tensor,
                               cudaStream_t stream);

/* On the stream, unless there has been a fault: the gradients of the router weights, to the
 * caller's tensor. */
mok_status mok_cuda_peers_receive(const mok_cuda_layer *layer, const mok_tensor *to,
                                  cudaStream_t stream);

/* ---- NCCL, loaded at run time ---- */

/* Allocates `bytes` for this rank and registers them as a window of all ranks. out[r] receives
 * where rank r's lie. Collective over comm. Errors: UNSUPPORTED, DEVICE, MEMORY. */
mok_status mok_nccl_open(mok_nccl **out, mok_comm *comm, size_t bytes,
                         void *peer[MOK_CUDA_MAX_RANKS]);
void mok_nccl_close(mok_nccl **nccl); /* accepts NULL */

#endif
