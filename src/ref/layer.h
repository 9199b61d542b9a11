/* The whole layer in plain C: no ranks, no tasks, no tiles, to be read beside docs/layer.md.
 *
 * Takes the global batch and every expert, and gives what all ranks together must give. Tests and
 * `mok check` hold the library against it. Slow on purpose: every product goes through the
 * reference kernels. */
#ifndef MOK_REF_LAYER_H
#define MOK_REF_LAYER_H

#include "cpu/kernels.h"

/* All tensors are contiguous and row-major. */
typedef struct mok_ref_layer {
    int64_t tokens, hidden, inner, shared_inner, experts, slots; /* T, H, I, I_s (0: none), E, K */
    mok_arith arith;
    mok_swiglu swiglu;
    const uint16_t *x;                       /* [T, H] */
    const int32_t *routes;                   /* [T, K] */
    const float *router_weights;             /* [T, K] */
    const uint16_t *gate, *up;               /* [E, I, H] */
    const uint16_t *down;                    /* [E, H, I] */
    const uint16_t *shared_gate, *shared_up; /* [I_s, H] */
    const uint16_t *shared_down;             /* [H, I_s] */
    int64_t lanes;                           /* token lanes of the global batch; divides T */
} mok_ref_layer;

typedef struct mok_ref_gradients {
    uint16_t *dx;                   /* [T, H] */
    float *d_router_weights;        /* [T, K] */
    float *gate, *up;               /* [E, I, H] */
    float *down;                    /* [E, H, I] */
    float *shared_gate, *shared_up; /* [lanes, I_s, H] */
    float *shared_down;             /* [lanes, H, I_s] */
} mok_ref_gradients;

/* out [T, H]. Errors: MEMORY. */
mok_status mok_ref_forward(const mok_ref_layer *layer, uint16_t *out);

/* dy [T, H]. Errors: MEMORY. */
mok_status mok_ref_backward(const mok_ref_layer *layer, const mok_ref_gradients *out,
                            const uint16_t *dy);

#endif
