/* The device layer's handle. */
#ifndef MOK_CUDA_LAYER_H
#define MOK_CUDA_LAYER_H

#include <mok/mok_cuda.h>

#include "cuda/device.h"
#include "cuda/layout.h"

typedef struct mok_cuda_rank {
    mok_shape shape;
    mok_cuda_layout layout;
    unsigned char *memory; /* device; a peer's is mapped */
    unsigned char *plan;   /* device: its schedule, in memory of this process */
    int64_t tokens;        /* of the last schedule; -1 before the first */
} mok_cuda_rank;

/* What the ring holds. */
typedef enum mok_cuda_progress {
    MOK_CUDA_NOTHING = 0,
    MOK_CUDA_SCHEDULED,
    MOK_CUDA_FORWARDED
} mok_cuda_progress;

struct mok_cuda_layer {
    mok_layer_config config;
    mok_cuda_config cuda;
    mok_encode_tiled encode;
    int32_t first, own;           /* the ranks that this process computes: all, or one of several */
    struct mok_cuda_peers *peers; /* of ranks in processes, or NULL */
    int32_t blocks_per_rank, comm_blocks;
    float silu_limit, dsilu_limit;
    mok_cuda_progress progress;
    mok_cuda_common_layout common_layout;
    unsigned char *common; /* device */
    mok_sm90_fault *fault; /* host memory that the device writes */
    mok_sm90_event *trace; /* device, or NULL */
    mok_sm90_trace_head *trace_head;
    size_t bytes;
    mok_cuda_rank rank[MOK_CUDA_MAX_RANKS];
};

/* Function tables of the kernels: nvcc compiles them, C launches them. */
const void *mok_sm90_forward_function(void);
int mok_sm90_forward_shared_bytes(void);
void mok_sm90_schedule_functions(const void *functions[4]);
const void *mok_sm90_backward_function(void);
const void *mok_sm90_plan_forward_function(void);
const void *mok_sm90_plan_backward_function(void);
const void *mok_sm90_check_weights_function(void);
const void *mok_sm90_meet_function(void);
const void *mok_sm90_receive_function(void);

static inline uint32_t *mok_cuda_abort_flag(const mok_cuda_layer *layer)
{
    return (uint32_t *)(void *)(layer->common + layer->common_layout.abort);
}

static inline unsigned char *mok_cuda_plan_at(const mok_cuda_rank *rank, size_t offset)
{
    return rank->plan + (offset - mok_cuda_plan_begin(&rank->layout));
}

static inline uint16_t *mok_cuda_bf16_at(const mok_cuda_rank *rank, size_t offset)
{
    return (uint16_t *)(void *)(rank->memory + offset);
}

/* Address and rows aligned to 16 bytes: the copy engine and vector accesses need it. Errors: SHAPE.
 */
mok_status mok_cuda_check_aligned(const mok_tensor *tensor, const char *name, int32_t rank);

/* x, router weights and weights of one rank, as forward gets them. Errors: ARGUMENT, SHAPE, STATE.
 */
mok_status mok_cuda_check_inputs(const mok_cuda_layer *layer, const mok_cuda_rank_io *io,
                                 int32_t rank);

/* Whether this process computes rank r, and the caller's element for it. */
static inline bool mok_cuda_owns(const mok_cuda_layer *layer, int32_t r)
{
    return r >= layer->first && r < layer->first + layer->own;
}

static inline const mok_cuda_rank_io *mok_cuda_io_of(const mok_cuda_layer *layer,
                                                     const mok_cuda_rank_io *io, int32_t r)
{
    return &io[r - layer->first];
}

/* Host memory that the device writes has one address under unified addressing. */
static inline mok_sm90_deadline mok_cuda_deadline(const mok_cuda_layer *layer)
{
    const mok_sm90_deadline deadline = {(uint64_t)layer->cuda.timeout_ms * 1000000u,
                                        mok_cuda_abort_flag(layer), layer->fault};
    return deadline;
}

/* Everything in a pass's parameters that does not depend on which pass it is. */
void mok_cuda_fill_pass(mok_sm90_pass *p, mok_cuda_layer *layer, const mok_cuda_rank_io *io);

/* The schedule's parameters of the last build, for kernels that plan. */
void mok_cuda_fill_plan(mok_sm90_schedule *p, mok_cuda_layer *layer);

/* Cooperative: blocks wait for each other, so all of them must be resident. */
mok_status mok_cuda_launch_pass(const void *function, mok_sm90_pass *p, int32_t own,
                                cudaStream_t stream);
mok_status mok_cuda_launch_check(const mok_sm90_pass *pass, int32_t slots, cudaStream_t stream);

/* Makes the layer's device current for a call and gives the caller's back. */
mok_status mok_cuda_enter(const mok_cuda_layer *layer, int *previous);
mok_status mok_cuda_leave(mok_status status, int previous);

#endif
