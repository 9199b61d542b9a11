/* What every file of the trainer uses: errors with a text, work over rows, descriptions of
 * products.
 *
 * The library keeps its own error text for each thread; a program cannot write into it. So a
 * function here that finds a mistake writes into the `why` buffer its caller passes, and where the
 * library failed the text is copied from mok_last_error(). train_agree makes every rank end with
 * one status and one text. */
#ifndef TRAIN_COMMON_H
#define TRAIN_COMMON_H

#include <mok/mok_experimental.h>

#define TRAIN_WHY_BYTES 320

#define TRAIN_TRY(call)                                                                            \
    do {                                                                                           \
        const mok_status train_try_ = (call);                                                      \
        if (train_try_ != MOK_OK) {                                                                \
            return train_try_;                                                                     \
        }                                                                                          \
    } while (0)

/* Writes the text and returns the status. why may be NULL. */
mok_status train_fail(char *why, mok_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Every rank passes its own status and text; every rank returns those of the lowest rank that
 * failed. Collective. */
mok_status train_agree(mok_comm *comm, mok_status mine, char *why);

/* run(context, begin, end) over [0, rows) in stretches of TRAIN_ROW_STRETCH on this rank's workers.
 * Rows must be independent of each other. */
#define TRAIN_ROW_STRETCH 16
typedef void (*train_rows_fn)(void *context, int64_t begin, int64_t end);
mok_status train_rows(mok_comm *comm, int64_t rows, train_rows_fn run, void *context);

/* C [m, n] = A [m, k] times B [n, k] transposed; flags below say which side is stored the other
 * way. */
#define TRAIN_A_TRANSPOSED 1u
#define TRAIN_B_TRANSPOSED 2u
mok_product train_product(int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t a_stride,
                          const uint16_t *b, int64_t b_stride, unsigned flags);
mok_product train_product_to_f32(mok_product product, float *c, int64_t c_stride);
mok_product train_product_to_bf16(mok_product product, uint16_t *c, int64_t c_stride);

/* Sums in an order fixed by the length alone: eight running sums, folded at distances 4, 2, 1. */
float train_sum(const float *x, int64_t count);
float train_sum_squares(const float *x, int64_t count);
float train_dot(const float *x, const float *y, int64_t count);
double train_sum_squares_double(const float *x, int64_t count);

static inline int64_t train_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t train_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t train_round_up(int64_t value, int64_t to)
{
    return (value + to - 1) / to * to;
}

/* Contiguous even split of count things over ranks; the first ones get one more. */
static inline int64_t train_split_count(int64_t count, int64_t ranks, int64_t rank)
{
    return count / ranks + (rank < count % ranks ? 1 : 0);
}

static inline int64_t train_split_begin(int64_t count, int64_t ranks, int64_t rank)
{
    return count / ranks * rank + train_min(rank, count % ranks);
}

/* Which part of such a split holds `idx`. */
static inline int64_t train_owner(int64_t count, int64_t ranks, int64_t idx)
{
    int64_t rank = 0;
    while (idx >= train_split_begin(count, ranks, rank) + train_split_count(count, ranks, rank)) {
        rank++;
    }
    return rank;
}

/* One block of memory cut into pieces. With base NULL it only measures, so that the same code that
 * places the pieces says how many bytes they need. */
typedef struct train_arena {
    unsigned char *base;
    size_t used;
} train_arena;

/* Next piece, 64-byte aligned; NULL while measuring. Sizes were bounded by train_config_check. */
void *train_arena_take(train_arena *arena, int64_t count, size_t element_bytes);

#endif
