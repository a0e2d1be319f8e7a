/* library.h - the library behind a spec that is an external, for bench and train: the MPI that has started the job, or NCCL
 * joined to the job's cards.
 */
#ifndef CHORALE_EXPERIMENTS_LIBRARY_H
#define CHORALE_EXPERIMENTS_LIBRARY_H

#include <stdbool.h>

#include "algos/spec.h"
#include "base/status.h"
#include "experiments/worker.h"

struct library {
    struct external_library *external; /* NULL: none yet */
    bool joined;                       /* it was given the job, and is to be closed */
};

/* Whether it can be at all, known without a job; `device`: as --device= names it, NULL for host memory. STATUS_REFUSED with
 * the cure. */
enum status library_possible(const struct external *external, const char *device) MUST_CHECK;
/* True for externals that need an MPI's mpiexec (worker.h, WORKER_EXTERNAL). */
bool library_is_mpi(const struct external *external);
/* Collective, once; nothing to do for one that was found. STATUS_REFUSED where it can't serve these workers. */
enum status library_find(const struct external *external, const struct worker *worker,
                         struct library *library) MUST_CHECK;
/* Collective when all went well; after a failure (`well` false) others may not come, and it is left to the process's end. */
void library_release(struct library *library, bool well);

#endif
