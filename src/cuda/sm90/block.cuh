/* A block's shared memory, and what its roles tell each other.
 *
 *   stages    3 x 48 KB   tiles of A and B, filled by the copy engine, read by the products
 *   staging   66 KB       a finished 128 x 256 tile in bf16, from the consumers to the store warps:
 * rows where they leave one by one (down), swizzled chunks of 64 columns where they leave as boxes
 *   control               barriers, the ring of tasks
 *   silu      14 KB       the middle of the table of silu, or what gives silu and its slope
 *
 *   producer   takes a task, waits for its operands, puts it into the ring, fills stages
 *   consumers  two warpgroups, 64 rows each: products of a tile, rounded into staging
 *   stores     three warps: SwiGLU or scatter of a staged tile, then the task's counters */
#ifndef MOK_CUDA_SM90_BLOCK_CUH
#define MOK_CUDA_SM90_BLOCK_CUH

#include "cuda/sm90/params.h"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/silu.cuh"

#define SM90_CONSUMER_THREADS 256
#define SM90_STORE_THREADS 96

/* Position in a ring of barriers: the slot, and the parity of its current round. */
typedef struct sm90_ring {
    uint32_t slot, parity;
} sm90_ring;

typedef struct sm90_control {
    __align__(16) mok_sm90_task task[MOK_SM90_TASK_SLOTS];
    uint64_t full[MOK_SM90_STAGES], empty[MOK_SM90_STAGES];
    uint64_t task_full[MOK_SM90_TASK_SLOTS], task_empty[MOK_SM90_TASK_SLOTS];
    uint64_t staged_full, staged_empty;
    uint64_t gu_full;                       /* of backward: g and u of 128 columns lie in staging */
    uint64_t piece_full[MOK_SM90_COURIERS]; /* of dispatch */
    sm90_ring stage[2];                     /* of backward: where its two consumers go on */
    float weight[128];                      /* of backward: of a tile's rows */
    int64_t began, prepared;                /* clocks of the traced consumer and of the producer */
    uint32_t task_count;                    /* of the pass's list; the producer's */
    uint32_t flag;                          /* a value that one thread tells the block */
    uint32_t last;
} sm90_control;

#define SM90_STAGING_OFFSET (MOK_SM90_STAGES * MOK_SM90_STAGE_BYTES)
#define SM90_CONTROL_OFFSET (SM90_STAGING_OFFSET + MOK_SM90_STAGING_BYTES)
#define SM90_SILU_OFFSET (SM90_CONTROL_OFFSET + (int)((sizeof(sm90_control) + 127) / 128 * 128))
#define SM90_SHARED_BYTES                                                                          \
    (SM90_SILU_OFFSET + SM90_SLOPE_HALF * 2 * (int)sizeof(float)) /* the larger table */

/* The part of the table of silu that most values need: magnitudes in [2^-9, 8), then the same with
 * a sign. */
#define SM90_SILU_FIRST (118 << 7) /* bf16 bits of 2^-9 */
#define SM90_SILU_HALF (12 << 7)

static_assert(2 * SM90_SILU_HALF <= 2 * SM90_SLOPE_HALF,
              "forward's table fits where backward's does");
/* Scratch of a d_hidden tile, in a stage: 8 rows of each consumer warp, 128 columns in fp32. */
#define SM90_SCRATCH_WARP_BYTES (8 * 128 * 4)

static_assert(SM90_CONSUMER_THREADS / 32 * SM90_SCRATCH_WARP_BYTES <= MOK_SM90_STAGE_BYTES,
              "scratch is a stage");
static_assert(SM90_SHARED_BYTES <= 232448, "what a block can have");

static __device__ __forceinline__ sm90_control *sm90_control_of(unsigned char *shared)
{
    return (sm90_control *)(void *)(shared + SM90_CONTROL_OFFSET);
}

template <int slots> static __device__ __forceinline__ void sm90_ring_next(sm90_ring *ring)
{
    if (++ring->slot == slots) {
        ring->slot = 0;
        ring->parity ^= 1;
    }
}

static __device__ __forceinline__ void sm90_control_init(sm90_control *control)
{
    for (int i = 0; i < MOK_SM90_STAGES; i++) {
        ptx_mbarrier_init(ptx_shared_address(&control->full[i]), 1);
        ptx_mbarrier_init(ptx_shared_address(&control->empty[i]), 2);
    }
    for (int i = 0; i < MOK_SM90_TASK_SLOTS; i++) {
        ptx_mbarrier_init(ptx_shared_address(&control->task_full[i]), 1);
        ptx_mbarrier_init(ptx_shared_address(&control->task_empty[i]), 3);
    }
    control->stage[0] = control->stage[1] = {0, 0};
    ptx_mbarrier_init(ptx_shared_address(&control->staged_full), SM90_CONSUMER_THREADS);
    ptx_mbarrier_init(ptx_shared_address(&control->staged_empty), SM90_STORE_THREADS);
    ptx_mbarrier_init(ptx_shared_address(&control->gu_full), 1);
    ptx_fence_mbarrier_init();
}

#endif
