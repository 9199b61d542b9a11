/* Bounded waits for MPI requests, gathering by messages between each two ranks, and the state's
 * end.
 *
 * MPI writes where a request says, whenever that is: what a call was given up with is never given
 * back. */
#include <stdio.h>
#include <string.h>

#include "comm/objects.h"
#include "core/status.h"
#include "mpi/state.h"

#define MOST_REQUESTS (MOK_MAX_RANKS * MOK_LINK_SLOTS)

/* Looks until all have completed. 1, 0 after timeout_ms, or -1 on failure. Those that have are
 * MPI_REQUEST_NULL then; MPI_Testall would leave them as they were until the last one has. */
static int look(const mok_mpi_state *state, int count, MPI_Request *request)
{
    const int64_t since = mok_now_ms();
    int which[MOST_REQUESTS];
    for (int64_t round = 0;; round++) {
        int completed = 0;
        do {
            if (MPI_Testsome(count, request, &completed, which, MPI_STATUSES_IGNORE) !=
                MPI_SUCCESS) {
                return -1;
            }
        } while (completed != MPI_UNDEFINED && completed > 0);
        if (completed == MPI_UNDEFINED) { /* none is left */
            return 1;
        }
        if (mok_now_ms() - since >= state->timeout_ms) {
            return 0;
        }
        if (round > 50) {
            mok_pause_ms(1);
        }
    }
}

int mok_mpi_wait(mok_mpi_state *state, int count, MPI_Request *request)
{
    const bool done = look(state, count, request) == 1;
    state->abandoned = state->abandoned || !done;
    return done ? 0 : -1;
}

/* Receives of all ranks, then sends to all. */
static bool start(mok_mpi_state *s, MPI_Comm comm, int bytes, MPI_Request *request)
{
    bool fine = true;
    for (int i = 0; i < 2 * s->ranks; i++) {
        request[i] = MPI_REQUEST_NULL;
    }
    for (int peer = 0; peer < s->ranks && fine; peer++) {
        if (peer != s->rank) {
            fine = MPI_Irecv(s->gather_out + (size_t)peer * (size_t)bytes, bytes, MPI_BYTE, peer,
                             MOK_MPI_GATHER_TAG, comm, &request[peer]) == MPI_SUCCESS;
        }
    }
    for (int peer = 0; peer < s->ranks && fine; peer++) {
        if (peer != s->rank) {
            fine = MPI_Isend(s->gather_in, bytes, MPI_BYTE, peer, MOK_MPI_GATHER_TAG, comm,
                             &request[s->ranks + peer]) == MPI_SUCCESS;
        }
    }
    return fine;
}

/* The first rank whose message has not come or did not go. */
static int missing(const mok_mpi_state *s, const MPI_Request *request)
{
    int i = 0;
    while (i < 2 * s->ranks && request[i] == MPI_REQUEST_NULL) {
        i++;
    }
    return i % s->ranks;
}

int mok_mpi_gather(mok_mpi_state *state, MPI_Comm comm, size_t bytes)
{
    MPI_Request request[2 * MOK_MAX_RANKS];
    const int64_t since = mok_now_ms();
    int done = start(state, comm, (int)bytes, request) ? 0 : -1;
    memcpy(state->gather_out + (size_t)state->rank * bytes, state->gather_in, bytes);
    if (done == 0) {
        done = look(state, 2 * state->ranks, request);
    }
    if (done == 1) {
        return 0;
    }
    state->abandoned = true;
    (void)mok_fail(MOK_ERROR_PEER,
                   done == 0 ? "rank %d waited for rank %d for %lld ms"
                             : "rank %d has no way to rank %d (MPI failed after %lld ms)",
                   state->rank, missing(state, request), (long long)(mok_now_ms() - since));
    return -1;
}

void mok_mpi_state_end(mok_mpi_state *state, bool healthy)
{
    const mok_allocator allocator = mok_allocator_default();
    bool used = false; /* by messages, which nobody has waited for unless healthy */
    for (int peer = 0; peer < state->ranks; peer++) {
        used = used || state->lane[peer] != NULL;
    }
    if (state->abandoned || (used && !healthy)) {
        return;
    }
    for (int peer = 0; peer < state->ranks; peer++) {
        if (state->lane[peer] != NULL) {
            mok_release(&allocator, state->lane[peer], sizeof *state->lane[peer]);
        }
    }
    if (healthy) {
        (void)MPI_Comm_free(&state->comm);
    }
    mok_release(&allocator, state, sizeof *state);
}
