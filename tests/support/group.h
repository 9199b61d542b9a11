/* Runs a function on R ranks, one thread each, as a program with R processes would. */
#ifndef MOK_TESTS_GROUP_H
#define MOK_TESTS_GROUP_H

#include <mok/mok_experimental.h>

typedef mok_status (*rank_main)(mok_comm *comm, void *context);

/* Opens R ranks that share memory, runs main on each, closes them. status[R] receives what each
 * returned, text[R][240] its mok_last_error(); both may be NULL. Returns the first status that is
 * not MOK_OK. */
mok_status group_run(int32_t ranks, const mok_comm_config *config, rank_main run, void *context,
                     mok_status *status, char (*text)[240]);

/* The same where each rank opens itself, on its thread. A rank that could not be opened is not run;
 * its status and text are those of opening. */
typedef struct group_opener {
    mok_status (*open)(mok_comm **comm, int32_t rank, void *context);
    void *context;
} group_opener;

mok_status group_run_by(int32_t ranks, const group_opener *opener, rank_main run, void *context,
                        mok_status *status, char (*text)[240]);

#endif
