/* How a command's ranks come about: threads of the process, or processes that a launcher made,
 * found from the environment.
 *
 *   MOK_SHM, MOK_RANK, MOK_RANKS                  mok launch
 *   OMPI_COMM_WORLD_SIZE, PMIX_RANK or PMI_SIZE   mpirun, srun
 *   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT    torchrun
 *
 * The first that is there counts. MOK_SHARE_MEMORY=0 makes MPI ranks send messages on one host too.
 */
#ifndef MOK_CLI_RANKS_H
#define MOK_CLI_RANKS_H

#include <mok/mok.h>

typedef enum ranks_bootstrap {
    RANKS_THREADS = 0,
    RANKS_LAUNCH,
    RANKS_MPI,
    RANKS_TORCHRUN
} ranks_bootstrap;

typedef struct cli_ranks {
    ranks_bootstrap bootstrap;
    int32_t rank, ranks; /* of processes; 0 of 1 for threads */
    int32_t here;        /* ranks on this host; 0 where the launcher does not say */
    int32_t timeout_ms;
    bool share_memory, quiet;
    bool started_mpi;
    const char *name; /* of mok launch */
    const char *host; /* of torchrun */
    int32_t port;
    char why[240];
} cli_ranks;

/* Looks at the environment, and for MPI initialises it, timeout_ms at most. by is always filled.
 * Errors: ARGUMENT, UNSUPPORTED; by->why has the text. */
mok_status ranks_begin(cli_ranks *by, int32_t timeout_ms);

/* Opens this process as its rank; context is a cli_ranks. Unless quiet, says whom it reaches how.
 */
mok_status ranks_open(mok_comm **out, const mok_comm_config *config, void *context);

/* Ends what ranks_begin began and returns code. After a failure under MPI it does not return: peers
 * may be gone, and finalising would wait for them. */
int ranks_end(cli_ranks *by, int code);

const char *ranks_name(ranks_bootstrap bootstrap);

#endif
