/* Digests of fixed cases: the bits of the layer, written down. golden_golden --print writes the
 * table anew. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "problem.h"

typedef struct golden {
    const char *name;
    int64_t tokens, hidden, inner, shared_inner, experts, slots, lanes;
    routing kind;
    float limit; /* 0: not clamped */
    const char *tc16, *fma;
} golden;

static const golden table[] = {
#include "table.inc"
};
#define CASES (sizeof table / sizeof table[0])

static void digest_case(const golden *g, mok_arith arith, mok_level level, int32_t ranks, char *hex)
{
    problem p;
    result r;
    run_config config = run_config_default();
    memset(&p, 0, sizeof p);
    p.tokens = g->tokens;
    p.hidden = g->hidden;
    p.inner = g->inner;
    p.shared_inner = g->shared_inner;
    p.experts = g->experts;
    p.slots = g->slots;
    p.lanes = g->lanes;
    p.routing = g->kind;
    p.clamped = g->limit > 0.0f;
    p.limit = g->limit;
    p.arith = arith;
    p.seed = 1000 + (uint64_t)(g - table);
    config.level = level;
    config.ranks = ranks;
    problem_open(&p);
    result_open(&r, &p, 0xFF);
    const mok_status status = problem_run(&p, &config, &r);
    if (status != MOK_OK) {
        (void)fprintf(stderr, "%s: %s\n", g->name, mok_last_error());
    }
    const int64_t h = p.hidden;
    const mok_tensor tensors[] = {
        mok_tensor_2d(r.y, MOK_DTYPE_BF16, p.tokens, h),
        mok_tensor_2d(r.dx, MOK_DTYPE_BF16, p.tokens, h),
        mok_tensor_2d(r.d_router_weights, MOK_DTYPE_F32, p.tokens, p.slots),
        mok_tensor_3d(r.gate, MOK_DTYPE_F32, p.experts, p.inner, h),
        mok_tensor_3d(r.up, MOK_DTYPE_F32, p.experts, p.inner, h),
        mok_tensor_3d(r.down, MOK_DTYPE_F32, p.experts, h, p.inner),
        mok_tensor_3d(r.shared_gate, MOK_DTYPE_F32, p.lanes, p.shared_inner, h),
        mok_tensor_3d(r.shared_up, MOK_DTYPE_F32, p.lanes, p.shared_inner, h),
        mok_tensor_3d(r.shared_down, MOK_DTYPE_F32, p.lanes, h, p.shared_inner),
    };
    enum { COUNT = sizeof tensors / sizeof tensors[0] };
    mok_digest digests[COUNT];
    mok_digest all;
    for (int i = 0; i < COUNT; i++) {
        (void)mok_digest_tensor(&digests[i], &tensors[i], arith);
    }
    (void)mok_digest_combine(&all, digests, COUNT);
    mok_digest_hex(hex, &all);
    result_close(&r);
    problem_close(&p);
}

static const char *const routing_names[] = {"ROUTING_UNIFORM", "ROUTING_SKEWED", "ROUTING_ONE",
                                            "ROUTING_MASKED", "ROUTING_SPARSE"};

static void print_table(void)
{
    for (size_t i = 0; i < CASES; i++) {
        const golden *g = &table[i];
        char tc16[MOK_DIGEST_HEX_BYTES];
        char fma[MOK_DIGEST_HEX_BYTES];
        digest_case(g, MOK_ARITH_TC16, MOK_LEVEL_REF, 1, tc16);
        digest_case(g, MOK_ARITH_FMA, MOK_LEVEL_REF, 1, fma);
        (void)printf("    {\"%s\", %lld, %lld, %lld, %lld, %lld, %lld, %lld, %s, %#.3gf,\n     "
                     "\"%s\", \"%s\"},\n",
                     g->name, (long long)g->tokens, (long long)g->hidden, (long long)g->inner,
                     (long long)g->shared_inner, (long long)g->experts, (long long)g->slots,
                     (long long)g->lanes, routing_names[g->kind], (double)g->limit, tc16, fma);
    }
}

static void check_level(mok_level level, int32_t ranks)
{
    char hex[MOK_DIGEST_HEX_BYTES];
    if (!mok_level_available(level)) {
        return;
    }
    for (size_t i = 0; i < CASES; i++) {
        digest_case(&table[i], MOK_ARITH_TC16, level, ranks, hex);
        assert_string_equal(hex, table[i].tc16);
        digest_case(&table[i], MOK_ARITH_FMA, level, ranks, hex);
        assert_string_equal(hex, table[i].fma);
    }
}

static void the_reference_gives_the_recorded_bits(void **state)
{
    (void)state;
    check_level(MOK_LEVEL_REF, 1);
}

static void every_level_gives_the_recorded_bits(void **state)
{
    (void)state;
    check_level(MOK_LEVEL_AVX2, 1);
    check_level(MOK_LEVEL_AVX512, 1);
}

static void two_ranks_give_the_recorded_bits(void **state)
{
    (void)state;
    check_level(MOK_LEVEL_AUTO, 2);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--print") == 0) {
        print_table();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_gives_the_recorded_bits),
        cmocka_unit_test(every_level_gives_the_recorded_bits),
        cmocka_unit_test(two_ranks_give_the_recorded_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
