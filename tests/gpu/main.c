/* Every check that needs a GPU, in one program: mok-check-gpu [--quick] [--cases N] [--repeats N]
 * [CHECK...]
 *
 * Exit 0: all compared, none different. 1: a difference, or nothing was compared. 2: usage. 77: no
 * GPU. */
#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

static const struct {
    const char *name;
    void (*run)(gpu_check *check);
} checks[] = {
    {"schedule", check_schedule},     {"forward", check_forward}, {"backward", check_backward},
    {"invariance", check_invariance}, {"graph", check_graph},     {"faults", check_faults},
    {"ranks", check_ranks},
};

#define CHECKS (sizeof checks / sizeof checks[0])

void gpu_count(gpu_check *check, bool equal, const char *format, ...)
{
    check->compared++;
    if (equal) {
        return;
    }
    check->different++;
    va_list arguments;
    va_start(arguments, format);
    (void)printf("  different: ");
    (void)vprintf(format, arguments);
    (void)printf("\n");
    (void)fflush(stdout);
    va_end(arguments);
}

static bool wanted(const char *name, char **names, int count)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return count == 0;
}

static double now(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int run_all(char **names, int count, bool quick, int32_t cases, int32_t repeats)
{
    int64_t compared = 0;
    int64_t different = 0;
    for (size_t i = 0; i < CHECKS; i++) {
        if (!wanted(checks[i].name, names, count)) {
            continue;
        }
        gpu_check check = {0, 0, repeats, cases, quick};
        const double begin = now();
        checks[i].run(&check);
        (void)printf("%-12s compared %6lld  different %4lld  %6.1f s\n", checks[i].name,
                     (long long)check.compared, (long long)check.different, now() - begin);
        (void)fflush(stdout);
        compared += check.compared;
        different += check.different;
    }
    (void)printf("compared %lld different %lld\n", (long long)compared, (long long)different);
    return compared > 0 && different == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "--child") == 0) {
        return check_ranks_child(argv + 2);
    }
    bool quick = false;
    int32_t repeats = 1000;
    int32_t cases = INT32_MAX;
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (strcmp(argv[at], "--quick") == 0) {
            quick = true;
        } else if (strcmp(argv[at], "--repeats") == 0 && at + 1 < argc) {
            repeats = (int32_t)strtol(argv[++at], NULL, 10);
        } else if (strcmp(argv[at], "--cases") == 0 && at + 1 < argc) {
            cases = (int32_t)strtol(argv[++at], NULL, 10);
        } else {
            (void)fprintf(stderr,
                          "usage: mok-check-gpu [--quick] [--cases N] [--repeats N] [CHECK...]\n");
            return 2;
        }
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        (void)printf("skipped: this machine has no GPU\n");
        return 77;
    }
    return run_all(argv + at, argc - at, quick, cases, repeats);
}
