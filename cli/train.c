/* mok train: options to a configuration, and the end of a run.
 *
 * An option that was not given leaves the size's own value. The last line on stdout is the state's
 * digest, or with --json the one object; messages of failure go to stderr. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "ranks.h"
#include "run.h"
#include "verbs.h"

typedef struct train_options {
    const char *data, *out, *resume, *size, *arith, *level;
    int64_t timeout_ms, ranks, threads, steps, seed, batch, stop_at, eval_every, save_every,
        sample_bytes;
    double lr, temperature;
    bool quiet, json;
} train_options;

#define UNSET INT64_MIN

static const verb_help help = {"train",
                               "Trains a byte-level mixture-of-experts transformer on a text file. "
                               "The same state, byte for byte, for any\n"
                               "number of ranks and threads.",
                               "mok train --data data/text.txt --ranks 2 --size demo --out out"};

static int parse(train_options *o, int argc, char **argv)
{
    const option table[] = {
        {"data", OPTION_TEXT, &o->data, "FILE", "the text; default data/text.txt"},
        {"out", OPTION_TEXT, &o->out, "DIR", "where log, plots and checkpoint go; default out"},
        {"resume", OPTION_TEXT, &o->resume, "DIR",
         "go on from DIR/checkpoint.safetensors, at any number of ranks"},
        {"size", OPTION_TEXT, &o->size, "NAME", "tiny, demo or small; default demo"},
        {"ranks", OPTION_INT, &o->ranks, "N",
         "expert-parallel ranks in this process, 1..8 (a rank holds whole lanes); default 1"},
        {"threads", OPTION_INT, &o->threads, "N",
         "of each rank; default: the processors, shared out"},
        {"steps", OPTION_INT, &o->steps, "N",
         "of the whole run; decides the learning rate's schedule"},
        {"seed", OPTION_INT, &o->seed, "N", "default 1"},
        {"arith", OPTION_TEXT, &o->arith, "CLASS", "tc16 or fma; default tc16"},
        {"level", OPTION_TEXT, &o->level, "NAME",
         "auto, ref, avx2 or avx512; all give the same bytes"},
        {"batch", OPTION_INT, &o->batch, "N", "sequences of each of the 8 token lanes"},
        {"lr", OPTION_REAL, &o->lr, "X", "the largest learning rate"},
        {"stop-at", OPTION_INT, &o->stop_at, "N", "save and end after this step"},
        {"eval-every", OPTION_INT, &o->eval_every, "N",
         "steps between held-out losses; 0: only at the end"},
        {"save-every", OPTION_INT, &o->save_every, "N",
         "steps between checkpoints; 0: only at the end"},
        {"sample-bytes", OPTION_INT, &o->sample_bytes, "N",
         "length of the text written at the end"},
        {"temperature", OPTION_REAL, &o->temperature, "X",
         "of that text; 0: always the likeliest byte"},
        {"timeout-ms", OPTION_INT, &o->timeout_ms, "N",
         "deadline of waits between processes; default 60000"},
        {"quiet", OPTION_FLAG, &o->quiet, NULL, "no progress and no text"},
        {"json", OPTION_FLAG, &o->json, NULL, "one JSON object at the end instead of text"},
    };
    return options_parse(argc, argv, &help, table, (int)(sizeof table / sizeof table[0]));
}

static bool pick(int64_t value, int64_t *to)
{
    if (value != UNSET) {
        *to = value;
    }
    return value != UNSET;
}

static bool copy_path(char *to, const char *from, const char *name, char *why)
{
    if (strlen(from) >= TRAIN_PATH_BYTES) {
        (void)train_fail(why, MOK_ERROR_ARGUMENT, "--%s is longer than %d bytes", name,
                         TRAIN_PATH_BYTES - 1);
        return false;
    }
    (void)snprintf(to, TRAIN_PATH_BYTES, "%s", from);
    return true;
}

static bool names(train_config *config, const train_options *o, char *why)
{
    config->level = (mok_level)-1;
    for (int level = MOK_LEVEL_AUTO; level <= MOK_LEVEL_AVX512; level++) {
        if (strcmp(o->level, mok_level_string((mok_level)level)) == 0) {
            config->level = (mok_level)level;
        }
    }
    if ((int)config->level < 0) {
        (void)train_fail(why, MOK_ERROR_ARGUMENT,
                         "--level is '%s', must be auto, ref, avx2 or avx512", o->level);
        return false;
    }
    config->arith = strcmp(o->arith, "tc16") == 0  ? MOK_ARITH_TC16
                    : strcmp(o->arith, "fma") == 0 ? MOK_ARITH_FMA
                                                   : (mok_arith)0;
    return copy_path(config->data_path, o->data, "data", why) &&
           copy_path(config->out_path, o->out, "out", why) &&
           copy_path(config->resume_path, o->resume, "resume", why);
}

/* This process may be one rank of several that a launcher made. */
static mok_status take_ranks(train_config *config, cli_ranks *by, int64_t asked, int64_t *ranks,
                             char *why)
{
    const mok_status status = ranks_begin(by, config->timeout_ms);
    if (status != MOK_OK) {
        return train_fail(why, status, "%s", by->why);
    }
    if (by->bootstrap == RANKS_THREADS) {
        return MOK_OK;
    }
    if (asked != UNSET && asked != by->ranks) {
        return train_fail(why, MOK_ERROR_ARGUMENT,
                          "--ranks is %" PRId64 ", the launcher made %d processes", asked,
                          by->ranks);
    }
    *ranks = by->ranks;
    config->process_rank = by->rank;
    config->ranks_here = by->here;
    config->open_rank = ranks_open;
    config->open_context = by;
    return MOK_OK;
}

static mok_status take_timeout(train_config *config, const train_options *o, char *why)
{
    if (o->timeout_ms == UNSET) {
        return MOK_OK;
    }
    if (o->timeout_ms < 1 || o->timeout_ms > 86400000) {
        return train_fail(why, MOK_ERROR_ARGUMENT, "--timeout-ms must be 1..86400000");
    }
    config->timeout_ms = (int32_t)o->timeout_ms;
    return MOK_OK;
}

static mok_status configure(train_config *config, cli_ranks *by, const train_options *o, char *why)
{
    TRAIN_TRY(train_config_init(config, o->size, why));
    int64_t ranks = 1;
    int64_t threads = 0;
    int64_t seed = 1;
    if (!names(config, o, why)) {
        return MOK_ERROR_ARGUMENT;
    }
    (void)pick(o->ranks, &ranks);
    (void)pick(o->threads, &threads);
    (void)pick(o->seed, &seed);
    (void)pick(o->batch, &config->batch);
    (void)pick(o->stop_at, &config->stop_at);
    (void)pick(o->eval_every, &config->eval_every);
    (void)pick(o->save_every, &config->save_every);
    (void)pick(o->sample_bytes, &config->sample_bytes);
    if (pick(o->steps, &config->steps) && config->warmup_steps > config->steps) {
        config->warmup_steps = train_max(1, config->steps / 10);
    }
    if (ranks < 1 || ranks > MOK_MAX_RANKS || threads < 0 || threads > 256) {
        return train_fail(why, MOK_ERROR_ARGUMENT, "--ranks must be 1..%d and --threads 0..256",
                          MOK_MAX_RANKS);
    }
    TRAIN_TRY(take_timeout(config, o, why));
    TRAIN_TRY(take_ranks(config, by, o->ranks, &ranks, why));
    config->ranks = (int32_t)ranks;
    config->threads = (int32_t)threads;
    config->seed = (uint64_t)seed;
    config->lr = o->lr >= 0.0 ? o->lr : config->lr;
    config->temperature = o->temperature >= 0.0 ? o->temperature : config->temperature;
    /* Of several processes the first one speaks. */
    config->quiet = o->quiet || o->json || config->process_rank > 0;
    by->quiet = config->quiet;
    return train_config_check(config, why);
}

/* The first request ends the run after its step, saved; a second one ends the process. */
static volatile sig_atomic_t stop_asked;

static void ask_to_stop(int number)
{
    (void)number;
    stop_asked = 1;
}

static void catch_requests(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = ask_to_stop;
    action.sa_flags = SA_RESTART | (int)SA_RESETHAND;
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

static void print_begin(const train_config *config, const cli_ranks *by)
{
    (void)printf("size %s, %.2f M parameters, %" PRId64 " steps of %" PRId64 " tokens of %s\n",
                 config->size_name, (double)train_parameter_count(config) / 1e6, config->steps,
                 train_batch_tokens(config), config->data_path);
    (void)printf("%d ranks (%s) of %d threads, class %s%s%s\n", config->ranks,
                 ranks_name(by->bootstrap), train_threads(config), mok_arith_string(config->arith),
                 config->resume_path[0] != '\0' ? ", resumed from " : "", config->resume_path);
    (void)fflush(stdout);
}

static void print_sample(const train_outcome *out)
{
    (void)printf("\nsample:\n");
    for (int64_t i = 0; i < out->sample_bytes; i++) {
        const unsigned char c = (unsigned char)out->sample[i];
        (void)putchar(c == '\n' || (c >= 32 && c < 127) ? c : '?');
    }
    (void)printf("\n\n");
}

static int print_json(const train_outcome *out, const train_config *config, const char *digest)
{
    cJSON *root = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(root, "digest", digest);
    (void)cJSON_AddStringToObject(root, "class", mok_arith_string(config->arith));
    (void)cJSON_AddNumberToObject(root, "ranks", config->ranks);
    (void)cJSON_AddNumberToObject(root, "threads", train_threads(config));
    (void)cJSON_AddNumberToObject(root, "parameters", (double)train_parameter_count(config));
    (void)cJSON_AddNumberToObject(root, "first_step", (double)out->first_step);
    (void)cJSON_AddNumberToObject(root, "step", (double)out->step);
    (void)cJSON_AddNumberToObject(root, "first_loss", out->first_loss);
    (void)cJSON_AddNumberToObject(root, "loss", out->loss);
    (void)cJSON_AddNumberToObject(root, "held_out", out->held_out);
    (void)cJSON_AddNumberToObject(root, "seconds", out->seconds);
    (void)cJSON_AddNumberToObject(root, "tokens_per_s", out->tokens_per_s);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text == NULL) {
        (void)fprintf(stderr, "mok train: no memory\n");
        return EXIT_CODE_FAULT;
    }
    (void)printf("%s\n", text);
    cJSON_free(text);
    return EXIT_CODE_OK;
}

static int print_end(const train_outcome *out, const train_config *config)
{
    char hex[MOK_DIGEST_HEX_BYTES];
    mok_digest_hex(hex, &out->digest);
    if (!config->quiet) {
        if (out->sample != NULL) {
            print_sample(out);
        }
        (void)printf("steps %" PRId64 "..%" PRId64
                     "  loss %.4f -> %.4f  held-out %.4f  %.0f tokens/s\n",
                     out->first_step, out->step, out->first_loss, out->loss, out->held_out,
                     out->tokens_per_s);
        (void)printf("plots: %s/loss.svg %s/load.svg  checkpoint: %s/checkpoint.safetensors\n",
                     config->out_path, config->out_path, config->out_path);
    }
    if (out->step < config->steps) {
        (void)printf("ended at step %" PRId64 " of %" PRId64 "; go on with --resume %s\n",
                     out->step, config->steps, config->out_path);
    }
    (void)printf("state digest: %s class %s\n", hex, mok_arith_string(config->arith));
    return EXIT_CODE_OK;
}

int mok_cli_train(int argc, char **argv)
{
    train_options o = {"data/text.txt", "out", "",    "demo", "tc16", "auto", UNSET,
                       UNSET,           UNSET, UNSET, UNSET,  UNSET,  UNSET,  UNSET,
                       UNSET,           UNSET, -1.0,  -1.0,   false,  false};
    train_config config;
    train_outcome out;
    char why[TRAIN_WHY_BYTES] = "";
    const int code = parse(&o, argc, argv);
    if (code >= 0) {
        return code;
    }
    cli_ranks by = {0}; /* configure may end before it looks for them */
    mok_status status = configure(&config, &by, &o, why);
    if (status != MOK_OK) {
        (void)fprintf(stderr, "mok train: %s\n", why);
        return ranks_end(&by, EXIT_CODE_USAGE);
    }
    catch_requests();
    config.stop = &stop_asked;
    if (!config.quiet) {
        print_begin(&config, &by);
    }
    status = train_run(&out, &config, why);
    if (status != MOK_OK) {
        (void)fprintf(stderr, "mok train: %s: %s\n", mok_status_string(status), why);
        return ranks_end(&by, EXIT_CODE_FAULT);
    }
    int end = EXIT_CODE_OK;
    if (config.process_rank == 0) {
        char hex[MOK_DIGEST_HEX_BYTES];
        mok_digest_hex(hex, &out.digest);
        end = o.json ? print_json(&out, &config, hex) : print_end(&out, &config);
    }
    free(out.sample);
    return ranks_end(&by, end);
}
