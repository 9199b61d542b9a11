/* Runs a function on R ranks, one thread each. */
#include "group.h"

#include <pthread.h>
#include <stdio.h>

typedef struct member {
    int32_t rank;
    const group_opener *opener;
    rank_main run;
    void *context;
    mok_status status;
    char text[240];
    pthread_t thread;
} member;

static void *member_main(void *argument)
{
    member *self = argument;
    mok_comm *comm = NULL;
    self->status = self->opener->open(&comm, self->rank, self->opener->context);
    if (self->status == MOK_OK) {
        self->status = self->run(comm, self->context);
    }
    (void)snprintf(self->text, sizeof self->text, "%s",
                   self->status != MOK_OK ? mok_last_error() : "");
    mok_comm_close(&comm);
    return NULL;
}

mok_status group_run_by(int32_t ranks, const group_opener *opener, rank_main run, void *context,
                        mok_status *status, char (*text)[240])
{
    member members[MOK_MAX_RANKS];
    mok_status first = MOK_OK;
    for (int32_t rank = 0; rank < ranks; rank++) {
        members[rank].rank = rank;
        members[rank].opener = opener;
        members[rank].run = run;
        members[rank].context = context;
        (void)pthread_create(&members[rank].thread, NULL, member_main, &members[rank]);
    }
    for (int32_t rank = 0; rank < ranks; rank++) {
        pthread_join(members[rank].thread, NULL);
        if (first == MOK_OK) {
            first = members[rank].status;
        }
        if (status != NULL) {
            status[rank] = members[rank].status;
        }
        if (text != NULL) {
            (void)snprintf(text[rank], 240, "%s", members[rank].text);
        }
    }
    return first;
}

static mok_status take_opened(mok_comm **comm, int32_t rank, void *context)
{
    *comm = ((mok_comm **)context)[rank];
    return MOK_OK;
}

mok_status group_run(int32_t ranks, const mok_comm_config *config, rank_main run, void *context,
                     mok_status *status, char (*text)[240])
{
    mok_comm *comms[MOK_MAX_RANKS];
    const group_opener opener = {take_opened, comms};
    const mok_status opened = mok_comm_open_local(comms, ranks, config);
    return opened != MOK_OK ? opened : group_run_by(ranks, &opener, run, context, status, text);
}
