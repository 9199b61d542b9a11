/* Places beyond 2^31 elements: strides that no 32-bit product survives, over address space that is
 * reserved but hardly touched. And nothing is read past the last element. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HIDDEN 16
#define INNER 16
#define MATRIX (HIDDEN * INNER)

typedef struct far_weights {
    const problem *p;
    uint16_t *gate; /* two experts, `stride` elements apart */
    int64_t stride;
    uint16_t *y;
} far_weights;

static mok_status run_far(mok_comm *comm, void *context)
{
    const far_weights *f = context;
    const problem *p = f->p;
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    mok_activations *kept = NULL;
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.hidden = HIDDEN;
    config.intermediate = INNER;
    config.experts = 2;
    config.slots = p->slots;
    config.max_tokens = p->tokens;
    mok_status status = mok_layer_open(&layer, comm, &config);
    status = status != MOK_OK ? status : mok_schedule_open(&schedule, layer);
    status = status != MOK_OK ? status : mok_activations_open(&kept, layer);
    mok_weights_view w;
    mok_weights_view_init(&w);
    w.gate = mok_tensor_3d(f->gate, MOK_DTYPE_BF16, 2, INNER, HIDDEN);
    w.gate.stride[0] = f->stride;
    w.up = mok_tensor_3d(p->up, MOK_DTYPE_BF16, 2, INNER, HIDDEN);
    w.down = mok_tensor_3d(p->down, MOK_DTYPE_BF16, 2, HIDDEN, INNER);
    const mok_tensor x = mok_tensor_2d(p->x, MOK_DTYPE_BF16, p->tokens, HIDDEN);
    const mok_tensor y = mok_tensor_2d(f->y, MOK_DTYPE_BF16, p->tokens, HIDDEN);
    const mok_tensor routes = mok_tensor_2d(p->routes, MOK_DTYPE_I32, p->tokens, p->slots);
    const mok_tensor weights = mok_tensor_2d(p->router_weights, MOK_DTYPE_F32, p->tokens, p->slots);
    status = status != MOK_OK ? status : mok_schedule_build(schedule, layer, &routes);
    status = status != MOK_OK ? status : mok_forward(layer, kept, &y, schedule, &x, &weights, &w);
    mok_activations_close(&kept);
    mok_schedule_close(&schedule);
    mok_layer_close(&layer);
    return status;
}

static void f1_f2_an_expert_4e9_elements_away_is_found(void **state)
{
    (void)state;
    const int64_t stride = 4000000000;
    const size_t bytes = (size_t)(stride + MATRIX) * sizeof(uint16_t);
    problem p = case_sizes(20, HIDDEN, INNER, 0, 2, 2);
    result near;
    const run_config config = run_config_default();
    problem_open(&p);
    case_run(&p, &config, &near, 0xFF);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        print_message("8 GB of address space cannot be reserved here\n");
        skip();
    }
    far_weights f = {&p, map, stride, malloc((size_t)(p.tokens * HIDDEN) * sizeof(uint16_t))};
    assert_non_null(f.y);
    memcpy(f.gate, p.gate, MATRIX * sizeof(uint16_t));
    memcpy(f.gate + stride, p.gate + MATRIX, MATRIX * sizeof(uint16_t));
    assert_int_equal(group_run(1, NULL, run_far, &f, NULL, NULL), MOK_OK);
    assert_memory_equal(f.y, near.y, (size_t)(p.tokens * HIDDEN) * sizeof(uint16_t));
    free(f.y);
    (void)munmap(map, bytes);
    result_close(&near);
    problem_close(&p);
}

/* The gate's last element is the last before a page that faults. */
static void h10_nothing_is_read_past_the_last_row(void **state)
{
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    problem p = case_sizes(20, HIDDEN, INNER, 0, 2, 2);
    result plain;
    const run_config config = run_config_default();
    problem_open(&p);
    case_run(&p, &config, &plain, 0xFF);
    unsigned char *map =
        mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + page, page, PROT_NONE), 0);
    const size_t bytes = 2 * MATRIX * sizeof(uint16_t);
    far_weights f = {&p, (uint16_t *)(void *)(map + page - bytes), MATRIX,
                     malloc((size_t)(p.tokens * HIDDEN) * sizeof(uint16_t))};
    assert_non_null(f.y);
    memcpy(f.gate, p.gate, bytes);
    assert_int_equal(group_run(1, NULL, run_far, &f, NULL, NULL), MOK_OK);
    assert_memory_equal(f.y, plain.y, (size_t)(p.tokens * HIDDEN) * sizeof(uint16_t));
    free(f.y);
    (void)munmap(map, 2 * page);
    result_close(&plain);
    problem_close(&p);
}

/* Weights that change between forward and backward: backward reads them anew. */
static void g7_backward_uses_the_weights_it_is_given(void **state)
{
    (void)state;
    problem p = case_sizes(16, HIDDEN, INNER, 0, 2, 1);
    result a;
    result b;
    run_config config = run_config_default();
    problem_open(&p);
    case_run(&p, &config, &a, 0xFF);
    for (int64_t i = 0; i < 2 * MATRIX; i++) {
        p.down[i] ^= 0x8000; /* -down: y and dx change their sign, exactly */
    }
    case_run(&p, &config, &b, 0xFF);
    for (int64_t i = 0; i < p.tokens * HIDDEN; i++) {
        assert_true(f32_of(a.dx[i]) == -f32_of(b.dx[i]));
    }
    result_close(&a);
    result_close(&b);
    problem_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f1_f2_an_expert_4e9_elements_away_is_found),
        cmocka_unit_test(h10_nothing_is_read_past_the_last_row),
        cmocka_unit_test(g7_backward_uses_the_weights_it_is_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
