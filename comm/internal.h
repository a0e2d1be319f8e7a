/* internal.h - what comm.c (communicator, progress), team.c, collective.c (calls) and executor.c (their ops) share.
 * Private to comm/. */
#ifndef CHORALE_COMM_INTERNAL_H
#define CHORALE_COMM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/comm.h"
#include "comm/node.h"
#include "comm/slices.h"
#include "comm/transport.h"
#include "comm/wire.h"

enum task_kind {
    TASK_POOL,    /* a pre-posted buffer for a small message                                */
    TASK_SMALL,   /* a small message going out; `buffer` holds header and payload           */
    TASK_EARLY,   /* a small message that came before its op; `buffer` holds the payload    */
    TASK_EXPECT,  /* an eager or offered segment that a collective waits for                */
    TASK_RECEIVE, /* a granted receive, posted                                              */
    TASK_SEND,    /* a granted send: waiting for its grant, then going out                  */
    TASK_OFFER    /* a send that its receiver reads in place: waiting to hear that it has   */
};

/* One thing under way. The transfer comes first: providers keep their context in it. */
struct task {
    struct transfer transfer;
    enum task_kind kind;
    struct collective *collective; /* NULL: no collective's                         */
    struct action action;
    int peer; /* rank in the comm                              */
    uint64_t tag;
    const void *data; /* what the transport reads, or fills; what a reduction reads */
    size_t bytes;
    void *buffer;  /* owned: pool buffer, or landing slot           */
    uint8_t class; /* EARLY: of the message                         */
    bool flying;   /* handed to the transport and not yet reported  */
    bool loose;    /* `data` lies in a message that is about to go                        */
    bool lent;     /* `data` is the sender's own memory: to be told when it has been read */
    struct task *next, *previous;
    struct task *link; /* in its collective's table */

    /* vectors on a device (executor_device.c) */
    struct device_buffer *staging, *slot; /* owned: host memory on its way, device memory                     */
    struct device_mark *mark;             /* owned: what it waits for, or that after which its slot is filled */
    uint8_t step;                         /* enum device_step: how it goes on                                 */
};

struct task_list {
    struct task *first, *last;
};

void task_append(struct task_list *list, struct task *task);
void task_remove(struct task_list *list, struct task *task);

/* What waits for room in the transport. Nothing waits behind what it would be waited for by: sends to one peer not
 * behind those to another, grants and payload not behind receives, and small messages not behind payload: of that no more
 * is handed over than keeps a connection busy, since a grant that comes late stops the other direction. */
struct outbox {
    struct task_list small, payload;
    size_t flying;       /* bytes of payload handed to the transport and not yet reported */
    struct outbox *next; /* of those in which something waits                          */
    bool listed;
    struct task *open; /* small messages of one collective that will travel together */
    struct outbox *next_open;
};

/* A small message that came before its collective was started here. */
struct early {
    struct wire_header header;
    struct early *next;
    unsigned char payload[];
};

/* Memory of comm_alloc() that neighbours can't read. */
struct plain {
    void *memory;
    size_t bytes;
    struct plain *next;
};

#define EARLY_LISTS 64 /* by the number of the collective */

struct team {
    struct comm *comm;
    uint8_t id;
    int rank, size;
    int *ranks;                       /* of the comm                                             */
    uint32_t next_epoch;              /* of the next collective that starts here                 */
    struct early *early[EARLY_LISTS]; /* for collectives not yet started here, by epoch          */
    struct collective *first, *last;  /* under way, in starting order                 */
    struct team *next;
};

#define COMM_SCRATCH ((size_t)64 << 20) /* bytes of a call's scratch planes, usually */
#define TEAM_IDS 256                    /* 0 is the world's */
#define TEAM_ID_BYTES (TEAM_IDS / 8)

struct device_link;

struct comm {
    struct transport *transport;
    struct node *node; /* the transport's; NULL: none. Unless `mixed` the transport itself is then left alone      */
    bool mixed;        /* some of the other workers may be neighbours, others are not                                */
    struct job *job;
    struct device_link *link; /* to the device; NULL: none                                                         */
    void (*note)(void *context, const char *line);
    void *note_context;
    size_t segment;
    unsigned window;
    size_t ahead;              /* segments handed to the transport for one peer */
    int sends, receives_ahead; /* payload under way at most, and granted receives unless they are the oldest's */
    double deadline;
    size_t scratch; /* bytes that a call's scratch planes may take */

    pthread_mutex_t lock; /* everything below; not taken where there is no progress thread           */
    pthread_cond_t work;  /* the progress thread sleeps here                                         */
    pthread_t thread;
    bool has_thread, stop;
    bool sleeps;       /* the progress thread, on `work`                                          */
    atomic_int wanted; /* callers who want the lock: the progress thread lets them                */
    int waiters;       /* callers who drive progress themselves                                   */
    int active;        /* collectives under way                                                   */

    struct team world;
    struct team *teams;              /* all, world included                                        */
    struct early *early;             /* for teams that don't exist here yet                        */
    struct outbox *outbox;           /* by peer: sends that find no room                           */
    struct outbox *outboxes;         /* those that hold something                                  */
    struct outbox *open;             /* those with an open message                                 */
    struct task_list pool, receives; /* receives that find no room                                 */
    struct task_list flying;         /* handed to the transport                                    */
    int receiving, sending;          /* granted receives among them, and payload                   */
    struct task_list loose;          /* reductions whose data lie in the message just taken        */
    struct task_list spare;          /* reusable tasks                                             */
    void **small_spare;              /* reusable buffers of small messages                         */
    size_t small_spares, small_capacity;
    void **landing_spare; /* reusable landing slots of `segment` bytes                               */
    size_t landing_spares, landing_capacity;
    struct plain *plains; /* of comm_alloc() where there is no arena                    */
    size_t small_bytes;   /* size of a small buffer                                                  */
    size_t network_bytes; /* most of a small message on the network: alike on all workers            */

    bool moved;             /* something has happened since progressed_ns                          */
    unsigned quiet;         /* rounds of progress since                                            */
    uint64_t progressed_ns; /* when something last happened                                        */
    enum status status;     /* the first failure; then everything fails with it                        */
    char message[1024];
    uint64_t dispute_until; /* a mismatch was seen: its other side is awaited until then; 0 = none     */
    char dispute[512];

    size_t outgoing; /* small messages that are no collective's, not yet out */
    struct {
        bool waiting;
        uint64_t hash, value;
        int answers;
        unsigned char used[TEAM_ID_BYTES]; /* bit i: id i */
    } team_talk;                           /* team_create's exchange of ids */
};

struct collective {
    struct team *team;
    const struct shape *shape;
    char *name;
    size_t count, size;
    enum dtype dtype;
    enum reduce_op op;
    bool mixes;
    bool on_device;           /* where its vectors lie                                              */
    struct coder *coder;      /* of its wire format; NULL: elements travel as they are  */
    struct slices *slices[2]; /* [0] out of place, [1] in place; made when first needed           */
    struct slices *running;   /* NULL: not under way                                              */
    size_t slice;             /* elements                                                         */
    const unsigned char *input;
    unsigned char *output, *scratch;
    uint32_t epoch;
    uint64_t signature, hash; /* of what all workers must agree on: in all calls, and in this one  */
    struct task **table;      /* tasks and early messages by (direction, peer, lane, sequence)     */
    size_t places, tabled;
    struct task_list offers; /* sends that are being read by their receivers                       */
    struct task_list lent;   /* reductions that are to read a sender's memory                      */
    bool *greets, *awaits;   /* of each team rank: exchanges no element, so a hello goes out, or is awaited */
    size_t outgoing;         /* small messages not yet out: the call lasts until they are                    */
    int hellos;              /* awaited and not yet come                                                     */
    struct collective_traffic traffic;
    struct device_mark *gate;           /* on_device: its vectors are still being computed; NULL: they are there  */
    const unsigned char *unscaled;      /* on_device: what is still to be made smaller, see collective_scales()   */
    bool closing;                       /* on_device: only the queues have still something to do                  */
    struct collective *next, *previous; /* under way in the team                                          */
};

/* The peer shares memory with us: what goes there goes through the node, else through the transport. */
static inline bool is_near(const struct comm *comm, int peer)
{
    return comm->node != NULL && (!comm->mixed || node_has(comm->node, peer));
}

/* Some of the workers are reached by the transport. */
static inline bool uses_network(const struct comm *comm)
{
    return comm->node == NULL || comm->mixed;
}

#define NODE_EAGER 8192 /* bytes that are copied through the rings of a node; what is longer is read in place */

/* Payload of a small message to the peer, at most. */
static inline size_t eager_most(const struct comm *comm, int peer)
{
    return is_near(comm, peer) ? NODE_EAGER : comm->network_bytes - WIRE_HEADER_BYTES;
}

/* --- comm.c; the lock is held --- */
enum status comm_fail(struct comm *comm, enum status status); /* remembers this thread's message; returns status */
enum status comm_failed(const struct comm *comm) MUST_CHECK;  /* STATUS_OK, or the remembered failure            */
enum status task_take(struct comm *comm, enum task_kind kind, struct task **task) MUST_CHECK;
void task_give(struct comm *comm, struct task *task); /* frees or keeps its buffer, too */
enum status landing_take(struct comm *comm, void **buffer) MUST_CHECK;
enum status small_take(struct comm *comm, void **buffer) MUST_CHECK;
/* Queue a task for the transport and try at once. */
enum status task_submit(struct comm *comm, struct task *task) MUST_CHECK;
/* Send a small message: header (source and bytes are filled in) and payload. On a network those of one collective to one
 * peer travel together until comm_flush(), which comm_progress() and comm_leave() call. While it is not out the collective,
 * if it is one's, counts it among its outgoing. */
enum status comm_send_small(struct comm *comm, struct collective *collective, int peer, struct wire_header *header,
                            const void *payload, size_t bytes) MUST_CHECK;
enum status comm_flush(struct comm *comm) MUST_CHECK;
enum status early_add(struct early **list, const struct wire_header *header, const void *payload) MUST_CHECK;
void early_free(struct early **list);
bool comm_owns_host(const struct comm *comm,
                    const void *memory); /* comm_alloc() gave it; only where there is a device */
/* One round of progress; *moved tells whether anything happened. */
enum status comm_progress(struct comm *comm, bool *moved) MUST_CHECK;
void comm_enter(struct comm *comm); /* take the lock ahead of the progress thread */
void comm_leave(struct comm *comm); /* wakes the progress thread where it has something to do */
/* Nothing moved for `idle` rounds: look after deadline and job, then wait a little. */
enum status comm_idle(struct comm *comm, unsigned idle) MUST_CHECK;

/* --- team.c --- */
/* An answer in the making of a team. False: of another one, keep it. */
bool team_answered(struct comm *comm, const struct wire_header *header, const unsigned char *used);
struct team *team_find(struct comm *comm, uint8_t id);

/* --- collective.c; the lock is held --- */
void collective_unlink(struct collective *c); /* it is over */
/* Rule 6: sums of halves, or of what travels as halves, would overflow, so their inputs are made smaller first, by a power of two. */
bool collective_scales(const struct collective *c);
bool collective_is_oldest(const struct collective *collective); /* under way in its team */
struct collective *collective_find(const struct team *team, uint32_t epoch);
/* A mismatch: tell the peer what we called, and give it a moment to tell us. */
enum status collective_dispute(struct comm *comm, const struct collective *c, int peer) MUST_CHECK;
enum status collective_told(struct comm *comm, const struct collective *c, const struct wire_header *header,
                            const void *payload) MUST_CHECK; /* what another worker called; c: ours, or NULL */
void collectives_describe(struct comm *comm, size_t ops,
                          struct text *text); /* for timeouts: at most so many ops of each */

/* --- executor.c; the lock is held --- */
/* Do what may be done; when that was the last, the collective is over. */
enum status executor_advance(struct collective *c, bool *moved) MUST_CHECK;
enum status executor_advance_all(struct comm *comm, bool *moved) MUST_CHECK; /* every collective under way */
/* A small message that is a collective's: to whoever waits for it, else it waits. Its payload may be read until
 * executor_settle(). */
enum status executor_arrived(struct comm *comm, const struct wire_header *header, const void *payload) MUST_CHECK;
enum status executor_dispatch(struct collective *c, const struct wire_header *header, const void *payload) MUST_CHECK;
bool executor_is_ahead(struct comm *comm, const struct wire_header *header); /* of a collective not yet started here */
enum status executor_settle(struct comm *comm) MUST_CHECK; /* copy what still lies in messages                    */
enum status executor_land(struct comm *comm) MUST_CHECK;   /* copy what still lies in senders' memory: they wait  */
enum status executor_grant(const struct task *task) MUST_CHECK; /* the receive is posted: tell its sender         */
enum status executor_task_done(struct comm *comm, struct task *task) MUST_CHECK; /* RECEIVE or SEND; gives it back */
enum status executor_greet(struct collective *c) MUST_CHECK; /* hellos                                          */
void executor_clear(struct collective *c);                   /* gives back all tasks that wait                  */

/* --- executor_device.c; the lock is held --- */
/* Vectors in the memory of the comm's device: what a schedule asks for goes into its queues. */
enum status executor_device_start(struct collective *c) MUST_CHECK; /* its vectors may still be computed             */
/* Whatever the queues have done goes on. Only where there is a device. */
enum status executor_device_progress(struct comm *comm, bool *moved) MUST_CHECK;

#endif
