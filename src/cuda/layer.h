/* The device layer's handle. */
#ifndef MOK_CUDA_LAYER_H
#define MOK_CUDA_LAYER_H

#include <mok/mok_cuda.h>

#include "cuda/device.h"
#include "cuda/layout.h"

typedef struct mok_cuda_rank {
    mok_shape shape;
    mok_cuda_layout layout;
    unsigned char *memory; /* device */
    int64_t tokens;        /* of the last schedule; -1 before the first */
} mok_cuda_rank;

struct mok_cuda_layer {
    mok_layer_config config;
    mok_cuda_config cuda;
    mok_encode_tiled encode;
    int32_t blocks_per_rank, comm_blocks;
    float silu_limit;
    mok_cuda_common_layout common_layout;
    unsigned char *common;      /* device */
    mok_sm90_fault *fault;      /* host memory that the device writes */
    mok_sm90_event *trace;      /* device, or NULL */
    mok_sm90_trace_head *trace_head;
    size_t bytes;
    mok_cuda_rank rank[MOK_CUDA_MAX_RANKS];
};

/* Function tables of the kernels: nvcc compiles them, C launches them. */
const void *mok_sm90_forward_function(void);
int mok_sm90_forward_shared_bytes(void);
void mok_sm90_schedule_functions(const void *functions[4]);
const void *mok_sm90_plan_forward_function(void);
const void *mok_sm90_check_weights_function(void);

static inline uint32_t *mok_cuda_abort_flag(const mok_cuda_layer *layer)
{
    return (uint32_t *)(void *)(layer->common + layer->common_layout.abort);
}

/* Makes the layer's device current for a call and gives the caller's back. */
mok_status mok_cuda_enter(const mok_cuda_layer *layer, int *previous);
mok_status mok_cuda_leave(mok_status status, int previous);

#endif
