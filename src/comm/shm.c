/* Ranks as processes of one host, sharing memory through named POSIX objects.
 *
 *   /mok.NAME            control blocks, made by rank 0:  [ head | control 0 | control 1 | ... ]
 *   /mok.NAME.RANK.SEQ   rank RANK's part of the SEQ-th symmetric allocation
 *
 * Names live only while ranks find each other: behind the barrier that follows a mapping they are
 * unlinked, so a rank that is killed at any later time leaves nothing behind. When finding each
 * other fails, whoever notices unlinks all names that there can be. Space is reserved before it is
 * used: a full /dev/shm is MOK_ERROR_MEMORY here and not a signal in the middle of a pass. */
#define _DEFAULT_SOURCE /* usleep's kin; posix_fallocate */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm/member.h"

#define MAGIC 0x6D6F6B2D73686D31u /* "mok-shm1" */
#define HEAD_BYTES ((size_t)4096)
#define NAME_BYTES 128

typedef struct shm_head {
    _Atomic uint64_t magic; /* set last */
    int32_t version, ranks;
    uint64_t control_bytes;
} shm_head;

typedef struct mok_shm {
    char name[NAME_BYTES]; /* "/mok.NAME" */
    unsigned char *base;
    size_t bytes;
    uint32_t sequence; /* symmetric allocations so far: the same on every rank */
} mok_shm;

static size_t control_stride(void)
{
    return (sizeof(mok_control) + HEAD_BYTES - 1) / HEAD_BYTES * HEAD_BYTES;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void pause_ms(long ms)
{
    const struct timespec pause = {0, ms * 1000000};
    nanosleep(&pause, NULL);
}

/* ---- Objects ---- */

/* A new object of this size, mapped. */
static mok_status create_object(unsigned char **out, const char *name, size_t bytes)
{
    const int handle = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    MOK_REQUIRE(handle >= 0, errno == EEXIST ? MOK_ERROR_ARGUMENT : MOK_ERROR_MEMORY,
                errno == EEXIST ? "shared memory %s exists: another run has this name"
                                : "shared memory %s: %s",
                name, strerror(errno));
    const int error = posix_fallocate(handle, 0, (off_t)(bytes > 0 ? bytes : 1));
    void *base = error == 0 ? mmap(NULL, bytes > 0 ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED,
                                   handle, 0)
                            : MAP_FAILED;
    (void)close(handle);
    if (base == MAP_FAILED) {
        (void)shm_unlink(name);
        return mok_fail(MOK_ERROR_MEMORY, "shared memory %s of %zu bytes: %s", name, bytes,
                        strerror(error != 0 ? error : errno));
    }
    *out = base;
    return MOK_OK;
}

/* A peer's object, mapped whole; *bytes receives its size. NULL where it is not there. */
static unsigned char *map_object(const char *name, size_t *bytes)
{
    struct stat about;
    const int handle = shm_open(name, O_RDWR, 0600);
    if (handle < 0) {
        return NULL;
    }
    void *base = MAP_FAILED;
    if (fstat(handle, &about) == 0 && about.st_size > 0) {
        *bytes = (size_t)about.st_size;
        base = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    }
    (void)close(handle);
    return base == MAP_FAILED ? NULL : base;
}

static void part_name(char out[NAME_BYTES], const mok_shm *shm, int32_t rank, uint32_t sequence)
{
    (void)snprintf(out, NAME_BYTES, "%.80s.%d.%u", shm->name, rank, sequence);
}

/* ---- Symmetric memory ---- */

typedef struct offer {
    int32_t status;
    uint64_t bytes;
} offer;

static mok_status map_peers(mok_comm *comm, mok_symmetric *out, uint32_t sequence)
{
    char name[NAME_BYTES];
    for (int32_t rank = 0; rank < comm->size; rank++) {
        offer theirs;
        size_t bytes = 0;
        memcpy(&theirs, mok_comm_staged(comm, rank), sizeof theirs);
        out->bytes[rank] = (size_t)theirs.bytes;
        if (rank == comm->rank || theirs.status != (int32_t)MOK_OK) {
            continue;
        }
        part_name(name, comm->shm, rank, sequence);
        out->peer[rank] = map_object(name, &bytes);
        MOK_REQUIRE(out->peer[rank] != NULL && bytes >= out->bytes[rank], MOK_ERROR_MEMORY,
                    "rank %d cannot map %zu bytes of rank %d: %s", comm->rank, out->bytes[rank],
                    rank, strerror(errno));
    }
    return MOK_OK;
}

static void shm_release(mok_comm *comm, mok_symmetric *symmetric)
{
    for (int32_t rank = 0; rank < comm->size; rank++) {
        if (symmetric->peer[rank] != NULL) {
            const size_t bytes = symmetric->bytes[rank];
            (void)munmap(symmetric->peer[rank], bytes > 0 ? bytes : 1);
        }
    }
}

static mok_status shm_allocate(mok_comm *comm, mok_symmetric *out, size_t bytes, mok_phase phase)
{
    char name[NAME_BYTES];
    unsigned char *stage = NULL;
    const uint32_t sequence = comm->shm->sequence++;
    part_name(name, comm->shm, comm->rank, sequence);
    mok_status mine = create_object(&out->peer[comm->rank], name, bytes);
    const offer my_offer = {(int32_t)mine, bytes};
    mok_status status = mok_comm_stage(comm, &stage);
    if (status == MOK_OK) {
        memcpy(stage, &my_offer, sizeof my_offer);
        status = mok_comm_exchange(comm, phase);
    }
    if (status == MOK_OK) {
        const mok_status mapped = map_peers(comm, out, sequence);
        mine = mine != MOK_OK ? mine : mapped;
        status = mok_comm_agree_in(comm, mine, phase);
    }
    /* Having agreed, all ranks have mapped it. After a fault a dead rank's name may be left: take
     * it along. */
    for (int32_t rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank || status == MOK_ERROR_PEER) {
            part_name(name, comm->shm, rank, sequence);
            (void)shm_unlink(name);
        }
    }
    if (status != MOK_OK) {
        shm_release(comm, out);
        memset(out, 0, sizeof *out);
    }
    return status;
}

static void shm_leave(mok_comm *comm)
{
    const mok_allocator allocator = comm->allocator;
    if (comm->shm->base != NULL) {
        (void)munmap(comm->shm->base, comm->shm->bytes);
    }
    mok_release(&allocator, comm->shm, sizeof *comm->shm);
}

static const mok_mapping shm_mapping = {shm_allocate, shm_release, shm_leave};

/* ---- Opening ---- */

static mok_status check_name(const char *name)
{
    MOK_REQUIRE(name != NULL, MOK_ERROR_ARGUMENT, "name is NULL");
    const size_t length = strlen(name);
    MOK_REQUIRE(
        length >= 1 && length <= 64 &&
            strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
                length,
        MOK_ERROR_ARGUMENT, "name '%.70s' must have 1..64 letters, digits, '_' or '-'", name);
    return MOK_OK;
}

/* Rank 0 makes the control blocks; magic is stored last, so that who sees it sees them zeroed. */
static mok_status create_control(mok_shm *shm, int32_t ranks)
{
    MOK_TRY(create_object(&shm->base, shm->name, shm->bytes));
    shm_head *head = (shm_head *)(void *)shm->base;
    head->version = mok_version();
    head->ranks = ranks;
    head->control_bytes = sizeof(mok_control);
    atomic_store_explicit(&head->magic, MAGIC, memory_order_release);
    return MOK_OK;
}

/* The others wait until it is there, for timeout_ms at most. */
static mok_status find_control(mok_shm *shm, int32_t rank, int32_t timeout_ms)
{
    const int64_t since = now_ms();
    size_t bytes = 0;
    for (;;) {
        shm->base = map_object(shm->name, &bytes);
        const shm_head *head = (const shm_head *)(const void *)shm->base;
        if (head != NULL && bytes >= HEAD_BYTES &&
            atomic_load_explicit(&head->magic, memory_order_acquire) == MAGIC) {
            shm->bytes = bytes;
            return MOK_OK;
        }
        if (shm->base != NULL) {
            (void)munmap(shm->base, bytes);
            shm->base = NULL;
        }
        MOK_REQUIRE(
            now_ms() - since < timeout_ms, MOK_ERROR_PEER,
            "rank %d waited for rank 0 in phase %s for %d ms: shared memory %s was not made", rank,
            mok_phase_string(MOK_PHASE_OPEN), timeout_ms, shm->name);
        pause_ms(5);
    }
}

static mok_status check_control(const mok_shm *shm, int32_t ranks, size_t bytes)
{
    const shm_head *head = (const shm_head *)(const void *)shm->base;
    MOK_REQUIRE(head->version == mok_version() && head->control_bytes == sizeof(mok_control) &&
                    head->ranks == ranks && shm->bytes == bytes,
                MOK_ERROR_MISMATCH,
                "%s was made by version %d for %d ranks, this is version %d for %d", shm->name,
                head->version, head->ranks, mok_version(), ranks);
    return MOK_OK;
}

static mok_status join(mok_comm *comm, const char *name, int32_t rank, int32_t ranks)
{
    mok_shm *shm = comm->shm;
    const size_t bytes = HEAD_BYTES + (size_t)ranks * control_stride();
    (void)snprintf(shm->name, sizeof shm->name, "/mok.%s", name);
    shm->bytes = bytes;
    MOK_TRY(rank == 0 ? create_control(shm, ranks) : find_control(shm, rank, comm->timeout_ms));
    MOK_TRY(check_control(shm, ranks, bytes));
    for (int32_t r = 0; r < ranks; r++) {
        comm->control[r] =
            (mok_control *)(void *)(shm->base + HEAD_BYTES + (size_t)r * control_stride());
    }
    MOK_TRY(mok_member_finish(comm, ranks));
    return mok_comm_barrier_in(comm, MOK_PHASE_OPEN);
}

mok_status mok_comm_open_shm(mok_comm **out, const char *name, int32_t rank, int32_t ranks,
                             const mok_comm_config *config)
{
    mok_comm_config defaults;
    const mok_kernels *kernels = NULL;
    mok_comm *comm = NULL;
    mok_comm_config_init(&defaults);
    const mok_comm_config *use = config != NULL ? config : &defaults;
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    *out = NULL;
    MOK_TRY(check_name(name));
    MOK_TRY(mok_member_check(use, ranks, &kernels));
    MOK_REQUIRE(rank >= 0 && rank < ranks, MOK_ERROR_ARGUMENT, "rank is %d, must be 0..%d", rank,
                ranks - 1);
    MOK_TRY(mok_member_begin(&comm, rank, ranks, use, kernels));
    comm->mapping = &shm_mapping;
    comm->shm = mok_allocate(&use->allocator, sizeof *comm->shm);
    if (comm->shm == NULL) {
        mok_release(&use->allocator, comm, sizeof *comm);
        return mok_fail(MOK_ERROR_MEMORY, "no memory for rank %d", rank);
    }
    memset(comm->shm, 0, sizeof *comm->shm);
    const mok_status status = join(comm, name, rank, ranks);
    /* All have met, or will not: the name has done its work. One that another run made is not ours
     * to take. */
    if (comm->shm->base != NULL && (rank == 0 || status == MOK_ERROR_PEER)) {
        (void)shm_unlink(comm->shm->name);
    }
    if (status != MOK_OK) {
        char text[MOK_ERROR_TEXT_BYTES];
        memcpy(text, mok_last_error(), sizeof text);
        mok_comm_close(&comm);
        mok_error_text_set(text);
        return status;
    }
    *out = comm;
    return MOK_OK;
}
