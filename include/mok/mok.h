/* libmok: a deterministic mixture-of-experts training layer with expert parallelism.
 *
 * The same routes, tensors and weights give the same bytes for any number of ranks, threads, chunk
 * sizes and instruction sets, on any machine, within one arithmetic class (docs/numerics.md). Read
 * this file from top to bottom: version, status, tensors, ranks, layer, schedule, passes,
 * reductions, digests.
 *
 * Conventions of every declaration here
 *   - Functions return mok_status; MOK_OK is 0. On any other value mok_last_error() describes the
 * cause and names the argument, the row and the limit. The library never prints, exits or aborts.
 *   - Structs begin with struct_bytes and are filled by their init function before fields are
 * changed.
 *   - "Collective" means: every rank of the communicator calls it, in the same order; ranks that
 * meet in different calls all return MOK_ERROR_MISMATCH. Whatever the error, every rank returns the
 * same status, and no output has been written, except that outputs are undefined after
 * MOK_ERROR_PEER.
 *   - A handle serves one thread at a time. Different ranks' handles may be used by different
 * threads.
 *   - Letters: R ranks, T tokens of this rank, H hidden, I intermediate, E experts, K slots
 * (top-k).
 */
#ifndef MOK_MOK_H
#define MOK_MOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOK_API __attribute__((visibility("default")))

/* ---- Version
 * ---------------------------------------------------------------------------------------- */

#define MOK_VERSION_MAJOR 0
#define MOK_VERSION_MINOR 1
#define MOK_VERSION_PATCH 0

/* The version of the library that was loaded, as major * 10000 + minor * 100 + patch. */
MOK_API int32_t mok_version(void);

/* ---- Status
 * ----------------------------------------------------------------------------------------- */

/* Numbers never change. */
typedef enum mok_status {
    MOK_OK = 0,
    MOK_ERROR_ARGUMENT = 1, /* NULL, a bad enum, a struct_bytes this version does not know */
    MOK_ERROR_SHAPE = 2,    /* a shape, dtype, stride or alignment that the call cannot take */
    MOK_ERROR_ROUTE = 3,    /* an expert index outside [-1, E) */
    MOK_ERROR_CAPACITY = 4, /* more rows or tokens than the layer was opened for */
    MOK_ERROR_MEMORY = 5,   /* an allocation failed, or a size passes the address space */
    MOK_ERROR_PEER = 6,     /* a rank, worker or task did not arrive in time; see mok_fault_read */
    MOK_ERROR_DEVICE = 7, /* the device or CPU lacks what the call needs, or computes other bits */
    MOK_ERROR_UNSUPPORTED = 8, /* valid, but not built into this version */
    MOK_ERROR_STATE = 9, /* calls out of order: a schedule or activations that were never filled */
    MOK_ERROR_MISMATCH =
        10, /* ranks disagree on a shape, class or version, or on the call they make */
    MOK_ERROR_VALUE = 11,  /* a non-finite router weight */
    MOK_ERROR_FILE = 12,   /* a file is missing, truncated or altered (used by programs) */
    MOK_ERROR_OVERLAP = 13 /* an output overlaps an input or another output */
} mok_status;

/* The constant's name, "MOK_ERROR_ROUTE"; never NULL. */
MOK_API const char *mok_status_string(mok_status status);

/* Text of the last error on the calling thread; "" when there was none. Valid until the thread's
 * next failing call. For an error of another rank the text begins with "rank N: ". */
MOK_API const char *mok_last_error(void);

/* ---- Tensors
 * ---------------------------------------------------------------------------------------- */

typedef enum mok_dtype {
    MOK_DTYPE_BF16 = 1,
    MOK_DTYPE_F32 = 2,
    MOK_DTYPE_I32 = 3,
    MOK_DTYPE_I64 = 4,
    MOK_DTYPE_E4M3 = 5, /* MXFP8 elements: place kept, refused with MOK_ERROR_UNSUPPORTED */
    MOK_DTYPE_E8M0 = 6  /* MXFP8 scales: likewise */
} mok_dtype;

#define MOK_TENSOR_MAX_RANK 4

/* A view of memory that the caller owns. Rows may be apart: strides count elements, the innermost
 * stride must be 1 and an outer stride must not make rows overlap. Data are aligned to their
 * element size. A tensor with a zero extent may have data == NULL. */
typedef struct mok_tensor {
    size_t struct_bytes;
    void *data;
    mok_dtype dtype;
    int32_t rank;
    int64_t shape[MOK_TENSOR_MAX_RANK];
    int64_t stride[MOK_TENSOR_MAX_RANK];
} mok_tensor;

/* A contiguous row-major tensor. Unused extents are ignored: mok_tensor_2d(p, MOK_DTYPE_BF16, T,
 * H). */
MOK_API mok_tensor mok_tensor_1d(void *data, mok_dtype dtype, int64_t n0);
MOK_API mok_tensor mok_tensor_2d(void *data, mok_dtype dtype, int64_t n0, int64_t n1);
MOK_API mok_tensor mok_tensor_3d(void *data, mok_dtype dtype, int64_t n0, int64_t n1, int64_t n2);

/* Bytes of one element; 0 for an unknown dtype. */
MOK_API size_t mok_dtype_bytes(mok_dtype dtype);

/* ---- Ranks
 * ------------------------------------------------------------------------------------------ */

/* One rank's end of a communicator: its peers, its worker threads, its memory. */
typedef struct mok_comm mok_comm;

/* Which implementation of the CPU kernels runs. All give the same bytes. */
typedef enum mok_level {
    MOK_LEVEL_AUTO = 0, /* the fastest that this CPU has */
    MOK_LEVEL_REF = 1,  /* plain C, the definition; slow */
    MOK_LEVEL_AVX2 = 2,
    MOK_LEVEL_AVX512 = 3
} mok_level;

/* Where the library takes its memory. Both functions may be called by any thread; context is passed
 * on. allocate returns memory aligned to `alignment` (a power of two) or NULL. */
typedef struct mok_allocator {
    void *(*allocate)(void *context, size_t bytes, size_t alignment);
    void (*release)(void *context, void *memory, size_t bytes);
    void *context;
} mok_allocator;

typedef struct mok_comm_config {
    size_t struct_bytes;
    int32_t threads;    /* worker threads of this rank, the caller included; 1..256. Default 1 */
    int32_t timeout_ms; /* how long any wait may last; 1..86400000. Default 30000 */
    mok_level level;    /* Default MOK_LEVEL_AUTO; one that this CPU lacks is MOK_ERROR_DEVICE */
    mok_allocator allocator; /* Default: the C library */
} mok_comm_config;

MOK_API void mok_comm_config_init(mok_comm_config *config);

/* Opens R virtual ranks in this process.
 *
 *   out      [ranks] receives the handles, rank ascending; all NULL on failure. The caller closes
 * each ranks    1..MOK_MAX_RANKS config   NULL for the defaults; every rank gets the same
 *
 * Collective calls on the handles must then be made by `ranks` threads at once, one for each.
 * Errors   ARGUMENT, MEMORY, DEVICE. */
#define MOK_MAX_RANKS 64
MOK_API mok_status mok_comm_open_local(mok_comm **out, int32_t ranks,
                                       const mok_comm_config *config);

/* Opens this process as one of R ranks on this host, sharing memory with the others.
 *
 *   out      receives the handle, NULL on failure; the caller closes it
 *   name     1..64 letters, digits, '_' or '-', the same on every rank and unlike any other run's
 *   rank     0..ranks - 1, each once
 *   config   NULL for the defaults; timeout_ms and level may differ between ranks, threads too
 *
 * Collective. Names of shared memory are gone when it returns: a rank that dies later leaves
 * nothing behind. Errors   ARGUMENT (a name in use, too), MEMORY (shared memory is full), MISMATCH
 * (another version or number of ranks), DEVICE, PEER. */
MOK_API mok_status mok_comm_open_shm(mok_comm **out, const char *name, int32_t rank, int32_t ranks,
                                     const mok_comm_config *config);

/* Closes this rank's end, sets *comm to NULL and accepts NULL. Not collective: memory that ranks
 * share goes with the last of them. Layers on it must be closed first. */
MOK_API void mok_comm_close(mok_comm **comm);

MOK_API int32_t mok_comm_rank(const mok_comm *comm);
MOK_API int32_t mok_comm_size(const mok_comm *comm);
MOK_API int32_t mok_comm_threads(const mok_comm *comm);

/* Waits for every rank. Collective. Errors: PEER. */
MOK_API mok_status mok_comm_barrier(mok_comm *comm);

/* Gathers `bytes` bytes of every rank, rank ascending, into out [R * bytes] on every rank.
 * in and out must not overlap. Collective; any size, the same on every rank. Errors: ARGUMENT,
 * PEER. */
MOK_API mok_status mok_comm_allgather(mok_comm *comm, void *out, const void *in, size_t bytes);

/* Copies `bytes` bytes of rank `root` into data on every rank. Collective; any size.
 * Errors: ARGUMENT, PEER. */
MOK_API mok_status mok_comm_broadcast(mok_comm *comm, void *data, size_t bytes, int32_t root);

/* Agrees on a status: every rank passes its own, every rank returns that of the lowest rank that
 * has one other than MOK_OK, with that rank's mok_last_error() text. Collective. Errors: as passed,
 * PEER. */
MOK_API mok_status mok_comm_agree(mok_comm *comm, mok_status mine);

/* What was being done when a wait passed its deadline. */
typedef enum mok_phase {
    MOK_PHASE_NONE = 0,
    MOK_PHASE_OPEN = 1,
    MOK_PHASE_AGREE = 2,
    MOK_PHASE_SCHEDULE = 3,
    MOK_PHASE_FORWARD = 4,
    MOK_PHASE_RECOMPUTE = 5,
    MOK_PHASE_BACKWARD = 6,
    MOK_PHASE_FOLD = 7,
    MOK_PHASE_REDUCE = 8,
    MOK_PHASE_EXCHANGE = 9
} mok_phase;

MOK_API const char *mok_phase_string(mok_phase phase);

typedef struct mok_fault {
    size_t struct_bytes; /* set by the caller to sizeof(mok_fault) */
    int32_t rank;        /* who waited; -1 when there is no fault */
    int32_t peer;        /* whom it waited for; its own rank when a worker of its own was late */
    mok_phase phase;
    int64_t task_idx; /* the waiting task within its pass; -1 at a barrier */
    int64_t waited_ms;
} mok_fault;

/* Reads the first fault of this communicator; rank is -1 when there was none. After a fault every
 * call on the communicator returns MOK_ERROR_PEER at once; close it and open another. */
MOK_API mok_status mok_fault_read(mok_comm *comm, mok_fault *out);

/* ---- Layer
 * ------------------------------------------------------------------------------------------ */

/* The arithmetic class of every matrix product. Part of a run's identity. docs/numerics.md,
 * section 1. */
typedef enum mok_arith {
    MOK_ARITH_TC16 = 1, /* the tensor core's fused sum of 16 products */
    MOK_ARITH_FMA = 2   /* one fp32 fused multiply-add a step */
} mok_arith;

MOK_API const char *mok_arith_string(mok_arith arith); /* "tc16", "fma", "unknown" */

typedef enum mok_activation {
    MOK_ACTIVATION_SWIGLU = 1,        /* h = silu(g) * u */
    MOK_ACTIVATION_SWIGLU_CLAMPED = 2 /* g = min(g, limit), u = clamp(u, -limit, limit) first */
} mok_activation;

typedef enum mok_weights {
    MOK_WEIGHTS_BF16 = 1,
    MOK_WEIGHTS_MXFP8 = 2 /* place kept: MOK_ERROR_UNSUPPORTED in this version */
} mok_weights;

/* Rows are counted in blocks of this many; every expert's segment of a schedule is padded to whole
 * ones. */
#define MOK_ROW_BLOCK 128

typedef struct mok_layer_config {
    size_t struct_bytes;
    int64_t hidden;              /* H >= 1 */
    int64_t intermediate;        /* I >= 1, routed experts */
    int64_t shared_intermediate; /* I_s >= 1, or 0 for no shared expert. Default 0 */
    int64_t experts;             /* E >= 1 in all; see mok_expert_range for who holds which */
    int64_t slots;               /* K >= 1, routes of a token */
    int64_t max_tokens;          /* most tokens that any rank passes in a call; >= 0 */
    int64_t capacity_rows;       /* most padded rows of one rank; 0 for the worst case, which never
                                    overflows: roundup(R * max_tokens * K + 127 * E_r, 128) */
    int64_t macrobatch_rows;     /* rows of intermediates held at a time; a multiple of 128;
                                    0 for min(capacity, roundup(2 * max_tokens * K + 128 * E_r, 128)) */
    int64_t minibatch_rows; /* rows between two stages of the pipeline; a multiple of 128; more than
                               macrobatch_rows counts as that; 0 for min(macrobatch_rows, 1024) */
    mok_arith arith;        /* Default MOK_ARITH_TC16 */
    mok_activation activation; /* Default MOK_ACTIVATION_SWIGLU */
    float swiglu_limit;        /* finite, >= 0; read only by MOK_ACTIVATION_SWIGLU_CLAMPED */
    mok_weights weights;       /* Default MOK_WEIGHTS_BF16 */
} mok_layer_config;

MOK_API void mok_layer_config_init(mok_layer_config *config);

/* The experts of a rank: count = E / R, one more on the first E % R ranks; begin = experts of the
 * ranks before it. count may be 0 where R > E. rank in [0, ranks). Errors: ARGUMENT. */
MOK_API mok_status mok_expert_range(int64_t experts, int32_t ranks, int32_t rank, int64_t *begin,
                                    int64_t *count);

/* Bytes that the library allocates. docs/layer.md, "Memory", gives the formulas; a test holds both
 * equal. */
typedef struct mok_layer_sizes {
    size_t struct_bytes;      /* set by the caller to sizeof(mok_layer_sizes) */
    size_t arena_bytes;       /* memory that peers read and write, a rank and layer */
    size_t workspace_bytes;   /* this rank's own scratch, a layer */
    size_t activations_bytes; /* each mok_activations */
    size_t schedule_bytes;    /* each mok_schedule */
    size_t comm_bytes; /* this rank's end of the communicator: workers' scratch and staging */
} mok_layer_sizes;

/* What a layer of this configuration will allocate on `rank` of `ranks`, with `threads` workers a
 * rank. Opens nothing. Errors: as mok_layer_open's checks of the configuration. */
MOK_API mok_status mok_layer_sizes_query(mok_layer_sizes *out, const mok_layer_config *config,
                                         int32_t ranks, int32_t rank, int32_t threads);

typedef struct mok_layer mok_layer;       /* shape, arena, workspace */
typedef struct mok_schedule mok_schedule; /* which rows a rank computes, where they came from */
typedef struct mok_activations mok_activations; /* what forward keeps for backward */

/* Opens a layer on this rank. One handle can serve every MoE layer of a model that has this shape,
 * one call at a time, each with its own schedule and activations.
 *
 *   out      receives the layer, NULL on failure; the caller closes it before the communicator
 *   comm     this rank's end
 *   config   must be equal on every rank
 *
 * Collective. Errors: ARGUMENT, SHAPE, MEMORY, UNSUPPORTED, MISMATCH, PEER. */
MOK_API mok_status mok_layer_open(mok_layer **out, mok_comm *comm, const mok_layer_config *config);
MOK_API void mok_layer_close(mok_layer **layer); /* not collective; accepts NULL */

/* A line of text: shape, ranks, class, level, threads. buffer is always terminated. */
MOK_API mok_status mok_layer_describe(const mok_layer *layer, char *buffer, size_t buffer_bytes);

/* ---- Schedule
 * --------------------------------------------------------------------------------------- */

/* Memory for one schedule of this layer; close it before the layer. Not collective.
 * Errors: ARGUMENT, MEMORY. */
MOK_API mok_status mok_schedule_open(mok_schedule **out, mok_layer *layer);
MOK_API void mok_schedule_close(mok_schedule **schedule);

/* Builds this rank's schedule: which rows it computes, where each came from and goes back to.
 *
 *   schedule  opened on this layer; keeps the result until it is built again
 *   routes    [T, K] int32 or int64; an expert index in [0, E), or -1 for no route. A token may
 * name an expert twice: both are rows. T in [0, max_tokens]
 *
 * Collective; T may differ between ranks.
 * Errors   ROUTE (the message names token, slot and value), CAPACITY (rank, needed and available
 * rows), SHAPE, ARGUMENT, PEER. On an error the schedule is empty and cannot be used. Bytes    The
 * rows of an expert stand in ascending (source rank, token, slot), for any rank count. Source
 * docs/layer.md, "Schedule". */
MOK_API mok_status mok_schedule_build(mok_schedule *schedule, mok_layer *layer,
                                      const mok_tensor *routes);

/* The schedule's tables; pointers live until the schedule is built again or closed. */
typedef struct mok_schedule_view {
    size_t struct_bytes;      /* set by the caller to sizeof(mok_schedule_view) */
    int64_t tokens;           /* T of this rank */
    int64_t row_count;        /* padded rows of this rank */
    int64_t expert_begin;     /* first expert of this rank */
    int64_t expert_count;     /* E_r */
    const int32_t *peer_rank; /* [row_count] source rank, -1 in padding */
    const int32_t *peer_slot; /* [row_count] token * K + slot on the source rank, -1 in padding */
    const int64_t *rows_per_expert;  /* [E_r] padded rows */
    const int64_t *count_per_expert; /* [E_r] rows without padding */
} mok_schedule_view;

/* Errors: ARGUMENT, STATE when nothing was built. */
MOK_API mok_status mok_schedule_read(const mok_schedule *schedule, mok_schedule_view *out);

/* ---- Passes
 * ----------------------------------------------------------------------------------------- */

/* Memory for what one forward keeps; close it before the layer. Not collective.
 * Errors: ARGUMENT, MEMORY. */
MOK_API mok_status mok_activations_open(mok_activations **out, mok_layer *layer);
MOK_API void mok_activations_close(mok_activations **activations);

/* Weights as this rank stores them. Strides other than the innermost are free: gate and up may be
 * two views of one [E_r, 2I, H] tensor. The shared ones are left zeroed without a shared expert. */
typedef struct mok_weights_view {
    size_t struct_bytes;
    mok_tensor gate;        /* [E_r, I, H] bf16 */
    mok_tensor up;          /* [E_r, I, H] bf16 */
    mok_tensor down;        /* [E_r, H, I] bf16 */
    mok_tensor shared_gate; /* [I_s, H] bf16 */
    mok_tensor shared_up;   /* [I_s, H] bf16 */
    mok_tensor shared_down; /* [H, I_s] bf16 */
} mok_weights_view;

MOK_API void mok_weights_view_init(mok_weights_view *weights);

/* out[t] = shared(x[t]) + sum over k ascending of router_weights[t, k] * expert(routes[t,
 * k])(x[t]).
 *
 *   activations     receives what backward needs; opened on this layer
 *   out             [T, H] bf16
 *   schedule        built from these tokens' routes
 *   x               [T, H] bf16
 *   router_weights  [T, K] f32, finite; ignored where the route is -1. Applied as given, never
 * normalised weights         see mok_weights_view
 *
 * out may overlap nothing else. Nothing is allocated.
 * Collective. Errors: ARGUMENT, SHAPE, OVERLAP, STATE, VALUE, PEER.
 * Bytes    A token's result depends on nothing but itself, its routes and the weights.
 * Source   docs/layer.md, "Forward". */
MOK_API mok_status mok_forward(mok_layer *layer, mok_activations *activations,
                               const mok_tensor *out, const mok_schedule *schedule,
                               const mok_tensor *x, const mok_tensor *router_weights,
                               const mok_weights_view *weights);

/* Fills activations again with the bytes that mok_forward would leave, without computing out.
 * Collective. Errors: as mok_forward. */
MOK_API mok_status mok_recompute(mok_layer *layer, mok_activations *activations,
                                 const mok_schedule *schedule, const mok_tensor *x,
                                 const mok_weights_view *weights);

typedef enum mok_grad_mode {
    MOK_GRAD_STORE = 1, /* written; bf16 or f32 tensors. An expert with no rows gets exactly +0 */
    MOK_GRAD_ADD =
        2 /* main = main + dW, one fp32 add; f32 tensors. An expert with no rows is left */
} mok_grad_mode;

/* Where backward puts its results. */
typedef struct mok_gradients {
    size_t struct_bytes;
    mok_tensor dx;               /* [T, H] bf16 */
    mok_tensor d_router_weights; /* [T, K] f32; exactly +0 where the route is -1 */
    mok_grad_mode mode;          /* for gate, up and down. Default MOK_GRAD_STORE */
    mok_tensor gate;             /* [E_r, I, H] f32, or bf16 with MOK_GRAD_STORE */
    mok_tensor up;               /* [E_r, I, H] */
    mok_tensor down;             /* [E_r, H, I] */
    int64_t shared_lanes;   /* token lanes of this rank, 0..T; T % shared_lanes == 0. Default 1;
                               0 only where T is 0. Lane l holds tokens [l, l + 1) * T / lanes */
    mok_tensor shared_gate; /* [shared_lanes, I_s, H] f32, one partial a lane: mok_lane_reduce */
    mok_tensor shared_up;   /* [shared_lanes, I_s, H] f32 */
    mok_tensor shared_down; /* [shared_lanes, H, I_s] f32 */
} mok_gradients;

MOK_API void mok_gradients_init(mok_gradients *gradients);

/* All gradients of mok_forward.
 *
 *   gradients       receives them; see mok_gradients. Tensors must not overlap each other or an
 * input activations     filled by mok_forward or mok_recompute with the same schedule, x and
 * weights; they are consumed where the schedule has more than one macrobatch (call mok_recompute to
 * run backward again), and kept otherwise dy              [T, H] bf16, the gradient of out others
 * as given to mok_forward
 *
 * Collective. Errors: as mok_forward; STATE when activations are empty or of another schedule.
 * Bytes    Of routed experts: any rank count, chunking and threads give the same. Of the shared
 * expert: the partial of a lane depends on that lane's tokens alone, so only a fixed number of
 * lanes over the global batch makes the sum independent of the number of ranks. Source
 * docs/layer.md, "Backward". */
MOK_API mok_status mok_backward(mok_layer *layer, const mok_gradients *gradients,
                                mok_activations *activations, const mok_schedule *schedule,
                                const mok_tensor *dy, const mok_tensor *x,
                                const mok_tensor *router_weights, const mok_weights_view *weights);

/* ---- Reductions
 * ------------------------------------------------------------------------------------- */

/* out = +0, then plus each lane's partial, lane ascending over all ranks (rank 0's lanes first).
 *
 *   out       [count] f32, the same bytes on every rank
 *   partials  [lanes, count] f32, this rank's lanes; ranks may hold different numbers of lanes, 0
 * included
 *
 * out and partials must not overlap. Collective; count is the same on every rank.
 * Errors: ARGUMENT, OVERLAP, MISMATCH, PEER. Bytes: fixed by the global lanes, not by who holds
 * them. */
MOK_API mok_status mok_lane_reduce(mok_comm *comm, float *out, const float *partials, int64_t lanes,
                                   int64_t count);

/* ---- Digests
 * ---------------------------------------------------------------------------------------- */

/* XXH3, 128 bits, of a logical unit: its bytes, shape, dtype and arithmetic class. */
typedef struct mok_digest {
    uint64_t low;
    uint64_t high;
} mok_digest;

#define MOK_DIGEST_HEX_BYTES 33

/* Digest of one tensor, independent of its strides and address. Errors: ARGUMENT, SHAPE, MEMORY. */
MOK_API mok_status mok_digest_tensor(mok_digest *out, const mok_tensor *tensor, mok_arith arith);

/* Digest of digests in the order given: experts by global index, lanes by global index. count may
 * be 0. */
MOK_API mok_status mok_digest_combine(mok_digest *out, const mok_digest *digests, int64_t count);

/* 32 lower-case hexadecimal digits, high half first, and a terminating zero. */
MOK_API void mok_digest_hex(char hex[MOK_DIGEST_HEX_BYTES], const mok_digest *digest);

#ifdef __cplusplus
}
#endif
#endif
