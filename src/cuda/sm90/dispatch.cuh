/* Communication: rows of x, or dy, from their sources into this rank's ring, a row block at a time.
 *
 * Rows go through shared memory in pieces of 4 KB by the bulk copy engine: the block computes
 * nothing yet, so stages and staging hold a piece for each of 48 couriers, threads that load, store
 * and load the next. A source may be another rank's memory. Rows of padding are zeroed, since
 * products read whole blocks. A courier goes on to the next row block at once; it raises a block's
 * counter when its own pieces have been written, so the block is there when all couriers have
 * raised it (plan.cu multiplies what a task waits for). Stores here and the products' loads both
 * belong to the copy engine; the fence and the release order them. */
#ifndef MOK_CUDA_SM90_DISPATCH_CUH
#define MOK_CUDA_SM90_DISPATCH_CUH

#include "cuda/sm90/block.cuh"
#include "cuda/sm90/ptx/bulk.cuh"
#include "cuda/sm90/trace.cuh"
#include "cuda/sm90/wait.cuh"

#define SM90_PIECE_BYTES 4096
#define SM90_PIECE_LANES 4 /* threads of a warp that hold a piece */
#define SM90_ZERO_OFFSET (MOK_SM90_COURIERS * SM90_PIECE_BYTES)

static_assert(MOK_SM90_THREADS / 32 * SM90_PIECE_LANES == MOK_SM90_COURIERS, "a piece each");

static_assert(SM90_ZERO_OFFSET + SM90_PIECE_BYTES <= SM90_CONTROL_OFFSET,
              "pieces lie in stages and staging");

/* One thread's piece: where it lies and the barrier that its loads complete. */
typedef struct sm90_piece {
    uint32_t memory, barrier, parity;
    int32_t idx;
} sm90_piece;

/* The piece of this thread; idx is -1 where it has none. Called by the whole block. */
static __device__ __forceinline__ sm90_piece sm90_piece_open(unsigned char *shared,
                                                             sm90_control *control)
{
    const int lane = threadIdx.x & 31;
    sm90_piece piece = {0, 0, 0, -1};
    if (lane < SM90_PIECE_LANES) {
        piece.idx = (int32_t)(threadIdx.x / 32 * SM90_PIECE_LANES + lane);
        piece.memory = ptx_shared_address(shared) + (uint32_t)piece.idx * SM90_PIECE_BYTES;
        piece.barrier = ptx_shared_address(&control->piece_full[piece.idx]);
        ptx_mbarrier_init(piece.barrier, 1);
        ptx_fence_mbarrier_init();
    }
    const uint4 zero = {0, 0, 0, 0};
    for (int i = threadIdx.x; i < SM90_PIECE_BYTES / 16; i += MOK_SM90_THREADS) {
        ((uint4 *)(void *)(shared + SM90_ZERO_OFFSET))[i] = zero;
    }
    ptx_fence_proxy_async();
    __syncthreads();
    return piece;
}

/* One piece of a row block: where it comes from and goes to. */
typedef struct sm90_route {
    const unsigned char *from; /* NULL: zeros */
    unsigned char *to;
    uint32_t bytes;
} sm90_route;

static __device__ __forceinline__ sm90_route sm90_route_of(const mok_sm90_pass &p,
                                                           const mok_sm90_rank &mine,
                                                           int32_t source_row, int32_t store_row,
                                                           int32_t i, int32_t in_row)
{
    const uint32_t row_bytes = (uint32_t)mine.shape.hidden * 2;
    const int32_t row = i / in_row;
    const uint32_t at = (uint32_t)(i % in_row) * SM90_PIECE_BYTES;
    const int32_t peer = __ldg(mine.peer_rank + source_row + row);
    const int32_t slot = __ldg(mine.peer_slot + source_row + row);
    sm90_route route;
    route.bytes = row_bytes - at < SM90_PIECE_BYTES ? row_bytes - at : SM90_PIECE_BYTES;
    route.to =
        (unsigned char *)(mine.ring_in + (int64_t)(store_row + row) * mine.shape.hidden) + at;
    route.from = NULL;
    if (peer >= 0) {
        const mok_sm90_rank &source = p.rank[peer];
        route.from =
            (const unsigned char *)(source.send + (int64_t)(slot / (int32_t)mine.shape.slots) *
                                                      source.send_stride) +
            at;
    }
    return route;
}

/* This courier's part of a row block is written. */
static __device__ __forceinline__ void sm90_delivered(const mok_sm90_rank &mine, int32_t raise_idx)
{
    if (raise_idx >= 0) {
        ptx_bulk_wait<0>();
        ptx_fence_proxy_async();
        ptx_add_release_gpu(&mine.counters[raise_idx], 1);
    }
}

static __device__ __forceinline__ bool sm90_room(const mok_sm90_pass &p, int32_t rank,
                                                 const mok_sm90_task &task, int32_t idx)
{
    bool room = true;
    for (int i = 0; i < MOK_TASK_MAX_WAITS && room; i++) {
        if (task.wait_idx[i] >= 0) {
            room = sm90_wait<false>(p, &p.rank[rank].counters[task.wait_idx[i]], task.wait_value[i],
                                    rank, rank, p.phase, idx);
        }
    }
    return room;
}

/* One courier's walk through the communication list. */
static __device__ void sm90_courier(const mok_sm90_pass &p, int32_t rank, int32_t local,
                                    sm90_piece *piece, uint32_t zero)
{
    const mok_sm90_rank &mine = p.rank[rank];
    const int32_t in_row =
        (int32_t)((mine.shape.hidden * 2 + SM90_PIECE_BYTES - 1) / SM90_PIECE_BYTES);
    const int32_t count = mine.list.count[2];
    int32_t owed = -1; /* the counter of the block before */
    for (int32_t idx = local; idx < count; idx += p.comm_blocks) {
        const mok_sm90_task task = mine.list.comm[idx];
        const int64_t began = sm90_clock();
        if (task.wait_idx[0] >=
            0) { /* room may only come when the block before has been computed */
            sm90_delivered(mine, owed);
            owed = -1;
        }
        if (!sm90_room(p, rank, task, idx)) {
            break;
        }
        sm90_route next =
            sm90_route_of(p, mine, task.source_row, task.store_row, piece->idx, in_row);
        for (int32_t i = piece->idx; i < 128 * in_row; i += MOK_SM90_COURIERS) {
            const sm90_route route = next;
            if (route.from != NULL) {
                ptx_bulk_wait_read<0>();
                ptx_mbarrier_arrive_expect(piece->barrier, route.bytes);
                ptx_bulk_load(piece->memory, route.from, route.bytes, piece->barrier);
            }
            if (i + MOK_SM90_COURIERS < 128 * in_row) {
                next = sm90_route_of(p, mine, task.source_row, task.store_row,
                                     i + MOK_SM90_COURIERS, in_row);
            }
            sm90_delivered(mine, owed);
            owed = -1;
            if (route.from != NULL) {
                mbarrier_wait(piece->barrier, piece->parity);
                piece->parity ^= 1;
            }
            ptx_bulk_store(route.to, route.from != NULL ? piece->memory : zero, route.bytes);
            ptx_bulk_commit();
        }
        owed = task.raise_idx[0];
        if (piece->idx == 0) {
            sm90_trace(p, MOK_SM90_ROLE_COMM, MOK_SM90_WORK, task.kind, task.block, 0, began,
                       sm90_clock());
        }
    }
    sm90_delivered(mine, owed);
    ptx_bulk_wait<0>();
}

static __device__ __noinline__ void sm90_dispatch(const mok_sm90_pass &p, int32_t rank,
                                                  int32_t local, unsigned char *shared,
                                                  sm90_control *control)
{
    sm90_piece piece = sm90_piece_open(shared, control);
    if (piece.idx >= 0) {
        sm90_courier(p, rank, local, &piece, ptx_shared_address(shared + SM90_ZERO_OFFSET));
    }
}

#endif
