/* mok bench: products, the whole layer, and how they compare with the machine and with peers.
 *
 * Things that are compared are measured in turn in one run, and medians are taken: a machine's
 * speed drifts. OpenBLAS is loaded when it is there and used for nothing else. */
#include <cjson/cJSON.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "products.h"
#include "verbs.h"
#include "workload.h"

static const verb_help help = {
    "bench",
    "Measures products of both classes against OpenBLAS and the CPU's peak, and the whole layer.",
    "mok bench --json --peer python3"};

typedef struct numbers {
    double fma_peak_gflops, fma_gflops, sgemm_gflops, fma_vs_sgemm, fma_share_of_peak;
    double tc16_gmac_per_s_core;
    double layer_s, products_s, layer_vs_products, layer_1_thread_s, threads_2_vs_1;
    double layer_gmac_per_s, layer_fma_s, torch_s;
    double layer_bytes;
} numbers;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

#define ROUNDS 7

/* One thread: our fma product, OpenBLAS and a loop of fused multiply-adds in turn. */
static bool measure_products(numbers *n)
{
    double ours[ROUNDS];
    double theirs[ROUNDS];
    double peak[ROUNDS];
    double tc16[ROUNDS];
    product_bench bench;
    if (!product_bench_open(&bench)) {
        return false;
    }
    for (int i = 0; i < ROUNDS; i++) {
        ours[i] = product_bench_run(&bench, MOK_ARITH_FMA);
        theirs[i] = product_bench_sgemm(&bench);
        tc16[i] = product_bench_run(&bench, MOK_ARITH_TC16);
        peak[i] = product_bench_peak();
    }
    n->fma_gflops = 2.0 * median(ours, ROUNDS);
    n->sgemm_gflops = 2.0 * median(theirs, ROUNDS);
    n->tc16_gmac_per_s_core = median(tc16, ROUNDS);
    n->fma_peak_gflops = median(peak, ROUNDS);
    n->fma_vs_sgemm = n->sgemm_gflops > 0.0 ? n->fma_gflops / n->sgemm_gflops : NAN;
    n->fma_share_of_peak = n->fma_gflops / n->fma_peak_gflops;
    product_bench_close(&bench);
    return true;
}

static void bench_workload(workload *w, mok_arith arith)
{
    memset(w, 0, sizeof *w);
    w->tokens = 512;
    w->hidden = 512;
    w->inner = 512;
    w->shared_inner = 512;
    w->experts = 8;
    w->slots = 2;
    w->lanes = 1;
    w->arith = arith;
    w->seed = 3;
}

static bool layer_time(workload *w, int32_t threads, double *seconds, double *bytes)
{
    char why[240] = "";
    workload_run run = {1, threads, MOK_LEVEL_AUTO, 0, 0, 3, 0.0, 0};
    if (workload_step(w, &run, why) != MOK_OK) {
        (void)fprintf(stderr, "mok bench: %s\n", why);
        return false;
    }
    *seconds = run.step_s;
    *bytes = (double)run.layer_bytes;
    return true;
}

/* The same layer in class fma, which any CPU computes at full speed. */
static bool measure_fma_layer(numbers *n)
{
    workload w;
    double two[ROUNDS];
    double bytes;
    bench_workload(&w, MOK_ARITH_FMA);
    bool ran = workload_open(&w);
    for (int i = 0; i < ROUNDS && ran; i++) {
        ran = layer_time(&w, 2, &two[i], &bytes);
    }
    n->layer_fma_s = ran ? median(two, ROUNDS) : NAN;
    workload_close(&w);
    return ran;
}

static bool measure_layer(numbers *n)
{
    workload w;
    double two[ROUNDS];
    double one[ROUNDS];
    double bare[ROUNDS];
    bench_workload(&w, MOK_ARITH_TC16);
    bool ran = workload_open(&w);
    for (int i = 0; i < ROUNDS && ran; i++) {
        ran = layer_time(&w, 2, &two[i], &n->layer_bytes) &&
              layer_time(&w, 1, &one[i], &n->layer_bytes) && products_of_layer(&w, 2, &bare[i]);
    }
    if (ran) {
        n->layer_s = median(two, ROUNDS);
        n->layer_1_thread_s = median(one, ROUNDS);
        n->products_s = median(bare, ROUNDS);
        n->layer_vs_products = n->layer_s / n->products_s;
        n->threads_2_vs_1 = n->layer_1_thread_s / n->layer_s;
        n->layer_gmac_per_s = workload_macs(&w) * 1e-9 / n->layer_s;
    }
    workload_close(&w);
    return ran && measure_fma_layer(n);
}

/* Runs bench/peers/torch_layer.py with the given Python; it prints the seconds of a step. */
static void measure_peer(numbers *n, const char *python, const char *script)
{
    char command[1024];
    workload w;
    bench_workload(&w, MOK_ARITH_TC16);
    n->torch_s = NAN;
    if (python == NULL) {
        return;
    }
    (void)snprintf(command, sizeof command, "'%s' '%s' %lld %lld %lld %lld %lld %lld 2", python,
                   script, (long long)w.tokens, (long long)w.hidden, (long long)w.inner,
                   (long long)w.shared_inner, (long long)w.experts, (long long)w.slots);
    FILE *pipe = popen(command, "r");
    char line[64] = "";
    if (pipe == NULL || fgets(line, sizeof line, pipe) == NULL ||
        sscanf(line, "%lf", &n->torch_s) != 1) {
        (void)fprintf(stderr, "mok bench: no result from: %s\n", command);
        n->torch_s = NAN;
    }
    if (pipe != NULL) {
        (void)pclose(pipe);
    }
}

typedef struct line {
    const char *name, *unit, *what;
    double value;
} line;

static int print_lines(const line *lines, int count, bool json)
{
    cJSON *root = json ? cJSON_CreateObject() : NULL;
    for (int i = 0; i < count; i++) {
        if (!json) {
            if (isnan(lines[i].value)) {
                (void)printf("%-24s %14s  %-8s %s\n", lines[i].name, "-", lines[i].unit,
                             lines[i].what);
            } else {
                (void)printf("%-24s %14.4g  %-8s %s\n", lines[i].name, lines[i].value,
                             lines[i].unit, lines[i].what);
            }
        } else if (isnan(lines[i].value)) {
            (void)cJSON_AddNullToObject(root, lines[i].name);
        } else {
            (void)cJSON_AddNumberToObject(root, lines[i].name, lines[i].value);
        }
    }
    if (json) {
        char *text = cJSON_Print(root);
        cJSON_Delete(root);
        (void)printf("%s\n", text != NULL ? text : "{}");
        cJSON_free(text);
    }
    return EXIT_CODE_OK;
}

int mok_cli_bench(int argc, char **argv)
{
    bool json = false;
    const char *python = NULL;
    const char *script = "bench/peers/torch_layer.py";
    const option table[] = {
        {"json", OPTION_FLAG, &json, NULL, "one JSON object"},
        {"peer", OPTION_TEXT, &python, "PYTHON", "a Python with torch, for layer_vs_torch"},
        {"peer-script", OPTION_TEXT, &script, "FILE", "default bench/peers/torch_layer.py"},
    };
    const int code = options_parse(argc, argv, &help, table, 3);
    if (code >= 0) {
        return code;
    }
    numbers n;
    memset(&n, 0, sizeof n);
    if (!measure_products(&n) || !measure_layer(&n)) {
        return EXIT_CODE_FAULT;
    }
    measure_peer(&n, python, script);
    const line lines[] = {
        {"fma_peak_gflops", "GFLOP/s", "one core, fused multiply-adds in registers",
         n.fma_peak_gflops},
        {"fma_gflops", "GFLOP/s", "one core, class fma", n.fma_gflops},
        {"fma_share_of_peak", "", "", n.fma_share_of_peak},
        {"sgemm_gflops", "GFLOP/s", "one core, OpenBLAS",
         n.sgemm_gflops > 0.0 ? n.sgemm_gflops : NAN},
        {"fma_vs_sgemm", "", "class fma over OpenBLAS", n.fma_vs_sgemm},
        {"tc16_gmac_per_s_core", "GMAC/s", "one core, class tc16", n.tc16_gmac_per_s_core},
        {"layer_s", "s", "forward and backward, class tc16, two threads", n.layer_s},
        {"layer_gmac_per_s", "GMAC/s", "", n.layer_gmac_per_s},
        {"products_s", "s", "its products alone", n.products_s},
        {"layer_vs_products", "", "", n.layer_vs_products},
        {"threads_2_vs_1", "", "speed-up of the layer", n.threads_2_vs_1},
        {"layer_bytes", "bytes", "arena, workspace, schedule, activations", n.layer_bytes},
        {"layer_fma_s", "s", "the same layer, class fma", n.layer_fma_s},
        {"torch_s", "s", "the same layer in PyTorch", n.torch_s},
        {"layer_vs_torch", "", "PyTorch's time over ours, class tc16", n.torch_s / n.layer_s},
        {"layer_fma_vs_torch", "", "PyTorch's time over ours, class fma",
         n.torch_s / n.layer_fma_s},
    };
    return print_lines(lines, (int)(sizeof lines / sizeof lines[0]), json);
}
