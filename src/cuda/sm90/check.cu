/* Values that must not enter a pass, looked for on the device before the pass writes anything: a
 * router weight of a live slot that is not finite. One launch for all ranks, gridDim.y of them. */
#include "cuda/sm90/params.h"
#include "cuda/sm90/wait.cuh"

extern "C" __global__ void __launch_bounds__(256)
    mok_sm90_check_weights(const __grid_constant__ mok_sm90_check p)
{
    const int32_t rank = (int32_t)blockIdx.y;
    const mok_sm90_check_rank &mine = p.rank[rank];
    const int64_t all = mine.tokens * p.slots;
    const int64_t step = (int64_t)gridDim.x * 256;
    if (*(volatile uint32_t *)p.abort != 0) {
        return; /* a schedule that failed left no routes to look at */
    }
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < all; i += step) {
        const float w = mine.router_weights[i / p.slots * mine.router_stride + i % p.slots];
        if (mine.routes[i] >= 0 && !(fabsf(w) <= 3.402823466e38f)) {
            const mok_sm90_fault bad = {
                MOK_SM90_FAULT_VALUE, rank, rank, MOK_SM90_PHASE_FORWARD, i, 0, 0, 0};
            sm90_report(p.abort, p.fault, bad);
        }
    }
}

extern "C" const void *mok_sm90_check_weights_function(void)
{
    return (const void *)mok_sm90_check_weights;
}
