/* The product of class tc16 in vectors: 2 rows x 16 columns, a block of 16 products at a time.
 *
 * Per lane and block (docs/numerics.md, 1.2): e = the largest exponent of the products and of c,
 * from int16 exponents packed beside the operands; s = 2^(25 - e); then the sum of cvtt((a * b) *
 * s) is the exact sum of the truncated products, since a product of two bf16 is exact in fp32, s is
 * a power of two and cvtt cuts toward zero. c joins it the same way. The sum goes back to fp32
 * under round-toward-zero.
 *
 * It holds for e in [-101, 120]: a product below the normal range is then worth less than one unit,
 * and no step overflows. A lane outside, one whose sum leaves int32 and one with NaN or infinity
 * takes the scalar rule. A lane whose products are all zero keeps its c: zeros and padding are
 * common.
 *
 * MXCSR is set to round-toward-zero around panel(), which is not inlined so that no arithmetic
 * moves across; only the conversion of the sum rounds at all. */
#include "cpu/x86/kernels_avx2.h"
#include "cpu/x86/pack.h"
#include "numerics/tc16.h"

#define PANEL 16
#define DEPTH MOK_PACK_TC16_K
#define BLOCK MOK_TC16_BLOCK
#define E_MIN (-101)
#define E_MAX 120
#define MXCSR_ROUND_MASK 0x6000u
#define MXCSR_TOWARD_ZERO 0x6000u

/* The operands of one microkernel call: two rows of a, DEPTH apart, and one panel of b. */
typedef struct operands {
    const float *a;
    const int32_t *a_exponent;
    const float *b;
    const int16_t *b_exponent;
} operands;

/* One lane by the rule; x points at this block of the operands. */
static float lane_by_rule(float c, const operands *x, int row, int col)
{
    uint16_t a[BLOCK], b[BLOCK];
    for (int k = 0; k < BLOCK; k++) {
        a[k] = (uint16_t)(mok_f32_bits(x->a[row * DEPTH + k]) >> 16);
        b[k] = (uint16_t)(mok_f32_bits(x->b[k * PANEL + col]) >> 16);
    }
    return mok_tc16_block(c, a, b);
}

/* Eight lanes of one row whose fast result does not hold where `slow` is set. */
static __attribute__((noinline)) __m256 repair(__m256 fast, __m256 c, int slow, const operands *x,
                                               int row, int col)
{
    float results[8], starts[8];
    _mm256_storeu_ps(results, fast);
    _mm256_storeu_ps(starts, c);
    for (int lane = 0; lane < 8; lane++) {
        if ((slow >> lane & 1) != 0) {
            results[lane] = lane_by_rule(starts[lane], x, row, col + lane);
        }
    }
    return _mm256_loadu_ps(results);
}

/* Largest exponents of a row's products with 16 columns, as int32 [2][8]. */
static inline void exponents(__m256i largest[2], const int32_t *a_exponent,
                             const int16_t *b_exponent)
{
    __m256i even = _mm256_set1_epi16(INT16_MIN), odd = even;
    for (int k = 0; k < BLOCK; k += 2) {
        const __m256i b0 =
            _mm256_loadu_si256((const __m256i *)(const void *)(b_exponent + k * PANEL));
        const __m256i b1 =
            _mm256_loadu_si256((const __m256i *)(const void *)(b_exponent + (k + 1) * PANEL));
        even = _mm256_max_epi16(even, _mm256_add_epi16(b0, _mm256_set1_epi32(a_exponent[k])));
        odd = _mm256_max_epi16(odd, _mm256_add_epi16(b1, _mm256_set1_epi32(a_exponent[k + 1])));
    }
    even = _mm256_max_epi16(even, odd);
    largest[0] = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(even));
    largest[1] = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(even, 1));
}

/* c's exponent; -127 stands for zero and subnormals, which are below the window either way. */
static inline __m256i exponent_of(__m256 c)
{
    const __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(c), 1);
    return _mm256_sub_epi32(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(127));
}

/* 2^x for x + 127 = biased. */
static inline __m256 power_of(__m256i biased)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}

/* One block of 16 for 2 x 16 lanes; c[2 * row + half] is updated. */
static inline __attribute__((always_inline)) void block(__m256 c[4], const operands *x)
{
    __m256i largest[4], e[4], sum[4], start[4], total[4];
    __m256 s[4], r[4];
    __m256i high, low, wrong = _mm256_setzero_si256();
    exponents(largest, x->a_exponent, x->b_exponent);
    exponents(largest + 2, x->a_exponent + DEPTH, x->b_exponent);
    for (int i = 0; i < 4; i++) {
        e[i] = _mm256_max_epi32(largest[i], exponent_of(c[i]));
        s[i] = power_of(_mm256_sub_epi32(_mm256_set1_epi32(25 + 127), e[i]));
        sum[i] = _mm256_setzero_si256();
    }
    for (int k = 0; k < BLOCK; k++) {
        const __m256 b0 = _mm256_loadu_ps(x->b + k * PANEL);
        const __m256 b1 = _mm256_loadu_ps(x->b + k * PANEL + 8);
        const __m256 a0 = _mm256_broadcast_ss(x->a + k);
        const __m256 a1 = _mm256_broadcast_ss(x->a + DEPTH + k);
        const __m256 p0 = _mm256_mul_ps(_mm256_mul_ps(a0, b0), s[0]);
        const __m256 p1 = _mm256_mul_ps(_mm256_mul_ps(a0, b1), s[1]);
        const __m256 p2 = _mm256_mul_ps(_mm256_mul_ps(a1, b0), s[2]);
        const __m256 p3 = _mm256_mul_ps(_mm256_mul_ps(a1, b1), s[3]);
        sum[0] = _mm256_add_epi32(sum[0], _mm256_cvttps_epi32(p0));
        sum[1] = _mm256_add_epi32(sum[1], _mm256_cvttps_epi32(p1));
        sum[2] = _mm256_add_epi32(sum[2], _mm256_cvttps_epi32(p2));
        sum[3] = _mm256_add_epi32(sum[3], _mm256_cvttps_epi32(p3));
    }
    for (int i = 0; i < 4; i++) {
        /* The products' sum fits int32; with c it may not, which shows in the signs. */
        start[i] = _mm256_cvttps_epi32(_mm256_mul_ps(c[i], s[i]));
        total[i] = _mm256_add_epi32(sum[i], start[i]);
        wrong = _mm256_or_si256(wrong, _mm256_and_si256(_mm256_xor_si256(sum[i], total[i]),
                                                        _mm256_xor_si256(start[i], total[i])));
        r[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(total[i]),
                             power_of(_mm256_add_epi32(e[i], _mm256_set1_epi32(127 - 25))));
    }
    high = _mm256_max_epi32(_mm256_max_epi32(e[0], e[1]), _mm256_max_epi32(e[2], e[3]));
    low = _mm256_min_epi32(_mm256_min_epi32(e[0], e[1]), _mm256_min_epi32(e[2], e[3]));
    wrong = _mm256_or_si256(wrong, _mm256_cmpgt_epi32(high, _mm256_set1_epi32(E_MAX)));
    wrong = _mm256_or_si256(wrong, _mm256_cmpgt_epi32(_mm256_set1_epi32(E_MIN), low));
    if (__builtin_expect(_mm256_movemask_ps(_mm256_castsi256_ps(wrong)) != 0, 0)) {
        for (int i = 0; i < 4; i++) {
            const __m256i finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(128), exponent_of(c[i]));
            const __m256i zeros =
                _mm256_cmpgt_epi32(_mm256_set1_epi32(MOK_PACK_ALL_ZERO), largest[i]);
            const __m256i keep = _mm256_and_si256(finite, zeros);
            const __m256i outside =
                _mm256_or_si256(_mm256_cmpgt_epi32(e[i], _mm256_set1_epi32(E_MAX)),
                                _mm256_cmpgt_epi32(_mm256_set1_epi32(E_MIN), e[i]));
            const __m256i carry = _mm256_and_si256(_mm256_xor_si256(sum[i], total[i]),
                                                   _mm256_xor_si256(start[i], total[i]));
            const int slow = _mm256_movemask_ps(
                _mm256_castsi256_ps(_mm256_andnot_si256(keep, _mm256_or_si256(outside, carry))));
            r[i] = _mm256_blendv_ps(r[i], c[i], _mm256_castsi256_ps(keep));
            if (slow != 0) {
                r[i] = repair(r[i], c[i], slow, x, i / 2, i % 2 * 8);
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        c[i] = r[i];
    }
}

/* Two rows and one panel over all blocks of this piece of k. */
static inline void pair(float *c0, float *c1, operands x, int64_t blocks)
{
    __m256 c[4];
    c[0] = _mm256_loadu_ps(c0);
    c[1] = _mm256_loadu_ps(c0 + 8);
    c[2] = _mm256_loadu_ps(c1);
    c[3] = _mm256_loadu_ps(c1 + 8);
    for (int64_t i = 0; i < blocks; i++) {
        block(c, &x);
        x.a += BLOCK;
        x.a_exponent += BLOCK;
        x.b += BLOCK * PANEL;
        x.b_exponent += BLOCK * PANEL;
    }
    _mm256_storeu_ps(c0, c[0]);
    _mm256_storeu_ps(c0 + 8, c[1]);
    _mm256_storeu_ps(c1, c[2]);
    _mm256_storeu_ps(c1 + 8, c[3]);
}

/* All rows of one panel. A pair that does not fill 2 x 16 goes through a copy: nothing outside c is
 * touched, and the row of a that is not there was packed as zeros. */
static __attribute__((noinline)) void panel(float *c, int64_t c_stride, operands x, int64_t rows,
                                            int64_t cols, int64_t blocks)
{
    for (int64_t row = 0; row < rows; row += 2) {
        float *corner = c + row * c_stride;
        if (rows - row >= 2 && cols >= PANEL) {
            pair(corner, corner + c_stride, x, blocks);
        } else {
            const int64_t here = rows - row < 2 ? rows - row : 2;
            const int64_t wide = cols < PANEL ? cols : PANEL;
            float copy[2 * PANEL] = {0.0f};
            for (int64_t i = 0; i < here; i++) {
                memcpy(copy + i * PANEL, corner + i * c_stride, (size_t)wide * sizeof(float));
            }
            pair(copy, copy + PANEL, x, blocks);
            for (int64_t i = 0; i < here; i++) {
                memcpy(corner + i * c_stride, copy + i * PANEL, (size_t)wide * sizeof(float));
            }
        }
        x.a += 2 * DEPTH;
        x.a_exponent += 2 * DEPTH;
    }
}

void mok_avx2_product_tc16(float *c, int64_t c_stride, const mok_operand *a, const mok_operand *b,
                           int64_t m, int64_t n, int64_t k, void *scratch)
{
    mok_pack_scratch *pack = scratch;
    for (int64_t begin = 0; begin < k; begin += DEPTH) {
        const int64_t ks = k - begin < DEPTH ? k - begin : DEPTH;
        const uint32_t saved = _mm_getcsr();
        mok_pack_a(pack->tc16.a, pack->tc16.a_exponent, DEPTH, a, m, begin, ks);
        mok_pack_b(pack->tc16.b, pack->tc16.b_exponent, PANEL, DEPTH, b, n, begin, ks);
        _mm_setcsr((saved & ~MXCSR_ROUND_MASK) | MXCSR_TOWARD_ZERO);
        for (int64_t col = 0; col < n; col += PANEL) {
            operands x;
            x.a = pack->tc16.a;
            x.a_exponent = pack->tc16.a_exponent;
            x.b = pack->tc16.b + col * DEPTH;
            x.b_exponent = pack->tc16.b_exponent + col * DEPTH;
            panel(c + col, c_stride, x, m, n - col, (ks + BLOCK - 1) / BLOCK);
        }
        _mm_setcsr(saved);
    }
    mok_pack_finish(c, c_stride, m, n);
}
