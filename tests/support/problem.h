/* A global batch through one MoE layer: made from a seed, solved by the library on any number of
 * ranks or by the reference, and compared byte for byte in global order. */
#ifndef MOK_TESTS_PROBLEM_H
#define MOK_TESTS_PROBLEM_H

#include "apart.h"
#include "group.h"
#include "ref/layer.h"

typedef enum routing {
    ROUTING_UNIFORM, /* independent random experts, duplicates allowed */
    ROUTING_SKEWED,  /* a quarter of the experts gets three quarters of the rows */
    ROUTING_ONE,     /* everything to expert 0 */
    ROUTING_MASKED,  /* a third of the routes is -1, some tokens have none */
    ROUTING_SPARSE   /* only every third expert is named: many are empty */
} routing;

typedef struct problem {
    int64_t tokens, hidden, inner, shared_inner, experts, slots, lanes;
    mok_arith arith;
    bool clamped;
    float limit;
    routing routing;
    uint64_t seed;
    bool integers; /* small integer values: sums are exact */
    /* filled by problem_open */
    uint16_t *x, *dy, *gate, *up, *down, *shared_gate, *shared_up, *shared_down;
    int32_t *routes;
    float *router_weights;
} problem;

typedef struct result {
    uint16_t *y, *dx;
    float *d_router_weights, *gate, *up, *down, *shared_gate, *shared_up, *shared_down;
} result;

typedef struct run_config {
    int32_t ranks, threads;
    mok_level level;
    int64_t macrobatch_rows, minibatch_rows, capacity_rows;
    const int64_t *split; /* [ranks] tokens of each rank; NULL: whole lanes, evenly */
    bool recompute;       /* throw the activations away and recompute them before backward */
    bool int64_routes;
    int32_t repeats;         /* run everything this often and demand equal bytes; 0 counts as 1 */
    const apart_plan *apart; /* NULL: the ranks share memory */
} run_config;

void problem_open(problem *p);
void problem_close(problem *p);
void result_open(result *r, const problem *p, unsigned char poison);
void result_close(result *r);

run_config run_config_default(void);

/* Ranks that split the problem elsewhere than at lanes leave the shared gradients as they were. */
mok_status problem_run(const problem *p, const run_config *config, result *out);
mok_status problem_reference(const problem *p, result *out);

/* NULL when all bytes are equal, else a text that names the tensor and element. with_shared:
 * compare the shared expert's gradients too. */
const char *result_difference(const problem *p, const result *a, const result *b, bool with_shared);

/* xorshift64*; fills with bf16 from a distribution scaled by `scale`. */
uint64_t random_next(uint64_t *state);
float random_normal(uint64_t *state);
uint16_t bf16_of(float x);
float f32_of(uint16_t x);

#endif
