/* What programs beside the library may use, and what may still change between versions: single
 * matrix products, exact elementwise functions, a rank's worker threads, and hooks for tests.
 *
 * Everything here gives the same bytes at every level (docs/numerics.md). */
#ifndef MOK_MOK_EXPERIMENTAL_H
#define MOK_MOK_EXPERIMENTAL_H

#include <mok/mok.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Products
 * --------------------------------------------------------------------------------------- */

/* C[m][n] = chain over k of A[m][k] * B[n][k], in the given class.
 *
 *   a   bf16; A[m][k] is a[m * a_stride + k], or a[k * a_stride + m] when a_transposed
 *   b   bf16; B[n][k] is b[n * b_stride + k], or b[k * b_stride + n] when b_transposed
 *   c   c_dtype bf16 (rounded once) or f32; C[m][n] is c[m * c_stride + n]
 *   continued   f32 only: the chain starts from the value in c instead of +0
 *
 * m, n and k may be 0. Strides count elements. c must not overlap a or b. */
typedef struct mok_product {
    size_t struct_bytes;
    int64_t m, n, k;
    const uint16_t *a;
    const uint16_t *b;
    void *c;
    int64_t a_stride, b_stride, c_stride;
    bool a_transposed, b_transposed;
    bool continued;
    mok_dtype c_dtype;
} mok_product;

MOK_API void mok_product_init(mok_product *product);

/* Runs `count` independent products on this rank's workers. Not collective.
 * Errors: ARGUMENT, SHAPE, OVERLAP, STATE (called by a worker's job), PEER (after a fault). */
MOK_API mok_status mok_product_run(mok_comm *comm, const mok_product *products, int64_t count,
                                   mok_arith arith);

/* ---- Elementwise, exact at every level; in place allowed
 * ------------------------------------------------ */

/* exp of docs/numerics.md section 2: x below -104 gives +0, above 88.72283 +infinity, NaN
 * 0x7FFFFFFF. */
MOK_API void mok_exp(float *out, const float *x, int64_t count);
MOK_API void mok_sigmoid(float *out, const float *x, int64_t count);
/* bf16 from f32, to nearest even, NaN to 0x7FFF; and back. */
MOK_API void mok_bf16_from_f32(uint16_t *out, const float *x, int64_t count);
MOK_API void mok_f32_from_bf16(float *out, const uint16_t *x, int64_t count);

/* ---- Workers
 * ---------------------------------------------------------------------------------------- */

/* Calls run(context, idx, worker) once for every idx in [0, count), in any order, on this rank's
 * workers; worker is in [0, threads). Returns when all have returned. Not collective. Errors:
 * ARGUMENT, STATE (called from run: its workers are taken), PEER (after a fault). */
MOK_API mok_status mok_comm_parallel(mok_comm *comm, int64_t count,
                                     void (*run)(void *context, int64_t idx, int32_t worker),
                                     void *context);

/* ---- What this machine has
 * -------------------------------------------------------------------------- */

MOK_API bool mok_level_available(mok_level level);
MOK_API const char *
mok_level_string(mok_level level); /* "auto", "ref", "avx2", "avx512", "unknown" */
MOK_API mok_level mok_comm_level(const mok_comm *comm); /* the level in use, never AUTO */

/* ---- Hooks for tests and tools
 * ------------------------------------------------------------------------ */

/* Called by a worker before each task of a pass. Returning false makes that worker leave the pass
 * as if it had died: its task is never done, and whoever waits for it runs into the deadline. NULL
 * removes it. */
typedef bool (*mok_task_hook)(void *context, int32_t rank, int32_t worker, mok_phase phase,
                              int64_t task_idx);
MOK_API void mok_layer_set_task_hook(mok_layer *layer, mok_task_hook hook, void *context);

#ifdef __cplusplus
}
#endif
#endif
