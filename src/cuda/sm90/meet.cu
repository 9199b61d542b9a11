/* What ranks in processes need around a pass: a place where all of them meet, and a copy that a
 * fault keeps from being made. */
#include "cuda/sm90/params.h"
#include "cuda/sm90/wait.cuh"

/* One thread. The epoch lives in memory, so that a replayed graph goes on counting. After a fault a
 * rank still arrives, so that all stay in step, but waits for nobody. */
extern "C" __global__ void mok_sm90_meet(const __grid_constant__ mok_sm90_meeting p)
{
    const uint32_t epoch = *p.epoch + 1;
    *p.epoch = epoch;
    __threadfence_system();
    for (int32_t peer = 0; peer < p.ranks; peer++) {
        ptx_store_release_sys(&p.slot[peer][p.rank], epoch);
    }
    for (int32_t peer = 0; peer < p.ranks; peer++) {
        if (!sm90_wait_in<true>(p.deadline, &p.slot[p.rank][peer], epoch, p.rank, peer, p.phase,
                                -1)) {
            return;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    mok_sm90_receive(const __grid_constant__ mok_sm90_receipt p)
{
    if (*(volatile uint32_t *)p.abort != 0) {
        return;
    }
    const int64_t step = (int64_t)gridDim.x * 256;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < p.rows * p.cols; i += step) {
        p.to[i / p.cols * p.stride + i % p.cols] = __ldcg(p.from + i);
    }
}

extern "C" const void *mok_sm90_meet_function(void)
{
    return (const void *)mok_sm90_meet;
}

extern "C" const void *mok_sm90_receive_function(void)
{
    return (const void *)mok_sm90_receive;
}
