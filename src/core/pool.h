/* A rank's worker threads.
 *
 * The caller is worker 0; threads - 1 helpers sleep until a job comes, run it once each and sleep
 * again. Helpers look for work for a short while before they sleep, where there are cores enough
 * for that (spin_count), since a trainer hands out thousands of short jobs a second.
 *
 *   caller:  job, generation + 1, wake ----> runs as worker 0 ----> waits until pending is 0
 *   helper:  waits for a new generation ---> runs as worker i ----> pending - 1
 *
 * Ordering: the job is published by the release of generation and taken by its acquire; results
 * come back by the release of pending and its acquire. */
#ifndef MOK_CORE_POOL_H
#define MOK_CORE_POOL_H

#include "core/memory.h"

typedef struct mok_pool mok_pool;
typedef void (*mok_job)(void *context, int32_t worker);

/* Errors: MEMORY, also when a thread cannot be started. */
mok_status mok_pool_open(mok_pool **out, const mok_allocator *allocator, int32_t threads,
                         int32_t spin_count);
void mok_pool_close(mok_pool **pool);

/* Runs job on every worker, the caller included, and returns when all have returned.
 * Errors: STATE when called from a job, whose workers are all taken; nothing is run then. */
mok_status mok_pool_run(mok_pool *pool, mok_job job, void *context);

size_t mok_pool_bytes(int32_t threads);

#endif
