/* What ranks do together outside a pass: agree, gather, broadcast, and sum lanes in their global
 * order. */
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "core/fpenv.h"

typedef struct verdict {
    int32_t status;
    char text[MOK_ERROR_TEXT_BYTES];
} verdict;

mok_status mok_comm_agree_in(mok_comm *comm, mok_status mine, mok_phase phase)
{
    const mok_call call = {(int32_t)phase, MOK_CALL_EXCHANGE, 0};
    return mok_comm_agree_as(comm, mine, &call);
}

mok_status mok_comm_agree_as(mok_comm *comm, mok_status mine, const mok_call *call)
{
    if (comm->size == 1) {
        MOK_TRY(mok_comm_check(comm));
        return mine;
    }
    verdict own = {(int32_t)mine, ""};
    if (mine != MOK_OK) {
        (void)snprintf(own.text, sizeof own.text, "%s", mok_last_error());
    }
    unsigned char *stage;
    MOK_TRY(mok_comm_stage(comm, &stage, sizeof own));
    memcpy(stage, &own, sizeof own);
    MOK_TRY(mok_comm_meet(comm, call));
    for (int32_t rank = 0; rank < comm->size; rank++) {
        verdict other;
        memcpy(&other, mok_comm_staged(comm, rank), sizeof other);
        if (other.status == (int32_t)MOK_OK) {
            continue;
        }
        if (rank == comm->rank) {
            mok_error_text_set(own.text);
            return mine;
        }
        return mok_fail((mok_status)other.status, "rank %d: %.*s", rank, MOK_ERROR_TEXT_BYTES - 16,
                        other.text);
    }
    return MOK_OK;
}

mok_status mok_comm_agree(mok_comm *comm, mok_status mine)
{
    MOK_REQUIRE(comm != NULL, MOK_ERROR_ARGUMENT, "comm is NULL");
    return mok_comm_agree_in(comm, mine, MOK_PHASE_AGREE);
}

mok_status mok_comm_barrier(mok_comm *comm)
{
    MOK_REQUIRE(comm != NULL, MOK_ERROR_ARGUMENT, "comm is NULL");
    return mok_comm_barrier_in(comm, MOK_PHASE_EXCHANGE);
}

mok_status mok_comm_allgather(mok_comm *comm, void *out, const void *in, size_t bytes)
{
    MOK_REQUIRE(comm != NULL, MOK_ERROR_ARGUMENT, "comm is NULL");
    mok_status mine = MOK_OK;
    if (bytes > 0 && (out == NULL || in == NULL)) {
        mine = mok_fail(MOK_ERROR_ARGUMENT, "allgather: out or in is NULL");
    }
    const mok_call call = {(int32_t)MOK_PHASE_EXCHANGE, MOK_CALL_ALLGATHER, bytes};
    MOK_TRY(mok_comm_agree_as(comm, mine, &call));
    for (size_t begin = 0; begin < bytes; begin += MOK_STAGING_BYTES) {
        const size_t part = bytes - begin < MOK_STAGING_BYTES ? bytes - begin : MOK_STAGING_BYTES;
        unsigned char *stage;
        MOK_TRY(mok_comm_stage(comm, &stage, part));
        memcpy(stage, (const unsigned char *)in + begin, part);
        MOK_TRY(mok_comm_exchange(comm, MOK_PHASE_EXCHANGE));
        for (int32_t rank = 0; rank < comm->size; rank++) {
            memcpy((unsigned char *)out + (size_t)rank * bytes + begin, mok_comm_staged(comm, rank),
                   part);
        }
    }
    return MOK_OK;
}

mok_status mok_comm_broadcast(mok_comm *comm, void *data, size_t bytes, int32_t root)
{
    MOK_REQUIRE(comm != NULL, MOK_ERROR_ARGUMENT, "comm is NULL");
    mok_status mine = MOK_OK;
    if (bytes > 0 && data == NULL) {
        mine = mok_fail(MOK_ERROR_ARGUMENT, "broadcast: data is NULL");
    } else if (root < 0 || root >= comm->size) {
        mine =
            mok_fail(MOK_ERROR_ARGUMENT, "broadcast: root %d is outside [0, %d)", root, comm->size);
    }
    /* Each root has a kind of its own; one that is out of range is reported by the agreement. */
    const mok_call call = {(int32_t)MOK_PHASE_EXCHANGE,
                           MOK_CALL_BROADCAST + (mine == MOK_OK ? root : 0), bytes};
    MOK_TRY(mok_comm_agree_as(comm, mine, &call));
    for (size_t begin = 0; begin < bytes; begin += MOK_STAGING_BYTES) {
        const size_t part = bytes - begin < MOK_STAGING_BYTES ? bytes - begin : MOK_STAGING_BYTES;
        unsigned char *here = (unsigned char *)data + begin;
        unsigned char *stage;
        MOK_TRY(mok_comm_stage(comm, &stage, comm->rank == root ? part : 0));
        if (comm->rank == root) {
            memcpy(stage, here, part);
        }
        MOK_TRY(mok_comm_exchange(comm, MOK_PHASE_EXCHANGE));
        if (comm->rank != root) {
            memcpy(here, mok_comm_staged(comm, root), part);
        }
    }
    return MOK_OK;
}

/* ---- Lanes ---- */

typedef struct lane_count {
    int64_t lanes;
    int64_t count;
} lane_count;

/* out [count] and partials [lanes, count] share a byte. A size that passes the address space counts
 * too. */
static bool floats_overlap(const float *out, int64_t count, const float *partials, int64_t lanes)
{
    size_t bytes;
    size_t all;
    if (count == 0 || lanes == 0) {
        return false;
    }
    return __builtin_mul_overflow((size_t)count, sizeof(float), &bytes) ||
           __builtin_mul_overflow(bytes, (size_t)lanes, &all) ||
           ((uintptr_t)out < (uintptr_t)partials + all &&
            (uintptr_t)partials < (uintptr_t)out + bytes);
}

/* Checks this rank's arguments and learns every rank's lane count. */
static mok_status gather_lanes(mok_comm *comm, int64_t *lanes_of_rank, const float *out,
                               const float *partials, int64_t lanes, int64_t count)
{
    mok_status mine = MOK_OK;
    if (lanes < 0 || count < 0 || lanes > INT32_MAX) {
        mine = mok_fail(MOK_ERROR_ARGUMENT, "lane_reduce: lanes %lld or count %lld is out of range",
                        (long long)lanes, (long long)count);
    } else if (count > 0 && (out == NULL || (lanes > 0 && partials == NULL))) {
        mine = mok_fail(MOK_ERROR_ARGUMENT, "lane_reduce: out or partials is NULL");
    } else if (floats_overlap(out, count, partials, lanes)) {
        mine = mok_fail(MOK_ERROR_OVERLAP, "lane_reduce: out overlaps partials");
    }
    MOK_TRY(mok_comm_agree_in(comm, mine, MOK_PHASE_REDUCE));
    const lane_count own = {lanes, count};
    unsigned char *stage;
    MOK_TRY(mok_comm_stage(comm, &stage, sizeof own));
    memcpy(stage, &own, sizeof own);
    MOK_TRY(mok_comm_exchange(comm, MOK_PHASE_REDUCE));
    for (int32_t rank = 0; rank < comm->size; rank++) {
        lane_count other;
        memcpy(&other, mok_comm_staged(comm, rank), sizeof other);
        lane_count first;
        memcpy(&first, mok_comm_staged(comm, 0), sizeof first);
        MOK_REQUIRE(other.count == first.count, MOK_ERROR_MISMATCH,
                    "lane_reduce: rank %d has count %lld, rank 0 has %lld", rank,
                    (long long)other.count, (long long)first.count);
        lanes_of_rank[rank] = other.lanes;
    }
    return MOK_OK;
}

/* Sums what all ranks have staged of a stretch of n elements. */
static void add_staged(mok_comm *comm, float *out, const int64_t *lanes_of_rank, int64_t n)
{
    const uint32_t environment = mok_fpenv_enter();
    memset(out, 0, (size_t)n * sizeof(float));
    for (int32_t rank = 0; rank < comm->size; rank++) {
        const float *staged = (const float *)(const void *)mok_comm_staged(comm, rank);
        for (int64_t lane = 0; lane < lanes_of_rank[rank]; lane++) {
            comm->kernels->accumulate(out, staged + lane * n, n);
        }
    }
    mok_fpenv_leave(environment);
}

/* Each exchange carries up to lanes_per_part lanes of a stretch of elements, so that a rank with
 * many lanes needs no larger staging. Ranks take turns: lane order is rank order, then the rank's
 * own. */
mok_status mok_lane_reduce(mok_comm *comm, float *out, const float *partials, int64_t lanes,
                           int64_t count)
{
    MOK_REQUIRE(comm != NULL, MOK_ERROR_ARGUMENT, "comm is NULL");
    int64_t lanes_of_rank[MOK_MAX_RANKS];
    MOK_TRY(gather_lanes(comm, lanes_of_rank, out, partials, lanes, count));
    int64_t most = 1;
    for (int32_t rank = 0; rank < comm->size; rank++) {
        most = mok_max64(most, lanes_of_rank[rank]);
    }
    const int64_t room = (int64_t)(MOK_STAGING_BYTES / sizeof(float));
    MOK_REQUIRE(most <= room, MOK_ERROR_ARGUMENT, "lane_reduce: %lld lanes on a rank, at most %lld",
                (long long)most, (long long)room);
    const int64_t stretch = room / most;
    for (int64_t begin = 0; begin < count; begin += stretch) {
        const int64_t n = mok_min64(stretch, count - begin);
        const size_t part = (size_t)n * sizeof(float);
        unsigned char *stage;
        MOK_TRY(mok_comm_stage(comm, &stage, (size_t)lanes * part));
        for (int64_t lane = 0; lane < lanes; lane++) {
            memcpy(stage + (size_t)lane * part, partials + lane * count + begin, part);
        }
        MOK_TRY(mok_comm_exchange(comm, MOK_PHASE_REDUCE));
        add_staged(comm, out + begin, lanes_of_rank, n);
    }
    return MOK_OK;
}
