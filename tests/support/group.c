/* Runs a function on R virtual ranks, one thread each. */
#include "group.h"

#include <pthread.h>
#include <stdio.h>

typedef struct member {
    mok_comm *comm;
    rank_main run;
    void *context;
    mok_status status;
    char text[240];
    pthread_t thread;
} member;

static void *member_main(void *argument)
{
    member *self = argument;
    self->status = self->run(self->comm, self->context);
    (void)snprintf(self->text, sizeof self->text, "%s",
                   self->status != MOK_OK ? mok_last_error() : "");
    mok_comm_close(&self->comm);
    return NULL;
}

mok_status group_run(int32_t ranks, const mok_comm_config *config, rank_main run, void *context,
                     mok_status *status, char (*text)[240])
{
    mok_comm *comms[MOK_MAX_RANKS];
    member members[MOK_MAX_RANKS];
    mok_status first = mok_comm_open_local(comms, ranks, config);
    if (first != MOK_OK) {
        return first;
    }
    for (int32_t rank = 0; rank < ranks; rank++) {
        members[rank].comm = comms[rank];
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
