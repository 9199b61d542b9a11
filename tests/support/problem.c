/* A global batch through one MoE layer. */
#include "problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545F4914F6CDD1DULL;
}

float random_normal(uint64_t *state)
{
    float sum = 0.0f; /* twelve uniforms: near enough */
    for (int i = 0; i < 12; i++) {
        sum += (float)(random_next(state) >> 40) * 0x1p-24f;
    }
    return sum - 6.0f;
}

uint16_t bf16_of(float x)
{
    uint16_t out;
    mok_bf16_from_f32(&out, &x, 1);
    return out;
}

float f32_of(uint16_t x)
{
    float out;
    mok_f32_from_bf16(&out, &x, 1);
    return out;
}

static void *take(size_t count, size_t bytes)
{
    void *memory = malloc(count * bytes + 64);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static uint16_t *random_bf16(const problem *p, uint64_t *state, int64_t count, float scale)
{
    uint16_t *out = take((size_t)count, sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        out[i] = bf16_of(p->integers ? (float)((int)(random_next(state) >> 33) % 3 - 1)
                                     : random_normal(state) * scale);
    }
    return out;
}

static int32_t random_expert(const problem *p, uint64_t *state, int64_t token)
{
    const uint64_t draw = random_next(state) >> 20;
    const uint64_t experts = (uint64_t)p->experts;
    switch (p->routing) {
    case ROUTING_UNIFORM:
        return (int32_t)(draw % experts);
    case ROUTING_SKEWED: {
        const uint64_t few = (experts + 3) / 4;
        return (int32_t)(draw % 4 != 0 ? (draw >> 8) % few : (draw >> 8) % experts);
    }
    case ROUTING_ONE:
        return 0;
    case ROUTING_MASKED:
        return draw % 3 == 0 || token % 7 == 3 ? -1 : (int32_t)((draw >> 8) % experts);
    case ROUTING_SPARSE:
        return (int32_t)((draw % ((experts + 2) / 3)) * 3 % experts);
    }
    return 0;
}

void problem_open(problem *p)
{
    uint64_t state = p->seed * 0x9E3779B97F4A7C15ULL + 1;
    const int64_t matrix = p->inner * p->hidden;
    const int64_t shared = p->shared_inner * p->hidden;
    const float scale = 1.0f / sqrtf((float)p->hidden);
    p->x = random_bf16(p, &state, p->tokens * p->hidden, 1.0f);
    p->dy = random_bf16(p, &state, p->tokens * p->hidden, 1.0f);
    p->gate = random_bf16(p, &state, p->experts * matrix, scale);
    p->up = random_bf16(p, &state, p->experts * matrix, scale);
    p->down = random_bf16(p, &state, p->experts * matrix, scale);
    p->shared_gate = random_bf16(p, &state, shared, scale);
    p->shared_up = random_bf16(p, &state, shared, scale);
    p->shared_down = random_bf16(p, &state, shared, scale);
    p->routes = take((size_t)(p->tokens * p->slots), sizeof *p->routes);
    p->router_weights = take((size_t)(p->tokens * p->slots), sizeof *p->router_weights);
    for (int64_t i = 0; i < p->tokens * p->slots; i++) {
        p->routes[i] = random_expert(p, &state, i / p->slots);
        p->router_weights[i] =
            p->integers ? 1.0f : 0.1f + (float)(random_next(&state) >> 40) * 0x1p-24f;
    }
}

void problem_close(problem *p)
{
    free(p->x);
    free(p->dy);
    free(p->gate);
    free(p->up);
    free(p->down);
    free(p->shared_gate);
    free(p->shared_up);
    free(p->shared_down);
    free(p->routes);
    free(p->router_weights);
}

/* ---- Results: one description of the nine tensors drives opening, closing and comparing ---- */

typedef struct part {
    const char *name;
    void **slot;
    int64_t count;
    size_t element;
    bool shared;
} part;

#define PARTS 9

static void parts_of(part parts[PARTS], const problem *p, result *r)
{
    const int64_t matrix = p->inner * p->hidden;
    const int64_t shared = p->lanes * p->shared_inner * p->hidden;
    const part list[PARTS] = {
        {"y", (void **)&r->y, p->tokens * p->hidden, 2, false},
        {"dx", (void **)&r->dx, p->tokens * p->hidden, 2, false},
        {"d_router_weights", (void **)&r->d_router_weights, p->tokens * p->slots, 4, false},
        {"d_gate", (void **)&r->gate, p->experts * matrix, 4, false},
        {"d_up", (void **)&r->up, p->experts * matrix, 4, false},
        {"d_down", (void **)&r->down, p->experts * matrix, 4, false},
        {"d_shared_gate", (void **)&r->shared_gate, shared, 4, true},
        {"d_shared_up", (void **)&r->shared_up, shared, 4, true},
        {"d_shared_down", (void **)&r->shared_down, shared, 4, true}};
    memcpy(parts, list, sizeof list);
}

void result_open(result *r, const problem *p, unsigned char poison)
{
    part parts[PARTS];
    parts_of(parts, p, r);
    for (int i = 0; i < PARTS; i++) {
        *parts[i].slot = take((size_t)parts[i].count, parts[i].element);
        memset(*parts[i].slot, poison, (size_t)parts[i].count * parts[i].element);
    }
}

void result_close(result *r)
{
    const problem none = {0};
    part parts[PARTS];
    parts_of(parts, &none, r);
    for (int i = 0; i < PARTS; i++) {
        free(*parts[i].slot);
        *parts[i].slot = NULL;
    }
}

const char *result_difference(const problem *p, const result *a, const result *b, bool with_shared)
{
    static _Thread_local char text[160];
    result left = *a;
    result right = *b;
    part parts[PARTS];
    part others[PARTS];
    parts_of(parts, p, &left);
    parts_of(others, p, &right);
    for (int i = 0; i < PARTS; i++) {
        const unsigned char *one = *parts[i].slot;
        const unsigned char *two = *others[i].slot;
        const size_t bytes = (size_t)parts[i].count * parts[i].element;
        if ((parts[i].shared && !with_shared) || memcmp(one, two, bytes) == 0) {
            continue;
        }
        size_t at = 0;
        while (one[at] == two[at]) {
            at++;
        }
        at -= at % parts[i].element;
        uint32_t one_bits = 0;
        uint32_t two_bits = 0;
        memcpy(&one_bits, one + at, parts[i].element);
        memcpy(&two_bits, two + at, parts[i].element);
        (void)snprintf(text, sizeof text, "%s[%zu]: %08x and %08x", parts[i].name,
                       at / parts[i].element, one_bits, two_bits);
        return text;
    }
    return NULL;
}

/* ---- The library ---- */

run_config run_config_default(void)
{
    const run_config config = {1, 1, MOK_LEVEL_AUTO, 0, 0, 0, NULL, false, false, 1, NULL};
    return config;
}

typedef struct job {
    const problem *p;
    const run_config *config;
    result *out;
} job;

typedef struct share {
    int64_t token_begin, token_count, lane_begin, lane_count, expert_begin, expert_count;
} share;

static share share_of(const job *work, int32_t rank, int32_t ranks)
{
    share mine = {0, 0, 0, 0, 0, 0};
    (void)mok_expert_range(work->p->experts, ranks, rank, &mine.expert_begin, &mine.expert_count);
    if (work->config->split != NULL) {
        for (int32_t r = 0; r < rank; r++) {
            mine.token_begin += work->config->split[r];
        }
        mine.token_count = work->config->split[rank];
        mine.lane_count = mine.token_count > 0 ? 1 : 0;
        return mine;
    }
    const int64_t lane_tokens = work->p->lanes > 0 ? work->p->tokens / work->p->lanes : 0;
    (void)mok_expert_range(work->p->lanes, ranks, rank, &mine.lane_begin, &mine.lane_count);
    mine.token_begin = mine.lane_begin * lane_tokens;
    mine.token_count = mine.lane_count * lane_tokens;
    return mine;
}

static int64_t most_tokens(const job *work, int32_t ranks)
{
    int64_t most = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        const int64_t count = share_of(work, rank, ranks).token_count;
        most = count > most ? count : most;
    }
    return most;
}

typedef struct views {
    mok_tensor y, x, dy, router_weights, routes;
    mok_weights_view weights;
    mok_gradients gradients;
    int64_t *wide_routes;
    float *own_shared[3]; /* where shared gradients go when ranks do not hold whole lanes */
} views;

static uint16_t *offset16(uint16_t *base, int64_t count)
{
    return base + count;
}

static void views_open(views *v, const job *work, const share *mine)
{
    const problem *p = work->p;
    result *out = work->out;
    const int64_t h = p->hidden;
    const int64_t matrix = p->inner * h;
    const int64_t t = mine->token_count;
    const int64_t e = mine->expert_count;
    memset(v, 0, sizeof *v);
    v->y = mok_tensor_2d(offset16(out->y, mine->token_begin * h), MOK_DTYPE_BF16, t, h);
    v->x = mok_tensor_2d(offset16(p->x, mine->token_begin * h), MOK_DTYPE_BF16, t, h);
    v->dy = mok_tensor_2d(offset16(p->dy, mine->token_begin * h), MOK_DTYPE_BF16, t, h);
    v->router_weights =
        mok_tensor_2d(p->router_weights + mine->token_begin * p->slots, MOK_DTYPE_F32, t, p->slots);
    int32_t *routes = p->routes + mine->token_begin * p->slots;
    v->routes = mok_tensor_2d(routes, MOK_DTYPE_I32, t, p->slots);
    if (work->config->int64_routes) {
        v->wide_routes = take((size_t)(t * p->slots), sizeof *v->wide_routes);
        for (int64_t i = 0; i < t * p->slots; i++) {
            v->wide_routes[i] = routes[i];
        }
        v->routes = mok_tensor_2d(v->wide_routes, MOK_DTYPE_I64, t, p->slots);
    }
    mok_weights_view_init(&v->weights);
    const int64_t first = mine->expert_begin * matrix;
    v->weights.gate = mok_tensor_3d(p->gate + first, MOK_DTYPE_BF16, e, p->inner, h);
    v->weights.up = mok_tensor_3d(p->up + first, MOK_DTYPE_BF16, e, p->inner, h);
    v->weights.down = mok_tensor_3d(p->down + first, MOK_DTYPE_BF16, e, h, p->inner);
    v->weights.shared_gate = mok_tensor_2d(p->shared_gate, MOK_DTYPE_BF16, p->shared_inner, h);
    v->weights.shared_up = mok_tensor_2d(p->shared_up, MOK_DTYPE_BF16, p->shared_inner, h);
    v->weights.shared_down = mok_tensor_2d(p->shared_down, MOK_DTYPE_BF16, h, p->shared_inner);

    mok_gradients *g = &v->gradients;
    mok_gradients_init(g);
    g->dx = mok_tensor_2d(offset16(out->dx, mine->token_begin * h), MOK_DTYPE_BF16, t, h);
    g->d_router_weights = mok_tensor_2d(out->d_router_weights + mine->token_begin * p->slots,
                                        MOK_DTYPE_F32, t, p->slots);
    g->gate = mok_tensor_3d(out->gate + first, MOK_DTYPE_F32, e, p->inner, h);
    g->up = mok_tensor_3d(out->up + first, MOK_DTYPE_F32, e, p->inner, h);
    g->down = mok_tensor_3d(out->down + first, MOK_DTYPE_F32, e, h, p->inner);
    g->shared_lanes = mine->lane_count;
    const int64_t shared = p->shared_inner * h;
    float *parts[3] = {out->shared_gate + mine->lane_begin * shared,
                       out->shared_up + mine->lane_begin * shared,
                       out->shared_down + mine->lane_begin * shared};
    for (int i = 0; i < 3 && work->config->split != NULL; i++) {
        v->own_shared[i] = take((size_t)(mine->lane_count * shared), sizeof(float));
        parts[i] = v->own_shared[i];
    }
    const int64_t l = mine->lane_count;
    g->shared_gate = mok_tensor_3d(parts[0], MOK_DTYPE_F32, l, p->shared_inner, h);
    g->shared_up = mok_tensor_3d(parts[1], MOK_DTYPE_F32, l, p->shared_inner, h);
    g->shared_down = mok_tensor_3d(parts[2], MOK_DTYPE_F32, l, h, p->shared_inner);
}

static void views_close(views *v)
{
    free(v->wide_routes);
    for (int i = 0; i < 3; i++) {
        free(v->own_shared[i]);
    }
}

static mok_status run_layer(mok_layer *layer, const job *work, const views *v)
{
    mok_schedule *schedule = NULL;
    mok_activations *activations = NULL;
    mok_status status = mok_schedule_open(&schedule, layer);
    if (status == MOK_OK) {
        status = mok_activations_open(&activations, layer);
    }
    for (int32_t i = 0; i < work->config->repeats && status == MOK_OK; i++) {
        status = mok_schedule_build(schedule, layer, &v->routes);
        if (status == MOK_OK) {
            status = mok_forward(layer, activations, &v->y, schedule, &v->x, &v->router_weights,
                                 &v->weights);
        }
        if (status == MOK_OK && work->config->recompute) {
            mok_activations_close(&activations);
            status = mok_activations_open(&activations, layer);
            if (status == MOK_OK) {
                status = mok_recompute(layer, activations, schedule, &v->x, &v->weights);
            }
        }
        if (status == MOK_OK) {
            status = mok_backward(layer, &v->gradients, activations, schedule, &v->dy, &v->x,
                                  &v->router_weights, &v->weights);
        }
    }
    mok_activations_close(&activations);
    mok_schedule_close(&schedule);
    return status;
}

static mok_status run_rank(mok_comm *comm, void *context)
{
    job *work = context;
    const problem *p = work->p;
    const share mine = share_of(work, mok_comm_rank(comm), mok_comm_size(comm));
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.hidden = p->hidden;
    config.intermediate = p->inner;
    config.shared_intermediate = p->shared_inner;
    config.experts = p->experts;
    config.slots = p->slots;
    config.max_tokens = most_tokens(work, mok_comm_size(comm));
    config.capacity_rows = work->config->capacity_rows;
    config.macrobatch_rows = work->config->macrobatch_rows;
    config.minibatch_rows = work->config->minibatch_rows;
    config.arith = p->arith;
    config.activation = p->clamped ? MOK_ACTIVATION_SWIGLU_CLAMPED : MOK_ACTIVATION_SWIGLU;
    config.swiglu_limit = p->limit;
    mok_layer *layer = NULL;
    mok_status status = mok_layer_open(&layer, comm, &config);
    if (status == MOK_OK) {
        views v;
        views_open(&v, work, &mine);
        status = run_layer(layer, work, &v);
        views_close(&v);
    }
    mok_layer_close(&layer);
    return status;
}

mok_status problem_run(const problem *p, const run_config *config, result *out)
{
    mok_comm_config comm;
    mok_comm_config_init(&comm);
    comm.threads = config->threads;
    comm.level = config->level;
    job work = {p, config, out};
    if (config->apart != NULL) {
        return apart_run(config->ranks, config->apart, &comm, run_rank, &work, NULL, NULL);
    }
    return group_run(config->ranks, &comm, run_rank, &work, NULL, NULL);
}

mok_status problem_reference(const problem *p, result *out)
{
    const mok_ref_layer layer = {
        p->tokens,      p->hidden, p->inner,          p->shared_inner,
        p->experts,     p->slots,  p->arith,          {p->clamped, p->limit},
        p->x,           p->routes, p->router_weights, p->gate,
        p->up,          p->down,   p->shared_gate,    p->shared_up,
        p->shared_down, p->lanes};
    const mok_ref_gradients gradients = {
        out->dx,   out->d_router_weights, out->gate,      out->up,
        out->down, out->shared_gate,      out->shared_up, out->shared_down};
    const mok_status status = mok_ref_forward(&layer, out->y);
    return status == MOK_OK ? mok_ref_backward(&layer, &gradients, p->dy) : status;
}
