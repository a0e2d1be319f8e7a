/* executor.c - runs a schedule: turns what progression says may start into transfers and kernels.
 *
 * On a network small segments go out at once (eager) and wait, where they come too early, in the call's table. Larger
 * ones wait for the grant that their receiver sends when the receive is posted: no provider then ever holds payload that
 * nobody awaits, and data land where they belong.
 *
 * In a node small segments are copied through the rings. Larger ones are offered: the receiver reads them where they lie
 * when their turn comes (a reduction straight from the sender's memory), and says so. A reduction that must wait for
 * something else copies first what it is to read, if its sender might wait in turn: a schedule proved for receives that
 * take in what was sent must not hang on ones that don't.
 *
 * With a wire format (coder.h) a segment leaves encoded, from a buffer of its own, and is decoded when it arrives, to its
 * place or to a buffer: nothing is read in the sender's memory but what was encoded for it.
 *
 * Consecutive reductions into one range are done in one pass over it, in their order. All is done in whoever drives
 * progress. Vectors on a device: the same messages, but the work goes into its queues (executor_device.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/device_link.h"
#include "comm/executor_internal.h"
#include "comm/kernels.h"

#define CHAIN_BYTES                                                                                                    \
    ((size_t)8192) /* of the range are taken through the whole chain at a time: they stay in the cache */

/* ---- the call's table ---- */

static size_t table_place(const struct collective *c, bool sending, int peer, uint16_t lane, uint64_t sequence)
{
    const uint64_t key = (uint64_t)peer * 40503 + (uint64_t)lane * 9973 + sequence * 2 + sending;
    return (size_t)(key & (c->places - 1));
}

static bool is_sending(const struct task *task)
{
    return task->kind == TASK_SEND || task->kind == TASK_OFFER ||
           (task->kind == TASK_EARLY && task->class == WIRE_GRANT);
}

static void table_insert(struct collective *c, struct task *task)
{
    struct task **place =
        &c->table[table_place(c, is_sending(task), task->peer, task->action.op.lane, task->action.sequence)];
    task->link = *place;
    *place = task;
    c->tabled++;
}

/* More places when there are many tasks; without memory it stays as it is. */
static void table_grow(struct collective *c)
{
    void *memory = NULL;
    if (c->tabled < 2 * c->places || memory_zeroed(&memory, c->places * 4, sizeof(struct task *)) < 0)
        return;
    struct task **old = c->table;
    const size_t places = c->places;
    c->table = memory;
    c->places *= 4;
    c->tabled = 0;
    for (size_t i = 0; i < places; i++) {
        while (old[i] != NULL) {
            struct task *task = old[i];
            old[i] = task->link;
            table_insert(c, task);
        }
    }
    free(old);
}

void table_add(struct collective *c, struct task *task)
{
    table_grow(c);
    table_insert(c, task);
}

/* Takes the task out; NULL: there is none. */
struct task *table_take(struct collective *c, bool sending, int peer, uint16_t lane, uint64_t sequence)
{
    struct task **at = &c->table[table_place(c, sending, peer, lane, sequence)];
    for (; *at != NULL; at = &(*at)->link) {
        struct task *task = *at;
        if (task->peer != peer || task->action.op.lane != lane || task->action.sequence != sequence ||
            is_sending(task) != sending)
            continue;
        *at = task->link;
        c->tabled--;
        return task;
    }
    return NULL;
}

void executor_clear(struct collective *c)
{
    struct comm *comm = c->team->comm;
    for (size_t i = 0; c->table != NULL && i < c->places; i++) {
        while (c->table[i] != NULL) {
            struct task *task = c->table[i];
            c->table[i] = task->link;
            if (task->lent)
                task_remove(&c->lent, task);
            if (task->loose)
                task_remove(&comm->loose, task);
            if (task->kind == TASK_OFFER)
                task_remove(&c->offers, task);
            task_give(comm, task);
        }
    }
    c->tabled = 0;
}

/* ---- data ---- */

static bool overlap(const unsigned char *a, size_t a_bytes, const unsigned char *b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static void loose_remove(struct comm *comm, struct task *task)
{
    task->loose = false;
    task_remove(&comm->loose, task);
}

/* ---- small messages going out ---- */

/* Small enough to be copied on its way. With segments that are all so small, only grants bound what is under way. */
bool is_eager(const struct collective *c, int peer, size_t bytes)
{
    const struct comm *comm = c->team->comm;
    const size_t limit = eager_most(comm, peer);
    return bytes <= limit && comm->segment > limit;
}

enum status send_small(struct collective *c, int peer, enum wire_class class, const struct action *action,
                       const void *payload, size_t bytes)
{
    struct wire_header header = {.class = (uint8_t) class,
                                 .team = c->team->id,
                                 .lane = action->op.lane,
                                 .epoch = c->epoch,
                                 .sequence = action->sequence,
                                 .hash = c->hash};
    return comm_send_small(c->team->comm, c, peer, &header, payload, bytes);
}

enum status executor_greet(struct collective *c)
{
    const struct action none = {0};
    c->hellos = 0;
    for (int r = 0; r < c->shape->workers; r++) {
        c->hellos += c->awaits[r];
        if (!c->greets[r])
            continue;
        c->traffic.control_messages++;
        TRY(send_small(c, c->team->ranks[r], WIRE_HELLO, &none, NULL, 0));
    }
    return STATUS_OK;
}

enum status executor_grant(const struct task *task)
{
    if (task->collective == NULL)
        return STATUS_OK;
    task->collective->traffic.control_messages++;
    return send_small(task->collective, task->peer, WIRE_GRANT, &task->action, NULL, 0);
}

/* Its sender may go on with the memory that we have read. */
enum status tell_read(struct collective *c, const struct task *task)
{
    c->traffic.control_messages++;
    return send_small(c, task->peer, WIRE_READ, &task->action, NULL, 0);
}

/* ---- reductions ---- */

static double divisor_of(const struct collective *c, const struct op *op)
{
    if (c->op != REDUCE_AVG || !(op->flags & OP_FINAL))
        return 1;
    return collective_scales(c) ? mean_divisor(c->shape->workers) : c->shape->workers;
}

static void chain_compute(const struct collective *c, const struct chain *chain, size_t begin, size_t count)
{
    unsigned char *out = place(c, &chain->dst) + begin * c->size;
    const unsigned char *left = chain->first + begin * c->size;
    for (size_t k = 0; k < chain->terms; k++) {
        const unsigned char *right = (const unsigned char *)chain->term[k].data + begin * c->size;
        if (c->mixes)
            kernel_axpy(c->dtype, out, left, right, chain->term[k].weight, count);
        else
            kernel_reduce(c->dtype, c->op, out, left, right, count, chain->term[k].divisor);
        left = out;
    }
}

/* Compute what was decided, then let the senders know. */
static enum status chain_close(struct collective *c, struct chain *chain)
{
    if (!chain->open)
        return STATUS_OK;
    if (c->on_device)
        return device_compute(c, chain);
    const size_t count = chain->dst.count, step = chain->terms > 1 ? CHAIN_BYTES / c->size : count;
    if (count * c->size > CHAIN_BYTES) /* who waits for our words needs not wait for our sums */
        TRY(comm_flush(c->team->comm));
    for (size_t begin = 0; begin < count; begin += step)
        chain_compute(c, chain, begin, count - begin < step ? count - begin : step);
    chain->open = false;
    enum status status = STATUS_OK;
    for (size_t k = 0; k < chain->tasks; k++) {
        if (chain->task[k]->lent && status >= 0)
            status = tell_read(c, chain->task[k]);
        task_give(c->team->comm, chain->task[k]);
    }
    return status;
}

/* After a failure nothing is computed. */
static void chain_drop(struct collective *c, struct chain *chain)
{
    for (size_t k = 0; chain->open && k < chain->tasks; k++)
        task_give(c->team->comm, chain->task[k]);
    chain->open = false;
}

static void chain_open(struct chain *chain, const struct span *dst, const unsigned char *first)
{
    chain->open = true;
    chain->dst = *dst;
    chain->first = first;
    chain->terms = chain->tasks = 0;
}

/* One more term, in the open chain if it is of the same range, else in a new one. The operand of a range that was never
 * written is the input: such a reduction is the first. */
static enum status chain_add(struct collective *c, struct chain *chain, const struct action *action,
                             const unsigned char *data, struct task *task)
{
    const size_t bytes = action->dst.count * c->size;
    const bool goes_on = chain->open && chain->terms < DEVICE_TERMS && action->operand.place == action->dst.place &&
                         chain->dst.place == action->dst.place && chain->dst.offset == action->dst.offset &&
                         chain->dst.count == action->dst.count &&
                         (task != NULL || !overlap(data, bytes, place(c, &chain->dst), bytes));
    if (!goes_on) {
        TRY(chain_close(c, chain));
        chain_open(chain, &action->dst, place_read(c, &action->operand));
    }
    chain->term[chain->terms].data = data;
    chain->term[chain->terms].weight = action->op.weight;
    chain->term[chain->terms++].divisor = divisor_of(c, &action->op);
    if (task != NULL)
        chain->task[chain->tasks++] = task;
    slices_complete(c->running, action);
    return STATUS_OK;
}

static enum status add_reduce(struct collective *c, struct chain *chain, const struct action *action)
{
    struct comm *comm = c->team->comm;
    const int peer = c->team->ranks[action->op.peer];
    struct task *task = table_take(c, false, peer, action->op.lane, action->sequence);
    if (task == NULL)
        return fail(STATUS_INTERNAL, "%s: a reduction without its data", c->name);
    if (task->lent)
        task_remove(&c->lent, task);
    if (task->loose)
        loose_remove(comm, task);
    const enum status status = chain_add(c, chain, action, task->data, task);
    if (status < 0)
        task_give(comm, task);
    return status;
}

static enum status do_local(struct collective *c, struct chain *chain, const struct action *action)
{
    if (action->op.kind == OP_REDUCE)
        return chain_add(c, chain, action, place_read(c, &action->src), NULL);
    TRY(chain_close(c, chain));
    if (c->on_device)
        return device_local(c, action);
    if ((action->op.flags & OP_ROUND_SOURCE) && c->coder != NULL)
        TRY(coder_round(c->coder, (float *)(void *)place(c, &action->dst),
                        (const float *)(const void *)place_read(c, &action->operand), action->dst.offset,
                        action->dst.count));
    else if (action->op.kind == OP_COPY)
        memmove(place(c, &action->dst), place_read(c, &action->src), action->dst.count * c->size);
    else if (!c->mixes)
        return fail(STATUS_FORMAT, "%s: SCALE in a schedule that does not mix", c->name);
    else
        kernel_scale(c->dtype, place(c, &action->dst), place_read(c, &action->operand), action->op.weight,
                     action->dst.count);
    slices_complete(c->running, action);
    return STATUS_OK;
}

/* ---- receiving ---- */

/* The data of a reduction are here, in a buffer of ours or for the moment elsewhere. */
void reducible(struct collective *c, struct task *task)
{
    slices_complete(c->running, &task->action);
    table_add(c, task);
}

/* Data in a buffer of our own. */
static enum status land(struct comm *comm, struct task *task)
{
    TRY(landing_take(comm, &task->buffer));
    memcpy(task->buffer, task->data, task->bytes);
    task->data = task->buffer;
    return STATUS_OK;
}

bool is_due(const struct collective *c, const struct task *task, size_t bytes)
{
    return c->coder != NULL && !c->on_device ? bytes <= task->bytes : bytes == task->bytes;
}

enum status wrong_length(const struct collective *c, const struct task *task, size_t bytes)
{
    return fail(STATUS_FORMAT, "%s: a segment of %zu bytes from rank %d where %zu were due", c->name, bytes, task->peer,
                task->bytes);
}

/* An encoded segment is here, or (`offered`) can be read: it is decoded to its place, or for a reduction to the task's
 * buffer. */
static enum status decode(struct collective *c, struct task *task, const void *bytes, size_t length, bool offered)
{
    struct comm *comm = c->team->comm;
    const size_t count = task->action.dst.count;
    const bool reduces = task->action.op.kind == OP_RECV_REDUCE, moves = reduces && task->buffer != NULL;
    void *to = place(c, &task->action.dst);
    if (reduces && !moves)
        TRY(landing_take(comm, &task->buffer));
    if (reduces)
        to = moves ? coder_room(c->coder) : task->buffer; /* its buffer holds the encoded bytes */
    TRY(coder_decode(c->coder, bytes, length, to, count));
    if (offered)
        TRY(tell_read(c, task));
    if (!reduces) {
        slices_complete(c->running, &task->action);
        task_give(comm, task);
        return STATUS_OK;
    }
    task->data = task->buffer;
    task->bytes = count * c->size;
    if (moves)
        memcpy(task->buffer, to, task->bytes);
    reducible(c, task);
    return STATUS_OK;
}

/* An eager segment is here, and expected. A reduction takes it from the message if its turn comes at once. */
static enum status deliver(struct collective *c, struct task *task, const void *payload, size_t bytes)
{
    struct comm *comm = c->team->comm;
    if (!is_due(c, task, bytes))
        return wrong_length(c, task, bytes);
    if (c->on_device)
        return device_deliver(c, task, payload, bytes);
    if (c->coder != NULL)
        return decode(c, task, payload, bytes, false);
    if (task->action.op.kind == OP_RECV) {
        memcpy(place(c, &task->action.dst), payload, bytes);
        slices_complete(c->running, &task->action);
        task_give(comm, task);
        return STATUS_OK;
    }
    task->data = payload;
    task->loose = true;
    task_append(&comm->loose, task);
    reducible(c, task);
    return STATUS_OK;
}

/* What is no arena's is copied: a receive to its place, a reduction to a buffer. */
static enum status read_offer(struct collective *c, struct task *task, const struct offer *offer)
{
    struct comm *comm = c->team->comm;
    void *to = place(c, &task->action.dst);
    if (c->coder != NULL) {
        to = coder_room(c->coder);
        TRY(node_read(comm->node, task->peer, &offer->place, to, (size_t)offer->bytes));
        return decode(c, task, to, (size_t)offer->bytes, true);
    }
    if (task->action.op.kind != OP_RECV) {
        TRY(landing_take(comm, &task->buffer));
        task->data = to = task->buffer;
    }
    TRY(node_read(comm->node, task->peer, &offer->place, to, task->bytes));
    TRY(tell_read(c, task));
    if (task->action.op.kind != OP_RECV) {
        reducible(c, task);
        return STATUS_OK;
    }
    slices_complete(c->running, &task->action);
    task_give(comm, task);
    return STATUS_OK;
}

/* An offered segment is expected. */
static enum status take_offer(struct collective *c, struct task *task, const void *payload, size_t bytes)
{
    struct comm *comm = c->team->comm;
    struct offer offer;
    const void *data = NULL;
    if (bytes != sizeof offer)
        return fail(STATUS_FORMAT, "%s: an offer of %zu bytes from rank %d", c->name, bytes, task->peer);
    memcpy(&offer, payload, sizeof offer);
    if (!is_due(c, task, (size_t)offer.bytes))
        return wrong_length(c, task, (size_t)offer.bytes);
    if (offer.place.arena == 0 && !c->on_device)
        return read_offer(c, task, &offer);
    const enum status mapped = node_map(comm->node, task->peer, &offer.place, (size_t)offer.bytes, &data);
    if (mapped == STATUS_UNAVAILABLE && c->on_device)
        return device_refuse_offer(c, task);
    TRY(mapped);
    if (c->on_device)
        return device_take_offer(c, task, data, node_is_device(comm->node, task->peer, &offer.place));
    if (c->coder != NULL)
        return decode(c, task, data, (size_t)offer.bytes, true);
    task->data = data;
    if (task->action.op.kind != OP_RECV) {
        task->lent = true;
        task_append(&c->lent, task);
        reducible(c, task);
        return STATUS_OK;
    }
    memcpy(place(c, &task->action.dst), data, task->bytes);
    TRY(tell_read(c, task));
    slices_complete(c->running, &task->action);
    task_give(comm, task);
    return STATUS_OK;
}

static enum status received(struct collective *c, struct task *task, uint8_t class, const void *payload, size_t bytes)
{
    const enum status status = class == WIRE_EAGER && task->kind == TASK_EXPECT ? deliver(c, task, payload, bytes)
                               : class == WIRE_OFFER && task->kind == TASK_EXPECT && is_near(c->team->comm, task->peer)
                                   ? take_offer(c, task, payload, bytes)
                                   : fail(STATUS_FORMAT, "%s: rank %d sends what was not due", c->name, task->peer);
    if (status < 0)
        task_give(c->team->comm, task);
    return status;
}

enum status executor_settle(struct comm *comm)
{
    while (comm->loose.first != NULL) {
        struct task *task = comm->loose.first;
        loose_remove(comm, task);
        TRY(land(comm, task));
    }
    return STATUS_OK;
}

static enum status land_lent(struct collective *c, struct task *task)
{
    task_remove(&c->lent, task);
    task->lent = false;
    if (c->on_device)
        return device_land_lent(c, task);
    TRY(land(c->team->comm, task));
    return tell_read(c, task);
}

enum status executor_land(struct comm *comm)
{
    for (struct team *team = comm->teams; team != NULL; team = team->next)
        for (struct collective *c = team->first; c != NULL; c = c->next)
            while (c->lent.first != NULL && !(c->on_device && comm->link->waiting > 0)) /* else it has work still */
                TRY(land_lent(c, c->lent.first));
    return STATUS_OK;
}

/* A reduction into what a neighbour still has to read may be the very thing that neighbour waits for, in the same
 * manner. */
static enum status land_crossed(struct collective *c)
{
    for (struct task *task = c->lent.first; task != NULL;) {
        struct task *next = task->next;
        const unsigned char *dst = place(c, &task->action.dst);
        for (const struct task *sent = c->offers.first; sent != NULL; sent = sent->next) {
            if (!overlap(dst, task->bytes, sent->data, sent->bytes))
                continue;
            TRY(land_lent(c, task));
            break;
        }
        task = next;
    }
    return STATUS_OK;
}

/* ---- arrivals ---- */

/* It came before its op: it waits in the table. */
static enum status keep_early(struct collective *c, const struct wire_header *header, const void *payload)
{
    struct comm *comm = c->team->comm;
    struct task *task = NULL;
    if (header->bytes > comm->small_bytes)
        return fail(STATUS_FORMAT, "%s: a message of %u bytes from rank %d", c->name, (unsigned)header->bytes,
                    (int)header->source);
    TRY(task_take(comm, TASK_EARLY, &task));
    if (header->bytes > 0 && small_take(comm, &task->buffer) < 0) {
        task_give(comm, task);
        return STATUS_NO_MEMORY;
    }
    if (header->bytes > 0)
        memcpy(task->buffer, payload, header->bytes);
    task->class = header->class;
    task->bytes = header->bytes;
    task->peer = header->source;
    task->action.op.lane = header->lane;
    task->action.sequence = header->sequence;
    table_add(c, task);
    return STATUS_OK;
}

/* The receiver has read what was offered. */
static enum status offer_over(struct collective *c, struct task *task)
{
    if (task->kind != TASK_OFFER)
        return fail(STATUS_FORMAT, "%s: rank %d has read what was not offered", c->name, task->peer);
    task_remove(&c->offers, task);
    if (c->on_device) {
        device_offer_over(c, task);
        return STATUS_OK;
    }
    slices_complete(c->running, &task->action);
    task_give(c->team->comm, task);
    return STATUS_OK;
}

/* What is sent: its segment, encoded. */
static enum status encode(struct collective *c, struct task *task)
{
    const struct span *src = &task->action.src;
    TRY(landing_take(c->team->comm, &task->buffer));
    task->bytes = coder_encode(c->coder, task->data, src->offset, src->count, task->buffer);
    task->data = task->buffer;
    c->traffic.bytes_sent += task->bytes;
    return STATUS_OK;
}

static enum status granted(struct collective *c, struct task *task)
{
    if (task->kind == TASK_OFFER && c->on_device) {
        task_remove(&c->offers, task);
        return device_refused(c, task);
    }
    if (task->kind != TASK_SEND)
        return fail(STATUS_FORMAT, "%s: rank %d grants what was granted", c->name, task->peer);
    if (c->on_device)
        return device_granted(c, task);
    if (c->coder != NULL && encode(c, task) < 0) {
        task_give(c->team->comm, task);
        return STATUS_NO_MEMORY;
    }
    return task_submit(c->team->comm, task);
}

enum status executor_dispatch(struct collective *c, const struct wire_header *header, const void *payload)
{
    struct comm *comm = c->team->comm;
    const bool sending = header->class == WIRE_GRANT || header->class == WIRE_READ;
    if (header->hash != c->hash)
        return collective_dispute(comm, c, header->source);
    if (header->class == WIRE_HELLO) {
        c->hellos--;
        return STATUS_OK;
    }
    struct task *task = table_take(c, sending, header->source, header->lane, header->sequence);
    if (task == NULL)
        return keep_early(c, header, payload);
    if (header->class == WIRE_GRANT)
        return granted(c, task);
    return sending ? offer_over(c, task) : received(c, task, header->class, payload, header->bytes);
}

enum status executor_arrived(struct comm *comm, const struct wire_header *header, const void *payload)
{
    struct team *team = team_find(comm, header->team);
    struct collective *c = team != NULL ? collective_find(team, header->epoch) : NULL;
    if (header->class == WIRE_CALL)
        return collective_told(comm, c, header, payload);
    if (team == NULL)
        return early_add(&comm->early, header, payload);
    if (c != NULL)
        return executor_dispatch(c, header, payload);
    if ((int32_t)(header->epoch - team->next_epoch) >= 0)
        return early_add(&team->early[header->epoch % EARLY_LISTS], header, payload);
    return fail(STATUS_MISMATCH,
                "rank %d still sends in call %u of its team, which is complete here: the workers called "
                "different collectives, or the schedule is wrong: chorale verify tells",
                (int)header->source, (unsigned)header->epoch);
}

bool executor_is_ahead(struct comm *comm, const struct wire_header *header)
{
    const struct team *team = team_find(comm, header->team);
    return team != NULL && (int32_t)(header->epoch - team->next_epoch) >= 0;
}

/* ---- starting ---- */

enum status new_task(struct collective *c, enum task_kind kind, const struct action *action, struct task **task)
{
    TRY(task_take(c->team->comm, kind, task));
    (*task)->collective = c;
    (*task)->action = *action;
    (*task)->peer = c->team->ranks[action->op.peer];
    (*task)->tag = wire_payload_tag(c->team->id, c->epoch, action->op.lane, action->sequence);
    return STATUS_OK;
}

/* Where neighbours can read it: where it lies, else in a copy. */
static enum status show(struct comm *comm, struct task *task, struct offer *offer)
{
    *offer = (struct offer){.bytes = task->bytes};
    if (node_locate(comm->node, task->data, task->bytes, &offer->place))
        return STATUS_OK;
    TRY(land(comm, task));
    if (!node_locate(comm->node, task->data, task->bytes, &offer->place))
        return fail(STATUS_INTERNAL, "node memory: a buffer that neighbours can't read");
    return STATUS_OK;
}

static enum status start_offer(struct collective *c, struct task *task)
{
    struct comm *comm = c->team->comm;
    struct offer offer;
    enum status status = c->coder != NULL ? encode(c, task) : STATUS_OK;
    if (status >= 0)
        status = show(comm, task, &offer);
    if (status < 0) {
        task_give(comm, task);
        return status;
    }
    task_append(&c->offers, task);
    table_add(c, task);
    return send_small(c, task->peer, WIRE_OFFER, &task->action, &offer, sizeof offer);
}

static enum status start_send(struct collective *c, const struct action *action)
{
    struct comm *comm = c->team->comm;
    struct task *task = NULL;
    const void *data = place_read(c, &action->src);
    const int peer = c->team->ranks[action->op.peer];
    size_t bytes = most_bytes(c, action->src.count);
    c->traffic.messages_sent += action->first;
    if (is_eager(c, peer, bytes)) {
        if (c->coder != NULL) {
            bytes = coder_encode(c->coder, data, action->src.offset, action->src.count, coder_room(c->coder));
            data = coder_room(c->coder);
        }
        c->traffic.bytes_sent += bytes;
        TRY(send_small(c, peer, WIRE_EAGER, action, data, bytes));
        slices_complete(c->running, action); /* the payload was copied */
        return STATUS_OK;
    }
    if (c->coder == NULL)
        c->traffic.bytes_sent += bytes;
    const bool offers = is_near(comm, peer);
    TRY(new_task(c, offers ? TASK_OFFER : TASK_SEND, action, &task));
    task->data = data;
    task->bytes = bytes;
    if (offers)
        return start_offer(c, task);
    struct task *early = table_take(c, true, task->peer, action->op.lane, action->sequence);
    if (early == NULL) {
        table_add(c, task);
        return STATUS_OK;
    }
    task_give(comm, early);
    return granted(c, task);
}

/* Its data may be here already. */
enum status start_expecting(struct collective *c, struct task *task)
{
    struct comm *comm = c->team->comm;
    struct task *early = table_take(c, false, task->peer, task->action.op.lane, task->action.sequence);
    if (early == NULL) {
        table_add(c, task);
        return STATUS_OK;
    }
    enum status status = received(c, task, early->class, early->buffer, early->bytes);
    if (status >= 0 && comm->loose.last == task) { /* the early message goes */
        loose_remove(comm, task);
        status = land(comm, task);
    }
    task_give(comm, early);
    return status;
}

static enum status start_post(struct collective *c, const struct action *action)
{
    struct comm *comm = c->team->comm;
    struct task *task = NULL;
    const size_t bytes = most_bytes(c, action->dst.count);
    const int peer = c->team->ranks[action->op.peer];
    const bool expect = is_near(comm, peer) || is_eager(c, peer, bytes);
    TRY(new_task(c, expect ? TASK_EXPECT : TASK_RECEIVE, action, &task));
    task->bytes = bytes;
    if (expect)
        return start_expecting(c, task);
    if (action->op.kind == OP_RECV && c->coder == NULL)
        task->data = place(c, &action->dst);
    else if (landing_take(comm, &task->buffer) == STATUS_OK)
        task->data = task->buffer;
    if (task->data == NULL) {
        task_give(comm, task);
        return STATUS_NO_MEMORY;
    }
    return task_submit(comm, task);
}

static enum status start_action(struct collective *c, struct chain *chain, const struct action *action)
{
    if (action->kind == ACTION_REDUCE)
        return add_reduce(c, chain, action);
    if (action->kind == ACTION_LOCAL)
        return do_local(c, chain, action);
    TRY(chain_close(c, chain));
    if (c->on_device)
        return action->kind == ACTION_SEND ? device_start_send(c, action) : device_start_post(c, action);
    return action->kind == ACTION_SEND ? start_send(c, action) : start_post(c, action);
}

/* A device that is behind gets no more to do; what it has, it does by itself. */
static enum status next_action(struct collective *c, struct action *action)
{
    if (c->on_device && device_is_behind(c))
        return STATUS_AGAIN;
    return slices_next(c->running, action);
}

static enum status start_all(struct collective *c, bool *moved)
{
    struct chain chain; /* large: no more of it is set than is used */
    struct action action;
    chain.open = false;
    enum status status = next_action(c, &action);
    while (status == STATUS_OK) {
        *moved = true;
        status = start_action(c, &chain, &action);
        if (status >= 0)
            status = next_action(c, &action);
    }
    if (status >= 0)
        return chain_close(c, &chain);
    chain_drop(c, &chain);
    return status;
}

/* Nothing is left to be done; STATUS_AGAIN: something is. */
static enum status is_over(struct collective *c)
{
    if (!slices_finished(c->running) || c->hellos > 0 || c->outgoing > 0)
        return STATUS_AGAIN;
    return c->on_device ? device_close(c) : STATUS_OK;
}

enum status executor_advance(struct collective *c, bool *moved)
{
    if (c->gate != NULL)
        return STATUS_OK;
    enum status status = start_all(c, moved);
    if (status >= 0 && c->lent.first != NULL)
        status = land_crossed(c);
    if (status >= 0)
        status = is_over(c);
    if (status < 0)
        return fail_context(status, "%s", c->name);
    if (status == STATUS_AGAIN)
        return STATUS_OK;
    c->traffic.finished_ns = clock_ns();
    collective_unlink(c);
    *moved = true;
    return STATUS_OK;
}

enum status executor_advance_all(struct comm *comm, bool *moved)
{
    for (struct team *team = comm->teams; team != NULL; team = team->next) {
        for (struct collective *c = team->first; c != NULL;) {
            struct collective *next = c->next;
            TRY(executor_advance(c, moved));
            c = next;
        }
    }
    return STATUS_OK;
}

/* A granted transfer is done. */
enum status executor_task_done(struct comm *comm, struct task *task)
{
    struct collective *c = task->collective;
    if (c == NULL || c->running == NULL) {
        task_give(comm, task);
        return STATUS_OK;
    }
    if (task->kind == TASK_SEND ? task->transfer.bytes != task->bytes : !is_due(c, task, task->transfer.bytes)) {
        const enum status status = fail(STATUS_FORMAT, "%s: %zu bytes moved with rank %d where %zu were due", c->name,
                                        task->transfer.bytes, task->peer, task->bytes);
        task_give(comm, task);
        return status;
    }
    if (c->on_device && task->kind == TASK_RECEIVE)
        return device_received(c, task);
    if (c->on_device) {
        device_sent(c, task);
        return STATUS_OK;
    }
    if (task->kind == TASK_RECEIVE && c->coder != NULL) {
        const enum status status = decode(c, task, task->buffer, task->transfer.bytes, false);
        if (status < 0)
            task_give(comm, task);
        return status;
    }
    if (task->kind == TASK_RECEIVE && task->action.op.kind == OP_RECV_REDUCE) {
        reducible(c, task);
        return STATUS_OK;
    }
    slices_complete(c->running, &task->action);
    task_give(comm, task);
    return STATUS_OK;
}
