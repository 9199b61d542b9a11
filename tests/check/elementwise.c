/* Conversions, exp, sigmoid, and the addition into a main gradient; also in place. */
#include "check.h"

#include <string.h>

typedef void (*map_fn)(float *out, const float *x, int64_t n);

static void check_map(check *c, const char *what, map_fn ref, map_fn candidate, const float *x,
                      int64_t n)
{
    banded want = banded_open(c, (size_t)n * sizeof(float), sizeof(float));
    banded got = banded_open(c, (size_t)n * sizeof(float), sizeof(float));
    const bool in_place = check_below(c, 2) == 0;
    banded_fill(&want, 0x77);
    banded_fill(&got, 0x77);
    float *to = (float *)(void *)got.data;
    if (in_place && n > 0) {
        memcpy(to, x, (size_t)n * sizeof *x);
    }
    ref((float *)(void *)want.data, x, n);
    candidate(to, in_place ? to : x, n);
    check_equal(c, what, got.data, want.data, want.bytes, sizeof(float));
    check_true(c, "bands of a map", banded_whole(&got));
    banded_close(&want);
    banded_close(&got);
}

static void check_accumulate(check *c, const float *x, int64_t n)
{
    banded want = banded_open(c, (size_t)n * sizeof(float), sizeof(float));
    banded got = banded_open(c, (size_t)n * sizeof(float), sizeof(float));
    const mood m = check_mood(c);
    banded_fill(&want, 0);
    banded_fill(&got, 0);
    float *main_want = (float *)(void *)want.data;
    for (int64_t i = 0; i < n; i++) {
        main_want[i] = check_f32(c, m);
    }
    if (n > 0) {
        memcpy(got.data, want.data, want.bytes);
    }
    c->ref->accumulate(main_want, x, n);
    c->candidate->accumulate((float *)(void *)got.data, x, n);
    check_equal(c, "accumulate", got.data, want.data, want.bytes, sizeof(float));
    check_true(c, "bands of accumulate", banded_whole(&got));
    banded_close(&want);
    banded_close(&got);
}

static void check_conversions(check *c, const float *x, int64_t n)
{
    banded want = banded_open(c, (size_t)n * sizeof(uint16_t), sizeof(uint16_t));
    banded got = banded_open(c, (size_t)n * sizeof(uint16_t), sizeof(uint16_t));
    banded_fill(&want, 0x33);
    banded_fill(&got, 0x33);
    c->ref->bf16_from_f32((uint16_t *)(void *)want.data, x, n);
    c->candidate->bf16_from_f32((uint16_t *)(void *)got.data, x, n);
    check_equal(c, "bf16_from_f32", got.data, want.data, want.bytes, sizeof(uint16_t));
    check_true(c, "bands of bf16_from_f32", banded_whole(&got));

    guarded narrow = guarded_open((size_t)n * sizeof(uint16_t));
    uint16_t *values = (uint16_t *)(void *)narrow.data;
    banded want32 = banded_open(c, (size_t)n * sizeof(float), sizeof(float));
    banded got32 = banded_open(c, (size_t)n * sizeof(float), sizeof(float));
    banded_fill(&want32, 0x33);
    banded_fill(&got32, 0x33);
    for (int64_t i = 0; i < n; i++) {
        values[i] = check_bf16(c, MOOD_BITS);
    }
    c->ref->f32_from_bf16((float *)(void *)want32.data, values, n);
    c->candidate->f32_from_bf16((float *)(void *)got32.data, values, n);
    check_equal(c, "f32_from_bf16", got32.data, want32.data, want32.bytes, sizeof(float));
    check_true(c, "bands of f32_from_bf16", banded_whole(&got32));
    guarded_close(&narrow);
    banded_close(&want);
    banded_close(&got);
    banded_close(&want32);
    banded_close(&got32);
}

void check_elementwise(check *c)
{
    const int64_t n = check_size(c, 500);
    const mood m = check_mood(c);
    guarded memory = guarded_open((size_t)n * sizeof(float));
    float *x = (float *)(void *)memory.data;
    for (int64_t i = 0; i < n; i++) {
        /* Halves of bf16 steps are ties; a part is near the ends of exp's range. */
        x[i] = check_f32(c, m);
        if (check_below(c, 8) == 0) {
            x[i] = (float)(check_below(c, 2000000) - 1060000) * 1e-4f;
        } else if (check_below(c, 8) == 0) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            bits = (bits & 0xFFFF0000u) | 0x8000u;
            memcpy(&x[i], &bits, sizeof bits);
        }
    }
    check_map(c, "exp", c->ref->exp, c->candidate->exp, x, n);
    check_map(c, "sigmoid", c->ref->sigmoid, c->candidate->sigmoid, x, n);
    check_accumulate(c, x, n);
    check_conversions(c, x, n);
    guarded_close(&memory);
}
