/* Virtual ranks: several ranks in one process, memory shared as it is.
 *
 * A group outlives its first closed rank: peers may still read what that rank shared, so control
 * blocks and symmetric parts go with the last rank. */
#include <pthread.h>
#include <string.h>

#include "comm/member.h"

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

static void local_leave(mok_comm *comm)
{
    group_leave(comm->group);
}

static mok_status local_allocate(mok_comm *comm, mok_symmetric *out, size_t bytes, mok_phase phase);
static void local_release(mok_comm *comm, mok_symmetric *symmetric);

static const mok_mapping local_mapping = {local_allocate, local_release, local_leave};

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

static mok_status join_group(mok_comm **out, mok_group *group, int32_t rank,
                             const mok_comm_config *config, const mok_kernels *kernels)
{
    mok_comm *comm = NULL;
    MOK_TRY(mok_member_begin(&comm, rank, group->ranks, config, kernels));
    comm->mapping = &local_mapping;
    comm->group = group;
    memcpy(comm->control, group->control, sizeof comm->control);
    pthread_mutex_lock(&group->lock);
    group->open_count++;
    pthread_mutex_unlock(&group->lock);
    *out = comm; /* from here on mok_comm_close undoes all of it */
    return mok_member_finish(comm, group->ranks);
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
    const mok_kernels *kernels = NULL;
    MOK_TRY(mok_member_check(use, ranks, &kernels));
    mok_group *group = NULL;
    mok_status status = group_open(&group, &use->allocator, ranks);
    for (int32_t rank = 0; rank < ranks && status == MOK_OK; rank++) {
        status = join_group(&out[rank], group, rank, use, kernels);
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

static mok_status local_allocate(mok_comm *comm, mok_symmetric *out, size_t bytes, mok_phase phase)
{
    mok_symmetric_entry *entry = entry_open(comm->group, bytes);
    mok_status mine = MOK_OK;
    if (entry == NULL) {
        mine = mok_fail(MOK_ERROR_MEMORY, "no memory for %zu bytes of shared memory", bytes);
    }
    unsigned char *stage;
    mok_status status = mok_comm_stage(comm, &stage, sizeof entry);
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
    /* Having agreed, every peer has read the table and none keeps a pointer. After a fault that is
     * not known, so the part stays with the group until its last rank closes. */
    memset(out, 0, sizeof *out);
    if (status != MOK_ERROR_PEER && entry != NULL) {
        entry_drop(comm->group, entry);
    }
    return status;
}

/* Every rank's entry counts its readers: it is freed when all ranks have let go of it. */
static void local_release(mok_comm *comm, mok_symmetric *symmetric)
{
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
}
