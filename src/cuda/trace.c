/* From the device's rings of events to times from the begin of the pass.
 *
 * A block's clock counts its multiprocessor's cycles; its head pairs two clocks with the global
 * timer, which gives the rate and the place of the block's clock on the common axis. */
#include <stdlib.h>
#include <string.h>

#include "cuda/layer.h"

_Static_assert((int)MOK_CUDA_ROLE_STORE == MOK_SM90_ROLE_STORE, "roles are the kernel's");
_Static_assert((int)MOK_CUDA_FOLD == MOK_SM90_FOLD, "kinds of events are the kernel's");

typedef struct trace_copy {
    mok_sm90_event *event;
    mok_sm90_trace_head *head;
    int32_t blocks, each;
} trace_copy;

static mok_status copy_trace(const mok_cuda_layer *layer, trace_copy *copy)
{
    const size_t events = (size_t)copy->blocks * MOK_SM90_TRACE_ROLES * (size_t)copy->each;
    copy->event = malloc(events * sizeof *copy->event);
    copy->head = malloc((size_t)copy->blocks * sizeof *copy->head);
    MOK_REQUIRE(copy->event != NULL && copy->head != NULL, MOK_ERROR_MEMORY,
                "no memory for a trace");
    MOK_CUDA_TRY(cudaDeviceSynchronize());
    MOK_CUDA_TRY(cudaMemcpy(copy->event, layer->trace, events * sizeof *copy->event,
                            cudaMemcpyDeviceToHost));
    MOK_CUDA_TRY(cudaMemcpy(copy->head, layer->trace_head,
                            (size_t)copy->blocks * sizeof *copy->head, cudaMemcpyDeviceToHost));
    return MOK_OK;
}

static uint64_t first_timer(const trace_copy *copy)
{
    uint64_t first = UINT64_MAX;
    for (int32_t block = 0; block < copy->blocks; block++) {
        if (copy->head[block].timer_ns[0] != 0 && copy->head[block].timer_ns[0] < first) {
            first = copy->head[block].timer_ns[0];
        }
    }
    return first;
}

static int64_t time_of(const mok_sm90_trace_head *head, int64_t clock, uint64_t first)
{
    const int64_t cycles = head->clock[1] - head->clock[0];
    const double ns = (double)(head->timer_ns[1] - head->timer_ns[0]);
    const double rate = cycles > 0 ? ns / (double)cycles : 0.0;
    return (int64_t)(head->timer_ns[0] - first) +
           (int64_t)((double)(clock - head->clock[0]) * rate);
}

static void convert(const mok_cuda_layer *layer, const trace_copy *copy, mok_cuda_event *out,
                    int64_t capacity, int64_t *count)
{
    const uint64_t first = first_timer(copy);
    *count = 0;
    for (int32_t ring = 0; ring < copy->blocks * MOK_SM90_TRACE_ROLES; ring++) {
        const int32_t block = ring / MOK_SM90_TRACE_ROLES;
        const int32_t role = ring % MOK_SM90_TRACE_ROLES;
        const mok_sm90_trace_head *head = &copy->head[block];
        const uint32_t kept =
            head->count[role] < (uint32_t)copy->each ? head->count[role] : (uint32_t)copy->each;
        for (uint32_t i = 0; i < kept; i++, (*count)++) {
            const mok_sm90_event *event = &copy->event[(int64_t)ring * copy->each + i];
            if (*count < capacity) {
                const mok_cuda_event made = {time_of(head, event->begin, first),
                                             time_of(head, event->end, first),
                                             layer->first + block / layer->blocks_per_rank,
                                             block,
                                             (mok_cuda_role)role,
                                             (mok_cuda_what)event->what,
                                             event->kind,
                                             event->block,
                                             event->col};
                out[*count] = made;
            }
        }
    }
}

mok_status mok_cuda_trace_read(mok_cuda_layer *layer, mok_cuda_event *out, int64_t capacity,
                               int64_t *count)
{
    MOK_REQUIRE(layer != NULL && count != NULL && (out != NULL || capacity == 0) && capacity >= 0,
                MOK_ERROR_ARGUMENT, "layer, count or out is NULL, or capacity is negative");
    MOK_REQUIRE(layer->trace != NULL, MOK_ERROR_STATE,
                "the layer was opened with trace_events of 0");
    trace_copy copy = {NULL, NULL, layer->own * layer->blocks_per_rank, layer->cuda.trace_events};
    int previous = 0;
    MOK_TRY(mok_cuda_enter(layer, &previous));
    const mok_status status = mok_cuda_leave(copy_trace(layer, &copy), previous);
    if (status == MOK_OK) {
        convert(layer, &copy, out, capacity, count);
    }
    free(copy.event);
    free(copy.head);
    return status;
}

const char *mok_cuda_task_string(int32_t kind)
{
    static const char *const names[MOK_TASK_KINDS] = {
        [MOK_TASK_DISPATCH] = "dispatch",
        [MOK_TASK_GATE_UP] = "gate_up",
        [MOK_TASK_DOWN] = "down",
        [MOK_TASK_COMBINE] = "combine",
        [MOK_TASK_D_HIDDEN] = "d_hidden",
        [MOK_TASK_DX] = "dx",
        [MOK_TASK_WGRAD_GATE] = "wgrad_gate",
        [MOK_TASK_WGRAD_UP] = "wgrad_up",
        [MOK_TASK_WGRAD_DOWN] = "wgrad_down",
        [MOK_TASK_SHARED_GATE_UP] = "shared_gate_up",
        [MOK_TASK_SHARED_DOWN] = "shared_down",
        [MOK_TASK_SHARED_D_HIDDEN] = "shared_d_hidden",
        [MOK_TASK_SHARED_DX] = "shared_dx",
        [MOK_TASK_SHARED_WGRAD_GATE] = "shared_wgrad_gate",
        [MOK_TASK_SHARED_WGRAD_UP] = "shared_wgrad_up",
        [MOK_TASK_SHARED_WGRAD_DOWN] = "shared_wgrad_down",
        [MOK_TASK_FOLD] = "fold",
    };
    return kind >= 0 && kind < MOK_TASK_KINDS ? names[kind] : "unknown";
}
