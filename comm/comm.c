/* comm.c - the communicator: tasks handed to the transport, small messages, progress and the thread that drives it. */
#include "comm/comm.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/device_link.h"
#include "comm/host.h"
#include "comm/internal.h"
#include "comm/job.h"
#include "comm/node.h"

#define SLAB_BYTES ((size_t)2 << 20)
#define POOL_BUFFERS 64        /* small messages that may land between two rounds of progress */
#define DEFAULT_SEGMENT 262144 /* bytes */
#define DEFAULT_WINDOW 4
#define DEFAULT_DEADLINE 30.0
#define NAMED_OPS 4     /* of a call, in the line of a timeout */
#define ANSWERED_OPS 64 /* and in what all workers say then    */
#define LONGEST_WAIT_NS 1000000
#define DEVICE_WAIT_NS 50000 /* a device's queues wake nobody */
#define SHORTEST_SLEEP_NS 20000
#define LONGEST_LOOK_NS                                                                                                \
    200000               /* a message of the network may wait so long for a worker that sleeps on its neighbours */
#define BOTH_YIELDS 100  /* empty rounds in which it only yields */
#define THREAD_YIELDS 50 /* empty rounds in which the progress thread only yields */
#define SMALL_LEAST 512  /* bytes of a small message's buffer */
#define BATCH 32         /* completions or messages taken at once */

/* Rounds of progress without any, after which reductions no longer wait to read a neighbour's memory in place: it may
 * be that the neighbour waits for them. */
#define QUIET_ROUNDS 16

/* Where the transport does not say: granted receives posted before only the oldest collective of a team may post more, as
 * its progress never waits for younger ones whose senders wait for it; and sends of payload. The pool, these receives and
 * one collective's window fit the 1024 receives of shm. */
#define YOUNG_RECEIVES 512
#define SENDS 512

#define DEFAULT_AHEAD 4 /* segments handed to the transport for one peer */

/* ------------------------------------------------------------------------------------------------------ lists, buffers
 */

void task_append(struct task_list *list, struct task *task)
{
    task->next = NULL;
    task->previous = list->last;
    if (list->last == NULL)
        list->first = task;
    else
        list->last->next = task;
    list->last = task;
}

static void task_prepend(struct task_list *list, struct task *task)
{
    task->previous = NULL;
    task->next = list->first;
    if (list->first == NULL)
        list->last = task;
    else
        list->first->previous = task;
    list->first = task;
}

void task_remove(struct task_list *list, struct task *task)
{
    if (task->previous == NULL)
        list->first = task->next;
    else
        task->previous->next = task->next;
    if (task->next == NULL)
        list->last = task->previous;
    else
        task->next->previous = task->previous;
    task->next = task->previous = NULL;
}

enum status task_take(struct comm *comm, enum task_kind kind, struct task **out)
{
    struct task *task = comm->spare.first;
    if (task != NULL) {
        task_remove(&comm->spare, task);
    } else {
        void *memory = NULL;
        TRY(memory_zeroed(&memory, 1, sizeof(struct task)));
        task = memory;
    }
    /* what a kind of task uses is set by whoever takes it; the action and the provider's part stay as they are */
    task->kind = kind;
    task->collective = NULL;
    task->data = task->buffer = NULL;
    task->flying = task->loose = task->lent = false;
    task->staging = task->slot = NULL;
    task->mark = NULL;
    task->transfer.context = task;
    *out = task;
    return STATUS_OK;
}

/* Buffers go back to their shelf; a shelf that can't grow lets them go. */
static void shelve(void ***shelf, size_t *count, size_t *capacity, void *buffer, bool owned)
{
    void *memory = *shelf;
    if (memory_grow(&memory, capacity, *count + 1, sizeof(void *)) < 0) {
        if (owned)
            free(buffer);
        return;
    }
    *shelf = memory;
    (*shelf)[(*count)++] = buffer;
}

/* Landing slots that neighbours must be able to read (they can't read other memory) come from arenas, which keep them. */
static bool landing_shared(const struct comm *comm)
{
    return comm->node != NULL && !node_reads(comm->node);
}

static bool has_small(const struct task *task)
{
    return task->kind == TASK_SMALL || task->kind == TASK_POOL || task->kind == TASK_EARLY;
}

void task_give(struct comm *comm, struct task *task)
{
    if (task->buffer != NULL && has_small(task))
        shelve(&comm->small_spare, &comm->small_spares, &comm->small_capacity, task->buffer, true);
    else if (task->buffer != NULL)
        shelve(&comm->landing_spare, &comm->landing_spares, &comm->landing_capacity, task->buffer,
               !landing_shared(comm));
    task->buffer = NULL;
    if (comm->link != NULL)
        device_task_release(comm->link, task);
    task_append(&comm->spare, task);
}

static enum status buffer_take(void **shelf, size_t *count, size_t bytes, void **buffer)
{
    if (*count > 0) {
        *buffer = shelf[--*count];
        return STATUS_OK;
    }
    const size_t rounded = (bytes + 63) / 64 * 64;
    *buffer = aligned_alloc(64, rounded);
    return *buffer != NULL ? STATUS_OK : fail(STATUS_NO_MEMORY, "comm: no memory for a buffer of %zu bytes", rounded);
}

static enum status landing_make_shared(struct comm *comm)
{
    const size_t bytes = (comm->segment + 63) / 64 * 64;
    const size_t slots = bytes < SLAB_BYTES ? SLAB_BYTES / bytes : 1;
    void *memory = NULL;
    if (node_alloc(comm->node, slots * bytes, &memory) != STATUS_OK)
        return fail(STATUS_NO_MEMORY, "comm: no memory for buffers of %zu bytes that neighbours can read", bytes);
    for (size_t i = 0; i < slots; i++)
        shelve(&comm->landing_spare, &comm->landing_spares, &comm->landing_capacity,
               (unsigned char *)memory + i * bytes, false);
    return STATUS_OK;
}

enum status landing_take(struct comm *comm, void **buffer)
{
    if (landing_shared(comm) && comm->landing_spares == 0)
        TRY(landing_make_shared(comm));
    return buffer_take(comm->landing_spare, &comm->landing_spares, comm->segment, buffer);
}

enum status small_take(struct comm *comm, void **buffer)
{
    return buffer_take(comm->small_spare, &comm->small_spares, comm->small_bytes, buffer);
}

static void free_tasks(struct comm *comm, struct task_list *list, bool shared)
{
    struct task *task = list->first;
    *list = (struct task_list){.first = NULL};
    while (task != NULL) {
        struct task *next = task->next;
        if (has_small(task) || !shared)
            free(task->buffer);
        if (comm->link != NULL)
            device_task_release(comm->link, task);
        free(task);
        task = next;
    }
}

/* ---- failures ---- */

enum status comm_fail(struct comm *comm, enum status status)
{
    if (comm->status == STATUS_OK) {
        comm->status = status;
        snprintf(comm->message, sizeof comm->message, "%s", status_message());
    }
    return status;
}

enum status comm_failed(const struct comm *comm)
{
    return comm->status == STATUS_OK ? STATUS_OK : fail(comm->status, "%s", comm->message);
}

/* ------------------------------------------------------------------------------------------------- handing to
 * transport */

static enum status hand_over(struct comm *comm, struct task *task)
{
    struct transport *transport = comm->transport;
    void *into = (void *)(uintptr_t)task->data; /* ours, where it is to be filled */
    if (task->kind == TASK_POOL)
        return transport->ops->receive(transport, TRANSPORT_ANY, WIRE_TAG_SMALL, WIRE_TAG_IGNORE, into, task->bytes,
                                       &task->transfer);
    if (task->kind == TASK_RECEIVE)
        return transport->ops->receive(transport, task->peer, task->tag, 0, into, task->bytes, &task->transfer);
    return transport->ops->send(transport, task->peer, task->tag, task->data, task->bytes, &task->transfer);
}

static enum status handed(struct comm *comm, struct task *task)
{
    task_append(&comm->flying, task);
    task->flying = true;
    if (task->kind == TASK_SEND) {
        comm->sending++;
        comm->outbox[task->peer].flying += task->bytes;
    }
    if (task->kind != TASK_RECEIVE)
        return STATUS_OK;
    comm->receiving++;
    return executor_grant(task);
}

/* A small message is out. Those of a collective that was given up have become nobody's. */
static void small_out(struct comm *comm, const struct task *task)
{
    if (task->collective != NULL)
        task->collective->outgoing--;
    else if (comm->outgoing > 0)
        comm->outgoing--;
}

/* A small message that waited goes out by the node's rings. */
static enum status send_by_node(struct comm *comm, struct task *task)
{
    const unsigned char *bytes = task->data;
    const enum status status =
        node_send(comm->node, task->peer, bytes, bytes + WIRE_HEADER_BYTES, task->bytes - WIRE_HEADER_BYTES);
    if (status == STATUS_AGAIN)
        return status;
    small_out(comm, task);
    task_give(comm, task);
    return STATUS_OK;
}

/* STATUS_AGAIN: no room. */
static enum status send_by_network(struct comm *comm, struct task_list *list)
{
    struct task *task = list->first;
    const enum status status = hand_over(comm, task);
    if (status != STATUS_OK)
        return status;
    task_remove(list, task);
    return handed(comm, task);
}

static enum status send_first(struct comm *comm, struct task_list *list)
{
    struct task *task = list->first;
    if (!is_near(comm, task->peer))
        return send_by_network(comm, list);
    task_remove(list, task);
    const enum status status = send_by_node(comm, task);
    if (status == STATUS_AGAIN)
        task_prepend(list, task);
    return status;
}

static bool payload_may_go(const struct comm *comm, const struct outbox *outbox)
{
    return outbox->payload.first != NULL && outbox->flying < comm->ahead * comm->segment && comm->sending < comm->sends;
}

static enum status flush_outbox(struct comm *comm, struct outbox *outbox, bool *moved)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && (outbox->small.first != NULL || payload_may_go(comm, outbox))) {
        status = send_first(comm, outbox->small.first != NULL ? &outbox->small : &outbox->payload);
        *moved = *moved || status == STATUS_OK;
    }
    return status < 0 ? status : STATUS_OK;
}

static bool is_empty(const struct outbox *outbox)
{
    return outbox->small.first == NULL && outbox->payload.first == NULL;
}

static enum status flush_outboxes(struct comm *comm, bool *moved)
{
    for (struct outbox **at = &comm->outboxes; *at != NULL;) {
        struct outbox *outbox = *at;
        TRY(flush_outbox(comm, outbox, moved));
        if (!is_empty(outbox)) {
            at = &outbox->next;
            continue;
        }
        *at = outbox->next;
        outbox->listed = false;
    }
    return STATUS_OK;
}

/* The next receive that may be posted; NULL: none. */
static struct task *next_receive(const struct comm *comm)
{
    struct task *task = comm->receives.first;
    if (comm->pool.first != NULL)
        return NULL;
    while (task != NULL && comm->receiving >= comm->receives_ahead && !collective_is_oldest(task->collective))
        task = task->next;
    return task;
}

static enum status flush_receives(struct comm *comm, bool *moved)
{
    while (comm->pool.first != NULL || comm->receives.first != NULL) {
        struct task_list *list = comm->pool.first != NULL ? &comm->pool : &comm->receives;
        struct task *task = comm->pool.first != NULL ? comm->pool.first : next_receive(comm);
        if (task == NULL)
            return STATUS_OK;
        const enum status status = hand_over(comm, task);
        if (status != STATUS_OK)
            return status < 0 ? status : STATUS_OK;
        task_remove(list, task);
        *moved = true;
        TRY(handed(comm, task));
    }
    return STATUS_OK;
}

static enum status submit_send(struct comm *comm, struct task *task)
{
    struct outbox *outbox = &comm->outbox[task->peer];
    struct task_list *list = task->kind == TASK_SEND ? &outbox->payload : &outbox->small;
    bool moved = false;
    task_append(list, task);
    if (list->first == task)
        TRY(flush_outbox(comm, outbox, &moved));
    if (is_empty(outbox) || outbox->listed)
        return STATUS_OK;
    outbox->listed = true;
    outbox->next = comm->outboxes;
    comm->outboxes = outbox;
    return STATUS_OK;
}

enum status task_submit(struct comm *comm, struct task *task)
{
    struct task_list *list = task->kind == TASK_POOL ? &comm->pool : &comm->receives;
    bool moved = false;
    if (task->kind != TASK_POOL && task->kind != TASK_RECEIVE)
        return submit_send(comm, task);
    task_append(list, task);
    return list->first == task ? flush_receives(comm, &moved) : STATUS_OK;
}

/* One more message in a task that has room for it. */
static void small_append(struct task *task, const struct wire_header *header, const void *payload)
{
    unsigned char *to = (unsigned char *)task->buffer + task->bytes;
    wire_encode(header, to);
    if (header->bytes > 0)
        memcpy(to + WIRE_HEADER_BYTES, payload, header->bytes);
    task->bytes += WIRE_HEADER_BYTES + header->bytes;
}

static enum status small_task(struct comm *comm, struct collective *collective, int peer, struct task **out)
{
    struct task *task = NULL;
    TRY(task_take(comm, TASK_SMALL, &task));
    if (small_take(comm, &task->buffer) < 0) {
        task_give(comm, task);
        return STATUS_NO_MEMORY;
    }
    task->collective = collective;
    task->peer = peer;
    task->tag = WIRE_TAG_SMALL;
    task->data = task->buffer;
    task->bytes = 0;
    if (collective != NULL)
        collective->outgoing++;
    else
        comm->outgoing++;
    *out = task;
    return STATUS_OK;
}

/* The message that is open for the peer goes out. */
static enum status outbox_close(struct comm *comm, struct outbox *outbox)
{
    struct task *task = outbox->open;
    outbox->open = NULL;
    return task != NULL ? task_submit(comm, task) : STATUS_OK;
}

enum status comm_flush(struct comm *comm)
{
    while (comm->open != NULL) {
        struct outbox *outbox = comm->open;
        comm->open = outbox->next_open;
        TRY(outbox_close(comm, outbox));
    }
    return STATUS_OK;
}

static enum status send_on_network(struct comm *comm, struct collective *collective, int peer,
                                   const struct wire_header *header, const void *payload)
{
    struct outbox *outbox = &comm->outbox[peer];
    struct task *task = outbox->open;
    const bool listed = task != NULL;
    if (task != NULL &&
        (task->collective != collective || task->bytes + WIRE_HEADER_BYTES + header->bytes > comm->network_bytes)) {
        TRY(outbox_close(comm, outbox));
        task = NULL;
    }
    if (task == NULL)
        TRY(small_task(comm, collective, peer, &task));
    small_append(task, header, payload);
    outbox->open = task;
    if (listed)
        return STATUS_OK;
    outbox->next_open = comm->open;
    comm->open = outbox;
    return STATUS_OK;
}

enum status comm_send_small(struct comm *comm, struct collective *collective, int peer, struct wire_header *header,
                            const void *payload, size_t bytes)
{
    struct task *task = NULL;
    header->source = (uint16_t)comm->transport->rank;
    header->bytes = (uint32_t)bytes;
    if (!is_near(comm, peer))
        return send_on_network(comm, collective, peer, header, payload);
    if (comm->outbox[peer].small.first == NULL) {
        unsigned char encoded[WIRE_HEADER_BYTES];
        wire_encode(header, encoded);
        if (node_send(comm->node, peer, encoded, payload, bytes) == STATUS_OK)
            return STATUS_OK;
    }
    TRY(small_task(comm, collective, peer, &task));
    small_append(task, header, payload);
    return task_submit(comm, task);
}

static enum status pool_post(struct comm *comm)
{
    struct task *task = NULL;
    TRY(task_take(comm, TASK_POOL, &task));
    if (small_take(comm, &task->buffer) < 0) {
        task_give(comm, task);
        return STATUS_NO_MEMORY;
    }
    task->data = task->buffer;
    task->bytes = comm->network_bytes;
    return task_submit(comm, task);
}

/* ------------------------------------------------------------------------------------------------------ small messages
 */

enum status early_add(struct early **list, const struct wire_header *header, const void *payload)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct early) + header->bytes));
    struct early *early = memory;
    early->header = *header;
    if (header->bytes > 0)
        memcpy(early->payload, payload, header->bytes);
    while (*list != NULL)
        list = &(*list)->next;
    *list = early;
    return STATUS_OK;
}

void early_free(struct early **list)
{
    while (*list != NULL) {
        struct early *early = *list;
        *list = early->next;
        free(early);
    }
}

static enum status small_arrived(struct comm *comm, const struct wire_header *header, const void *payload)
{
    if (header->source >= comm->transport->size)
        return fail(STATUS_FORMAT, "wire: a message from unknown rank %d", (int)header->source);
    if (header->class != WIRE_TEAM)
        return executor_arrived(comm, header, payload);
    return team_answered(comm, header, payload) ? STATUS_OK : early_add(&comm->early, header, payload);
}

/* What landed in the pool, one message or several: what they bring is used from there. */
static enum status pool_arrived(struct comm *comm, const struct task *task)
{
    const unsigned char *bytes = task->data;
    bool moved = false;
    for (size_t at = 0; at < task->transfer.bytes || at == 0;) {
        struct wire_header header;
        TRY(wire_decode(bytes + at, task->transfer.bytes - at, &header));
        TRY(small_arrived(comm, &header, bytes + at + WIRE_HEADER_BYTES));
        at += WIRE_HEADER_BYTES + header.bytes;
    }
    if (comm->loose.first != NULL)
        TRY(executor_advance(comm->loose.first->collective, &moved));
    return executor_settle(comm);
}

/* ---- progress ---- */

static enum status task_done(struct comm *comm, struct task *task)
{
    task->flying = false;
    task_remove(&comm->flying, task);
    comm->receiving -= task->kind == TASK_RECEIVE;
    if (task->kind == TASK_SEND) {
        comm->sending--;
        comm->outbox[task->peer].flying -= task->bytes;
    }
    if (task->transfer.status < 0) {
        const enum status status = task->transfer.status;
        const int peer = task->peer;
        const enum task_kind kind = task->kind;
        task_give(comm, task);
        if (kind == TASK_POOL) /* from anyone */
            return fail_context(status, "%s: receive of a small message", comm->transport->name);
        return fail_context(status, "%s: %s rank %d", comm->transport->name,
                            kind == TASK_RECEIVE ? "receive from" : "send to", peer);
    }
    switch (task->kind) {
    case TASK_POOL: {
        const enum status status = pool_arrived(comm, task);
        task_give(comm, task);
        TRY(status);
        return pool_post(comm);
    }
    case TASK_SMALL:
        small_out(comm, task);
        task_give(comm, task);
        return STATUS_OK;
    default:
        return executor_task_done(comm, task);
    }
}

static enum status progress_transport(struct comm *comm, bool *moved)
{
    struct transfer *done[BATCH];
    size_t count = 0;
    TRY(comm->transport->ops->progress(comm->transport, done, BATCH, &count));
    *moved = count > 0;
    for (size_t i = 0; i < count; i++)
        TRY(task_done(comm, done[i]->context));
    TRY(flush_receives(comm, moved));
    TRY(flush_outboxes(comm, moved));
    if (*moved)
        TRY(executor_advance_all(comm, moved));
    return comm_flush(comm);
}

/* Messages are used where they lie in the rings. One for a collective that is not yet started is left there while there
 * is other work: the call that starts it may come next. */
static enum status progress_node(struct comm *comm, bool *moved)
{
    struct node_message message;
    int taken = 0;
    for (; taken < BATCH && node_peek(comm->node, &message); taken++) {
        struct wire_header header;
        TRY(wire_decode(message.header, WIRE_HEADER_BYTES + message.bytes, &header));
        if (header.bytes != message.bytes)
            return fail(STATUS_FORMAT, "wire: a message says %u bytes of payload and has %zu", (unsigned)header.bytes,
                        message.bytes);
        if (taken > 0 && executor_is_ahead(comm, &header))
            break;
        node_take(comm->node, &message);
        TRY(small_arrived(comm, &header, message.payload));
    }
    *moved = taken > 0;
    if (comm->outboxes != NULL)
        TRY(flush_outboxes(comm, moved));
    if (!*moved)
        return STATUS_OK;
    TRY(executor_advance_all(comm, moved));
    TRY(executor_settle(comm));
    node_release(comm->node);
    node_kick(comm->node);
    return STATUS_OK;
}

/* What one path brings may have the other send. */
static enum status progress_both(struct comm *comm, bool *moved)
{
    bool by_network = false;
    TRY(progress_node(comm, moved));
    TRY(progress_transport(comm, &by_network));
    if (!by_network)
        return STATUS_OK;
    *moved = true;
    node_kick(comm->node);
    return STATUS_OK;
}

static enum status progress_host(struct comm *comm, bool *moved)
{
    if (comm->node == NULL)
        return progress_transport(comm, moved);
    TRY(comm->mixed ? progress_both(comm, moved) : progress_node(comm, moved));
    comm->quiet = *moved ? 0 : comm->quiet + 1;
    if (comm->quiet % QUIET_ROUNDS != QUIET_ROUNDS - 1)
        return STATUS_OK;
    TRY(executor_land(comm));
    node_kick(comm->node);
    return STATUS_OK;
}

static enum status progress_once(struct comm *comm, bool *moved)
{
    bool device_moved = false;
    if (comm->link == NULL)
        return progress_host(comm, moved);
    TRY(executor_device_progress(comm, &device_moved));
    TRY(progress_host(comm, moved));
    *moved = *moved || device_moved;
    return STATUS_OK;
}

enum status comm_progress(struct comm *comm, bool *moved)
{
    *moved = false;
    TRY(comm_failed(comm));
    const enum status status = progress_once(comm, moved);
    if (status < 0) {
        (void)comm_fail(comm, status);
        (void)!comm_flush(comm); /* perhaps our words in a dispute */
        return comm_failed(comm);
    }
    comm->moved = comm->moved || *moved;
    return STATUS_OK;
}

enum status comm_drive(struct comm *comm)
{
    bool moved = !comm->has_thread && comm->active > 0;
    while (moved)
        TRY(comm_progress(comm, &moved));
    return STATUS_OK;
}

bool comm_has_thread(const struct comm *comm)
{
    return comm->has_thread;
}

/* For the others, when somebody waits in vain: all that is under way here. */
static void answer(struct comm *comm)
{
    struct text text = {0};
    text_addf(&text,
              "%.3f s without any progress, segments of %zu bytes: ", (double)(clock_ns() - comm->progressed_ns) / 1e9,
              comm->segment);
    collectives_describe(comm, ANSWERED_OPS, &text);
    job_answer(comm->job, text_string(&text));
    text_release(&text);
}

static enum status check_deadline(struct comm *comm)
{
    const uint64_t now = clock_ns();
    if (comm->moved)
        comm->progressed_ns = now;
    comm->moved = false;
    if (comm->dispute_until != 0 && now > comm->dispute_until)
        return fail(STATUS_MISMATCH,
                    "%s: the other side did not say what it called: call the same collective everywhere",
                    comm->dispute);
    if (comm->waiters == 0 || (double)(now - comm->progressed_ns) / 1e9 <= comm->deadline)
        return STATUS_OK; /* whoever computes meanwhile is not kept waiting */
    struct text text = {0};
    if (comm->job != NULL)
        answer(comm);
    collectives_describe(comm, NAMED_OPS, &text);
    const enum status status =
        fail(STATUS_TIMEOUT, "nothing moved for %.0f s: %s: a worker may hang; --deadline= changes the limit",
             comm->deadline, text_string(&text));
    text_release(&text);
    return status;
}

/* Look after deadline and job, now and then. */
static enum status idle_check(struct comm *comm, unsigned idle)
{
    if (idle % 64 != 63)
        return STATUS_OK;
    enum status status = comm->job != NULL ? job_check(comm->job) : STATUS_OK;
    if (comm->job != NULL && comm->waiters > 0 && job_asked(comm->job)) /* else it stays asked */
        answer(comm);
    if (status >= 0)
        status = check_deadline(comm);
    return status < 0 ? comm_fail(comm, status) : STATUS_OK;
}

/* Longer and longer. */
static uint64_t sleep_ns(unsigned idle, unsigned yields, uint64_t longest)
{
    const uint64_t ns = SHORTEST_SLEEP_NS * (uint64_t)(1 + (idle - yields) / 16);
    return ns < longest ? ns : longest;
}

/* Nobody can sleep on both paths: neighbours wake us, and the network is looked at now and then. */
static void wait_for_both(struct comm *comm, unsigned idle)
{
    if (idle < BOTH_YIELDS)
        (void)sched_yield();
    else if (node_drowse(comm->node))
        node_sleep(comm->node, sleep_ns(idle, BOTH_YIELDS, comm->link != NULL ? DEVICE_WAIT_NS : LONGEST_LOOK_NS));
}

enum status comm_idle(struct comm *comm, unsigned idle)
{
    const uint64_t ns = comm->link != NULL ? DEVICE_WAIT_NS : LONGEST_WAIT_NS;
    TRY(idle_check(comm, idle));
    if (comm->node != NULL && comm->mixed)
        wait_for_both(comm, idle);
    else if (comm->node != NULL)
        node_wait(comm->node, ns, idle);
    else
        comm->transport->ops->wait(comm->transport, ns, idle);
    return STATUS_OK;
}

void comm_enter(struct comm *comm)
{
    if (!comm->has_thread)
        return;
    atomic_fetch_add(&comm->wanted, 1);
    pthread_mutex_lock(&comm->lock);
    atomic_fetch_sub(&comm->wanted, 1);
}

void comm_leave(struct comm *comm)
{
    if (comm->node != NULL)
        node_kick(comm->node);
    if (comm->open != NULL && comm->status == STATUS_OK) {
        const enum status status = comm_flush(comm);
        if (status < 0)
            (void)!comm_fail(comm, status);
    }
    if (!comm->has_thread)
        return;
    if (comm->sleeps && (comm->stop || (comm->active > 0 && comm->waiters == 0)))
        pthread_cond_signal(&comm->work);
    pthread_mutex_unlock(&comm->lock);
}

/* The thread's own waiting, without the lock. A transport can't be waited on beside its user: the thread sleeps, longer
 * and longer. */
static void thread_wait(struct comm *comm, unsigned idle)
{
    const bool tired = idle > THREAD_YIELDS, asleep = tired && comm->node != NULL && node_drowse(comm->node);
    const uint64_t longest = comm->link != NULL ? DEVICE_WAIT_NS : LONGEST_WAIT_NS / 2;
    const uint64_t ns = tired ? sleep_ns(idle, THREAD_YIELDS, longest) : 0;
    pthread_mutex_unlock(&comm->lock);
    if (asleep)
        node_sleep(comm->node, comm->mixed ? ns : comm->link != NULL ? DEVICE_WAIT_NS : LONGEST_WAIT_NS);
    else if (tired && comm->node == NULL)
        clock_sleep_ns(ns);
    else
        (void)sched_yield();
    pthread_mutex_lock(&comm->lock);
}

/* Drives progress while collectives are under way and nobody waits for one; failures are kept for whoever comes. */
static void *progress_thread(void *context)
{
    struct comm *comm = context;
    unsigned idle = 0;
    pthread_mutex_lock(&comm->lock);
    while (!comm->stop) {
        if (comm->active == 0 || comm->waiters > 0 || comm->status != STATUS_OK) {
            comm->sleeps = true;
            pthread_cond_wait(&comm->work, &comm->lock);
            comm->sleeps = false;
            idle = 0;
            continue;
        }
        bool moved = false;
        const enum status status = comm_progress(comm, &moved);
        idle = status < 0 || moved ? 0 : idle + 1;
        if (idle > 0 && idle_check(comm, idle) >= 0)
            thread_wait(comm, idle);
        if (atomic_load(&comm->wanted) > 0) {
            pthread_mutex_unlock(&comm->lock);
            while (atomic_load(&comm->wanted) > 0)
                clock_sleep_ns(20000); /* the lock is unfair: until whoever wants it has it */
            pthread_mutex_lock(&comm->lock);
        }
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

/* ---- memory for vectors ---- */

static enum status plain_alloc(struct comm *comm, size_t bytes, void **out)
{
    enum status status = STATUS_OK;
    void *memory = NULL;
    const uint64_t available = host_memory_available();
    *out = NULL;
    if (available != 0 && bytes > available)
        return fail(STATUS_NO_MEMORY, "out of memory: a buffer of %zu MiB, %llu MiB are available", bytes >> 20,
                    (unsigned long long)(available >> 20));
    TRY(memory_zeroed(&memory, 1, sizeof(struct plain)));
    struct plain *plain = memory;
    TRY_TO(done, memory_pages(&plain->memory, bytes));
    plain->bytes = bytes;
    plain->next = comm->plains;
    comm->plains = plain;
    *out = plain->memory;
done:
    if (status < 0)
        free(plain);
    return status;
}

static void plain_free(struct comm *comm, void *memory)
{
    for (struct plain **at = &comm->plains; *at != NULL; at = &(*at)->next) {
        struct plain *plain = *at;
        if (plain->memory != memory)
            continue;
        *at = plain->next;
        memory_pages_release(plain->memory, plain->bytes);
        free(plain);
        return;
    }
}

enum status comm_alloc(struct comm *comm, size_t bytes, void **memory)
{
    comm_enter(comm);
    enum status status = comm->node != NULL ? node_alloc(comm->node, bytes, memory) : STATUS_AGAIN;
    if (status == STATUS_AGAIN)
        status = plain_alloc(comm, bytes, memory);
    comm_leave(comm);
    return status;
}

void comm_free(struct comm *comm, void *memory)
{
    if (memory == NULL)
        return;
    comm_enter(comm);
    if (comm->node == NULL || !node_free(comm->node, memory))
        plain_free(comm, memory);
    comm_leave(comm);
}

enum status comm_device_alloc(struct comm *comm, size_t bytes, void **memory)
{
    if (comm->link == NULL)
        return fail(STATUS_USAGE, "comm: memory of a device for a comm that has none");
    comm_enter(comm);
    const enum status status = device_memory_alloc(comm->link, bytes, false, memory);
    comm_leave(comm);
    return status;
}

void comm_device_free(struct comm *comm, void *memory)
{
    if (memory == NULL || comm->link == NULL)
        return;
    comm_enter(comm);
    device_memory_free(comm->link, memory);
    comm_leave(comm);
}

bool comm_owns_host(const struct comm *comm, const void *memory)
{
    const unsigned char *at = memory;
    struct node_place place;
    for (const struct plain *p = comm->plains; p != NULL; p = p->next)
        if (at >= (const unsigned char *)p->memory && at < (const unsigned char *)p->memory + p->bytes)
            return true;
    return comm->node != NULL && node_locate(comm->node, memory, 1, &place) && place.arena != 0 &&
           !device_memory_owns(comm->link, memory);
}

/* ----------------------------------------------------------------------------------------------------------- open,
 * close */

static enum status world_fill(struct comm *comm)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)comm->transport->size, sizeof(int)));
    comm->world = (struct team){
        .comm = comm, .id = 0, .rank = comm->transport->rank, .size = comm->transport->size, .ranks = memory};
    for (int r = 0; r < comm->world.size; r++)
        comm->world.ranks[r] = r;
    comm->teams = &comm->world;
    TRY(memory_zeroed(&memory, (size_t)comm->transport->size, sizeof(struct outbox)));
    comm->outbox = memory;
    return STATUS_OK;
}

/* Most of a small message. Below the segment, so that what is long waits for grants, and what is short for none. */
static size_t eager_bytes(const struct comm *comm)
{
    size_t most = comm->transport->eager_limit;
    if (most >= WIRE_HEADER_BYTES + comm->segment)
        most = WIRE_HEADER_BYTES + comm->segment / 2;
    return most > SMALL_LEAST ? most : SMALL_LEAST;
}

static enum status start_thread(struct comm *comm)
{
    comm->has_thread = true;
    const int error = pthread_create(&comm->thread, NULL, progress_thread, comm);
    if (error == 0)
        return STATUS_OK;
    comm->has_thread = false;
    return fail(STATUS_INTERNAL, "comm: no progress thread: %s", strerror(error));
}

enum status comm_open(const struct comm_request *request, struct comm **out)
{
    enum status status = STATUS_OK;
    void *memory = NULL;
    if (memory_zeroed(&memory, 1, sizeof(struct comm)) < 0) {
        request->transport->ops->close(request->transport);
        return STATUS_NO_MEMORY;
    }
    struct comm *comm = memory;
    comm->transport = request->transport;
    comm->job = request->job;
    comm->note = request->note;
    comm->note_context = request->context;
    const size_t segment = request->segment > 0 ? request->segment : comm->transport->segment;
    const unsigned window = request->window > 0 ? request->window : comm->transport->window;
    comm->segment = segment > 0 ? segment : DEFAULT_SEGMENT;
    comm->window = window > 0 ? window : DEFAULT_WINDOW;
    comm->scratch = request->scratch > 0 ? request->scratch : COMM_SCRATCH;
    comm->deadline = request->deadline > 0 ? request->deadline : DEFAULT_DEADLINE;
    comm->node = request->transport->node;
    comm->mixed = request->transport->mixed;
    comm->ahead = comm->transport->ahead > 0 ? comm->transport->ahead : DEFAULT_AHEAD;
    comm->sends = comm->transport->sends > 0 ? comm->transport->sends : SENDS;
    comm->receives_ahead = comm->transport->receives > 0 ? comm->transport->receives : YOUNG_RECEIVES;
    comm->network_bytes = eager_bytes(comm);
    comm->small_bytes = uses_network(comm) ? comm->network_bytes : 0;
    if (comm->node != NULL && comm->small_bytes < WIRE_HEADER_BYTES + NODE_EAGER)
        comm->small_bytes = WIRE_HEADER_BYTES + NODE_EAGER;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->work, NULL);
    if (comm->window > 64 || comm->segment < 8)
        TRY_TO(done, fail(STATUS_USAGE, "comm: segment must be at least 8 bytes and window 1..64"));
    TRY_TO(done, world_fill(comm));
    for (int i = 0; i < POOL_BUFFERS && uses_network(comm); i++)
        TRY_TO(done, pool_post(comm));
    if (request->device != NULL)
        TRY_TO(done, device_link_open(comm, request->device));
    comm->progressed_ns = clock_ns();
    if (request->progress_thread && comm->transport->size > 1)
        TRY_TO(done, start_thread(comm));
    *out = comm;
done:
    if (status < 0)
        comm_close(comm);
    return status;
}

void comm_close(struct comm *comm)
{
    if (comm == NULL)
        return;
    if (comm->has_thread) {
        comm_enter(comm);
        comm->stop = true;
        comm_leave(comm);
        pthread_join(comm->thread, NULL);
    }
    const int size = comm->transport->size;
    const bool shared = landing_shared(comm);
    device_link_release(comm->link);
    comm->transport->ops->close(comm->transport); /* abandons what is flying */
    free_tasks(comm, &comm->flying, shared);
    for (int peer = 0; comm->outbox != NULL && peer < size; peer++) {
        if (comm->outbox[peer].open != NULL)
            task_append(&comm->outbox[peer].small, comm->outbox[peer].open);
        free_tasks(comm, &comm->outbox[peer].small, shared);
        free_tasks(comm, &comm->outbox[peer].payload, shared);
    }
    free_tasks(comm, &comm->pool, shared);
    free_tasks(comm, &comm->receives, shared);
    free_tasks(comm, &comm->spare, shared);
    for (int side = 0; comm->link != NULL && side < SIDES; side++)
        free_tasks(comm, &comm->link->side[side].waiting, shared);
    device_link_close(comm->link);
    while (comm->small_spares > 0)
        free(comm->small_spare[--comm->small_spares]);
    while (comm->landing_spares > 0 && !shared)
        free(comm->landing_spare[--comm->landing_spares]);
    free(comm->small_spare);
    free(comm->landing_spare);
    while (comm->plains != NULL)
        plain_free(comm, comm->plains->memory);
    early_free(&comm->early);
    for (size_t k = 0; k < EARLY_LISTS; k++)
        early_free(&comm->world.early[k]);
    free(comm->outbox);
    free(comm->world.ranks);
    pthread_cond_destroy(&comm->work);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

int comm_rank(const struct comm *comm)
{
    return comm->transport->rank;
}

int comm_size(const struct comm *comm)
{
    return comm->transport->size;
}

size_t comm_segment(const struct comm *comm)
{
    return comm->segment;
}

unsigned comm_window(const struct comm *comm)
{
    return comm->window;
}

const char *comm_transport(const struct comm *comm)
{
    return comm->transport->name;
}

void comm_describe(const struct comm *comm, struct text *text)
{
    comm->transport->ops->describe(comm->transport, text);
    text_addf(text, ", segment %zu B, window %u", comm->segment, comm->window);
    if (comm->link != NULL)
        device_link_describe(comm->link, text);
}

struct team *comm_world(struct comm *comm)
{
    return &comm->world;
}
