/* Products for the benchmark: single ones against OpenBLAS and the CPU's peak, and those of a
 * layer. */
#ifndef CLI_PRODUCTS_H
#define CLI_PRODUCTS_H

#include "workload.h"

typedef struct product_bench {
    mok_comm *comm; /* one rank, one thread */
    uint16_t *a, *b;
    float *a32, *b32, *c;
    void *openblas; /* of dlopen, or NULL */
} product_bench;

bool product_bench_open(product_bench *bench);
void product_bench_close(product_bench *bench);

/* GMAC/s of one core on [m, k] x [n, k] products of a fixed size. */
double product_bench_run(product_bench *bench, mok_arith arith);
double product_bench_sgemm(product_bench *bench); /* 0 where OpenBLAS is absent */

/* GFLOP/s of fused multiply-adds that stay in registers, one core. */
double product_bench_peak(void);

/* Seconds that the products of a step of w take on their own, on `threads` threads: the same sizes,
 * grouped by expert, through mok_product_run. */
bool products_of_layer(const workload *w, int32_t threads, double *seconds);

#endif
