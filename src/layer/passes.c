/* Forward, recompute and backward: check, agree, run the tasks, meet the peers, fold.
 *
 * The agreement is also the barrier behind which peers may read what this rank has published; the
 * barrier after the tasks says that every peer has read it and that all slots have been filled. So
 * no rank publishes again, or closes, while a peer still reads. The barrier behind the fold moves
 * no data: it is there so that a rank whose fold stopped does not leave its peers with MOK_OK. */
#include "core/fpenv.h"
#include "layer/layer.h"

static mok_status check_and_publish(const mok_arguments *arguments, bool backward)
{
    /* After a fault a peer may still be in the last pass, and read what is published. */
    MOK_TRY(mok_comm_check(arguments->layer->comm));
    const uint32_t environment =
        mok_fpenv_enter(); /* weights are looked at, and one may be a NaN */
    const mok_status status = mok_arguments_check(arguments, backward);
    mok_fpenv_leave(environment);
    MOK_TRY(status);
    mok_arguments_publish(arguments);
    mok_arguments_show(arguments);
    return MOK_OK;
}

/* Runs the pass and meets the peers behind it. */
static mok_status run_pass(mok_step *step)
{
    MOK_TRY(mok_step_run(step));
    return mok_comm_barrier_in(step->comm, step->phase);
}

mok_status mok_forward(mok_layer *layer, mok_activations *activations, const mok_tensor *out,
                       const mok_schedule *schedule, const mok_tensor *x,
                       const mok_tensor *router_weights, const mok_weights_view *weights)
{
    MOK_REQUIRE(layer != NULL, MOK_ERROR_ARGUMENT, "layer is NULL");
    const mok_arguments arguments = {layer, activations, schedule,       out,    NULL,
                                     NULL,  x,           router_weights, weights};
    mok_status mine = out == NULL ? mok_fail(MOK_ERROR_ARGUMENT, "out is NULL")
                      : router_weights == NULL
                          ? mok_fail(MOK_ERROR_ARGUMENT, "router_weights is NULL")
                          : check_and_publish(&arguments, false);
    MOK_TRY(mok_comm_agree_in(layer->comm, mine, MOK_PHASE_FORWARD));
    activations->stamp = 0;
    mok_step step;
    mok_step_make(&step, &arguments, MOK_PASS_FORWARD, MOK_PHASE_FORWARD);
    MOK_TRY(run_pass(&step));
    mok_step_make(&step, &arguments, MOK_PASS_FOLD, MOK_PHASE_FOLD);
    step.fold_out = out->data;
    step.fold_out_stride = out->stride[0];
    MOK_TRY(run_pass(&step));
    activations->stamp = schedule->stamp;
    return MOK_OK;
}

mok_status mok_recompute(mok_layer *layer, mok_activations *activations,
                         const mok_schedule *schedule, const mok_tensor *x,
                         const mok_weights_view *weights)
{
    MOK_REQUIRE(layer != NULL, MOK_ERROR_ARGUMENT, "layer is NULL");
    const mok_arguments arguments = {layer, activations, schedule, NULL,   NULL,
                                     NULL,  x,           NULL,     weights};
    MOK_TRY(
        mok_comm_agree_in(layer->comm, check_and_publish(&arguments, false), MOK_PHASE_RECOMPUTE));
    activations->stamp = 0;
    mok_step step;
    mok_step_make(&step, &arguments, MOK_PASS_RECOMPUTE, MOK_PHASE_RECOMPUTE);
    MOK_TRY(run_pass(&step));
    activations->stamp = schedule->stamp;
    return MOK_OK;
}

mok_status mok_backward(mok_layer *layer, const mok_gradients *gradients,
                        mok_activations *activations, const mok_schedule *schedule,
                        const mok_tensor *dy, const mok_tensor *x, const mok_tensor *router_weights,
                        const mok_weights_view *weights)
{
    MOK_REQUIRE(layer != NULL, MOK_ERROR_ARGUMENT, "layer is NULL");
    const mok_arguments arguments = {layer, activations, schedule,       NULL,   gradients,
                                     dy,    x,           router_weights, weights};
    MOK_TRY(
        mok_comm_agree_in(layer->comm, check_and_publish(&arguments, true), MOK_PHASE_BACKWARD));
    mok_step step;
    mok_step_make(&step, &arguments, MOK_PASS_BACKWARD, MOK_PHASE_BACKWARD);
    if (step.plan.macro_count > 1) {
        activations->stamp = 0; /* replayed macrobatches overwrite the first */
    }
    MOK_TRY(run_pass(&step));
    mok_step_make(&step, &arguments, MOK_PASS_FOLD, MOK_PHASE_FOLD);
    step.fold_backward = true;
    step.fold_out = gradients->dx.data;
    step.fold_out_stride = gradients->dx.stride[0];
    step.fold_router = gradients->d_router_weights.data;
    step.fold_router_stride = gradients->d_router_weights.stride[0];
    return run_pass(&step);
}
