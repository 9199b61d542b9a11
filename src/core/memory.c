/* Memory through the caller's allocator, and sizes that cannot wrap. */
#include "core/memory.h"

#include <stdlib.h>

void *mok_allocate(const mok_allocator *allocator, size_t bytes)
{
    if (bytes > SIZE_MAX - MOK_CACHE_LINE) {
        return NULL;
    }
    return allocator->allocate(allocator->context, bytes > 0 ? bytes : 1, MOK_CACHE_LINE);
}

void mok_release(const mok_allocator *allocator, void *memory, size_t bytes)
{
    if (memory != NULL) {
        allocator->release(allocator->context, memory, bytes > 0 ? bytes : 1);
    }
}

static void *default_allocate(void *context, size_t bytes, size_t alignment)
{
    void *memory = NULL;
    (void)context;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void default_release(void *context, void *memory, size_t bytes)
{
    (void)context;
    (void)bytes;
    free(memory);
}

mok_allocator mok_allocator_default(void)
{
    const mok_allocator allocator = {default_allocate, default_release, NULL};
    return allocator;
}

size_t mok_extent_add(mok_extent *extent, int64_t n0, int64_t n1, int64_t n2, size_t element_bytes)
{
    const size_t offset = extent->bytes;
    size_t bytes = 0;
    if (n0 < 0 || n1 < 0 || n2 < 0 || __builtin_mul_overflow((size_t)n0, (size_t)n1, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)n2, &bytes) ||
        __builtin_mul_overflow(bytes, element_bytes, &bytes) ||
        __builtin_add_overflow(bytes, MOK_CACHE_LINE - 1, &bytes)) {
        extent->overflow = true;
        return 0;
    }
    bytes -= bytes % MOK_CACHE_LINE;
    if (__builtin_add_overflow(offset, bytes, &extent->bytes)) {
        extent->overflow = true;
        extent->bytes = 0;
    }
    return offset;
}
