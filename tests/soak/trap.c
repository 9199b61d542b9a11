/* Traps for scripts/soak: a rank of mok-soak gets a signal at an exact place of its run.
 *
 * mok-soak is mok's own objects, linked with --wrap for the functions below: calls to them from
 * other files come by here first. Nothing of this is in mok, and no source of mok knows of it.
 *
 *   MOK_TRAP=NAME:N:SIGNAL   the N-th time (from 1) that this rank comes by NAME it sends itself
 *                            SIGNAL, having made the file that MOK_TRAP_MARK names
 *   MOK_TRAP_RANK=R          the rank that this is about
 *   MOK_TRAP_CENSUS=FILE     instead: at its end, writes how often this rank came by each
 *   MOK_TRAP_VERSION=1       this rank says that it has another version of the library
 *
 * Workers come by in any order, so counts are atomic; who is N-th does not matter. */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/step.h"
#include "optimizer.h"
#include "plan/schedule.h"
#include "state.h"

typedef enum trap {
    TRAP_OPEN,   /* in the middle of opening */
    TRAP_CREATE, /* shared memory has a name or handle, and no bytes yet */
    TRAP_UNLINK, /* all have met, and the name is still there */
    TRAP_SCHEDULE,
    TRAP_ROWS, /* in the schedule, behind the agreement on routes */
    TRAP_DISPATCH,
    TRAP_GATE_UP,
    TRAP_DOWN,
    TRAP_COMBINE,
    TRAP_PUT, /* between two rows of a combine */
    TRAP_SHARED,
    TRAP_FOLD,
    TRAP_DISPATCH_DY,
    TRAP_D_HIDDEN,
    TRAP_DX,
    TRAP_COMBINE_DX,
    TRAP_WGRAD,
    TRAP_REDUCE,
    TRAP_GATHER,
    TRAP_BROADCAST,
    TRAP_OPTIMIZER, /* between two parameters */
    TRAP_SAVE,      /* before anything of a checkpoint is written */
    TRAP_WRITE,     /* in the middle of it */
    TRAP_FLUSH,
    TRAP_RENAME,
    TRAP_RENAMED,
    TRAPS
} trap;

static const char *const trap_names[TRAPS] = {
    "open", "create",     "unlink", "schedule", "rows",   "dispatch",    "gate-up",
    "down", "combine",    "put",    "shared",   "fold",   "dispatch-dy", "d-hidden",
    "dx",   "combine-dx", "wgrad",  "reduce",   "gather", "broadcast",   "optimizer",
    "save", "write",      "flush",  "rename",   "renamed"};

static _Atomic long passed[TRAPS];
static int set_at = -1; /* the trap that is set */
static long set_count;
static int set_signal;
static const char *mark_path, *census_path;
static _Thread_local bool in_optimizer, in_save;

/* What launchers call a process's rank; "" in a launcher. */
static const char *own_rank(void)
{
    static const char *const names[] = {"MOK_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (getenv(names[i]) != NULL) {
            return getenv(names[i]);
        }
    }
    return "";
}

static void write_census(void)
{
    FILE *file = fopen(census_path, "w");
    for (int i = 0; i < TRAPS && file != NULL; i++) {
        (void)fprintf(file, "%s %ld\n", trap_names[i], atomic_load(&passed[i]));
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

__attribute__((constructor)) static void set_trap(void)
{
    const char *rank = getenv("MOK_TRAP_RANK");
    const char *text = getenv("MOK_TRAP");
    char name[32];
    if (rank == NULL || strcmp(rank, own_rank()) != 0) {
        return;
    }
    mark_path = getenv("MOK_TRAP_MARK");
    census_path = getenv("MOK_TRAP_CENSUS");
    if (census_path != NULL) {
        (void)atexit(write_census);
    }
    if (text != NULL && sscanf(text, "%31[^:]:%ld:%d", name, &set_count, &set_signal) == 3) {
        for (int i = 0; i < TRAPS; i++) {
            set_at = strcmp(name, trap_names[i]) == 0 ? i : set_at;
        }
    }
}

static void come_by(trap at)
{
    const long count = atomic_fetch_add(&passed[at], 1) + 1;
    if ((int)at != set_at || count != set_count) {
        return;
    }
    if (mark_path != NULL) {
        (void)close(open(mark_path, O_CREAT | O_WRONLY, 0600));
    }
    (void)kill(getpid(), set_signal);
}

/* ---- The library's ---- */

#define WRAP(name) __wrap_##name
#define REAL(name) __real_##name

int32_t REAL(mok_version)(void);
int32_t WRAP(mok_version)(void);
int32_t WRAP(mok_version)(void)
{
    const char *rank = getenv("MOK_TRAP_RANK");
    const bool other =
        getenv("MOK_TRAP_VERSION") != NULL && rank != NULL && strcmp(rank, own_rank()) == 0;
    return REAL(mok_version)() + (other ? 1 : 0);
}

mok_status REAL(mok_member_finish)(mok_comm *comm, int32_t beside);
mok_status WRAP(mok_member_finish)(mok_comm *comm, int32_t beside);
mok_status WRAP(mok_member_finish)(mok_comm *comm, int32_t beside)
{
    come_by(TRAP_OPEN);
    return REAL(mok_member_finish)(comm, beside);
}

mok_status REAL(mok_schedule_build)(mok_schedule *schedule, mok_layer *layer,
                                    const mok_tensor *routes);
mok_status WRAP(mok_schedule_build)(mok_schedule *schedule, mok_layer *layer,
                                    const mok_tensor *routes);
mok_status WRAP(mok_schedule_build)(mok_schedule *schedule, mok_layer *layer,
                                    const mok_tensor *routes)
{
    come_by(TRAP_SCHEDULE);
    return REAL(mok_schedule_build)(schedule, layer, routes);
}

mok_status REAL(mok_rows_build)(mok_rows *rows, const mok_shape *shape, const mok_routes *routes,
                                int64_t *expert_counts);
mok_status WRAP(mok_rows_build)(mok_rows *rows, const mok_shape *shape, const mok_routes *routes,
                                int64_t *expert_counts);
mok_status WRAP(mok_rows_build)(mok_rows *rows, const mok_shape *shape, const mok_routes *routes,
                                int64_t *expert_counts)
{
    come_by(TRAP_ROWS);
    return REAL(mok_rows_build)(rows, shape, routes, expert_counts);
}

void REAL(mok_step_forward_task)(mok_step *step, const mok_task *task,
                                 const mok_worker_scratch *scratch);
void WRAP(mok_step_forward_task)(mok_step *step, const mok_task *task,
                                 const mok_worker_scratch *scratch);
void WRAP(mok_step_forward_task)(mok_step *step, const mok_task *task,
                                 const mok_worker_scratch *scratch)
{
    come_by(task->kind == MOK_TASK_DISPATCH  ? TRAP_DISPATCH
            : task->kind == MOK_TASK_GATE_UP ? TRAP_GATE_UP
            : task->kind == MOK_TASK_DOWN    ? TRAP_DOWN
            : task->kind == MOK_TASK_COMBINE ? TRAP_COMBINE
                                             : TRAP_SHARED);
    REAL(mok_step_forward_task)(step, task, scratch);
}

void REAL(mok_step_backward_task)(mok_step *step, const mok_task *task,
                                  const mok_worker_scratch *scratch);
void WRAP(mok_step_backward_task)(mok_step *step, const mok_task *task,
                                  const mok_worker_scratch *scratch);
void WRAP(mok_step_backward_task)(mok_step *step, const mok_task *task,
                                  const mok_worker_scratch *scratch)
{
    come_by(task->kind == MOK_TASK_DISPATCH   ? TRAP_DISPATCH_DY
            : task->kind == MOK_TASK_D_HIDDEN ? TRAP_D_HIDDEN
            : task->kind == MOK_TASK_DX       ? TRAP_DX
            : task->kind == MOK_TASK_COMBINE  ? TRAP_COMBINE_DX
                                              : TRAP_WGRAD);
    REAL(mok_step_backward_task)(step, task, scratch);
}

void REAL(mok_step_fold_task)(mok_step *step, const mok_task *task);
void WRAP(mok_step_fold_task)(mok_step *step, const mok_task *task);
void WRAP(mok_step_fold_task)(mok_step *step, const mok_task *task)
{
    come_by(TRAP_FOLD);
    REAL(mok_step_fold_task)(step, task);
}

void REAL(mok_symmetric_put)(mok_comm *comm, const mok_symmetric *symmetric, int32_t peer, void *at,
                             const void *data, size_t bytes);
void WRAP(mok_symmetric_put)(mok_comm *comm, const mok_symmetric *symmetric, int32_t peer, void *at,
                             const void *data, size_t bytes);
void WRAP(mok_symmetric_put)(mok_comm *comm, const mok_symmetric *symmetric, int32_t peer, void *at,
                             const void *data, size_t bytes)
{
    come_by(TRAP_PUT);
    REAL(mok_symmetric_put)(comm, symmetric, peer, at, data, bytes);
}

mok_status REAL(mok_lane_reduce)(mok_comm *comm, float *out, const float *partials, int64_t lanes,
                                 int64_t count);
mok_status WRAP(mok_lane_reduce)(mok_comm *comm, float *out, const float *partials, int64_t lanes,
                                 int64_t count);
mok_status WRAP(mok_lane_reduce)(mok_comm *comm, float *out, const float *partials, int64_t lanes,
                                 int64_t count)
{
    come_by(TRAP_REDUCE);
    return REAL(mok_lane_reduce)(comm, out, partials, lanes, count);
}

mok_status REAL(mok_comm_allgather)(mok_comm *comm, void *out, const void *in, size_t bytes);
mok_status WRAP(mok_comm_allgather)(mok_comm *comm, void *out, const void *in, size_t bytes);
mok_status WRAP(mok_comm_allgather)(mok_comm *comm, void *out, const void *in, size_t bytes)
{
    come_by(TRAP_GATHER);
    return REAL(mok_comm_allgather)(comm, out, in, bytes);
}

mok_status REAL(mok_comm_broadcast)(mok_comm *comm, void *data, size_t bytes, int32_t root);
mok_status WRAP(mok_comm_broadcast)(mok_comm *comm, void *data, size_t bytes, int32_t root);
mok_status WRAP(mok_comm_broadcast)(mok_comm *comm, void *data, size_t bytes, int32_t root)
{
    come_by(TRAP_BROADCAST);
    return REAL(mok_comm_broadcast)(comm, data, bytes, root);
}

/* ---- The trainer's ---- */

mok_status REAL(mok_comm_parallel)(mok_comm *comm, int64_t count,
                                   void (*run)(void *context, int64_t idx, int32_t worker),
                                   void *context);
mok_status WRAP(mok_comm_parallel)(mok_comm *comm, int64_t count,
                                   void (*run)(void *context, int64_t idx, int32_t worker),
                                   void *context);
mok_status WRAP(mok_comm_parallel)(mok_comm *comm, int64_t count,
                                   void (*run)(void *context, int64_t idx, int32_t worker),
                                   void *context)
{
    if (in_optimizer) {
        come_by(TRAP_OPTIMIZER);
    }
    return REAL(mok_comm_parallel)(comm, count, run, context);
}

mok_status REAL(optimizer_step)(model *m, int64_t step, double norm);
mok_status WRAP(optimizer_step)(model *m, int64_t step, double norm);
mok_status WRAP(optimizer_step)(model *m, int64_t step, double norm)
{
    in_optimizer = true;
    const mok_status status = REAL(optimizer_step)(m, step, norm);
    in_optimizer = false;
    return status;
}

mok_status REAL(state_save)(const model *m, const train_text *text, int64_t step,
                            const char *directory, char *why);
mok_status WRAP(state_save)(const model *m, const train_text *text, int64_t step,
                            const char *directory, char *why);
mok_status WRAP(state_save)(const model *m, const train_text *text, int64_t step,
                            const char *directory, char *why)
{
    in_save = true;
    come_by(TRAP_SAVE);
    const mok_status status = REAL(state_save)(m, text, step, directory, why);
    in_save = false;
    return status;
}

/* ---- The C library's ---- */

size_t REAL(fwrite)(const void *data, size_t size, size_t count, FILE *file);
size_t WRAP(fwrite)(const void *data, size_t size, size_t count, FILE *file);
size_t WRAP(fwrite)(const void *data, size_t size, size_t count, FILE *file)
{
    if (in_save) {
        come_by(TRAP_WRITE);
    }
    return REAL(fwrite)(data, size, count, file);
}

int REAL(fsync)(int handle);
int WRAP(fsync)(int handle);
int WRAP(fsync)(int handle)
{
    if (in_save) {
        come_by(TRAP_FLUSH);
    }
    return REAL(fsync)(handle);
}

int REAL(rename)(const char *from, const char *to);
int WRAP(rename)(const char *from, const char *to);
int WRAP(rename)(const char *from, const char *to)
{
    come_by(TRAP_RENAME);
    const int result = REAL(rename)(from, to);
    come_by(TRAP_RENAMED);
    return result;
}

int REAL(posix_fallocate)(int handle, off_t from, off_t bytes);
int WRAP(posix_fallocate)(int handle, off_t from, off_t bytes);
int WRAP(posix_fallocate)(int handle, off_t from, off_t bytes)
{
    come_by(TRAP_CREATE);
    return REAL(posix_fallocate)(handle, from, bytes);
}

int REAL(shm_unlink)(const char *name);
int WRAP(shm_unlink)(const char *name);
int WRAP(shm_unlink)(const char *name)
{
    come_by(TRAP_UNLINK);
    return REAL(shm_unlink)(name);
}
