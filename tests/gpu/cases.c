/* Edge shapes, and the benchmark's shapes scaled down in tokens, experts and extents. */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const gpu_case gpu_cases[] = {
    {"one token", 1, 64, 32, 0, 4, 2, ROUTING_UNIFORM, false, true},
    {"one token, shared", 1, 64, 32, 48, 4, 2, ROUTING_UNIFORM, false, true},
    {"extents of 16", 37, 16, 16, 16, 5, 3, ROUTING_UNIFORM, false, true},
    {"odd multiples of 16", 131, 208, 176, 112, 7, 2, ROUTING_UNIFORM, false, true},
    {"one expert holds all", 300, 128, 144, 0, 6, 2, ROUTING_ONE, false, true},
    {"empty experts", 200, 256, 272, 80, 24, 2, ROUTING_SPARSE, false, true},
    {"masked routes", 257, 144, 304, 64, 9, 4, ROUTING_MASKED, true, true},
    {"clamped", 128, 320, 256, 0, 8, 2, ROUTING_SKEWED, true, true},
    {"more experts than rows", 3, 128, 128, 0, 96, 2, ROUTING_UNIFORM, false, false},
    {"whole blocks", 512, 512, 256, 256, 4, 1, ROUTING_UNIFORM, false, false},
    {"Qwen3 / 8", 2048, 1024, 384, 0, 32, 8, ROUTING_UNIFORM, false, false},
    {"Qwen3 / 8, skewed", 2048, 1024, 384, 384, 32, 8, ROUTING_SKEWED, false, false},
    {"OLMoE / 8", 1024, 1024, 512, 0, 16, 8, ROUTING_UNIFORM, false, false},
    {"Mixtral / 16", 1024, 1024, 1792, 0, 8, 2, ROUTING_SKEWED, false, false},
    {"DeepSeek-V3 / 16", 512, 1792, 512, 512, 32, 8, ROUTING_UNIFORM, false, false},
    {"gpt-oss / 8", 1024, 1440, 720, 0, 32, 4, ROUTING_SKEWED, true, false},
};
const int gpu_case_count = (int)(sizeof gpu_cases / sizeof gpu_cases[0]);

void gpu_case_open(problem *p, const gpu_case *shape, uint64_t seed)
{
    memset(p, 0, sizeof *p);
    p->tokens = shape->tokens;
    p->hidden = shape->hidden;
    p->inner = shape->inner;
    p->shared_inner = shape->shared_inner;
    p->experts = shape->experts;
    p->slots = shape->slots;
    p->lanes = 1;
    p->arith = MOK_ARITH_TC16;
    p->clamped = shape->clamped;
    p->limit = shape->clamped ? 0.7f : 0.0f;
    p->routing = shape->routing;
    p->seed = seed;
    problem_open(p);
}

void gpu_case_expected_all(const problem *p, result *out)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    run_config config = run_config_default();
    config.threads = processors > 1 ? (int32_t)(processors < 64 ? processors : 64) : 1;
    result_open(out, p, 0xFF);
    const mok_status status = problem_run(p, &config, out);
    if (status != MOK_OK) {
        (void)fprintf(stderr, "the CPU library failed: %s\n", mok_last_error());
        exit(1);
    }
}

uint16_t *gpu_case_expected(const problem *p)
{
    result out;
    gpu_case_expected_all(p, &out);
    uint16_t *y = out.y;
    out.y = NULL;
    result_close(&out);
    return y;
}
