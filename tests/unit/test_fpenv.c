/* A host process may have changed the rounding mode, flush subnormals or trap on invalid
 * operations: results are the same bytes, nothing traps, and the caller's state is left as it was.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/fpenv.h"
#include "rig.h"

#if defined(__x86_64__)

/* Each is a state that a program might be in: MXCSR without its sticky flags. */
static const uint32_t states[] = {
    0x1F80u | 0x8040u, /* flush to zero, subnormals are zero: what fast-math libraries set */
    0x1F80u | 0x2000u, /* down */
    0x1F80u | 0x4000u, /* up */
    0x1F80u | 0x6000u, /* toward zero */
    0x1F00u,           /* invalid operations trap */
    0x0000u | 0x6040u, /* everything traps, toward zero, subnormals are zero */
};

#define STATES (sizeof states / sizeof states[0])

/* True when the state is as it was, sticky flags aside. */
static bool leave(uint32_t saved, uint32_t set)
{
    const bool kept = ((_mm_getcsr() ^ set) & ~0x3Fu) == 0;
    _mm_setcsr(saved);
    return kept;
}

/* Values small enough for subnormal results, and NaN of both kinds in x. */
static problem small_values(mok_arith arith)
{
    problem p = rig_problem(arith);
    problem_open(&p);
    for (int64_t i = 0; i < p.tokens * p.hidden; i += 3) {
        p.x[i] = (uint16_t)(p.x[i] & 0x83FF); /* exponents of 2^-126 and less */
        p.dy[i] = (uint16_t)(p.dy[i] & 0x81FF);
    }
    p.x[5] = 0x7F81; /* signalling */
    p.x[7 * p.hidden] = 0xFFC0;
    p.dy[9 * p.hidden + 1] = 0xFF80;
    return p;
}

static void a_step_gives_the_same_bytes_and_leaves_the_callers_state(void **state)
{
    (void)state;
    static const mok_arith classes[] = {MOK_ARITH_TC16, MOK_ARITH_FMA};
    for (size_t c = 0; c < 2; c++) {
        problem p = small_values(classes[c]);
        mok_comm_config config;
        mok_comm_config_init(&config);
        config.threads = 2;
        mok_comm *comm = NULL;
        assert_int_equal(mok_comm_open_local(&comm, 1, &config), MOK_OK);
        rig r;
        rig_init(&r, &p, comm);
        assert_int_equal(rig_open(&r), MOK_OK);
        assert_int_equal(rig_step(&r), MOK_OK);
        unsigned char *want = malloc(r.output_bytes);
        assert_non_null(want);
        memcpy(want, r.outputs, r.output_bytes);
        for (size_t i = 0; i < STATES; i++) {
            rig_poison(&r);
            const uint32_t saved = _mm_getcsr();
            _mm_setcsr(states[i]);
            const mok_status status = rig_step(&r);
            const bool kept = leave(saved, states[i]);
            assert_int_equal(status, MOK_OK);
            assert_true(kept);
            assert_memory_equal(want, r.outputs, r.output_bytes);
        }
        free(want);
        rig_close(&r);
        mok_comm_close(&comm);
        problem_close(&p);
    }
}

#define COUNT 4096

static void elementwise_functions_give_the_same_bytes(void **state)
{
    (void)state;
    static uint32_t in[COUNT];
    static uint32_t want[2][COUNT];
    static uint32_t got[2][COUNT];
    static uint16_t narrow[2][COUNT];
    uint64_t random = 2;
    for (int i = 0; i < COUNT; i++) {
        in[i] = (uint32_t)(random_next(&random) >> 32);
        if (i % 3 == 0) {
            in[i] = i % 2 == 0 ? in[i] & 0x80FFFFFFu : (in[i] & 0x803FFFFFu) | 0x7F800001u;
        }
    }
    float x[COUNT];
    memcpy(x, in, sizeof x);
    mok_exp((float *)(void *)want[0], x, COUNT);
    mok_sigmoid((float *)(void *)want[1], x, COUNT);
    mok_bf16_from_f32(narrow[0], x, COUNT);
    for (size_t i = 0; i < STATES; i++) {
        const uint32_t saved = _mm_getcsr();
        _mm_setcsr(states[i]);
        mok_exp((float *)(void *)got[0], x, COUNT);
        mok_sigmoid((float *)(void *)got[1], x, COUNT);
        mok_bf16_from_f32(narrow[1], x, COUNT);
        const bool kept = leave(saved, states[i]);
        assert_true(kept);
        assert_memory_equal(want, got, sizeof want);
        assert_memory_equal(narrow[0], narrow[1], sizeof narrow[0]);
    }
}

static void a_non_finite_weight_is_reported_where_invalid_operations_trap(void **state)
{
    (void)state;
    problem p = rig_problem(MOK_ARITH_FMA);
    problem_open(&p);
    mok_comm *comm = NULL;
    assert_int_equal(mok_comm_open_local(&comm, 1, NULL), MOK_OK);
    rig r;
    rig_init(&r, &p, comm);
    assert_int_equal(rig_open(&r), MOK_OK);
    assert_int_equal(rig_build(&r), MOK_OK);
    const uint32_t signalling = 0x7F800001;
    memcpy(&p.router_weights[4], &signalling, sizeof signalling);
    const uint32_t saved = _mm_getcsr();
    _mm_setcsr(0x1F00u);
    const mok_status status = rig_forward(&r);
    const bool kept = leave(saved, 0x1F00u);
    assert_int_equal(status, MOK_ERROR_VALUE);
    assert_true(kept);
    assert_true(rig_untouched(&r));
    rig_close(&r);
    mok_comm_close(&comm);
    problem_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_gives_the_same_bytes_and_leaves_the_callers_state),
        cmocka_unit_test(elementwise_functions_give_the_same_bytes),
        cmocka_unit_test(a_non_finite_weight_is_reported_where_invalid_operations_trap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    return 0; /* elsewhere the rounding mode is all there is, and test_pool looks at it */
}

#endif
