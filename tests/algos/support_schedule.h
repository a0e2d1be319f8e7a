/* support_schedule.h - what suites of single algorithms ask of a schedule. */
#ifndef CHORALE_TESTS_ALGOS_SUPPORT_SCHEDULE_H
#define CHORALE_TESTS_ALGOS_SUPPORT_SCHEDULE_H

#include "algos/schedule.h"

/* The shape of a spec for workers on a node each; the test fails where there is none. Free with shape_destroy(). */
struct shape *schedule_of(const char *spec, int workers);

/* The spec is refused for so many workers, with `reason` in the message. */
void expect_schedule_refused(const char *spec, int workers, const char *reason);

/* The ops of one worker in one round, in order; the test fails where there are more than `capacity`. Returns how many. */
size_t ops_of(const struct shape *shape, int rank, uint32_t round, struct op *ops, size_t capacity);

/* Both emit the same ops on every worker in every round. */
void expect_same_ops(const char *spec, const char *other, int workers);

/* What `rank` sends of `count` elements of one byte. */
void expect_sends(const struct shape *shape, int rank, size_t count, size_t elements, size_t messages);

/* The verifier proves the schedule, and finds equal bits and one order exactly where the shape claims them. */
void expect_proved(const char *spec, int workers);

#endif
