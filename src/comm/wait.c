/* Bounded waits, the barrier and faults; comm.h has the argument. */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "comm/mail.h"
#include "core/relax.h"

int64_t mok_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

mok_status mok_comm_check(const mok_comm *comm)
{
    const mok_control *mine = comm->control[comm->rank];
    if (atomic_load_explicit(&mine->fault_state, memory_order_acquire) != 2) {
        return MOK_OK;
    }
    const mok_fault *fault = &mine->fault;
    return mok_fail(
        MOK_ERROR_PEER,
        fault->rank == fault->peer
            ? "rank %d: a worker of rank %d stopped in phase %s, task %lld (after %lld ms)"
            : "rank %d waited for rank %d in phase %s, task %lld, for %lld ms",
        fault->rank, fault->peer, mok_phase_string(fault->phase), (long long)fault->task_idx,
        (long long)fault->waited_ms);
}

bool mok_control_fault(mok_control *control, const mok_fault *fault)
{
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong_explicit(&control->fault_state, &none, 1,
                                                 memory_order_acq_rel, memory_order_acquire)) {
        return false;
    }
    control->fault = *fault;
    atomic_store_explicit(&control->fault_state, 2, memory_order_release);
    return true;
}

mok_status mok_comm_fault(mok_comm *comm, int32_t peer, mok_phase phase, int64_t task_idx,
                          int64_t waited_ms)
{
    const mok_fault fault = {sizeof fault, comm->rank, peer, phase, task_idx, waited_ms};
    if (mok_control_fault(comm->control[0], &fault)) {
        for (int32_t rank = 1; rank < comm->size; rank++) {
            (void)mok_control_fault(comm->control[rank], &fault);
        }
        return mok_comm_check(comm);
    }
    /* Whoever was first is a few stores away from our block. Should it die between them, ours will
     * do. */
    mok_control *mine = comm->control[comm->rank];
    const int64_t since = mok_now_ms();
    while (atomic_load_explicit(&mine->fault_state, memory_order_acquire) != 2) {
        sched_yield();
        if (mok_now_ms() - since >= comm->timeout_ms && !mok_control_fault(mine, &fault)) {
            return mok_fail(MOK_ERROR_PEER,
                            "rank %d: the fault of another rank was never completed", comm->rank);
        }
    }
    return mok_comm_check(comm);
}

mok_status mok_fault_read(mok_comm *comm, mok_fault *out)
{
    MOK_REQUIRE(comm != NULL, MOK_ERROR_ARGUMENT, "comm is NULL");
    MOK_REQUIRE(out != NULL && out->struct_bytes == sizeof *out, MOK_ERROR_ARGUMENT,
                "out is NULL or its struct_bytes is not %zu", sizeof *out);
    const mok_control *mine = comm->control[comm->rank];
    if (atomic_load_explicit(&mine->fault_state, memory_order_acquire) == 2) {
        *out = mine->fault;
    } else {
        const mok_fault none = {sizeof none, -1, -1, MOK_PHASE_NONE, -1, 0};
        *out = none;
    }
    return MOK_OK;
}

static bool reached(const _Atomic uint32_t *counter, uint32_t value)
{
    return (int32_t)(atomic_load_explicit(counter, memory_order_acquire) - value) >= 0;
}

mok_status mok_comm_wait(mok_comm *comm, const _Atomic uint32_t *counter, uint32_t value,
                         int32_t peer, mok_phase phase, int64_t task_idx)
{
    for (int spin = 0; spin < 64; spin++) {
        if (reached(counter, value)) {
            return MOK_OK;
        }
        mok_cpu_relax();
    }
    const _Atomic uint64_t *progress = &comm->control[peer]->progress;
    uint64_t seen = atomic_load_explicit(progress, memory_order_relaxed);
    int64_t since = mok_now_ms();
    for (int64_t round = 0;; round++) {
        if (reached(counter, value)) {
            return MOK_OK;
        }
        MOK_TRY(mok_comm_check(comm));
        /* More runnable threads than cores are usual here, so give the core away at once, and after
         * a while for longer. On a crowded machine one yield can take as long as a deadline, so the
         * clock is looked at behind each. */
        if (round < 200) {
            sched_yield();
        } else {
            const struct timespec pause = {0, round < 2000 ? 50000 : 500000};
            nanosleep(&pause, NULL);
        }
        const uint64_t current = atomic_load_explicit(progress, memory_order_relaxed);
        const int64_t now = mok_now_ms();
        if (current != seen) {
            seen = current;
            since = now;
        } else if (now - since >= comm->timeout_ms &&
                   now - since >= comm->timeout_ms + mok_mail_patience_ms(comm, peer)) {
            if (reached(counter, value)) { /* this rank may have slept through what it waited for */
                return MOK_OK;
            }
            return mok_comm_fault(comm, peer, phase, task_idx, now - since);
        }
    }
}

/* Every rank compares all calls with rank 0's, so every rank finds the same first difference. */
static mok_status compare_calls(const mok_comm *comm)
{
    const int half = (int)(comm->epoch & 1);
    const mok_call first = comm->control[0]->call[half];
    for (int32_t rank = 1; rank < comm->size; rank++) {
        const mok_call other = comm->control[rank]->call[half];
        MOK_REQUIRE(other.phase == first.phase, MOK_ERROR_MISMATCH,
                    "ranks make different calls: rank %d is in phase %s, rank 0 in phase %s", rank,
                    mok_phase_string((mok_phase)other.phase),
                    mok_phase_string((mok_phase)first.phase));
        MOK_REQUIRE(
            other.kind == first.kind && other.detail == first.detail, MOK_ERROR_MISMATCH,
            "ranks make different calls in phase %s, or give other sizes: rank %d and rank 0",
            mok_phase_string((mok_phase)first.phase), rank);
    }
    return MOK_OK;
}

mok_status mok_comm_meet(mok_comm *comm, const mok_call *call)
{
    MOK_TRY(mok_comm_check(comm));
    comm->epoch++;
    comm->control[comm->rank]->call[comm->epoch & 1] = *call;
    for (int32_t rank = 0; rank < comm->size; rank++) {
        if (comm->remote[rank]) {
            mok_mail_arrive(comm, rank, comm->staged_bytes);
        } else {
            atomic_store_explicit(&comm->control[rank]->slot[comm->rank], comm->epoch,
                                  memory_order_release);
        }
    }
    comm->staged_bytes = 0;
    const mok_control *mine = comm->control[comm->rank];
    for (int32_t rank = 0; rank < comm->size; rank++) {
        MOK_TRY(
            mok_comm_wait(comm, &mine->slot[rank], comm->epoch, rank, (mok_phase)call->phase, -1));
    }
    return compare_calls(comm);
}

mok_status mok_comm_barrier_in(mok_comm *comm, mok_phase phase)
{
    const mok_call call = {(int32_t)phase, MOK_CALL_BARRIER, 0};
    return mok_comm_meet(comm, &call);
}

mok_status mok_comm_stage(mok_comm *comm, unsigned char **stage, size_t bytes)
{
    MOK_TRY(mok_comm_check(comm));
    MOK_ASSERT(bytes <= MOK_STAGING_BYTES);
    comm->staged_bytes = bytes;
    *stage = comm->control[comm->rank]->staging[(comm->epoch + 1) & 1];
    return MOK_OK;
}

mok_status mok_comm_exchange(mok_comm *comm, mok_phase phase)
{
    const mok_call call = {(int32_t)phase, MOK_CALL_EXCHANGE, 0};
    return mok_comm_meet(comm, &call);
}

const unsigned char *mok_comm_staged(const mok_comm *comm, int32_t rank)
{
    return comm->control[rank]->staging[comm->epoch & 1];
}
