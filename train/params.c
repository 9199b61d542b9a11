/* The table of parameters: layout and first values.
 *
 * The order of the table is part of the bits: the index of a parameter keys its random numbers, and
 * the digest, the norm and the checkpoint walk it from the front. */
#include "params.h"

#include "data.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ALIGN_ELEMENTS 32

static int32_t add(params *p, param_kind kind, int64_t rows, int64_t cols, float deviation,
                   bool decays, const char *format, ...) __attribute__((format(printf, 7, 8)));

/* rows 0: a vector of cols. */
static int32_t add(params *p, param_kind kind, int64_t rows, int64_t cols, float deviation,
                   bool decays, const char *format, ...)
{
    param *item = &p->list[p->count];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(item->name, sizeof item->name, format, arguments);
    va_end(arguments);
    item->kind = kind;
    item->rank = rows == 0 ? 1 : 2;
    item->shape[0] = rows == 0 ? cols : rows;
    item->shape[1] = rows == 0 ? 1 : cols;
    item->unit_size = item->shape[0] * item->shape[1];
    item->units = kind == PARAM_EXPERT ? p->expert_count : 1;
    item->deviation = deviation;
    item->decays = decays;
    return p->count++;
}

static float inverse_root(int64_t value)
{
    return 1.0f / sqrtf((float)value);
}

static void add_block(params *p, int32_t idx)
{
    const train_shape *s = &p->shape;
    param_block *b = &p->block[idx];
    const int64_t h = s->hidden;
    const float in = inverse_root(h);
    /* What is added to the residual stream starts smaller the more blocks add to it. */
    const float residual = inverse_root(2 * s->blocks);
    b->norm1 = add(p, PARAM_REPLICATED, 0, h, 0.0f, false, "block.%d.norm1", idx);
    b->qkv = add(p, PARAM_REPLICATED, 3 * h, h, in, true, "block.%d.qkv", idx);
    b->out = add(p, PARAM_REPLICATED, h, h, in * residual, true, "block.%d.out", idx);
    b->norm2 = add(p, PARAM_REPLICATED, 0, h, 0.0f, false, "block.%d.norm2", idx);
    b->router = add(p, PARAM_REPLICATED, s->experts, h, in, false, "block.%d.router", idx);
    const float down = residual * inverse_root(s->shared_inner);
    b->shared_gate =
        add(p, PARAM_REPLICATED, s->shared_inner, h, in, true, "block.%d.shared.gate", idx);
    b->shared_up =
        add(p, PARAM_REPLICATED, s->shared_inner, h, in, true, "block.%d.shared.up", idx);
    b->shared_down =
        add(p, PARAM_REPLICATED, h, s->shared_inner, down, true, "block.%d.shared.down", idx);
}

static void add_experts(params *p, int32_t idx)
{
    const train_shape *s = &p->shape;
    param_block *b = &p->block[idx];
    const int64_t h = s->hidden;
    const float in = inverse_root(h);
    const float down = inverse_root(2 * s->blocks) * inverse_root(s->inner);
    b->gate = add(p, PARAM_EXPERT, s->inner, h, in, true, "block.%d.experts.gate", idx);
    b->up = add(p, PARAM_EXPERT, s->inner, h, in, true, "block.%d.experts.up", idx);
    b->down = add(p, PARAM_EXPERT, h, s->inner, down, true, "block.%d.experts.down", idx);
}

void params_describe(params *out, const train_shape *shape, int32_t ranks, int32_t rank)
{
    memset(out, 0, sizeof *out);
    out->shape = *shape;
    out->expert_begin = train_split_begin(shape->experts, ranks, rank);
    out->expert_count = train_split_count(shape->experts, ranks, rank);
    const int64_t h = shape->hidden;
    out->embedding = add(out, PARAM_REPLICATED, TRAIN_VOCABULARY, h, 0.02f, false, "embedding");
    out->norm = add(out, PARAM_REPLICATED, 0, h, 0.0f, false, "norm");
    out->head = add(out, PARAM_REPLICATED, TRAIN_VOCABULARY, h, inverse_root(h), true, "head");
    for (int32_t idx = 0; idx < (int32_t)shape->blocks; idx++) {
        add_block(out, idx);
    }
    for (int32_t idx = 0; idx < (int32_t)shape->blocks; idx++) {
        add_experts(out, idx);
    }
    int64_t offset = 0;
    for (int32_t i = 0; i < out->count; i++) {
        param *item = &out->list[i];
        item->offset = offset;
        offset = train_round_up(offset + item->unit_size * item->units, ALIGN_ELEMENTS);
        if (item->kind == PARAM_REPLICATED) {
            out->replicated_count = offset;
        }
    }
    out->local_count = offset;
}

int64_t params_total(const params *p)
{
    int64_t total = 0;
    for (int32_t i = 0; i < p->count; i++) {
        total += p->list[i].unit_size * (p->list[i].kind == PARAM_EXPERT ? p->shape.experts : 1);
    }
    return total;
}

void params_place(params *p, train_arena *arena)
{
    p->master = train_arena_take(arena, p->local_count, sizeof(float));
    p->m = train_arena_take(arena, p->local_count, sizeof(float));
    p->v = train_arena_take(arena, p->local_count, sizeof(float));
    p->grad = train_arena_take(arena, p->local_count, sizeof(float));
    p->copy = train_arena_take(arena, p->local_count, sizeof(uint16_t));
    p->bias = train_arena_take(arena, p->shape.blocks * p->shape.experts, sizeof(float));
}

/* The sum of four uniform 16-bit numbers is near enough to a normal one, and exact: mean 2 * 65535,
 * variance 4 * (65536^2 - 1) / 12, hence the factor sqrt(3). Whole numbers up to 2^18 are exact
 * floats. */
static float bell(uint64_t bits)
{
    const int32_t sum = (int32_t)((bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) +
                                  ((bits >> 32) & 0xFFFF) + (bits >> 48));
    return (float)(sum - 2 * 65535) * (0x1.bb67aep+0f / 65536.0f);
}

void params_init(params *p, uint64_t seed)
{
    memset(p->m, 0, (size_t)p->local_count * sizeof(float));
    memset(p->v, 0, (size_t)p->local_count * sizeof(float));
    memset(p->master, 0, (size_t)p->local_count * sizeof(float));
    memset(p->bias, 0, (size_t)(p->shape.blocks * p->shape.experts) * sizeof(float));
    for (int32_t i = 0; i < p->count; i++) {
        const param *item = &p->list[i];
        const uint64_t key = train_key(train_key(seed, TRAIN_STREAM_INIT), (uint64_t)i);
        const int64_t first = item->kind == PARAM_EXPERT ? p->expert_begin : 0;
        for (int64_t unit = 0; unit < item->units; unit++) {
            float *values = params_unit(p->master, item, unit);
            const uint64_t unit_key = train_key(key, (uint64_t)(first + unit));
            for (int64_t k = 0; k < item->unit_size; k++) {
                values[k] = item->deviation == 0.0f
                                ? 1.0f
                                : bell(train_random(unit_key, (uint64_t)k)) * item->deviation;
            }
        }
    }
    params_copy(p, 0, p->local_count);
}

void params_copy(params *p, int64_t begin, int64_t end)
{
    mok_bf16_from_f32(p->copy + begin, p->master + begin, end - begin);
}
