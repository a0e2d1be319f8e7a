/* test_rings.c - what is particular to schedules on rings and grids: who talks to whom in which round, and how much. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/algos/support_schedule.h"

#define MOST_OPS 64

static void expect_decided(const char *spec, int workers, const char *phrase)
{
    struct shape *shape = schedule_of(spec, workers);
    struct text text = {0};
    shape->algorithm->describe(shape, &text);
    cr_expect_str_eq(text_string(&text), phrase, "%s", spec);
    text_release(&text);
    shape_destroy(shape);
}

/* Every worker sends one message and gets one in every round, and 2(p-1)/p of the vector in all. */
static void expect_one_message_a_round(const struct shape *shape)
{
    const size_t p = (size_t)shape->workers;
    struct op ops[MOST_OPS];
    for (int r = 0; r < shape->workers; r++) {
        for (uint32_t round = 0; round < shape->rounds; round++) {
            size_t sent = 0;
            const size_t count = ops_of(shape, r, round, ops, MOST_OPS);
            for (size_t i = 0; i < count; i++)
                sent += ops[i].kind == OP_SEND;
            cr_expect_eq(count, 2);
            cr_expect_eq(sent, 1);
        }
        expect_sends(shape, r, 10 * p, 2 * (p - 1) * 10, shape->rounds);
    }
}

/* ---- multi-ring ---- */

Test(multi_ring, of_one_ring_is_ring)
{
    for (int p = 1; p <= 20; p++)
        expect_same_ops("multi-ring:rings=1", "ring", p);
}

Test(multi_ring, is_proved_for_any_number_of_rings)
{
    static const char *const specs[] = {"multi-ring", "multi-ring:rings=3", "multi-ring:rings=4", "multi-ring:rings=7"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (int p = 1; p <= 16; p++)
            expect_proved(specs[i], p);
}

Test(multi_ring, goes_both_ways_with_strides_that_reach_everyone)
{
    expect_decided("multi-ring:rings=1", 8, "stride +1");
    expect_decided("multi-ring", 8, "strides +1 -1");
    expect_decided("multi-ring:rings=5", 8, "strides +1 -1 +3 -3 +1");
    expect_decided("multi-ring:rings=6", 12, "strides +1 -1 +5 -5 +1 -1");
    expect_decided("multi-ring:rings=3", 2, "strides +1 -1 +1");
}

/* With as many rings as other workers, each directed link of a full mesh belongs to one ring. */
Test(multi_ring, shares_no_link_while_strides_last)
{
    enum { P = 7 };
    struct shape *shape = schedule_of("multi-ring:rings=6", P);
    struct op ops[MOST_OPS];
    for (int r = 0; r < P; r++) {
        bool used[P] = {false};
        const size_t count = ops_of(shape, r, 0, ops, MOST_OPS);
        cr_expect_eq(count, 2 * (P - 1));
        for (size_t i = 0; i < count; i++) {
            if (ops[i].kind != OP_SEND)
                continue;
            cr_expect_not(used[ops[i].peer]);
            used[ops[i].peer] = true;
        }
        expect_sends(shape, r, 6 * P * 10, 2 * (P - 1) * 60, 2 * (P - 1) * 6);
    }
    shape_destroy(shape);
}

/* ---- bucket ---- */

Test(bucket, takes_the_most_nearly_square_grid)
{
    expect_decided("bucket", 1, "dims 1x1");
    expect_decided("bucket", 12, "dims 3x4");
    expect_decided("bucket", 36, "dims 6x6");
    expect_decided("bucket", 34, "dims 2x17");
    expect_decided("bucket", 7, "dims 1x7, a plain ring");
    expect_decided("bucket:dims=3x1x4", 12, "dims 3x1x4");
    expect_decided("torus:dims=12", 12, "dims 12, a plain ring");
}

/* Rounds are those of the rings; every partner is a neighbour in one dimension. */
static void expect_grid(const char *spec, const int *size, int dims)
{
    int p = 1, steps = 0;
    for (int i = 0; i < dims; i++) {
        p *= size[i];
        steps += size[i] - 1;
    }
    struct shape *shape = schedule_of(spec, p);
    struct op ops[MOST_OPS];
    cr_expect_eq(shape->rounds, 2 * (uint32_t)steps);
    expect_one_message_a_round(shape);
    for (int r = 0; r < p; r++)
        for (uint32_t round = 0; round < shape->rounds; round++) {
            const size_t count = ops_of(shape, r, round, ops, MOST_OPS);
            for (size_t i = 0; i < count; i++) {
                int a = r, b = ops[i].peer, apart = 0;
                for (int d = dims - 1; d >= 0; d--) { /* the last dimension is the one of consecutive workers */
                    const int distance = (a % size[d] - b % size[d] + size[d]) % size[d];
                    apart += distance == 1 || distance == size[d] - 1 ? 1 : 2 * distance;
                    apart -= size[d] == 1; /* a place is its own neighbour there */
                    a /= size[d];
                    b /= size[d];
                }
                cr_expect_eq(apart, 1, "%s: worker %d and %d in round %u", spec, r, ops[i].peer, round);
            }
        }
    shape_destroy(shape);
    expect_proved(spec, p);
}

Test(bucket, is_rings_along_the_dimensions)
{
    expect_grid("bucket:dims=2x3x5", (int[]){2, 3, 5}, 3);
    expect_grid("bucket:dims=5x3x2", (int[]){5, 3, 2}, 3);
    expect_grid("bucket:dims=1x4", (int[]){1, 4}, 2);
    expect_grid("bucket:dims=7", (int[]){7}, 1);
    expect_grid("bucket:dims=3x1x3", (int[]){3, 1, 3}, 3);
    expect_grid("bucket:dims=2x2x2x2", (int[]){2, 2, 2, 2}, 4);
    expect_grid("bucket:dims=4x8", (int[]){4, 8}, 2);
}

/* A third of the vector within rows of three, then a sixth within columns. */
Test(bucket, sends_most_between_consecutive_workers)
{
    struct shape *shape = schedule_of("bucket:dims=2x3", 6);
    struct op ops[MOST_OPS];
    static const uint32_t chunks[] = {2, 2, 1, 1, 2, 2};
    for (uint32_t round = 0; round < 6; round++) {
        (void)ops_of(shape, 0, round, ops, MOST_OPS);
        cr_expect_eq(ops[0].src.chunks, chunks[round], "round %u", round);
        cr_expect_eq(ops[0].peer == 3, chunks[round] == 1, "round %u", round);
    }
    shape_destroy(shape);
}

Test(bucket, refuses_other_grids_with_one_that_would_do)
{
    expect_schedule_refused("bucket:dims=4x8", 30, "dims=4x8 is not a grid of 30 workers: dims=5x6 is");
    expect_schedule_refused("bucket:dims=2x3x5", 31, "dims=1x1x31 is");
    expect_schedule_refused("bucket:dims=8", 12, "dims=12 is");
    expect_schedule_refused("bucket:dims=2147483647x2147483647x2147483647", 8, "dims=8x1x1 is");
}

/* ---- pairwise ---- */

Test(pairwise, partners_are_t_apart)
{
    for (int p = 2; p <= 20; p++) {
        struct shape *shape = schedule_of("pairwise", p);
        struct op ops[MOST_OPS];
        cr_expect_eq(shape->rounds, 2 * (uint32_t)(p - 1));
        expect_one_message_a_round(shape);
        for (int r = 0; r < p; r++)
            for (uint32_t round = 0; round < shape->rounds; round++) {
                const int t = 1 + (int)(round % (uint32_t)(p - 1));
                (void)ops_of(shape, r, round, ops, MOST_OPS);
                cr_expect_eq(ops[0].peer, (r + t) % p);
                cr_expect_eq(ops[1].peer, (r - t + p) % p);
            }
        shape_destroy(shape);
    }
}

/* ---- neighbor-exchange ---- */

Test(neighbor_exchange, takes_as_many_rounds_as_workers_with_both_neighbours_in_turn)
{
    for (int p = 2; p <= 40; p += 2) {
        struct shape *shape = schedule_of("neighbor-exchange", p);
        struct op ops[MOST_OPS];
        cr_expect_eq(shape->rounds, (uint32_t)p);
        cr_expect_eq(shape->split, (uint32_t)p / 2);
        expect_one_message_a_round(shape);
        for (int r = 0; r < p; r++) {
            int before = -1;
            for (uint32_t round = shape->split; round < shape->rounds; round++) {
                (void)ops_of(shape, r, round, ops, MOST_OPS);
                const int distance = (ops[0].peer - r + p) % p;
                cr_expect(distance == 1 || distance == p - 1);
                cr_expect_eq(ops[0].peer, ops[1].peer);
                cr_expect(p == 2 || ops[0].peer != before, "another one than in the round before");
                before = ops[0].peer;
            }
        }
        shape_destroy(shape);
    }
}

Test(neighbor_exchange, refuses_odd_counts)
{
    expect_schedule_refused("neighbor-exchange", 7, "even number of workers, not 7: 6 would do");
}
