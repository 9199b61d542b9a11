/* Causal attention of each sequence and head: products through the library, softmax by rows.
 *
 * Scores are stored whole, [length, length] a head; what lies behind a token is +0 in p. Rows are
 * summed in an order fixed by their length. Products of all heads run as one list, so that they
 * share the workers. */
#include "model.h"

#include "exact_math.h"

#include <math.h>
#include <string.h>

#define ROTARY_BASE 10000.0

/* ---- Rotary positions: pairs (i, i + half) of a head turn by position / base^(2 i / head) ---- */

void rotary_table(float *out, int64_t length, int64_t head)
{
    const int64_t half = head / 2;
    for (int64_t position = 0; position < length; position++) {
        for (int64_t i = 0; i < half; i++) {
            const double speed = exact_exp(-exact_log(ROTARY_BASE) * (double)i / (double)half);
            const double angle = (double)position * speed;
            out[(position * half + i) * 2] = (float)exact_cos(angle);
            out[(position * half + i) * 2 + 1] = (float)exact_sin(angle);
        }
    }
}

typedef struct rotary_work {
    const model *m;
    uint16_t *qkv;
    float direction; /* 1 turns, -1 turns back */
} rotary_work;

static void turn_head(float *x, const float *table, int64_t half, float direction)
{
    for (int64_t i = 0; i < half; i++) {
        const float c = table[2 * i];
        const float s = table[2 * i + 1] * direction;
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a * c - b * s;
        x[i + half] = a * s + b * c;
    }
}

static void turn_rows(void *context, int64_t begin, int64_t end)
{
    const rotary_work *work = context;
    const train_shape *shape = &work->m->config->shape;
    const int64_t h = shape->hidden;
    const int64_t head = h / shape->heads;
    float row[2 * 16384];
    for (int64_t t = begin; t < end; t++) {
        uint16_t *qk = work->qkv + t * 3 * h;
        const float *table = work->m->rotary + t % work->m->length * head;
        mok_f32_from_bf16(row, qk, 2 * h);
        for (int64_t i = 0; i < 2 * shape->heads; i++) {
            turn_head(row + i * head, table, head / 2, work->direction);
        }
        mok_bf16_from_f32(qk, row, 2 * h);
    }
}

/* ---- Softmax ---- */

typedef struct softmax_work {
    const model *m;
    uint16_t *p;
} softmax_work;

static float attention_scale(const model *m)
{
    return 1.0f / sqrtf((float)(m->config->shape.hidden / m->config->shape.heads));
}

/* A row is (sequence, head, token). */
static void softmax_rows(void *context, int64_t begin, int64_t end)
{
    const softmax_work *work = context;
    const int64_t length = work->m->length;
    const float scale = attention_scale(work->m);
    float row[16384];
    for (int64_t r = begin; r < end; r++) {
        const float *scores = work->m->scores + r * length;
        const int64_t seen = r % length + 1;
        float most = scores[0];
        for (int64_t i = 1; i < seen; i++) {
            most = scores[i] > most ? scores[i] : most;
        }
        for (int64_t i = 0; i < seen; i++) {
            row[i] = (scores[i] - most) * scale;
        }
        mok_exp(row, row, seen);
        const float sum = train_sum(row, seen);
        for (int64_t i = 0; i < seen; i++) {
            row[i] = row[i] / sum;
        }
        mok_bf16_from_f32(work->p + r * length, row, seen);
        memset(work->p + r * length + seen, 0, (size_t)(length - seen) * sizeof(uint16_t));
    }
}

/* ds = p (dp - sum_j p_j dp_j) * scale. */
static void softmax_rows_back(void *context, int64_t begin, int64_t end)
{
    const softmax_work *work = context;
    const int64_t length = work->m->length;
    const float scale = attention_scale(work->m);
    float p[16384];
    float row[16384];
    for (int64_t r = begin; r < end; r++) {
        const float *dp = work->m->scores + r * length;
        const int64_t seen = r % length + 1;
        mok_f32_from_bf16(p, work->p + r * length, seen);
        const float along = train_dot(p, dp, seen);
        for (int64_t i = 0; i < seen; i++) {
            row[i] = p[i] * (dp[i] - along) * scale;
        }
        uint16_t *out = work->m->scores16 + r * length;
        mok_bf16_from_f32(out, row, seen);
        memset(out + seen, 0, (size_t)(length - seen) * sizeof(uint16_t));
    }
}

/* ---- Heads ---- */

typedef struct head_view {
    int64_t q, k, v, context, square; /* offsets */
} head_view;

static head_view head_of(const model *m, int64_t idx)
{
    const train_shape *shape = &m->config->shape;
    const int64_t h = shape->hidden;
    const int64_t head = h / shape->heads;
    const int64_t first = idx / shape->heads * m->length;
    const int64_t column = idx % shape->heads * head;
    const head_view view = {first * 3 * h + column, first * 3 * h + h + column,
                            first * 3 * h + 2 * h + column, first * h + column,
                            idx * m->length * m->length};
    return view;
}

mok_status attention_forward(model *m, block_saved *saved)
{
    const train_shape *shape = &m->config->shape;
    const int64_t h = shape->hidden;
    const int64_t head = h / shape->heads;
    const int64_t l = m->length;
    const int64_t count = m->sequences * shape->heads;
    rotary_work turn = {m, saved->qkv, 1.0f};
    TRAIN_TRY(train_rows(m->comm, m->tokens, turn_rows, &turn));
    for (int64_t i = 0; i < count; i++) {
        const head_view v = head_of(m, i);
        m->products[i] = train_product_to_f32(
            train_product(l, l, head, saved->qkv + v.q, 3 * h, saved->qkv + v.k, 3 * h, 0),
            m->scores + v.square, l);
    }
    TRAIN_TRY(mok_product_run(m->comm, m->products, count, m->config->arith));
    softmax_work softmax = {m, saved->p};
    TRAIN_TRY(train_rows(m->comm, count * l, softmax_rows, &softmax));
    for (int64_t i = 0; i < count; i++) {
        const head_view v = head_of(m, i);
        m->products[i] =
            train_product_to_bf16(train_product(l, head, l, saved->p + v.square, l,
                                                saved->qkv + v.v, 3 * h, TRAIN_B_TRANSPOSED),
                                  saved->context + v.context, h);
    }
    return mok_product_run(m->comm, m->products, count, m->config->arith);
}

mok_status attention_backward(model *m, const block_saved *saved, uint16_t *d_qkv,
                              const uint16_t *d_context)
{
    const train_shape *shape = &m->config->shape;
    const int64_t h = shape->hidden;
    const int64_t head = h / shape->heads;
    const int64_t l = m->length;
    const int64_t count = m->sequences * shape->heads;
    const uint16_t *qkv = saved->qkv;
    for (int64_t i = 0; i < count; i++) {
        const head_view v = head_of(m, i);
        m->products[i] = train_product_to_f32(
            train_product(l, l, head, d_context + v.context, h, qkv + v.v, 3 * h, 0),
            m->scores + v.square, l);
    }
    TRAIN_TRY(mok_product_run(m->comm, m->products, count, m->config->arith));
    softmax_work softmax = {m, saved->p};
    TRAIN_TRY(train_rows(m->comm, count * l, softmax_rows_back, &softmax));
    for (int64_t i = 0; i < count; i++) {
        const head_view v = head_of(m, i);
        const uint16_t *ds = m->scores16 + v.square;
        m->products[3 * i] = train_product_to_bf16(
            train_product(l, head, l, ds, l, qkv + v.k, 3 * h, TRAIN_B_TRANSPOSED), d_qkv + v.q,
            3 * h);
        m->products[3 * i + 1] =
            train_product_to_bf16(train_product(l, head, l, ds, l, qkv + v.q, 3 * h,
                                                TRAIN_A_TRANSPOSED | TRAIN_B_TRANSPOSED),
                                  d_qkv + v.k, 3 * h);
        m->products[3 * i + 2] = train_product_to_bf16(
            train_product(l, head, l, saved->p + v.square, l, d_context + v.context, h,
                          TRAIN_A_TRANSPOSED | TRAIN_B_TRANSPOSED),
            d_qkv + v.v, 3 * h);
    }
    TRAIN_TRY(mok_product_run(m->comm, m->products, 3 * count, m->config->arith));
    rotary_work turn = {m, d_qkv, -1.0f};
    return train_rows(m->comm, m->tokens, turn_rows, &turn);
}
