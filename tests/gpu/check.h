/* One GPU check: what it promises, and how many comparisons it made. */
#ifndef MOK_TESTS_GPU_CHECK_H
#define MOK_TESTS_GPU_CHECK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gpu_check {
    int64_t compared, different;
    int32_t repeats; /* of the repeat check */
    int32_t cases;   /* of the forward check, at most */
    bool quick;      /* small shapes alone: for the sanitizers, which are slow */
} gpu_check;

/* Counts one comparison; a difference prints its text. */
void gpu_count(gpu_check *check, bool equal, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void check_schedule(gpu_check *check);   /* the device's tables are the CPU's */
void check_forward(gpu_check *check);    /* y is the CPU library's, byte for byte */
void check_backward(gpu_check *check);   /* every gradient is the CPU library's, byte for byte */
void check_invariance(gpu_check *check); /* ranks, blocks, chunks, addresses, repeats: one result */
void check_graph(gpu_check *check);      /* replays with changed inputs */
void check_ranks(gpu_check *check);      /* ranks in processes give the same bytes */

/* A process of check_ranks: NAME RANK RANKS SCENE. Its exit code. */
int check_ranks_child(char **words);

void check_faults(
    gpu_check *check); /* bad input and absent ranks end in a status, nothing written */

#endif
