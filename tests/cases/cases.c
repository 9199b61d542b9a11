/* Shared parts of the case tests. */
#include "cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

problem case_sizes(int64_t tokens, int64_t hidden, int64_t inner, int64_t shared_inner,
                   int64_t experts, int64_t slots)
{
    problem p;
    memset(&p, 0, sizeof p);
    p.tokens = tokens;
    p.hidden = hidden;
    p.inner = inner;
    p.shared_inner = shared_inner;
    p.experts = experts;
    p.slots = slots;
    p.lanes = 1;
    p.arith = MOK_ARITH_TC16;
    p.routing = ROUTING_UNIFORM;
    p.seed = 17;
    return p;
}

void case_rows(problem *p, const int64_t *rows, int64_t experts, int64_t hidden, int64_t inner,
               mok_arith arith)
{
    int64_t left[64];
    int64_t tokens = 0;
    assert_true(experts <= 64);
    for (int64_t e = 0; e < experts; e++) {
        left[e] = rows[e];
        tokens += rows[e];
    }
    *p = case_sizes(tokens, hidden, inner, 0, experts, 1);
    p->arith = arith;
    problem_open(p);
    for (int64_t t = 0, e = 0; t < tokens; t++, e = (e + 1) % experts) {
        while (left[e] == 0) {
            e = (e + 1) % experts;
        }
        left[e]--;
        p->routes[t] = (int32_t)e;
    }
}

void case_run(const problem *p, const run_config *config, result *out, unsigned char poison)
{
    result_open(out, p, poison);
    const mok_status status = problem_run(p, config, out);
    if (status != MOK_OK) {
        print_error("%s: %s\n", mok_status_string(status), mok_last_error());
    }
    assert_int_equal(status, MOK_OK);
}

void case_equal(const problem *p, const result *a, const result *b)
{
    const char *difference = result_difference(p, a, b, true);
    if (difference != NULL) {
        print_error("%s\n", difference);
    }
    assert_null(difference);
}

static void near_f32(const char *name, const float *got, const double *want, int64_t parts,
                     int64_t each)
{
    for (int64_t part = 0; part < parts; part++) {
        double peak = 0.0;
        for (int64_t i = part * each; i < (part + 1) * each; i++) {
            peak = fmax(peak, fabs(want[i]));
        }
        for (int64_t i = part * each; i < (part + 1) * each; i++) {
            const double error = fabs((double)got[i] - want[i]);
            if (!(error <= 0.02 * peak)) {
                print_error("%s[%d]: %.6g, oracle %.6g, peak %.6g\n", name, (int)i, (double)got[i],
                            want[i], peak);
            }
            assert_true(error <= 0.02 * peak);
        }
    }
}

static void near_bf16(const char *name, const uint16_t *got, const double *want, int64_t count)
{
    float *wide = malloc((size_t)count * sizeof *wide + 1);
    assert_non_null(wide);
    mok_f32_from_bf16(wide, got, count);
    near_f32(name, wide, want, 1, count);
    free(wide);
}

void case_near_oracle(const problem *p, const result *r)
{
    oracle o;
    oracle_open(&o, p);
    o.round_clamp = true;
    oracle_forward(&o);
    oracle_backward(&o);
    const int64_t matrix = p->inner * p->hidden;
    near_bf16("y", r->y, o.y, p->tokens * p->hidden);
    near_bf16("dx", r->dx, o.dx, p->tokens * p->hidden);
    near_f32("d_router_weights", r->d_router_weights, o.d_router_weights, 1, p->tokens * p->slots);
    near_f32("d_gate", r->gate, o.d_gate, p->experts, matrix);
    near_f32("d_up", r->up, o.d_up, p->experts, matrix);
    near_f32("d_down", r->down, o.d_down, p->experts, matrix);
    oracle_close(&o);
}

bool case_all_bits_zero(const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        if (bits != 0) {
            return false;
        }
    }
    return true;
}
