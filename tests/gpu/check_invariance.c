/* One result whatever the number of ranks, communication blocks, chunk sizes, splits, and in every
 * repeat. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"
#include "device_problem.h"

typedef struct setting {
    int32_t ranks, comm_blocks;
    int64_t macrobatch_rows, minibatch_rows;
} setting;

static const setting settings[] = {
    {1, 0, 0, 0},      {1, 1, 0, 128}, {1, 52, 0, 256},  {1, 8, 128, 128}, {1, 8, 256, 128},
    {1, 8, 1024, 256}, {2, 0, 0, 0},   {2, 4, 512, 128}, {3, 0, 0, 0},     {4, 0, 0, 0},
    {4, 2, 384, 128},  {6, 0, 0, 0},   {8, 0, 0, 0},     {8, 3, 256, 256},
};

static bool run_setting(problem *p, const setting *s, const int64_t *split, int32_t repeats,
                        uint16_t *want, bool first, char *why, size_t why_bytes)
{
    device_config config = device_config_default();
    device_problem d;
    const size_t bytes = (size_t)(p->tokens * p->hidden) * 2;
    uint16_t *got = malloc(bytes + 1);
    bool equal = true;
    config.ranks = s->ranks;
    config.comm_blocks = s->comm_blocks;
    config.macrobatch_rows = s->macrobatch_rows;
    config.minibatch_rows = s->minibatch_rows;
    config.split = split;
    if (got == NULL || device_problem_open(&d, p, &config) != MOK_OK) {
        (void)snprintf(why, why_bytes, "%s", mok_last_error());
        free(got);
        return false;
    }
    for (int32_t repeat = 0; repeat < repeats && equal; repeat++) {
        equal = device_problem_run(&d, first && repeat == 0 ? want : got, why, why_bytes);
        if (equal && !(first && repeat == 0) && memcmp(got, want, bytes) != 0) {
            (void)snprintf(why, why_bytes, "repeat %d has other bytes", repeat);
            equal = false;
        }
    }
    device_problem_close(&d);
    free(got);
    return equal;
}

static void check_settings(gpu_check *check, const gpu_case *shape, int32_t repeats)
{
    problem p;
    char why[256] = "";
    gpu_case_open(&p, shape, 77);
    uint16_t *want = gpu_case_expected(&p);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        const setting *s = &settings[i];
        gpu_count(check, run_setting(&p, s, NULL, 2, want, false, why, sizeof why),
                  "%s, %d ranks, %d blocks, macro %lld, mini %lld: %s", shape->name, s->ranks,
                  s->comm_blocks, (long long)s->macrobatch_rows, (long long)s->minibatch_rows, why);
    }
    int64_t split[3] = {0, p.tokens / 5, p.tokens - p.tokens / 5};
    const setting uneven = {3, 0, 0, 0};
    gpu_count(check, run_setting(&p, &uneven, split, 2, want, false, why, sizeof why),
              "%s, uneven ranks: %s", shape->name, why);
    const setting once = {2, 0, 0, 0};
    gpu_count(check, run_setting(&p, &once, NULL, repeats, want, false, why, sizeof why),
              "%s, %d repeats: %s", shape->name, repeats, why);
    free(want);
    problem_close(&p);
}

void check_invariance(gpu_check *check)
{
    static const gpu_case small = {"small", 210, 96, 160, 64, 12, 3, ROUTING_SKEWED, false, true};
    static const gpu_case large = {"large", 1536,           512,  384,  256, 24,
                                   6,       ROUTING_SKEWED, true, false};
    check_settings(check, &small, check->quick ? 3 : check->repeats);
    if (!check->quick) {
        check_settings(check, &large, check->repeats);
    }
}
