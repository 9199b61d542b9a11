/* Folders, files and runs for the trainer's tests.
 *
 * Whatever fails here fails the test that called; nothing outside the scratch folder is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scratch.h"

#include "data.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_text(const char *path)
{
    static const char *const words[] = {"the ",   "river ", "ran ",    "over ", "stone ", "and ",
                                        "under ", "a ",     "bridge ", "of ",   "oak.\n", "still "};
    char *text = malloc(SCRATCH_TEXT_BYTES + 16);
    assert_non_null(text);
    size_t used = 0;
    for (uint64_t i = 0; used < SCRATCH_TEXT_BYTES; i++) {
        const char *word = words[train_random(7, i) % (sizeof words / sizeof words[0])];
        memcpy(text + used, word, strlen(word));
        used += strlen(word);
    }
    scratch_write(path, text, SCRATCH_TEXT_BYTES);
    free(text);
}

void scratch_open(scratch *s)
{
    const char *parent = getenv("TMPDIR");
    (void)snprintf(s->path, sizeof s->path, "%s/mok-train-XXXXXX",
                   parent != NULL ? parent : "/tmp");
    assert_non_null(mkdtemp(s->path));
    (void)snprintf(s->text, sizeof s->text, "%s/text.txt", s->path);
    write_text(s->text);
}

static void empty(const char *path, int levels)
{
    char name[2048];
    struct dirent *entry;
    DIR *directory = opendir(path);
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        (void)snprintf(name, sizeof name, "%.1024s/%s", path, entry->d_name);
        if (unlink(name) != 0 && levels > 0) {
            empty(name, levels - 1);
            (void)rmdir(name);
        }
    }
    if (directory != NULL) {
        (void)closedir(directory);
    }
}

void scratch_close(scratch *s)
{
    empty(s->path, 1);
    (void)rmdir(s->path);
}

void scratch_path(char *out, size_t bytes, const scratch *s, const char *name)
{
    (void)snprintf(out, bytes, "%s/%s", s->path, name);
}

void scratch_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

unsigned char *scratch_read(const char *path, size_t *bytes)
{
    struct stat about;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &about), 0);
    *bytes = (size_t)about.st_size;
    unsigned char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    data[*bytes] = 0;
    (void)fclose(file);
    return data;
}

train_config scratch_config(const scratch *s, const char *name, int64_t steps)
{
    train_config config;
    assert_int_equal(train_config_init(&config, "tiny", NULL), MOK_OK);
    config.steps = steps;
    config.warmup_steps = train_min(config.warmup_steps, steps);
    config.threads = 1;
    config.sample_bytes = 0;
    config.quiet = true;
    (void)snprintf(config.data_path, sizeof config.data_path, "%s", s->text);
    scratch_path(config.out_path, sizeof config.out_path, s, name);
    return config;
}

train_outcome scratch_run(const train_config *config)
{
    char why[TRAIN_WHY_BYTES] = "";
    train_outcome out;
    const mok_status status = train_run(&out, config, why);
    if (status != MOK_OK) {
        fail_msg("train_run: %s: %s", mok_status_string(status), why);
    }
    return out;
}
