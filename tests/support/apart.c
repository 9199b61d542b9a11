/* Ranks behind a link, in one process. */
#include "apart.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/status.h"

#define GATHER_BYTES 4096

/* Messages of one rank to another, in order. */
typedef struct lane {
    pthread_mutex_t lock;
    struct {
        const void *message;
        size_t bytes;
        int32_t slot;
        bool garbled;
    } waiting[MOK_LINK_SLOTS];
    int32_t count;      /* of them, the first the oldest */
    bool taken;         /* the receiver has the first */
    int32_t looks;      /* at a message that is not shown yet */
    int32_t sent_count; /* since the beginning */
    bool busy[MOK_LINK_SLOTS];
    bool broken, held;
    unsigned char shown[MOK_LINK_MESSAGE_BYTES]; /* the first, where the receiver has it */
} lane;

typedef struct world {
    int32_t ranks;
    const apart_plan *plan;
    const mok_comm_config *config;
    pthread_barrier_t barrier;
    unsigned char gathered[MOK_MAX_RANKS][GATHER_BYTES];
    lane *lanes; /* [ranks, ranks] */
} world;

typedef struct member {
    world *of;
    int32_t rank;
    int32_t gatherings;
    _Atomic bool gathering;
    _Atomic bool at_once; /* the link was called while that ran: launchers may allow one thread */
} member;

static lane *lane_of(const member *m, int32_t from, int32_t to)
{
    return &m->of->lanes[from * m->of->ranks + to];
}

static bool has_fault(const member *m, int32_t from, int32_t to)
{
    return m->of->plan->from == from && m->of->plan->to == to;
}

static bool alone(member *m)
{
    if (atomic_load(&m->gathering)) {
        atomic_store(&m->at_once, true);
        return false;
    }
    return true;
}

static int link_send(void *context, int32_t peer, int32_t slot, const void *message, size_t bytes)
{
    member *m = context;
    const apart_plan *plan = m->of->plan;
    lane *l = lane_of(m, m->rank, peer);
    if (!alone(m)) {
        return -1;
    }
    pthread_mutex_lock(&l->lock);
    l->sent_count++;
    if (has_fault(m, m->rank, peer) && l->sent_count == plan->break_at) {
        l->broken = true;
    }
    l->held = l->held || (has_fault(m, m->rank, peer) && l->sent_count == plan->hold_at);
    if (l->held) { /* and its slot stays busy */
        l->busy[slot] = true;
        pthread_mutex_unlock(&l->lock);
        return 0;
    }
    const bool fits = !l->broken && l->count < MOK_LINK_SLOTS && !l->busy[slot] &&
                      bytes <= MOK_LINK_MESSAGE_BYTES;
    if (fits) {
        l->waiting[l->count].message = message;
        l->waiting[l->count].bytes = bytes;
        l->waiting[l->count].garbled =
            has_fault(m, m->rank, peer) && l->sent_count == plan->garble_at;
        l->waiting[l->count++].slot = slot;
        l->busy[slot] = true;
    }
    pthread_mutex_unlock(&l->lock);
    return fits ? 0 : -1;
}

static int link_sent(void *context, int32_t peer, int32_t slot)
{
    member *m = context;
    lane *l = lane_of(m, m->rank, peer);
    pthread_mutex_lock(&l->lock);
    const int sent = l->broken ? -1 : !l->busy[slot];
    pthread_mutex_unlock(&l->lock);
    return sent;
}

static void give_back_first(lane *l)
{
    l->busy[l->waiting[0].slot] = false;
    l->count--;
    memmove(&l->waiting[0], &l->waiting[1], (size_t)l->count * sizeof l->waiting[0]);
    l->taken = false;
}

static int link_receive(void *context, int32_t peer, const void **message, size_t *bytes)
{
    member *m = context;
    lane *l = lane_of(m, peer, m->rank);
    int got = 0;
    if (!alone(m)) {
        return -1;
    }
    pthread_mutex_lock(&l->lock);
    if (l->taken) {
        give_back_first(l);
    }
    if (l->count > 0 && l->looks < m->of->plan->slow * (1 + (peer + m->rank) % 3)) {
        l->looks++;
    } else if (l->count > 0) {
        memcpy(l->shown, l->waiting[0].message, l->waiting[0].bytes);
        if (l->waiting[0].garbled) {
            memset(l->shown, 0xEE, 4);
        }
        *message = l->shown;
        *bytes = l->waiting[0].bytes;
        l->taken = true;
        l->looks = 0;
        got = 1;
    } else if (l->broken) {
        got = -1;
    }
    pthread_mutex_unlock(&l->lock);
    return got;
}

/* What nobody has asked for yet is lost: the sender takes the memory back. */
static void link_close(void *context, bool healthy)
{
    const member *m = context;
    (void)healthy;
    for (int32_t peer = 0; peer < m->of->ranks; peer++) {
        lane *l = lane_of(m, m->rank, peer);
        pthread_mutex_lock(&l->lock);
        l->count = 0;
        l->taken = false;
        pthread_mutex_unlock(&l->lock);
    }
}

static int gather(void *context, void *out, const void *in, size_t bytes)
{
    member *m = context;
    world *w = m->of;
    const struct timespec moment = {0, 2000000}; /* for whoever would call the link meanwhile */
    if (bytes > GATHER_BYTES) {
        return 1;
    }
    atomic_store(&m->gathering, true);
    (void)nanosleep(&moment, NULL);
    memcpy(w->gathered[m->rank], in, bytes);
    pthread_barrier_wait(&w->barrier);
    for (int32_t rank = 0; rank < w->ranks; rank++) {
        memcpy((unsigned char *)out + (size_t)rank * bytes, w->gathered[rank], bytes);
    }
    pthread_barrier_wait(&w->barrier);
    atomic_store(&m->gathering, false);
    if (atomic_load(&m->at_once)) {
        mok_error_text_set("the link was called during a gathering");
        return 1;
    }
    if (++m->gatherings == w->plan->refuse_gathering) {
        mok_error_text_set("refused by the plan");
        return 1;
    }
    return 0;
}

static mok_status open_member(mok_comm **comm, int32_t rank, void *context)
{
    member *m = (member *)context + rank;
    const apart_plan *plan = m->of->plan;
    const mok_link link = {sizeof link, m, link_send, link_sent, link_receive, link_close};
    mok_bootstrap bootstrap;
    mok_bootstrap_init(&bootstrap);
    bootstrap.rank = rank;
    bootstrap.ranks = m->of->ranks;
    bootstrap.context = m;
    bootstrap.allgather = gather;
    bootstrap.share_memory = (plan->mapped >> rank & 1) != 0;
    bootstrap.link = plan->linkless ? NULL : &link;
    return mok_comm_open_bootstrap(comm, &bootstrap, m->of->config);
}

mok_status apart_run(int32_t ranks, const apart_plan *plan, const mok_comm_config *config,
                     rank_main run, void *context, mok_status *status, char (*text)[240])
{
    world *w = calloc(1, sizeof *w);
    member members[MOK_MAX_RANKS];
    w->ranks = ranks;
    w->plan = plan;
    w->config = config;
    w->lanes = calloc((size_t)(ranks * ranks), sizeof *w->lanes);
    pthread_barrier_init(&w->barrier, NULL, (unsigned)ranks);
    for (int32_t i = 0; i < ranks * ranks; i++) {
        pthread_mutex_init(&w->lanes[i].lock, NULL);
    }
    for (int32_t rank = 0; rank < ranks; rank++) {
        memset(&members[rank], 0, sizeof members[rank]);
        members[rank].of = w;
        members[rank].rank = rank;
    }
    const group_opener opener = {open_member, members};
    const mok_status first = group_run_by(ranks, &opener, run, context, status, text);
    for (int32_t i = 0; i < ranks * ranks; i++) {
        pthread_mutex_destroy(&w->lanes[i].lock);
    }
    pthread_barrier_destroy(&w->barrier);
    free(w->lanes);
    free(w);
    return first;
}
