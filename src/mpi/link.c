/* Messages by MPI point-to-point calls. MPI keeps the order of messages between two ranks, and a
 * slot is free when its request has completed, which is all that a link promises.
 *
 * A rank's last word to a peer is an empty message. Whoever has it from every peer may free the
 * communicator: a message that came later would be kept by MPI for the next communicator that gets
 * the same number. */
#include <string.h>

#include "comm/objects.h"
#include "mpi/state.h"

/* NULL without memory. */
static mok_mpi_lane *lane_to(mok_mpi_state *s, int32_t peer)
{
    if (s->lane[peer] == NULL) {
        const mok_allocator allocator = mok_allocator_default();
        mok_mpi_lane *lane = mok_allocate(&allocator, sizeof *lane);
        if (lane != NULL) {
            lane->posted = false;
            lane->ended = false;
        }
        s->lane[peer] = lane;
    }
    return s->lane[peer];
}

static int link_send(void *context, int32_t peer, int32_t slot, const void *message, size_t bytes)
{
    mok_mpi_state *s = context;
    mok_mpi_lane *lane = lane_to(s, peer);
    if (lane == NULL) {
        return -1;
    }
    memcpy(lane->sent[slot], message, bytes);
    return MPI_Isend(lane->sent[slot], (int)bytes, MPI_BYTE, peer, MOK_MPI_LINK_TAG, s->comm,
                     &s->sending[peer][slot]) == MPI_SUCCESS
               ? 0
               : -1;
}

static int link_sent(void *context, int32_t peer, int32_t slot)
{
    mok_mpi_state *s = context;
    int done = 0;
    if (MPI_Test(&s->sending[peer][slot], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        return -1;
    }
    return done;
}

static int post(mok_mpi_state *s, int32_t peer)
{
    mok_mpi_lane *lane = lane_to(s, peer);
    if (lane == NULL) {
        return -1;
    }
    if (!lane->posted && !lane->ended) {
        lane->posted = MPI_Irecv(lane->received, MOK_LINK_MESSAGE_BYTES, MPI_BYTE, peer,
                                 MOK_MPI_LINK_TAG, s->comm, &lane->request) == MPI_SUCCESS;
    }
    return lane->posted || lane->ended ? 0 : -1;
}

static int link_receive(void *context, int32_t peer, const void **message, size_t *bytes)
{
    mok_mpi_state *s = context;
    int done = 0;
    int count = 0;
    MPI_Status status;
    if (post(s, peer) != 0) { /* here, so that the message before stays until it is asked for */
        return -1;
    }
    mok_mpi_lane *lane = s->lane[peer];
    if (lane->ended) {
        return 0;
    }
    if (MPI_Test(&lane->request, &done, &status) != MPI_SUCCESS) {
        lane->posted = false;
        return -1;
    }
    if (!done) {
        return 0;
    }
    lane->posted = false;
    if (MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS || count < 0) {
        return -1;
    }
    lane->ended = count == 0;
    *message = lane->received;
    *bytes = (size_t)count;
    return !lane->ended;
}

/* Reads what the peers still have to say. True when all have said their last word; false when one
 * fails. */
static bool all_ended(mok_mpi_state *s, bool *failed)
{
    bool ended = true;
    for (int peer = 0; peer < s->ranks && !*failed; peer++) {
        const void *message;
        size_t bytes;
        if (s->lane[peer] != NULL) {
            *failed = link_receive(s, peer, &message, &bytes) < 0;
            ended = ended && s->lane[peer]->ended;
        }
    }
    return ended;
}

/* timeout_ms at most. Peers read until our last word is there, so all sends complete. */
static bool say_last_words(mok_mpi_state *s)
{
    MPI_Request last[MOK_MAX_RANKS];
    int count = 0;
    bool failed = false;
    for (int peer = 0; peer < s->ranks && !failed; peer++) {
        if (s->lane[peer] != NULL) {
            failed = MPI_Isend(NULL, 0, MPI_BYTE, peer, MOK_MPI_LINK_TAG, s->comm, &last[count]) !=
                     MPI_SUCCESS;
            count += !failed;
        }
    }
    const int64_t since = mok_now_ms();
    while (!failed && !all_ended(s, &failed)) {
        failed = failed || mok_now_ms() - since >= s->timeout_ms;
        mok_pause_ms(failed ? 0 : 1);
    }
    failed = failed || mok_mpi_wait(s, count, last) != 0;
    return !failed && mok_mpi_wait(s, MOK_MAX_RANKS * MOK_LINK_SLOTS, s->sending[0]) == 0;
}

static void link_close(void *context, bool healthy)
{
    mok_mpi_state *s = context;
    mok_mpi_state_end(s, healthy && !s->abandoned && say_last_words(s));
}

mok_link mok_mpi_link(mok_mpi_state *state)
{
    const mok_link link = {sizeof link, state, link_send, link_sent, link_receive, link_close};
    return link;
}
