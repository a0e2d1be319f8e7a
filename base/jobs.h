/* jobs.h - many independent jobs on all cores, each in a forked process, so that one that crashes costs only its own
 * result.
 *
 * A job is a pure function of its number and of what the caller had in memory when it called jobs_run(): it writes its
 * result of a fixed size into shared memory. Results are handed over in the order of the jobs' numbers, whatever order
 * they end in. A process that dies takes one job with it, and another process goes on.
 */
#ifndef CHORALE_BASE_JOBS_H
#define CHORALE_BASE_JOBS_H

#include <stddef.h>

#include "base/status.h"

struct jobs {
    size_t count;
    int processes;       /* at once, >= 1                                                                     */
    size_t result_bytes; /* of one job; results begin zeroed                                                  */
    void *context;
    /* In a child: no output, no exit; what it allocates may stay. */
    void (*run)(void *context, size_t job, void *result);
    /* In the caller, for job 0, 1, 2, ...: `death` says how the job's process ended ("signal 11 (Segmentation fault)"),
     * NULL when the job was done. A failing status ends everything and is returned by jobs_run(). */
    enum status (*done)(void *context, size_t job, const void *result, const char *death);
};

/* Run them all; returns when every child is gone. Children leave without writing what the caller had buffered in stdio.
 * STATUS_NO_MEMORY, STATUS_IO: no shared memory, pipe or process; else what `done` returned. */
enum status jobs_run(const struct jobs *jobs) MUST_CHECK;

#endif
