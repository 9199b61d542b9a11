/* The product of class tc16 in 512-bit vectors: 2 rows x 32 columns, a block of 16 products at a
 * time.
 *
 * The scheme and its window are those of product_tc16_avx2.c. Here one vector holds the int16
 * exponents of all 32 columns, the sum's conversion names its rounding itself, so MXCSR stays as it
 * is, and lanes that take another way are masks. Nothing else rounds: a product of two bf16 is
 * exact in fp32 or, below the normal range, worth less than one unit; powers of two only move the
 * point. */
#include "cpu/x86/kernels_avx512.h"
#include "cpu/x86/pack.h"
#include "numerics/tc16.h"

#define PANEL 32
#define DEPTH MOK_PACK_TC16_K
#define BLOCK MOK_TC16_BLOCK
#define E_MIN (-101)
#define E_MAX 120

/* The operands of one call: two rows of a, DEPTH apart, and one panel of b. */
typedef struct operands {
    const float *a;
    const int32_t *a_exponent;
    const float *b;
    const int16_t *b_exponent;
} operands;

/* Lanes of one row that are set in `slow`, by the rule. */
static __attribute__((noinline)) __m512 repair(__m512 fast, __m512 c, uint32_t slow,
                                               const operands *x, int row, int col)
{
    float results[16], starts[16];
    uint16_t a[BLOCK], b[BLOCK];
    _mm512_storeu_ps(results, fast);
    _mm512_storeu_ps(starts, c);
    for (int k = 0; k < BLOCK; k++) {
        a[k] = (uint16_t)(mok_f32_bits(x->a[row * DEPTH + k]) >> 16);
    }
    for (int lane = 0; lane < 16; lane++) {
        if ((slow >> lane & 1) == 0) {
            continue;
        }
        for (int k = 0; k < BLOCK; k++) {
            b[k] = (uint16_t)(mok_f32_bits(x->b[k * PANEL + col + lane]) >> 16);
        }
        results[lane] = mok_tc16_block(starts[lane], a, b);
    }
    return _mm512_loadu_ps(results);
}

/* Largest exponents of a row's products with 32 columns. */
static inline void exponents(__m512i largest[2], const int32_t *a_exponent,
                             const int16_t *b_exponent)
{
    __m512i even = _mm512_set1_epi16(INT16_MIN);
    __m512i odd = even;
    for (int k = 0; k < BLOCK; k += 2) {
        const __m512i b0 = _mm512_loadu_si512((const void *)(b_exponent + k * PANEL));
        const __m512i b1 = _mm512_loadu_si512((const void *)(b_exponent + (k + 1) * PANEL));
        even = _mm512_max_epi16(even, _mm512_add_epi16(b0, _mm512_set1_epi32(a_exponent[k])));
        odd = _mm512_max_epi16(odd, _mm512_add_epi16(b1, _mm512_set1_epi32(a_exponent[k + 1])));
    }
    even = _mm512_max_epi16(even, odd);
    largest[0] = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(even));
    largest[1] = _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(even, 1));
}

/* c's exponent; -127 stands for zero and subnormals, which are below the window either way. */
static inline __m512i exponent_of(__m512 c)
{
    const __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(c), 1);
    return _mm512_sub_epi32(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(127));
}

/* 2^x for x + 127 = biased. */
static inline __m512 power_of(__m512i biased)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}

/* What the fast form of one vector rests on. */
typedef struct lanes {
    __m512i largest, e;
    __m512 c, r;
    __mmask16 carry, outside;
} lanes;

/* Lanes of all-zero products keep their c, the others outside the window take the rule. */
static inline __m512 settle(const lanes *x, const operands *at, int row, int col)
{
    const __mmask16 zeros =
        _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(MOK_PACK_ALL_ZERO), x->largest);
    const __mmask16 finite = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(128), exponent_of(x->c));
    const uint32_t keep = (uint32_t)zeros & (uint32_t)finite;
    const uint32_t slow = ((uint32_t)x->outside | (uint32_t)x->carry) & ~keep;
    const __m512 kept = _mm512_mask_blend_ps((__mmask16)keep, x->r, x->c);
    return slow != 0 ? repair(kept, x->c, slow, at, row, col) : kept;
}

/* One block of 16 for 2 x 32 lanes; c[2 * row + half] is updated. */
static inline __attribute__((always_inline)) void block(__m512 c[4], const operands *x)
{
    lanes v[4];
    __m512i sum[4], largest[4];
    __m512 s[4];
    uint32_t wrong = 0;
    exponents(largest, x->a_exponent, x->b_exponent);
    exponents(largest + 2, x->a_exponent + DEPTH, x->b_exponent);
    for (int i = 0; i < 4; i++) {
        v[i].c = c[i];
        v[i].largest = largest[i];
        v[i].e = _mm512_max_epi32(largest[i], exponent_of(c[i]));
        s[i] = power_of(_mm512_sub_epi32(_mm512_set1_epi32(25 + 127), v[i].e));
        sum[i] = _mm512_setzero_si512();
    }
    for (int k = 0; k < BLOCK; k++) {
        const __m512 b0 = _mm512_loadu_ps(x->b + k * PANEL);
        const __m512 b1 = _mm512_loadu_ps(x->b + k * PANEL + 16);
        const __m512 a0 = _mm512_set1_ps(x->a[k]);
        const __m512 a1 = _mm512_set1_ps(x->a[DEPTH + k]);
        sum[0] = _mm512_add_epi32(sum[0],
                                  _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_mul_ps(a0, b0), s[0])));
        sum[1] = _mm512_add_epi32(sum[1],
                                  _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_mul_ps(a0, b1), s[1])));
        sum[2] = _mm512_add_epi32(sum[2],
                                  _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_mul_ps(a1, b0), s[2])));
        sum[3] = _mm512_add_epi32(sum[3],
                                  _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_mul_ps(a1, b1), s[3])));
    }
    for (int i = 0; i < 4; i++) {
        /* The products' sum fits int32; with c it may not, which shows in the signs. */
        const __m512i start = _mm512_cvttps_epi32(_mm512_mul_ps(c[i], s[i]));
        const __m512i total = _mm512_add_epi32(sum[i], start);
        v[i].carry = _mm512_movepi32_mask(
            _mm512_and_si512(_mm512_xor_si512(sum[i], total), _mm512_xor_si512(start, total)));
        v[i].outside = _mm512_cmpgt_epi32_mask(v[i].e, _mm512_set1_epi32(E_MAX)) |
                       _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(E_MIN), v[i].e);
        v[i].r =
            _mm512_mul_ps(_mm512_cvt_roundepi32_ps(total, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC),
                          power_of(_mm512_add_epi32(v[i].e, _mm512_set1_epi32(127 - 25))));
        wrong |= (uint32_t)v[i].carry | (uint32_t)v[i].outside;
        c[i] = v[i].r;
    }
    if (__builtin_expect(wrong != 0, 0)) {
        for (int i = 0; i < 4; i++) {
            c[i] = settle(&v[i], x, i / 2, i % 2 * 16);
        }
    }
}

/* Two rows and one panel over all blocks of this piece of k. The second row may be missing: it was
 * packed as zeros, and nothing of it is stored. */
static inline void pair(float *c0, float *c1, operands x, int64_t blocks, uint32_t mask, bool both)
{
    const __mmask16 low = (__mmask16)(mask & 0xFFFF);
    const __mmask16 high = (__mmask16)(mask >> 16);
    __m512 c[4];
    c[0] = _mm512_maskz_loadu_ps(low, c0);
    c[1] = _mm512_maskz_loadu_ps(high, c0 + 16);
    c[2] = both ? _mm512_maskz_loadu_ps(low, c1) : _mm512_setzero_ps();
    c[3] = both ? _mm512_maskz_loadu_ps(high, c1 + 16) : _mm512_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        block(c, &x);
        x.a += BLOCK;
        x.a_exponent += BLOCK;
        x.b += BLOCK * PANEL;
        x.b_exponent += BLOCK * PANEL;
    }
    _mm512_mask_storeu_ps(c0, low, c[0]);
    _mm512_mask_storeu_ps(c0 + 16, high, c[1]);
    if (both) {
        _mm512_mask_storeu_ps(c1, low, c[2]);
        _mm512_mask_storeu_ps(c1 + 16, high, c[3]);
    }
}

void mok_avx512_product_tc16(float *c, int64_t c_stride, const mok_operand *a, const mok_operand *b,
                             int64_t m, int64_t n, int64_t k, void *scratch)
{
    mok_pack_scratch *pack = scratch;
    for (int64_t begin = 0; begin < k; begin += DEPTH) {
        const int64_t ks = k - begin < DEPTH ? k - begin : DEPTH;
        mok_pack_a(pack->tc16.a, pack->tc16.a_exponent, DEPTH, a, m, begin, ks);
        mok_pack_b(pack->tc16.b, pack->tc16.b_exponent, PANEL, DEPTH, b, n, begin, ks);
        for (int64_t col = 0; col < n; col += PANEL) {
            const uint32_t mask = n - col >= PANEL ? 0xFFFFFFFFu : (1u << (n - col)) - 1u;
            operands x = {pack->tc16.a, pack->tc16.a_exponent, pack->tc16.b + col * DEPTH,
                          pack->tc16.b_exponent + col * DEPTH};
            for (int64_t row = 0; row < m; row += 2) {
                float *corner = c + row * c_stride + col;
                pair(corner, corner + c_stride, x, (ks + BLOCK - 1) / BLOCK, mask, row + 1 < m);
                x.a += 2 * DEPTH;
                x.a_exponent += 2 * DEPTH;
            }
        }
    }
    mok_pack_finish(c, c_stride, m, n);
}
