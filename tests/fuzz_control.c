/* fuzz_control.c - hostile bytes at everything that reads from the network or a launcher's store: control frames as a stranger,
 * a worker and a server send them, rank 0's card, lines of PMI-1, Slurm's lists of hosts, addresses. Whatever they are, a stranger
 * without the token joins nothing and ends nothing, and what is refused has a message.
 *
 * A driver of its own runs everywhere: an input is a function of seed and number, so that a crash is found again with --from=N
 * --count=1. In the test run a fixed number of inputs; by hand fuzz_control --seconds=300. With clang it is a libFuzzer target, too:
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -DCHORALE_LIBFUZZER -D_POSIX_C_SOURCE=200809L -I. -o fuzz tests/fuzz_control.c \
 *         $(find comm algos base -name '*.c' ! -path '*modules*') $(pkg-config --cflags --libs libfabric nettle jansson) -lz -lm && ./fuzz
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "comm/bootstrap/exchange.h"
#include "comm/bootstrap/join.h"
#include "comm/bootstrap/launcher.h"
#include "comm/bootstrap/origin.h"
#include "comm/bootstrap/pmi.h"

enum { MOST_BYTES = 4096 };

static const unsigned char token[PROOF_TOKEN_BYTES] = "the job's token";
static const unsigned char nonce[PROOF_NONCE_BYTES] = "the server's nonce";

static void broken(const char *what)
{
    fprintf(stderr, "fuzz_control: %s\n", what);
    abort();
}

static void expect(bool holds, const char *what)
{
    if (!holds)
        broken(what);
}

/* ---- the server ---- */

static void send_frame(int fd, enum control_type type, const unsigned char *payload, size_t length)
{
    unsigned char frame[CONTROL_HEADER_BYTES + CONTROL_HELLO_BYTES];
    control_header(frame, type, length);
    memcpy(frame + CONTROL_HEADER_BYTES, payload, length);
    (void)!send(fd, frame, CONTROL_HEADER_BYTES + length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void say_hello(int fd, int rank, int size)
{
    const struct control_hello hello = {
        .rank = (uint32_t)rank, .size = (uint32_t)size, .deadline_ms = 30000, .host = "here"};
    unsigned char payload[CONTROL_HELLO_BYTES];
    send_frame(fd, CONTROL_HELLO, payload, control_hello_put(payload, &hello, token, nonce));
}

/* The server's end of a new connection as stranger 0; the other end is returned. */
static int new_stranger(struct launcher *server)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0)
        broken("no socket");
    struct stranger *stranger = &server->strangers[0];
    connection_init(&stranger->connection, ends[0]);
    stranger->due = NEVER;
    memcpy(stranger->nonce, nonce, sizeof nonce);
    (void)snprintf(stranger->address, sizeof stranger->address, "somewhere");
    return ends[1];
}

static void open_job(struct launcher *server, int size)
{
    if (members_init(server, size, 30) != STATUS_OK)
        broken("no memory");
    server->hosted = true;
    memcpy(server->token, token, sizeof token);
}

/* Somebody who does not know the token, and says anything. */
static bool try_stranger(const unsigned char *data, size_t length)
{
    struct launcher server;
    open_job(&server, 2);
    const int far = new_stranger(&server);
    (void)!send(far, data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (server.strangers[0].connection.fd >= 0)
        members_read_stranger(&server, 0);
    close(far);
    if (server.strangers[0].connection.fd >= 0)
        members_read_stranger(&server, 0);
    members_check_deadlines(&server);
    expect(server.joined == 0, "a stranger has joined");
    expect(server.verdict.certainty == VERDICT_NONE, "a stranger has ended the job");
    members_release(&server);
    return false;
}

/* A worker of the job that says anything; the others say nothing. */
static bool try_member(const unsigned char *data, size_t length)
{
    const int size = 1 + (int)(length % 3);
    int far[3];
    struct launcher server;
    open_job(&server, size);
    for (int rank = 0; rank < size; rank++) {
        far[rank] = new_stranger(&server);
        say_hello(far[rank], rank, size);
        members_read_stranger(&server, 0);
    }
    expect(server.joined == size && server.welcomed, "a worker has not joined");
    (void)!send(far[size - 1], data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    members_read(&server, size - 1);
    const bool alive = server.verdict.certainty == VERDICT_NONE;
    close(far[size - 1]);
    members_read(&server, size - 1);
    members_check_deadlines(&server);
    expect(server.verdict.certainty != VERDICT_NONE || server.members[size - 1].state == MEMBER_LEFT,
           "a worker that has gone is not missed");
    for (int rank = 0; rank + 1 < size; rank++)
        close(far[rank]);
    members_release(&server);
    return alive;
}

/* ---- a worker's side ---- */

static bool try_server(const unsigned char *data, size_t length)
{
    int ends[2];
    struct control_reader reader = {.have = 0};
    struct control_frame frame = {.length = 0};
    unsigned char other[PROOF_NONCE_BYTES];
    char text[CONTROL_TEXT_BYTES + 1];
    enum status why = STATUS_OK, status;
    bool taken = false;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0)
        broken("no socket");
    (void)!send(ends[1], data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    while ((status = control_read(&reader, ends[0], CONTROL_WORKER_LIMIT, &frame)) == STATUS_OK) {
        taken = control_challenge_get(&frame, other) == STATUS_OK || taken;
        if (frame.length >= CONTROL_PROCESS_BYTES &&
            control_text_get(frame.payload + CONTROL_PROCESS_BYTES, frame.length - CONTROL_PROCESS_BYTES, &why, text) ==
                STATUS_OK)
            expect(why < STATUS_OK && strlen(text) <= CONTROL_TEXT_BYTES && strchr(text, '\n') == NULL,
                   "a text is no line");
    }
    expect(status == STATUS_AGAIN || status == STATUS_FORMAT || status == STATUS_NO_MEMORY, "reading ends otherwise");
    control_reader_release(&reader);
    close(ends[0]);
    close(ends[1]);
    return taken;
}

/* ---- texts ---- */

static bool try_text(const char *text)
{
    char host[ADDRESS_HOST_BYTES], address[ADDRESS_BYTES], value[32];
    unsigned char found[PROOF_TOKEN_BYTES];
    int port = 0;
    bool taken = false;
    status_clear();
    if (join_card_get(text, address, found) == STATUS_OK)
        taken = true;
    else
        expect(status_message()[0] != '\0', "a card is refused without a message");
    status_clear();
    if (address_split("ADDRESS", text, host, &port) == STATUS_OK) {
        expect(port >= 1 && port <= 65535 && host[0] != '\0' && strlen(host) < sizeof host, "an address is none");
        taken = true;
    } else
        expect(status_message()[0] != '\0', "an address is refused without a message");
    status_clear();
    if (origin_first_host(text, host) == STATUS_OK)
        expect(host[0] != '\0' && strlen(host) < sizeof host && strpbrk(host, "[],") == NULL, "a host is none");
    else
        expect(status_message()[0] != '\0', "a list is refused without a message");
    if (pmi_value(text, "value", value, sizeof value))
        expect(strlen(value) < sizeof value && strchr(value, ' ') == NULL, "a value is none");
    return taken;
}

/* The first byte says who reads the rest. */
static bool try(const unsigned char *data, size_t length)
{
    char text[MOST_BYTES + 1];
    if (length == 0)
        return false;
    const size_t rest = length - 1 < MOST_BYTES ? length - 1 : MOST_BYTES;
    switch (data[0] % 4) {
    case 0:
        return try_stranger(data + 1, rest);
    case 1:
        return try_member(data + 1, rest);
    case 2:
        return try_server(data + 1, rest);
    default:
        memcpy(text, data + 1, rest);
        text[rest] = '\0';
        return try_text(text);
    }
}

#ifdef CHORALE_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    (void)try(data, length);
    return 0;
}

#else

/* ---- inputs ---- */

struct draw {
    uint64_t seed, counter;
};

static size_t below(struct draw *draw, size_t bound)
{
    return bound == 0 ? 0 : (size_t)rng_below(draw->seed, draw->counter++, bound);
}

/* What a frame of each type looks like. */
static size_t plausible(struct draw *draw, enum control_type type, unsigned char *payload)
{
    const struct control_hello hello = {.rank = (uint32_t)below(draw, 4), .size = 2, .deadline_ms = 1, .host = "there"};
    const struct control_process process = {.pid = 0};
    const unsigned char other[PROOF_TOKEN_BYTES] = "another token";
    switch (type) {
    case CONTROL_CHALLENGE:
        control_challenge_put(payload, nonce);
        return CONTROL_CHALLENGE_BYTES;
    case CONTROL_HELLO:
        return control_hello_put(payload, &hello, other, nonce);
    case CONTROL_GATHER:
    case CONTROL_GATHERED:
        control_put_u32(payload, 1 + (uint32_t)below(draw, 3));
        return 4 + below(draw, 64);
    case CONTROL_ABORT:
        return control_text_put(payload, STATUS_IO, "rank 1 on there: a text");
    case CONTROL_STOP:
        control_process_put(payload, &process);
        return CONTROL_PROCESS_BYTES + control_text_put(payload + CONTROL_PROCESS_BYTES, STATUS_IO, "a text");
    default:
        return 0;
    }
}

static size_t make_frames(struct draw *draw, unsigned char *bytes)
{
    size_t length = 0;
    for (size_t frames = 1 + below(draw, 5); frames > 0 && length + 1024 < MOST_BYTES; frames--) {
        unsigned char *header = bytes + length, *payload = header + CONTROL_HEADER_BYTES;
        memset(payload, 0, 512);
        const enum control_type type = (enum control_type)(1 + below(draw, CONTROL_TYPES - 1));
        const size_t said = plausible(draw, type, payload);
        control_header(header, type, below(draw, 8) == 0 ? below(draw, 2) * 0xffffffffu + below(draw, 300) : said);
        length += CONTROL_HEADER_BYTES + said;
    }
    return length;
}

static size_t make_text(struct draw *draw, char *text)
{
    static const char *const words[] = {
        "[",  "]", ",",   "-",     ":",      "::1", "127.0.0.1", "4711",   "n",  "01", "65536",
        "41", "0", "cmd", "value", "value=", " ",   "rc=0",      "host-a", ".b", "=",  "ff"};
    size_t length = 0;
    if (below(draw, 3) == 0)
        join_card_put(below(draw, 2) == 0 ? "127.0.0.1:4711" : "", token, text);
    else if (below(draw, 8) == 0)
        join_card_put_failure("no port is free", text);
    else
        text[0] = '\0';
    length = strlen(text);
    for (size_t count = below(draw, 12); count > 0; count--) {
        const char *word = words[below(draw, sizeof words / sizeof *words)];
        memcpy(text + length, word, strlen(word));
        length += strlen(word);
    }
    return length;
}

/* Input `number`, in memory of just its size, so that a sanitizer sees what is read behind it. */
static unsigned char *make_input(uint64_t seed, uint64_t number, size_t *length)
{
    static unsigned char bytes[2 * MOST_BYTES];
    struct draw draw = {.seed = rng_u64(seed, number)};
    bytes[0] = (unsigned char)below(&draw, 4);
    size_t size = 1 + (bytes[0] == 3 ? make_text(&draw, (char *)bytes + 1) : make_frames(&draw, bytes + 1));
    for (size_t left = below(&draw, 4); left > 0; left--)
        bytes[1 + below(&draw, size)] = (unsigned char)below(&draw, 256);
    if (below(&draw, 6) == 0)
        size = 1 + below(&draw, size);
    unsigned char *input = malloc(size > 0 ? size : 1);
    if (input != NULL)
        memcpy(input, bytes, size);
    *length = size;
    return input;
}

/* --key=value of the command line, else the standard. */
static unsigned long long argument(int argc, char **argv, const char *key, unsigned long long standard)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], key, strlen(key)) == 0 && argv[i][strlen(key)] == '=')
            return strtoull(argv[i] + strlen(key) + 1, NULL, 10);
    return standard;
}

int main(int argc, char **argv)
{
    const unsigned long long seconds = argument(argc, argv, "--seconds", 0);
    const unsigned long long seed = argument(argc, argv, "--seed", 1), from = argument(argc, argv, "--from", 0);
    const unsigned long long count = argument(argc, argv, "--count", seconds > 0 ? UINT64_MAX : 30000);
    unsigned long long ran = 0, taken = 0;
    const uint64_t begun = clock_ns();
    bool ok = true;
    while (ok && ran < count && (seconds == 0 || clock_ns() - begun < seconds * UINT64_C(1000000000))) {
        size_t length = 0;
        unsigned char *input = make_input(seed, from + ran, &length);
        ok = input != NULL;
        taken += ok && try(input, length);
        ran++;
        free(input);
    }
    printf("fuzz_control: seed %llu: %llu inputs from %llu, %llu of them taken, in %.1f s\n", seed, ran, from, taken,
           (double)(clock_ns() - begun) * 1e-9);
    return ok && (taken > 0 || count == 1) ? 0 : 1;
}

#endif
