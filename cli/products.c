/* Timing products. */
#include "products.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define M 512
#define N 512
#define K 1024
#define MIN_SECONDS 0.1

/* The C interface of every BLAS: layout 101 is row-major, 111 not transposed, 112 transposed. */
typedef void (*sgemm_fn)(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);
typedef void (*set_threads_fn)(int count);

static void fill(uint16_t *x, float *x32, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u;
        x32[i] = (float)((int64_t)(bits >> 44) - (1 << 19)) * 0x1p-19f;
    }
    mok_bf16_from_f32(x, x32, count);
}

bool product_bench_open(product_bench *bench)
{
    memset(bench, 0, sizeof *bench);
    bench->a = malloc(sizeof *bench->a * M * K);
    bench->b = malloc(sizeof *bench->b * N * K);
    bench->a32 = malloc(sizeof *bench->a32 * M * K);
    bench->b32 = malloc(sizeof *bench->b32 * N * K);
    bench->c = malloc(sizeof *bench->c * M * N);
    if (bench->a == NULL || bench->b == NULL || bench->a32 == NULL || bench->b32 == NULL ||
        bench->c == NULL || mok_comm_open_local(&bench->comm, 1, NULL) != MOK_OK) {
        product_bench_close(bench);
        return false;
    }
    fill(bench->a, bench->a32, (int64_t)M * K);
    fill(bench->b, bench->b32, (int64_t)N * K);
    bench->openblas = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (bench->openblas != NULL) {
        void *symbol = dlsym(bench->openblas, "openblas_set_num_threads");
        set_threads_fn set_threads = NULL;
        memcpy(&set_threads, &symbol, sizeof symbol);
        if (set_threads != NULL) {
            set_threads(1);
        }
    }
    return true;
}

void product_bench_close(product_bench *bench)
{
    mok_comm_close(&bench->comm);
    free(bench->a);
    free(bench->b);
    free(bench->a32);
    free(bench->b32);
    free(bench->c);
    if (bench->openblas != NULL) {
        (void)dlclose(bench->openblas);
    }
    memset(bench, 0, sizeof *bench);
}

double product_bench_run(product_bench *bench, mok_arith arith)
{
    mok_product product;
    mok_product_init(&product);
    product.m = M;
    product.n = N;
    product.k = K;
    product.a = bench->a;
    product.a_stride = K;
    product.b = bench->b;
    product.b_stride = K;
    product.c = bench->c;
    product.c_stride = N;
    product.c_dtype = MOK_DTYPE_F32;
    int count = 0;
    const double begin = group_now_s();
    double spent = 0.0;
    while (spent < MIN_SECONDS) {
        if (mok_product_run(bench->comm, &product, 1, arith) != MOK_OK) {
            return 0.0;
        }
        count++;
        spent = group_now_s() - begin;
    }
    return (double)count * M * N * K * 1e-9 / spent;
}

double product_bench_sgemm(product_bench *bench)
{
    if (bench->openblas == NULL) {
        return 0.0;
    }
    void *symbol = dlsym(bench->openblas, "cblas_sgemm");
    sgemm_fn sgemm = NULL;
    memcpy(&sgemm, &symbol, sizeof symbol);
    if (sgemm == NULL) {
        return 0.0;
    }
    int count = 0;
    const double begin = group_now_s();
    double spent = 0.0;
    while (spent < MIN_SECONDS) {
        sgemm(101, 111, 112, M, N, K, 1.0f, bench->a32, K, bench->b32, K, 0.0f, bench->c, N);
        count++;
        spent = group_now_s() - begin;
    }
    return (double)count * M * N * K * 1e-9 / spent;
}

/* ---- A layer's products ---- */

typedef struct layer_products {
    const workload *w;
    mok_product *list;
    int64_t count;
    uint16_t *rows; /* operands of any content: only sizes matter for time, and data are as dense */
    float *out;
    double seconds;
} layer_products;

static void add_product(layer_products *p, int64_t m, int64_t n, int64_t k, const uint16_t *b,
                        bool a_transposed, bool b_transposed, mok_dtype dtype)
{
    mok_product *product = &p->list[p->count++];
    mok_product_init(product);
    product->m = m;
    product->n = n;
    product->k = k;
    product->a = p->rows;
    product->a_stride = a_transposed ? m : k;
    product->a_transposed = a_transposed;
    product->b = b;
    product->b_stride = b_transposed ? n : k;
    product->b_transposed = b_transposed;
    product->c = p->out;
    product->c_stride = n;
    product->c_dtype = dtype;
}

/* The nine products of one expert's rows; all write to one place that nobody reads: in turn within
 * a list of one expert they would overlap, so each product gets its own call. */
static void add_expert(layer_products *p, int64_t rows, int64_t inner, const uint16_t *weight)
{
    const int64_t h = p->w->hidden;
    const mok_dtype bf16 = MOK_DTYPE_BF16;
    const mok_dtype f32 = MOK_DTYPE_F32;
    add_product(p, rows, inner, h, weight, false, false, bf16);     /* gate */
    add_product(p, rows, inner, h, weight, false, false, bf16);     /* up */
    add_product(p, rows, h, inner, weight, false, false, bf16);     /* down */
    add_product(p, rows, inner, h, weight, false, true, f32);       /* s */
    add_product(p, rows, h, 2 * inner, p->rows, false, true, bf16); /* dx over gate and up */
    add_product(p, inner, h, rows, p->rows, true, true, f32);       /* dgate */
    add_product(p, inner, h, rows, p->rows, true, true, f32);       /* dup */
    add_product(p, h, inner, rows, p->rows, true, true, f32);       /* ddown */
}

static mok_status run_products(mok_comm *comm, void *context)
{
    layer_products *p = context;
    const double begin = group_now_s();
    for (int64_t i = 0; i < p->count; i++) {
        const mok_status status = mok_product_run(comm, &p->list[i], 1, p->w->arith);
        if (status != MOK_OK) {
            return status;
        }
    }
    p->seconds = group_now_s() - begin;
    return MOK_OK;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

bool products_of_layer(const workload *w, int32_t threads, double *seconds)
{
    const int64_t widest = larger(w->hidden, 2 * larger(w->inner, w->shared_inner));
    const int64_t deepest = larger(larger(w->tokens * w->slots, w->tokens), widest);
    layer_products p = {w, NULL, 0, NULL, NULL, 0.0};
    char why[240];
    p.list = malloc((size_t)(8 * (w->experts + 1)) * sizeof *p.list);
    p.rows = malloc((size_t)(deepest * widest) * sizeof *p.rows);
    p.out = malloc((size_t)(deepest * widest) * sizeof *p.out);
    bool ran = p.list != NULL && p.rows != NULL && p.out != NULL;
    for (int64_t i = 0; i < deepest * widest && ran; i++) {
        p.rows[i] = w->x[i % (w->tokens * w->hidden)];
    }
    for (int64_t expert = 0; expert < w->experts && ran; expert++) {
        int64_t rows = 0;
        for (int64_t i = 0; i < w->tokens * w->slots; i++) {
            rows += w->routes[i] == expert;
        }
        add_expert(&p, rows, w->inner, w->gate + expert * w->inner * w->hidden);
    }
    if (ran && w->shared_inner > 0) {
        add_expert(&p, w->tokens, w->shared_inner, w->shared_gate);
    }
    mok_comm_config config;
    mok_comm_config_init(&config);
    config.threads = threads;
    ran = ran && group_run(1, &config, run_products, &p, why) == MOK_OK;
    *seconds = p.seconds;
    free(p.list);
    free(p.rows);
    free(p.out);
    return ran;
}
