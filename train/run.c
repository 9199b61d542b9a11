/* The loop of a rank, and the ranks of a run.
 *
 * Each rank is a thread that owns its model and speaks to the others only through the communicator,
 * as a process would. Whatever ends the loop (its last step, a request, a failure) is agreed on
 * first, so that no rank waits for one that has left. */
#include "run.h"

#include "data.h"
#include "exchange.h"
#include "optimizer.h"
#include "report.h"
#include "sample.h"
#include "state.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HELD_OUT_BATCHES 2

/* One rank's thread. */
typedef struct rank_run {
    const train_config *config;
    const train_text *text;
    mok_comm *comm;
    train_outcome out;
    mok_status status;
    char why[TRAIN_WHY_BYTES];
    pthread_t thread;
    /* of the loop */
    model m;
    report report;
    int64_t *load;
    int64_t step;
} rank_run;

static bool reports(const rank_run *r)
{
    return mok_comm_rank(r->comm) == 0;
}

static void read_batch(rank_run *r, uint32_t stream, int64_t number)
{
    const int64_t tokens = train_lane_tokens(r->config);
    for (int64_t lane = 0; lane < r->m.lanes; lane++) {
        train_text_lane(r->m.input + lane * tokens, r->m.target + lane * tokens, r->text, r->config,
                        stream, number, r->m.lane_begin + lane);
    }
}

static mok_status forward_batch(rank_run *r, bool gradient, double *loss)
{
    model *m = &r->m;
    TRAIN_TRY(model_forward(m, m->lanes * r->config->batch, r->config->shape.length));
    TRAIN_TRY(model_loss(m, train_batch_tokens(r->config), gradient));
    return exchange_loss(m, loss);
}

static mok_status held_out_loss(rank_run *r, double *loss)
{
    double sum = 0.0;
    for (int64_t batch = 0; batch < HELD_OUT_BATCHES; batch++) {
        double one = 0.0;
        read_batch(r, TRAIN_STREAM_HELD_OUT, batch);
        TRAIN_TRY(forward_batch(r, false, &one));
        sum += one;
    }
    *loss = sum / HELD_OUT_BATCHES;
    return MOK_OK;
}

static int64_t last_step(const train_config *config)
{
    return config->stop_at > 0 ? config->stop_at : config->steps;
}

static bool due(int64_t each, int64_t step)
{
    return each > 0 && step % each == 0;
}

/* Every rank sees the same numbers, so that every rank ends here. */
static mok_status check_finite(rank_run *r, const char *name, double value)
{
    if (value - value != 0.0) { /* infinite or not a number */
        return train_fail(r->why, MOK_ERROR_VALUE,
                          "step %" PRId64 ": the %s is not finite; a lower --lr may help",
                          r->step + 1, name);
    }
    return MOK_OK;
}

static mok_status one_step(rank_run *r, step_record *record)
{
    model *m = &r->m;
    const double begin = report_now_s();
    read_batch(r, TRAIN_STREAM_DATA, r->step);
    TRAIN_TRY(forward_batch(r, true, &record->loss));
    TRAIN_TRY(check_finite(r, "loss", record->loss));
    TRAIN_TRY(model_backward(m));
    TRAIN_TRY(optimizer_balance(m, r->load));
    TRAIN_TRY(optimizer_norm(m, &record->norm));
    TRAIN_TRY(check_finite(r, "gradient's norm", record->norm));
    record->rate = train_config_lr(r->config, r->step);
    TRAIN_TRY(optimizer_step(m, r->step, record->norm));
    record->step = ++r->step;
    record->tokens_per_s = (double)train_batch_tokens(r->config) / (report_now_s() - begin);
    return MOK_OK;
}

static mok_status save(rank_run *r)
{
    return state_save(&r->m, r->text, r->step, r->config->out_path, r->why);
}

/* Rank 0 looks whether somebody asked to stop; all ranks do what it saw. */
static mok_status is_last(rank_run *r, bool *last)
{
    const volatile sig_atomic_t *stop = r->config->stop;
    uint8_t asked = stop != NULL && *stop != 0;
    TRAIN_TRY(mok_comm_broadcast(r->comm, &asked, 1, 0));
    *last = asked != 0 || r->step >= last_step(r->config);
    return MOK_OK;
}

static mok_status after_step(rank_run *r, step_record *record, bool last)
{
    const train_config *config = r->config;
    if (last || due(config->eval_every, r->step)) {
        record->has_held_out = true;
        TRAIN_TRY(held_out_loss(r, &record->held_out));
        r->out.held_out = record->held_out;
    }
    r->out.loss = record->loss;
    if (r->step == r->out.first_step + 1) {
        r->out.first_loss = record->loss;
    }
    const mok_status told = reports(r) ? report_step(&r->report, record, r->load, r->why) : MOK_OK;
    TRAIN_TRY(train_agree(r->comm, told, r->why));
    return last || due(config->save_every, r->step) ? save(r) : MOK_OK;
}

static mok_status loop(rank_run *r)
{
    bool last = r->step >= last_step(r->config);
    r->out.first_step = r->step;
    if (last) { /* resumed behind its end: OUT shall still hold a whole run */
        TRAIN_TRY(held_out_loss(r, &r->out.held_out));
        return save(r);
    }
    while (!last) {
        step_record record;
        memset(&record, 0, sizeof record);
        TRAIN_TRY(one_step(r, &record));
        TRAIN_TRY(is_last(r, &last));
        TRAIN_TRY(after_step(r, &record, last));
    }
    return MOK_OK;
}

static mok_status take_sample(rank_run *r)
{
    const int64_t count = r->config->sample_bytes;
    if (count == 0) {
        return MOK_OK;
    }
    r->out.sample = malloc((size_t)count + 1);
    TRAIN_TRY(mok_comm_agree(r->comm, r->out.sample != NULL ? MOK_OK : MOK_ERROR_MEMORY));
    r->out.sample[count] = '\0';
    r->out.sample_bytes = count;
    return sample_text(&r->m, r->text, (uint8_t *)r->out.sample, count);
}

/* What decides the bits must be alike on all ranks: as threads they share it, as processes they
 * were told. */
static mok_status check_alike(rank_run *r)
{
    train_identity mine;
    train_identity first;
    mok_digest text = r->text->digest;
    mok_status status = MOK_OK;
    train_config_identity(&mine, r->config);
    first = mine;
    TRAIN_TRY(mok_comm_broadcast(r->comm, first.value, sizeof first.value, 0));
    TRAIN_TRY(mok_comm_broadcast(r->comm, &text, sizeof text, 0));
    for (int i = 0; i < TRAIN_IDENTITY_COUNT && status == MOK_OK; i++) {
        if (strcmp(mine.value[i], first.value[i]) != 0) {
            status =
                train_fail(r->why, MOK_ERROR_MISMATCH, "rank %d runs with %s %s, rank 0 with %s",
                           mok_comm_rank(r->comm), mine.name[i], mine.value[i], first.value[i]);
        }
    }
    if (status == MOK_OK && memcmp(&text, &r->text->digest, sizeof text) != 0) {
        status = train_fail(r->why, MOK_ERROR_MISMATCH, "rank %d reads another --data than rank 0",
                            mok_comm_rank(r->comm));
    }
    return train_agree(r->comm, status, r->why);
}

static mok_status prepare(rank_run *r)
{
    TRAIN_TRY(check_alike(r));
    TRAIN_TRY(model_open(&r->m, r->config, r->comm, r->why));
    params_init(&r->m.params, r->config->seed);
    if (r->config->resume_path[0] != '\0') {
        TRAIN_TRY(state_load(&r->m, r->text, &r->step, r->config->resume_path, r->why));
    }
    mok_status status = MOK_OK;
    r->load = calloc((size_t)(r->config->shape.blocks * r->config->shape.experts), sizeof *r->load);
    if (r->load == NULL) {
        status = train_fail(r->why, MOK_ERROR_MEMORY, "no memory for the load table");
    } else if (reports(r)) {
        status = report_open(&r->report, r->config, r->step, r->why);
    }
    return train_agree(r->comm, status, r->why);
}

static mok_status run_rank(rank_run *r)
{
    TRAIN_TRY(prepare(r));
    const double begin = report_now_s();
    TRAIN_TRY(loop(r));
    r->out.step = r->step;
    r->out.seconds = report_now_s() - begin;
    const double tokens = (double)((r->step - r->out.first_step) * train_batch_tokens(r->config));
    r->out.tokens_per_s = r->out.seconds > 0.0 ? tokens / r->out.seconds : 0.0;
    TRAIN_TRY(take_sample(r));
    const mok_status drawn = reports(r) ? report_plots(&r->report, r->why) : MOK_OK;
    TRAIN_TRY(train_agree(r->comm, drawn, r->why));
    return state_digest(&r->m, r->step, &r->out.digest);
}

static void *rank_thread(void *context)
{
    rank_run *r = context;
    r->status = run_rank(r);
    if (r->status != MOK_OK && r->why[0] == '\0') {
        (void)train_fail(r->why, r->status, "%s", mok_last_error());
    }
    report_close(&r->report);
    model_close(&r->m);
    free(r->load);
    return NULL;
}

/* ---- The ranks of a run ---- */

static mok_status make_directory(const char *path, char *why)
{
    struct stat about;
    if (mkdir(path, 0777) == 0) {
        return MOK_OK;
    }
    const int cause = errno;
    if (cause == EEXIST && stat(path, &about) == 0 && S_ISDIR(about.st_mode)) {
        return MOK_OK;
    }
    return train_fail(why, MOK_ERROR_FILE, "--out %s: %s", path, strerror(cause));
}

/* Where the system lends more memory than it has, a run that is too large would be killed half-way.
 */
static mok_status check_memory(const train_config *config, char *why)
{
    double needed = 0.0;
    const double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    TRAIN_TRY(model_memory_bytes(&needed, config, train_threads(config), why));
    needed *= (double)train_ranks_here(config) / config->ranks;
    if (machine > 0.0 && needed > machine) {
        return train_fail(why, MOK_ERROR_MEMORY,
                          "the run needs %.1f GB in %d ranks, the machine has %.1f GB",
                          needed / 1e9, train_ranks_here(config), machine / 1e9);
    }
    return MOK_OK;
}

static mok_status open_ranks(mok_comm **comm, const train_config *config, char *why)
{
    mok_comm_config comm_config;
    mok_comm_config_init(&comm_config);
    comm_config.threads = train_threads(config);
    comm_config.level = config->level;
    comm_config.timeout_ms = 600000; /* a rank may be slow where processors are fewer than ranks */
    const mok_status status = mok_comm_open_local(comm, config->ranks, &comm_config);
    return status == MOK_OK ? MOK_OK : train_fail(why, status, "%s", mok_last_error());
}

/* Rank 0's outcome, or the first rank's failure. */
static mok_status join_ranks(rank_run *runs, int32_t started, const train_config *config,
                             train_outcome *out, char *why)
{
    mok_status status = MOK_OK;
    for (int32_t rank = 0; rank < started; rank++) {
        (void)pthread_join(runs[rank].thread, NULL);
    }
    for (int32_t rank = 0; rank < started; rank++) {
        if (status == MOK_OK && runs[rank].status != MOK_OK) {
            status = train_fail(why, runs[rank].status, "%s", runs[rank].why);
        }
        if (rank > 0 || status != MOK_OK) {
            free(runs[rank].out.sample);
            runs[rank].out.sample = NULL;
        }
    }
    if (status == MOK_OK && started < config->ranks) {
        status = train_fail(why, MOK_ERROR_MEMORY, "no thread for rank %d", started);
    }
    if (status == MOK_OK) {
        *out = runs[0].out;
    }
    return status;
}

/* This process is one rank of several: the others run the same in theirs. Only rank 0 has the
 * sample. */
static mok_status run_member(train_outcome *out, const train_config *config, const train_text *text,
                             char *why)
{
    mok_comm *comm = NULL;
    mok_comm_config comm_config;
    rank_run *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return train_fail(why, MOK_ERROR_MEMORY, "no memory for a rank");
    }
    mok_comm_config_init(&comm_config);
    comm_config.threads = train_threads(config);
    comm_config.level = config->level;
    comm_config.timeout_ms = config->timeout_ms;
    mok_status status = config->open_rank(&comm, &comm_config, config->open_context);
    if (status != MOK_OK) {
        free(r);
        return train_fail(why, status, "%s", mok_last_error());
    }
    r->config = config;
    r->text = text;
    r->comm = comm;
    (void)rank_thread(r);
    status = r->status == MOK_OK ? MOK_OK : train_fail(why, r->status, "%s", r->why);
    if (status == MOK_OK) {
        *out = r->out;
    } else {
        free(r->out.sample);
    }
    mok_comm_close(&comm);
    free(r);
    return status;
}

static mok_status run_ranks(train_outcome *out, const train_config *config, const train_text *text,
                            char *why)
{
    mok_comm *comm[MOK_MAX_RANKS] = {NULL};
    rank_run *runs = calloc((size_t)config->ranks, sizeof *runs);
    if (runs == NULL) {
        return train_fail(why, MOK_ERROR_MEMORY, "no memory for %d ranks", config->ranks);
    }
    mok_status status = open_ranks(comm, config, why);
    int32_t started = 0;
    while (status == MOK_OK && started < config->ranks) {
        rank_run *r = &runs[started];
        r->config = config;
        r->text = text;
        r->comm = comm[started];
        if (pthread_create(&r->thread, NULL, rank_thread, r) != 0) {
            break;
        }
        started++;
    }
    if (status == MOK_OK) {
        status = join_ranks(runs, started, config, out, why);
    }
    for (int32_t rank = 0; rank < config->ranks; rank++) {
        mok_comm_close(&comm[rank]);
    }
    free(runs);
    return status;
}

int64_t train_parameter_count(const train_config *config)
{
    params *p = malloc(sizeof *p);
    if (p == NULL) {
        return 0;
    }
    params_describe(p, &config->shape, 1, 0);
    const int64_t total = params_total(p);
    free(p);
    return total;
}

mok_status train_run(train_outcome *out, const train_config *config, char *why)
{
    train_text text;
    memset(out, 0, sizeof *out);
    why[0] = '\0';
    TRAIN_TRY(train_config_check(config, why));
    TRAIN_TRY(check_memory(config, why));
    TRAIN_TRY(train_text_open(&text, config, why));
    mok_status status = make_directory(config->out_path, why);
    if (status == MOK_OK) {
        status = config->open_rank != NULL ? run_member(out, config, &text, why)
                                           : run_ranks(out, config, &text, why);
    }
    train_text_close(&text);
    return status;
}
