/* The consumers of the backward pass: what they do with a finished tile of accumulators.
 *
 *   d_hidden    s in fp32 goes through a stage that the producer left empty, so that a loop can
 *               address it; dg, du, hw and the router gradient's parts come from it
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

/* Called by the whole block before its roles begin. */
static __device__ __forceinline__ void sm90_slopes_load(const mok_sm90_pass &p, float2 *parts)
{
    for (int i = threadIdx.x; i < SM90_SLOPE_HALF; i += MOK_SM90_THREADS) {
        parts[i] = __ldg((const float2 *)(const void *)p.parts + i);
    }
}

/* silu and its slope of the bf16 g, whose value is x. parts: the table's address in shared memory.
 */
static __device__ __forceinline__ float2 sm90_silu_slope(const mok_sm90_pass &p, uint32_t parts,
                                                         uint32_t g, float x)
{
    const uint32_t at = (g & 0x7FFF) - SM90_SLOPE_FIRST;
    float2 value =
        sm90_silu_of_part(ptx_load_shared_pair(parts + min(at, SM90_SLOPE_HALF - 1u) * 8), x);
    ptx_load_pair_from(value, (const float2 *)(const void *)p.slopes + g, at, SM90_SLOPE_HALF);
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

/* The two bf16 of a word. */
static __device__ __forceinline__ float sm90_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float sm90_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xFFFF0000u);
}

/* A round: 8 rows of a warp, 128 columns of each, a quad a row. Products leave a quad's lanes with
 * pairs of columns; what follows wants 8 neighbours a lane, so that g and u are read and dg, du and
 * hw written by 16 bytes. The accumulators change hands through scratch, which also gives a loop
 * the addresses that registers have not: unrolled, the tile's rest is more code than the
 * instruction cache holds.
 *
 *   scratch of a warp   8 rows of 512 bytes, in units of 8 columns; units are swizzled by the row,
 *                       their halves by its parity, so that neither side meets in a bank */
static __device__ __forceinline__ uint32_t sm90_unit_at(uint32_t scratch, int row, int unit)
{
    return scratch + row * 512 + (unit ^ row) * 32;
}

/* One of this thread's rows of a tile's accumulators, 128 columns. They are only read: were they
 * written, the compiler would serialise the products. */
template <int chunk, int half>
static __device__ __forceinline__ void sm90_spread(const float (&d)[128], uint32_t scratch)
{
    const int row = (threadIdx.x & 31) / 4;
    const int quad = threadIdx.x & 3;
    const uint32_t within = ((quad / 2) ^ (row & 1)) * 16 + quad % 2 * 8;
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const int at = chunk * 64 + 4 * j + 2 * half;
        ptx_store_shared_pair(sm90_unit_at(scratch, row, j) + within, d[at], d[at + 1]);
    }
}

static __device__ __forceinline__ void sm90_spread_round(const float (&d)[128], uint32_t scratch,
                                                         int chunk, int half)
{
    __syncwarp(); /* the round before has been read */
    if (chunk == 0 && half == 0) {
        sm90_spread<0, 0>(d, scratch);
    } else if (chunk == 0) {
        sm90_spread<0, 1>(d, scratch);
    } else if (half == 0) {
        sm90_spread<1, 0>(d, scratch);
    } else {
        sm90_spread<1, 1>(d, scratch);
    }
    __syncwarp();
}

/* What the columns of a row have in common. */
typedef struct sm90_hidden_row {
    uint32_t parts, scratch, gu; /* shared memory: table, the warp's s, this row of g's first box */
    uint16_t *to;                /* dg of the chunk */
    int64_t part;                /* elements to du, and from there to hw */
    int32_t cols;                /* of the chunk that exist */
    bool stored;                 /* the buffer has this row */
    float w;
} sm90_hidden_row;

/* Terms of the router gradient of 8 columns. They take the place of s in scratch. */
typedef struct sm90_terms {
    float column[8];
} sm90_terms;

static __device__ __forceinline__ uint32_t sm90_my_unit(const sm90_hidden_row &row, int unit)
{
    const int r = (threadIdx.x & 31) / 4;
    return sm90_unit_at(row.scratch, r, unit) + (r & 1) * 16; /* its first half */
}

static __device__ __forceinline__ void sm90_terms_load(sm90_terms *terms,
                                                       const sm90_hidden_row &row, int unit)
{
    const uint32_t from = sm90_my_unit(row, unit);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 x = ptx_load_shared_16(from ^ (half * 16));
        terms->column[4 * half] = __uint_as_float(x.x);
        terms->column[4 * half + 1] = __uint_as_float(x.y);
        terms->column[4 * half + 2] = __uint_as_float(x.z);
        terms->column[4 * half + 3] = __uint_as_float(x.w);
    }
}

/* Two units, 64 columns apart. */
static __device__ __forceinline__ sm90_terms sm90_terms_sum(const sm90_hidden_row &row, int unit)
{
    sm90_terms low;
    sm90_terms high;
    sm90_terms_load(&low, row, unit);
    sm90_terms_load(&high, row, unit + 8);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        low.column[i] = __fadd_rn(low.column[i], high.column[i]);
    }
    return low;
}

static __device__ __forceinline__ void sm90_store_unit(const sm90_hidden_row &row, int unit,
                                                       int which, const uint32_t (&word)[4])
{
    const uint4 all = {word[0], word[1], word[2], word[3]};
    *(uint4 *)(void *)(row.to + unit * 8 + which * row.part) = all;
}

/* One unit of 8 columns: dg, du and hw go, its terms stay in scratch; past the end they count as
 * +0. */
template <bool clamped>
static __device__ __forceinline__ void sm90_d_hidden_unit(const mok_sm90_pass &p,
                                                          const sm90_hidden_row &row, int unit)
{
    const int r = (threadIdx.x & 31) / 4;
    const uint32_t gu = row.gu + unit / 8 * MOK_SM90_STAGING_CHUNK + (((unit % 8) ^ r) << 4);
    const uint32_t at = sm90_my_unit(row, unit);
    const uint4 g4 = ptx_load_shared_16(gu);
    const uint4 u4 = ptx_load_shared_16(gu + 2 * MOK_SM90_STAGING_CHUNK);
    const uint32_t g[4] = {g4.x, g4.y, g4.z, g4.w};
    const uint32_t u[4] = {u4.x, u4.y, u4.z, u4.w};
    const bool there = unit * 8 < row.cols;
    uint32_t dg[4];
    uint32_t du[4];
    uint32_t hw[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 s = ptx_load_shared_pair((at ^ (i / 2 * 16)) + i % 2 * 8);
        const float2 of_low = sm90_silu_slope(p, row.parts, g[i] & 0xFFFF, sm90_low(g[i]));
        const float2 of_high = sm90_silu_slope(p, row.parts, g[i] >> 16, sm90_high(g[i]));
        const sm90_slope a =
            sm90_slope_of<clamped>(p, of_low, s.x, sm90_low(g[i]), sm90_low(u[i]), row.w);
        const sm90_slope b =
            sm90_slope_of<clamped>(p, of_high, s.y, sm90_high(g[i]), sm90_high(u[i]), row.w);
        dg[i] = ptx_round_bf16x2(a.dg, b.dg);
        du[i] = ptx_round_bf16x2(a.du, b.du);
        hw[i] = ptx_round_bf16x2(a.hw, b.hw);
        ptx_store_shared_pair((at ^ (i / 2 * 16)) + i % 2 * 8, there ? a.product : 0.0f,
                              there ? b.product : 0.0f);
    }
    if (there && row.stored) {
        sm90_store_unit(row, unit, 0, dg);
        sm90_store_unit(row, unit, 1, du);
        sm90_store_unit(row, unit, 2, hw);
    }
}

/* The tree of a row's chunk: distances 64 and 32 lie between this thread's units, 16 and 8 across
 * the quad, 4 to 1 within a unit. */
static __device__ __forceinline__ float sm90_router_tree(const sm90_hidden_row &row)
{
    const int quad = threadIdx.x & 3;
    sm90_terms terms = sm90_terms_sum(row, quad);
    const sm90_terms other = sm90_terms_sum(row, quad + 4);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        terms.column[i] = __fadd_rn(terms.column[i], other.column[i]);
    }
#pragma unroll
    for (int across = 2; across >= 1; across /= 2) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            terms.column[i] =
                __fadd_rn(terms.column[i], __shfl_xor_sync(0xFFFFFFFFu, terms.column[i], across));
        }
    }
#pragma unroll
    for (int distance = 4; distance >= 1; distance /= 2) {
#pragma unroll
        for (int i = 0; i < distance; i++) {
            terms.column[i] = __fadd_rn(terms.column[i], terms.column[i + distance]);
        }
    }
    return mok_f32_canonical(terms.column[0]);
}

/* 128 columns of a row, from scratch. Rows of odd number take their units in another order, so that
 * the quads of a warp read other banks. */
template <bool clamped>
static __device__ __forceinline__ void
sm90_d_hidden_row(const mok_sm90_pass &p, const mok_sm90_rank &mine, const mok_sm90_task &task,
                  uint32_t shared, uint32_t scratch, int chunk, int row_idx, float w)
{
    const bool shared_expert = task.kind == MOK_TASK_SHARED_D_HIDDEN;
    const int64_t inner = shared_expert ? mine.shape.shared_inner : mine.shape.inner;
    const int odd = (threadIdx.x >> 2) & 1;
    const int quad = threadIdx.x & 3;
    sm90_hidden_row row;
    row.parts = shared + SM90_SILU_OFFSET;
    row.scratch = scratch;
    row.gu = shared + SM90_STAGING_OFFSET + row_idx * 128;
    row.to = (shared_expert ? mine.shared_d : mine.ring_d) +
             (int64_t)(task.store_row + row_idx) * inner + task.col + chunk * 128;
    row.part = (shared_expert ? mine.shared_rows : mine.ring_rows) * inner;
    row.cols = task.cols - chunk * 128;
    row.stored = !shared_expert || row_idx < task.row_count;
    row.w = w;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        sm90_d_hidden_unit<clamped>(p, row, ((i ^ odd) * 4) + quad);
    }
    if (shared_expert) {
        return;
    }
    const float total = sm90_router_tree(row);
    if (quad == 0 && row.cols > 0) {
        const int64_t chunks = mok_blocks_of(inner, MOK_ROUTER_CHUNK);
        mine.router_part[(int64_t)(task.store_row + row_idx) * chunks + task.col / 128 + chunk] =
            total;
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

/* The rows' weights and the first 128 columns of g and u were fetched while the products ran
 * (store.cuh); the others follow through the same memory when both groups have read it. scratch is
 * a stage that the producer left empty. */
template <bool clamped>
static __device__ __forceinline__ void
sm90_d_hidden(const mok_sm90_pass &p, int32_t rank, const mok_sm90_task &task, uint32_t shared,
              uint32_t scratch, sm90_control *control, const float (&d)[128], int group)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const uint32_t barrier = ptx_shared_address(&control->gu_full);
    const uint32_t my_scratch = scratch + (threadIdx.x / 32 - 4) * SM90_SCRATCH_WARP_BYTES;
#pragma unroll 1
    for (int round = 0; round < 4; round++) {
        const int chunk = round / 2;
        const int row = sm90_first_row(group) + round % 2 * 8;
        if (round == 2) {
            ptx_fence_proxy_async();
            ptx_bar_sync<4, SM90_CONSUMER_THREADS>();
            if (ptx_thread() == 128) {
                sm90_fetch_gu(p.map[rank], task, shared + SM90_STAGING_OFFSET, barrier, 1);
            }
        }
        sm90_spread_round(d, my_scratch, chunk, round % 2);
        mbarrier_wait(barrier, chunk);
        sm90_d_hidden_row<clamped>(p, mine, task, shared, my_scratch, chunk, row,
                                   control->weight[row]);
    }
    ptx_fence_proxy_async(); /* dg, du and hw are read, scratch is filled next by the copy engine */
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

/* The rest of a d_hidden tile, in the stage after those of its products. */
static __device__ __forceinline__ void sm90_hidden_tile(const mok_sm90_pass &p, int32_t rank,
                                                        const mok_sm90_task &task, uint32_t stages,
                                                        sm90_control *control,
                                                        const float (&d)[128], int group)
{
    sm90_group_sync(group); /* its place in the ring is written */
    const uint32_t slot = control->stage[group].slot;
    const uint32_t scratch = stages + slot * MOK_SM90_STAGE_BYTES;
    mbarrier_wait(ptx_shared_address(&control->full[slot]), control->stage[group].parity);
    if (p.clamped) {
        sm90_d_hidden<true>(p, rank, task, stages, scratch, control, d, group);
    } else {
        sm90_d_hidden<false>(p, rank, task, stages, scratch, control, d, group);
    }
    sm90_group_sync(group);
    if (ptx_thread() % 128 == 0) {
        ptx_mbarrier_arrive(ptx_shared_address(&control->empty[slot]));
        sm90_ring_next<MOK_SM90_STAGES>(&control->stage[group]);
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
        const bool hidden = sm90_is_hidden(task.kind);
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
        } else if (hidden) {
            sm90_hidden_tile(p, rank, task, stages, control, d, group);
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
