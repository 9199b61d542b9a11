/* The product of class fma: a microkernel of 6 rows x 16 columns, twelve chains in registers.
 *
 * Every element is one chain of fused multiply-adds in ascending k, however the tile is cut: c is
 * stored and loaded again between pieces of k, which changes no bits. Operands are widened when
 * they are packed. */
#include "cpu/x86/kernels_avx2.h"
#include "cpu/x86/pack.h"

#define ROWS 6
#define PANEL 16
#define DEPTH MOK_PACK_FMA_K

/* `rows` is a constant where this is inlined, so that acc lives in registers. */
static inline __attribute__((always_inline)) void chains(int rows, float *c, int64_t c_stride,
                                                         const float *a, const float *b, int64_t ks)
{
    __m256 acc[ROWS][2];
    for (int i = 0; i < rows; i++) {
        acc[i][0] = _mm256_loadu_ps(c + i * c_stride);
        acc[i][1] = _mm256_loadu_ps(c + i * c_stride + 8);
    }
    for (int64_t k = 0; k < ks; k++) {
        const __m256 b0 = _mm256_loadu_ps(b + k * PANEL);
        const __m256 b1 = _mm256_loadu_ps(b + k * PANEL + 8);
        for (int i = 0; i < rows; i++) {
            const __m256 one = _mm256_broadcast_ss(a + i * DEPTH + k);
            acc[i][0] = _mm256_fmadd_ps(one, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(one, b1, acc[i][1]);
        }
    }
    for (int i = 0; i < rows; i++) {
        _mm256_storeu_ps(c + i * c_stride, acc[i][0]);
        _mm256_storeu_ps(c + i * c_stride + 8, acc[i][1]);
    }
}

static void tile(int64_t rows, float *c, int64_t c_stride, const float *a, const float *b,
                 int64_t ks)
{
    switch (rows) {
    case 6:
        chains(6, c, c_stride, a, b, ks);
        break;
    case 5:
        chains(5, c, c_stride, a, b, ks);
        break;
    case 4:
        chains(4, c, c_stride, a, b, ks);
        break;
    case 3:
        chains(3, c, c_stride, a, b, ks);
        break;
    case 2:
        chains(2, c, c_stride, a, b, ks);
        break;
    default:
        chains(1, c, c_stride, a, b, ks);
        break;
    }
}

/* A panel that is not whole: through a copy, so that nothing outside c is touched. */
static void tile_edge(int64_t rows, int64_t cols, float *c, int64_t c_stride, const float *a,
                      const float *b, int64_t ks)
{
    float copy[ROWS * PANEL] = {0.0f};
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            copy[i * PANEL + j] = c[i * c_stride + j];
        }
    }
    tile(rows, copy, PANEL, a, b, ks);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            c[i * c_stride + j] = copy[i * PANEL + j];
        }
    }
}

/* Six rows while they last; seven or eight are split evenly, since few chains do not hide the
 * latency. */
static int64_t rows_next(int64_t left)
{
    if (left == 7 || left == 8) {
        return 4;
    }
    return left < ROWS ? left : ROWS;
}

void mok_avx2_product_fma(float *c, int64_t c_stride, const mok_operand *a, const mok_operand *b,
                          int64_t m, int64_t n, int64_t k, void *scratch)
{
    mok_pack_scratch *pack = scratch;
    for (int64_t begin = 0; begin < k; begin += DEPTH) {
        const int64_t ks = k - begin < DEPTH ? k - begin : DEPTH;
        mok_pack_a(pack->fma.a, NULL, DEPTH, a, m, begin, ks);
        mok_pack_b(pack->fma.b, NULL, PANEL, DEPTH, b, n, begin, ks);
        for (int64_t col = 0; col < n; col += PANEL) {
            const float *panel = pack->fma.b + col * DEPTH;
            int64_t rows;
            for (int64_t row = 0; row < m; row += rows) {
                float *corner = c + row * c_stride + col;
                rows = rows_next(m - row);
                if (n - col >= PANEL) {
                    tile(rows, corner, c_stride, pack->fma.a + row * DEPTH, panel, ks);
                } else {
                    tile_edge(rows, n - col, corner, c_stride, pack->fma.a + row * DEPTH, panel,
                              ks);
                }
            }
        }
    }
    mok_pack_finish(c, c_stride, m, n);
}
