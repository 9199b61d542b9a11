/* A rank's worker threads; see pool.h for the protocol. */
#include "core/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/fpenv.h"
#include "core/relax.h"

typedef struct helper {
    mok_pool *pool;
    pthread_t thread;
    int32_t worker;
} helper;

struct mok_pool {
    mok_allocator allocator;
    int32_t threads;
    int32_t started; /* helpers that exist */
    int32_t spin_count;
    mok_job job;
    void *context;
    _Atomic uint32_t generation;
    _Atomic int32_t pending;
    _Atomic bool stop;
    _Atomic bool busy; /* a job is being run: it cannot hand out another */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_cond_t done;
    helper helpers[];
};

size_t mok_pool_bytes(int32_t threads)
{
    return sizeof(mok_pool) + sizeof(helper) * (size_t)(threads - 1);
}

/* Waits until generation differs from seen. */
static void wait_for_job(mok_pool *pool, uint32_t seen)
{
    for (int32_t spin = 0; spin < pool->spin_count; spin++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen) {
            return;
        }
        mok_cpu_relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->generation, memory_order_acquire) == seen) {
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

static void *helper_main(void *argument)
{
    helper *self = argument;
    mok_pool *pool = self->pool;
    uint32_t seen = 0;
    for (;;) {
        wait_for_job(pool, seen);
        seen++;
        if (atomic_load_explicit(&pool->stop, memory_order_acquire)) {
            return NULL;
        }
        const uint32_t environment = mok_fpenv_enter();
        pool->job(pool->context, self->worker);
        mok_fpenv_leave(environment);
        if (atomic_fetch_sub_explicit(&pool->pending, 1, memory_order_acq_rel) == 1) {
            /* The lock makes sure that the caller is either before its check or asleep. */
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static void publish(mok_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

/* Waits until every helper has come back. */
static void wait_for_helpers(mok_pool *pool)
{
    for (int32_t spin = 0; spin < pool->spin_count; spin++) {
        if (atomic_load_explicit(&pool->pending, memory_order_acquire) == 0) {
            return;
        }
        mok_cpu_relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->pending, memory_order_acquire) != 0) {
        pthread_cond_wait(&pool->done, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

mok_status mok_pool_run(mok_pool *pool, mok_job job, void *context)
{
    MOK_REQUIRE(!atomic_exchange_explicit(&pool->busy, true, memory_order_acquire), MOK_ERROR_STATE,
                "the workers of this rank are at work: a job cannot hand out another");
    const uint32_t environment = mok_fpenv_enter();
    if (pool->threads > 1) {
        pool->job = job;
        pool->context = context;
        atomic_store_explicit(&pool->pending, pool->threads - 1, memory_order_relaxed);
        publish(pool);
    }
    job(context, 0);
    mok_fpenv_leave(environment);
    if (pool->threads > 1) {
        wait_for_helpers(pool);
    }
    atomic_store_explicit(&pool->busy, false, memory_order_release);
    return MOK_OK;
}

mok_status mok_pool_open(mok_pool **out, const mok_allocator *allocator, int32_t threads,
                         int32_t spin_count)
{
    *out = NULL;
    mok_pool *pool = mok_allocate(allocator, mok_pool_bytes(threads));
    MOK_REQUIRE(pool != NULL, MOK_ERROR_MEMORY, "no memory for %d workers", threads);
    pool->allocator = *allocator;
    pool->threads = threads;
    pool->started = 0;
    pool->spin_count = spin_count;
    pool->job = NULL;
    pool->context = NULL;
    atomic_init(&pool->generation, 0);
    atomic_init(&pool->pending, 0);
    atomic_init(&pool->stop, false);
    atomic_init(&pool->busy, false);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int32_t i = 0; i < threads - 1; i++) {
        helper *self = &pool->helpers[i];
        self->pool = pool;
        self->worker = i + 1;
        if (pthread_create(&self->thread, NULL, helper_main, self) != 0) {
            mok_pool_close(&pool);
            return mok_fail(MOK_ERROR_MEMORY, "worker thread %d of %d could not be started", i + 1,
                            threads);
        }
        pool->started++;
    }
    *out = pool;
    return MOK_OK;
}

void mok_pool_close(mok_pool **pool)
{
    if (pool == NULL || *pool == NULL) {
        return;
    }
    mok_pool *old = *pool;
    atomic_store_explicit(&old->stop, true, memory_order_release);
    publish(old);
    for (int32_t i = 0; i < old->started; i++) {
        pthread_join(old->helpers[i].thread, NULL);
    }
    pthread_mutex_destroy(&old->lock);
    pthread_cond_destroy(&old->wake);
    pthread_cond_destroy(&old->done);
    const mok_allocator allocator = old->allocator;
    mok_release(&allocator, old, mok_pool_bytes(old->threads));
    *pool = NULL;
}
