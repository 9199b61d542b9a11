/* Ranks that are processes sharing the GPU through CUDA IPC; one rank in NCCL's memory, and one in
 * the caller's. Every byte is the CPU library's, and nothing else is written.
 *
 * A process that has used CUDA cannot fork, so each rank is this program again, as --child. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"
#include "device_problem.h"

static const struct {
    gpu_case shape;
    int64_t lanes;
} scenes[] = {
    {{"lanes", 240, 96, 176, 64, 12, 3, ROUTING_SKEWED, true, true}, 5},
    {{"masked", 256, 144, 304, 0, 9, 4, ROUTING_MASKED, false, true}, 4},
    {{"Qwen3 / 16", 1024, 512, 192, 192, 16, 8, ROUTING_UNIFORM, false, true}, 8},
};
#define SCENES ((int)(sizeof scenes / sizeof scenes[0]))
#define SCENE_STALLED SCENES         /* rank 1 does not come to forward */
#define SCENE_BAD_ROUTE (SCENES + 1) /* rank 1 has a route past the last expert */

static void open_scene(problem *p, int scene)
{
    const int at = scene < SCENES ? scene : 0;
    gpu_case_open(p, &scenes[at].shape, 77 + (uint64_t)at);
    p->lanes = scenes[at].lanes;
}

static device_config ranks_config(const problem *p, mok_comm *comm, const mok_cuda_memory *memory)
{
    const int64_t rows = (p->tokens * p->slots + 127 * p->experts + 127) / 128 * 128;
    device_config config = device_config_default();
    config.ranks = mok_comm_size(comm);
    config.by_lanes = true;
    config.forward_only = false;
    config.macrobatch_rows = rows;
    config.capacity_rows = rows;
    config.timeout_ms = 60000; /* processes on one GPU take turns */
    config.comm = comm;
    config.memory = memory;
    return config;
}

/* ---- One rank ---- */

static void copy_in(unsigned char *to, const void *from, size_t bytes)
{
    cuda_must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "what is expected");
}

/* Everything as it must be, but this rank's part poisoned: so a wrong byte shows, and one that is
 * not this rank's to write. */
static void prepare(device_problem *d, const result *want, int32_t rank)
{
    const problem *p = d->p;
    const size_t rows = (size_t)(p->tokens * p->hidden) * 2;
    const size_t matrix = (size_t)(p->experts * p->inner * p->hidden) * sizeof(float);
    const size_t shared = (size_t)(p->lanes * p->shared_inner * p->hidden) * sizeof(float);
    copy_in(d->y, want->y, rows);
    copy_in(d->dx, want->dx, rows);
    copy_in(d->d_router, want->d_router_weights, (size_t)(p->tokens * p->slots) * sizeof(float));
    copy_in(d->d_gate, want->gate, matrix);
    copy_in(d->d_up, want->up, matrix);
    copy_in(d->d_down, want->down, matrix);
    copy_in(d->d_shared[0], want->shared_gate, shared);
    copy_in(d->d_shared[1], want->shared_up, shared);
    copy_in(d->d_shared[2], want->shared_down, shared);
    const mok_gradients *g = &d->back[rank].gradients;
    const mok_tensor *mine[] = {&d->io[rank].out, &g->dx,        &g->d_router_weights,
                                &g->gate,         &g->up,        &g->down,
                                &g->shared_gate,  &g->shared_up, &g->shared_down};
    for (size_t i = 0; i < sizeof mine / sizeof mine[0]; i++) {
        size_t bytes = mine[i]->dtype == MOK_DTYPE_BF16 ? 2 : 4;
        for (int32_t axis = 0; axis < mine[i]->rank; axis++) {
            bytes *= (size_t)mine[i]->shape[axis];
        }
        if (bytes > 0) {
            cuda_must(cudaMemset(mine[i]->data, 0x5A, bytes), "poison");
        }
    }
    cuda_must(cudaDeviceSynchronize(), "poison");
}

/* NULL when all bytes are right, else what is not. */
static const char *run_once(device_problem *d, const result *want, result *got, int32_t rank,
                            char *why, size_t why_bytes)
{
    prepare(d, want, rank);
    if (device_problem_launch(d) != MOK_OK || device_problem_launch_backward(d) != MOK_OK) {
        return mok_last_error();
    }
    if (!device_problem_read(d, got->y, why, why_bytes) ||
        !device_problem_read_gradients(d, got, why, why_bytes)) {
        return why;
    }
    return result_difference(d->p, got, want, true);
}

/* Text of a difference, or NULL. */
static const char *run_scene(mok_comm *comm, const mok_cuda_memory *memory, int scene, char *why,
                             size_t why_bytes)
{
    problem p;
    result want;
    result got;
    device_problem d;
    const char *difference = NULL;
    open_scene(&p, scene);
    gpu_case_expected_all(&p, &want);
    result_open(&got, &p, 0x33);
    const device_config config = ranks_config(&p, comm, memory);
    if (device_problem_open(&d, &p, &config) != MOK_OK) {
        (void)snprintf(why, why_bytes, "%s", mok_last_error());
        difference = why;
    }
    for (int repeat = 0; repeat < 3 && difference == NULL; repeat++) {
        difference = run_once(&d, &want, &got, mok_comm_rank(comm), why, why_bytes);
    }
    device_problem_close(&d);
    result_close(&got);
    result_close(&want);
    problem_close(&p);
    return difference;
}

/* What goes wrong on rank 1 is known to all. NULL, or what was not as it must be. */
static const char *run_fault(mok_comm *comm, int scene, char *why, size_t why_bytes)
{
    problem p;
    device_problem d;
    mok_fault fault;
    const bool stalled = scene == SCENE_STALLED;
    const bool absent = stalled && mok_comm_rank(comm) == 1;
    fault.struct_bytes = sizeof fault;
    open_scene(&p, scene);
    if (!stalled) {
        p.routes[p.tokens * p.slots - 1] = (int32_t)p.experts; /* the last rank's */
    }
    device_config config = ranks_config(&p, comm, NULL);
    config.timeout_ms = stalled ? 1500 : config.timeout_ms;
    if (device_problem_open(&d, &p, &config) != MOK_OK) {
        (void)snprintf(why, why_bytes, "%s", mok_last_error());
        return why;
    }
    mok_status status = absent ? device_problem_schedule(&d) : device_problem_launch(&d);
    cuda_must(cudaStreamSynchronize(d.stream), "the device's kernels");
    if (status == MOK_OK) {
        status = mok_cuda_fault_read(d.layer, &fault);
    }
    const mok_status wanted = !stalled ? MOK_ERROR_ROUTE : absent ? MOK_OK : MOK_ERROR_PEER;
    const char *words = !stalled ? "rank 1: routes[" : absent ? "" : "for rank 1 in phase forward";
    const bool right = status == wanted && (wanted == MOK_OK || strstr(mok_last_error(), words));
    (void)snprintf(why, why_bytes, "%s: '%s'", mok_status_string(status), mok_last_error());
    device_problem_close(&d);
    problem_close(&p);
    return right ? NULL : why;
}

int check_ranks_child(char **words)
{
    mok_comm *comm = NULL;
    mok_comm_config config;
    char why[256] = "";
    mok_comm_config_init(&config);
    config.timeout_ms = 100000;
    const int32_t rank = (int32_t)strtol(words[1], NULL, 10);
    const int32_t ranks = (int32_t)strtol(words[2], NULL, 10);
    const int scene = (int)strtol(words[3], NULL, 10);
    if (mok_comm_open_shm(&comm, words[0], rank, ranks, &config) != MOK_OK) {
        (void)printf("  different: rank %d: %s\n", rank, mok_last_error());
        return 1;
    }
    const char *difference = scene < SCENES ? run_scene(comm, NULL, scene, why, sizeof why)
                                            : run_fault(comm, scene, why, sizeof why);
    if (difference != NULL) {
        (void)printf("  different: rank %d of %d, scene %d: %s\n", rank, ranks, scene, difference);
    }
    mok_comm_close(&comm);
    return difference == NULL ? 0 : 1;
}

/* ---- All of them ---- */

static pid_t start_child(const char *name, int32_t rank, int32_t ranks, int scene)
{
    char number[3][16];
    (void)snprintf(number[0], sizeof number[0], "%d", rank);
    (void)snprintf(number[1], sizeof number[1], "%d", ranks);
    (void)snprintf(number[2], sizeof number[2], "%d", scene);
    (void)fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        (void)execl("/proc/self/exe", "mok-check-gpu", "--child", name, number[0], number[1],
                    number[2], (char *)NULL);
        _exit(9);
    }
    return pid;
}

static void run_children(gpu_check *check, int32_t ranks, int scene)
{
    pid_t pid[MOK_CUDA_MAX_RANKS];
    char name[64];
    (void)snprintf(name, sizeof name, "gpu-%ld-%d-%d", (long)getpid(), ranks, scene);
    for (int32_t rank = 0; rank < ranks; rank++) {
        pid[rank] = start_child(name, rank, ranks, scene);
    }
    for (int32_t rank = 0; rank < ranks; rank++) {
        int status = 0;
        const bool ended = pid[rank] > 0 && waitpid(pid[rank], &status, 0) == pid[rank];
        gpu_count(check, ended && WIFEXITED(status) && WEXITSTATUS(status) == 0,
                  "rank %d of %d processes, scene %d: status %d", rank, ranks, scene, status);
    }
}

/* One rank whose memory is of another kind, against the CPU. */
static void run_alone(gpu_check *check, const mok_cuda_memory *memory, const char *name)
{
    char why[256] = "";
    mok_comm *comm[1] = {NULL};
    if (mok_comm_open_local(comm, 1, NULL) != MOK_OK) {
        gpu_count(check, false, "%s: %s", name, mok_last_error());
        return;
    }
    for (int scene = 0; scene < SCENES; scene++) {
        const char *difference = run_scene(comm[0], memory, scene, why, sizeof why);
        if (difference != NULL && strstr(difference, "libnccl.so.2") != NULL) {
            (void)printf("  not run: %s: %s\n", name, difference);
            break;
        }
        gpu_count(check, difference == NULL, "%s, %s: %s", name, scenes[scene].shape.name,
                  difference != NULL ? difference : "");
    }
    mok_comm_close(&comm[0]);
}

void check_ranks(gpu_check *check)
{
    mok_cuda_memory memory;
    void *block = NULL;
    const size_t bytes = (size_t)512 << 20;
    mok_cuda_memory_init(&memory);
    memory.mapping = MOK_CUDA_MAP_EXTERNAL;
    cuda_must(cudaMalloc(&block, bytes), "the caller's memory");
    memory.peer[0] = block;
    memory.bytes[0] = bytes;
    run_alone(check, &memory, "external memory");
    cuda_must(cudaFree(block), "the caller's memory");
    mok_cuda_memory_init(&memory);
    memory.mapping = MOK_CUDA_MAP_NCCL;
    run_alone(check, &memory, "NCCL's window");
    if (check->quick) {
        return; /* sanitizers do not follow into the children */
    }
    for (int scene = 0; scene < SCENES; scene++) {
        run_children(check, 2, scene);
        run_children(check, 4, scene);
    }
    run_children(check, 2, SCENE_STALLED);
    run_children(check, 2, SCENE_BAD_ROUTE);
}
