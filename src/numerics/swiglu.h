/* SwiGLU and its derivative for one element, clamped where asked (docs/layer.md, forward 3,
 * backward 3-6).
 *
 *   forward    h = silu(g') * u'                     g' = min(g, limit), u' = clamp(u, -limit,
 * limit) backward   dg = ((w s) u') dsilu(g'), +0 where g > limit du = (w s) silu(g'),       +0
 * where |u| > limit
 *
 * A NaN passes through the clamps, since every comparison with it is false. */
#ifndef MOK_NUMERICS_SWIGLU_H
#define MOK_NUMERICS_SWIGLU_H

#include "numerics/bf16.h"
#include "numerics/exp.h"

MOK_HD static inline float mok_swiglu_gate(float g, bool clamped, float limit)
{
    return clamped && g > limit ? limit : g;
}

MOK_HD static inline float mok_swiglu_up(float u, bool clamped, float limit)
{
    if (clamped && u > limit) {
        return limit;
    }
    return clamped && u < -limit ? -limit : u;
}

/* h before it is rounded to bf16. */
MOK_HD static inline float mok_swiglu_h32(uint16_t g, uint16_t u, bool clamped, float limit)
{
    return mok_silu_f32(mok_swiglu_gate(mok_bf16_widen(g), clamped, limit)) *
           mok_swiglu_up(mok_bf16_widen(u), clamped, limit);
}

typedef struct mok_swiglu_gradient {
    uint16_t dg;
    uint16_t du;
    uint16_t hw;
    float product; /* s * bf16(h32), a term of the router weight's gradient */
} mok_swiglu_gradient;

MOK_HD static inline mok_swiglu_gradient mok_swiglu_backward_one(float s, uint16_t g, uint16_t u,
                                                                 float w, bool clamped, float limit)
{
    const float g32 = mok_bf16_widen(g), u32 = mok_bf16_widen(u);
    const float g_used = mok_swiglu_gate(g32, clamped, limit);
    const float u_used = mok_swiglu_up(u32, clamped, limit);
    const float silu = mok_silu_f32(g_used);
    const float h32 = silu * u_used;
    const float dh = w * s;
    mok_swiglu_gradient out;
    out.dg = mok_bf16_round((dh * u_used) * mok_dsilu_f32(g_used));
    out.du = mok_bf16_round(dh * silu);
    if (clamped && g32 > limit) {
        out.dg = 0;
    }
    if (clamped && (u32 > limit || u32 < -limit)) {
        out.du = 0;
    }
    out.hw = mok_bf16_round(w * h32);
    out.product = s * mok_bf16_widen(mok_bf16_round(h32));
    return out;
}

#endif
