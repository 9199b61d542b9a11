/* The device's y equals the CPU library's, for every case, and the schedule's tables equal the
 * CPU's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"
#include "device_problem.h"

/* First differing element, or -1. */
static int64_t difference(const uint16_t *a, const uint16_t *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (a[i] != b[i]) {
            return i;
        }
    }
    return -1;
}

static void check_case(gpu_check *check, const gpu_case *shape, int32_t ranks, const uint16_t *want,
                       problem *p)
{
    char why[256] = "";
    device_config config = device_config_default();
    device_problem d;
    config.ranks = ranks;
    config.int64_routes = ranks == 2;
    const int64_t count = p->tokens * p->hidden;
    if (device_problem_open(&d, p, &config) != MOK_OK) {
        gpu_count(check, false, "%s, %d ranks: %s", shape->name, ranks, mok_last_error());
        return;
    }
    uint16_t *got = malloc((size_t)count * 2 + 1);
    const bool ran = got != NULL && device_problem_run(&d, got, why, sizeof why);
    const int64_t at = ran ? difference(got, want, count) : -1;
    gpu_count(check, ran && at < 0, "%s, %d ranks: %s y[%lld, %lld] is %04x, must be %04x",
              shape->name, ranks, why, (long long)(at / p->hidden), (long long)(at % p->hidden),
              at >= 0 ? got[at] : 0, at >= 0 ? want[at] : 0);
    free(got);
    device_problem_close(&d);
}

void check_forward(gpu_check *check)
{
    static const int32_t ranks[] = {1, 2, 3};
    for (int i = 0; i < gpu_case_count && i < check->cases; i++) {
        problem p;
        if (check->quick && !gpu_cases[i].quick) {
            continue;
        }
        gpu_case_open(&p, &gpu_cases[i], 11 + (uint64_t)i);
        uint16_t *want = gpu_case_expected(&p);
        for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
            check_case(check, &gpu_cases[i], ranks[r], want, &p);
        }
        free(want);
        problem_close(&p);
    }
}
