/* Opening a process as a rank by a bootstrap: three gatherings, then memory.
 *
 *   hello   version and sizes of each, and where its control block is, an object
 *   sight   whose objects each can open. Ranks share memory where both see each other
 *   ready   all have looked, and how each rank's end came out
 *
 * Opening says more than a host's name or number: containers and namespaces of one machine have one
 * kernel and, it may be, no memory in common. A random number in the block says that it is the
 * right one. */
#define _DEFAULT_SOURCE /* getrandom */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "comm/mail.h"
#include "comm/objects.h"

#define HELLO_MAGIC 0x6D6F6B2D6A6F696Eu /* "mok-join" */
#define NONCE_BYTES 16

typedef struct hello {
    uint64_t magic, control_bytes;
    int32_t version, ranks, rank;
    int32_t status; /* of making its control block */
    mok_object object;
    unsigned char nonce[NONCE_BYTES];
} hello;

/* One bit a rank. */
typedef uint64_t rank_set;

_Static_assert(MOK_MAX_RANKS <= 64, "a rank_set has 64 bits");

typedef struct joining {
    const mok_bootstrap *bootstrap;
    mok_comm *comm;
    hello all[MOK_MAX_RANKS];
    rank_set sees[MOK_MAX_RANKS];
} joining;

void mok_bootstrap_init(mok_bootstrap *bootstrap)
{
    if (bootstrap != NULL) {
        memset(bootstrap, 0, sizeof *bootstrap);
        bootstrap->struct_bytes = sizeof *bootstrap;
        bootstrap->share_memory = true;
    }
}

bool mok_comm_shares_memory(const mok_comm *comm, int32_t peer)
{
    return comm != NULL && peer >= 0 && peer < comm->size && !comm->remote[peer];
}

static mok_status check_bootstrap(const mok_bootstrap *bootstrap)
{
    MOK_REQUIRE(bootstrap != NULL, MOK_ERROR_ARGUMENT, "bootstrap is NULL");
    MOK_REQUIRE(bootstrap->struct_bytes == sizeof *bootstrap, MOK_ERROR_ARGUMENT,
                "bootstrap.struct_bytes is %zu, must be %zu", bootstrap->struct_bytes,
                sizeof *bootstrap);
    MOK_REQUIRE(bootstrap->allgather != NULL, MOK_ERROR_ARGUMENT, "bootstrap.allgather is NULL");
    MOK_REQUIRE(bootstrap->rank >= 0 && bootstrap->rank < bootstrap->ranks, MOK_ERROR_ARGUMENT,
                "bootstrap.rank is %d, must be 0..%d", bootstrap->rank, bootstrap->ranks - 1);
    const mok_link *link = bootstrap->link;
    MOK_REQUIRE(link == NULL || (link->struct_bytes == sizeof *link && link->send != NULL &&
                                 link->sent != NULL && link->receive != NULL),
                MOK_ERROR_ARGUMENT,
                "bootstrap.link has another struct_bytes than %zu or a NULL function",
                sizeof *link);
    return MOK_OK;
}

static mok_status gather(const joining *j, void *out, const void *in, size_t bytes,
                         const char *what)
{
    mok_error_text_set("");
    const int failed = j->bootstrap->allgather(j->bootstrap->context, out, in, bytes);
    MOK_REQUIRE(failed == 0, MOK_ERROR_PEER, "rank %d could not gather %s in phase %s%s%.120s",
                j->bootstrap->rank, what, mok_phase_string(MOK_PHASE_OPEN),
                mok_last_error()[0] != '\0' ? ": " : "", mok_last_error());
    return MOK_OK;
}

/* This rank's control block. The random number stands where a barrier will put another. */
static mok_status make_control(joining *j, hello *mine)
{
    unsigned char *base = NULL;
    mine->object.handle = -1;
    MOK_REQUIRE(getrandom(mine->nonce, sizeof mine->nonce, 0) == (ssize_t)sizeof mine->nonce,
                MOK_ERROR_DEVICE, "getrandom: %s", strerror(errno));
    if (j->bootstrap->share_memory) {
        MOK_TRY(mok_object_create(&base, &mine->object, mok_control_stride()));
    } else {
        base = mok_copy_map(mok_control_stride());
        MOK_REQUIRE(base != NULL, MOK_ERROR_MEMORY, "no memory for a control block");
    }
    mok_control *control = (mok_control *)(void *)base;
    memcpy(control->staging[0], mine->nonce, sizeof mine->nonce);
    j->comm->control[j->comm->rank] = control;
    return MOK_OK;
}

/* Every rank checks all of them, so every rank finds the same first difference. */
static mok_status check_hellos(const joining *j)
{
    for (int32_t rank = 0; rank < j->comm->size; rank++) {
        const hello *other = &j->all[rank];
        MOK_REQUIRE(other->magic == HELLO_MAGIC && other->rank == rank, MOK_ERROR_MISMATCH,
                    "what was gathered of rank %d is not of that rank", rank);
        MOK_REQUIRE(other->version == j->all[0].version && other->ranks == j->all[0].ranks &&
                        other->control_bytes == j->all[0].control_bytes,
                    MOK_ERROR_MISMATCH,
                    "rank %d has version %d and %d ranks, rank 0 has version %d and %d", rank,
                    other->version, other->ranks, j->all[0].version, j->all[0].ranks);
        MOK_REQUIRE(other->status == (int32_t)MOK_OK, (mok_status)other->status,
                    "rank %d has no memory for its control block", rank);
    }
    return MOK_OK;
}

/* Opens the peers' objects; those that are seen. */
static rank_set look(joining *j)
{
    rank_set seen = 0;
    for (int32_t rank = 0; rank < j->comm->size; rank++) {
        const hello *other = &j->all[rank];
        if (rank == j->comm->rank || !j->bootstrap->share_memory) {
            continue;
        }
        mok_control *control = (mok_control *)(void *)mok_object_map(&other->object);
        if (control != NULL &&
            memcmp(control->staging[0], other->nonce, sizeof other->nonce) == 0) {
            j->comm->control[rank] = control;
            seen |= (rank_set)1 << rank;
        } else {
            mok_unmap((unsigned char *)control, (size_t)other->object.bytes);
        }
    }
    return seen;
}

static bool share(const joining *j, int32_t a, int32_t b)
{
    return a == b || ((j->sees[a] >> b & 1) != 0 && (j->sees[b] >> a & 1) != 0);
}

/* Ranks that share no memory need a link. Alike on every rank. */
static mok_status check_reach(const joining *j)
{
    for (int32_t a = 0; a < j->comm->size; a++) {
        for (int32_t b = a + 1; b < j->comm->size; b++) {
            MOK_REQUIRE(share(j, a, b) || j->bootstrap->link != NULL, MOK_ERROR_UNSUPPORTED,
                        "ranks %d and %d share no memory (other hosts or containers?) and the "
                        "bootstrap has no link; MPI has one",
                        a, b);
        }
    }
    return MOK_OK;
}

/* Copies of the control blocks of those that share no memory. */
static mok_status copy_controls(joining *j)
{
    mok_comm *comm = j->comm;
    for (int32_t rank = 0; rank < comm->size; rank++) {
        if (share(j, comm->rank, rank)) {
            continue;
        }
        comm->remote[rank] = true;
        mok_unmap((unsigned char *)comm->control[rank], mok_control_stride());
        comm->control[rank] = (mok_control *)(void *)mok_copy_map(mok_control_stride());
        MOK_REQUIRE(comm->control[rank] != NULL, MOK_ERROR_MEMORY,
                    "no memory for the control block of rank %d", rank);
    }
    return MOK_OK;
}

static bool any_remote(const mok_comm *comm)
{
    bool any = false;
    for (int32_t rank = 0; rank < comm->size; rank++) {
        any = any || comm->remote[rank];
    }
    return any;
}

static mok_status finish(joining *j)
{
    MOK_TRY(copy_controls(j));
    int32_t beside = 0; /* ranks on this host */
    for (int32_t rank = 0; rank < j->comm->size; rank++) {
        beside += !j->comm->remote[rank];
    }
    MOK_TRY(mok_member_finish(j->comm, beside));
    return any_remote(j->comm) ? mok_mail_open(j->comm, j->bootstrap->link) : MOK_OK;
}

/* The last gathering: how each rank's end came out. */
static mok_status pass_verdicts(joining *j, mok_status mine)
{
    typedef struct verdict {
        int32_t status;
        char text[160];
    } verdict;
    verdict all[MOK_MAX_RANKS];
    verdict own;
    memset(&own, 0, sizeof own);
    own.status = (int32_t)mine;
    if (mine != MOK_OK) {
        (void)snprintf(own.text, sizeof own.text, "%.150s", mok_last_error());
    }
    MOK_TRY(gather(j, all, &own, sizeof own, "the ranks' ends"));
    for (int32_t rank = 0; rank < j->comm->size; rank++) {
        MOK_REQUIRE(all[rank].status == (int32_t)MOK_OK, (mok_status)all[rank].status,
                    "rank %d: %.150s", rank, all[rank].text);
    }
    return MOK_OK;
}

static mok_status join(joining *j, hello *mine)
{
    mok_comm *comm = j->comm;
    mine->status = (int32_t)make_control(j, mine);
    MOK_TRY(gather(j, j->all, mine, sizeof *mine, "hellos"));
    MOK_TRY(check_hellos(j));
    const rank_set seen = look(j);
    MOK_TRY(gather(j, j->sees, &seen, sizeof seen, "who sees whom"));
    MOK_TRY(check_reach(j));
    MOK_TRY(pass_verdicts(j, finish(j)));
    if (comm->mail != NULL) {
        mok_mail_start(comm); /* the last gathering is over */
    }
    return mok_comm_barrier_in(comm, MOK_PHASE_OPEN);
}

static void close_link(const mok_bootstrap *bootstrap, bool healthy)
{
    if (bootstrap->link != NULL && bootstrap->link->close != NULL) {
        bootstrap->link->close(bootstrap->link->context, healthy);
    }
}

mok_status mok_comm_open_bootstrap(mok_comm **out, const mok_bootstrap *bootstrap,
                                   const mok_comm_config *config)
{
    mok_comm_config defaults;
    const mok_kernels *kernels = NULL;
    joining j;
    mok_comm_config_init(&defaults);
    const mok_comm_config *use = config != NULL ? config : &defaults;
    memset(&j, 0, sizeof j);
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    *out = NULL;
    MOK_TRY(check_bootstrap(bootstrap));
    j.bootstrap = bootstrap;
    mok_status begun = mok_member_check(use, bootstrap->ranks, &kernels);
    if (begun == MOK_OK) {
        begun = mok_process_begin(&j.comm, bootstrap->rank, bootstrap->ranks, use, kernels);
    }
    if (begun != MOK_OK) {
        close_link(bootstrap, false);
        return begun;
    }
    hello mine;
    memset(&mine, 0, sizeof mine);
    mine.magic = HELLO_MAGIC;
    mine.control_bytes = sizeof(mok_control);
    mine.version = mok_version();
    mine.ranks = bootstrap->ranks;
    mine.rank = bootstrap->rank;
    const mok_status status = join(&j, &mine);
    mok_object_close(&mine.object);
    if (j.comm->mail == NULL) {
        close_link(bootstrap, status == MOK_OK); /* it is not needed */
    }
    return mok_process_end(out, j.comm, status);
}
