/* device_link.c - queues and marks, staging and slots of a comm (device_link.h). Its vectors are in device_memory.c. */
#include "comm/device_link.h"

#include <stdlib.h>

#include "base/memory.h"
#include "comm/node.h"

#define FIRST_SLAB 8 /* buffers; each further slab of a shelf has twice as many */

/* Buffers that were made together. */
struct device_slab {
    void *memory;
    enum shelf shelf;
    bool of_node, registered; /* memory of the node, and whether the device knows it */
    struct device_slab *next;
    struct device_buffer buffer[];
};

/* ---- marks ---- */

/* Not yet recorded. An event stays with its queue: what stands for several moments of one queue can't be mistaken. */
static enum status mark_make(struct device_link *link, enum side side, struct device_mark **out)
{
    void *memory = NULL;
    struct device_mark *mark = link->spare[side];
    if (mark != NULL) {
        link->spare[side] = mark->next;
        *mark = (struct device_mark){.event = mark->event, .side = side, .users = 1};
        *out = mark;
        return STATUS_OK;
    }
    TRY(memory_zeroed(&memory, 1, sizeof(struct device_mark)));
    mark = memory;
    *mark = (struct device_mark){.side = side, .users = 1};
    const enum status status = link->device->ops->event_create(link->device, &mark->event);
    if (status < 0)
        free(mark);
    else
        *out = mark;
    return status;
}

struct device_mark *device_mark_share(struct device_mark *mark)
{
    if (mark != NULL)
        mark->users++;
    return mark;
}

void device_mark_give(struct device_link *link, struct device_mark *mark)
{
    if (mark == NULL || --mark->users > 0)
        return;
    mark->next = link->spare[mark->side];
    link->spare[mark->side] = mark;
}

enum status device_mark_take(struct device_link *link, enum side side, struct device_mark **out)
{
    struct device_side *s = &link->side[side];
    struct device_mark *mark = NULL;
    if (s->latest != NULL && s->latest->number == s->number) {
        *out = device_mark_share(s->latest);
        return STATUS_OK;
    }
    TRY(mark_make(link, side, &mark));
    mark->number = s->number;
    const enum status status = link->device->ops->record(s->queue, mark->event);
    if (status < 0) {
        device_mark_give(link, mark);
        return status;
    }
    device_mark_give(link, s->latest);
    s->latest = device_mark_share(mark);
    *out = mark;
    return STATUS_OK;
}

enum status device_mark_compute(struct device_link *link, struct device_mark **out)
{
    const struct device_ops *ops = link->device->ops;
    struct device_mark *mark = NULL;
    TRY(mark_make(link, SIDES, &mark));
    const enum status status = ops->record(ops->compute(link->device), mark->event);
    if (status < 0)
        device_mark_give(link, mark);
    else
        *out = mark;
    return status;
}

enum status device_mark_query(struct device_link *link, struct device_mark *mark)
{
    if (mark->happened)
        return STATUS_OK;
    const enum status status = link->device->ops->query(mark->event);
    mark->happened = status == STATUS_OK;
    return status;
}

enum status device_after(struct device_link *link, enum side side, struct device_mark *mark)
{
    struct device_side *s = &link->side[side];
    if (mark == NULL || mark->side == side || mark->happened || s->after[mark->side] >= mark->number)
        return STATUS_OK;
    TRY(link->device->ops->order(s->queue, mark->event));
    s->after[mark->side] = mark->number;
    s->number++;
    return STATUS_OK;
}

enum status device_after_all(struct device_link *link, enum side side, enum side other)
{
    struct device_mark *mark = NULL;
    if (link->side[side].after[other] >= link->side[other].number)
        return STATUS_OK;
    TRY(device_mark_take(link, other, &mark));
    const enum status status = device_after(link, side, mark);
    device_mark_give(link, mark);
    return status;
}

struct device_queue *device_queue_of(struct device_link *link, enum side side)
{
    link->side[side].number++;
    return link->side[side].queue;
}

enum status device_wait_for(struct device_link *link, enum side side, struct task *task)
{
    TRY(device_mark_take(link, side, &task->mark));
    task_append(&link->side[side].waiting, task);
    link->waiting++;
    return STATUS_OK;
}

/* ---- buffers ---- */

static enum status slab_memory(struct device_link *link, struct device_slab *slab, size_t bytes)
{
    const struct device_ops *ops = link->device->ops;
    struct comm *comm = link->comm;
    if (slab->shelf == SHELF_SLOT)
        return device_memory_alloc(link, bytes, true, &slab->memory);
    if (slab->shelf == SHELF_SMALL || comm->node == NULL)
        return ops->host_alloc(link->device, bytes, &slab->memory);
    const enum status status = node_alloc_staging(comm->node, bytes, &slab->memory);
    if (status != STATUS_OK)
        return status < 0 ? status : fail(STATUS_NO_MEMORY, "comm: no more memory that the node shares, for staging");
    slab->of_node = true;
    slab->registered = ops->host_register(link->device, slab->memory, bytes) == STATUS_OK;
    return STATUS_OK; /* where it can't be registered, copies are slower */
}

static void shelf_append(struct device_shelf *shelf, struct device_buffer *buffer)
{
    buffer->next = NULL;
    if (shelf->last == NULL)
        shelf->first = buffer;
    else
        shelf->last->next = buffer;
    shelf->last = buffer;
}

static enum status slab_make(struct device_link *link, enum shelf which, struct device_buffer **first)
{
    struct device_shelf *shelf = &link->shelf[which];
    const size_t each = (shelf->bytes + 255) / 256 * 256, buffers = shelf->slab;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct device_slab) + buffers * sizeof(struct device_buffer)));
    struct device_slab *slab = memory;
    slab->shelf = which;
    const size_t pages = (buffers * each + 4095) / 4096 * 4096;
    const enum status status = slab_memory(link, slab, pages);
    if (status < 0) {
        free(slab);
        return fail_context(status, "comm: %zu buffers of %zu bytes for a device", buffers, each);
    }
    slab->next = link->slabs;
    link->slabs = slab;
    shelf->slab *= 2;
    for (size_t i = 0; i < buffers; i++) {
        slab->buffer[i] =
            (struct device_buffer){.memory = (unsigned char *)slab->memory + i * each, .shelf = which, .mark = NULL};
        if (i > 0)
            shelf_append(shelf, &slab->buffer[i]);
    }
    *first = &slab->buffer[0];
    return STATUS_OK;
}

enum status device_buffer_take(struct device_link *link, enum shelf which, struct device_buffer **out)
{
    struct device_shelf *shelf = &link->shelf[which];
    if (shelf->first == NULL)
        return slab_make(link, which, out);
    *out = shelf->first;
    shelf->first = (*out)->next;
    if (shelf->first == NULL)
        shelf->last = NULL;
    return STATUS_OK;
}

void device_buffer_give(struct device_link *link, struct device_buffer *buffer, struct device_mark *mark)
{
    device_mark_give(link, buffer->mark);
    buffer->mark = mark;
    shelf_append(&link->shelf[buffer->shelf], buffer);
}

void device_task_release(struct device_link *link, struct task *task)
{
    if (task->staging != NULL)
        device_buffer_give(link, task->staging, NULL);
    if (task->slot != NULL)
        device_buffer_give(link, task->slot, task->mark);
    else
        device_mark_give(link, task->mark);
    task->staging = task->slot = NULL;
    task->mark = NULL;
}

/* ---- life ---- */

static enum status rooms_make(struct device_link *link)
{
    for (int side = 0; side < SIDES; side++)
        TRY(link->device->ops->alloc(link->device, link->comm->segment, &link->room[side]));
    return STATUS_OK;
}

enum status device_link_open(struct comm *comm, struct device *device)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct device_link)));
    struct device_link *link = memory;
    comm->link = link; /* closed with it */
    link->comm = comm;
    link->device = device;
    for (int shelf = 0; shelf < SHELVES; shelf++)
        link->shelf[shelf] = (struct device_shelf){.bytes = shelf == SHELF_SMALL ? comm->small_bytes : comm->segment,
                                                   .slab = FIRST_SLAB};
    TRY(memory_zeroed(&memory, 2 * (size_t)comm->transport->size, sizeof *link->staged));
    link->staged = memory;
    link->refuses = link->staged + comm->transport->size;
    for (int side = 0; side < SIDES; side++)
        TRY(device->ops->queue_create(device, &link->side[side].queue));
    TRY(rooms_make(link));
    return device_share(link);
}

void device_link_describe(const struct device_link *link, struct text *text)
{
    text_add(text, ", device memory ");
    text_add(text, link->shares               ? "read in place by neighbours"
                   : link->comm->node != NULL ? "through pinned memory read by neighbours"
                                              : "through pinned memory");
    text_add(text, " (");
    link->device->ops->describe(link->device, text);
    text_add(text, ")");
}

void device_link_drain(struct device_link *link)
{
    struct device_mark *mark = NULL;
    for (int side = 0; side < SIDES; side++) {
        if (link->side[side].queue == NULL || device_mark_take(link, (enum side)side, &mark) < 0)
            continue;
        (void)!link->device->ops->wait(mark->event); /* who asks has no other way to go on */
        device_mark_give(link, mark);
    }
}

/* The device does not know it any longer; it goes with the node. */
static void staging_unregister(struct device_link *link)
{
    for (struct device_slab *slab = link->slabs; slab != NULL; slab = slab->next)
        if (slab->registered)
            link->device->ops->host_unregister(link->device, slab->memory);
}

void device_link_release(struct device_link *link)
{
    if (link == NULL)
        return;
    device_link_drain(link);
    staging_unregister(link);
    device_unshare(link);
}

static void slab_free(struct device_link *link, struct device_slab *slab)
{
    if (slab->shelf != SHELF_SLOT && !slab->of_node)
        link->device->ops->host_free(link->device, slab->memory);
    free(slab); /* slots are among the vectors */
}

static void mark_destroy(struct device_link *link, struct device_mark *mark)
{
    link->device->ops->event_destroy(mark->event);
    free(mark);
}

static void sides_close(struct device_link *link)
{
    device_mark_give(link, link->placed);
    for (int side = 0; side < SIDES; side++) {
        device_mark_give(link, link->side[side].latest);
        link->device->ops->queue_destroy(link->side[side].queue);
        link->device->ops->free(link->device, link->room[side]);
    }
    for (int side = 0; side <= SIDES; side++)
        while (link->spare[side] != NULL) {
            struct device_mark *mark = link->spare[side];
            link->spare[side] = mark->next;
            mark_destroy(link, mark);
        }
}

void device_link_close(struct device_link *link)
{
    if (link == NULL)
        return;
    for (int shelf = 0; shelf < SHELVES; shelf++)
        for (struct device_buffer *b = link->shelf[shelf].first; b != NULL; b = b->next)
            device_mark_give(link, b->mark);
    while (link->slabs != NULL) {
        struct device_slab *slab = link->slabs;
        link->slabs = slab->next;
        slab_free(link, slab);
    }
    sides_close(link);
    device_memory_close(link);
    free(link->staged);
    free(link);
}
