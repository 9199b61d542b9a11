/* The schedule against a builder that is slow and written from the definition alone: for each
 * expert of a rank ascending, walk all ranks, tokens and slots, and pad with -1 to 128. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "problem.h"

#define MOST_RANKS 8
#define MOST_TOKENS 96
#define MOST_SLOTS 4

typedef struct batch {
    int32_t ranks;
    int64_t experts, slots;
    int64_t tokens[MOST_RANKS];
    int32_t routes[MOST_RANKS][MOST_TOKENS * MOST_SLOTS];
    int64_t max_tokens;
    int64_t capacity_rows;
    bool wide;
    int64_t pitch; /* elements between two tokens' routes, >= slots */
    /* results */
    mok_status status[MOST_RANKS];
    bool empty_after[MOST_RANKS];
    char text[MOST_RANKS][240];
    char wrong[MOST_RANKS][200]; /* "" when the schedule equals the slow one */
} batch;

typedef struct slow_rows {
    int64_t count, capacity;
    int32_t *rank, *slot;
} slow_rows;

static void push(slow_rows *rows, int32_t rank, int32_t slot)
{
    if (rows->count == rows->capacity) {
        rows->capacity = 2 * rows->capacity + 256;
        rows->rank = realloc(rows->rank, (size_t)rows->capacity * sizeof *rows->rank);
        rows->slot = realloc(rows->slot, (size_t)rows->capacity * sizeof *rows->slot);
        if (rows->rank == NULL || rows->slot == NULL) {
            abort();
        }
    }
    rows->rank[rows->count] = rank;
    rows->slot[rows->count] = slot;
    rows->count++;
}

/* Appends one expert's segment; returns its rows without padding. */
static int64_t append_expert(slow_rows *rows, const batch *b, int64_t expert)
{
    int64_t count = 0;
    for (int32_t rank = 0; rank < b->ranks; rank++) {
        for (int64_t token = 0; token < b->tokens[rank]; token++) {
            for (int64_t slot = 0; slot < b->slots; slot++) {
                if (b->routes[rank][token * b->slots + slot] == expert) {
                    push(rows, rank, (int32_t)(token * b->slots + slot));
                    count++;
                }
            }
        }
    }
    while (rows->count % 128 != 0) {
        push(rows, -1, -1);
    }
    return count;
}

static int32_t owner_of(const batch *b, int64_t expert)
{
    /* Experts are dealt out in order, one more to each of the first E % R ranks. */
    int64_t first = 0;
    for (int32_t rank = 0;; rank++) {
        first += b->experts / b->ranks + (rank < b->experts % b->ranks ? 1 : 0);
        if (expert < first) {
            return rank;
        }
    }
}

static void compare(const batch *b, int32_t rank, const mok_schedule_view *view, char wrong[200])
{
    slow_rows rows = {0};
    int64_t local = 0;
    wrong[0] = '\0';
    for (int64_t expert = 0; expert < b->experts && wrong[0] == '\0'; expert++) {
        if (owner_of(b, expert) != rank) {
            continue;
        }
        const int64_t before = rows.count;
        const int64_t count = append_expert(&rows, b, expert);
        if (view->expert_begin + local != expert || view->count_per_expert[local] != count ||
            view->rows_per_expert[local] != rows.count - before) {
            (void)snprintf(wrong, 200, "expert %lld: %lld rows, want %lld", (long long)expert,
                           (long long)view->count_per_expert[local], (long long)count);
        }
        local++;
    }
    if (wrong[0] == '\0' && (view->row_count != rows.count || view->expert_count != local ||
                             view->tokens != b->tokens[rank])) {
        (void)snprintf(wrong, 200, "%lld rows of %lld experts, want %lld of %lld",
                       (long long)view->row_count, (long long)view->expert_count,
                       (long long)rows.count, (long long)local);
    }
    for (int64_t row = 0; row < rows.count && wrong[0] == '\0'; row++) {
        if (view->peer_rank[row] != rows.rank[row] || view->peer_slot[row] != rows.slot[row]) {
            (void)snprintf(wrong, 200, "row %lld is (%d, %d), want (%d, %d)", (long long)row,
                           view->peer_rank[row], view->peer_slot[row], rows.rank[row],
                           rows.slot[row]);
        }
    }
    free(rows.rank);
    free(rows.slot);
}

/* This rank's routes as the caller gives them: i32 or i64, rows apart, the gaps full of nonsense.
 */
static mok_tensor routes_of(const batch *b, int32_t rank, void *memory)
{
    const int64_t t = b->tokens[rank];
    for (int64_t i = 0; i < t * b->pitch; i++) {
        const int64_t token = i / b->pitch;
        const int64_t slot = i % b->pitch;
        const int32_t value = slot < b->slots ? b->routes[rank][token * b->slots + slot] : 1 << 30;
        if (b->wide) {
            ((int64_t *)memory)[i] = slot < b->slots ? value : (int64_t)1 << 40;
        } else {
            ((int32_t *)memory)[i] = value;
        }
    }
    mok_tensor routes =
        mok_tensor_2d(t > 0 ? memory : NULL, b->wide ? MOK_DTYPE_I64 : MOK_DTYPE_I32, t, b->slots);
    routes.stride[0] = b->pitch;
    return routes;
}

static mok_status build(mok_comm *comm, void *context)
{
    batch *b = context;
    const int32_t rank = mok_comm_rank(comm);
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.hidden = 1;
    config.intermediate = 1;
    config.experts = b->experts;
    config.slots = b->slots;
    config.max_tokens = b->max_tokens;
    config.capacity_rows = b->capacity_rows;
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    mok_status status = mok_layer_open(&layer, comm, &config);
    if (status == MOK_OK) {
        status = mok_comm_agree(comm, mok_schedule_open(&schedule, layer));
    }
    void *memory = malloc((size_t)(b->tokens[rank] * b->pitch + 1) * sizeof(int64_t));
    if (memory == NULL) {
        abort();
    }
    const mok_tensor routes = routes_of(b, rank, memory);
    for (int repeat = 0; repeat < 3 && status == MOK_OK; repeat++) { /* both halves of the arena */
        mok_schedule_view view = {.struct_bytes = sizeof view};
        status = mok_schedule_build(schedule, layer, &routes);
        (void)snprintf(b->text[rank], sizeof b->text[rank], "%s", mok_last_error());
        const mok_status read = mok_schedule_read(schedule, &view);
        b->empty_after[rank] = read == MOK_ERROR_STATE;
        if (status == MOK_OK && read == MOK_OK) {
            compare(b, rank, &view, b->wrong[rank]);
        } else if (status == MOK_OK) {
            (void)snprintf(b->wrong[rank], sizeof b->wrong[rank], "could not be read");
        }
    }
    b->status[rank] = status;
    free(memory);
    mok_schedule_close(&schedule);
    mok_layer_close(&layer);
    return MOK_OK;
}

static void run(batch *b)
{
    memset(b->wrong, 0, sizeof b->wrong);
    assert_int_equal(group_run(b->ranks, NULL, build, b, NULL, NULL), MOK_OK);
}

static void expect_equal(batch *b, const char *what)
{
    run(b);
    for (int32_t rank = 0; rank < b->ranks; rank++) {
        if (b->status[rank] != MOK_OK || b->wrong[rank][0] != '\0') {
            fail_msg("%s: rank %d of %d, experts %lld, slots %lld: %s %s %s", what, rank, b->ranks,
                     (long long)b->experts, (long long)b->slots, mok_status_string(b->status[rank]),
                     b->text[rank], b->wrong[rank]);
        }
    }
}

/* Random in every respect; a share of the routes is masked, some experts are favoured. */
static batch random_batch(uint64_t *state, int32_t ranks)
{
    static const int64_t experts[] = {1, 2, 3, 5, 8, 13, 40};
    batch b;
    memset(&b, 0, sizeof b);
    b.ranks = ranks;
    b.experts = experts[random_next(state) % 7];
    b.slots = 1 + (int64_t)(random_next(state) % MOST_SLOTS);
    b.max_tokens = MOST_TOKENS;
    b.wide = random_next(state) % 2 == 0;
    b.pitch = b.slots + (int64_t)(random_next(state) % 3);
    const uint64_t masked = random_next(state) % 4;
    const uint64_t favoured = 1 + random_next(state) % (uint64_t)b.experts;
    for (int32_t rank = 0; rank < ranks; rank++) {
        const uint64_t draw = random_next(state);
        b.tokens[rank] = draw % 5 == 0 ? 0 : (int64_t)((draw >> 8) % (MOST_TOKENS + 1));
        for (int64_t i = 0; i < b.tokens[rank] * b.slots; i++) {
            const uint64_t one = random_next(state) >> 8;
            const uint64_t among = (one >> 20) % 2 == 0 ? favoured : (uint64_t)b.experts;
            b.routes[rank][i] = one % 8 < masked ? -1 : (int32_t)((one >> 24) % among);
        }
    }
    return b;
}

static void random_routes_give_the_slow_builders_schedule(void **state)
{
    (void)state;
    uint64_t random = 77;
    for (int i = 0; i < 160; i++) {
        batch b = random_batch(&random, 1 + i % MOST_RANKS);
        expect_equal(&b, "random");
    }
}

static void segments_at_the_edges_of_a_row_block_are_right(void **state)
{
    (void)state;
    static const int64_t tokens[] = {0, 1, 31, 32, 33, 63, 64, 65, 95, 96};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        for (int32_t ranks = 1; ranks <= 2; ranks++) {
            batch b;
            memset(&b, 0, sizeof b);
            b.ranks = ranks;
            b.experts = 3;
            b.slots = b.pitch = 4; /* 4 * 32 is one block, 4 * 64 is two */
            b.max_tokens = MOST_TOKENS;
            for (int32_t rank = 0; rank < ranks; rank++) {
                b.tokens[rank] = tokens[i];
                for (int64_t j = 0; j < tokens[i] * b.slots; j++) {
                    b.routes[rank][j] = 1; /* everything, and each token four times */
                }
            }
            expect_equal(&b, "edges");
        }
    }
}

static void no_tokens_and_all_masked_give_an_empty_schedule(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 4; ranks++) {
        batch b;
        memset(&b, 0, sizeof b);
        b.ranks = ranks;
        b.experts = 5;
        b.slots = b.pitch = 2;
        b.max_tokens = 8;
        expect_equal(&b, "no tokens");
        for (int32_t rank = 0; rank < ranks; rank++) {
            b.tokens[rank] = 8;
            memset(b.routes[rank], 0xFF, sizeof b.routes[rank]);
        }
        expect_equal(&b, "all masked");
        b.max_tokens = 0;
        memset(b.tokens, 0, sizeof b.tokens);
        expect_equal(&b, "a layer for no tokens");
    }
}

/* Everything of rank 0 and 1 to expert 0: rank 0 needs 2 * 96 * 4 = 768 rows. */
static batch full_batch(void)
{
    batch b;
    memset(&b, 0, sizeof b);
    b.ranks = 3;
    b.experts = 6;
    b.slots = b.pitch = 4;
    b.max_tokens = MOST_TOKENS;
    b.tokens[0] = b.tokens[1] = MOST_TOKENS;
    return b;
}

static void capacity_is_exact(void **state)
{
    (void)state;
    batch b = full_batch();
    b.capacity_rows = 768;
    expect_equal(&b, "exact capacity");
    b.capacity_rows = 640;
    run(&b);
    for (int32_t rank = 0; rank < b.ranks; rank++) {
        assert_int_equal(b.status[rank], MOK_ERROR_CAPACITY);
        assert_true(b.empty_after[rank]);
        assert_non_null(strstr(b.text[rank], "rank 0 needs 768 rows"));
        assert_non_null(strstr(b.text[rank], "640"));
    }
    /* One route more, and the padded rows of two experts count together. */
    b = full_batch();
    b.capacity_rows = 768;
    b.tokens[2] = 1;
    memset(b.routes[2], 0xFF, sizeof b.routes[2]);
    expect_equal(&b, "masked routes take no room");
    b.routes[2][0] = 1;
    run(&b);
    for (int32_t rank = 0; rank < b.ranks; rank++) {
        assert_int_equal(b.status[rank], MOK_ERROR_CAPACITY);
        assert_non_null(strstr(b.text[rank], "needs 896 rows"));
    }
    /* The last rank overflows: everyone knows. */
    b.routes[2][0] = -1;
    for (int i = 0; i < MOST_TOKENS * 4; i++) {
        b.routes[0][i] = b.routes[1][i] = 5;
    }
    b.capacity_rows = 640;
    run(&b);
    for (int32_t rank = 0; rank < b.ranks; rank++) {
        assert_int_equal(b.status[rank], MOK_ERROR_CAPACITY);
        assert_non_null(strstr(b.text[rank], "rank 2 needs 768 rows"));
    }
}

static void the_default_capacity_never_overflows(void **state)
{
    (void)state;
    batch b = full_batch();
    b.tokens[2] = MOST_TOKENS;
    for (int64_t i = 0; i < MOST_TOKENS * b.slots;
         i++) { /* the worst: every expert of rank 0 has a tail */
        b.routes[0][i] = (int32_t)(i % 129 == 0 ? 1 : 0);
        b.routes[1][i] = (int32_t)(i % 127 == 0 ? 1 : 0);
        b.routes[2][i] = (int32_t)(i % 65 == 0 ? 1 : 0);
    }
    expect_equal(&b, "worst case");
}

static void a_bad_route_is_named_with_token_slot_and_value(void **state)
{
    (void)state;
    static const struct {
        int32_t value;
        const char *text;
    } bad[] = {{6, "is 6, must"},
               {-2, "is -2, must"},
               {INT32_MAX, "is 2147483647, must"},
               {INT32_MIN, "is -2147483648, must"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        for (int wide = 0; wide < 2; wide++) {
            batch b = full_batch();
            b.wide = wide == 1;
            b.routes[1][7 * 4 + 2] = bad[i].value;
            b.routes[1][9 * 4 + 1] = bad[i].value; /* the first one is named */
            run(&b);
            for (int32_t rank = 0; rank < b.ranks; rank++) {
                assert_int_equal(b.status[rank], MOK_ERROR_ROUTE);
                assert_true(b.empty_after[rank]);
                assert_non_null(strstr(b.text[rank], "token 7"));
                assert_non_null(strstr(b.text[rank], "slot 2"));
                assert_non_null(strstr(b.text[rank], bad[i].text));
                assert_int_equal(strncmp(b.text[rank], "rank 1: ", 8) == 0, rank != 1);
            }
        }
    }
}

/* A 64-bit index must not be cut to 32 bits before it is checked. */
static mok_status build_wide(mok_comm *comm, void *context)
{
    const int64_t *value = context;
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.hidden = config.intermediate = config.slots = config.max_tokens = 1;
    config.experts = 4;
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    mok_status status = mok_layer_open(&layer, comm, &config);
    if (status == MOK_OK) {
        status = mok_schedule_open(&schedule, layer);
    }
    int64_t routes[1] = {*value};
    const mok_tensor tensor = mok_tensor_2d(routes, MOK_DTYPE_I64, 1, 1);
    if (status == MOK_OK) {
        status = mok_schedule_build(schedule, layer, &tensor);
    }
    mok_schedule_close(&schedule);
    mok_layer_close(&layer);
    return status;
}

static void wide_routes_are_not_cut_to_32_bits(void **state)
{
    (void)state;
    int64_t values[] = {((int64_t)1 << 32) + 1, -((int64_t)1 << 32), INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        assert_int_equal(group_run(1, NULL, build_wide, &values[i], NULL, NULL), MOK_ERROR_ROUTE);
    }
    int64_t good = 3;
    assert_int_equal(group_run(1, NULL, build_wide, &good, NULL, NULL), MOK_OK);
}

static void experts_are_dealt_out_as_documented(void **state)
{
    (void)state;
    for (int64_t experts = 0; experts < 40; experts++) {
        for (int32_t ranks = 1; ranks <= MOK_MAX_RANKS; ranks++) {
            int64_t next = 0;
            for (int32_t rank = 0; rank < ranks; rank++) {
                int64_t begin = -1;
                int64_t count = -1;
                assert_int_equal(mok_expert_range(experts, ranks, rank, &begin, &count), MOK_OK);
                assert_int_equal(begin, next);
                assert_int_equal(count, experts / ranks + (rank < experts % ranks));
                next += count;
            }
            assert_int_equal(next, experts);
        }
    }
    int64_t out;
    assert_int_equal(mok_expert_range(4, 2, 2, &out, &out), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_expert_range(4, 2, -1, &out, &out), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_expert_range(4, 0, 0, &out, &out), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_expert_range(-1, 2, 0, &out, &out), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_expert_range(4, 2, 0, NULL, &out), MOK_ERROR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_routes_give_the_slow_builders_schedule),
        cmocka_unit_test(segments_at_the_edges_of_a_row_block_are_right),
        cmocka_unit_test(no_tokens_and_all_masked_give_an_empty_schedule),
        cmocka_unit_test(capacity_is_exact),
        cmocka_unit_test(the_default_capacity_never_overflows),
        cmocka_unit_test(a_bad_route_is_named_with_token_slot_and_value),
        cmocka_unit_test(wide_routes_are_not_cut_to_32_bits),
        cmocka_unit_test(experts_are_dealt_out_as_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
