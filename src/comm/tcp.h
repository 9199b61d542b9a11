/* What the files of the TCP bootstrap share: ends of connections, frames, deadlines.
 *
 *   tcp_wire.c   sockets that never block, and frames over them
 *   tcp_meet.c   how ranks find each other at rank 0
 *   tcp.c        gatherings, and the calls of mok_ranks.h
 *
 * A frame is magic | kind | sequence | bytes | payload, words of 32 bits in network order.
 *
 *   HELLO     r to 0   version, ranks, rank
 *   WELCOME   0 to r   all have come
 *   PART      r to 0   this rank's bytes of a gathering
 *   WAIT      0 to r   rank 0 is in that gathering, too
 *   ALL       0 to r   the bytes of all
 *   FAIL      0 to r   status and text: how this ended, the same for all
 *
 * HELLO and FAIL must stay as they are in every version: they carry the word that versions differ.
 *
 * Deadlines. Rank 0 waits timeout_ms for the others. They wait timeout_ms for a sign of rank 0, and
 * from there on a little longer than rank 0 does, so that its verdict reaches them before their own
 * patience ends. Who is missing is then said by the one rank that knows. */
#ifndef MOK_COMM_TCP_H
#define MOK_COMM_TCP_H

#include <poll.h>
#include <stdatomic.h>

#include <mok/mok_ranks.h>

#include "core/status.h"

#define TCP_HEAD_BYTES 16
#define TCP_HELLO_BYTES 12
#define TCP_TEXT_BYTES 244 /* of a FAIL: a status, and the text without its zero */
#define TCP_PART_BYTES 4096
#define TCP_LISTENERS 4
#define TCP_ENDS (3 * MOK_MAX_RANKS) /* ranks, and what else knocks */

typedef enum tcp_kind {
    TCP_HELLO = 1,
    TCP_WELCOME = 2,
    TCP_PART = 3,
    TCP_WAIT = 4,
    TCP_ALL = 5,
    TCP_FAIL = 6
} tcp_kind;

/* This end of a connection, and the frame that is being read from it. */
typedef struct tcp_end {
    int socket;       /* -1: none */
    int64_t since_ms; /* when it was accepted */
    bool greeted;     /* its hello has come */
    int32_t version, ranks, rank;
    size_t have; /* bytes read of head and payload */
    size_t sent; /* bytes sent of a frame that is under way */
    unsigned char head[TCP_HEAD_BYTES];
    unsigned char first[TCP_TEXT_BYTES]; /* the payload of a HELLO or FAIL */
    unsigned char *payload;              /* `first`, or memory for longer ones */
    size_t room;
} tcp_end;

typedef struct tcp {
    int32_t rank, ranks, timeout_ms;
    uint32_t sequence;
    mok_status status; /* a bootstrap that has failed stays so */
    char text[240];
    int listener[TCP_LISTENERS]; /* of rank 0 until all have come; -1: none */
    tcp_end end[TCP_ENDS];       /* of other ranks only the first, which leads to rank 0 */
    tcp_end *peer[MOK_MAX_RANKS];
    unsigned char *parts; /* rank 0: a part of each; others: of all */
    unsigned char *frame; /* what is sent */
    size_t parts_bytes, frame_bytes;
} tcp;

/* ---- tcp_wire.c ---- */

/* Waits until one of them is ready; false once the deadline has passed and none is. */
bool tcp_poll(struct pollfd *waits, size_t count, int64_t deadline_ms);

void tcp_end_open(tcp_end *end, int socket);
void tcp_end_close(tcp_end *end); /* accepts one that is closed */

/* Head and payload of a frame into `out`; its bytes. */
size_t tcp_frame(unsigned char *out, tcp_kind kind, uint32_t sequence, const void *payload,
                 size_t bytes);
size_t tcp_frame_hello(unsigned char *out, int32_t version, int32_t ranks, int32_t rank);
size_t tcp_frame_fail(unsigned char *out, mok_status status, const char *text);

uint32_t tcp_word(const unsigned char *at); /* a word of a frame */
tcp_kind tcp_end_kind(const tcp_end *end);  /* of the frame that has been read */
uint32_t tcp_end_sequence(const tcp_end *end);
size_t tcp_end_bytes(const tcp_end *end);
mok_status tcp_end_verdict(const tcp_end *end, char text[240]); /* of a FAIL */

/* Reads on: 1 when the frame is whole, 0 not yet, -1 when the connection has ended or what comes is
 * not a frame. Begin each frame with have = 0; nothing behind it is read. */
int tcp_end_read(tcp_end *end);

/* Sends on: 1 when all of the frame is on its way, 0 not yet, -1 on failure. */
int tcp_end_write(tcp_end *end, const unsigned char *frame, size_t bytes);

/* As these, waiting until the deadline; 0 once it has passed. */
int tcp_end_read_by(tcp_end *end, int64_t deadline_ms);
int tcp_end_write_by(tcp_end *end, const unsigned char *frame, size_t bytes, int64_t deadline_ms);

/* Sockets that listen where host says; 0, or errno with none open. */
int tcp_listen(int listener[TCP_LISTENERS], const char *host, int32_t port);

/* Connects to the first of host's addresses that answers; NULL, or why not. */
const char *tcp_connect(tcp_end *end, const char *host, int32_t port, int64_t deadline_ms);

/* ---- tcp_meet.c ---- */

/* Fills t->peer: of rank 0 with all ranks, of others with rank 0. */
mok_status tcp_meet(tcp *t, const char *host, int32_t port);

/* Tells every connection how it ended, and waits a moment until they have read it. */
void tcp_pass_verdict(tcp *t, mok_status status, const char *text);

#endif
