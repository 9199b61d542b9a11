/* Making, running and digesting a batch. */
#include "workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPEATS 64

/* ---- Inputs: bell-shaped values from an integer hash, exact on every machine ---- */

static uint64_t hash(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static float bell(uint64_t key, int64_t idx)
{
    const uint64_t bits = hash(key + (uint64_t)(idx + 1) * 0x9E3779B97F4A7C15u);
    const int32_t sum = (int32_t)((bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) +
                                  ((bits >> 32) & 0xFFFF) + (bits >> 48));
    return (float)(sum - 2 * 65535) * (1.7320508f / 65536.0f);
}

static bool fill_bf16(uint16_t **to, int64_t count, uint64_t key, float scale)
{
    float piece[256];
    *to = malloc((size_t)count * sizeof **to + 1);
    if (*to == NULL) {
        return false;
    }
    for (int64_t at = 0; at < count; at += 256) {
        const int64_t here = count - at < 256 ? count - at : 256;
        for (int64_t i = 0; i < here; i++) {
            piece[i] = bell(key, at + i) * scale;
        }
        mok_bf16_from_f32(*to + at, piece, here);
    }
    return true;
}

static bool take_f32(float **to, int64_t count)
{
    *to = malloc((size_t)count * sizeof **to + 1);
    return *to != NULL;
}

static bool take_u16(uint16_t **to, int64_t count)
{
    *to = malloc((size_t)count * sizeof **to + 1);
    return *to != NULL;
}

/* Distinct experts of a token, skewed: the first quarter of the experts is chosen three times in
 * four. */
static void fill_routes(workload *w)
{
    const uint64_t experts = (uint64_t)w->experts;
    const uint64_t few = (experts + 3) / 4;
    for (int64_t t = 0; t < w->tokens; t++) {
        for (int64_t k = 0; k < w->slots; k++) {
            int32_t *route = &w->routes[t * w->slots + k];
            bool again = true;
            for (uint64_t attempt = 0; again; attempt++) {
                const uint64_t bits =
                    hash(hash(w->seed + 77 + attempt) + (uint64_t)(t * w->slots + k));
                *route = (int32_t)((bits >> 8) % (bits % 4 != 0 && attempt < 8 ? few : experts));
                again = false;
                for (int64_t before = 0; before < k && attempt < 1000; before++) {
                    again = again || w->routes[t * w->slots + before] == *route;
                }
            }
            w->router_weights[t * w->slots + k] =
                0.1f + (float)(hash(w->seed + 99 + (uint64_t)(t * w->slots + k)) >> 40) * 0x1p-24f;
        }
    }
}

static float scale_of(int64_t inputs)
{
    float scale =
        1.0f; /* a power of four steps down is a root's: near enough to keep values near one */
    while (scale * scale * (float)inputs > 1.0f) {
        scale *= 0.5f;
    }
    return scale;
}

bool workload_open(workload *w)
{
    const int64_t matrix = w->inner * w->hidden;
    const int64_t shared = w->shared_inner * w->hidden;
    const int64_t all = w->experts * matrix;
    const int64_t wide = w->tokens * w->hidden;
    const float in = scale_of(w->hidden);
    w->routes = malloc((size_t)(w->tokens * w->slots) * sizeof *w->routes + 1);
    const bool taken =
        w->routes != NULL && take_f32(&w->router_weights, w->tokens * w->slots) &&
        fill_bf16(&w->x, wide, w->seed * 16 + 1, 1.0f) &&
        fill_bf16(&w->dy, wide, w->seed * 16 + 2, 1.0f) &&
        fill_bf16(&w->gate, all, w->seed * 16 + 3, in) &&
        fill_bf16(&w->up, all, w->seed * 16 + 4, in) &&
        fill_bf16(&w->down, all, w->seed * 16 + 5, scale_of(w->inner)) &&
        fill_bf16(&w->shared_gate, shared, w->seed * 16 + 6, in) &&
        fill_bf16(&w->shared_up, shared, w->seed * 16 + 7, in) &&
        fill_bf16(&w->shared_down, shared, w->seed * 16 + 8, in) && take_u16(&w->y, wide) &&
        take_u16(&w->dx, wide) && take_f32(&w->d_router_weights, w->tokens * w->slots) &&
        take_f32(&w->d_gate, all) && take_f32(&w->d_up, all) && take_f32(&w->d_down, all) &&
        take_f32(&w->d_shared_gate, w->lanes * shared) &&
        take_f32(&w->d_shared_up, w->lanes * shared) &&
        take_f32(&w->d_shared_down, w->lanes * shared);
    if (taken) {
        fill_routes(w);
    }
    return taken;
}

void workload_close(workload *w)
{
    void *all[] = {w->x,
                   w->dy,
                   w->gate,
                   w->up,
                   w->down,
                   w->routes,
                   w->shared_gate,
                   w->shared_up,
                   w->y,
                   w->shared_down,
                   w->dx,
                   w->d_gate,
                   w->d_up,
                   w->d_down,
                   w->router_weights,
                   w->d_shared_gate,
                   w->d_shared_up,
                   w->d_shared_down,
                   w->d_router_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    memset(w, 0, sizeof *w);
}

/* ---- Running ---- */

typedef struct rank_work {
    workload *w;
    workload_run *run;
} rank_work;

/* This rank's part of the batch: whole lanes, and its experts. */
typedef struct part {
    int64_t lane, lanes, token, tokens, expert, experts;
} part;

static part part_of(const workload *w, int32_t ranks, int32_t rank)
{
    part p = {0, 0, 0, 0, 0, 0};
    (void)mok_expert_range(w->lanes, ranks, rank, &p.lane, &p.lanes);
    (void)mok_expert_range(w->experts, ranks, rank, &p.expert, &p.experts);
    p.token = p.lane * (w->tokens / w->lanes);
    p.tokens = p.lanes * (w->tokens / w->lanes);
    return p;
}

static void weights_of(mok_weights_view *view, const workload *w, const part *p)
{
    const int64_t first = p->expert * w->inner * w->hidden;
    const int64_t h = w->hidden;
    mok_weights_view_init(view);
    view->gate = mok_tensor_3d(w->gate + first, MOK_DTYPE_BF16, p->experts, w->inner, h);
    view->up = mok_tensor_3d(w->up + first, MOK_DTYPE_BF16, p->experts, w->inner, h);
    view->down = mok_tensor_3d(w->down + first, MOK_DTYPE_BF16, p->experts, h, w->inner);
    view->shared_gate = mok_tensor_2d(w->shared_gate, MOK_DTYPE_BF16, w->shared_inner, h);
    view->shared_up = mok_tensor_2d(w->shared_up, MOK_DTYPE_BF16, w->shared_inner, h);
    view->shared_down = mok_tensor_2d(w->shared_down, MOK_DTYPE_BF16, h, w->shared_inner);
}

static void gradients_of(mok_gradients *g, const workload *w, const part *p)
{
    const int64_t first = p->expert * w->inner * w->hidden;
    const int64_t shared = p->lane * w->shared_inner * w->hidden;
    const int64_t h = w->hidden;
    mok_gradients_init(g);
    g->dx = mok_tensor_2d(w->dx + p->token * h, MOK_DTYPE_BF16, p->tokens, h);
    g->d_router_weights = mok_tensor_2d(w->d_router_weights + p->token * w->slots, MOK_DTYPE_F32,
                                        p->tokens, w->slots);
    g->gate = mok_tensor_3d(w->d_gate + first, MOK_DTYPE_F32, p->experts, w->inner, h);
    g->up = mok_tensor_3d(w->d_up + first, MOK_DTYPE_F32, p->experts, w->inner, h);
    g->down = mok_tensor_3d(w->d_down + first, MOK_DTYPE_F32, p->experts, h, w->inner);
    g->shared_lanes = p->lanes;
    g->shared_gate =
        mok_tensor_3d(w->d_shared_gate + shared, MOK_DTYPE_F32, p->lanes, w->shared_inner, h);
    g->shared_up =
        mok_tensor_3d(w->d_shared_up + shared, MOK_DTYPE_F32, p->lanes, w->shared_inner, h);
    g->shared_down =
        mok_tensor_3d(w->d_shared_down + shared, MOK_DTYPE_F32, p->lanes, h, w->shared_inner);
}

typedef struct handles {
    mok_layer *layer;
    mok_schedule *schedule;
    mok_activations *activations;
} handles;

static mok_status open_handles(handles *h, mok_comm *comm, const workload *w, workload_run *run)
{
    mok_layer_config config;
    mok_layer_sizes sizes;
    const part largest = part_of(w, mok_comm_size(comm), 0);
    mok_layer_config_init(&config);
    config.hidden = w->hidden;
    config.intermediate = w->inner;
    config.shared_intermediate = w->shared_inner;
    config.experts = w->experts;
    config.slots = w->slots;
    config.max_tokens = largest.tokens;
    config.macrobatch_rows = run->macrobatch_rows;
    config.minibatch_rows = run->minibatch_rows;
    config.arith = w->arith;
    sizes.struct_bytes = sizeof sizes;
    mok_status status = mok_layer_open(&h->layer, comm, &config);
    status = status != MOK_OK ? status : mok_schedule_open(&h->schedule, h->layer);
    status = status != MOK_OK ? status : mok_activations_open(&h->activations, h->layer);
    status = status != MOK_OK ? status
                              : mok_layer_sizes_query(&sizes, &config, mok_comm_size(comm),
                                                      mok_comm_rank(comm), mok_comm_threads(comm));
    if (status == MOK_OK && mok_comm_rank(comm) == 0) {
        run->layer_bytes = sizes.arena_bytes + sizes.workspace_bytes + sizes.activations_bytes +
                           sizes.schedule_bytes;
    }
    return status;
}

static mok_status step(const handles *h, const workload *w, const part *p)
{
    mok_weights_view weights;
    mok_gradients gradients;
    const int64_t k = w->slots;
    const mok_tensor routes = mok_tensor_2d(w->routes + p->token * k, MOK_DTYPE_I32, p->tokens, k);
    const mok_tensor router =
        mok_tensor_2d(w->router_weights + p->token * k, MOK_DTYPE_F32, p->tokens, k);
    const mok_tensor x =
        mok_tensor_2d(w->x + p->token * w->hidden, MOK_DTYPE_BF16, p->tokens, w->hidden);
    const mok_tensor y =
        mok_tensor_2d(w->y + p->token * w->hidden, MOK_DTYPE_BF16, p->tokens, w->hidden);
    const mok_tensor dy =
        mok_tensor_2d(w->dy + p->token * w->hidden, MOK_DTYPE_BF16, p->tokens, w->hidden);
    weights_of(&weights, w, p);
    gradients_of(&gradients, w, p);
    mok_status status = mok_schedule_build(h->schedule, h->layer, &routes);
    status = status != MOK_OK
                 ? status
                 : mok_forward(h->layer, h->activations, &y, h->schedule, &x, &router, &weights);
    return status != MOK_OK ? status
                            : mok_backward(h->layer, &gradients, h->activations, h->schedule, &dy,
                                           &x, &router, &weights);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static mok_status run_rank(mok_comm *comm, void *context)
{
    const rank_work *work = context;
    const part p = part_of(work->w, mok_comm_size(comm), mok_comm_rank(comm));
    handles h = {NULL, NULL, NULL};
    double times[MAX_REPEATS] = {0.0};
    const int32_t repeats = work->run->repeats < MAX_REPEATS ? work->run->repeats : MAX_REPEATS;
    mok_status status = open_handles(&h, comm, work->w, work->run);
    for (int32_t i = 0; i < repeats && status == MOK_OK; i++) {
        const double begin = group_now_s();
        status = step(&h, work->w, &p);
        times[i] = group_now_s() - begin;
    }
    qsort(times, (size_t)repeats, sizeof times[0], by_value);
    if (mok_comm_rank(comm) == 0) {
        work->run->step_s = times[repeats / 2];
    }
    mok_activations_close(&h.activations);
    mok_schedule_close(&h.schedule);
    mok_layer_close(&h.layer);
    return status;
}

static void poison(workload *w)
{
    const size_t matrix = (size_t)(w->experts * w->inner * w->hidden) * sizeof(float);
    const size_t shared = (size_t)(w->lanes * w->shared_inner * w->hidden) * sizeof(float);
    const size_t wide = (size_t)(w->tokens * w->hidden) * sizeof(uint16_t);
    memset(w->y, 0xFF, wide);
    memset(w->dx, 0xFF, wide);
    memset(w->d_router_weights, 0xFF, (size_t)(w->tokens * w->slots) * sizeof(float));
    memset(w->d_gate, 0xFF, matrix);
    memset(w->d_up, 0xFF, matrix);
    memset(w->d_down, 0xFF, matrix);
    memset(w->d_shared_gate, 0xFF, shared);
    memset(w->d_shared_up, 0xFF, shared);
    memset(w->d_shared_down, 0xFF, shared);
}

mok_status workload_step(workload *w, workload_run *run, char *why)
{
    mok_comm_config config;
    rank_work work = {w, run};
    mok_comm_config_init(&config);
    config.threads = run->threads;
    config.level = run->level;
    config.timeout_ms = 600000;
    poison(w);
    return group_run(run->ranks, &config, run_rank, &work, why);
}

mok_status workload_digest(const workload *w, mok_digest *out)
{
    const int64_t h = w->hidden;
    const mok_tensor tensors[] = {
        mok_tensor_2d(w->y, MOK_DTYPE_BF16, w->tokens, h),
        mok_tensor_2d(w->dx, MOK_DTYPE_BF16, w->tokens, h),
        mok_tensor_2d(w->d_router_weights, MOK_DTYPE_F32, w->tokens, w->slots),
        mok_tensor_3d(w->d_gate, MOK_DTYPE_F32, w->experts, w->inner, h),
        mok_tensor_3d(w->d_up, MOK_DTYPE_F32, w->experts, w->inner, h),
        mok_tensor_3d(w->d_down, MOK_DTYPE_F32, w->experts, h, w->inner),
        mok_tensor_3d(w->d_shared_gate, MOK_DTYPE_F32, w->lanes, w->shared_inner, h),
        mok_tensor_3d(w->d_shared_up, MOK_DTYPE_F32, w->lanes, w->shared_inner, h),
        mok_tensor_3d(w->d_shared_down, MOK_DTYPE_F32, w->lanes, h, w->shared_inner),
    };
    enum { COUNT = sizeof tensors / sizeof tensors[0] };
    mok_digest digests[COUNT];
    for (int i = 0; i < COUNT; i++) {
        const mok_status status = mok_digest_tensor(&digests[i], &tensors[i], w->arith);
        if (status != MOK_OK) {
            return status;
        }
    }
    return mok_digest_combine(out, digests, COUNT);
}

double workload_macs(const workload *w)
{
    const double routed =
        (double)w->tokens * (double)w->slots * (double)w->hidden * (double)w->inner;
    const double shared = (double)w->tokens * (double)w->hidden * (double)w->shared_inner;
    return 9.0 * (routed + shared); /* three products forward, six backward */
}
