/* The producer: one thread that takes compute tasks, waits for their operands and feeds the stages. */
#ifndef MOK_CUDA_SM90_PRODUCER_CUH
#define MOK_CUDA_SM90_PRODUCER_CUH

#include "cuda/sm90/block.cuh"
#include "cuda/sm90/ptx/tma.cuh"
#include "cuda/sm90/wait.cuh"

/* Where a tile's operands come from: A is rows of a 2-D map, B rows of one or two 3-D maps. */
typedef struct sm90_operands {
    const CUtensorMap *a, *b0, *b1; /* b1 is NULL where b0 gives all 256 rows */
    int32_t a_row, b_row, expert;
} sm90_operands;

static __device__ __forceinline__ int32_t sm90_min(int64_t a, int64_t b)
{
    return (int32_t)(a < b ? a : b);
}

/* A task's tile: sizes for the consumers and stores, operands for the copies. */
static __device__ void sm90_tile_of(const mok_sm90_forward &p, int32_t rank, const mok_plan *plan,
                                    const mok_task *task, sm90_tile *tile, sm90_operands *operands)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const CUtensorMap *maps = p.map[rank];
    const mok_shape *shape = &mine.shape;
    const bool shared = task->kind == MOK_TASK_SHARED_GATE_UP || task->kind == MOK_TASK_SHARED_DOWN;
    const bool down = task->kind == MOK_TASK_DOWN || task->kind == MOK_TASK_SHARED_DOWN;
    const int64_t inner = shared ? shape->shared_inner : shape->inner;
    const int64_t outputs = down ? shape->hidden : inner;
    const int64_t step = down ? shape->hidden_cols : shape->inner_cols;
    const int64_t first = task->block * 128;
    tile->kind = task->kind;
    tile->k_steps = (int32_t)mok_blocks_of(down ? inner : shape->hidden, 64);
    tile->col = (int32_t)(task->tile * step);
    tile->cols = sm90_min(outputs - tile->col, step);
    tile->source_row = (int32_t)first;
    tile->raise_count = task->raise_count;
    for (int i = 0; i < MOK_TASK_MAX_RAISES; i++) {
        tile->raise_idx[i] = i < task->raise_count ? task->raise_idx[i] : 0;
    }
    operands->b_row = tile->col;
    if (shared) {
        tile->row_count = sm90_min(mine.tokens - first, 128);
        tile->store_row = (int32_t)first;
        operands->expert = 0;
        operands->a = &maps[down ? MOK_MAP_SHARED_H : MOK_MAP_SHARED_X];
        operands->b0 = &maps[down ? MOK_MAP_SHARED_DOWN : MOK_MAP_SHARED_GATE];
        operands->b1 = down ? NULL : &maps[MOK_MAP_SHARED_UP];
    } else {
        operands->expert = mine.block_expert[task->block];
        tile->row_count = sm90_min(mine.segment_begin[operands->expert] +
                                       mine.segment_count[operands->expert] - first,
                                   128);
        tile->store_row = (int32_t)((task->block - mok_macro_begin(plan, task->macro)) * 128);
        operands->a = &maps[down ? MOK_MAP_H : MOK_MAP_X];
        operands->b0 = &maps[down ? MOK_MAP_DOWN : MOK_MAP_GATE];
        operands->b1 = down ? NULL : &maps[MOK_MAP_UP];
    }
    operands->a_row = tile->store_row;
}

static __device__ __forceinline__ void sm90_fill_stage(const sm90_operands *operands, uint32_t stage,
                                                       uint32_t full, int32_t k)
{
    const uint32_t b = stage + 16384;
    ptx_mbarrier_arrive_expect(full, MOK_SM90_STAGE_BYTES);
    ptx_tma_load_2d(stage, operands->a, full, k, operands->a_row);
    ptx_tma_load_3d(b, operands->b0, full, k, operands->b_row, operands->expert);
    if (operands->b1 != NULL) {
        ptx_tma_load_3d(b + 16384, operands->b1, full, k, operands->b_row, operands->expert);
    }
}

static __device__ __noinline__ void sm90_producer(const mok_sm90_forward &p, int32_t rank, unsigned char *shared,
                                     sm90_control *control)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const uint32_t stages = ptx_shared_address(shared);
    mok_plan plan = control->plan;
    plan.list_comm = false;
    const int64_t count = mok_task_count(&plan);
    mok_cursor cursor = mok_cursor_make();
    sm90_ring stage = {0, 0};
    sm90_ring slot = {0, 0};
    uint32_t next = atomicAdd(mine.next_compute, 1u);
    for (bool more = true; more; sm90_ring_next<MOK_SM90_TASK_SLOTS>(&slot)) {
        const int64_t idx = next;
        sm90_tile *tile = &control->tile[slot.slot];
        sm90_operands operands;
        mbarrier_wait(ptx_shared_address(&control->task_empty[slot.slot]), slot.parity ^ 1);
        more = idx < count;
        if (more) {
            const mok_task task = mok_cursor_task(&plan, &cursor, idx);
            sm90_tile_of(p, rank, &plan, &task, tile, &operands);
            for (int i = 0; i < task.wait_count && more; i++) {
                more = sm90_wait<false>(p, &mine.counters[task.wait_idx[i]], task.wait_value[i], rank,
                                        rank, MOK_SM90_PHASE_FORWARD, idx);
            }
            ptx_fence_proxy_async();
        }
        if (!more) {
            tile->kind = -1;
        }
        ptx_mbarrier_arrive(ptx_shared_address(&control->task_full[slot.slot]));
        if (!more) {
            break;
        }
        next = atomicAdd(mine.next_compute, 1u); /* its latency hides behind this tile's loads */
        const int32_t k_steps = tile->k_steps;
        for (int32_t k = 0; k < k_steps; k++) {
            mbarrier_wait(ptx_shared_address(&control->empty[stage.slot]), stage.parity ^ 1);
            sm90_fill_stage(&operands, stages + stage.slot * MOK_SM90_STAGE_BYTES,
                            ptx_shared_address(&control->full[stage.slot]), k * 64);
            sm90_ring_next<MOK_SM90_STAGES>(&stage);
        }
    }
}

#endif
