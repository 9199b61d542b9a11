/* One rank's side of a problem, call by call; see rig.h. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

problem rig_problem(mok_arith arith)
{
    problem p = {0};
    p.tokens = 40;
    p.hidden = 32;
    p.inner = 24;
    p.shared_inner = 16;
    p.experts = 5;
    p.slots = 2;
    p.lanes = 1;
    p.arith = arith;
    p.routing = ROUTING_UNIFORM;
    p.seed = 5;
    return p;
}

/* Takes the next part of the output block, or only counts it while there is no block yet. */
static void *carve(rig *r, int64_t count, size_t element)
{
    unsigned char *part = r->outputs != NULL ? r->outputs + r->output_bytes : NULL;
    r->output_bytes += ((size_t)count * element + 63) / 64 * 64;
    return part;
}

static void carve_outputs(rig *r, int64_t t, int64_t e)
{
    const problem *p = r->p;
    const int64_t h = p->hidden;
    mok_gradients *g = &r->gradients;
    r->output_bytes = 0;
    r->y = mok_tensor_2d(carve(r, t * h, 2), MOK_DTYPE_BF16, t, h);
    mok_gradients_init(g);
    g->shared_lanes = t > 0 ? 1 : 0;
    g->dx = mok_tensor_2d(carve(r, t * h, 2), MOK_DTYPE_BF16, t, h);
    g->d_router_weights = mok_tensor_2d(carve(r, t * p->slots, 4), MOK_DTYPE_F32, t, p->slots);
    g->gate = mok_tensor_3d(carve(r, e * p->inner * h, 4), MOK_DTYPE_F32, e, p->inner, h);
    g->up = mok_tensor_3d(carve(r, e * p->inner * h, 4), MOK_DTYPE_F32, e, p->inner, h);
    g->down = mok_tensor_3d(carve(r, e * p->inner * h, 4), MOK_DTYPE_F32, e, h, p->inner);
    const int64_t l = g->shared_lanes;
    const int64_t s = p->shared_inner;
    g->shared_gate = mok_tensor_3d(carve(r, l * s * h, 4), MOK_DTYPE_F32, l, s, h);
    g->shared_up = mok_tensor_3d(carve(r, l * s * h, 4), MOK_DTYPE_F32, l, s, h);
    g->shared_down = mok_tensor_3d(carve(r, l * s * h, 4), MOK_DTYPE_F32, l, h, s);
}

static void set_inputs(rig *r, int64_t token, int64_t t, int64_t expert, int64_t e)
{
    const problem *p = r->p;
    const int64_t h = p->hidden;
    const int64_t first = expert * p->inner * h;
    r->routes = mok_tensor_2d(p->routes + token * p->slots, MOK_DTYPE_I32, t, p->slots);
    r->x = mok_tensor_2d(p->x + token * h, MOK_DTYPE_BF16, t, h);
    r->dy = mok_tensor_2d(p->dy + token * h, MOK_DTYPE_BF16, t, h);
    r->router_weights =
        mok_tensor_2d(p->router_weights + token * p->slots, MOK_DTYPE_F32, t, p->slots);
    mok_weights_view_init(&r->weights);
    r->weights.gate = mok_tensor_3d(p->gate + first, MOK_DTYPE_BF16, e, p->inner, h);
    r->weights.up = mok_tensor_3d(p->up + first, MOK_DTYPE_BF16, e, p->inner, h);
    r->weights.down = mok_tensor_3d(p->down + first, MOK_DTYPE_BF16, e, h, p->inner);
    r->weights.shared_gate = mok_tensor_2d(p->shared_gate, MOK_DTYPE_BF16, p->shared_inner, h);
    r->weights.shared_up = mok_tensor_2d(p->shared_up, MOK_DTYPE_BF16, p->shared_inner, h);
    r->weights.shared_down = mok_tensor_2d(p->shared_down, MOK_DTYPE_BF16, h, p->shared_inner);
}

void rig_init(rig *r, const problem *p, mok_comm *comm)
{
    const int32_t ranks = mok_comm_size(comm);
    const int32_t rank = mok_comm_rank(comm);
    memset(r, 0, sizeof *r);
    r->p = p;
    r->comm = comm;
    int64_t expert = 0;
    int64_t e = 0;
    if (mok_expert_range(p->experts, ranks, rank, &expert, &e) != MOK_OK) {
        abort();
    }
    const int64_t token = rank * p->tokens / ranks;
    const int64_t t = (rank + 1) * p->tokens / ranks - token;
    set_inputs(r, token, t, expert, e);
    carve_outputs(r, t, e);
    r->outputs = aligned_alloc(64, r->output_bytes + 64);
    if (r->outputs == NULL) {
        abort();
    }
    carve_outputs(r, t, e);
    rig_poison(r);
    mok_layer_config_init(&r->config);
    r->config.hidden = p->hidden;
    r->config.intermediate = p->inner;
    r->config.shared_intermediate = p->shared_inner;
    r->config.experts = p->experts;
    r->config.slots = p->slots;
    r->config.max_tokens = p->tokens;
    r->config.arith = p->arith;
}

mok_status rig_open(rig *r)
{
    mok_status status = mok_layer_open(&r->layer, r->comm, &r->config);
    if (status != MOK_OK) {
        return status;
    }
    status = mok_schedule_open(&r->schedule, r->layer);
    if (status == MOK_OK) {
        status = mok_activations_open(&r->activations, r->layer);
    }
    return mok_comm_agree(r->comm, status);
}

mok_status rig_build(rig *r)
{
    return mok_schedule_build(r->schedule, r->layer, &r->routes);
}

mok_status rig_forward(rig *r)
{
    return mok_forward(r->layer, r->activations, &r->y, r->schedule, &r->x, &r->router_weights,
                       &r->weights);
}

mok_status rig_recompute(rig *r)
{
    return mok_recompute(r->layer, r->activations, r->schedule, &r->x, &r->weights);
}

mok_status rig_backward(rig *r)
{
    return mok_backward(r->layer, &r->gradients, r->activations, r->schedule, &r->dy, &r->x,
                        &r->router_weights, &r->weights);
}

mok_status rig_step(rig *r)
{
    mok_status status = rig_build(r);
    if (status == MOK_OK) {
        status = rig_forward(r);
    }
    return status == MOK_OK ? rig_backward(r) : status;
}

bool rig_untouched(const rig *r)
{
    for (size_t i = 0; i < r->output_bytes; i++) {
        if (r->outputs[i] != RIG_POISON) {
            return false;
        }
    }
    return true;
}

void rig_poison(rig *r)
{
    memset(r->outputs, RIG_POISON, r->output_bytes);
}

void rig_close(rig *r)
{
    mok_activations_close(&r->activations);
    mok_schedule_close(&r->schedule);
    mok_layer_close(&r->layer);
    free(r->outputs);
    r->outputs = NULL;
}
