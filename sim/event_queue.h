/* event_queue.h - what happens next in simulated time: a 4-ary heap.
 *
 * Events come out by time. Of events at one time those of an earlier round come first (a port serves the message that
 * is needed sooner), and of these the one that was pushed first: the order is a function of what was pushed, nothing
 * else.
 */
#ifndef CHORALE_SIM_EVENT_QUEUE_H
#define CHORALE_SIM_EVENT_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct event {
    double time_s;
    uint64_t order;  /* round above the number of the push */
    uint32_t kind;   /* the caller's                       */
    uint32_t record; /* the caller's                       */
};

/* Empty when zeroed; release with event_queue_release(). */
struct event_queue {
    struct event *heap;
    size_t count, capacity;
    uint64_t pushed;
};

enum status event_queue_push(struct event_queue *queue, double time_s, uint32_t round, uint32_t kind,
                             uint32_t record) MUST_CHECK;
/* Take the next event; false when there is none. */
bool event_queue_pop(struct event_queue *queue, struct event *event);
void event_queue_release(struct event_queue *queue);

#endif
