/* Workers that take a pass's tasks in order, and the ring of intermediates that macrobatches use again, for spin.
 *
 * tasks.inc comes from src/plan/tasks.h itself (generate.c). A task waits for its counters, reads and writes its
 * ring slot, and raises. Checked in every interleaving of two workers: nobody waits for ever, and what a task reads
 * is of its own row block: it was written, and not overwritten. */
#define WORKERS 2

#include "tasks.inc"

byte counter[COUNTERS];
byte next;
byte ring_x[RING]; /* block + 1 that lies there; 0 before the first */
byte ring_h[RING];
byte ring_y[RING];

active [WORKERS] proctype worker()
{
    byte task;
    byte at;
    do
    :: atomic { task = next; next++ };
        if
        :: task >= TASKS -> break
        :: else -> skip
        fi;
        counter[wait0[task]] >= value0[task];
        counter[wait1[task]] >= value1[task];
        at = block[task] % RING;
        if
        :: kind[task] == DISPATCH -> ring_x[at] = block[task] + 1
        :: kind[task] == GATE_UP ->
            assert(ring_x[at] == block[task] + 1);
            ring_h[at] = block[task] + 1
        :: kind[task] == DOWN ->
            assert(ring_h[at] == block[task] + 1);
            ring_y[at] = block[task] + 1
        :: kind[task] == COMBINE -> assert(ring_y[at] == block[task] + 1)
        fi;
        counter[raise0[task]]++
    od
}
