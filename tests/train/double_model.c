/* The model in double precision, a token at a time.
 *
 * Written for reading: no batching, no saved values, the C library's functions. It must stay
 * independent of the files of train, or it would repeat their mistakes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "double_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void double_model_open(double_model *d, const model *m)
{
    const params *p = &m->params;
    memset(d, 0, sizeof *d);
    d->table = p;
    d->sequences = m->sequences;
    d->length = m->length;
    d->input = m->input;
    d->target = m->target;
    d->weight = calloc((size_t)p->local_count, sizeof *d->weight);
    assert_non_null(d->weight);
    for (int32_t i = 0; i < p->count; i++) {
        const param *item = &p->list[i];
        for (int64_t k = item->offset; k < item->offset + item->units * item->unit_size; k++) {
            float narrow;
            mok_f32_from_bf16(&narrow, p->copy + k, 1);
            d->weight[k] = item->rank == 1 ? (double)p->master[k] : (double)narrow;
        }
    }
    for (int64_t block = 0; block < p->shape.blocks; block++) {
        d->routes[block] = m->block[block].routes;
    }
}

void double_model_close(double_model *d)
{
    free(d->weight);
    memset(d, 0, sizeof *d);
}

static const double *weight(const double_model *d, int32_t idx)
{
    return d->weight + d->table->list[idx].offset;
}

static double *take(int64_t count)
{
    double *memory = calloc((size_t)count, sizeof *memory);
    assert_non_null(memory);
    return memory;
}

/* y [rows] = w [rows, columns] . x. */
static void times(double *y, const double *w, const double *x, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        for (int64_t c = 0; c < columns; c++) {
            sum += w[r * columns + c] * x[c];
        }
        y[r] = sum;
    }
}

static void norm(double *y, const double *x, const double *w, int64_t h)
{
    double squares = 0.0;
    for (int64_t i = 0; i < h; i++) {
        squares += x[i] * x[i];
    }
    const double scale = 1.0 / sqrt(squares / (double)h + 1e-6);
    for (int64_t i = 0; i < h; i++) {
        y[i] = x[i] * scale * w[i];
    }
}

static void rotate(double *x, int64_t head, int64_t position)
{
    for (int64_t i = 0; i < head / 2; i++) {
        const double angle = (double)position * pow(10000.0, -2.0 * (double)i / (double)head);
        const double a = x[i];
        const double b = x[i + head / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + head / 2] = a * sin(angle) + b * cos(angle);
    }
}

/* context [length, H] of one sequence from its qkv [length, 3H], rotated. */
static void attend(double *context, const double *qkv, const train_shape *s, int64_t length)
{
    const int64_t h = s->hidden;
    const int64_t head = h / s->heads;
    double *p = take(length);
    for (int64_t at = 0; at < s->heads * length; at++) {
        const int64_t column = at / length * head;
        const int64_t t = at % length;
        double sum = 0.0;
        for (int64_t j = 0; j <= t; j++) {
            double score = 0.0;
            for (int64_t i = 0; i < head; i++) {
                score += qkv[t * 3 * h + column + i] * qkv[j * 3 * h + h + column + i];
            }
            p[j] = exp(score / sqrt((double)head));
            sum += p[j];
        }
        for (int64_t i = 0; i < head; i++) {
            double value = 0.0;
            for (int64_t j = 0; j <= t; j++) {
                value += p[j] / sum * qkv[j * 3 * h + 2 * h + column + i];
            }
            context[t * h + column + i] = value;
        }
    }
    free(p);
}

static void attention(double *x, const double_model *d, int64_t block)
{
    const train_shape *s = &d->table->shape;
    const param_block *b = &d->table->block[block];
    const int64_t h = s->hidden;
    const int64_t length = d->length;
    double *work = take(length * 5 * h);
    double *qkv = work;
    double *context = work + length * 3 * h;
    double *y = work + length * 4 * h;
    for (int64_t t = 0; t < length; t++) {
        norm(y, x + t * h, weight(d, b->norm1), h);
        times(qkv + t * 3 * h, weight(d, b->qkv), y, 3 * h, h);
        for (int64_t i = 0; i < 2 * s->heads; i++) {
            rotate(qkv + t * 3 * h + i * (h / s->heads), h / s->heads, t);
        }
    }
    attend(context, qkv, s, length);
    for (int64_t t = 0; t < length; t++) {
        times(y, weight(d, b->out), context + t * h, h, h);
        for (int64_t i = 0; i < h; i++) {
            x[t * h + i] += y[i];
        }
    }
    free(work);
}

/* out += share * down . (silu(gate . y) * (up . y)). */
static void feed(double *out, const double *y, const double *gate, const double *up,
                 const double *down, int64_t inner, int64_t h, double share)
{
    double *g = take(2 * inner + h);
    double *u = g + inner;
    double *z = u + inner;
    times(g, gate, y, inner, h);
    times(u, up, y, inner, h);
    for (int64_t i = 0; i < inner; i++) {
        g[i] = g[i] / (1.0 + exp(-g[i])) * u[i];
    }
    times(z, down, g, h, inner);
    for (int64_t i = 0; i < h; i++) {
        out[i] += share * z[i];
    }
    free(g);
}

/* One token through the experts of a block; routes [K]. */
static void experts(double *x, const double_model *d, int64_t block, const int32_t *routes)
{
    const train_shape *s = &d->table->shape;
    const param_block *b = &d->table->block[block];
    const int64_t h = s->hidden;
    const int64_t unit = s->inner * h;
    double *y = take(h + s->experts);
    double *score = y + h;
    double sum = 0.0;
    norm(y, x, weight(d, b->norm2), h);
    times(score, weight(d, b->router), y, s->experts, h);
    for (int64_t k = 0; k < s->slots; k++) {
        sum += 1.0 / (1.0 + exp(-score[routes[k]]));
    }
    feed(x, y, weight(d, b->shared_gate), weight(d, b->shared_up), weight(d, b->shared_down),
         s->shared_inner, h, 1.0);
    for (int64_t k = 0; k < s->slots; k++) {
        const int64_t e = routes[k];
        feed(x, y, weight(d, b->gate) + e * unit, weight(d, b->up) + e * unit,
             weight(d, b->down) + e * unit, s->inner, h, 1.0 / (1.0 + exp(-score[e])) / sum);
    }
    free(y);
}

static double sequence_loss(const double_model *d, int64_t sequence)
{
    const train_shape *s = &d->table->shape;
    const int64_t h = s->hidden;
    const int64_t first = sequence * d->length;
    double *x = take(d->length * h + h + TRAIN_VOCABULARY);
    double *y = x + d->length * h;
    double *z = y + h;
    double loss = 0.0;
    for (int64_t t = 0; t < d->length; t++) {
        memcpy(x + t * h, weight(d, d->table->embedding) + d->input[first + t] * h,
               (size_t)h * sizeof *x);
    }
    for (int64_t block = 0; block < s->blocks; block++) {
        attention(x, d, block);
        for (int64_t t = 0; t < d->length; t++) {
            experts(x + t * h, d, block, d->routes[block] + (first + t) * s->slots);
        }
    }
    for (int64_t t = 0; t < d->length; t++) {
        double sum = 0.0;
        norm(y, x + t * h, weight(d, d->table->norm), h);
        times(z, weight(d, d->table->head), y, TRAIN_VOCABULARY, h);
        for (int64_t i = 0; i < TRAIN_VOCABULARY; i++) {
            sum += exp(z[i]);
        }
        loss += log(sum) - z[d->target[first + t]];
    }
    free(x);
    return loss;
}

double double_model_loss(const double_model *d)
{
    double sum = 0.0;
    for (int64_t i = 0; i < d->sequences; i++) {
        sum += sequence_loss(d, i);
    }
    return sum / (double)(d->sequences * d->length);
}
