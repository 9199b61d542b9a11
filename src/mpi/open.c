/* MPI as a bootstrap: an own communicator, and gatherings that do not wait for ever.
 *
 *   meet        an empty message between each two ranks on the caller's communicator, so that a
 *               rank that does not come is known by name
 *   duplicate   MPI_Comm_idup, looked at until it is there
 *   bootstrap   as with any launcher (comm/bootstrap.c) */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "mpi/state.h"

static int gather(void *context, void *out, const void *in, size_t bytes)
{
    mok_mpi_state *s = context;
    if (bytes > MOK_MPI_GATHER_BYTES) {
        return -1;
    }
    /* Through memory that outlives this call, should it be given up. */
    memcpy(s->gather_in, in, bytes);
    if (mok_mpi_gather(s, s->comm, bytes) != 0) {
        return -1;
    }
    memcpy(out, s->gather_out, (size_t)s->ranks * bytes);
    return 0;
}

static mok_status check_mpi(void)
{
    int initialised = 0;
    int finalised = 0;
    int level = MPI_THREAD_SINGLE;
    MOK_REQUIRE(MPI_Initialized(&initialised) == MPI_SUCCESS && initialised != 0 &&
                    MPI_Finalized(&finalised) == MPI_SUCCESS && finalised == 0,
                MOK_ERROR_ARGUMENT, "MPI is not initialised, or finalised");
    MOK_REQUIRE(MPI_Query_thread(&level) == MPI_SUCCESS && level >= MPI_THREAD_SERIALIZED,
                MOK_ERROR_UNSUPPORTED,
                "MPI was initialised with thread level %d; MPI_THREAD_SERIALIZED (%d) is needed",
                level, MPI_THREAD_SERIALIZED);
    return MOK_OK;
}

/* What the meeting failed with names a rank; this adds the phase. */
static mok_status name_missing(void)
{
    char text[MOK_ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", mok_last_error());
    return mok_fail(MOK_ERROR_PEER, "%.180s in phase open", text);
}

/* When this does not end, MPI does not say who is missing: whoever is left meets once more. */
static mok_status duplicate(mok_mpi_state *s, MPI_Comm comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Comm_idup(comm, &s->comm, &request) == MPI_SUCCESS &&
        mok_mpi_wait(s, 1, &request) == 0) {
        return MOK_OK;
    }
    if (mok_mpi_gather(s, comm, 0) != 0) {
        return name_missing();
    }
    return mok_fail(MOK_ERROR_PEER,
                    "rank %d could not duplicate the MPI communicator within %d ms in phase open",
                    s->rank, s->timeout_ms);
}

/* While this runs, comm returns errors; the duplicate inherits that. */
static mok_status meet(mok_mpi_state *s, MPI_Comm comm)
{
    MPI_Errhandler old = MPI_ERRORS_ARE_FATAL;
    (void)MPI_Comm_get_errhandler(comm, &old);
    (void)MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    const mok_status status = mok_mpi_gather(s, comm, 0) != 0 ? name_missing() : duplicate(s, comm);
    (void)MPI_Comm_set_errhandler(comm, old);
    (void)MPI_Errhandler_free(&old);
    return status;
}

static mok_status make_state(mok_mpi_state **out, MPI_Comm comm, const mok_comm_config *config)
{
    int between = 0;
    MOK_REQUIRE(comm != MPI_COMM_NULL, MOK_ERROR_ARGUMENT, "comm is MPI_COMM_NULL");
    MOK_REQUIRE(MPI_Comm_test_inter(comm, &between) == MPI_SUCCESS && between == 0,
                MOK_ERROR_ARGUMENT, "comm is not an intracommunicator");
    const mok_allocator allocator = mok_allocator_default();
    mok_mpi_state *s = mok_allocate(&allocator, sizeof *s);
    MOK_REQUIRE(s != NULL, MOK_ERROR_MEMORY, "no memory for MPI messages");
    memset(s, 0, sizeof *s);
    s->timeout_ms = config->timeout_ms;
    for (int peer = 0; peer < MOK_MAX_RANKS; peer++) {
        for (int slot = 0; slot < MOK_LINK_SLOTS; slot++) {
            s->sending[peer][slot] = MPI_REQUEST_NULL;
        }
    }
    (void)MPI_Comm_rank(comm, &s->rank);
    (void)MPI_Comm_size(comm, &s->ranks);
    if (s->ranks > MOK_MAX_RANKS) {
        const mok_status status =
            mok_fail(MOK_ERROR_ARGUMENT, "comm has %d ranks, at most %d", s->ranks, MOK_MAX_RANKS);
        mok_release(&allocator, s, sizeof *s);
        return status;
    }
    *out = s;
    return MOK_OK;
}

mok_status mok_comm_open_mpi(mok_comm **out, MPI_Comm comm, bool share_memory,
                             const mok_comm_config *config)
{
    mok_comm_config defaults;
    mok_mpi_state *s = NULL;
    mok_bootstrap bootstrap;
    mok_comm_config_init(&defaults);
    const mok_comm_config *use = config != NULL ? config : &defaults;
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    *out = NULL;
    MOK_REQUIRE(use->struct_bytes == sizeof *use && use->allocator.allocate != NULL &&
                    use->allocator.release != NULL && use->timeout_ms >= 1,
                MOK_ERROR_ARGUMENT, "config has another struct_bytes, allocator or timeout_ms");
    MOK_TRY(check_mpi());
    MOK_TRY(make_state(&s, comm, use));
    MOK_TRY(meet(s, comm)); /* on failure s stays: MPI may still write into it */
    const mok_link link = mok_mpi_link(s);
    mok_bootstrap_init(&bootstrap);
    bootstrap.rank = s->rank;
    bootstrap.ranks = s->ranks;
    bootstrap.context = s;
    bootstrap.allgather = gather;
    bootstrap.share_memory = share_memory;
    bootstrap.link = &link; /* copied; whoever holds it closes it */
    return mok_comm_open_bootstrap(out, &bootstrap, use);
}
