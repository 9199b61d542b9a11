/* SwiGLU and its gradient, plain and clamped. */
#include "check.h"

#include <string.h>

static mok_swiglu draw_swiglu(check *c)
{
    static const float limits[] = {0.0f, 0.5f, 7.0f, 1e-20f, 3e38f};
    const mok_swiglu swiglu = {check_below(c, 2) == 0, limits[check_below(c, 5)]};
    return swiglu;
}

static float *floats(check *c, guarded *g, int64_t n, mood m)
{
    *g = guarded_open((size_t)n * sizeof(float));
    float *data = (float *)(void *)g->data;
    for (int64_t i = 0; i < n; i++) {
        data[i] = check_f32(c, m);
    }
    return data;
}

static uint16_t *halves(check *c, guarded *g, int64_t n, mood m)
{
    *g = guarded_open((size_t)n * sizeof(uint16_t));
    uint16_t *data = (uint16_t *)(void *)g->data;
    for (int64_t i = 0; i < n; i++) {
        data[i] = check_bf16(c, m);
    }
    return data;
}

#define OUTPUTS 3

/* want and got: three outputs each, poisoned alike. */
static void outputs_open(check *c, banded out[2][OUTPUTS], int64_t n)
{
    const unsigned char poison = check_below(c, 2) == 0 ? 0xFF : 0x11;
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < OUTPUTS; i++) {
            out[side][i] = banded_open(c, (size_t)n * sizeof(uint16_t), sizeof(uint16_t));
            banded_fill(&out[side][i], poison);
        }
    }
}

static uint16_t *output(const banded *b)
{
    return (uint16_t *)(void *)b->data;
}

static void outputs_close(check *c, banded out[2][OUTPUTS], const char *const names[OUTPUTS])
{
    for (int i = 0; i < OUTPUTS; i++) {
        check_equal(c, names[i], out[1][i].data, out[0][i].data, out[0][i].bytes, sizeof(uint16_t));
        check_true(c, "bands of swiglu", banded_whole(&out[1][i]));
        banded_close(&out[0][i]);
        banded_close(&out[1][i]);
    }
}

void check_swiglu_forward(check *c)
{
    static const char *const names[OUTPUTS] = {"swiglu_forward h", "swiglu_forward g",
                                               "swiglu_forward u"};
    const int64_t n = check_size(c, 300);
    const mok_swiglu swiglu = draw_swiglu(c);
    guarded g;
    guarded u;
    banded out[2][OUTPUTS];
    const float *acc_g = floats(c, &g, n, check_mood(c));
    const float *acc_u = floats(c, &u, n, check_mood(c));
    outputs_open(c, out, n);
    c->ref->swiglu_forward(output(&out[0][0]), output(&out[0][1]), output(&out[0][2]), acc_g, acc_u,
                           n, &swiglu);
    c->candidate->swiglu_forward(output(&out[1][0]), output(&out[1][1]), output(&out[1][2]), acc_g,
                                 acc_u, n, &swiglu);
    outputs_close(c, out, names);
    guarded_close(&g);
    guarded_close(&u);
}

void check_swiglu_backward(check *c)
{
    static const char *const names[OUTPUTS] = {"swiglu_backward dg", "swiglu_backward du",
                                               "swiglu_backward hw"};
    const int64_t n = check_size(c, 128);
    const mok_swiglu swiglu = draw_swiglu(c);
    guarded memory[3];
    banded out[2][OUTPUTS];
    const float *s = floats(c, &memory[0], n, check_mood(c));
    const uint16_t *g = halves(c, &memory[1], n, check_mood(c));
    const uint16_t *u = halves(c, &memory[2], n, check_mood(c));
    const float w = check_f32(c, check_below(c, 2) == 0 ? MOOD_BELL : MOOD_WIDE);
    outputs_open(c, out, n);
    const float want = c->ref->swiglu_backward(output(&out[0][0]), output(&out[0][1]),
                                               output(&out[0][2]), s, g, u, w, n, &swiglu);
    const float got = c->candidate->swiglu_backward(output(&out[1][0]), output(&out[1][1]),
                                                    output(&out[1][2]), s, g, u, w, n, &swiglu);
    check_equal(c, "swiglu_backward router part", &got, &want, sizeof want, sizeof want);
    outputs_close(c, out, names);
    for (int i = 0; i < 3; i++) {
        guarded_close(&memory[i]);
    }
}
