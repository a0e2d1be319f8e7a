/* control.c - framing and fields of the control protocol. */
#include "comm/bootstrap/control.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/memory.h"

#define PROTOCOL 0x63683033u /* "ch03": a stranger's first four bytes are hardly these */

enum { FIELDS_BYTES = 12 + CONTROL_PROCESS_BYTES }; /* of HELLO, between nonce and host */

double control_deadline(double seconds)
{
    if (!(seconds > 0))
        return CONTROL_DEFAULT_DEADLINE;
    if (seconds < CONTROL_SHORTEST_DEADLINE)
        return CONTROL_SHORTEST_DEADLINE;
    return seconds < CONTROL_LONGEST_DEADLINE ? seconds : CONTROL_LONGEST_DEADLINE;
}

void control_put_u32(unsigned char *bytes, uint32_t value)
{
    bytes[0] = (unsigned char)(value & 0xff);
    bytes[1] = (unsigned char)(value >> 8 & 0xff);
    bytes[2] = (unsigned char)(value >> 16 & 0xff);
    bytes[3] = (unsigned char)(value >> 24 & 0xff);
}

uint32_t control_get_u32(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

void control_process_put(unsigned char *bytes, const struct control_process *process)
{
    control_put_u32(bytes, process->pid);
    control_put_u32(bytes + 4, (uint32_t)(process->memory & 0xffffffffu));
    control_put_u32(bytes + 8, (uint32_t)(process->memory >> 32));
}

struct control_process control_process_get(const unsigned char *bytes)
{
    const uint64_t low = control_get_u32(bytes + 4), high = control_get_u32(bytes + 8);
    return (struct control_process){.pid = control_get_u32(bytes), .memory = low | high << 32};
}

void control_header(unsigned char header[CONTROL_HEADER_BYTES], enum control_type type, size_t payload)
{
    control_put_u32(header, (uint32_t)payload);
    control_put_u32(header + 4, (uint32_t)type);
}

/* One recv() for at most `wanted` bytes. */
static enum status read_some(int fd, unsigned char *to, size_t wanted, size_t *got)
{
    for (;;) {
        ssize_t bytes = recv(fd, to, wanted, MSG_DONTWAIT);
        if (bytes > 0) {
            *got = (size_t)bytes;
            return STATUS_OK;
        }
        if (bytes == 0)
            return fail(STATUS_PEER_LOST, "control channel: closed by the other side");
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return STATUS_AGAIN;
        if (errno == ECONNRESET || errno == EPIPE)
            return fail(STATUS_PEER_LOST, "control channel: %s", strerror(errno));
        if (errno != EINTR)
            return fail(STATUS_IO, "control channel: read: %s", strerror(errno));
    }
}

/* Check the header and make room for its payload. */
static enum status header_check(struct control_reader *reader, size_t limit)
{
    size_t length = control_get_u32(reader->header);
    uint32_t type = control_get_u32(reader->header + 4);
    if (type == 0 || type >= CONTROL_TYPES)
        return fail(STATUS_FORMAT, "control channel: unknown message type %lu", (unsigned long)type);
    if (length > limit)
        return fail(STATUS_FORMAT, "control channel: message of %zu bytes, at most %zu are taken", length, limit);
    void *payload = reader->payload;
    enum status status = memory_grow(&payload, &reader->capacity, length, 1);
    reader->payload = payload;
    return status;
}

enum status control_read(struct control_reader *reader, int fd, size_t limit, struct control_frame *frame)
{
    for (;;) {
        size_t got = 0;
        if (reader->have < CONTROL_HEADER_BYTES) {
            enum status status =
                read_some(fd, reader->header + reader->have, CONTROL_HEADER_BYTES - reader->have, &got);
            if (status != STATUS_OK)
                return status;
            reader->have += got;
            if (reader->have == CONTROL_HEADER_BYTES)
                TRY(header_check(reader, limit));
            continue;
        }
        size_t length = control_get_u32(reader->header);
        size_t have = reader->have - CONTROL_HEADER_BYTES;
        if (have == length) {
            *frame = (struct control_frame){.type = (enum control_type)control_get_u32(reader->header + 4),
                                            .payload = reader->payload,
                                            .length = length};
            reader->have = 0;
            return STATUS_OK;
        }
        enum status status = read_some(fd, reader->payload + have, length - have, &got);
        if (status != STATUS_OK)
            return status;
        reader->have += got;
    }
}

void control_reader_release(struct control_reader *reader)
{
    free(reader->payload);
    *reader = (struct control_reader){.have = 0};
}

void control_line_get(char *text, const unsigned char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        text[i] = bytes[i] >= ' ' && bytes[i] != 127 ? (char)bytes[i] : ' ';
    text[length] = '\0';
}

void control_challenge_put(unsigned char *payload, const unsigned char nonce[PROOF_NONCE_BYTES])
{
    control_put_u32(payload, PROTOCOL);
    memcpy(payload + 4, nonce, PROOF_NONCE_BYTES);
}

enum status control_challenge_get(const struct control_frame *frame, unsigned char nonce[PROOF_NONCE_BYTES])
{
    if (frame->type != CONTROL_CHALLENGE || frame->length != CONTROL_CHALLENGE_BYTES ||
        control_get_u32(frame->payload) != PROTOCOL)
        return fail(STATUS_FORMAT, "it does not speak this program's protocol, or another version's");
    memcpy(nonce, frame->payload + 4, PROOF_NONCE_BYTES);
    return STATUS_OK;
}

/* The proof stands before all that it is over. */
size_t control_hello_put(unsigned char *payload, const struct control_hello *hello,
                         const unsigned char token[CONTROL_TOKEN_BYTES], const unsigned char nonce[PROOF_NONCE_BYTES])
{
    const size_t host = strnlen(hello->host, CONTROL_HOST_BYTES);
    unsigned char *said = payload + PROOF_BYTES, *fields = said + PROOF_NONCE_BYTES;
    memcpy(said, hello->nonce, PROOF_NONCE_BYTES);
    control_put_u32(fields, hello->rank);
    control_put_u32(fields + 4, hello->size);
    control_put_u32(fields + 8, hello->deadline_ms);
    control_process_put(fields + 12, &hello->process);
    memcpy(fields + FIELDS_BYTES, hello->host, host);
    proof_make(token, PROOF_WORKER, nonce, hello->nonce, fields, FIELDS_BYTES + host, payload);
    return CONTROL_HELLO_FIXED + host;
}

enum status control_hello_get(const struct control_frame *frame, const unsigned char token[CONTROL_TOKEN_BYTES],
                              const unsigned char nonce[PROOF_NONCE_BYTES], struct control_hello *hello)
{
    unsigned char proof[PROOF_BYTES];
    if (frame->type != CONTROL_HELLO || frame->length < CONTROL_HELLO_FIXED || frame->length > CONTROL_HELLO_BYTES)
        return fail(STATUS_FORMAT, "control channel: the first message is no greeting of this version");
    const unsigned char *said = frame->payload + PROOF_BYTES, *fields = said + PROOF_NONCE_BYTES;
    const size_t host = frame->length - CONTROL_HELLO_FIXED;
    memcpy(hello->nonce, said, PROOF_NONCE_BYTES);
    hello->rank = control_get_u32(fields);
    hello->size = control_get_u32(fields + 4);
    hello->deadline_ms = control_get_u32(fields + 8);
    hello->process = control_process_get(fields + 12);
    control_line_get(hello->host, fields + FIELDS_BYTES, host);
    proof_make(token, PROOF_WORKER, nonce, hello->nonce, fields, FIELDS_BYTES + host, proof);
    if (!proof_equal(proof, frame->payload))
        return fail(STATUS_REFUSED, "wrong token");
    return STATUS_OK;
}

size_t control_text_put(unsigned char *payload, enum status status, const char *text)
{
    size_t length = strnlen(text, CONTROL_TEXT_BYTES);
    control_put_u32(payload, (uint32_t)(int32_t)status);
    memcpy(payload + 4, text, length);
    return 4 + length;
}

enum status control_text_get(const unsigned char *payload, size_t length, enum status *status, char *text)
{
    if (length < 4 || length > 4 + CONTROL_TEXT_BYTES)
        return fail(STATUS_FORMAT, "control channel: a text of %zu bytes", length);
    int32_t code = (int32_t)control_get_u32(payload);
    *status = code < STATUS_OK && code >= STATUS_INTERRUPTED ? (enum status)code : STATUS_INTERNAL;
    control_line_get(text, payload + 4, length - 4);
    return STATUS_OK;
}

void control_hex_put(const unsigned char *bytes, size_t count, char *text)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[2 * count] = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

int control_hex_get(const char *text, unsigned char *bytes, size_t most)
{
    const size_t length = strlen(text), count = length / 2;
    if (length % 2 != 0 || count > most)
        return -1;
    for (size_t i = 0; i < count; i++) {
        const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return -1;
        bytes[i] = (unsigned char)(high * 16 + low);
    }
    return (int)count;
}

void control_token_text(const unsigned char token[CONTROL_TOKEN_BYTES], char text[CONTROL_TOKEN_TEXT])
{
    control_hex_put(token, CONTROL_TOKEN_BYTES, text);
}

enum status control_token_parse(const char *text, unsigned char token[CONTROL_TOKEN_BYTES])
{
    if (control_hex_get(text, token, CONTROL_TOKEN_BYTES) == CONTROL_TOKEN_BYTES)
        return STATUS_OK;
    /* the token itself is a secret: not in the text */
    return fail(STATUS_USAGE, "CHORALE_TOKEN: not %d hexadecimal digits", CONTROL_TOKEN_TEXT - 1);
}
