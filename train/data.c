/* Random numbers, the text file, and the windows that lanes read.
 *
 * The file is read whole once and its digest taken: a resumed run that was given another text would
 * otherwise go on without a word. Windows are computed, not stored, so there is no order to
 * restore. */
#include "data.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t train_random(uint64_t key, uint64_t count)
{
    return mix(mix(key) + (count + 1) * 0x9E3779B97F4A7C15u);
}

uint64_t train_key(uint64_t key, uint64_t number)
{
    return train_random(key ^ 0xA5A5A5A55A5A5A5Au, number);
}

/* A twentieth is held out, and at least what one sequence needs. */
static int64_t held_out_bytes(int64_t size, int64_t length)
{
    return train_max(size / 20, length + 1);
}

int64_t train_text_least_bytes(const train_config *config)
{
    return 4 * (config->shape.length + 1);
}

static mok_status read_all(train_text *text, FILE *file, const char *path, char *why)
{
    struct stat about;
    if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode)) {
        return train_fail(why, MOK_ERROR_FILE, "--data %s is not a regular file", path);
    }
    const int64_t most = (int64_t)1 << 34;
    if ((int64_t)about.st_size > most) {
        return train_fail(why, MOK_ERROR_FILE, "--data %s has %" PRId64 " bytes, at most %" PRId64,
                          path, (int64_t)about.st_size, most);
    }
    text->size = (int64_t)about.st_size;
    text->bytes = calloc((size_t)text->size + 4, 1);
    if (text->bytes == NULL) {
        return train_fail(why, MOK_ERROR_MEMORY, "--data %s: no memory for %" PRId64 " bytes", path,
                          text->size);
    }
    if (fread(text->bytes, 1, (size_t)text->size, file) != (size_t)text->size) {
        return train_fail(why, MOK_ERROR_FILE, "--data %s: read error", path);
    }
    return MOK_OK;
}

static mok_status digest_text(train_text *text, char *why)
{
    mok_digest parts[2];
    const mok_tensor words = mok_tensor_1d(text->bytes, MOK_DTYPE_I32, (text->size + 3) / 4);
    const mok_tensor size = mok_tensor_1d(&text->size, MOK_DTYPE_I64, 1);
    if (mok_digest_tensor(&parts[0], &words, MOK_ARITH_TC16) != MOK_OK ||
        mok_digest_tensor(&parts[1], &size, MOK_ARITH_TC16) != MOK_OK) {
        return train_fail(why, MOK_ERROR_FILE, "digest of the data: %s", mok_last_error());
    }
    return mok_digest_combine(&text->digest, parts, 2);
}

mok_status train_text_open(train_text *out, const train_config *config, char *why)
{
    memset(out, 0, sizeof *out);
    const char *path = config->data_path;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return train_fail(why, MOK_ERROR_FILE, "--data %s: %s", path, strerror(errno));
    }
    mok_status status = read_all(out, file, path, why);
    (void)fclose(file);
    const int64_t least = train_text_least_bytes(config);
    if (status == MOK_OK && out->size < least) {
        status = train_fail(why, MOK_ERROR_FILE,
                            "--data %s has %" PRId64 " bytes, needs at least %" PRId64
                            " for sequences of %" PRId64,
                            path, out->size, least, config->shape.length);
    }
    if (status == MOK_OK) {
        out->held_out_begin = out->size - held_out_bytes(out->size, config->shape.length);
        status = digest_text(out, why);
    }
    if (status != MOK_OK) {
        train_text_close(out);
    }
    return status;
}

void train_text_close(train_text *text)
{
    free(text->bytes);
    memset(text, 0, sizeof *text);
}

void train_text_lane(uint8_t *tokens, uint8_t *targets, const train_text *text,
                     const train_config *config, uint32_t stream, int64_t step, int64_t lane)
{
    const int64_t length = config->shape.length;
    const bool held_out = stream == TRAIN_STREAM_HELD_OUT;
    const int64_t begin = held_out ? text->held_out_begin : 0;
    const int64_t end = held_out ? text->size : text->held_out_begin;
    const uint64_t starts = (uint64_t)(end - begin - length); /* a window reads length + 1 bytes */
    uint64_t key = train_key(train_key(config->seed, stream), (uint64_t)step);
    key = train_key(key, (uint64_t)lane);
    for (int64_t sequence = 0; sequence < config->batch; sequence++) {
        const uint64_t at = train_random(key, (uint64_t)sequence) % starts;
        const uint8_t *from = text->bytes + begin + (int64_t)at;
        memcpy(tokens + sequence * length, from, (size_t)length);
        memcpy(targets + sequence * length, from + 1, (size_t)length);
    }
}
