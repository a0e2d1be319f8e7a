/* costs.h - measured times of schedules, read from what `chorale bench --format=csv` prints. Pure: the caller reads the
 * file.
 *
 * Columns are found by name: allreduce, workers, bytes and time_us are needed; a row that `refused` gives a reason for,
 * or without a time, tells nothing; the others are not looked at. Several rows of one spec, worker count and size (in
 * place and not, several runs) count as their least time. Heads may be repeated, so that outputs can be joined.
 */
#ifndef CHORALE_ALGOS_COSTS_H
#define CHORALE_ALGOS_COSTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct cost_point {
    size_t bytes;
    double seconds;
};

/* The times of one spec on one worker count, ascending by size; at least one. */
struct cost_curve {
    char *spec; /* as the file spells it */
    int workers;
    struct cost_point *point;
    size_t count, capacity;
};

struct costs {
    struct cost_curve *curve; /* in the order of first rows */
    size_t count, capacity;
};

/* `name` is the file's, for messages. STATUS_FORMAT with the line: no such columns, a torn row, a value that is no
 * number, no time at all. Release with costs_release(). */
enum status costs_parse(const char *text, const char *name, struct costs *costs) MUST_CHECK;
void costs_release(struct costs *costs);

/* The measured worker count nearest to `workers` by ratio; of two equally near ones the smaller. */
int costs_nearest_workers(const struct costs *costs, int workers);

/* Seconds for a vector of `bytes`: between two measured sizes the logarithm of the time is linear in the logarithm of
 * the size; below the smallest it takes as long as that one; above the largest time grows as the size. */
double cost_curve_seconds(const struct cost_curve *curve, size_t bytes);

#endif
