/* A rank's end of a communicator: what kernels and the layer need from their peers, and no more.
 *
 *   peers     a table of plain pointers: every rank's control block, and every rank's part of each
 *             symmetric allocation. Of a rank behind a link it is this rank's copy (mail.h)
 *   barrier   between ranks, without read-modify-write operations
 *   waits     bounded: a wait ends when nothing has moved at the awaited rank for timeout_ms
 *   faults    the first fault is written into every rank's control block, so that all ranks end
 * alike
 *
 * Barrier. Each rank owns slot[R]. To arrive, a rank raises its own epoch and stores it into
 * slot[me] of every peer; to pass, it waits until all of its slots have reached that epoch.
 *
 *   rank 0   slot: [ 7 7 6 7 ]   waits for rank 2, and says so after the deadline
 *
 * Why it is enough: the store is a release and the load an acquire, so what a peer wrote before it
 * arrived is visible after we pass.
 *
 * Exchange. Small data go through staging[2] of each control block: write one's own, barrier, read
 * the peers'. The epoch's low bit picks the buffer. Two suffice: a rank that writes buffer p again
 * has passed the barrier in between, and by arriving there every peer had finished reading p.
 *
 * Calls. Beside its epoch a rank leaves word of what it is doing, by the same rule of two buffers.
 * Behind the barrier every rank reads all of them, so ranks that make different calls all learn it
 * there, all return MOK_ERROR_MISMATCH, and are still in step. */
#ifndef MOK_COMM_COMM_H
#define MOK_COMM_COMM_H

#include <stdatomic.h>

#include "core/memory.h"
#include "core/pool.h"
#include "cpu/kernels.h"

#define MOK_STAGING_BYTES ((size_t)1 << 18)

int64_t mok_now_ms(void); /* on a clock that only goes forward */

/* Which collective call a rank is in. */
typedef struct mok_call {
    int32_t phase;   /* mok_phase */
    int32_t kind;    /* what tells calls of one phase apart */
    uint64_t detail; /* sizes that must be alike */
} mok_call;

#define MOK_CALL_BARRIER 0
#define MOK_CALL_EXCHANGE 1
#define MOK_CALL_ALLGATHER 2
#define MOK_CALL_BROADCAST 3

/* One rank's memory that every peer may touch. */
typedef struct mok_control {
    _Alignas(
        MOK_CACHE_LINE) _Atomic uint32_t slot[MOK_MAX_RANKS]; /* slot[p] is written by rank p */
    _Alignas(
        MOK_CACHE_LINE) _Atomic uint64_t progress; /* tasks done; moves while this rank works */
    _Alignas(MOK_CACHE_LINE) _Atomic uint32_t fault_state; /* 0 none, 1 being written, 2 valid */
    mok_fault fault;
    _Alignas(MOK_CACHE_LINE) mok_call call[2]; /* of the barrier of an even, odd epoch */
    _Alignas(MOK_CACHE_LINE) unsigned char staging[2][MOK_STAGING_BYTES];
} mok_control;

/* One rank's part of a symmetric allocation, and where the peers' parts are. */
typedef struct mok_symmetric {
    unsigned char *peer[MOK_MAX_RANKS];
    size_t bytes[MOK_MAX_RANKS];
    uint32_t sequence;                 /* which allocation: the same on every rank */
    struct mok_symmetric_entry *entry; /* the group's record of this rank's part */
} mok_symmetric;

struct mok_group;
struct mok_shm;
struct mok_mail;

/* How ranks come to share memory: threads as it is (local.c), processes through named objects
 * (parts.c). */
typedef struct mok_mapping {
    mok_status (*allocate)(mok_comm *comm, mok_symmetric *out, size_t bytes, mok_phase phase);
    void (*release)(mok_comm *comm, mok_symmetric *symmetric);
    void (*leave)(mok_comm *comm); /* gives back the control blocks */
} mok_mapping;

struct mok_comm {
    int32_t rank;
    int32_t size;
    int32_t threads;
    int32_t timeout_ms;
    uint32_t epoch; /* barriers arrived at; its low bit picks the staging buffer */
    mok_allocator allocator;
    const mok_kernels *kernels;
    mok_pool *pool;
    const mok_mapping *mapping;
    struct mok_group *group;    /* of local.c */
    struct mok_shm *shm;        /* of parts.c */
    struct mok_mail *mail;      /* NULL where all ranks share memory */
    size_t staged_bytes;        /* of the next exchange */
    bool remote[MOK_MAX_RANKS]; /* reached by mail */
    mok_control *control[MOK_MAX_RANKS];
    unsigned char *scratch; /* threads parts of scratch_stride bytes */
    size_t scratch_stride;
    size_t scratch_bytes;
};

/* A worker's scratch: the kernels' own, then two tiles of fp32. */
typedef struct mok_worker_scratch {
    void *product;
    float *tile[2]; /* [MOK_TILE_ROWS * MOK_TILE_COLS] each */
} mok_worker_scratch;

mok_worker_scratch mok_comm_scratch(const mok_comm *comm, int32_t worker);

/* Bytes of one rank's end with this many workers, at the given kernels. */
size_t mok_comm_bytes(const mok_kernels *kernels, int32_t threads);

/* Collective. Every rank passes its own size. Parts live until every rank has released its part, or
 * until the last rank closes: a peer that still runs may read them. Errors: MEMORY on every rank,
 * PEER. */
mok_status mok_symmetric_allocate(mok_comm *comm, mok_symmetric *out, size_t bytes,
                                  mok_phase phase);
void mok_symmetric_release(mok_comm *comm, mok_symmetric *symmetric);

/* Writes `bytes` bytes to `at`, a place in peer's part: at once, or for a rank behind a link before
 * this rank's next barrier. A failure is a fault of the communicator. */
void mok_symmetric_put(mok_comm *comm, const mok_symmetric *symmetric, int32_t peer, void *at,
                       const void *data, size_t bytes);

/* Lets peer read `bytes` bytes at `at`, a place in this rank's own part, behind this rank's next
 * barrier. Nothing to do for a peer that shares memory. */
void mok_symmetric_show(mok_comm *comm, const mok_symmetric *symmetric, int32_t peer,
                        const void *at, size_t bytes);

/* MOK_ERROR_PEER with its text when the communicator has a fault, else MOK_OK. */
mok_status mok_comm_check(const mok_comm *comm);

/* Records a fault for every rank, unless there is one already; returns MOK_ERROR_PEER. All ranks
 * are given the same fault: the one that was first to reach rank 0's block. */
mok_status mok_comm_fault(mok_comm *comm, int32_t peer, mok_phase phase, int64_t task_idx,
                          int64_t waited_ms);

/* Waits until *counter has reached value (compared modulo 2^32) or peer makes no progress for
 * timeout_ms. Errors: PEER. */
mok_status mok_comm_wait(mok_comm *comm, const _Atomic uint32_t *counter, uint32_t value,
                         int32_t peer, mok_phase phase, int64_t task_idx);

/* Errors: MISMATCH on every rank where they are in different calls, PEER. */
mok_status mok_comm_barrier_in(mok_comm *comm, mok_phase phase);

/* This rank's staging buffer of the next exchange, for `bytes` bytes. Write it, call
 * mok_comm_exchange, then read mok_comm_staged of every rank before the next barrier or exchange.
 * Errors: PEER after a fault: the barrier that makes two buffers enough was then not passed, and a
 * peer may still be reading. */
mok_status mok_comm_stage(mok_comm *comm, unsigned char **stage, size_t bytes);
mok_status mok_comm_exchange(mok_comm *comm, mok_phase phase);
mok_status mok_comm_meet(mok_comm *comm, const mok_call *call); /* what both of the above do */
const unsigned char *mok_comm_staged(const mok_comm *comm, int32_t rank);

/* mok_comm_agree with a phase for faults; _as also holds the ranks' calls against each other. */
mok_status mok_comm_agree_in(mok_comm *comm, mok_status mine, mok_phase phase);
mok_status mok_comm_agree_as(mok_comm *comm, mok_status mine, const mok_call *call);

/* Gives `fault` to a block that has none; false when it has one, or is being given one. */
bool mok_control_fault(mok_control *control, const mok_fault *fault);

static inline void mok_comm_progress(mok_comm *comm)
{
    atomic_fetch_add_explicit(&comm->control[comm->rank]->progress, 1, memory_order_relaxed);
}

#endif
