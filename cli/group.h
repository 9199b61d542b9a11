/* Virtual ranks for the verbs: one thread a rank, as a program of R processes would have. */
#ifndef CLI_GROUP_H
#define CLI_GROUP_H

#include <mok/mok_experimental.h>

typedef mok_status (*group_main)(mok_comm *comm, void *context);

/* Opens `ranks` ranks, runs main on each, closes them. Returns the lowest rank's failure with its
 * text in why [240], or MOK_OK. */
mok_status group_run(int32_t ranks, const mok_comm_config *config, group_main run, void *context,
                     char *why);

/* Processors that this process may use. */
int32_t group_processors(void);

/* Seconds on a clock that only goes forward. */
double group_now_s(void);

#endif
