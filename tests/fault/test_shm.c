/* Ranks as processes: opening, exchanging, and every way in which they do not find each other. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "problem.h"

static void run_name(char out[64], const char *what)
{
    (void)snprintf(out, 64, "test-%s-%ld", what, (long)getpid());
}

static mok_comm_config quick(int32_t timeout_ms)
{
    mok_comm_config config;
    mok_comm_config_init(&config);
    config.timeout_ms = timeout_ms;
    return config;
}

static bool object_exists(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, "/dev/shm/mok.%s", name);
    return access(path, F_OK) == 0;
}

static void names_ranks_and_configurations_are_checked(void **state)
{
    (void)state;
    static const char *const names[] = {
        "", "a/b", "with space", "..",
        "0123456789012345678901234567890123456789012345678901234567890123456789"};
    mok_comm *comm = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(mok_comm_open_shm(&comm, names[i], 0, 1, NULL), MOK_ERROR_ARGUMENT);
        assert_null(comm);
    }
    assert_int_equal(mok_comm_open_shm(&comm, NULL, 0, 1, NULL), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_open_shm(NULL, "a", 0, 1, NULL), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_open_shm(&comm, "a", 1, 1, NULL), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_open_shm(&comm, "a", -1, 1, NULL), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_open_shm(&comm, "a", 0, MOK_MAX_RANKS + 1, NULL), MOK_ERROR_ARGUMENT);
}

static void one_rank_alone_works_and_leaves_no_name(void **state)
{
    (void)state;
    char name[64];
    mok_comm *comm = NULL;
    run_name(name, "alone");
    assert_int_equal(mok_comm_open_shm(&comm, name, 0, 1, NULL), MOK_OK);
    assert_false(object_exists(name));
    assert_int_equal(mok_comm_barrier(comm), MOK_OK);
    mok_comm_close(&comm);
    assert_int_equal(mok_comm_open_shm(&comm, name, 0, 1, NULL),
                     MOK_OK); /* the name is free again */
    mok_comm_close(&comm);
}

static void a_missing_rank_0_is_named_after_the_deadline(void **state)
{
    (void)state;
    char name[64];
    mok_comm *comm = NULL;
    const mok_comm_config config = quick(200);
    run_name(name, "missing");
    const time_t begin = time(NULL);
    assert_int_equal(mok_comm_open_shm(&comm, name, 1, 2, &config), MOK_ERROR_PEER);
    assert_non_null(strstr(mok_last_error(), "rank 1 waited for rank 0 in phase open"));
    assert_true(time(NULL) - begin < 20);
}

static void a_missing_rank_1_leaves_no_name(void **state)
{
    (void)state;
    char name[64];
    mok_comm *comm = NULL;
    const mok_comm_config config = quick(200);
    run_name(name, "lonely");
    assert_int_equal(mok_comm_open_shm(&comm, name, 0, 2, &config), MOK_ERROR_PEER);
    assert_false(object_exists(name));
}

/* As rank 0 leaves it that is killed in the middle of making it. */
static void an_unfinished_object_of_rank_0_is_taken_away(void **state)
{
    (void)state;
    char name[64];
    char object[80];
    mok_comm *comm = NULL;
    const mok_comm_config config = quick(200);
    run_name(name, "unfinished");
    (void)snprintf(object, sizeof object, "/mok.%s", name);
    const int handle = shm_open(object, O_CREAT | O_EXCL | O_RDWR, 0600);
    assert_true(handle >= 0);
    assert_int_equal(close(handle), 0);
    assert_int_equal(mok_comm_open_shm(&comm, name, 1, 2, &config), MOK_ERROR_PEER);
    assert_non_null(strstr(mok_last_error(), "rank 1 waited for rank 0 in phase open"));
    assert_false(object_exists(name));
}

/* ---- Several processes ---- */

typedef int (*process_main)(const char *name, int32_t rank, int32_t ranks);

/* Exit codes of all ranks, each a process. */
static void run_processes(process_main run, const char *name, int32_t ranks, int codes[8])
{
    pid_t pid[8];
    for (int32_t rank = 0; rank < ranks; rank++) {
        pid[rank] = fork();
        assert_true(pid[rank] >= 0);
        if (pid[rank] == 0) {
            _exit(run(name, rank, ranks));
        }
    }
    for (int32_t rank = 0; rank < ranks; rank++) {
        int status = 0;
        assert_int_equal(waitpid(pid[rank], &status, 0), pid[rank]);
        codes[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
}

static int other_number_of_ranks(const char *name, int32_t rank, int32_t ranks)
{
    mok_comm *comm = NULL;
    const mok_comm_config config = quick(1000);
    const mok_status status = mok_comm_open_shm(&comm, name, rank, ranks + rank, &config);
    const char *named = rank == 0 ? "rank 0 waited for rank 1 in phase open" : "rank 1 has version";
    return strstr(mok_last_error(), named) != NULL ? (int)status : -1;
}

static void another_number_of_ranks_is_a_mismatch(void **state)
{
    (void)state;
    char name[64];
    int codes[8];
    run_name(name, "number");
    run_processes(other_number_of_ranks, name, 2, codes);
    assert_int_equal(codes[0], MOK_ERROR_PEER); /* nobody joined it */
    assert_int_equal(codes[1], MOK_ERROR_MISMATCH);
    assert_false(object_exists(name));
}

static int exchange_rounds(const char *name, int32_t rank, int32_t ranks)
{
    mok_comm *comm = NULL;
    const mok_comm_config config = quick(20000);
    if (mok_comm_open_shm(&comm, name, rank, ranks, &config) != MOK_OK) {
        return 1;
    }
    for (int32_t round = 0; round < 300; round++) {
        int32_t all[8];
        const int32_t mine = round * 100 + rank;
        float sum = 0.0f;
        const float part = (float)(rank + round);
        if (mok_comm_allgather(comm, all, &mine, sizeof mine) != MOK_OK ||
            mok_lane_reduce(comm, &sum, &part, 1, 1) != MOK_OK) {
            return 2;
        }
        float want = 0.0f;
        for (int32_t r = 0; r < ranks; r++) {
            want += (float)(r + round);
            if (all[r] != round * 100 + r) {
                return 3;
            }
        }
        if (sum != want) {
            return 4;
        }
    }
    mok_comm_close(&comm);
    return 0;
}

static void processes_exchange_in_step(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 4; ranks++) {
        char name[64];
        int codes[8];
        run_name(name, "exchange");
        run_processes(exchange_rounds, name, ranks, codes);
        for (int32_t rank = 0; rank < ranks; rank++) {
            assert_int_equal(codes[rank], 0);
        }
        assert_false(object_exists(name));
    }
}

/* Rank 1 leaves in the middle; the others are told within the deadline, and which rank it was. */
static int leave_in_the_middle(const char *name, int32_t rank, int32_t ranks)
{
    mok_comm *comm = NULL;
    mok_layer *layer = NULL;
    mok_layer_config layer_config;
    const mok_comm_config config = quick(500);
    if (mok_comm_open_shm(&comm, name, rank, ranks, &config) != MOK_OK) {
        return 1;
    }
    mok_layer_config_init(&layer_config);
    layer_config.hidden = layer_config.intermediate = 16;
    layer_config.experts = 4;
    layer_config.slots = 2;
    layer_config.max_tokens = 8;
    if (mok_layer_open(&layer, comm, &layer_config) != MOK_OK) {
        return 2;
    }
    if (rank == 1) {
        _exit(0); /* as if killed: nothing is closed */
    }
    mok_fault fault;
    fault.struct_bytes = sizeof fault;
    if (mok_comm_barrier(comm) != MOK_ERROR_PEER || mok_fault_read(comm, &fault) != MOK_OK ||
        fault.peer != 1) {
        return 3;
    }
    mok_layer_close(&layer);
    mok_comm_close(&comm);
    return 0;
}

static void a_process_that_dies_is_named_and_leaves_no_object(void **state)
{
    (void)state;
    char name[64];
    char path[160];
    int codes[8];
    run_name(name, "dies");
    run_processes(leave_in_the_middle, name, 3, codes);
    for (int32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(codes[rank], 0);
        (void)snprintf(path, sizeof path, "%s.%d.0", name, rank);
        assert_false(object_exists(path));
    }
    assert_false(object_exists(name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_ranks_and_configurations_are_checked),
        cmocka_unit_test(one_rank_alone_works_and_leaves_no_name),
        cmocka_unit_test(a_missing_rank_0_is_named_after_the_deadline),
        cmocka_unit_test(a_missing_rank_1_leaves_no_name),
        cmocka_unit_test(an_unfinished_object_of_rank_0_is_taken_away),
        cmocka_unit_test(another_number_of_ranks_is_a_mismatch),
        cmocka_unit_test(processes_exchange_in_step),
        cmocka_unit_test(a_process_that_dies_is_named_and_leaves_no_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
