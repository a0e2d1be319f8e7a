/* executor_internal.h - what executor.c (vectors in host memory, messages) and executor_device.c (vectors in a device's)
 * share. Private to them.
 */
#ifndef CHORALE_COMM_EXECUTOR_INTERNAL_H
#define CHORALE_COMM_EXECUTOR_INTERNAL_H

#include "comm/coder.h"
#include "comm/device.h"
#include "comm/internal.h"

/* What an offer says besides its header. */
struct offer {
    struct node_place place;
    uint64_t bytes;
};

/* Reductions that are decided, and complete as far as progression knows, but not yet computed: dst = first (+) term (+)
 * ... in this order. */
struct chain {
    bool open;
    struct span dst;
    const unsigned char *first;
    size_t terms, tasks;
    struct device_term term[DEVICE_TERMS];
    struct task *task[DEVICE_TERMS]; /* whose data these are */
};

static inline unsigned char *place(const struct collective *c, const struct span *span)
{
    unsigned char *base = span->place == PLACE_SCRATCH ? c->scratch : c->output;
    return base + span->offset * c->size;
}

static inline const unsigned char *place_read(const struct collective *c, const struct span *span)
{
    return span->place == PLACE_INPUT ? c->input + span->offset * c->size : place(c, span);
}

/* What a segment may take on the wire: both ends know it. */
static inline size_t most_bytes(const struct collective *c, size_t count)
{
    return c->coder != NULL ? coder_bound(c->coder, count) : count * c->size;
}

/* Calls within the library: the compiler may take them in. */
#pragma GCC visibility push(hidden)

/* --- executor.c --- */
void table_add(struct collective *c, struct task *task);
/* Takes the task out; NULL: there is none. */
struct task *table_take(struct collective *c, bool sending, int peer, uint16_t lane, uint64_t sequence);
bool is_eager(const struct collective *c, int peer, size_t bytes);
enum status send_small(struct collective *c, int peer, enum wire_class class, const struct action *action,
                       const void *payload, size_t bytes) MUST_CHECK;
enum status tell_read(struct collective *c, const struct task *task) MUST_CHECK;
/* The data of a reduction are here, or on their way in a queue. */
void reducible(struct collective *c, struct task *task);
bool is_due(const struct collective *c, const struct task *task, size_t bytes);
enum status wrong_length(const struct collective *c, const struct task *task, size_t bytes);
enum status new_task(struct collective *c, enum task_kind kind, const struct action *action,
                     struct task **task) MUST_CHECK;
enum status start_expecting(struct collective *c, struct task *task) MUST_CHECK; /* its data may be here already */

/* --- executor_device.c: what is done instead for vectors on a device --- */
enum status device_compute(struct collective *c, struct chain *chain) MUST_CHECK; /* and gives its tasks back */
enum status device_local(struct collective *c, const struct action *action) MUST_CHECK;
enum status device_start_send(struct collective *c, const struct action *action) MUST_CHECK;
enum status device_start_post(struct collective *c, const struct action *action) MUST_CHECK;
enum status device_granted(struct collective *c, struct task *task) MUST_CHECK;
enum status device_deliver(struct collective *c, struct task *task, const void *payload, size_t bytes) MUST_CHECK;
/* `in_place`: it is a device's memory. */
enum status device_take_offer(struct collective *c, struct task *task, const void *data, bool in_place) MUST_CHECK;
/* What is offered can't be imported, as status_message() says: its sender is asked for a copy in pinned memory, from which
 * on it sends such copies. That goes on in device_refused() at the sender's. */
enum status device_refuse_offer(struct collective *c, struct task *task) MUST_CHECK;
enum status device_refused(struct collective *c, struct task *task) MUST_CHECK;   /* out of the list of offers */
enum status device_land_lent(struct collective *c, struct task *task) MUST_CHECK; /* out of the list of what is lent */
void device_offer_over(struct collective *c, struct task *task);
enum status device_received(struct collective *c, struct task *task) MUST_CHECK; /* a granted receive is done */
void device_sent(struct collective *c, struct task *task);                       /* a granted send             */
bool device_is_behind(const struct collective *c); /* so much waits for its queues that nothing more may be started */
/* The schedule is done: STATUS_AGAIN while the queues are not. */
enum status device_close(struct collective *c) MUST_CHECK;

#pragma GCC visibility pop

#endif
