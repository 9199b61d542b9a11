/* A run from outside: what it learns, the files it leaves, how it ends early, and what it refuses.
 *
 * Every refusal must name the argument or file; a test that only saw a status could not tell two
 * mistakes apart. */
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
#include <unistd.h>

static scratch s;

static int open_scratch(void **state)
{
    (void)state;
    scratch_open(&s);
    return 0;
}

static int close_scratch(void **state)
{
    (void)state;
    scratch_close(&s);
    return 0;
}

static void expect_refused(const train_config *config, mok_status status, const char *named)
{
    char why[TRAIN_WHY_BYTES] = "";
    train_outcome out;
    const mok_status got = train_run(&out, config, why);
    if (got != status || strstr(why, named) == NULL) {
        fail_msg("%s: got %s: '%s'", named, mok_status_string(got), why);
    }
}

/* ---- What it learns ---- */

static void the_loss_of_unseen_text_falls(void **state)
{
    (void)state;
    train_config config = scratch_config(&s, "out", 60);
    config.threads = 2;
    const train_outcome out = scratch_run(&config);
    print_message("loss %.3f to %.3f, held out %.3f\n", out.first_loss, out.loss, out.held_out);
    assert_true(out.first_loss > 5.0);
    assert_true(out.loss < 2.7);
    assert_true(out.held_out < 2.7);
}

static void sampling_gives_the_bytes_that_were_asked_for(void **state)
{
    (void)state;
    train_config config = scratch_config(&s, "out", 1);
    config.sample_bytes = 70;
    config.temperature = 0.0;
    const train_outcome first = scratch_run(&config);
    const train_outcome again = scratch_run(&config);
    assert_int_equal(first.sample_bytes, 70);
    assert_memory_equal(first.sample, again.sample, 71);
    config.temperature = 5.0;
    const train_outcome hot = scratch_run(&config);
    assert_memory_not_equal(first.sample, hot.sample, 70);
    assert_memory_equal(&first.digest, &hot.digest, sizeof hot.digest);
    free(first.sample);
    free(again.sample);
    free(hot.sample);
}

/* ---- Files ---- */

/* Lines are records of steps 1, 2, ... and hold finite numbers. Returns how many. */
static int64_t check_log(const char *name)
{
    char path[400];
    size_t bytes;
    int64_t lines = 0;
    (void)snprintf(path, sizeof path, "%s/%s/log.jsonl", s.path, name);
    char *text = (char *)scratch_read(path, &bytes);
    char *rest = text;
    while (*rest != '\0') {
        char *end = strchr(rest, '\n');
        assert_non_null(end);
        *end = '\0';
        cJSON *line = cJSON_Parse(rest);
        static const char *const names[] = {"step", "loss", "lr", "norm", "load", "tokens_per_s"};
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            assert_true(cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(line, names[i])));
        }
        assert_true(cJSON_GetObjectItemCaseSensitive(line, "step")->valuedouble == (double)++lines);
        assert_true(cJSON_GetObjectItemCaseSensitive(line, "loss")->valuedouble > 0.0);
        cJSON_Delete(line);
        rest = end + 1;
    }
    free(text);
    return lines;
}

/* Every element that opens is closed in order, quotes are paired, and no coordinate is nan or inf.
 */
static void check_svg(const char *name, const char *file)
{
    char path[400];
    size_t bytes;
    int depth = 0;
    int elements = 0;
    (void)snprintf(path, sizeof path, "%s/%s/%s", s.path, name, file);
    char *text = (char *)scratch_read(path, &bytes);
    assert_int_equal(strncmp(text, "<svg xmlns=", 11), 0);
    assert_null(strchr(text, '&'));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    for (const char *at = strchr(text, '<'); at != NULL; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        int quotes = 0;
        assert_non_null(end);
        for (const char *c = at; c < end; c++) {
            quotes += *c == '"';
            assert_true(c == at || *c != '<');
        }
        assert_int_equal(quotes % 2, 0);
        depth += at[1] == '/' ? -1 : end[-1] == '/' ? 0 : 1;
        assert_true(depth >= 0);
        elements++;
    }
    assert_int_equal(depth, 0);
    assert_true(elements > 20);
    free(text);
}

static void log_and_plots_are_well_formed(void **state)
{
    (void)state;
    train_config config = scratch_config(&s, "out", 7);
    config.eval_every = 3;
    (void)scratch_run(&config);
    assert_int_equal(check_log("out"), 7);
    check_svg("out", "loss.svg");
    check_svg("out", "load.svg");
}

static void a_resumed_run_has_the_log_of_the_whole_run(void **state)
{
    (void)state;
    train_config config = scratch_config(&s, "out", 6);
    config.stop_at = 4;
    (void)scratch_run(&config);
    assert_int_equal(check_log("out"), 4);
    (void)snprintf(config.resume_path, sizeof config.resume_path, "%s", config.out_path);
    config.stop_at = 0;
    (void)scratch_run(&config); /* into the same folder */
    assert_int_equal(check_log("out"), 6);
    scratch_path(config.out_path, sizeof config.out_path, &s, "other");
    (void)scratch_run(&config); /* of a finished run, into another folder */
    assert_int_equal(check_log("other"), 6);
    char path[400];
    scratch_path(path, sizeof path, &s, "other/" STATE_FILE);
    assert_int_equal(access(path, R_OK), 0);
}

/* A run that died left lines behind its checkpoint, the last one cut off. */
static void lines_behind_the_checkpoint_are_written_again(void **state)
{
    (void)state;
    train_config config = scratch_config(&s, "out", 5);
    config.stop_at = 2;
    (void)scratch_run(&config);
    char path[400];
    scratch_path(path, sizeof path, &s, "out/log.jsonl");
    FILE *log = fopen(path, "a");
    assert_non_null(log);
    (void)fprintf(
        log, "{\"step\":3,\"loss\":1,\"lr\":1,\"norm\":1,\"load\":1,\"tokens_per_s\":1}\n{\"st");
    (void)fclose(log);
    (void)snprintf(config.resume_path, sizeof config.resume_path, "%s", config.out_path);
    config.stop_at = 0;
    (void)scratch_run(&config);
    assert_int_equal(check_log("out"), 5);
}

/* ---- Ending early ---- */

static void a_run_that_is_asked_to_stop_saves_and_can_go_on(void **state)
{
    (void)state;
    static volatile sig_atomic_t asked = 1;
    train_config config = scratch_config(&s, "out", 4);
    const train_outcome want = scratch_run(&config);
    config.ranks = 2;
    config.stop = &asked;
    const train_outcome stopped = scratch_run(&config);
    assert_int_equal(stopped.step, 1);
    config.stop = NULL;
    (void)snprintf(config.resume_path, sizeof config.resume_path, "%s", config.out_path);
    const train_outcome rest = scratch_run(&config);
    assert_int_equal(rest.first_step, 1);
    assert_memory_equal(&rest.digest, &want.digest, sizeof want.digest);
}

static void a_loss_that_is_not_finite_ends_every_rank(void **state)
{
    (void)state;
    train_config config = scratch_config(&s, "out", 30);
    config.ranks = 2;
    config.lr = 1.0;
    config.clip = 1e30;
    config.decay = -1e6; /* weights grow a million times a step */
    config.warmup_steps = 1;
    expect_refused(&config, MOK_ERROR_VALUE, "not finite");
}

/* ---- Input ---- */

static void a_bad_data_file_is_named(void **state)
{
    (void)state;
    train_config config = scratch_config(&s, "out", 1);
    scratch_path(config.data_path, sizeof config.data_path, &s, "missing.txt");
    expect_refused(&config, MOK_ERROR_FILE, "missing.txt");
    scratch_path(config.data_path, sizeof config.data_path, &s, "empty.txt");
    scratch_write(config.data_path, "", 0);
    expect_refused(&config, MOK_ERROR_FILE, "has 0 bytes");
    char few[256];
    const size_t least = (size_t)train_text_least_bytes(&config);
    memset(few, 'a', sizeof few);
    assert_true(least <= sizeof few);
    scratch_write(config.data_path, few, least - 1);
    expect_refused(&config, MOK_ERROR_FILE, "needs at least");
    scratch_write(config.data_path, few, least);
    (void)scratch_run(&config);
    (void)snprintf(config.data_path, sizeof config.data_path, "%s", s.path);
    expect_refused(&config, MOK_ERROR_FILE, "regular file");
}

static void a_bad_folder_is_named(void **state)
{
    (void)state;
    train_config config = scratch_config(&s, "text.txt", 1);
    expect_refused(&config, MOK_ERROR_FILE, "text.txt");
    scratch_path(config.out_path, sizeof config.out_path, &s, "no/such/parent");
    expect_refused(&config, MOK_ERROR_FILE, "no/such/parent");
}

static void sizes_out_of_range_are_named(void **state)
{
    (void)state;
    const train_config good = scratch_config(&s, "out", 1);
    train_config config = good;
    config.ranks = 9;
    expect_refused(&config, MOK_ERROR_ARGUMENT, "token lanes");
    config = good;
    config.ranks = 0;
    expect_refused(&config, MOK_ERROR_ARGUMENT, "--ranks");
    config = good;
    config.steps = 0;
    expect_refused(&config, MOK_ERROR_ARGUMENT, "--steps");
    config = good;
    config.lr = (double)(0.0f / (config.lr > 0.0 ? 0.0f : 1.0f));
    expect_refused(&config, MOK_ERROR_ARGUMENT, "--lr");
    config = good;
    config.shape.heads = 3;
    expect_refused(&config, MOK_ERROR_SHAPE, "hidden is 32");
    config = good;
    config.shape.hidden = (int64_t)1 << 40;
    expect_refused(&config, MOK_ERROR_ARGUMENT, "hidden");
    config = good;
    config.batch = 4096;
    config.shape.length = 16384;
    expect_refused(&config, MOK_ERROR_ARGUMENT, "lanes * batch * length");
}

/* Each size is allowed; together they pass 2^31 elements and any machine. */
static void a_run_over_memory_is_refused_before_it_begins(void **state)
{
    (void)state;
    train_config config = scratch_config(&s, "out", 1);
    const train_shape huge = {16384, 64, 64, 4096, 8, 65536, 65536, 16384};
    config.shape = huge;
    expect_refused(&config, MOK_ERROR_MEMORY, "GB");
    config.ranks = 8;
    expect_refused(&config, MOK_ERROR_MEMORY, "8 ranks");
}

#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, open_scratch, close_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(the_loss_of_unseen_text_falls),
        WITH_SCRATCH(sampling_gives_the_bytes_that_were_asked_for),
        WITH_SCRATCH(log_and_plots_are_well_formed),
        WITH_SCRATCH(a_resumed_run_has_the_log_of_the_whole_run),
        WITH_SCRATCH(lines_behind_the_checkpoint_are_written_again),
        WITH_SCRATCH(a_run_that_is_asked_to_stop_saves_and_can_go_on),
        WITH_SCRATCH(a_loss_that_is_not_finite_ends_every_rank),
        WITH_SCRATCH(a_bad_data_file_is_named),
        WITH_SCRATCH(a_bad_folder_is_named),
        WITH_SCRATCH(sizes_out_of_range_are_named),
        WITH_SCRATCH(a_run_over_memory_is_refused_before_it_begins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
