/* The end of a pass: ranks meet, then every owner sums its tokens' slots, ascending.
 *
 * Rank barrier: the last block of a rank to finish stores the new epoch into the rank's place in
 * every peer's slots; all blocks wait for their own rank's slots. A block's slot writes are
 * released by its add to `done`, gathered by the last block's acquire, and passed on by its
 * store-release: so they are visible to whoever has acquired the slot. */
#ifndef MOK_CUDA_SM90_FOLD_CUH
#define MOK_CUDA_SM90_FOLD_CUH

#include "cuda/sm90/block.cuh"
#include "cuda/sm90/ptx/matrix.cuh"
#include "cuda/sm90/wait.cuh"

/* False when a peer did not come. Called by every thread of the block. */
static __device__ bool sm90_rank_barrier(const mok_sm90_pass &p, int32_t rank, uint32_t epoch,
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

#define SM90_FOLD_SLOTS 8 /* slots whose loads are in flight together, */
#define SM90_FOLD_SPANS 2 /* in so many spans of 256 columns */

static __device__ __forceinline__ void sm90_fold_start(float (&acc)[8], const mok_sm90_rank &mine,
                                                       int64_t at)
{
    uint4 part = {0, 0, 0, 0};
    if (mine.shape.shared_inner > 0) {
        part = *(const uint4 *)(const void *)(mine.shared_y + at);
    }
    const uint32_t word[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        acc[2 * i] = __uint_as_float(word[i] << 16);
        acc[2 * i + 1] = __uint_as_float(word[i] & 0xFFFF0000u);
    }
}

template <int pass>
static __device__ __forceinline__ float sm90_fold_one(float acc, float w, uint32_t bits)
{
    const float value = __uint_as_float(bits);
    return pass == MOK_PASS_FORWARD ? __fmaf_rn(w, value, acc) : __fadd_rn(acc, value);
}

template <int pass>
static __device__ __forceinline__ void sm90_fold_add(float (&acc)[8], const uint4 &y, float w,
                                                     bool live)
{
    const uint32_t word[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float low = sm90_fold_one<pass>(acc[2 * i], w, word[i] << 16);
        const float high = sm90_fold_one<pass>(acc[2 * i + 1], w, word[i] & 0xFFFF0000u);
        acc[2 * i] = live ? low : acc[2 * i];
        acc[2 * i + 1] = live ? high : acc[2 * i + 1];
    }
}

/* A lane's columns of one token from `col` on, 8 in each span: acc = shared, then fma (forward) or
 * add (backward) over the live slots. All loads come before the first use; what a masked slot holds
 * is read, not used. */
template <int pass>
static __device__ __forceinline__ void sm90_fold_columns(const mok_sm90_rank &mine, int64_t token,
                                                         int col)
{
    const int hidden = (int)mine.shape.hidden;
    const int slots = (int)mine.shape.slots;
    const uint16_t *rows = mine.slots + token * slots * (int64_t)hidden;
    float acc[SM90_FOLD_SPANS][8];
#pragma unroll
    for (int s = 0; s < SM90_FOLD_SPANS; s++) {
        sm90_fold_start(acc[s], mine,
                        token * hidden + (col + s * 256 < hidden ? col + s * 256 : col));
    }
    for (int first = 0; first < slots; first += SM90_FOLD_SLOTS) {
        uint4 y[SM90_FOLD_SPANS][SM90_FOLD_SLOTS];
#pragma unroll
        for (int i = 0; i < SM90_FOLD_SLOTS; i++) {
            const uint16_t *row =
                rows + (int64_t)(first + i < slots ? first + i : slots - 1) * hidden;
#pragma unroll
            for (int s = 0; s < SM90_FOLD_SPANS; s++) {
                y[s][i] = __ldcs(
                    (const uint4 *)(const void *)(row +
                                                  (col + s * 256 < hidden ? col + s * 256 : col)));
            }
        }
#pragma unroll
        for (int i = 0; i < SM90_FOLD_SLOTS; i++) {
            const int slot = first + i < slots ? first + i : slots - 1;
            const float w = pass == MOK_PASS_FORWARD
                                ? mine.router_weights[token * mine.router_stride + slot]
                                : 1.0f;
            const bool live = first + i < slots && mine.routes[token * slots + slot] >= 0;
#pragma unroll
            for (int s = 0; s < SM90_FOLD_SPANS; s++) {
                sm90_fold_add<pass>(acc[s], y[s][i], w, live);
            }
        }
    }
#pragma unroll
    for (int s = 0; s < SM90_FOLD_SPANS; s++) {
        if (col + s * 256 < hidden) {
            const uint4 out = {
                ptx_round_bf16x2(acc[s][0], acc[s][1]), ptx_round_bf16x2(acc[s][2], acc[s][3]),
                ptx_round_bf16x2(acc[s][4], acc[s][5]), ptx_round_bf16x2(acc[s][6], acc[s][7])};
            *(uint4 *)(void *)(mine.out + token * mine.out_stride + col + s * 256) = out;
        }
    }
}

/* A warp takes a token. In backward, masked slots get their zero here: no row brings them one. */
template <int pass>
static __device__ __noinline__ void sm90_fold(const mok_sm90_rank &mine, int32_t local,
                                              int32_t blocks)
{
    const int warps = MOK_SM90_THREADS / 32;
    const int hidden = (int)mine.shape.hidden;
    for (int64_t token = local * warps + threadIdx.x / 32; token < mine.tokens;
         token += blocks * warps) {
        for (int col = (threadIdx.x & 31) * 8; col < hidden; col += 256 * SM90_FOLD_SPANS) {
            sm90_fold_columns<pass>(mine, token, col);
        }
        for (int slot = threadIdx.x & 31; pass == MOK_PASS_BACKWARD && slot < mine.shape.slots;
             slot += 32) {
            if (mine.routes[token * mine.shape.slots + slot] < 0) {
                mine.d_router[token * mine.d_router_stride + slot] = 0.0f;
            }
        }
    }
}

/* The last block to leave puts everything back to where the next launch, or a replayed graph,
 * begins. */
static __device__ void sm90_leave(const mok_sm90_pass &p, const mok_sm90_rank &mine, uint32_t epoch,
                                  sm90_control *control)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        control->last =
            ptx_add_acq_rel_sys(mine.left, 1) == (uint32_t)p.blocks_per_rank - 1 ? 1u : 0u;
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
