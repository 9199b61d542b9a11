/* mok with a blow at a chosen place: the program mok-struck of the soak test, never of the library.
 *
 * The linker sends calls of the functions below through the wrappers here (--wrap). The rank
 * MOK_STRIKE_RANK sends itself signal MOK_STRIKE_SIGNAL when it comes to place MOK_STRIKE_PLACE for
 * the MOK_STRIKE_COUNTth time; with the place "version" it says to be of another version instead.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/step.h"
#include "optimizer.h"
#include <mok/mok_ranks.h>

static bool is_struck(void)
{
    static const char *const names[] = {"MOK_RANK", "OMPI_COMM_WORLD_RANK", "RANK"};
    const char *victim = getenv("MOK_STRIKE_RANK");
    for (int i = 0; i < 3 && victim != NULL; i++) {
        const char *mine = getenv(names[i]);
        if (mine != NULL) {
            return strcmp(mine, victim) == 0;
        }
    }
    return false;
}

static void come_to(const char *place)
{
    static _Atomic long count;
    const char *chosen = getenv("MOK_STRIKE_PLACE");
    const char *times = getenv("MOK_STRIKE_COUNT");
    const char *number = getenv("MOK_STRIKE_SIGNAL");
    if (chosen == NULL || times == NULL || number == NULL || strcmp(chosen, place) != 0 ||
        !is_struck()) {
        return;
    }
    if (atomic_fetch_add(&count, 1) + 1 == strtol(times, NULL, 10)) {
        (void)kill(getpid(), (int)strtol(number, NULL, 10));
    }
}

/* The linker's names of the one and the other; a definition follows. */
#define WRAPPED(type, name, parameters)                                                            \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters

WRAPPED(int32_t, mok_version, (void))
{
    const char *chosen = getenv("MOK_STRIKE_PLACE");
    const bool other = chosen != NULL && strcmp(chosen, "version") == 0 && is_struck();
    return __real_mok_version() + (other ? 1 : 0);
}

WRAPPED(mok_status, mok_comm_open_shm,
        (mok_comm * *out, const char *name, int32_t rank, int32_t ranks,
         const mok_comm_config *config))
{
    come_to("open");
    return __real_mok_comm_open_shm(out, name, rank, ranks, config);
}

WRAPPED(mok_status, mok_comm_open_bootstrap,
        (mok_comm * *out, const mok_bootstrap *bootstrap, const mok_comm_config *config))
{
    come_to("open");
    return __real_mok_comm_open_bootstrap(out, bootstrap, config);
}

WRAPPED(mok_status, mok_schedule_build,
        (mok_schedule * schedule, mok_layer *layer, const mok_tensor *routes))
{
    come_to("schedule");
    return __real_mok_schedule_build(schedule, layer, routes);
}

static void come_to_task(const mok_task *task)
{
    come_to(task->kind == MOK_TASK_DISPATCH  ? "dispatch"
            : task->kind == MOK_TASK_COMBINE ? "combine"
                                             : "compute");
}

WRAPPED(void, mok_step_forward_task,
        (mok_step * step, const mok_task *task, const mok_worker_scratch *scratch))
{
    come_to_task(task);
    __real_mok_step_forward_task(step, task, scratch);
}

WRAPPED(void, mok_step_backward_task,
        (mok_step * step, const mok_task *task, const mok_worker_scratch *scratch))
{
    come_to_task(task);
    __real_mok_step_backward_task(step, task, scratch);
}

WRAPPED(mok_status, optimizer_step, (model * m, int64_t step, double norm))
{
    come_to("optimizer");
    return __real_optimizer_step(m, step, norm);
}

WRAPPED(size_t, fwrite, (const void *data, size_t size, size_t count, FILE *file))
{
    come_to("checkpoint");
    return __real_fwrite(data, size, count, file);
}

WRAPPED(int, rename, (const char *from, const char *to))
{
    come_to("rename");
    return __real_rename(from, to);
}
