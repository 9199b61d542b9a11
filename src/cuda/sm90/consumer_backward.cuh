/* The consumers of the backward pass: what they do with a finished tile of accumulators.
 *
 *   d_hidden    s in fp32 never leaves the registers: dg, du, hw and the router gradient's parts
 *               come from it
 *   dx          rounded into staging, rows leave by the store warps
 *   gradients   in bf16 like dx; in fp32 stored or added from the registers, 8 bytes a thread,
 *               whole sectors a quad
 *
 * Thread t of a warpgroup holds rows 16 w + l / 4 and + 8, columns 8 j + 2 (l % 4) and + 1. */
#ifndef MOK_CUDA_SM90_CONSUMER_BACKWARD_CUH
#define MOK_CUDA_SM90_CONSUMER_BACKWARD_CUH

#include "cuda/sm90/consumer.cuh"
#include "cuda/sm90/store.cuh"

/* The first of this thread's two rows of a tile. */
static __device__ __forceinline__ int sm90_first_row(int group)
{
    return group * 64 + threadIdx.x / 32 % 4 * 16 + (threadIdx.x & 31) / 4;
}

/* ---- d_hidden ---- */

/* One element: dg, du, hw in fp32 before rounding, and its term of the router gradient. */
typedef struct sm90_slope {
    float dg, du, hw, product;
} sm90_slope;

/* The middle of the table in shared memory lies by magnitude, then sign: in the order of the bf16
 * bits turned left by one. Called by the whole block before its roles begin. */
static __device__ __forceinline__ void sm90_slopes_load(const mok_sm90_pass &p, float2 *middle)
{
    const float2 *all = (const float2 *)(const void *)p.slopes;
    for (int i = threadIdx.x; i < 2 * SM90_SLOPE_HALF; i += MOK_SM90_THREADS) {
        middle[i] = __ldg(all + i % 2 * 32768 + SM90_SLOPE_FIRST + i / 2);
    }
}

/* silu and its slope of the bf16 g; turned: its bits turned left by one. middle: the address of the
 * table's middle. */
static __device__ __forceinline__ float2 sm90_silu_slope(const mok_sm90_pass &p, uint32_t middle,
                                                         uint32_t g, uint32_t turned)
{
    const uint32_t at = turned - 2 * SM90_SLOPE_FIRST;
    float2 value = ptx_load_shared_pair(middle + min(at, 2 * SM90_SLOPE_HALF - 1u) * 8);
    ptx_load_pair_from(value, (const float2 *)(const void *)p.slopes + g, at, 2 * SM90_SLOPE_HALF);
    return value;
}

/* dg, du and hw of one element from s = dh / w, and its term of the router gradient. */
template <bool clamped>
static __device__ __forceinline__ sm90_slope sm90_slope_of(const mok_sm90_pass &p, float2 both,
                                                           float s, float g, float up, float w)
{
    bool pass_g = true;
    bool pass_u = true;
    if (clamped) {
        pass_g = !(g > p.limit);
        pass_u = !(up > p.limit || up < -p.limit);
        both.x = pass_g ? both.x : p.silu_limit;
        both.y = pass_g ? both.y : p.dsilu_limit;
        up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
    }
    const float h32 = __fmul_rn(both.x, up);
    const float dh = __fmul_rn(w, s);
    sm90_slope out;
    out.dg = pass_g ? __fmul_rn(__fmul_rn(dh, up), both.y) : 0.0f;
    out.du = pass_u ? __fmul_rn(dh, both.x) : 0.0f;
    out.hw = __fmul_rn(w, h32);
    out.product = __fmul_rn(s, sm90_widen(ptx_round_bf16x2(h32, 0.0f) & 0xFFFF));
    return out;
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

/* Two columns of g or u, from staging. They are read again where they are needed, since registers
 * are short. */
static __device__ __forceinline__ uint32_t sm90_pair_at(uint32_t from, int j, int swizzle)
{
    return ptx_load_shared(from + j / 8 * MOK_SM90_STAGING_CHUNK + (((j % 8) ^ swizzle) << 4));
}

/* The two bf16 of a word. */
static __device__ __forceinline__ float sm90_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float sm90_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xFFFF0000u);
}

/* Four words of each of a quad's lanes change places: lane l gets word l of all four. */
static __device__ __forceinline__ uint4 sm90_quad_transpose(uint4 x)
{
    const bool odd = (threadIdx.x & 1) != 0;
    const bool upper = (threadIdx.x & 2) != 0;
    const uint32_t xy = __shfl_xor_sync(0xFFFFFFFFu, odd ? x.x : x.y, 1);
    const uint32_t zw = __shfl_xor_sync(0xFFFFFFFFu, odd ? x.z : x.w, 1);
    const uint4 y = {odd ? xy : x.x, odd ? x.y : xy, odd ? zw : x.z, odd ? x.w : zw};
    const uint32_t xz = __shfl_xor_sync(0xFFFFFFFFu, upper ? y.x : y.z, 2);
    const uint32_t yw = __shfl_xor_sync(0xFFFFFFFFu, upper ? y.y : y.w, 2);
    const uint4 z = {upper ? xz : y.x, upper ? yw : y.y, upper ? y.z : xz, upper ? y.w : yw};
    return z;
}

static __device__ __forceinline__ float2 sm90_add_pairs(float2 a, float2 b)
{
    const float2 sum = {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y)};
    return sum;
}

/* Terms of the router gradient of four pairs of columns. */
typedef struct sm90_terms {
    float2 pair[4];
} sm90_terms;

static __device__ __forceinline__ void sm90_terms_add(sm90_terms *to, const sm90_terms &terms)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to->pair[i] = sm90_add_pairs(to->pair[i], terms.pair[i]);
    }
}

/* The end of the tree of a row's chunk of 128 columns. Distances 64 and 32 were summed as the
 * columns came; 16 and 8 lie in this thread's registers, 4 and 2 across the quad, 1 in the pair. */
static __device__ __forceinline__ float sm90_router_tree(const sm90_terms &terms)
{
    float2 sum = sm90_add_pairs(sm90_add_pairs(terms.pair[0], terms.pair[2]),
                                sm90_add_pairs(terms.pair[1], terms.pair[3]));
#pragma unroll
    for (int across = 2; across >= 1; across /= 2) {
        sum.x = __fadd_rn(sum.x, __shfl_xor_sync(0xFFFFFFFFu, sum.x, across));
        sum.y = __fadd_rn(sum.y, __shfl_xor_sync(0xFFFFFFFFu, sum.y, across));
    }
    return mok_f32_canonical(__fadd_rn(sum.x, sum.y));
}

/* 32 columns of one row, from 8 * first on. dg, du and hw leave by 16 bytes a lane, 64 a quad: what
 * is less than a sector costs the cache several times as much. The accumulators are only read: were
 * they written here, the compiler would serialise the products. */
template <bool clamped, int chunk, int half, int first>
static __device__ __forceinline__ sm90_terms sm90_d_hidden_columns(const mok_sm90_pass &p,
                                                                   const float (&d)[128],
                                                                   uint32_t middle, uint32_t from,
                                                                   uint16_t *to, int64_t part,
                                                                   int cols, bool stored, float w)
{
    const int swizzle = (threadIdx.x & 31) >> 2;
    uint32_t dg[4];
    uint32_t du[4];
    uint32_t hw[4];
    sm90_terms terms;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int j = first + i;
        const int at = chunk * 64 + 4 * j + 2 * half;
        const uint32_t g = sm90_pair_at(from, j, swizzle);
        const uint32_t u = sm90_pair_at(from + 2 * MOK_SM90_STAGING_CHUNK, j, swizzle);
        const uint32_t low = __byte_perm(g, g, 0x1010); /* g's lower half, twice */
        const uint32_t high = __byte_perm(g, g, 0x3232);
        const float2 of_low = sm90_silu_slope(p, middle, g & 0xFFFF, low >> 15 & 0xFFFF);
        const float2 of_high = sm90_silu_slope(p, middle, g >> 16, high >> 15 & 0xFFFF);
        const sm90_slope a = sm90_slope_of<clamped>(p, of_low, d[at], sm90_low(g), sm90_low(u), w);
        const sm90_slope b =
            sm90_slope_of<clamped>(p, of_high, d[at + 1], sm90_high(g), sm90_high(u), w);
        dg[i] = ptx_round_bf16x2(a.dg, b.dg);
        du[i] = ptx_round_bf16x2(a.du, b.du);
        hw[i] = ptx_round_bf16x2(a.hw, b.hw);
        terms.pair[i].x = 8 * j < cols ? a.product : 0.0f; /* columns past the end count as +0 */
        terms.pair[i].y = 8 * j < cols ? b.product : 0.0f;
        if (i % 2 == 1) {
            __syncwarp(); /* or the compiler draws later loads up to here, out of registers */
        }
    }
    const uint4 all[3] = {
        {dg[0], dg[1], dg[2], dg[3]}, {du[0], du[1], du[2], du[3]}, {hw[0], hw[1], hw[2], hw[3]}};
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const uint4 mine = sm90_quad_transpose(all[i]);
        if (stored && 8 * (first + (int)(threadIdx.x & 3)) < cols) {
            *(uint4 *)(void *)(to + 8 * first + i * part) = mine;
        }
    }
    return terms;
}

/* 128 columns of one of this thread's rows. */
template <bool clamped, int chunk, int half>
static __device__ __forceinline__ void
sm90_d_hidden_row(const mok_sm90_pass &p, const mok_sm90_rank &mine, const mok_sm90_task &task,
                  uint32_t shared, const float (&d)[128], int row, float w)
{
    const bool shared_expert = task.kind == MOK_TASK_SHARED_D_HIDDEN;
    const int64_t inner = shared_expert ? mine.shape.shared_inner : mine.shape.inner;
    const int64_t part = (shared_expert ? mine.shared_rows : mine.ring_rows) * inner;
    const uint32_t middle = shared + SM90_SILU_OFFSET;
    const int lane = threadIdx.x & 31;
    uint16_t *to = (shared_expert ? mine.shared_d : mine.ring_d) +
                   (int64_t)(task.store_row + row) * inner + task.col + chunk * 128 +
                   8 * (lane & 3);
    const uint32_t from = shared + SM90_STAGING_OFFSET + row * 128 + (lane & 3) * 4;
    const bool stored = !shared_expert || row < task.row_count; /* the buffer has this row */
    const int cols = task.cols - chunk * 128;
    sm90_terms low = sm90_d_hidden_columns<clamped, chunk, half, 0>(p, d, middle, from, to, part,
                                                                    cols, stored, w);
    sm90_terms_add(&low, sm90_d_hidden_columns<clamped, chunk, half, 8>(p, d, middle, from, to,
                                                                        part, cols, stored, w));
    sm90_terms high = sm90_d_hidden_columns<clamped, chunk, half, 4>(p, d, middle, from, to, part,
                                                                     cols, stored, w);
    sm90_terms_add(&high, sm90_d_hidden_columns<clamped, chunk, half, 12>(p, d, middle, from, to,
                                                                          part, cols, stored, w));
    sm90_terms_add(&low, high);
    if (shared_expert) {
        return;
    }
    const float total = sm90_router_tree(low);
    if ((lane & 3) == 0 && cols > 0) {
        const int64_t chunks = mok_blocks_of(inner, MOK_ROUTER_CHUNK);
        mine.router_part[(int64_t)(task.store_row + row) * chunks + task.col / 128 + chunk] = total;
    }
}

/* The threads of one warpgroup meet. */
static __device__ __forceinline__ void sm90_group_sync(int group)
{
    if (group == 0) {
        ptx_bar_sync<2, 128>();
    } else {
        ptx_bar_sync<3, 128>();
    }
}

/* The first 128 columns of g and u were fetched while the products ran; the others follow through
 * the same memory when both groups have read it. */
template <bool clamped>
static __device__ __forceinline__ void
sm90_d_hidden(const mok_sm90_pass &p, int32_t rank, const mok_sm90_task &task, uint32_t shared,
              sm90_control *control, const float (&d)[128], int group)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const uint32_t barrier = ptx_shared_address(&control->gu_full);
    const float *w = control->weight;
    const int first = sm90_first_row(group);
    sm90_group_sync(group); /* the weights of its rows are there */
    mbarrier_wait(barrier, 0);
    sm90_d_hidden_row<clamped, 0, 0>(p, mine, task, shared, d, first, w[first]);
    sm90_d_hidden_row<clamped, 0, 1>(p, mine, task, shared, d, first + 8, w[first + 8]);
    ptx_fence_proxy_async();
    ptx_bar_sync<4, SM90_CONSUMER_THREADS>();
    if (ptx_thread() == 128) {
        sm90_fetch_gu(p.map[rank], task, shared + SM90_STAGING_OFFSET, barrier, 1);
    }
    mbarrier_wait(barrier, 1);
    sm90_d_hidden_row<clamped, 1, 0>(p, mine, task, shared, d, first, w[first]);
    sm90_d_hidden_row<clamped, 1, 1>(p, mine, task, shared, d, first + 8, w[first + 8]);
    ptx_fence_proxy_async(); /* dg, du and hw are read next by the copy engine */
}

/* ---- Weight gradients ---- */

/* What does not leave as rows: fp32, sums with what is there, and zeros where there are no rows. */
static __device__ __forceinline__ void sm90_store_gradient(const mok_sm90_rank &mine,
                                                           const mok_sm90_task &task,
                                                           const float (&d)[128], int group)
{
    const mok_sm90_grad &grad = sm90_grad_of(mine, task.kind);
    if (grad.adds != 0 && task.k_steps == 0) {
        return; /* no rows: the main gradient is left as it is */
    }
    const int first = sm90_first_row(group);
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

static_assert((MOK_SM90_TASK_SLOTS & (MOK_SM90_TASK_SLOTS - 1)) == 0, "slots follow from a count");

/* The traced thread's clock lies in shared memory: registers are short. */
static __device__ __forceinline__ void sm90_tile_begins(const mok_sm90_pass &p,
                                                        sm90_control *control)
{
    if (p.trace != NULL && ptx_thread() == 128) {
        control->began = sm90_clock();
    }
}

static __device__ __forceinline__ void sm90_tile_traced(const mok_sm90_pass &p,
                                                        sm90_control *control,
                                                        const mok_sm90_task &task, int32_t what)
{
    if (p.trace != NULL && ptx_thread() == 128) {
        const int64_t now = sm90_clock();
        sm90_trace(p, MOK_SM90_ROLE_CONSUMER, what, task.kind, task.block, task.col, control->began,
                   now);
        control->began = now;
    }
}

/* Before the products of a d_hidden tile: g and u are asked for, the rows' weights looked up. */
static __device__ __forceinline__ void sm90_d_hidden_prepare(const mok_sm90_pass &p, int32_t rank,
                                                             const mok_sm90_task &task,
                                                             uint32_t stages, sm90_control *control,
                                                             int group, uint32_t staged_parity)
{
    if (ptx_thread() == 128) {
        mbarrier_wait(ptx_shared_address(&control->staged_empty), staged_parity);
        sm90_fetch_gu(p.map[rank], task, stages + SM90_STAGING_OFFSET,
                      ptx_shared_address(&control->gu_full), 0);
    }
    __syncwarp();
    if (threadIdx.x % 128 < 64) {
        const int row = group * 64 + threadIdx.x % 128;
        control->weight[row] = sm90_weight_of(p, p.rank[rank], task, row);
    }
}

static __device__ __forceinline__ void sm90_consumer_backward(const mok_sm90_pass &p, int32_t rank,
                                                              unsigned char *shared,
                                                              sm90_control *control, int group)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const uint32_t stages = ptx_shared_address(shared);
    float d[128];
    for (uint32_t tile = 0;; tile++) { /* slots and parities follow from it */
        const uint32_t slot = tile % MOK_SM90_TASK_SLOTS;
        const uint32_t staged_parity = (tile & 1) ^ 1; /* the first tile finds staging empty */
        mbarrier_wait(ptx_shared_address(&control->task_full[slot]),
                      tile / MOK_SM90_TASK_SLOTS & 1);
        /* Read from the slot where it is needed, and given back at the end: registers are short. */
        const mok_sm90_task &task = control->task[slot];
        if (task.kind == MOK_SM90_STOP) {
            return;
        }
        sm90_tile_begins(p, control);
        const bool rows = sm90_leaves_as_rows(task.kind);
        const bool hidden = task.kind == MOK_TASK_D_HIDDEN || task.kind == MOK_TASK_SHARED_D_HIDDEN;
        if (hidden) {
            sm90_d_hidden_prepare(p, rank, task, stages, control, group, staged_parity);
        }
        sm90_ring stage = control->stage[group];
        if (rows || hidden) {
            sm90_chain<0, 1>(d, control, stages, group, task.k_steps, &stage);
        } else {
            sm90_chain<1, 1>(d, control, stages, group, task.k_steps, &stage);
        }
        if (threadIdx.x % 128 == 0) {
            control->stage[group] = stage;
        }
        sm90_tile_traced(p, control, task, MOK_SM90_WORK);
        mbarrier_wait(ptx_shared_address(&control->staged_empty), staged_parity);
        if (rows || sm90_gradient_as_rows(mine, task)) {
            sm90_stage_tile(d, stages + SM90_STAGING_OFFSET, group, true);
        } else if (hidden && p.clamped) {
            sm90_d_hidden<true>(p, rank, task, stages, control, d, group);
        } else if (hidden) {
            sm90_d_hidden<false>(p, rank, task, stages, control, d, group);
        } else {
            sm90_store_gradient(mine, task, d, group);
        }
        sm90_tile_traced(p, control, task, MOK_SM90_WAIT); /* for staging, and what followed */
        ptx_mbarrier_arrive(ptx_shared_address(&control->staged_full));
        sm90_group_sync(group);
        if (threadIdx.x % 128 == 0) {
            ptx_mbarrier_arrive(ptx_shared_address(&control->task_empty[slot]));
        }
    }
}

#endif
