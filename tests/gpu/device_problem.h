/* A test problem on the device: uploaded once, run on any number of virtual ranks, read back in
 * global order. Every device buffer stands between guard bands, and outputs are poisoned before
 * each run. */
#ifndef MOK_TESTS_GPU_DEVICE_PROBLEM_H
#define MOK_TESTS_GPU_DEVICE_PROBLEM_H

#include <cuda_runtime_api.h>
#include <mok/mok_cuda_ranks.h>

#include "problem.h"

typedef struct device_config {
    int32_t ranks, comm_blocks, timeout_ms, stalled_rank;
    int64_t macrobatch_rows, minibatch_rows, capacity_rows;
    const int64_t *split; /* [ranks] tokens of each rank; NULL: evenly, the first ones one more */
    bool int64_routes;
    bool by_lanes; /* ranks hold whole lanes of the problem; split is then not looked at */
    bool forward_only;
    mok_grad_mode mode;
    bool bf16_gradients; /* with MOK_GRAD_STORE */
    mok_comm *comm;      /* this process is one of the ranks; NULL: it has all of them */
    const mok_cuda_memory *memory;
} device_config;

typedef struct device_problem {
    problem *p;
    device_config config;
    mok_cuda_layer *layer;
    cudaStream_t stream;
    unsigned char *x, *y, *gate, *up, *down, *shared_gate, *shared_up, *shared_down;
    unsigned char *routes, *router_weights; /* rank after rank, each 256-byte aligned */
    unsigned char *dy, *dx, *d_router, *d_gate, *d_up, *d_down; /* without forward_only */
    unsigned char *d_shared[3]; /* gate, up, down; a lane after the other */
    mok_tensor route_view[MOK_CUDA_MAX_RANKS];
    mok_cuda_rank_io io[MOK_CUDA_MAX_RANKS];
    mok_cuda_rank_gradients back[MOK_CUDA_MAX_RANKS];
} device_problem;

device_config device_config_default(void);

/* 0, or the status with a text in mok_last_error. A failing CUDA call ends the program with its
 * text. */
mok_status device_problem_open(device_problem *d, problem *p, const device_config *config);
void device_problem_close(device_problem *d);

/* Copies x, dy, routes and router weights again from the problem. */
void device_problem_upload(device_problem *d);

/* Fills y with a byte. */
void device_problem_poison(device_problem *d, int byte);

/* The schedule alone. */
mok_status device_problem_schedule(device_problem *d);

/* Schedule and forward on the problem's stream; does not wait. */
mok_status device_problem_launch(device_problem *d);

/* Fills every gradient with a byte. */
void device_problem_poison_gradients(device_problem *d, int byte);

/* Backward after a launched forward; does not wait. */
mok_status device_problem_launch_backward(device_problem *d);

/* Waits; all gradients (f32 or bf16 as configured: bf16 ones fill half of their arrays) into r,
 * which was opened for the problem. With by_lanes the shared expert's too. */
bool device_problem_read_gradients(device_problem *d, result *r, char *why, size_t why_bytes);

/* Waits; y [tokens, H] to the host; checks guard bands. False, with a text, where a band was
 * written. */
bool device_problem_read(device_problem *d, uint16_t *y, char *why, size_t why_bytes);

/* Launch, wait, read. On any failure *why says so and false is returned. */
bool device_problem_run(device_problem *d, uint16_t *y, char *why, size_t why_bytes);

void cuda_must(cudaError_t error, const char *what);

#endif
