/* Errors, work over rows, products and sums.
 *
 * A sum here must depend on the numbers and how many there are, and on nothing else: no caller may
 * be tempted to cut one by workers or ranks. */
#include "common.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

mok_status train_fail(char *why, mok_status status, const char *format, ...)
{
    if (why != NULL) {
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(why, TRAIN_WHY_BYTES, format, arguments);
        va_end(arguments);
    }
    return status;
}

typedef struct verdict {
    int32_t status;
    char why[TRAIN_WHY_BYTES];
} verdict;

mok_status train_agree(mok_comm *comm, mok_status mine, char *why)
{
    verdict own = {(int32_t)mine, ""};
    verdict all[MOK_MAX_RANKS];
    if (mine != MOK_OK) {
        (void)snprintf(own.why, sizeof own.why, "%s", why);
    }
    const mok_status status = mok_comm_allgather(comm, all, &own, sizeof own);
    if (status != MOK_OK) {
        return mine != MOK_OK ? mine : train_fail(why, status, "%s", mok_last_error());
    }
    for (int32_t rank = 0; rank < mok_comm_size(comm); rank++) {
        if (all[rank].status != (int32_t)MOK_OK) {
            (void)snprintf(why, TRAIN_WHY_BYTES, "%s", all[rank].why);
            return (mok_status)all[rank].status;
        }
    }
    return MOK_OK;
}

typedef struct rows_work {
    int64_t rows;
    train_rows_fn run;
    void *context;
} rows_work;

static void run_stretch(void *context, int64_t idx, int32_t worker)
{
    const rows_work *work = context;
    (void)worker;
    const int64_t begin = idx * TRAIN_ROW_STRETCH;
    work->run(work->context, begin, train_min(begin + TRAIN_ROW_STRETCH, work->rows));
}

mok_status train_rows(mok_comm *comm, int64_t rows, train_rows_fn run, void *context)
{
    rows_work work = {rows, run, context};
    return mok_comm_parallel(comm, (rows + TRAIN_ROW_STRETCH - 1) / TRAIN_ROW_STRETCH, run_stretch,
                             &work);
}

mok_product train_product(int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t a_stride,
                          const uint16_t *b, int64_t b_stride, unsigned flags)
{
    mok_product product;
    mok_product_init(&product);
    product.m = m;
    product.n = n;
    product.k = k;
    product.a = a;
    product.a_stride = a_stride;
    product.a_transposed = (flags & TRAIN_A_TRANSPOSED) != 0;
    product.b = b;
    product.b_stride = b_stride;
    product.b_transposed = (flags & TRAIN_B_TRANSPOSED) != 0;
    return product;
}

mok_product train_product_to_f32(mok_product product, float *c, int64_t c_stride)
{
    product.c = c;
    product.c_stride = c_stride;
    product.c_dtype = MOK_DTYPE_F32;
    return product;
}

mok_product train_product_to_bf16(mok_product product, uint16_t *c, int64_t c_stride)
{
    product.c = c;
    product.c_stride = c_stride;
    product.c_dtype = MOK_DTYPE_BF16;
    return product;
}

static float fold(float s[8])
{
    for (int distance = 4; distance >= 1; distance /= 2) {
        for (int i = 0; i < distance; i++) {
            s[i] += s[i + distance];
        }
    }
    return s[0];
}

float train_sum(const float *x, int64_t count)
{
    float s[8] = {0.0f};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (int j = 0; j < 8; j++) {
            s[j] += x[i + j];
        }
    }
    for (int j = 0; i < count; i++, j++) {
        s[j] += x[i];
    }
    return fold(s);
}

float train_sum_squares(const float *x, int64_t count)
{
    return train_dot(x, x, count);
}

float train_dot(const float *x, const float *y, int64_t count)
{
    float s[8] = {0.0f};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (int j = 0; j < 8; j++) {
            s[j] += x[i + j] * y[i + j];
        }
    }
    for (int j = 0; i < count; i++, j++) {
        s[j] += x[i] * y[i];
    }
    return fold(s);
}

double train_sum_squares_double(const float *x, int64_t count)
{
    double s[8] = {0.0};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (int j = 0; j < 8; j++) {
            s[j] += (double)x[i + j] * (double)x[i + j];
        }
    }
    for (int j = 0; i < count; i++, j++) {
        s[j] += (double)x[i] * (double)x[i];
    }
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

void *train_arena_take(train_arena *arena, int64_t count, size_t element_bytes)
{
    unsigned char *piece = arena->base == NULL ? NULL : arena->base + arena->used;
    const size_t bytes = (size_t)count * element_bytes;
    arena->used += (bytes + 63) / 64 * 64;
    return piece;
}
