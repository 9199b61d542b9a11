/* Sockets that never block, and frames over them; tcp.h has the format.
 *
 * What arrives is not trusted: a length is checked before it is read, and whatever is no frame ends
 * its connection. No call here waits longer than its deadline, except for looking up a name, whose
 * limits are the resolver's. */
#define _GNU_SOURCE /* accept4, SOCK_CLOEXEC, IPV6_V6ONLY */
#include "comm/tcp.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/comm.h"

#define FRAME_MAGIC 0x6D6F6B31u /* "mok1" */
#define ATTEMPT_MS 2000         /* for one address, where there may be others */

/* ---- Waiting ---- */

bool tcp_poll(struct pollfd *waits, size_t count, int64_t deadline_ms)
{
    for (;;) {
        const int64_t left = deadline_ms - mok_now_ms();
        const int ready = poll(waits, (nfds_t)count,
                               left < 0       ? 0
                               : left > 60000 ? 60000
                                              : (int)left);
        if (ready > 0) {
            return true;
        }
        if (left <= 0 || (ready < 0 && errno != EINTR)) {
            return false;
        }
    }
}

void tcp_end_open(tcp_end *end, int socket)
{
    memset(end, 0, sizeof *end);
    end->socket = socket;
    end->since_ms = mok_now_ms();
    end->rank = -1;
    end->payload = end->first;
    end->room = sizeof end->first;
}

void tcp_end_close(tcp_end *end)
{
    if (end->socket >= 0) {
        (void)close(end->socket);
    }
    end->socket = -1;
    end->greeted = false;
}

/* ---- Frames ---- */

static void put_word(unsigned char *at, uint32_t word)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(word >> (24 - 8 * i));
    }
}

uint32_t tcp_word(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

size_t tcp_frame(unsigned char *out, tcp_kind kind, uint32_t sequence, const void *payload,
                 size_t bytes)
{
    put_word(out, FRAME_MAGIC);
    put_word(out + 4, (uint32_t)kind);
    put_word(out + 8, sequence);
    put_word(out + 12, (uint32_t)bytes);
    if (bytes > 0) {
        memcpy(out + TCP_HEAD_BYTES, payload, bytes);
    }
    return TCP_HEAD_BYTES + bytes;
}

size_t tcp_frame_hello(unsigned char *out, int32_t version, int32_t ranks, int32_t rank)
{
    unsigned char hello[TCP_HELLO_BYTES];
    put_word(hello, (uint32_t)version);
    put_word(hello + 4, (uint32_t)ranks);
    put_word(hello + 8, (uint32_t)rank);
    return tcp_frame(out, TCP_HELLO, 0, hello, sizeof hello);
}

size_t tcp_frame_fail(unsigned char *out, mok_status status, const char *text)
{
    unsigned char fail[TCP_TEXT_BYTES];
    const size_t length = strnlen(text, 239);
    put_word(fail, (uint32_t)status);
    memcpy(fail + 4, text, length);
    return tcp_frame(out, TCP_FAIL, 0, fail, 4 + length);
}

tcp_kind tcp_end_kind(const tcp_end *end)
{
    return (tcp_kind)tcp_word(end->head + 4);
}

uint32_t tcp_end_sequence(const tcp_end *end)
{
    return tcp_word(end->head + 8);
}

size_t tcp_end_bytes(const tcp_end *end)
{
    return tcp_word(end->head + 12);
}

mok_status tcp_end_verdict(const tcp_end *end, char text[240])
{
    const size_t bytes = tcp_end_bytes(end);
    const size_t length = bytes < 4 ? 0 : bytes - 4 > 239 ? 239 : bytes - 4;
    const uint32_t status = bytes < 4 ? 0 : tcp_word(end->payload);
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = end->payload[4 + i];
        text[i] = (char)(c >= 32 && c < 127 ? c : '?');
    }
    text[length] = '\0';
    return status > 0 && status <= (uint32_t)MOK_ERROR_OVERLAP ? (mok_status)status
                                                               : MOK_ERROR_PEER;
}

/* ---- Reading and writing ---- */

static bool would_wait(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int tcp_end_read(tcp_end *end)
{
    for (;;) {
        size_t want = TCP_HEAD_BYTES;
        if (end->have >= TCP_HEAD_BYTES) {
            if (tcp_word(end->head) != FRAME_MAGIC || tcp_end_bytes(end) > end->room) {
                return -1;
            }
            want += tcp_end_bytes(end);
            if (end->have == want) {
                return 1;
            }
        }
        unsigned char *to = end->have < TCP_HEAD_BYTES
                                ? end->head + end->have
                                : end->payload + (end->have - TCP_HEAD_BYTES);
        const ssize_t got = recv(end->socket, to, want - end->have, 0);
        if (got < 0 && would_wait()) {
            return 0;
        }
        if (got <= 0) {
            return -1;
        }
        end->have += (size_t)got;
    }
}

int tcp_end_write(tcp_end *end, const unsigned char *frame, size_t bytes)
{
    while (end->sent < bytes) {
        const ssize_t put = send(end->socket, frame + end->sent, bytes - end->sent, MSG_NOSIGNAL);
        if (put < 0 && would_wait()) {
            return 0;
        }
        if (put < 0) {
            return -1;
        }
        end->sent += (size_t)put;
    }
    end->sent = 0;
    return 1;
}

int tcp_end_read_by(tcp_end *end, int64_t deadline_ms)
{
    for (;;) {
        struct pollfd wait = {end->socket, POLLIN, 0};
        const int got = tcp_end_read(end);
        if (got != 0) {
            return got;
        }
        if (!tcp_poll(&wait, 1, deadline_ms)) {
            return 0;
        }
    }
}

int tcp_end_write_by(tcp_end *end, const unsigned char *frame, size_t bytes, int64_t deadline_ms)
{
    for (;;) {
        struct pollfd wait = {end->socket, POLLOUT, 0};
        const int put = tcp_end_write(end, frame, bytes);
        if (put != 0) {
            return put;
        }
        if (!tcp_poll(&wait, 1, deadline_ms)) {
            return 0;
        }
    }
}

/* ---- Addresses ---- */

static int look_up(struct addrinfo **out, const char *host, int32_t port, int flags)
{
    char service[12];
    struct addrinfo hints;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    (void)snprintf(service, sizeof service, "%d", port);
    *out = NULL;
    return getaddrinfo(host, service, &hints, out);
}

/* One socket for each address; 0 when at least one listens and no address is taken. */
static int listen_at(int listener[TCP_LISTENERS], const struct addrinfo *list)
{
    const int on = 1;
    int count = 0;
    int error = EADDRNOTAVAIL;
    for (const struct addrinfo *at = list; at != NULL && count < TCP_LISTENERS; at = at->ai_next) {
        const int s = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s < 0) {
            error = errno;
            continue;
        }
        (void)setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (at->ai_family == AF_INET6) { /* IPv4 has a socket of its own */
            (void)setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
        }
        if (bind(s, at->ai_addr, at->ai_addrlen) == 0 && listen(s, 2 * MOK_MAX_RANKS) == 0) {
            listener[count++] = s;
            continue;
        }
        error = errno;
        (void)close(s);
        if (error == EADDRINUSE) {
            break; /* half of our addresses would send ranks to a stranger */
        }
    }
    if (count > 0 && error != EADDRINUSE) {
        return 0;
    }
    while (count > 0) {
        (void)close(listener[--count]);
        listener[count] = -1;
    }
    return error;
}

/* At the address itself where host is one, or is localhost. What another name means to its own
 * machine is often a loopback address, so rank 0 then listens at all it has. */
int tcp_listen(int listener[TCP_LISTENERS], const char *host, int32_t port)
{
    struct addrinfo *list = NULL;
    int error = EADDRNOTAVAIL;
    const int flags = strcasecmp(host, "localhost") == 0 ? 0 : AI_NUMERICHOST;
    if (look_up(&list, host, port, flags) == 0) {
        error = listen_at(listener, list);
        freeaddrinfo(list);
    }
    if (error == EADDRNOTAVAIL && flags != 0 && look_up(&list, NULL, port, AI_PASSIVE) == 0) {
        error = listen_at(listener, list);
        freeaddrinfo(list);
    }
    return error;
}

/* Where nothing listens at a port that the system also lends out, a socket can connect to itself,
 * and would keep rank 0 from the port. */
static bool is_itself(int s)
{
    struct sockaddr_storage here;
    struct sockaddr_storage there;
    socklen_t here_bytes = sizeof here;
    socklen_t there_bytes = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return getsockname(s, (struct sockaddr *)&here, &here_bytes) == 0 &&
           getpeername(s, (struct sockaddr *)&there, &there_bytes) == 0 &&
           here_bytes == there_bytes && memcmp(&here, &there, here_bytes) == 0;
}

/* A connected socket, or -1 and errno. */
static int connect_to(const struct addrinfo *at, int64_t deadline_ms)
{
    const int on = 1;
    int error = 0;
    socklen_t error_bytes = sizeof error;
    const int s = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) {
        return -1;
    }
    (void)setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(s, at->ai_addr, at->ai_addrlen) != 0) {
        struct pollfd wait = {s, POLLOUT, 0};
        if (errno != EINPROGRESS && errno != EINTR) {
            error = errno;
        } else if (!tcp_poll(&wait, 1, deadline_ms)) {
            error = ETIMEDOUT;
        } else if (getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0) {
            error = errno;
        }
    }
    if (error == 0 && is_itself(s)) {
        const struct linger reset = {1, 0};
        (void)setsockopt(s, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        error = ECONNREFUSED;
    }
    if (error == 0) {
        return s;
    }
    (void)close(s);
    errno = error;
    return -1;
}

const char *tcp_connect(tcp_end *end, const char *host, int32_t port, int64_t deadline_ms)
{
    struct addrinfo *list = NULL;
    const int code = look_up(&list, host, port, 0);
    if (code != 0) {
        return gai_strerror(code);
    }
    int s = -1;
    for (const struct addrinfo *at = list; at != NULL && s < 0; at = at->ai_next) {
        const int64_t attempt = mok_now_ms() + ATTEMPT_MS;
        s = connect_to(at, attempt < deadline_ms ? attempt : deadline_ms);
    }
    const int error = errno;
    freeaddrinfo(list);
    if (s < 0) {
        return strerror(error);
    }
    tcp_end_open(end, s);
    return NULL;
}
