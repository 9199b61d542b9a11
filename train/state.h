/* The training state as a whole: its digest, and its file.
 *
 * State is the step, every parameter's master value and both moments, and the router's biases. It
 * is described by (tensor, expert by global index), never by rank, so that a file of any number of
 * ranks is read by any other. */
#ifndef TRAIN_STATE_H
#define TRAIN_STATE_H

#include "data.h"
#include "model.h"

/* Collective; the same on every rank. */
mok_status state_digest(const model *m, int64_t step, mok_digest *out);

/* Writes DIR/checkpoint.safetensors: a temporary file beside it, flushed, renamed. Rank 0 writes,
 * the others send their experts. Collective. Errors: FILE, MEMORY, PEER. */
mok_status state_save(const model *m, const train_text *text, int64_t step, const char *directory,
                      char *why);

/* Reads it into m and *step. Every byte of the file is checked: the header must be the one that
 * this configuration would write, and the state's digest the one it names. Collective. Errors: FILE
 * (missing, truncated, altered, of another configuration or text), MEMORY, PEER. */
mok_status state_load(model *m, const train_text *text, int64_t *step, const char *directory,
                      char *why);

/* ---- The header of the file, in state_header.c ---- */

#define STATE_FILE "checkpoint.safetensors"
#define STATE_KINDS 3 /* master, m, v */

/* What the header names beside the configuration. */
typedef struct state_facts {
    int64_t step;
    mok_digest digest, text;
} state_facts;

/* One tensor of the file. */
typedef struct state_entry {
    char name[64];
    int32_t rank;
    int64_t shape[3];
    int64_t begin, bytes; /* from the first byte behind the header */
} state_entry;

/* Entry idx of kind * params + param, or the bias behind them; entries follow each other without
 * gaps. */
int64_t state_entry_count(const params *p);
void state_entry_list(state_entry *out, const params *p);

/* The whole header, length word included; the caller frees. NULL when out of memory. */
unsigned char *state_header(size_t *bytes, const train_config *config, const params *p,
                            const state_facts *facts);

/* Reads step and digests out of a header and explains a mismatch with the configuration. `json` is
 * not terminated. Errors: FILE. */
mok_status state_header_read(state_facts *out, const char *json, size_t bytes,
                             const train_config *config, char *why);

#endif
