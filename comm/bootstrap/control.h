/* control.h - the control protocol between workers and control server: frames on a stream socket.
 *
 * A frame is an 8-byte header (payload bytes, type; both 32-bit little-endian) and the payload. Whatever comes from
 * the socket is checked before it is believed: the type, the length against a limit that the reader chooses, and the
 * fields against the length.
 *
 *   server -> worker: CHALLENGE at once, WELCOME when all have said HELLO, GATHERED, GOODBYE_ACK, STOP; ASK now and then
 *   worker -> server: HELLO in answer to CHALLENGE, then GATHER ... (one at a time), ABORT, GOODBYE; ANSWER to ASK
 *
 * A worker's thread for the channel answers that it is alive, whoever waits in it adds what for. ASK comes as a heartbeat,
 * and to all when a worker has waited in vain: who does not answer is the culprit, or who waits for nobody.
 *
 * The server is the local launcher, or rank 0 when another launcher has started the workers (server.h).
 */
#ifndef CHORALE_COMM_BOOTSTRAP_CONTROL_H
#define CHORALE_COMM_BOOTSTRAP_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/bootstrap/proof.h"

enum control_type {
    CONTROL_CHALLENGE = 1, /* version (4 bytes), nonce                               */
    CONTROL_HELLO,         /* struct control_hello                                     */
    CONTROL_WELCOME,       /* proof, process of the server, its host                   */
    CONTROL_GATHER,        /* sequence (4 bytes), the worker's bytes                   */
    CONTROL_GATHERED,      /* sequence (4 bytes), the bytes of all workers             */
    CONTROL_ABORT,         /* status (4 bytes), text                                   */
    CONTROL_GOODBYE,       /* empty                                                    */
    CONTROL_GOODBYE_ACK,   /* empty                                                    */
    CONTROL_STOP,          /* process that has died, status (4 bytes), text */
    CONTROL_ASK,           /* milliseconds between two of them (4 bytes); 0: say also what you wait for */
    CONTROL_ANSWER,        /* empty: alive; or text: what this worker waits for          */
    CONTROL_TYPES
};

enum {
    CONTROL_HEADER_BYTES = 8,
    CONTROL_TOKEN_BYTES = PROOF_TOKEN_BYTES,
    CONTROL_TOKEN_TEXT = 2 * CONTROL_TOKEN_BYTES + 1, /* in hexadecimal, with the NUL */
    CONTROL_HOST_BYTES = 64,
    CONTROL_CHALLENGE_BYTES = 4 + PROOF_NONCE_BYTES,
    CONTROL_PROCESS_BYTES = 12,
    CONTROL_HELLO_FIXED = PROOF_BYTES + PROOF_NONCE_BYTES + CONTROL_PROCESS_BYTES + 3 * 4,
    CONTROL_HELLO_BYTES = CONTROL_HELLO_FIXED + CONTROL_HOST_BYTES, /* the longest */
    CONTROL_WELCOME_FIXED = PROOF_BYTES + CONTROL_PROCESS_BYTES,
    CONTROL_WELCOME_BYTES = CONTROL_WELCOME_FIXED + CONTROL_HOST_BYTES, /* the longest */
    CONTROL_TEXT_BYTES = 1023,
    CONTROL_GATHER_BYTES = 65536,
    CONTROL_ANSWER_BYTES = 16384,
    CONTROL_WORKERS = 1024
};

/* Seconds; a deadline outside is moved in. */
#define CONTROL_DEFAULT_DEADLINE 30.0
#define CONTROL_SHORTEST_DEADLINE 1e-3
#define CONTROL_LONGEST_DEADLINE 86400.0

/* The limits that each side sets to the payload of a frame. */
#define CONTROL_STRANGER_LIMIT ((size_t)CONTROL_HELLO_BYTES)
#define CONTROL_MEMBER_LIMIT ((size_t)CONTROL_GATHER_BYTES + 4)
#define CONTROL_UNKNOWN_SERVER_LIMIT ((size_t)CONTROL_CHALLENGE_BYTES)
#define CONTROL_WORKER_LIMIT ((size_t)CONTROL_GATHER_BYTES * CONTROL_WORKERS + 4)

/* A process, so that what it leaves in shared memory can be removed by another that shares it. */
struct control_process {
    uint32_t pid;    /* 0: none */
    uint64_t memory; /* as struct host_identity has it */
};

struct control_hello {
    unsigned char nonce[PROOF_NONCE_BYTES]; /* the worker's */
    uint32_t rank, size;
    struct control_process process;
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

/* `length` bytes from outside as a line of text, which holds one more: control characters become spaces. */
void control_line_get(char *text, const unsigned char *bytes, size_t length);

void control_put_u32(unsigned char *bytes, uint32_t value);
uint32_t control_get_u32(const unsigned char *bytes);

/* CONTROL_PROCESS_BYTES, as they stand in HELLO, WELCOME and STOP. */
void control_process_put(unsigned char *bytes, const struct control_process *process);
struct control_process control_process_get(const unsigned char *bytes);

/* CHALLENGE's payload is CONTROL_CHALLENGE_BYTES. STATUS_FORMAT: not one of this version. */
void control_challenge_put(unsigned char *payload, const unsigned char nonce[PROOF_NONCE_BYTES]);
enum status control_challenge_get(const struct control_frame *frame, unsigned char nonce[PROOF_NONCE_BYTES]) MUST_CHECK;

/* HELLO's payload; returns its length. `payload` holds CONTROL_HELLO_BYTES. `nonce` is the server's. */
size_t control_hello_put(unsigned char *payload, const struct control_hello *hello,
                         const unsigned char token[CONTROL_TOKEN_BYTES], const unsigned char nonce[PROOF_NONCE_BYTES]);
/* STATUS_FORMAT: no greeting. STATUS_REFUSED: one by somebody who does not know the token: *hello is filled all the same. */
enum status control_hello_get(const struct control_frame *frame, const unsigned char token[CONTROL_TOKEN_BYTES],
                              const unsigned char nonce[PROOF_NONCE_BYTES], struct control_hello *hello) MUST_CHECK;

/* ABORT's payload and what follows the process in STOP's; returns its length. `payload` holds 4 + CONTROL_TEXT_BYTES; a longer
 * text is cut. */
size_t control_text_put(unsigned char *payload, enum status status, const char *text);
/* `text` holds CONTROL_TEXT_BYTES + 1. A status that is no failure is taken for STATUS_INTERNAL. */
enum status control_text_get(const unsigned char *payload, size_t length, enum status *status, char *text) MUST_CHECK;

/* Hexadecimal, small letters; `text` holds 2 * count + 1. */
void control_hex_put(const unsigned char *bytes, size_t count, char *text);
/* How many bytes the text has; -1: it is no such text, or has more than `most`. */
int control_hex_get(const char *text, unsigned char *bytes, size_t most);
void control_token_text(const unsigned char token[CONTROL_TOKEN_BYTES], char text[CONTROL_TOKEN_TEXT]);
enum status control_token_parse(const char *text, unsigned char token[CONTROL_TOKEN_BYTES]) MUST_CHECK;

#endif
