/* The tensor core's fused sum of 16 products, as integers (docs/numerics.md, section 1.1).
 *
 * Every term is sig * 2^e with 1 <= sig < 2, or e = -126 and sig < 1 for a subnormal. A product's
 * exponent is the sum of its operands' exponents, its significand is not renormalised. All 17 terms
 * are cut toward zero to multiples of u = 2^(e_max - 25), summed exactly, and the sum is cut toward
 * zero to fp32:
 *
 *     e_max        e_max - 23  e_max - 25
 *       |<-- fp32 significand -->|..|            (a product in [2, 4) and carries lie to the left)
 *
 * In units of u a product is (8-bit sig * 8-bit sig) * 2^(11 - d) and c is (24-bit sig) * 2^(2 -
 * d), where d >= 0 is the term's distance from e_max. */
#ifndef MOK_NUMERICS_TC16_H
#define MOK_NUMERICS_TC16_H

#include "numerics/bits.h"

#define MOK_TC16_BLOCK 16
#define MOK_TC16_ZERO_EXPONENT (-133) /* what c = 0 counts as */

/* A term before alignment: sign, integer significand, exponent of the leading place. */
typedef struct mok_tc16_term {
    bool negative;
    bool infinite;
    bool nan;
    uint32_t sig; /* 16 bits for a product (14 after the point), 24 for c (23 after it) */
    int32_t exponent;
} mok_tc16_term;

MOK_HD static inline mok_tc16_term mok_tc16_product(uint16_t a, uint16_t b)
{
    const uint32_t ea = ((uint32_t)a >> 7) & 0xFFu, ma = a & 0x7Fu;
    const uint32_t eb = ((uint32_t)b >> 7) & 0xFFu, mb = b & 0x7Fu;
    const uint32_t sa = ea != 0 ? (ma | 0x80u) : ma;
    const uint32_t sb = eb != 0 ? (mb | 0x80u) : mb;
    mok_tc16_term term;
    term.negative = (((uint32_t)a ^ (uint32_t)b) & 0x8000u) != 0;
    term.nan = (ea == 0xFFu && (ma != 0 || sb == 0)) || (eb == 0xFFu && (mb != 0 || sa == 0));
    term.infinite = !term.nan && (ea == 0xFFu || eb == 0xFFu);
    term.sig = sa * sb;
    term.exponent = (int32_t)(ea != 0 ? ea : 1) + (int32_t)(eb != 0 ? eb : 1) - 254;
    return term;
}

MOK_HD static inline mok_tc16_term mok_tc16_addend(float c)
{
    const uint32_t bits = mok_f32_bits(c);
    const uint32_t e = (bits >> 23) & 0xFFu, m = bits & 0x7FFFFFu;
    mok_tc16_term term;
    term.negative = (bits >> 31) != 0;
    term.nan = e == 0xFFu && m != 0;
    term.infinite = e == 0xFFu && m == 0;
    term.sig = e != 0 ? (m | 0x800000u) : m;
    term.exponent = (int32_t)(e != 0 ? e : 1) - 127;
    return term;
}

/* The term in units of 2^(e_max - 25), cut toward zero. left is its shift at distance 0. */
MOK_HD static inline int64_t mok_tc16_align(const mok_tc16_term *term, int32_t left, int32_t e_max)
{
    int64_t magnitude = 0;
    if (term->sig != 0) {
        const int32_t shift = left - (e_max - term->exponent);
        if (shift >= 0) {
            magnitude = (int64_t)term->sig << shift;
        } else if (shift > -32) {
            magnitude = (int64_t)(term->sig >> -shift);
        }
    }
    return term->negative ? -magnitude : magnitude;
}

/* sum * 2^unit, cut toward zero to fp32; unit >= MOK_TC16_ZERO_EXPONENT - 25, |sum| < 2^33. */
MOK_HD static inline float mok_tc16_pack(int64_t sum, int32_t unit)
{
    const uint32_t sign = sum < 0 ? 0x80000000u : 0;
    const uint64_t magnitude = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    int32_t top = 0, exponent, lowest, shift;
    uint32_t sig;
    if (magnitude == 0) {
        return 0.0f;
    }
    while ((magnitude >> top) > 1) {
        top++;
    }
    exponent = top + unit;
    if (exponent > 127) {
        return mok_f32_of_bits(sign | MOK_F32_INF_BITS);
    }
    /* The last place that fp32 keeps: 23 below the leading one, but never below 2^-149. */
    lowest = exponent >= -126 ? exponent - 23 : -149;
    shift = lowest - unit;
    sig = (uint32_t)(shift >= 0 ? magnitude >> shift : magnitude << -shift);
    if (sig == 0) {
        return 0.0f;
    }
    return mok_f32_of_bits(exponent >= -126
                               ? sign | ((uint32_t)(exponent + 127) << 23) | (sig & 0x7FFFFFu)
                               : sign | sig);
}

/* One block: c plus the 16 products a[i] * b[i]. */
MOK_HD static inline float mok_tc16_block(float c, const uint16_t a[MOK_TC16_BLOCK],
                                          const uint16_t b[MOK_TC16_BLOCK])
{
    const mok_tc16_term addend = mok_tc16_addend(c);
    bool nan = addend.nan;
    bool plus_infinity = addend.infinite && !addend.negative;
    bool minus_infinity = addend.infinite && addend.negative;
    int32_t e_max = addend.sig != 0 ? addend.exponent : MOK_TC16_ZERO_EXPONENT;
    int64_t sum;
    int i;
    for (i = 0; i < MOK_TC16_BLOCK; i++) {
        const mok_tc16_term term = mok_tc16_product(a[i], b[i]);
        nan = nan || term.nan;
        plus_infinity = plus_infinity || (term.infinite && !term.negative);
        minus_infinity = minus_infinity || (term.infinite && term.negative);
        if (term.sig != 0 && term.exponent > e_max) {
            e_max = term.exponent;
        }
    }
    if (nan || (plus_infinity && minus_infinity)) {
        return mok_f32_nan();
    }
    if (plus_infinity || minus_infinity) {
        return mok_f32_of_bits(minus_infinity ? 0x80000000u | MOK_F32_INF_BITS : MOK_F32_INF_BITS);
    }
    sum = mok_tc16_align(&addend, 2, e_max);
    for (i = 0; i < MOK_TC16_BLOCK; i++) {
        const mok_tc16_term term = mok_tc16_product(a[i], b[i]);
        sum += mok_tc16_align(&term, 11, e_max);
    }
    return mok_tc16_pack(sum, e_max - 25);
}

#endif
