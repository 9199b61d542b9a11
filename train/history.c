/* The records of a run's steps: kept in memory, written as lines of JSON, and read back.
 *
 * A number is printed with as many digits as give its value back, so that a log that was read and
 * written again has the same bytes. */
#include "report.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 1024

mok_status report_keep(report *r, const step_record *record, char *why)
{
    if (r->count == r->capacity) {
        const int64_t capacity = train_max(256, 2 * r->capacity);
        step_record *more = realloc(r->record, (size_t)capacity * sizeof *more);
        if (more == NULL) {
            return train_fail(why, MOK_ERROR_MEMORY,
                              "no memory for the records of %" PRId64 " steps", capacity);
        }
        r->record = more;
        r->capacity = capacity;
    }
    r->record[r->count++] = *record;
    return MOK_OK;
}

void report_write_line(FILE *log, const step_record *record)
{
    (void)fprintf(log, "{\"step\":%" PRId64 ",\"loss\":%.17g", record->step, record->loss);
    if (record->has_held_out) {
        (void)fprintf(log, ",\"held_out\":%.17g", record->held_out);
    }
    (void)fprintf(log, ",\"lr\":%.17g,\"norm\":%.17g,\"load\":%.17g,\"tokens_per_s\":%.1f}\n",
                  record->rate, record->norm, record->most_load, record->tokens_per_s);
}

static bool number_of(double *out, const cJSON *line, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(line, name);
    if (cJSON_IsNumber(item)) {
        *out = item->valuedouble;
    }
    return cJSON_IsNumber(item) != 0;
}

/* Whether the text is a whole record. */
static bool parse_line(step_record *out, const char *text)
{
    double step = 0.0;
    cJSON *line = cJSON_Parse(text);
    memset(out, 0, sizeof *out);
    const bool whole = number_of(&step, line, "step") && number_of(&out->loss, line, "loss") &&
                       number_of(&out->rate, line, "lr") && number_of(&out->norm, line, "norm") &&
                       number_of(&out->most_load, line, "load") &&
                       number_of(&out->tokens_per_s, line, "tokens_per_s") && step >= 1.0 &&
                       step <= 1e15;
    out->has_held_out = number_of(&out->held_out, line, "held_out");
    out->step = whole ? (int64_t)step : 0;
    cJSON_Delete(line);
    return whole;
}

mok_status report_read_log(report *r, const char *directory, char *why)
{
    char path[TRAIN_PATH_BYTES + 64];
    char text[LINE_BYTES];
    mok_status status = MOK_OK;
    int64_t before = 0;
    (void)snprintf(path, sizeof path, "%s/%s", directory, REPORT_LOG_FILE);
    FILE *file = fopen(path, "r");
    while (file != NULL && status == MOK_OK && fgets(text, sizeof text, file) != NULL) {
        step_record record;
        /* Steps ascend; what a run wrote after its last checkpoint is written again by this one. */
        if (parse_line(&record, text) && record.step > before && record.step <= r->begin_step) {
            before = record.step;
            status = report_keep(r, &record, why);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return status;
}
