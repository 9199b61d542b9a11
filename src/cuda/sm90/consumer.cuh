/* A consumer warpgroup: products of 64 rows of a tile, K ascending, rounded to bf16 into staging.
 */
#ifndef MOK_CUDA_SM90_CONSUMER_CUH
#define MOK_CUDA_SM90_CONSUMER_CUH

#include "cuda/sm90/block.cuh"
#include "cuda/sm90/feed.cuh"
#include "cuda/sm90/ptx/matrix.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"
#include "cuda/sm90/trace.cuh"

/* One product group stays in flight: a stage goes back when the group after it has been issued. A
 * chain of no steps is zero. */
template <int a_transposed, int b_transposed>
static __device__ __forceinline__ void sm90_chain(float (&d)[128], const sm90_control *control,
                                                  uint32_t stages, int group, int32_t k_steps,
                                                  sm90_ring *stage)
{
    const bool elected = threadIdx.x % 128 == 0;
    uint32_t release = 0;
    for (int32_t k = 0; k < k_steps; k++) {
        const uint32_t at = stages + stage->slot * MOK_SM90_STAGE_BYTES;
        const uint32_t left = at + (uint32_t)group * 8192;
        const uint64_t a =
            a_transposed ? wgmma_descriptor_transposed(left) : wgmma_descriptor(left);
        const uint64_t b = b_transposed ? wgmma_descriptor_transposed(at + SM90_B_OFFSET)
                                        : wgmma_descriptor(at + SM90_B_OFFSET);
        mbarrier_wait(ptx_shared_address(&control->full[stage->slot]), stage->parity);
        ptx_wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            ptx_wgmma_m64n256k16<a_transposed, b_transposed>(
                d, a + (a_transposed ? 128 : 2) * i, b + (b_transposed ? 128 : 2) * i, k | i);
        }
        ptx_wgmma_commit();
        ptx_wgmma_wait<1>();
        if (elected && k > 0) {
            ptx_mbarrier_arrive(release);
        }
        release = ptx_shared_address(&control->empty[stage->slot]);
        sm90_ring_next<MOK_SM90_STAGES>(stage);
    }
    ptx_wgmma_wait<0>();
    if (elected && k_steps > 0) {
        ptx_mbarrier_arrive(release);
    }
}

static __device__ __forceinline__ void sm90_stage_16(const float (&d)[128], int j, uint32_t to)
{
    ptx_stmatrix_x4(
        to, ptx_round_bf16x2(d[8 * j], d[8 * j + 1]), ptx_round_bf16x2(d[8 * j + 2], d[8 * j + 3]),
        ptx_round_bf16x2(d[8 * j + 4], d[8 * j + 5]), ptx_round_bf16x2(d[8 * j + 6], d[8 * j + 7]));
}

/* A lane gives the address of 8 columns of one row: 16 columns a step. */
static __device__ __forceinline__ void sm90_stage_tile(const float (&d)[128], uint32_t staging,
                                                       int group, bool as_rows)
{
    const int warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x & 31;
    const int row = group * 64 + warp * 16 + (lane & 7) + ((lane >> 3) & 1) * 8;
    if (as_rows) {
        const uint32_t to =
            staging + (uint32_t)row * MOK_SM90_STAGING_PITCH + (uint32_t)(lane >> 4) * 16;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            sm90_stage_16(d, j, to + j * 32);
        }
    } else {
        const uint32_t to = staging + (uint32_t)row * 128;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const uint32_t unit = (uint32_t)(j % 4 * 2 + (lane >> 4)) ^ (uint32_t)(lane & 7);
            sm90_stage_16(d, j, to + (uint32_t)(j / 4) * MOK_SM90_STAGING_CHUNK + unit * 16);
        }
    }
}

static __device__ __forceinline__ void sm90_consumer(const mok_sm90_pass &p, unsigned char *shared,
                                                     sm90_control *control, int group)
{
    const bool traced = p.trace != NULL && threadIdx.x == 128;
    const uint32_t stages = ptx_shared_address(shared);
    const uint32_t staging = ptx_shared_address(shared + SM90_STAGING_OFFSET);
    sm90_ring stage = {0, 0};
    sm90_ring slot = {0, 0};
    uint32_t staged_parity = 1; /* the first tile finds staging empty */
    float d[128];
    for (;;) {
        mbarrier_wait(ptx_shared_address(&control->task_full[slot.slot]), slot.parity);
        const int32_t kind = control->task[slot.slot].kind;
        const int32_t k_steps = control->task[slot.slot].k_steps;
        const int32_t block = control->task[slot.slot].block;
        const int32_t col = control->task[slot.slot].col;
        if (threadIdx.x % 128 == 0) {
            ptx_mbarrier_arrive(ptx_shared_address(&control->task_empty[slot.slot]));
        }
        if (kind < 0) {
            return;
        }
        sm90_ring_next<MOK_SM90_TASK_SLOTS>(&slot);
        const int64_t began = traced ? sm90_clock() : 0;
        sm90_chain<0, 0>(d, control, stages, group, k_steps, &stage);
        const int64_t done = traced ? sm90_clock() : 0;
        mbarrier_wait(ptx_shared_address(&control->staged_empty), staged_parity);
        staged_parity ^= 1;
        if (traced) {
            sm90_trace(p, MOK_SM90_ROLE_CONSUMER, MOK_SM90_WORK, kind, block, col, began, done);
            sm90_trace(p, MOK_SM90_ROLE_CONSUMER, MOK_SM90_WAIT, kind, block, col, done,
                       sm90_clock());
        }
        sm90_stage_tile(d, staging, group, kind == MOK_TASK_DOWN || kind == MOK_TASK_SHARED_DOWN);
        ptx_mbarrier_arrive(ptx_shared_address(&control->staged_full));
    }
}

#endif
