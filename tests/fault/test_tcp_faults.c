/* The bootstrap over TCP where ranks are missing, do not fit, or end: the same status and text on
 * all ranks that came, within the deadline. */
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
#include "tcp_rig.h"

/* ---- Ranks that do not fit ---- */

static void missing_ranks_are_named_on_all_that_came(void **state)
{
    (void)state;
    tcp_member all[4];
    tcp_rig_members(all, 4, 400);
    tcp_member members[2] = {all[0], all[2]}; /* 1 and 3 are missing */
    tcp_rig_run(members, 2, tcp_rig_port(), NULL);
    tcp_rig_expect(members, 2, MOK_ERROR_PEER, "rank 0 waited for rank 1 in phase open");
    members[0].delay_ms = 300; /* and where rank 0 is later than the others */
    tcp_rig_run(members, 2, tcp_rig_port(), NULL);
    tcp_rig_expect(members, 2, MOK_ERROR_PEER, "rank 0 waited for rank 1 in phase open");
    tcp_rig_run(all + 1, 3, tcp_rig_port(), NULL);
    for (int32_t rank = 1; rank < 4; rank++) {
        char text[64];
        (void)snprintf(text, sizeof text, "rank %d waited for rank 0 in phase open", rank);
        tcp_rig_expect(all + rank, 1, MOK_ERROR_PEER, text);
    }
}

static void a_host_without_address_is_named(void **state)
{
    (void)state;
    tcp_member members[2];
    tcp_rig_members(members, 2, 200);
    members[1].host = "no.such.host.invalid";
    tcp_rig_run(members + 1, 1, tcp_rig_port(), NULL);
    assert_int_equal(members[1].status, MOK_ERROR_PEER); /* how long depends on the resolver */
    assert_non_null(strstr(members[1].text, "no.such.host.invalid"));
}

static void a_rank_named_twice_is_a_mismatch_on_all(void **state)
{
    (void)state;
    tcp_member members[4];
    for (int32_t twice = 0; twice < 3; twice++) {
        char text[64];
        (void)snprintf(text, sizeof text, "two processes say that they are rank %d", twice);
        tcp_rig_members(members, 4, 8000);
        members[3].rank = twice;
        members[1].delay_ms = 150; /* comes behind the one that does not fit */
        tcp_rig_run(members, 4, tcp_rig_port(), NULL);
        tcp_rig_expect(members, 4, MOK_ERROR_MISMATCH, text);
        assert_true(members[2].spent_ms < 6000); /* it needs no deadline */
    }
}

static void another_number_of_ranks_is_a_mismatch_on_all(void **state)
{
    (void)state;
    tcp_member members[3];
    tcp_rig_members(members, 3, 8000);
    members[0].ranks = 2;
    members[2].delay_ms = 200;
    tcp_rig_run(members, 3, tcp_rig_port(), NULL);
    tcp_rig_expect(members, 3, MOK_ERROR_MISMATCH, "rank 1 has version");
}

static int32_t told; /* what the version ahead was told */

static void come_as_another_version(int32_t port)
{
    unsigned char frame[64];
    tcp_end end;
    char text[240];
    tcp_end_open(&end, tcp_rig_connect(port));
    const size_t bytes = tcp_frame_hello(frame, mok_version() + 1, 3, 1);
    assert_int_equal(send(end.socket, frame, bytes, MSG_NOSIGNAL), bytes);
    assert_int_equal(tcp_end_read(&end), 1); /* this socket blocks */
    assert_int_equal(tcp_end_kind(&end), TCP_FAIL);
    told = (int32_t)tcp_end_verdict(&end, text);
    assert_non_null(strstr(text, "rank 1 has version"));
    tcp_end_close(&end);
}

static void another_version_is_a_mismatch_on_all(void **state)
{
    (void)state;
    tcp_member all[3];
    tcp_rig_members(all, 3, 8000);
    tcp_member members[2] = {all[0], all[2]};
    tcp_rig_run(members, 2, tcp_rig_port(), come_as_another_version);
    tcp_rig_expect(members, 2, MOK_ERROR_MISMATCH, "rank 1 has version");
    assert_int_equal(told, MOK_ERROR_MISMATCH);
}

/* ---- Gatherings ---- */

static void other_sizes_are_a_mismatch_on_all(void **state)
{
    (void)state;
    for (int32_t odd = 0; odd < 3; odd++) {
        tcp_member members[3];
        tcp_rig_members(members, 3, 8000);
        for (int32_t rank = 0; rank < 3; rank++) {
            members[rank].rounds = 4;
        }
        members[odd].odd_bytes = 7;
        tcp_rig_run(members, 3, tcp_rig_port(), NULL);
        tcp_rig_expect(members, 3, MOK_ERROR_MISMATCH, "bytes, rank 0 in");
    }
}

/* Rank 1 opens, and gathers less often than the others. */
static void a_rank_that_does_not_gather_is_named_on_all(void **state)
{
    (void)state;
    for (int32_t late = 0; late < 2; late++) {
        tcp_member members[3];
        tcp_rig_members(members, 3, 600);
        members[0].rounds = members[1].rounds = members[2].rounds = 3;
        members[0].gather_delay_ms = late * 400; /* its verdict comes behind rank 2's deadline */
        members[1].gather_delay_ms = 3000;
        tcp_rig_run(members, 3, tcp_rig_port(), NULL);
        tcp_rig_expect(members, 1, MOK_ERROR_PEER, "rank 0 waited for rank 1 in phase open");
        tcp_rig_expect(members + 2, 1, MOK_ERROR_PEER, "rank 0 waited for rank 1 in phase open");
        assert_int_equal(members[1].status, MOK_ERROR_PEER);
    }
}

/* The victim is a process, so that its end is an end. */
static void lose_a_process(int32_t victim, const char *text)
{
    tcp_member all[3];
    tcp_member rest[2];
    const int32_t port = tcp_rig_port();
    tcp_rig_members(all, 3, 8000);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        mok_bootstrap b;
        all[victim].rounds = 1;
        const bool good =
            mok_bootstrap_tcp_open(&b, "localhost", port, victim, 3, TCP_RIG_LONG_MS) == MOK_OK &&
            tcp_rig_gather(&all[victim], &b) == MOK_OK;
        tcp_rig_sleep(200);
        (void)kill(getpid(), good ? SIGKILL : SIGTERM);
    }
    for (int32_t rank = 0, count = 0; rank < 3; rank++) {
        if (rank != victim) {
            rest[count++] = all[rank];
        }
    }
    rest[0].rounds = rest[1].rounds = 5;
    int status = 0;
    tcp_rig_run(rest, 2, port, NULL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rest[i].status, MOK_ERROR_PEER);
        assert_non_null(strstr(rest[i].text, text));
        assert_true(rest[i].spent_ms < 6000); /* an end needs no deadline */
    }
}

static void a_process_that_dies_is_named_on_all_at_once(void **state)
{
    (void)state;
    lose_a_process(1, "rank 0 waited for rank 1 in phase open, gathering");
    lose_a_process(2, "rank 0 waited for rank 2 in phase open, gathering");
    lose_a_process(0, "waited for rank 0 in phase open");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_ranks_are_named_on_all_that_came),
        cmocka_unit_test(a_host_without_address_is_named),
        cmocka_unit_test(a_rank_named_twice_is_a_mismatch_on_all),
        cmocka_unit_test(another_number_of_ranks_is_a_mismatch_on_all),
        cmocka_unit_test(another_version_is_a_mismatch_on_all),
        cmocka_unit_test(other_sizes_are_a_mismatch_on_all),
        cmocka_unit_test(a_rank_that_does_not_gather_is_named_on_all),
        cmocka_unit_test(a_process_that_dies_is_named_on_all_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
