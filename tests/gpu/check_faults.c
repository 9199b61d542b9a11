/* Bad input and ranks that do not come: a status that names them, in bounded time, and untouched
 * outputs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"
#include "device_problem.h"

static const gpu_case shape = {"faults", 150, 64, 64, 32, 8, 2, ROUTING_UNIFORM, false, true};

static bool untouched(device_problem *d)
{
    const size_t bytes = (size_t)(d->p->tokens * d->p->hidden) * 2;
    unsigned char *y = malloc(bytes);
    bool same = y != NULL;
    cuda_must(cudaMemcpy(y, d->y, bytes, cudaMemcpyDeviceToHost), "y");
    for (size_t i = 0; i < bytes && same; i++) {
        same = y[i] == 0xFF;
    }
    free(y);
    return same;
}

/* Launches, waits, and demands the status, a text that holds `words`, and untouched outputs; then
 * mends the input and demands that the layer works again. */
static void expect(gpu_check *check, device_problem *d, mok_status want, const char *words,
                   const char *name)
{
    mok_fault fault;
    fault.struct_bytes = sizeof fault;
    device_problem_upload(d);
    device_problem_poison(d, 0xFF);
    const mok_status launched = device_problem_launch(d);
    cuda_must(cudaStreamSynchronize(d->stream), "the device's kernels");
    const mok_status got = mok_cuda_fault_read(d->layer, &fault);
    gpu_count(check, launched == MOK_OK && got == want, "%s: %s %s", name, mok_status_string(got),
              mok_last_error());
    gpu_count(check, strstr(mok_last_error(), words) != NULL, "%s: \"%s\" does not say \"%s\"",
              name, mok_last_error(), words);
    gpu_count(check, untouched(d), "%s: the output was written", name);
}

static void expect_mended(gpu_check *check, device_problem *d, const uint16_t *want,
                          const char *name)
{
    char why[256] = "";
    const size_t bytes = (size_t)(d->p->tokens * d->p->hidden) * 2;
    uint16_t *got = malloc(bytes);
    device_problem_upload(d);
    gpu_count(check, mok_cuda_fault_clear(d->layer) == MOK_OK, "%s: clear: %s", name,
              mok_last_error());
    const bool ran = got != NULL && device_problem_run(d, got, why, sizeof why);
    gpu_count(check, ran && memcmp(got, want, bytes) == 0, "%s: after clearing: %s", name, why);
    free(got);
}

static void check_input(gpu_check *check, problem *p, const uint16_t *want)
{
    device_problem d;
    device_config config = device_config_default();
    config.ranks = 2;
    if (device_problem_open(&d, p, &config) != MOK_OK) {
        gpu_count(check, false, "open: %s", mok_last_error());
        return;
    }
    const int32_t route = p->routes[201];
    const float weight = p->router_weights[77];
    p->routes[201] = 8;
    expect(check, &d, MOK_ERROR_ROUTE, "routes[25][1] is 8, must be -1..7", "an expert too high");
    p->routes[201] = route;
    expect_mended(check, &d, want, "an expert too high");
    p->routes[201] = -2;
    expect(check, &d, MOK_ERROR_ROUTE, "rank 1: routes[25][1] is -2", "an expert too low");
    p->routes[201] = route;
    expect_mended(check, &d, want, "an expert too low");
    p->router_weights[77] = NAN;
    expect(check, &d, MOK_ERROR_VALUE, "rank 0: router_weights[38][1]",
           "a weight that is no number");
    p->router_weights[77] = weight;
    expect_mended(check, &d, want, "a weight that is no number");
    device_problem_close(&d);
}

static void check_capacity(gpu_check *check, problem *p)
{
    device_problem d;
    device_config config = device_config_default();
    config.ranks = 2;
    config.capacity_rows = 384;
    if (device_problem_open(&d, p, &config) != MOK_OK) {
        gpu_count(check, false, "open: %s", mok_last_error());
        return;
    }
    expect(check, &d, MOK_ERROR_CAPACITY, "the layer has 384", "too few rows");
    device_problem_close(&d);
}

static void check_absent_rank(gpu_check *check, problem *p)
{
    device_problem d;
    device_config config = device_config_default();
    config.ranks = 3;
    config.timeout_ms = 300;
    config.stalled_rank = 1;
    if (device_problem_open(&d, p, &config) != MOK_OK) {
        gpu_count(check, false, "open: %s", mok_last_error());
        return;
    }
    expect(check, &d, MOK_ERROR_PEER, "for rank 1 in phase", "a rank that never arrives");
    expect(check, &d, MOK_ERROR_PEER, "for rank 1 in phase", "the next step");
    gpu_count(check, mok_cuda_fault_clear(d.layer) == MOK_ERROR_STATE,
              "an absent rank was cleared");
    device_problem_close(&d);
}

void check_faults(gpu_check *check)
{
    problem p;
    gpu_case_open(&p, &shape, 9);
    uint16_t *want = gpu_case_expected(&p);
    check_input(check, &p, want);
    check_capacity(check, &p);
    check_absent_rank(check, &p);
    free(want);
    problem_close(&p);
}
