/* The bootstrap over TCP: ranks that meet whatever else knocks, and communicators on it. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/tcp.h"
#include "rig.h"
#include "tcp_rig.h"

static void arguments_are_checked(void **state)
{
    (void)state;
    mok_bootstrap b;
    char longer[300];
    memset(longer, 'a', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(mok_bootstrap_tcp_open(NULL, "::1", 1, 0, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, NULL, 1, 0, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "", 1, 0, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, longer, 1, 0, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "::1", 0, 0, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "::1", 65536, 0, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "::1", 1, -1, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "::1", 1, 1, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "::1", 1, 0, 0, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "::1", 1, 0, 65, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_bootstrap_tcp_open(&b, "::1", 1, 0, 1, 0), MOK_ERROR_ARGUMENT);
    assert_null(b.context);
    mok_bootstrap_tcp_close(&b);
    mok_bootstrap_tcp_close(NULL);
}

static void one_rank_alone_opens_no_socket(void **state)
{
    (void)state;
    mok_bootstrap b;
    int in = 5;
    int out = 0;
    const int before = tcp_rig_descriptors();
    assert_int_equal(mok_bootstrap_tcp_open(&b, "no.such.host.invalid", 1, 0, 1, 1), MOK_OK);
    assert_int_equal(tcp_rig_descriptors(), before);
    assert_int_equal(b.allgather(b.context, &out, &in, sizeof in), 0);
    assert_int_equal(out, 5);
    mok_bootstrap_tcp_close(&b);
    assert_null(b.context);
}

static bool has_ipv6(void)
{
    struct sockaddr_in6 {
        unsigned short family, port;
        uint32_t flow;
        unsigned char address[16];
        uint32_t scope;
    } here = {AF_INET6, 0, 0, {0}, 0};
    here.address[15] = 1;
    const int s = socket(AF_INET6, SOCK_STREAM, 0);
    const bool has = s >= 0 && bind(s, (struct sockaddr *)(void *)&here, sizeof here) == 0;
    if (s >= 0) {
        close(s);
    }
    return has;
}

static void ranks_meet_and_gather(void **state)
{
    (void)state;
    static const char *const hosts[] = {"localhost", "127.0.0.1", "0.0.0.0", "::1"};
    static const int32_t counts[] = {2, 3, 8, 4};
    for (int i = 0; i < (has_ipv6() ? 4 : 3); i++) {
        tcp_member members[TCP_RIG_MOST];
        tcp_rig_members(members, counts[i], TCP_RIG_LONG_MS);
        for (int32_t rank = 0; rank < counts[i]; rank++) {
            members[rank].host = hosts[i];
            members[rank].rounds = 50;
        }
        tcp_rig_run(members, counts[i], tcp_rig_port(), NULL);
        tcp_rig_expect(members, counts[i], MOK_OK, "");
    }
}

/* The machine's own name may mean a loopback address here and another one elsewhere. */
static void rank_0_listens_everywhere_under_a_name(void **state)
{
    (void)state;
    static char name[256];
    tcp_member members[2];
    assert_int_equal(gethostname(name, sizeof name - 1), 0);
    tcp_rig_members(members, 2, TCP_RIG_LONG_MS);
    members[0].host = name;
    members[1].host = "127.0.0.1";
    tcp_rig_run(members, 2, tcp_rig_port(), NULL);
    tcp_rig_expect(members, 2, MOK_OK, "");
}

static void rank_0_may_be_the_last_to_start(void **state)
{
    (void)state;
    tcp_member members[3];
    tcp_rig_members(members, 3, TCP_RIG_LONG_MS);
    members[0].delay_ms = 300;
    tcp_rig_run(members, 3, tcp_rig_port(), NULL);
    tcp_rig_expect(members, 3, MOK_OK, "");
}

/* A thread cannot ask this of the others' descriptors alone, so all of the process are looked at.
 */
static void look_at_descriptors(int32_t port)
{
    const int s = tcp_rig_connect(port); /* rank 0 listens */
    for (int fd = 3; fd < 64; fd++) {
        const int flags = fcntl(fd, F_GETFD);
        char path[64];
        char target[64] = "";
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (flags >= 0 && readlink(path, target, sizeof target - 1) > 0 &&
            strncmp(target, "socket:", 7) == 0) {
            assert_true((flags & FD_CLOEXEC) != 0);
        }
    }
    close(s);
}

static void programs_that_are_started_inherit_no_socket(void **state)
{
    (void)state;
    tcp_member members[3];
    tcp_rig_members(members, 3, TCP_RIG_LONG_MS);
    members[2].delay_ms = 300;
    tcp_rig_run(members, 3, tcp_rig_port(), look_at_descriptors);
    tcp_rig_expect(members, 3, MOK_OK, "");
}

/* ---- Strangers ---- */

static int kept[300];
static int kept_count;

static void knock(int32_t port, const void *data, size_t bytes)
{
    const int s = tcp_rig_connect(port);
    assert_true(s >= 0);
    if (bytes > 0) {
        assert_true(send(s, data, bytes, MSG_NOSIGNAL) > 0);
    }
    kept[kept_count++] = s;
}

static void knock_in_every_way(int32_t port)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    unsigned char frame[64];
    knock(port, http, sizeof http - 1);
    const size_t bytes = tcp_frame_hello(frame, mok_version(), 3, 1);
    knock(port, frame, bytes - 3); /* most of a hello, then silence */
    knock(port, frame, 2);
    memset(frame + 12, 0xFF, 4); /* a length past all memory */
    knock(port, frame, bytes);
    knock(port, frame, tcp_frame(frame, TCP_PART, 0, "abcd", 4)); /* a frame, and no hello */
    knock(port, frame, tcp_frame_fail(frame, MOK_ERROR_VALUE, "no"));
    for (int i = 0; i < 230; i++) { /* more than there are places */
        knock(port, NULL, 0);
    }
    for (int i = 0; i < 20; i++) {
        close(tcp_rig_connect(port));
    }
    while (kept_count > 200) { /* some go, others stay */
        close(kept[--kept_count]);
    }
    tcp_rig_sleep(50);
}

static void strangers_at_the_port_do_not_disturb(void **state)
{
    (void)state;
    tcp_member members[3];
    tcp_rig_members(members, 3, TCP_RIG_LONG_MS);
    members[1].delay_ms = 100;
    members[2].delay_ms = 1000;
    members[0].rounds = members[1].rounds = members[2].rounds = 5;
    kept_count = 0;
    const int32_t port = tcp_rig_port();
    const int before = tcp_rig_descriptors();
    pid_t child = fork(); /* its descriptors are not this process's */
    if (child == 0) {
        knock_in_every_way(port);
        tcp_rig_sleep(3000);
        _exit(0);
    }
    tcp_rig_run(members, 3, port, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(tcp_rig_descriptors(), before);
    tcp_rig_expect(members, 3, MOK_OK, "");
}

/* A rank that ends before all have come, and is started again. */
static void come_and_go(int32_t port)
{
    unsigned char frame[64];
    const int s = tcp_rig_connect(port);
    const size_t bytes = tcp_frame_hello(frame, mok_version(), 3, 1);
    assert_int_equal(send(s, frame, bytes, MSG_NOSIGNAL), bytes);
    tcp_rig_sleep(50);
    close(s);
}

static void a_rank_that_goes_may_come_again(void **state)
{
    (void)state;
    tcp_member all[3];
    tcp_rig_members(all, 3, TCP_RIG_LONG_MS);
    all[1].delay_ms = 500;
    all[2].delay_ms = 300;
    tcp_rig_run(all, 3, tcp_rig_port(), come_and_go);
    tcp_rig_expect(all, 3, MOK_OK, "");
    tcp_rig_members(all, 3, 1000);
    tcp_member members[2] = {all[0], all[2]};
    members[1].delay_ms = 300;
    tcp_rig_run(members, 2, tcp_rig_port(), come_and_go);
    tcp_rig_expect(members, 2, MOK_ERROR_PEER, "rank 0 waited for rank 1 in phase open");
}

static void a_port_that_another_program_holds_is_a_device_error(void **state)
{
    (void)state;
    tcp_member members[2];
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    memset(&address, 0, sizeof address);
    address.ss_family = AF_INET;
    const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s, (struct sockaddr *)&address, 16), 0);
    assert_int_equal(listen(s, 5), 0);
    assert_int_equal(getsockname(s, (struct sockaddr *)&address, &bytes), 0);
    unsigned char port[4] = {0};
    memcpy(port + 2, (unsigned char *)&address + 2, 2);
    tcp_rig_members(members, 2, 300);
    tcp_rig_run(members, 2, (int32_t)tcp_word(port), NULL);
    close(s);
    tcp_rig_expect(members, 1, MOK_ERROR_DEVICE, "another program has port");
    tcp_rig_expect(members + 1, 1, MOK_ERROR_PEER, "rank 1 waited for rank 0 in phase open");
}

/* ---- Communicators ---- */

typedef struct expected {
    unsigned char *outputs[4];
    size_t bytes[4];
} expected;

static mok_status keep_outputs(mok_comm *comm, void *context)
{
    expected *e = context;
    problem p = rig_problem(MOK_ARITH_TC16);
    rig r;
    problem_open(&p);
    rig_init(&r, &p, comm);
    mok_status status = rig_open(&r);
    status = status == MOK_OK ? rig_step(&r) : status;
    e->outputs[mok_comm_rank(comm)] = r.outputs;
    e->bytes[mok_comm_rank(comm)] = r.output_bytes;
    r.outputs = NULL;
    rig_close(&r);
    problem_close(&p);
    return status;
}

static int compare_outputs(const expected *e, int32_t port, int32_t rank, int32_t ranks)
{
    mok_bootstrap b;
    mok_comm *comm = NULL;
    expected mine;
    mok_comm_config config;
    memset(&mine, 0, sizeof mine);
    mok_comm_config_init(&config);
    config.timeout_ms = TCP_RIG_LONG_MS;
    if (mok_bootstrap_tcp_open(&b, "localhost", port, rank, ranks, TCP_RIG_LONG_MS) != MOK_OK ||
        mok_comm_open_bootstrap(&comm, &b, &config) != MOK_OK) {
        return 1;
    }
    mok_bootstrap_tcp_close(&b);
    if (keep_outputs(comm, &mine) != MOK_OK || mine.bytes[rank] != e->bytes[rank] ||
        memcmp(mine.outputs[rank], e->outputs[rank], e->bytes[rank]) != 0) {
        return 2;
    }
    free(mine.outputs[rank]);
    mok_comm_close(&comm);
    return 0;
}

static void processes_that_meet_over_tcp_compute_what_threads_do(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 4; ranks++) {
        expected e;
        pid_t child[4];
        const int32_t port = tcp_rig_port();
        memset(&e, 0, sizeof e);
        assert_int_equal(group_run(ranks, NULL, keep_outputs, &e, NULL, NULL), MOK_OK);
        for (int32_t rank = 0; rank < ranks; rank++) {
            child[rank] = fork();
            if (child[rank] == 0) {
                _exit(compare_outputs(&e, port, rank, ranks));
            }
        }
        for (int32_t rank = 0; rank < ranks; rank++) {
            int status = 0;
            assert_int_equal(waitpid(child[rank], &status, 0), child[rank]);
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), 0);
            free(e.outputs[rank]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(one_rank_alone_opens_no_socket),
        cmocka_unit_test(ranks_meet_and_gather),
        cmocka_unit_test(rank_0_listens_everywhere_under_a_name),
        cmocka_unit_test(rank_0_may_be_the_last_to_start),
        cmocka_unit_test(programs_that_are_started_inherit_no_socket),
        cmocka_unit_test(strangers_at_the_port_do_not_disturb),
        cmocka_unit_test(a_rank_that_goes_may_come_again),
        cmocka_unit_test(a_port_that_another_program_holds_is_a_device_error),
        cmocka_unit_test(processes_that_meet_over_tcp_compute_what_threads_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
