/* The device's schedule equals the CPU's: rows, padding, counts, for unequal and empty ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"
#include "device_problem.h"

typedef struct tables {
    int64_t row_count, expert_count;
    int32_t *peer_rank, *peer_slot;
    int64_t *counts;
} tables;

typedef struct cpu_work {
    const problem *p;
    const device_config *config;
    tables *out; /* [ranks] */
} cpu_work;

static int64_t most_of(const int64_t *values, int32_t count)
{
    int64_t most = 0;
    for (int32_t i = 0; i < count; i++) {
        most = values[i] > most ? values[i] : most;
    }
    return most;
}

static void *copy_of(const void *from, size_t bytes)
{
    void *to = malloc(bytes + 1);
    if (to == NULL) {
        (void)fprintf(stderr, "no memory for a table\n");
        exit(1);
    }
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return to;
}

static mok_status build_on_cpu(mok_comm *comm, void *context)
{
    const cpu_work *work = context;
    const problem *p = work->p;
    const int32_t rank = mok_comm_rank(comm);
    int64_t begin = 0;
    for (int32_t r = 0; r < rank; r++) {
        begin += work->config->split[r];
    }
    mok_layer_config config;
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    mok_layer_config_init(&config);
    config.hidden = p->hidden;
    config.intermediate = p->inner;
    config.experts = p->experts;
    config.slots = p->slots;
    config.max_tokens = most_of(work->config->split, work->config->ranks);
    mok_status status = mok_layer_open(&layer, comm, &config);
    const mok_tensor routes = mok_tensor_2d(p->routes + begin * p->slots, MOK_DTYPE_I32,
                                            work->config->split[rank], p->slots);
    mok_schedule_view view;
    view.struct_bytes = sizeof view;
    status = status != MOK_OK ? status : mok_schedule_open(&schedule, layer);
    status = status != MOK_OK ? status : mok_schedule_build(schedule, layer, &routes);
    status = status != MOK_OK ? status : mok_schedule_read(schedule, &view);
    if (status == MOK_OK) {
        tables *out = &work->out[rank];
        out->row_count = view.row_count;
        out->expert_count = view.expert_count;
        out->peer_rank = copy_of(view.peer_rank, (size_t)view.row_count * 4);
        out->peer_slot = copy_of(view.peer_slot, (size_t)view.row_count * 4);
        out->counts = copy_of(view.count_per_expert, (size_t)view.expert_count * 8);
    }
    mok_schedule_close(&schedule);
    mok_layer_close(&layer);
    return status;
}

static bool rank_equal(device_problem *d, int32_t rank, const tables *want, int64_t capacity)
{
    int32_t *peer_rank = malloc((size_t)capacity * 4 + 4);
    int32_t *peer_slot = malloc((size_t)capacity * 4 + 4);
    int64_t *counts = malloc((size_t)want->expert_count * 8 + 8);
    int64_t row_count = -1;
    const bool equal = mok_cuda_schedule_copy(d->layer, rank, &row_count, peer_rank, peer_slot,
                                              counts) == MOK_OK &&
                       row_count == want->row_count &&
                       memcmp(peer_rank, want->peer_rank, (size_t)row_count * 4) == 0 &&
                       memcmp(peer_slot, want->peer_slot, (size_t)row_count * 4) == 0 &&
                       memcmp(counts, want->counts, (size_t)want->expert_count * 8) == 0;
    free(peer_rank);
    free(peer_slot);
    free(counts);
    return equal;
}

static void check_split(gpu_check *check, const gpu_case *shape, const int64_t *split,
                        int32_t ranks)
{
    problem p;
    tables want[MOK_CUDA_MAX_RANKS];
    device_config config = device_config_default();
    device_problem d;
    gpu_case_open(&p, shape, 5);
    config.ranks = ranks;
    config.split = split;
    config.int64_routes = ranks % 2 == 0;
    cpu_work work = {&p, &config, want};
    memset(want, 0, sizeof want);
    const bool built = group_run(ranks, NULL, build_on_cpu, &work, NULL, NULL) == MOK_OK &&
                       device_problem_open(&d, &p, &config) == MOK_OK;
    if (!built) {
        gpu_count(check, false, "%s: %s", shape->name, mok_last_error());
        return;
    }
    const int64_t capacity = ranks * most_of(split, ranks) * p.slots + 128 * p.experts + 128;
    for (int repeat = 0; repeat < 3; repeat++) {
        const bool launched = mok_cuda_schedule_build(d.layer, d.route_view, d.stream) == MOK_OK;
        cuda_must(cudaStreamSynchronize(d.stream), "schedule");
        for (int32_t r = 0; r < ranks; r++) {
            gpu_count(check, launched && rank_equal(&d, r, &want[r], capacity), "%s: rank %d of %d",
                      shape->name, r, ranks);
        }
    }
    for (int32_t r = 0; r < ranks; r++) {
        free(want[r].peer_rank);
        free(want[r].peer_slot);
        free(want[r].counts);
    }
    device_problem_close(&d);
    problem_close(&p);
}

void check_schedule(gpu_check *check)
{
    static const gpu_case small = {"schedule", 300, 16, 16, 0, 37, 3, ROUTING_MASKED, false, true};
    static const gpu_case large = {"schedule, large", 9001,  16,  16, 0, 160, 8,
                                   ROUTING_SKEWED,    false, true};
    static const gpu_case wide = {"schedule, 2048 experts", 700,   16,  16, 0, 2048, 6,
                                  ROUTING_UNIFORM,          false, true};
    static const int64_t one[] = {300};
    static const int64_t three[] = {1, 0, 299};
    static const int64_t four[] = {9001, 0, 0, 0};
    static const int64_t six[] = {1500, 1501, 1499, 1500, 3000, 1};
    static const int64_t two[] = {350, 350};
    check_split(check, &small, one, 1);
    check_split(check, &small, three, 3);
    check_split(check, &large, four, 4);
    check_split(check, &large, six, 6);
    check_split(check, &wide, two, 2);
}
