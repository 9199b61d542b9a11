/* The table of CPU kernels: one entry an operation, one table a level.
 *
 * src/ref holds the definition (level ref) and src/cpu/x86 the fast forms; mok_kernels_select picks
 * a table at run time and nothing else in the library knows an instruction set. Every level gives
 * the bytes of level ref (tests/check compares them). Kernels work on one tile or one row, never
 * allocate, never fail, and assume what the layer has validated. MXCSR is set by the caller
 * (core/fpenv.h). */
#ifndef MOK_CPU_KERNELS_H
#define MOK_CPU_KERNELS_H

#include <mok/mok_experimental.h>

/* One side of a product. Element (row, k) is data[row * stride + k], or data[k * stride + row] when
 * transposed. */
typedef struct mok_operand {
    const uint16_t *data;
    int64_t stride;
    bool transposed;
} mok_operand;

/* The largest tile a product kernel takes. */
#define MOK_TILE_ROWS 128
#define MOK_TILE_COLS 256

/* c[m][n] continues the chain over k of a(m, k) * b(n, k); c is [m, n] f32 with row stride
 * c_stride, holds the value that the chain starts from (+0 for a new one), and receives finished
 * fp32 values: a zero is +0, a NaN is 0x7FFFFFFF. m <= MOK_TILE_ROWS, n <= MOK_TILE_COLS, any k >=
 * 0; a k that is no multiple of the class's block is padded with zeros. scratch is
 * product_scratch_bytes, 64-byte aligned, one a worker. */
typedef void (*mok_product_fn)(float *c, int64_t c_stride, const mok_operand *a,
                               const mok_operand *b, int64_t m, int64_t n, int64_t k,
                               void *scratch);

/* limit is read where clamped is set. */
typedef struct mok_swiglu {
    bool clamped;
    float limit;
} mok_swiglu;

typedef struct mok_kernels {
    mok_level level;
    size_t product_scratch_bytes;
    mok_product_fn product_tc16;
    mok_product_fn product_fma;

    /* g = bf16(acc_g), u = bf16(acc_u), h = bf16(silu(g') * u') with g', u' clamped where asked.
     * All [n]. */
    void (*swiglu_forward)(uint16_t *h, uint16_t *g, uint16_t *u, const float *acc_g,
                           const float *acc_u, int64_t n, const mok_swiglu *swiglu);

    /* One row of one 128-column chunk, n <= 128, from s = dy . Wdown^T (fp32):
     *   dg = bf16((w s u') dsilu(g')), du = bf16((w s) silu(g')), hw = bf16(w h32), h32 = silu(g')
     * u' dg is +0 where g > limit and du is +0 where |u| > limit. Returns the chunk's part of the
     * router-weight gradient: the tree over s_i * bf16(h32_i) at distances 64, 32, 16, 8, 4, 2, 1.
     */
    float (*swiglu_backward)(uint16_t *dg, uint16_t *du, uint16_t *hw, const float *s,
                             const uint16_t *g, const uint16_t *u, float w, int64_t n,
                             const mok_swiglu *swiglu);

    /* One token: acc = shared (bf16 [n], or +0 where NULL); for k ascending, where routes[k] >= 0:
     * acc = fmaf(weights[k], y[k * n + i], acc); out = bf16(acc). */
    void (*combine_forward)(uint16_t *out, const uint16_t *shared, const uint16_t *y,
                            const float *weights, const int32_t *routes, int64_t slots, int64_t n);

    /* The same with acc = acc + dx[k * n + i]. */
    void (*combine_backward)(uint16_t *out, const uint16_t *shared, const uint16_t *dx,
                             const int32_t *routes, int64_t slots, int64_t n);

    /* main = main + x, one fp32 add each, NaN canonical. */
    void (*accumulate)(float *main, const float *x, int64_t n);

    void (*bf16_from_f32)(uint16_t *out, const float *x, int64_t n);
    void (*f32_from_bf16)(float *out, const uint16_t *x, int64_t n);
    void (*exp)(float *out, const float *x, int64_t n);
    void (*sigmoid)(float *out, const float *x, int64_t n);
} mok_kernels;

/* The table of a level, or NULL where this build or CPU lacks it. AUTO gives the fastest. */
const mok_kernels *mok_kernels_select(mok_level level);

extern const mok_kernels mok_kernels_ref;    /* src/ref/kernels.c */
extern const mok_kernels mok_kernels_avx2;   /* src/cpu/x86/kernels_avx2.c */
extern const mok_kernels mok_kernels_avx512; /* src/cpu/x86/kernels_avx512.c */

#endif
