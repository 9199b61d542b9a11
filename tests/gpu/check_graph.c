/* A captured step replayed with other contents behind the same addresses gives what a fresh run
 * gives. */
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"
#include "device_problem.h"

/* Moves another problem's inputs into this one; weights stay. */
static void take_inputs(problem *p, const problem *from)
{
    memcpy(p->x, from->x, (size_t)(p->tokens * p->hidden) * 2);
    memcpy(p->routes, from->routes, (size_t)(p->tokens * p->slots) * 4);
    memcpy(p->router_weights, from->router_weights, (size_t)(p->tokens * p->slots) * 4);
}

static cudaGraphExec_t capture(device_problem *d, gpu_check *check)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    cuda_must(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    const mok_status status = device_problem_launch(d);
    cuda_must(cudaStreamEndCapture(d->stream, &graph), "end capture");
    gpu_count(check, status == MOK_OK, "capture: %s", mok_last_error());
    cuda_must(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    cuda_must(cudaGraphDestroy(graph), "destroy");
    return executable;
}

void check_graph(gpu_check *check)
{
    static const routing kinds[] = {ROUTING_UNIFORM, ROUTING_SKEWED, ROUTING_ONE, ROUTING_MASKED,
                                    ROUTING_SPARSE};
    gpu_case shape = {"graph", 180, 128, 96, 48, 10, 3, ROUTING_UNIFORM, false, true};
    problem p;
    device_problem d;
    device_config config = device_config_default();
    char why[256] = "";
    gpu_case_open(&p, &shape, 3);
    const size_t bytes = (size_t)(p.tokens * p.hidden) * 2;
    uint16_t *got = malloc(bytes);
    config.ranks = 3;
    if (got == NULL || device_problem_open(&d, &p, &config) != MOK_OK) {
        gpu_count(check, false, "open: %s", mok_last_error());
        free(got);
        return;
    }
    cudaGraphExec_t graph = capture(&d, check);
    for (int replay = 0; replay < 12; replay++) {
        problem other;
        shape.routing = kinds[replay % 5];
        gpu_case_open(&other, &shape, 100 + (uint64_t)replay);
        take_inputs(&p, &other);
        problem_close(&other);
        uint16_t *want = gpu_case_expected(&p);
        device_problem_upload(&d);
        device_problem_poison(&d, 0xFF);
        cuda_must(cudaGraphLaunch(graph, d.stream), "launch a graph");
        const bool read = device_problem_read(&d, got, why, sizeof why);
        gpu_count(check, read && memcmp(got, want, bytes) == 0, "replay %d: %s", replay, why);
        free(want);
    }
    cuda_must(cudaGraphExecDestroy(graph), "destroy a graph");
    free(got);
    device_problem_close(&d);
    problem_close(&p);
}
