/* A folder that goes away, a text to train on, and whole files in memory.
 *
 * The text is made here, from a seed, so that the tests need no file: short words from a small
 * list, which even the tiny model learns something about within seconds. */
#ifndef TESTS_TRAIN_SCRATCH_H
#define TESTS_TRAIN_SCRATCH_H

#include "run.h"

typedef struct scratch {
    char path[256];
    char text[300]; /* a file of SCRATCH_TEXT_BYTES in it */
} scratch;

#define SCRATCH_TEXT_BYTES 20000

void scratch_open(scratch *s);
void scratch_close(scratch *s); /* removes two levels: the folder, its folders, their files */

/* A folder of that name in it. The folder itself is made by whoever writes into it. */
void scratch_path(char *out, size_t bytes, const scratch *s, const char *name);

void scratch_write(const char *path, const void *data, size_t bytes);
unsigned char *scratch_read(const char *path,
                            size_t *bytes); /* the caller frees; zero-terminated */

/* Size tiny on the scratch text into the folder `name`, quiet and without a sample. */
train_config scratch_config(const scratch *s, const char *name, int64_t steps);

/* Runs it and fails the test when it fails. */
train_outcome scratch_run(const train_config *config);

#endif
