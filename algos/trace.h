/* trace.h - the schedule of all workers as events and what each of them must follow: what other programs can replay.
 *
 * Made by running progressions of all workers against each other, with rendezvous for every message, so that nothing is
 * interpreted here: an event is what a progression starts, and it follows what conflicts with it (rule 2) and has been
 * started before. Whole ops, no segments; in place, so that the copies of out-of-place runs are not in it.
 *
 *   TRACE_SEND    a message leaves
 *   TRACE_RECV    a message is received: into its place, or for a TRACE_REDUCE
 *   TRACE_REDUCE  dst = dst (+) incoming (op.kind OP_RECV_REDUCE: follows its TRACE_RECV), or a local op
 *
 * The events of a worker stand in an order in which all of them can be started, one after the other, if messages are
 * received whenever both ends have been started: whoever replays it in that order with sends that do not block, waiting
 * for what an event follows before it, never hangs.
 */
#ifndef CHORALE_ALGOS_TRACE_H
#define CHORALE_ALGOS_TRACE_H

#include "algos/schedule.h"

#define TRACE_MOST_EVENTS ((size_t)8 << 20) /* of all workers */

enum trace_kind { TRACE_SEND, TRACE_RECV, TRACE_REDUCE };

struct trace_event {
    enum trace_kind kind;
    struct op op;      /* of a joined message the first */
    size_t elements;   /* of a joined message all       */
    uint32_t sequence; /* messages: number on its (peer, lane, direction), from 0 */
    size_t follows;    /* trace.follow[follows .. follows+count-1]: earlier events of the same worker */
    size_t count;
};

struct trace_worker {
    struct trace_event *event;
    size_t events, event_capacity;
    uint32_t *follow;
    size_t followed, follow_capacity;
};

struct trace {
    const struct shape *shape;
    struct trace_worker *worker; /* [shape->workers] */
};

/* For `count` elements. `joined`: joined messages (OP_MORE) are one event, as shape_traffic() counts them (of more than 64
 * ops: several); else each op is one, and the receives of a (peer, lane) are complete in order. STATUS_REFUSED when there are more than
 * TRACE_MOST_EVENTS. Release with trace_release(); on failure there is nothing to release. */
enum status trace_make(const struct shape *shape, size_t count, bool joined, struct trace *trace) MUST_CHECK;
void trace_release(struct trace *trace);

#endif
