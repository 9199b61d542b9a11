/* Every gradient on the device equals the CPU library's: cases, ranks, lanes, settings, gradients
 * that are stored in fp32 or bf16 or added, repeats, and refusals. */
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"
#include "device_problem.h"

/* Rows of a rank at most: a ring of this size holds any schedule. */
static int64_t all_rows(const problem *p)
{
    const int64_t rows = p->tokens * p->slots + 127 * p->experts;
    return (rows + 127) / 128 * 128;
}

static device_config backward_config(const problem *p, int32_t ranks, bool by_lanes)
{
    device_config config = device_config_default();
    config.ranks = ranks;
    config.by_lanes = by_lanes;
    config.forward_only = false;
    config.macrobatch_rows = all_rows(p);
    config.capacity_rows = all_rows(p);
    return config;
}

/* Forward and backward; text of a difference, or NULL. */
static const char *run(device_problem *d, const result *want, result *got, char *why,
                       size_t why_bytes)
{
    device_problem_poison(d, 0xFF);
    device_problem_poison_gradients(d, 0xFF);
    if (device_problem_launch(d) != MOK_OK || device_problem_launch_backward(d) != MOK_OK) {
        return mok_last_error();
    }
    if (!device_problem_read(d, got->y, why, why_bytes) ||
        !device_problem_read_gradients(d, got, why, why_bytes)) {
        return why;
    }
    return result_difference(d->p, got, want, d->config.by_lanes);
}

static void check_setting(gpu_check *check, problem *p, const char *name,
                          const device_config *config, const result *want, int32_t repeats)
{
    device_problem d;
    result got;
    char why[256] = "";
    if (device_problem_open(&d, p, config) != MOK_OK) {
        gpu_count(check, false, "%s, %d ranks: %s", name, config->ranks, mok_last_error());
        return;
    }
    result_open(&got, p, 0x33);
    for (int32_t repeat = 0; repeat < repeats; repeat++) {
        const char *difference = run(&d, want, &got, why, sizeof why);
        gpu_count(check, difference == NULL, "%s, %d ranks, repeat %d: %s", name, config->ranks,
                  repeat, difference != NULL ? difference : "");
        if (difference != NULL) {
            break;
        }
    }
    result_close(&got);
    device_problem_close(&d);
}

/* Gradients of 1 in every place: the results must be 1 + dW in one fp32 addition, or bf16(dW). */
static void check_modes(gpu_check *check, problem *p, const result *want)
{
    const int64_t count = p->experts * p->inner * p->hidden;
    float *sum = malloc((size_t)count * sizeof *sum);
    uint16_t *narrow = malloc((size_t)count * sizeof *narrow);
    float *ones = malloc((size_t)count * sizeof *ones);
    for (int mode = 0; mode < 2; mode++) {
        device_problem d;
        result got;
        char why[256] = "";
        device_config config = backward_config(p, 2, true);
        config.mode = mode == 0 ? MOK_GRAD_ADD : MOK_GRAD_STORE;
        config.bf16_gradients = mode == 1;
        if (device_problem_open(&d, p, &config) != MOK_OK) {
            gpu_count(check, false, "modes: %s", mok_last_error());
            continue;
        }
        result_open(&got, p, 0x33);
        for (int64_t i = 0; i < count; i++) {
            ones[i] = 1.0f;
            sum[i] = 1.0f + want->gate[i];
        }
        mok_bf16_from_f32(narrow, want->gate, count);
        device_problem_poison_gradients(&d, 0xFF);
        if (mode == 0) {
            cuda_must(
                cudaMemcpy(d.d_gate, ones, (size_t)count * sizeof *ones, cudaMemcpyHostToDevice),
                "ones");
        }
        const bool ran = device_problem_launch(&d) == MOK_OK &&
                         device_problem_launch_backward(&d) == MOK_OK &&
                         device_problem_read_gradients(&d, &got, why, sizeof why);
        const void *expected = mode == 0 ? (const void *)sum : narrow;
        const size_t bytes = (size_t)count * (mode == 0 ? sizeof *sum : sizeof *narrow);
        gpu_count(check, ran && memcmp(got.gate, expected, bytes) == 0, "%s: %s",
                  mode == 0 ? "added to main gradients" : "stored in bf16", why);
        result_close(&got);
        device_problem_close(&d);
    }
    free(sum);
    free(narrow);
    free(ones);
}

static void check_refusals(gpu_check *check)
{
    static const gpu_case shape = {"refusals", 300, 32, 32, 0, 2, 2, ROUTING_UNIFORM, false, true};
    problem p;
    device_problem d;
    char why[256] = "";
    mok_fault fault;
    gpu_case_open(&p, &shape, 2);
    device_config config = backward_config(&p, 1, true);
    config.macrobatch_rows = 128;
    fault.struct_bytes = sizeof fault;
    if (device_problem_open(&d, &p, &config) != MOK_OK) {
        gpu_count(check, false, "open: %s", mok_last_error());
        return;
    }
    gpu_count(check, device_problem_launch_backward(&d) == MOK_ERROR_STATE,
              "backward before forward");
    device_problem_poison_gradients(&d, 0x44);
    const bool launched =
        device_problem_launch(&d) == MOK_OK && device_problem_launch_backward(&d) == MOK_OK;
    cuda_must(cudaStreamSynchronize(d.stream), "the device's kernels");
    gpu_count(check, launched && mok_cuda_fault_read(d.layer, &fault) == MOK_ERROR_CAPACITY,
              "a ring that is too small: %s", mok_last_error());
    unsigned char first[64];
    cuda_must(cudaMemcpy(first, d.dx, sizeof first, cudaMemcpyDeviceToHost), "dx");
    bool untouched = true;
    for (size_t i = 0; i < sizeof first; i++) {
        untouched = untouched && first[i] == 0x44;
    }
    gpu_count(check, untouched, "dx was written %s", why);
    device_problem_close(&d);
    problem_close(&p);
}

void check_backward(gpu_check *check)
{
    static const int32_t ranks[] = {1, 2, 3};
    for (int i = 0; i < gpu_case_count && i < check->cases; i++) {
        problem p;
        result want;
        if (check->quick && !gpu_cases[i].quick) {
            continue;
        }
        gpu_case_open(&p, &gpu_cases[i], 31 + (uint64_t)i);
        gpu_case_expected_all(&p, &want);
        for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
            const device_config config = backward_config(&p, ranks[r], true);
            check_setting(check, &p, gpu_cases[i].name, &config, &want, 2);
        }
        result_close(&want);
        problem_close(&p);
    }
    /* Tokens cut into lanes, and ranks that hold several of them or none; other settings; many
     * repeats. */
    gpu_case shape = {"lanes", 240, 96, 176, 64, 12, 3, ROUTING_SKEWED, true, true};
    problem p;
    result want;
    gpu_case_open(&p, &shape, 8);
    p.lanes = 5;
    gpu_case_expected_all(&p, &want);
    static const int32_t many[] = {1, 2, 3, 4, 6, 8};
    for (size_t r = 0; r < sizeof many / sizeof many[0]; r++) {
        device_config config = backward_config(&p, many[r], true);
        config.comm_blocks = r % 2 == 0 ? 0 : 1;
        config.minibatch_rows = r % 3 == 0 ? 0 : 128;
        config.int64_routes = r == 2;
        check_setting(check, &p, shape.name, &config, &want,
                      r == 1 ? (check->quick ? 3 : check->repeats) : 2);
    }
    check_modes(check, &p, &want);
    result_close(&want);
    problem_close(&p);
    check_refusals(check);
}
