/* The model against its double-precision twin: the loss, and every parameter's gradient by finite
 * differences in double. A gradient may be off by what bf16 rounds away, measured over the tensor's
 * largest value, expert by expert; a forgotten or misplaced term is off by far more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "double_model.h"
#include "exchange.h"
#include "scratch.h"

#include "data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE                                                                                  \
    0.06 /* of the tensor's largest value; bf16 keeps 8 bits and a chain rounds several times */
#define SAMPLES 48 /* elements of a unit, the largest gradients first */
#define STEP 1e-4

typedef struct bench {
    train_config config;
    mok_comm *comm;
    model m;
} bench;

static train_config small_config(mok_arith arith)
{
    train_config config;
    assert_int_equal(train_config_init(&config, "tiny", NULL), MOK_OK);
    const train_shape shape = {16, 2, 2, 4, 2, 24, 16, 8};
    config.shape = shape;
    config.arith = arith;
    config.lanes = 2;
    config.batch = 2;
    return config;
}

/* Norm weights and biases begin alike everywhere; a test that shall see them needs them to differ.
 */
static void roughen(params *p)
{
    for (int32_t i = 0; i < p->count; i++) {
        const param *item = &p->list[i];
        for (int64_t k = 0; k < item->unit_size && item->rank == 1; k++) {
            p->master[item->offset + k] =
                0.5f + (float)(train_random(5, (uint64_t)(i * 1000 + k)) % 1000) / 1e3f;
        }
    }
    for (int64_t i = 0; i < p->shape.blocks * p->shape.experts; i++) {
        p->bias[i] = (float)(i % 3) * 0.1f;
    }
    params_copy(p, 0, p->local_count);
}

static void bench_open(bench *b, mok_arith arith)
{
    char why[TRAIN_WHY_BYTES] = "";
    memset(b, 0, sizeof *b);
    b->config = small_config(arith);
    assert_int_equal(mok_comm_open_local(&b->comm, 1, NULL), MOK_OK);
    assert_int_equal(model_open(&b->m, &b->config, b->comm, why), MOK_OK);
    params_init(&b->m.params, 3);
    roughen(&b->m.params);
    for (int64_t t = 0; t < train_batch_tokens(&b->config); t++) {
        b->m.input[t] = (uint8_t)(train_random(1, (uint64_t)t) % 7 * 31);
        b->m.target[t] = (uint8_t)(train_random(2, (uint64_t)t) % 7 * 31);
    }
}

static void bench_close(bench *b)
{
    model_close(&b->m);
    mok_comm_close(&b->comm);
}

static double bench_loss(bench *b, bool gradient)
{
    double loss = 0.0;
    const int64_t tokens = train_batch_tokens(&b->config);
    assert_int_equal(
        model_forward(&b->m, b->config.lanes * b->config.batch, b->config.shape.length), MOK_OK);
    assert_int_equal(model_loss(&b->m, tokens, gradient), MOK_OK);
    assert_int_equal(exchange_loss(&b->m, &loss), MOK_OK);
    return loss;
}

/* The element of g that has the largest magnitude of those not yet taken; taken ones are marked. */
static int64_t next_largest(const float *g, bool *taken, int64_t count)
{
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
        if (!taken[i] && (best < 0 || fabsf(g[i]) > fabsf(g[best]))) {
            best = i;
        }
    }
    taken[best] = true;
    return best;
}

static double slope(double_model *d, int64_t element)
{
    const double before = d->weight[element];
    d->weight[element] = before + STEP;
    const double above = double_model_loss(d);
    d->weight[element] = before - STEP;
    const double below = double_model_loss(d);
    d->weight[element] = before;
    return (above - below) / (2.0 * STEP);
}

/* Half of the samples are the largest gradients, half are spread over the unit. Returns the largest
 * error over the largest value. */
static double unit_error(double_model *d, const float *grad, int64_t offset, int64_t size,
                         double *peak)
{
    bool *taken = calloc((size_t)size, sizeof *taken);
    double worst = 0.0;
    assert_non_null(taken);
    *peak = 0.0;
    for (int64_t i = 0; i < SAMPLES && i < size; i++) {
        const bool spread = i % 2 == 1;
        const int64_t at = spread ? (int64_t)(train_random(9, (uint64_t)i) % (uint64_t)size)
                                  : next_largest(grad + offset, taken, size);
        const double want = slope(d, offset + at);
        worst = fmax(worst, fabs(want - (double)grad[offset + at]));
        *peak = fmax(*peak, fabs(want));
    }
    free(taken);
    return worst;
}

static void check_gradients(mok_arith arith)
{
    bench b;
    double_model d;
    int checked = 0;
    double worst = 0.0;
    bench_open(&b, arith);
    (void)bench_loss(&b, true);
    assert_int_equal(model_backward(&b.m), MOK_OK);
    double_model_open(&d, &b.m);
    const params *p = &b.m.params;
    for (int32_t i = 0; i < p->count; i++) {
        const param *item = &p->list[i];
        for (int64_t unit = 0; unit < item->units; unit++) {
            double peak;
            const double error = unit_error(&d, p->grad, item->offset + unit * item->unit_size,
                                            item->unit_size, &peak);
            if (!(error <= TOLERANCE * peak)) {
                fail_msg("%s, unit %d: error %g, largest value %g", item->name, (int)unit, error,
                         peak);
            }
            worst = peak > 0.0 ? fmax(worst, error / peak) : worst;
            checked += peak > 0.0;
        }
    }
    print_message("%d units, largest error over largest value %.4f\n", checked, worst);
    assert_true(checked >= p->count);
    double_model_close(&d);
    bench_close(&b);
}

static void every_gradient_in_tc16_is_the_slope_of_the_double_loss(void **state)
{
    (void)state;
    check_gradients(MOK_ARITH_TC16);
}

static void every_gradient_in_fma_is_the_slope_of_the_double_loss(void **state)
{
    (void)state;
    check_gradients(MOK_ARITH_FMA);
}

static void the_loss_is_the_double_loss_within_bf16(void **state)
{
    (void)state;
    for (mok_arith arith = MOK_ARITH_TC16; arith <= MOK_ARITH_FMA; arith++) {
        bench b;
        double_model d;
        bench_open(&b, arith);
        const double loss = bench_loss(&b, false);
        double_model_open(&d, &b.m);
        assert_true(fabs(loss - double_model_loss(&d)) < 0.01);
        assert_true(loss > 3.0 && loss < 12.0);
        double_model_close(&d);
        bench_close(&b);
    }
}

static void a_later_byte_changes_no_earlier_logit(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, MOK_ARITH_TC16);
    const int64_t length = b.config.shape.length;
    const int64_t tokens = train_batch_tokens(&b.config);
    const size_t row = TRAIN_VOCABULARY * sizeof(float);
    float *before = malloc((size_t)tokens * row);
    assert_non_null(before);
    (void)bench_loss(&b, false);
    memcpy(before, b.m.logits, (size_t)tokens * row);
    const int64_t changed = length + 5; /* in the second sequence */
    b.m.input[changed] ^= 0x55;
    (void)bench_loss(&b, false);
    for (int64_t t = 0; t < tokens; t++) {
        const bool sees = t >= changed && t < 2 * length;
        const int differs =
            memcmp(before + t * TRAIN_VOCABULARY, b.m.logits + t * TRAIN_VOCABULARY, row) != 0;
        assert_int_equal(differs, sees);
    }
    free(before);
    bench_close(&b);
}

static void among_equal_scores_the_lower_expert_is_chosen(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, MOK_ARITH_TC16);
    params *p = &b.m.params;
    const param *router = &p->list[p->block[0].router];
    memset(p->master + router->offset, 0, (size_t)router->unit_size * sizeof(float));
    memset(p->bias, 0, (size_t)(p->shape.blocks * p->shape.experts) * sizeof(float));
    params_copy(p, 0, p->local_count);
    (void)bench_loss(&b, false);
    for (int64_t t = 0; t < train_batch_tokens(&b.config); t++) {
        assert_int_equal(b.m.block[0].routes[2 * t], 0);
        assert_int_equal(b.m.block[0].routes[2 * t + 1], 1);
        assert_true(b.m.block[0].weights[2 * t] == 0.5f);
    }
    p->bias[3] = 0.5f; /* chosen first now, but weighted by its score alone */
    (void)bench_loss(&b, false);
    assert_int_equal(b.m.block[0].routes[0], 3);
    assert_int_equal(b.m.block[0].routes[1], 0);
    assert_true(b.m.block[0].weights[0] == 0.5f);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_is_the_double_loss_within_bf16),
        cmocka_unit_test(every_gradient_in_tc16_is_the_slope_of_the_double_loss),
        cmocka_unit_test(every_gradient_in_fma_is_the_slope_of_the_double_loss),
        cmocka_unit_test(a_later_byte_changes_no_earlier_logit),
        cmocka_unit_test(among_equal_scores_the_lower_expert_is_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
