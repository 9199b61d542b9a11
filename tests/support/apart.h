/* Ranks of one process that do not share memory, or only some of them: what other hosts look like.
 *
 * Each rank is a thread and opens itself by mok_comm_open_bootstrap. Gathering is a barrier between
 * the threads. The link hands over the sender's own buffer and frees it when the receiver asks for
 * the next message, so that whoever touches a buffer too early changes bytes. */
#ifndef MOK_TESTS_APART_H
#define MOK_TESTS_APART_H

#include <mok/mok_ranks.h>

#include "group.h"

typedef struct apart_plan {
    uint64_t
        mapped; /* bit r: rank r maps the memory of others that do; the rest is behind the link */
    bool linkless;     /* there is no link */
    int32_t slow;      /* a message shows itself after this many looks, more for some pairs */
    int32_t from, to;  /* the pair with a fault, below; others have none */
    int32_t break_at;  /* the link breaks with this message, counted from 1; 0: never */
    int32_t hold_at;   /* this message and later ones are on their way for ever; 0: never */
    int32_t garble_at; /* this message arrives with another first word; 0: never */
    int32_t refuse_gathering; /* this gathering fails, counted from 1; 0: none */
} apart_plan;

/* As group_run. status and text also tell how opening went. */
mok_status apart_run(int32_t ranks, const apart_plan *plan, const mok_comm_config *config,
                     rank_main run, void *context, mok_status *status, char (*text)[240]);

#endif
