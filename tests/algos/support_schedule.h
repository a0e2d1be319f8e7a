/* support_schedule.h - what suites of single algorithms ask of a schedule. */
#ifndef CHORALE_TESTS_ALGOS_SUPPORT_SCHEDULE_H
#define CHORALE_TESTS_ALGOS_SUPPORT_SCHEDULE_H

#include "algos/schedule.h"

/* The shape of a spec for workers on a node each; the test fails where there is none. Free with shape_destroy(). */
struct shape *schedule_of(const char *spec, int workers);

/* The spec is refused for so many workers, with `reason` in the message. */
void expect_schedule_refused(const char *spec, int workers, const char *reason);

/* What `rank` sends of `count` elements of one byte. */
void expect_sends(const struct shape *shape, int rank, size_t count, size_t elements, size_t messages);

/* The verifier proves the schedule, and finds equal bits and one order exactly where the shape claims them. */
void expect_proved(const char *spec, int workers);

#endif
