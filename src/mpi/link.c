/* Messages by MPI point-to-point calls. MPI keeps the order of messages between two ranks, and a
 * send's memory is free when its request has completed, which is all that a link promises. */
#include "mpi/state.h"

#include <string.h>
#include <time.h>

#define TAG 77

static int link_send(void *context, int32_t peer, int32_t slot, const void *message, size_t bytes)
{
    mok_mpi_state *s = context;
    return MPI_Isend(message, (int)bytes, MPI_BYTE, peer, TAG, s->comm, &s->sending[peer][slot]) ==
                   MPI_SUCCESS
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
    mok_mpi_inbox *inbox = s->inbox[peer];
    if (inbox == NULL) {
        inbox = mok_allocate(&s->allocator, sizeof *inbox);
        if (inbox == NULL) {
            return -1;
        }
        inbox->posted = false;
        s->inbox[peer] = inbox;
    }
    if (!inbox->posted) {
        inbox->posted = MPI_Irecv(inbox->message, MOK_LINK_MESSAGE_BYTES, MPI_BYTE, peer, TAG,
                                  s->comm, &inbox->request) == MPI_SUCCESS;
    }
    return inbox->posted ? 0 : -1;
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
    mok_mpi_inbox *inbox = s->inbox[peer];
    if (MPI_Test(&inbox->request, &done, &status) != MPI_SUCCESS) {
        inbox->posted = false;
        return -1;
    }
    if (!done) {
        return 0;
    }
    inbox->posted = false;
    if (MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS || count < 0) {
        return -1;
    }
    *message = inbox->message;
    *bytes = (size_t)count;
    return 1;
}

/* Every rank has said goodbye, so no receive that is still posted will be answered. */
static void cancel_receives(mok_mpi_state *s)
{
    for (int peer = 0; peer < s->ranks; peer++) {
        if (s->inbox[peer] != NULL && s->inbox[peer]->posted) {
            (void)MPI_Cancel(&s->inbox[peer]->request);
            (void)mok_mpi_wait(s, &s->inbox[peer]->request);
        }
    }
}

static void link_close(void *context, bool healthy)
{
    mok_mpi_state *s = context;
    if (healthy) {
        cancel_receives(s);
    }
    mok_mpi_state_end(s, healthy);
}

mok_link mok_mpi_link(mok_mpi_state *state)
{
    const mok_link link = {sizeof link, state, link_send, link_sent, link_receive, link_close};
    return link;
}

int mok_mpi_wait(mok_mpi_state *state, MPI_Request *request)
{
    struct timespec now;
    struct timespec begin;
    const struct timespec pause = {0, 100000};
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int64_t round = 0;; round++) {
        int done = 0;
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            state->abandoned = true;
            return -1;
        }
        if (done) {
            return 0;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        const int64_t waited =
            (int64_t)(now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000;
        if (waited >= state->timeout_ms) {
            state->abandoned = true;
            return -1;
        }
        if (round > 50) {
            (void)nanosleep(&pause, NULL);
        }
    }
}

void mok_mpi_state_end(mok_mpi_state *state, bool healthy)
{
    const mok_allocator allocator = state->allocator;
    if (state->abandoned || !healthy) {
        return; /* MPI may still write into it */
    }
    for (int peer = 0; peer < state->ranks; peer++) {
        if (state->inbox[peer] != NULL) {
            mok_release(&allocator, state->inbox[peer], sizeof *state->inbox[peer]);
        }
    }
    (void)MPI_Comm_free(&state->comm);
    mok_release(&allocator, state, sizeof *state);
}
