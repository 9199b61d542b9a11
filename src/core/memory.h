/* Memory through the caller's allocator, and sizes that cannot wrap.
 *
 * Everything the library holds is taken here, aligned to a cache line, so that one hook sees every
 * allocation (tests/fault makes each of them fail in turn). A mok_extent adds up the parts of one
 * block of memory: parts are placed one after another, each on a cache line, and a sum that passes
 * SIZE_MAX is remembered instead of wrapping. The same extent code gives sizes to callers and
 * offsets to the layer. */
#ifndef MOK_CORE_MEMORY_H
#define MOK_CORE_MEMORY_H

#include "core/status.h"

#define MOK_CACHE_LINE 64

/* NULL when out of memory; zero bytes give a valid pointer. Contents are undefined. */
void *mok_allocate(const mok_allocator *allocator, size_t bytes);
void mok_release(const mok_allocator *allocator, void *memory, size_t bytes);

/* The C library's allocator. */
mok_allocator mok_allocator_default(void);

typedef struct mok_extent {
    size_t bytes;
    bool overflow;
} mok_extent;

/* Places a part of n0 * n1 * n2 elements and returns its offset. Negative counts count as overflow.
 */
size_t mok_extent_add(mok_extent *extent, int64_t n0, int64_t n1, int64_t n2, size_t element_bytes);

static inline int64_t mok_ceil_div(int64_t value, int64_t step)
{
    return value / step + (value % step != 0);
}

static inline int64_t mok_round_up(int64_t value, int64_t step)
{
    return mok_ceil_div(value, step) * step;
}

static inline int64_t mok_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t mok_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
