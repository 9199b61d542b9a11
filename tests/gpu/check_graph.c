/* A captured step, forward and backward, replayed with other contents behind the same addresses
 * gives what the CPU gives for those. */
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
    memcpy(p->dy, from->dy, (size_t)(p->tokens * p->hidden) * 2);
}

static cudaGraphExec_t capture(device_problem *d, gpu_check *check)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    cuda_must(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    mok_status status = device_problem_launch(d);
    if (status == MOK_OK && !d->config.forward_only) {
        status = device_problem_launch_backward(d);
    }
    cuda_must(cudaStreamEndCapture(d->stream, &graph), "end capture");
    gpu_count(check, status == MOK_OK, "capture: %s", mok_last_error());
    cuda_must(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    cuda_must(cudaGraphDestroy(graph), "destroy");
    return executable;
}

/* Routes, rows and gradients of another problem, each replay. */
static void replay_all(gpu_check *check, device_problem *d, problem *p, gpu_case shape,
                       cudaGraphExec_t graph)
{
    static const routing kinds[] = {ROUTING_UNIFORM, ROUTING_SKEWED, ROUTING_ONE, ROUTING_MASKED,
                                    ROUTING_SPARSE};
    result got;
    char why[256] = "";
    result_open(&got, p, 0x33);
    for (int replay = 0; replay < 12; replay++) {
        problem other;
        result want;
        shape.routing = kinds[replay % 5];
        gpu_case_open(&other, &shape, 100 + (uint64_t)replay);
        take_inputs(p, &other);
        problem_close(&other);
        gpu_case_expected_all(p, &want);
        device_problem_upload(d);
        device_problem_poison(d, 0xFF);
        device_problem_poison_gradients(d, 0xFF);
        cuda_must(cudaGraphLaunch(graph, d->stream), "launch a graph");
        const bool read = device_problem_read(d, got.y, why, sizeof why) &&
                          device_problem_read_gradients(d, &got, why, sizeof why);
        const char *difference = read ? result_difference(p, &got, &want, true) : why;
        gpu_count(check, difference == NULL, "replay %d: %s", replay,
                  difference != NULL ? difference : "");
        result_close(&want);
    }
    result_close(&got);
}

void check_graph(gpu_check *check)
{
    const gpu_case shape = {"graph", 180, 128, 96, 48, 10, 3, ROUTING_UNIFORM, false, true};
    problem p;
    device_problem d;
    device_config config = device_config_default();
    gpu_case_open(&p, &shape, 3);
    p.lanes = 6;
    config.ranks = 3;
    config.by_lanes = true;
    config.forward_only = false;
    config.macrobatch_rows = config.capacity_rows =
        (p.tokens * p.slots + 127 * p.experts + 127) / 128 * 128;
    if (device_problem_open(&d, &p, &config) != MOK_OK) {
        gpu_count(check, false, "open: %s", mok_last_error());
        return;
    }
    cudaGraphExec_t graph = capture(&d, check);
    replay_all(check, &d, &p, shape, graph);
    cuda_must(cudaGraphExecDestroy(graph), "destroy a graph");
    device_problem_close(&d);
    problem_close(&p);
}
