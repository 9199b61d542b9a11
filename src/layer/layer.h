/* The layer's handles, and how the passes get from the caller's arguments to a step. */
#ifndef MOK_LAYER_LAYER_H
#define MOK_LAYER_LAYER_H

#include "cpu/step.h"
#include "layer/check.h"

struct mok_layer {
    mok_comm *comm;
    mok_layer_config config;
    mok_shape shape;
    mok_arena_layout arena_layout;
    mok_workspace_layout workspace_layout;
    mok_activations_layout activations_layout;
    mok_schedule_layout schedule_layout;
    mok_symmetric symmetric;
    mok_arena arena[MOK_MAX_RANKS];
    unsigned char *workspace;
    uint64_t builds; /* schedules built: picks the half of the routes, and stamps schedules */
    mok_task_hook hook;
    void *hook_context;
};

struct mok_schedule {
    mok_layer *layer;
    unsigned char *memory;
    mok_rows rows;
    int32_t *routes; /* [T, K] of this rank */
    int64_t tokens;
    uint64_t stamp; /* which build this is; 0 when nothing was built */
};

struct mok_activations {
    mok_layer *layer;
    unsigned char *memory;
    uint64_t stamp; /* of the schedule they were made with; 0 when empty */
};

/* The arguments of a pass, as the caller gave them; unused ones are NULL. */
typedef struct mok_arguments {
    mok_layer *layer;
    mok_activations *activations;
    const mok_schedule *schedule;
    const mok_tensor *out;
    const mok_gradients *gradients;
    const mok_tensor *dy;
    const mok_tensor *x;
    const mok_tensor *router_weights;
    const mok_weights_view *weights;
} mok_arguments;

/* Every check of a pass that one rank can do on its own. */
mok_status mok_arguments_check(const mok_arguments *arguments, bool backward);

/* Copies what peers will read into this rank's arena. */
void mok_arguments_publish(const mok_arguments *arguments);

/* Sends it to ranks that share no memory: the rows that each of them computes. */
void mok_arguments_show(const mok_arguments *arguments);

/* Likewise of the routes of one half. */
void mok_routes_show(const mok_layer *layer, int half, int64_t tokens);

/* A step over this layer's memory for one pass; the caller adds outputs. */
void mok_step_make(mok_step *step, const mok_arguments *arguments, mok_pass pass, mok_phase phase);

#endif
