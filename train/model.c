/* Memory of the model, its forward pass and its loss.
 *
 * One block of memory, cut by place(), which also measures it: what a run needs is known, and
 * refused where it does not fit, before any of it is touched. A step allocates nothing. */
#include "model.h"

#include "exact_math.h"

#include <stdlib.h>
#include <string.h>

/* ---- Memory ---- */

static void place_block(model *m, train_arena *arena, block_saved *b)
{
    const train_shape *s = &m->config->shape;
    const int64_t t = m->max_tokens;
    b->x1 = train_arena_take(arena, t * s->hidden, sizeof(float));
    b->x2 = train_arena_take(arena, t * s->hidden, sizeof(float));
    b->scale1 = train_arena_take(arena, t, sizeof(float));
    b->scale2 = train_arena_take(arena, t, sizeof(float));
    b->n1 = train_arena_take(arena, t * s->hidden, sizeof(uint16_t));
    b->n2 = train_arena_take(arena, t * s->hidden, sizeof(uint16_t));
    b->qkv = train_arena_take(arena, t * 3 * s->hidden, sizeof(uint16_t));
    b->p = train_arena_take(arena, t * s->heads * s->length, sizeof(uint16_t));
    b->context = train_arena_take(arena, t * s->hidden, sizeof(uint16_t));
    b->score = train_arena_take(arena, t * s->experts, sizeof(float));
    b->routes = train_arena_take(arena, t * s->slots, sizeof(int32_t));
    b->weights = train_arena_take(arena, t * s->slots, sizeof(float));
}

static void place(model *m, train_arena *arena)
{
    const train_shape *s = &m->config->shape;
    const int64_t t = m->max_tokens;
    const int64_t h = s->hidden;
    const int64_t wide = train_max(train_max(3 * h, TRAIN_VOCABULARY), s->experts);
    params_place(&m->params, arena);
    for (int64_t i = 0; i < s->blocks; i++) {
        place_block(m, arena, &m->block[i]);
    }
    m->input = train_arena_take(arena, t, 1);
    m->target = train_arena_take(arena, t, 1);
    m->x = train_arena_take(arena, t * h, sizeof(float));
    m->final_scale = train_arena_take(arena, t, sizeof(float));
    m->final = train_arena_take(arena, t * h, sizeof(uint16_t));
    m->logits = train_arena_take(arena, t * TRAIN_VOCABULARY, sizeof(float));
    m->wide = train_arena_take(arena, t * wide, sizeof(uint16_t));
    m->narrow = train_arena_take(arena, t * h, sizeof(uint16_t));
    m->narrow2 = train_arena_take(arena, t * h, sizeof(uint16_t));
    m->product = train_arena_take(arena, t * wide, sizeof(float));
    m->scores = train_arena_take(arena, t * s->heads * s->length, sizeof(float));
    m->scores16 = train_arena_take(arena, t * s->heads * s->length, sizeof(uint16_t));
    m->dx = train_arena_take(arena, t * h, sizeof(float));
    m->d_weights = train_arena_take(arena, t * s->slots, sizeof(float));
    m->partials = train_arena_take(arena, m->lanes * m->params.replicated_count, sizeof(float));
    m->rotary = train_arena_take(arena, s->length * h / s->heads, sizeof(float));
    m->max_products = train_max(3 * s->heads * m->lanes * m->config->batch, train_max(m->lanes, 1));
    m->products = train_arena_take(arena, m->max_products, sizeof(mok_product));
}

static mok_layer_config layer_config(const train_config *from)
{
    const train_shape *s = &from->shape;
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.hidden = s->hidden;
    config.intermediate = s->inner;
    config.shared_intermediate = s->shared_inner;
    config.experts = s->experts;
    config.slots = s->slots;
    config.arith = from->arith;
    /* The largest share of any rank: the layer's memory must be alike on all of them. */
    config.max_tokens = train_split_count(from->lanes, from->ranks, 0) * train_lane_tokens(from);
    return config;
}

static mok_status open_layer(model *m)
{
    const train_shape *s = &m->config->shape;
    const mok_layer_config config = layer_config(m->config);
    TRAIN_TRY(mok_layer_open(&m->layer, m->comm, &config));
    for (int64_t i = 0; i < s->blocks; i++) {
        TRAIN_TRY(mok_schedule_open(&m->block[i].schedule, m->layer));
        TRAIN_TRY(mok_activations_open(&m->block[i].activations, m->layer));
    }
    return MOK_OK;
}

/* Everything but memory and handles. */
static void describe(model *m, const train_config *config, int32_t rank)
{
    memset(m, 0, sizeof *m);
    m->config = config;
    m->lanes = train_rank_lanes(config, rank);
    m->lane_begin = train_split_begin(config->lanes, config->ranks, rank);
    m->max_tokens = m->lanes * train_lane_tokens(config);
    params_describe(&m->params, &config->shape, config->ranks, rank);
}

mok_status model_memory_bytes(double *bytes, const train_config *config, int32_t threads, char *why)
{
    const mok_layer_config layer = layer_config(config);
    const double blocks = (double)config->shape.blocks;
    mok_status status = MOK_OK;
    model *m = malloc(sizeof *m);
    if (m == NULL) {
        return train_fail(why, MOK_ERROR_MEMORY, "no memory to describe the model");
    }
    *bytes = 0.0;
    for (int32_t rank = 0; rank < config->ranks && status == MOK_OK; rank++) {
        train_arena arena = {NULL, 0};
        mok_layer_sizes sizes = {.struct_bytes = sizeof sizes};
        describe(m, config, rank);
        place(m, &arena);
        status = mok_layer_sizes_query(&sizes, &layer, config->ranks, rank, threads);
        *bytes += (double)arena.used + (double)sizes.arena_bytes + (double)sizes.workspace_bytes +
                  (double)sizes.comm_bytes;
        *bytes += blocks * ((double)sizes.activations_bytes + (double)sizes.schedule_bytes);
    }
    free(m);
    return status == MOK_OK ? MOK_OK : train_fail(why, status, "%s", mok_last_error());
}

mok_status model_open(model *m, const train_config *config, mok_comm *comm, char *why)
{
    const int32_t rank = mok_comm_rank(comm);
    describe(m, config, rank);
    m->comm = comm;
    train_arena arena = {NULL, 0};
    place(m, &arena);
    m->memory = NULL;
    if (posix_memalign(&m->memory, 64, arena.used + 64) != 0) {
        m->memory = NULL;
    }
    mok_status status = MOK_OK;
    if (m->memory == NULL) {
        status = train_fail(why, MOK_ERROR_MEMORY, "the model needs %zu bytes on rank %d",
                            arena.used, rank);
    }
    TRAIN_TRY(train_agree(comm, status, why));
    arena.base = m->memory;
    arena.used = 0;
    place(m, &arena);
    rotary_table(m->rotary, config->shape.length, config->shape.hidden / config->shape.heads);
    status = open_layer(m);
    if (status != MOK_OK) {
        (void)train_fail(why, status, "%s", mok_last_error());
    }
    return train_agree(comm, status, why); /* opening a schedule is not collective */
}

void model_close(model *m)
{
    for (int64_t i = 0; i < TRAIN_MAX_BLOCKS; i++) {
        mok_activations_close(&m->block[i].activations);
        mok_schedule_close(&m->block[i].schedule);
    }
    mok_layer_close(&m->layer);
    free(m->memory);
    m->memory = NULL;
}

/* ---- Products with a replicated weight ---- */

mok_status project(model *m, float *out32, uint16_t *out16, const uint16_t *a, int32_t param_idx)
{
    const param *item = &m->params.list[param_idx];
    const int64_t rows = item->shape[0];
    const int64_t columns = item->shape[1];
    mok_product product =
        train_product(m->tokens, rows, columns, a, columns, model_weight(m, param_idx), columns, 0);
    product = out32 != NULL ? train_product_to_f32(product, out32, rows)
                            : train_product_to_bf16(product, out16, rows);
    return mok_product_run(m->comm, &product, 1, m->config->arith);
}

mok_status project_back(model *m, float *out32, uint16_t *out16, const uint16_t *d,
                        int32_t param_idx)
{
    const param *item = &m->params.list[param_idx];
    const int64_t rows = item->shape[0];
    const int64_t columns = item->shape[1];
    mok_product product = train_product(m->tokens, columns, rows, d, rows,
                                        model_weight(m, param_idx), columns, TRAIN_B_TRANSPOSED);
    product = out32 != NULL ? train_product_to_f32(product, out32, columns)
                            : train_product_to_bf16(product, out16, columns);
    return mok_product_run(m->comm, &product, 1, m->config->arith);
}

mok_status project_gradient(model *m, const uint16_t *d, const uint16_t *a, int32_t param_idx)
{
    const param *item = &m->params.list[param_idx];
    const int64_t rows = item->shape[0];
    const int64_t columns = item->shape[1];
    const int64_t tokens = model_lane_tokens(m);
    for (int64_t lane = 0; lane < m->lanes; lane++) {
        m->products[lane] =
            train_product_to_f32(train_product(rows, columns, tokens, d + lane * tokens * rows,
                                               rows, a + lane * tokens * columns, columns,
                                               TRAIN_A_TRANSPOSED | TRAIN_B_TRANSPOSED),
                                 model_partial(m, lane, param_idx), columns);
    }
    return mok_product_run(m->comm, m->products, m->lanes, m->config->arith);
}

/* ---- Forward ---- */

static void copy_stream(float *out, const model *m)
{
    memcpy(out, m->x, (size_t)(m->tokens * m->config->shape.hidden) * sizeof(float));
}

mok_weights_view model_experts(const model *m, int64_t block)
{
    const train_shape *s = &m->config->shape;
    const params *p = &m->params;
    const param_block *b = &p->block[block];
    const int64_t e = p->expert_count;
    mok_weights_view view;
    mok_weights_view_init(&view);
    uint16_t *copy = p->copy;
    view.gate =
        mok_tensor_3d(copy + p->list[b->gate].offset, MOK_DTYPE_BF16, e, s->inner, s->hidden);
    view.up = mok_tensor_3d(copy + p->list[b->up].offset, MOK_DTYPE_BF16, e, s->inner, s->hidden);
    view.down =
        mok_tensor_3d(copy + p->list[b->down].offset, MOK_DTYPE_BF16, e, s->hidden, s->inner);
    view.shared_gate = mok_tensor_2d(copy + p->list[b->shared_gate].offset, MOK_DTYPE_BF16,
                                     s->shared_inner, s->hidden);
    view.shared_up = mok_tensor_2d(copy + p->list[b->shared_up].offset, MOK_DTYPE_BF16,
                                   s->shared_inner, s->hidden);
    view.shared_down = mok_tensor_2d(copy + p->list[b->shared_down].offset, MOK_DTYPE_BF16,
                                     s->hidden, s->shared_inner);
    return view;
}

static mok_status experts_forward(model *m, int64_t block)
{
    const train_shape *s = &m->config->shape;
    block_saved *saved = &m->block[block];
    TRAIN_TRY(project(m, m->product, NULL, saved->n2, m->params.block[block].router));
    TRAIN_TRY(router_forward(m, saved, m->product, m->params.bias + block * s->experts));
    const mok_tensor routes = mok_tensor_2d(saved->routes, MOK_DTYPE_I32, m->tokens, s->slots);
    const mok_tensor weights = mok_tensor_2d(saved->weights, MOK_DTYPE_F32, m->tokens, s->slots);
    const mok_tensor x = mok_tensor_2d(saved->n2, MOK_DTYPE_BF16, m->tokens, s->hidden);
    const mok_tensor out = mok_tensor_2d(m->narrow, MOK_DTYPE_BF16, m->tokens, s->hidden);
    const mok_weights_view view = model_experts(m, block);
    TRAIN_TRY(mok_schedule_build(saved->schedule, m->layer, &routes));
    TRAIN_TRY(
        mok_forward(m->layer, saved->activations, &out, saved->schedule, &x, &weights, &view));
    return add_stream(m, m->narrow);
}

static mok_status block_forward(model *m, int64_t block)
{
    block_saved *saved = &m->block[block];
    const param_block *b = &m->params.block[block];
    const float *master = m->params.master;
    copy_stream(saved->x1, m);
    TRAIN_TRY(norm_forward(m, saved->n1, saved->scale1, saved->x1,
                           master + m->params.list[b->norm1].offset));
    TRAIN_TRY(project(m, NULL, saved->qkv, saved->n1, b->qkv));
    TRAIN_TRY(attention_forward(m, saved));
    TRAIN_TRY(project(m, m->product, NULL, saved->context, b->out));
    TRAIN_TRY(add_stream_f32(m, m->product));
    copy_stream(saved->x2, m);
    TRAIN_TRY(norm_forward(m, saved->n2, saved->scale2, saved->x2,
                           master + m->params.list[b->norm2].offset));
    return experts_forward(m, block);
}

mok_status model_forward(model *m, int64_t sequences, int64_t length)
{
    m->sequences = sequences;
    m->length = length;
    m->tokens = sequences * length;
    TRAIN_TRY(embed_forward(m));
    for (int64_t block = 0; block < m->config->shape.blocks; block++) {
        TRAIN_TRY(block_forward(m, block));
    }
    TRAIN_TRY(norm_forward(m, m->final, m->final_scale, m->x,
                           m->params.master + m->params.list[m->params.norm].offset));
    return project(m, m->logits, NULL, m->final, m->params.head);
}

/* ---- Loss ---- */

typedef struct loss_work {
    model *m;
    float share; /* 1 / tokens of the global batch */
    bool gradient;
    float *row_loss;
} loss_work;

/* -log p(target) = log(sum of exp(z - max)) + max - z[target]; gradient (p - [target]) * share. */
static void loss_rows(void *context, int64_t begin, int64_t end)
{
    const loss_work *work = context;
    model *m = work->m;
    float e[TRAIN_VOCABULARY];
    for (int64_t t = begin; t < end; t++) {
        float *z = m->logits + t * TRAIN_VOCABULARY;
        const uint8_t target = m->target[t];
        float most = z[0];
        for (int i = 1; i < TRAIN_VOCABULARY; i++) {
            most = z[i] > most ? z[i] : most;
        }
        for (int i = 0; i < TRAIN_VOCABULARY; i++) {
            e[i] = z[i] - most;
        }
        mok_exp(e, e, TRAIN_VOCABULARY);
        const float sum = train_sum(e, TRAIN_VOCABULARY);
        work->row_loss[t] = (float)(exact_log((double)sum) + (double)most - (double)z[target]);
        for (int i = 0; i < TRAIN_VOCABULARY && work->gradient; i++) {
            z[i] = (e[i] / sum - (i == target ? 1.0f : 0.0f)) * work->share;
        }
    }
}

mok_status model_loss(model *m, int64_t global_tokens, bool gradient)
{
    loss_work work = {m, 1.0f / (float)global_tokens, gradient, m->product};
    TRAIN_TRY(train_rows(m->comm, m->tokens, loss_rows, &work));
    const int64_t tokens = model_lane_tokens(m);
    for (int64_t lane = 0; lane < m->lanes; lane++) {
        double sum = 0.0;
        for (int64_t t = lane * tokens; t < (lane + 1) * tokens; t++) {
            sum += (double)m->product[t];
        }
        m->lane_loss[lane] = sum;
    }
    return MOK_OK;
}
