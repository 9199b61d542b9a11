/* Expert by expert, token by token, in double. */
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *take(int64_t count)
{
    double *memory = calloc((size_t)count + 1, sizeof *memory);
    if (memory == NULL) {
        (void)fprintf(stderr, "oracle: no memory\n");
        exit(1);
    }
    return memory;
}

static double *widen(const uint16_t *from, int64_t count)
{
    double *to = take(count);
    for (int64_t i = 0; i < count; i++) {
        to[i] = (double)f32_of(from[i]);
    }
    return to;
}

void oracle_open(oracle *o, const problem *p)
{
    const int64_t wide = p->tokens * p->hidden;
    const int64_t all = p->experts * p->inner * p->hidden;
    const int64_t shared = p->shared_inner * p->hidden;
    const int64_t routes = p->tokens * p->slots;
    o->p = p;
    o->round_clamp = false;
    o->x = widen(p->x, wide);
    o->dy = widen(p->dy, wide);
    o->gate = widen(p->gate, all);
    o->up = widen(p->up, all);
    o->down = widen(p->down, all);
    o->shared_gate = widen(p->shared_gate, shared);
    o->shared_up = widen(p->shared_up, shared);
    o->shared_down = widen(p->shared_down, shared);
    o->router_weights = take(routes);
    for (int64_t i = 0; i < routes; i++) {
        o->router_weights[i] = (double)p->router_weights[i];
    }
    o->y = take(wide);
    o->dx = take(wide);
    o->d_router_weights = take(routes);
    o->d_gate = take(all);
    o->d_up = take(all);
    o->d_down = take(all);
    o->d_shared_gate = take(shared);
    o->d_shared_up = take(shared);
    o->d_shared_down = take(shared);
}

void oracle_close(oracle *o)
{
    double *all[] = {o->x,           o->gate,
                     o->up,          o->down,
                     o->shared_gate, o->shared_up,
                     o->shared_down, o->router_weights,
                     o->dy,          o->y,
                     o->dx,          o->d_router_weights,
                     o->d_gate,      o->d_up,
                     o->d_down,      o->d_shared_gate,
                     o->d_shared_up, o->d_shared_down};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    memset(o, 0, sizeof *o);
}

/* One expert's matrices and where their gradients go. */
typedef struct expert {
    const double *gate, *up, *down;
    double *d_gate, *d_up, *d_down;
    int64_t inner;
} expert;

static expert routed(const oracle *o, int64_t idx)
{
    const int64_t first = idx * o->p->inner * o->p->hidden;
    const expert e = {o->gate + first, o->up + first,     o->down + first, o->d_gate + first,
                      o->d_up + first, o->d_down + first, o->p->inner};
    return e;
}

static expert shared(const oracle *o)
{
    const expert e = {o->shared_gate, o->shared_up,     o->shared_down,    o->d_shared_gate,
                      o->d_shared_up, o->d_shared_down, o->p->shared_inner};
    return e;
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* What a hidden unit is made of. pass_* tell whether clamping lets a gradient through. */
typedef struct unit {
    double g, u, sigmoid, h;
    bool pass_g, pass_u;
} unit;

static double rounded(double x)
{
    return (double)f32_of(bf16_of((float)x));
}

static unit unit_of(const oracle *o, const expert *e, const double *x, int64_t i)
{
    const problem *p = o->p;
    unit v;
    v.g = dot(e->gate + i * p->hidden, x, p->hidden);
    v.u = dot(e->up + i * p->hidden, x, p->hidden);
    v.pass_g = v.pass_u = true;
    if (p->clamped) {
        const double limit = (double)p->limit;
        v.pass_g = (o->round_clamp ? rounded(v.g) : v.g) <= limit;
        v.pass_u = fabs(o->round_clamp ? rounded(v.u) : v.u) <= limit;
        v.g = fmin(v.g, limit);
        v.u = fmax(fmin(v.u, limit), -limit);
    }
    v.sigmoid = 1.0 / (1.0 + exp(-v.g));
    v.h = v.g * v.sigmoid * v.u;
    return v;
}

/* y += w * expert(x). */
static void forward_row(const oracle *o, const expert *e, double *y, const double *x, double w)
{
    const problem *p = o->p;
    for (int64_t i = 0; i < e->inner; i++) {
        const unit v = unit_of(o, e, x, i);
        for (int64_t j = 0; j < p->hidden; j++) {
            y[j] += w * e->down[j * e->inner + i] * v.h;
        }
    }
}

void oracle_forward(oracle *o)
{
    const problem *p = o->p;
    memset(o->y, 0, (size_t)(p->tokens * p->hidden) * sizeof *o->y);
    for (int64_t t = 0; t < p->tokens; t++) {
        double *y = o->y + t * p->hidden;
        const double *x = o->x + t * p->hidden;
        if (p->shared_inner > 0) {
            const expert e = shared(o);
            forward_row(o, &e, y, x, 1.0);
        }
        for (int64_t k = 0; k < p->slots; k++) {
            const int64_t at = t * p->slots + k;
            if (p->routes[at] >= 0) {
                const expert e = routed(o, p->routes[at]);
                forward_row(o, &e, y, x, o->router_weights[at]);
            }
        }
    }
}

double oracle_objective(oracle *o)
{
    oracle_forward(o);
    return dot(o->y, o->dy, o->p->tokens * o->p->hidden);
}

/* Gradients of w * dot(expert(x), dy); returns the one of w. */
static double backward_row(const oracle *o, const expert *e, double *dx, const double *x,
                           const double *dy, double w)
{
    const problem *p = o->p;
    double dw = 0.0;
    for (int64_t i = 0; i < e->inner; i++) {
        const unit v = unit_of(o, e, x, i);
        double s = 0.0;
        for (int64_t j = 0; j < p->hidden; j++) {
            s += dy[j] * e->down[j * e->inner + i];
            e->d_down[j * e->inner + i] += w * dy[j] * v.h;
        }
        dw += s * v.h;
        const double slope = v.sigmoid * (1.0 + v.g * (1.0 - v.sigmoid));
        const double dg = v.pass_g ? w * s * v.u * slope : 0.0;
        const double du = v.pass_u ? w * s * v.g * v.sigmoid : 0.0;
        for (int64_t j = 0; j < p->hidden; j++) {
            e->d_gate[i * p->hidden + j] += dg * x[j];
            e->d_up[i * p->hidden + j] += du * x[j];
            dx[j] += dg * e->gate[i * p->hidden + j] + du * e->up[i * p->hidden + j];
        }
    }
    return dw;
}

void oracle_backward(oracle *o)
{
    const problem *p = o->p;
    const size_t all = (size_t)(p->experts * p->inner * p->hidden) * sizeof(double);
    const size_t one = (size_t)(p->shared_inner * p->hidden) * sizeof(double);
    memset(o->dx, 0, (size_t)(p->tokens * p->hidden) * sizeof(double));
    memset(o->d_gate, 0, all);
    memset(o->d_up, 0, all);
    memset(o->d_down, 0, all);
    memset(o->d_shared_gate, 0, one);
    memset(o->d_shared_up, 0, one);
    memset(o->d_shared_down, 0, one);
    for (int64_t t = 0; t < p->tokens; t++) {
        double *dx = o->dx + t * p->hidden;
        const double *x = o->x + t * p->hidden;
        const double *dy = o->dy + t * p->hidden;
        if (p->shared_inner > 0) {
            const expert e = shared(o);
            (void)backward_row(o, &e, dx, x, dy, 1.0);
        }
        for (int64_t k = 0; k < p->slots; k++) {
            const int64_t at = t * p->slots + k;
            o->d_router_weights[at] = 0.0;
            if (p->routes[at] >= 0) {
                const expert e = routed(o, p->routes[at]);
                o->d_router_weights[at] = backward_row(o, &e, dx, x, dy, o->router_weights[at]);
            }
        }
    }
}
