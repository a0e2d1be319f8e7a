/* slices.h - a schedule with scratch planes, run over one slice of the vector after the other, so that the planes need no
 * more than a bound; two slices are under way at a time.
 *
 * The same calls as progression.h, which does the work for each slice: actions come out with their places in the whole
 * vector and in the planes of both slices, and with numbers that no two slices share. Schedules without scratch, and
 * vectors whose planes fit, have one slice. A slice is cut into the schedule's chunks for itself, so that where an order of
 * additions depends on the chunk, it depends on the slices.
 */
#ifndef CHORALE_COMM_SLICES_H
#define CHORALE_COMM_SLICES_H

#include "algos/progression.h"
#include "comm/wire.h"

#define SLICES_MOST 1024 /* as many as tags tell apart */
/* action.sequence = number of the slice << WIRE_SLICE_SHIFT | sequence in the slice */

struct slices;

/* Elements of a slice: `count` where one will do. `bound`: bytes that the planes may take; exceeded only where
 * SLICES_MOST slices are not enough. */
size_t slice_elements(const struct shape *shape, size_t count, size_t size, size_t bound);
/* Bytes of the planes that slices of `slice` elements need. STATUS_NO_MEMORY: more than can be addressed. */
enum status slices_scratch(const struct shape *shape, size_t count, size_t size, size_t slice,
                           size_t *bytes) MUST_CHECK;

/* params->count elements in slices of `slice` (> 0 unless there are none). `shape` must outlive it. Free with
 * slices_destroy(). Errors as progression_create(). */
enum status slices_create(const struct shape *shape, int rank, const struct progression_params *params, size_t slice,
                          struct slices **slices) MUST_CHECK;
void slices_destroy(struct slices *slices); /* accepts NULL */
void slices_restart(struct slices *slices);
enum status slices_next(struct slices *slices, struct action *action) MUST_CHECK;
void slices_complete(struct slices *slices, const struct action *action);
bool slices_finished(const struct slices *slices);
void slices_describe(const struct slices *slices, size_t limit, struct text *text);

#endif
