/* clock.h - monotonic time and deadlines. Wall-clock time is only ever written into results, never compared. */
#ifndef CHORALE_BASE_CLOCK_H
#define CHORALE_BASE_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t clock_ns(void);          /* CLOCK_MONOTONIC, nanoseconds */
double clock_seconds(void);       /* the same, seconds            */
void clock_sleep_ns(uint64_t ns); /* sleeps at least ns, restarted after EINTR */

uint64_t deadline_after(double seconds); /* seconds <= 0 or inf: never passes */
bool deadline_passed(uint64_t deadline);
uint64_t deadline_left_ns(uint64_t deadline); /* 0 when passed, UINT64_MAX when it never passes */

/* "2026-11-30T12:00:00Z" of now, UTC. `size` >= 21. */
void clock_wall_text(char *text, size_t size);

#endif
