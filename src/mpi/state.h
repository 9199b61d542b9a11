/* What a communicator of MPI ranks holds, from opening to the end of its link. */
#ifndef MOK_MPI_STATE_H
#define MOK_MPI_STATE_H

#include <mok/mok_mpi.h>
#include <stdint.h>

#include "core/memory.h"

#define MOK_MPI_GATHER_BYTES 4096

#define MOK_MPI_GATHER_TAG MOK_MPI_TAG
#define MOK_MPI_LINK_TAG (MOK_MPI_TAG + 1)

/* Messages between this rank and one peer. */
typedef struct mok_mpi_lane {
    MPI_Request request; /* the receive that is posted, or was answered last */
    bool posted;
    bool ended; /* the peer's last word, an empty message, has come */
    unsigned char received[MOK_LINK_MESSAGE_BYTES];
    unsigned char sent[MOK_LINK_SLOTS][MOK_LINK_MESSAGE_BYTES];
} mok_mpi_lane;

/* Once a call has been given up while it was under way, MPI may still read and write here: then the
 * memory stays, `abandoned`, until the process ends. So it is malloc's, not the caller's
 * allocator's, and messages are sent from here, not from memory that the communicator gives back.
 */
typedef struct mok_mpi_state {
    MPI_Comm comm; /* the library's own */
    int rank, ranks;
    int32_t timeout_ms;
    bool abandoned;
    MPI_Request sending[MOK_MAX_RANKS][MOK_LINK_SLOTS];
    mok_mpi_lane *lane[MOK_MAX_RANKS]; /* NULL until a message is looked for, or sent */
    unsigned char gather_in[MOK_MPI_GATHER_BYTES];
    unsigned char gather_out[MOK_MAX_RANKS * MOK_MPI_GATHER_BYTES];
} mok_mpi_state;

/* The link's functions, with a mok_mpi_state as context; close also ends the state. */
mok_link mok_mpi_link(mok_mpi_state *state);

/* Waits for all requests, MOK_MAX_RANKS * MOK_LINK_SLOTS at most, for timeout_ms at most. 0, or -1
 * on failure or when some did not complete; then the state is abandoned. */
int mok_mpi_wait(mok_mpi_state *state, int count, MPI_Request *request);

/* Sends `bytes` bytes of gather_in to each rank and fills gather_out [ranks, bytes], through comm.
 * 0, or -1 with mok_last_error, which names a rank that has not come; then the state is abandoned.
 * Not MPI_Iallgather: when that does not end, nobody can say who is missing. */
int mok_mpi_gather(mok_mpi_state *state, MPI_Comm comm, size_t bytes);

/* Gives back what MPI is done with; the communicator, which is freed by all ranks, only if healthy.
 */
void mok_mpi_state_end(mok_mpi_state *state, bool healthy);

#endif
