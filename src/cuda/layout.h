/* Where a virtual rank's memory lies on the device: one function gives the bytes and the offsets.
 *
 * The ring holds a macrobatch of intermediates; x is copied into it row by row, g, u and h are made
 * there. Words that blocks poll stand on cache lines of their own. */
#ifndef MOK_CUDA_LAYOUT_H
#define MOK_CUDA_LAYOUT_H

#include "cuda/sm90/params.h"
#include "plan/layout.h"

typedef struct mok_cuda_layout {
    size_t ring_x;                             /* [ring, H] bf16 */
    size_t ring_gu;                            /* [2, ring, I] bf16: g, then u */
    size_t ring_h;                             /* [ring, I] bf16 */
    size_t shared_gu;                          /* [2, max_tokens, I_s] bf16 */
    size_t shared_h;                           /* [max_tokens, I_s] bf16 */
    size_t shared_y;                           /* [max_tokens, H] bf16: y, then dx */
    size_t ring_dy;                            /* [ring, H] bf16 */
    size_t ring_d;                             /* [3, ring, I] bf16: dg, du, hw */
    size_t shared_d;                           /* [3, max_tokens, I_s] bf16 */
    size_t router_part;                        /* [ring, ceil(I / 128)] f32 */
    size_t slots;                              /* [max_tokens * K, H] bf16 */
    size_t routes;                             /* [max_tokens * K] i32 */
    size_t peer_rank, peer_slot, block_expert; /* the schedule, as in plan/layout.h */
    size_t segment_begin, segment_count;
    size_t forward, backward, comm; /* lists of mok_sm90_task */
    size_t words;                   /* all that follows is zero when the layer is opened */
    size_t row_count;
    size_t list_count; /* [3] i32 */
    size_t counters;   /* [MOK_COUNTERS * counter_blocks] u32 */
    size_t next_compute, done, left, epoch;
    size_t slot;                  /* [ranks] u32 */
    size_t meet_epoch, meet_slot; /* of ranks in processes, as epoch and slot */
    /* Copies of a rank's tensors in memory that its peers have mapped; of ranks in processes. */
    size_t sent;             /* [max_tokens, H] bf16: x, then dy */
    size_t sent_routes;      /* [max_tokens, K] i32 or i64 */
    size_t sent_weights;     /* [max_tokens, K] f32 */
    size_t received_weights; /* [max_tokens, K] f32: gradients of the router weights */
    size_t bytes;
} mok_cuda_layout;

/* The schedule of a rank as each process has it: [plan_begin, plan_end) of that rank's layout. */
static inline size_t mok_cuda_plan_begin(const mok_cuda_layout *layout)
{
    return layout->routes;
}

static inline size_t mok_cuda_plan_bytes(const mok_cuda_layout *layout)
{
    return layout->counters - layout->routes;
}

/* The shape as the device's kernels cut it. minibatch_rows of 0 gives what keeps `blocks` blocks
 * busy for two rounds of gate/up tiles. Errors: as mok_shape_make; SHAPE where an extent is no
 * multiple of 16. */
mok_status mok_cuda_shape_make(mok_shape *out, const mok_layer_config *config, int32_t ranks,
                               int32_t rank, int32_t blocks);

#define MOK_CUDA_MAX_LANES 64 /* token lanes of a rank in backward */

/* Tiles of backward are as wide as the product: 256 columns. */
mok_shape mok_cuda_backward_shape(const mok_shape *shape);

/* What only backward needs is left out with forward_only, what only ranks in processes need without
 * apart. False when the sum passes SIZE_MAX. */
bool mok_cuda_layout_make(mok_cuda_layout *out, const mok_shape *shape, bool forward_only,
                          bool apart);

/* What all ranks share: chunk counts of the schedule, abort flag, the table of silu. */
typedef struct mok_cuda_common_layout {
    size_t chunk_count; /* [E, chunks] u32 */
    size_t total;       /* [E] u32 */
    size_t abort;       /* u32 */
    size_t silu;        /* [3, 65536] f32: silu by bf16 bits, then pairs of it and its slope */
    size_t bytes;
} mok_cuda_common_layout;

bool mok_cuda_common_layout_make(mok_cuda_common_layout *out, const mok_shape *shape);

/* Most chunks of routes that `ranks` ranks of this shape can have. */
int64_t mok_cuda_chunks_of(int64_t tokens, int64_t slots);

#endif
