/* What ranks do together outside a pass: barrier, gather, broadcast, agree and the sum over lanes,
 * over 1 to 8 ranks, many rounds, sizes from nothing to past the staging buffers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/fpenv.h"
#include "problem.h"

#define MOST_RANKS 8

/* ---- Barrier ---- */

typedef struct turnstile {
    _Atomic int32_t arrived[2000];
    _Atomic int32_t early; /* barriers passed before everyone had arrived */
} turnstile;

static mok_status pass_barriers(mok_comm *comm, void *context)
{
    turnstile *t = context;
    for (int round = 0; round < 2000; round++) {
        atomic_fetch_add_explicit(&t->arrived[round], 1, memory_order_relaxed);
        const mok_status status = mok_comm_barrier(comm);
        if (status != MOK_OK) {
            return status;
        }
        if (atomic_load_explicit(&t->arrived[round], memory_order_relaxed) != mok_comm_size(comm)) {
            atomic_fetch_add(&t->early, 1);
        }
    }
    return MOK_OK;
}

static void no_rank_passes_a_barrier_before_all_have_arrived(void **state)
{
    (void)state;
    static turnstile t;
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
        memset(&t, 0, sizeof t);
        assert_int_equal(group_run(ranks, NULL, pass_barriers, &t, NULL, NULL), MOK_OK);
        assert_int_equal(t.early, 0);
    }
}

/* ---- Gather and broadcast ---- */

static unsigned char byte_of(int32_t rank, size_t at, int round)
{
    return (unsigned char)((size_t)rank * 31 + at * 7 + (at >> 9) + (size_t)round * 13);
}

/* Sizes around nothing, a word, the staging buffer of 2^18 bytes and 1 MB. */
static const size_t sizes[] = {0, 1, 3, 8, 4095, 262143, 262144, 262145, 524288, 524289, 1 << 20};
#define SIZES (sizeof sizes / sizeof sizes[0])

static mok_status gather_sizes(mok_comm *comm, void *context)
{
    const int32_t ranks = mok_comm_size(comm);
    const int32_t rank = mok_comm_rank(comm);
    unsigned char *own = malloc((1 << 20) + 1);
    unsigned char *all = malloc((size_t)ranks * (1 << 20) + 16);
    mok_status status = own != NULL && all != NULL ? MOK_OK : MOK_ERROR_MEMORY;
    (void)context;
    for (size_t s = 0; s < SIZES && status == MOK_OK; s++) {
        for (size_t i = 0; i < sizes[s]; i++) {
            own[i] = byte_of(rank, i, (int)s);
        }
        memset(all, 0xEE, (size_t)ranks * sizes[s] + 16);
        status = mok_comm_allgather(comm, all, own, sizes[s]);
        for (int32_t peer = 0; peer < ranks && status == MOK_OK; peer++) {
            for (size_t i = 0; i < sizes[s]; i++) {
                if (all[(size_t)peer * sizes[s] + i] != byte_of(peer, i, (int)s)) {
                    status = MOK_ERROR_STATE;
                }
            }
        }
        for (size_t i = 0; i < 16; i++) {
            status = all[(size_t)ranks * sizes[s] + i] == 0xEE ? status : MOK_ERROR_STATE;
        }
    }
    free(own);
    free(all);
    return status;
}

static mok_status broadcast_sizes(mok_comm *comm, void *context)
{
    const int32_t rank = mok_comm_rank(comm);
    unsigned char *data = malloc((1 << 20) + 1);
    mok_status status = data != NULL ? MOK_OK : MOK_ERROR_MEMORY;
    (void)context;
    for (size_t s = 0; s < SIZES && status == MOK_OK; s++) {
        const int32_t root = (int32_t)s % mok_comm_size(comm);
        for (size_t i = 0; i <= sizes[s]; i++) {
            data[i] = byte_of(rank, i, (int)s);
        }
        status = mok_comm_broadcast(comm, data, sizes[s], root);
        for (size_t i = 0; i < sizes[s] && status == MOK_OK; i++) {
            status = data[i] == byte_of(root, i, (int)s) ? MOK_OK : MOK_ERROR_STATE;
        }
        if (data[sizes[s]] != byte_of(rank, sizes[s], (int)s)) {
            status = MOK_ERROR_STATE; /* the byte behind the end */
        }
    }
    free(data);
    return status;
}

static void gather_and_broadcast_carry_any_size(void **state)
{
    (void)state;
    static const int32_t ranks[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        assert_int_equal(group_run(ranks[i], NULL, gather_sizes, NULL, NULL, NULL), MOK_OK);
        assert_int_equal(group_run(ranks[i], NULL, broadcast_sizes, NULL, NULL, NULL), MOK_OK);
    }
}

/* Different calls one after another: each uses the two staging buffers, barriers between them do
 * not. */
static mok_status mix_calls(mok_comm *comm, void *context)
{
    const int32_t ranks = mok_comm_size(comm);
    const int32_t rank = mok_comm_rank(comm);
    uint64_t random = 123;
    (void)context;
    for (int32_t round = 0; round < 1500; round++) {
        const uint64_t what = random_next(&random) >> 40; /* the same on every rank */
        mok_status status = MOK_OK;
        int32_t all[MOST_RANKS];
        int32_t value = rank * 1000 + round;
        const int32_t root = (int32_t)((what >> 4) % (uint64_t)ranks);
        switch (what % 4) {
        case 0:
            status = mok_comm_barrier(comm);
            break;
        case 1:
            status = mok_comm_allgather(comm, all, &value, sizeof value);
            for (int32_t peer = 0; peer < ranks && status == MOK_OK; peer++) {
                status = all[peer] == peer * 1000 + round ? MOK_OK : MOK_ERROR_STATE;
            }
            break;
        case 2:
            status = mok_comm_broadcast(comm, &value, sizeof value, root);
            if (status == MOK_OK && value != root * 1000 + round) {
                status = MOK_ERROR_STATE;
            }
            break;
        default: {
            const mok_status want = what % 8 < 4 ? MOK_OK : MOK_ERROR_FILE;
            const mok_status got = mok_comm_agree(comm, rank == root ? want : MOK_OK);
            status = got == want ? MOK_OK : MOK_ERROR_STATE;
            break;
        }
        }
        if (status != MOK_OK) {
            return status;
        }
    }
    return MOK_OK;
}

static void many_rounds_of_mixed_calls_stay_in_step(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
        assert_int_equal(group_run(ranks, NULL, mix_calls, NULL, NULL, NULL), MOK_OK);
    }
}

/* ---- Arguments ---- */

static mok_status spoil_one(mok_comm *comm, void *context)
{
    const bool mine = mok_comm_rank(comm) == 1;
    unsigned char data[16] = {0};
    unsigned char all[64];
    float sum[4] = {0};
    const float partials[8] = {0};
    int failures = 0;
    (void)context;
#define EXPECT(call, want)                                                                         \
    do {                                                                                           \
        if ((call) != (want)) {                                                                    \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)
    EXPECT(mok_comm_allgather(comm, mine ? NULL : all, data, 4), MOK_ERROR_ARGUMENT);
    EXPECT(mok_comm_allgather(comm, all, mine ? NULL : data, 4), MOK_ERROR_ARGUMENT);
    EXPECT(mok_comm_allgather(comm, NULL, NULL, 0), MOK_OK);
    EXPECT(mok_comm_broadcast(comm, mine ? NULL : data, 4, 0), MOK_ERROR_ARGUMENT);
    EXPECT(mok_comm_broadcast(comm, NULL, 0, 0), MOK_OK);
    EXPECT(mok_comm_broadcast(comm, data, 4, 3), MOK_ERROR_ARGUMENT);
    EXPECT(mok_comm_broadcast(comm, data, 4, -1), MOK_ERROR_ARGUMENT);
    EXPECT(mok_lane_reduce(comm, mine ? NULL : sum, partials, 1, 4), MOK_ERROR_ARGUMENT);
    EXPECT(mok_lane_reduce(comm, sum, mine ? NULL : partials, 1, 4), MOK_ERROR_ARGUMENT);
    EXPECT(mok_lane_reduce(comm, sum, partials, mine ? -1 : 1, 4), MOK_ERROR_ARGUMENT);
    EXPECT(mok_lane_reduce(comm, sum, partials, 1, mine ? -4 : 4), MOK_ERROR_ARGUMENT);
    EXPECT(mok_lane_reduce(comm, sum, mine ? sum : partials, 1, 4), MOK_ERROR_OVERLAP);
    EXPECT(mok_lane_reduce(comm, sum, mine ? sum - 3 : partials, 1, 4), MOK_ERROR_OVERLAP);
    EXPECT(mok_lane_reduce(comm, sum, partials, mine ? (int64_t)1 << 40 : 1, 4),
           MOK_ERROR_ARGUMENT);
    EXPECT(mok_lane_reduce(comm, sum, NULL, 0, 4), MOK_OK);
    EXPECT(mok_comm_barrier(comm), MOK_OK);
#undef EXPECT
    return failures == 0 ? MOK_OK : MOK_ERROR_STATE;
}

static void bad_arguments_are_refused_on_every_rank(void **state)
{
    (void)state;
    assert_int_equal(group_run(3, NULL, spoil_one, NULL, NULL, NULL), MOK_OK);
    int32_t word = 0;
    float number = 0;
    assert_int_equal(mok_comm_barrier(NULL), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_agree(NULL, MOK_OK), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_allgather(NULL, &word, &number, 4), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_broadcast(NULL, &word, 4, 0), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_lane_reduce(NULL, &number, &number, 1, 1), MOK_ERROR_ARGUMENT);
    mok_comm_close(NULL);
}

static void bad_configurations_leave_no_handle(void **state)
{
    (void)state;
    mok_comm *comms[4];
    mok_comm_config config;
    static const int32_t threads[] = {0, -1, 257};
    for (size_t i = 0; i < 3; i++) {
        mok_comm_config_init(&config);
        config.threads = threads[i];
        memset(comms, 0x55, sizeof comms);
        assert_int_equal(mok_comm_open_local(comms, 4, &config), MOK_ERROR_ARGUMENT);
        assert_non_null(strstr(mok_last_error(), "threads"));
        for (int rank = 0; rank < 4; rank++) {
            assert_null(comms[rank]);
        }
    }
    static const int32_t timeouts[] = {0, -1, 86400001};
    for (size_t i = 0; i < 3; i++) {
        mok_comm_config_init(&config);
        config.timeout_ms = timeouts[i];
        assert_int_equal(mok_comm_open_local(comms, 4, &config), MOK_ERROR_ARGUMENT);
        assert_non_null(strstr(mok_last_error(), "timeout_ms"));
    }
    mok_comm_config_init(&config);
    config.level = (mok_level)9;
    assert_int_equal(mok_comm_open_local(comms, 4, &config), MOK_ERROR_ARGUMENT);
    mok_comm_config_init(&config);
    config.struct_bytes++;
    assert_int_equal(mok_comm_open_local(comms, 4, &config), MOK_ERROR_ARGUMENT);
    mok_comm_config_init(&config);
    config.allocator.release = NULL;
    assert_int_equal(mok_comm_open_local(comms, 4, &config), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_open_local(NULL, 4, NULL), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_open_local(comms, 0, NULL), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_open_local(comms, -1, NULL), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_open_local(comms, MOK_MAX_RANKS + 1, NULL), MOK_ERROR_ARGUMENT);
}

/* ---- Lanes ---- */

#define LANES 24
#define COUNT 5003

static float lanes[LANES][COUNT];

typedef struct lane_split {
    int64_t count;
    int64_t lanes_of[MOST_RANKS];
    float *out[MOST_RANKS];
} lane_split;

static mok_status reduce_lanes(mok_comm *comm, void *context)
{
    const lane_split *split = context;
    const int32_t rank = mok_comm_rank(comm);
    int64_t first = 0;
    for (int32_t before = 0; before < rank; before++) {
        first += split->lanes_of[before];
    }
    /* [lanes, count] with rows of count, not COUNT */
    const int64_t mine = split->lanes_of[rank];
    float *partials = malloc((size_t)(mine * split->count + 1) * sizeof *partials);
    if (partials == NULL) {
        return MOK_ERROR_MEMORY;
    }
    for (int64_t lane = 0; lane < mine; lane++) {
        memcpy(partials + lane * split->count, lanes[first + lane],
               (size_t)split->count * sizeof *partials);
    }
    const mok_status status = mok_lane_reduce(comm, split->out[rank], partials, mine, split->count);
    free(partials);
    return status;
}

/* Lane ascending from +0, rounded at every step. */
static void sum_slowly(float *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        volatile float sum = 0.0f;
        for (int lane = 0; lane < LANES; lane++) {
            sum = sum + lanes[lane][i];
        }
        out[i] = sum;
    }
}

static void check_split(int32_t ranks, const int64_t *lanes_of, int64_t count)
{
    static float want[COUNT];
    sum_slowly(want, count);
    lane_split split = {.count = count};
    for (int32_t rank = 0; rank < ranks; rank++) {
        split.lanes_of[rank] = lanes_of[rank];
        split.out[rank] = malloc((size_t)(count + 1) * sizeof(float));
        assert_non_null(split.out[rank]);
        memset(split.out[rank], 0xA5, (size_t)(count + 1) * sizeof(float));
    }
    assert_int_equal(group_run(ranks, NULL, reduce_lanes, &split, NULL, NULL), MOK_OK);
    for (int32_t rank = 0; rank < ranks; rank++) {
        uint32_t guard;
        memcpy(&guard, split.out[rank] + count, sizeof guard);
        assert_int_equal(guard, 0xA5A5A5A5);
        if (count > 0) {
            assert_memory_equal(split.out[rank], want, (size_t)count * sizeof *want);
        }
        free(split.out[rank]);
    }
}

/* Sums that depend on their order, with signed zeros and subnormals among them. */
static void fill_lanes(void)
{
    uint64_t random = 31;
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < COUNT; i++) {
            const uint32_t bits = (uint32_t)(random_next(&random) >> 32);
            const float scale = i % 3 == 0 ? 1e8f : i % 3 == 1 ? 1e-42f : 1.0f;
            lanes[lane][i] = i % 11 == 0 ? -0.0f : random_normal(&random) * scale;
            if (bits % 97 == 0) {
                lanes[lane][i] = -lanes[lane][i] * 4096.0f;
            }
        }
    }
}

static void lanes_are_added_in_global_order_whoever_holds_them(void **state)
{
    (void)state;
    static const int64_t splits[][MOST_RANKS] = {
        {24},
        {12, 12},
        {8, 8, 8},
        {6, 6, 6, 6},
        {0, 24},
        {1, 0, 22, 1},
        {5, 7, 0, 0, 11, 1},
        {3, 3, 3, 3, 3, 3, 3, 3},
        {23, 0, 0, 0, 0, 0, 0, 1},
    };
    static const int32_t ranks[] = {1, 2, 3, 4, 2, 4, 6, 8, 8};
    static const int64_t counts[] = {0, 1, 17, COUNT};
    fill_lanes();
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        for (size_t j = 0; j < sizeof counts / sizeof counts[0]; j++) {
            check_split(ranks[i], splits[i], counts[j]);
        }
    }
}

static mok_status reduce_nothing(mok_comm *comm, void *context)
{
    float *out = context;
    float mine[3] = {7, 7, 7};
    const mok_status status = mok_lane_reduce(comm, mine, NULL, 0, 3);
    if (mok_comm_rank(comm) == 0) {
        memcpy(out, mine, sizeof mine);
    }
    return status;
}

static void no_lanes_at_all_sum_to_plus_zero(void **state)
{
    (void)state;
    float out[3];
    static const float zero[3] = {0, 0, 0};
    for (int32_t ranks = 1; ranks <= 3; ranks++) {
        memset(out, 0xA5, sizeof out);
        assert_int_equal(group_run(ranks, NULL, reduce_nothing, out, NULL, NULL), MOK_OK);
        assert_memory_equal(out, zero, sizeof out);
    }
}

#if defined(__x86_64__)
static mok_status reduce_flushed(mok_comm *comm, void *context)
{
    const uint32_t saved = _mm_getcsr();
    _mm_setcsr(saved | 0x8040u | 0x6000u); /* FTZ, DAZ, toward zero */
    const uint32_t set = _mm_getcsr();
    const mok_status status = reduce_lanes(comm, context);
    const bool kept = ((_mm_getcsr() ^ set) & ~0x3Fu) == 0;
    _mm_setcsr(saved);
    return kept ? status : MOK_ERROR_STATE;
}

static void a_callers_rounding_mode_does_not_reach_the_sum(void **state)
{
    (void)state;
    static float want[COUNT];
    fill_lanes();
    sum_slowly(want, COUNT);
    lane_split split = {.count = COUNT, .lanes_of = {12, 12}};
    for (int32_t rank = 0; rank < 2; rank++) {
        split.out[rank] = malloc(sizeof want);
        assert_non_null(split.out[rank]);
    }
    assert_int_equal(group_run(2, NULL, reduce_flushed, &split, NULL, NULL), MOK_OK);
    for (int32_t rank = 0; rank < 2; rank++) {
        assert_memory_equal(split.out[rank], want, sizeof want);
        free(split.out[rank]);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_rank_passes_a_barrier_before_all_have_arrived),
        cmocka_unit_test(gather_and_broadcast_carry_any_size),
        cmocka_unit_test(many_rounds_of_mixed_calls_stay_in_step),
        cmocka_unit_test(bad_arguments_are_refused_on_every_rank),
        cmocka_unit_test(bad_configurations_leave_no_handle),
        cmocka_unit_test(lanes_are_added_in_global_order_whoever_holds_them),
        cmocka_unit_test(no_lanes_at_all_sum_to_plus_zero),
#if defined(__x86_64__)
        cmocka_unit_test(a_callers_rounding_mode_does_not_reach_the_sum),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
