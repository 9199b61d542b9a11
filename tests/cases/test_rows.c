/* Rows that are missing, few, odd or padded: nothing uninitialised is read or left behind. */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

static void a1_empty_expert_gets_zero_gradient_even_in_poisoned_memory(void **state)
{
    (void)state;
    static const int64_t rows[] = {4, 0, 0, 0};
    problem p;
    result r;
    const run_config config = run_config_default();
    case_rows(&p, rows, 4, 16, 16, MOK_ARITH_TC16);
    case_run(&p, &config, &r, 0xFF);
    const int64_t matrix = p.inner * p.hidden;
    assert_true(case_all_bits_zero(r.gate + matrix, 3 * matrix));
    assert_true(case_all_bits_zero(r.up + matrix, 3 * matrix));
    assert_true(case_all_bits_zero(r.down + matrix, 3 * matrix));
    assert_false(case_all_bits_zero(r.gate, matrix));
    case_near_oracle(&p, &r);
    result_close(&r);
    problem_close(&p);
}

static void a2_empty_experts_between_full_ones_at_a_real_shape(void **state)
{
    (void)state;
    static const int64_t rows[] = {81, 0, 1288, 223, 0, 41};
    problem p;
    result r;
    run_config config = run_config_default();
    config.threads = 2;
    case_rows(&p, rows, 6, 512, 192, MOK_ARITH_FMA);
    case_run(&p, &config, &r, 0xFF);
    const int64_t matrix = p.inner * p.hidden;
    assert_true(case_all_bits_zero(r.gate + matrix, matrix) &&
                case_all_bits_zero(r.down + 4 * matrix, matrix));
    for (int64_t i = 0; i < 6 * matrix; i++) {
        assert_true(r.gate[i] == r.gate[i] && r.up[i] == r.up[i] && r.down[i] == r.down[i]);
    }
    result_close(&r);
    problem_close(&p);
}

/* Allocations are filled with NaN, then with 1e30: padding rows and scratch hold what was there. */
typedef struct poisoner {
    float value;
} poisoner;

static void *poisoned_allocate(void *context, size_t bytes, size_t alignment)
{
    const poisoner *p = context;
    void *memory = NULL;
    if (posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment,
                       bytes + 4) != 0) {
        return NULL;
    }
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        memcpy((unsigned char *)memory + i, &p->value, sizeof p->value);
    }
    return memory;
}

static void poisoned_release(void *context, void *memory, size_t bytes)
{
    (void)context;
    (void)bytes;
    free(memory);
}

typedef struct poison_work {
    const problem *p;
    uint16_t *y[2], *dx[2];
    float *gate[2];
} poison_work;

/* Forward, then backward twice, on one rank. */
static mok_status step_twice(mok_comm *comm, void *context)
{
    const poison_work *work = context;
    const problem *p = work->p;
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    mok_activations *kept = NULL;
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.hidden = p->hidden;
    config.intermediate = p->inner;
    config.experts = p->experts;
    config.slots = p->slots;
    config.max_tokens = p->tokens;
    config.arith = p->arith;
    const mok_dtype bf16 = MOK_DTYPE_BF16;
    const int64_t matrix = p->experts * p->inner * p->hidden;
    float *others = malloc((size_t)(2 * matrix + p->tokens * p->slots) * sizeof *others);
    assert_non_null(others);
    mok_weights_view w;
    mok_weights_view_init(&w);
    w.gate = mok_tensor_3d(p->gate, bf16, p->experts, p->inner, p->hidden);
    w.up = mok_tensor_3d(p->up, bf16, p->experts, p->inner, p->hidden);
    w.down = mok_tensor_3d(p->down, bf16, p->experts, p->hidden, p->inner);
    const mok_tensor x = mok_tensor_2d(p->x, bf16, p->tokens, p->hidden);
    const mok_tensor dy = mok_tensor_2d(p->dy, bf16, p->tokens, p->hidden);
    const mok_tensor routes = mok_tensor_2d(p->routes, MOK_DTYPE_I32, p->tokens, p->slots);
    const mok_tensor weights = mok_tensor_2d(p->router_weights, MOK_DTYPE_F32, p->tokens, p->slots);
    assert_int_equal(mok_layer_open(&layer, comm, &config), MOK_OK);
    assert_int_equal(mok_schedule_open(&schedule, layer), MOK_OK);
    assert_int_equal(mok_activations_open(&kept, layer), MOK_OK);
    assert_int_equal(mok_schedule_build(schedule, layer, &routes), MOK_OK);
    const mok_tensor y = mok_tensor_2d(work->y[0], bf16, p->tokens, p->hidden);
    assert_int_equal(mok_forward(layer, kept, &y, schedule, &x, &weights, &w), MOK_OK);
    for (int i = 0; i < 2; i++) {
        mok_gradients g;
        mok_gradients_init(&g);
        g.dx = mok_tensor_2d(work->dx[i], bf16, p->tokens, p->hidden);
        g.d_router_weights = mok_tensor_2d(others + 2 * matrix, MOK_DTYPE_F32, p->tokens, p->slots);
        g.gate = mok_tensor_3d(work->gate[i], MOK_DTYPE_F32, p->experts, p->inner, p->hidden);
        g.up = mok_tensor_3d(others, MOK_DTYPE_F32, p->experts, p->inner, p->hidden);
        g.down = mok_tensor_3d(others + matrix, MOK_DTYPE_F32, p->experts, p->hidden, p->inner);
        assert_int_equal(mok_backward(layer, &g, kept, schedule, &dy, &x, &weights, &w), MOK_OK);
    }
    mok_activations_close(&kept);
    mok_schedule_close(&schedule);
    mok_layer_close(&layer);
    free(others);
    return MOK_OK;
}

static void a5_a6_a17_stale_memory_is_never_read_and_backward_repeats(void **state)
{
    (void)state;
    static const int64_t rows[] = {33, 7, 0};
    problem p;
    poisoner poison[2] = {{0.0f}, {1e30f}};
    uint16_t *y[2];
    const uint32_t nan = 0x7FFFFFFFu;
    memcpy(&poison[0].value, &nan, sizeof nan);
    case_rows(&p, rows, 3, 24, 40, MOK_ARITH_TC16);
    const size_t wide = (size_t)(p.tokens * p.hidden) * sizeof(uint16_t);
    const size_t matrix = (size_t)(p.experts * p.inner * p.hidden) * sizeof(float);
    for (int i = 0; i < 2; i++) {
        poison_work work = {&p,
                            {malloc(wide), NULL},
                            {malloc(wide), malloc(wide)},
                            {malloc(matrix), malloc(matrix)}};
        mok_comm_config config;
        mok_comm_config_init(&config);
        config.allocator.allocate = poisoned_allocate;
        config.allocator.release = poisoned_release;
        config.allocator.context = &poison[i];
        assert_int_equal(group_run(1, &config, step_twice, &work, NULL, NULL), MOK_OK);
        assert_memory_equal(work.dx[0], work.dx[1], wide);
        assert_memory_equal(work.gate[0], work.gate[1], matrix);
        y[i] = work.y[0];
        free(work.dx[0]);
        free(work.dx[1]);
        free(work.gate[0]);
        free(work.gate[1]);
    }
    assert_memory_equal(y[0], y[1], wide);
    free(y[0]);
    free(y[1]);
    problem_close(&p);
}

static void check_rows(const int64_t *rows, int64_t experts, int64_t hidden, int64_t inner)
{
    problem p;
    result r;
    const run_config config = run_config_default();
    case_rows(&p, rows, experts, hidden, inner, MOK_ARITH_FMA);
    case_run(&p, &config, &r, 0xFF);
    case_near_oracle(&p, &r);
    result_close(&r);
    problem_close(&p);
}

static void b1_b2_b9_row_counts_off_every_tile_are_right(void **state)
{
    (void)state;
    static const int64_t b1[] = {40, 100, 77};
    static const int64_t b2[] = {128, 130, 65};
    static const int64_t b9[] = {130};
    check_rows(b1, 3, 96, 32);
    check_rows(b2, 3, 48, 32);
    check_rows(b9, 1, 200, 24);
}

static void check_tokens(int64_t tokens, int64_t hidden, int64_t experts, int64_t slots)
{
    problem p = case_sizes(tokens, hidden, 16, 0, experts, slots);
    result a;
    result b;
    run_config config = run_config_default();
    problem_open(&p);
    case_run(&p, &config, &a, 0xFF);
    config.ranks = 2;
    config.threads = 2;
    const int64_t split[2] = {tokens / 3, tokens - tokens / 3};
    config.split = split;
    case_run(&p, &config, &b, 0x11);
    assert_null(result_difference(&p, &a, &b, false));
    result_close(&a);
    result_close(&b);
    problem_close(&p);
}

static void b11_a_hidden_size_of_five_is_accepted(void **state)
{
    (void)state;
    check_tokens(9, 5, 3, 2);
}

static void b12_b13_every_token_count_writes_every_row(void **state)
{
    (void)state;
    static const int64_t counts[] = {0,  1,  2,   3,   9,   17,  31,  32,  33,   63,  64,
                                     65, 99, 127, 128, 129, 255, 256, 257, 1409, 4097};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_tokens(counts[i], 16, counts[i] == 17 ? 128 : 8, counts[i] > 1000 ? 2 : 8);
    }
    check_tokens(65537, 2, 4, 1);
}

static void a13_no_tokens_at_all_is_a_step_like_any_other(void **state)
{
    (void)state;
    problem p = case_sizes(0, 16, 16, 16, 4, 2);
    result r;
    run_config config = run_config_default();
    static const int64_t nobody[3] = {0, 0, 0};
    problem_open(&p);
    config.ranks = 3;
    config.split = nobody;
    case_run(&p, &config, &r, 0xFF);
    assert_true(case_all_bits_zero(r.gate, p.experts * p.inner * p.hidden));
    assert_true(case_all_bits_zero(r.down, p.experts * p.inner * p.hidden));
    result_close(&r);
    problem_close(&p);
}

static void a12_everyone_choosing_expert_0_leaves_three_ranks_without_rows(void **state)
{
    (void)state;
    problem p = case_sizes(40, 32, 16, 0, 8, 1);
    result r;
    run_config config = run_config_default();
    static const int64_t split[4] = {10, 10, 10, 10};
    p.routing = ROUTING_ONE;
    problem_open(&p);
    config.ranks = 4;
    config.split = split;
    case_run(&p, &config, &r, 0xFF);
    case_near_oracle(&p, &r);
    result_close(&r);
    problem_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a1_empty_expert_gets_zero_gradient_even_in_poisoned_memory),
        cmocka_unit_test(a2_empty_experts_between_full_ones_at_a_real_shape),
        cmocka_unit_test(a5_a6_a17_stale_memory_is_never_read_and_backward_repeats),
        cmocka_unit_test(b1_b2_b9_row_counts_off_every_tile_are_right),
        cmocka_unit_test(b11_a_hidden_size_of_five_is_accepted),
        cmocka_unit_test(b12_b13_every_token_count_writes_every_row),
        cmocka_unit_test(a13_no_tokens_at_all_is_a_step_like_any_other),
        cmocka_unit_test(a12_everyone_choosing_expert_0_leaves_three_ranks_without_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
