/* Clipping, AdamW and the router's balancing biases: all that a step does to the state.
 *
 * Called in this order after a backward pass: balance (from the routes of that pass), norm, step.
 * Every rank ends with the same replicated values, and with its own experts' part of the rest. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "model.h"

/* The gradient's norm over all parameters, units in global order. Collective. */
mok_status optimizer_norm(const model *m, double *norm);

/* One step: gradients scaled by clip / norm where norm is above it, moments, decoupled decay, fp32
 * master weights, bf16 copies. step counts from 0. */
mok_status optimizer_step(model *m, int64_t step, double norm);

/* bias += rate where an expert got fewer routes than the mean over the global batch, -= rate where
 * more. load receives [blocks, E] routes of the global batch. Collective. */
mok_status optimizer_balance(model *m, int64_t *load);

#endif
