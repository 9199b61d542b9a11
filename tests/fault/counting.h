/* An allocator that counts, fails on command and knows what is still held.
 *
 * Memory comes poisoned, so that code which relies on zeroed memory shows; a release must name the
 * bytes of its allocation, and poisons them again. All ranks of a group share one counter:
 * whichever rank makes the n-th allocation is the one that is refused. */
#ifndef MOK_TESTS_COUNTING_H
#define MOK_TESTS_COUNTING_H

#include <mok/mok.h>
#include <pthread.h>

typedef struct counting {
    pthread_mutex_t lock;
    int64_t calls;      /* allocations asked for */
    int64_t fail_at;    /* the call that fails, counted from 0; -1: none */
    int64_t live_count; /* allocations held */
    int64_t live_bytes;
    int64_t most_bytes; /* the largest live_bytes seen */
    int64_t bad_releases;
} counting;

void counting_open(counting *c);
void counting_close(counting *c);

/* Fails the call that is `n` calls away; -1 stops failing. Starts counting from 0 again. */
void counting_arm(counting *c, int64_t n);

mok_allocator counting_allocator(counting *c);

#endif
