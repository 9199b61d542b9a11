/* What a producer loads for a task: one struct of operands and one way of filling a stage for each
 * pass.
 *
 *   stage   A 16 KB: 128 rows of 64, or, for weight gradients, two boxes of 64 columns x 64 rows
 *           B 32 KB: 256 rows of 64, or four boxes of 64 columns x 64 rows
 *
 * What lies outside a tensor arrives as zeros, which is the padding that the class asks for. */
#ifndef MOK_CUDA_SM90_FEED_CUH
#define MOK_CUDA_SM90_FEED_CUH

#include "cuda/sm90/params.h"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/tma.cuh"

#define SM90_B_OFFSET 16384
#define SM90_BOX_BYTES 8192 /* 64 columns x 64 rows */

template <int pass> struct sm90_feed;

/* Forward: A is rows of a 2-D map, B rows of one or two 3-D maps. */
template <> struct sm90_feed<MOK_PASS_FORWARD> {
    const CUtensorMap *a, *b0, *b1; /* b1 is NULL where b0 gives all 256 rows */
    int32_t a_row, b_row, expert;

    static __device__ __forceinline__ sm90_feed make(const CUtensorMap *maps,
                                                     const mok_sm90_task *task)
    {
        sm90_feed feed;
        feed.a_row = task->store_row;
        feed.b_row = task->col;
        feed.expert = task->expert;
        feed.b1 = NULL;
        switch (task->kind) {
        case MOK_TASK_GATE_UP:
            feed.a = &maps[MOK_MAP_X];
            feed.b0 = &maps[MOK_MAP_GATE];
            feed.b1 = &maps[MOK_MAP_UP];
            break;
        case MOK_TASK_DOWN:
            feed.a = &maps[MOK_MAP_H];
            feed.b0 = &maps[MOK_MAP_DOWN];
            break;
        case MOK_TASK_SHARED_GATE_UP:
            feed.a = &maps[MOK_MAP_SHARED_X];
            feed.b0 = &maps[MOK_MAP_SHARED_GATE];
            feed.b1 = &maps[MOK_MAP_SHARED_UP];
            break;
        default:
            feed.a = &maps[MOK_MAP_SHARED_H];
            feed.b0 = &maps[MOK_MAP_SHARED_DOWN];
            break;
        }
        return feed;
    }

    __device__ __forceinline__ int32_t steps(const mok_sm90_task *task) const
    {
        return task->k_steps;
    }

    __device__ __forceinline__ void fill(uint32_t stage, uint32_t full, int32_t step) const
    {
        const uint32_t b = stage + SM90_B_OFFSET;
        ptx_mbarrier_arrive_expect(full, MOK_SM90_STAGE_BYTES);
        ptx_tma_load_2d(stage, a, full, step * 64, a_row);
        ptx_tma_load_3d(b, b0, full, step * 64, b_row, expert);
        if (b1 != NULL) {
            ptx_tma_load_3d(b + 16384, b1, full, step * 64, b_row, expert);
        }
    }
};

/* Backward. d_hidden: rows of dy, columns of down. dx: rows of dg, then of du; columns of gate,
 * then of up. Weight gradients: columns of two matrices whose rows are the contraction. */
template <> struct sm90_feed<MOK_PASS_BACKWARD> {
    const mok_sm90_task *task; /* in its slot, where it stays until the tile is done: registers are
                                  short */
    const CUtensorMap *a, *b;  /* b: of the first half of dx's steps; the second half's follows */
    int32_t a_part, b_part;
    bool transposed, twice, scratch;

    static __device__ __forceinline__ sm90_feed make(const CUtensorMap *maps,
                                                     const mok_sm90_task *task)
    {
        const bool shared = task->kind >= MOK_TASK_SHARED_GATE_UP;
        const CUtensorMap *mine = maps + (shared ? MOK_BACK_MAPS : 0);
        sm90_feed feed;
        feed.task = task;
        feed.a_part = feed.b_part = 0;
        feed.transposed = feed.twice = feed.scratch = false;
        switch (task->kind) {
        case MOK_TASK_D_HIDDEN:
        case MOK_TASK_SHARED_D_HIDDEN:
            feed.a = &mine[MOK_BACK_DY];
            feed.b = &mine[MOK_BACK_DOWN];
            feed.scratch = true;
            return feed;
        case MOK_TASK_DX:
        case MOK_TASK_SHARED_DX:
            feed.a = &mine[MOK_BACK_D];
            feed.b = &mine[MOK_BACK_GATE];
            feed.twice = true;
            return feed;
        default:
            break;
        }
        const int32_t first = shared ? MOK_TASK_SHARED_WGRAD_GATE : MOK_TASK_WGRAD_GATE;
        const int32_t matrix = task->kind - first;
        feed.transposed = true;
        feed.a = &mine[matrix == 2 ? MOK_BACK_DY_ROWS : MOK_BACK_D_ROWS];
        feed.a_part = matrix == 1 ? 1 : 0;
        feed.b = &mine[matrix == 2 ? MOK_BACK_D_ROWS : MOK_BACK_X_ROWS];
        feed.b_part = matrix == 2 ? 2 : 0;
        return feed;
    }

    __device__ __forceinline__ void fill_gradient(uint32_t stage, uint32_t full, int32_t step) const
    {
        /* Rows of routed operands are numbered through; the shared ones' begin anew in a lane. */
        const int32_t lane = task->kind >= MOK_TASK_SHARED_GATE_UP ? task->expert : 0;
        const int32_t at = task->source_row + step * 64;
        const int32_t row = task->store_row;
        const int32_t col = task->col;
        ptx_tma_load_4d(stage, a, full, row, at, lane, a_part);
        ptx_tma_load_4d(stage + SM90_BOX_BYTES, a, full, row + 64, at, lane, a_part);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            ptx_tma_load_4d(stage + SM90_B_OFFSET + i * SM90_BOX_BYTES, b, full, col + 64 * i, at,
                            lane, b_part);
        }
    }

    /* The stage after a d_hidden tile's products is left empty, as scratch of the consumers. */
    __device__ __forceinline__ int32_t steps(const mok_sm90_task *task) const
    {
        return task->k_steps + (scratch ? 1 : 0);
    }

    __device__ __forceinline__ void fill(uint32_t stage, uint32_t full, int32_t step) const
    {
        if (scratch && step == task->k_steps) {
            ptx_mbarrier_arrive(full);
            return;
        }
        ptx_mbarrier_arrive_expect(full, MOK_SM90_STAGE_BYTES);
        if (transposed) {
            fill_gradient(stage, full, step);
            return;
        }
        const int32_t half = task->k_steps / 2;
        const int32_t second = twice && step >= half ? 1 : 0;
        const int32_t k = (step - second * half) * 64;
        const int32_t col = task->col;
        const int32_t expert = task->expert;
        ptx_tma_load_4d(stage, a, full, k, task->store_row, 0, second);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            ptx_tma_load_4d(stage + SM90_B_OFFSET + i * SM90_BOX_BYTES, b + second, full,
                            col + 64 * i, k, expert, 0);
        }
    }
};

static_assert(MOK_BACK_UP == MOK_BACK_GATE + 1, "dx goes from gate's map to the next");

#endif
