/* From gradients to the next parameters.
 *
 * Elements are independent once the norm is known, so workers may cut the arrays anywhere. The norm
 * is not: it is summed by units in global order, which is why experts' squares are gathered before
 * they are added. */
#include "optimizer.h"

#include "exact_math.h"
#include "exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PIECE                                                                                      \
    4096 /* elements of one worker's stretch; padding between parameters is zero and stays so */

/* ---- Norm ---- */

static double replicated_squares(const model *m)
{
    double sum = 0.0;
    for (int32_t i = 0; i < m->params.count; i++) {
        const param *item = &m->params.list[i];
        if (item->kind == PARAM_REPLICATED) {
            sum += train_sum_squares_double(params_unit(m->params.grad, item, 0), item->unit_size);
        }
    }
    return sum;
}

mok_status optimizer_norm(const model *m, double *norm)
{
    const params *p = &m->params;
    const int64_t experts = p->shape.experts;
    double *squares = calloc((size_t)(p->count * experts) + 1, sizeof *squares);
    TRAIN_TRY(mok_comm_agree(m->comm, squares != NULL ? MOK_OK : MOK_ERROR_MEMORY));
    for (int32_t i = 0; i < p->count; i++) {
        const param *item = &p->list[i];
        for (int64_t unit = 0; unit < item->units && item->kind == PARAM_EXPERT; unit++) {
            squares[i * experts + p->expert_begin + unit] =
                train_sum_squares_double(params_unit(p->grad, item, unit), item->unit_size);
        }
    }
    const mok_status status =
        exchange_table(m, squares, p->count, EXCHANGE_EXPERTS, sizeof *squares);
    double sum = replicated_squares(m);
    for (int64_t i = 0; i < p->count * experts && status == MOK_OK; i++) {
        sum += squares[i];
    }
    free(squares);
    *norm = sqrt(sum);
    return status;
}

/* ---- AdamW ---- */

typedef struct adam_work {
    const model *m;
    const param *item;
    float scale, beta1, beta2, rate, first, second, epsilon, decay;
} adam_work;

static void adam_piece(void *context, int64_t idx, int32_t worker)
{
    const adam_work *work = context;
    const params *p = &work->m->params;
    const int64_t size = work->item->unit_size * work->item->units;
    const int64_t begin = work->item->offset + idx * PIECE;
    const int64_t end = work->item->offset + train_min((idx + 1) * PIECE, size);
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float g = p->grad[i] * work->scale;
        p->m[i] = work->beta1 * p->m[i] + (1.0f - work->beta1) * g;
        p->v[i] = work->beta2 * p->v[i] + (1.0f - work->beta2) * (g * g);
        const float step =
            (p->m[i] * work->first) / (sqrtf(p->v[i] * work->second) + work->epsilon);
        p->master[i] -= work->rate * (step + work->decay * p->master[i]);
    }
    mok_bf16_from_f32(p->copy + begin, p->master + begin, end - begin);
}

mok_status optimizer_step(model *m, int64_t step, double norm)
{
    const train_config *config = m->config;
    adam_work work = {m, NULL, 1.0f, 0, 0, 0, 0, 0, 0, 0};
    if (norm > config->clip) {
        work.scale = (float)(config->clip / norm);
    }
    work.beta1 = (float)config->beta1;
    work.beta2 = (float)config->beta2;
    work.rate = (float)train_config_lr(config, step);
    work.first = (float)(1.0 / (1.0 - exact_pow_int(config->beta1, step + 1)));
    work.second = (float)(1.0 / (1.0 - exact_pow_int(config->beta2, step + 1)));
    work.epsilon = (float)config->epsilon;
    for (int32_t i = 0; i < m->params.count; i++) {
        const param *item = &m->params.list[i];
        work.item = item;
        work.decay = item->decays ? (float)config->decay : 0.0f;
        TRAIN_TRY(mok_comm_parallel(m->comm, (item->unit_size * item->units + PIECE - 1) / PIECE,
                                    adam_piece, &work));
    }
    return MOK_OK;
}

/* ---- Balance ---- */

mok_status optimizer_balance(model *m, int64_t *load)
{
    const train_shape *s = &m->config->shape;
    const int32_t ranks = m->config->ranks;
    const int64_t count = s->blocks * s->experts;
    int64_t *mine = calloc((size_t)(count * (ranks + 1)), sizeof *mine);
    TRAIN_TRY(mok_comm_agree(m->comm, mine != NULL ? MOK_OK : MOK_ERROR_MEMORY));
    int64_t *all = mine + count;
    for (int64_t block = 0; block < s->blocks; block++) {
        for (int64_t i = 0; i < m->tokens * s->slots; i++) {
            mine[block * s->experts + m->block[block].routes[i]]++;
        }
    }
    const mok_status status = mok_comm_allgather(m->comm, all, mine, (size_t)count * sizeof *mine);
    for (int64_t i = 0; i < count && status == MOK_OK; i++) {
        load[i] = 0;
        for (int32_t rank = 0; rank < ranks; rank++) {
            load[i] += all[rank * count + i];
        }
        const int64_t routes = train_batch_tokens(m->config) * s->slots;
        const int64_t excess = load[i] * s->experts - routes;
        const float rate = (float)m->config->bias_rate;
        m->params.bias[i] += excess < 0 ? rate : excess > 0 ? -rate : 0.0f;
    }
    free(mine);
    return status;
}
