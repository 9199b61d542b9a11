/* Ranks as processes of one host that know a common name.
 *
 *   /mok.NAME            control blocks, made by rank 0:  [ head | control 0 | control 1 | ... ]
 *
 * The name is gone once all ranks have met, or one has given up waiting. All other memory is shared
 * without names (parts.c). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/objects.h"

#define MAGIC 0x6D6F6B2D73686D31u /* "mok-shm1" */
#define HEAD_BYTES ((size_t)4096)
#define NAME_BYTES 80 /* "/mok." and 64 */

typedef struct shm_head {
    _Atomic uint64_t magic; /* set last */
    int32_t version, ranks;
    uint64_t control_bytes;
} shm_head;

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

/* A new object, reserved and mapped. */
static mok_status create_named(mok_shm *shm, const char *name)
{
    const int handle = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    MOK_REQUIRE(handle >= 0, errno == EEXIST ? MOK_ERROR_ARGUMENT : MOK_ERROR_MEMORY,
                errno == EEXIST ? "shared memory %s exists: another run has this name"
                                : "shared memory %s: %s",
                name, strerror(errno));
    const int error = posix_fallocate(handle, 0, (off_t)shm->bytes);
    void *base = error == 0 ? mmap(NULL, shm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0)
                            : MAP_FAILED;
    (void)close(handle);
    if (base == MAP_FAILED) {
        (void)shm_unlink(name);
        return mok_fail(MOK_ERROR_MEMORY, "shared memory %s of %zu bytes: %s", name, shm->bytes,
                        strerror(error != 0 ? error : errno));
    }
    shm->base = base;
    return MOK_OK;
}

/* What is there under the name, mapped whole; leaves base NULL where nothing is. */
static void map_named(mok_shm *shm, const char *name)
{
    struct stat about;
    const int handle = shm_open(name, O_RDWR, 0600);
    if (handle < 0) {
        return;
    }
    void *base = MAP_FAILED;
    if (fstat(handle, &about) == 0 && (size_t)about.st_size >= HEAD_BYTES) {
        shm->bytes = (size_t)about.st_size;
        base = mmap(NULL, shm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    }
    (void)close(handle);
    shm->base = base == MAP_FAILED ? NULL : base;
}

/* Rank 0 makes the control blocks; magic is stored last, so that who sees it sees them zeroed. */
static mok_status create_control(mok_shm *shm, const char *name, int32_t ranks)
{
    MOK_TRY(create_named(shm, name));
    shm_head *head = (shm_head *)(void *)shm->base;
    head->version = mok_version();
    head->ranks = ranks;
    head->control_bytes = sizeof(mok_control);
    atomic_store_explicit(&head->magic, MAGIC, memory_order_release);
    return MOK_OK;
}

/* The others wait until it is there, for timeout_ms at most. */
static mok_status find_control(mok_shm *shm, const char *name, int32_t rank, int32_t timeout_ms)
{
    const int64_t since = mok_now_ms();
    for (;;) {
        map_named(shm, name);
        const shm_head *head = (const shm_head *)(const void *)shm->base;
        if (head != NULL && atomic_load_explicit(&head->magic, memory_order_acquire) == MAGIC) {
            return MOK_OK;
        }
        if (mok_now_ms() - since >= timeout_ms) {
            /* Rank 0 may have ended while it made this, at any moment: what is there may have no
             * size yet. Should it only be slow, it will miss this rank in its turn. */
            (void)shm_unlink(name);
            return mok_fail(
                MOK_ERROR_PEER,
                "rank %d waited for rank 0 in phase %s for %d ms: shared memory %s was not made",
                rank, mok_phase_string(MOK_PHASE_OPEN), timeout_ms, name);
        }
        mok_unmap(shm->base, shm->bytes);
        shm->base = NULL;
        mok_pause_ms(5);
    }
}

static mok_status check_control(const mok_shm *shm, int32_t rank, int32_t ranks, size_t bytes)
{
    const shm_head *head = (const shm_head *)(const void *)shm->base;
    MOK_REQUIRE(head->version == mok_version() && head->control_bytes == sizeof(mok_control) &&
                    head->ranks == ranks && shm->bytes == bytes,
                MOK_ERROR_MISMATCH,
                "rank %d has version %d and %d ranks, rank 0 has version %d and %d, in phase %s",
                rank, mok_version(), ranks, head->version, head->ranks,
                mok_phase_string(MOK_PHASE_OPEN));
    return MOK_OK;
}

static mok_status join(mok_comm *comm, const char *name, int32_t rank, int32_t ranks)
{
    mok_shm *shm = comm->shm;
    const size_t bytes = HEAD_BYTES + (size_t)ranks * mok_control_stride();
    shm->bytes = bytes;
    MOK_TRY(rank == 0 ? create_control(shm, name, ranks)
                      : find_control(shm, name, rank, comm->timeout_ms));
    MOK_TRY(check_control(shm, rank, ranks, bytes));
    for (int32_t r = 0; r < ranks; r++) {
        comm->control[r] =
            (mok_control *)(void *)(shm->base + HEAD_BYTES + (size_t)r * mok_control_stride());
    }
    MOK_TRY(mok_member_finish(comm, ranks));
    MOK_TRY(mok_comm_barrier_in(comm, MOK_PHASE_OPEN));
    /* All have mapped it: the name has done its work. Whoever passes the second barrier knows that
     * it is gone; should rank 0 end before it is, the others do not pass, and take it away. */
    if (rank == 0) {
        (void)shm_unlink(name);
    }
    return mok_comm_barrier_in(comm, MOK_PHASE_OPEN);
}

mok_status mok_comm_open_shm(mok_comm **out, const char *name, int32_t rank, int32_t ranks,
                             const mok_comm_config *config)
{
    mok_comm_config defaults;
    const mok_kernels *kernels = NULL;
    char object[NAME_BYTES];
    mok_comm *comm = NULL;
    mok_comm_config_init(&defaults);
    const mok_comm_config *use = config != NULL ? config : &defaults;
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    *out = NULL;
    MOK_TRY(check_name(name));
    MOK_TRY(mok_member_check(use, ranks, &kernels));
    MOK_REQUIRE(rank >= 0 && rank < ranks, MOK_ERROR_ARGUMENT, "rank is %d, must be 0..%d", rank,
                ranks - 1);
    MOK_TRY(mok_process_begin(&comm, rank, ranks, use, kernels));
    (void)snprintf(object, sizeof object, "/mok.%s", name);
    const mok_status status = join(comm, object, rank, ranks);
    /* The ranks will not meet. A name that another run made is not ours to take. */
    if (comm->shm->base != NULL && (status == MOK_ERROR_PEER || (rank == 0 && status != MOK_OK))) {
        (void)shm_unlink(object);
    }
    return mok_process_end(out, comm, status);
}
