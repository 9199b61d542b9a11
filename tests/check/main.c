/* mok-check-kernels: compares every level with ref; --bench times what has just passed. See
 * README.md. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct operation {
    const char *name;
    void (*run)(check *c);
    int32_t weight; /* cases, in hundredths of --cases: slow references get fewer */
    rate (*bench)(const mok_kernels *kernels);
} operation;

static const operation operations[] = {
    {"product_tc16", check_product_tc16, 25, bench_product_tc16},
    {"product_fma", check_product_fma, 50, bench_product_fma},
    {"swiglu_forward", check_swiglu_forward, 200, NULL},
    {"swiglu_backward", check_swiglu_backward, 200, NULL},
    {"combine", check_combine, 200, NULL},
    {"elementwise", check_elementwise, 200, NULL},
};
#define OPERATIONS (sizeof operations / sizeof operations[0])

static const mok_level levels[] = {MOK_LEVEL_AVX2, MOK_LEVEL_AVX512};
#define LEVELS (sizeof levels / sizeof levels[0])

typedef struct options {
    uint64_t seed;
    bool one_seed, bench;
    int64_t cases;
    const char *filter;
} options;

static int usage(void)
{
    (void)fprintf(stderr,
                  "usage: mok-check-kernels [--seed N] [--cases N] [--filter NAME] [--bench]\n");
    return 2;
}

static bool parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0) {
            o->bench = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) {
            o->seed = strtoull(argv[++i], NULL, 10);
            o->one_seed = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--cases") == 0) {
            o->cases = strtoll(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--filter") == 0) {
            o->filter = argv[++i];
        } else {
            return false;
        }
    }
    return true;
}

static void run_operation(check *c, const operation *op, const options *o)
{
    const int64_t cases = o->one_seed ? 1 : (o->cases * op->weight + 99) / 100;
    for (int64_t i = 0; i < cases; i++) {
        c->seed = o->seed + (uint64_t)i;
        c->state = (c->seed + 1) * 0x9E3779B97F4A7C15ULL;
        op->run(c);
    }
}

static void run_level(mok_level level, const options *o, int64_t *compared, int64_t *different)
{
    const mok_kernels *kernels = mok_kernels_select(level);
    if (kernels == NULL) {
        (void)printf("%-8s skipped: this CPU or build lacks it\n", mok_level_string(level));
        return;
    }
    for (size_t i = 0; i < OPERATIONS; i++) {
        const operation *op = &operations[i];
        if (o->filter != NULL && strcmp(o->filter, op->name) != 0) {
            continue;
        }
        check c = {&mok_kernels_ref, kernels, 0, 0, 0, 0, 0, o->bench};
        run_operation(&c, op, o);
        (void)printf("%-8s %-16s compared %7lld  different %lld", mok_level_string(level), op->name,
                     (long long)c.compared, (long long)c.different);
        if (o->bench && op->bench != NULL && c.different == 0) {
            const rate r = op->bench(kernels);
            (void)printf("  %.2f %s", r.value, r.unit);
        }
        (void)printf("\n");
        *compared += c.compared;
        *different += c.different;
    }
}

int main(int argc, char **argv)
{
    options o = {1, false, false, 1000, NULL};
    int64_t compared = 0;
    int64_t different = 0;
    if (!parse(&o, argc, argv)) {
        return usage();
    }
    for (size_t i = 0; i < LEVELS; i++) {
        run_level(levels[i], &o, &compared, &different);
    }
    (void)printf("compared %lld different %lld\n", (long long)compared, (long long)different);
    if (compared == 0) {
        (void)printf("nothing was compared\n");
    }
    return compared > 0 && different == 0 ? 0 : 1;
}
