/* The shapes that the GPU checks share. */
#ifndef MOK_TESTS_GPU_CASES_H
#define MOK_TESTS_GPU_CASES_H

#include "problem.h"

typedef struct gpu_case {
    const char *name;
    int64_t tokens, hidden, inner, shared_inner, experts, slots;
    routing routing;
    bool clamped;
    bool quick; /* small enough for the sanitizers */
} gpu_case;

extern const gpu_case gpu_cases[];
extern const int gpu_case_count;

/* Opens the problem of a case. */
void gpu_case_open(problem *p, const gpu_case *shape, uint64_t seed);

/* y of the CPU library in class tc16; the caller frees. */
uint16_t *gpu_case_expected(const problem *p);

/* All results of the CPU library; the caller closes. */
void gpu_case_expected_all(const problem *p, result *out);

#endif
