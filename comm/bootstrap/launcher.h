/* launcher.h - the state of the local launcher, shared by its files: launch.c starts the workers and runs the loop,
 * members.c serves the control channel, ending.c decides why a job ends and sees that everything of it goes. The control
 * server in rank 0's process (server.c) has the same state without processes.
 *
 * One thread; all files work on the same struct between two calls of poll(). Deadlines are those of base/clock.h;
 * NEVER stands for none.
 */
#ifndef CHORALE_COMM_BOOTSTRAP_LAUNCHER_H
#define CHORALE_COMM_BOOTSTRAP_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "comm/bootstrap/address.h"
#include "comm/bootstrap/connection.h"
#include "comm/bootstrap/control.h"
#include "comm/bootstrap/label.h"
#include "comm/launch.h"

#define NEVER UINT64_MAX

/* Connections that have not said HELLO, beyond those that are still to come from workers; one more, and the oldest is
 * closed. */
enum { STRANGERS = 16 };

enum membership {
    MEMBER_STARTED, /* runs; may be a program that knows nothing of us */
    MEMBER_JOINED,  /* has said HELLO                                  */
    MEMBER_LEFT     /* has said GOODBYE                                */
};

struct member {
    pid_t pid;       /* also its process group; 0: not started. Not reaped before the end: the number stays ours */
    long joined_pid; /* who said HELLO: the process itself or one that it started; 0: nobody yet                 */
    enum membership state;
    bool dead;
    int how, code;     /* dead: si_code and si_status of waitid()          */
    bool aborted;      /* has said why it ends                             */
    bool arrived;      /* in the gather that goes on                       */
    bool terminated;   /* its group has got SIGTERM                        */
    int unheard;       /* heartbeats without an answer                     */
    char *answer;      /* what it waits for, when asked; owned, may be NULL */
    double patience;   /* seconds that it lets a gather take              */
    uint64_t lost_due; /* its connection was closed: until then it may die */
    char host[CONTROL_HOST_BYTES + 1];
    struct control_process process;     /* who said HELLO, for the others */
    unsigned char welcome[PROOF_BYTES]; /* the server's proof for it */
    struct connection connection;
    struct label_source streams[2]; /* label mode: stdout, stderr */
};

struct stranger {
    struct connection connection;
    uint64_t since, due; /* when it is turned away */
    unsigned char nonce[PROOF_NONCE_BYTES];
    char address[ADDRESS_BYTES];
};

struct gather {
    uint32_t sequence; /* of the one that goes on or comes next */
    int arrived;
    int first;    /* rank that arrived first */
    size_t bytes; /* of each                 */
    uint64_t due;
    struct blob *result; /* NULL: none goes on */
};

enum certainty {
    VERDICT_NONE,
    VERDICT_RUMOUR, /* a worker says that it has lost another: the death itself, if there is one, is the better reason; or
                       that it has waited in vain: who does not answer is */
    VERDICT_CERTAIN /* the job ends; nothing that happens now is the cause */
};

/* Why the job ends. */
struct verdict {
    enum certainty certainty;
    enum status status; /* for the workers */
    int rank;           /* whose failure it is, -1: nobody's */
    int exit_code;
    uint64_t due; /* of a rumour: when it is believed */
    char message[CONTROL_TEXT_BYTES + 1];
};

struct launcher {
    const struct launch_request *request; /* NULL: hosted */
    bool hosted;       /* in rank 0's process, by a thread of its own (server.c): others start the workers,
                                             and none is a child of ours */
    job_note_fn *note; /* may be NULL */
    void *note_context;
    double deadline;
    int size;
    struct member *members;
    struct stranger *strangers; /* size + STRANGERS places */
    struct label_sink sinks[2];
    struct gather gather;
    struct verdict verdict;
    bool asking; /* a worker has waited in vain: all are asked what they wait for, until the verdict is due */
    uint64_t beat_due;
    int listener, signals; /* descriptors */
    unsigned char token[CONTROL_TOKEN_BYTES];
    char host[CONTROL_HOST_BYTES + 1];
    char folder[200]; /* of temporary files */
    int joined;       /* how many have said HELLO */
    int turned_away;
    bool welcomed;
    uint64_t join_due;
    int signal;            /* that asked us to end; 0: none         */
    bool hurry;            /* a second one came                     */
    uint64_t ending_since; /* NEVER: the job goes on                */
    bool gone;             /* every process of the job has ended    */
};

/* --- members.c --- */

/* The state of a job that nobody has joined; members_release() also after a failure. */
enum status members_init(struct launcher *launcher, int size, double deadline) MUST_CHECK;
void members_release(struct launcher *launcher); /* also closes the listener */
/* Take new connections. */
void members_accept(struct launcher *launcher);
/* Read what stranger `index` has said. */
void members_read_stranger(struct launcher *launcher, int index);
/* Read what the member has said; also when it is dead: its last words may explain that. */
void members_read(struct launcher *launcher, int rank);
/* Give verdicts on what is overdue. */
void members_check_deadlines(struct launcher *launcher);
/* The earliest of those deadlines. */
uint64_t members_next_deadline(const struct launcher *launcher);
/* Tell those of the ranks low .. high - 1 who have joined that the job ends, and why. */
void members_stop(struct launcher *launcher, int low, int high);

/* --- inquiry.c --- */

/* The rumour that a worker has waited in vain is looked into: all are asked. */
void inquiry_begin(struct launcher *launcher);
/* What a member has said; STATUS_FORMAT, STATUS_NO_MEMORY. */
enum status inquiry_answer(struct member *member, const struct control_frame *frame) MUST_CHECK;
/* Heartbeats, and the end of an inquiry: the verdict gets its culprit, and the name of a file with all answers. */
void inquiry_check(struct launcher *launcher);
uint64_t inquiry_next_deadline(const struct launcher *launcher);
/* Appends which worker of this host is stopped (SIGSTOP); false: none is. */
bool inquiry_add_stopped(const struct launcher *launcher, struct text *text);

/* --- ending.c --- */

/* Note a reason to end the job; the first certain one stands. `rank` -1: nobody's failure. */
void verdict_give(struct launcher *launcher, enum certainty certainty, enum status status, int rank, int exit_code,
                  const char *format, ...) __attribute__((format(printf, 6, 7)));
/* The same from this thread's status_message(). */
void verdict_failed(struct launcher *launcher, enum status status);
/* Look which workers have died, and why. */
void ending_notice_deaths(struct launcher *launcher);
/* Whether a worker has been killed, or ends, and is not yet dead: its peers may notice first, and on a crowded machine long
 * before. False when it has taken longer than a moment since `due`. */
bool ending_is_near(const struct launcher *launcher, int rank, uint64_t due);
/* SIGINT, SIGTERM or SIGHUP has come. */
void ending_signal(struct launcher *launcher, int signal);
/* Take the next step of an ending job, if it is time; sets launcher->gone after the last. */
void ending_step(struct launcher *launcher);
uint64_t ending_next_deadline(const struct launcher *launcher);
/* Reap the workers and remove what they left in /dev/shm. */
void ending_reap(struct launcher *launcher);

#endif
