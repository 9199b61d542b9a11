/* Sockets whose every call has a deadline, for src/comm/tcp.c. */
#ifndef MOK_COMM_WIRE_H
#define MOK_COMM_WIRE_H

#include "core/status.h"

/* Deadlines are times of mok_now_ms. */

/* A socket that listens at host:port, or at every address of this host where that is not one of its
 * own. -1 with errno. */
int mok_wire_listen(const char *host, int32_t port);

/* Connects, again and again until the deadline. -1 with errno of the last attempt. */
int mok_wire_connect(const char *host, int32_t port, int64_t deadline_ms);

/* The next connection, without waiting; -1 for none. */
int mok_wire_accept(int listener);

/* Whole messages. 0, or -1 when the other end is gone or the deadline has passed. */
int mok_wire_send(int socket, const void *data, size_t bytes, int64_t deadline_ms);
int mok_wire_receive(int socket, void *data, size_t bytes, int64_t deadline_ms);

/* What is there now, at most `bytes`. Bytes read, 0 for none, -1 when the other end is gone. */
int64_t mok_wire_receive_some(int socket, void *data, size_t bytes);

#endif
