/* test_network_aware.c - what is particular to schedules made for networks whose links are shared: their peers as
 * published, rounds, messages and bytes of every worker, how far the bytes go on a ring, who owns what.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "algos/verify.h"
#include "tests/algos/support_schedule.h"

/* ---- what a worker sends in a round ---- */

#define MAX_SENT 8

struct sent {
    struct sink sink; /* first */
    bool joined, block0;
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
    sent->block0 |= op->src.chunk == 0;
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
    struct shape *shape = schedule_of(text, workers);
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
    struct shape *shape = schedule_of(text, workers);
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
    struct shape *shape = schedule_of(text, workers);
    for (int r = 0; r < workers; r++)
        expect_sends(shape, r, count, elements, messages);
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
        struct shape *shape = schedule_of("swing-latency", p);
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
        struct shape *shape = schedule_of("bine-latency", p);
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
        struct shape *shape = schedule_of("bine", p);
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
    struct shape *shape = schedule_of("bine", 8);
    for (uint32_t c = 0; c < 8; c++)
        cr_expect_eq(shape->algorithm->owner(shape, c), owners[c], "chunk %u", c);
    shape_destroy(shape);
}

/* ---- Swing, blocks ---- */

static uint32_t rounds_of(uint32_t workers, uint32_t base)
{
    uint32_t rounds = 0;
    for (uint32_t reached = 1; reached < workers; reached *= base)
        rounds++;
    return rounds;
}

Test(swing, meets_the_published_peers_nearest_first_and_back)
{
    expect_peers("swing", 8, 0, (const int[]){1, 7, 3, 3, 7, 1}, 6);
    expect_peers("swing", 8, 5, (const int[]){4, 6, 2, 2, 6, 4}, 6);
    expect_peers("swing", 16, 0, (const int[]){1, 15, 3, 11, 11, 3, 15, 1}, 8);
    cr_expect_eq(hops_of("swing", 64), hops_of("bine", 64));
}

Test(swing, sends_least_bytes_in_logarithmic_rounds_for_any_even_count)
{
    for (size_t p = 2; p <= 70; p += 2)
        expect_traffic("swing", (int)p, 10 * p, 20 * (p - 1), 2 * rounds_of((uint32_t)p, 2));
}

/* A large and awkward even count: everybody is reached. */
Test(swing, reaches_everyone_in_large_teams)
{
    for (int p = 1022; p <= 1030; p++)
        shape_destroy(schedule_of("swing", p));
    shape_destroy(schedule_of("swing", 43690));
    shape_destroy(schedule_of("swing", 43692));
}

Test(swing, leaves_no_worker_with_more_than_the_helper_of_an_odd_team)
{
    for (int p = 3; p <= 33; p += 2) {
        const size_t core = (size_t)p - 1, count = 100 * core;
        struct shape *shape = schedule_of("swing", p);
        for (int r = 0; r < p; r++) {
            const bool helper = r == p - 1;
            const uint32_t rounds = 2 * rounds_of((uint32_t)core, 2);
            expect_sends(shape, r, count, helper ? count : 200 * (core - 1) + 100, helper ? core : rounds + 1);
        }
        shape_destroy(shape);
    }
}

/* Who sends block 0 on in each round of the reducing half, by hand: 4 and 5 reach it two rounds and one later than
 * they could, so that nobody counts twice. */
Test(swing, six_workers_reduce_along_a_tree)
{
    static const int parents[3][6] = {{-1, 0, 3, -1, -1, -1}, {-1, -1, -1, -1, 3, 0}, {-1, -1, -1, 0, -1, -1}};
    struct shape *shape = schedule_of("swing", 6);
    for (uint32_t t = 0; t < 3; t++)
        for (int r = 0; r < 6; r++) {
            const struct sent sent = sent_in(shape, r, t);
            cr_expect_eq(sent.messages, 1);
            cr_expect_eq(sent.block0 ? sent.peer[0] : -1, parents[t][r], "round %u worker %d", t, r);
        }
    shape_destroy(shape);
}

/* ---- Trivance ---- */

static void expect_both_peers(int workers, int rank, uint32_t round, int first, int second)
{
    struct shape *shape = schedule_of("trivance", workers);
    const struct sent sent = sent_in(shape, rank, round);
    cr_expect_eq(sent.messages, 2);
    cr_expect(sent.peer[0] == first && sent.peer[1] == second, "%d workers: worker %d round %u sends to %d and %d",
              workers, rank, round, sent.peer[0], sent.peer[1]);
    cr_expect_eq(sent.ranges, 2, "one range each where p is a power of three");
    cr_expect_eq(sent.chunks[0], sent.chunks[1], "both ports carry as much");
    shape_destroy(shape);
}

Test(trivance, meets_both_neighbours_at_tripling_distances)
{
    expect_both_peers(9, 0, 0, 1, 8);
    expect_both_peers(9, 0, 1, 3, 6);
    expect_both_peers(27, 5, 0, 6, 4);
    expect_both_peers(27, 5, 1, 8, 2);
    expect_both_peers(27, 5, 2, 14, 23);
}

Test(trivance, sends_least_bytes_in_the_fewest_rounds_for_any_count)
{
    for (uint32_t p = 2; p <= 90; p++) {
        struct shape *shape = schedule_of("trivance", (int)p);
        cr_expect_eq(shape->rounds, 2 * rounds_of(p, 3), "%u workers", p);
        for (int r = 0; r < (int)p; r += 7) {
            size_t bytes = 0;
            cr_assert_eq(shape_traffic(shape, r, (size_t)10 * p, 1, &bytes, NULL), STATUS_OK);
            cr_expect_eq(bytes, 20 * ((size_t)p - 1), "%u workers", p);
        }
        shape_destroy(shape);
    }
}

static void expect_described(const char *spec, int workers, const char *wanted)
{
    struct shape *shape = schedule_of(spec, workers);
    struct text text = {0};
    shape->algorithm->describe(shape, &text);
    cr_expect_str_eq(text_string(&text), wanted, "%s of %d", spec, workers);
    text_release(&text);
    shape_destroy(shape);
}

Test(trivance, goes_no_farther_in_the_last_round_than_it_must)
{
    expect_described("trivance", 9, "distances 1, 3");
    expect_described("trivance", 4, "distances 1, 1");
    expect_described("trivance", 12, "distances 1, 3, 2");
    expect_described("trivance", 20, "distances 1, 3, 6");
    expect_described("trivance", 27, "distances 1, 3, 9");
}

Test(trivance, owners_are_numbered_by_reversed_digits_for_powers_of_three)
{
    static const int owners[] = {0, 3, 6, 1, 4, 7, 2, 5, 8};
    struct shape *shape = schedule_of("trivance", 9);
    for (uint32_t c = 0; c < 9; c++)
        cr_expect_eq(shape->algorithm->owner(shape, c), owners[c], "chunk %u", c);
    shape_destroy(shape);
    shape = schedule_of("trivance", 10);
    for (uint32_t c = 0; c < 10; c++)
        cr_expect_eq(shape->algorithm->owner(shape, c), (int)c);
    shape_destroy(shape);
}

/* ---- PAT ---- */

Test(pat, sends_least_bytes_in_logarithmic_rounds_for_any_count)
{
    for (size_t p = 2; p <= 70; p++)
        expect_traffic("pat", (int)p, 10 * p, 20 * (p - 1), 2 * rounds_of((uint32_t)p, 2));
}

/* Distances and blocks of the spreading half for 8 workers, as published: 4; 2 2; 1 1 1 1 in the order of a walk. */
Test(pat, aggregates_as_many_blocks_as_it_is_told)
{
    static const struct {
        const char *spec;
        uint32_t rounds;
        int distance[7];
        uint32_t chunks[7];
    } cases[] = {
        {"pat", 3, {4, 2, 1}, {1, 2, 4}},
        {"pat:aggregation=8", 3, {4, 2, 1}, {1, 2, 4}},
        {"pat:aggregation=4", 3, {4, 2, 1}, {1, 2, 4}},
        {"pat:aggregation=2", 4, {4, 2, 1, 1}, {1, 2, 2, 2}},
        {"pat:aggregation=1", 7, {4, 2, 1, 1, 2, 1, 1}, {1, 1, 1, 1, 1, 1, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shape *shape = schedule_of(cases[i].spec, 8);
        cr_assert_eq(shape->rounds, 2 * cases[i].rounds, "%s", cases[i].spec);
        for (uint32_t t = 0; t < cases[i].rounds; t++) {
            const struct sent up = sent_in(shape, 3, shape->split + t);
            const struct sent down = sent_in(shape, 3, shape->split - 1 - t);
            cr_expect_eq(up.peer[0], (3 + cases[i].distance[t]) % 8, "%s round %u", cases[i].spec, t);
            cr_expect_eq(down.peer[0], (11 - cases[i].distance[t]) % 8, "%s round %u", cases[i].spec, t);
            cr_expect_eq(up.chunks[0], cases[i].chunks[t], "%s round %u", cases[i].spec, t);
            cr_expect_eq(up.ranges, 1);
        }
        shape_destroy(shape);
    }
}

Test(pat, is_proved_with_any_aggregation)
{
    static const char *const specs[] = {"pat:aggregation=1", "pat:aggregation=2", "pat:aggregation=8"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (int p = 1; p <= 20; p++) {
            struct shape *shape = schedule_of(specs[i], p);
            cr_expect(proved(shape).equal_bits || p == 1);
            shape_destroy(shape);
        }
    expect_described("pat:aggregation=2", 11, "at most 2 of 11 chunks in a message");
}

/* Most bytes go one hop: n/2 of them; n/4 go 2, n/8 go 4, ..., against the reverse of recursive halving. */
Test(pat, sends_little_far)
{
    cr_expect_eq(hops_of("pat", 64), 2 * (32 * 1 + 16 * 2 + 8 * 4 + 4 * 8 + 2 * 16 + 1 * 32));
    cr_expect_lt(hops_of("bine", 64), hops_of("pat", 64));
    cr_expect_lt(hops_of("pat", 64), hops_of("rhd", 64));
}

Test(pat, refuses_an_aggregation_that_is_no_power_of_two)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    cr_assert_eq(spec_parse("pat:aggregation=3", &spec), STATUS_OK);
    cr_assert_eq(layout_flat(4, &layout), STATUS_OK);
    cr_expect_eq(spec_shape(&spec, &layout, 0, 0, &shape), STATUS_USAGE);
    cr_expect(strstr(status_message(), "power of two") != NULL, "%s", status_message());
    layout_release(&layout);
    spec_release(&spec);
}

/* ---- Trivance, whole vectors ---- */

Test(trivance_latency, meets_both_neighbours_farthest_first)
{
    static const int up[] = {14, 8, 6}, down[] = {23, 2, 4};
    struct shape *shape = schedule_of("trivance-latency", 27);
    cr_assert_eq(shape->rounds, 3);
    for (uint32_t t = 0; t < 3; t++) {
        const struct sent sent = sent_in(shape, 5, t);
        cr_expect_eq(sent.messages, 2);
        cr_expect(sent.peer[0] == up[t] && sent.peer[1] == down[t], "round %u: %d and %d", t, sent.peer[0],
                  sent.peer[1]);
    }
    shape_destroy(shape);
}

Test(trivance_latency, takes_fewest_rounds_for_cores_of_three_powers_and_twice_that)
{
    static const struct {
        int workers;
        uint32_t rounds;
    } cases[] = {{1, 0}, {2, 1}, {3, 1}, {4, 3}, {5, 3}, {6, 2}, {8, 4}, {9, 2}, {18, 3}, {26, 5}, {27, 3}, {54, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shape *shape = schedule_of("trivance-latency", cases[i].workers);
        cr_expect_eq(shape->rounds, cases[i].rounds, "%d workers: %u rounds", cases[i].workers, shape->rounds);
        shape_destroy(shape);
    }
    expect_traffic("trivance-latency", 9, 100, 400, 4);
    expect_traffic("trivance-latency", 18, 100, 500, 5);
    expect_described("trivance-latency", 8, "6 workers exchange, 2 hand theirs to a neighbour");
}

/* Three summands in an order of their own would differ. */
Test(trivance_latency, adds_in_one_order_everywhere)
{
    for (int p = 2; p <= 40; p++) {
        struct shape *shape = schedule_of("trivance-latency", p);
        const struct verify_result result = proved(shape);
        cr_expect(result.equal_bits && result.same_order, "%d workers", p);
        shape_destroy(shape);
    }
}
