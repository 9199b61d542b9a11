/* The checkpoint file: what is written is read, at any rank count.
 *
 * Anything cut, altered or foreign is refused with a message that says what is wrong, and the
 * folder never holds half a file under the final name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scratch.h"
#include "state.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALTERATIONS 600
#define CUTS 200

/* A saved run of two steps, and a model of the same configuration to load into. */
typedef struct saved {
    scratch s;
    train_config config;
    train_text text;
    mok_comm *comm;
    model m;
    mok_digest digest;
    char file[400];
    unsigned char *bytes;
    size_t size;
} saved;

static int open_saved(void **state)
{
    char why[TRAIN_WHY_BYTES] = "";
    saved *v = calloc(1, sizeof *v);
    assert_non_null(v);
    scratch_open(&v->s);
    v->config = scratch_config(&v->s, "out", 2);
    v->digest = scratch_run(&v->config).digest;
    (void)snprintf(v->file, sizeof v->file, "%s/out/%s", v->s.path, STATE_FILE);
    v->bytes = scratch_read(v->file, &v->size);
    assert_int_equal(train_text_open(&v->text, &v->config, why), MOK_OK);
    assert_int_equal(mok_comm_open_local(&v->comm, 1, NULL), MOK_OK);
    assert_int_equal(model_open(&v->m, &v->config, v->comm, why), MOK_OK);
    *state = v;
    return 0;
}

static int close_saved(void **state)
{
    saved *v = *state;
    model_close(&v->m);
    mok_comm_close(&v->comm);
    train_text_close(&v->text);
    free(v->bytes);
    scratch_close(&v->s);
    free(v);
    return 0;
}

static mok_status load(saved *v, char *why)
{
    int64_t step = 0;
    why[0] = '\0';
    return state_load(&v->m, &v->text, &step, v->config.out_path, why);
}

static void expect_refused(saved *v, const char *what)
{
    char why[TRAIN_WHY_BYTES];
    const mok_status status = load(v, why);
    if (status != MOK_ERROR_FILE) {
        fail_msg("%s: %s", what, mok_status_string(status));
    }
    if (strstr(why, "checkpoint") == NULL || strlen(why) < 20) {
        fail_msg("%s: the message is '%s'", what, why);
    }
}

static void what_was_saved_is_loaded(void **state)
{
    saved *v = *state;
    char why[TRAIN_WHY_BYTES];
    mok_digest digest;
    scratch_write(v->file, v->bytes, v->size);
    assert_int_equal(load(v, why), MOK_OK);
    assert_int_equal(state_digest(&v->m, 2, &digest), MOK_OK);
    assert_memory_equal(&digest, &v->digest, sizeof digest);
    assert_int_equal(state_save(&v->m, &v->text, 2, v->config.out_path, why), MOK_OK);
    size_t size;
    unsigned char *again = scratch_read(v->file, &size);
    assert_int_equal(size, v->size);
    assert_memory_equal(again, v->bytes, size);
    free(again);
}

static void a_cut_file_is_refused_at_any_length(void **state)
{
    saved *v = *state;
    for (size_t i = 0; i < CUTS; i++) {
        char what[64];
        /* Densely at the beginning, where the header is, then evenly to one byte before the end. */
        const size_t length = i < 40 ? i : v->size - 1 - (v->size - 41) * (i - 40) / (CUTS - 40);
        scratch_write(v->file, v->bytes, length);
        (void)snprintf(what, sizeof what, "cut at %zu of %zu bytes", length, v->size);
        expect_refused(v, what);
    }
}

static void a_longer_file_is_refused(void **state)
{
    saved *v = *state;
    unsigned char *longer = calloc(v->size + 64, 1);
    assert_non_null(longer);
    memcpy(longer, v->bytes, v->size);
    scratch_write(v->file, longer, v->size + 1);
    expect_refused(v, "one byte more");
    scratch_write(v->file, longer, v->size + 64);
    expect_refused(v, "64 bytes more");
    free(longer);
}

static void any_altered_byte_is_refused(void **state)
{
    saved *v = *state;
    for (uint64_t i = 0; i < ALTERATIONS; i++) {
        char what[64];
        const size_t header = 6000;
        const size_t range = i % 2 == 0 && header < v->size ? header : v->size;
        const size_t at = i < 16 ? (size_t)i : (size_t)(train_random(21, i) % range);
        const unsigned char was = v->bytes[at];
        v->bytes[at] = (unsigned char)(was ^ (1u << train_random(22, i) % 8));
        scratch_write(v->file, v->bytes, v->size);
        v->bytes[at] = was;
        (void)snprintf(what, sizeof what, "byte %zu of %zu altered", at, v->size);
        expect_refused(v, what);
    }
}

static void foreign_files_are_refused(void **state)
{
    static const char *const foreign[] = {"",
                                          "x",
                                          "not a checkpoint at all, but longer than eight bytes",
                                          "\x02\0\0\0\0\0\0\0{}",
                                          "\x04\0\0\0\0\0\0\0null",
                                          "\x12\0\0\0\0\0\0\0{\"__metadata__\":1}",
                                          "\xff\xff\xff\xff\xff\xff\xff\x7f{}",
                                          "\x10\0\0\0\0\0\0\0[[[[[[[[[[[[[[[["};
    saved *v = *state;
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        char what[64];
        const size_t bytes = i < 3 ? strlen(foreign[i]) : 8 + strlen(foreign[i] + 8);
        scratch_write(v->file, foreign[i], bytes);
        (void)snprintf(what, sizeof what, "foreign file %zu", i);
        expect_refused(v, what);
    }
    assert_int_equal(unlink(v->file), 0);
    expect_refused(v, "no file");
}

/* Each field that decides the bits is compared; the message names it. */
static void a_file_of_another_run_is_refused_by_name(void **state)
{
    saved *v = *state;
    const train_config kept = v->config;
    char why[TRAIN_WHY_BYTES];
    scratch_write(v->file, v->bytes, v->size);
    v->config.seed++;
    expect_refused(v, "another seed");
    (void)load(v, why);
    assert_non_null(strstr(why, "seed"));
    v->config = kept;
    v->config.lr *= 2.0;
    (void)load(v, why);
    assert_non_null(strstr(why, "lr"));
    v->config = kept;
    v->config.steps = 1;
    (void)load(v, why);
    assert_non_null(strstr(why, "steps"));
    v->config = kept;
    v->text.digest.low ^= 1;
    (void)load(v, why);
    v->text.digest.low ^= 1;
    assert_non_null(strstr(why, "text"));
    assert_int_equal(load(v, why), MOK_OK);
}

/* A refused file must not leave a changed run behind: nothing of OUT is touched before the file is
 * accepted. */
static void a_refused_resume_ends_the_run_on_every_rank(void **state)
{
    saved *v = *state;
    char why[TRAIN_WHY_BYTES] = "";
    train_outcome out;
    train_config config = scratch_config(&v->s, "fresh", 2);
    config.ranks = 3;
    scratch_path(config.resume_path, sizeof config.resume_path, &v->s, "out");
    scratch_write(v->file, v->bytes, v->size - 1);
    assert_int_equal(train_run(&out, &config, why), MOK_ERROR_FILE);
    assert_non_null(strstr(why, "truncated"));
    assert_int_equal(access(config.out_path, F_OK), 0);
    char log[400];
    scratch_path(log, sizeof log, &v->s, "fresh/log.jsonl");
    assert_int_equal(access(log, F_OK), -1);
}

static void no_temporary_file_is_left(void **state)
{
    saved *v = *state;
    char path[420];
    (void)snprintf(path, sizeof path, "%s.tmp", v->file);
    assert_int_equal(access(path, F_OK), -1);
}

/* The old file must survive a save that fails: here the temporary file cannot be made. */
static void a_failed_save_keeps_the_old_file(void **state)
{
    saved *v = *state;
    char why[TRAIN_WHY_BYTES] = "";
    char path[420];
    scratch_write(v->file, v->bytes, v->size);
    assert_int_equal(load(v, why), MOK_OK);
    (void)snprintf(path, sizeof path, "%s.tmp", v->file);
    assert_int_equal(mkdir(path, 0700), 0);
    const mok_status status = state_save(&v->m, &v->text, 2, v->config.out_path, why);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(status, MOK_ERROR_FILE);
    assert_non_null(strstr(why, STATE_FILE));
    size_t size;
    unsigned char *kept = scratch_read(v->file, &size);
    assert_int_equal(size, v->size);
    assert_memory_equal(kept, v->bytes, size);
    free(kept);
}

/* Any reader of the format finds the tensors: offsets are in order, without gaps, and end with the
 * file. */
static void the_header_describes_the_whole_file(void **state)
{
    saved *v = *state;
    size_t length = 0;
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | v->bytes[i];
    }
    cJSON *root = cJSON_ParseWithLength((const char *)v->bytes + 8, length);
    assert_non_null(root);
    double at = 0.0;
    int tensors = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, root)
    {
        if (strcmp(item->string, "__metadata__") == 0) {
            continue;
        }
        const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
        const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
        double bytes = 4.0;
        const cJSON *extent;
        cJSON_ArrayForEach(extent, shape)
        {
            bytes *= extent->valuedouble;
        }
        assert_string_equal(cJSON_GetObjectItemCaseSensitive(item, "dtype")->valuestring, "F32");
        assert_true(cJSON_GetArrayItem(offsets, 0)->valuedouble == at);
        at += bytes;
        assert_true(cJSON_GetArrayItem(offsets, 1)->valuedouble == at);
        tensors++;
    }
    assert_true((double)(8 + length) + at == (double)v->size);
    assert_int_equal(tensors, 3 * v->m.params.count + 1);
    cJSON_Delete(root);
}

#define WITH_SAVED(test) cmocka_unit_test_setup_teardown(test, open_saved, close_saved)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SAVED(what_was_saved_is_loaded),
        WITH_SAVED(a_cut_file_is_refused_at_any_length),
        WITH_SAVED(a_longer_file_is_refused),
        WITH_SAVED(any_altered_byte_is_refused),
        WITH_SAVED(foreign_files_are_refused),
        WITH_SAVED(a_file_of_another_run_is_refused_by_name),
        WITH_SAVED(a_refused_resume_ends_the_run_on_every_rank),
        WITH_SAVED(no_temporary_file_is_left),
        WITH_SAVED(a_failed_save_keeps_the_old_file),
        WITH_SAVED(the_header_describes_the_whole_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
