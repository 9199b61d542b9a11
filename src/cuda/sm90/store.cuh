/* The store warps: what becomes of a staged tile, while the consumers are at the next one.
 *
 *   gate/up   columns 0-127 are g, 128-255 u: both are kept, h = bf16(silu(g') u')
 *   down, dx  routed rows go to the slots of their sources, which is the combine; shared rows stay
 *
 * g and u leave as boxes and y's rows one by one, both by the copy engine, so that the warps wait
 * for no store; h alone is stored by ordinary instructions. Staging is free again when the copies
 * have read it; counters rise when what they promise has been written. silu comes from a table over
 * all 65,536 bf16 values, filled by the exact function and compared with the CPU's at open: any
 * form with these bits is right. Its middle lies in shared memory, where 32 lanes meet in few
 * banks; in global memory each lane would take a cache line of its own. */
#ifndef MOK_CUDA_SM90_STORE_CUH
#define MOK_CUDA_SM90_STORE_CUH

#include "cuda/sm90/block.cuh"
#include "cuda/sm90/ptx/bulk.cuh"
#include "cuda/sm90/ptx/matrix.cuh"
#include "cuda/sm90/ptx/tma.cuh"
#include "cuda/sm90/trace.cuh"
#include "cuda/sm90/wait.cuh"
#include "numerics/bits.h"

#define SM90_ROWS_OF_THREAD 2 /* 96 threads take the 128 rows of a tile */

static __device__ __forceinline__ float sm90_widen(uint32_t bits16)
{
    return __uint_as_float(bits16 << 16);
}

/* Called by the whole block before its roles begin. */
static __device__ __forceinline__ void sm90_silu_load(const mok_sm90_pass &p, float *middle)
{
    for (int i = threadIdx.x; i < 2 * SM90_SILU_HALF; i += MOK_SM90_THREADS) {
        const int sign = i / SM90_SILU_HALF;
        middle[i] = __ldg(p.silu + sign * 32768 + SM90_SILU_FIRST + i % SM90_SILU_HALF);
    }
}

static __device__ __forceinline__ float sm90_silu(const mok_sm90_pass &p, const float *middle,
                                                  uint32_t g)
{
    const uint32_t at = (g & 0x7FFF) - SM90_SILU_FIRST;
    const bool inside = at < SM90_SILU_HALF;
    float value = middle[(inside ? at : 0) + (g >> 15) * SM90_SILU_HALF];
    ptx_load_if(value, p.silu + g, inside ? 0 : 1);
    return value;
}

static __device__ __forceinline__ float sm90_h32(const mok_sm90_pass &p, const float *middle,
                                                 uint32_t g, uint32_t u)
{
    float gate = sm90_silu(p, middle, g);
    float up = sm90_widen(u);
    if (p.clamped) {
        gate = sm90_widen(g) > p.limit ? p.silu_limit : gate;
        up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
    }
    return __fmul_rn(gate, up);
}

static __device__ __forceinline__ uint32_t sm90_h_pair(const mok_sm90_pass &p, const float *middle,
                                                       uint32_t g, uint32_t u)
{
    return ptx_round_bf16x2(sm90_h32(p, middle, g & 0xFFFF, u & 0xFFFF),
                            sm90_h32(p, middle, g >> 16, u >> 16));
}

/* Eight columns of a staged row: unit is column / 8. */
static __device__ __forceinline__ uint4 sm90_staged(const unsigned char *staging, int row, int unit)
{
    return *(const uint4 *)(const void *)(staging + unit / 8 * MOK_SM90_STAGING_CHUNK + row * 128 +
                                          ((unit % 8) ^ (row & 7)) * 16);
}

/* g and u as boxes by one thread, h by 16 bytes a thread: half a warp takes a row. Rows of padding
 * are zeros and leave with the rest of their block. */
static __device__ __forceinline__ void sm90_store_gate_up(const mok_sm90_pass &p, int32_t rank,
                                                          const mok_sm90_task &tile,
                                                          unsigned char *staging,
                                                          const float *middle)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const bool shared = tile.kind == MOK_TASK_SHARED_GATE_UP;
    const int64_t inner = shared ? mine.shape.shared_inner : mine.shape.inner;
    if (threadIdx.x == 32) {
        const CUtensorMap *map = &p.map[rank][shared ? MOK_MAP_SHARED_GU : MOK_MAP_GU];
        const uint32_t from = ptx_shared_address(staging);
        for (int chunk = 0; chunk < 4; chunk++) {
            if (chunk % 2 * 64 < tile.cols) {
                ptx_tma_store_3d(map, from + chunk * MOK_SM90_STAGING_CHUNK,
                                 tile.col + chunk % 2 * 64, tile.store_row, chunk / 2);
            }
        }
        ptx_bulk_commit();
    }
    const int thread = threadIdx.x - 32;
    const int unit = thread & 15;
    if (unit * 8 >= tile.cols) {
        return;
    }
    uint16_t *to = (shared ? mine.shared_h : mine.ring_h) + (int64_t)tile.store_row * inner +
                   tile.col + unit * 8;
#pragma unroll 2
    for (int row = thread / 16; row < tile.row_count; row += SM90_STORE_THREADS / 16) {
        const uint4 g = sm90_staged(staging, row, unit);
        const uint4 u = sm90_staged(staging, row, unit + 16);
        uint4 h;
        h.x = sm90_h_pair(p, middle, g.x, u.x);
        h.y = sm90_h_pair(p, middle, g.y, u.y);
        h.z = sm90_h_pair(p, middle, g.z, u.z);
        h.w = sm90_h_pair(p, middle, g.w, u.w);
        *(uint4 *)(void *)(to + row * inner) = h;
    }
}

static __device__ __forceinline__ bool sm90_is_gradient(int32_t kind)
{
    return (kind >= MOK_TASK_WGRAD_GATE && kind <= MOK_TASK_WGRAD_DOWN) ||
           (kind >= MOK_TASK_SHARED_WGRAD_GATE && kind <= MOK_TASK_SHARED_WGRAD_DOWN);
}

/* Where a weight gradient goes. */
static __device__ __forceinline__ const mok_sm90_grad &sm90_grad_of(const mok_sm90_rank &mine,
                                                                    int32_t kind)
{
    return mine.grad[kind >= MOK_TASK_SHARED_WGRAD_GATE ? kind - MOK_TASK_SHARED_WGRAD_GATE + 3
                                                        : kind - MOK_TASK_WGRAD_GATE];
}

/* A tile of a bf16 gradient is staged and leaves row by row; the others leave from the registers.
 */
static __device__ __forceinline__ bool sm90_gradient_as_rows(const mok_sm90_rank &mine,
                                                             const mok_sm90_task &task)
{
    if (!sm90_is_gradient(task.kind) || task.k_steps == 0) {
        return false;
    }
    const mok_sm90_grad &grad = sm90_grad_of(mine, task.kind);
    return grad.is_bf16 != 0 && grad.adds == 0;
}

/* Where this thread's rows of a down tile go, looked up before the tile is staged. */
typedef struct sm90_targets {
    uint16_t *row[SM90_ROWS_OF_THREAD];
} sm90_targets;

static __device__ __forceinline__ sm90_targets sm90_targets_of(const mok_sm90_pass &p,
                                                               const mok_sm90_rank &mine,
                                                               const mok_sm90_task &tile)
{
    const int64_t hidden = mine.shape.hidden;
    sm90_targets targets;
#pragma unroll
    for (int i = 0; i < SM90_ROWS_OF_THREAD; i++) {
        const int row = (int)threadIdx.x - 32 + i * SM90_STORE_THREADS;
        targets.row[i] = NULL;
        if (row < tile.row_count &&
            (tile.kind == MOK_TASK_SHARED_DOWN || tile.kind == MOK_TASK_SHARED_DX)) {
            targets.row[i] = mine.shared_y + (int64_t)(tile.store_row + row) * hidden;
        } else if (row < tile.row_count &&
                   (tile.kind == MOK_TASK_DOWN || tile.kind == MOK_TASK_DX)) {
            const int32_t peer = __ldg(mine.peer_rank + tile.source_row + row);
            const int32_t slot = __ldg(mine.peer_slot + tile.source_row + row);
            targets.row[i] = p.rank[peer].slots + (int64_t)slot * hidden;
        } else if (row < tile.row_count && sm90_gradient_as_rows(mine, tile)) {
            const mok_sm90_grad &grad = sm90_grad_of(mine, tile.kind);
            targets.row[i] = (uint16_t *)grad.data + tile.expert * grad.expert_stride +
                             (int64_t)(tile.store_row + row) * grad.row_stride;
        }
    }
    return targets;
}

/* Rows of y or dx. */
static __device__ __forceinline__ void
sm90_store_rows(const sm90_targets &targets, const mok_sm90_task &tile, unsigned char *staging)
{
#pragma unroll
    for (int i = 0; i < SM90_ROWS_OF_THREAD; i++) {
        const int row = (int)threadIdx.x - 32 + i * SM90_STORE_THREADS;
        if (targets.row[i] != NULL) {
            ptx_bulk_store(targets.row[i] + tile.col,
                           ptx_shared_address(staging + row * MOK_SM90_STAGING_PITCH),
                           (uint32_t)tile.cols * 2);
        }
    }
    ptx_bulk_commit();
}

static __device__ __forceinline__ void sm90_raise(const mok_sm90_rank &mine,
                                                  const mok_sm90_task &task)
{
#pragma unroll
    for (int i = 0; i < MOK_TASK_MAX_RAISES; i++) {
        if (task.raise_idx[i] >= 0) {
            ptx_add_release_gpu(&mine.counters[task.raise_idx[i]], 1);
        }
    }
}

/* A row block's router-weight gradients to their sources: chunks ascending, from +0. */
static __device__ __forceinline__ void
sm90_store_router(const mok_sm90_pass &p, const mok_sm90_rank &mine, const mok_sm90_task &tile)
{
    const int32_t chunks = (int32_t)mok_blocks_of(mine.shape.inner, MOK_ROUTER_CHUNK);
    const int32_t slots = (int32_t)mine.shape.slots;
    for (int row = (int)threadIdx.x - 32; row < tile.row_count; row += SM90_STORE_THREADS) {
        const mok_sm90_rank &source = p.rank[__ldg(mine.peer_rank + tile.source_row + row)];
        const int32_t slot = __ldg(mine.peer_slot + tile.source_row + row);
        const float *part = mine.router_part + (int64_t)(tile.store_row + row) * chunks;
        float sum = 0.0f;
        for (int32_t chunk = 0; chunk < chunks; chunk++) {
            sum = mok_f32_canonical(__fadd_rn(sum, __ldcg(part + chunk)));
        }
        source.d_router[slot / slots * source.d_router_stride + slot % slots] = sum;
    }
}

static __device__ __forceinline__ bool sm90_leaves_as_rows(int32_t kind)
{
    return kind == MOK_TASK_DOWN || kind == MOK_TASK_SHARED_DOWN || kind == MOK_TASK_DX ||
           kind == MOK_TASK_SHARED_DX;
}

static __device__ __forceinline__ bool sm90_is_hidden(int32_t kind)
{
    return kind == MOK_TASK_D_HIDDEN || kind == MOK_TASK_SHARED_D_HIDDEN;
}

/* The router weight of a row of a tile: 1 for the shared expert's, 0 for padding. */
static __device__ __forceinline__ float sm90_weight_of(const mok_sm90_pass &p,
                                                       const mok_sm90_rank &mine,
                                                       const mok_sm90_task &task, int row)
{
    if (task.kind == MOK_TASK_SHARED_D_HIDDEN) {
        return 1.0f;
    }
    if (row >= task.row_count) {
        return 0.0f;
    }
    const mok_sm90_rank &source = p.rank[__ldg(mine.peer_rank + task.source_row + row)];
    const int32_t slot = __ldg(mine.peer_slot + task.source_row + row);
    const int32_t slots = (int32_t)mine.shape.slots;
    return __ldg(source.router_weights + slot / slots * source.router_stride + slot % slots);
}

/* g and u of 128 columns of the tile, into staging: boxes of 64 columns, g's two, then u's. One
 * thread. */
static __device__ __forceinline__ void sm90_fetch_gu(const CUtensorMap *maps,
                                                     const mok_sm90_task &task, uint32_t staging,
                                                     uint32_t barrier, int chunk)
{
    const CUtensorMap *map =
        &maps[(task.kind == MOK_TASK_SHARED_D_HIDDEN ? MOK_BACK_MAPS : 0) + MOK_BACK_GU];
    ptx_mbarrier_arrive_expect(barrier, 4 * MOK_SM90_STAGING_CHUNK);
    for (int box = 0; box < 4; box++) {
        ptx_tma_load_4d(staging + box * MOK_SM90_STAGING_CHUNK, map, barrier,
                        task.col + chunk * 128 + box % 2 * 64, task.store_row, 0, box / 2);
    }
}

/* What is left of a tile for the store warps; of backward's other tiles (d_hidden, and gradients
 * that do not leave as rows) the consumers have stored everything, and no thread has a target. */
template <int pass>
static __device__ __forceinline__ void
sm90_store_tile(const mok_sm90_pass &p, int32_t rank, const mok_sm90_task &tile,
                const sm90_targets &targets, unsigned char *staging, const float *middle)
{
    if (pass == MOK_PASS_BACKWARD || sm90_leaves_as_rows(tile.kind)) {
        sm90_store_rows(targets, tile, staging);
        if (pass == MOK_PASS_BACKWARD && tile.kind == MOK_TASK_DX && tile.col == 0) {
            sm90_store_router(p, p.rank[rank], tile);
        }
    } else {
        sm90_store_gate_up(p, rank, tile, staging, middle);
    }
}

/* What the consumers need besides the products of a d_hidden tile, fetched meanwhile. All earlier
 * tiles have left staging. */
static __device__ __forceinline__ void sm90_prepare_hidden(const mok_sm90_pass &p, int32_t rank,
                                                           const mok_sm90_task &tile,
                                                           unsigned char *staging,
                                                           sm90_control *control)
{
    for (int row = (int)threadIdx.x - 32; row < 128; row += SM90_STORE_THREADS) {
        control->weight[row] = sm90_weight_of(p, p.rank[rank], tile, row);
    }
    ptx_bar_sync<1, SM90_STORE_THREADS>();
    if (threadIdx.x == 32) {
        sm90_fetch_gu(p.map[rank], tile, ptx_shared_address(staging),
                      ptx_shared_address(&control->gu_full), 0);
    }
}

template <int pass>
static __device__ __forceinline__ void sm90_stores(const mok_sm90_pass &p, int32_t rank,
                                                   unsigned char *shared, sm90_control *control)
{
    const mok_sm90_rank &mine = p.rank[rank];
    unsigned char *staging = shared + SM90_STAGING_OFFSET;
    const float *middle = (const float *)(const void *)(shared + SM90_SILU_OFFSET);
    sm90_ring slot = {0, 0};
    uint32_t parity = 0;
    for (;;) {
        mbarrier_wait(ptx_shared_address(&control->task_full[slot.slot]), slot.parity);
        const mok_sm90_task tile = control->task[slot.slot];
        ptx_bar_sync<1, SM90_STORE_THREADS>();
        if (threadIdx.x == 32) {
            ptx_mbarrier_arrive(ptx_shared_address(&control->task_empty[slot.slot]));
        }
        if (tile.kind == MOK_SM90_STOP) {
            break;
        }
        sm90_ring_next<MOK_SM90_TASK_SLOTS>(&slot);
        if (pass == MOK_PASS_BACKWARD && sm90_is_hidden(tile.kind)) {
            sm90_prepare_hidden(p, rank, tile, staging, control);
        }
        const sm90_targets targets = sm90_targets_of(p, mine, tile);
        mbarrier_wait(ptx_shared_address(&control->staged_full), parity);
        parity ^= 1;
        const int64_t began = sm90_clock();
        ptx_fence_proxy_async(); /* the consumers' ordinary stores before the copies' reads */
        sm90_store_tile<pass>(p, rank, tile, targets, staging, middle);
        ptx_bulk_wait_read<0>();
        ptx_mbarrier_arrive(ptx_shared_address(&control->staged_empty));
        /* h is read next by the copy engine of whichever block takes the down task; the rows of g
         * and u may be overwritten by the ring's next occupant once the counter is up. */
        ptx_bulk_wait<0>();
        ptx_fence_proxy_async();
        ptx_bar_sync<1, SM90_STORE_THREADS>();
        if (threadIdx.x == 32) {
            sm90_raise(mine, tile);
            sm90_trace(p, MOK_SM90_ROLE_STORE, MOK_SM90_WORK, tile.kind, tile.block, tile.col,
                       began, sm90_clock());
        }
    }
}

#endif
