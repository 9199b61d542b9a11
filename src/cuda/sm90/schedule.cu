/* The schedule on the device: a stable counting sort of all ranks' routes, without atomics on its
 * order.
 *
 * Routes are cut in chunks of 256, numbered by (source rank, position); a warp owns a chunk.
 *   count    routes of each expert in each chunk; indices are checked and kept as int32
 *   scan     an expert's routes in all chunks before a chunk, and its total
 *   layout   segments of each rank's experts, padded to 128; capacity; padding rows
 *   place    a route's row = segment + routes of its expert before it: in earlier chunks, then in
 * this one So rows stand in ascending (source rank, token, slot), as the reference has them. */
#include "cuda/sm90/params.h"
#include "cuda/sm90/wait.cuh"

#define SCHEDULE_WARPS 4
#define SCHEDULE_THREADS (SCHEDULE_WARPS * 32)

static __device__ __forceinline__ int32_t rank_of_chunk(const mok_sm90_schedule &p, int32_t chunk)
{
    int32_t rank = 0;
    while (chunk >= p.chunk_begin[rank + 1]) {
        rank++;
    }
    return rank;
}

extern "C" __global__ void __launch_bounds__(SCHEDULE_THREADS)
    mok_sm90_schedule_count(const __grid_constant__ mok_sm90_schedule p)
{
    extern __shared__ uint32_t count_shared[];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int32_t chunks = p.chunk_begin[p.ranks];
    const int32_t chunk = (int32_t)blockIdx.x * SCHEDULE_WARPS + warp;
    uint32_t *count = count_shared + warp * p.experts;
    if (chunk >= chunks) {
        return;
    }
    for (int32_t expert = lane; expert < p.experts; expert += 32) {
        count[expert] = 0;
    }
    __syncwarp();
    const int32_t rank = rank_of_chunk(p, chunk);
    const mok_sm90_schedule_rank &mine = p.rank[rank];
    const int64_t begin = (int64_t)(chunk - p.chunk_begin[rank]) * MOK_SM90_CHUNK_ROUTES;
    const int64_t all = mine.tokens * p.slots;
    for (int64_t i = begin + lane; i < begin + MOK_SM90_CHUNK_ROUTES && i < all; i += 32) {
        const int64_t at = i / p.slots * mine.routes_stride + i % p.slots;
        const int64_t expert = p.wide != 0 ? ((const int64_t *)mine.routes)[at]
                                           : (int64_t)((const int32_t *)mine.routes)[at];
        const bool valid = expert >= -1 && expert < p.experts;
        if (!valid) {
            const mok_sm90_fault bad = {
                MOK_SM90_FAULT_ROUTE, rank, rank, MOK_SM90_PHASE_SCHEDULE, i, 0, expert, p.experts};
            sm90_report(p.abort, p.fault, bad);
        }
        mine.routes_out[i] = valid ? (int32_t)expert : -1;
        if (valid && expert >= 0) {
            atomicAdd(&count[expert], 1u);
        }
    }
    __syncwarp();
    for (int32_t expert = lane; expert < p.experts; expert += 32) {
        p.chunk_count[(int64_t)expert * chunks + chunk] = count[expert];
    }
}

/* Exclusive prefix of one value a thread over a block of 256; *sum receives the total. */
static __device__ uint32_t block_prefix(uint32_t value, uint32_t *warp_sum, uint32_t *sum)
{
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    uint32_t inclusive = value;
    for (int distance = 1; distance < 32; distance *= 2) {
        const uint32_t below = __shfl_up_sync(0xFFFFFFFFu, inclusive, distance);
        inclusive += lane >= distance ? below : 0;
    }
    if (lane == 31) {
        warp_sum[warp] = inclusive;
    }
    __syncthreads();
    uint32_t before = 0;
    uint32_t total = 0;
    for (int i = 0; i < 8; i++) {
        before += i < warp ? warp_sum[i] : 0;
        total += warp_sum[i];
    }
    __syncthreads();
    *sum = total;
    return before + inclusive - value;
}

extern "C" __global__ void __launch_bounds__(256)
    mok_sm90_schedule_scan(const __grid_constant__ mok_sm90_schedule p)
{
    __shared__ uint32_t warp_sum[8];
    const int32_t chunks = p.chunk_begin[p.ranks];
    uint32_t *count = p.chunk_count + (int64_t)blockIdx.x * chunks;
    uint32_t before = 0;
    for (int32_t first = 0; first < chunks; first += 256) {
        const int32_t chunk = first + (int32_t)threadIdx.x;
        const uint32_t value = chunk < chunks ? count[chunk] : 0;
        uint32_t sum;
        const uint32_t prefix = block_prefix(value, warp_sum, &sum);
        if (chunk < chunks) {
            count[chunk] = before + prefix;
        }
        before += sum;
    }
    if (threadIdx.x == 0) {
        p.total[blockIdx.x] = before;
    }
}

/* One block a rank. Every rank's capacity is checked by every rank's block: all see an overflow
 * alike. */
extern "C" __global__ void __launch_bounds__(256)
    mok_sm90_schedule_layout(const __grid_constant__ mok_sm90_schedule p)
{
    __shared__ uint32_t warp_sum[8];
    const int32_t rank = (int32_t)blockIdx.x;
    const mok_sm90_schedule_rank &mine = p.rank[rank];
    const mok_shape &shape = mine.shape;
    const int64_t available = shape.capacity_blocks * 128;
    int64_t needed = 0;
    for (int64_t first = 0; first < shape.expert_count; first += 256) {
        const int64_t expert = first + threadIdx.x;
        const bool exists = expert < shape.expert_count;
        const uint32_t count = exists ? p.total[shape.expert_begin + expert] : 0;
        const uint32_t padded = (count + 127) / 128 * 128;
        uint32_t sum;
        const int64_t begin = needed + block_prefix(padded, warp_sum, &sum);
        needed += sum;
        if (exists) {
            mine.segment_begin[expert] = begin;
            mine.segment_count[expert] = count;
        }
    }
    const bool fits = needed <= available && *(volatile uint32_t *)p.abort == 0;
    if (threadIdx.x == 0) {
        mine.segment_begin[shape.expert_count] = needed;
        *mine.row_count = fits ? needed : 0;
        if (needed > available) {
            const mok_sm90_fault bad = {MOK_SM90_FAULT_CAPACITY,
                                        rank,
                                        rank,
                                        MOK_SM90_PHASE_SCHEDULE,
                                        -1,
                                        0,
                                        needed,
                                        available};
            sm90_report(p.abort, p.fault, bad);
        }
    }
    __syncthreads();
    if (!fits) {
        return;
    }
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    for (int64_t expert = warp; expert < shape.expert_count; expert += 8) {
        const int64_t begin = mine.segment_begin[expert];
        const int64_t end = mine.segment_begin[expert + 1];
        for (int64_t block = begin / 128 + lane; block < end / 128; block += 32) {
            mine.block_expert[block] = (int32_t)expert;
        }
        for (int64_t row = begin + mine.segment_count[expert] + lane; row < end; row += 32) {
            mine.peer_rank[row] = -1;
            mine.peer_slot[row] = -1;
        }
    }
}

extern "C" __global__ void __launch_bounds__(SCHEDULE_THREADS)
    mok_sm90_schedule_place(const __grid_constant__ mok_sm90_schedule p)
{
    extern __shared__ uint32_t next_shared[];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int32_t chunks = p.chunk_begin[p.ranks];
    const int32_t chunk = (int32_t)blockIdx.x * SCHEDULE_WARPS + warp;
    if (chunk >= chunks || *(volatile uint32_t *)p.abort != 0) {
        return;
    }
    uint32_t *next = next_shared + warp * p.experts;
    for (int32_t expert = lane; expert < p.experts; expert += 32) {
        next[expert] = p.chunk_count[(int64_t)expert * chunks + chunk];
    }
    __syncwarp();
    const int32_t rank = rank_of_chunk(p, chunk);
    const mok_sm90_schedule_rank &mine = p.rank[rank];
    const int64_t begin = (int64_t)(chunk - p.chunk_begin[rank]) * MOK_SM90_CHUNK_ROUTES;
    const int64_t all = mine.tokens * p.slots;
    for (int64_t first = begin; first < begin + MOK_SM90_CHUNK_ROUTES && first < all; first += 32) {
        const int64_t i = first + lane;
        const int32_t expert = i < all ? mine.routes_out[i] : -1;
        const uint32_t same = __match_any_sync(0xFFFFFFFFu, expert);
        const uint32_t before = (uint32_t)__popc(same & ((1u << lane) - 1u));
        const uint32_t base = expert >= 0 ? next[expert] : 0;
        __syncwarp();
        if (expert >= 0) {
            const int32_t owner = mok_rank_of_expert(p.experts, p.ranks, expert);
            const mok_sm90_schedule_rank &to = p.rank[owner];
            const int64_t row = to.segment_begin[expert - to.shape.expert_begin] + base + before;
            to.peer_rank[row] = rank;
            to.peer_slot[row] = (int32_t)i;
            if (before == 0) {
                next[expert] = base + (uint32_t)__popc(same);
            }
        }
        __syncwarp();
    }
}

extern "C" void mok_sm90_schedule_functions(const void *functions[4])
{
    functions[0] = (const void *)mok_sm90_schedule_count;
    functions[1] = (const void *)mok_sm90_schedule_scan;
    functions[2] = (const void *)mok_sm90_schedule_layout;
    functions[3] = (const void *)mok_sm90_schedule_place;
}
