/* lane_order.c - vector clocks over the lanes of one worker. */
#include "algos/lane_order.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define NONE LANE_CLOCK_NONE

void lane_order_init(struct lane_order *order, uint16_t lanes)
{
    *order = (struct lane_order){.lanes = lanes};
}

void lane_order_release(struct lane_order *order)
{
    free(order->latest);
    free(order->step);
    free(order->clock);
    *order = (struct lane_order){0};
}

void lane_order_restart(struct lane_order *order)
{
    if (order->steps > 0)
        memset(order->latest, 0xff, order->lanes * sizeof(uint32_t)); /* NONE */
    order->steps = order->clocks = 0;
}

static uint64_t *clock_at(const struct lane_order *order, uint32_t clock)
{
    return order->clock + (size_t)clock * order->lanes;
}

/* Take over what `from` knows. */
static void join(const struct lane_order *order, uint64_t *into, uint32_t from)
{
    for (uint16_t l = 0; from != NONE && l < order->lanes; l++) {
        const uint64_t position = clock_at(order, from)[l];
        into[l] = position > into[l] ? position : into[l];
    }
}

/* The clock of `lane` before `position`. */
static uint32_t clock_before(const struct lane_order *order, uint16_t lane, uint64_t position)
{
    uint32_t s = order->latest[lane];
    while (s != NONE && order->step[s].position >= position)
        s = order->step[s].previous;
    return s == NONE ? NONE : order->step[s].clock;
}

static enum status make_room(struct lane_order *order, size_t steps)
{
    void *memory = order->latest;
    if (memory == NULL) {
        TRY(memory_zeroed(&memory, order->lanes, sizeof(uint32_t)));
        memset(memory, 0xff, order->lanes * sizeof(uint32_t)); /* NONE */
        order->latest = memory;
    }
    memory = order->step;
    TRY(memory_grow(&memory, &order->step_capacity, order->steps + steps, sizeof(struct lane_step)));
    order->step = memory;
    memory = order->clock;
    TRY(memory_grow(&memory, &order->clock_capacity, (order->clocks + 1) * order->lanes, sizeof(uint64_t)));
    order->clock = memory;
    return STATUS_OK;
}

static void add_step(struct lane_order *order, uint16_t lane, uint64_t position, uint32_t clock)
{
    order->step[order->steps] =
        (struct lane_step){.position = position, .clock = clock, .previous = order->latest[lane]};
    order->latest[lane] = (uint32_t)order->steps++;
}

static void take_wait(struct lane_order *order, uint64_t position, const struct op *op, uint64_t *clock)
{
    const uint64_t end = ((uint64_t)op->wait_round + 1) << 32, bound = end < position ? end : position;
    join(order, clock, lane_order_clock(order, op->lane));
    join(order, clock, clock_before(order, op->wait_lane, bound));
    if (clock[op->wait_lane] < bound)
        clock[op->wait_lane] = bound;
    add_step(order, op->lane, position, (uint32_t)order->clocks);
}

static void take_fence(struct lane_order *order, uint64_t position, const struct op *op, uint64_t *clock)
{
    for (uint16_t i = 0; i < op->lanes; i++)
        join(order, clock, lane_order_clock(order, (uint16_t)(op->lane + i)));
    for (uint16_t i = 0; i < op->lanes; i++) {
        clock[op->lane + i] = position;
        add_step(order, (uint16_t)(op->lane + i), position, (uint32_t)order->clocks);
    }
}

enum status lane_order_take(struct lane_order *order, uint64_t position, const struct op *op)
{
    TRY(make_room(order, op->kind == OP_FENCE ? op->lanes : 1));
    uint64_t *clock = clock_at(order, (uint32_t)order->clocks);
    memset(clock, 0, order->lanes * sizeof(uint64_t));
    if (op->kind == OP_FENCE)
        take_fence(order, position, op, clock);
    else
        take_wait(order, position, op, clock);
    order->clocks++;
    return STATUS_OK;
}

uint32_t lane_order_clock(const struct lane_order *order, uint16_t lane)
{
    if (order->steps == 0 || order->latest[lane] == NONE)
        return NONE;
    return order->step[order->latest[lane]].clock;
}

bool lane_order_precedes(const struct lane_order *order, uint16_t lane, uint64_t position, uint32_t clock)
{
    return clock != NONE && position < clock_at(order, clock)[lane];
}
