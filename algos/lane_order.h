/* lane_order.h - which ops of one worker come before which, across lanes (rules 2 and 3 of schedule.h).
 *
 * Fed with the WAITs and FENCEs of one worker in emitted order. Ops are told apart by their position: round << 32 |
 * number within the round, ascending as emitted. A lane's clock says for each other lane before which position all is
 * done; it grows with each WAIT and FENCE, and takes over what the waited lane itself had waited for, so that chains
 * count. Order never runs against emission: an op follows only what was emitted before it.
 *
 * The progression holds conflicting ops back by it; the verifier reports those that it does not order.
 */
#ifndef CHORALE_ALGOS_LANE_ORDER_H
#define CHORALE_ALGOS_LANE_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "algos/schedule.h"

#define LANE_CLOCK_NONE UINT32_MAX /* the clock of a lane that has waited for nothing */

/* What a lane's clock became at a position. */
struct lane_step {
    uint64_t position;
    uint32_t clock, previous; /* previous step of the lane, or LANE_CLOCK_NONE */
};

/* Set up by lane_order_init(); fields are private. */
struct lane_order {
    uint16_t lanes;
    uint32_t *latest; /* of each lane: its last step */
    struct lane_step *step;
    size_t steps, step_capacity;
    uint64_t *clock; /* of `lanes` positions each */
    size_t clocks, clock_capacity;
};

/* `lanes` >= 1. Takes no memory before the first WAIT or FENCE. Release with lane_order_release(). */
void lane_order_init(struct lane_order *order, uint16_t lanes);
void lane_order_release(struct lane_order *order);
void lane_order_restart(struct lane_order *order); /* forgets all, keeps its memory */

/* A WAIT or FENCE at `position`, with lanes in range and no round after its own. */
enum status lane_order_take(struct lane_order *order, uint64_t position, const struct op *op) MUST_CHECK;

/* The clock that an op has that is emitted now in `lane`. */
uint32_t lane_order_clock(const struct lane_order *order, uint16_t lane);

/* Whether the op at `position` of `lane` comes before one of another lane that has `clock`. */
bool lane_order_precedes(const struct lane_order *order, uint16_t lane, uint64_t position, uint32_t clock);

#endif
