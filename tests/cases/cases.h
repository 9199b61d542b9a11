/* What the case tests share: problems with given rows per expert, one run, comparisons. */
#ifndef MOK_TESTS_CASES_H
#define MOK_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "oracle.h"

/* A problem of one slot a token whose expert e gets rows[e] rows, dealt out in turn. */
void case_rows(problem *p, const int64_t *rows, int64_t experts, int64_t hidden, int64_t inner,
               mok_arith arith);

/* tokens, experts and slots of any kind; lanes 1. Call problem_open after changing what is left. */
problem case_sizes(int64_t tokens, int64_t hidden, int64_t inner, int64_t shared_inner,
                   int64_t experts, int64_t slots);

/* Runs into a poisoned result and demands MOK_OK. */
void case_run(const problem *p, const run_config *config, result *out, unsigned char poison);

/* Demands equal bytes of everything. */
void case_equal(const problem *p, const result *a, const result *b);

/* Demands that y and every gradient are within bf16 noise of the oracle. */
void case_near_oracle(const problem *p, const result *r);

bool case_all_bits_zero(const float *values, int64_t count);

#endif
