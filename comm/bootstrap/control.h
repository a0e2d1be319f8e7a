/* control.h - the control protocol between workers and launcher: frames on a stream socket.
 *
 * A frame is an 8-byte header (payload bytes, type; both 32-bit little-endian) and the payload. Whatever comes from
 * the socket is checked before it is believed: the type, the length against a limit that the reader chooses, and the
 * fields against the length.
 *
 *   worker -> launcher: HELLO, then GATHER ... (one at a time), ABORT, GOODBYE
 *   launcher -> worker: WELCOME when all have said HELLO, GATHERED, GOODBYE_ACK, STOP
 */
#ifndef CHORALE_COMM_BOOTSTRAP_CONTROL_H
#define CHORALE_COMM_BOOTSTRAP_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum control_type {
    CONTROL_HELLO = 1,   /* struct control_hello                                     */
    CONTROL_WELCOME,     /* empty                                                    */
    CONTROL_GATHER,      /* sequence (4 bytes), the worker's bytes                   */
    CONTROL_GATHERED,    /* sequence (4 bytes), the bytes of all workers             */
    CONTROL_ABORT,       /* status (4 bytes), text                                   */
    CONTROL_GOODBYE,     /* empty                                                    */
    CONTROL_GOODBYE_ACK, /* empty                                                    */
    CONTROL_STOP,        /* status (4 bytes), text                                   */
    CONTROL_TYPES
};

enum {
    CONTROL_HEADER_BYTES = 8,
    CONTROL_TOKEN_BYTES = 16,
    CONTROL_TOKEN_TEXT = 2 * CONTROL_TOKEN_BYTES + 1, /* in hexadecimal, with the NUL */
    CONTROL_HOST_BYTES = 64,
    CONTROL_HELLO_BYTES = 36 + CONTROL_HOST_BYTES, /* the longest */
    CONTROL_TEXT_BYTES = 1023,
    CONTROL_GATHER_BYTES = 65536,
    CONTROL_WORKERS = 1024
};

/* Seconds; a deadline outside is moved in. */
#define CONTROL_DEFAULT_DEADLINE 30.0
#define CONTROL_SHORTEST_DEADLINE 1e-3
#define CONTROL_LONGEST_DEADLINE 86400.0

/* The limits that each side sets to the payload of a frame. */
#define CONTROL_STRANGER_LIMIT ((size_t)CONTROL_HELLO_BYTES)
#define CONTROL_LAUNCHER_LIMIT ((size_t)CONTROL_GATHER_BYTES + 4)
#define CONTROL_WORKER_LIMIT ((size_t)CONTROL_GATHER_BYTES * CONTROL_WORKERS + 4)

struct control_hello {
    unsigned char token[CONTROL_TOKEN_BYTES];
    uint32_t rank, size;
    uint32_t pid;
    uint32_t deadline_ms; /* what this worker lets a wait of the control channel take */
    char host[CONTROL_HOST_BYTES + 1];
};

/* Reads frames from a non-blocking socket, over as many calls as it takes. Zeroed it is ready. */
struct control_reader {
    unsigned char header[CONTROL_HEADER_BYTES];
    size_t have; /* bytes of header and payload so far */
    unsigned char *payload;
    size_t capacity;
};

/* A frame lies in its reader until the next control_read(). */
struct control_frame {
    enum control_type type;
    const unsigned char *payload;
    size_t length;
};

/* STATUS_OK: *frame is whole. STATUS_AGAIN: more is to come. STATUS_PEER_LOST: the other side has closed.
 * STATUS_FORMAT: unknown type or longer than `limit`. STATUS_IO, STATUS_NO_MEMORY. */
enum status control_read(struct control_reader *reader, int fd, size_t limit, struct control_frame *frame) MUST_CHECK;
void control_reader_release(struct control_reader *reader);

/* The frame's header; `payload` bytes are to follow it. */
void control_header(unsigned char header[CONTROL_HEADER_BYTES], enum control_type type, size_t payload);

/* `seconds` <= 0: the default. */
double control_deadline(double seconds);

void control_put_u32(unsigned char *bytes, uint32_t value);
uint32_t control_get_u32(const unsigned char *bytes);

/* HELLO's payload; returns its length. `payload` holds CONTROL_HELLO_BYTES. */
size_t control_hello_put(unsigned char *payload, const struct control_hello *hello);
enum status control_hello_get(const struct control_frame *frame, struct control_hello *hello) MUST_CHECK;

/* ABORT's and STOP's payload; returns its length. `payload` holds 4 + CONTROL_TEXT_BYTES; a longer text is cut. */
size_t control_text_put(unsigned char *payload, enum status status, const char *text);
/* `text` holds CONTROL_TEXT_BYTES + 1. A status that is no failure is taken for STATUS_INTERNAL. */
enum status control_text_get(const struct control_frame *frame, enum status *status, char *text) MUST_CHECK;

void control_token_text(const unsigned char token[CONTROL_TOKEN_BYTES], char text[CONTROL_TOKEN_TEXT]);
enum status control_token_parse(const char *text, unsigned char token[CONTROL_TOKEN_BYTES]) MUST_CHECK;

#endif
