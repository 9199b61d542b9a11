/* Outboxes, records and the courier; mail.h has the picture and the argument.
 *
 *   message   [ record | payload | record | payload | ... ]   payloads padded to 8 bytes
 *   outbox    BOXES buffers used round and round: one is filled while earlier ones are on their way
 */
#include "comm/mail.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#define BOXES 4
#define URGENT_SLOT BOXES
#define HEARTBEAT_MS 20    /* between looks at what has changed */
#define SIGN_OF_LIFE_MS 80 /* between messages where nothing changes */
#define SILENCE_MS 250     /* of a peer that is not alive, or has no way to us */
#define PATIENCE_MS 500

_Static_assert(MOK_LINK_SLOTS == BOXES + 1, "a slot for each buffer, and one for the urgent lane");

typedef enum record_kind {
    RECORD_PUT = 1,  /* into owner's part of allocation `where` */
    RECORD_STAGE,    /* into the sender's staging buffer `where` */
    RECORD_ARRIVE,   /* payload: mok_call; offset: the sender's epoch */
    RECORD_PROGRESS, /* offset: the sender's count */
    RECORD_FAULT,    /* payload: mok_fault */
    RECORD_GOODBYE
} record_kind;

typedef struct record {
    uint32_t kind, where;
    int32_t owner;
    uint32_t bytes;
    uint64_t offset;
} record;

typedef struct outbox {
    pthread_mutex_t lock;
    unsigned char *buffer;      /* BOXES of MOK_LINK_MESSAGE_BYTES */
    uint32_t writing;           /* which message is being filled; under the lock */
    size_t filled;              /* bytes of it; under the lock */
    size_t length[BOXES];       /* of submitted messages */
    uint32_t started;           /* messages given to the link; courier only */
    _Atomic uint32_t submitted; /* messages ready to go */
    _Atomic uint32_t completed; /* messages whose buffer is free again */
    struct {
        record head;
        mok_fault fault;
    } urgent; /* courier only, like the rest */
    bool urgent_busy, fault_sent;
    uint64_t progress_sent;
    int64_t sign_ms;          /* when that was */
    _Atomic int64_t heard_ms; /* the peer's last message; 0 before the first */
    _Atomic bool gone;        /* the link has no way to it any more */
    _Atomic bool goodbye;     /* the peer's has come */
} outbox;

typedef struct mok_mail {
    mok_comm *comm;
    mok_link link;
    outbox *box[MOK_MAX_RANKS]; /* NULL for peers that share memory */
    pthread_mutex_t parts_lock;
    const mok_symmetric *part[MOK_MAIL_PARTS];
    pthread_t courier;
    bool running;
    int64_t beat_ms; /* of the last heartbeat */
    _Atomic bool start, stop;
} mok_mail;

static size_t padded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

/* ---- Writing ---- */

static void submit(outbox *box)
{
    if (box->filled > 0) {
        box->length[box->writing % BOXES] = box->filled;
        box->filled = 0;
        atomic_store_explicit(&box->submitted, ++box->writing, memory_order_release);
    }
}

/* Room in the message being filled, or in the next one, once its buffer is free. NULL after a
 * fault. */
static unsigned char *room_for(mok_comm *comm, int32_t peer, size_t bytes)
{
    outbox *box = comm->mail->box[peer];
    if (box->filled + bytes > MOK_LINK_MESSAGE_BYTES) {
        submit(box);
    }
    if (box->filled == 0 && mok_comm_wait(comm, &box->completed, box->writing - BOXES + 1, peer,
                                          MOK_PHASE_EXCHANGE, -1) != MOK_OK) {
        return NULL;
    }
    const uint32_t at = box->writing % BOXES;
    unsigned char *place = box->buffer + at * (size_t)MOK_LINK_MESSAGE_BYTES + box->filled;
    box->filled += bytes;
    return place;
}

/* Long payloads are cut: offset grows with each part. */
static void write_record(mok_comm *comm, int32_t peer, record head, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    const size_t most = MOK_LINK_MESSAGE_BYTES - sizeof head;
    do {
        const size_t part = bytes < most ? bytes : most;
        unsigned char *place = room_for(comm, peer, sizeof head + padded(part));
        if (place == NULL) {
            return;
        }
        head.bytes = (uint32_t)part;
        memcpy(place, &head, sizeof head);
        if (part > 0) {
            memcpy(place + sizeof head, from, part);
            memset(place + sizeof head + part, 0, padded(part) - part);
            from += part;
        }
        head.offset += part;
        bytes -= part;
    } while (bytes > 0);
}

void mok_mail_put(mok_comm *comm, int32_t peer, const mok_symmetric *symmetric, int32_t owner,
                  size_t offset, const void *data, size_t bytes)
{
    const record head = {RECORD_PUT, symmetric->sequence, owner, 0, offset};
    outbox *box = comm->mail->box[peer];
    if (bytes > 0) {
        pthread_mutex_lock(&box->lock);
        write_record(comm, peer, head, data, bytes);
        pthread_mutex_unlock(&box->lock);
    }
}

void mok_mail_arrive(mok_comm *comm, int32_t peer, size_t staged_bytes)
{
    const uint32_t half = comm->epoch & 1;
    const mok_control *mine = comm->control[comm->rank];
    const record stage = {RECORD_STAGE, half, comm->rank, 0, 0};
    const record arrive = {RECORD_ARRIVE, half, comm->rank, 0, comm->epoch};
    outbox *box = comm->mail->box[peer];
    pthread_mutex_lock(&box->lock);
    if (staged_bytes > 0) {
        write_record(comm, peer, stage, mine->staging[half], staged_bytes);
    }
    write_record(comm, peer, arrive, &mine->call[half], sizeof mine->call[half]);
    submit(box);
    pthread_mutex_unlock(&box->lock);
}

/* ---- Reading ---- */

static bool apply_put(mok_mail *mail, int32_t from, const record *head, const void *payload)
{
    bool valid = head->owner == from || head->owner == mail->comm->rank;
    pthread_mutex_lock(&mail->parts_lock);
    const mok_symmetric *part = mail->part[head->where % MOK_MAIL_PARTS];
    /* One that was released meanwhile has no readers left. */
    if (valid && part != NULL && part->sequence == head->where) {
        valid = head->offset <= part->bytes[head->owner] &&
                head->bytes <= part->bytes[head->owner] - head->offset;
        if (valid) {
            memcpy(part->peer[head->owner] + head->offset, payload, head->bytes);
        }
    }
    pthread_mutex_unlock(&mail->parts_lock);
    return valid;
}

static bool apply_fault(mok_comm *comm, const record *head, const void *payload)
{
    mok_fault fault;
    if (head->bytes != sizeof fault) {
        return false;
    }
    memcpy(&fault, payload, sizeof fault);
    for (int32_t rank = 0; rank < comm->size; rank++) {
        (void)mok_control_fault(comm->control[rank], &fault);
    }
    return true;
}

static bool apply(mok_mail *mail, int32_t from, const record *head, const void *payload)
{
    mok_comm *comm = mail->comm;
    mok_control *theirs = comm->control[from];
    switch (head->kind) {
    case RECORD_PUT:
        return apply_put(mail, from, head, payload);
    case RECORD_STAGE:
        if (head->where > 1 || head->offset > MOK_STAGING_BYTES ||
            head->bytes > MOK_STAGING_BYTES - head->offset) {
            return false;
        }
        memcpy(theirs->staging[head->where] + head->offset, payload, head->bytes);
        return true;
    case RECORD_ARRIVE:
        if (head->where > 1 || head->bytes != sizeof(mok_call)) {
            return false;
        }
        memcpy(&theirs->call[head->where], payload, head->bytes);
        atomic_store_explicit(&comm->control[comm->rank]->slot[from], (uint32_t)head->offset,
                              memory_order_release);
        return true;
    case RECORD_PROGRESS:
        atomic_store_explicit(&theirs->progress, head->offset, memory_order_relaxed);
        return true;
    case RECORD_FAULT:
        return apply_fault(comm, head, payload);
    case RECORD_GOODBYE:
        atomic_store_explicit(&mail->box[from]->goodbye, true, memory_order_release);
        return true;
    default:
        return false;
    }
}

static bool read_message(mok_mail *mail, int32_t from, const unsigned char *message, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        record head;
        if (bytes - at < sizeof head) {
            return false;
        }
        memcpy(&head, message + at, sizeof head);
        at += sizeof head;
        if (padded(head.bytes) > bytes - at || !apply(mail, from, &head, message + at)) {
            return false;
        }
        at += padded(head.bytes);
    }
    return true;
}

/* ---- The courier ---- */

/* The link has no way to this peer any more. One that said goodbye may be gone. */
static void lose(mok_mail *mail, int32_t peer)
{
    outbox *box = mail->box[peer];
    if (!atomic_load(&box->gone) && !atomic_load(&box->goodbye)) {
        (void)mok_comm_fault(mail->comm, peer, MOK_PHASE_EXCHANGE, -1, 0);
    }
    atomic_store(&box->gone, true);
}

static bool send_ready(mok_mail *mail, int32_t peer)
{
    outbox *box = mail->box[peer];
    bool moved = false;
    uint32_t completed = atomic_load_explicit(&box->completed, memory_order_relaxed);
    while (completed != box->started) {
        const uint32_t at = completed % BOXES;
        const int sent = mail->link.sent(mail->link.context, peer, (int32_t)at);
        if (sent < 0) {
            lose(mail, peer);
            return true;
        }
        if (sent == 0) {
            break;
        }
        atomic_store_explicit(&box->completed, ++completed, memory_order_release);
        moved = true;
    }
    while (box->started != atomic_load_explicit(&box->submitted, memory_order_acquire)) {
        const uint32_t at = box->started % BOXES;
        if (mail->link.send(mail->link.context, peer, (int32_t)at,
                            box->buffer + at * (size_t)MOK_LINK_MESSAGE_BYTES,
                            box->length[at]) != 0) {
            lose(mail, peer);
            return true;
        }
        box->started++;
        moved = true;
    }
    return moved;
}

/* One short message at a time, past whatever waits in the outbox. */
static void send_urgent(mok_mail *mail, int32_t peer, bool beat)
{
    outbox *box = mail->box[peer];
    const mok_control *mine = mail->comm->control[mail->comm->rank];
    if (box->urgent_busy) {
        const int sent = mail->link.sent(mail->link.context, peer, URGENT_SLOT);
        if (sent < 0) {
            lose(mail, peer);
        }
        box->urgent_busy = sent == 0;
    }
    const uint64_t progress = atomic_load_explicit(&mine->progress, memory_order_relaxed);
    const bool fault =
        !box->fault_sent && atomic_load_explicit(&mine->fault_state, memory_order_acquire) == 2;
    const bool sign =
        beat && (progress != box->progress_sent || mail->beat_ms - box->sign_ms >= SIGN_OF_LIFE_MS);
    if (box->urgent_busy || atomic_load(&box->gone) || (!fault && !sign)) {
        return;
    }
    const record head = {fault ? RECORD_FAULT : RECORD_PROGRESS, 0, mail->comm->rank,
                         fault ? (uint32_t)sizeof box->urgent.fault : 0, fault ? 0 : progress};
    box->urgent.head = head;
    if (fault) {
        box->urgent.fault = mine->fault;
        box->fault_sent = true;
    } else {
        box->progress_sent = progress;
        box->sign_ms = mail->beat_ms;
    }
    if (mail->link.send(mail->link.context, peer, URGENT_SLOT, &box->urgent,
                        sizeof head + padded(head.bytes)) != 0) {
        lose(mail, peer);
        return;
    }
    box->urgent_busy = true;
}

static bool receive_all(mok_mail *mail, int32_t peer)
{
    bool moved = false;
    for (int count = 0; count < 64; count++) { /* then the others' turn */
        const void *message = NULL;
        size_t bytes = 0;
        const int got = mail->link.receive(mail->link.context, peer, &message, &bytes);
        if (got == 0) {
            break;
        }
        if (got < 0 || !read_message(mail, peer, message, bytes)) {
            lose(mail, peer);
            return true;
        }
        atomic_store_explicit(&mail->box[peer]->heard_ms, mok_now_ms(), memory_order_relaxed);
        moved = true;
    }
    return moved;
}

int64_t mok_mail_patience_ms(const mok_comm *comm, int32_t peer)
{
    if (comm->mail == NULL || !comm->remote[peer]) {
        return 0;
    }
    const int64_t heard =
        atomic_load_explicit(&comm->mail->box[peer]->heard_ms, memory_order_relaxed);
    return mok_now_ms() - heard < SILENCE_MS ? PATIENCE_MS : 0;
}

static bool visit(mok_mail *mail, int32_t peer, bool beat)
{
    if (mail->box[peer] == NULL || atomic_load(&mail->box[peer]->gone)) {
        return false;
    }
    const bool received = receive_all(mail, peer);
    if (atomic_load(&mail->box[peer]->gone)) {
        return true;
    }
    send_urgent(mail, peer, beat);
    return send_ready(mail, peer) || received;
}

static void *courier_main(void *context)
{
    mok_mail *mail = context;
    int64_t idle = 0;
    while (!atomic_load_explicit(&mail->stop, memory_order_acquire)) {
        bool moved = false;
        if (!atomic_load_explicit(&mail->start, memory_order_acquire)) {
            const struct timespec moment = {0, 100000};
            nanosleep(&moment, NULL);
            continue;
        }
        const int64_t now = mok_now_ms();
        const bool beat = now - mail->beat_ms >= HEARTBEAT_MS;
        mail->beat_ms = beat ? now : mail->beat_ms;
        for (int32_t peer = 0; peer < mail->comm->size; peer++) {
            moved = visit(mail, peer, beat) || moved;
        }
        idle = moved ? 0 : idle + 1;
        if (idle < 100) {
            sched_yield();
        } else {
            const struct timespec pause = {0, idle < 2000 ? 30000 : 300000};
            nanosleep(&pause, NULL);
        }
    }
    return NULL;
}

/* ---- Opening and closing ---- */

mok_status mok_mail_add(mok_comm *comm, const mok_symmetric *symmetric)
{
    mok_mail *mail = comm->mail;
    mok_status status = MOK_OK;
    pthread_mutex_lock(&mail->parts_lock);
    const mok_symmetric **part = &mail->part[symmetric->sequence % MOK_MAIL_PARTS];
    if (*part != NULL) {
        status = mok_fail(MOK_ERROR_MEMORY, "a layer that was opened %d layers ago is still open",
                          MOK_MAIL_PARTS);
    } else {
        *part = symmetric;
    }
    pthread_mutex_unlock(&mail->parts_lock);
    return status;
}

void mok_mail_remove(mok_comm *comm, const mok_symmetric *symmetric)
{
    mok_mail *mail = comm->mail;
    pthread_mutex_lock(&mail->parts_lock);
    const mok_symmetric **part = &mail->part[symmetric->sequence % MOK_MAIL_PARTS];
    if (*part == symmetric) {
        *part = NULL;
    }
    pthread_mutex_unlock(&mail->parts_lock);
}

static mok_status open_box(mok_mail *mail, int32_t peer)
{
    const mok_allocator *allocator = &mail->comm->allocator;
    outbox *box = mok_allocate(allocator, sizeof *box);
    MOK_REQUIRE(box != NULL, MOK_ERROR_MEMORY, "no memory for messages to rank %d", peer);
    memset(box, 0, sizeof *box);
    box->buffer = mok_allocate(allocator, (size_t)BOXES * MOK_LINK_MESSAGE_BYTES);
    if (box->buffer == NULL) {
        mok_release(allocator, box, sizeof *box);
        return mok_fail(MOK_ERROR_MEMORY, "no memory for messages to rank %d", peer);
    }
    pthread_mutex_init(&box->lock, NULL);
    mail->box[peer] = box;
    return MOK_OK;
}

mok_status mok_mail_open(mok_comm *comm, const mok_link *link)
{
    mok_mail *mail = mok_allocate(&comm->allocator, sizeof *mail);
    MOK_REQUIRE(mail != NULL, MOK_ERROR_MEMORY, "no memory for messages");
    memset(mail, 0, sizeof *mail);
    mail->comm = comm;
    mail->link = *link;
    pthread_mutex_init(&mail->parts_lock, NULL);
    comm->mail = mail; /* from here on mok_mail_close undoes all of it */
    for (int32_t peer = 0; peer < comm->size; peer++) {
        if (comm->remote[peer]) {
            MOK_TRY(open_box(mail, peer));
        }
    }
    mail->running = pthread_create(&mail->courier, NULL, courier_main, mail) == 0;
    MOK_REQUIRE(mail->running, MOK_ERROR_MEMORY, "no thread for messages");
    return MOK_OK;
}

void mok_mail_start(mok_comm *comm)
{
    atomic_store_explicit(&comm->mail->start, true, memory_order_release);
}

/* A goodbye is the last record to a peer, so whoever has all of them has all mail. */
static void part_in_peace(mok_mail *mail)
{
    mok_comm *comm = mail->comm;
    const record head = {RECORD_GOODBYE, 0, comm->rank, 0, 0};
    const int64_t since = mok_now_ms();
    for (int32_t peer = 0; peer < comm->size; peer++) {
        if (mail->box[peer] != NULL) {
            pthread_mutex_lock(&mail->box[peer]->lock);
            write_record(comm, peer, head, NULL, 0);
            submit(mail->box[peer]);
            pthread_mutex_unlock(&mail->box[peer]->lock);
        }
    }
    for (int32_t peer = 0; peer < comm->size; peer++) {
        const outbox *box = mail->box[peer];
        while (box != NULL && !atomic_load(&box->gone) &&
               (!atomic_load_explicit(&box->goodbye, memory_order_acquire) ||
                atomic_load_explicit(&box->completed, memory_order_acquire) != box->writing) &&
               mok_comm_check(comm) == MOK_OK && mok_now_ms() - since < comm->timeout_ms) {
            const struct timespec pause = {0, 100000};
            nanosleep(&pause, NULL);
        }
    }
}

/* After a fault the courier gets time to tell the others: this rank may be the only one that knows.
 */
static void tell_fault(void)
{
    const struct timespec pause = {0, 5 * HEARTBEAT_MS * 1000000};
    nanosleep(&pause, NULL);
}

void mok_mail_close(mok_comm *comm)
{
    mok_mail *mail = comm->mail;
    if (mail == NULL) {
        return;
    }
    const bool met = mail->running && comm->epoch > 0;
    if (met && mok_comm_check(comm) == MOK_OK) {
        part_in_peace(mail);
    }
    const bool healthy = met && mok_comm_check(comm) == MOK_OK;
    if (met && !healthy) {
        tell_fault();
    }
    if (mail->running) {
        atomic_store_explicit(&mail->stop, true, memory_order_release);
        pthread_join(mail->courier, NULL);
    }
    if (mail->link.close != NULL) { /* before the memory of what it may still be sending goes */
        mail->link.close(mail->link.context, healthy);
    }
    for (int32_t peer = 0; peer < comm->size; peer++) {
        outbox *box = mail->box[peer];
        if (box != NULL) {
            pthread_mutex_destroy(&box->lock);
            mok_release(&comm->allocator, box->buffer, (size_t)BOXES * MOK_LINK_MESSAGE_BYTES);
            mok_release(&comm->allocator, box, sizeof *box);
        }
    }
    pthread_mutex_destroy(&mail->parts_lock);
    mok_release(&comm->allocator, mail, sizeof *mail);
    comm->mail = NULL;
}
