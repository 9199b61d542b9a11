/* Ranks in processes of any launcher: how they find each other, and how they reach each other.
 *
 *   bootstrap   who is here: rank, number of ranks, and one call that gathers a few bytes of all.
 *               Your launcher's own (a callback), TCP (below), or MPI (mok_mpi.h).
 *   memory      ranks that can map each other's memory do. This is tried, never guessed from
 *               names.
 *   link        messages between ranks that cannot, as on different hosts. Optional: without one,
 *               such ranks are refused when the communicator is opened.
 *
 * Bytes do not depend on any of it. Conventions as in mok.h. */
#ifndef MOK_MOK_RANKS_H
#define MOK_MOK_RANKS_H

#include <mok/mok.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Messages ---- */

/* A message is at most this long. */
#define MOK_LINK_MESSAGE_BYTES 65536
/* Messages to one rank that may be on their way at once: slots 0 .. MOK_LINK_SLOTS - 1. */
#define MOK_LINK_SLOTS 5

/* Messages between two ranks that arrive whole, once and in the order in which they were sent.
 * Nothing here may wait: the library polls. All functions of one rank are called by one thread at a
 * time, and not always by the same. */
typedef struct mok_link {
    size_t struct_bytes;
    void *context; /* passed to each */

    /* Starts sending; the message stays as it is until the slot's `sent` says 1 or `close` returns.
     * 0, or -1 on failure. */
    int (*send)(void *context, int32_t peer, int32_t slot, const void *message, size_t bytes);
    /* 1 when the slot's message is on its way and its memory free, 0 not yet, -1 on failure. */
    int (*sent)(void *context, int32_t peer, int32_t slot);
    /* The next message from `peer`: 1 and where it lies, until the next call for that peer; 0 none
     * yet; -1 on failure. A failure means that the peer is gone. */
    int (*receive)(void *context, int32_t peer, const void **message, size_t *bytes);
    /* Called once, when the communicator is closed or could not be opened, unless the bootstrap
     * itself was refused; may be NULL. After it messages' memory is gone, sent or not. healthy is
     * false after a fault: peers may be gone, and nothing that waits for them may be called. */
    void (*close)(void *context, bool healthy);
} mok_link;

/* ---- Bootstrap ---- */

typedef struct mok_bootstrap {
    size_t struct_bytes;
    int32_t rank, ranks;
    void *context; /* passed to allgather */

    /* Gathers `bytes` bytes (at most 4096) of every rank, rank ascending, into out [ranks * bytes].
     * Returns 0, or nonzero when that could not be done; it must bound its own waits. Called only
     * while mok_comm_open_bootstrap runs, a few times, alike on every rank. */
    int (*allgather)(void *context, void *out, const void *in, size_t bytes);

    bool share_memory;    /* Default true. False: every peer is reached through the link */
    const mok_link *link; /* NULL: none */
} mok_bootstrap;

MOK_API void mok_bootstrap_init(mok_bootstrap *bootstrap);

/* Opens this process as the bootstrap's rank.
 *
 *   out        receives the handle, NULL on failure; the caller closes it
 *   bootstrap  copied, with its link; what both point to must stay until the handle is closed
 *   config     NULL for the defaults; timeout_ms, level and threads may differ between ranks
 *
 * Collective. Memory that cannot be shared is reserved for every such peer, and used only where
 * rows come from or go to it (docs/design.md, "Ranks"). No name in /dev/shm is left behind,
 * whatever happens. mok_comm_close waits for the ends of ranks behind a link to be closed,
 * timeout_ms at most. A wait for a rank behind a link that shows signs of life, and so may itself
 * be waiting for the one that failed, lasts half a second longer: that one shall be named. Errors
 * ARGUMENT, MEMORY, MISMATCH (another version, another number of ranks), UNSUPPORTED (two ranks
 * share no memory and there is no link; the message names them), DEVICE, PEER (also when allgather
 * failed). */
MOK_API mok_status mok_comm_open_bootstrap(mok_comm **out, const mok_bootstrap *bootstrap,
                                           const mok_comm_config *config);

/* True when this rank and `peer` share memory (or are the same). Errors: none; false for NULL. */
MOK_API bool mok_comm_shares_memory(const mok_comm *comm, int32_t peer);

/* ---- Bootstrap over TCP ---- */

/* Ranks meet at rank 0, which listens on host:port. Launchers announce these: torchrun as
 * MASTER_ADDR and MASTER_PORT, with RANK and WORLD_SIZE. Where torchrun's own store holds
 * MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE is True), agree on another, such as the one above it.
 *
 *   out         filled for mok_comm_open_bootstrap, without a link; NULL context on failure
 *   host        a name or an address at which the others reach rank 0, IPv4 or IPv6. Rank 0 listens
 *               at an address, and at localhost, as given; with any other name, and with an address
 *               that is none of its own, at all that it has
 *   port        1..65535
 *   rank        0..ranks - 1, each once
 *   ranks       1..MOK_MAX_RANKS; one alone opens no socket
 *   timeout_ms  1..86400000. Rank 0 waits this long for the others, here and in each gathering. The
 *               others wait as long for a sign of rank 0 and from there for its word, which takes
 * it at most as long again and a quarter. Looking up a name is not counted
 *
 * Collective. Rank 0 may be the last to start. A rank that is missing, or named twice, or of
 * another number of ranks or version, is the same failure on every rank that came; so is one that
 * ends, or gathers other sizes, later. Connections that say something else are dropped. There is no
 * secret: whoever reaches the port before the ranks do can pose as one.
 *
 * The caller closes it once the communicator is open; one thread at a time.
 * Errors: ARGUMENT, MEMORY, DEVICE (rank 0 cannot listen: the port is taken), MISMATCH, PEER (the
 * lowest missing rank, or why rank 0 was not found); the message names the rank. allgather
 * returns the same numbers. */
MOK_API mok_status mok_bootstrap_tcp_open(mok_bootstrap *out, const char *host, int32_t port,
                                          int32_t rank, int32_t ranks, int32_t timeout_ms);
MOK_API void mok_bootstrap_tcp_close(mok_bootstrap *bootstrap); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
