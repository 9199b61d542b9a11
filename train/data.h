/* The text, its division into training and held-out bytes, and which bytes a lane sees at a step.
 *
 * Random numbers are a function of a key and a count, never a state that advances: what lane l of
 * step s reads depends on (seed, s, l) alone, so any rank can compute it, and a resumed run
 * continues the order by knowing the step. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include "config.h"

/* A 64-bit hash of a key and a count (the finaliser of splitmix64, twice). */
uint64_t train_random(uint64_t key, uint64_t count);
/* A key made from another one and a number, for streams within streams. */
uint64_t train_key(uint64_t key, uint64_t number);

/* Streams of one seed. */
#define TRAIN_STREAM_INIT 1u
#define TRAIN_STREAM_DATA 2u
#define TRAIN_STREAM_SAMPLE 3u
#define TRAIN_STREAM_HELD_OUT 4u

typedef struct train_text {
    uint8_t *bytes; /* size bytes, and up to 3 zero bytes to a whole number of words */
    int64_t size;
    int64_t held_out_begin; /* bytes from here on are never trained on */
    mok_digest digest;      /* of the words and the size */
} train_text;

/* Reads a file whole. Errors: FILE (missing, unreadable, too short for the configuration), MEMORY.
 */
mok_status train_text_open(train_text *out, const train_config *config, char *why);
void train_text_close(train_text *text);

/* The shortest file that a configuration takes. */
int64_t train_text_least_bytes(const train_config *config);

/* The batch * length tokens of a lane and, for each, the byte that follows it.
 * stream: TRAIN_STREAM_DATA, or TRAIN_STREAM_HELD_OUT with step as the number of the batch. */
void train_text_lane(uint8_t *tokens, uint8_t *targets, const train_text *text,
                     const train_config *config, uint32_t stream, int64_t step, int64_t lane);

#endif
