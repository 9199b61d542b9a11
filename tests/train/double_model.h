/* The trainer's model once more, in double precision and by the plainest loops: what the fast one
 * is held against. It shares nothing with it but the table of parameters and the chosen routes,
 * which are not differentiable and are therefore given. */
#ifndef TESTS_TRAIN_DOUBLE_MODEL_H
#define TESTS_TRAIN_DOUBLE_MODEL_H

#include "model.h"

typedef struct double_model {
    const params *table;
    int64_t sequences, length;
    const uint8_t *input, *target;           /* [sequences * length] */
    const int32_t *routes[TRAIN_MAX_BLOCKS]; /* [sequences * length, K] */
    double *weight;                          /* in the table's layout */
} double_model;

/* Takes the shapes, the batch, the routes and the weights (as the products see them: bf16, norms
 * fp32) of a model on one rank that has run forward. The caller closes it; the model must outlive
 * it. */
void double_model_open(double_model *d, const model *m);
void double_model_close(double_model *d);

/* Mean of -log p(target). */
double double_model_loss(const double_model *d);

#endif
