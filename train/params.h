/* The table of parameters. One table drives initialisation, AdamW, the gradient's norm, the digest
 * and the checkpoint, so that none of them can forget a tensor.
 *
 *   arrays    | replicated, every rank the same ............ | experts of this rank ............. |
 *   offset    0                              replicated_count                          local_count
 *
 * master, m, v, grad (fp32) and copy (bf16) have this one layout. An expert parameter holds a unit
 * for each expert of this rank, [E_r, unit]; logically it is [E, unit], and everything that leaves
 * the rank speaks of (parameter, expert by global index), which does not depend on the number of
 * ranks. */
#ifndef TRAIN_PARAMS_H
#define TRAIN_PARAMS_H

#include "config.h"

typedef enum param_kind { PARAM_REPLICATED = 1, PARAM_EXPERT = 2 } param_kind;

typedef struct param {
    char name[40];
    param_kind kind;
    int32_t rank;      /* of a unit */
    int64_t shape[2];  /* of a unit */
    int64_t unit_size; /* elements of a unit */
    int64_t units;     /* on this rank: 1, or its experts */
    int64_t offset;
    float deviation; /* of the first values; 0 for ones */
    bool decays;
} param;

/* Places in the table. */
typedef struct param_block {
    int32_t norm1, qkv, out, norm2, router, shared_gate, shared_up, shared_down, gate, up, down;
} param_block;

#define TRAIN_PARAMS_PER_BLOCK 11
#define TRAIN_MAX_PARAMS (3 + TRAIN_PARAMS_PER_BLOCK * TRAIN_MAX_BLOCKS)

typedef struct params {
    train_shape shape;
    param list[TRAIN_MAX_PARAMS];
    int32_t count;
    int32_t embedding, head, norm;
    param_block block[TRAIN_MAX_BLOCKS];
    int64_t expert_begin, expert_count; /* of this rank */
    int64_t replicated_count, local_count;
    float *master, *m, *v, *grad;
    uint16_t *copy;
    float
        *bias; /* [blocks, E]: the router's balancing biases; state, but not trained by gradient */
} params;

/* Lays the table out for a rank; allocates nothing. */
void params_describe(params *out, const train_shape *shape, int32_t ranks, int32_t rank);

/* Trained values of the whole model. */
int64_t params_total(const params *p);

/* Takes the arrays from an arena (which may be only measuring). */
void params_place(params *p, train_arena *arena);

/* First values: a function of (seed, parameter, expert, element). Moments and biases are zero. */
void params_init(params *p, uint64_t seed);

/* copy = bf16(master) over elements [begin, end). */
void params_copy(params *p, int64_t begin, int64_t end);

/* A unit's values in one of the arrays. unit is local. */
static inline float *params_unit(float *array, const param *item, int64_t unit)
{
    return array + item->offset + unit * item->unit_size;
}

#endif
