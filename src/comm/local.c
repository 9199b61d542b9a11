/* Virtual ranks: several ranks in one process, memory shared as it is.
 *
 * A group outlives its first closed rank: peers may still read what that rank shared, so control blocks
 * and symmetric parts go with the last rank. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "core/fpenv.h"

typedef struct mok_symmetric_entry {
    struct mok_symmetric_entry *next;
    unsigned char *memory;
    size_t bytes;
    int32_t holder_count; /* ranks that have not released it */
} mok_symmetric_entry;

typedef struct mok_group {
    mok_allocator allocator;
    pthread_mutex_t lock;
    int32_t open_count;
    int32_t ranks;
    mok_control *control[MOK_MAX_RANKS];
    mok_symmetric_entry *entries;
} mok_group;

void mok_comm_config_init(mok_comm_config *config)
{
    if (config != NULL) {
        memset(config, 0, sizeof *config);
        config->struct_bytes = sizeof *config;
        config->threads = 1;
        config->timeout_ms = 30000;
        config->level = MOK_LEVEL_AUTO;
        config->allocator = mok_allocator_default();
    }
}

static size_t scratch_stride(const mok_kernels *kernels)
{
    return (size_t)mok_round_up((int64_t)kernels->product_scratch_bytes, MOK_CACHE_LINE) +
           2 * sizeof(float) * MOK_TILE_ROWS * MOK_TILE_COLS;
}

size_t mok_comm_bytes(const mok_kernels *kernels, int32_t threads)
{
    return sizeof(mok_comm) + sizeof(mok_control) + mok_pool_bytes(threads) +
           scratch_stride(kernels) * (size_t)threads;
}

mok_worker_scratch mok_comm_scratch(const mok_comm *comm, int32_t worker)
{
    unsigned char *base = comm->scratch + comm->scratch_stride * (size_t)worker;
    const size_t tile = sizeof(float) * MOK_TILE_ROWS * MOK_TILE_COLS;
    mok_worker_scratch scratch;
    scratch.product = base;
    scratch.tile[0] = (float *)(void *)(base + comm->scratch_stride - 2 * tile);
    scratch.tile[1] = (float *)(void *)(base + comm->scratch_stride - tile);
    return scratch;
}

static void free_entries(mok_group *group)
{
    while (group->entries != NULL) {
        mok_symmetric_entry *entry = group->entries;
        group->entries = entry->next;
        mok_release(&group->allocator, entry->memory, entry->bytes);
        mok_release(&group->allocator, entry, sizeof *entry);
    }
}

/* Frees what the group holds once no rank is left. */
static void group_leave(mok_group *group)
{
    pthread_mutex_lock(&group->lock);
    const int32_t left = --group->open_count;
    pthread_mutex_unlock(&group->lock);
    if (left > 0) {
        return;
    }
    free_entries(group);
    for (int32_t rank = 0; rank < group->ranks; rank++) {
        mok_release(&group->allocator, group->control[rank], sizeof(mok_control));
    }
    pthread_mutex_destroy(&group->lock);
    const mok_allocator allocator = group->allocator;
    mok_release(&allocator, group, sizeof *group);
}

void mok_comm_close(mok_comm **comm)
{
    if (comm == NULL || *comm == NULL) {
        return;
    }
    mok_comm *old = *comm;
    *comm = NULL;
    const mok_allocator allocator = old->allocator;
    mok_pool_close(&old->pool);
    mok_release(&allocator, old->scratch, old->scratch_bytes);
    group_leave(old->group);
    mok_release(&allocator, old, sizeof *old);
}

static mok_status group_open(mok_group **out, const mok_allocator *allocator, int32_t ranks)
{
    mok_group *group = mok_allocate(allocator, sizeof *group);
    MOK_REQUIRE(group != NULL, MOK_ERROR_MEMORY, "no memory for a group of %d ranks", ranks);
    memset(group, 0, sizeof *group);
    group->allocator = *allocator;
    group->ranks = ranks;
    group->open_count = 1;
    pthread_mutex_init(&group->lock, NULL);
    *out = group;
    for (int32_t rank = 0; rank < ranks; rank++) {
        group->control[rank] = mok_allocate(allocator, sizeof(mok_control));
        MOK_REQUIRE(group->control[rank] != NULL, MOK_ERROR_MEMORY,
                    "no memory for the control block of rank %d", rank);
        memset(group->control[rank], 0, sizeof(mok_control));
    }
    return MOK_OK;
}

static mok_status member_open(mok_comm **out, mok_group *group, int32_t rank,
                              const mok_comm_config *config, const mok_kernels *kernels)
{
    mok_comm *comm = mok_allocate(&config->allocator, sizeof *comm);
    MOK_REQUIRE(comm != NULL, MOK_ERROR_MEMORY, "no memory for rank %d", rank);
    memset(comm, 0, sizeof *comm);
    comm->rank = rank;
    comm->size = group->ranks;
    comm->threads = config->threads;
    comm->timeout_ms = config->timeout_ms;
    comm->allocator = config->allocator;
    comm->kernels = kernels;
    comm->group = group;
    memcpy(comm->control, group->control, sizeof comm->control);
    pthread_mutex_lock(&group->lock);
    group->open_count++;
    pthread_mutex_unlock(&group->lock);
    *out = comm;
    comm->scratch_stride = scratch_stride(kernels);
    comm->scratch_bytes = comm->scratch_stride * (size_t)config->threads;
    comm->scratch = mok_allocate(&comm->allocator, comm->scratch_bytes);
    MOK_REQUIRE(comm->scratch != NULL, MOK_ERROR_MEMORY, "no memory for the scratch of %d workers",
                config->threads);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int32_t spin_count = (long)group->ranks * config->threads <= cores ? 4000 : 0;
    return mok_pool_open(&comm->pool, &comm->allocator, config->threads, spin_count);
}

static mok_status check_config(const mok_comm_config *config, int32_t ranks)
{
    MOK_REQUIRE(ranks >= 1 && ranks <= MOK_MAX_RANKS, MOK_ERROR_ARGUMENT,
                "ranks is %d, must be 1..%d", ranks, MOK_MAX_RANKS);
    MOK_REQUIRE(config->struct_bytes == sizeof *config, MOK_ERROR_ARGUMENT,
                "config.struct_bytes is %zu, must be %zu", config->struct_bytes, sizeof *config);
    MOK_REQUIRE(config->threads >= 1 && config->threads <= 256, MOK_ERROR_ARGUMENT,
                "config.threads is %d, must be 1..256", config->threads);
    MOK_REQUIRE(config->timeout_ms >= 1 && config->timeout_ms <= 86400000, MOK_ERROR_ARGUMENT,
                "config.timeout_ms is %d, must be 1..86400000", config->timeout_ms);
    MOK_REQUIRE(config->level >= MOK_LEVEL_AUTO && config->level <= MOK_LEVEL_AVX512,
                MOK_ERROR_ARGUMENT, "config.level is %d, unknown", (int)config->level);
    MOK_REQUIRE(config->allocator.allocate != NULL && config->allocator.release != NULL,
                MOK_ERROR_ARGUMENT, "config.allocator has a NULL function");
    return MOK_OK;
}

mok_status mok_comm_open_local(mok_comm **out, int32_t ranks, const mok_comm_config *config)
{
    mok_comm_config defaults;
    mok_comm_config_init(&defaults);
    const mok_comm_config *use = config != NULL ? config : &defaults;
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    for (int32_t rank = 0; rank < ranks && ranks <= MOK_MAX_RANKS; rank++) {
        out[rank] = NULL;
    }
    MOK_TRY(check_config(use, ranks));
    const mok_kernels *kernels = mok_kernels_select(use->level);
    MOK_REQUIRE(kernels != NULL, MOK_ERROR_DEVICE, "this CPU or build lacks level %s",
                mok_level_string(use->level));
    mok_group *group = NULL;
    mok_status status = group_open(&group, &use->allocator, ranks);
    for (int32_t rank = 0; rank < ranks && status == MOK_OK; rank++) {
        status = member_open(&out[rank], group, rank, use, kernels);
    }
    if (status != MOK_OK) {
        char text[MOK_ERROR_TEXT_BYTES];
        memcpy(text, mok_last_error(), sizeof text);
        for (int32_t rank = 0; rank < ranks; rank++) {
            mok_comm_close(&out[rank]);
        }
        mok_error_text_set(text);
    }
    if (group != NULL) {
        group_leave(group); /* the opener's own hold */
    }
    return status;
}

int32_t mok_comm_rank(const mok_comm *comm)
{
    return comm != NULL ? comm->rank : -1;
}

int32_t mok_comm_size(const mok_comm *comm)
{
    return comm != NULL ? comm->size : 0;
}

int32_t mok_comm_threads(const mok_comm *comm)
{
    return comm != NULL ? comm->threads : 0;
}

mok_level mok_comm_level(const mok_comm *comm)
{
    return comm != NULL ? comm->kernels->level : MOK_LEVEL_AUTO;
}

/* ---- Symmetric memory ---- */

static mok_symmetric_entry *entry_open(mok_group *group, size_t bytes)
{
    mok_symmetric_entry *entry = mok_allocate(&group->allocator, sizeof *entry);
    if (entry == NULL) {
        return NULL;
    }
    memset(entry, 0, sizeof *entry);
    entry->bytes = bytes;
    entry->holder_count = group->ranks;
    entry->memory = mok_allocate(&group->allocator, bytes);
    if (entry->memory == NULL) {
        mok_release(&group->allocator, entry, sizeof *entry);
        return NULL;
    }
    pthread_mutex_lock(&group->lock);
    entry->next = group->entries;
    group->entries = entry;
    pthread_mutex_unlock(&group->lock);
    return entry;
}

/* Takes one entry out of the group and frees it. */
static void entry_drop(mok_group *group, mok_symmetric_entry *entry)
{
    pthread_mutex_lock(&group->lock);
    mok_symmetric_entry **link = &group->entries;
    while (*link != entry) {
        link = &(*link)->next;
    }
    *link = entry->next;
    pthread_mutex_unlock(&group->lock);
    mok_release(&group->allocator, entry->memory, entry->bytes);
    mok_release(&group->allocator, entry, sizeof *entry);
}

mok_status mok_symmetric_allocate(mok_comm *comm, mok_symmetric *out, size_t bytes, mok_phase phase)
{
    memset(out, 0, sizeof *out);
    mok_symmetric_entry *entry = entry_open(comm->group, bytes);
    mok_status mine = MOK_OK;
    if (entry == NULL) {
        mine = mok_fail(MOK_ERROR_MEMORY, "no memory for %zu bytes of shared memory", bytes);
    }
    unsigned char *stage;
    mok_status status = mok_comm_stage(comm, &stage);
    if (status == MOK_OK) {
        memcpy(stage, &entry, sizeof entry);
        status = mok_comm_exchange(comm, phase);
    }
    if (status == MOK_OK) {
        for (int32_t rank = 0; rank < comm->size; rank++) {
            mok_symmetric_entry *other;
            memcpy(&other, mok_comm_staged(comm, rank), sizeof other);
            out->peer[rank] = other != NULL ? other->memory : NULL;
            out->bytes[rank] = other != NULL ? other->bytes : 0;
        }
        status = mok_comm_agree_in(comm, mine, phase);
    }
    if (status == MOK_OK) {
        out->entry = entry;
        return MOK_OK;
    }
    /* Having agreed, every peer has read the table and none keeps a pointer. After a fault that is not
     * known, so the part stays with the group until its last rank closes. */
    memset(out, 0, sizeof *out);
    if (status != MOK_ERROR_PEER && entry != NULL) {
        entry_drop(comm->group, entry);
    }
    return status;
}

/* Every rank's entry counts its readers: it is freed when all ranks have let go of it. */
void mok_symmetric_release(mok_comm *comm, mok_symmetric *symmetric)
{
    if (symmetric->entry == NULL) {
        return;
    }
    mok_group *group = comm->group;
    mok_symmetric_entry *dead = NULL;
    pthread_mutex_lock(&group->lock);
    for (mok_symmetric_entry **link = &group->entries; *link != NULL;) {
        mok_symmetric_entry *entry = *link;
        bool ours = false;
        for (int32_t rank = 0; rank < comm->size; rank++) {
            ours = ours || entry->memory == symmetric->peer[rank];
        }
        if (ours && --entry->holder_count == 0) {
            *link = entry->next;
            entry->next = dead;
            dead = entry;
        } else {
            link = &entry->next;
        }
    }
    pthread_mutex_unlock(&group->lock);
    while (dead != NULL) {
        mok_symmetric_entry *next = dead->next;
        mok_release(&group->allocator, dead->memory, dead->bytes);
        mok_release(&group->allocator, dead, sizeof *dead);
        dead = next;
    }
    memset(symmetric, 0, sizeof *symmetric);
}
