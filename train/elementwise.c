/* What happens to a token alone: norms, embedding, residual additions, routing.
 *
 * Rows are independent, so workers may take them in any order. The gradients of norms and embedding
 * are sums over tokens: they are made a lane at a time, tokens ascending, because a lane is never
 * cut. */
#include "model.h"

#include <math.h>
#include <string.h>

#define NORM_EPSILON 1e-6f

/* ---- RMSNorm ---- */

typedef struct norm_work {
    model *m;
    uint16_t *out;
    float *scale;
    const float *x, *weight;
} norm_work;

static void norm_rows(void *context, int64_t begin, int64_t end)
{
    const norm_work *work = context;
    const int64_t h = work->m->config->shape.hidden;
    float row[16384];
    for (int64_t t = begin; t < end; t++) {
        const float *x = work->x + t * h;
        const float scale = 1.0f / sqrtf(train_sum_squares(x, h) / (float)h + NORM_EPSILON);
        for (int64_t i = 0; i < h; i++) {
            row[i] = (x[i] * scale) * work->weight[i];
        }
        work->scale[t] = scale;
        mok_bf16_from_f32(work->out + t * h, row, h);
    }
}

mok_status norm_forward(model *m, uint16_t *out, float *scale, const float *x, const float *weight)
{
    norm_work work = {m, out, scale, x, weight};
    return train_rows(m->comm, m->tokens, norm_rows, &work);
}

typedef struct norm_back_work {
    model *m;
    const float *dy, *x, *scale, *weight;
} norm_back_work;

static void norm_rows_back(void *context, int64_t begin, int64_t end)
{
    const norm_back_work *work = context;
    const int64_t h = work->m->config->shape.hidden;
    float weighted[16384];
    for (int64_t t = begin; t < end; t++) {
        const float *x = work->x + t * h;
        const float *dy = work->dy + t * h;
        float *dx = work->m->dx + t * h;
        const float scale = work->scale[t];
        for (int64_t i = 0; i < h; i++) {
            weighted[i] = dy[i] * work->weight[i];
        }
        const float along = train_dot(weighted, x, h) * scale * scale / (float)h;
        for (int64_t i = 0; i < h; i++) {
            dx[i] += scale * (weighted[i] - x[i] * along);
        }
    }
}

typedef struct norm_weight_work {
    model *m;
    const float *dy, *x, *scale;
    int32_t param_idx;
} norm_weight_work;

/* One lane: tokens ascending for every column. */
static void norm_weight_lane(void *context, int64_t lane, int32_t worker)
{
    const norm_weight_work *work = context;
    const model *m = work->m;
    const int64_t h = m->config->shape.hidden;
    const int64_t tokens = model_lane_tokens(m);
    float *sum = model_partial(m, lane, work->param_idx);
    (void)worker;
    memset(sum, 0, (size_t)h * sizeof *sum);
    for (int64_t t = lane * tokens; t < (lane + 1) * tokens; t++) {
        const float *dy = work->dy + t * h;
        const float *x = work->x + t * h;
        for (int64_t i = 0; i < h; i++) {
            sum[i] += dy[i] * (x[i] * work->scale[t]);
        }
    }
}

mok_status norm_backward(model *m, const float *dy, const float *x, const float *scale,
                         int32_t param_idx)
{
    norm_weight_work weights = {m, dy, x, scale, param_idx};
    TRAIN_TRY(mok_comm_parallel(m->comm, m->lanes, norm_weight_lane, &weights));
    const float *weight = m->params.master + m->params.list[param_idx].offset;
    norm_back_work work = {m, dy, x, scale, weight};
    return train_rows(m->comm, m->tokens, norm_rows_back, &work);
}

/* ---- Embedding ---- */

static void embed_rows(void *context, int64_t begin, int64_t end)
{
    model *m = context;
    const int64_t h = m->config->shape.hidden;
    const uint16_t *table = model_weight(m, m->params.embedding);
    for (int64_t t = begin; t < end; t++) {
        mok_f32_from_bf16(m->x + t * h, table + m->input[t] * h, h);
    }
}

mok_status embed_forward(model *m)
{
    return train_rows(m->comm, m->tokens, embed_rows, m);
}

static void embed_lane(void *context, int64_t lane, int32_t worker)
{
    const model *m = context;
    const int64_t h = m->config->shape.hidden;
    const int64_t tokens = model_lane_tokens(m);
    float *sum = model_partial(m, lane, m->params.embedding);
    (void)worker;
    memset(sum, 0, (size_t)(TRAIN_VOCABULARY * h) * sizeof *sum);
    for (int64_t t = lane * tokens; t < (lane + 1) * tokens; t++) {
        float *row = sum + m->input[t] * h;
        for (int64_t i = 0; i < h; i++) {
            row[i] += m->dx[t * h + i];
        }
    }
}

mok_status embed_backward(model *m)
{
    return mok_comm_parallel(m->comm, m->lanes, embed_lane, m);
}

/* ---- The residual stream ---- */

typedef struct stream_work {
    model *m;
    const uint16_t *y16;
    const float *y32;
    uint16_t *out;
    int64_t columns;
} stream_work;

static void add_rows(void *context, int64_t begin, int64_t end)
{
    const stream_work *work = context;
    const int64_t h = work->m->config->shape.hidden;
    float row[16384];
    for (int64_t t = begin; t < end; t++) {
        float *x = work->m->x + t * h;
        const float *y = row;
        if (work->y16 != NULL) {
            mok_f32_from_bf16(row, work->y16 + t * h, h);
        } else {
            y = work->y32 + t * h;
        }
        for (int64_t i = 0; i < h; i++) {
            x[i] += y[i];
        }
    }
}

mok_status add_stream(model *m, const uint16_t *y)
{
    stream_work work = {m, y, NULL, NULL, 0};
    return train_rows(m->comm, m->tokens, add_rows, &work);
}

mok_status add_stream_f32(model *m, const float *y)
{
    stream_work work = {m, NULL, y, NULL, 0};
    return train_rows(m->comm, m->tokens, add_rows, &work);
}

static void narrow_rows(void *context, int64_t begin, int64_t end)
{
    const stream_work *work = context;
    mok_bf16_from_f32(work->out + begin * work->columns, work->y32 + begin * work->columns,
                      (end - begin) * work->columns);
}

mok_status narrow_stream(model *m, uint16_t *out, const float *x, int64_t columns)
{
    stream_work work = {m, NULL, x, out, columns};
    return train_rows(m->comm, m->tokens, narrow_rows, &work);
}

/* ---- Router ---- */

typedef struct router_work {
    const model *m;
    block_saved *saved;
    const float *logits, *bias;
    uint16_t *d_logits;
} router_work;

/* The K largest of score + bias, the lower index first among equals. */
static void choose(int32_t *routes, const float *score, const float *bias, int64_t experts,
                   int64_t slots)
{
    for (int64_t k = 0; k < slots; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < (int32_t)experts; e++) {
            bool taken = false;
            for (int64_t before = 0; before < k; before++) {
                taken = taken || routes[before] == e;
            }
            if (!taken && (best < 0 || score[e] + bias[e] > score[best] + bias[best])) {
                best = e;
            }
        }
        routes[k] = best;
    }
}

static void router_rows(void *context, int64_t begin, int64_t end)
{
    const router_work *work = context;
    const train_shape *shape = &work->m->config->shape;
    for (int64_t t = begin; t < end; t++) {
        float *score = work->saved->score + t * shape->experts;
        int32_t *routes = work->saved->routes + t * shape->slots;
        float *weights = work->saved->weights + t * shape->slots;
        mok_sigmoid(score, work->logits + t * shape->experts, shape->experts);
        choose(routes, score, work->bias, shape->experts, shape->slots);
        float sum = 0.0f;
        for (int64_t k = 0; k < shape->slots; k++) {
            sum += score[routes[k]];
        }
        for (int64_t k = 0; k < shape->slots; k++) {
            weights[k] = sum > 0.0f ? score[routes[k]] / sum : 0.0f;
        }
    }
}

mok_status router_forward(model *m, block_saved *saved, const float *logits, const float *bias)
{
    router_work work = {m, saved, logits, bias, NULL};
    return train_rows(m->comm, m->tokens, router_rows, &work);
}

/* w_k = s_k / S: ds_k = (dw_k - sum_j w_j dw_j) / S, and through the sigmoid s (1 - s). */
static void router_rows_back(void *context, int64_t begin, int64_t end)
{
    const router_work *work = context;
    const train_shape *shape = &work->m->config->shape;
    float row[4096];
    for (int64_t t = begin; t < end; t++) {
        const float *score = work->saved->score + t * shape->experts;
        const int32_t *routes = work->saved->routes + t * shape->slots;
        const float *weights = work->saved->weights + t * shape->slots;
        const float *dw = work->m->d_weights + t * shape->slots;
        float sum = 0.0f;
        float along = 0.0f;
        memset(row, 0, (size_t)shape->experts * sizeof *row);
        for (int64_t k = 0; k < shape->slots; k++) {
            sum += score[routes[k]];
            along += weights[k] * dw[k];
        }
        for (int64_t k = 0; k < shape->slots && sum > 0.0f; k++) {
            const float s = score[routes[k]];
            row[routes[k]] = (dw[k] - along) / sum * (s * (1.0f - s));
        }
        mok_bf16_from_f32(work->d_logits + t * shape->experts, row, shape->experts);
    }
}

mok_status router_backward(model *m, const block_saved *saved, uint16_t *d_logits)
{
    block_saved copy = *saved;
    router_work work = {m, &copy, NULL, NULL, d_logits};
    return train_rows(m->comm, m->tokens, router_rows_back, &work);
}
