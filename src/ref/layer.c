/* The whole layer in plain C, expert by expert. The numbers in comments are the steps of
 * docs/layer.md. */
#include "ref/layer.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

/* What one expert (or the shared one) does with its n rows. */
typedef struct expert_rows {
    int64_t count, inner, hidden;
    int64_t *slot;               /* [n] token * K + k; the token itself for the shared expert */
    uint16_t *x, *g, *u, *h, *y; /* [n, H] or [n, I] */
    uint16_t *dy, *dg, *du, *hw, *dx; /* backward */
    float *s, *d_router;              /* [n, I], [n] */
    void *memory;
} expert_rows;

static mok_status rows_open(expert_rows *rows, int64_t count, int64_t inner, int64_t hidden)
{
    memset(rows, 0, sizeof *rows);
    rows->count = count;
    rows->inner = inner;
    rows->hidden = hidden;
    mok_extent extent = {0, false};
    const size_t wide[4] = {
        mok_extent_add(&extent, count, hidden, 1, 2), mok_extent_add(&extent, count, hidden, 1, 2),
        mok_extent_add(&extent, count, hidden, 1, 2), mok_extent_add(&extent, count, hidden, 1, 2)};
    size_t narrow[6];
    for (int i = 0; i < 6; i++) {
        narrow[i] = mok_extent_add(&extent, count, inner, 1, 2);
    }
    const size_t s = mok_extent_add(&extent, count, inner, 1, sizeof(float));
    const size_t d_router = mok_extent_add(&extent, count, 1, 1, sizeof(float));
    const size_t slot = mok_extent_add(&extent, count, 1, 1, sizeof(int64_t));
    unsigned char *base = extent.overflow ? NULL : malloc(extent.bytes + 1);
    MOK_REQUIRE(base != NULL, MOK_ERROR_MEMORY, "reference: no memory for %lld rows",
                (long long)count);
    rows->memory = base;
    rows->x = (uint16_t *)(void *)(base + wide[0]);
    rows->y = (uint16_t *)(void *)(base + wide[1]);
    rows->dy = (uint16_t *)(void *)(base + wide[2]);
    rows->dx = (uint16_t *)(void *)(base + wide[3]);
    rows->g = (uint16_t *)(void *)(base + narrow[0]);
    rows->u = (uint16_t *)(void *)(base + narrow[1]);
    rows->h = (uint16_t *)(void *)(base + narrow[2]);
    rows->dg = (uint16_t *)(void *)(base + narrow[3]);
    rows->du = (uint16_t *)(void *)(base + narrow[4]);
    rows->hw = (uint16_t *)(void *)(base + narrow[5]);
    rows->s = (float *)(void *)(base + s);
    rows->d_router = (float *)(void *)(base + d_router);
    rows->slot = (int64_t *)(void *)(base + slot);
    return MOK_OK;
}

static void rows_close(expert_rows *rows)
{
    free(rows->memory);
    rows->memory = NULL;
}

/* c [m, n] continues the chain over k: any size, through the reference kernel's tiles. */
static mok_status product(const mok_ref_layer *layer, float *c, const mok_operand *a,
                          const mok_operand *b, int64_t m, int64_t n, int64_t k)
{
    const mok_kernels *ref = &mok_kernels_ref;
    void *scratch = malloc(ref->product_scratch_bytes + 1);
    MOK_REQUIRE(scratch != NULL, MOK_ERROR_MEMORY, "reference: no memory for a product");
    for (int64_t row = 0; row < m; row += MOK_TILE_ROWS) {
        for (int64_t col = 0; col < n; col += MOK_TILE_COLS) {
            const mok_operand left = {a->data + (a->transposed ? row : row * a->stride), a->stride,
                                      a->transposed};
            const mok_operand right = {b->data + (b->transposed ? col : col * b->stride), b->stride,
                                       b->transposed};
            (layer->arith == MOK_ARITH_FMA ? ref->product_fma : ref->product_tc16)(
                c + row * n + col, n, &left, &right, mok_min64(m - row, MOK_TILE_ROWS),
                mok_min64(n - col, MOK_TILE_COLS), k, scratch);
        }
    }
    free(scratch);
    return MOK_OK;
}

/* bf16(product), from +0. */
static mok_status product_bf16(const mok_ref_layer *layer, uint16_t *c, const mok_operand *a,
                               const mok_operand *b, int64_t m, int64_t n, int64_t k)
{
    float *sum = calloc((size_t)(m * n) + 1, sizeof *sum);
    MOK_REQUIRE(sum != NULL, MOK_ERROR_MEMORY, "reference: no memory for a product");
    const mok_status status = product(layer, sum, a, b, m, n, k);
    mok_kernels_ref.bf16_from_f32(c, sum, m * n);
    free(sum);
    return status;
}

typedef struct expert_weights {
    const uint16_t *gate, *up, *down;
} expert_weights;

/* 1. The rows of expert e: its routes in ascending (token, slot). */
static mok_status gather(const mok_ref_layer *layer, expert_rows *rows, int64_t expert)
{
    int64_t count = 0;
    for (int64_t i = 0; i < layer->tokens * layer->slots; i++) {
        count += layer->routes[i] == expert;
    }
    MOK_TRY(rows_open(rows, count, layer->inner, layer->hidden));
    int64_t row = 0;
    for (int64_t i = 0; i < layer->tokens * layer->slots; i++) {
        if (layer->routes[i] == expert) {
            rows->slot[row++] = i;
        }
    }
    return MOK_OK;
}

/* The shared expert sees every token once. */
static mok_status gather_shared(const mok_ref_layer *layer, expert_rows *rows)
{
    MOK_TRY(rows_open(rows, layer->tokens, layer->shared_inner, layer->hidden));
    for (int64_t token = 0; token < layer->tokens; token++) {
        rows->slot[token] = token;
    }
    return MOK_OK;
}

static void copy_tokens(const expert_rows *rows, uint16_t *out, const uint16_t *from, int64_t slots)
{
    for (int64_t row = 0; row < rows->count; row++) {
        memcpy(out + row * rows->hidden, from + rows->slot[row] / slots * rows->hidden,
               (size_t)rows->hidden * sizeof *out);
    }
}

/* 2 and 3. g, u, h */
static mok_status gate_up(const mok_ref_layer *layer, expert_rows *rows,
                          const expert_weights *weights)
{
    const int64_t cells = rows->count * rows->inner;
    const mok_operand x = {rows->x, rows->hidden, false};
    const mok_operand gate = {weights->gate, rows->hidden, false};
    const mok_operand up = {weights->up, rows->hidden, false};
    float *acc = calloc(2 * (size_t)cells + 1, sizeof *acc);
    MOK_REQUIRE(acc != NULL, MOK_ERROR_MEMORY, "reference: no memory for gate and up");
    mok_status status = product(layer, acc, &x, &gate, rows->count, rows->inner, rows->hidden);
    if (status == MOK_OK) {
        status = product(layer, acc + cells, &x, &up, rows->count, rows->inner, rows->hidden);
    }
    mok_kernels_ref.swiglu_forward(rows->h, rows->g, rows->u, acc, acc + cells, cells,
                                   &layer->swiglu);
    free(acc);
    return status;
}

/* 1 to 4 of forward. */
static mok_status expert_forward(const mok_ref_layer *layer, expert_rows *rows,
                                 const expert_weights *weights, int64_t slots)
{
    copy_tokens(rows, rows->x, layer->x, slots);
    MOK_TRY(gate_up(layer, rows, weights));
    const mok_operand h = {rows->h, rows->inner, false};
    const mok_operand down = {weights->down, rows->inner, false};
    return product_bf16(layer, rows->y, &h, &down, rows->count, rows->hidden, rows->inner);
}

static expert_weights weights_of(const mok_ref_layer *layer, int64_t expert)
{
    const int64_t matrix = layer->inner * layer->hidden;
    const expert_weights weights = {layer->gate + expert * matrix, layer->up + expert * matrix,
                                    layer->down + expert * matrix};
    return weights;
}

static expert_weights shared_weights_of(const mok_ref_layer *layer)
{
    const expert_weights weights = {layer->shared_gate, layer->shared_up, layer->shared_down};
    return weights;
}

mok_status mok_ref_forward(const mok_ref_layer *layer, uint16_t *out)
{
    const int64_t hidden = layer->hidden;
    const size_t row_bytes = (size_t)hidden * sizeof *out;
    uint16_t *slots = calloc((size_t)(layer->tokens * layer->slots * hidden) + 1, sizeof *slots);
    MOK_REQUIRE(slots != NULL, MOK_ERROR_MEMORY, "reference: no memory for slots");
    expert_rows shared = {0};
    mok_status status = MOK_OK;
    for (int64_t expert = 0; expert < layer->experts && status == MOK_OK; expert++) {
        expert_rows rows = {0};
        const expert_weights weights = weights_of(layer, expert);
        status = gather(layer, &rows, expert);
        if (status == MOK_OK) {
            status = expert_forward(layer, &rows, &weights, layer->slots);
        }
        for (int64_t row = 0; row < rows.count && status == MOK_OK; row++) {
            memcpy(slots + rows.slot[row] * hidden, rows.y + row * hidden, row_bytes);
        }
        rows_close(&rows);
    }
    if (status == MOK_OK && layer->shared_inner > 0) {
        const expert_weights weights = shared_weights_of(layer);
        status = gather_shared(layer, &shared);
        if (status == MOK_OK) {
            status = expert_forward(layer, &shared, &weights, 1);
        }
    }
    for (int64_t token = 0; token < layer->tokens && status == MOK_OK; token++) { /* 5 */
        mok_kernels_ref.combine_forward(
            out + token * hidden, layer->shared_inner > 0 ? shared.y + token * hidden : NULL,
            slots + token * layer->slots * hidden, layer->router_weights + token * layer->slots,
            layer->routes + token * layer->slots, layer->slots, hidden);
    }
    rows_close(&shared);
    free(slots);
    return status;
}

/* ---- Backward ---- */

/* 2, 3, 4: from s to dg, du, hw and the router-weight gradient of each row. */
static mok_status d_hidden(const mok_ref_layer *layer, expert_rows *rows,
                           const expert_weights *weights, bool routed)
{
    const mok_operand dy = {rows->dy, rows->hidden, false};
    const mok_operand down = {weights->down, rows->inner, true};
    memset(rows->s, 0, (size_t)(rows->count * rows->inner) * sizeof *rows->s);
    MOK_TRY(product(layer, rows->s, &dy, &down, rows->count, rows->inner, rows->hidden));
    for (int64_t row = 0; row < rows->count; row++) {
        const float w = routed ? layer->router_weights[rows->slot[row]] : 1.0f;
        rows->d_router[row] = 0.0f;
        for (int64_t col = 0; col < rows->inner; col += 128) {
            const int64_t at = row * rows->inner + col;
            const float part = mok_kernels_ref.swiglu_backward(
                rows->dg + at, rows->du + at, rows->hw + at, rows->s + at, rows->g + at,
                rows->u + at, w, mok_min64(rows->inner - col, 128), &layer->swiglu);
            mok_kernels_ref.accumulate(&rows->d_router[row], &part, 1);
        }
    }
    return MOK_OK;
}

/* 5: one chain, gate columns then up columns. */
static mok_status dx_of(const mok_ref_layer *layer, expert_rows *rows,
                        const expert_weights *weights)
{
    const int64_t cells = rows->count * rows->hidden;
    const mok_operand dg = {rows->dg, rows->inner, false};
    const mok_operand du = {rows->du, rows->inner, false};
    const mok_operand gate = {weights->gate, rows->hidden, true};
    const mok_operand up = {weights->up, rows->hidden, true};
    float *sum = calloc((size_t)cells + 1, sizeof *sum);
    MOK_REQUIRE(sum != NULL, MOK_ERROR_MEMORY, "reference: no memory for dx");
    mok_status status = product(layer, sum, &dg, &gate, rows->count, rows->hidden, rows->inner);
    if (status == MOK_OK) {
        status = product(layer, sum, &du, &up, rows->count, rows->hidden, rows->inner);
    }
    mok_kernels_ref.bf16_from_f32(rows->dx, sum, cells);
    free(sum);
    return status;
}

/* 6: chains over rows [begin, begin + n). */
static mok_status wgrads(const mok_ref_layer *layer, const expert_rows *rows, int64_t begin,
                         int64_t n, float *gate, float *up, float *down)
{
    const int64_t inner = rows->inner;
    const int64_t hidden = rows->hidden;
    const size_t bytes = (size_t)(inner * hidden) * sizeof(float);
    const mok_operand x = {rows->x + begin * hidden, hidden, true};
    const mok_operand dy = {rows->dy + begin * hidden, hidden, true};
    const mok_operand dg = {rows->dg + begin * inner, inner, true};
    const mok_operand du = {rows->du + begin * inner, inner, true};
    const mok_operand hw = {rows->hw + begin * inner, inner, true};
    memset(gate, 0, bytes);
    memset(up, 0, bytes);
    memset(down, 0, bytes);
    MOK_TRY(product(layer, gate, &dg, &x, inner, hidden, n));
    MOK_TRY(product(layer, up, &du, &x, inner, hidden, n));
    return product(layer, down, &dy, &hw, hidden, inner, n);
}

static mok_status expert_backward(const mok_ref_layer *layer, expert_rows *rows,
                                  const expert_weights *weights, const uint16_t *dy, bool routed)
{
    const int64_t slots = routed ? layer->slots : 1;
    copy_tokens(rows, rows->x, layer->x, slots);
    copy_tokens(rows, rows->dy, dy, slots); /* 1 */
    MOK_TRY(gate_up(layer, rows, weights));
    MOK_TRY(d_hidden(layer, rows, weights, routed));
    return dx_of(layer, rows, weights);
}

/* 7 */
static mok_status shared_backward(const mok_ref_layer *layer, const mok_ref_gradients *out,
                                  expert_rows *shared, const uint16_t *dy)
{
    const expert_weights weights = shared_weights_of(layer);
    const int64_t matrix = layer->shared_inner * layer->hidden;
    MOK_TRY(gather_shared(layer, shared));
    MOK_TRY(expert_backward(layer, shared, &weights, dy, false));
    for (int64_t lane = 0; lane < layer->lanes; lane++) {
        const int64_t n = layer->tokens / layer->lanes;
        MOK_TRY(wgrads(layer, shared, lane * n, n, out->shared_gate + lane * matrix,
                       out->shared_up + lane * matrix, out->shared_down + lane * matrix));
    }
    return MOK_OK;
}

mok_status mok_ref_backward(const mok_ref_layer *layer, const mok_ref_gradients *out,
                            const uint16_t *dy)
{
    const int64_t hidden = layer->hidden;
    const int64_t matrix = layer->inner * hidden;
    uint16_t *slots = calloc((size_t)(layer->tokens * layer->slots * hidden) + 1, sizeof *slots);
    MOK_REQUIRE(slots != NULL, MOK_ERROR_MEMORY, "reference: no memory for slots");
    memset(out->d_router_weights, 0, (size_t)(layer->tokens * layer->slots) * sizeof(float));
    expert_rows shared = {0};
    mok_status status = MOK_OK;
    for (int64_t expert = 0; expert < layer->experts && status == MOK_OK; expert++) {
        expert_rows rows = {0};
        const expert_weights weights = weights_of(layer, expert);
        status = gather(layer, &rows, expert);
        if (status == MOK_OK) {
            status = expert_backward(layer, &rows, &weights, dy, true);
        }
        if (status == MOK_OK) {
            status = wgrads(layer, &rows, 0, rows.count, out->gate + expert * matrix,
                            out->up + expert * matrix, out->down + expert * matrix);
        }
        for (int64_t row = 0; row < rows.count && status == MOK_OK; row++) {
            memcpy(slots + rows.slot[row] * hidden, rows.dx + row * hidden,
                   (size_t)hidden * sizeof *slots);
            out->d_router_weights[rows.slot[row]] = rows.d_router[row];
        }
        rows_close(&rows);
    }
    if (status == MOK_OK && layer->shared_inner > 0) {
        status = shared_backward(layer, out, &shared, dy);
    }
    for (int64_t token = 0; token < layer->tokens && status == MOK_OK; token++) {
        mok_kernels_ref.combine_backward(
            out->dx + token * hidden, layer->shared_inner > 0 ? shared.dx + token * hidden : NULL,
            slots + token * layer->slots * hidden, layer->routes + token * layer->slots,
            layer->slots, hidden);
    }
    rows_close(&shared);
    free(slots);
    return status;
}
