/* channel.h - a worker's end of the control channel: the connection to the control server and the thread that watches it.
 *
 * The thread only reads; whoever has something to say writes itself. Waits are bounded by the server, which knows
 * who is missing; the worker's own bound stands CHANNEL_GRACE seconds behind, for a server that is stopped.
 */
#ifndef CHORALE_COMM_BOOTSTRAP_CHANNEL_H
#define CHORALE_COMM_BOOTSTRAP_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "comm/bootstrap/control.h"
#include "comm/job.h"

struct channel;

struct channel_request {
    const char *address; /* "127.0.0.1:4711", "node7:4711", "[::1]:4711": as address.h has it */
    bool hosted;         /* the server is in rank 0's process; else it is the local launcher */
    unsigned char token[CONTROL_TOKEN_BYTES];
    struct control_hello hello; /* but for the nonce */
    double deadline;            /* seconds */
    job_failed_fn
        *failed; /* from the channel's thread, once, and only after channel_open() has succeeded; may be NULL */
    void *context;
    pid_t
        parent; /* whose end is the end of the job, as of this worker's parent where a launcher watches it; 0: nobody's */
    bool *told; /* set when channel_open() fails because the server has ended the job: it tells the user; may be NULL */
};

/* Connect, show that we know the token and see that the server does, and wait for its welcome: all workers are there then.
 * Until the deadline, nobody at the address, an unknown name and somebody else at the address are tried again: names
 * become known and ports free when jobs start. STATUS_TIMEOUT says what it was. */
enum status channel_open(const struct channel_request *request, struct channel **channel) MUST_CHECK;
/* The collective of the protocol: `all` holds workers * bytes. */
enum status channel_gather(struct channel *channel, const void *mine, size_t bytes, void *all) MUST_CHECK;
enum status channel_goodbye(struct channel *channel) MUST_CHECK;
/* When the server itself is lost, the failed callback shall speak (hosted; from the start only rank 1 does). Any thread. */
void channel_speak(struct channel *channel, bool speak);
/* The failed callback has been called, or is about to be: it tells the user. Any thread. */
bool channel_has_told(struct channel *channel);
/* False when the text can't reach the server, or a hosted one does not confirm it: then status_message() is to be said,
 * which after STATUS_TIMEOUT is the text with this reason. */
bool channel_abort(struct channel *channel, enum status status, const char *text);
/* True once after somebody has asked what this worker waits for. Any thread, cheap. */
bool channel_asked(struct channel *channel);
/* What this worker waits for; without harm when nobody asked. Any thread. */
void channel_answer(struct channel *channel, const char *text);
/* STATUS_OK while nothing is known to have failed. Any thread. */
enum status channel_check(struct channel *channel) MUST_CHECK;
/* Ends the thread, closes the connection. Accepts NULL. Not from the failed callback. */
void channel_close(struct channel *channel);

#endif
