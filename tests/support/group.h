/* Runs a function on R virtual ranks, one thread each, as a program with R processes would. */
#ifndef MOK_TESTS_GROUP_H
#define MOK_TESTS_GROUP_H

#include <mok/mok_experimental.h>

typedef mok_status (*rank_main)(mok_comm *comm, void *context);

/* Opens R ranks, runs main on each, closes them. status[R] receives what each returned,
 * text[R][240] its mok_last_error(); both may be NULL. Returns the first status that is not MOK_OK.
 */
mok_status group_run(int32_t ranks, const mok_comm_config *config, rank_main run, void *context,
                     mok_status *status, char (*text)[240]);

#endif
