/* A training run from a configuration to a state digest: what the command calls.
 *
 * The caller fills a train_config and gets numbers, text and files back; nothing is printed unless
 * the configuration asks for progress, and nothing ends the process. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include "config.h"

typedef struct train_outcome {
    int64_t first_step, step; /* done before this run, and now */
    double first_loss, loss;  /* of the first and last step of this run */
    double held_out;          /* at the end */
    double seconds, tokens_per_s;
    mok_digest digest;
    char *sample; /* sample_bytes of text and a zero; the caller frees. NULL when none was asked for
                   */
    int64_t sample_bytes;
} train_outcome;

/* Runs config->ranks virtual ranks in this process and writes OUT/{log.jsonl, loss.svg, load.svg,
 * checkpoint.safetensors}; OUT is made when it is missing. threads 0 shares the processors out.
 * A run that config->stop ends early is saved like any other and no error.
 * Errors: those of train_config_check, FILE, MEMORY, PEER, VALUE (a loss that is not
 * finite); why [TRAIN_WHY_BYTES] says more. */
mok_status train_run(train_outcome *out, const train_config *config, char *why);

/* Trained values of the whole model of a checked configuration; 0 when out of memory. */
int64_t train_parameter_count(const train_config *config);

#endif
