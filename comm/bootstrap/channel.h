/* channel.h - a worker's end of the control channel: the connection to the launcher and the thread that watches it.
 *
 * The thread only reads; whoever has something to say writes itself. Waits are bounded by the launcher, which knows
 * who is missing; the worker's own bound stands CHANNEL_GRACE seconds behind, for a launcher that is stopped.
 */
#ifndef CHORALE_COMM_BOOTSTRAP_CHANNEL_H
#define CHORALE_COMM_BOOTSTRAP_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/bootstrap/control.h"
#include "comm/job.h"

struct channel;

struct channel_request {
    const char *address; /* "127.0.0.1:4711" */
    struct control_hello hello;
    double deadline; /* seconds */
    job_failed_fn
        *failed; /* from the channel's thread, once, and only after channel_open() has succeeded; may be NULL */
    void *context;
    bool *told; /* set when channel_open() fails because the launcher has ended the job; may be NULL */
};

/* Connect, say HELLO, and wait until the launcher welcomes us, which it does when all workers are there. */
enum status channel_open(const struct channel_request *request, struct channel **channel) MUST_CHECK;
/* The collective of the protocol: `all` holds workers * bytes. */
enum status channel_gather(struct channel *channel, const void *mine, size_t bytes, void *all) MUST_CHECK;
enum status channel_goodbye(struct channel *channel) MUST_CHECK;
/* False when the text can't reach the launcher. */
bool channel_abort(struct channel *channel, enum status status, const char *text);
/* STATUS_OK while nothing is known to have failed. Any thread. */
enum status channel_check(struct channel *channel) MUST_CHECK;
/* Ends the thread, closes the connection. Accepts NULL. Not from the failed callback. */
void channel_close(struct channel *channel);

#endif
