/* Stores that cross to ranks whose memory is not shared, by messages over a link.
 *
 * A rank keeps a copy of each such peer's control block and symmetric parts, and reads there as if
 * they were shared. What changes in one place is written in the other by mail:
 *
 *   own part    -> the peer's copy of it      rows to dispatch, routes, what is staged
 *   peer's part <- a put by this rank         combined rows, slots of the barrier
 *
 *   worker, caller                          courier, a thread                      the peer's
 * courier record -> outbox of that peer ------->  link.send, in order  ~~~~~~~~~~~~~~>   writes
 * where the record says
 *
 * Why it is enough: a link keeps the order of messages, records keep the order of calls, and the
 * receiving courier's last write for a barrier is the slot's store-release. So who sees the slot
 * sees all that was sent before it, as with shared memory.
 *
 * Nothing is allocated in a step. A full outbox makes its writer wait, bounded like every wait;
 * couriers themselves never wait, so mail always drains. Progress and faults go by a lane of their
 * own, past full outboxes. */
#ifndef MOK_COMM_MAIL_H
#define MOK_COMM_MAIL_H

#include <mok/mok_ranks.h>

#include "comm/comm.h"

/* Layers that can be open at once on one communicator. */
#define MOK_MAIL_PARTS 1024

/* Takes what a rank that has remote peers needs, its courier too; link is copied, and not called
 * yet: the bootstrap may still be gathering by the same means. Errors: MEMORY. */
mok_status mok_mail_open(mok_comm *comm, const mok_link *link);

/* From here on the courier calls the link. */
void mok_mail_start(mok_comm *comm);

/* Sends what is left, says goodbye and waits for the others' goodbye, timeout_ms at most; after a
 * fault does none of it. Then ends the courier and calls link.close. */
void mok_mail_close(mok_comm *comm);

/* Makes a symmetric allocation known to the courier, by its sequence; before the barrier behind
 * which peers use it. Errors: MEMORY when too many are open. */
mok_status mok_mail_add(mok_comm *comm, const mok_symmetric *symmetric);
void mok_mail_remove(mok_comm *comm, const mok_symmetric *symmetric);

/* Bytes into `owner`'s part as peer has it: the peer's own, or its copy of this rank's. */
void mok_mail_put(mok_comm *comm, int32_t peer, const mok_symmetric *symmetric, int32_t owner,
                  size_t offset, const void *data, size_t bytes);

/* How much longer than timeout_ms a wait for `peer` may last: a rank that still shows signs of life
 * waits for another itself, it may be, and knows its name; it gets time to say so. 0 for a peer
 * that is silent, or shares memory. */
int64_t mok_mail_patience_ms(const mok_comm *comm, int32_t peer);

/* This rank's arrival at its epoch's barrier: its call, what it has staged, its slot. Sends all
 * that is waiting. */
void mok_mail_arrive(mok_comm *comm, int32_t peer, size_t staged_bytes);

#endif
