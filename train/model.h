/* The model: embedding, blocks of attention and mixture of experts, head. docs/training.md has the
 * equations.
 *
 * Activations of a rank are laid out by token, lane after lane, sequence after sequence. The
 * residual stream and all gradients along it are fp32; what enters a product is bf16. A weight
 * gradient is one product a lane, written into that lane's row of `partials` and summed over all
 * lanes of all ranks by mok_lane_reduce, so that no sum knows how many ranks there are. Routed
 * experts' gradients come from the layer, whose sums run in the order of the global batch. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "params.h"

/* What the forward pass of a block keeps for the backward pass. */
typedef struct block_saved {
    float *x1, *x2;         /* [T, H] the stream before each norm */
    float *scale1, *scale2; /* [T] 1 / root mean square */
    uint16_t *n1, *n2;      /* [T, H] normed */
    uint16_t *qkv;          /* [T, 3H] queries and keys rotated */
    uint16_t *p;            /* [sequences, heads, length, length] */
    uint16_t *context;      /* [T, H] */
    float *score;           /* [T, E] sigmoid of the router's logits */
    int32_t *routes;        /* [T, K] */
    float *weights;         /* [T, K] */
    mok_schedule *schedule;
    mok_activations *activations;
} block_saved;

typedef struct model {
    const train_config *config;
    mok_comm *comm;
    mok_layer *layer;
    params params;
    int64_t max_tokens; /* of this rank: its lanes */
    int64_t lanes;      /* of this rank */
    int64_t lane_begin;
    block_saved block[TRAIN_MAX_BLOCKS];

    /* Of the current batch. */
    int64_t sequences, length, tokens;

    /* Working memory. */
    uint8_t *input, *target;           /* [T] */
    float *x;                          /* [T, H] the stream; after forward its final value */
    float *final_scale;                /* [T] */
    uint16_t *final;                   /* [T, H] */
    float *logits;                     /* [T, 256]; in backward their gradient */
    uint16_t *wide;                    /* [T, max(3H, 256, E)] */
    uint16_t *narrow, *narrow2;        /* [T, H] */
    float *product;                    /* [T, max(3H, E)] */
    float *scores;                     /* [sequences, heads, length, length] */
    uint16_t *scores16;                /* likewise */
    float *dx;                         /* [T, H] gradient of the stream */
    float *d_weights;                  /* [T, K] */
    float *partials;                   /* [lanes, replicated_count] */
    float *rotary;                     /* [length, head / 2, 2] cosine and sine */
    double lane_loss[TRAIN_MAX_LANES]; /* of this rank's lanes, sums over tokens */
    mok_product *products;             /* list for mok_product_run */
    int64_t max_products;
    void *memory;
} model;

/* Takes memory and opens the layer; collective. Errors: MEMORY and those of the layer. */
mok_status model_open(model *m, const train_config *config, mok_comm *comm, char *why);
void model_close(model *m);

/* Forward over `sequences` sequences of `length` tokens in m->input; sequences may be 0 on a rank.
 * Leaves the logits and what backward needs. Collective. */
mok_status model_forward(model *m, int64_t sequences, int64_t length);

/* Sums of -log p(target) of each lane of this rank into lane_loss, and, with gradient, the logits'
 * gradient in place of the logits. `global_tokens` divides it. */
mok_status model_loss(model *m, int64_t global_tokens, bool gradient);

/* All gradients into params.grad: those of replicated parameters summed over all lanes. Collective.
 */
mok_status model_backward(model *m);

/* Bytes that all ranks together will allocate, the layer's included; opens nothing. A double,
 * because absurd sizes pass 2^63. Errors: MEMORY, and those of the layer's checks of its
 * configuration. */
mok_status model_memory_bytes(double *bytes, const train_config *config, int32_t threads,
                              char *why);

/* The experts' weights of a block as the layer takes them. */
mok_weights_view model_experts(const model *m, int64_t block);

/* ---- Pieces, in elementwise.c and attention.c ---- */

mok_status norm_forward(model *m, uint16_t *out, float *scale, const float *x, const float *weight);
/* dx += gradient through the norm of dy; the weight's gradient goes to each lane's partial. */
mok_status norm_backward(model *m, const float *dy, const float *x, const float *scale,
                         int32_t param_idx);
mok_status embed_forward(model *m);
mok_status embed_backward(model *m);
mok_status add_stream(model *m, const uint16_t *y);
mok_status add_stream_f32(model *m, const float *y);
mok_status narrow_stream(model *m, uint16_t *out, const float *x, int64_t columns);
mok_status router_forward(model *m, block_saved *saved, const float *logits, const float *bias);
mok_status router_backward(model *m, const block_saved *saved, uint16_t *d_logits);
mok_status attention_forward(model *m, block_saved *saved);
/* From the gradient of the context to that of qkv (before rotation), both bf16. */
mok_status attention_backward(model *m, const block_saved *saved, uint16_t *d_qkv,
                              const uint16_t *d_context);
void rotary_table(float *out, int64_t length, int64_t head);

/* out [T, rows] = a [T, columns] . weight [rows, columns]^T; one of the outputs is NULL. */
mok_status project(model *m, float *out32, uint16_t *out16, const uint16_t *a, int32_t param_idx);
/* out [T, columns] = d [T, rows] . weight [rows, columns]. */
mok_status project_back(model *m, float *out32, uint16_t *out16, const uint16_t *d,
                        int32_t param_idx);
/* Each lane's partial of the weight: d^T . a over the lane's tokens. */
mok_status project_gradient(model *m, const uint16_t *d, const uint16_t *a, int32_t param_idx);

static inline int64_t model_lane_tokens(const model *m)
{
    return m->lanes > 0 ? m->tokens / m->lanes : 0;
}

static inline const uint16_t *model_weight(const model *m, int32_t idx)
{
    return m->params.copy + m->params.list[idx].offset;
}

static inline float *model_partial(const model *m, int64_t lane, int32_t idx)
{
    return m->partials + lane * m->params.replicated_count + m->params.list[idx].offset;
}

#endif
