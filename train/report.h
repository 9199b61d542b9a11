/* What a run tells: lines on the terminal, a JSONL log, plots. Rank 0 reports.
 *
 * The log is also the memory of the plots: a resumed run reads back the lines up to the step it
 * goes on from, so that its curves and its log are those of the whole run. */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H

#include <stdio.h>

#include "model.h"

#define REPORT_LOG_FILE "log.jsonl"

typedef struct step_record {
    int64_t step; /* steps done */
    double loss, held_out, rate, norm, tokens_per_s;
    double most_load; /* of any expert of any block, over the mean */
    bool has_held_out;
} step_record;

typedef struct report {
    const train_config *config;
    FILE *log;
    bool terminal;      /* progress is one line that is written over */
    double begin_s;     /* of this run */
    int64_t begin_step; /* 0, or where a resumed run began */
    step_record *record;
    int64_t count, capacity;
    double *load; /* [blocks, E] share of the last step's routes, over the mean; 0 before a step */
} report;

double report_now_s(void);

/* Opens OUT/log.jsonl with the lines of the run that is resumed, if there is one. Errors: FILE,
 * MEMORY. */
mok_status report_open(report *r, const train_config *config, int64_t begin_step, char *why);
void report_close(report *r);

/* One step is done. Errors: FILE, MEMORY. */
mok_status report_step(report *r, const step_record *record, const int64_t *load, char *why);

/* ---- In history.c ---- */

/* Appends a record. Errors: MEMORY. */
mok_status report_keep(report *r, const step_record *record, char *why);

/* Appends the records of DIR/log.jsonl up to begin_step; a missing file has none, and a line that
 * was cut off by a crash is left out. Errors: MEMORY. */
mok_status report_read_log(report *r, const char *directory, char *why);

/* Writes one record as a line. */
void report_write_line(FILE *log, const step_record *record);

/* ---- In plot.c ---- */

/* OUT/loss.svg and OUT/load.svg. Errors: FILE. */
mok_status report_plots(const report *r, char *why);

#endif
