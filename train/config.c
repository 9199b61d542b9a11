/* Sizes, defaults and checks of a run.
 *
 * Everything that decides the bits goes through train_config_identity, so that a checkpoint cannot
 * be continued with another value of it; a new field of that kind must be added there. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "config.h"

#include "exact_math.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct preset {
    const char *name;
    train_shape shape;
    int64_t batch, steps, warmup_steps, eval_every, save_every, sample_bytes;
    double lr, bias_rate;
} preset;

/* tiny: tests, seconds. demo: minutes on two cores. small: hours on a CPU. */
static const preset presets[] = {
    {"tiny", {32, 2, 2, 8, 2, 32, 32, 32}, 1, 20, 5, 0, 0, 64, 4e-3, 0.03},
    {"demo", {128, 4, 4, 8, 2, 256, 256, 128}, 1, 240, 20, 40, 0, 400, 3e-3, 0.03},
    {"small", {256, 6, 8, 16, 2, 256, 512, 256}, 4, 1500, 60, 50, 50, 800, 1.5e-3, 0.002},
};

int32_t train_threads(const train_config *config)
{
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t share = train_min(count, 256) / train_ranks_here(config);
    cpu_set_t mine; /* mpirun binds its processes to processors */
    if (config->open_rank != NULL && sched_getaffinity(0, sizeof mine, &mine) == 0) {
        share = train_min(share, CPU_COUNT(&mine));
    }
    return config->threads > 0 ? config->threads : (int32_t)train_max(share, 1);
}

mok_status train_config_init(train_config *config, const char *size_name, char *why)
{
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        const preset *from = &presets[i];
        if (strcmp(from->name, size_name) != 0) {
            continue;
        }
        config->size_name = from->name;
        config->shape = from->shape;
        config->arith = MOK_ARITH_TC16;
        config->seed = 1;
        config->steps = from->steps;
        config->lanes = 8;
        config->batch = from->batch;
        config->warmup_steps = from->warmup_steps;
        config->lr = from->lr;
        config->lr_final_ratio = 0.1;
        config->beta1 = 0.9;
        config->beta2 = 0.95;
        config->epsilon = 1e-8;
        config->decay = 0.1;
        config->clip = 1.0;
        config->bias_rate = from->bias_rate;
        config->ranks = 1;
        config->timeout_ms = 60000;
        config->level = MOK_LEVEL_AUTO;
        config->eval_every = from->eval_every;
        config->save_every = from->save_every;
        config->sample_bytes = from->sample_bytes;
        config->temperature = 0.8;
        return MOK_OK;
    }
    return train_fail(why, MOK_ERROR_ARGUMENT, "--size is '%s', must be tiny, demo or small",
                      size_name);
}

static mok_status check_range(const char *name, int64_t value, int64_t least, int64_t most,
                              char *why)
{
    if (value < least || value > most) {
        return train_fail(why, MOK_ERROR_ARGUMENT,
                          "%s is %" PRId64 ", must be %" PRId64 "..%" PRId64, name, value, least,
                          most);
    }
    return MOK_OK;
}

static mok_status check_real(const char *name, double value, double least, double most, char *why)
{
    if (!(value >= least && value <= most)) {
        return train_fail(why, MOK_ERROR_ARGUMENT, "%s is %g, must be %g..%g", name, value, least,
                          most);
    }
    return MOK_OK;
}

static mok_status check_shape(const train_shape *shape, char *why)
{
    TRAIN_TRY(check_range("hidden", shape->hidden, 2, 16384, why));
    TRAIN_TRY(check_range("blocks", shape->blocks, 1, TRAIN_MAX_BLOCKS, why));
    TRAIN_TRY(check_range("heads", shape->heads, 1, shape->hidden, why));
    TRAIN_TRY(check_range("experts", shape->experts, 1, 4096, why));
    TRAIN_TRY(check_range("slots", shape->slots, 1, train_min(shape->experts, 64), why));
    TRAIN_TRY(check_range("inner", shape->inner, 1, 65536, why));
    TRAIN_TRY(check_range("shared_inner", shape->shared_inner, 1, 65536, why));
    TRAIN_TRY(check_range("length", shape->length, 2, 16384, why));
    if (shape->hidden % (2 * shape->heads) != 0) {
        return train_fail(why, MOK_ERROR_SHAPE,
                          "hidden is %" PRId64 ", must be a multiple of 2 * heads = %" PRId64,
                          shape->hidden, 2 * shape->heads);
    }
    return MOK_OK;
}

mok_status train_config_check(const train_config *config, char *why)
{
    TRAIN_TRY(check_shape(&config->shape, why));
    if (config->arith != MOK_ARITH_TC16 && config->arith != MOK_ARITH_FMA) {
        return train_fail(why, MOK_ERROR_ARGUMENT, "--arith must be tc16 or fma");
    }
    TRAIN_TRY(check_range("--steps", config->steps, 1, 100000000, why));
    TRAIN_TRY(check_range("--lanes", config->lanes, 1, TRAIN_MAX_LANES, why));
    TRAIN_TRY(check_range("--batch", config->batch, 1, 4096, why));
    TRAIN_TRY(check_range("--ranks", config->ranks, 1, MOK_MAX_RANKS, why));
    TRAIN_TRY(check_range("--threads", config->threads, 0, 256, why));
    if (config->ranks > config->lanes) {
        return train_fail(why, MOK_ERROR_ARGUMENT,
                          "--ranks is %d, must be at most the %" PRId64
                          " token lanes: a rank holds whole lanes",
                          config->ranks, config->lanes);
    }
    TRAIN_TRY(check_range("lanes * batch * length", train_batch_tokens(config), 1, (int64_t)1 << 22,
                          why));
    TRAIN_TRY(check_range("--stop-at", config->stop_at, 0, config->steps, why));
    TRAIN_TRY(check_range("--eval-every", config->eval_every, 0, 100000000, why));
    TRAIN_TRY(check_range("--save-every", config->save_every, 0, 100000000, why));
    TRAIN_TRY(check_range("--sample-bytes", config->sample_bytes, 0, 1000000, why));
    TRAIN_TRY(check_range("warmup_steps", config->warmup_steps, 0, config->steps, why));
    TRAIN_TRY(check_real("beta1", config->beta1, 0.0, 0.9999, why));
    TRAIN_TRY(check_real("beta2", config->beta2, 0.0, 0.999999, why));
    TRAIN_TRY(check_real("epsilon", config->epsilon, 1e-30, 1.0, why));
    TRAIN_TRY(check_real("--lr", config->lr, 0.0, 1.0, why));
    return check_real("--temperature", config->temperature, 0.0, 100.0, why);
}

double train_config_lr(const train_config *config, int64_t step)
{
    if (step < config->warmup_steps) {
        return config->lr * (double)(step + 1) / (double)config->warmup_steps;
    }
    const int64_t span = train_max(1, config->steps - config->warmup_steps);
    const double part = (double)(step - config->warmup_steps) / (double)span;
    const double wave = 0.5 * (1.0 + exact_cos(EXACT_PI * part));
    return config->lr * (config->lr_final_ratio + (1.0 - config->lr_final_ratio) * wave);
}

typedef struct identity_writer {
    train_identity *out;
    int count;
} identity_writer;

static char *next_value(identity_writer *writer, const char *name)
{
    writer->out->name[writer->count] = name;
    return writer->out->value[writer->count++];
}

static void write_int(identity_writer *writer, const char *name, int64_t value)
{
    (void)snprintf(next_value(writer, name), TRAIN_IDENTITY_VALUE_BYTES, "%" PRId64, value);
}

static void write_real(identity_writer *writer, const char *name, double value)
{
    (void)snprintf(next_value(writer, name), TRAIN_IDENTITY_VALUE_BYTES, "%a", value);
}

void train_config_identity(train_identity *out, const train_config *config)
{
    const train_shape *shape = &config->shape;
    identity_writer writer = {out, 0};
    memset(out, 0, sizeof *out);
    (void)snprintf(next_value(&writer, "class"), TRAIN_IDENTITY_VALUE_BYTES, "%s",
                   mok_arith_string(config->arith));
    (void)snprintf(next_value(&writer, "seed"), TRAIN_IDENTITY_VALUE_BYTES, "%" PRIu64,
                   config->seed);
    write_int(&writer, "hidden", shape->hidden);
    write_int(&writer, "blocks", shape->blocks);
    write_int(&writer, "heads", shape->heads);
    write_int(&writer, "experts", shape->experts);
    write_int(&writer, "slots", shape->slots);
    write_int(&writer, "inner", shape->inner);
    write_int(&writer, "shared_inner", shape->shared_inner);
    write_int(&writer, "length", shape->length);
    write_int(&writer, "steps", config->steps);
    write_int(&writer, "lanes", config->lanes);
    write_int(&writer, "batch", config->batch);
    write_int(&writer, "warmup_steps", config->warmup_steps);
    write_real(&writer, "lr", config->lr);
    write_real(&writer, "lr_final_ratio", config->lr_final_ratio);
    write_real(&writer, "beta1", config->beta1);
    write_real(&writer, "beta2", config->beta2);
    write_real(&writer, "epsilon", config->epsilon);
    write_real(&writer, "decay", config->decay);
    write_real(&writer, "clip", config->clip);
    write_real(&writer, "bias_rate", config->bias_rate);
}
