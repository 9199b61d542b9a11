/* The digest of the training state, saving and loading.
 *
 * A file under the final name is always whole: it is written beside it, flushed, renamed, and the
 * folder is flushed too. Experts travel one at a time, so that no rank needs memory for another's.
 */
#include "state.h"

#include "exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_HEADER_BYTES ((uint64_t)1 << 26)

static float *array_of(const params *p, int kind)
{
    return kind == 0 ? p->master : kind == 1 ? p->m : p->v;
}

/* ---- Digest ---- */

static mok_status unit_digest(const model *m, mok_digest *out, int kind, const param *item,
                              int64_t unit)
{
    const mok_tensor tensor = mok_tensor_2d(params_unit(array_of(&m->params, kind), item, unit),
                                            MOK_DTYPE_F32, item->shape[0], item->shape[1]);
    return mok_digest_tensor(out, &tensor, m->config->arith);
}

static mok_status fill_expert_digests(const model *m, mok_digest *table)
{
    const params *p = &m->params;
    for (int kind = 0; kind < STATE_KINDS; kind++) {
        for (int32_t i = 0; i < p->count; i++) {
            const param *item = &p->list[i];
            for (int64_t unit = 0; unit < item->units && item->kind == PARAM_EXPERT; unit++) {
                mok_digest *to = &table[((int64_t)kind * p->count + i) * p->shape.experts +
                                        p->expert_begin + unit];
                TRAIN_TRY(unit_digest(m, to, kind, item, unit));
            }
        }
    }
    return MOK_OK;
}

/* Replicated tensors, then experts, then biases and the step. */
static mok_status combine_digests(const model *m, int64_t step, const mok_digest *table,
                                  mok_digest *out)
{
    const params *p = &m->params;
    const int64_t rows = (int64_t)STATE_KINDS * p->count;
    mok_digest *list = calloc((size_t)(rows + 3), sizeof *list);
    mok_status status = list != NULL ? MOK_OK : MOK_ERROR_MEMORY;
    for (int64_t row = 0; row < rows && status == MOK_OK; row++) {
        const param *item = &p->list[row % p->count];
        status =
            item->kind == PARAM_REPLICATED
                ? unit_digest(m, &list[row], (int)(row / p->count), item, 0)
                : mok_digest_combine(&list[row], table + row * p->shape.experts, p->shape.experts);
    }
    const mok_tensor bias =
        mok_tensor_2d(p->bias, MOK_DTYPE_F32, p->shape.blocks, p->shape.experts);
    const mok_tensor number = mok_tensor_1d(&step, MOK_DTYPE_I64, 1);
    status = status != MOK_OK ? status : mok_digest_tensor(&list[rows], &bias, m->config->arith);
    status =
        status != MOK_OK ? status : mok_digest_tensor(&list[rows + 1], &number, m->config->arith);
    status = status != MOK_OK ? status : mok_digest_combine(out, list, rows + 2);
    free(list);
    return status;
}

mok_status state_digest(const model *m, int64_t step, mok_digest *out)
{
    const int64_t rows = (int64_t)STATE_KINDS * m->params.count;
    mok_digest *table = calloc((size_t)(rows * m->params.shape.experts) + 1, sizeof *table);
    mok_status status = table != NULL ? fill_expert_digests(m, table) : MOK_ERROR_MEMORY;
    status = mok_comm_agree(m->comm, status);
    if (status == MOK_OK) {
        status = exchange_table(m, table, rows, EXCHANGE_EXPERTS, sizeof *table);
    }
    if (status == MOK_OK) {
        status = combine_digests(m, step, table, out);
    }
    free(table);
    return status;
}

/* ---- Saving ---- */

typedef struct writer {
    FILE *file; /* NULL on ranks that do not write, and after a failure */
    bool failed;
} writer;

static void put(writer *w, const void *data, size_t bytes)
{
    if (w->file != NULL && !w->failed) {
        w->failed = fwrite(data, 1, bytes, w->file) != bytes;
    }
}

/* Every rank walks the same list; an expert comes from the rank that holds it. */
static mok_status put_tensors(const model *m, writer *w, float *unit_buffer)
{
    const params *p = &m->params;
    for (int kind = 0; kind < STATE_KINDS; kind++) {
        for (int32_t i = 0; i < p->count; i++) {
            const param *item = &p->list[i];
            const size_t bytes = (size_t)item->unit_size * sizeof(float);
            if (item->kind == PARAM_REPLICATED) {
                put(w, params_unit(array_of(p, kind), item, 0), bytes);
                continue;
            }
            for (int64_t expert = 0; expert < p->shape.experts; expert++) {
                const int32_t owner =
                    (int32_t)train_owner(p->shape.experts, m->config->ranks, expert);
                if (owner == mok_comm_rank(m->comm)) {
                    memcpy(unit_buffer,
                           params_unit(array_of(p, kind), item, expert - p->expert_begin), bytes);
                }
                TRAIN_TRY(mok_comm_broadcast(m->comm, unit_buffer, bytes, owner));
                put(w, unit_buffer, bytes);
            }
        }
    }
    put(w, p->bias, (size_t)(p->shape.blocks * p->shape.experts) * sizeof(float));
    return MOK_OK;
}

static void path_in(char *out, const char *directory, const char *name)
{
    (void)snprintf(out, TRAIN_PATH_BYTES + 64, "%s/%s", directory, name);
}

/* The rename is only as lasting as the directory's own entry. */
static bool flush_directory(const char *directory)
{
    const int handle = open(directory, O_RDONLY);
    if (handle < 0) {
        return false;
    }
    const bool flushed = fsync(handle) == 0;
    return close(handle) == 0 && flushed;
}

static mok_status finish_file(writer *w, const char *directory, char *why)
{
    char from[TRAIN_PATH_BYTES + 64];
    char to[TRAIN_PATH_BYTES + 64];
    path_in(from, directory, STATE_FILE ".tmp");
    path_in(to, directory, STATE_FILE);
    bool good = !w->failed && fflush(w->file) == 0 && fsync(fileno(w->file)) == 0;
    good = fclose(w->file) == 0 && good;
    good = good && rename(from, to) == 0 && flush_directory(directory);
    if (!good) {
        const int cause = errno;
        (void)remove(from);
        return train_fail(why, MOK_ERROR_FILE, "checkpoint %s: %s", to, strerror(cause));
    }
    return MOK_OK;
}

static mok_status begin_file(writer *w, const model *m, const train_text *text, int64_t step,
                             const mok_digest *digest, const char *directory, char *why)
{
    char path[TRAIN_PATH_BYTES + 64];
    size_t bytes = 0;
    const state_facts facts = {step, *digest, text->digest};
    path_in(path, directory, STATE_FILE ".tmp");
    unsigned char *header = state_header(&bytes, m->config, &m->params, &facts);
    if (header == NULL) {
        return train_fail(why, MOK_ERROR_MEMORY, "checkpoint: no memory for the header");
    }
    w->file = fopen(path, "wb");
    if (w->file == NULL) {
        free(header);
        return train_fail(why, MOK_ERROR_FILE, "checkpoint %s: %s", path, strerror(errno));
    }
    put(w, header, bytes);
    free(header);
    return MOK_OK;
}

static int64_t largest_unit(const params *p)
{
    int64_t most = 1;
    for (int32_t i = 0; i < p->count; i++) {
        most = train_max(most, p->list[i].unit_size);
    }
    return most;
}

mok_status state_save(const model *m, const train_text *text, int64_t step, const char *directory,
                      char *why)
{
    mok_digest digest;
    writer w = {NULL, false};
    TRAIN_TRY(state_digest(m, step, &digest));
    float *unit = malloc((size_t)largest_unit(&m->params) * sizeof *unit);
    mok_status status =
        unit != NULL ? MOK_OK : train_fail(why, MOK_ERROR_MEMORY, "checkpoint: no memory");
    if (status == MOK_OK && mok_comm_rank(m->comm) == 0) {
        status = begin_file(&w, m, text, step, &digest, directory, why);
    }
    status = train_agree(m->comm, status, why);
    if (status == MOK_OK) {
        status = put_tensors(m, &w, unit);
        if (status != MOK_OK) { /* a peer's, so the file has nothing to say */
            (void)train_fail(why, status, "%s", mok_last_error());
        }
    }
    if (w.file != NULL) {
        char unsaid[TRAIN_WHY_BYTES];
        w.failed = w.failed || status != MOK_OK;
        const mok_status finished = finish_file(&w, directory, status == MOK_OK ? why : unsaid);
        status = status != MOK_OK ? status : finished;
    }
    free(unit);
    return train_agree(m->comm, status, why);
}

/* ---- Loading ---- */

static bool get(FILE *file, int64_t at, void *data, size_t bytes)
{
    return fseeko(file, (off_t)at, SEEK_SET) == 0 && fread(data, 1, bytes, file) == bytes;
}

static mok_status read_header(FILE *file, const model *m, const train_text *text,
                              state_facts *facts, int64_t *data_begin, char *why)
{
    unsigned char word[8];
    uint64_t length = 0;
    if (!get(file, 0, word, sizeof word)) {
        return train_fail(why, MOK_ERROR_FILE, "checkpoint: truncated before the header");
    }
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | word[i];
    }
    if (length == 0 || length > MAX_HEADER_BYTES) {
        return train_fail(why, MOK_ERROR_FILE, "checkpoint: a header of %" PRIu64 " bytes", length);
    }
    unsigned char *header = malloc((size_t)length + 8);
    if (header == NULL) {
        return train_fail(why, MOK_ERROR_MEMORY, "checkpoint: no memory for the header");
    }
    mok_status status = MOK_OK;
    if (!get(file, 0, header, (size_t)length + 8)) {
        status = train_fail(why, MOK_ERROR_FILE, "checkpoint: truncated in the header");
    }
    if (status == MOK_OK) {
        status = state_header_read(facts, (const char *)header + 8, (size_t)length, m->config, why);
    }
    if (status == MOK_OK && memcmp(&facts->text, &text->digest, sizeof text->digest) != 0) {
        status = train_fail(why, MOK_ERROR_FILE,
                            "checkpoint: it was made with another text than --data");
    }
    if (status == MOK_OK) {
        size_t bytes = 0;
        unsigned char *expected = state_header(&bytes, m->config, &m->params, facts);
        if (expected == NULL || bytes != (size_t)length + 8 ||
            memcmp(expected, header, bytes) != 0) {
            status = train_fail(why, MOK_ERROR_FILE,
                                "checkpoint: altered: the header is not as written");
        }
        free(expected);
    }
    free(header);
    *data_begin = (int64_t)length + 8;
    return status;
}

static mok_status read_tensors(FILE *file, model *m, int64_t data_begin, char *why)
{
    const params *p = &m->params;
    const int64_t count = state_entry_count(p);
    state_entry *entries = malloc((size_t)count * sizeof *entries);
    if (entries == NULL) {
        return train_fail(why, MOK_ERROR_MEMORY, "checkpoint: no memory for the table");
    }
    state_entry_list(entries, p);
    bool whole = true;
    for (int64_t i = 0; i + 1 < count && whole; i++) {
        const param *item = &p->list[i % p->count];
        const int64_t unit_bytes = item->unit_size * (int64_t)sizeof(float);
        const int64_t first = item->kind == PARAM_EXPERT ? p->expert_begin : 0;
        whole = get(file, data_begin + entries[i].begin + first * unit_bytes,
                    params_unit(array_of(p, (int)(i / p->count)), item, 0),
                    (size_t)(item->units * unit_bytes));
    }
    const state_entry *bias = &entries[count - 1];
    whole = whole && get(file, data_begin + bias->begin, p->bias, (size_t)bias->bytes);
    const int64_t end = data_begin + bias->begin + bias->bytes;
    whole = whole && fseeko(file, 0, SEEK_END) == 0;
    const int64_t size = whole ? (int64_t)ftello(file) : -1;
    free(entries);
    if (!whole || size != end) {
        return train_fail(why, MOK_ERROR_FILE, "checkpoint: %s: it must have %" PRId64 " bytes",
                          size > end ? "bytes behind its end" : "truncated", end);
    }
    return MOK_OK;
}

mok_status state_load(model *m, const train_text *text, int64_t *step, const char *directory,
                      char *why)
{
    char path[TRAIN_PATH_BYTES + 64];
    state_facts facts;
    int64_t data_begin = 0;
    path_in(path, directory, STATE_FILE);
    FILE *file = fopen(path, "rb");
    mok_status status =
        file != NULL ? MOK_OK
                     : train_fail(why, MOK_ERROR_FILE, "checkpoint %s: %s", path, strerror(errno));
    if (status == MOK_OK) {
        status = read_header(file, m, text, &facts, &data_begin, why);
    }
    if (status == MOK_OK) {
        status = read_tensors(file, m, data_begin, why);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    TRAIN_TRY(train_agree(m->comm, status, why));
    mok_digest digest;
    TRAIN_TRY(state_digest(m, facts.step, &digest));
    if (memcmp(&digest, &facts.digest, sizeof digest) != 0) {
        status = train_fail(why, MOK_ERROR_FILE,
                            "checkpoint: altered: its state has another digest than it names");
    }
    if (facts.step > m->config->steps) {
        status = train_fail(why, MOK_ERROR_FILE, "checkpoint: step %" PRId64 " of %" PRId64,
                            facts.step, m->config->steps);
    }
    TRAIN_TRY(train_agree(m->comm, status, why));
    params_copy(&m->params, 0, m->params.local_count);
    *step = facts.step;
    return MOK_OK;
}
