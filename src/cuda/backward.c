/* Backward on an open layer: checks, tensor maps, launches. */
#include <string.h>

#include "cuda/layer.h"
#include "cuda/peers.h"
#include "layer/check.h"

/* ---- Checks ---- */

static mok_status check_outputs(const mok_shape *shape, const mok_gradients *g, int32_t r)
{
    const struct {
        const mok_tensor *tensor;
        const char *name;
    } aligned[] = {{&g->dx, "gradients.dx"},
                   {&g->gate, "gradients.gate"},
                   {&g->up, "gradients.up"},
                   {&g->down, "gradients.down"},
                   {&g->shared_gate, "gradients.shared_gate"},
                   {&g->shared_up, "gradients.shared_up"},
                   {&g->shared_down, "gradients.shared_down"}};
    const int count = shape->shared_inner > 0 ? 7 : 4;
    for (int i = 0; i < count; i++) {
        MOK_TRY(mok_cuda_check_aligned(aligned[i].tensor, aligned[i].name, r));
    }
    MOK_REQUIRE(shape->shared_inner == 0 || g->shared_lanes <= MOK_CUDA_MAX_LANES, MOK_ERROR_SHAPE,
                "gradients[%d].shared_lanes is %lld, must be at most %d on the device", r,
                (long long)g->shared_lanes, MOK_CUDA_MAX_LANES);
    return MOK_OK;
}

static mok_status check_apart(const mok_shape *shape, const mok_cuda_rank_io *io,
                              const mok_cuda_rank_gradients *back)
{
    const mok_weights_view *w = &io->weights;
    const mok_gradients *g = &back->gradients;
    const bool shared = shape->shared_inner > 0;
    mok_named_tensor tensors[17] = {
        {"gradients.dx", &g->dx, true},
        {"gradients.d_router_weights", &g->d_router_weights, true},
        {"gradients.gate", &g->gate, true},
        {"gradients.up", &g->up, true},
        {"gradients.down", &g->down, true},
        {"dy", &back->dy, false},
        {"x", &io->x, false},
        {"router_weights", &io->router_weights, false},
        {"weights.gate", &w->gate, false},
        {"weights.up", &w->up, false},
        {"weights.down", &w->down, false},
    };
    const mok_named_tensor more[6] = {
        {"gradients.shared_gate", &g->shared_gate, true},
        {"gradients.shared_up", &g->shared_up, true},
        {"gradients.shared_down", &g->shared_down, true},
        {"weights.shared_gate", &w->shared_gate, false},
        {"weights.shared_up", &w->shared_up, false},
        {"weights.shared_down", &w->shared_down, false},
    };
    if (shared) {
        memcpy(tensors + 11, more, sizeof more);
    }
    return mok_check_overlap(tensors, shared ? 17 : 11);
}

static mok_status check_rank(const mok_cuda_layer *layer, const mok_cuda_rank_io *io,
                             const mok_cuda_rank_gradients *back, int32_t r)
{
    const mok_shape *shape = &layer->rank[r].shape;
    const int64_t tokens = layer->rank[r].tokens;
    MOK_TRY(mok_cuda_check_inputs(layer, io, r));
    const mok_wanted dy = {"dy", MOK_DTYPE_BF16, 0, 2, {tokens, shape->hidden, 0}, false};
    MOK_TRY(mok_check_tensor(&back->dy, &dy));
    MOK_TRY(mok_cuda_check_aligned(&back->dy, "dy", r));
    MOK_TRY(mok_gradients_check(shape, &back->gradients, tokens));
    MOK_TRY(check_outputs(shape, &back->gradients, r));
    return check_apart(shape, io, back);
}

/* ---- Parameters ---- */

/* A matrix of up to four axes: columns, rows, batches and parts, strides in elements. */
typedef struct matrix {
    const void *data;
    int64_t cols, rows, batches, parts;
    int64_t row_stride, batch_stride, part_stride;
} matrix;

static matrix plain(const void *data, int64_t cols, int64_t rows, int64_t row_stride)
{
    const matrix m = {data, cols, rows, 1, 1, row_stride, rows * row_stride, rows * row_stride};
    return m;
}

static matrix of_weights(const mok_tensor *tensor)
{
    const bool deep = tensor->rank == 3;
    matrix m = plain(tensor->data, tensor->shape[deep ? 2 : 1], tensor->shape[deep ? 1 : 0],
                     tensor->stride[deep ? 1 : 0]);
    m.batches = deep ? tensor->shape[0] : 1;
    m.batch_stride = deep && m.batches > 1 ? tensor->stride[0] : m.batch_stride;
    m.part_stride = m.batches * m.batch_stride;
    return m;
}

/* Rows of tokens cut into lanes. */
static matrix of_lanes(const void *data, int64_t cols, int64_t tokens, int64_t lanes,
                       int64_t row_stride)
{
    matrix m = plain(data, cols, lanes > 0 ? tokens / lanes : 0, row_stride);
    m.batches = lanes;
    m.batch_stride = m.rows * row_stride;
    m.part_stride = m.batch_stride * lanes;
    return m;
}

static mok_status encode(CUtensorMap *out, const mok_cuda_layer *layer, const matrix *m,
                         int32_t box_rows)
{
    const mok_device_tensor tensor = {m->data,
                                      {m->cols, m->rows, m->batches, m->parts},
                                      {m->row_stride, m->batch_stride, m->part_stride},
                                      box_rows};
    return mok_device_map_4d(out, layer->encode, &tensor);
}

static mok_status fill_routed_maps(CUtensorMap *map, const mok_cuda_layer *layer,
                                   const mok_cuda_rank *rank, const mok_cuda_rank_io *io)
{
    const mok_shape *shape = &rank->shape;
    const int64_t ring = shape->macro_blocks * MOK_ROW_BLOCK;
    const matrix x =
        plain(mok_cuda_bf16_at(rank, rank->layout.ring_x), shape->hidden, ring, shape->hidden);
    const matrix dy =
        plain(mok_cuda_bf16_at(rank, rank->layout.ring_dy), shape->hidden, ring, shape->hidden);
    matrix d = plain(mok_cuda_bf16_at(rank, rank->layout.ring_d), shape->inner, ring, shape->inner);
    matrix gu =
        plain(mok_cuda_bf16_at(rank, rank->layout.ring_gu), shape->inner, ring, shape->inner);
    const matrix gate = of_weights(&io->weights.gate);
    const matrix up = of_weights(&io->weights.up);
    const matrix down = of_weights(&io->weights.down);
    d.parts = 3;
    gu.parts = 2;
    MOK_TRY(encode(&map[MOK_BACK_GU], layer, &gu, 128));
    MOK_TRY(encode(&map[MOK_BACK_DY], layer, &dy, 128));
    MOK_TRY(encode(&map[MOK_BACK_D], layer, &d, 128));
    MOK_TRY(encode(&map[MOK_BACK_DOWN], layer, &down, 64));
    MOK_TRY(encode(&map[MOK_BACK_GATE], layer, &gate, 64));
    MOK_TRY(encode(&map[MOK_BACK_UP], layer, &up, 64));
    MOK_TRY(encode(&map[MOK_BACK_X_ROWS], layer, &x, 64));
    MOK_TRY(encode(&map[MOK_BACK_DY_ROWS], layer, &dy, 64));
    return encode(&map[MOK_BACK_D_ROWS], layer, &d, 64);
}

static mok_status fill_shared_maps(CUtensorMap *map, const mok_cuda_layer *layer,
                                   const mok_cuda_rank *rank, const mok_cuda_rank_io *io,
                                   const mok_cuda_rank_gradients *back)
{
    const mok_shape *shape = &rank->shape;
    const int64_t h = shape->hidden;
    const int64_t s = shape->shared_inner;
    const int64_t tokens = rank->tokens;
    const int64_t lanes = back->gradients.shared_lanes;
    const uint16_t *shared_d = mok_cuda_bf16_at(rank, rank->layout.shared_d);
    const matrix dy = plain(back->dy.data, h, tokens, back->dy.stride[0]);
    const matrix x_lanes = of_lanes(io->x.data, h, tokens, lanes, io->x.stride[0]);
    const matrix dy_lanes = of_lanes(back->dy.data, h, tokens, lanes, back->dy.stride[0]);
    matrix d = plain(shared_d, s, tokens, s);
    matrix d_lanes = of_lanes(shared_d, s, tokens, lanes, s);
    matrix gu = plain(mok_cuda_bf16_at(rank, rank->layout.shared_gu), s, tokens, s);
    const matrix gate = of_weights(&io->weights.shared_gate);
    const matrix up = of_weights(&io->weights.shared_up);
    const matrix down = of_weights(&io->weights.shared_down);
    d.parts = d_lanes.parts = 3;
    gu.parts = 2;
    d.part_stride = d_lanes.part_stride = gu.part_stride = shape->max_tokens * s;
    MOK_TRY(encode(&map[MOK_BACK_GU], layer, &gu, 128));
    MOK_TRY(encode(&map[MOK_BACK_DY], layer, &dy, 128));
    MOK_TRY(encode(&map[MOK_BACK_D], layer, &d, 128));
    MOK_TRY(encode(&map[MOK_BACK_DOWN], layer, &down, 64));
    MOK_TRY(encode(&map[MOK_BACK_GATE], layer, &gate, 64));
    MOK_TRY(encode(&map[MOK_BACK_UP], layer, &up, 64));
    MOK_TRY(encode(&map[MOK_BACK_X_ROWS], layer, &x_lanes, 64));
    MOK_TRY(encode(&map[MOK_BACK_DY_ROWS], layer, &dy_lanes, 64));
    return encode(&map[MOK_BACK_D_ROWS], layer, &d_lanes, 64);
}

static mok_sm90_grad grad_of(const mok_tensor *tensor, bool adds)
{
    const mok_sm90_grad grad = {tensor->data, tensor->stride[0], tensor->stride[1],
                                tensor->dtype == MOK_DTYPE_BF16 ? 1 : 0, adds ? 1 : 0};
    return grad;
}

static mok_status fill_backward(mok_sm90_pass *p, mok_cuda_layer *layer, const mok_cuda_rank_io *io,
                                const mok_cuda_rank_gradients *back)
{
    mok_cuda_fill_pass(p, layer, io);
    p->phase = MOK_SM90_PHASE_BACKWARD;
    for (int32_t r = layer->first; r < layer->first + layer->own; r++) {
        const mok_cuda_rank *rank = &layer->rank[r];
        const mok_cuda_rank_io *mine = mok_cuda_io_of(layer, io, r);
        const mok_cuda_rank_gradients *theirs = &back[r - layer->first];
        const mok_gradients *g = &theirs->gradients;
        mok_sm90_rank *to = &p->rank[r];
        to->send = theirs->dy.data;
        to->send_stride = theirs->dy.stride[0];
        to->ring_in = mok_cuda_bf16_at(rank, rank->layout.ring_dy);
        to->out = g->dx.data;
        to->out_stride = g->dx.stride[0];
        to->ring_d = mok_cuda_bf16_at(rank, rank->layout.ring_d);
        to->shared_d = mok_cuda_bf16_at(rank, rank->layout.shared_d);
        to->router_part = (float *)(void *)(rank->memory + rank->layout.router_part);
        if (layer->peers == NULL) { /* else peers write into memory that they have mapped */
            to->d_router = g->d_router_weights.data;
            to->d_router_stride = g->d_router_weights.stride[0];
        }
        to->lanes = g->shared_lanes;
        to->grad[0] = grad_of(&g->gate, g->mode == MOK_GRAD_ADD);
        to->grad[1] = grad_of(&g->up, g->mode == MOK_GRAD_ADD);
        to->grad[2] = grad_of(&g->down, g->mode == MOK_GRAD_ADD);
        MOK_TRY(fill_routed_maps(p->map[r], layer, rank, mine));
        if (rank->shape.shared_inner > 0) {
            to->grad[3] = grad_of(&g->shared_gate, false);
            to->grad[4] = grad_of(&g->shared_up, false);
            to->grad[5] = grad_of(&g->shared_down, false);
            MOK_TRY(fill_shared_maps(p->map[r] + MOK_BACK_MAPS, layer, rank, mine, theirs));
        }
    }
    return MOK_OK;
}

/* ---- Launches ---- */

static mok_status launch_plan(mok_cuda_layer *layer, const mok_cuda_rank_gradients *back,
                              cudaStream_t stream)
{
    mok_sm90_schedule p;
    mok_cuda_fill_plan(&p, layer);
    for (int32_t r = 0; r < p.ranks; r++) {
        p.rank[r].shape = mok_cuda_backward_shape(&p.rank[r].shape);
        p.rank[r].lanes = mok_cuda_owns(layer, r) && p.rank[r].tokens > 0
                              ? back[r - layer->first].gradients.shared_lanes
                              : 0; /* other processes' lists are not looked at here */
    }
    void *arguments[] = {&p};
    const dim3 blocks = {128 / (unsigned)p.ranks + 1, (unsigned)p.ranks, 1};
    const dim3 threads = {128, 1, 1};
    MOK_CUDA_TRY(
        cudaLaunchKernel(mok_sm90_plan_backward_function(), blocks, threads, arguments, 0, stream));
    return MOK_OK;
}

static mok_status backward_on_device(mok_cuda_layer *layer, const mok_cuda_rank_io *io,
                                     const mok_cuda_rank_gradients *back, cudaStream_t stream)
{
    mok_sm90_pass p;
    MOK_TRY(fill_backward(&p, layer, io, back));
    MOK_TRY(launch_plan(layer, back, stream));
    if (layer->peers != NULL) {
        const mok_cuda_layout *at = &layer->rank[layer->first].layout;
        MOK_TRY(mok_cuda_peers_send(layer, at->sent, &back->dy, stream));
        MOK_TRY(mok_cuda_peers_meet(layer, MOK_PHASE_BACKWARD, stream));
    }
    MOK_TRY(mok_cuda_launch_pass(mok_sm90_backward_function(), &p, layer->own, stream));
    return layer->peers == NULL
               ? MOK_OK
               : mok_cuda_peers_receive(layer, &back->gradients.d_router_weights, stream);
}

mok_status mok_cuda_backward(mok_cuda_layer *layer, const mok_cuda_rank_io *io,
                             const mok_cuda_rank_gradients *gradients, void *stream)
{
    MOK_REQUIRE(layer != NULL && io != NULL && gradients != NULL, MOK_ERROR_ARGUMENT,
                "layer, io or gradients is NULL");
    MOK_REQUIRE(layer->cuda.forward_only == 0, MOK_ERROR_UNSUPPORTED,
                "the layer was opened forward_only");
    MOK_REQUIRE(layer->progress == MOK_CUDA_FORWARDED, MOK_ERROR_STATE,
                "no forward has run since the last schedule");
    for (int32_t r = layer->first; r < layer->first + layer->own; r++) {
        MOK_TRY(check_rank(layer, mok_cuda_io_of(layer, io, r), &gradients[r - layer->first], r));
    }
    int previous = 0;
    MOK_TRY(mok_cuda_enter(layer, &previous));
    return mok_cuda_leave(backward_on_device(layer, io, gradients, stream), previous);
}
