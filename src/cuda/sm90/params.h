/* What the host hands to the kernels: plain structs that C and CUDA C read alike. */
#ifndef MOK_CUDA_SM90_PARAMS_H
#define MOK_CUDA_SM90_PARAMS_H

#include <cuda.h>

#include "plan/tasks.h"

#define MOK_SM90_MAX_RANKS                                                                         \
    8 /* virtual ranks of one launch: their tensor maps are kernel parameters */
#define MOK_SM90_THREADS 384
#define MOK_SM90_STAGES 3
#define MOK_SM90_STAGE_BYTES 49152 /* A 128 x 64 and B 256 x 64, bf16 */
#define MOK_SM90_STAGING_PITCH                                                                     \
    528 /* a row of 256 bf16 and 16 bytes, so that rows fall on other banks */
#define MOK_SM90_STAGING_CHUNK                                                                     \
    16384 /* or: 128 rows of 64 bf16 with the 128-byte swizzle, four of them */
#define MOK_SM90_STAGING_BYTES (128 * MOK_SM90_STAGING_PITCH)
#define MOK_SM90_TASK_SLOTS 4
#define MOK_SM90_COURIERS 48          /* threads of a dispatching block that carry rows */
#define MOK_SM90_SILU_PARTS (14 << 7) /* magnitudes of 14 exponents */
#define MOK_SM90_SILU_FLOATS (3 * 65536 + 2 * MOK_SM90_SILU_PARTS) /* all tables of silu */
#define MOK_SM90_PHASE_SCHEDULE 3
#define MOK_SM90_PHASE_FORWARD 4 /* mok_phase, asserted in src/cuda/layer.c */
#define MOK_SM90_PHASE_BACKWARD 6
#define MOK_SM90_PHASE_FOLD 7

/* Maps of the forward pass. */
typedef enum mok_sm90_map {
    MOK_MAP_X = 0, /* ring [rows, H], box 64 x 128 */
    MOK_MAP_GATE,  /* [E_r, I, H], box 64 x 128 x 1 */
    MOK_MAP_UP,
    MOK_MAP_H,    /* ring [rows, I], box 64 x 128 */
    MOK_MAP_GU,   /* ring [2, rows, I]: g and u, box 64 x 128 x 1, stored to */
    MOK_MAP_DOWN, /* [E_r, H, I], box 64 x 256 x 1 */
    MOK_MAP_SHARED_X,
    MOK_MAP_SHARED_GATE,
    MOK_MAP_SHARED_UP,
    MOK_MAP_SHARED_H,
    MOK_MAP_SHARED_GU,
    MOK_MAP_SHARED_DOWN
} mok_sm90_map;

/* Maps of the backward pass: the routed ones, then the same of the shared expert. All have four
 * axes, columns, rows, batch and part. Operands whose contraction runs along rows are read in boxes
 * of 64 x 64 and transposed by the product; the batch of the shared ones is the token lane. */
typedef enum mok_sm90_back_map {
    MOK_BACK_DY = 0, /* [rows, H], box 64 x 128 */
    MOK_BACK_D,      /* [3, rows, I]: dg, du, hw, box 64 x 128 */
    MOK_BACK_DOWN,   /* [E_r, H, I] */
    MOK_BACK_GATE,   /* [E_r, I, H] */
    MOK_BACK_UP,
    MOK_BACK_X_ROWS,  /* [rows, H] */
    MOK_BACK_DY_ROWS, /* [rows, H] */
    MOK_BACK_D_ROWS,  /* [3, rows, I] */
    MOK_BACK_GU,      /* [2, rows, I]: g and u, box 64 x 128 */
    MOK_BACK_MAPS
} mok_sm90_back_map;

#define MOK_SM90_MAPS (2 * MOK_BACK_MAPS) /* of a rank, either pass */

/* A task as the kernels take it: a product tile, or a row block to dispatch. plan.cu writes the
 * lists once a schedule from plan/tasks.h, since a block's single producer thread would need longer
 * for the divisions of one task than the products of a tile take. */
typedef struct mok_sm90_task {
    int32_t kind;       /* mok_task_kind, or MOK_SM90_STOP */
    int32_t block;      /* row block, or block of tokens */
    int32_t k_steps;    /* of 64 */
    int32_t row_count;  /* rows of the 128 that hold a route or token */
    int32_t col, cols;  /* of the output: first column and how many of this tile's exist */
    int32_t source_row; /* first row in the schedule, or token */
    int32_t store_row;  /* first row in the buffer: ring row or token */
    int32_t expert;     /* local; 0 for the shared one */
    int32_t wait_idx[MOK_TASK_MAX_WAITS]; /* counters, -1 for none */
    uint32_t wait_value[MOK_TASK_MAX_WAITS];
    int32_t raise_idx[MOK_TASK_MAX_RAISES]; /* -1 for none */
    int32_t unused;
} mok_sm90_task;

#define MOK_SM90_TASK_BYTES 64
#define MOK_SM90_STOP (-1)

/* The lists of a rank: of the passes' computing, and of the communication that both begin with. */
typedef struct mok_sm90_list {
    mok_sm90_task *forward, *backward, *comm;
    int32_t *count; /* [3] */
} mok_sm90_list;

/* A gradient of weights: where it goes and what is done there. */
typedef struct mok_sm90_grad {
    void *data;
    int64_t expert_stride, row_stride; /* elements */
    int32_t is_bf16, adds;             /* else f32, stored */
} mok_sm90_grad;

/* One rank's memory. All pointers are device pointers; peers' may be of another GPU. */
typedef struct mok_sm90_rank {
    mok_shape shape;
    int64_t tokens;
    const int32_t *peer_rank, *peer_slot, *block_expert; /* the schedule */
    const int64_t *segment_begin, *segment_count;        /* [E_r + 1], [E_r] */
    const int64_t *row_count;                            /* [1] padded rows */
    const uint16_t *send; /* [T, H] what is dispatched: x, or dy in backward */
    int64_t send_stride;
    uint16_t *ring_in;           /* [ring, H] where dispatch puts it */
    const float *router_weights; /* [T, K] */
    int64_t router_stride;
    const int32_t *routes; /* [T, K] */
    uint16_t *out;         /* [T, H]: y, or dx */
    int64_t out_stride;
    uint16_t *slots;    /* [T * K, H] */
    uint16_t *shared_y; /* [T, H] y or dx of the shared expert */
    /* forward */
    uint16_t *ring_h, *shared_h;
    /* backward */
    const uint16_t *ring_gu, *shared_gu; /* [2, rows, I] */
    uint16_t *ring_d, *shared_d;         /* [3, rows, I]: dg, du, hw */
    int64_t ring_rows, shared_rows;
    float *router_part; /* [ring, ceil(I / 128)] */
    float *d_router;    /* [T, K] */
    int64_t d_router_stride;
    int64_t lanes;         /* of the shared expert's weight gradients */
    mok_sm90_grad grad[6]; /* gate, up, down; then the shared ones, a lane as an expert */
    /* both */
    mok_sm90_list list;
    uint32_t *counters;     /* MOK_COUNTERS rows of the plan */
    uint32_t *next_compute; /* the next number of the compute list */
    uint32_t *done, *left;  /* blocks that have finished computing, and that have left the kernel */
    uint32_t *epoch; /* of the rank barrier; lives here so that a replayed graph goes on counting */
    uint32_t *slot;  /* [R] */
} mok_sm90_rank;

/* What went wrong, as a mok_status. */
#define MOK_SM90_FAULT_PEER 6     /* a wait: rank, peer, phase, task_idx, waited_ms */
#define MOK_SM90_FAULT_ROUTE 3    /* rank, task_idx = token * K + slot, value */
#define MOK_SM90_FAULT_CAPACITY 4 /* rank, value = needed rows, limit = available rows */
#define MOK_SM90_FAULT_VALUE 11   /* a router weight: rank, task_idx = token * K + slot */

/* Host-visible. state is 0, or one of the above once the rest is valid. */
typedef struct mok_sm90_fault {
    uint32_t state;
    int32_t rank, peer, phase;
    int64_t task_idx;
    int64_t waited_ms;
    int64_t value, limit;
} mok_sm90_fault;

/* ---- Trace ---- */

typedef enum mok_sm90_role {
    MOK_SM90_ROLE_COMM = 0, /* also the rank barrier and the fold */
    MOK_SM90_ROLE_PRODUCER,
    MOK_SM90_ROLE_CONSUMER,
    MOK_SM90_ROLE_STORE,
    MOK_SM90_TRACE_ROLES
} mok_sm90_role;

typedef enum mok_sm90_what {
    MOK_SM90_WORK = 0, /* the role's work on a task */
    MOK_SM90_WAIT,     /* for what the task needs */
    MOK_SM90_BARRIER,  /* for the other ranks */
    MOK_SM90_FOLD
} mok_sm90_what;

typedef struct mok_sm90_event {
    int64_t begin, end; /* clocks of the block's multiprocessor */
    int32_t what, kind; /* mok_sm90_what, mok_task_kind */
    int32_t block, col; /* of the task */
} mok_sm90_event;

typedef struct mok_sm90_trace_head {
    int64_t clock[2];
    uint64_t timer_ns[2];
    uint32_t count[MOK_SM90_TRACE_ROLES];
} mok_sm90_trace_head;

/* What bounds a wait, and where its failure is written. */
typedef struct mok_sm90_deadline {
    uint64_t timeout_ns;
    uint32_t *abort; /* device: not 0 once a wait has failed */
    mok_sm90_fault *fault;
} mok_sm90_deadline;

typedef struct mok_sm90_pass {
    int32_t ranks, blocks_per_rank, comm_blocks;
    int32_t first_rank;   /* of this launch: all ranks are one, or each has its own */
    int32_t stalled_rank; /* a rank whose blocks leave at once, for tests; -1 for none */
    int32_t clamped;
    float limit, silu_limit, dsilu_limit;
    const float *silu;   /* [65536] by bf16 bits */
    const float *slopes; /* [65536, 2] silu and its slope */
    const float *parts;  /* [MOK_SM90_SILU_PARTS, 2], silu.cuh */
    mok_sm90_deadline deadline;
    mok_sm90_event *trace; /* [blocks, roles, trace_events], or NULL */
    mok_sm90_trace_head *trace_head;
    int32_t trace_events;
    int32_t phase;
    mok_sm90_rank rank[MOK_SM90_MAX_RANKS];
    CUtensorMap map[MOK_SM90_MAX_RANKS][MOK_SM90_MAPS];
} mok_sm90_pass;

/* ---- Ranks in processes ---- */

typedef struct mok_sm90_meeting {
    int32_t ranks, rank, phase;
    uint32_t *epoch;                    /* of this rank */
    uint32_t *slot[MOK_SM90_MAX_RANKS]; /* [R] of each rank */
    mok_sm90_deadline deadline;
} mok_sm90_meeting;

/* f32 [rows, cols] from packed rows to rows `stride` elements apart. */
typedef struct mok_sm90_receipt {
    const float *from;
    float *to;
    int64_t rows, cols, stride;
    uint32_t *abort;
} mok_sm90_receipt;

/* ---- Values before a pass ---- */

typedef struct mok_sm90_check_rank {
    int64_t tokens;
    const int32_t *routes;       /* [T, K] */
    const float *router_weights; /* [T, K] */
    int64_t router_stride;
} mok_sm90_check_rank;

typedef struct mok_sm90_check {
    int32_t slots;
    uint32_t *abort;
    mok_sm90_fault *fault;
    mok_sm90_check_rank rank[MOK_SM90_MAX_RANKS];
} mok_sm90_check;

/* ---- Schedule ---- */

#define MOK_SM90_CHUNK_ROUTES 256 /* routes that one warp counts and places, in order */
#define MOK_SM90_MAX_EXPERTS 2048

typedef struct mok_sm90_schedule_rank {
    mok_shape shape;
    const void *routes; /* [T, K] i32 or i64 */
    int64_t routes_stride, tokens;
    int32_t *routes_out; /* [T, K] */
    int32_t *peer_rank, *peer_slot, *block_expert;
    int64_t *segment_begin, *segment_count, *row_count;
    mok_sm90_list list;
    int64_t lanes; /* of the backward list */
} mok_sm90_schedule_rank;

typedef struct mok_sm90_schedule {
    int32_t ranks, experts, slots;
    int32_t wide; /* routes are i64 */
    int32_t chunk_begin[MOK_SM90_MAX_RANKS + 1];
    uint32_t *
        chunk_count; /* [E, chunks]: routes of an expert in a chunk, then in all chunks before it */
    uint32_t *total; /* [E] */
    uint32_t *abort;
    mok_sm90_fault *fault;
    mok_sm90_schedule_rank rank[MOK_SM90_MAX_RANKS];
} mok_sm90_schedule;

#endif
