/* mok_comm_open_mpi, as an MPI program calls it: run by mpirun, three ranks or more.
 *
 *   open again   opened and closed many times in one process, with memory and with messages, on all
 *                ranks and on parts of them: nothing of one handle reaches the next
 *   open late    the last rank does not come: the others name it
 *   open single  a level of threads that does not do
 *
 * Exit code 0 where all is well; a rank says what is not. */
#define _POSIX_C_SOURCE 200809L
#include <mok/mok_mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define ROUNDS 24

static int world_rank, world_ranks, failures;

static void expect(bool good, const char *what)
{
    if (!good) {
        (void)fprintf(stderr, "rank %d: %s; the last error is '%s'\n", world_rank, what,
                      mok_last_error());
        failures++;
    }
}

static void pause_ms(long ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL);
}

static void gather_and_check(mok_comm *comm, int32_t round)
{
    int32_t all[MOK_MAX_RANKS] = {0};
    const int32_t mine = round * 1000 + mok_comm_rank(comm);
    expect(mok_comm_allgather(comm, all, &mine, sizeof mine) == MOK_OK, "allgather");
    for (int32_t rank = 0; rank < mok_comm_size(comm); rank++) {
        expect(all[rank] == round * 1000 + rank, "what was gathered");
    }
}

static void open_once(MPI_Comm comm, bool share_memory, int32_t round)
{
    mok_comm *handle = NULL;
    mok_comm_config config;
    int rank = 0;
    mok_comm_config_init(&config);
    (void)MPI_Comm_rank(comm, &rank);
    expect(mok_comm_open_mpi(&handle, comm, share_memory, &config) == MOK_OK, "open");
    if (handle == NULL) {
        return;
    }
    expect(mok_comm_rank(handle) == rank, "the rank is MPI's");
    expect(mok_comm_shares_memory(handle, (rank + 1) % mok_comm_size(handle)) ==
               (share_memory || mok_comm_size(handle) == 1),
           "memory is shared as asked");
    gather_and_check(handle, round);
    if (round % 3 == 0) {
        pause_ms(25 + 5 * rank); /* signs of life go to and fro while ends close */
    }
    gather_and_check(handle, round + 1);
    mok_comm_close(&handle);
}

static void refuse_arguments(void)
{
    mok_comm *handle = NULL;
    mok_comm_config config;
    mok_comm_config_init(&config);
    expect(mok_comm_open_mpi(NULL, MPI_COMM_WORLD, true, NULL) == MOK_ERROR_ARGUMENT, "out NULL");
    expect(mok_comm_open_mpi(&handle, MPI_COMM_NULL, true, NULL) == MOK_ERROR_ARGUMENT,
           "MPI_COMM_NULL");
    config.threads = 0; /* found after the ranks have met, and alike on each */
    expect(mok_comm_open_mpi(&handle, MPI_COMM_WORLD, true, &config) == MOK_ERROR_ARGUMENT,
           "threads 0");
    config.struct_bytes = 8;
    expect(mok_comm_open_mpi(&handle, MPI_COMM_WORLD, true, &config) == MOK_ERROR_ARGUMENT,
           "struct_bytes 8");
    expect(handle == NULL, "no handle");
}

static void again(void)
{
    MPI_Comm part;
    MPI_Errhandler before = MPI_ERRORS_RETURN;
    MPI_Errhandler after = MPI_ERRORS_RETURN;
    (void)MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
    for (int32_t round = 0; round < ROUNDS; round++) {
        open_once(MPI_COMM_WORLD, round % 2 == 0, round);
    }
    (void)MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
    expect(before == after, "the caller's error handler stays");
    /* Two groups at once, ranks of each in another order. */
    (void)MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, -world_rank, &part);
    for (int32_t round = 0; round < ROUNDS / 2; round++) {
        open_once(part, round % 2 == 0, round);
    }
    (void)MPI_Comm_free(&part);
    refuse_arguments();
    open_once(MPI_COMM_WORLD, false, 0);
}

static void late(void)
{
    mok_comm *handle = NULL;
    mok_comm_config config;
    char text[64];
    mok_comm_config_init(&config);
    config.timeout_ms = 300;
    if (world_rank == world_ranks - 1) {
        pause_ms(1500);
        return;
    }
    (void)snprintf(text, sizeof text, "rank %d waited for rank %d", world_rank, world_ranks - 1);
    expect(mok_comm_open_mpi(&handle, MPI_COMM_WORLD, false, &config) == MOK_ERROR_PEER, "late");
    expect(handle == NULL && strstr(mok_last_error(), text) != NULL &&
               strstr(mok_last_error(), "in phase open") != NULL,
           "the rank that does not come is named");
}

static void single(void)
{
    mok_comm *handle = NULL;
    expect(mok_comm_open_mpi(&handle, MPI_COMM_WORLD, true, NULL) == MOK_ERROR_UNSUPPORTED &&
               strstr(mok_last_error(), "MPI_THREAD_SERIALIZED") != NULL,
           "a level of threads that is too low");
}

int main(int argc, char **argv)
{
    int level = MPI_THREAD_SINGLE;
    const char *mode = argc > 1 ? argv[1] : "again";
    mok_comm *handle = NULL;
    expect(mok_comm_open_mpi(&handle, MPI_COMM_WORLD, true, NULL) == MOK_ERROR_ARGUMENT,
           "before MPI_Init");
    (void)MPI_Init_thread(&argc, &argv,
                          strcmp(mode, "single") == 0 ? MPI_THREAD_SINGLE : MPI_THREAD_SERIALIZED,
                          &level);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &world_ranks);
    if (strcmp(mode, "late") == 0) {
        late();
    } else if (strcmp(mode, "single") == 0) {
        single();
    } else {
        again();
    }
    (void)MPI_Finalize();
    return failures == 0 ? 0 : 1;
}
