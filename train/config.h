/* What a run is: sizes of the model, the batch, the schedule, and where its files are.
 *
 * Two kinds of fields. The first, "identity", decides the bits: it is written into every checkpoint
 * and a resumed run must have the same. The second says how and where the run is carried out
 * (ranks, threads, paths, how often it reports) and can change between parts of one run without
 * moving a bit. */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H

#include "common.h"

#include <signal.h>

#define TRAIN_VOCABULARY 256 /* a token is a byte */
#define TRAIN_MAX_LANES 64
#define TRAIN_MAX_BLOCKS 64
#define TRAIN_PATH_BYTES 1024

typedef struct train_shape {
    int64_t hidden;
    int64_t blocks;
    int64_t heads; /* hidden / heads is even */
    int64_t experts;
    int64_t slots;
    int64_t inner;
    int64_t shared_inner;
    int64_t length; /* tokens of a sequence */
} train_shape;

typedef struct train_config {
    /* identity */
    train_shape shape;
    mok_arith arith;
    uint64_t seed;
    int64_t steps; /* of the whole schedule */
    int64_t lanes; /* token lanes of the global batch */
    int64_t batch; /* sequences of a lane */
    int64_t warmup_steps;
    double lr;
    double lr_final_ratio; /* the cosine ends at lr times this */
    double beta1, beta2, epsilon, decay, clip;
    double bias_rate; /* step of the router's balancing biases */

    /* execution */
    const char *size_name;
    char data_path[TRAIN_PATH_BYTES];
    char out_path[TRAIN_PATH_BYTES];
    char resume_path[TRAIN_PATH_BYTES]; /* "" for a new run */
    /* NULL: the ranks are threads of this process. Else opens this process as process_rank of
     * `ranks`; the caller's errors are in mok_last_error. */
    mok_status (*open_rank)(mok_comm **out, const mok_comm_config *config, void *context);
    void *open_context;
    int32_t process_rank; /* 0 where ranks are threads */
    int32_t ranks_here;   /* ranks on this machine; 0: all */
    int32_t timeout_ms;   /* of waits between processes */
    int32_t ranks;
    int32_t threads; /* of a rank; 0 to share the processors out */
    mok_level level;
    int64_t stop_at;    /* save and end after this step; 0 for steps */
    int64_t eval_every; /* 0: only at the end */
    int64_t save_every; /* 0: only at the end */
    int64_t sample_bytes;
    double temperature; /* 0: the likeliest byte */
    bool quiet;         /* nothing is printed while it runs */
    const volatile sig_atomic_t
        *stop; /* nonzero: save and end after the current step; NULL: never */
} train_config;

/* Fills every field for one of "tiny", "demo", "small". Errors: ARGUMENT. */
mok_status train_config_init(train_config *config, const char *size_name, char *why);

/* Checks ranges and how fields fit each other; computes nothing. Errors: ARGUMENT, SHAPE. */
mok_status train_config_check(const train_config *config, char *why);

/* Worker threads of a rank: as configured, or this machine's processors shared out among its ranks,
 * no more than a launcher has left to the process. */
int32_t train_threads(const train_config *config);

static inline int32_t train_ranks_here(const train_config *config)
{
    return config->ranks_here > 0 ? config->ranks_here : config->ranks;
}

/* Identity as pairs of text for a checkpoint: numbers in decimal, doubles as hexadecimal floats, so
 * that equal text is equal value. name lives as long as the program. */
#define TRAIN_IDENTITY_COUNT 22
#define TRAIN_IDENTITY_VALUE_BYTES 40
typedef struct train_identity {
    const char *name[TRAIN_IDENTITY_COUNT];
    char value[TRAIN_IDENTITY_COUNT][TRAIN_IDENTITY_VALUE_BYTES];
} train_identity;
void train_config_identity(train_identity *out, const train_config *config);

/* Learning rate of step [0, steps): a line up over the warm-up, then half a cosine. */
double train_config_lr(const train_config *config, int64_t step);

/* Sequences and tokens of a rank. */
static inline int64_t train_rank_lanes(const train_config *config, int32_t rank)
{
    return train_split_count(config->lanes, config->ranks, rank);
}

static inline int64_t train_lane_tokens(const train_config *config)
{
    return config->batch * config->shape.length;
}

static inline int64_t train_batch_tokens(const train_config *config)
{
    return config->lanes * train_lane_tokens(config);
}

#endif
