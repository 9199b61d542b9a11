/* An allocator that counts and fails on command; see counting.h. */
#include "counting.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TAG_BYTES 64 /* keeps the caller's alignment, which is a cache line at most */

typedef struct tag {
    uint64_t magic;
    size_t bytes;
} tag;

#define TAG_MAGIC 0x6D6F6B2D74616721ULL

static void *counting_allocate(void *context, size_t bytes, size_t alignment)
{
    counting *c = context;
    pthread_mutex_lock(&c->lock);
    const int64_t call = c->calls++;
    const bool refused = call == c->fail_at;
    pthread_mutex_unlock(&c->lock);
    void *memory = NULL;
    if (refused || alignment > TAG_BYTES ||
        posix_memalign(&memory, TAG_BYTES, bytes + TAG_BYTES) != 0) {
        return NULL;
    }
    const tag mark = {TAG_MAGIC, bytes};
    memcpy(memory, &mark, sizeof mark);
    memset((unsigned char *)memory + TAG_BYTES, 0xDB, bytes);
    pthread_mutex_lock(&c->lock);
    c->live_count++;
    c->live_bytes += (int64_t)bytes;
    c->most_bytes = c->live_bytes > c->most_bytes ? c->live_bytes : c->most_bytes;
    pthread_mutex_unlock(&c->lock);
    return (unsigned char *)memory + TAG_BYTES;
}

static void counting_release(void *context, void *memory, size_t bytes)
{
    counting *c = context;
    unsigned char *start = (unsigned char *)memory - TAG_BYTES;
    tag mark;
    memcpy(&mark, start, sizeof mark);
    pthread_mutex_lock(&c->lock);
    if (mark.magic != TAG_MAGIC || mark.bytes != bytes) {
        c->bad_releases++;
    }
    c->live_count--;
    c->live_bytes -= (int64_t)mark.bytes;
    pthread_mutex_unlock(&c->lock);
    memset(start, 0xDE, TAG_BYTES + bytes);
    free(start);
}

void counting_open(counting *c)
{
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    c->fail_at = -1;
}

void counting_close(counting *c)
{
    pthread_mutex_destroy(&c->lock);
}

void counting_arm(counting *c, int64_t n)
{
    pthread_mutex_lock(&c->lock);
    c->calls = 0;
    c->fail_at = n;
    pthread_mutex_unlock(&c->lock);
}

mok_allocator counting_allocator(counting *c)
{
    const mok_allocator allocator = {counting_allocate, counting_release, c};
    return allocator;
}
