/* The check harness: every kernel of every level against level ref, byte for byte.
 *
 * A case draws its sizes and data from a seed, so that a failing one can be run alone. Inputs end
 * at a page that must not be read; outputs stand between bands that must not be written, and are
 * poisoned in two ways. */
#ifndef MOK_TESTS_CHECK_H
#define MOK_TESTS_CHECK_H

#include <stdarg.h>

#include "cpu/kernels.h"

typedef struct check {
    const mok_kernels *ref, *candidate;
    uint64_t seed;  /* of the case that runs */
    uint64_t state; /* of its random numbers */
    int64_t compared, different;
    int32_t cases;
    bool bench;
} check;

/* ---- Random data ---- */

uint64_t check_next(check *c);
int64_t check_below(check *c, int64_t bound); /* [0, bound) */

/* A size near an edge of the kernels: 0, 1, around 8, 16, 32, 64, 128, 256, at most `most`. */
int64_t check_size(check *c, int64_t most);

/* Values of one mood a call: small integers, bell-shaped, wide exponents, subnormal, zeros and
 * ones, huge, with infinities and NaNs of any payload, any bits. */
typedef enum mood {
    MOOD_INTEGERS,
    MOOD_BELL,
    MOOD_WIDE,
    MOOD_SUBNORMAL,
    MOOD_ZEROS,
    MOOD_HUGE,
    MOOD_SPECIAL,
    MOOD_BITS,
    MOOD_CANCEL, /* pairs of opposite values */
    MOODS
} mood;

mood check_mood(check *c);
uint16_t check_bf16(check *c, mood m);
float check_f32(check *c, mood m);

/* ---- Memory ---- */

/* Memory whose last byte stands before a page that faults; `shift` bytes of misalignment in front.
 */
typedef struct guarded {
    unsigned char *data;
    size_t bytes;
    void *map;
    size_t map_bytes;
} guarded;

guarded guarded_open(size_t bytes);
void guarded_close(guarded *g);

/* An output: bands on both sides. */
typedef struct banded {
    unsigned char *data;
    size_t bytes;
    unsigned char *block;
} banded;

banded banded_open(check *c, size_t bytes, size_t alignment);
void banded_fill(banded *b, unsigned char poison);
bool banded_whole(const banded *b);
void banded_close(banded *b);

/* ---- Verdicts ---- */

/* Counts a comparison of two outputs; a difference prints operation, level, seed and element. */
void check_equal(check *c, const char *what, const void *got, const void *want, size_t bytes,
                 size_t element);
void check_true(check *c, const char *what, bool held);

/* ---- Operations ---- */

void check_product_tc16(check *c);
void check_product_fma(check *c);
void check_swiglu_forward(check *c);
void check_swiglu_backward(check *c);
void check_combine(check *c);
void check_elementwise(check *c);

/* Rates of what was just compared; NULL name ends the list. */
typedef struct rate {
    const char *name;
    double value;
    const char *unit;
} rate;

double check_seconds(void);
rate bench_product_tc16(const mok_kernels *kernels);
rate bench_product_fma(const mok_kernels *kernels);

#endif
