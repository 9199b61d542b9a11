/* The end of a pass: ranks meet, then every owner sums its tokens' slots, ascending.
 *
 * Rank barrier: the last block of a rank to finish stores the new epoch into the rank's place in every
 * peer's slots; all blocks wait for their own rank's slots. A block's slot writes are released by its add
 * to `done`, gathered by the last block's acquire, and passed on by its store-release: so they are visible
 * to whoever has acquired the slot. */
#ifndef MOK_CUDA_SM90_FOLD_CUH
#define MOK_CUDA_SM90_FOLD_CUH

#include "cuda/sm90/block.cuh"
#include "cuda/sm90/ptx/matrix.cuh"
#include "cuda/sm90/wait.cuh"

/* False when a peer did not come. Called by every thread of the block. */
static __device__ bool sm90_rank_barrier(const mok_sm90_forward &p, int32_t rank, uint32_t epoch,
                                         sm90_control *control)
{
    const mok_sm90_rank &mine = p.rank[rank];
    __syncthreads();
    if (threadIdx.x == 0) {
        if (ptx_add_acq_rel_sys(mine.done, 1) == (uint32_t)p.blocks_per_rank - 1) {
            for (int32_t peer = 0; peer < p.ranks; peer++) {
                ptx_store_release_sys(&p.rank[peer].slot[rank], epoch);
            }
        }
        bool met = true;
        for (int32_t peer = 0; peer < p.ranks && met; peer++) {
            met = sm90_wait<true>(p, &mine.slot[peer], epoch, rank, peer, MOK_SM90_PHASE_FOLD, -1);
        }
        control->flag = met && !sm90_aborted(p) ? 1u : 0u;
    }
    __syncthreads();
    return control->flag != 0u;
}

/* Eight columns of one token: acc = shared, then fma over the slots that have a route. */
static __device__ __forceinline__ uint4 sm90_fold_chunk(const mok_sm90_rank &mine, int64_t token,
                                                        int64_t col)
{
    const int64_t hidden = mine.shape.hidden;
    const int slots = (int)mine.shape.slots;
    float acc[8];
    uint4 part = {0, 0, 0, 0};
    if (mine.shape.shared_inner > 0) {
        part = *(const uint4 *)(const void *)(mine.shared_y + token * hidden + col);
    }
    const uint32_t first[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        acc[2 * i] = __uint_as_float(first[i] << 16);
        acc[2 * i + 1] = __uint_as_float(first[i] & 0xFFFF0000u);
    }
    const uint16_t *rows = mine.slots + token * slots * hidden + col;
#pragma unroll 4
    for (int slot = 0; slot < slots; slot++) {
        if (mine.routes[token * slots + slot] < 0) {
            continue;
        }
        const float w = mine.router_weights[token * mine.router_stride + slot];
        const uint4 y = *(const uint4 *)(const void *)(rows + slot * hidden);
        const uint32_t word[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            acc[2 * i] = __fmaf_rn(w, __uint_as_float(word[i] << 16), acc[2 * i]);
            acc[2 * i + 1] = __fmaf_rn(w, __uint_as_float(word[i] & 0xFFFF0000u), acc[2 * i + 1]);
        }
    }
    const uint4 out = {ptx_round_bf16x2(acc[0], acc[1]), ptx_round_bf16x2(acc[2], acc[3]),
                       ptx_round_bf16x2(acc[4], acc[5]), ptx_round_bf16x2(acc[6], acc[7])};
    return out;
}

static __device__ __noinline__ void sm90_fold(const mok_sm90_rank &mine, int32_t local, int32_t blocks)
{
    const int64_t chunks = mine.shape.hidden / 8;
    const int64_t all = mine.tokens * chunks;
    const int64_t step = (int64_t)blocks * MOK_SM90_THREADS;
    for (int64_t at = (int64_t)local * MOK_SM90_THREADS + threadIdx.x; at < all; at += step) {
        const int64_t token = at / chunks;
        const int64_t col = at % chunks * 8;
        *(uint4 *)(void *)(mine.out + token * mine.out_stride + col) = sm90_fold_chunk(mine, token, col);
    }
}

/* The last block to leave puts everything back to where the next launch, or a replayed graph, begins. */
static __device__ void sm90_leave(const mok_sm90_forward &p, const mok_sm90_rank &mine, uint32_t epoch,
                                  sm90_control *control)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        control->last = ptx_add_acq_rel_sys(mine.left, 1) == (uint32_t)p.blocks_per_rank - 1 ? 1u : 0u;
    }
    __syncthreads();
    if (control->last == 0u) {
        return;
    }
    const int64_t counters = (int64_t)MOK_COUNTERS * mok_counter_blocks(&mine.shape);
    for (int64_t i = threadIdx.x; i < counters; i += MOK_SM90_THREADS) {
        mine.counters[i] = 0;
    }
    if (threadIdx.x == 0) {
        *mine.next_compute = 0;
        *mine.done = 0;
        *mine.left = 0;
        *mine.epoch = epoch;
    }
}

#endif
