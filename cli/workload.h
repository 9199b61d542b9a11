/* One global batch through one layer, for check and bench: made from a seed, run on any number of
 * ranks, its results held by token and by expert in global order. */
#ifndef CLI_WORKLOAD_H
#define CLI_WORKLOAD_H

#include "group.h"

typedef struct workload {
    int64_t tokens, hidden, inner, shared_inner, experts, slots, lanes;
    mok_arith arith;
    uint64_t seed;
    /* inputs */
    uint16_t *x, *dy, *gate, *up, *down, *shared_gate, *shared_up, *shared_down;
    int32_t *routes;
    float *router_weights;
    /* results, in global order */
    uint16_t *y, *dx;
    float *d_router_weights, *d_gate, *d_up, *d_down, *d_shared_gate, *d_shared_up, *d_shared_down;
} workload;

typedef struct workload_run {
    int32_t ranks, threads;
    mok_level level;
    int64_t macrobatch_rows, minibatch_rows;
    int32_t repeats;    /* whole steps; at least 1 */
    double step_s;      /* out: median time of a step on rank 0, layer already open */
    size_t layer_bytes; /* out: what rank 0's layer, schedule and activations took */
} workload_run;

/* Allocates and fills inputs; false when out of memory. Set the sizes first. */
bool workload_open(workload *w);
void workload_close(workload *w);

/* Forward and backward; poisons the results first. Text of a failure in why [240]. */
mok_status workload_step(workload *w, workload_run *run, char *why);

/* One digest of all results: tokens, experts and lanes in global order. */
mok_status workload_digest(const workload *w, mok_digest *out);

/* Multiply-adds of a step's products: forward and backward. */
double workload_macs(const workload *w);

#endif
