/* test_control.c - framing of the control protocol: whatever comes in, nothing is believed unchecked. */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rng.h"
#include "comm/bootstrap/control.h"

static int near, far; /* the two ends of a connection */

static void setup(void)
{
    int ends[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    near = ends[0];
    far = ends[1];
}

static void teardown(void)
{
    close(near);
    if (far >= 0)
        close(far);
}

TestSuite(control, .init = setup, .fini = teardown, .timeout = 60);

static void say(const void *bytes, size_t length)
{
    cr_assert_eq(send(far, bytes, length, MSG_NOSIGNAL), (ssize_t)length);
}

Test(control, frames_arrive_byte_by_byte)
{
    struct control_reader reader = {.have = 0};
    struct control_frame frame = {.length = 0};
    unsigned char bytes[CONTROL_HEADER_BYTES + 3] = {0};
    control_header(bytes, CONTROL_GATHER, 3);
    for (size_t i = 0; i < 3; i++)
        bytes[CONTROL_HEADER_BYTES + i] = (unsigned char)('a' + i);
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < sizeof bytes; i++) {
            cr_assert_eq(control_read(&reader, near, 64, &frame), STATUS_AGAIN);
            say(&bytes[i], 1);
        }
        cr_assert_eq(control_read(&reader, near, 64, &frame), STATUS_OK);
        cr_expect_eq(frame.type, CONTROL_GATHER);
        cr_assert_eq(frame.length, 3);
        cr_expect_arr_eq(frame.payload, "abc", 3);
    }
    control_reader_release(&reader);
}

Test(control, several_frames_in_one_piece)
{
    struct control_reader reader = {.have = 0};
    struct control_frame frame = {.length = 0};
    unsigned char bytes[3 * CONTROL_HEADER_BYTES];
    for (size_t i = 0; i < 3; i++)
        control_header(bytes + i * CONTROL_HEADER_BYTES, CONTROL_GOODBYE, 0);
    say(bytes, sizeof bytes);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(control_read(&reader, near, 0, &frame), STATUS_OK);
    cr_expect_eq(control_read(&reader, near, 0, &frame), STATUS_AGAIN);
    close(far);
    far = -1;
    cr_expect_eq(control_read(&reader, near, 0, &frame), STATUS_PEER_LOST);
    control_reader_release(&reader);
}

static void expect_bad_header(uint32_t type, uint32_t length, size_t limit)
{
    struct control_reader reader = {.have = 0};
    struct control_frame frame = {.length = 0};
    unsigned char header[CONTROL_HEADER_BYTES];
    control_put_u32(header, length);
    control_put_u32(header + 4, type);
    say(header, sizeof header);
    cr_expect_eq(control_read(&reader, near, limit, &frame), STATUS_FORMAT, "type %u length %u", type, length);
    control_reader_release(&reader);
}

Test(control, unknown_types_and_long_frames_are_refused)
{
    expect_bad_header(0, 0, 100);
    expect_bad_header(CONTROL_TYPES, 0, 100);
    expect_bad_header(0xffffffffu, 0, 100);
    expect_bad_header(CONTROL_GATHER, 101, 100);
    expect_bad_header(CONTROL_GATHER, 0xffffffffu, CONTROL_WORKER_LIMIT);
}

static const unsigned char token[CONTROL_TOKEN_BYTES] = "0123456789abcde";
static const unsigned char server_nonce[PROOF_NONCE_BYTES] = "the server's nonce";

Test(control, greetings_survive_and_torn_ones_are_refused)
{
    const struct control_hello hello = {.nonce = "the worker's",
                                        .rank = 3,
                                        .size = 70000,
                                        .process = {0xfffffffeu, 0x123456789abcdef0u},
                                        .deadline_ms = 30000,
                                        .host = "he\nre"};
    struct control_hello read_back;
    unsigned char payload[CONTROL_HELLO_BYTES + 1];
    size_t length = control_hello_put(payload, &hello, token, server_nonce);
    struct control_frame frame = {.type = CONTROL_HELLO, .payload = payload, .length = length};
    cr_assert_eq(control_hello_get(&frame, token, server_nonce, &read_back), STATUS_OK);
    cr_expect_arr_eq(read_back.nonce, hello.nonce, PROOF_NONCE_BYTES);
    cr_expect_eq(read_back.rank, 3);
    cr_expect_eq(read_back.size, 70000);
    cr_expect_eq(read_back.process.pid, 0xfffffffeu);
    cr_expect_eq(read_back.process.memory, 0x123456789abcdef0u);
    cr_expect_eq(read_back.deadline_ms, 30000);
    cr_expect_str_eq(read_back.host, "he re");
    for (size_t i = 0; i < length * 8; i++) { /* every bit of it is covered by the proof */
        payload[i / 8] ^= (unsigned char)(1 << i % 8);
        cr_expect_eq(control_hello_get(&frame, token, server_nonce, &read_back), STATUS_REFUSED, "bit %zu", i);
        payload[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    cr_expect_eq(control_hello_get(&frame, server_nonce, server_nonce, &read_back), STATUS_REFUSED);
    frame.length--;
    cr_expect_eq(control_hello_get(&frame, token, server_nonce, &read_back), STATUS_REFUSED);
    frame.length = CONTROL_HELLO_FIXED - 1;
    cr_expect_eq(control_hello_get(&frame, token, server_nonce, &read_back), STATUS_FORMAT);
    frame.length = CONTROL_HELLO_BYTES + 1;
    cr_expect_eq(control_hello_get(&frame, token, server_nonce, &read_back), STATUS_FORMAT);
}

Test(control, a_recorded_greeting_is_worth_nothing_on_another_connection)
{
    const struct control_hello hello = {.nonce = "the worker's", .rank = 1, .size = 2};
    struct control_hello read_back;
    unsigned char payload[CONTROL_HELLO_BYTES], other[PROOF_NONCE_BYTES] = "another nonce";
    const struct control_frame frame = {
        .type = CONTROL_HELLO, .payload = payload, .length = control_hello_put(payload, &hello, token, server_nonce)};
    cr_expect_eq(control_hello_get(&frame, token, other, &read_back), STATUS_REFUSED);
}

Test(control, challenges_of_other_versions_are_refused)
{
    unsigned char payload[CONTROL_CHALLENGE_BYTES], nonce[PROOF_NONCE_BYTES];
    struct control_frame frame = {.type = CONTROL_CHALLENGE, .payload = payload, .length = sizeof payload};
    control_challenge_put(payload, server_nonce);
    cr_assert_eq(control_challenge_get(&frame, nonce), STATUS_OK);
    cr_expect_arr_eq(nonce, server_nonce, sizeof nonce);
    frame.length--;
    cr_expect_eq(control_challenge_get(&frame, nonce), STATUS_FORMAT);
    frame.length++;
    payload[0] ^= 1;
    cr_expect_eq(control_challenge_get(&frame, nonce), STATUS_FORMAT);
}

Test(control, texts_are_one_line_and_failures)
{
    char long_text[3000], text[CONTROL_TEXT_BYTES + 1];
    unsigned char payload[4 + CONTROL_TEXT_BYTES];
    enum status why = STATUS_OK;
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    struct control_frame frame = {.type = CONTROL_STOP, .payload = payload};
    frame.length = control_text_put(payload, STATUS_MISMATCH, long_text);
    cr_assert_eq(control_text_get(payload, frame.length, &why, text), STATUS_OK);
    cr_expect_eq(why, STATUS_MISMATCH);
    cr_expect_eq(strlen(text), CONTROL_TEXT_BYTES);
    frame.length = control_text_put(payload, STATUS_OK, "a\nb\033c");
    cr_assert_eq(control_text_get(payload, frame.length, &why, text), STATUS_OK);
    cr_expect_eq(why, STATUS_INTERNAL);
    cr_expect_str_eq(text, "a b c");
    frame.length = 3;
    cr_expect_eq(control_text_get(payload, frame.length, &why, text), STATUS_FORMAT);
}

Test(control, random_bytes_do_no_harm)
{
    uint64_t key = rng_key(1, "control", 0, 0);
    for (uint64_t round = 0; round < 3000; round++) {
        struct control_reader reader = {.have = 0};
        struct control_frame frame = {.length = 0};
        struct control_hello hello;
        unsigned char bytes[64];
        for (uint64_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (unsigned char)rng_below(key, round * sizeof bytes + i, 256);
        /* half of them with a plausible header, to get further */
        if (round % 2 == 0)
            control_header(bytes, (enum control_type)(1 + bytes[4] % 10), bytes[0] % 64);
        say(bytes, sizeof bytes);
        enum status status;
        while ((status = control_read(&reader, near, CONTROL_STRANGER_LIMIT, &frame)) == STATUS_OK)
            cr_assert_neq(control_hello_get(&frame, token, server_nonce, &hello), STATUS_OK);
        cr_assert(status == STATUS_AGAIN || status == STATUS_FORMAT);
        control_reader_release(&reader);
        while (recv(near, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
    }
}

Test(control, tokens_survive_their_text)
{
    unsigned char written[CONTROL_TOKEN_BYTES], read_back[CONTROL_TOKEN_BYTES];
    char text[CONTROL_TOKEN_TEXT];
    for (size_t i = 0; i < sizeof written; i++)
        written[i] = (unsigned char)(i * 17 + 3);
    control_token_text(written, text);
    cr_expect_eq(strlen(text), 32);
    cr_assert_eq(control_token_parse(text, read_back), STATUS_OK);
    cr_expect_arr_eq(written, read_back, sizeof written);
    cr_expect_eq(control_token_parse("", read_back), STATUS_USAGE);
    cr_expect_eq(control_token_parse("000000000000000000000000000000001", read_back), STATUS_USAGE);
}
