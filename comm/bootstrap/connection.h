/* connection.h - the launcher's end of one control connection: a reader and a queue of frames to be written.
 *
 * Nothing blocks. A frame may be in the queues of many connections at once; the last one to have written it frees it.
 */
#ifndef CHORALE_COMM_BOOTSTRAP_CONNECTION_H
#define CHORALE_COMM_BOOTSTRAP_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "comm/bootstrap/control.h"

struct blob {
    size_t references;
    size_t length;
    unsigned char data[];
};

/* A frame of `payload` bytes, zeroed, with one reference for the caller. */
enum status blob_create(struct blob **blob, enum control_type type, size_t payload) MUST_CHECK;
unsigned char *blob_payload(struct blob *blob);
void blob_release(struct blob *blob); /* gives up one reference; accepts NULL */

enum { CONNECTION_QUEUE = 8 }; /* a worker that keeps to the protocol is owed at most four frames at once */

struct connection {
    int fd; /* -1: none */
    struct control_reader reader;
    struct blob *queue[CONNECTION_QUEUE];
    size_t queued;
    size_t sent; /* bytes of queue[0] */
    bool ended;  /* it has closed its side and says nothing more; it may still listen */
    bool deaf;   /* a write has failed: frames are dropped, while what it has said can still be read */
};

void connection_init(struct connection *connection, int fd);
void connection_close(struct connection *connection); /* fd becomes -1; may be called again */
/* Queue the frame (the connection takes its own reference) and write what can be written. A connection that is closed
 * or deaf drops it. */
void connection_send(struct connection *connection, struct blob *blob);
void connection_flush(struct connection *connection);
/* The events that poll() shall wait for. */
short connection_events(const struct connection *connection);

#endif
