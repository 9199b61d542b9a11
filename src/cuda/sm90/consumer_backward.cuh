/* The consumers of the backward pass: what they do with a finished tile of accumulators.
 *
 *   d_hidden   s in fp32 never leaves the registers: dg, du, hw and the router gradient's parts
 * come from it dx         rounded into staging, rows leave by the store warps gradients  stored or
 * added from the registers, 8 bytes a thread, whole sectors a quad
 *
 * Thread t of a warpgroup holds rows 16 w + l / 4 and + 8, columns 8 j + 2 (l % 4) and + 1. */
#ifndef MOK_CUDA_SM90_CONSUMER_BACKWARD_CUH
#define MOK_CUDA_SM90_CONSUMER_BACKWARD_CUH

#include "cuda/sm90/consumer.cuh"
#include "cuda/sm90/store.cuh"

/* ---- d_hidden ---- */

/* One element: dg, du, hw in fp32 before rounding, and its term of the router gradient. */
typedef struct sm90_slope {
    float dg, du, hw, product;
} sm90_slope;

/* Called by the whole block before its roles begin. */
static __device__ __forceinline__ void sm90_slopes_load(const mok_sm90_pass &p, float2 *middle)
{
    const float2 *all = (const float2 *)(const void *)p.slopes;
    for (int i = threadIdx.x; i < 2 * SM90_SLOPE_HALF; i += MOK_SM90_THREADS) {
        middle[i] =
            __ldg(all + i / SM90_SLOPE_HALF * 32768 + SM90_SLOPE_FIRST + i % SM90_SLOPE_HALF);
    }
}

static __device__ __forceinline__ float2 sm90_silu_slope(const mok_sm90_pass &p,
                                                         const float2 *middle, uint32_t g)
{
    const uint32_t at = (g & 0x7FFF) - SM90_SLOPE_FIRST;
    const bool inside = at < SM90_SLOPE_HALF;
    float2 value = middle[(inside ? at : 0) + (g >> 15) * SM90_SLOPE_HALF];
    ptx_load_pair_if(value, (const float2 *)(const void *)p.slopes + g, inside ? 0 : 1);
    return value;
}

static __device__ __forceinline__ sm90_slope sm90_slope_of(const mok_sm90_pass &p,
                                                           const float2 *middle, float s,
                                                           uint32_t g, uint32_t u, float w)
{
    const float2 both = sm90_silu_slope(p, middle, g);
    float gate = both.x;
    float slope = both.y;
    float up = sm90_widen(u);
    bool pass_g = true;
    bool pass_u = true;
    if (p.clamped) {
        pass_g = !(sm90_widen(g) > p.limit);
        pass_u = !(up > p.limit || up < -p.limit);
        gate = pass_g ? gate : p.silu_limit;
        slope = pass_g ? slope : p.dsilu_limit;
        up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
    }
    const float h32 = __fmul_rn(gate, up);
    const float dh = __fmul_rn(w, s);
    sm90_slope out;
    out.dg = pass_g ? __fmul_rn(__fmul_rn(dh, up), slope) : 0.0f;
    out.du = pass_u ? __fmul_rn(dh, gate) : 0.0f;
    out.hw = __fmul_rn(w, h32);
    out.product = __fmul_rn(s, sm90_widen(ptx_round_bf16x2(h32, 0.0f) & 0xFFFF));
    return out;
}

/* One thread's row of a tile: its weight, and where it lies. */
typedef struct sm90_row {
    float w;
    int64_t at;  /* element (row, first column of this thread) of a [rows, I] matrix */
    bool stored; /* the buffer has it */
} sm90_row;

static __device__ __forceinline__ sm90_row sm90_row_of(const mok_sm90_pass &p,
                                                       const mok_sm90_rank &mine,
                                                       const mok_sm90_task &task, int row,
                                                       int64_t inner)
{
    const bool shared = task.kind == MOK_TASK_SHARED_D_HIDDEN;
    sm90_row out;
    out.w = shared ? 1.0f : 0.0f; /* padding: 0 */
    out.at = (int64_t)(task.store_row + row) * inner + task.col + 2 * (threadIdx.x & 3);
    out.stored = !shared || row < task.row_count;
    if (!shared && row < task.row_count) {
        const mok_sm90_rank &source = p.rank[__ldg(mine.peer_rank + task.source_row + row)];
        const int32_t slot = __ldg(mine.peer_slot + task.source_row + row);
        const int32_t slots = (int32_t)mine.shape.slots;
        out.w = __ldg(source.router_weights + slot / slots * source.router_stride + slot % slots);
    }
    return out;
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

/* Two columns of one row, and their terms of the router gradient. */
static __device__ __forceinline__ void sm90_d_hidden_pair(const mok_sm90_pass &p,
                                                          const float2 *middle, uint32_t g,
                                                          uint32_t u, uint16_t *d, int64_t part,
                                                          float w, float s0, float s1, float &term0,
                                                          float &term1)
{
    const sm90_slope low = sm90_slope_of(p, middle, s0, g & 0xFFFF, u & 0xFFFF, w);
    const sm90_slope high = sm90_slope_of(p, middle, s1, g >> 16, u >> 16, w);
    *(uint32_t *)(void *)d = ptx_round_bf16x2(low.dg, high.dg);
    *(uint32_t *)(void *)(d + part) = ptx_round_bf16x2(low.du, high.du);
    *(uint32_t *)(void *)(d + 2 * part) = ptx_round_bf16x2(low.hw, high.hw);
    term0 = low.product;
    term1 = high.product;
}

/* The tree of a row's chunk of 128 columns: distances 64 to 8 lie in this thread's registers, 4 and
 * 2 across the quad, 1 in the pair. */
static __device__ __forceinline__ float sm90_router_tree(float (&terms)[32])
{
#pragma unroll
    for (int distance = 8; distance >= 1; distance /= 2) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (j < distance) {
                terms[2 * j] = __fadd_rn(terms[2 * j], terms[2 * (j + distance)]);
                terms[2 * j + 1] = __fadd_rn(terms[2 * j + 1], terms[2 * (j + distance) + 1]);
            }
        }
    }
#pragma unroll
    for (int across = 2; across >= 1; across /= 2) {
        terms[0] = __fadd_rn(terms[0], __shfl_xor_sync(0xFFFFFFFFu, terms[0], across));
        terms[1] = __fadd_rn(terms[1], __shfl_xor_sync(0xFFFFFFFFu, terms[1], across));
    }
    return mok_f32_canonical(__fadd_rn(terms[0], terms[1]));
}

/* 128 columns of one of this thread's rows. The accumulators are only read: were they written here,
 * the compiler would serialise the products. */
template <int chunk, int half>
static __device__ __forceinline__ void
sm90_d_hidden_row(const mok_sm90_pass &p, const mok_sm90_rank &mine, const mok_sm90_task &task,
                  const unsigned char *shared, const float (&d)[128], int row)
{
    const bool shared_expert = task.kind == MOK_TASK_SHARED_D_HIDDEN;
    const int64_t inner = shared_expert ? mine.shape.shared_inner : mine.shape.inner;
    const int64_t part = (shared_expert ? mine.shared_rows : mine.ring_rows) * inner;
    const float2 *middle = (const float2 *)(const void *)(shared + SM90_SILU_OFFSET);
    const int lane = threadIdx.x & 31;
    const sm90_row at = sm90_row_of(p, mine, task, row, inner);
    uint16_t *to = (shared_expert ? mine.shared_d : mine.ring_d) + at.at + chunk * 128;
    const unsigned char *from = shared + SM90_STAGING_OFFSET + row * 128 + (lane & 3) * 4;
    float terms[32];
#pragma unroll
    for (int j = 0; j < 16; j++) {
        terms[2 * j] = terms[2 * j + 1] = 0.0f; /* columns past the end count as +0 */
        if (chunk * 128 + 8 * j < task.cols && at.stored) {
            const unsigned char *gu =
                from + j / 8 * MOK_SM90_STAGING_CHUNK + (((j % 8) ^ (lane >> 2)) << 4);
            const uint32_t g = *(const uint32_t *)(const void *)gu;
            const uint32_t u = *(const uint32_t *)(const void *)(gu + 2 * MOK_SM90_STAGING_CHUNK);
            sm90_d_hidden_pair(
                p, middle, g, u, to + 8 * j, part, at.w, d[chunk * 64 + 4 * j + 2 * half],
                d[chunk * 64 + 4 * j + 2 * half + 1], terms[2 * j], terms[2 * j + 1]);
        }
    }
    if (shared_expert) {
        return;
    }
    const float sum = sm90_router_tree(terms);
    if ((lane & 3) == 0 && chunk * 128 < task.cols) {
        const int64_t chunks = mok_blocks_of(inner, MOK_ROUTER_CHUNK);
        mine.router_part[(int64_t)(task.store_row + row) * chunks + task.col / 128 + chunk] = sum;
    }
}

/* The first 128 columns of g and u were fetched while the products ran; the others follow through
 * the same memory when both groups have read it. */
static __device__ __forceinline__ void sm90_d_hidden(const mok_sm90_pass &p, int32_t rank,
                                                     const mok_sm90_task &task,
                                                     unsigned char *shared, sm90_control *control,
                                                     const float (&d)[128], int group)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const uint32_t barrier = ptx_shared_address(&control->gu_full);
    const int first = group * 64 + threadIdx.x / 32 % 4 * 16 + (threadIdx.x & 31) / 4;
    mbarrier_wait(barrier, 0);
    sm90_d_hidden_row<0, 0>(p, mine, task, shared, d, first);
    sm90_d_hidden_row<0, 1>(p, mine, task, shared, d, first + 8);
    ptx_fence_proxy_async();
    ptx_bar_sync<4, SM90_CONSUMER_THREADS>();
    if (threadIdx.x == 128) {
        sm90_fetch_gu(p.map[rank], task, ptx_shared_address(shared + SM90_STAGING_OFFSET), barrier,
                      1);
    }
    mbarrier_wait(barrier, 1);
    sm90_d_hidden_row<1, 0>(p, mine, task, shared, d, first);
    sm90_d_hidden_row<1, 1>(p, mine, task, shared, d, first + 8);
    ptx_fence_proxy_async(); /* dg, du and hw are read next by the copy engine */
}

/* ---- Weight gradients ---- */

static __device__ __forceinline__ void sm90_store_gradient(const mok_sm90_rank &mine,
                                                           const mok_sm90_task &task,
                                                           const float (&d)[128], int group)
{
    const bool shared = task.kind >= MOK_TASK_SHARED_WGRAD_GATE;
    const int32_t matrix = task.kind - (shared ? MOK_TASK_SHARED_WGRAD_GATE : MOK_TASK_WGRAD_GATE);
    const mok_sm90_grad &grad = mine.grad[matrix + (shared ? 3 : 0)];
    if (grad.adds != 0 && task.k_steps == 0) {
        return; /* no rows: the main gradient is left as it is */
    }
    const int first = group * 64 + threadIdx.x / 32 % 4 * 16 + (threadIdx.x & 31) / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + 8 * half;
        if (row >= task.row_count) {
            continue;
        }
        const int64_t at = task.expert * grad.expert_stride +
                           (int64_t)(task.store_row + row) * grad.row_stride + task.col +
                           2 * (threadIdx.x & 3);
#pragma unroll
        for (int j = 0; j < 32; j++) {
            if (8 * j >= task.cols) {
                continue;
            }
            const float low = task.k_steps > 0 ? d[4 * j + 2 * half] : 0.0f;
            const float high = task.k_steps > 0 ? d[4 * j + 2 * half + 1] : 0.0f;
            if (grad.is_bf16 != 0) {
                *(uint32_t *)(void *)((uint16_t *)grad.data + at + 8 * j) =
                    ptx_round_bf16x2(low, high);
                continue;
            }
            float2 *to = (float2 *)(void *)((float *)grad.data + at + 8 * j);
            float2 value = {low, high};
            if (grad.adds != 0) {
                const float2 old = *to;
                value.x = mok_f32_canonical(__fadd_rn(old.x, low));
                value.y = mok_f32_canonical(__fadd_rn(old.y, high));
            }
            *to = value;
        }
    }
}

/* ---- The role ---- */

static __device__ __forceinline__ void sm90_consumer_backward(const mok_sm90_pass &p, int32_t rank,
                                                              unsigned char *shared,
                                                              sm90_control *control, int group)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const bool traced = p.trace != NULL && threadIdx.x == 128;
    const uint32_t stages = ptx_shared_address(shared);
    const uint32_t staging = ptx_shared_address(shared + SM90_STAGING_OFFSET);
    sm90_ring stage = {0, 0};
    sm90_ring slot = {0, 0};
    uint32_t staged_parity = 1; /* the first tile finds staging empty */
    float d[128];
    for (;;) {
        mbarrier_wait(ptx_shared_address(&control->task_full[slot.slot]), slot.parity);
        /* Read from the slot where it is needed, and given back at the end: registers are short. */
        const mok_sm90_task &task = control->task[slot.slot];
        const uint32_t empty = ptx_shared_address(&control->task_empty[slot.slot]);
        if (task.kind == MOK_SM90_STOP) {
            return;
        }
        sm90_ring_next<MOK_SM90_TASK_SLOTS>(&slot);
        int64_t began = traced ? sm90_clock() : 0;
        const bool rows = sm90_leaves_as_rows(task.kind);
        const bool hidden = task.kind == MOK_TASK_D_HIDDEN || task.kind == MOK_TASK_SHARED_D_HIDDEN;
        if (hidden && threadIdx.x == 128) {
            mbarrier_wait(ptx_shared_address(&control->staged_empty), staged_parity);
            sm90_fetch_gu(p.map[rank], task, staging, ptx_shared_address(&control->gu_full), 0);
        }
        __syncwarp();
        if (rows || hidden) {
            sm90_chain<0, 1>(d, control, stages, group, task.k_steps, &stage);
        } else {
            sm90_chain<1, 1>(d, control, stages, group, task.k_steps, &stage);
        }
        if (traced) {
            sm90_trace(p, MOK_SM90_ROLE_CONSUMER, MOK_SM90_WORK, task.kind, task.block, task.col,
                       began, sm90_clock());
            began = sm90_clock();
        }
        mbarrier_wait(ptx_shared_address(&control->staged_empty), staged_parity);
        staged_parity ^= 1;
        if (rows) {
            sm90_stage_tile(d, staging, group, true);
        } else if (hidden) {
            sm90_d_hidden(p, rank, task, shared, control, d, group);
        } else {
            sm90_store_gradient(mine, task, d, group);
        }
        if (traced) { /* waiting for staging, and what followed the products */
            sm90_trace(p, MOK_SM90_ROLE_CONSUMER, MOK_SM90_WAIT, task.kind, task.block, task.col,
                       began, sm90_clock());
        }
        ptx_mbarrier_arrive(ptx_shared_address(&control->staged_full));
        if (group == 0) {
            ptx_bar_sync<2, 128>();
        } else {
            ptx_bar_sync<3, 128>();
        }
        if (threadIdx.x % 128 == 0) {
            ptx_mbarrier_arrive(empty);
        }
    }
}

#endif
