/* Ranks of a TCP bootstrap as threads; see tcp_rig.h. */
#define _DEFAULT_SOURCE
#include "tcp_rig.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/comm.h"

void tcp_rig_sleep(int32_t ms)
{
    const struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
    (void)nanosleep(&pause, NULL);
}

static struct sockaddr_in address_of(int32_t port)
{
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

int32_t tcp_rig_port(void)
{
    struct sockaddr_in address = address_of(0);
    socklen_t bytes = sizeof address;
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(s >= 0);
    assert_int_equal(bind(s, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(s, (struct sockaddr *)&address, &bytes), 0);
    close(s);
    return ntohs(address.sin_port);
}

int tcp_rig_connect(int32_t port)
{
    const struct sockaddr_in address = address_of(port);
    for (int attempt = 0; attempt < 500; attempt++) {
        const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(s, (const struct sockaddr *)&address, sizeof address) == 0) {
            return s;
        }
        close(s);
        tcp_rig_sleep(10);
    }
    return -1;
}

int tcp_rig_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

void tcp_rig_members(tcp_member *members, int32_t ranks, int32_t timeout_ms)
{
    memset(members, 0, (size_t)ranks * sizeof *members);
    for (int32_t rank = 0; rank < ranks; rank++) {
        members[rank].host = "localhost";
        members[rank].rank = rank;
        members[rank].ranks = ranks;
        members[rank].timeout_ms = timeout_ms;
    }
}

static unsigned char byte_of(int32_t rank, int32_t round, size_t at)
{
    return (unsigned char)((size_t)rank * 37 + (size_t)round * 11 + at * 3);
}

/* Sizes from nothing to the most that a gathering can have. */
static size_t bytes_of(int32_t round)
{
    static const size_t sizes[] = {16, 4096, 0, 1, 8, 1000, 4095};
    return sizes[(size_t)round % (sizeof sizes / sizeof sizes[0])];
}

mok_status tcp_rig_gather(const tcp_member *m, const mok_bootstrap *b)
{
    unsigned char *own = malloc(8192);
    unsigned char *all = malloc((size_t)m->ranks * 4096);
    mok_status status = MOK_OK;
    for (int32_t round = 0; round < m->rounds && status == MOK_OK; round++) {
        const size_t bytes = bytes_of(round) + (round == m->rounds - 1 ? m->odd_bytes : 0);
        for (size_t i = 0; i < bytes; i++) {
            own[i] = byte_of(m->rank, round, i);
        }
        status = (mok_status)b->allgather(b->context, all, own, bytes);
        for (int32_t rank = 0; rank < m->ranks && status == MOK_OK; rank++) {
            for (size_t i = 0; i < bytes; i++) {
                status = all[(size_t)rank * bytes + i] == byte_of(rank, round, i) ? status
                                                                                  : MOK_ERROR_STATE;
            }
        }
    }
    if (status != MOK_OK) { /* it stays so, and says the same */
        char text[240];
        (void)snprintf(text, sizeof text, "%s", mok_last_error());
        if (b->allgather(b->context, all, own, 1) != (int)status ||
            strcmp(text, mok_last_error()) != 0) {
            status = MOK_ERROR_STATE;
        }
    }
    free(own);
    free(all);
    return status;
}

static void *member_thread(void *context)
{
    tcp_member *m = context;
    mok_bootstrap b;
    tcp_rig_sleep(m->delay_ms);
    const int64_t since = mok_now_ms();
    m->status = mok_bootstrap_tcp_open(&b, m->host, m->port, m->rank, m->ranks, m->timeout_ms);
    if (m->status == MOK_OK) {
        tcp_rig_sleep(m->gather_delay_ms);
        m->status = tcp_rig_gather(m, &b);
    } else if (b.context != NULL) {
        m->status = MOK_ERROR_STATE;
    }
    m->spent_ms = mok_now_ms() - since;
    (void)snprintf(m->text, sizeof m->text, "%s", m->status == MOK_OK ? "" : mok_last_error());
    mok_bootstrap_tcp_close(&b);
    mok_bootstrap_tcp_close(&b);
    return NULL;
}

void tcp_rig_run(tcp_member *members, int32_t count, int32_t port, void (*aside)(int32_t port))
{
    pthread_t threads[TCP_RIG_MOST];
    const int before = tcp_rig_descriptors();
    assert_true(count <= TCP_RIG_MOST);
    for (int32_t i = 0; i < count; i++) {
        members[i].port = port;
        assert_int_equal(pthread_create(&threads[i], NULL, member_thread, &members[i]), 0);
    }
    if (aside != NULL) {
        aside(port);
    }
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(tcp_rig_descriptors(), before);
}

void tcp_rig_expect(const tcp_member *members, int32_t count, mok_status status, const char *text)
{
    for (int32_t i = 0; i < count; i++) {
        if (members[i].status != status || strstr(members[i].text, text) == NULL) {
            fail_msg("member %d: %s: '%s'", i, mok_status_string(members[i].status),
                     members[i].text);
        }
        if (members[i].spent_ms > 5 * (int64_t)members[i].timeout_ms + 2000) {
            fail_msg("member %d took %lld ms", i, (long long)members[i].spent_ms);
        }
    }
}
