/* radix.h - workers numbered in a mixed radix, one digit a round: in each, those whose numbers differ in that digit
 * alone form a group. What algorithms of that kind have in common.
 *
 *   6 = 3 * 2, near digits first    round 0: {0 1 2} {3 4 5}          round 1: {0 3} {1 4} {2 5}
 *   far digits first                round 0: {0 2 4} {1 3 5}          round 1: {0 1} {2 3} {4 5}
 *
 * Where the number of workers has no such factors, a core of them works so; each of the others hands its vector to a
 * member of the core first and gets the result at the end (group.h: the runs of workers that members of the core head).
 *
 * All functions but the first two need the state that one of those has put into the shape.
 */
#ifndef CHORALE_ALGOS_RADIX_H
#define CHORALE_ALGOS_RADIX_H

#include "algos/schedule.h"

#define RADIX_DIGITS 31

/* shape->state */
struct radices {
    int core;   /* workers: the product of all     */
    int folded; /* workers outside the core that its most burdened member heads */
    int digits;
    int radix[RADIX_DIGITS];
    bool far_first;
};

/* Fills in state and scratch. Radices of at most `largest`: all workers are in the core if their number has such
 * factors, else that core is taken, of which no member heads more than `fold` others, that needs fewest rounds and then
 * fewest messages, when the digits are gone through `passes` times. */
enum status radix_choose(struct shape *shape, int largest, int fold, int passes, bool far_first) MUST_CHECK;
/* The same for workers = base * base * ... * rest, where base does not divide the rest; near digits first. */
enum status radix_divide(struct shape *shape, int base) MUST_CHECK;

/* For the algorithm's release and describe ("groups of 4x3", "groups of 4x4, 3 workers folded"). */
void radix_release(struct shape *shape);
void radix_describe(const struct shape *shape, struct text *text);

/* The round of a digit: all members of a group get the sum of their vectors. */
enum status radix_exchange(const struct shape *shape, int rank, int digit, struct sink *sink) MUST_CHECK;
/* The same with parts: members share out what the round before has left to their group; and back. With as many leaves
 * as the core has members, radix_owner has leaf c after all rounds of scattering. */
enum status radix_scatter(const struct shape *shape, int rank, int digit, struct sink *sink) MUST_CHECK;
enum status radix_gather(const struct shape *shape, int rank, int digit, struct sink *sink) MUST_CHECK;
int radix_owner(const struct shape *shape, uint32_t chunk);

/* Those outside the core send their vectors to the heads of their runs, which add them; and they get the result. */
enum status radix_fold(const struct shape *shape, int rank, struct sink *sink) MUST_CHECK;
enum status radix_unfold(const struct shape *shape, int rank, struct sink *sink) MUST_CHECK;

/* Closed forms: folding and unfolding; all rounds of exchanges; all of scattering and gathering. */
double radix_fold_cost(const struct shape *shape, const struct cost_model *model, size_t bytes);
double radix_exchange_cost(const struct shape *shape, const struct cost_model *model, size_t bytes);
double radix_parts_cost(const struct shape *shape, const struct cost_model *model, size_t bytes);

#endif
