/* Threads for virtual ranks. */
#include "group.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

typedef struct member {
    pthread_t thread;
    mok_comm *comm;
    group_main run;
    void *context;
    mok_status status;
    char why[240];
} member;

static void *member_thread(void *context)
{
    member *m = context;
    m->status = m->run(m->comm, m->context);
    if (m->status != MOK_OK) {
        (void)snprintf(m->why, sizeof m->why, "%s", mok_last_error());
    }
    return NULL;
}

mok_status group_run(int32_t ranks, const mok_comm_config *config, group_main run, void *context,
                     char *why)
{
    mok_comm *comm[MOK_MAX_RANKS] = {NULL};
    member members[MOK_MAX_RANKS];
    int32_t started = 0;
    mok_status status = mok_comm_open_local(comm, ranks, config);
    if (status != MOK_OK) {
        (void)snprintf(why, 240, "%s", mok_last_error());
        return status;
    }
    for (; started < ranks; started++) {
        member *m = &members[started];
        m->comm = comm[started];
        m->run = run;
        m->context = context;
        m->status = MOK_OK;
        m->why[0] = '\0';
        if (pthread_create(&m->thread, NULL, member_thread, m) != 0) {
            break;
        }
    }
    for (int32_t rank = 0; rank < started; rank++) {
        (void)pthread_join(members[rank].thread, NULL);
        if (status == MOK_OK && members[rank].status != MOK_OK) {
            status = members[rank].status;
            (void)snprintf(why, 240, "%s", members[rank].why);
        }
    }
    if (status == MOK_OK && started < ranks) {
        status = MOK_ERROR_MEMORY;
        (void)snprintf(why, 240, "no thread for rank %d", started);
    }
    for (int32_t rank = 0; rank < ranks; rank++) {
        mok_comm_close(&comm[rank]);
    }
    return status;
}

int32_t group_processors(void)
{
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : (int32_t)(count > 256 ? 256 : count);
}

double group_now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
