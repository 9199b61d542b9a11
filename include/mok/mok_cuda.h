/* libmok on a Hopper GPU: virtual ranks of one layer on one device.
 *
 * The same schedule and the same bytes as the CPU library in class tc16. Everything is ordered by
 * the caller's stream; nothing synchronises with the host, so calls can be captured into a graph
 * (addresses are frozen at capture; contents may change). R ranks share the device: one cooperative
 * launch is cut into R equal parts. What goes wrong on the device is read with mok_cuda_fault_read:
 * after a fault the kernels of later calls write nothing, until it is cleared or the layer closed.
 *
 * Status: forward and backward in bf16. Needs compute capability 9.0 (sm_90a). */
#ifndef MOK_MOK_CUDA_H
#define MOK_MOK_CUDA_H

#include <mok/mok.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOK_CUDA_MAX_RANKS 8
#define MOK_CUDA_MAX_EXPERTS 2048

typedef struct mok_cuda_config {
    size_t struct_bytes;
    int32_t device;      /* CUDA ordinal. Default 0 */
    int32_t ranks;       /* virtual ranks, 1..MOK_CUDA_MAX_RANKS. Default 1 */
    int32_t comm_blocks; /* blocks of each rank that begin with communication; 0 for an eighth */
    int32_t timeout_ms;  /* of any wait on the device. Default 10000 */
    int32_t
        stalled_rank; /* a rank that never arrives, for tests of the deadline. Default -1: none */
    int32_t forward_only; /* leave out the memory that only backward needs. Default 0 */
    int32_t trace_events; /* events kept of each role of each block of the last pass. Default 0: no
                             trace */
} mok_cuda_config;

MOK_API void mok_cuda_config_init(mok_cuda_config *config);

typedef struct mok_cuda_layer mok_cuda_layer;

/* Opens R virtual ranks of a layer and runs the device's self-test.
 *
 *   config   as for mok_layer_open; hidden, intermediate and shared_intermediate multiples of 16,
 * class tc16, experts at most MOK_CUDA_MAX_EXPERTS
 *
 * Allocates all memory of the layer on the device and synchronises with it; later calls do neither.
 * Errors: ARGUMENT, SHAPE, MEMORY, UNSUPPORTED, DEVICE (no such device, or its arithmetic differs).
 */
MOK_API mok_status mok_cuda_layer_open(mok_cuda_layer **out, const mok_layer_config *config,
                                       const mok_cuda_config *cuda);
MOK_API void mok_cuda_layer_close(mok_cuda_layer **layer); /* waits for the device; accepts NULL */

/* Bytes of device memory that the layer holds, all ranks. */
MOK_API size_t mok_cuda_layer_bytes(const mok_cuda_layer *layer);

/* Builds every rank's schedule.
 *
 *   routes   [ranks] tensors [T_r, K] in device memory, all int32 or all int64
 *   stream   a cudaStream_t
 *
 * Errors at once: ARGUMENT, SHAPE, CAPACITY (tokens). Later, through mok_cuda_fault_read: ROUTE,
 * CAPACITY. */
MOK_API mok_status mok_cuda_schedule_build(mok_cuda_layer *layer, const mok_tensor *routes,
                                           void *stream);

/* One rank's tensors, in device memory, rows 16-byte aligned. */
typedef struct mok_cuda_rank_io {
    mok_tensor out;            /* [T_r, H] bf16 */
    mok_tensor x;              /* [T_r, H] bf16 */
    mok_tensor router_weights; /* [T_r, K] f32 */
    mok_weights_view weights;
} mok_cuda_rank_io;

/* Forward of every rank, as mok_forward. io is [ranks]; T_r as in the last mok_cuda_schedule_build.
 * Errors at once: ARGUMENT, SHAPE, STATE, DEVICE (the launch was refused). Later: PEER. */
MOK_API mok_status mok_cuda_forward(mok_cuda_layer *layer, const mok_cuda_rank_io *io,
                                    void *stream);

/* What backward reads and writes of one rank, in device memory, rows 16-byte aligned. */
typedef struct mok_cuda_rank_gradients {
    mok_tensor dy;           /* [T_r, H] bf16 */
    mok_gradients gradients; /* as for mok_backward; shared_lanes at most 64 */
} mok_cuda_rank_gradients;

/* All gradients of the last mok_cuda_forward, as mok_backward. x, g and u are still in the layer's
 * ring, which must hold all rows of the schedule (macrobatch_rows at least as large); a handle
 * serves one MoE layer of a model between its forward and its backward. io as given to forward;
 * io[r].out is not looked at. Errors at once: ARGUMENT, SHAPE, STATE (no forward since the last
 * schedule), UNSUPPORTED (forward_only), DEVICE. Later: CAPACITY (needed and available rows of the
 * ring), PEER. */
MOK_API mok_status mok_cuda_backward(mok_cuda_layer *layer, const mok_cuda_rank_io *io,
                                     const mok_cuda_rank_gradients *gradients, void *stream);

/* The device's first failure: MOK_OK and rank -1 when there was none, else its status, the fault,
 * and text in mok_last_error. Does not wait: synchronise the stream first. */
MOK_API mok_status mok_cuda_fault_read(mok_cuda_layer *layer, mok_fault *out);

/* Forgets a fault of the caller's input (ROUTE, CAPACITY, VALUE); build a schedule next. Waits for
 * the device. Errors: STATE after a rank that did not arrive, when only closing is left. */
MOK_API mok_status mok_cuda_fault_clear(mok_cuda_layer *layer);

/* Copies a rank's schedule to the host, for tests and tools; waits for the device. peer_rank and
 * peer_slot hold capacity_rows elements, counts E_r; any may be NULL. */
MOK_API mok_status mok_cuda_schedule_copy(mok_cuda_layer *layer, int32_t rank, int64_t *row_count,
                                          int32_t *peer_rank, int32_t *peer_slot, int64_t *counts);

/* ---- Trace ---- */

typedef enum mok_cuda_role {
    MOK_CUDA_ROLE_COMM = 0, /* dispatch, the meeting of ranks, the fold */
    MOK_CUDA_ROLE_PRODUCER, /* takes tasks and loads their operands */
    MOK_CUDA_ROLE_CONSUMER, /* products */
    MOK_CUDA_ROLE_STORE     /* SwiGLU, results, combine */
} mok_cuda_role;

typedef enum mok_cuda_what {
    MOK_CUDA_WORK = 0,
    MOK_CUDA_WAIT,    /* for what the task needs */
    MOK_CUDA_BARRIER, /* for the other ranks */
    MOK_CUDA_FOLD
} mok_cuda_what;

typedef struct mok_cuda_event {
    int64_t begin_ns, end_ns; /* from the begin of the pass */
    int32_t rank, block;      /* block of the grid */
    mok_cuda_role role;
    mok_cuda_what what;
    int32_t kind; /* of the task; see mok_cuda_task_string */
    int32_t row_block, col;
} mok_cuda_event;

/* Copies the events of the last pass, in no order; waits for the device. *count receives how many
 * there are, of which at most `capacity` are written. Errors: ARGUMENT, STATE (opened without
 * trace_events). */
MOK_API mok_status mok_cuda_trace_read(mok_cuda_layer *layer, mok_cuda_event *out, int64_t capacity,
                                       int64_t *count);

/* "gate_up", "down", "dispatch"...; "unknown" for other numbers. */
MOK_API const char *mok_cuda_task_string(int32_t kind);

#ifdef __cplusplus
}
#endif
#endif
