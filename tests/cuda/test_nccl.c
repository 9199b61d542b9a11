/* Loading NCCL and making its windows, without a GPU: against libraries of this test's own that
 * count and fail. LD_LIBRARY_PATH decides which one is found, so each case is this program again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>

#include <cmocka.h>

#include "cuda/peers.h"
#include "group.h"

static const char *self;

/* What each rank ends with; the texts are joined into one line of the child. */
static mok_status open_window(mok_comm *comm, void *context)
{
    mok_nccl *nccl = NULL;
    void *peer[MOK_CUDA_MAX_RANKS] = {NULL};
    (void)context;
    const mok_status status = mok_nccl_open(&nccl, comm, 4096, peer);
    if (status != MOK_OK) {
        return nccl == NULL ? status : MOK_ERROR_STATE;
    }
    const int32_t rank = mok_comm_rank(comm);
    for (int32_t r = 0; r < mok_comm_size(comm); r++) {
        const ptrdiff_t want = r == rank ? 0 : 64 + r;
        if ((char *)peer[r] - (char *)peer[rank] != want) {
            mok_nccl_close(&nccl);
            return MOK_ERROR_VALUE;
        }
    }
    memset(peer[rank], 1, 4096);
    const mok_status met = mok_comm_barrier(comm);
    mok_nccl_close(&nccl);
    return met;
}

/* --child RANKS: prints "STATUS text" of each rank, and how much is still open. */
static int child(int32_t ranks)
{
    mok_status status[MOK_CUDA_MAX_RANKS];
    char text[MOK_CUDA_MAX_RANKS][240];
    void *library =
        dlopen("libnccl.so.2", RTLD_NOW); /* stays, so that it can be asked at the end */
    (void)group_run(ranks, NULL, open_window, NULL, status, text);
    for (int32_t rank = 0; rank < ranks; rank++) {
        (void)printf("%s %s\n", mok_status_string(status[rank]), text[rank]);
    }
    int (*still_open)(void) = NULL;
    void *symbol = library != NULL ? dlsym(library, "fake_nccl_open") : NULL;
    memcpy(&still_open, &symbol, sizeof still_open);
    (void)printf("open %d\n", still_open != NULL ? still_open() : 0);
    return 0;
}

/* Runs a child in this environment; every rank must say `want` with `words`, nothing stay open. */
static void expect(const char *folder, const char *settings, int32_t ranks, mok_status want,
                   const char *words)
{
    char command[1024];
    char line[512];
    int seen = 0;
    (void)snprintf(command, sizeof command, "%s LD_LIBRARY_PATH=%s/%s '%s' --child %d", settings,
                   getenv("FAKE_NCCL"), folder, self, ranks);
    FILE *said = popen(command, "r"); /* of this test's own making */
    assert_non_null(said);
    while (fgets(line, sizeof line, said) != NULL) {
        if (strncmp(line, "open", 4) == 0) {
            assert_string_equal(line, "open 0\n");
            continue;
        }
        seen++;
        if (strncmp(line, mok_status_string(want), strlen(mok_status_string(want))) != 0 ||
            strstr(line, words) == NULL) {
            fail_msg("%s %s, %d ranks: '%s', must be %s with '%s'", folder, settings, ranks, line,
                     mok_status_string(want), words);
        }
    }
    assert_int_equal(pclose(said), 0);
    assert_int_equal(seen, ranks);
}

static void one_rank_needs_no_addresses_of_peers(void **state)
{
    (void)state;
    expect("without", "env", 1, MOK_OK, "");
    expect("with", "env FAKE_NCCL_VERSION=22902", 1, MOK_OK, "");
}

static void several_ranks_get_every_address(void **state)
{
    (void)state;
    expect("with", "env FAKE_NCCL_VERSION=22902", 2, MOK_OK, "");
    expect("with", "env FAKE_NCCL_VERSION=23007", 4, MOK_OK, "");
}

static void what_is_missing_or_too_old_is_unsupported_everywhere(void **state)
{
    (void)state;
    expect("broken", "env", 2, MOK_ERROR_UNSUPPORTED, "libnccl.so.2 cannot be loaded");
    expect("with", "env FAKE_NCCL_VERSION=22705", 2, MOK_ERROR_UNSUPPORTED,
           "version 22705, must be at least 22800");
    expect("without", "env", 3, MOK_ERROR_UNSUPPORTED, "several ranks need 22902");
}

static void failing_calls_are_told_to_all_and_leave_nothing_open(void **state)
{
    (void)state;
    static const char *const calls[] = {"ncclCommInitRank", "ncclMemAlloc",
                                        "ncclCommWindowRegister", "ncclGetPeerDevicePointer"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        char settings[128];
        (void)snprintf(settings, sizeof settings, "env FAKE_NCCL_FAIL=%s FAKE_NCCL_FAIL_RANK=1",
                       calls[i]);
        expect("with", settings, 3, MOK_ERROR_DEVICE, calls[i]);
    }
    expect("with", "env FAKE_NCCL_FAIL=ncclGetUniqueId", 2, MOK_ERROR_DEVICE, "ncclGetUniqueId");
    expect("with", "env FAKE_NCCL_FAIL=reach FAKE_NCCL_FAIL_RANK=1", 2, MOK_ERROR_UNSUPPORTED,
           "rank 1 cannot address rank 0's memory");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_needs_no_addresses_of_peers),
        cmocka_unit_test(several_ranks_get_every_address),
        cmocka_unit_test(what_is_missing_or_too_old_is_unsupported_everywhere),
        cmocka_unit_test(failing_calls_are_told_to_all_and_leave_nothing_open),
    };
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "--child") == 0) {
        return child((int32_t)strtol(argv[2], NULL, 10));
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
