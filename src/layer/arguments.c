/* The arguments of a pass: checked on their own rank, published to the peers, and turned into a
 * step. */
#include <math.h>
#include <string.h>

#include "layer/layer.h"

void mok_weights_view_init(mok_weights_view *weights)
{
    if (weights != NULL) {
        memset(weights, 0, sizeof *weights);
        weights->struct_bytes = sizeof *weights;
    }
}

void mok_gradients_init(mok_gradients *gradients)
{
    if (gradients != NULL) {
        memset(gradients, 0, sizeof *gradients);
        gradients->struct_bytes = sizeof *gradients;
        gradients->mode = MOK_GRAD_STORE;
        gradients->shared_lanes = 1;
    }
}

/* ---- Checks ---- */

static mok_status check_matrix(const mok_tensor *tensor, const char *name, mok_dtype dtype,
                               mok_dtype other, int64_t n0, int64_t n1, int64_t n2)
{
    const mok_wanted wanted = {name, dtype, other, n2 > 0 ? 3 : 2, {n0, n1, n2}, false};
    return mok_check_tensor(tensor, &wanted);
}

mok_status mok_weights_check(const mok_shape *shape, const mok_weights_view *weights)
{
    MOK_REQUIRE(weights != NULL, MOK_ERROR_ARGUMENT, "weights is NULL");
    MOK_REQUIRE(weights->struct_bytes == sizeof *weights, MOK_ERROR_ARGUMENT,
                "weights.struct_bytes is %zu, must be %zu", weights->struct_bytes, sizeof *weights);
    const int64_t e = shape->expert_count;
    const int64_t h = shape->hidden;
    const mok_dtype bf16 = MOK_DTYPE_BF16;
    MOK_TRY(check_matrix(&weights->gate, "weights.gate", bf16, 0, e, shape->inner, h));
    MOK_TRY(check_matrix(&weights->up, "weights.up", bf16, 0, e, shape->inner, h));
    MOK_TRY(check_matrix(&weights->down, "weights.down", bf16, 0, e, h, shape->inner));
    if (shape->shared_inner > 0) {
        const int64_t s = shape->shared_inner;
        MOK_TRY(check_matrix(&weights->shared_gate, "weights.shared_gate", bf16, 0, s, h, 0));
        MOK_TRY(check_matrix(&weights->shared_up, "weights.shared_up", bf16, 0, s, h, 0));
        MOK_TRY(check_matrix(&weights->shared_down, "weights.shared_down", bf16, 0, h, s, 0));
    }
    return MOK_OK;
}

mok_status mok_gradients_check(const mok_shape *shape, const mok_gradients *gradients,
                               int64_t tokens)
{
    MOK_REQUIRE(gradients != NULL, MOK_ERROR_ARGUMENT, "gradients is NULL");
    MOK_REQUIRE(gradients->struct_bytes == sizeof *gradients, MOK_ERROR_ARGUMENT,
                "gradients.struct_bytes is %zu, must be %zu", gradients->struct_bytes,
                sizeof *gradients);
    MOK_REQUIRE(gradients->mode == MOK_GRAD_STORE || gradients->mode == MOK_GRAD_ADD,
                MOK_ERROR_ARGUMENT, "gradients.mode is %d, unknown", (int)gradients->mode);
    const int64_t e = shape->expert_count;
    const int64_t h = shape->hidden;
    const mok_dtype other = gradients->mode == MOK_GRAD_STORE ? MOK_DTYPE_BF16 : (mok_dtype)0;
    MOK_TRY(check_matrix(&gradients->dx, "gradients.dx", MOK_DTYPE_BF16, 0, tokens, h, 0));
    MOK_TRY(check_matrix(&gradients->d_router_weights, "gradients.d_router_weights", MOK_DTYPE_F32,
                         0, tokens, shape->slots, 0));
    MOK_TRY(
        check_matrix(&gradients->gate, "gradients.gate", MOK_DTYPE_F32, other, e, shape->inner, h));
    MOK_TRY(check_matrix(&gradients->up, "gradients.up", MOK_DTYPE_F32, other, e, shape->inner, h));
    MOK_TRY(
        check_matrix(&gradients->down, "gradients.down", MOK_DTYPE_F32, other, e, h, shape->inner));
    if (shape->shared_inner > 0) {
        const int64_t lanes = gradients->shared_lanes;
        const int64_t s = shape->shared_inner;
        MOK_REQUIRE(lanes >= (tokens > 0 ? 1 : 0) && lanes <= mok_max64(tokens, 1) &&
                        (lanes == 0 || tokens % lanes == 0),
                    MOK_ERROR_SHAPE, "gradients.shared_lanes is %lld, must divide the %lld tokens",
                    (long long)lanes, (long long)tokens);
        MOK_TRY(check_matrix(&gradients->shared_gate, "gradients.shared_gate", MOK_DTYPE_F32, 0,
                             lanes, s, h));
        MOK_TRY(check_matrix(&gradients->shared_up, "gradients.shared_up", MOK_DTYPE_F32, 0, lanes,
                             s, h));
        MOK_TRY(check_matrix(&gradients->shared_down, "gradients.shared_down", MOK_DTYPE_F32, 0,
                             lanes, h, s));
    }
    return MOK_OK;
}

static mok_status check_finite(const mok_schedule *schedule, const mok_tensor *router_weights)
{
    const int64_t slots = router_weights->shape[1];
    for (int64_t token = 0; token < router_weights->shape[0]; token++) {
        const float *row = (const float *)router_weights->data + token * router_weights->stride[0];
        for (int64_t slot = 0; slot < slots; slot++) {
            MOK_REQUIRE(isfinite(row[slot]) || schedule->routes[token * slots + slot] < 0,
                        MOK_ERROR_VALUE,
                        "router_weights[token %lld][slot %lld] is %g, must be finite",
                        (long long)token, (long long)slot, (double)row[slot]);
        }
    }
    return MOK_OK;
}

#define MOK_MAX_ARGUMENT_TENSORS 20

static mok_status check_overlaps(const mok_arguments *arguments)
{
    mok_named_tensor list[MOK_MAX_ARGUMENT_TENSORS];
    int count = 0;
#define ADD(name_, pointer_, output_)                                                              \
    do {                                                                                           \
        const mok_named_tensor item_ = {(name_), (pointer_), (output_)};                           \
        list[count++] = item_;                                                                     \
    } while (0)
    const mok_weights_view *weights = arguments->weights;
    const mok_gradients *gradients = arguments->gradients;
    const bool shared = arguments->layer->shape.shared_inner > 0;
    ADD("x", arguments->x, false);
    ADD("weights.gate", &weights->gate, false);
    ADD("weights.up", &weights->up, false);
    ADD("weights.down", &weights->down, false);
    if (shared) {
        ADD("weights.shared_gate", &weights->shared_gate, false);
        ADD("weights.shared_up", &weights->shared_up, false);
        ADD("weights.shared_down", &weights->shared_down, false);
    }
    if (arguments->router_weights != NULL) {
        ADD("router_weights", arguments->router_weights, false);
    }
    if (arguments->out != NULL) {
        ADD("out", arguments->out, true);
    }
    if (gradients != NULL) {
        ADD("dy", arguments->dy, false);
        ADD("gradients.dx", &gradients->dx, true);
        ADD("gradients.d_router_weights", &gradients->d_router_weights, true);
        ADD("gradients.gate", &gradients->gate, true);
        ADD("gradients.up", &gradients->up, true);
        ADD("gradients.down", &gradients->down, true);
        if (shared) {
            ADD("gradients.shared_gate", &gradients->shared_gate, true);
            ADD("gradients.shared_up", &gradients->shared_up, true);
            ADD("gradients.shared_down", &gradients->shared_down, true);
        }
    }
#undef ADD
    return mok_check_overlap(list, count);
}

mok_status mok_arguments_check(const mok_arguments *arguments, bool backward)
{
    const mok_layer *layer = arguments->layer;
    const mok_shape *shape = &layer->shape;
    const mok_schedule *schedule = arguments->schedule;
    const mok_activations *activations = arguments->activations;
    MOK_REQUIRE(schedule != NULL, MOK_ERROR_ARGUMENT, "schedule is NULL");
    MOK_REQUIRE(activations != NULL, MOK_ERROR_ARGUMENT, "activations is NULL");
    MOK_REQUIRE(schedule->layer == layer, MOK_ERROR_ARGUMENT, "schedule belongs to another layer");
    MOK_REQUIRE(activations->layer == layer, MOK_ERROR_ARGUMENT,
                "activations belong to another layer");
    MOK_REQUIRE(schedule->stamp != 0, MOK_ERROR_STATE, "schedule was never built");
    MOK_REQUIRE(!backward || activations->stamp != 0, MOK_ERROR_STATE,
                "activations are empty: call mok_forward or mok_recompute first");
    MOK_REQUIRE(!backward || activations->stamp == schedule->stamp, MOK_ERROR_STATE,
                "activations were made with another build of the schedule");
    const int64_t tokens = schedule->tokens;
    MOK_TRY(check_matrix(arguments->x, "x", MOK_DTYPE_BF16, 0, tokens, shape->hidden, 0));
    MOK_TRY(mok_weights_check(shape, arguments->weights));
    if (backward || arguments->out != NULL || arguments->router_weights != NULL) {
        MOK_TRY(check_matrix(arguments->router_weights, "router_weights", MOK_DTYPE_F32, 0, tokens,
                             shape->slots, 0));
        MOK_TRY(check_finite(schedule, arguments->router_weights));
    }
    if (arguments->out != NULL) {
        MOK_TRY(check_matrix(arguments->out, "out", MOK_DTYPE_BF16, 0, tokens, shape->hidden, 0));
    }
    if (backward) {
        MOK_TRY(check_matrix(arguments->dy, "dy", MOK_DTYPE_BF16, 0, tokens, shape->hidden, 0));
        MOK_TRY(mok_gradients_check(shape, arguments->gradients, tokens));
    }
    return check_overlaps(arguments);
}

/* ---- Publish ---- */

static void copy_rows(void *out, const mok_tensor *tensor)
{
    const size_t row_bytes = (size_t)tensor->shape[1] * mok_dtype_bytes(tensor->dtype);
    const size_t pitch = (size_t)tensor->stride[0] * mok_dtype_bytes(tensor->dtype);
    for (int64_t row = 0; row < tensor->shape[0]; row++) {
        memcpy((unsigned char *)out + (size_t)row * row_bytes,
               (const unsigned char *)tensor->data + (size_t)row * pitch, row_bytes);
    }
}

void mok_arguments_publish(const mok_arguments *arguments)
{
    const mok_layer *layer = arguments->layer;
    const mok_arena *mine = &layer->arena[layer->comm->rank];
    copy_rows(mine->x, arguments->x);
    if (arguments->router_weights != NULL) {
        copy_rows(mine->router_weights, arguments->router_weights);
    }
    if (arguments->dy != NULL) {
        copy_rows(mine->dy, arguments->dy);
    }
}

/* ---- Step ---- */

static mok_weight weight_from(const mok_tensor *tensor)
{
    const bool per_expert = tensor->rank == 3;
    const mok_weight weight = {tensor->data, per_expert ? tensor->stride[0] : 0,
                               tensor->stride[per_expert ? 1 : 0]};
    return weight;
}

static mok_grad grad_from(const mok_tensor *tensor, mok_grad_mode mode)
{
    const mok_grad grad = {tensor->data, tensor->dtype, mode, tensor->stride[0], tensor->stride[1]};
    return grad;
}

static uint16_t *bf16_at(unsigned char *base, size_t offset)
{
    return (uint16_t *)(void *)(base + offset);
}

static float *f32_at(unsigned char *base, size_t offset)
{
    return (float *)(void *)(base + offset);
}

static void attach_buffers(mok_step *step, const mok_layer *layer,
                           const mok_activations *activations)
{
    const mok_workspace_layout *w = &layer->workspace_layout;
    const mok_activations_layout *a = &layer->activations_layout;
    unsigned char *work = layer->workspace;
    unsigned char *kept = activations->memory;
    const mok_arena *mine = &layer->arena[layer->comm->rank];
    mok_buffers *ring = &step->ring;
    ring->inner = layer->shape.inner;
    ring->x = bf16_at(kept, a->x);
    ring->g = bf16_at(kept, a->g);
    ring->u = bf16_at(kept, a->u);
    ring->h = bf16_at(work, w->h);
    ring->y = bf16_at(work, w->y);
    ring->dy = bf16_at(work, w->dy);
    ring->dg = bf16_at(work, w->dg);
    ring->du = bf16_at(work, w->du);
    ring->row_weight = f32_at(work, w->row_weight);
    ring->router_part = f32_at(work, w->router_part);
    mok_buffers *shared = &step->shared;
    shared->inner = layer->shape.shared_inner;
    shared->x = mine->x;
    shared->g = bf16_at(kept, a->shared_g);
    shared->u = bf16_at(kept, a->shared_u);
    shared->h = bf16_at(work, w->shared_h);
    shared->y = bf16_at(work, w->shared_y);
    shared->dy = mine->dy;
    shared->dg = bf16_at(work, w->shared_dg);
    shared->du = bf16_at(work, w->shared_du);
    shared->row_weight = NULL;
    shared->router_part = NULL;
    step->chain[0] = f32_at(work, w->chain[0]);
    step->chain[1] = f32_at(work, w->chain[1]);
    step->counters = (_Atomic uint32_t *)(void *)(work + w->counters);
}

void mok_step_make(mok_step *step, const mok_arguments *arguments, mok_pass pass, mok_phase phase)
{
    const mok_layer *layer = arguments->layer;
    const mok_schedule *schedule = arguments->schedule;
    const mok_gradients *gradients = arguments->gradients;
    const mok_weights_view *weights = arguments->weights;
    memset(step, 0, sizeof *step);
    step->comm = layer->comm;
    step->shape = &layer->shape;
    step->phase = phase;
    step->plan = mok_plan_make(pass, &layer->shape, schedule->rows.row_count / MOK_ROW_BLOCK,
                               schedule->tokens, gradients != NULL ? gradients->shared_lanes : 0);
    step->product = layer->config.arith == MOK_ARITH_FMA ? layer->comm->kernels->product_fma
                                                         : layer->comm->kernels->product_tc16;
    step->swiglu.clamped = layer->config.activation == MOK_ACTIVATION_SWIGLU_CLAMPED;
    step->swiglu.limit = layer->config.swiglu_limit;
    step->rows = &schedule->rows;
    step->routes = schedule->routes;
    step->tokens = schedule->tokens;
    memcpy(step->arena, layer->arena, sizeof step->arena);
    step->symmetric = &layer->symmetric;
    attach_buffers(step, layer, arguments->activations);
    step->weights.gate = weight_from(&weights->gate);
    step->weights.up = weight_from(&weights->up);
    step->weights.down = weight_from(&weights->down);
    if (layer->shape.shared_inner > 0) {
        step->shared_weights.gate = weight_from(&weights->shared_gate);
        step->shared_weights.up = weight_from(&weights->shared_up);
        step->shared_weights.down = weight_from(&weights->shared_down);
    }
    if (gradients != NULL) {
        step->grads.gate = grad_from(&gradients->gate, gradients->mode);
        step->grads.up = grad_from(&gradients->up, gradients->mode);
        step->grads.down = grad_from(&gradients->down, gradients->mode);
        step->shared_grads.gate = grad_from(&gradients->shared_gate, MOK_GRAD_STORE);
        step->shared_grads.up = grad_from(&gradients->shared_up, MOK_GRAD_STORE);
        step->shared_grads.down = grad_from(&gradients->shared_down, MOK_GRAD_STORE);
    }
    step->hook = layer->hook;
    step->hook_context = layer->hook_context;
}
