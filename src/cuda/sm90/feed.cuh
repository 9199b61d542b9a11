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
    const CUtensorMap *a, *b0, *b1; /* b1: of the second half of the steps */
    int32_t a_at, b_at; /* row of A, or (weight gradients) its first column; first column of B */
    int32_t row;        /* weight gradients: where the contraction begins */
    int32_t batch;      /* expert, or lane */
    int32_t a_part, b_part, half; /* steps of the first half */
    bool transposed;

    static __device__ __forceinline__ sm90_feed make(const CUtensorMap *maps,
                                                     const mok_sm90_task *task)
    {
        const bool shared = task->kind >= MOK_TASK_SHARED_GATE_UP;
        const CUtensorMap *mine = maps + (shared ? MOK_BACK_MAPS : 0);
        sm90_feed feed;
        feed.a_at = task->store_row;
        feed.b_at = task->col;
        feed.row = task->source_row;
        feed.batch = task->expert;
        feed.a_part = feed.b_part = 0;
        feed.half = task->k_steps;
        feed.transposed = false;
        feed.b1 = NULL;
        switch (task->kind) {
        case MOK_TASK_D_HIDDEN:
        case MOK_TASK_SHARED_D_HIDDEN:
            feed.a = &mine[MOK_BACK_DY];
            feed.b0 = &mine[MOK_BACK_DOWN];
            return feed;
        case MOK_TASK_DX:
        case MOK_TASK_SHARED_DX:
            feed.a = &mine[MOK_BACK_D];
            feed.b0 = &mine[MOK_BACK_GATE];
            feed.b1 = &mine[MOK_BACK_UP];
            feed.half = task->k_steps / 2;
            return feed;
        default:
            break;
        }
        const int32_t first = shared ? MOK_TASK_SHARED_WGRAD_GATE : MOK_TASK_WGRAD_GATE;
        const int32_t matrix = task->kind - first;
        feed.transposed = true;
        feed.a = &mine[matrix == 2 ? MOK_BACK_DY_ROWS : MOK_BACK_D_ROWS];
        feed.a_part = matrix == 1 ? 1 : 0;
        feed.b0 = &mine[matrix == 2 ? MOK_BACK_D_ROWS : MOK_BACK_X_ROWS];
        feed.b_part = matrix == 2 ? 2 : 0;
        feed.batch = shared ? task->expert : 0; /* rows of routed operands are numbered through */
        return feed;
    }

    __device__ __forceinline__ void fill(uint32_t stage, uint32_t full, int32_t step) const
    {
        const uint32_t b = stage + SM90_B_OFFSET;
        ptx_mbarrier_arrive_expect(full, MOK_SM90_STAGE_BYTES);
        if (transposed) {
            const int32_t at = row + step * 64;
            ptx_tma_load_4d(stage, a, full, a_at, at, batch, a_part);
            ptx_tma_load_4d(stage + SM90_BOX_BYTES, a, full, a_at + 64, at, batch, a_part);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                ptx_tma_load_4d(b + i * SM90_BOX_BYTES, b0, full, b_at + 64 * i, at, batch, b_part);
            }
            return;
        }
        const bool second = step >= half;
        const int32_t k = (second ? step - half : step) * 64;
        const CUtensorMap *weights = second ? b1 : b0;
        ptx_tma_load_4d(stage, a, full, k, a_at, 0, second ? 1 : 0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            ptx_tma_load_4d(b + i * SM90_BOX_BYTES, weights, full, b_at + 64 * i, k, batch, 0);
        }
    }
};

#endif
