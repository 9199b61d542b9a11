/* Ranks with unequal or no tokens, worst-case imbalance, and sums that must not lose small terms.
 */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

static void check_split(const int64_t *split, int32_t ranks, int64_t tokens)
{
    problem p = case_sizes(tokens, 24, 16, 16, 4, 2);
    result one;
    result many;
    run_config config = run_config_default();
    problem_open(&p);
    case_run(&p, &config, &one, 0xFF);
    config.ranks = ranks;
    config.split = split;
    case_run(&p, &config, &many, 0xFF);
    const char *difference = result_difference(&p, &one, &many, false);
    assert_null(difference);
    result_close(&one);
    result_close(&many);
    problem_close(&p);
}

static void e1_e2_ranks_may_hold_unequal_numbers_of_tokens(void **state)
{
    (void)state;
    static const int64_t e1[] = {3, 4};
    static const int64_t e2[] = {32, 7};
    static const int64_t none[] = {0, 0, 11, 0};
    check_split(e1, 2, 7);
    check_split(e2, 2, 39);
    check_split(none, 4, 11);
}

static void e5_expert_gradients_of_one_batch_do_not_scale_with_ranks(void **state)
{
    (void)state;
    static const int64_t two[] = {16, 16};
    static const int64_t eight[] = {4, 4, 4, 4, 4, 4, 4, 4};
    check_split(two, 2, 32);
    check_split(eight, 8, 32);
}

static void e14_every_route_to_one_rank_fits_the_default_bound(void **state)
{
    (void)state;
    problem p = case_sizes(400, 16, 16, 0, 8, 2);
    result one;
    result four;
    run_config config = run_config_default();
    static const int64_t split[4] = {100, 100, 100, 100};
    problem_open(&p);
    for (int64_t i = 0; i < p.tokens * p.slots; i++) {
        p.routes[i] = (int32_t)(i % 2); /* both on rank 0 of four */
    }
    case_run(&p, &config, &one, 0xFF);
    config.ranks = 4;
    config.split = split;
    case_run(&p, &config, &four, 0xFF);
    case_equal(&p, &one, &four);
    result refused;
    config.capacity_rows = 384;
    result_open(&refused, &p, 0x5A);
    assert_int_equal(problem_run(&p, &config, &refused), MOK_ERROR_CAPACITY);
    for (int64_t i = 0; i < p.tokens * p.hidden; i++) {
        assert_int_equal(refused.y[i], 0x5A5A);
    }
    result_close(&refused);
    result_close(&one);
    result_close(&four);
    problem_close(&p);
}

/* One expert, one row, everything 1 but for the factors: dW_down = w * h * dy is exactly `value`.
 */
static mok_status accumulate_once(mok_comm *comm, void *context)
{
    float *main_gradient = context;
    const uint16_t one = bf16_of(1.0f);
    const uint16_t gate = bf16_of(64.0f); /* silu(64) is 64 in fp32 */
    const uint16_t up = bf16_of(1.0f / 64.0f);
    int32_t route = 0;
    float weight = 1.0f;
    uint16_t y = 0;
    uint16_t dx = 0;
    float dw = 0.0f;
    float others[2] = {0.0f, 0.0f};
    uint16_t matrices[3] = {gate, up, one};
    uint16_t x = one;
    uint16_t dy = one;
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    mok_activations *kept = NULL;
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.hidden = config.intermediate = config.experts = config.slots = config.max_tokens = 1;
    assert_int_equal(mok_layer_open(&layer, comm, &config), MOK_OK);
    assert_int_equal(mok_schedule_open(&schedule, layer), MOK_OK);
    assert_int_equal(mok_activations_open(&kept, layer), MOK_OK);
    mok_weights_view w;
    mok_weights_view_init(&w);
    w.gate = mok_tensor_3d(&matrices[0], MOK_DTYPE_BF16, 1, 1, 1);
    w.up = mok_tensor_3d(&matrices[1], MOK_DTYPE_BF16, 1, 1, 1);
    w.down = mok_tensor_3d(&matrices[2], MOK_DTYPE_BF16, 1, 1, 1);
    const mok_tensor in = mok_tensor_2d(&x, MOK_DTYPE_BF16, 1, 1);
    const mok_tensor out = mok_tensor_2d(&y, MOK_DTYPE_BF16, 1, 1);
    const mok_tensor slope = mok_tensor_2d(&dy, MOK_DTYPE_BF16, 1, 1);
    const mok_tensor routes = mok_tensor_2d(&route, MOK_DTYPE_I32, 1, 1);
    const mok_tensor weights = mok_tensor_2d(&weight, MOK_DTYPE_F32, 1, 1);
    mok_gradients g;
    mok_gradients_init(&g);
    g.mode = MOK_GRAD_ADD;
    g.dx = mok_tensor_2d(&dx, MOK_DTYPE_BF16, 1, 1);
    g.d_router_weights = mok_tensor_2d(&dw, MOK_DTYPE_F32, 1, 1);
    g.gate = mok_tensor_3d(&others[0], MOK_DTYPE_F32, 1, 1, 1);
    g.up = mok_tensor_3d(&others[1], MOK_DTYPE_F32, 1, 1, 1);
    g.down = mok_tensor_3d(main_gradient, MOK_DTYPE_F32, 1, 1, 1);
    assert_int_equal(mok_schedule_build(schedule, layer, &routes), MOK_OK);
    assert_int_equal(mok_forward(layer, kept, &out, schedule, &in, &weights, &w), MOK_OK);
    assert_int_equal(mok_backward(layer, &g, kept, schedule, &slope, &in, &weights, &w), MOK_OK);
    mok_activations_close(&kept);
    mok_schedule_close(&schedule);
    mok_layer_close(&layer);
    return MOK_OK;
}

static void e21_adding_1_to_a_main_gradient_of_256_gives_257(void **state)
{
    (void)state;
    float main_gradient = 256.0f;
    assert_int_equal(group_run(1, NULL, accumulate_once, &main_gradient, NULL, NULL), MOK_OK);
    assert_true(main_gradient == 257.0f);
}

/* Integer-valued inputs whose sums are exact: rank counts, chunks and classes must all give the
 * exact result. */
static void exact_sums_come_out_exactly_in_both_classes(void **state)
{
    (void)state;
    problem p = case_sizes(70, 32, 16, 0, 4, 2);
    result a;
    result b;
    run_config config = run_config_default();
    p.integers = true;
    problem_open(&p);
    /* One column of gate and up is large, the rest zero: silu is the identity there, and all sums
     * stay small. */
    memset(p.gate, 0, (size_t)(p.experts * p.inner * p.hidden) * sizeof(uint16_t));
    case_run(&p, &config, &a, 0xFF);
    p.arith = MOK_ARITH_FMA;
    case_run(&p, &config, &b, 0xFF);
    case_equal(&p, &a, &b); /* h is 0, s and dW are integers */
    result_close(&a);
    result_close(&b);
    problem_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e1_e2_ranks_may_hold_unequal_numbers_of_tokens),
        cmocka_unit_test(e5_expert_gradients_of_one_batch_do_not_scale_with_ranks),
        cmocka_unit_test(e14_every_route_to_one_rank_fits_the_default_bound),
        cmocka_unit_test(e21_adding_1_to_a_main_gradient_of_256_gives_257),
        cmocka_unit_test(exact_sums_come_out_exactly_in_both_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
