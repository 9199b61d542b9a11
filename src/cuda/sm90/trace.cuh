/* What each role of a block did and when, recorded only where the layer was opened with room for
 * it.
 *
 * A role writes its own ring of events without atomics; the newest overwrite the oldest. Times are
 * the block's own cycles: the head of a block pairs two of them with the global timer, whose ticks
 * are coarse. */
#ifndef MOK_CUDA_SM90_TRACE_CUH
#define MOK_CUDA_SM90_TRACE_CUH

#include "cuda/sm90/params.h"
#include "cuda/sm90/ptx/sync.cuh"

static __device__ __forceinline__ int64_t sm90_clock(void)
{
    return clock64();
}

static __device__ __forceinline__ void sm90_trace(const mok_sm90_pass &p, int role, int32_t what,
                                                  int32_t kind, int64_t block, int32_t col,
                                                  int64_t begin, int64_t end)
{
    if (p.trace == NULL) {
        return;
    }
    mok_sm90_trace_head *head = &p.trace_head[blockIdx.x];
    const uint32_t at = head->count[role]++;
    mok_sm90_event *event = p.trace +
                            ((int64_t)blockIdx.x * MOK_SM90_TRACE_ROLES + role) * p.trace_events +
                            at % (uint32_t)p.trace_events;
    event->begin = begin;
    event->end = end;
    event->what = what;
    event->kind = kind;
    event->block = (int32_t)block;
    event->col = col;
}

/* One thread, at the kernel's begin (which 0) and end (1). */
static __device__ __forceinline__ void sm90_trace_mark(const mok_sm90_pass &p, int which)
{
    if (p.trace == NULL) {
        return;
    }
    mok_sm90_trace_head *head = &p.trace_head[blockIdx.x];
    if (which == 0) {
        for (int role = 0; role < MOK_SM90_TRACE_ROLES; role++) {
            head->count[role] = 0;
        }
    }
    head->clock[which] = sm90_clock();
    head->timer_ns[which] = ptx_global_timer_ns();
}

#endif
