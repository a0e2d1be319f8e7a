/* executor_device.c - what executor.c does for vectors in host memory, for vectors in a device's.
 *
 * Same schedule, same messages, same bytes; only nothing is done at once. What stays on the device is complete for
 * progression as soon as it is put into a queue: whatever uses it is put later, and ordered after it. What leaves the
 * device is complete when its queue has got there, which progress looks at. Which queue runs after which:
 *
 *   WORK   after the copies IN that brought its terms, and after those that went straight to a vector;
 *   OUT    after all WORK so far, and after copies IN that went straight to a vector;
 *   IN     to a vector: after all WORK so far; to a slot: after the reduction that last read it.
 *
 * Nothing has to run after OUT: a send is complete when its copy is done, and progression lets nobody overwrite what is
 * being sent. For the same reason an offer goes out when the data are there, and its receiver says that it has read them
 * when its queue has done so.
 *
 * On a network every segment passes through pinned memory: out when its receiver has granted it, which bounds how much of
 * that is in use. In a node neighbours read the device's memory in place, or, where they can't, the sender's pinned memory,
 * which is then granted as on a network. A single neighbour that can't, against what was probed, grants what was offered: it
 * is then offered again in pinned memory, and so is all that follows.
 *
 * A collective begins when the compute queue has got to where it stood at the start. That is looked at, not ordered: the
 * queues are shared with older collectives, which must not wait for vectors that are not yet computed.
 */
#include <string.h>

#include "comm/device_link.h"
#include "comm/executor_internal.h"
#include "comm/kernels.h"

/* Tasks that may wait for queues while more is started: enough for copies both ways, network and reductions to overlap, and
 * a bound on the pinned memory of segments that have come faster than the device takes them. */
#define WAITING_MOST 32

/* How a task goes on when its mark has happened. */
enum device_step {
    STEP_GIVE,  /* what it holds is free                                     */
    STEP_EAGER, /* the segment is in pinned memory: a small message          */
    STEP_SEND,  /* likewise: granted, to be sent or offered                  */
    STEP_OFFER, /* it can be read in place                                   */
    STEP_READ,  /* has been read: tell its sender                            */
    STEP_CLOSE  /* all that the collective has put into queues               */
};

static struct device_link *link_of(const struct collective *c)
{
    return c->team->comm->link;
}

static const struct device_ops *ops_of(const struct collective *c)
{
    return link_of(c)->device->ops;
}

static struct device_queue *queue(const struct collective *c, enum side side)
{
    return device_queue_of(link_of(c), side);
}

static enum status copy(const struct collective *c, enum side side, void *to, const void *from, size_t bytes)
{
    return ops_of(c)->copy(queue(c, side), to, from, bytes);
}

/* ---- waiting for queues ---- */

bool device_is_behind(const struct collective *c)
{
    return link_of(c)->waiting >= WAITING_MOST;
}

/* The task waits; the collective lasts at least as long. */
static enum status go_on_after(struct collective *c, enum side side, struct task *task, enum device_step step)
{
    task->step = (uint8_t)step;
    TRY(device_wait_for(link_of(c), side, task));
    c->outgoing++;
    return STATUS_OK;
}

/* A task that does nothing but wait, with the staging of another one, or to say that what that one stands for was read. */
static enum status after_it(struct collective *c, enum side side, struct task *of, enum device_step step)
{
    struct task *task = NULL;
    TRY(task_take(c->team->comm, TASK_EXPECT, &task));
    task->collective = c;
    task->action = of->action;
    task->peer = of->peer;
    task->staging = of->staging;
    of->staging = NULL;
    const enum status status = go_on_after(c, side, task, step);
    if (status < 0)
        task_give(c->team->comm, task);
    return status;
}

/* ---- on the device ---- */

static enum status compute_after(struct collective *c, const struct chain *chain)
{
    struct device_link *link = link_of(c);
    TRY(device_after(link, SIDE_WORK, link->placed));
    for (size_t k = 0; k < chain->tasks; k++)
        TRY(device_after(link, SIDE_WORK, chain->task[k]->mark));
    return STATUS_OK;
}

static enum status compute(struct collective *c, const struct chain *chain)
{
    void *out = place(c, &chain->dst);
    TRY(compute_after(c, chain));
    if (c->mixes)
        return ops_of(c)->mix(queue(c, SIDE_WORK), c->dtype, out, chain->first, chain->term, chain->terms,
                              chain->dst.count);
    return ops_of(c)->reduce(queue(c, SIDE_WORK), c->dtype, c->op, out, chain->first, chain->term, chain->terms,
                             chain->dst.count);
}

/* A slot may be filled again after this; a neighbour's memory must be given back when it has been read. */
static enum status computed(struct collective *c, struct task *task)
{
    struct device_link *link = link_of(c);
    device_mark_give(link, task->mark);
    task->mark = NULL;
    enum status status = STATUS_OK;
    if (task->lent)
        status = go_on_after(c, SIDE_WORK, task, STEP_READ);
    else
        status = device_mark_take(link, SIDE_WORK, &task->mark);
    if (status < 0 || !task->lent)
        task_give(c->team->comm, task);
    return status;
}

enum status device_compute(struct collective *c, struct chain *chain)
{
    enum status status = compute(c, chain);
    for (size_t k = 0; k < chain->tasks; k++) {
        if (status >= 0)
            status = computed(c, chain->task[k]);
        else
            task_give(c->team->comm, chain->task[k]);
    }
    chain->open = false;
    return status;
}

/* As a receiver will have it. */
static enum status round_source(struct collective *c, const struct action *action)
{
    const enum dtype half = coder_half(c->coder);
    void *room = link_of(c)->room[SIDE_WORK];
    TRY(ops_of(c)->convert(queue(c, SIDE_WORK), half, room, DTYPE_F32, place_read(c, &action->operand),
                           action->dst.count));
    return ops_of(c)->convert(queue(c, SIDE_WORK), DTYPE_F32, place(c, &action->dst), half, room, action->dst.count);
}

enum status device_local(struct collective *c, const struct action *action)
{
    struct device_link *link = link_of(c);
    void *to = place(c, &action->dst);
    TRY(device_after(link, SIDE_WORK, link->placed));
    if ((action->op.flags & OP_ROUND_SOURCE) && c->coder != NULL)
        TRY(round_source(c, action));
    else if (action->op.kind == OP_COPY)
        TRY(copy(c, SIDE_WORK, to, place_read(c, &action->src), action->dst.count * c->size));
    else if (!c->mixes)
        return fail(STATUS_FORMAT, "%s: SCALE in a schedule that does not mix", c->name);
    else
        TRY(ops_of(c)->scale(queue(c, SIDE_WORK), c->dtype, to, place_read(c, &action->operand), action->op.weight,
                             action->dst.count));
    slices_complete(c->running, action);
    return STATUS_OK;
}

/* ---- out ---- */

static enum status out_after(struct collective *c)
{
    TRY(device_after_all(link_of(c), SIDE_OUT, SIDE_WORK));
    return device_after(link_of(c), SIDE_OUT, link_of(c)->placed);
}

/* What is sent, encoded if it must be, to `to` on the device. */
static enum status put_encoded(struct collective *c, const struct task *task, void *to)
{
    return ops_of(c)->convert(queue(c, SIDE_OUT), coder_half(c->coder), to, DTYPE_F32, task->data,
                              task->action.src.count);
}

/* The segment goes to pinned memory. */
static enum status leave(struct collective *c, struct task *task, enum shelf shelf, enum device_step step)
{
    struct device_link *link = link_of(c);
    const void *from = task->data;
    TRY(device_buffer_take(link, shelf, &task->staging));
    TRY(out_after(c));
    if (c->coder != NULL) {
        from = link->room[SIDE_OUT];
        TRY(put_encoded(c, task, link->room[SIDE_OUT]));
    }
    TRY(copy(c, SIDE_OUT, task->staging->memory, from, task->bytes));
    return go_on_after(c, SIDE_OUT, task, step);
}

static bool is_shown(const struct collective *c, const struct task *task, struct node_place *where)
{
    return node_locate(c->team->comm->node, task->data, task->bytes, where) && where->arena != 0;
}

/* The segment can be read where it lies, or in a slot. */
static enum status prepare_offer(struct collective *c, struct task *task)
{
    struct device_link *link = link_of(c);
    struct node_place where;
    TRY(out_after(c));
    if (c->coder == NULL && is_shown(c, task, &where))
        return go_on_after(c, SIDE_OUT, task, STEP_OFFER);
    TRY(device_buffer_take(link, SHELF_SLOT, &task->slot)); /* read last by WORK, if at all */
    if (c->coder != NULL)
        TRY(put_encoded(c, task, task->slot->memory));
    else
        TRY(copy(c, SIDE_OUT, task->slot->memory, task->data, task->bytes));
    task->data = task->slot->memory;
    return go_on_after(c, SIDE_OUT, task, STEP_OFFER);
}

static enum status offer(struct collective *c, struct task *task)
{
    struct offer offer = {.bytes = task->bytes};
    if (!is_shown(c, task, &offer.place))
        return fail(STATUS_INTERNAL, "node memory: a buffer that neighbours can't read");
    task->kind = TASK_OFFER;
    task_append(&c->offers, task);
    table_add(c, task);
    return send_small(c, task->peer, WIRE_OFFER, &task->action, &offer, sizeof offer);
}

enum status device_granted(struct collective *c, struct task *task)
{
    const enum status status = leave(c, task, SHELF_STAGING, STEP_SEND);
    if (status < 0)
        task_give(c->team->comm, task);
    return status;
}

static enum status await_grant(struct collective *c, struct task *task)
{
    struct task *early = table_take(c, true, task->peer, task->action.op.lane, task->action.sequence);
    if (early == NULL) {
        table_add(c, task);
        return STATUS_OK;
    }
    task_give(c->team->comm, early);
    return device_granted(c, task);
}

enum status device_start_send(struct collective *c, const struct action *action)
{
    struct comm *comm = c->team->comm;
    struct task *task = NULL;
    TRY(new_task(c, TASK_SEND, action, &task));
    task->data = place_read(c, &action->src);
    task->bytes = most_bytes(c, action->src.count); /* halves have one length */
    c->traffic.messages_sent += action->first;
    c->traffic.bytes_sent += task->bytes;
    const bool eager = is_eager(c, task->peer, task->bytes);
    if (!eager && !(is_near(comm, task->peer) && comm->link->shares))
        return await_grant(c, task);
    const enum status status = eager                            ? leave(c, task, SHELF_SMALL, STEP_EAGER)
                               : comm->link->staged[task->peer] ? leave(c, task, SHELF_STAGING, STEP_SEND)
                                                                : prepare_offer(c, task);
    if (status < 0)
        task_give(comm, task);
    return status;
}

enum status device_refused(struct collective *c, struct task *task)
{
    struct device_link *link = link_of(c);
    enum status status = STATUS_OK;
    if (task->staging != NULL)
        status = fail(STATUS_FORMAT, "%s: rank %d grants what lies in pinned memory", c->name, task->peer);
    c->outgoing--;
    if (task->slot != NULL)
        device_buffer_give(link, task->slot, NULL);
    task->slot = NULL;
    task->kind = TASK_SEND;
    task->data = place_read(c, &task->action.src);
    link->staged[task->peer] = true;
    if (status >= 0)
        status = leave(c, task, SHELF_STAGING, STEP_SEND);
    if (status < 0)
        task_give(c->team->comm, task);
    return status;
}

void device_offer_over(struct collective *c, struct task *task)
{
    if (task->staging == NULL) /* else it was complete when it had left the device */
        slices_complete(c->running, &task->action);
    c->outgoing--;
    task_give(c->team->comm, task);
}

void device_sent(struct collective *c, struct task *task)
{
    c->outgoing--;
    task_give(c->team->comm, task);
}

/* ---- in ---- */

static enum status place_after(struct collective *c, const struct task *task)
{
    if (task->slot != NULL)
        return device_after(link_of(c), SIDE_IN, task->slot->mark);
    return device_after_all(link_of(c), SIDE_IN, SIDE_WORK);
}

/* Where its data come from. */
enum source {
    SOURCE_STAGING, /* the task's own pinned memory, given back then */
    SOURCE_PINNED,  /* its sender's                                  */
    SOURCE_DEVICE   /* its sender's memory on the device             */
};

static enum status put_in(struct collective *c, const struct task *task, void *to, const void *from, enum source source)
{
    struct device_link *link = link_of(c);
    if (c->coder == NULL)
        return copy(c, SIDE_IN, to, from, task->bytes);
    if (source != SOURCE_DEVICE) {
        TRY(copy(c, SIDE_IN, link->room[SIDE_IN], from, task->bytes));
        from = link->room[SIDE_IN];
    }
    return ops_of(c)->convert(queue(c, SIDE_IN), DTYPE_F32, to, coder_half(c->coder), from, task->action.dst.count);
}

/* A receive into a vector is complete when it is put. */
static enum status received_to_place(struct collective *c, struct task *task)
{
    struct device_link *link = link_of(c);
    device_mark_give(link, link->placed);
    link->placed = NULL;
    TRY(device_mark_take(link, SIDE_IN, &link->placed));
    slices_complete(c->running, &task->action);
    task_give(c->team->comm, task);
    return STATUS_OK;
}

/* The data of a segment can be read: they go to their place, or for a reduction to a slot. */
static enum status come_in(struct collective *c, struct task *task, const void *from, enum source source)
{
    struct device_link *link = link_of(c);
    const bool reduces = task->action.op.kind == OP_RECV_REDUCE;
    if (reduces)
        TRY(device_buffer_take(link, SHELF_SLOT, &task->slot));
    void *to = reduces ? task->slot->memory : place(c, &task->action.dst);
    TRY(place_after(c, task));
    TRY(put_in(c, task, to, from, source));
    TRY(after_it(c, SIDE_IN, task, source == SOURCE_STAGING ? STEP_GIVE : STEP_READ));
    if (!reduces)
        return received_to_place(c, task);
    TRY(device_mark_take(link, SIDE_IN, &task->mark));
    task->data = to;
    task->bytes = task->action.dst.count * c->size;
    reducible(c, task);
    return STATUS_OK;
}

enum status device_deliver(struct collective *c, struct task *task, const void *payload, size_t bytes)
{
    TRY(device_buffer_take(link_of(c), SHELF_SMALL, &task->staging));
    memcpy(task->staging->memory, payload, bytes);
    return come_in(c, task, task->staging->memory, SOURCE_STAGING);
}

enum status device_received(struct collective *c, struct task *task)
{
    const enum status status = come_in(c, task, task->staging->memory, SOURCE_STAGING);
    if (status < 0)
        task_give(c->team->comm, task);
    return status;
}

/* A reduction reads it where it lies when its turn comes. */
enum status device_take_offer(struct collective *c, struct task *task, const void *data, bool in_place)
{
    if (task->action.op.kind != OP_RECV_REDUCE || c->coder != NULL || !in_place)
        return come_in(c, task, data, in_place ? SOURCE_DEVICE : SOURCE_PINNED);
    task->data = data;
    task->lent = true;
    task_append(&c->lent, task);
    reducible(c, task);
    return STATUS_OK;
}

static void note_refusal(const struct comm *comm, int peer)
{
    struct text line = {NULL};
    if (comm->note == NULL)
        return;
    text_addf(&line,
              "rank %d: device memory of rank %d can't be read in place any more (%s): it sends copies through pinned "
              "memory",
              comm_rank(comm), peer, status_message());
    comm->note(comm->note_context,
               text_check(&line) >= 0 ? text_string(&line) : "device memory can't be read in place");
    text_release(&line);
}

enum status device_refuse_offer(struct collective *c, struct task *task)
{
    struct device_link *link = link_of(c);
    if (!link->refuses[task->peer])
        note_refusal(c->team->comm, task->peer);
    link->refuses[task->peer] = true;
    TRY(executor_grant(task));
    table_add(c, task);
    return STATUS_OK;
}

enum status device_land_lent(struct collective *c, struct task *task)
{
    struct device_link *link = link_of(c);
    TRY(device_buffer_take(link, SHELF_SLOT, &task->slot));
    TRY(place_after(c, task));
    TRY(copy(c, SIDE_IN, task->slot->memory, task->data, task->bytes));
    TRY(after_it(c, SIDE_IN, task, STEP_READ));
    task->data = task->slot->memory;
    return device_mark_take(link, SIDE_IN, &task->mark);
}

enum status device_start_post(struct collective *c, const struct action *action)
{
    struct comm *comm = c->team->comm;
    struct task *task = NULL;
    const size_t bytes = most_bytes(c, action->dst.count);
    const int peer = c->team->ranks[action->op.peer];
    const bool eager = is_eager(c, peer, bytes), near = is_near(comm, peer);
    TRY(new_task(c, eager || near ? TASK_EXPECT : TASK_RECEIVE, action, &task));
    task->bytes = bytes;
    if (eager || (near && comm->link->shares))
        return start_expecting(c, task);
    enum status status = STATUS_OK;
    if (near)
        status = executor_grant(task);
    else
        status = device_buffer_take(comm->link, SHELF_STAGING, &task->staging);
    if (status < 0) {
        task_give(comm, task);
        return status;
    }
    if (near)
        return start_expecting(c, task);
    task->data = task->staging->memory;
    return task_submit(comm, task);
}

/* ---- going on ---- */

static enum status send_staged(struct collective *c, struct task *task)
{
    slices_complete(c->running, &task->action); /* its memory may be overwritten */
    task->data = task->staging->memory;
    return is_near(c->team->comm, task->peer) ? offer(c, task) : task_submit(c->team->comm, task);
}

static enum status send_eager(struct collective *c, struct task *task)
{
    const enum status status = send_small(c, task->peer, WIRE_EAGER, &task->action, task->staging->memory, task->bytes);
    slices_complete(c->running, &task->action);
    return status;
}

/* Its mark has happened. */
static enum status resume(struct task *task)
{
    struct collective *c = task->collective;
    enum status status = STATUS_OK;
    if (task->step == STEP_SEND)
        return send_staged(c, task);
    if (task->step == STEP_OFFER)
        return offer(c, task);
    c->outgoing--;
    if (task->step == STEP_EAGER)
        status = send_eager(c, task);
    if (task->step == STEP_READ)
        status = tell_read(c, task);
    task_give(c->team->comm, task);
    return status;
}

static enum status resume_side(struct device_link *link, enum side side, bool *moved)
{
    struct task_list *waiting = &link->side[side].waiting;
    while (waiting->first != NULL) {
        struct task *task = waiting->first;
        const enum status status = device_mark_query(link, task->mark);
        if (status != STATUS_OK)
            return status < 0 ? status : STATUS_OK;
        task_remove(waiting, task);
        link->waiting--;
        device_mark_give(link, task->mark);
        task->mark = NULL;
        *moved = true;
        TRY(resume(task));
    }
    return STATUS_OK;
}

/* ---- beginning and end ---- */

/* Its vectors are there. */
static enum status open_gate(struct collective *c)
{
    device_mark_give(link_of(c), c->gate);
    c->gate = NULL;
    link_of(c)->gated--;
    if (!collective_scales(c))
        return STATUS_OK;
    return ops_of(c)->scale(queue(c, SIDE_WORK), c->dtype, c->output, c->unscaled, mean_scale(c->shape->workers),
                            c->count);
}

static enum status try_gate(struct collective *c, bool *moved)
{
    const enum status status = device_mark_query(link_of(c), c->gate);
    if (status != STATUS_OK)
        return status < 0 ? status : STATUS_OK;
    *moved = true;
    return open_gate(c);
}

static enum status try_gates(struct comm *comm, bool *moved)
{
    for (struct team *team = comm->teams; team != NULL; team = team->next)
        for (struct collective *c = team->first; c != NULL; c = c->next)
            if (c->gate != NULL)
                TRY(try_gate(c, moved));
    return STATUS_OK;
}

enum status executor_device_start(struct collective *c)
{
    bool moved = false;
    c->closing = false;
    TRY(device_mark_compute(link_of(c), &c->gate));
    link_of(c)->gated++;
    return try_gate(c, &moved);
}

/* Copies in and out have each had a task that waited for them. */
enum status device_close(struct collective *c)
{
    struct task *task = NULL;
    if (c->closing)
        return STATUS_OK;
    TRY(task_take(c->team->comm, TASK_EXPECT, &task));
    task->collective = c;
    const enum status status = go_on_after(c, SIDE_WORK, task, STEP_CLOSE);
    if (status < 0) {
        task_give(c->team->comm, task);
        return status;
    }
    c->closing = true;
    return STATUS_AGAIN;
}

enum status executor_device_progress(struct comm *comm, bool *moved)
{
    for (int side = 0; side < SIDES; side++)
        TRY(resume_side(comm->link, (enum side)side, moved));
    if (comm->link->gated > 0)
        TRY(try_gates(comm, moved));
    if (!*moved)
        return STATUS_OK;
    TRY(executor_advance_all(comm, moved));
    if (comm->node != NULL)
        node_kick(comm->node);
    return comm_flush(comm);
}
