/* The store warps: what becomes of a staged tile, while the consumers are at the next one.
 *
 *   gate/up   columns 0-127 are g, 128-255 u: both are kept, h = bf16(silu(g') u')
 *   down      routed rows go to the slots of their sources, which is the combine; shared rows stay
 *
 * silu comes from a table over all 65,536 bf16 values, filled by the exact function and compared with the
 * CPU's at open: any form with these bits is right, and a lookup costs less than 38 instructions. */
#ifndef MOK_CUDA_SM90_STORE_CUH
#define MOK_CUDA_SM90_STORE_CUH

#include "cuda/sm90/block.cuh"
#include "cuda/sm90/ptx/matrix.cuh"
#include "cuda/sm90/wait.cuh"

static __device__ __forceinline__ float sm90_widen(uint32_t bits16)
{
    return __uint_as_float(bits16 << 16);
}

static __device__ __forceinline__ float sm90_h32(const mok_sm90_forward &p, uint32_t g, uint32_t u)
{
    float gate = __ldg(p.silu + g);
    float up = sm90_widen(u);
    if (p.clamped) {
        gate = sm90_widen(g) > p.limit ? p.silu_limit : gate;
        up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
    }
    return __fmul_rn(gate, up);
}

static __device__ __forceinline__ uint32_t sm90_h_pair(const mok_sm90_forward &p, uint32_t g, uint32_t u)
{
    return ptx_round_bf16x2(sm90_h32(p, g & 0xFFFF, u & 0xFFFF), sm90_h32(p, g >> 16, u >> 16));
}

/* Half a warp takes a row: 16 lanes of 8 columns. */
static __device__ __forceinline__ void sm90_store_gate_up(const mok_sm90_forward &p,
                                                          const mok_sm90_rank &mine,
                                                          const sm90_tile &tile,
                                                          const unsigned char *staging)
{
    const bool shared = tile.kind == MOK_TASK_SHARED_GATE_UP;
    const int64_t inner = shared ? mine.shape.shared_inner : mine.shape.inner;
    uint16_t *to_g = shared ? mine.shared_g : mine.ring_g;
    uint16_t *to_u = shared ? mine.shared_u : mine.ring_u;
    uint16_t *to_h = shared ? mine.shared_h : mine.ring_h;
    const int thread = threadIdx.x - 32;
    const int chunk = (thread & 15) * 8;
    if (chunk >= tile.cols) {
        return;
    }
    for (int row = thread / 16; row < tile.row_count; row += SM90_STORE_THREADS / 16) {
        const unsigned char *from = staging + row * MOK_SM90_STAGING_PITCH + chunk * 2;
        const uint4 g = *(const uint4 *)(const void *)from;
        const uint4 u = *(const uint4 *)(const void *)(from + 256);
        uint4 h;
        h.x = sm90_h_pair(p, g.x, u.x);
        h.y = sm90_h_pair(p, g.y, u.y);
        h.z = sm90_h_pair(p, g.z, u.z);
        h.w = sm90_h_pair(p, g.w, u.w);
        const int64_t at = (int64_t)(tile.store_row + row) * inner + tile.col + chunk;
        *(uint4 *)(void *)(to_g + at) = g;
        *(uint4 *)(void *)(to_u + at) = u;
        *(uint4 *)(void *)(to_h + at) = h;
    }
}

/* A warp takes a row: 32 lanes of 8 columns. */
static __device__ __forceinline__ void sm90_store_down(const mok_sm90_forward &p, const mok_sm90_rank &mine,
                                                       const sm90_tile &tile,
                                                       const unsigned char *staging)
{
    const bool shared = tile.kind == MOK_TASK_SHARED_DOWN;
    const int64_t hidden = mine.shape.hidden;
    const int warp = threadIdx.x / 32 - 1;
    const int chunk = (threadIdx.x & 31) * 8;
    if (chunk >= tile.cols) {
        return;
    }
    for (int row = warp; row < tile.row_count; row += SM90_STORE_THREADS / 32) {
        const uint4 y =
            *(const uint4 *)(const void *)(staging + row * MOK_SM90_STAGING_PITCH + chunk * 2);
        uint16_t *to;
        if (shared) {
            to = mine.shared_y + (int64_t)(tile.store_row + row) * hidden;
        } else {
            const int32_t peer = __ldg(mine.peer_rank + tile.source_row + row);
            to = p.rank[peer].slots + (int64_t)__ldg(mine.peer_slot + tile.source_row + row) * hidden;
        }
        *(uint4 *)(void *)(to + tile.col + chunk) = y;
    }
}

static __device__ __forceinline__ void sm90_stores(const mok_sm90_forward &p, int32_t rank,
                                                   unsigned char *shared, sm90_control *control)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const unsigned char *staging = shared + SM90_STAGING_OFFSET;
    sm90_ring slot = {0, 0};
    uint32_t parity = 0;
    for (;;) {
        mbarrier_wait(ptx_shared_address(&control->task_full[slot.slot]), slot.parity);
        const sm90_tile tile = control->tile[slot.slot];
        ptx_bar_sync<1, SM90_STORE_THREADS>();
        if (threadIdx.x == 32) {
            ptx_mbarrier_arrive(ptx_shared_address(&control->task_empty[slot.slot]));
        }
        if (tile.kind < 0) {
            return;
        }
        sm90_ring_next<MOK_SM90_TASK_SLOTS>(&slot);
        mbarrier_wait(ptx_shared_address(&control->staged_full), parity);
        parity ^= 1;
        if (tile.kind == MOK_TASK_GATE_UP || tile.kind == MOK_TASK_SHARED_GATE_UP) {
            sm90_store_gate_up(p, mine, tile, staging);
        } else {
            sm90_store_down(p, mine, tile, staging);
        }
        ptx_mbarrier_arrive(ptx_shared_address(&control->staged_empty));
        /* h is read next by the copy engine of whichever block takes the down task. */
        ptx_fence_proxy_async();
        ptx_bar_sync<1, SM90_STORE_THREADS>();
        if (threadIdx.x == 32) {
            for (int i = 0; i < tile.raise_count; i++) {
                ptx_add_release_gpu(&mine.counters[tile.raise_idx[i]], 1);
            }
        }
    }
}

#endif
