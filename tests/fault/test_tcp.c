/* The bootstrap over TCP: ranks in any order, strangers at the door, and every way in which ranks
 * do not find each other. Each rank is a process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "problem.h"

#define MOST 8

/* What a rank does, and what it is told; run in a process of its own. Exit code 100 + status, and
 * the message in a file. */
typedef struct scene {
    int32_t ranks, port, timeout_ms;
    int32_t delay_ms[MOST];
    int32_t says_rank[MOST], says_ranks[MOST];
    bool absent[MOST], dies[MOST];
    int32_t odd; /* the rank that gathers 8 bytes where others gather 4; -1 for none */
    mok_status (*then)(mok_bootstrap *bootstrap, const struct scene *scene);
} scene;

static int32_t free_port(void)
{
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)(void *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)(void *)&at, &length), 0);
    (void)close(fd);
    return ntohs(at.sin_port);
}

static void pause_ms(int64_t ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static double now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static scene quiet_scene(int32_t ranks, int32_t timeout_ms)
{
    scene s;
    memset(&s, 0, sizeof s);
    s.ranks = ranks;
    s.port = free_port();
    s.timeout_ms = timeout_ms;
    s.odd = -1;
    for (int32_t rank = 0; rank < MOST; rank++) {
        s.says_rank[rank] = rank;
        s.says_ranks[rank] = ranks;
    }
    return s;
}

static int play(const scene *s, int32_t rank, FILE *words)
{
    mok_bootstrap bootstrap;
    pause_ms(s->delay_ms[rank]);
    mok_status status = mok_bootstrap_tcp_open(&bootstrap, "localhost", s->port, s->says_rank[rank],
                                               s->says_ranks[rank], s->timeout_ms);
    if (status == MOK_OK && s->dies[rank]) {
        _exit(9);
    }
    if (status == MOK_OK && s->then != NULL) {
        status = s->then(&bootstrap, s);
    }
    if (status != MOK_OK) {
        (void)fputs(mok_last_error(), words);
        (void)fflush(words);
    }
    mok_bootstrap_tcp_close(&bootstrap);
    return 100 + (int)status;
}

/* Runs all ranks; codes[r] is 0 for one that was absent. */
static void run(const scene *s, int codes[MOST], char text[MOST][240])
{
    pid_t pid[MOST] = {0};
    FILE *words[MOST] = {NULL};
    for (int32_t rank = 0; rank < s->ranks; rank++) {
        codes[rank] = 0;
        if (s->absent[rank]) {
            continue;
        }
        words[rank] = tmpfile();
        assert_non_null(words[rank]);
        pid[rank] = fork();
        assert_true(pid[rank] >= 0);
        if (pid[rank] == 0) {
            _exit(play(s, rank, words[rank]));
        }
    }
    for (int32_t rank = 0; rank < s->ranks; rank++) {
        int status = 0;
        text[rank][0] = '\0';
        if (pid[rank] > 0) {
            assert_int_equal(waitpid(pid[rank], &status, 0), pid[rank]);
            codes[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            rewind(words[rank]);
            const size_t got = fread(text[rank], 1, 239, words[rank]);
            text[rank][got] = '\0';
            (void)fclose(words[rank]);
        }
    }
}

static void expect(int32_t rank, int code, const char *text, mok_status status, const char *words)
{
    if (code != 100 + (int)status || strstr(text, words) == NULL) {
        fail_msg("rank %d: code %d, '%s'; must be %s with '%s'", rank, code, text,
                 mok_status_string(status), words);
    }
}

static void expect_all(const scene *s, mok_status status, const char *words)
{
    int codes[MOST];
    char text[MOST][240];
    run(s, codes, text);
    for (int32_t rank = 0; rank < s->ranks; rank++) {
        if (!s->absent[rank]) {
            expect(rank, codes[rank], text[rank], status, words);
        }
    }
}

/* ---- Ranks that find each other ---- */

static mok_status gather_some(mok_bootstrap *bootstrap, const scene *s)
{
    for (int32_t round = 0; round < 30; round++) {
        int32_t all[MOST * 16];
        int32_t mine[16];
        const size_t bytes = (size_t)(1 + round % 16) * sizeof(int32_t);
        for (int i = 0; i < 16; i++) {
            mine[i] = bootstrap->rank * 1000 + round * 16 + i;
        }
        if (bootstrap->allgather(bootstrap->context, all, mine, bytes) != 0) {
            return MOK_ERROR_PEER;
        }
        for (int32_t rank = 0; rank < s->ranks; rank++) {
            const int32_t *theirs = all + (size_t)rank * (bytes / sizeof(int32_t));
            if (theirs[bytes / sizeof(int32_t) - 1] !=
                rank * 1000 + round * 16 + (int32_t)(bytes / sizeof(int32_t)) - 1) {
                return MOK_ERROR_VALUE;
            }
        }
    }
    return MOK_OK;
}

static void ranks_meet_in_any_order(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 5; ranks++) {
        scene s = quiet_scene(ranks, 20000);
        s.then = gather_some;
        s.delay_ms[0] = ranks % 2 * 150;
        s.delay_ms[1] = ranks % 3 * 50;
        expect_all(&s, MOK_OK, "");
    }
}

static mok_status open_and_reduce(mok_bootstrap *bootstrap, const scene *s)
{
    mok_comm *comm = NULL;
    mok_status status = mok_comm_open_bootstrap(&comm, bootstrap, NULL);
    for (int32_t round = 0; round < 50 && status == MOK_OK; round++) {
        float sum = 0.0f;
        const float mine = (float)(bootstrap->rank + 1);
        status = mok_lane_reduce(comm, &sum, &mine, 1, 1);
        if (status == MOK_OK && sum != (float)(s->ranks * (s->ranks + 1) / 2)) {
            status = MOK_ERROR_VALUE;
        }
    }
    if (status == MOK_OK && s->ranks > 1 &&
        !mok_comm_shares_memory(comm, (bootstrap->rank + 1) % s->ranks)) {
        status = MOK_ERROR_STATE;
    }
    mok_comm_close(&comm);
    return status;
}

static void a_communicator_opens_over_it(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 4; ranks++) {
        scene s = quiet_scene(ranks, 20000);
        s.then = open_and_reduce;
        expect_all(&s, MOK_OK, "");
    }
}

/* ---- Strangers ---- */

static int connect_stranger(int32_t port)
{
    struct sockaddr_in at;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons((uint16_t)port);
    for (int attempt = 0; attempt < 500; attempt++) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)(void *)&at, sizeof at) == 0) {
            return fd;
        }
        (void)close(fd);
        pause_ms(5);
    }
    return -1;
}

/* Silent ones, more than are kept aside, and talkative ones; then they go. */
static int disturb(int32_t port)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (int i = 0; i < 100; i++) {
        const int fd = connect_stranger(port);
        if (fd < 0) {
            return 1;
        }
        if (i % 3 == 0 && write(fd, request, (size_t)(i % 30) + 1) < 0) {
            return 2;
        }
    }
    pause_ms(300);
    return 0;
}

static void strangers_disturb_nobody(void **state)
{
    (void)state;
    scene s = quiet_scene(3, 20000);
    int status = 0;
    s.then = gather_some;
    s.delay_ms[1] = s.delay_ms[2] = 500;
    const pid_t stranger = fork();
    if (stranger == 0) {
        _exit(disturb(s.port));
    }
    expect_all(&s, MOK_OK, "");
    assert_int_equal(waitpid(stranger, &status, 0), stranger);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- Ranks that do not ---- */

static void a_missing_rank_is_named_on_all(void **state)
{
    (void)state;
    scene s = quiet_scene(4, 400);
    s.absent[2] = true;
    const double begin = now_s();
    expect_all(&s, MOK_ERROR_PEER, "waited for rank 2 in phase open");
    assert_true(now_s() - begin < 15.0);
}

static void a_missing_rank_0_is_named(void **state)
{
    (void)state;
    scene s = quiet_scene(3, 300);
    s.absent[0] = true;
    expect_all(&s, MOK_ERROR_PEER, "waited for rank 0");
}

static void a_rank_named_twice_is_a_mismatch_on_all(void **state)
{
    (void)state;
    scene s = quiet_scene(3, 1000);
    s.says_rank[2] = 1;
    expect_all(&s, MOK_ERROR_MISMATCH, "two processes say that they are rank 1");
}

static void another_number_of_ranks_is_a_mismatch_on_all(void **state)
{
    (void)state;
    scene s = quiet_scene(3, 20000);
    s.says_ranks[1] = 4;
    const double begin = now_s();
    expect_all(&s, MOK_ERROR_MISMATCH, "rank 1 has version");
    assert_true(now_s() - begin < 10.0); /* nobody waits for the deadline */
}

static mok_status gather_once(mok_bootstrap *bootstrap, const scene *s)
{
    int32_t all[MOST * 2];
    const int32_t mine[2] = {bootstrap->rank, 0};
    const size_t bytes = s->odd == bootstrap->rank ? 8 : 4;
    return bootstrap->allgather(bootstrap->context, all, mine, bytes) == 0 ? MOK_OK
                                                                           : MOK_ERROR_PEER;
}

static void a_rank_that_dies_in_a_gathering_is_named_on_all(void **state)
{
    (void)state;
    for (int32_t victim = 0; victim < 3; victim++) {
        int codes[MOST];
        char text[MOST][240];
        scene s = quiet_scene(3, 3000);
        s.then = gather_once;
        s.dies[victim] = true;
        const double begin = now_s();
        run(&s, codes, text);
        assert_int_equal(codes[victim], 9);
        for (int32_t rank = 0; rank < 3; rank++) {
            char words[32];
            (void)snprintf(words, sizeof words, "waited for rank %d", victim);
            if (rank != victim) {
                expect(rank, codes[rank], text[rank], MOK_ERROR_PEER, words);
            }
        }
        assert_true(now_s() - begin < 20.0);
    }
}

static void sizes_that_differ_fail_on_all(void **state)
{
    (void)state;
    scene s = quiet_scene(3, 3000);
    s.odd = 2;
    s.then = gather_once;
    expect_all(&s, MOK_ERROR_PEER, "rank 2 is in gathering 0 of 8 bytes, rank 0 in 0 of 4");
}

static void arguments_are_checked(void **state)
{
    (void)state;
    mok_bootstrap b;
    assert_int_equal(mok_bootstrap_tcp_open(NULL, "localhost", 1, 0, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, NULL, 1, 0, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "localhost", 0, 0, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "localhost", 65536, 0, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "localhost", 1, 1, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "localhost", 1, 0, 65, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "localhost", 1, 0, 1, 0), MOK_ERROR_ARGUMENT);
    assert_null(b.context);
    mok_bootstrap_tcp_close(&b);
    mok_bootstrap_tcp_close(NULL);
}

static void a_port_that_is_taken_is_a_device_error(void **state)
{
    (void)state;
    struct sockaddr_in at;
    mok_bootstrap b;
    socklen_t length = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)(void *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)(void *)&at, &length), 0);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "127.0.0.1", ntohs(at.sin_port), 0, 2, 200),
                     MOK_ERROR_DEVICE);
    assert_non_null(strstr(mok_last_error(), "cannot listen"));
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet_in_any_order),
        cmocka_unit_test(a_communicator_opens_over_it),
        cmocka_unit_test(strangers_disturb_nobody),
        cmocka_unit_test(a_missing_rank_is_named_on_all),
        cmocka_unit_test(a_missing_rank_0_is_named),
        cmocka_unit_test(a_rank_named_twice_is_a_mismatch_on_all),
        cmocka_unit_test(another_number_of_ranks_is_a_mismatch_on_all),
        cmocka_unit_test(a_rank_that_dies_in_a_gathering_is_named_on_all),
        cmocka_unit_test(sizes_that_differ_fail_on_all),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(a_port_that_is_taken_is_a_device_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
