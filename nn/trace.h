/* trace.h - what a worker did when, as a file of events that chrome://tracing and ui.perfetto.dev show: steps and their
 * phases in one row (images, forward, backward, start and wait for exchanges, update, records; on a host updates and
 * exchanges may lie within backward), each exchange in flight in a row of its bucket. Times are of CLOCK_MONOTONIC, so that the files of
 * workers of one host can be laid over each other.
 */
#ifndef CHORALE_NN_TRACE_H
#define CHORALE_NN_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct trace;

/* In memory, for FOLDER/trace.RANK.json: the folder is made where it is not there, and that the file can be written is tried
 * at once; trace_write() writes it. The workers, `size` in all, together remove the files that an earlier run left there, of
 * more workers, too: what lies there at the end is of one run. Free with trace_destroy(). */
enum status trace_create(const char *folder, int rank, int size, struct trace **trace) MUST_CHECK;
void trace_destroy(struct trace *trace); /* accepts NULL */

enum { TRACE_STEPS, TRACE_BUCKETS }; /* rows; bucket b's is TRACE_BUCKETS + b */

/* Something called `name` (kept, not copied) of `step` lasted from one time to another (clock_ns()). trace NULL: nothing.
 * What there is no memory for is left out, and trace_write() says so. */
void trace_add(struct trace *trace, const char *name, size_t row, uint64_t step, uint64_t from_ns, uint64_t to_ns);

enum status trace_write(const struct trace *trace) MUST_CHECK;

#endif
