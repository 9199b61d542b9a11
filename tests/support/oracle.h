/* The layer in plain double precision, without any rounding between its steps: what the library's
 * results are measured against. Written from the equations, not from src/ref; finite differences
 * check its gradients. */
#ifndef MOK_TESTS_ORACLE_H
#define MOK_TESTS_ORACLE_H

#include "problem.h"

/* Inputs as doubles, so that finite differences can move them. All arrays belong to the oracle. */
typedef struct oracle {
    const problem *p;
    bool round_clamp; /* whether a value is beyond the limit is decided on its bf16 form, as the
                         library does: between the two the gradient is 0 or not, which no noise
                         bound covers */
    double *x, *gate, *up, *down, *shared_gate, *shared_up, *shared_down, *router_weights;
    double *dy;
    /* results */
    double *y, *dx, *d_router_weights, *d_gate, *d_up, *d_down, *d_shared_gate, *d_shared_up,
        *d_shared_down;
} oracle;

void oracle_open(oracle *o, const problem *p); /* copies the inputs of p */
void oracle_close(oracle *o);

void oracle_forward(oracle *o);
void oracle_backward(oracle *o); /* all gradients; forward need not have run */

/* sum of y * dy: what the gradients are gradients of. Runs forward. */
double oracle_objective(oracle *o);

#endif
