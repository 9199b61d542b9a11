/* Packing a product's operands for the vector kernels, and the scratch it goes into.
 *
 * Both operands are widened to fp32 over a piece of k, in 8 x 8 blocks that are transposed in
 * registers where the operand's layout asks for it:
 *
 *     a   [row][K]            row-major, rows filled up with zeros to a multiple of 8
 *     b   [panel][k][width]   panels of `width` columns, filled up with zeros
 *
 * For class tc16 the exponents go beside them (mok_pack_exponents): b's as int16, a's as int16
 * twice in an int32, so that one broadcast fills all int16 lanes. k is filled up with zeros to a
 * multiple of 16. Nothing is read past an operand's last element. */
#ifndef MOK_CPU_X86_PACK_H
#define MOK_CPU_X86_PACK_H

#include "cpu/kernels.h"
#include "cpu/x86/vec_avx2.h"

/* Elements of k in a piece. fma: a panel of 16 columns and 6 rows of a fit the first-level cache.
 * tc16: the same with exponents, and all of a and b stay in a second-level cache of 512 KB. */
#define MOK_PACK_FMA_K 256
#define MOK_PACK_TC16_K 128

/* What the int16 lanes hold for operands that have no exponent. A zero loses every maximum; an
 * infinity or NaN exceeds every finite product's exponent (254) even against a zero. No sum of two
 * leaves int16. */
#define MOK_PACK_ZERO (-16000)
#define MOK_PACK_SPECIAL 16383
#define MOK_PACK_ALL_ZERO (-1000) /* a block's maximum below this: every product is zero */

typedef union mok_pack_scratch {
    struct {
        float a[MOK_TILE_ROWS * MOK_PACK_FMA_K];
        float b[MOK_TILE_COLS * MOK_PACK_FMA_K];
    } fma;
    struct {
        float a[MOK_TILE_ROWS * MOK_PACK_TC16_K];
        int32_t a_exponent[MOK_TILE_ROWS * MOK_PACK_TC16_K];
        float b[MOK_TILE_COLS * MOK_PACK_TC16_K];
        int16_t b_exponent[MOK_TILE_COLS * MOK_PACK_TC16_K];
    } tc16;
} mok_pack_scratch;

/* x[o] = 8 elements of row o at p + o * stride; zeros outside `outer` rows and `inner` elements. */
static inline void mok_pack_load(__m128i x[8], const uint16_t *p, int64_t stride, int64_t outer,
                                 int64_t inner)
{
    if (outer >= 8 && inner >= 8) {
        for (int o = 0; o < 8; o++) {
            x[o] = _mm_loadu_si128((const __m128i *)(const void *)(p + o * stride));
        }
        return;
    }
    for (int o = 0; o < 8; o++) {
        x[o] = o < outer ? vec_load_u16(p + o * stride, inner) : _mm_setzero_si128();
    }
}

static inline void mok_pack_transpose(__m128i x[8])
{
    __m128i y[8], z[8];
    for (int i = 0; i < 4; i++) {
        y[2 * i] = _mm_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        z[4 * i] = _mm_unpacklo_epi32(y[4 * i], y[4 * i + 2]);
        z[4 * i + 1] = _mm_unpackhi_epi32(y[4 * i], y[4 * i + 2]);
        z[4 * i + 2] = _mm_unpacklo_epi32(y[4 * i + 1], y[4 * i + 3]);
        z[4 * i + 3] = _mm_unpackhi_epi32(y[4 * i + 1], y[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        x[2 * i] = _mm_unpacklo_epi64(z[i], z[i + 4]);
        x[2 * i + 1] = _mm_unpackhi_epi64(z[i], z[i + 4]);
    }
}

/* The 8 x 8 block at (row, k) of an operand that has `rows` rows and `ks` columns in this piece:
 * vectors along k, one a row, where along_k is set; else vectors along the rows, one a k. */
static inline void mok_pack_block(__m128i x[8], const mok_operand *operand, int64_t row, int64_t k,
                                  int64_t rows, int64_t ks, bool along_k)
{
    if (operand->transposed) {
        const uint16_t *p = k < ks && row < rows ? operand->data + k * operand->stride + row : NULL;
        mok_pack_load(x, p, operand->stride, p != NULL ? ks - k : 0, rows - row);
    } else {
        const uint16_t *p = k < ks && row < rows ? operand->data + row * operand->stride + k : NULL;
        mok_pack_load(x, p, operand->stride, p != NULL ? rows - row : 0, ks - k);
    }
    if (operand->transposed == along_k) {
        mok_pack_transpose(x);
    }
}

/* int16 exponents of bf16 values: -126 for a subnormal, which is not normalised; sentinels as
 * above. */
static inline __m128i mok_pack_exponents(__m128i x)
{
    const __m128i magnitude = _mm_and_si128(x, _mm_set1_epi16(0x7FFF));
    const __m128i biased = _mm_sub_epi16(_mm_srli_epi16(magnitude, 7), _mm_set1_epi16(127));
    const __m128i e = _mm_max_epi16(biased, _mm_set1_epi16(-126));
    const __m128i zero = _mm_cmpeq_epi16(magnitude, _mm_setzero_si128());
    const __m128i special = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7F7F));
    const __m128i with_zero = _mm_blendv_epi8(e, _mm_set1_epi16(MOK_PACK_ZERO), zero);
    return _mm_blendv_epi8(with_zero, _mm_set1_epi16(MOK_PACK_SPECIAL), special);
}

/* Rows [0, rows) of the piece [k_begin, k_begin + ks); exponent may be NULL. out rows are `stride`
 * apart. */
static inline void mok_pack_a(float *out, int32_t *exponent, int64_t stride, const mok_operand *a,
                              int64_t rows, int64_t k_begin, int64_t ks)
{
    mok_operand piece = *a;
    piece.data += a->transposed ? k_begin * a->stride : k_begin;
    for (int64_t row = 0; row < rows; row += 8) {
        for (int64_t k = 0; k < ks || k % 16 != 0; k += 8) {
            __m128i x[8];
            mok_pack_block(x, &piece, row, k, rows, ks, true);
            for (int i = 0; i < 8; i++) {
                const int64_t at = (row + i) * stride + k;
                _mm256_storeu_ps(out + at, vec_widen(x[i]));
                if (exponent != NULL) {
                    const __m256i e = _mm256_cvtepu16_epi32(mok_pack_exponents(x[i]));
                    _mm256_storeu_si256((__m256i *)(void *)(exponent + at),
                                        _mm256_or_si256(e, _mm256_slli_epi32(e, 16)));
                }
            }
        }
    }
}

/* Columns [0, cols), filled up to whole panels of `width` (a multiple of 8); panels are `depth` of
 * k apart. */
static inline void mok_pack_b(float *out, int16_t *exponent, int64_t width, int64_t depth,
                              const mok_operand *b, int64_t cols, int64_t k_begin, int64_t ks)
{
    mok_operand piece = *b;
    piece.data += b->transposed ? k_begin * b->stride : k_begin;
    for (int64_t col = 0; col < cols || col % width != 0; col += 8) {
        const int64_t panel = col / width * width * depth + col % width;
        for (int64_t k = 0; k < ks || k % 16 != 0; k += 8) {
            __m128i x[8];
            mok_pack_block(x, &piece, col, k, cols, ks, false);
            for (int i = 0; i < 8; i++) {
                const int64_t at = panel + (k + i) * width;
                _mm256_storeu_ps(out + at, vec_widen(x[i]));
                if (exponent != NULL) {
                    _mm_storeu_si128((__m128i *)(void *)(exponent + at), mok_pack_exponents(x[i]));
                }
            }
        }
    }
}

/* The end of the chains: a zero is +0, a NaN canonical. */
static inline void mok_pack_finish(float *c, int64_t c_stride, int64_t m, int64_t n)
{
    for (int64_t row = 0; row < m; row++) {
        float *line = c + row * c_stride;
        for (int64_t col = 0; col < n; col += 8) {
            /* In round-to-nearest -0 + +0 is +0, and any other value is itself. */
            const __m256 x = _mm256_add_ps(vec_load_f32(line + col, n - col), _mm256_setzero_ps());
            vec_store_f32(line + col, vec_canonical(x), n - col);
        }
    }
}

#endif
