/* Uploading, running and reading back a problem on the device. */
#include "device_problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 4096
#define GUARD_BYTE 0xA5

void cuda_must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

device_config device_config_default(void)
{
    const device_config config = {1,     0,    20000,          -1,    0,    0,   0, NULL, false,
                                  false, true, MOK_GRAD_STORE, false, NULL, NULL};
    return config;
}

/* Device memory with a guard band on both sides. */
static unsigned char *take(size_t bytes)
{
    void *base = NULL;
    const size_t inner = (bytes + 255) / 256 * 256;
    cuda_must(cudaMalloc(&base, inner + 2 * GUARD), "cudaMalloc");
    cuda_must(cudaMemset(base, GUARD_BYTE, inner + 2 * GUARD), "cudaMemset");
    return (unsigned char *)base + GUARD;
}

static void drop(unsigned char *memory)
{
    if (memory != NULL) {
        cuda_must(cudaFree(memory - GUARD), "cudaFree");
    }
}

static unsigned char *upload(const void *data, size_t bytes)
{
    unsigned char *to = take(bytes);
    cuda_must(cudaMemcpy(to, data, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return to;
}

static bool guards_hold(const unsigned char *memory, size_t bytes)
{
    unsigned char band[GUARD];
    const size_t inner = (bytes + 255) / 256 * 256;
    const unsigned char *bands[2] = {memory - GUARD, memory + inner};
    for (int side = 0; side < 2; side++) {
        cuda_must(cudaMemcpy(band, bands[side], GUARD, cudaMemcpyDeviceToHost), "cudaMemcpy");
        for (int i = 0; i < GUARD; i++) {
            if (band[i] != GUARD_BYTE) {
                return false;
            }
        }
    }
    return true;
}

/* Lanes of a rank, and the first of them. Without by_lanes a rank is one lane. */
static int64_t lanes_of(const device_problem *d, int32_t rank, int64_t *begin)
{
    int64_t count = 1;
    *begin = rank;
    if (d->config.by_lanes) {
        (void)mok_expert_range(d->p->lanes, d->config.ranks, rank, begin, &count);
    }
    return count;
}

static int64_t tokens_of(const device_problem *d, int32_t rank, int64_t *begin)
{
    if (d->config.by_lanes) {
        const int64_t count = lanes_of(d, rank, begin);
        const int64_t each = d->p->tokens / d->p->lanes;
        *begin *= each;
        return count * each;
    }
    int64_t count = 0;
    *begin = 0;
    for (int32_t r = 0; r <= rank; r++) {
        *begin += count;
        count = d->config.split != NULL
                    ? d->config.split[r]
                    : d->p->tokens / d->config.ranks + (r < d->p->tokens % d->config.ranks ? 1 : 0);
    }
    return count;
}

static size_t route_bytes(const device_problem *d)
{
    return d->config.int64_routes ? sizeof(int64_t) : sizeof(int32_t);
}

static void make_views(device_problem *d)
{
    const problem *p = d->p;
    const int64_t h = p->hidden;
    const int64_t matrix = p->inner * h;
    for (int32_t r = 0; r < d->config.ranks; r++) {
        int64_t begin = 0;
        int64_t expert = 0;
        int64_t experts = 0;
        const int64_t t = tokens_of(d, r, &begin);
        (void)mok_expert_range(p->experts, d->config.ranks, r, &expert, &experts);
        mok_cuda_rank_io *io = &d->io[r];
        memset(io, 0, sizeof *io);
        io->x = mok_tensor_2d(d->x + begin * h * 2, MOK_DTYPE_BF16, t, h);
        io->out = mok_tensor_2d(d->y + begin * h * 2, MOK_DTYPE_BF16, t, h);
        io->router_weights =
            mok_tensor_2d(d->router_weights + begin * p->slots * 4, MOK_DTYPE_F32, t, p->slots);
        d->route_view[r] =
            mok_tensor_2d(d->routes + (size_t)(begin * p->slots) * route_bytes(d),
                          d->config.int64_routes ? MOK_DTYPE_I64 : MOK_DTYPE_I32, t, p->slots);
        mok_weights_view *w = &io->weights;
        mok_weights_view_init(w);
        w->gate =
            mok_tensor_3d(d->gate + expert * matrix * 2, MOK_DTYPE_BF16, experts, p->inner, h);
        w->up = mok_tensor_3d(d->up + expert * matrix * 2, MOK_DTYPE_BF16, experts, p->inner, h);
        w->down =
            mok_tensor_3d(d->down + expert * matrix * 2, MOK_DTYPE_BF16, experts, h, p->inner);
        w->shared_gate = mok_tensor_2d(d->shared_gate, MOK_DTYPE_BF16, p->shared_inner, h);
        w->shared_up = mok_tensor_2d(d->shared_up, MOK_DTYPE_BF16, p->shared_inner, h);
        w->shared_down = mok_tensor_2d(d->shared_down, MOK_DTYPE_BF16, h, p->shared_inner);
    }
}

static size_t gradient_bytes(const device_problem *d)
{
    return d->config.bf16_gradients ? sizeof(uint16_t) : sizeof(float);
}

static void make_gradient_views(device_problem *d)
{
    const problem *p = d->p;
    const int64_t h = p->hidden;
    const int64_t matrix = p->inner * h;
    const int64_t shared = p->shared_inner * h;
    const mok_dtype dtype = d->config.bf16_gradients ? MOK_DTYPE_BF16 : MOK_DTYPE_F32;
    const size_t element = gradient_bytes(d);
    for (int32_t r = 0; r < d->config.ranks; r++) {
        int64_t begin = 0;
        int64_t expert = 0;
        int64_t e = 0;
        int64_t lane = 0;
        const int64_t t = tokens_of(d, r, &begin);
        const int64_t lanes = t > 0 ? lanes_of(d, r, &lane) : 0;
        (void)mok_expert_range(p->experts, d->config.ranks, r, &expert, &e);
        mok_cuda_rank_gradients *back = &d->back[r];
        mok_gradients *g = &back->gradients;
        const size_t first = (size_t)(expert * matrix) * element;
        const size_t at = (size_t)(lane * shared) * sizeof(float);
        memset(back, 0, sizeof *back);
        mok_gradients_init(g);
        back->dy = mok_tensor_2d(d->dy + begin * h * 2, MOK_DTYPE_BF16, t, h);
        g->mode = d->config.mode;
        g->dx = mok_tensor_2d(d->dx + begin * h * 2, MOK_DTYPE_BF16, t, h);
        g->d_router_weights =
            mok_tensor_2d(d->d_router + begin * p->slots * 4, MOK_DTYPE_F32, t, p->slots);
        g->gate = mok_tensor_3d(d->d_gate + first, dtype, e, p->inner, h);
        g->up = mok_tensor_3d(d->d_up + first, dtype, e, p->inner, h);
        g->down = mok_tensor_3d(d->d_down + first, dtype, e, h, p->inner);
        g->shared_lanes = lanes;
        g->shared_gate =
            mok_tensor_3d(d->d_shared[0] + at, MOK_DTYPE_F32, lanes, p->shared_inner, h);
        g->shared_up = mok_tensor_3d(d->d_shared[1] + at, MOK_DTYPE_F32, lanes, p->shared_inner, h);
        g->shared_down =
            mok_tensor_3d(d->d_shared[2] + at, MOK_DTYPE_F32, lanes, h, p->shared_inner);
    }
}

/* Sizes of the gradients' buffers, in the order of gradient_list. */
#define GRADIENTS 8

static void gradient_list(device_problem *d, unsigned char **slots[GRADIENTS],
                          size_t bytes[GRADIENTS])
{
    const problem *p = d->p;
    const size_t matrix = (size_t)(p->experts * p->inner * p->hidden) * gradient_bytes(d);
    const int64_t lanes = d->config.by_lanes ? p->lanes : d->config.ranks;
    const size_t shared = (size_t)(lanes * p->shared_inner * p->hidden) * sizeof(float);
    unsigned char **const all[GRADIENTS] = {&d->dx,          &d->d_router,   &d->d_gate,
                                            &d->d_up,        &d->d_down,     &d->d_shared[0],
                                            &d->d_shared[1], &d->d_shared[2]};
    const size_t sizes[GRADIENTS] = {(size_t)(p->tokens * p->hidden) * 2,
                                     (size_t)(p->tokens * p->slots) * 4,
                                     matrix,
                                     matrix,
                                     matrix,
                                     shared,
                                     shared,
                                     shared};
    memcpy(slots, all, sizeof all);
    memcpy(bytes, sizes, sizeof sizes);
}

static mok_status open_layer(device_problem *d)
{
    const problem *p = d->p;
    int64_t begin = 0;
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.hidden = p->hidden;
    config.intermediate = p->inner;
    config.shared_intermediate = p->shared_inner;
    config.experts = p->experts;
    config.slots = p->slots;
    for (int32_t r = 0; r < d->config.ranks; r++) {
        const int64_t t = tokens_of(d, r, &begin);
        config.max_tokens = t > config.max_tokens ? t : config.max_tokens;
    }
    config.capacity_rows = d->config.capacity_rows;
    config.macrobatch_rows = d->config.macrobatch_rows;
    config.minibatch_rows = d->config.minibatch_rows;
    config.activation = p->clamped ? MOK_ACTIVATION_SWIGLU_CLAMPED : MOK_ACTIVATION_SWIGLU;
    config.swiglu_limit = p->limit;
    mok_cuda_config cuda;
    mok_cuda_config_init(&cuda);
    cuda.ranks = d->config.ranks;
    cuda.comm_blocks = d->config.comm_blocks;
    cuda.timeout_ms = d->config.timeout_ms;
    cuda.stalled_rank = d->config.stalled_rank;
    cuda.forward_only = d->config.forward_only ? 1 : 0;
    if (d->config.comm != NULL) {
        return mok_cuda_layer_open_ranks(&d->layer, &config, &cuda, d->config.comm,
                                         d->config.memory);
    }
    return mok_cuda_layer_open(&d->layer, &config, &cuda);
}

mok_status device_problem_open(device_problem *d, problem *p, const device_config *config)
{
    memset(d, 0, sizeof *d);
    d->p = p;
    d->config = *config;
    const mok_status status = open_layer(d);
    if (status != MOK_OK) {
        return status;
    }
    const size_t matrix = (size_t)(p->experts * p->inner * p->hidden) * 2;
    const size_t shared = (size_t)(p->shared_inner * p->hidden) * 2;
    const size_t routes = (size_t)(p->tokens * p->slots);
    cuda_must(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "cudaStreamCreate");
    d->gate = upload(p->gate, matrix);
    d->up = upload(p->up, matrix);
    d->down = upload(p->down, matrix);
    d->shared_gate = upload(p->shared_gate, shared);
    d->shared_up = upload(p->shared_up, shared);
    d->shared_down = upload(p->shared_down, shared);
    d->x = take((size_t)(p->tokens * p->hidden) * 2);
    d->y = take((size_t)(p->tokens * p->hidden) * 2);
    d->routes = take(routes * route_bytes(d));
    d->router_weights = take(routes * 4);
    if (!d->config.forward_only) {
        unsigned char **slots[GRADIENTS];
        size_t bytes[GRADIENTS];
        gradient_list(d, slots, bytes);
        for (int i = 0; i < GRADIENTS; i++) {
            *slots[i] = take(bytes[i]);
        }
        d->dy = upload(p->dy, (size_t)(p->tokens * p->hidden) * 2);
        make_gradient_views(d);
    }
    device_problem_upload(d);
    make_views(d);
    return MOK_OK;
}

void device_problem_upload(device_problem *d)
{
    const problem *p = d->p;
    const size_t routes = (size_t)(p->tokens * p->slots);
    cuda_must(cudaMemcpy(d->x, p->x, (size_t)(p->tokens * p->hidden) * 2, cudaMemcpyHostToDevice),
              "x");
    if (d->dy != NULL) {
        cuda_must(
            cudaMemcpy(d->dy, p->dy, (size_t)(p->tokens * p->hidden) * 2, cudaMemcpyHostToDevice),
            "dy");
    }
    cuda_must(cudaMemcpy(d->router_weights, p->router_weights, routes * 4, cudaMemcpyHostToDevice),
              "router weights");
    if (!d->config.int64_routes) {
        cuda_must(cudaMemcpy(d->routes, p->routes, routes * 4, cudaMemcpyHostToDevice), "routes");
        return;
    }
    int64_t *wide = malloc(routes * sizeof *wide + 1);
    if (wide == NULL) {
        fprintf(stderr, "no memory for routes\n");
        exit(1);
    }
    for (size_t i = 0; i < routes; i++) {
        wide[i] = p->routes[i];
    }
    cuda_must(cudaMemcpy(d->routes, wide, routes * sizeof *wide, cudaMemcpyHostToDevice), "routes");
    free(wide);
}

void device_problem_close(device_problem *d)
{
    mok_cuda_layer_close(&d->layer);
    if (d->stream != NULL) {
        cuda_must(cudaStreamDestroy(d->stream), "cudaStreamDestroy");
    }
    unsigned char *all[] = {
        d->x,           d->y,           d->gate,        d->up,         d->down,
        d->shared_gate, d->shared_up,   d->shared_down, d->routes,     d->router_weights,
        d->dy,          d->dx,          d->d_router,    d->d_gate,     d->d_up,
        d->d_down,      d->d_shared[0], d->d_shared[1], d->d_shared[2]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        drop(all[i]);
    }
    memset(d, 0, sizeof *d);
}

void device_problem_poison(device_problem *d, int byte)
{
    cuda_must(cudaMemset(d->y, byte, (size_t)(d->p->tokens * d->p->hidden) * 2), "poison");
    cuda_must(cudaDeviceSynchronize(), "poison");
}

/* The first rank of this process, to whose elements the calls begin. */
static int32_t first_of(const device_problem *d)
{
    return d->config.comm != NULL ? mok_comm_rank(d->config.comm) : 0;
}

mok_status device_problem_schedule(device_problem *d)
{
    return mok_cuda_schedule_build(d->layer, d->route_view + first_of(d), d->stream);
}

mok_status device_problem_launch(device_problem *d)
{
    const mok_status status = device_problem_schedule(d);
    return status != MOK_OK ? status : mok_cuda_forward(d->layer, d->io + first_of(d), d->stream);
}

bool device_problem_read(device_problem *d, uint16_t *y, char *why, size_t why_bytes)
{
    const size_t bytes = (size_t)(d->p->tokens * d->p->hidden) * 2;
    mok_fault fault;
    fault.struct_bytes = sizeof fault;
    cuda_must(cudaStreamSynchronize(d->stream), "the device's kernels");
    if (mok_cuda_fault_read(d->layer, &fault) != MOK_OK) {
        (void)snprintf(why, why_bytes, "%s", mok_last_error());
        return false;
    }
    cuda_must(cudaMemcpy(y, d->y, bytes, cudaMemcpyDeviceToHost), "y");
    if (!guards_hold(d->y, bytes) || !guards_hold(d->x, bytes)) {
        (void)snprintf(why, why_bytes, "a guard band was written");
        return false;
    }
    return true;
}

bool device_problem_run(device_problem *d, uint16_t *y, char *why, size_t why_bytes)
{
    device_problem_poison(d, 0xFF);
    if (device_problem_launch(d) != MOK_OK) {
        (void)snprintf(why, why_bytes, "%s", mok_last_error());
        return false;
    }
    return device_problem_read(d, y, why, why_bytes);
}

void device_problem_poison_gradients(device_problem *d, int byte)
{
    unsigned char **slots[GRADIENTS];
    size_t bytes[GRADIENTS];
    gradient_list(d, slots, bytes);
    for (int i = 0; i < GRADIENTS; i++) {
        cuda_must(cudaMemset(*slots[i], byte, bytes[i]), "poison");
    }
    cuda_must(cudaDeviceSynchronize(), "poison");
}

mok_status device_problem_launch_backward(device_problem *d)
{
    return mok_cuda_backward(d->layer, d->io + first_of(d), d->back + first_of(d), d->stream);
}

bool device_problem_read_gradients(device_problem *d, result *r, char *why, size_t why_bytes)
{
    unsigned char **slots[GRADIENTS];
    size_t bytes[GRADIENTS];
    void *to[GRADIENTS] = {r->dx,   r->d_router_weights, r->gate,      r->up,
                           r->down, r->shared_gate,      r->shared_up, r->shared_down};
    mok_fault fault;
    fault.struct_bytes = sizeof fault;
    gradient_list(d, slots, bytes);
    cuda_must(cudaStreamSynchronize(d->stream), "the device's kernels");
    if (mok_cuda_fault_read(d->layer, &fault) != MOK_OK) {
        (void)snprintf(why, why_bytes, "%s", mok_last_error());
        return false;
    }
    for (int i = 0; i < (d->config.by_lanes ? GRADIENTS : 5); i++) {
        cuda_must(cudaMemcpy(to[i], *slots[i], bytes[i], cudaMemcpyDeviceToHost), "gradients");
    }
    for (int i = 0; i < GRADIENTS; i++) {
        if (!guards_hold(*slots[i], bytes[i])) {
            (void)snprintf(why, why_bytes, "the guard band of gradient %d was written", i);
            return false;
        }
    }
    return true;
}
