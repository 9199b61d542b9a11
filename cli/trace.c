/* mok trace: one forward pass on the GPU with every block's work recorded, as Chrome trace JSON and
 * as an SVG.
 *
 * The layer is filled with random data; sizes and ranks are options. In the SVG a line is a block
 * of the grid, time runs to the right: blue is gate/up, green down, orange dispatch, red waiting,
 * grey the fold. */
#include <stdio.h>
#include <string.h>

#include "options.h"
#include "verbs.h"

static const verb_help help = {
    "trace", "Runs a forward pass on the GPU and writes what each block did when.",
    "mok trace --tokens 4096 --hidden 2048 --inner 768 --experts 64 --slots 8 --svg trace.svg "
    "--out trace.json"};

#ifdef MOK_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <mok/mok_cuda.h>
#include <stdlib.h>

typedef struct trace_options {
    int64_t tokens, hidden, inner, shared, experts, slots, ranks, comm_blocks, minibatch_rows;
    const char *out, *svg;
} trace_options;

/* Device memory of one run; everything is released together. */
typedef struct device_pool {
    void *block[64];
    int count;
    bool failed;
} device_pool;

static void *take(device_pool *pool, size_t bytes)
{
    void *block = NULL;
    if (pool->count == 64 || cudaMalloc(&block, bytes + 256) != cudaSuccess) {
        pool->failed = true;
        return NULL;
    }
    pool->block[pool->count++] = block;
    return block;
}

static void release(device_pool *pool)
{
    for (int i = 0; i < pool->count; i++) {
        (void)cudaFree(pool->block[i]);
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1DULL;
}

/* count bf16 values between -scale and scale. */
static void *random_bf16(device_pool *pool, int64_t count, float scale, uint64_t *state)
{
    void *to = take(pool, (size_t)count * 2);
    uint16_t *host = malloc((size_t)count * 2 + 2);
    if (to == NULL || host == NULL) {
        pool->failed = true;
        free(host);
        return to;
    }
    for (int64_t i = 0; i < count; i++) {
        const float value = ((float)(next_random(state) >> 40) * 0x1p-23f - 1.0f) * scale;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        host[i] = (uint16_t)(bits >> 16);
    }
    pool->failed = pool->failed ||
                   cudaMemcpy(to, host, (size_t)count * 2, cudaMemcpyHostToDevice) != cudaSuccess;
    free(host);
    return to;
}

static void *random_routes(device_pool *pool, const trace_options *o, int64_t tokens,
                           uint64_t *state)
{
    const int64_t count = tokens * o->slots;
    void *to = take(pool, (size_t)count * 4);
    int32_t *host = malloc((size_t)count * 4 + 4);
    if (to == NULL || host == NULL) {
        pool->failed = true;
        free(host);
        return to;
    }
    for (int64_t i = 0; i < count; i++) {
        host[i] = (int32_t)((next_random(state) >> 20) % (uint64_t)o->experts);
    }
    pool->failed = pool->failed ||
                   cudaMemcpy(to, host, (size_t)count * 4, cudaMemcpyHostToDevice) != cudaSuccess;
    free(host);
    return to;
}

static void *half_weights(device_pool *pool, int64_t count)
{
    void *to = take(pool, (size_t)count * 4);
    float *host = malloc((size_t)count * 4 + 4);
    for (int64_t i = 0; i < count && host != NULL; i++) {
        host[i] = 0.5f;
    }
    pool->failed = pool->failed || to == NULL || host == NULL ||
                   cudaMemcpy(to, host, (size_t)count * 4, cudaMemcpyHostToDevice) != cudaSuccess;
    free(host);
    return to;
}

static void fill_rank(device_pool *pool, const trace_options *o, int32_t rank, mok_cuda_rank_io *io,
                      mok_tensor *routes, uint64_t *state)
{
    const int64_t t = o->tokens / o->ranks + (rank < o->tokens % o->ranks ? 1 : 0);
    const int64_t h = o->hidden;
    int64_t begin = 0;
    int64_t e = 0;
    (void)mok_expert_range(o->experts, (int32_t)o->ranks, rank, &begin, &e);
    const float scale = 2.0f / (float)(h > 64 ? 32 : 8);
    memset(io, 0, sizeof *io);
    io->x = mok_tensor_2d(random_bf16(pool, t * h, 1.7f, state), MOK_DTYPE_BF16, t, h);
    io->out = mok_tensor_2d(take(pool, (size_t)(t * h) * 2), MOK_DTYPE_BF16, t, h);
    io->router_weights =
        mok_tensor_2d(half_weights(pool, t * o->slots), MOK_DTYPE_F32, t, o->slots);
    *routes = mok_tensor_2d(random_routes(pool, o, t, state), MOK_DTYPE_I32, t, o->slots);
    mok_weights_view *w = &io->weights;
    mok_weights_view_init(w);
    w->gate = mok_tensor_3d(random_bf16(pool, e * o->inner * h, scale, state), MOK_DTYPE_BF16, e,
                            o->inner, h);
    w->up = mok_tensor_3d(random_bf16(pool, e * o->inner * h, scale, state), MOK_DTYPE_BF16, e,
                          o->inner, h);
    w->down = mok_tensor_3d(random_bf16(pool, e * o->inner * h, scale, state), MOK_DTYPE_BF16, e, h,
                            o->inner);
    const int64_t s = o->shared;
    w->shared_gate = mok_tensor_2d(random_bf16(pool, s * h, scale, state), MOK_DTYPE_BF16, s, h);
    w->shared_up = mok_tensor_2d(random_bf16(pool, s * h, scale, state), MOK_DTYPE_BF16, s, h);
    w->shared_down = mok_tensor_2d(random_bf16(pool, s * h, scale, state), MOK_DTYPE_BF16, h, s);
}

static mok_status run_layer(const trace_options *o, device_pool *pool, mok_cuda_layer **layer)
{
    mok_layer_config config;
    mok_cuda_config cuda;
    mok_tensor routes[MOK_CUDA_MAX_RANKS];
    mok_cuda_rank_io io[MOK_CUDA_MAX_RANKS];
    uint64_t state = 88172645463325252u;
    mok_layer_config_init(&config);
    config.hidden = o->hidden;
    config.intermediate = o->inner;
    config.shared_intermediate = o->shared;
    config.experts = o->experts;
    config.slots = o->slots;
    config.max_tokens = (o->tokens + o->ranks - 1) / o->ranks;
    config.minibatch_rows = o->minibatch_rows;
    mok_cuda_config_init(&cuda);
    cuda.ranks = (int32_t)o->ranks;
    cuda.comm_blocks = (int32_t)o->comm_blocks;
    cuda.trace_events = 4096;
    mok_status status = mok_cuda_layer_open(layer, &config, &cuda);
    for (int32_t r = 0; r < cuda.ranks && status == MOK_OK; r++) {
        fill_rank(pool, o, r, &io[r], &routes[r], &state);
    }
    if (status == MOK_OK && pool->failed) {
        return MOK_ERROR_MEMORY;
    }
    for (int i = 0; i < 3 && status == MOK_OK;
         i++) { /* the last of three: the device is awake by then */
        status = mok_cuda_schedule_build(*layer, routes, NULL);
        status = status != MOK_OK ? status : mok_cuda_forward(*layer, io, NULL);
    }
    if (status == MOK_OK) {
        mok_fault fault;
        fault.struct_bytes = sizeof fault;
        (void)cudaDeviceSynchronize();
        status = mok_cuda_fault_read(*layer, &fault);
    }
    return status;
}

static const char *role_string(mok_cuda_role role)
{
    static const char *const names[] = {"comm", "producer", "consumer", "store"};
    return names[role];
}

static const char *what_string(mok_cuda_what what)
{
    static const char *const names[] = {"", "wait ", "barrier ", ""};
    return names[what];
}

static bool write_json(const char *path, const mok_cuda_event *events, int64_t count)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return false;
    }
    (void)fprintf(file, "{\"traceEvents\":[\n");
    for (int64_t i = 0; i < count; i++) {
        const mok_cuda_event *e = &events[i];
        (void)fprintf(
            file,
            "{\"name\":\"%s%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
            "\"args\":{\"rank\":%d,\"row_block\":%d,\"col\":%d}}%s\n",
            what_string(e->what), mok_cuda_task_string(e->kind), e->block, role_string(e->role),
            (double)e->begin_ns * 1e-3, (double)(e->end_ns - e->begin_ns) * 1e-3, e->rank,
            e->row_block, e->col, i + 1 < count ? "," : "");
    }
    (void)fprintf(file, "]}\n");
    const bool good = ferror(file) == 0;
    return fclose(file) == 0 && good;
}

static const char *colour_of(const mok_cuda_event *e)
{
    if (e->what == MOK_CUDA_WAIT || e->what == MOK_CUDA_BARRIER) {
        return "#d62728";
    }
    if (e->what == MOK_CUDA_FOLD) {
        return "#7f7f7f";
    }
    const char *kind = mok_cuda_task_string(e->kind);
    return strstr(kind, "dispatch") != NULL ? "#ff7f0e"
           : strstr(kind, "down") != NULL   ? "#2ca02c"
                                            : "#1f77b4";
}

/* Roles that take a block's time: communication and products. */
static bool drawn(const mok_cuda_event *e)
{
    return e->role == MOK_CUDA_ROLE_CONSUMER || e->role == MOK_CUDA_ROLE_COMM;
}

/* What is drawn in one stroke: neighbours of one colour are one bar. */
typedef struct bar {
    int32_t block;
    const char *colour;
    double begin, end;
} bar;

static void draw_bar(FILE *file, bar *open, const bar *next)
{
    if (open->block == next->block && open->colour == next->colour &&
        next->begin - open->end < 1.0 && next->begin >= open->begin) {
        open->end = next->end > open->end ? next->end : open->end;
        return;
    }
    if (open->block >= 0 && open->end - open->begin > 0.2) {
        (void)fprintf(file,
                      "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"3.4\" fill=\"%s\"/>\n",
                      open->begin, 24 + open->block * 4, open->end - open->begin, open->colour);
    }
    *open = *next;
}

static bool write_svg(const char *path, const mok_cuda_event *events, int64_t count)
{
    int64_t end = 1;
    int32_t blocks = 1;
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return false;
    }
    for (int64_t i = 0; i < count; i++) {
        end = events[i].end_ns > end ? events[i].end_ns : end;
        blocks = events[i].block + 1 > blocks ? events[i].block + 1 : blocks;
    }
    (void)fprintf(file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1100 %d\" "
                  "font-family=\"sans-serif\" "
                  "font-size=\"12\"><rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                  "<text x=\"10\" y=\"16\">%d blocks, %.3f ms: dispatch orange, gate/up blue, down "
                  "green, waiting red, "
                  "fold grey</text>\n",
                  blocks * 4 + 40, blocks, (double)end * 1e-6);
    bar open = {-1, NULL, 0.0, 0.0};
    for (int64_t i = 0; i < count; i++) {
        const mok_cuda_event *e = &events[i];
        if (drawn(e)) {
            const bar next = {e->block, colour_of(e),
                              10.0 + 1080.0 * (double)e->begin_ns / (double)end,
                              10.0 + 1080.0 * (double)e->end_ns / (double)end};
            draw_bar(file, &open, &next);
        }
    }
    const bar none = {-1, NULL, 0.0, 0.0};
    draw_bar(file, &open, &none);
    (void)fprintf(file, "</svg>\n");
    const bool good = ferror(file) == 0;
    return fclose(file) == 0 && good;
}

static int write_files(const trace_options *o, mok_cuda_layer *layer)
{
    int64_t count = 0;
    mok_status status = mok_cuda_trace_read(layer, NULL, 0, &count);
    mok_cuda_event *events = malloc((size_t)(count + 1) * sizeof *events);
    if (events == NULL) {
        return EXIT_CODE_FAULT;
    }
    status = status != MOK_OK ? status : mok_cuda_trace_read(layer, events, count, &count);
    bool good = status == MOK_OK && count > 0;
    good = good && (o->out == NULL || write_json(o->out, events, count));
    good = good && (o->svg == NULL || write_svg(o->svg, events, count));
    free(events);
    (void)printf("events %" PRId64 "\n", count);
    if (!good) {
        (void)fprintf(stderr, "mok trace: %s\n",
                      status != MOK_OK ? mok_last_error() : "the files were not written");
    }
    return good ? EXIT_CODE_OK : EXIT_CODE_FAULT;
}

static int trace(const trace_options *o)
{
    device_pool pool;
    mok_cuda_layer *layer = NULL;
    memset(&pool, 0, sizeof pool);
    if (o->tokens < 1 || o->ranks < 1 || o->ranks > 4) {
        (void)fprintf(stderr, "mok trace: --tokens must be at least 1 and --ranks 1..4\n");
        return EXIT_CODE_USAGE;
    }
    const mok_status status = run_layer(o, &pool, &layer);
    int code = EXIT_CODE_FAULT;
    if (status == MOK_OK) {
        code = write_files(o, layer);
    } else {
        (void)fprintf(stderr, "mok trace: %s: %s\n", mok_status_string(status), mok_last_error());
    }
    mok_cuda_layer_close(&layer);
    release(&pool);
    return code;
}

int mok_cli_trace(int argc, char **argv)
{
    trace_options o = {4096, 2048, 768, 0, 64, 8, 1, 0, 0, "trace.json", NULL};
    const option table[] = {
        {"tokens", OPTION_INT, &o.tokens, "N", "of all ranks; default 4096"},
        {"hidden", OPTION_INT, &o.hidden, "N", "default 2048"},
        {"inner", OPTION_INT, &o.inner, "N", "intermediate; default 768"},
        {"shared", OPTION_INT, &o.shared, "N",
         "intermediate of the shared expert; default 0, none"},
        {"experts", OPTION_INT, &o.experts, "N", "default 64"},
        {"slots", OPTION_INT, &o.slots, "N", "routes of a token; default 8"},
        {"ranks", OPTION_INT, &o.ranks, "N", "virtual ranks, 1..4; default 1"},
        {"comm-blocks", OPTION_INT, &o.comm_blocks, "N", "of each rank; default an eighth"},
        {"minibatch-rows", OPTION_INT, &o.minibatch_rows, "N", "default by size"},
        {"out", OPTION_TEXT, &o.out, "FILE", "Chrome trace JSON; default trace.json"},
        {"svg", OPTION_TEXT, &o.svg, "FILE", "a timeline picture"},
    };
    const int code = options_parse(argc, argv, &help, table, (int)(sizeof table / sizeof table[0]));
    return code >= 0 ? code : trace(&o);
}

#else

int mok_cli_trace(int argc, char **argv)
{
    const int code = options_parse(argc, argv, &help, NULL, 0);
    if (code >= 0) {
        return code;
    }
    (void)fprintf(stderr, "mok trace: this build has no CUDA part\n");
    return EXIT_CODE_FAULT;
}

#endif
