/* A bootstrap over TCP: a star whose middle is rank 0.
 *
 * A gathering: every rank sends its part to rank 0, rank 0 sends all of them to every rank. Where
 * it fails, rank 0 says how, and every rank returns that; a bootstrap that has failed stays so. All
 * waits have deadlines (tcp.h). */
#include "comm/tcp.h"

#include <stdio.h>
#include <string.h>

#include "comm/comm.h"

static const char *open_phase(void)
{
    return mok_phase_string(MOK_PHASE_OPEN);
}

static mok_status give_up(tcp *t, mok_status status)
{
    t->status = status;
    (void)snprintf(t->text, sizeof t->text, "%s", mok_last_error());
    return status;
}

/* ---- Rank 0 ---- */

/* The frame goes to all at once, so that one that does not read keeps it from nobody. -1, or the
 * lowest rank that has not taken it. */
static int32_t give_all(tcp *t, size_t bytes, int64_t deadline_ms)
{
    bool done[MOK_MAX_RANKS] = {false};
    for (;;) {
        struct pollfd waits[MOK_MAX_RANKS];
        size_t count = 0;
        int32_t lowest = -1;
        for (int32_t rank = t->ranks - 1; rank > 0; rank--) {
            if (done[rank]) {
                continue;
            }
            const int put = tcp_end_write(t->peer[rank], t->frame, bytes);
            if (put < 0) {
                return rank;
            }
            done[rank] = put > 0;
            if (put == 0) {
                waits[count++] = (struct pollfd){t->peer[rank]->socket, POLLOUT, 0};
                lowest = rank;
            }
        }
        if (count == 0 || !tcp_poll(waits, count, deadline_ms)) {
            return lowest;
        }
    }
}

/* A frame of each rank. -1, or the rank whose frame will not come: the one whose connection has
 * ended, else the lowest. */
static int32_t collect(tcp *t, int64_t deadline_ms, bool *ended)
{
    bool done[MOK_MAX_RANKS] = {false};
    for (int32_t rank = 1; rank < t->ranks; rank++) {
        t->peer[rank]->have = 0;
    }
    for (;;) {
        struct pollfd waits[MOK_MAX_RANKS];
        size_t count = 0;
        int32_t lowest = -1;
        for (int32_t rank = t->ranks - 1; rank > 0; rank--) {
            const int got = done[rank] ? 1 : tcp_end_read(t->peer[rank]);
            if (got < 0) {
                *ended = true;
                return rank;
            }
            done[rank] = got > 0;
            if (got == 0) {
                waits[count++] = (struct pollfd){t->peer[rank]->socket, POLLIN, 0};
                lowest = rank;
            }
        }
        if (count == 0 || !tcp_poll(waits, count, deadline_ms)) {
            return lowest;
        }
    }
}

static mok_status compare_parts(const tcp *t, size_t bytes)
{
    for (int32_t rank = 1; rank < t->ranks; rank++) {
        const tcp_end *end = t->peer[rank];
        MOK_REQUIRE(tcp_end_kind(end) == TCP_PART && tcp_end_sequence(end) == t->sequence &&
                        tcp_end_bytes(end) == bytes,
                    MOK_ERROR_MISMATCH,
                    "rank %d is in gathering %u of %zu bytes, rank 0 in %u of %zu", rank,
                    tcp_end_sequence(end), tcp_end_bytes(end), t->sequence, bytes);
    }
    return MOK_OK;
}

static mok_status lost(const tcp *t, int32_t rank, int64_t since_ms, bool ended)
{
    return mok_fail(MOK_ERROR_PEER,
                    "rank 0 waited for rank %d in phase %s, gathering %u, for %lld ms%s", rank,
                    open_phase(), t->sequence, (long long)(mok_now_ms() - since_ms),
                    ended ? ": its connection ended" : "");
}

static mok_status gather_as_0(tcp *t, unsigned char *out, const void *in, size_t bytes)
{
    const int64_t since_ms = mok_now_ms();
    const int64_t deadline_ms = since_ms + t->timeout_ms;
    bool ended = false;
    size_t frame_bytes = tcp_frame(t->frame, TCP_WAIT, t->sequence, NULL, 0);
    int32_t missing = give_all(t, frame_bytes, deadline_ms);
    if (missing < 0) {
        missing = collect(t, deadline_ms, &ended);
    }
    if (missing > 0) {
        return lost(t, missing, since_ms, ended);
    }
    MOK_TRY(compare_parts(t, bytes));
    memcpy(out, in, bytes);
    for (int32_t rank = 1; rank < t->ranks; rank++) {
        memcpy(out + (size_t)rank * bytes, t->peer[rank]->payload, bytes);
    }
    frame_bytes = tcp_frame(t->frame, TCP_ALL, t->sequence, out, (size_t)t->ranks * bytes);
    missing = give_all(t, frame_bytes, deadline_ms);
    return missing > 0 ? lost(t, missing, since_ms, false) : MOK_OK;
}

/* ---- The others ---- */

static mok_status gather_as_other(tcp *t, unsigned char *out, const void *in, size_t bytes)
{
    tcp_end *end = t->peer[0];
    const int64_t since_ms = mok_now_ms();
    int64_t deadline_ms = since_ms + t->timeout_ms;
    const size_t frame_bytes = tcp_frame(t->frame, TCP_PART, t->sequence, in, bytes);
    /* Should this fail, rank 0's last word may still be there to be read. */
    (void)tcp_end_write_by(end, t->frame, frame_bytes, deadline_ms);
    for (;;) {
        char text[240];
        end->have = 0;
        const int got = tcp_end_read_by(end, deadline_ms);
        MOK_REQUIRE(got > 0, MOK_ERROR_PEER,
                    "rank %d waited for rank 0 in phase %s, gathering %u, for %lld ms%s", t->rank,
                    open_phase(), t->sequence, (long long)(mok_now_ms() - since_ms),
                    got < 0 ? ": its connection ended" : "");
        const tcp_kind kind = tcp_end_kind(end);
        if (kind == TCP_FAIL) {
            const mok_status status = tcp_end_verdict(end, text);
            return mok_fail(status, "%s", text);
        }
        MOK_REQUIRE(tcp_end_sequence(end) == t->sequence, MOK_ERROR_MISMATCH,
                    "rank %d is in gathering %u, rank 0 in gathering %u", t->rank, t->sequence,
                    tcp_end_sequence(end));
        if (kind == TCP_ALL && tcp_end_bytes(end) == (size_t)t->ranks * bytes) {
            memcpy(out, end->payload, (size_t)t->ranks * bytes);
            return MOK_OK;
        }
        MOK_REQUIRE(kind == TCP_WAIT, MOK_ERROR_MISMATCH, "rank %d cannot read rank 0's word",
                    t->rank);
        deadline_ms = mok_now_ms() + t->timeout_ms + t->timeout_ms / 4 + 100;
    }
}

static int tcp_allgather(void *context, void *out, const void *in, size_t bytes)
{
    tcp *t = context;
    if (t->status != MOK_OK) {
        return (int)mok_fail(t->status, "%s", t->text);
    }
    if (out == NULL || in == NULL || bytes > TCP_PART_BYTES) {
        return (int)give_up(t, mok_fail(MOK_ERROR_ARGUMENT,
                                        "a gathering of %zu bytes, at most %d can be", bytes,
                                        TCP_PART_BYTES));
    }
    if (t->ranks == 1) {
        memmove(out, in, bytes);
        return 0;
    }
    const mok_status status =
        t->rank == 0 ? gather_as_0(t, out, in, bytes) : gather_as_other(t, out, in, bytes);
    t->sequence++;
    if (status == MOK_OK) {
        return 0;
    }
    (void)give_up(t, status);
    if (t->rank == 0) {
        tcp_pass_verdict(t, status, t->text);
    }
    return (int)mok_fail(status, "%s", t->text);
}

/* ---- Opening and closing ---- */

static mok_status check(const mok_bootstrap *out, const char *host, int32_t port, int32_t rank,
                        int32_t ranks, int32_t timeout_ms)
{
    MOK_REQUIRE(out != NULL, MOK_ERROR_ARGUMENT, "out is NULL");
    MOK_REQUIRE(host != NULL && host[0] != '\0' && strlen(host) < 256, MOK_ERROR_ARGUMENT,
                "host is NULL, empty or longer than 255 bytes");
    MOK_REQUIRE(port >= 1 && port <= 65535, MOK_ERROR_ARGUMENT, "port is %d, must be 1..65535",
                port);
    MOK_REQUIRE(ranks >= 1 && ranks <= MOK_MAX_RANKS, MOK_ERROR_ARGUMENT,
                "ranks is %d, must be 1..%d", ranks, MOK_MAX_RANKS);
    MOK_REQUIRE(rank >= 0 && rank < ranks, MOK_ERROR_ARGUMENT, "rank is %d, must be 0..%d", rank,
                ranks - 1);
    MOK_REQUIRE(timeout_ms >= 1 && timeout_ms <= 86400000, MOK_ERROR_ARGUMENT,
                "timeout_ms is %d, must be 1..86400000", timeout_ms);
    return MOK_OK;
}

static void release(tcp *t)
{
    const mok_allocator allocator = mok_allocator_default();
    for (int i = 0; i < TCP_ENDS; i++) {
        tcp_end_close(&t->end[i]);
    }
    mok_release(&allocator, t->parts, t->parts_bytes);
    mok_release(&allocator, t->frame, t->frame_bytes);
    mok_release(&allocator, t, sizeof *t);
}

/* Frames of rank 0 are all ranks' parts, which come one by one; of the others the reverse. */
static mok_status prepare(tcp **out, int32_t rank, int32_t ranks, int32_t timeout_ms)
{
    const mok_allocator allocator = mok_allocator_default();
    tcp *t = mok_allocate(&allocator, sizeof *t);
    MOK_REQUIRE(t != NULL, MOK_ERROR_MEMORY, "no memory for a bootstrap");
    memset(t, 0, sizeof *t);
    for (int i = 0; i < TCP_LISTENERS; i++) {
        t->listener[i] = -1;
    }
    for (int i = 0; i < TCP_ENDS; i++) {
        t->end[i].socket = -1;
    }
    t->rank = rank;
    t->ranks = ranks;
    t->timeout_ms = timeout_ms;
    t->parts_bytes = (size_t)ranks * TCP_PART_BYTES;
    t->frame_bytes = TCP_HEAD_BYTES + t->parts_bytes;
    t->parts = mok_allocate(&allocator, t->parts_bytes);
    t->frame = mok_allocate(&allocator, t->frame_bytes);
    if (t->parts == NULL || t->frame == NULL) {
        release(t);
        return mok_fail(MOK_ERROR_MEMORY, "no memory for a bootstrap of %d ranks", ranks);
    }
    *out = t;
    return MOK_OK;
}

/* From here on longer frames are welcome. */
static void make_room(tcp *t)
{
    for (int32_t rank = 1; rank < t->ranks && t->rank == 0; rank++) {
        t->peer[rank]->payload = t->parts + (size_t)rank * TCP_PART_BYTES;
        t->peer[rank]->room = TCP_PART_BYTES;
    }
    if (t->rank != 0) {
        t->peer[0]->payload = t->parts;
        t->peer[0]->room = t->parts_bytes;
    }
}

mok_status mok_bootstrap_tcp_open(mok_bootstrap *out, const char *host, int32_t port, int32_t rank,
                                  int32_t ranks, int32_t timeout_ms)
{
    tcp *t = NULL;
    mok_bootstrap_init(out);
    MOK_TRY(check(out, host, port, rank, ranks, timeout_ms));
    MOK_TRY(prepare(&t, rank, ranks, timeout_ms));
    const mok_status status = ranks > 1 ? tcp_meet(t, host, port) : MOK_OK;
    if (status != MOK_OK) {
        release(t);
        return status;
    }
    make_room(t);
    out->rank = rank;
    out->ranks = ranks;
    out->context = t;
    out->allgather = tcp_allgather;
    return MOK_OK;
}

void mok_bootstrap_tcp_close(mok_bootstrap *bootstrap)
{
    if (bootstrap != NULL && bootstrap->context != NULL && bootstrap->allgather == tcp_allgather) {
        release(bootstrap->context);
        bootstrap->context = NULL;
        bootstrap->allgather = NULL;
    }
}
