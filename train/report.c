/* The log and the progress line. */
#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BAR_WIDTH 24

double report_now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

mok_status report_open(report *r, const train_config *config, int64_t begin_step, char *why)
{
    char path[TRAIN_PATH_BYTES + 64];
    const int64_t experts = config->shape.blocks * config->shape.experts;
    memset(r, 0, sizeof *r);
    r->config = config;
    r->terminal = !config->quiet && isatty(STDOUT_FILENO) != 0;
    r->begin_s = report_now_s();
    r->begin_step = begin_step;
    r->capacity = config->steps - begin_step + 1;
    r->record = calloc((size_t)r->capacity, sizeof *r->record);
    r->load = calloc((size_t)experts, sizeof *r->load);
    if (r->record == NULL || r->load == NULL) {
        return train_fail(why, MOK_ERROR_MEMORY, "no memory for the log of %" PRId64 " steps",
                          r->capacity);
    }
    (void)snprintf(path, sizeof path, "%s/log.jsonl", config->out_path);
    r->log = fopen(path, begin_step > 0 ? "a" : "w");
    if (r->log == NULL) {
        return train_fail(why, MOK_ERROR_FILE, "%s: %s", path, strerror(errno));
    }
    return MOK_OK;
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

static void print_time(double seconds)
{
    const long whole = seconds > 0.0 ? (long)seconds : 0;
    (void)printf("%ld:%02ld", whole / 60, whole % 60);
}

static void print_terminal(const report *r, const step_record *record)
{
    const int64_t done = record->step;
    const int64_t filled = done * BAR_WIDTH / r->config->steps;
    const double spent = report_now_s() - r->begin_s;
    (void)printf("\r[");
    for (int64_t i = 0; i < BAR_WIDTH; i++) {
        (void)putchar(i < filled ? '=' : ' ');
    }
    (void)printf("] %" PRId64 "/%" PRId64 "  loss %.4f  %.0f tokens/s  ", done, r->config->steps,
                 record->loss, record->tokens_per_s);
    print_time(spent * (double)(r->config->steps - done) / (double)(done - r->begin_step));
    (void)printf(" left   ");
    if (record->has_held_out) {
        (void)printf("\n  step %" PRId64 "  held-out loss %.4f\n", done, record->held_out);
    }
    (void)fflush(stdout);
}

static void print_line(const report *r, const step_record *record)
{
    const int64_t each = r->config->steps > 20 ? r->config->steps / 20 : 1;
    if (record->step % each != 0 && record->step != r->config->steps && !record->has_held_out) {
        return;
    }
    (void)printf("step %" PRId64 "/%" PRId64 "  loss %.4f", record->step, r->config->steps,
                 record->loss);
    if (record->has_held_out) {
        (void)printf("  held-out %.4f", record->held_out);
    }
    (void)printf("  lr %.2e  norm %.3f  load %.2f  %.0f tokens/s\n", record->rate, record->norm,
                 record->most_load, record->tokens_per_s);
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
    if (r->count < r->capacity) {
        r->record[r->count++] = made;
    }
    (void)fprintf(r->log, "{\"step\":%" PRId64 ",\"loss\":%.9g", made.step, made.loss);
    if (made.has_held_out) {
        (void)fprintf(r->log, ",\"held_out\":%.9g", made.held_out);
    }
    (void)fprintf(r->log, ",\"lr\":%.9g,\"norm\":%.9g,\"load\":%.6g,\"tokens_per_s\":%.1f}\n",
                  made.rate, made.norm, made.most_load, made.tokens_per_s);
    if (fflush(r->log) != 0) {
        return train_fail(why, MOK_ERROR_FILE, "%s/log.jsonl: %s", r->config->out_path,
                          strerror(errno));
    }
    if (!r->config->quiet) {
        (r->terminal ? print_terminal : print_line)(r, &made);
    }
    return MOK_OK;
}
