/* The bootstrap of a command's ranks. */
#include "ranks.h"

#include <inttypes.h>
#include <mok/mok_ranks.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef MOK_HAVE_MPI
#include <mok/mok_mpi.h>
#endif

const char *ranks_name(ranks_bootstrap bootstrap)
{
    static const char *const names[] = {"threads", "processes of mok launch", "processes of MPI",
                                        "processes of torchrun"};
    return names[bootstrap];
}

/* A whole number in [least, most] from the environment. */
static bool number_from(const char *name, int64_t least, int64_t most, int64_t *out)
{
    const char *text = getenv(name);
    char *end = NULL;
    const long long value = text != NULL ? strtoll(text, &end, 10) : 0;
    *out = value;
    return text != NULL && end != text && *end == '\0' && value >= least && value <= most;
}

static mok_status refuse(cli_ranks *by, mok_status status, const char *text)
{
    (void)snprintf(by->why, sizeof by->why, "%s", text);
    return status;
}

static mok_status begin_launch(cli_ranks *by)
{
    int64_t rank = 0;
    int64_t ranks = 0;
    by->bootstrap = RANKS_LAUNCH;
    by->name = getenv("MOK_SHM");
    if (!number_from("MOK_RANKS", 1, MOK_MAX_RANKS, &ranks) ||
        !number_from("MOK_RANK", 0, ranks - 1, &rank)) {
        return refuse(by, MOK_ERROR_ARGUMENT,
                      "MOK_SHM is set: MOK_RANKS must be 1..64 and MOK_RANK below it");
    }
    by->rank = (int32_t)rank;
    by->ranks = (int32_t)ranks;
    return MOK_OK;
}

static mok_status begin_torchrun(cli_ranks *by)
{
    int64_t rank = 0;
    int64_t ranks = 0;
    int64_t port = 0;
    by->bootstrap = RANKS_TORCHRUN;
    by->host = getenv("MASTER_ADDR");
    if (!number_from("WORLD_SIZE", 1, MOK_MAX_RANKS, &ranks) ||
        !number_from("RANK", 0, ranks - 1, &rank) || !number_from("MASTER_PORT", 1, 65535, &port)) {
        return refuse(by, MOK_ERROR_ARGUMENT,
                      "MASTER_ADDR is set: WORLD_SIZE must be 1..64, RANK below it and MASTER_PORT "
                      "1..65535");
    }
    /* torchrun's own store may listen at MASTER_PORT; the next port is the ranks'. */
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    const bool taken = store != NULL && strcmp(store, "True") == 0 && port < 65535;
    by->rank = (int32_t)rank;
    by->ranks = (int32_t)ranks;
    by->port = (int32_t)port + (taken ? 1 : 0);
    return MOK_OK;
}

/* ---- MPI ---- */

/* The first of these that says how many ranks are on this host. */
static int32_t ranks_here(int32_t ranks)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "LOCAL_WORLD_SIZE"};
    int64_t here = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (number_from(names[i], 1, ranks, &here)) {
            return (int32_t)here;
        }
    }
    return 0;
}

static bool launched_by_mpi(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMIX_RANK") != NULL ||
           getenv("PMI_SIZE") != NULL;
}

#ifdef MOK_HAVE_MPI

/* The others shall have said what they saw before a launcher ends them for our code. */
#define LAST_WORDS_MS 500

/* Initialising and finalising wait for every rank, without a deadline of their own: an alarm ends
 * the process. What it says is made before, since a handler may do no more than write. */
static char late_text[200];

static void too_late(int number)
{
    const ssize_t ignored = write(STDERR_FILENO, late_text, strlen(late_text));
    (void)ignored;
    (void)number;
    (void)poll(NULL, 0, LAST_WORDS_MS);
    _exit(1);
}

static void set_alarm(const cli_ranks *by, const char *call)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    rank = rank != NULL ? rank : getenv("PMIX_RANK");
    rank = rank != NULL ? rank : getenv("PMI_RANK");
    (void)snprintf(late_text, sizeof late_text,
                   "mok: MOK_ERROR_PEER: rank %s waited for the other ranks in phase %s (%s), for "
                   "%d ms\n",
                   rank != NULL ? rank : "?", strcmp(call, "MPI_Init") == 0 ? "open" : "close",
                   call, by->timeout_ms);
    (void)signal(SIGALRM, too_late);
    (void)alarm((unsigned)(by->timeout_ms / 1000) + 1);
}

static mok_status begin_mpi(cli_ranks *by)
{
    int level = MPI_THREAD_SINGLE;
    int rank = 0;
    int ranks = 0;
    const char *share = getenv("MOK_SHARE_MEMORY");
    by->bootstrap = RANKS_MPI;
    by->share_memory = share == NULL || strcmp(share, "0") != 0;
    set_alarm(by, "MPI_Init");
    const int made = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    (void)alarm(0);
    if (made != MPI_SUCCESS) {
        return refuse(by, MOK_ERROR_UNSUPPORTED, "MPI_Init_thread failed");
    }
    by->started_mpi = true;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    by->rank = rank;
    by->ranks = ranks;
    if (ranks > MOK_MAX_RANKS) {
        return refuse(by, MOK_ERROR_ARGUMENT, "more than 64 MPI ranks");
    }
    return MOK_OK;
}

static mok_status open_mpi(mok_comm **out, const cli_ranks *by, const mok_comm_config *config)
{
    return mok_comm_open_mpi(out, MPI_COMM_WORLD, by->share_memory, config);
}

static void end_mpi(cli_ranks *by, int code)
{
    if (code != 0) {
        (void)fflush(NULL);
        (void)poll(NULL, 0, LAST_WORDS_MS);
        _exit(code);
    }
    set_alarm(by, "MPI_Finalize");
    (void)MPI_Finalize();
    (void)alarm(0);
}

#else

static mok_status begin_mpi(cli_ranks *by)
{
    by->bootstrap = RANKS_MPI;
    return refuse(by, MOK_ERROR_UNSUPPORTED, "started by MPI, but this build is without it");
}

static mok_status open_mpi(mok_comm **out, const cli_ranks *by, const mok_comm_config *config)
{
    (void)by;
    (void)config;
    *out = NULL;
    return MOK_ERROR_UNSUPPORTED;
}

static void end_mpi(cli_ranks *by, int code)
{
    (void)by;
    (void)code;
}

#endif

/* ---- All of them ---- */

mok_status ranks_begin(cli_ranks *by, int32_t timeout_ms)
{
    memset(by, 0, sizeof *by);
    by->ranks = 1;
    by->timeout_ms = timeout_ms;
    by->share_memory = true;
    mok_status status = MOK_OK;
    if (getenv("MOK_SHM") != NULL) {
        return begin_launch(by);
    }
    if (launched_by_mpi()) {
        status = begin_mpi(by);
    } else if (getenv("MASTER_ADDR") != NULL) {
        status = begin_torchrun(by);
    }
    by->here = ranks_here(by->ranks);
    return status;
}

static mok_status open_torchrun(mok_comm **out, const cli_ranks *by, const mok_comm_config *config)
{
    mok_bootstrap bootstrap;
    mok_status status = mok_bootstrap_tcp_open(&bootstrap, by->host, by->port, by->rank, by->ranks,
                                               config->timeout_ms);
    if (status == MOK_OK) {
        status = mok_comm_open_bootstrap(out, &bootstrap, config);
        mok_bootstrap_tcp_close(&bootstrap);
    }
    return status;
}

static void say_reach(const mok_comm *comm)
{
    int32_t mapped = 0;
    const int32_t ranks = mok_comm_size(comm);
    for (int32_t peer = 0; peer < ranks; peer++) {
        mapped += peer != mok_comm_rank(comm) && mok_comm_shares_memory(comm, peer);
    }
    (void)printf("rank 0 shares memory with %d ranks and exchanges messages with %d\n", mapped,
                 ranks - 1 - mapped);
    (void)fflush(stdout);
}

mok_status ranks_open(mok_comm **out, const mok_comm_config *config, void *context)
{
    const cli_ranks *by = context;
    mok_status status = MOK_ERROR_ARGUMENT;
    switch (by->bootstrap) {
    case RANKS_LAUNCH:
        status = mok_comm_open_shm(out, by->name, by->rank, by->ranks, config);
        break;
    case RANKS_MPI:
        status = open_mpi(out, by, config);
        break;
    case RANKS_TORCHRUN:
        status = open_torchrun(out, by, config);
        break;
    case RANKS_THREADS:
        break;
    }
    if (status == MOK_OK && !by->quiet) {
        say_reach(*out);
    }
    return status;
}

int ranks_end(cli_ranks *by, int code)
{
    if (by->started_mpi) {
        end_mpi(by, code);
    }
    return code;
}
