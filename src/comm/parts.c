/* Symmetric memory of ranks that are processes: objects between those that can map them, copies of
 * those that cannot. Owners close an object behind the barrier that follows its mapping. */
#include <errno.h>
#include <string.h>

#include "comm/mail.h"
#include "comm/objects.h"

typedef struct offer {
    int32_t status;
    mok_object object;
} offer;

/* No other rank maps this one's memory. */
static bool is_alone(const mok_comm *comm)
{
    for (int32_t rank = 0; rank < comm->size; rank++) {
        if (rank != comm->rank && !comm->remote[rank]) {
            return false;
        }
    }
    return comm->size > 1;
}

static mok_status own_part(mok_comm *comm, mok_symmetric *out, mok_object *object, size_t bytes)
{
    unsigned char **mine = &out->peer[comm->rank];
    memset(object, 0, sizeof *object);
    object->handle = -1;
    object->bytes = bytes;
    if (!is_alone(comm)) {
        return mok_object_create(mine, object, bytes);
    }
    *mine = mok_copy_map(bytes);
    MOK_REQUIRE(*mine != NULL, MOK_ERROR_MEMORY, "no memory for %zu bytes", bytes);
    return MOK_OK;
}

static mok_status map_peers(mok_comm *comm, mok_symmetric *out)
{
    for (int32_t rank = 0; rank < comm->size; rank++) {
        offer theirs;
        memcpy(&theirs, mok_comm_staged(comm, rank), sizeof theirs);
        out->bytes[rank] = (size_t)theirs.object.bytes;
        if (rank == comm->rank || theirs.status != (int32_t)MOK_OK) {
            continue;
        }
        out->peer[rank] =
            comm->remote[rank] ? mok_copy_map(out->bytes[rank]) : mok_object_map(&theirs.object);
        MOK_REQUIRE(out->peer[rank] != NULL, MOK_ERROR_MEMORY,
                    "rank %d cannot map %zu bytes of rank %d: %s", comm->rank, out->bytes[rank],
                    rank, strerror(errno));
    }
    return comm->mail != NULL ? mok_mail_add(comm, out) : MOK_OK;
}

static void shm_release(mok_comm *comm, mok_symmetric *symmetric)
{
    if (comm->mail != NULL) {
        mok_mail_remove(comm, symmetric);
    }
    for (int32_t rank = 0; rank < comm->size; rank++) {
        mok_unmap(symmetric->peer[rank], symmetric->bytes[rank]);
    }
}

static mok_status shm_allocate(mok_comm *comm, mok_symmetric *out, size_t bytes, mok_phase phase)
{
    unsigned char *stage = NULL;
    offer my_offer;
    memset(&my_offer, 0, sizeof my_offer);
    out->sequence = comm->shm->sequence++;
    out->bytes[comm->rank] = bytes;
    mok_status mine = own_part(comm, out, &my_offer.object, bytes);
    my_offer.status = (int32_t)mine;
    mok_status status = mok_comm_stage(comm, &stage, sizeof my_offer);
    if (status == MOK_OK) {
        memcpy(stage, &my_offer, sizeof my_offer);
        status = mok_comm_exchange(comm, phase);
    }
    if (status == MOK_OK) {
        const mok_status mapped = map_peers(comm, out);
        mine = mine != MOK_OK ? mine : mapped;
        status = mok_comm_agree_in(comm, mine, phase);
    }
    mok_object_close(&my_offer.object); /* having agreed, all have mapped it, or will not */
    if (status != MOK_OK) {
        shm_release(comm, out);
        memset(out, 0, sizeof *out);
    }
    return status;
}

static void shm_leave(mok_comm *comm)
{
    const mok_allocator allocator = comm->allocator;
    mok_shm *shm = comm->shm;
    mok_mail_close(comm);
    if (shm->base != NULL) {
        mok_unmap(shm->base, shm->bytes);
    } else {
        for (int32_t rank = 0; rank < comm->size; rank++) {
            mok_unmap((unsigned char *)comm->control[rank], mok_control_stride());
        }
    }
    mok_release(&allocator, shm, sizeof *shm);
}

static const mok_mapping shm_mapping = {shm_allocate, shm_release, shm_leave};

mok_status mok_process_begin(mok_comm **out, int32_t rank, int32_t ranks,
                             const mok_comm_config *config, const mok_kernels *kernels)
{
    mok_comm *comm = NULL;
    MOK_TRY(mok_member_begin(&comm, rank, ranks, config, kernels));
    comm->mapping = &shm_mapping;
    comm->shm = mok_allocate(&config->allocator, sizeof *comm->shm);
    if (comm->shm == NULL) {
        mok_release(&config->allocator, comm, sizeof *comm);
        return mok_fail(MOK_ERROR_MEMORY, "no memory for rank %d", rank);
    }
    memset(comm->shm, 0, sizeof *comm->shm);
    *out = comm;
    return MOK_OK;
}

mok_status mok_process_end(mok_comm **out, mok_comm *comm, mok_status status)
{
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
