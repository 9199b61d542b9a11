/* Matrix products: sizes over every edge, both layouts of both operands, strides, chains that are
 * continued. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

typedef struct side {
    guarded memory;
    mok_operand operand;
} side;

/* An operand whose last element is the last before a guard page. Gaps between rows hold NaN. */
static side side_open(check *c, int64_t rows, int64_t k, mood m)
{
    side s;
    const bool transposed = check_below(c, 2) == 0;
    const int64_t inside = transposed ? rows : k;
    const int64_t outside = transposed ? k : rows;
    const int64_t stride = inside + (check_below(c, 2) == 0 ? check_below(c, 20) : 0);
    const int64_t count = outside > 0 ? (outside - 1) * stride + inside : 0;
    s.memory = guarded_open((size_t)count * sizeof(uint16_t));
    uint16_t *data = (uint16_t *)(void *)s.memory.data;
    for (int64_t i = 0; i < count; i++) {
        data[i] = stride > 0 && i % stride < inside ? check_bf16(c, m) : 0x7FC1;
    }
    s.operand.data = data;
    s.operand.stride = stride;
    s.operand.transposed = transposed;
    return s;
}

static void check_product(check *c, const char *what, mok_product_fn ref, mok_product_fn candidate,
                          int64_t most_k)
{
    const int64_t m = check_size(c, MOK_TILE_ROWS);
    const int64_t n = check_size(c, MOK_TILE_COLS);
    const int64_t k = check_size(c, most_k);
    const int64_t stride = n + check_below(c, 5);
    const size_t bytes = m > 0 ? (size_t)((m - 1) * stride + n) * sizeof(float) : 0;
    const mood mood_a = check_mood(c);
    const mood mood_b = check_below(c, 2) == 0 ? mood_a : check_mood(c);
    const mood mood_c = check_below(c, 3) == 0 ? MOOD_ZEROS : check_mood(c);
    side a = side_open(c, m, k, mood_a);
    side b = side_open(c, n, k, mood_b);
    banded want = banded_open(c, bytes, sizeof(float));
    banded got = banded_open(c, bytes, sizeof(float));
    void *scratch = aligned_alloc(64, (c->candidate->product_scratch_bytes + 127) / 64 * 64);
    banded_fill(&want, 0x5A);
    banded_fill(&got, 0x5A);
    float *start = (float *)(void *)want.data;
    const bool fresh = check_below(c, 2) == 0;
    for (int64_t row = 0; row < m; row++) {
        for (int64_t col = 0; col < n; col++) {
            start[row * stride + col] = fresh ? 0.0f : check_f32(c, mood_c);
        }
    }
    if (bytes > 0) {
        memcpy(got.data, want.data, bytes);
    }
    ref(start, stride, &a.operand, &b.operand, m, n, k, NULL);
    candidate((float *)(void *)got.data, stride, &a.operand, &b.operand, m, n, k, scratch);
    check_equal(c, what, got.data, want.data, bytes, sizeof(float));
    check_true(c, "bands of a product", banded_whole(&got));
    free(scratch);
    banded_close(&want);
    banded_close(&got);
    guarded_close(&a.memory);
    guarded_close(&b.memory);
}

void check_product_tc16(check *c)
{
    check_product(c, "product_tc16", c->ref->product_tc16, c->candidate->product_tc16, 300);
}

void check_product_fma(check *c)
{
    check_product(c, "product_fma", c->ref->product_fma, c->candidate->product_fma, 600);
}

/* ---- Rates ---- */

static double product_rate(const mok_kernels *kernels, mok_product_fn run)
{
    enum { M = MOK_TILE_ROWS, N = MOK_TILE_COLS, K = 2048 };
    check c = {NULL, kernels, 1, 0x1234567u, 0, 0, 0, true};
    uint16_t *a = malloc(sizeof *a * M * K);
    uint16_t *b = malloc(sizeof *b * N * K);
    float *out = calloc((size_t)M * N, sizeof *out);
    void *scratch = aligned_alloc(64, (kernels->product_scratch_bytes + 127) / 64 * 64);
    double speed = 0.0;
    if (a != NULL && b != NULL && out != NULL && scratch != NULL) {
        for (int64_t i = 0; i < (int64_t)M * K; i++) {
            a[i] = check_bf16(&c, MOOD_BELL);
        }
        for (int64_t i = 0; i < (int64_t)N * K; i++) {
            b[i] = check_bf16(&c, MOOD_BELL);
        }
        const mok_operand left = {a, K, false};
        const mok_operand right = {b, K, false};
        int count = 0;
        const double begin = check_seconds();
        double spent = 0.0;
        while (spent < 0.3) {
            run(out, N, &left, &right, M, N, K, scratch);
            count++;
            spent = check_seconds() - begin;
        }
        speed = (double)count * M * N * K * 1e-9 / spent;
    }
    free(a);
    free(b);
    free(out);
    free(scratch);
    return speed;
}

rate bench_product_tc16(const mok_kernels *kernels)
{
    const rate r = {"product_tc16", product_rate(kernels, kernels->product_tc16), "GMAC/s"};
    return r;
}

rate bench_product_fma(const mok_kernels *kernels)
{
    const rate r = {"product_fma", product_rate(kernels, kernels->product_fma), "GMAC/s"};
    return r;
}
