/* Where everything lies: sizes equal the formulas that docs/layer.md gives, parts are aligned and
 * apart, and what is promised is what is allocated. The formulas are written out again here, on
 * purpose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "plan/layout.h"
#include "problem.h"

static int64_t between(uint64_t *state, int64_t low, int64_t high)
{
    return low + (int64_t)((random_next(state) >> 11) % (uint64_t)(high - low + 1));
}

static mok_layer_config random_config(uint64_t *state)
{
    mok_layer_config c;
    mok_layer_config_init(&c);
    c.hidden = between(state, 1, 3000);
    c.intermediate = between(state, 1, 3000);
    c.shared_intermediate = between(state, 0, 1) * between(state, 1, 2000);
    c.experts = between(state, 1, 200);
    c.slots = between(state, 1, 9);
    c.max_tokens = between(state, 0, 9) == 0 ? 0 : between(state, 1, 5000);
    c.capacity_rows = between(state, 0, 1) * 128 * between(state, 1, 300);
    c.macrobatch_rows = between(state, 0, 1) * 128 * between(state, 1, 100);
    c.minibatch_rows = between(state, 0, 1) * 128 * between(state, 1, 20);
    return c;
}

static int64_t up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows and counts that the formulas are written in. */
typedef struct rows {
    int64_t experts, capacity, ring;
    int64_t chains, counter_length;
} rows;

static rows rows_of(const mok_layer_config *c, int32_t ranks, int32_t rank)
{
    rows r;
    const int64_t routes = c->max_tokens * c->slots;
    r.experts = c->experts / ranks + (rank < c->experts % ranks ? 1 : 0);
    r.capacity =
        c->capacity_rows > 0 ? c->capacity_rows : up(ranks * routes + 127 * r.experts, 128);
    const int64_t asked =
        c->macrobatch_rows > 0 ? c->macrobatch_rows : up(2 * routes + 128 * r.experts, 128);
    r.ring = least(asked > 128 ? asked : 128, r.capacity > 128 ? r.capacity : 128);
    r.chains = r.capacity > r.ring ? 2 : 0;
    const int64_t token_blocks = up(c->max_tokens, 128) / 128;
    const int64_t blocks = r.capacity / 128;
    r.counter_length = (blocks > token_blocks ? blocks : token_blocks) + 1;
    return r;
}

static int64_t line(int64_t count, int64_t element)
{
    return up(count * element, 64);
}

static int64_t arena_bytes(const mok_layer_config *c)
{
    const int64_t t = c->max_tokens;
    const int64_t k = c->slots;
    return 2 * line(t * c->hidden, 2) + line(t * k * c->hidden, 2) + 2 * line(t * k, 4) +
           2 * line(t * k, 4) + line(2, 8);
}

static int64_t workspace_bytes(const mok_layer_config *c, const rows *r)
{
    const int64_t h = c->hidden;
    const int64_t i = c->intermediate;
    const int64_t s = c->shared_intermediate;
    const int64_t t = s > 0 ? c->max_tokens : 0;
    return 3 * line(r->ring * i, 2) + 2 * line(r->ring * h, 2) + line(r->ring, 4) +
           line(r->ring * (up(i, 128) / 128), 4) + 3 * line(t * s, 2) + line(t * h, 2) +
           r->chains * line(3 * i * h, 4) + line(9 * r->counter_length, 4) + line(c->experts, 8);
}

static int64_t activations_bytes(const mok_layer_config *c, const rows *r)
{
    return line(r->ring * c->hidden, 2) + 2 * line(r->ring * c->intermediate, 2) +
           2 * line(c->max_tokens * c->shared_intermediate, 2);
}

static int64_t schedule_bytes(const mok_layer_config *c, const rows *r)
{
    return 2 * line(r->capacity, 4) + line(r->capacity / 128, 4) + 2 * line(r->experts, 8) +
           line(r->experts + 1, 8) + line(c->max_tokens * c->slots, 4);
}

static void sizes_equal_the_documented_formulas(void **state)
{
    (void)state;
    uint64_t random = 8;
    for (int i = 0; i < 3000; i++) {
        const mok_layer_config c = random_config(&random);
        const int32_t ranks = (int32_t)between(&random, 1, 9);
        const int32_t rank = (int32_t)between(&random, 0, ranks - 1);
        const rows r = rows_of(&c, ranks, rank);
        mok_layer_sizes sizes = {.struct_bytes = sizeof sizes};
        assert_int_equal(mok_layer_sizes_query(&sizes, &c, ranks, rank, 2), MOK_OK);
        assert_int_equal(sizes.arena_bytes, arena_bytes(&c));
        assert_int_equal(sizes.workspace_bytes, workspace_bytes(&c, &r));
        assert_int_equal(sizes.activations_bytes, activations_bytes(&c, &r));
        assert_int_equal(sizes.schedule_bytes, schedule_bytes(&c, &r));
    }
}

/* ---- Offsets ---- */

typedef struct part {
    size_t offset;
    int64_t bytes;
} part;

static int by_offset(const void *a, const void *b)
{
    const part *left = a;
    const part *right = b;
    return left->offset < right->offset ? -1 : left->offset > right->offset;
}

/* Aligned, apart, inside. Empty parts may share an offset with their neighbour. */
static void expect_apart(part *parts, size_t count, size_t bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(parts[i].offset % MOK_CACHE_LINE, 0);
        if (parts[i].bytes > 0) {
            parts[used++] = parts[i];
        }
    }
    qsort(parts, used, sizeof *parts, by_offset);
    for (size_t i = 0; i < used; i++) {
        const size_t end = parts[i].offset + (size_t)parts[i].bytes;
        assert_true(end <= (i + 1 < used ? parts[i + 1].offset : bytes));
    }
}

static void parts_are_aligned_and_do_not_overlap(void **state)
{
    (void)state;
    uint64_t random = 15;
    for (int i = 0; i < 2000; i++) {
        const mok_layer_config c = random_config(&random);
        const int32_t ranks = (int32_t)between(&random, 1, 9);
        const int32_t rank = (int32_t)between(&random, 0, ranks - 1);
        mok_shape s;
        assert_int_equal(mok_shape_make(&s, &c, ranks, rank), MOK_OK);
        const int64_t t = s.max_tokens;
        const int64_t tk = t * s.slots;
        const int64_t ring = s.macro_blocks * 128;
        const int64_t st = s.shared_inner > 0 ? t : 0;
        const int64_t cap = s.capacity_blocks * 128;
        mok_arena_layout a;
        assert_true(mok_arena_layout_make(&a, &s));
        part arena[] = {{a.x, t * s.hidden * 2},      {a.dy, t * s.hidden * 2},
                        {a.slots, tk * s.hidden * 2}, {a.router_weights, tk * 4},
                        {a.d_router_weights, tk * 4}, {a.routes[0], tk * 4},
                        {a.routes[1], tk * 4},        {a.tokens, 16}};
        expect_apart(arena, sizeof arena / sizeof arena[0], a.bytes);
        mok_workspace_layout w;
        assert_true(mok_workspace_layout_make(&w, &s));
        const int64_t chain = s.capacity_blocks > s.macro_blocks ? 3 * s.inner * s.hidden * 4 : 0;
        part workspace[] = {{w.h, ring * s.inner * 2},
                            {w.y, ring * s.hidden * 2},
                            {w.dy, ring * s.hidden * 2},
                            {w.dg, ring * s.inner * 2},
                            {w.du, ring * s.inner * 2},
                            {w.row_weight, ring * 4},
                            {w.router_part, ring * up(s.inner, 128) / 128 * 4},
                            {w.shared_h, st * s.shared_inner * 2},
                            {w.shared_y, st * s.hidden * 2},
                            {w.shared_dg, st * s.shared_inner * 2},
                            {w.shared_du, st * s.shared_inner * 2},
                            {w.chain[0], chain},
                            {w.chain[1], chain},
                            {w.counters, MOK_COUNTERS * mok_counter_blocks(&s) * 4},
                            {w.expert_counts, s.experts * 8}};
        expect_apart(workspace, sizeof workspace / sizeof workspace[0], w.bytes);
        mok_activations_layout k;
        assert_true(mok_activations_layout_make(&k, &s));
        part kept[] = {{k.x, ring * s.hidden * 2},
                       {k.g, ring * s.inner * 2},
                       {k.u, ring * s.inner * 2},
                       {k.shared_g, t * s.shared_inner * 2},
                       {k.shared_u, t * s.shared_inner * 2}};
        expect_apart(kept, sizeof kept / sizeof kept[0], k.bytes);
        mok_schedule_layout l;
        assert_true(mok_schedule_layout_make(&l, &s));
        part schedule[] = {{l.peer_rank, cap * 4},
                           {l.peer_slot, cap * 4},
                           {l.block_expert, cap / 128 * 4},
                           {l.rows, s.expert_count * 8},
                           {l.counts, s.expert_count * 8},
                           {l.begin, (s.expert_count + 1) * 8},
                           {l.routes, tk * 4}};
        expect_apart(schedule, sizeof schedule / sizeof schedule[0], l.bytes);
    }
}

/* ---- Promised is allocated ---- */

typedef struct ledger {
    int64_t bytes;
} ledger;

static void *ledger_allocate(void *context, size_t bytes, size_t alignment)
{
    ledger *book = context;
    void *memory = NULL;
    if (bytes >= (size_t)1 << 36 || /* so that no sanitizer sees the request */
        posix_memalign(&memory, alignment, bytes) != 0) {
        return NULL;
    }
    book->bytes += (int64_t)bytes;
    return memory;
}

static void ledger_release(void *context, void *memory, size_t bytes)
{
    ledger *book = context;
    book->bytes -= (int64_t)bytes;
    free(memory);
}

static void what_is_promised_is_what_is_allocated(void **state)
{
    (void)state;
    uint64_t random = 4;
    for (int i = 0; i < 40; i++) {
        mok_layer_config c = random_config(&random);
        c.hidden = between(&random, 1, 64);
        c.intermediate = between(&random, 1, 64);
        c.max_tokens = between(&random, 0, 300);
        const int32_t threads = (int32_t)between(&random, 1, 3);
        mok_layer_sizes sizes = {.struct_bytes = sizeof sizes};
        assert_int_equal(mok_layer_sizes_query(&sizes, &c, 1, 0, threads), MOK_OK);
        ledger book = {0};
        mok_comm_config config;
        mok_comm_config_init(&config);
        config.threads = threads;
        const mok_allocator allocator = {ledger_allocate, ledger_release, &book};
        config.allocator = allocator;
        mok_comm *comm = NULL;
        assert_int_equal(mok_comm_open_local(&comm, 1, &config), MOK_OK);
        /* Handles come on top of what is promised: a few kilobytes, whatever the layer. */
        assert_in_range(book.bytes - (int64_t)sizes.comm_bytes, 0, 4096);
        int64_t before = book.bytes;
        mok_layer *layer = NULL;
        assert_int_equal(mok_layer_open(&layer, comm, &c), MOK_OK);
        assert_in_range(book.bytes - before - (int64_t)(sizes.arena_bytes + sizes.workspace_bytes),
                        0, 8192);
        before = book.bytes;
        mok_schedule *schedule = NULL;
        assert_int_equal(mok_schedule_open(&schedule, layer), MOK_OK);
        assert_in_range(book.bytes - before - (int64_t)sizes.schedule_bytes, 0, 256);
        before = book.bytes;
        mok_activations *activations = NULL;
        assert_int_equal(mok_activations_open(&activations, layer), MOK_OK);
        assert_in_range(book.bytes - before - (int64_t)sizes.activations_bytes, 0, 256);
        mok_activations_close(&activations);
        mok_schedule_close(&schedule);
        mok_layer_close(&layer);
        mok_comm_close(&comm);
        assert_int_equal(book.bytes, 0);
    }
}

/* ---- Limits ---- */

static mok_status query(const mok_layer_config *c)
{
    mok_layer_sizes sizes = {.struct_bytes = sizeof sizes};
    return mok_layer_sizes_query(&sizes, c, 4, 1, 1);
}

static mok_layer_config plain_config(void)
{
    mok_layer_config c;
    mok_layer_config_init(&c);
    c.hidden = 64;
    c.intermediate = 32;
    c.experts = 8;
    c.slots = 2;
    c.max_tokens = 100;
    return c;
}

static void expect_field(const mok_layer_config *c, mok_status want, const char *field,
                         const char *value)
{
    const mok_status status = query(c);
    if (status != want || strstr(mok_last_error(), field) == NULL ||
        strstr(mok_last_error(), value) == NULL) {
        fail_msg("%s = %s: %s, %s", field, value, mok_status_string(status), mok_last_error());
    }
}

static void every_limit_of_a_configuration_is_named(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        const char *field;
        int64_t value;
        const char *text;
    } fields[] = {
        {offsetof(mok_layer_config, hidden), "hidden", 0, "is 0"},
        {offsetof(mok_layer_config, hidden), "hidden", INT64_MAX, "is 9223372036854775807"},
        {offsetof(mok_layer_config, intermediate), "intermediate", -1, "is -1"},
        {offsetof(mok_layer_config, intermediate), "intermediate", 1 << 25, "is 33554432"},
        {offsetof(mok_layer_config, shared_intermediate), "shared_intermediate", -5, "is -5"},
        {offsetof(mok_layer_config, experts), "experts", 0, "is 0"},
        {offsetof(mok_layer_config, experts), "experts", INT64_MIN, "is -9223372036854775808"},
        {offsetof(mok_layer_config, slots), "slots", 0, "is 0"},
        {offsetof(mok_layer_config, slots), "slots", 1 << 20, "is 1048576"},
        {offsetof(mok_layer_config, max_tokens), "max_tokens", -1, "is -1"},
        {offsetof(mok_layer_config, max_tokens), "max_tokens", (int64_t)1 << 31, "is 2147483648"},
        {offsetof(mok_layer_config, capacity_rows), "capacity_rows", 100, "is 100"},
        {offsetof(mok_layer_config, capacity_rows), "capacity_rows", -128, "is -128"},
        {offsetof(mok_layer_config, macrobatch_rows), "macrobatch_rows", 1, "is 1"},
        {offsetof(mok_layer_config, minibatch_rows), "minibatch_rows", 129, "is 129"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        mok_layer_config c = plain_config();
        memcpy((char *)&c + fields[i].at, &fields[i].value, sizeof fields[i].value);
        expect_field(&c, MOK_ERROR_SHAPE, fields[i].field, fields[i].text);
    }
    mok_layer_config c = plain_config();
    c.arith = (mok_arith)7;
    expect_field(&c, MOK_ERROR_ARGUMENT, "arith", "is 7");
    c = plain_config();
    c.activation = (mok_activation)0;
    expect_field(&c, MOK_ERROR_ARGUMENT, "activation", "is 0");
    c = plain_config();
    c.weights = MOK_WEIGHTS_MXFP8;
    expect_field(&c, MOK_ERROR_UNSUPPORTED, "weights", "MXFP8");
    c = plain_config();
    c.weights = (mok_weights)9;
    expect_field(&c, MOK_ERROR_ARGUMENT, "weights", "is 9");
    c = plain_config();
    c.struct_bytes--;
    expect_field(&c, MOK_ERROR_ARGUMENT, "struct_bytes", "must be");
    c.struct_bytes += 2;
    expect_field(&c, MOK_ERROR_ARGUMENT, "struct_bytes", "must be");
    assert_int_equal(query(NULL), MOK_ERROR_ARGUMENT);
}

static void a_clamp_limit_is_finite_and_not_negative_where_it_is_read(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x80000001};
    static const uint32_t good[] = {0x00000000, 0x80000000, 0x3F800000, 0x00000001, 0x7F7FFFFF};
    mok_layer_config c = plain_config();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memcpy(&c.swiglu_limit, &bad[i], sizeof bad[i]);
        c.activation = MOK_ACTIVATION_SWIGLU;
        assert_int_equal(query(&c), MOK_OK);
        c.activation = MOK_ACTIVATION_SWIGLU_CLAMPED;
        expect_field(&c, MOK_ERROR_ARGUMENT, "swiglu_limit", "finite");
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        memcpy(&c.swiglu_limit, &good[i], sizeof good[i]);
        assert_int_equal(query(&c), MOK_OK);
    }
}

static void sizes_past_the_address_space_are_refused_before_anything_is_allocated(void **state)
{
    (void)state;
    mok_layer_config c = plain_config();
    c.hidden = c.intermediate = c.shared_intermediate = 1 << 24;
    c.max_tokens = INT32_MAX / 2;
    c.capacity_rows = c.macrobatch_rows = (int64_t)128 << 39; /* rows * I passes 2^64 bytes */
    expect_field(&c, MOK_ERROR_MEMORY, "hidden 16777216", "more bytes than an address can name");
    /* Just absurd: 2^40 elements and more, inside an address but in no machine. */
    c = plain_config();
    c.hidden = c.intermediate = 1 << 24;
    c.max_tokens = 1 << 20;
    mok_layer_sizes sizes = {.struct_bytes = sizeof sizes};
    assert_int_equal(mok_layer_sizes_query(&sizes, &c, 1, 0, 1), MOK_OK);
    assert_true(sizes.arena_bytes > (size_t)1 << 45);
    mok_comm *comm = NULL;
    ledger book = {0};
    mok_comm_config config;
    mok_comm_config_init(&config);
    const mok_allocator allocator = {ledger_allocate, ledger_release, &book};
    config.allocator = allocator;
    assert_int_equal(mok_comm_open_local(&comm, 1, &config), MOK_OK);
    mok_layer *layer = NULL;
    assert_int_equal(mok_layer_open(&layer, comm, &c), MOK_ERROR_MEMORY);
    assert_null(layer);
    mok_comm_close(&comm);
    assert_int_equal(book.bytes, 0);
}

static void an_extent_never_wraps(void **state)
{
    (void)state;
    mok_extent e = {0, false};
    assert_int_equal(mok_extent_add(&e, 3, 5, 1, 4), 0);
    assert_int_equal(e.bytes, 64);
    assert_int_equal(mok_extent_add(&e, 1, 1, 1, 1), 64);
    assert_int_equal(mok_extent_add(&e, 0, 7, 1, 8), 128);
    assert_int_equal(e.bytes, 128);
    assert_false(e.overflow);
    static const int64_t bad[][3] = {{-1, 1, 1},
                                     {INT64_MAX, 3, 1},
                                     {INT64_MAX, 1, 1},
                                     {(int64_t)1 << 32, (int64_t)1 << 31, 1},
                                     {(int64_t)1 << 31, (int64_t)1 << 31, 1 << 4}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mok_extent one = {0, false};
        (void)mok_extent_add(&one, bad[i][0], bad[i][1], bad[i][2], 4);
        assert_true(one.overflow);
    }
    mok_extent sum = {0, false};
    (void)mok_extent_add(&sum, INT64_MAX / 8, 1, 1, 8);
    (void)mok_extent_add(&sum, INT64_MAX / 8, 1, 1, 8);
    (void)mok_extent_add(&sum, 64, 1, 1, 8);
    assert_true(sum.overflow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_equal_the_documented_formulas),
        cmocka_unit_test(parts_are_aligned_and_do_not_overlap),
        cmocka_unit_test(what_is_promised_is_what_is_allocated),
        cmocka_unit_test(every_limit_of_a_configuration_is_named),
        cmocka_unit_test(a_clamp_limit_is_finite_and_not_negative_where_it_is_read),
        cmocka_unit_test(sizes_past_the_address_space_are_refused_before_anything_is_allocated),
        cmocka_unit_test(an_extent_never_wraps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
