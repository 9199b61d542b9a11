/* Text from the model, a byte at a time.
 *
 * The text is no part of the state, but it is as reproducible: the same state, seed and temperature
 * give the same bytes at any number of ranks. */
#ifndef TRAIN_SAMPLE_H
#define TRAIN_SAMPLE_H

#include "data.h"
#include "model.h"

/* Continues a prompt from the held-out text by `count` bytes into out [count]. The last `length`
 * bytes are read again for every new one, on rank 0; the other ranks take part with no tokens of
 * their own. Random numbers depend on the seed and the place alone. Collective; out is written on
 * every rank. */
mok_status sample_text(model *m, const train_text *text, uint8_t *out, int64_t count);

#endif
