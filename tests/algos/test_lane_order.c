/* test_lane_order.c - which ops come before which: by hand, and against paths in a graph of random schedules. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "algos/lane_order.h"
#include "base/rng.h"
#include "tests/base/expect.h"

static uint64_t at(uint32_t round, uint32_t number)
{
    return (uint64_t)round << 32 | number;
}

static void wait_for(struct lane_order *order, uint64_t position, uint16_t lane, uint16_t waited, uint32_t round)
{
    const struct op op = {.kind = OP_WAIT, .lane = lane, .wait_lane = waited, .wait_round = round};
    EXPECT_OK(lane_order_take(order, position, &op));
}

static void fence(struct lane_order *order, uint64_t position, uint16_t lane, uint16_t lanes)
{
    const struct op op = {.kind = OP_FENCE, .lane = lane, .lanes = lanes};
    EXPECT_OK(lane_order_take(order, position, &op));
}

/* Does what stands at `position` of `lane` come before what is emitted now in `here`? */
static bool before(const struct lane_order *order, uint16_t lane, uint64_t position, uint16_t here)
{
    return lane_order_precedes(order, lane, position, lane_order_clock(order, here));
}

Test(lane_order, a_wait_is_for_rounds_of_one_lane)
{
    struct lane_order order;
    lane_order_init(&order, 3);
    cr_expect_not(before(&order, 0, at(0, 1), 1));
    wait_for(&order, at(3, 5), 1, 0, 2);
    cr_expect(before(&order, 0, at(2, 99), 1));
    cr_expect_not(before(&order, 0, at(3, 1), 1), "a later round");
    cr_expect_not(before(&order, 2, at(0, 1), 1), "another lane");
    cr_expect_not(before(&order, 1, at(0, 1), 0), "not the other way round");
    wait_for(&order, at(3, 6), 1, 0, 3);
    cr_expect(before(&order, 0, at(3, 5), 1));
    cr_expect_not(before(&order, 0, at(3, 7), 1), "emitted after the wait");
    lane_order_release(&order);
}

Test(lane_order, waits_make_chains)
{
    struct lane_order order;
    lane_order_init(&order, 3);
    wait_for(&order, at(1, 1), 1, 0, 0);
    wait_for(&order, at(2, 1), 2, 1, 1);
    cr_expect(before(&order, 0, at(0, 7), 2));
    wait_for(&order, at(3, 1), 1, 0, 2);
    cr_expect_not(before(&order, 0, at(2, 1), 2), "waited for after lane 2 had waited");
    wait_for(&order, at(3, 2), 2, 1, 2);
    cr_expect_not(before(&order, 0, at(2, 1), 2), "a wait for round 2 takes over nothing of round 3");
    wait_for(&order, at(3, 3), 2, 1, 3);
    cr_expect(before(&order, 0, at(2, 1), 2));
    lane_order_release(&order);
}

Test(lane_order, a_fence_joins_lanes_and_what_they_have_waited_for)
{
    struct lane_order order;
    lane_order_init(&order, 4);
    wait_for(&order, at(0, 2), 1, 0, 0);
    fence(&order, at(1, 3), 1, 2);
    cr_expect(before(&order, 1, at(1, 2), 2));
    cr_expect(before(&order, 2, at(1, 2), 1));
    cr_expect_not(before(&order, 2, at(1, 4), 1));
    cr_expect(before(&order, 0, at(0, 1), 2), "lane 1 had waited for it");
    cr_expect_not(before(&order, 1, at(0, 1), 3));
    lane_order_restart(&order);
    cr_expect_not(before(&order, 1, at(0, 1), 2));
    lane_order_release(&order);
}

/* ---- against an oracle ---- */

#define MOST_OPS 60
#define LANES 4

struct node {
    struct op op;
    uint64_t position;
    bool reached[MOST_OPS]; /* nodes that come before */
};

static bool in_lane(const struct node *node, uint16_t lane)
{
    if (node->op.kind == OP_FENCE)
        return node->op.lane <= lane && lane < node->op.lane + node->op.lanes;
    return node->op.lane == lane;
}

static void follow(struct node *nodes, size_t after, size_t earlier)
{
    nodes[after].reached[earlier] = true;
    for (size_t i = 0; i < MOST_OPS; i++)
        nodes[after].reached[i] |= nodes[earlier].reached[i];
}

static struct op random_op(uint64_t key, uint64_t *counter, uint32_t round)
{
    const uint64_t kind = rng_below(key, (*counter)++, 6);
    struct op op = {.kind = kind == 0 ? OP_FENCE : kind < 3 ? OP_WAIT : OP_SEND, .round = round};
    op.lane = (uint16_t)rng_below(key, (*counter)++, LANES);
    op.wait_lane = (uint16_t)rng_below(key, (*counter)++, LANES);
    op.wait_round = (uint32_t)rng_below(key, (*counter)++, round + 1);
    op.lanes = (uint16_t)(1 + rng_below(key, (*counter)++, LANES - op.lane));
    return op;
}

/* Paths: along a lane, from what a WAIT names to the WAIT, and through a FENCE, which stands in all its lanes. */
static void link_up(struct node *nodes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (uint16_t lane = 0; lane < LANES; lane++) {
            const bool along = in_lane(&nodes[n], lane) && in_lane(&nodes[i], lane);
            const bool waited = nodes[n].op.kind == OP_WAIT && lane == nodes[n].op.wait_lane &&
                                in_lane(&nodes[i], lane) && nodes[i].op.round <= nodes[n].op.wait_round;
            if (along || waited)
                follow(nodes, n, i);
        }
}

static void expect_same_order(uint64_t seed)
{
    static struct node nodes[MOST_OPS];
    const uint64_t key = rng_key(seed, "lane order", 0, 0);
    uint64_t counter = 0;
    uint32_t round = 0, number = 0;
    struct lane_order order;
    lane_order_init(&order, LANES);
    for (size_t n = 0; n < MOST_OPS; n++) {
        if (rng_below(key, counter++, 4) == 0) {
            round++;
            number = 0;
        }
        nodes[n] = (struct node){.op = random_op(key, &counter, round), .position = at(round, ++number)};
        link_up(nodes, n);
        const struct op *op = &nodes[n].op;
        if (op->kind != OP_SEND) {
            EXPECT_OK(lane_order_take(&order, nodes[n].position, op));
            continue;
        }
        const uint32_t clock = lane_order_clock(&order, op->lane);
        for (size_t i = 0; i < n; i++)
            if (nodes[i].op.kind == OP_SEND && nodes[i].op.lane != op->lane)
                cr_expect_eq(lane_order_precedes(&order, nodes[i].op.lane, nodes[i].position, clock),
                             nodes[n].reached[i], "seed %llu: op %zu before op %zu", (unsigned long long)seed, i, n);
    }
    lane_order_release(&order);
}

Test(lane_order, is_that_of_paths_in_a_graph)
{
    for (uint64_t seed = 1; seed <= 300; seed++)
        expect_same_order(seed);
}
