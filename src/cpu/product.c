/* Products outside the layer: any size, cut into tiles that a rank's workers share. */
#include <stdatomic.h>
#include <string.h>

#include "comm/comm.h"
#include "layer/check.h"

void mok_product_init(mok_product *product)
{
    if (product != NULL) {
        memset(product, 0, sizeof *product);
        product->struct_bytes = sizeof *product;
        product->c_dtype = MOK_DTYPE_F32;
    }
}

/* Alignment, and that the last element has an address. */
static mok_status check_memory(const char *name, int64_t idx, const void *data, int64_t rows,
                               int64_t cols, int64_t stride, size_t element)
{
    int64_t last = 0;
    int64_t bytes = 0;
    if (rows == 0 || cols == 0) {
        return MOK_OK;
    }
    MOK_REQUIRE((uintptr_t)data % element == 0, MOK_ERROR_SHAPE,
                "products[%lld].%s is not aligned to its element size, %zu bytes", (long long)idx,
                name, element);
    MOK_REQUIRE(!__builtin_mul_overflow(rows - 1, stride, &last) &&
                    !__builtin_add_overflow(last, cols, &last) &&
                    !__builtin_mul_overflow(last, (int64_t)element, &bytes) &&
                    (uintptr_t)data <= UINTPTR_MAX - (uintptr_t)bytes,
                MOK_ERROR_SHAPE,
                "products[%lld].%s passes the end of the address space: %lld rows of "
                "stride %lld",
                (long long)idx, name, (long long)rows, (long long)stride);
    return MOK_OK;
}

static mok_tensor view_of(const void *data, mok_dtype dtype, int64_t rows, int64_t cols,
                          int64_t stride)
{
    mok_tensor tensor = mok_tensor_2d(NULL, dtype, rows, cols);
    memcpy(&tensor.data, &data, sizeof data); /* only its address is looked at */
    tensor.stride[0] = stride;
    return tensor;
}

/* Row by row, so that c may be columns of a matrix of which a is others. */
static mok_status check_apart(const mok_product *p, int64_t idx)
{
    const mok_tensor c = view_of(p->c, p->c_dtype, p->m, p->n, p->c_stride);
    const mok_tensor a = view_of(p->a, MOK_DTYPE_BF16, p->a_transposed ? p->k : p->m,
                                 p->a_transposed ? p->m : p->k, p->a_stride);
    const mok_tensor b = view_of(p->b, MOK_DTYPE_BF16, p->b_transposed ? p->k : p->n,
                                 p->b_transposed ? p->n : p->k, p->b_stride);
    const mok_named_tensor with_a[] = {{"c", &c, true}, {"a", &a, false}};
    const mok_named_tensor with_b[] = {{"c", &c, true}, {"b", &b, false}};
    const bool apart_a = mok_check_overlap(with_a, 2) == MOK_OK;
    MOK_REQUIRE(apart_a && mok_check_overlap(with_b, 2) == MOK_OK, MOK_ERROR_OVERLAP,
                "products[%lld].c overlaps %s", (long long)idx, apart_a ? "b" : "a");
    return MOK_OK;
}

static mok_status check_operand(const char *name, int64_t idx, const uint16_t *data, int64_t rows,
                                int64_t k, int64_t stride, bool transposed)
{
    const int64_t inside = transposed ? rows : k;
    const int64_t outside = transposed ? k : rows;
    MOK_REQUIRE(rows == 0 || k == 0 || data != NULL, MOK_ERROR_ARGUMENT,
                "products[%lld].%s is NULL", (long long)idx, name);
    MOK_REQUIRE(stride >= inside, MOK_ERROR_SHAPE,
                "products[%lld].%s_stride is %lld, must be >= %lld", (long long)idx, name,
                (long long)stride, (long long)inside);
    return check_memory(name, idx, data, outside, inside, stride, sizeof *data);
}

static mok_status check_product(const mok_product *p, int64_t idx)
{
    MOK_REQUIRE(p->struct_bytes == sizeof *p, MOK_ERROR_ARGUMENT,
                "products[%lld].struct_bytes is %zu, must be %zu", (long long)idx, p->struct_bytes,
                sizeof *p);
    const int64_t most = (int64_t)1 << 40;
    MOK_REQUIRE(p->m >= 0 && p->n >= 0 && p->k >= 0 && p->m <= most && p->n <= most && p->k <= most,
                MOK_ERROR_SHAPE, "products[%lld] is %lld x %lld x %lld, extents must be 0..2^40",
                (long long)idx, (long long)p->m, (long long)p->n, (long long)p->k);
    MOK_REQUIRE(p->c_dtype == MOK_DTYPE_F32 || (p->c_dtype == MOK_DTYPE_BF16 && !p->continued),
                MOK_ERROR_SHAPE,
                "products[%lld].c_dtype must be f32, or bf16 for a chain of its own",
                (long long)idx);
    MOK_TRY(check_operand("a", idx, p->a, p->m, p->k, p->a_stride, p->a_transposed));
    MOK_TRY(check_operand("b", idx, p->b, p->n, p->k, p->b_stride, p->b_transposed));
    MOK_REQUIRE(p->m == 0 || p->n == 0 || p->c != NULL, MOK_ERROR_ARGUMENT,
                "products[%lld].c is NULL", (long long)idx);
    MOK_REQUIRE(p->c_stride >= p->n, MOK_ERROR_SHAPE,
                "products[%lld].c_stride is %lld, must be >= %lld", (long long)idx,
                (long long)p->c_stride, (long long)p->n);
    MOK_TRY(check_memory("c", idx, p->c, p->m, p->n, p->c_stride, mok_dtype_bytes(p->c_dtype)));
    return check_apart(p, idx);
}

typedef struct batch {
    mok_comm *comm;
    const mok_product *products;
    int64_t count;
    mok_product_fn run;
    _Atomic int64_t next;
} batch;

static int64_t tile_count(const mok_product *p)
{
    return mok_ceil_div(p->m, MOK_TILE_ROWS) * mok_ceil_div(p->n, MOK_TILE_COLS);
}

static void run_tile(const batch *work, const mok_product *p, int64_t tile,
                     const mok_worker_scratch *scratch)
{
    const int64_t down = mok_ceil_div(p->m, MOK_TILE_ROWS);
    const int64_t row = tile % down * MOK_TILE_ROWS;
    const int64_t col = tile / down * MOK_TILE_COLS;
    const int64_t rows = mok_min64(p->m - row, MOK_TILE_ROWS);
    const int64_t cols = mok_min64(p->n - col, MOK_TILE_COLS);
    const mok_operand a = {p->k == 0 ? p->a : p->a + (p->a_transposed ? row : row * p->a_stride),
                           p->a_stride, p->a_transposed};
    const mok_operand b = {p->k == 0 ? p->b : p->b + (p->b_transposed ? col : col * p->b_stride),
                           p->b_stride, p->b_transposed};
    const int64_t at = row * p->c_stride + col;
    if (p->c_dtype == MOK_DTYPE_F32) {
        float *c = (float *)p->c + at;
        for (int64_t r = 0; r < rows && !p->continued; r++) {
            memset(c + r * p->c_stride, 0, (size_t)cols * sizeof *c);
        }
        work->run(c, p->c_stride, &a, &b, rows, cols, p->k, scratch->product);
        return;
    }
    memset(scratch->tile[0], 0, (size_t)rows * MOK_TILE_COLS * sizeof(float));
    work->run(scratch->tile[0], MOK_TILE_COLS, &a, &b, rows, cols, p->k, scratch->product);
    for (int64_t r = 0; r < rows; r++) {
        work->comm->kernels->bf16_from_f32((uint16_t *)p->c + at + r * p->c_stride,
                                           scratch->tile[0] + r * MOK_TILE_COLS, cols);
    }
}

/* Each worker walks the products once beside the shared counter, so that no list of tiles is
 * needed. */
static void work_tiles(void *context, int32_t worker)
{
    batch *work = context;
    const mok_worker_scratch scratch = mok_comm_scratch(work->comm, worker);
    int64_t product = 0;
    int64_t before = 0; /* tiles of the products before this one */
    for (;;) {
        const int64_t idx = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed);
        while (product < work->count && idx - before >= tile_count(&work->products[product])) {
            before += tile_count(&work->products[product]);
            product++;
        }
        if (product == work->count) {
            return;
        }
        run_tile(work, &work->products[product], idx - before, &scratch);
        mok_comm_progress(work->comm);
    }
}

mok_status mok_product_run(mok_comm *comm, const mok_product *products, int64_t count,
                           mok_arith arith)
{
    MOK_REQUIRE(comm != NULL, MOK_ERROR_ARGUMENT, "comm is NULL");
    MOK_REQUIRE(count >= 0 && (count == 0 || products != NULL), MOK_ERROR_ARGUMENT,
                "products is NULL or count is %lld", (long long)count);
    MOK_REQUIRE(arith == MOK_ARITH_TC16 || arith == MOK_ARITH_FMA, MOK_ERROR_ARGUMENT,
                "arith is %d, unknown", (int)arith);
    MOK_TRY(mok_comm_check(comm));
    for (int64_t i = 0; i < count; i++) {
        MOK_TRY(check_product(&products[i], i));
    }
    batch work = {comm, products, count,
                  arith == MOK_ARITH_FMA ? comm->kernels->product_fma : comm->kernels->product_tc16,
                  0};
    atomic_init(&work.next, 0);
    return mok_pool_run(comm->pool, work_tiles, &work);
}

/* ---- Any other work on the same workers ---- */

typedef struct parallel {
    mok_comm *comm;
    int64_t count;
    void (*run)(void *context, int64_t idx, int32_t worker);
    void *context;
    _Atomic int64_t next;
} parallel;

static void work_parallel(void *context, int32_t worker)
{
    parallel *work = context;
    for (;;) {
        const int64_t idx = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed);
        if (idx >= work->count) {
            return;
        }
        work->run(work->context, idx, worker);
        mok_comm_progress(work->comm);
    }
}

mok_status mok_comm_parallel(mok_comm *comm, int64_t count,
                             void (*run)(void *context, int64_t idx, int32_t worker), void *context)
{
    MOK_REQUIRE(comm != NULL && run != NULL && count >= 0, MOK_ERROR_ARGUMENT,
                "comm or run is NULL, or count is %lld", (long long)count);
    MOK_TRY(mok_comm_check(comm));
    parallel work = {comm, count, run, context, 0};
    atomic_init(&work.next, 0);
    return mok_pool_run(comm->pool, work_parallel, &work);
}
