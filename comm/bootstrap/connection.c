/* connection.c - the launcher's end of one control connection. */
#include "comm/bootstrap/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"

enum status blob_create(struct blob **out, enum control_type type, size_t payload)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct blob) + CONTROL_HEADER_BYTES + payload));
    struct blob *blob = memory;
    blob->references = 1;
    blob->length = CONTROL_HEADER_BYTES + payload;
    control_header(blob->data, type, payload);
    *out = blob;
    return STATUS_OK;
}

unsigned char *blob_payload(struct blob *blob)
{
    return blob->data + CONTROL_HEADER_BYTES;
}

void blob_release(struct blob *blob)
{
    if (blob != NULL && --blob->references == 0)
        free(blob);
}

void connection_init(struct connection *connection, int fd)
{
    *connection = (struct connection){.fd = fd};
}

static void drop_queue(struct connection *connection)
{
    for (size_t i = 0; i < connection->queued; i++)
        blob_release(connection->queue[i]);
    connection->queued = 0;
    connection->sent = 0;
}

void connection_close(struct connection *connection)
{
    if (connection->fd < 0)
        return;
    drop_queue(connection);
    control_reader_release(&connection->reader);
    close(connection->fd);
    connection->fd = -1;
}

static void pop(struct connection *connection)
{
    blob_release(connection->queue[0]);
    connection->queued--;
    connection->sent = 0;
    for (size_t i = 0; i < connection->queued; i++)
        connection->queue[i] = connection->queue[i + 1];
}

void connection_flush(struct connection *connection)
{
    while (connection->queued > 0) {
        struct blob *blob = connection->queue[0];
        ssize_t count = send(connection->fd, blob->data + connection->sent, blob->length - connection->sent,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (count < 0) { /* it has closed or died; reading tells */
            connection->deaf = true;
            drop_queue(connection);
            return;
        }
        connection->sent += (size_t)count;
        if (connection->sent == blob->length)
            pop(connection);
    }
}

void connection_send(struct connection *connection, struct blob *blob)
{
    if (connection->fd < 0 || connection->deaf)
        return;
    if (connection->queued == CONNECTION_QUEUE) { /* it does not read; it will miss this, and be ended by a signal */
        connection->deaf = true;
        drop_queue(connection);
        return;
    }
    blob->references++;
    connection->queue[connection->queued++] = blob;
    connection_flush(connection);
}

short connection_events(const struct connection *connection)
{
    return (short)(POLLIN | (connection->queued > 0 ? POLLOUT : 0));
}
