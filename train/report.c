/* The log and the progress line.
 *
 * On a terminal one line is written over; elsewhere, in a file or a pipe, some twenty whole lines
 * are written, so that a log of a long run can be read. What is printed never feeds back into the
 * run. */
#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BAR_WIDTH 24
#define PLAIN_LINES 20 /* of a run that is not on a terminal, at least */

double report_now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The new log takes the old one's place only when it is whole: the two may be one file. */
static mok_status begin_log(report *r, char *why)
{
    char path[TRAIN_PATH_BYTES + 64];
    char fresh[TRAIN_PATH_BYTES + 64];
    (void)snprintf(path, sizeof path, "%s/%s", r->config->out_path, REPORT_LOG_FILE);
    (void)snprintf(fresh, sizeof fresh, "%s/%s.tmp", r->config->out_path, REPORT_LOG_FILE);
    r->log = fopen(fresh, "w");
    if (r->log == NULL) {
        return train_fail(why, MOK_ERROR_FILE, "%s: %s", fresh, strerror(errno));
    }
    for (int64_t i = 0; i < r->count; i++) {
        report_write_line(r->log, &r->record[i]);
    }
    if (fflush(r->log) != 0 || ferror(r->log) != 0 || rename(fresh, path) != 0) {
        return train_fail(why, MOK_ERROR_FILE, "%s: %s", path, strerror(errno));
    }
    return MOK_OK;
}

mok_status report_open(report *r, const train_config *config, int64_t begin_step, char *why)
{
    const int64_t experts = config->shape.blocks * config->shape.experts;
    memset(r, 0, sizeof *r);
    r->config = config;
    r->terminal = !config->quiet && isatty(STDOUT_FILENO) != 0;
    r->begin_s = report_now_s();
    r->begin_step = begin_step;
    r->load = calloc((size_t)experts, sizeof *r->load);
    if (r->load == NULL) {
        return train_fail(why, MOK_ERROR_MEMORY, "no memory for the load of %" PRId64 " experts",
                          experts);
    }
    if (config->resume_path[0] != '\0') {
        TRAIN_TRY(report_read_log(r, config->resume_path, why));
    }
    return begin_log(r, why);
}

void report_close(report *r)
{
    if (r->log != NULL) {
        (void)fclose(r->log);
    }
    free(r->record);
    free(r->load);
    memset(r, 0, sizeof *r);
}

/* As long as the steps of this run so far took. */
static void print_time_left(const report *r, int64_t done)
{
    const int64_t last = r->config->stop_at > 0 ? r->config->stop_at : r->config->steps;
    const double each = (report_now_s() - r->begin_s) / (double)(done - r->begin_step);
    const double left = each * (double)(last - done);
    const long whole = left > 0.0 ? (long)left : 0;
    (void)printf("%ld:%02ld left", whole / 60, whole % 60);
}

static void print_terminal(const report *r, const step_record *record)
{
    const int64_t done = record->step;
    const int64_t filled = done * BAR_WIDTH / r->config->steps;
    (void)printf("\r[");
    for (int64_t i = 0; i < BAR_WIDTH; i++) {
        (void)putchar(i < filled ? '=' : ' ');
    }
    (void)printf("] %" PRId64 "/%" PRId64 "  loss %.4f  %.0f tokens/s  ", done, r->config->steps,
                 record->loss, record->tokens_per_s);
    print_time_left(r, done);
    (void)printf("   ");
    if (record->has_held_out) {
        (void)printf("\n  step %" PRId64 "  held-out loss %.4f\n", done, record->held_out);
    }
    (void)fflush(stdout);
}

static void print_line(const report *r, const step_record *record)
{
    const int64_t each = train_max(1, r->config->steps / PLAIN_LINES);
    if (record->step != r->begin_step + 1 && record->step % each != 0 && !record->has_held_out) {
        return;
    }
    (void)printf("step %" PRId64 "/%" PRId64 "  loss %.4f", record->step, r->config->steps,
                 record->loss);
    if (record->has_held_out) {
        (void)printf("  held-out %.4f", record->held_out);
    }
    (void)printf("  lr %.2e  norm %.3f  load %.2f  %.0f tokens/s  ", record->rate, record->norm,
                 record->most_load, record->tokens_per_s);
    print_time_left(r, record->step);
    (void)printf("\n");
    (void)fflush(stdout);
}

mok_status report_step(report *r, const step_record *record, const int64_t *load, char *why)
{
    const train_shape *s = &r->config->shape;
    const double mean = (double)(train_batch_tokens(r->config) * s->slots) / (double)s->experts;
    step_record made = *record;
    for (int64_t i = 0; i < s->blocks * s->experts; i++) {
        r->load[i] = (double)load[i] / mean;
        made.most_load = r->load[i] > made.most_load ? r->load[i] : made.most_load;
    }
    TRAIN_TRY(report_keep(r, &made, why));
    report_write_line(r->log, &made);
    if (fflush(r->log) != 0) {
        return train_fail(why, MOK_ERROR_FILE, "%s/%s: %s", r->config->out_path, REPORT_LOG_FILE,
                          strerror(errno));
    }
    if (!r->config->quiet) {
        (r->terminal ? print_terminal : print_line)(r, &made);
    }
    return MOK_OK;
}
