/* Sockets with deadlines: all are non-blocking, and poll waits for them. */
#define _GNU_SOURCE /* accept4 */
#include "comm/wire.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/objects.h"

#define RETRY_MS 20

/* Waits until the socket is ready; false after the deadline. */
static bool ready(int socket, short events, int64_t deadline_ms)
{
    for (;;) {
        const int64_t left = deadline_ms - mok_now_ms();
        struct pollfd one = {socket, events, 0};
        const int found = poll(&one, 1, left > 0 ? (left < 1000 ? (int)left : 1000) : 0);
        if (found > 0) {
            return true;
        }
        if ((found < 0 && errno != EINTR) || left <= 0) {
            errno = found < 0 ? errno : ETIMEDOUT;
            return false;
        }
    }
}

static struct addrinfo *addresses(const char *host, int32_t port, int flags)
{
    struct addrinfo want;
    struct addrinfo *found = NULL;
    char service[12];
    memset(&want, 0, sizeof want);
    want.ai_family = AF_UNSPEC;
    want.ai_socktype = SOCK_STREAM;
    want.ai_flags = flags;
    (void)snprintf(service, sizeof service, "%d", port);
    const int failed = getaddrinfo(host, service, &want, &found);
    if (failed != 0) {
        errno = failed == EAI_SYSTEM ? errno : ENOENT;
        return NULL;
    }
    return found;
}

static int new_socket(const struct addrinfo *at)
{
    const int on = 1;
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    }
    return fd;
}

static int close_keeping_errno(int fd)
{
    const int cause = errno;
    (void)close(fd);
    errno = cause;
    return -1;
}

static int listen_at(const struct addrinfo *list)
{
    int fd = -1;
    for (const struct addrinfo *at = list; at != NULL && fd < 0; at = at->ai_next) {
        fd = new_socket(at);
        if (fd >= 0 && (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, 128) != 0)) {
            fd = close_keeping_errno(fd);
        }
    }
    return fd;
}

int mok_wire_listen(const char *host, int32_t port)
{
    struct addrinfo *list = addresses(host, port, 0);
    int fd = list != NULL ? listen_at(list) : -1;
    if (list != NULL) {
        freeaddrinfo(list);
    }
    if (fd < 0 && errno == EADDRNOTAVAIL) { /* reached through another address than its own */
        list = addresses(NULL, port, AI_PASSIVE);
        fd = list != NULL ? listen_at(list) : -1;
        if (list != NULL) {
            freeaddrinfo(list);
        }
    }
    return fd;
}

static int connect_to(const struct addrinfo *at, int64_t deadline_ms)
{
    int error = 0;
    socklen_t length = sizeof error;
    const int fd = new_socket(at);
    if (fd < 0) {
        return -1;
    }
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0) {
        return fd;
    }
    if (errno != EINPROGRESS || !ready(fd, POLLOUT, deadline_ms)) {
        return close_keeping_errno(fd);
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
        errno = error != 0 ? error : errno;
        return close_keeping_errno(fd);
    }
    return fd;
}

int mok_wire_connect(const char *host, int32_t port, int64_t deadline_ms)
{
    for (;;) {
        struct addrinfo *list = addresses(host, port, 0);
        int fd = -1;
        for (const struct addrinfo *at = list; at != NULL && fd < 0; at = at->ai_next) {
            fd = connect_to(at, deadline_ms);
        }
        const int cause = errno;
        if (list != NULL) {
            freeaddrinfo(list);
        }
        if (fd >= 0 || mok_now_ms() >= deadline_ms) {
            errno = cause;
            return fd;
        }
        mok_pause_ms(RETRY_MS);
    }
}

int mok_wire_accept(int listener)
{
    const int on = 1;
    const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    return fd;
}

static bool later(ssize_t moved)
{
    return moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

int mok_wire_send(int socket, const void *data, size_t bytes, int64_t deadline_ms)
{
    const unsigned char *from = data;
    while (bytes > 0) {
        const ssize_t sent = send(socket, from, bytes, MSG_NOSIGNAL);
        if (sent > 0) {
            from += sent;
            bytes -= (size_t)sent;
        } else if (!later(sent) || !ready(socket, POLLOUT, deadline_ms)) {
            return -1;
        }
    }
    return 0;
}

int64_t mok_wire_receive_some(int socket, void *data, size_t bytes)
{
    const ssize_t got = recv(socket, data, bytes, 0);
    return got > 0 ? (int64_t)got : later(got) ? 0 : -1;
}

int mok_wire_receive(int socket, void *data, size_t bytes, int64_t deadline_ms)
{
    unsigned char *to = data;
    while (bytes > 0) {
        const int64_t got = mok_wire_receive_some(socket, to, bytes);
        if (got < 0 || (got == 0 && !ready(socket, POLLIN, deadline_ms))) {
            return -1;
        }
        to += got;
        bytes -= (size_t)got;
    }
    return 0;
}
