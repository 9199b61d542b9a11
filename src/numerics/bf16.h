/* bf16: the upper half of an fp32. Rounded to nearest even, subnormals kept, any NaN becomes
 * 0x7FFF.
 *
 * docs/numerics.md, section 2. A device's cvt.rn.bf16.f32 gives the same for every input. */
#ifndef MOK_NUMERICS_BF16_H
#define MOK_NUMERICS_BF16_H

#include "numerics/bits.h"

#define MOK_BF16_NAN 0x7FFFu

/* Adding half an ulp, less one where the kept part is even, carries into the kept part exactly when
 * the value must be rounded up; a carry out of the significand raises the exponent, at the end to
 * infinity. */
MOK_HD static inline uint16_t mok_bf16_round(float x)
{
    const uint32_t bits = mok_f32_bits(x);
    if (mok_f32_is_nan(x)) {
        return (uint16_t)MOK_BF16_NAN;
    }
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/* Exact; a NaN keeps its payload. */
MOK_HD static inline float mok_bf16_widen(uint16_t x)
{
    return mok_f32_of_bits((uint32_t)x << 16);
}

#endif
