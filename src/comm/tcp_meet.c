/* How ranks find each other over TCP: the others come to rank 0, which listens.
 *
 * Anything may connect to a port: scanners, browsers, the last run's ranks. A connection counts
 * once it has said a whole hello, and until then costs a place in a table; whoever says something
 * else, or nothing for a while, is dropped. A rank that ends before all have come is only missing
 * again.
 *
 * A verdict waits until as many have come as there are ranks, or the deadline passes, so that those
 * who come late hear it, too; who comes behind it finds nobody. */
#define _GNU_SOURCE /* accept4 */
#include "comm/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"

#define PATIENCE_MS 5000 /* with a connection that has said nothing */
#define MORE_MS 500      /* for those of another number of ranks */
#define TAKEN_MS 2000    /* until a port that is in use counts as a stranger's */

static void pause_ms(int64_t ms)
{
    const struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
    (void)nanosleep(&pause, NULL);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- Rank 0 ---- */

/* What an end's hello says that cannot be; false for a good one. */
static bool differs(const tcp *t, const tcp_end *end, char text[240])
{
    if (end->version != mok_version() || end->ranks != t->ranks) {
        (void)snprintf(text, 240,
                       "rank %d has version %d and %d ranks, rank 0 has version %d and %d",
                       end->rank, end->version, end->ranks, mok_version(), t->ranks);
        return true;
    }
    if (end->rank < 0 || end->rank >= t->ranks) {
        (void)snprintf(text, 240, "a process says that it is rank %d of %d", end->rank, t->ranks);
        return true;
    }
    bool twice = end->rank == 0;
    for (int i = 0; i < TCP_ENDS; i++) {
        const tcp_end *other = &t->end[i];
        twice = twice || (other != end && other->greeted && other->rank == end->rank);
    }
    if (twice) {
        (void)snprintf(text, 240, "two processes say that they are rank %d", end->rank);
    }
    return twice;
}

static mok_status judge(tcp *t)
{
    char text[240];
    int32_t first = INT32_MAX;
    for (int i = 0; i < TCP_ENDS; i++) { /* the lowest rank's, whoever came first */
        const tcp_end *end = &t->end[i];
        if (end->greeted && end->rank < first && differs(t, end, text)) {
            first = end->rank;
            (void)mok_fail(MOK_ERROR_MISMATCH, "%s", text);
        }
    }
    if (first != INT32_MAX) {
        return MOK_ERROR_MISMATCH;
    }
    for (int i = 0; i < TCP_ENDS; i++) {
        if (t->end[i].greeted) {
            t->peer[t->end[i].rank] = &t->end[i];
        }
    }
    for (int32_t rank = 1; rank < t->ranks; rank++) {
        MOK_REQUIRE(t->peer[rank] != NULL, MOK_ERROR_PEER,
                    "rank 0 waited for rank %d in phase %s for %d ms: it did not come", rank,
                    mok_phase_string(MOK_PHASE_OPEN), t->timeout_ms);
    }
    return MOK_OK;
}

/* As many as rank 0 knows of; where others name a larger number, those have a moment more, so that
 * they hear the verdict, too. */
static bool all_have_come(const tcp *t, int64_t *enough_ms)
{
    int32_t count = 0;
    int32_t most = t->ranks;
    for (int i = 0; i < TCP_ENDS; i++) {
        const tcp_end *end = &t->end[i];
        if (end->greeted) {
            count++;
            most = end->ranks > most ? end->ranks : most;
        }
    }
    if (count < t->ranks - 1) {
        return false;
    }
    *enough_ms = *enough_ms == 0 ? mok_now_ms() : *enough_ms;
    return count >= most - 1 || mok_now_ms() - *enough_ms >= MORE_MS;
}

static tcp_end *place(tcp *t)
{
    tcp_end *oldest = NULL;
    for (int i = 0; i < TCP_ENDS; i++) {
        tcp_end *end = &t->end[i];
        if (end->socket < 0) {
            return end;
        }
        if (!end->greeted && (oldest == NULL || end->since_ms < oldest->since_ms)) {
            oldest = end;
        }
    }
    if (oldest != NULL) {
        tcp_end_close(oldest);
    }
    return oldest;
}

static void let_in(tcp *t)
{
    const int on = 1;
    for (int i = 0; i < TCP_LISTENERS; i++) {
        /* A few at a time: ranks that are here must be heard, however many knock. */
        for (int j = 0; j < TCP_ENDS / 2 && t->listener[i] >= 0; j++) {
            const int s = accept4(t->listener[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            tcp_end *end = s >= 0 ? place(t) : NULL;
            if (end == NULL) {
                if (s >= 0) {
                    (void)close(s);
                }
                break;
            }
            (void)setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            tcp_end_open(end, s);
        }
    }
}

static void hear(tcp_end *end, int64_t patience_ms)
{
    if (end->greeted) { /* silent until it is answered: what can be read is its end */
        char byte;
        const ssize_t got = recv(end->socket, &byte, 1, 0);
        if (got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            tcp_end_close(end);
        }
        return;
    }
    const int got = tcp_end_read(end);
    if (got > 0 && tcp_end_kind(end) == TCP_HELLO && tcp_end_bytes(end) == TCP_HELLO_BYTES) {
        end->greeted = true;
        end->version = (int32_t)tcp_word(end->payload);
        end->ranks = (int32_t)tcp_word(end->payload + 4);
        end->rank = (int32_t)tcp_word(end->payload + 8);
    } else if (got != 0 || mok_now_ms() - end->since_ms >= patience_ms) {
        tcp_end_close(end);
    }
}

static void receive_all(tcp *t, int64_t deadline_ms)
{
    const int64_t patience_ms = least(PATIENCE_MS, t->timeout_ms / 2 + 1);
    int64_t enough_ms = 0;
    for (;;) {
        struct pollfd waits[TCP_LISTENERS + TCP_ENDS];
        size_t count = 0;
        for (int i = 0; i < TCP_ENDS; i++) {
            if (t->end[i].socket >= 0) {
                hear(&t->end[i], patience_ms);
            }
        }
        if (all_have_come(t, &enough_ms) || mok_now_ms() >= deadline_ms) {
            return;
        }
        for (int i = 0; i < TCP_LISTENERS; i++) {
            if (t->listener[i] >= 0) {
                waits[count++] = (struct pollfd){t->listener[i], POLLIN, 0};
            }
        }
        for (int i = 0; i < TCP_ENDS; i++) {
            if (t->end[i].socket >= 0) {
                waits[count++] = (struct pollfd){t->end[i].socket, POLLIN, 0};
            }
        }
        (void)tcp_poll(waits, count,
                       least(deadline_ms, mok_now_ms() + (enough_ms > 0 ? 50 : patience_ms)));
        let_in(t);
    }
}

void tcp_pass_verdict(tcp *t, mok_status status, const char *text)
{
    unsigned char frame[TCP_HEAD_BYTES + TCP_TEXT_BYTES];
    const size_t bytes = tcp_frame_fail(frame, status, text);
    const int64_t deadline_ms = mok_now_ms() + least(1000, t->timeout_ms / 4 + 50);
    for (int i = 0; i < TCP_ENDS; i++) {
        tcp_end *end = &t->end[i];
        if (end->socket < 0) {
            continue;
        }
        /* In the middle of another frame this one would be read as its rest. */
        if (!end->greeted || end->sent != 0 || tcp_end_write(end, frame, bytes) <= 0) {
            tcp_end_close(end);
        } else {
            (void)shutdown(end->socket, SHUT_WR);
        }
    }
    /* Closing what has unread bytes resets the connection, and the verdict may be lost with it. */
    for (int i = 0; i < TCP_ENDS; i++) {
        tcp_end *end = &t->end[i];
        char bin[256];
        struct pollfd wait = {end->socket, POLLIN, 0};
        while (end->socket >= 0 && tcp_poll(&wait, 1, deadline_ms) &&
               recv(end->socket, bin, sizeof bin, 0) > 0) {
        }
        tcp_end_close(end);
    }
}

static void stop_listening(tcp *t)
{
    for (int i = 0; i < TCP_LISTENERS; i++) {
        if (t->listener[i] >= 0) {
            (void)close(t->listener[i]);
        }
        t->listener[i] = -1;
    }
}

static mok_status welcome(tcp *t, int64_t deadline_ms)
{
    unsigned char frame[TCP_HEAD_BYTES];
    const size_t bytes = tcp_frame(frame, TCP_WELCOME, 0, NULL, 0);
    for (int32_t rank = 1; rank < t->ranks; rank++) {
        MOK_REQUIRE(tcp_end_write_by(t->peer[rank], frame, bytes, deadline_ms) > 0, MOK_ERROR_PEER,
                    "rank 0 waited for rank %d in phase %s: its connection ended", rank,
                    mok_phase_string(MOK_PHASE_OPEN));
    }
    return MOK_OK;
}

static mok_status receive_ranks(tcp *t, int64_t deadline_ms)
{
    receive_all(t, deadline_ms);
    mok_status status = judge(t);
    for (int i = 0; i < TCP_ENDS; i++) {
        if (!t->end[i].greeted) {
            tcp_end_close(&t->end[i]);
        }
    }
    if (status == MOK_OK) {
        status = welcome(t, deadline_ms + 50);
    }
    if (status != MOK_OK) {
        char text[240];
        (void)snprintf(text, sizeof text, "%s", mok_last_error());
        tcp_pass_verdict(t, status, text);
    }
    stop_listening(t);
    return status;
}

/* ---- The others ---- */

/* Says hello and waits for the word: 1 with *status, -1 when whoever is there does not speak as
 * rank 0, 0 when it says nothing. */
static int ask(tcp *t, tcp_end *end, mok_status *status)
{
    unsigned char frame[TCP_HEAD_BYTES + TCP_HELLO_BYTES];
    const size_t bytes = tcp_frame_hello(frame, mok_version(), t->ranks, t->rank);
    const int64_t deadline_ms = mok_now_ms() + t->timeout_ms + t->timeout_ms / 4 + 100;
    int got = tcp_end_write_by(end, frame, bytes, deadline_ms);
    if (got > 0) {
        got = tcp_end_read_by(end, deadline_ms);
    }
    if (got > 0 && tcp_end_kind(end) == TCP_FAIL) {
        char text[240];
        *status = tcp_end_verdict(end, text);
        (void)mok_fail(*status, "%s", text);
        return 1;
    }
    if (got > 0) {
        *status = MOK_OK;
        got = tcp_end_kind(end) == TCP_WELCOME ? 1 : -1;
    }
    return got;
}

static mok_status find_rank_0(tcp *t, const char *host, int32_t port, int64_t deadline_ms)
{
    const int64_t since_ms = mok_now_ms();
    for (int attempt = 0;; attempt++) {
        tcp_end *end = &t->end[0];
        const char *why = tcp_connect(end, host, port, deadline_ms);
        if (why == NULL) {
            mok_status status = MOK_OK;
            const int got = ask(t, end, &status);
            if (got > 0 && status == MOK_OK) {
                t->peer[0] = end;
                return MOK_OK;
            }
            tcp_end_close(end);
            if (got > 0) {
                return status;
            }
            why = got == 0 ? "it says nothing" : "what answers there is not rank 0, or it ended";
        }
        const int64_t now = mok_now_ms();
        MOK_REQUIRE(now < deadline_ms, MOK_ERROR_PEER,
                    "rank %d waited for rank 0 in phase %s for %lld ms: %.80s, port %d: %.60s",
                    t->rank, mok_phase_string(MOK_PHASE_OPEN), (long long)(now - since_ms), host,
                    port, why);
        pause_ms(least(attempt < 50 ? 20 : 200, deadline_ms - now));
    }
}

/* Rank 0's port is taken: by another rank 0 of this run, which has a word for this one, by a run
 * that is ending, or by a stranger. */
static mok_status begin_listening(tcp *t, const char *host, int32_t port)
{
    const int64_t until_ms = mok_now_ms() + least(TAKEN_MS, t->timeout_ms);
    for (;;) {
        const int error = tcp_listen(t->listener, host, port);
        if (error == 0) {
            return MOK_OK;
        }
        MOK_REQUIRE(error == EADDRINUSE, MOK_ERROR_DEVICE,
                    "rank 0 cannot listen at %.80s, port %d: %s", host, port, strerror(error));
        tcp_end *end = &t->end[0];
        if (tcp_connect(end, host, port, until_ms) == NULL) {
            mok_status status = MOK_OK;
            const int got = ask(t, end, &status);
            tcp_end_close(end);
            if (got > 0 && status != MOK_OK) {
                return status;
            }
        }
        MOK_REQUIRE(mok_now_ms() < until_ms, MOK_ERROR_DEVICE,
                    "rank 0 cannot listen at %.80s: another program has port %d", host, port);
        pause_ms(20);
    }
}

mok_status tcp_meet(tcp *t, const char *host, int32_t port)
{
    const int64_t deadline_ms = mok_now_ms() + t->timeout_ms;
    if (t->rank != 0) {
        return find_rank_0(t, host, port, deadline_ms);
    }
    MOK_TRY(begin_listening(t, host, port));
    return receive_ranks(t, deadline_ms);
}
