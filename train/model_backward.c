/* The backward pass, from the gradient of the logits to params.grad.
 *
 * The mirror of model.c, last block first. Every gradient of a replicated parameter lands in its
 * lane's row of `partials`; the one reduction at the end is the only place where ranks meet outside
 * the layer. */
#include "model.h"

#include <string.h>

static mok_tensor expert_gradient(const model *m, int32_t idx)
{
    const param *item = &m->params.list[idx];
    return mok_tensor_3d(m->params.grad + item->offset, MOK_DTYPE_F32, item->units, item->shape[0],
                         item->shape[1]);
}

/* A lane's partial stands in that lane's row of all replicated gradients. */
static mok_tensor shared_gradient(const model *m, int32_t idx)
{
    const param *item = &m->params.list[idx];
    mok_tensor tensor = mok_tensor_3d(m->partials + item->offset, MOK_DTYPE_F32, m->lanes,
                                      item->shape[0], item->shape[1]);
    tensor.stride[0] = m->params.replicated_count;
    return tensor;
}

/* Through the experts and the router to the second norm. */
static mok_status experts_backward(model *m, int64_t block)
{
    const train_shape *s = &m->config->shape;
    const block_saved *saved = &m->block[block];
    const param_block *b = &m->params.block[block];
    mok_gradients gradients;
    mok_gradients_init(&gradients);
    gradients.dx = mok_tensor_2d(m->narrow2, MOK_DTYPE_BF16, m->tokens, s->hidden);
    gradients.d_router_weights = mok_tensor_2d(m->d_weights, MOK_DTYPE_F32, m->tokens, s->slots);
    gradients.gate = expert_gradient(m, b->gate);
    gradients.up = expert_gradient(m, b->up);
    gradients.down = expert_gradient(m, b->down);
    gradients.shared_lanes = m->lanes;
    gradients.shared_gate = shared_gradient(m, b->shared_gate);
    gradients.shared_up = shared_gradient(m, b->shared_up);
    gradients.shared_down = shared_gradient(m, b->shared_down);
    const mok_tensor x = mok_tensor_2d(saved->n2, MOK_DTYPE_BF16, m->tokens, s->hidden);
    const mok_tensor dy = mok_tensor_2d(m->narrow, MOK_DTYPE_BF16, m->tokens, s->hidden);
    const mok_tensor weights = mok_tensor_2d(saved->weights, MOK_DTYPE_F32, m->tokens, s->slots);
    const mok_weights_view view = model_experts(m, block);
    TRAIN_TRY(narrow_stream(m, m->narrow, m->dx, s->hidden));
    TRAIN_TRY(mok_backward(m->layer, &gradients, saved->activations, saved->schedule, &dy, &x,
                           &weights, &view));
    TRAIN_TRY(router_backward(m, saved, m->wide));
    TRAIN_TRY(project_gradient(m, m->wide, saved->n2, b->router));
    return project_back(m, m->product, NULL, m->wide, b->router);
}

typedef struct widen_work {
    float *to;
    const uint16_t *from;
    int64_t columns;
} widen_work;

/* to = to + from: the router's part first, then the experts'. */
static void add_wide_rows(void *context, int64_t begin, int64_t end)
{
    const widen_work *work = context;
    float row[16384];
    for (int64_t t = begin; t < end; t++) {
        float *to = work->to + t * work->columns;
        mok_f32_from_bf16(row, work->from + t * work->columns, work->columns);
        for (int64_t i = 0; i < work->columns; i++) {
            to[i] += row[i];
        }
    }
}

static mok_status block_backward(model *m, int64_t block)
{
    const int64_t h = m->config->shape.hidden;
    const block_saved *saved = &m->block[block];
    const param_block *b = &m->params.block[block];
    TRAIN_TRY(experts_backward(m, block));
    widen_work add = {m->product, m->narrow2, h};
    TRAIN_TRY(train_rows(m->comm, m->tokens, add_wide_rows, &add));
    TRAIN_TRY(norm_backward(m, m->product, saved->x2, saved->scale2, b->norm2));

    TRAIN_TRY(narrow_stream(m, m->narrow, m->dx, h));
    TRAIN_TRY(project_gradient(m, m->narrow, saved->context, b->out));
    TRAIN_TRY(project_back(m, NULL, m->narrow2, m->narrow, b->out));
    TRAIN_TRY(attention_backward(m, saved, m->wide, m->narrow2));
    TRAIN_TRY(project_gradient(m, m->wide, saved->n1, b->qkv));
    TRAIN_TRY(project_back(m, m->product, NULL, m->wide, b->qkv));
    return norm_backward(m, m->product, saved->x1, saved->scale1, b->norm1);
}

mok_status model_backward(model *m)
{
    const int64_t h = m->config->shape.hidden;
    params *p = &m->params;
    memset(m->partials, 0, (size_t)(m->lanes * p->replicated_count) * sizeof(float));
    memset(m->dx, 0, (size_t)(m->tokens * h) * sizeof(float));
    TRAIN_TRY(narrow_stream(m, m->wide, m->logits, TRAIN_VOCABULARY));
    TRAIN_TRY(project_gradient(m, m->wide, m->final, p->head));
    TRAIN_TRY(project_back(m, m->product, NULL, m->wide, p->head));
    TRAIN_TRY(norm_backward(m, m->product, m->x, m->final_scale, p->norm));
    for (int64_t block = m->config->shape.blocks - 1; block >= 0; block--) {
        TRAIN_TRY(block_backward(m, block));
    }
    TRAIN_TRY(embed_backward(m));
    return mok_lane_reduce(m->comm, p->grad, m->partials, m->lanes, p->replicated_count);
}
