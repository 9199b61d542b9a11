/* Every output and gradient against the double-precision oracle, and the oracle against finite
 * differences.
 *
 * An error is measured over the peak of its tensor, for weights expert by expert. Inputs, g, u, h,
 * y and the sums' results are bf16 (2^-9 relative each), so a few per cent of the peak is what
 * rounding explains; a wrong term or a lost row is far above. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "oracle.h"

#define BF16_NOISE 0.02
#define ROUTER_NOISE 0.02

/* ---- The oracle's gradients are slopes ---- */

static void check_slopes(oracle *o, const char *name, double *value, const double *gradient,
                         int64_t count)
{
    const double step = 1e-5;
    double peak = 0.0;
    for (int64_t i = 0; i < count; i++) {
        peak = fmax(peak, fabs(gradient[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        const double middle = value[i];
        value[i] = middle + step;
        const double above = oracle_objective(o);
        value[i] = middle - step;
        const double below = oracle_objective(o);
        value[i] = middle;
        const double slope = (above - below) / (2.0 * step);
        if (!(fabs(slope - gradient[i]) <= 1e-6 * (peak + 1.0))) {
            print_error("%s[%d]: slope %.9g, gradient %.9g\n", name, (int)i, slope, gradient[i]);
        }
        assert_true(fabs(slope - gradient[i]) <= 1e-6 * (peak + 1.0));
    }
}

static void check_oracle(bool clamped, routing kind)
{
    problem p;
    oracle o;
    memset(&p, 0, sizeof p);
    p.tokens = 4;
    p.hidden = 5;
    p.inner = 3;
    p.shared_inner = 2;
    p.experts = 3;
    p.slots = 2;
    p.lanes = 1;
    p.arith = MOK_ARITH_FMA;
    p.clamped = clamped;
    p.limit = 0.8f;
    p.routing = kind;
    p.seed = 3;
    problem_open(&p);
    oracle_open(&o, &p);
    oracle_backward(&o);
    const int64_t all = p.experts * p.inner * p.hidden;
    const int64_t one = p.shared_inner * p.hidden;
    check_slopes(&o, "x", o.x, o.dx, p.tokens * p.hidden);
    check_slopes(&o, "gate", o.gate, o.d_gate, all);
    check_slopes(&o, "up", o.up, o.d_up, all);
    check_slopes(&o, "down", o.down, o.d_down, all);
    check_slopes(&o, "shared gate", o.shared_gate, o.d_shared_gate, one);
    check_slopes(&o, "shared up", o.shared_up, o.d_shared_up, one);
    check_slopes(&o, "shared down", o.shared_down, o.d_shared_down, one);
    check_slopes(&o, "router weights", o.router_weights, o.d_router_weights, p.tokens * p.slots);
    oracle_close(&o);
    problem_close(&p);
}

static void the_oracles_gradients_are_finite_differences(void **state)
{
    (void)state;
    check_oracle(false, ROUTING_UNIFORM);
    check_oracle(true, ROUTING_UNIFORM);
    check_oracle(false, ROUTING_MASKED);
}

/* ---- The library is near the oracle ---- */

static double peak_of(const double *want, int64_t count)
{
    double peak = 0.0;
    for (int64_t i = 0; i < count; i++) {
        peak = fmax(peak, fabs(want[i]));
    }
    return peak;
}

static void check_near(const char *name, int64_t part, const double *got, const double *want,
                       int64_t count, double noise)
{
    const double peak = peak_of(want, count);
    for (int64_t i = 0; i < count; i++) {
        const double error = fabs(got[i] - want[i]);
        if (!(error <= noise * peak)) {
            print_error("%s, part %d, element %d: %.6g, oracle %.6g, peak %.6g\n", name, (int)part,
                        (int)i, got[i], want[i], peak);
        }
        assert_true(error <= noise * peak);
    }
}

static void check_bf16(const char *name, const uint16_t *got, const double *want, int64_t count)
{
    double *wide = malloc((size_t)count * sizeof *wide + 1);
    assert_non_null(wide);
    for (int64_t i = 0; i < count; i++) {
        wide[i] = (double)f32_of(got[i]);
    }
    check_near(name, 0, wide, want, count, BF16_NOISE);
    free(wide);
}

static void check_f32(const char *name, const float *got, const double *want, int64_t parts,
                      int64_t each, double noise)
{
    double *wide = malloc((size_t)each * sizeof *wide + 1);
    assert_non_null(wide);
    for (int64_t part = 0; part < parts; part++) {
        for (int64_t i = 0; i < each; i++) {
            wide[i] = (double)got[part * each + i];
        }
        check_near(name, part, wide, want + part * each, each, noise);
    }
    free(wide);
}

/* Lanes' partials summed: the oracle knows no lanes. */
static void check_lanes(const char *name, const problem *p, const float *got, const double *want)
{
    const int64_t each = p->shared_inner * p->hidden;
    double *sum = calloc((size_t)each + 1, sizeof *sum);
    assert_non_null(sum);
    for (int64_t lane = 0; lane < p->lanes; lane++) {
        for (int64_t i = 0; i < each; i++) {
            sum[i] += (double)got[lane * each + i];
        }
    }
    check_near(name, 0, sum, want, each, BF16_NOISE);
    free(sum);
}

static void check_all(const problem *p, const result *r, oracle *o)
{
    const int64_t matrix = p->inner * p->hidden;
    oracle_forward(o);
    oracle_backward(o);
    check_bf16("y", r->y, o->y, p->tokens * p->hidden);
    check_bf16("dx", r->dx, o->dx, p->tokens * p->hidden);
    check_f32("d_router_weights", r->d_router_weights, o->d_router_weights, 1, p->tokens * p->slots,
              ROUTER_NOISE);
    check_f32("d_gate", r->gate, o->d_gate, p->experts, matrix, BF16_NOISE);
    check_f32("d_up", r->up, o->d_up, p->experts, matrix, BF16_NOISE);
    check_f32("d_down", r->down, o->d_down, p->experts, matrix, BF16_NOISE);
    check_lanes("d_shared_gate", p, r->shared_gate, o->d_shared_gate);
    check_lanes("d_shared_up", p, r->shared_up, o->d_shared_up);
    check_lanes("d_shared_down", p, r->shared_down, o->d_shared_down);
}

typedef struct shape {
    int64_t tokens, hidden, inner, shared_inner, experts, slots, lanes;
    routing kind;
    bool clamped;
} shape;

static const shape shapes[] = {
    {24, 48, 32, 32, 4, 2, 3, ROUTING_UNIFORM, false},
    {21, 5, 7, 3, 3, 2, 3, ROUTING_UNIFORM, false},
    {40, 33, 17, 0, 6, 3, 1, ROUTING_SKEWED, true},
    {32, 64, 48, 24, 8, 2, 4, ROUTING_MASKED, true},
    {150, 32, 16, 16, 2, 1, 2, ROUTING_ONE, false},
    {30, 40, 136, 140, 12, 2, 5, ROUTING_SPARSE, false},
};

static void check_library(mok_arith arith, int32_t ranks)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        problem p;
        oracle o;
        result r;
        run_config config = run_config_default();
        memset(&p, 0, sizeof p);
        p.tokens = shapes[i].tokens;
        p.hidden = shapes[i].hidden;
        p.inner = shapes[i].inner;
        p.shared_inner = shapes[i].shared_inner;
        p.experts = shapes[i].experts;
        p.slots = shapes[i].slots;
        p.lanes = shapes[i].lanes;
        p.routing = shapes[i].kind;
        p.clamped = shapes[i].clamped;
        p.limit = 0.9f;
        p.arith = arith;
        p.seed = 40 + (uint64_t)i;
        config.ranks = ranks;
        problem_open(&p);
        result_open(&r, &p, 0xFF);
        oracle_open(&o, &p);
        o.round_clamp = true;
        assert_int_equal(problem_run(&p, &config, &r), MOK_OK);
        check_all(&p, &r, &o);
        oracle_close(&o);
        result_close(&r);
        problem_close(&p);
    }
}

static void fma_is_within_bf16_noise_of_the_oracle(void **state)
{
    (void)state;
    check_library(MOK_ARITH_FMA, 1);
    check_library(MOK_ARITH_FMA, 3);
}

static void tc16_is_within_bf16_noise_of_the_oracle(void **state)
{
    (void)state;
    check_library(MOK_ARITH_TC16, 1);
    check_library(MOK_ARITH_TC16, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oracles_gradients_are_finite_differences),
        cmocka_unit_test(fma_is_within_bf16_noise_of_the_oracle),
        cmocka_unit_test(tc16_is_within_bf16_noise_of_the_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
