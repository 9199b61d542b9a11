/* One rank's side of a problem, call by call: where problem_run shows that a whole step is right, a
 * rig lets a test stop between the calls, spoil one argument, and see whether an output was
 * touched.
 *
 * A rank takes tokens [rank * T / R, (rank + 1) * T / R) and its experts. All outputs lie in one
 * block that is filled with a poison byte, so "no output has been written" is one comparison. */
#ifndef MOK_TESTS_RIG_H
#define MOK_TESTS_RIG_H

#include "problem.h"

#define RIG_POISON 0xC3

typedef struct rig {
    const problem *p;
    mok_comm *comm;
    mok_layer_config config;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_activations *activations;
    mok_tensor routes, x, dy, router_weights, y;
    mok_weights_view weights;
    mok_gradients gradients;
    unsigned char *outputs;
    size_t output_bytes;
} rig;

/* Tensors and configuration; opens nothing in the library. */
void rig_init(rig *r, const problem *p, mok_comm *comm);

/* Layer, then schedule and activations; ranks agree after what is not collective. */
mok_status rig_open(rig *r);

mok_status rig_build(rig *r);
mok_status rig_forward(rig *r);
mok_status rig_recompute(rig *r);
mok_status rig_backward(rig *r);

/* Build, forward and backward. */
mok_status rig_step(rig *r);

bool rig_untouched(const rig *r);
void rig_poison(rig *r);

/* Accepts a rig of which only a part was opened. */
void rig_close(rig *r);

/* A problem of a few kilobytes with everything switched on. */
problem rig_problem(mok_arith arith);

#endif
