/* Every tensor of every pass, spoiled in every way: the status and the text name it, nothing is
 * written, and the same call works once the argument is right again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rig.h"

typedef struct pass {
    const char *name;
    mok_status (*run)(rig *r);
} pass;

enum { FORWARD = 1, RECOMPUTE = 2, BACKWARD = 4 };

static const struct {
    int bit;
    pass p;
} passes[] = {{FORWARD, {"forward", rig_forward}},
              {RECOMPUTE, {"recompute", rig_recompute}},
              {BACKWARD, {"backward", rig_backward}}};

/* Every tensor that a pass takes, and which passes take it. */
static const struct {
    const char *name;
    size_t at; /* in a rig */
    int used_by;
    bool output;
} tensors[] = {
    {"x", offsetof(rig, x), FORWARD | RECOMPUTE | BACKWARD, false},
    {"weights.gate", offsetof(rig, weights.gate), FORWARD | RECOMPUTE | BACKWARD, false},
    {"weights.up", offsetof(rig, weights.up), FORWARD | RECOMPUTE | BACKWARD, false},
    {"weights.down", offsetof(rig, weights.down), FORWARD | RECOMPUTE | BACKWARD, false},
    {"weights.shared_gate", offsetof(rig, weights.shared_gate), FORWARD | RECOMPUTE | BACKWARD,
     false},
    {"weights.shared_up", offsetof(rig, weights.shared_up), FORWARD | RECOMPUTE | BACKWARD, false},
    {"weights.shared_down", offsetof(rig, weights.shared_down), FORWARD | RECOMPUTE | BACKWARD,
     false},
    {"router_weights", offsetof(rig, router_weights), FORWARD | BACKWARD, false},
    {"out", offsetof(rig, y), FORWARD, true},
    {"dy", offsetof(rig, dy), BACKWARD, false},
    {"gradients.dx", offsetof(rig, gradients.dx), BACKWARD, true},
    {"gradients.d_router_weights", offsetof(rig, gradients.d_router_weights), BACKWARD, true},
    {"gradients.gate", offsetof(rig, gradients.gate), BACKWARD, true},
    {"gradients.up", offsetof(rig, gradients.up), BACKWARD, true},
    {"gradients.down", offsetof(rig, gradients.down), BACKWARD, true},
    {"gradients.shared_gate", offsetof(rig, gradients.shared_gate), BACKWARD, true},
    {"gradients.shared_up", offsetof(rig, gradients.shared_up), BACKWARD, true},
    {"gradients.shared_down", offsetof(rig, gradients.shared_down), BACKWARD, true},
};

#define TENSORS (sizeof tensors / sizeof tensors[0])

static mok_tensor *tensor_of(rig *r, size_t idx)
{
    return (mok_tensor *)(void *)((char *)r + tensors[idx].at);
}

/* ---- What can be wrong with one tensor ---- */

static void no_data(mok_tensor *t)
{
    t->data = NULL;
}
static void odd_address(mok_tensor *t)
{
    t->data = (char *)t->data + 1;
}
static void small_struct(mok_tensor *t)
{
    t->struct_bytes--;
}
static void large_struct(mok_tensor *t)
{
    t->struct_bytes += 8;
}
static void wrong_dtype(mok_tensor *t)
{
    t->dtype = MOK_DTYPE_I64;
}
static void unknown_dtype(mok_tensor *t)
{
    t->dtype = (mok_dtype)99;
}
static void mx_dtype(mok_tensor *t)
{
    t->dtype = MOK_DTYPE_E4M3;
}
static void more_axes(mok_tensor *t)
{
    t->rank++;
}
static void fewer_axes(mok_tensor *t)
{
    t->rank--;
}
static void longer_rows(mok_tensor *t)
{
    t->shape[t->rank - 1]++;
}
static void one_row_more(mok_tensor *t)
{
    t->shape[0]++;
}
static void one_row_less(mok_tensor *t)
{
    t->shape[0]--;
}
static void negative_extent(mok_tensor *t)
{
    t->shape[0] = -t->shape[0];
}
static void loose_elements(mok_tensor *t)
{
    t->stride[t->rank - 1] = 2;
}
static void overlapping_rows(mok_tensor *t)
{
    t->stride[t->rank - 2] = t->shape[t->rank - 1] - 1;
}
static void rows_backwards(mok_tensor *t)
{
    t->stride[t->rank - 2] = -t->stride[t->rank - 2];
}
static void endless_stride(mok_tensor *t)
{
    t->stride[t->rank - 2] = INT64_MAX / 2;
}
static void stride_past_the_end(mok_tensor *t)
{
    const int axis = t->shape[0] > 1 ? 0 : 1;
    t->stride[axis] = INT64_MAX / t->shape[axis]; /* elements can be counted, bytes cannot */
}

static const struct {
    void (*spoil)(mok_tensor *t);
    mok_status want;
    const char *text;
} defects[] = {
    {no_data, MOK_ERROR_ARGUMENT, ".data is NULL"},
    {odd_address, MOK_ERROR_SHAPE, "not aligned"},
    {small_struct, MOK_ERROR_ARGUMENT, ".struct_bytes is"},
    {large_struct, MOK_ERROR_ARGUMENT, ".struct_bytes is"},
    {wrong_dtype, MOK_ERROR_SHAPE, ".dtype is 4"},
    {unknown_dtype, MOK_ERROR_SHAPE, ".dtype is 99"},
    {mx_dtype, MOK_ERROR_UNSUPPORTED, "MXFP8"},
    {more_axes, MOK_ERROR_SHAPE, ".rank is"},
    {fewer_axes, MOK_ERROR_SHAPE, ".rank is"},
    {longer_rows, MOK_ERROR_SHAPE, ".shape["},
    {one_row_more, MOK_ERROR_SHAPE, ".shape[0] is"},
    {one_row_less, MOK_ERROR_SHAPE, ".shape[0] is"},
    {negative_extent, MOK_ERROR_SHAPE, ".shape[0] is -"},
    {loose_elements, MOK_ERROR_SHAPE, "must be 1"},
    {overlapping_rows, MOK_ERROR_SHAPE, "would overlap"},
    {rows_backwards, MOK_ERROR_SHAPE, "would overlap"},
    {endless_stride, MOK_ERROR_SHAPE, "2^63"},
    {stride_past_the_end, MOK_ERROR_SHAPE, "address space"},
};

/* ---- One rank, ready for every pass ---- */

typedef struct stage {
    problem p;
    mok_comm *comm;
    rig r;
} stage;

static void stage_open(stage *s)
{
    s->p = rig_problem(MOK_ARITH_FMA);
    problem_open(&s->p);
    assert_int_equal(mok_comm_open_local(&s->comm, 1, NULL), MOK_OK);
    rig_init(&s->r, &s->p, s->comm);
    assert_int_equal(rig_open(&s->r), MOK_OK);
    assert_int_equal(rig_build(&s->r), MOK_OK);
    assert_int_equal(rig_forward(&s->r), MOK_OK);
    rig_poison(&s->r);
}

static void stage_close(stage *s)
{
    rig_close(&s->r);
    mok_comm_close(&s->comm);
    problem_close(&s->p);
}

static void expect(stage *s, rig *spoiled, const pass *p, mok_status want, const char *name,
                   const char *text)
{
    const mok_status status = p->run(spoiled);
    if (status != want || strstr(mok_last_error(), name) == NULL ||
        strstr(mok_last_error(), text) == NULL || !rig_untouched(&s->r)) {
        fail_msg("%s, %s %s: %s, \"%s\", outputs %s", p->name, name, text,
                 mok_status_string(status), mok_last_error(),
                 rig_untouched(&s->r) ? "untouched" : "touched");
    }
}

static void every_defect_of_every_tensor_is_named(void **state)
{
    (void)state;
    stage s;
    stage_open(&s);
    int tried = 0;
    for (size_t pass_idx = 0; pass_idx < 3; pass_idx++) {
        for (size_t t = 0; t < TENSORS; t++) {
            for (size_t d = 0; d < sizeof defects / sizeof defects[0]; d++) {
                if ((tensors[t].used_by & passes[pass_idx].bit) == 0) {
                    continue;
                }
                rig spoiled = s.r;
                defects[d].spoil(tensor_of(&spoiled, t));
                expect(&s, &spoiled, &passes[pass_idx].p, defects[d].want, tensors[t].name,
                       defects[d].text);
                tried++;
            }
        }
    }
    assert_int_equal(tried, (9 + 7 + 17) * (int)(sizeof defects / sizeof defects[0]));
    assert_int_equal(rig_step(&s.r), MOK_OK);
    assert_false(rig_untouched(&s.r));
    stage_close(&s);
}

/* ---- Overlap ---- */

static size_t hull_of(const mok_tensor *t)
{
    size_t elements = 1;
    for (int32_t axis = 0; axis < t->rank; axis++) {
        elements += (size_t)((t->shape[axis] - 1) * t->stride[axis]);
    }
    return elements * mok_dtype_bytes(t->dtype);
}

static void an_output_that_shares_one_byte_is_refused(void **state)
{
    (void)state;
    stage s;
    stage_open(&s);
    for (size_t pass_idx = 0; pass_idx < 3; pass_idx++) {
        for (size_t o = 0; o < TENSORS; o++) {
            for (size_t t = 0; t < TENSORS; t++) {
                const int bit = passes[pass_idx].bit;
                if (!tensors[o].output || o == t || (tensors[o].used_by & bit) == 0 ||
                    (tensors[t].used_by & bit) == 0) {
                    continue;
                }
                rig spoiled = s.r;
                mok_tensor *out = tensor_of(&spoiled, o);
                const mok_tensor *other = tensor_of(&spoiled, t);
                const size_t element = mok_dtype_bytes(out->dtype);
                out->data = other->data; /* the first element */
                expect(&s, &spoiled, &passes[pass_idx].p, MOK_ERROR_OVERLAP, tensors[o].name,
                       "overlaps");
                /* the last element of the other, then of the output */
                out->data = (char *)other->data + (hull_of(other) - element) / element * element;
                expect(&s, &spoiled, &passes[pass_idx].p, MOK_ERROR_OVERLAP, tensors[o].name,
                       "overlaps");
                out->data = (char *)other->data - (hull_of(out) - element);
                expect(&s, &spoiled, &passes[pass_idx].p, MOK_ERROR_OVERLAP, tensors[o].name,
                       "overlaps");
            }
        }
    }
    stage_close(&s);
}

/* ---- Whole arguments ---- */

static void missing_arguments_are_named(void **state)
{
    (void)state;
    stage s;
    stage_open(&s);
    rig *r = &s.r;
    mok_weights_view *w = &r->weights;
#define EXPECT(call, name)                                                                         \
    do {                                                                                           \
        assert_int_equal((call), MOK_ERROR_ARGUMENT);                                              \
        assert_non_null(strstr(mok_last_error(), (name)));                                         \
        assert_true(rig_untouched(r));                                                             \
    } while (0)
    mok_activations *a = r->activations;
    mok_schedule *c = r->schedule;
    EXPECT(mok_forward(NULL, a, &r->y, c, &r->x, &r->router_weights, w), "layer");
    EXPECT(mok_forward(r->layer, NULL, &r->y, c, &r->x, &r->router_weights, w), "activations");
    EXPECT(mok_forward(r->layer, a, NULL, c, &r->x, &r->router_weights, w), "out");
    EXPECT(mok_forward(r->layer, a, &r->y, NULL, &r->x, &r->router_weights, w), "schedule");
    EXPECT(mok_forward(r->layer, a, &r->y, c, NULL, &r->router_weights, w), "x is NULL");
    EXPECT(mok_forward(r->layer, a, &r->y, c, &r->x, NULL, w), "router_weights");
    EXPECT(mok_forward(r->layer, a, &r->y, c, &r->x, &r->router_weights, NULL), "weights");
    EXPECT(mok_recompute(NULL, a, c, &r->x, w), "layer");
    EXPECT(mok_recompute(r->layer, NULL, c, &r->x, w), "activations");
    EXPECT(mok_recompute(r->layer, a, NULL, &r->x, w), "schedule");
    EXPECT(mok_recompute(r->layer, a, c, NULL, w), "x is NULL");
    EXPECT(mok_recompute(r->layer, a, c, &r->x, NULL), "weights");
    mok_gradients *g = &r->gradients;
    EXPECT(mok_backward(NULL, g, a, c, &r->dy, &r->x, &r->router_weights, w), "layer");
    EXPECT(mok_backward(r->layer, NULL, a, c, &r->dy, &r->x, &r->router_weights, w), "gradients");
    EXPECT(mok_backward(r->layer, g, NULL, c, &r->dy, &r->x, &r->router_weights, w), "activations");
    EXPECT(mok_backward(r->layer, g, a, NULL, &r->dy, &r->x, &r->router_weights, w), "schedule");
    EXPECT(mok_backward(r->layer, g, a, c, NULL, &r->x, &r->router_weights, w), "dy is NULL");
    EXPECT(mok_backward(r->layer, g, a, c, &r->dy, NULL, &r->router_weights, w), "x is NULL");
    EXPECT(mok_backward(r->layer, g, a, c, &r->dy, &r->x, NULL, w), "router_weights");
    EXPECT(mok_backward(r->layer, g, a, c, &r->dy, &r->x, &r->router_weights, NULL), "weights");
    EXPECT(mok_schedule_build(c, NULL, &r->routes), "layer");
    EXPECT(mok_schedule_build(NULL, r->layer, &r->routes), "schedule");
    EXPECT(mok_schedule_build(c, r->layer, NULL), "routes");
#undef EXPECT
    stage_close(&s);
}

static void structs_of_another_size_and_bad_choices_are_refused(void **state)
{
    (void)state;
    stage s;
    stage_open(&s);
    const pass forward = passes[0].p;
    const pass backward = passes[2].p;
    for (int step = -1; step <= 1; step += 2) {
        rig r = s.r;
        r.weights.struct_bytes += (size_t)step;
        expect(&s, &r, &forward, MOK_ERROR_ARGUMENT, "weights.struct_bytes", "must be");
        r = s.r;
        r.gradients.struct_bytes += (size_t)step;
        expect(&s, &r, &backward, MOK_ERROR_ARGUMENT, "gradients.struct_bytes", "must be");
    }
    rig r = s.r;
    r.gradients.mode = (mok_grad_mode)3;
    expect(&s, &r, &backward, MOK_ERROR_ARGUMENT, "gradients.mode", "is 3");
    static const int64_t lanes[] = {0, -1, 3, 41, INT64_MAX};
    for (size_t i = 0; i < sizeof lanes / sizeof lanes[0]; i++) {
        r = s.r;
        r.gradients.shared_lanes = lanes[i];
        expect(&s, &r, &backward, MOK_ERROR_SHAPE, "gradients.shared_lanes", "40 tokens");
    }
    /* A sum is kept in fp32. */
    r = s.r;
    r.gradients.gate.dtype = MOK_DTYPE_BF16;
    r.gradients.mode = MOK_GRAD_ADD;
    expect(&s, &r, &backward, MOK_ERROR_SHAPE, "gradients.gate.dtype", "must be 2");
    r.gradients.mode = MOK_GRAD_STORE;
    assert_int_equal(rig_backward(&r), MOK_OK);
    stage_close(&s);
}

/* ---- Router weights ---- */

static void router_weights_are_finite_where_they_count(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF};
    stage s;
    stage_open(&s);
    float *weights = s.r.router_weights.data;
    int32_t *routes = s.r.routes.data;
    const float kept = weights[17 * 2 + 1];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memcpy(&weights[17 * 2 + 1], &bad[i], sizeof bad[i]);
        expect(&s, &s.r, &passes[0].p, MOK_ERROR_VALUE, "router_weights[token 17][slot 1]",
               "finite");
        expect(&s, &s.r, &passes[2].p, MOK_ERROR_VALUE, "router_weights[token 17][slot 1]",
               "finite");
    }
    /* In a masked slot anything may stand, and nothing of it is seen. */
    routes[17 * 2 + 1] = -1;
    assert_int_equal(rig_step(&s.r), MOK_OK);
    unsigned char *first = malloc(s.r.output_bytes);
    assert_non_null(first);
    memcpy(first, s.r.outputs, s.r.output_bytes);
    weights[17 * 2 + 1] = kept;
    rig_poison(&s.r);
    assert_int_equal(rig_step(&s.r), MOK_OK);
    assert_memory_equal(first, s.r.outputs, s.r.output_bytes);
    const float *d_weights = s.r.gradients.d_router_weights.data;
    uint32_t word;
    memcpy(&word, &d_weights[17 * 2 + 1], sizeof word);
    assert_int_equal(word, 0);
    /* The extremes of what is finite are taken. */
    static const uint32_t good[] = {0x7F7FFFFF, 0xFF7FFFFF, 0x00000001, 0x80000000};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        memcpy(&weights[16 * 2], &good[i], sizeof good[i]);
        assert_int_equal(rig_step(&s.r), MOK_OK);
    }
    free(first);
    stage_close(&s);
}

/* ---- Order of calls ---- */

static void calls_out_of_order_are_refused(void **state)
{
    (void)state;
    problem p = rig_problem(MOK_ARITH_FMA);
    p.tokens = 200;
    p.experts = 2;
    problem_open(&p);
    mok_comm *comm = NULL;
    rig r;
    assert_int_equal(mok_comm_open_local(&comm, 1, NULL), MOK_OK);
    rig_init(&r, &p, comm);
    r.config.macrobatch_rows = 128;
    assert_int_equal(rig_open(&r), MOK_OK);
    mok_schedule_view view = {.struct_bytes = sizeof view};
    assert_int_equal(mok_schedule_read(r.schedule, &view), MOK_ERROR_STATE);
    assert_int_equal(rig_forward(&r), MOK_ERROR_STATE);
    assert_int_equal(rig_recompute(&r), MOK_ERROR_STATE);
    assert_int_equal(rig_backward(&r), MOK_ERROR_STATE);
    assert_int_equal(rig_build(&r), MOK_OK);
    assert_int_equal(rig_backward(&r), MOK_ERROR_STATE);
    assert_true(rig_untouched(&r));
    assert_int_equal(rig_forward(&r), MOK_OK);
    assert_int_equal(rig_build(&r), MOK_OK); /* the activations are of the build before */
    assert_int_equal(rig_backward(&r), MOK_ERROR_STATE);
    assert_int_equal(rig_forward(&r), MOK_OK);
    assert_int_equal(rig_backward(&r), MOK_OK);
    assert_int_equal(rig_backward(&r), MOK_ERROR_STATE); /* consumed: several macrobatches */
    assert_int_equal(rig_recompute(&r), MOK_OK);
    assert_int_equal(rig_backward(&r), MOK_OK);
    assert_int_equal(mok_schedule_read(r.schedule, NULL), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_schedule_read(NULL, &view), MOK_ERROR_ARGUMENT);
    view.struct_bytes--;
    assert_int_equal(mok_schedule_read(r.schedule, &view), MOK_ERROR_ARGUMENT);
    rig_close(&r);
    mok_comm_close(&comm);
    problem_close(&p);
}

static void handles_of_another_layer_are_refused(void **state)
{
    (void)state;
    stage s;
    stage_open(&s);
    rig other;
    rig_init(&other, &s.p, s.comm);
    assert_int_equal(rig_open(&other), MOK_OK);
    assert_int_equal(rig_build(&other), MOK_OK);
    assert_int_equal(rig_forward(&other), MOK_OK);
    rig r = s.r;
    r.schedule = other.schedule;
    expect(&s, &r, &passes[0].p, MOK_ERROR_ARGUMENT, "schedule", "another layer");
    expect(&s, &r, &passes[2].p, MOK_ERROR_ARGUMENT, "schedule", "another layer");
    assert_int_equal(mok_schedule_build(r.schedule, r.layer, &r.routes), MOK_ERROR_ARGUMENT);
    r = s.r;
    r.activations = other.activations;
    expect(&s, &r, &passes[0].p, MOK_ERROR_ARGUMENT, "activations", "another layer");
    expect(&s, &r, &passes[2].p, MOK_ERROR_ARGUMENT, "activations", "another layer");
    rig_close(&other);
    stage_close(&s);
}

/* ---- Strides that are allowed ---- */

/* Copies a tensor's rows into memory with gaps full of NaN. */
static mok_tensor loosen(const mok_tensor *t, int64_t gap)
{
    mok_tensor out = *t;
    const size_t element = mok_dtype_bytes(t->dtype);
    const int64_t cols = t->shape[t->rank - 1];
    const int64_t rows = t->rank == 3 ? t->shape[0] * t->shape[1] : t->shape[0];
    const int64_t pitch = cols + gap;
    unsigned char *memory = malloc((size_t)(rows * pitch) * element + 1);
    assert_non_null(memory);
    memset(memory, 0xFF, (size_t)(rows * pitch) * element);
    for (int64_t row = 0; row < rows; row++) {
        memcpy(memory + (size_t)(row * pitch) * element,
               (const unsigned char *)t->data + (size_t)(row * cols) * element,
               (size_t)cols * element);
    }
    out.data = memory;
    out.stride[t->rank - 2] = pitch;
    if (t->rank == 3) {
        out.stride[0] = pitch * t->shape[1];
    }
    return out;
}

/* Rows equal, and whatever lies between them as it was. */
static void expect_same_rows(const mok_tensor *loose, const mok_tensor *tight)
{
    const size_t element = mok_dtype_bytes(loose->dtype);
    const int64_t cols = loose->shape[loose->rank - 1];
    const int64_t rows = loose->rank == 3 ? loose->shape[0] * loose->shape[1] : loose->shape[0];
    const size_t pitch = (size_t)loose->stride[loose->rank - 2] * element;
    const unsigned char *left = loose->data;
    const unsigned char *right = tight->data;
    for (int64_t row = 0; row < rows; row++) {
        assert_memory_equal(left + (size_t)row * pitch, right + (size_t)(row * cols) * element,
                            (size_t)cols * element);
        for (size_t i = (size_t)cols * element; i < pitch; i++) {
            assert_int_equal(left[(size_t)row * pitch + i], 0xFF);
        }
    }
}

static void rows_may_stand_apart_in_every_tensor(void **state)
{
    (void)state;
    stage s;
    stage_open(&s);
    assert_int_equal(rig_step(&s.r), MOK_OK);
    rig loose = s.r;
    for (size_t t = 0; t < TENSORS; t++) {
        *tensor_of(&loose, t) = loosen(tensor_of(&s.r, t), 1 + (int64_t)t % 5);
    }
    assert_int_equal(rig_build(&loose), MOK_OK);
    assert_int_equal(rig_forward(&loose), MOK_OK);
    assert_int_equal(rig_backward(&loose), MOK_OK);
    for (size_t t = 0; t < TENSORS; t++) {
        expect_same_rows(tensor_of(&loose, t), tensor_of(&s.r, t));
        free(tensor_of(&loose, t)->data);
    }
    stage_close(&s);
}

/* gate and up as two views of one [E, 2I, H] tensor, weights and gradients alike. */
static void gate_and_up_may_be_views_of_one_tensor(void **state)
{
    (void)state;
    stage s;
    stage_open(&s);
    assert_int_equal(rig_step(&s.r), MOK_OK);
    const int64_t e = s.p.experts;
    const int64_t matrix = s.p.inner * s.p.hidden;
    uint16_t *weights = malloc((size_t)(2 * e * matrix) * sizeof *weights);
    float *grads = malloc((size_t)(2 * e * matrix) * sizeof *grads);
    assert_non_null(weights);
    assert_non_null(grads);
    for (int64_t i = 0; i < e; i++) {
        memcpy(weights + 2 * i * matrix, s.p.gate + i * matrix, (size_t)matrix * sizeof *weights);
        memcpy(weights + (2 * i + 1) * matrix, s.p.up + i * matrix,
               (size_t)matrix * sizeof *weights);
    }
    rig both = s.r;
    both.weights.gate.data = weights;
    both.weights.up.data = weights + matrix;
    both.gradients.gate.data = grads;
    both.gradients.up.data = grads + matrix;
    both.weights.gate.stride[0] = both.weights.up.stride[0] = 2 * matrix;
    both.gradients.gate.stride[0] = both.gradients.up.stride[0] = 2 * matrix;
    unsigned char *dx = malloc(hull_of(&s.r.gradients.dx));
    assert_non_null(dx);
    memcpy(dx, s.r.gradients.dx.data, hull_of(&s.r.gradients.dx));
    assert_int_equal(rig_build(&both), MOK_OK);
    assert_int_equal(rig_forward(&both), MOK_OK);
    assert_int_equal(rig_backward(&both), MOK_OK);
    assert_memory_equal(dx, s.r.gradients.dx.data, hull_of(&s.r.gradients.dx));
    const float *gate = s.r.gradients.gate.data;
    const float *up = s.r.gradients.up.data;
    for (int64_t i = 0; i < e; i++) {
        assert_memory_equal(grads + 2 * i * matrix, gate + i * matrix, (size_t)matrix * 4);
        assert_memory_equal(grads + (2 * i + 1) * matrix, up + i * matrix, (size_t)matrix * 4);
    }
    free(dx);
    free(weights);
    free(grads);
    stage_close(&s);
}

/* ---- Constructors ---- */

static void constructors_fill_row_major_strides(void **state)
{
    (void)state;
    float data[1];
    const mok_tensor one = mok_tensor_1d(data, MOK_DTYPE_F32, 7);
    assert_int_equal(one.struct_bytes, sizeof one);
    assert_int_equal(one.rank, 1);
    assert_int_equal(one.shape[0], 7);
    assert_int_equal(one.stride[0], 1);
    const mok_tensor three = mok_tensor_3d(data, MOK_DTYPE_I64, 2, 3, 5);
    assert_int_equal(three.stride[0], 15);
    assert_int_equal(three.stride[1], 5);
    assert_int_equal(three.stride[2], 1);
    const mok_tensor huge = mok_tensor_3d(data, MOK_DTYPE_F32, 2, INT64_MAX, INT64_MAX);
    assert_int_equal(huge.stride[0], INT64_MAX);
    static const struct {
        mok_dtype dtype;
        size_t bytes;
    } sizes[] = {{MOK_DTYPE_BF16, 2}, {MOK_DTYPE_F32, 4},  {MOK_DTYPE_I32, 4}, {MOK_DTYPE_I64, 8},
                 {MOK_DTYPE_E4M3, 1}, {MOK_DTYPE_E8M0, 1}, {(mok_dtype)0, 0},  {(mok_dtype)50, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(mok_dtype_bytes(sizes[i].dtype), sizes[i].bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_defect_of_every_tensor_is_named),
        cmocka_unit_test(an_output_that_shares_one_byte_is_refused),
        cmocka_unit_test(missing_arguments_are_named),
        cmocka_unit_test(structs_of_another_size_and_bad_choices_are_refused),
        cmocka_unit_test(router_weights_are_finite_where_they_count),
        cmocka_unit_test(calls_out_of_order_are_refused),
        cmocka_unit_test(handles_of_another_layer_are_refused),
        cmocka_unit_test(rows_may_stand_apart_in_every_tensor),
        cmocka_unit_test(gate_and_up_may_be_views_of_one_tensor),
        cmocka_unit_test(constructors_fill_row_major_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
