/* The product of class fma in 512-bit vectors: 6 rows x 32 columns, twelve chains in registers.
 *
 * As in product_fma_avx2.c every element is one chain in ascending k; a chain is stored and loaded
 * again between pieces of k. A panel that is not whole is read and written under masks. */
#include "cpu/x86/kernels_avx512.h"
#include "cpu/x86/pack.h"

#define ROWS 6
#define PANEL 32
#define DEPTH MOK_PACK_FMA_K

static inline __attribute__((always_inline)) void chains(int rows, float *c, int64_t c_stride,
                                                         const float *a, const float *b, int64_t ks,
                                                         __mmask16 low, __mmask16 high)
{
    __m512 acc[ROWS][2];
    for (int i = 0; i < rows; i++) {
        acc[i][0] = _mm512_maskz_loadu_ps(low, c + i * c_stride);
        acc[i][1] = _mm512_maskz_loadu_ps(high, c + i * c_stride + 16);
    }
    for (int64_t k = 0; k < ks; k++) {
        const __m512 b0 = _mm512_loadu_ps(b + k * PANEL);
        const __m512 b1 = _mm512_loadu_ps(b + k * PANEL + 16);
        for (int i = 0; i < rows; i++) {
            const __m512 one = _mm512_set1_ps(a[i * DEPTH + k]);
            acc[i][0] = _mm512_fmadd_ps(one, b0, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(one, b1, acc[i][1]);
        }
    }
    for (int i = 0; i < rows; i++) {
        _mm512_mask_storeu_ps(c + i * c_stride, low, acc[i][0]);
        _mm512_mask_storeu_ps(c + i * c_stride + 16, high, acc[i][1]);
    }
}

static void tile(int64_t rows, float *c, int64_t c_stride, const float *a, const float *b,
                 int64_t ks, int64_t cols)
{
    const uint32_t mask = cols >= PANEL ? 0xFFFFFFFFu : (1u << cols) - 1u;
    const __mmask16 low = (__mmask16)(mask & 0xFFFF);
    const __mmask16 high = (__mmask16)(mask >> 16);
    switch (rows) {
    case 6:
        chains(6, c, c_stride, a, b, ks, low, high);
        break;
    case 5:
        chains(5, c, c_stride, a, b, ks, low, high);
        break;
    case 4:
        chains(4, c, c_stride, a, b, ks, low, high);
        break;
    case 3:
        chains(3, c, c_stride, a, b, ks, low, high);
        break;
    case 2:
        chains(2, c, c_stride, a, b, ks, low, high);
        break;
    default:
        chains(1, c, c_stride, a, b, ks, low, high);
        break;
    }
}

void mok_avx512_product_fma(float *c, int64_t c_stride, const mok_operand *a, const mok_operand *b,
                            int64_t m, int64_t n, int64_t k, void *scratch)
{
    mok_pack_scratch *pack = scratch;
    for (int64_t begin = 0; begin < k; begin += DEPTH) {
        const int64_t ks = k - begin < DEPTH ? k - begin : DEPTH;
        mok_pack_a(pack->fma.a, NULL, DEPTH, a, m, begin, ks);
        mok_pack_b(pack->fma.b, NULL, PANEL, DEPTH, b, n, begin, ks);
        for (int64_t col = 0; col < n; col += PANEL) {
            for (int64_t row = 0; row < m; row += ROWS) {
                tile(m - row < ROWS ? m - row : ROWS, c + row * c_stride + col, c_stride,
                     pack->fma.a + row * DEPTH, pack->fma.b + col * DEPTH, ks, n - col);
            }
        }
    }
    mok_pack_finish(c, c_stride, m, n);
}
