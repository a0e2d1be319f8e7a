/* event_queue.c - a 4-ary heap: half the levels of a binary one, and the children of a place share cache lines. */
#include "sim/event_queue.h"

#include <stdlib.h>

#include "base/memory.h"

#define ARITY 4
#define PUSH_BITS 40 /* a million million pushes, and rounds up to 2^24 */
#define ROUND_MAX ((UINT32_C(1) << (64 - PUSH_BITS)) - 1)

static bool before(const struct event *a, const struct event *b)
{
    return a->time_s < b->time_s || (a->time_s == b->time_s && a->order < b->order);
}

enum status event_queue_push(struct event_queue *queue, double time_s, uint32_t round, uint32_t kind, uint32_t record)
{
    if (queue->count == queue->capacity) {
        void *heap = queue->heap;
        TRY(memory_grow(&heap, &queue->capacity, queue->count + 1, sizeof(struct event)));
        queue->heap = heap;
    }
    const uint64_t major = round < ROUND_MAX ? round : ROUND_MAX;
    const struct event event = {
        .time_s = time_s, .order = major << PUSH_BITS | queue->pushed++, .kind = kind, .record = record};
    size_t place = queue->count++;
    while (place > 0) {
        const size_t parent = (place - 1) / ARITY;
        if (!before(&event, &queue->heap[parent]))
            break;
        queue->heap[place] = queue->heap[parent];
        place = parent;
    }
    queue->heap[place] = event;
    return STATUS_OK;
}

/* The smallest of the children of `place`, 0 when it has none. */
static size_t smallest_child(const struct event_queue *queue, size_t place)
{
    const size_t first = ARITY * place + 1;
    if (first >= queue->count)
        return 0;
    const size_t end = first + ARITY < queue->count ? first + ARITY : queue->count;
    size_t smallest = first;
    for (size_t child = first + 1; child < end; child++)
        if (before(&queue->heap[child], &queue->heap[smallest]))
            smallest = child;
    return smallest;
}

bool event_queue_pop(struct event_queue *queue, struct event *event)
{
    if (queue->count == 0)
        return false;
    *event = queue->heap[0];
    const struct event last = queue->heap[--queue->count];
    size_t place = 0;
    for (;;) {
        const size_t child = smallest_child(queue, place);
        if (child == 0 || !before(&queue->heap[child], &last))
            break;
        queue->heap[place] = queue->heap[child];
        place = child;
    }
    queue->heap[place] = last;
    return true;
}

void event_queue_release(struct event_queue *queue)
{
    free(queue->heap);
    *queue = (struct event_queue){0};
}
