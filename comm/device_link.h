/* device_link.h - what a comm has of its device: three queues that are ordered by marks, buffers, and the vectors that
 * neighbours may read. Private to comm/; the lock is held.
 *
 * Copies to the device go into the queue IN, reductions and copies on it into WORK, copies from it into OUT, so that the
 * three run beside each other. What is put into a queue runs after all that stands there; against the other queues it is
 * ordered by marks: device_after() lets all that is put from then on into a queue run after a mark of another. Nothing here
 * waits, except device_link_drain().
 */
#ifndef CHORALE_COMM_DEVICE_LINK_H
#define CHORALE_COMM_DEVICE_LINK_H

#include "comm/device.h"
#include "comm/internal.h"

enum side { SIDE_IN, SIDE_WORK, SIDE_OUT, SIDES };

/* The end of what stood in a queue when it was made. */
struct device_mark {
    struct device_event *event;
    enum side side;
    uint64_t number; /* of what it stands after                */
    unsigned users;
    bool happened; /* known to have                          */
    struct device_mark *next;
};

struct device_side {
    struct device_queue *queue;
    uint64_t number;            /* of what was last put                                                     */
    uint64_t after[SIDES];      /* it runs after what has this number in the others                         */
    struct device_mark *latest; /* the last one made, or NULL                                               */
    struct task_list waiting;   /* for marks of this queue, in their order                                  */
};

/* Memory for one message or segment, on a shelf while nobody has it. */
enum shelf {
    SHELF_SMALL,   /* host, of a small message                                                               */
    SHELF_STAGING, /* host, of a segment; where neighbours don't read the device's memory they read this     */
    SHELF_SLOT,    /* device, of a segment                                                                   */
    SHELVES
};
struct device_buffer {
    void *memory;
    enum shelf shelf;
    struct device_mark *mark; /* whoever uses it next runs after this; NULL: nobody has to wait               */
    struct device_buffer *next;
};
struct device_shelf {
    struct device_buffer *first, *last; /* the longest unused is taken first                                     */
    size_t bytes, slab;                 /* of a buffer; how many are made next                                   */
};

struct device_slab;
struct device_memory;

struct device_link {
    struct comm *comm;
    struct device *device;
    struct device_side side[SIDES];
    struct device_mark *placed; /* IN: the last copy that went to a vector or scratch planes, not to a slot         */
    struct device_mark *spare[SIDES + 1]; /* of each queue, and of the compute queue                                */
    struct device_shelf shelf[SHELVES];
    struct device_slab *slabs;
    void *room[SIDES]; /* on the device, of a segment in half precision: each is used in its queue only */
    bool shares;       /* neighbours read the device's memory where it lies                             */
    bool *staged;      /* of each worker: but this one can't, as it has found out later: it gets copies  */
    bool *refuses;     /* of each worker: we can't import its memory, which is said once                 */
    int waiting;       /* tasks, for queues                                                     */
    int gated;         /* collectives whose vectors are still being computed                            */
    struct device_memory *vectors, *retired; /* of comm_device_alloc(); given back, but still imported elsewhere     */
};

/* With node memory and a job it is collective: all find out together whether neighbours can read each other's memory. */
enum status device_link_open(struct comm *comm, struct device *device) MUST_CHECK;
/* Whatever is in the queues is done when it returns. */
void device_link_drain(struct device_link *link);
/* Accepts NULL. Before the transport is closed: neighbours' memory is given back, then what they have of ours is awaited,
 * a moment. */
void device_link_release(struct device_link *link);
void device_link_close(struct device_link *link); /* accepts NULL; after the transport is closed */
void device_link_describe(const struct device_link *link, struct text *text);

/* --- queues --- */

/* The end of all that is in the queue by now. Give it back with device_mark_give(). */
enum status device_mark_take(struct device_link *link, enum side side, struct device_mark **mark) MUST_CHECK;
/* The same of the device's compute queue; not for device_after(). */
enum status device_mark_compute(struct device_link *link, struct device_mark **mark) MUST_CHECK;
struct device_mark *device_mark_share(struct device_mark *mark);           /* one more user; accepts NULL */
void device_mark_give(struct device_link *link, struct device_mark *mark); /* accepts NULL */
/* STATUS_AGAIN: it has not happened yet. */
enum status device_mark_query(struct device_link *link, struct device_mark *mark) MUST_CHECK;
/* What is put into `side` from now on runs after the mark (NULL: after nothing), or after all that is in `other` by now. */
enum status device_after(struct device_link *link, enum side side, struct device_mark *mark) MUST_CHECK;
enum status device_after_all(struct device_link *link, enum side side, enum side other) MUST_CHECK;
/* To be put something into: counts it. */
struct device_queue *device_queue_of(struct device_link *link, enum side side);
/* The task goes on when all that is in the queue by now is done. */
enum status device_wait_for(struct device_link *link, enum side side, struct task *task) MUST_CHECK;

/* --- buffers --- */

enum status device_buffer_take(struct device_link *link, enum shelf shelf, struct device_buffer **buffer) MUST_CHECK;
/* `mark`: of the last use, taken over; NULL: nobody uses it any more. */
void device_buffer_give(struct device_link *link, struct device_buffer *buffer, struct device_mark *mark);
void device_task_release(struct device_link *link, struct task *task); /* what it holds of all this */

/* --- vectors --- */

/* comm_device_alloc() and comm_device_free(). `buffers`: which neighbours must be able to read (node_show()). */
enum status device_memory_alloc(struct device_link *link, size_t bytes, bool buffers, void **memory) MUST_CHECK;
void device_memory_free(struct device_link *link, void *memory);
bool device_memory_owns(const struct device_link *link, const void *memory); /* an address within one of them */
void device_memory_close(struct device_link *link);                          /* frees all */
enum status device_share(struct device_link *link) MUST_CHECK; /* finds out what device_link.shares says */
void device_unshare(struct device_link *link);

#endif
