/* A bootstrap over TCP: a star whose centre is rank 0.
 *
 *   joining     each rank sends a hello; when all have come, or the deadline has passed, rank 0
 * sends a verdict to every rank that came gathering   each rank sends [frame | bytes], rank 0
 * answers [frame | bytes of all]. A frame that is not what was expected, or none, makes rank 0
 * answer with the reason instead
 *
 * Strangers may connect: whoever has not said a whole hello is kept aside, and dropped at the end.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/objects.h"
#include "comm/wire.h"
#include <mok/mok_ranks.h>

#define HELLO_MAGIC 0x6D6F6B2D74637031u /* "mok-tcp1" */
#define TEXT_BYTES 160
#define GATHER_BYTES 4096
#define STRANGERS 64
#define GRACE_MS 1000 /* more than a rank's own deadline that it waits for rank 0's verdict */

typedef struct hello {
    uint64_t magic;
    int32_t version, ranks, rank, unused;
} hello;

typedef struct frame {
    uint32_t sequence, bytes; /* bytes of one rank */
    int32_t status;           /* of rank 0's answers: a mok_status, then text says why */
    char text[TEXT_BYTES];
} frame;

typedef struct stranger {
    int fd;
    size_t got;
    hello words;
} stranger;

typedef struct tcp {
    int32_t rank, ranks, timeout_ms;
    uint32_t sequence;
    int fd[MOK_MAX_RANKS]; /* of rank 0: each peer's; of the others: fd[0]. -1 for none */
    bool came[MOK_MAX_RANKS];
    unsigned char all[MOK_MAX_RANKS * GATHER_BYTES];
} tcp;

static void close_all(tcp *t)
{
    for (int32_t rank = 0; rank < MOK_MAX_RANKS; rank++) {
        if (t->fd[rank] >= 0) {
            (void)close(t->fd[rank]);
            t->fd[rank] = -1;
        }
    }
}

/* ---- Rank 0, joining ---- */

static void set_verdict(frame *verdict, mok_status status, const char *text)
{
    if (verdict->status == (int32_t)MOK_OK) { /* the first one counts */
        verdict->status = (int32_t)status;
        (void)snprintf(verdict->text, sizeof verdict->text, "%s", text);
    }
}

/* A whole hello: the socket becomes a rank's, or is closed. */
static void meet(tcp *t, const stranger *who, frame *verdict)
{
    const hello *h = &who->words;
    char text[TEXT_BYTES];
    const bool known = h->magic == HELLO_MAGIC && h->rank >= 0 && h->rank < MOK_MAX_RANKS;
    if (!known) {
        (void)close(who->fd);
        return;
    }
    if (h->version != mok_version() || h->ranks != t->ranks) {
        (void)snprintf(text, sizeof text,
                       "rank %d has version %d and %d ranks, rank 0 has version %d and %d", h->rank,
                       h->version, h->ranks, mok_version(), t->ranks);
        set_verdict(verdict, MOK_ERROR_MISMATCH, text);
    } else if (h->rank == 0 || h->rank >= t->ranks || t->came[h->rank]) {
        (void)snprintf(text, sizeof text, "two processes say that they are rank %d", h->rank);
        set_verdict(verdict, MOK_ERROR_MISMATCH, text);
    }
    t->came[h->rank] = true;
    for (int32_t at = h->rank; at < MOK_MAX_RANKS + h->rank; at++) {
        if (t->fd[at % MOK_MAX_RANKS] < 0) { /* its own place, or any where it hears the verdict */
            t->fd[at % MOK_MAX_RANKS] = who->fd;
            return;
        }
    }
    (void)close(who->fd);
}

/* False when it is done with: met, or gone. */
static bool listen_to(tcp *t, stranger *who, frame *verdict)
{
    const int64_t got = mok_wire_receive_some(who->fd, (unsigned char *)&who->words + who->got,
                                              sizeof who->words - who->got);
    if (got < 0) {
        (void)close(who->fd);
        return false;
    }
    who->got += (size_t)got;
    if (who->got >= sizeof who->words.magic && who->words.magic != HELLO_MAGIC) {
        (void)close(who->fd);
        return false;
    }
    if (who->got == sizeof who->words) {
        meet(t, who, verdict);
        return false;
    }
    return true;
}

static int32_t first_missing(const tcp *t)
{
    int32_t rank = 1;
    while (rank < t->ranks && t->came[rank]) {
        rank++;
    }
    return rank < t->ranks ? rank : -1;
}

static void drop_first(stranger *list, int *count)
{
    (*count)--;
    memmove(list, list + 1, (size_t)*count * sizeof *list);
}

static void receive_ranks(tcp *t, int listener, int64_t deadline_ms, frame *verdict)
{
    stranger waiting[STRANGERS];
    int count = 0;
    while (first_missing(t) >= 0 && mok_now_ms() < deadline_ms) {
        const int fd = mok_wire_accept(listener);
        if (fd >= 0) {
            if (count == STRANGERS) { /* whoever has waited longest without a word */
                (void)close(waiting[0].fd);
                drop_first(waiting, &count);
            }
            memset(&waiting[count], 0, sizeof waiting[count]);
            waiting[count++].fd = fd;
        }
        int kept = 0;
        for (int i = 0; i < count; i++) {
            if (listen_to(t, &waiting[i], verdict)) {
                waiting[kept++] = waiting[i];
            }
        }
        count = kept;
        if (fd < 0) {
            mok_pause_ms(2);
        }
    }
    for (int i = 0; i < count; i++) {
        (void)close(waiting[i].fd);
    }
}

static mok_status open_centre(tcp *t, const char *host, int32_t port)
{
    frame verdict;
    char text[TEXT_BYTES];
    const int64_t deadline = mok_now_ms() + t->timeout_ms;
    memset(&verdict, 0, sizeof verdict);
    const int listener = mok_wire_listen(host, port);
    MOK_REQUIRE(listener >= 0, MOK_ERROR_DEVICE, "rank 0 cannot listen at %s:%d: %s", host, port,
                strerror(errno));
    receive_ranks(t, listener, deadline, &verdict);
    const int32_t missing = first_missing(t);
    if (missing >= 0) {
        (void)snprintf(text, sizeof text, "rank 0 waited for rank %d in phase open, for %d ms",
                       missing, t->timeout_ms);
        set_verdict(&verdict, MOK_ERROR_PEER, text);
    }
    (void)close(listener);
    const int64_t soon = mok_now_ms() + GRACE_MS;
    for (int32_t rank = 0; rank < MOK_MAX_RANKS; rank++) {
        if (t->fd[rank] >= 0) {
            (void)mok_wire_send(t->fd[rank], &verdict, sizeof verdict, soon);
        }
    }
    MOK_REQUIRE(verdict.status == (int32_t)MOK_OK, (mok_status)verdict.status, "%s", verdict.text);
    return MOK_OK;
}

/* ---- The others, joining ---- */

static mok_status open_ray(tcp *t, const char *host, int32_t port)
{
    frame verdict;
    const hello mine = {HELLO_MAGIC, mok_version(), t->ranks, t->rank, 0};
    const int64_t deadline = mok_now_ms() + t->timeout_ms;
    t->fd[0] = mok_wire_connect(host, port, deadline);
    MOK_REQUIRE(t->fd[0] >= 0, MOK_ERROR_PEER,
                "rank %d waited for rank 0 at %s:%d in phase open, for %d ms: %s", t->rank, host,
                port, t->timeout_ms, strerror(errno));
    const int64_t until = mok_now_ms() + t->timeout_ms + GRACE_MS;
    MOK_REQUIRE(mok_wire_send(t->fd[0], &mine, sizeof mine, until) == 0 &&
                    mok_wire_receive(t->fd[0], &verdict, sizeof verdict, until) == 0,
                MOK_ERROR_PEER, "rank %d waited for rank 0's answer in phase open", t->rank);
    verdict.text[TEXT_BYTES - 1] = '\0';
    MOK_REQUIRE(verdict.status >= (int32_t)MOK_OK, MOK_ERROR_MISMATCH,
                "what answers at %s:%d is not a rank", host, port);
    MOK_REQUIRE(verdict.status == (int32_t)MOK_OK, (mok_status)verdict.status, "%s", verdict.text);
    return MOK_OK;
}

/* ---- Gathering ---- */

static void answer(const tcp *t, const frame *head, const void *data, size_t bytes,
                   int64_t deadline)
{
    for (int32_t rank = 1; rank < t->ranks; rank++) {
        if (mok_wire_send(t->fd[rank], head, sizeof *head, deadline) == 0 && bytes > 0) {
            (void)mok_wire_send(t->fd[rank], data, bytes, deadline);
        }
    }
}

static mok_status gather_at_centre(tcp *t, void *out, const void *in, size_t bytes)
{
    const int64_t deadline = mok_now_ms() + t->timeout_ms;
    frame head = {t->sequence, (uint32_t)bytes, (int32_t)MOK_OK, ""};
    memcpy(t->all, in, bytes);
    for (int32_t rank = 1; rank < t->ranks && head.status == (int32_t)MOK_OK; rank++) {
        frame theirs;
        char text[TEXT_BYTES];
        if (mok_wire_receive(t->fd[rank], &theirs, sizeof theirs, deadline) != 0) {
            (void)snprintf(text, sizeof text, "rank 0 waited for rank %d in a gathering", rank);
            set_verdict(&head, MOK_ERROR_PEER, text);
        } else if (theirs.sequence != head.sequence || theirs.bytes != head.bytes) {
            (void)snprintf(text, sizeof text,
                           "rank %d is in gathering %u of %u bytes, rank 0 in %u of %u", rank,
                           theirs.sequence, theirs.bytes, head.sequence, head.bytes);
            set_verdict(&head, MOK_ERROR_MISMATCH, text);
        } else if (mok_wire_receive(t->fd[rank], t->all + (size_t)rank * bytes, bytes, deadline) !=
                   0) {
            (void)snprintf(text, sizeof text, "rank %d went away in a gathering", rank);
            set_verdict(&head, MOK_ERROR_PEER, text);
        }
    }
    const bool good = head.status == (int32_t)MOK_OK;
    answer(t, &head, t->all, good ? (size_t)t->ranks * bytes : 0, mok_now_ms() + GRACE_MS);
    MOK_REQUIRE(good, (mok_status)head.status, "%s", head.text);
    memcpy(out, t->all, (size_t)t->ranks * bytes);
    return MOK_OK;
}

static mok_status gather_at_ray(tcp *t, void *out, const void *in, size_t bytes)
{
    const int64_t deadline = mok_now_ms() + t->timeout_ms + 2 * GRACE_MS;
    const frame mine = {t->sequence, (uint32_t)bytes, (int32_t)MOK_OK, ""};
    frame head;
    MOK_REQUIRE(mok_wire_send(t->fd[0], &mine, sizeof mine, deadline) == 0 &&
                    mok_wire_send(t->fd[0], in, bytes, deadline) == 0 &&
                    mok_wire_receive(t->fd[0], &head, sizeof head, deadline) == 0,
                MOK_ERROR_PEER, "rank %d waited for rank 0 in a gathering", t->rank);
    head.text[TEXT_BYTES - 1] = '\0';
    MOK_REQUIRE(head.status == (int32_t)MOK_OK, (mok_status)head.status, "%s", head.text);
    MOK_REQUIRE(head.sequence == mine.sequence && head.bytes == mine.bytes, MOK_ERROR_MISMATCH,
                "rank 0 is in gathering %u of %u bytes, rank %d in %u of %u", head.sequence,
                head.bytes, t->rank, mine.sequence, mine.bytes);
    MOK_REQUIRE(mok_wire_receive(t->fd[0], out, (size_t)t->ranks * bytes, deadline) == 0,
                MOK_ERROR_PEER, "rank 0 went away in a gathering");
    return MOK_OK;
}

static int gather(void *context, void *out, const void *in, size_t bytes)
{
    tcp *t = context;
    if (bytes == 0 || bytes > GATHER_BYTES) {
        return -1;
    }
    const mok_status status =
        t->rank == 0 ? gather_at_centre(t, out, in, bytes) : gather_at_ray(t, out, in, bytes);
    t->sequence++;
    return status == MOK_OK ? 0 : -1;
}

/* ---- Opening ---- */

mok_status mok_bootstrap_tcp_open(mok_bootstrap *out, const char *host, int32_t port, int32_t rank,
                                  int32_t ranks, int32_t timeout_ms)
{
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    mok_bootstrap_init(out);
    MOK_REQUIRE(host != NULL && host[0] != '\0', MOK_ERROR_ARGUMENT, "host is NULL or empty");
    MOK_REQUIRE(port >= 1 && port <= 65535, MOK_ERROR_ARGUMENT, "port is %d, must be 1..65535",
                port);
    MOK_REQUIRE(ranks >= 1 && ranks <= MOK_MAX_RANKS, MOK_ERROR_ARGUMENT,
                "ranks is %d, must be 1..%d", ranks, MOK_MAX_RANKS);
    MOK_REQUIRE(rank >= 0 && rank < ranks, MOK_ERROR_ARGUMENT, "rank is %d, must be 0..%d", rank,
                ranks - 1);
    MOK_REQUIRE(timeout_ms >= 1 && timeout_ms <= 86400000, MOK_ERROR_ARGUMENT,
                "timeout_ms is %d, must be 1..86400000", timeout_ms);
    tcp *t = calloc(1, sizeof *t);
    MOK_REQUIRE(t != NULL, MOK_ERROR_MEMORY, "no memory for a bootstrap");
    t->rank = rank;
    t->ranks = ranks;
    t->timeout_ms = timeout_ms;
    for (int32_t i = 0; i < MOK_MAX_RANKS; i++) {
        t->fd[i] = -1;
    }
    const mok_status status = ranks == 1  ? MOK_OK
                              : rank == 0 ? open_centre(t, host, port)
                                          : open_ray(t, host, port);
    if (status != MOK_OK) {
        close_all(t);
        free(t);
        return status;
    }
    out->rank = rank;
    out->ranks = ranks;
    out->context = t;
    out->allgather = gather;
    return MOK_OK;
}

void mok_bootstrap_tcp_close(mok_bootstrap *bootstrap)
{
    if (bootstrap != NULL && bootstrap->context != NULL) {
        tcp *t = bootstrap->context;
        close_all(t);
        free(t);
        bootstrap->context = NULL;
    }
}
