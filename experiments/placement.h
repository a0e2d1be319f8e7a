/* placement.h - where a worker and its threads run: --bind=, --threads=, and what came of them, told and stored. */
#ifndef CHORALE_EXPERIMENTS_PLACEMENT_H
#define CHORALE_EXPERIMENTS_PLACEMENT_H

#include <stdbool.h>

#include "base/json.h"
#include "base/option.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/host.h"
#include "comm/job.h"

struct placement {
    int threads;     /* that this worker computes with                                  */
    bool told;       /* by OMP_NUM_THREADS                                              */
    int ignored;     /* what OMP_NUM_THREADS says, where --threads says otherwise; or 0 */
    bool spare;      /* of its cores one is left over                                   */
    bool bound;      /* by us                                                           */
    const char *why; /* not                                                             */
    int workers;
    struct host_cpus *cpus; /* that each worker may run on, by rank                            */
};

/* Bind the calling thread, and with it all that it will start, and reckon its threads: --threads, else OMP_NUM_THREADS, else
 * the cores divided by the workers that share them. `computes`: the command has --threads; else there is one. Collective, to be called
 * before other threads are started. STATUS_REFUSED: --bind=core with more workers than cores. Release with
 * placement_release(). */
enum status placement_make(const struct option_values *options, struct job *job, bool computes,
                           struct placement *placement) MUST_CHECK;
void placement_release(struct placement *placement);

/* "nodes 1x2, CPUs 0 | 1 (bound), 1 thread each, hwloc 2.9.0" */
void placement_describe(const struct placement *placement, const struct job *job, struct text *text);
/* The same: {"nodes", "cpus": [of each worker], "bound", "why", "threads", "hwloc"}. New reference; NULL: no memory. */
json_t *placement_json(const struct placement *placement, const struct job *job);

#endif
