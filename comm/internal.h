/* internal.h - what comm.c (communicator, teams, progress thread) and executor.c (collectives) share. Private to comm/.
 */
#ifndef CHORALE_COMM_INTERNAL_H
#define CHORALE_COMM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "algos/progression.h"
#include "comm/comm.h"
#include "comm/transport.h"
#include "comm/wire.h"

enum task_kind {
    TASK_POOL,    /* a pre-posted buffer for a small message                                */
    TASK_SMALL,   /* a small message going out; `buffer` holds header and payload           */
    TASK_EXPECT,  /* an eager segment that a collective waits for                           */
    TASK_RECEIVE, /* a granted receive, posted                                              */
    TASK_SEND     /* a granted send: waiting for its grant, then going out                  */
};

/* One thing under way. The transfer comes first: providers keep their context in it. */
struct task {
    struct transfer transfer;
    enum task_kind kind;
    struct collective *collective; /* NULL: no collective's                         */
    struct action action;
    int peer; /* rank in the comm                              */
    uint64_t tag;
    void *data; /* what the transport reads or fills             */
    size_t bytes;
    void *buffer; /* owned: pool buffer, or landing slot           */
    bool flying;  /* handed to the transport and not yet reported  */
    struct task *next, *previous;
};

struct task_list {
    struct task *first, *last;
};

/* What waits for room in the transport. Nothing waits behind a list with which it would be waited for: grants and
 * payload go out while receives have no room, and small messages find room before further payload is asked for. */
enum pending { PENDING_POOL, PENDING_RECEIVE, PENDING_SEND, PENDING_LISTS };

void task_append(struct task_list *list, struct task *task);
void task_remove(struct task_list *list, struct task *task);

/* A small message that came before anyone expected it. */
struct early {
    struct wire_header header;
    struct early *next;
    unsigned char payload[];
};

struct team {
    struct comm *comm;
    uint8_t id;
    int rank, size;
    int *ranks;                      /* of the comm                                             */
    uint32_t next_epoch;             /* of the next collective that starts here                 */
    struct early *early;             /* for collectives not yet started here                    */
    struct collective *first, *last; /* under way, in starting order                 */
    struct team *next;
};

#define TEAM_IDS 256 /* 0 is the world's */
#define TEAM_ID_BYTES (TEAM_IDS / 8)

struct comm {
    struct transport *transport;
    struct job *job;
    size_t segment;
    unsigned window;
    double deadline;

    pthread_mutex_t lock; /* everything below                                                        */
    pthread_cond_t work;  /* the progress thread sleeps here                                         */
    pthread_t thread;
    bool has_thread, stop;
    atomic_int wanted; /* callers who want the lock: the progress thread lets them                */
    int waiters;       /* callers who drive progress themselves                                   */
    int active;        /* collectives under way                                                   */

    struct team world;
    struct team *teams;  /* all, world included                                                     */
    struct early *early; /* for teams that don't exist here yet                                     */
    struct task_list pending[PENDING_LISTS]; /* to be handed to the transport                            */
    struct task_list flying;                 /* handed to it                                             */
    int receiving;                           /* granted receives among them                              */
    struct task_list spare;                  /* reusable tasks                                           */
    void **small_spare; /* reusable buffers of small messages                                      */
    size_t small_spares, small_capacity;
    void **landing_spare; /* reusable landing slots of `segment` bytes                               */
    size_t landing_spares, landing_capacity;
    size_t small_bytes; /* size of a small buffer                                                  */

    uint64_t progressed_ns; /* when something last happened                                            */
    enum status status;     /* the first failure; then everything fails with it                        */
    char message[1024];
    uint64_t dispute_until; /* a mismatch was seen: its other side is awaited until then; 0 = none     */
    char dispute[512];

    struct {
        bool waiting;
        uint64_t hash, value;
        int answers;
        unsigned char used[TEAM_ID_BYTES]; /* bit i: id i */
    } team_talk;                           /* team_create's exchange of ids */
};

/* --- comm.c, for executor.c; the lock is held --- */
enum status comm_fail(struct comm *comm, enum status status); /* remembers this thread's message; returns status */
enum status comm_failed(const struct comm *comm) MUST_CHECK;  /* STATUS_OK, or the remembered failure            */
enum status task_take(struct comm *comm, enum task_kind kind, struct task **task) MUST_CHECK;
void task_give(struct comm *comm, struct task *task); /* frees or keeps its buffer, too */
enum status landing_take(struct comm *comm, void **buffer) MUST_CHECK;
enum status small_take(struct comm *comm, void **buffer) MUST_CHECK;
/* Queue a task for the transport and try at once. */
enum status task_submit(struct comm *comm, struct task *task) MUST_CHECK;
/* Send a small message: header (source and bytes are filled in) and payload. A collective is told when it is out. */
enum status comm_send_small(struct comm *comm, struct collective *collective, int peer, struct wire_header *header,
                            const void *payload, size_t bytes) MUST_CHECK;
enum status early_add(struct early **list, const struct wire_header *header, const void *payload) MUST_CHECK;
/* One round of progress; *moved tells whether anything happened. */
enum status comm_progress(struct comm *comm, bool *moved) MUST_CHECK;
void comm_enter(struct comm *comm); /* take the lock ahead of the progress thread */
void comm_leave(struct comm *comm);
/* Nothing moved for `idle` rounds: look after deadline and job, then wait a little. */
enum status comm_idle(struct comm *comm, unsigned idle) MUST_CHECK;

/* --- executor.c, for comm.c; the lock is held --- */
bool executor_is_oldest(const struct collective *collective); /* under way in its team */
enum status executor_arrived(struct comm *comm, const struct wire_header *header, const void *payload) MUST_CHECK;
enum status executor_grant(const struct task *task) MUST_CHECK; /* the receive is posted: tell its sender */
enum status executor_task_done(struct comm *comm,
                               struct task *task) MUST_CHECK;            /* RECEIVE or SEND; gives the task back */
void executor_small_done(struct collective *collective);                 /* a small message of a collective is out */
enum status executor_advance(struct comm *comm, bool *moved) MUST_CHECK; /* every collective under way */
void executor_describe(struct comm *comm, struct text *text);            /* for timeouts               */

#endif
