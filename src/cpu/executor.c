/* The CPU executor: workers take task numbers from one counter and do them in order.
 *
 * A worker waits for the counters that its task names (mok_comm_wait, bounded), does it, and raises
 * the task's counters with release order, which makes its writes visible to whoever waits with
 * acquire. Which worker does a task does not matter to the result: tasks write disjoint memory. */
#include <string.h>

#include "cpu/step.h"

static void do_task(mok_step *step, const mok_task *task, const mok_worker_scratch *scratch)
{
    if (step->plan.pass == MOK_PASS_FOLD) {
        mok_step_fold_task(step, task);
    } else if (step->plan.pass == MOK_PASS_BACKWARD && task->kind != MOK_TASK_GATE_UP) {
        mok_step_backward_task(step, task, scratch);
    } else {
        mok_step_forward_task(step, task, scratch);
    }
}

/* False when a wait failed: the fault is recorded and every worker will see it. */
static bool wait_for(mok_step *step, const mok_task *task, int64_t idx)
{
    for (int32_t i = 0; i < task->wait_count; i++) {
        if (mok_comm_wait(step->comm, &step->counters[task->wait_idx[i]], task->wait_value[i],
                          step->comm->rank, step->phase, idx) != MOK_OK) {
            return false;
        }
    }
    return true;
}

static void work(void *context, int32_t worker)
{
    mok_step *step = context;
    const mok_worker_scratch scratch = mok_comm_scratch(step->comm, worker);
    const int64_t count = mok_task_count(&step->plan);
    for (;;) {
        const int64_t idx = atomic_fetch_add_explicit(&step->next_task, 1, memory_order_relaxed);
        if (idx >= count) {
            return;
        }
        const mok_task task = mok_task_at(&step->plan, idx);
        if (step->hook != NULL &&
            !step->hook(step->hook_context, step->comm->rank, worker, step->phase, idx)) {
            atomic_store_explicit(&step->left_task, idx, memory_order_relaxed);
            return;
        }
        if (!wait_for(step, &task, idx)) {
            return;
        }
        do_task(step, &task, &scratch);
        for (int32_t i = 0; i < task.raise_count; i++) {
            atomic_fetch_add_explicit(&step->counters[task.raise_idx[i]], 1, memory_order_release);
        }
        atomic_fetch_add_explicit(&step->done_count, 1, memory_order_relaxed);
        mok_comm_progress(step->comm);
    }
}

mok_status mok_step_run(mok_step *step)
{
    const int64_t counters = (int64_t)MOK_COUNTERS * step->plan.counter_blocks;
    for (int64_t i = 0; i < counters; i++) {
        atomic_init(&step->counters[i], 0);
    }
    atomic_init(&step->next_task, 0);
    atomic_init(&step->done_count, 0);
    atomic_init(&step->left_task, -1);
    MOK_TRY(mok_pool_run(step->comm->pool, work, step));
    MOK_TRY(mok_comm_check(step->comm));
    const int64_t done = atomic_load(&step->done_count);
    if (done != mok_task_count(&step->plan)) {
        /* A worker left and nobody was waiting for its task. */
        return mok_comm_fault(step->comm, step->comm->rank, step->phase,
                              atomic_load(&step->left_task), 0);
    }
    return MOK_OK;
}
