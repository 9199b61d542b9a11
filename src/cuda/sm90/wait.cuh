/* Bounded waits between blocks and ranks, and the fault record. */
#ifndef MOK_CUDA_SM90_WAIT_CUH
#define MOK_CUDA_SM90_WAIT_CUH

#include "cuda/sm90/params.h"
#include "cuda/sm90/ptx/sync.cuh"

static __device__ __forceinline__ bool sm90_aborted(const mok_sm90_pass &p)
{
    return *(volatile const uint32_t *)p.deadline.abort != 0;
}

/* The first failure of a step writes the record; every wait after it ends at once, and later
 * kernels of the step write nothing. */
static __device__ __noinline__ void sm90_report(uint32_t *abort, mok_sm90_fault *record,
                                                const mok_sm90_fault &what)
{
    if (atomicCAS(abort, 0u, 1u) != 0u) {
        return;
    }
    volatile mok_sm90_fault *to = record;
    to->rank = what.rank;
    to->peer = what.peer;
    to->phase = what.phase;
    to->task_idx = what.task_idx;
    to->waited_ms = what.waited_ms;
    to->value = what.value;
    to->limit = what.limit;
    __threadfence_system();
    to->state = what.state;
    __threadfence_system();
}

/* Waits until *counter has reached value, modulo 2^32. False after the deadline, or when any other
 * wait has failed. System scope serves counters that peers raise. */
template <bool system>
static __device__ __forceinline__ bool
sm90_wait_in(const mok_sm90_deadline &deadline, const uint32_t *counter, uint32_t value,
             int32_t rank, int32_t peer, int32_t phase, int64_t task_idx)
{
    uint64_t since = 0;
    for (uint32_t round = 0;; round++) {
        const uint32_t now = system ? ptx_load_acquire_sys(counter) : ptx_load_acquire_gpu(counter);
        if ((int32_t)(now - value) >= 0) {
            return true;
        }
        if (round < 16) {
            continue;
        }
        ptx_nanosleep(64);
        if ((round & 255) == 255) {
            const uint64_t time = ptx_global_timer_ns();
            if (*(volatile const uint32_t *)deadline.abort != 0) {
                return false;
            }
            if (since == 0) {
                since = time;
            } else if (time - since > deadline.timeout_ns) {
                const mok_sm90_fault late = {MOK_SM90_FAULT_PEER,
                                             rank,
                                             peer,
                                             phase,
                                             task_idx,
                                             (int64_t)((time - since) / 1000000u),
                                             0,
                                             0};
                sm90_report(deadline.abort, deadline.fault, late);
                return false;
            }
        }
    }
}

template <bool system>
static __device__ __forceinline__ bool sm90_wait(const mok_sm90_pass &p, const uint32_t *counter,
                                                 uint32_t value, int32_t rank, int32_t peer,
                                                 int32_t phase, int64_t task_idx)
{
    return sm90_wait_in<system>(p.deadline, counter, value, rank, peer, phase, task_idx);
}

#endif
