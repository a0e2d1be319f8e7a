/* test_network_aware.c - what is particular to schedules made for networks whose links are shared: their peers as
 * published, rounds, messages and bytes of every worker, how far the bytes go on a ring, who owns what.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "algos/spec.h"
#include "algos/verify.h"

static struct shape *shape_of(const char *text, int workers)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    cr_assert_eq(layout_flat(workers, &layout), STATUS_OK);
    cr_assert_eq(spec_shape(&spec, &layout, 0, 1000, &shape), STATUS_OK, "%s: %s", text, status_message());
    layout_release(&layout);
    spec_release(&spec);
    return shape;
}

/* ---- what a worker sends in a round ---- */

#define MAX_SENT 8

struct sent {
    struct sink sink; /* first */
    bool joined;
    size_t messages, ranges;
    int peer[MAX_SENT];
    uint32_t chunks[MAX_SENT];
};

static enum status note(struct sink *sink, const struct op *op)
{
    struct sent *sent = (struct sent *)sink;
    if (op->kind != OP_SEND)
        return STATUS_OK;
    cr_assert(sent->joined || sent->messages < MAX_SENT);
    if (!sent->joined)
        sent->peer[sent->messages++] = op->peer;
    sent->ranges++;
    sent->chunks[sent->messages - 1] += op->src.chunks;
    sent->joined = op->flags & OP_MORE;
    return STATUS_OK;
}

static struct sent sent_in(const struct shape *shape, int rank, uint32_t round)
{
    struct sent sent = {.sink = {.op = note, .round = round}};
    cr_assert_eq(shape->algorithm->emit(shape, rank, round, &sent.sink), STATUS_OK, "%s", status_message());
    cr_assert_not(sent.joined);
    return sent;
}

/* The one peer of each round. */
static void expect_peers(const char *text, int workers, int rank, const int *peers, uint32_t rounds)
{
    struct shape *shape = shape_of(text, workers);
    cr_assert_eq(shape->rounds, rounds, "%s of %d: %u rounds", text, workers, shape->rounds);
    for (uint32_t t = 0; t < rounds; t++) {
        const struct sent sent = sent_in(shape, rank, t);
        cr_expect_eq(sent.messages, 1);
        cr_expect_eq(sent.peer[0], peers[t], "%s of %d: worker %d round %u meets %d", text, workers, rank, t,
                     sent.peer[0]);
    }
    shape_destroy(shape);
}

/* ---- distances: what a worker sends, times hops on a ring ---- */

#define VECTOR 64 /* in these parts, which the chunks of a shape must divide */

static size_t hops_of(const char *text, int workers)
{
    struct shape *shape = shape_of(text, workers);
    size_t hops = 0;
    for (int r = 0; r < workers; r++)
        for (uint32_t t = 0; t < shape->rounds; t++) {
            const struct sent sent = sent_in(shape, r, t);
            for (size_t i = 0; i < sent.messages; i++) {
                const int up = (sent.peer[i] - r + workers) % workers;
                hops += (size_t)(up < workers - up ? up : workers - up) * sent.chunks[i] * (VECTOR / shape->chunks);
            }
        }
    shape_destroy(shape);
    return hops / (size_t)workers;
}

/* ---- traffic, bits ---- */

static void expect_traffic(const char *text, int workers, size_t count, size_t elements, size_t messages)
{
    struct shape *shape = shape_of(text, workers);
    for (int r = 0; r < workers; r++) {
        size_t bytes = 0, sent = 0;
        cr_assert_eq(shape_traffic(shape, r, count, 4, &bytes, &sent), STATUS_OK);
        cr_expect_eq(bytes, 4 * elements, "%s of %d: worker %d sends %zu bytes", text, workers, r, bytes);
        cr_expect_eq(sent, messages, "%s of %d: worker %d sends %zu messages", text, workers, r, sent);
    }
    shape_destroy(shape);
}

static struct verify_result proved(const struct shape *shape)
{
    struct verify_result result;
    cr_assert_eq(verify_shape(shape, &result), STATUS_OK, "%s", status_message());
    cr_assert(result.ok, "%s of %d: %s", shape->algorithm->name, shape->workers, result.reason);
    return result;
}

/* ---- Swing ---- */

Test(swing_latency, meets_the_published_peers)
{
    expect_peers("swing-latency", 8, 0, (const int[]){1, 7, 3}, 3);
    expect_peers("swing-latency", 8, 1, (const int[]){0, 2, 6}, 3);
    expect_peers("swing-latency", 16, 0, (const int[]){1, 15, 3, 11}, 4);
    expect_peers("swing-latency", 16, 5, (const int[]){4, 6, 2, 10}, 4);
}

Test(swing_latency, sends_as_much_as_recursive_doubling_over_less_distance)
{
    for (int levels = 1; levels <= 6; levels++)
        expect_traffic("swing-latency", 1 << levels, 100, 100 * (size_t)levels, (size_t)levels);
    cr_expect_eq(hops_of("swing-latency", 8), VECTOR * (1 + 1 + 3));
    cr_expect_eq(hops_of("rd", 8), VECTOR * (1 + 2 + 4));
    cr_expect_eq(hops_of("swing-latency", 64), VECTOR * (1 + 1 + 3 + 5 + 11 + 21));
    cr_expect_eq(hops_of("rd", 64), VECTOR * (1 + 2 + 4 + 8 + 16 + 32));
}

/* What the shape says is what the proof finds. */
Test(swing_latency, has_equal_bits_up_to_seven_workers)
{
    for (int p = 2; p <= 17; p++) {
        struct shape *shape = shape_of("swing-latency", p);
        const struct verify_result result = proved(shape);
        cr_expect_eq(result.equal_bits, p <= 7, "%d workers", p);
        cr_expect_eq((shape->traits & TRAIT_EQUAL_BITS) != 0, result.equal_bits, "%d workers", p);
        cr_expect_eq((shape->traits & TRAIT_SAME_ORDER) != 0, result.same_order, "%d workers", p);
        shape_destroy(shape);
    }
}

/* ---- Bine ---- */

Test(bine_latency, meets_the_peers_of_swing_farthest_first)
{
    expect_peers("bine-latency", 8, 0, (const int[]){3, 7, 1}, 3);
    expect_peers("bine-latency", 16, 5, (const int[]){10, 2, 6, 4}, 4);
    cr_expect_eq(hops_of("bine-latency", 64), hops_of("swing-latency", 64));
}

Test(bine_latency, has_equal_bits_in_one_order)
{
    for (int p = 2; p <= 33; p++) {
        struct shape *shape = shape_of("bine-latency", p);
        const struct verify_result result = proved(shape);
        cr_expect(result.equal_bits && result.same_order, "%d workers", p);
        shape_destroy(shape);
    }
}

Test(bine, meets_the_published_peers_nearest_first_and_back)
{
    expect_peers("bine", 8, 0, (const int[]){1, 7, 3, 3, 7, 1}, 6);
    expect_peers("bine", 16, 5, (const int[]){4, 6, 2, 10, 10, 2, 6, 4}, 8);
}

Test(bine, sends_one_range_a_message)
{
    for (int p = 2; p <= 40; p++) {
        struct shape *shape = shape_of("bine", p);
        for (int r = 0; r < p; r++)
            for (uint32_t t = 0; t < shape->rounds; t++) {
                const struct sent sent = sent_in(shape, r, t);
                cr_expect(sent.messages <= 1 && sent.ranges == sent.messages);
            }
        shape_destroy(shape);
    }
    for (size_t levels = 1; levels <= 6; levels++) {
        const size_t p = (size_t)1 << levels;
        expect_traffic("bine", (int)p, 10 * p, 20 * (p - 1), 2 * levels);
    }
}

Test(bine, sends_most_bytes_to_near_peers)
{
    cr_expect_eq(hops_of("bine", 64), 2 * (32 * 1 + 16 * 1 + 8 * 3 + 4 * 5 + 2 * 11 + 1 * 21));
    cr_expect_eq(hops_of("rhd", 64), 2 * (32 * 32 + 16 * 16 + 8 * 8 + 4 * 4 + 2 * 2 + 1 * 1));
}

/* Worked out by hand: worker 0 is the first of every class, 1 (whom it meets first) the last of the other half. */
Test(bine, owners_are_numbered_by_class)
{
    static const int owners[] = {0, 3, 4, 7, 2, 5, 6, 1};
    struct shape *shape = shape_of("bine", 8);
    for (uint32_t c = 0; c < 8; c++)
        cr_expect_eq(shape->algorithm->owner(shape, c), owners[c], "chunk %u", c);
    shape_destroy(shape);
}
