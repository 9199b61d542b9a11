/* Single matrix products against the definition, element by element: shapes around every block and
 * tile, strides, both transposes, continued chains, both classes, every level; and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "problem.h"
#include "ref/kernels.h"

#define POISON 0x7FA5A5A5u

/* A product with memory of its own. */
typedef struct sample {
    mok_product p;
    uint16_t *a, *b;
    uint32_t *c, *want; /* bf16 results use the same memory */
    size_t c_words;
} sample;

static uint16_t *operand(uint64_t *random, int64_t rows, int64_t k, int64_t *stride,
                         bool transposed, int64_t gap)
{
    const int64_t inside = transposed ? rows : k;
    const int64_t outside = transposed ? k : rows;
    *stride = inside + gap;
    uint16_t *data = malloc((size_t)(outside * *stride + 1) * sizeof *data);
    assert_non_null(data);
    for (int64_t i = 0; i < outside * *stride; i++) {
        const bool used = i % *stride < inside;
        data[i] =
            used ? bf16_of(random_normal(random)) : 0x7FC0; /* a gap that is read would show */
    }
    return data;
}

static sample sample_open(uint64_t *random, int64_t m, int64_t n, int64_t k, unsigned bits)
{
    sample s;
    memset(&s, 0, sizeof s);
    mok_product_init(&s.p);
    assert_int_equal(s.p.struct_bytes, sizeof s.p);
    assert_int_equal(s.p.c_dtype, MOK_DTYPE_F32);
    s.p.m = m;
    s.p.n = n;
    s.p.k = k;
    s.p.a_transposed = (bits & 1) != 0;
    s.p.b_transposed = (bits & 2) != 0;
    s.p.continued = (bits & 4) != 0;
    s.p.c_dtype = (bits & 4) == 0 && (bits & 8) != 0 ? MOK_DTYPE_BF16 : MOK_DTYPE_F32;
    const int64_t gap = (bits & 16) != 0 ? 3 : 0;
    s.a = operand(random, m, k, &s.p.a_stride, s.p.a_transposed, gap);
    s.b = operand(random, n, k, &s.p.b_stride, s.p.b_transposed, 2 * gap);
    s.p.c_stride = n + gap;
    s.c_words = (size_t)(m * s.p.c_stride) + 4;
    s.c = malloc(s.c_words * sizeof *s.c);
    s.want = malloc(s.c_words * sizeof *s.want);
    assert_non_null(s.c);
    assert_non_null(s.want);
    for (size_t i = 0; i < s.c_words; i++) {
        const float start = random_normal(random) * 4.0f;
        s.c[i] = POISON;
        if (s.p.continued && (int64_t)i < m * s.p.c_stride && (int64_t)i % s.p.c_stride < n) {
            memcpy(&s.c[i], &start, sizeof start);
        }
    }
    memcpy(s.want, s.c, s.c_words * sizeof *s.c);
    s.p.a = s.a;
    s.p.b = s.b;
    s.p.c = s.c;
    return s;
}

static void sample_close(sample *s)
{
    free(s->a);
    free(s->b);
    free(s->c);
    free(s->want);
}

/* One element at a time, through the reference kernel: no tiles of any size are shared with what is
 * tested. */
static void solve(sample *s, mok_arith arith)
{
    const mok_product *p = &s->p;
    mok_product_fn run = arith == MOK_ARITH_FMA ? mok_ref_product_fma : mok_ref_product_tc16;
    for (int64_t row = 0; row < p->m; row++) {
        for (int64_t col = 0; col < p->n; col++) {
            const int64_t at = row * p->c_stride + col;
            const mok_operand a = {p->a + (p->a_transposed ? row : row * p->a_stride), p->a_stride,
                                   p->a_transposed};
            const mok_operand b = {p->b + (p->b_transposed ? col : col * p->b_stride), p->b_stride,
                                   p->b_transposed};
            float value = 0.0f;
            if (p->continued) {
                memcpy(&value, &s->want[at], sizeof value);
            }
            run(&value, 1, &a, &b, 1, 1, p->k, NULL);
            if (p->c_dtype == MOK_DTYPE_BF16) {
                const uint16_t narrow = bf16_of(value);
                memcpy((uint16_t *)s->want + at, &narrow, sizeof narrow);
            } else {
                memcpy(&s->want[at], &value, sizeof value);
            }
        }
    }
}

static mok_comm *open_one(int32_t threads, mok_level level)
{
    mok_comm_config config;
    mok_comm *comm = NULL;
    mok_comm_config_init(&config);
    config.threads = threads;
    config.level = level;
    assert_int_equal(mok_comm_open_local(&comm, 1, &config), MOK_OK);
    return comm;
}

static void expect_equal(const sample *s, mok_arith arith, mok_level level)
{
    for (size_t i = 0; i < s->c_words; i++) {
        if (s->c[i] != s->want[i]) {
            fail_msg(
                "%s at %s, %lld x %lld x %lld, a%s b%s %s %s strides %lld %lld %lld: word %zu is "
                "%08x, want %08x",
                mok_arith_string(arith), mok_level_string(level), (long long)s->p.m,
                (long long)s->p.n, (long long)s->p.k, s->p.a_transposed ? "^T" : "",
                s->p.b_transposed ? "^T" : "", s->p.continued ? "continued" : "new",
                s->p.c_dtype == MOK_DTYPE_BF16 ? "bf16" : "f32", (long long)s->p.a_stride,
                (long long)s->p.b_stride, (long long)s->p.c_stride, i, s->c[i], s->want[i]);
        }
    }
}

static const mok_level levels[] = {MOK_LEVEL_REF, MOK_LEVEL_AVX2, MOK_LEVEL_AVX512};
static const mok_arith classes[] = {MOK_ARITH_TC16, MOK_ARITH_FMA};

static void run_shape(mok_comm *comm, mok_level level, uint64_t *random, const int64_t shape[3],
                      unsigned bits)
{
    for (size_t i = 0; i < 2; i++) {
        sample s = sample_open(random, shape[0], shape[1], shape[2], bits);
        solve(&s, classes[i]);
        assert_int_equal(mok_product_run(comm, &s.p, 1, classes[i]), MOK_OK);
        expect_equal(&s, classes[i], level);
        sample_close(&s);
    }
}

static void every_shape_stride_and_transpose_gives_the_definitions_bytes(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},    {1, 1, 16},   {3, 5, 7},    {4, 16, 15},
                                        {6, 16, 17},  {7, 17, 33},  {16, 1, 40},  {1, 33, 31},
                                        {12, 24, 64}, {13, 31, 63}, {31, 47, 20}, {9, 300, 5},
                                        {130, 9, 3},  {129, 257, 2}};
    for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
        if (!mok_level_available(levels[l])) {
            print_message("level %s is not on this CPU\n", mok_level_string(levels[l]));
            continue;
        }
        mok_comm *comm = open_one(1 + (int32_t)l, levels[l]);
        uint64_t random = 99;
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            for (unsigned bits = 0; bits < 32; bits += 1 + (unsigned)i % 2) {
                run_shape(comm, levels[l], &random, shapes[i], bits);
            }
        }
        mok_comm_close(&comm);
    }
}

static void empty_extents_give_plus_zero_or_nothing(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{0, 4, 4}, {4, 0, 4}, {0, 0, 0}, {3, 5, 0}};
    mok_comm *comm = open_one(2, MOK_LEVEL_AUTO);
    uint64_t random = 12;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (unsigned bits = 0; bits < 32; bits++) {
            run_shape(comm, MOK_LEVEL_AUTO, &random, shapes[i], bits);
        }
    }
    /* Where nothing is read, nothing has to be there. */
    mok_product p;
    mok_product_init(&p);
    float c[6] = {1, 1, 1, 1, 1, 1};
    p.m = 2;
    p.n = 3;
    p.c = c;
    p.c_stride = 3;
    assert_int_equal(mok_product_run(comm, &p, 1, MOK_ARITH_TC16), MOK_OK);
    for (int i = 0; i < 6; i++) {
        assert_true(c[i] == 0.0f);
    }
    assert_int_equal(mok_product_run(comm, NULL, 0, MOK_ARITH_TC16), MOK_OK);
    mok_comm_close(&comm);
}

/* A chain cut between blocks and continued from its fp32 value has the bytes of the whole chain. */
static void a_chain_may_be_cut_between_blocks(void **state)
{
    (void)state;
    mok_comm *comm = open_one(2, MOK_LEVEL_AUTO);
    uint64_t random = 4;
    for (int64_t cut = 0; cut <= 96; cut += 16) {
        for (size_t i = 0; i < 2; i++) {
            sample whole = sample_open(&random, 21, 35, 90, 0);
            assert_int_equal(mok_product_run(comm, &whole.p, 1, classes[i]), MOK_OK);
            memcpy(whole.want, whole.c, whole.c_words * sizeof *whole.c);
            mok_product part = whole.p;
            part.k = cut < 90 ? cut : 90;
            assert_int_equal(mok_product_run(comm, &part, 1, classes[i]), MOK_OK);
            part.a += part.k;
            part.b += part.k;
            part.k = 90 - part.k;
            part.continued = true;
            assert_int_equal(mok_product_run(comm, &part, 1, classes[i]), MOK_OK);
            expect_equal(&whole, classes[i], MOK_LEVEL_AUTO);
            sample_close(&whole);
        }
    }
    mok_comm_close(&comm);
}

static void many_products_at_once_equal_one_by_one_on_any_threads(void **state)
{
    (void)state;
    enum { COUNT = 23 };
    for (int32_t threads = 1; threads <= 4; threads++) {
        mok_comm *comm = open_one(threads, MOK_LEVEL_AUTO);
        mok_product list[COUNT];
        sample samples[COUNT];
        uint64_t random = 71;
        for (int i = 0; i < COUNT; i++) {
            samples[i] = sample_open(&random, i % 5 == 4 ? 0 : 1 + i * 11, 1 + (i * 37) % 290, 16,
                                     (unsigned)i % 32);
            solve(&samples[i], MOK_ARITH_FMA);
            list[i] = samples[i].p;
        }
        assert_int_equal(mok_product_run(comm, list, COUNT, MOK_ARITH_FMA), MOK_OK);
        for (int i = 0; i < COUNT; i++) {
            expect_equal(&samples[i], MOK_ARITH_FMA, MOK_LEVEL_AUTO);
            sample_close(&samples[i]);
        }
        mok_comm_close(&comm);
    }
}

/* ---- What is refused ---- */

typedef struct refusal {
    const char *text;
    mok_status want;
    void (*spoil)(mok_product *p);
} refusal;

static void set_m(mok_product *p)
{
    p->m = -1;
}
static void set_n(mok_product *p)
{
    p->n = -1;
}
static void set_k(mok_product *p)
{
    p->k = ((int64_t)1 << 40) + 1;
}
static void set_bytes(mok_product *p)
{
    p->struct_bytes--;
}
static void set_a_null(mok_product *p)
{
    p->a = NULL;
}
static void set_b_null(mok_product *p)
{
    p->b = NULL;
}
static void set_c_null(mok_product *p)
{
    p->c = NULL;
}
static void set_a_stride(mok_product *p)
{
    p->a_stride = p->k - 1;
}
static void set_b_stride(mok_product *p)
{
    p->b_stride = -p->k;
}
static void set_b_transposed(mok_product *p)
{
    p->b_transposed = true;
    p->b_stride = p->n - 1;
}
static void set_c_stride(mok_product *p)
{
    p->c_stride = p->n - 1;
}
static void set_dtype(mok_product *p)
{
    p->c_dtype = MOK_DTYPE_I32;
}
static void set_continued_bf16(mok_product *p)
{
    p->c_dtype = MOK_DTYPE_BF16;
    p->continued = true;
}
static void set_a_odd(mok_product *p)
{
    p->a = (const uint16_t *)(const void *)((const char *)p->a + 1);
}
static void set_c_odd(mok_product *p)
{
    p->c = (char *)p->c + 2;
}
static void set_a_far(mok_product *p)
{
    p->a_stride = INT64_MAX / 2;
}
static void set_c_far(mok_product *p)
{
    p->c_stride = INT64_MAX / 4;
}
static void set_huge(mok_product *p)
{
    p->m = p->n = (int64_t)1 << 40; /* more tiles than 63 bits count */
    p->k = 0;
    p->c_stride = p->n;
}
static void set_over_a(mok_product *p)
{
    memcpy(&p->c, &p->a, sizeof p->c);
}
static void set_over_b(mok_product *p)
{
    memcpy(&p->c, &p->b, sizeof p->c);
    p->c = (float *)p->c - 6 * p->c_stride + 1; /* only the last elements meet */
}

static const refusal refusals[] = {
    {"-1 x 5 x 8", MOK_ERROR_SHAPE, set_m},
    {"7 x -1 x 8", MOK_ERROR_SHAPE, set_n},
    {"1099511627777", MOK_ERROR_SHAPE, set_k},
    {"struct_bytes", MOK_ERROR_ARGUMENT, set_bytes},
    {".a is NULL", MOK_ERROR_ARGUMENT, set_a_null},
    {".b is NULL", MOK_ERROR_ARGUMENT, set_b_null},
    {".c is NULL", MOK_ERROR_ARGUMENT, set_c_null},
    {"a_stride is 7, must be >= 8", MOK_ERROR_SHAPE, set_a_stride},
    {"b_stride is -8, must be >= 8", MOK_ERROR_SHAPE, set_b_stride},
    {"b_stride is 4, must be >= 5", MOK_ERROR_SHAPE, set_b_transposed},
    {"c_stride is 4, must be >= 5", MOK_ERROR_SHAPE, set_c_stride},
    {"c_dtype", MOK_ERROR_SHAPE, set_dtype},
    {"c_dtype", MOK_ERROR_SHAPE, set_continued_bf16},
    {".a is not aligned", MOK_ERROR_SHAPE, set_a_odd},
    {".c is not aligned", MOK_ERROR_SHAPE, set_c_odd},
    {".a passes the end", MOK_ERROR_SHAPE, set_a_far},
    {".c passes the end", MOK_ERROR_SHAPE, set_c_far},
    {".c passes the end", MOK_ERROR_SHAPE, set_huge},
    {".c overlaps a", MOK_ERROR_OVERLAP, set_over_a},
    {".c overlaps b", MOK_ERROR_OVERLAP, set_over_b},
};

static void a_bad_product_is_named_and_nothing_is_written(void **state)
{
    (void)state;
    mok_comm *comm = open_one(1, MOK_LEVEL_AUTO);
    uint64_t random = 6;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        sample good = sample_open(&random, 7, 5, 8, 0);
        sample bad = sample_open(&random, 7, 5, 8, 0);
        mok_product list[2] = {good.p, bad.p};
        refusals[i].spoil(&list[1]);
        const mok_status status = mok_product_run(comm, list, 2, MOK_ARITH_TC16);
        if (status != refusals[i].want || strstr(mok_last_error(), refusals[i].text) == NULL ||
            strstr(mok_last_error(), "products[1]") == NULL) {
            fail_msg("%s: %s, %s", refusals[i].text, mok_status_string(status), mok_last_error());
        }
        expect_equal(&good, MOK_ARITH_TC16, MOK_LEVEL_AUTO); /* the first is not started either */
        expect_equal(&bad, MOK_ARITH_TC16, MOK_LEVEL_AUTO);
        sample_close(&good);
        sample_close(&bad);
    }
    mok_product p;
    mok_product_init(&p);
    assert_int_equal(mok_product_run(NULL, &p, 1, MOK_ARITH_TC16), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_product_run(comm, NULL, 1, MOK_ARITH_TC16), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_product_run(comm, &p, -1, MOK_ARITH_TC16), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_product_run(comm, &p, 1, (mok_arith)3), MOK_ERROR_ARGUMENT);
    mok_product_init(NULL);
    mok_comm_close(&comm);
}

/* Columns of one matrix: their hulls meet and no byte is shared. */
static void interleaved_views_are_not_an_overlap(void **state)
{
    (void)state;
    mok_comm *comm = open_one(1, MOK_LEVEL_AUTO);
    static uint16_t matrix[8 * 24];
    uint64_t random = 5;
    for (int i = 0; i < 8 * 24; i++) {
        matrix[i] = bf16_of(random_normal(&random));
    }
    mok_product p;
    mok_product_init(&p);
    p.m = p.n = p.k = 8;
    p.a = matrix;
    p.b = matrix + 8;
    p.c = matrix + 16;
    p.a_stride = p.b_stride = p.c_stride = 24;
    p.c_dtype = MOK_DTYPE_BF16;
    assert_int_equal(mok_product_run(comm, &p, 1, MOK_ARITH_FMA), MOK_OK);
    p.c = matrix + 15;
    assert_int_equal(mok_product_run(comm, &p, 1, MOK_ARITH_FMA), MOK_ERROR_OVERLAP);
    mok_comm_close(&comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_stride_and_transpose_gives_the_definitions_bytes),
        cmocka_unit_test(empty_extents_give_plus_zero_or_nothing),
        cmocka_unit_test(a_chain_may_be_cut_between_blocks),
        cmocka_unit_test(many_products_at_once_equal_one_by_one_on_any_threads),
        cmocka_unit_test(a_bad_product_is_named_and_nothing_is_written),
        cmocka_unit_test(interleaved_views_are_not_an_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
