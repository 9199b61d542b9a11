/* Writes the forward pass's tasks of a small shape as Promela arrays: the model checks the
 * functions that run. */
#include <stdio.h>
#include <string.h>

#include "plan/tasks.h"

#define MAX_TASKS 64

typedef int64_t (*field_fn)(const mok_task *task);

static int64_t kind_of(const mok_task *task)
{
    return task->kind;
}

static int64_t block_of(const mok_task *task)
{
    return task->block;
}

/* Counter 0 stays at 0 and stands for none: real ones begin at 1. */
static int64_t wait0_of(const mok_task *task)
{
    return task->wait_count > 0 ? task->wait_idx[0] + 1 : 0;
}

static int64_t wait1_of(const mok_task *task)
{
    return task->wait_count > 1 ? task->wait_idx[1] + 1 : 0;
}

static int64_t value0_of(const mok_task *task)
{
    return task->wait_count > 0 ? (int64_t)task->wait_value[0] : 0;
}

static int64_t value1_of(const mok_task *task)
{
    return task->wait_count > 1 ? (int64_t)task->wait_value[1] : 0;
}

static int64_t raise0_of(const mok_task *task)
{
    return task->raise_count > 0 ? task->raise_idx[0] + 1 : 0;
}

static void print_array(const char *name, const mok_task *tasks, int64_t count, field_fn field)
{
    (void)printf("byte %s[%lld] = {", name, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        (void)printf("%s%lld", i > 0 ? ", " : "", (long long)field(&tasks[i]));
    }
    (void)printf("};\n");
}

int main(void)
{
    mok_shape shape;
    mok_task tasks[MAX_TASKS];
    memset(&shape, 0, sizeof shape);
    shape.hidden = shape.inner = 16;
    shape.inner_cols = shape.hidden_cols = 16;
    shape.experts = shape.expert_count = shape.slots = 1;
    shape.ranks = 1;
    shape.capacity_blocks = 5;
    shape.macro_blocks = 2;
    shape.mini_blocks = 1;
    const mok_plan plan = mok_plan_make(MOK_PASS_FORWARD, &shape, shape.capacity_blocks, 0, 0);
    const int64_t count = mok_task_count(&plan);
    if (count > MAX_TASKS) {
        return 1;
    }
    for (int64_t i = 0; i < count; i++) {
        tasks[i] = mok_task_at(&plan, i);
    }
    (void)printf("#define TASKS %lld\n#define RING %lld\n#define COUNTERS %lld\n", (long long)count,
                 (long long)shape.macro_blocks,
                 (long long)(MOK_COUNTERS * plan.counter_blocks + 1));
    (void)printf("#define DISPATCH %d\n#define GATE_UP %d\n#define DOWN %d\n#define COMBINE %d\n",
                 MOK_TASK_DISPATCH, MOK_TASK_GATE_UP, MOK_TASK_DOWN, MOK_TASK_COMBINE);
    print_array("kind", tasks, count, kind_of);
    print_array("block", tasks, count, block_of);
    print_array("wait0", tasks, count, wait0_of);
    print_array("value0", tasks, count, value0_of);
    print_array("wait1", tasks, count, wait1_of);
    print_array("value1", tasks, count, value1_of);
    print_array("raise0", tasks, count, raise0_of);
    return 0;
}
