/* Ranks of a TCP bootstrap as threads of one process, and strangers at their port. */
#ifndef MOK_TESTS_TCP_RIG_H
#define MOK_TESTS_TCP_RIG_H

#include <mok/mok_ranks.h>

#define TCP_RIG_MOST 9
#define TCP_RIG_LONG_MS 60000 /* of runs that shall succeed, on a crowded machine too */

/* One rank: what it is told, what it does, how it ended. */
typedef struct tcp_member {
    const char *host;
    int32_t rank, ranks, timeout_ms;
    int32_t delay_ms;        /* before it opens */
    int32_t gather_delay_ms; /* before it gathers */
    int32_t rounds;          /* gatherings, with checked bytes */
    size_t odd_bytes;        /* more in the last one than the others gather */
    /* set by tcp_rig_run */
    int32_t port;
    mok_status status;
    char text[240];
    int64_t spent_ms; /* opening and gathering */
} tcp_member;

/* A port at which nothing listens. */
int32_t tcp_rig_port(void);

/* 0 .. ranks - 1 at localhost. */
void tcp_rig_members(tcp_member *members, int32_t ranks, int32_t timeout_ms);

/* Each member as a thread; `aside` runs on the calling thread meanwhile, may be NULL. Demands that
 * all descriptors are closed afterwards. */
void tcp_rig_run(tcp_member *members, int32_t count, int32_t port, void (*aside)(int32_t port));

/* All of them ended so, with this in their text, within their deadlines. */
void tcp_rig_expect(const tcp_member *members, int32_t count, mok_status status, const char *text);

/* The member's gatherings, each checked; a failure must stay and say the same again. */
mok_status tcp_rig_gather(const tcp_member *member, const mok_bootstrap *bootstrap);

/* A connection to the port, waiting until something listens; -1 after some seconds. */
int tcp_rig_connect(int32_t port);

/* Descriptors of this process that are open. */
int tcp_rig_descriptors(void);

void tcp_rig_sleep(int32_t ms);

#endif
