/* Ranks of an MPI program. Part of the library mok_mpi, which is built where MPI is found.
 *
 * MPI brings the ranks together and, between hosts, carries rows and signals as point-to-point
 * messages. Ranks on one host share memory as everywhere. Bytes do not depend on any of it.
 * Conventions as in mok.h. */
#ifndef MOK_MOK_MPI_H
#define MOK_MOK_MPI_H

#include <mok/mok_ranks.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks meet on the caller's communicator by empty messages of this tag. */
#define MOK_MPI_TAG 27503

/* Opens this process as a rank of `comm`, with its rank and size there.
 *
 *   out           receives the handle, NULL on failure; the caller closes it before MPI_Finalize
 *   comm          an intracommunicator; duplicated, and only used while this call runs. No receive
 *                 that takes any tag may wait on it meanwhile
 *   share_memory  true: ranks that can map each other's memory do. False: all is sent as messages,
 *                 on one host too
 *   config        NULL for the defaults
 *
 * Collective over comm. MPI must have been initialised with MPI_THREAD_SERIALIZED or more. Where
 * ranks exchange messages, a thread of the library calls MPI while the handle is open, so that with
 * MPI_THREAD_SERIALIZED the program itself must not call MPI meanwhile. No call waits longer than
 * timeout_ms for a rank that does not come, and it is named. After a fault the communicator's
 * messages are abandoned, not awaited, and MPI_Finalize may hang as after the death of any rank; a
 * program then ends by _exit or MPI_Abort. What MPI reads and writes, 0.4 MB a peer, is malloc's
 * and then stays until the process ends. Errors: ARGUMENT, MEMORY, MISMATCH, UNSUPPORTED (thread
 * level), DEVICE, PEER. */
MOK_API mok_status mok_comm_open_mpi(mok_comm **out, MPI_Comm comm, bool share_memory,
                                     const mok_comm_config *config);

#ifdef __cplusplus
}
#endif
#endif
