/* Folds of a token's slots, with and without a shared part and masked routes. */
#include "check.h"

#define MOST_SLOTS 9

void check_combine(check *c)
{
    const int64_t n = check_size(c, 300);
    const int64_t slots = check_below(c, MOST_SLOTS + 1);
    const mood m = check_mood(c);
    guarded rows = guarded_open((size_t)(slots * n) * sizeof(uint16_t));
    guarded shared = guarded_open((size_t)n * sizeof(uint16_t));
    uint16_t *y = (uint16_t *)(void *)rows.data;
    uint16_t *s = (uint16_t *)(void *)shared.data;
    float weights[MOST_SLOTS + 1];
    int32_t routes[MOST_SLOTS + 1];
    for (int64_t i = 0; i < slots * n; i++) {
        y[i] = check_bf16(c, m);
    }
    for (int64_t i = 0; i < n; i++) {
        s[i] = check_bf16(c, check_below(c, 8) == 0 ? MOOD_ZEROS : m);
    }
    for (int64_t k = 0; k < slots; k++) {
        weights[k] = check_f32(c, check_below(c, 2) == 0 ? MOOD_BELL : MOOD_WIDE);
        routes[k] = check_below(c, 3) == 0 ? -1 : (int32_t)check_below(c, 100);
    }
    const uint16_t *part = check_below(c, 2) == 0 ? s : NULL;
    for (int backward = 0; backward < 2; backward++) {
        banded want = banded_open(c, (size_t)n * sizeof(uint16_t), sizeof(uint16_t));
        banded got = banded_open(c, (size_t)n * sizeof(uint16_t), sizeof(uint16_t));
        banded_fill(&want, 0xFF);
        banded_fill(&got, 0xFF);
        uint16_t *a = (uint16_t *)(void *)want.data;
        uint16_t *b = (uint16_t *)(void *)got.data;
        if (backward != 0) {
            c->ref->combine_backward(a, part, y, routes, slots, n);
            c->candidate->combine_backward(b, part, y, routes, slots, n);
        } else {
            c->ref->combine_forward(a, part, y, weights, routes, slots, n);
            c->candidate->combine_forward(b, part, y, weights, routes, slots, n);
        }
        check_equal(c, backward != 0 ? "combine_backward" : "combine_forward", b, a, want.bytes,
                    sizeof *a);
        check_true(c, "bands of combine", banded_whole(&got));
        banded_close(&want);
        banded_close(&got);
    }
    guarded_close(&rows);
    guarded_close(&shared);
}
