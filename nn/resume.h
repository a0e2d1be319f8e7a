/* resume.h - what of a run is kept in a checkpoint (nn/checkpoint.h), and how a run goes on from one.
 *
 * FOLDER/checkpoint-STEP, written by rank 0: what was asked for (options that change the result, model, data set's hash),
 * versions, the place in the data, and where all workers are equal the parameters and momentum in canonical order, the mean
 * gradient that a double-buffered run has still to apply, and each worker's running statistics. FOLDER/checkpoint-STEP.worker-R,
 * written by worker R where workers differ: its parameters, momentum and statistics (gossip), and what a lossy wire format
 * has left out so far. The learning rate and the order of the data are functions of the step; the rows of metrics.jsonl
 * are not, but how long that file was, its checksum, and what its rows come to (nn/metrics.h). Lines of steps that are done once
 * more do not stand twice.
 *
 * A run that goes on gives the bits of one that was never interrupted, with as many workers, and on the cpu as many threads.
 * With another number of workers (--change-workers) it goes on with the samples that are left of the epoch; statistics, and
 * of workers that differ parameters and momentum, are averaged; what a wire format left out is lost.
 */
#ifndef CHORALE_NN_RESUME_H
#define CHORALE_NN_RESUME_H

#include "base/status.h"
#include "nn/trainer.h"

/* Collective, all of them.
 *
 * The latest good checkpoint: trainer->first and the order's origin, and what is to be restored. Those that are damaged
 * are said and passed over; with none in the folder the run begins at step 0, which is said. STATUS_USAGE: it was made
 * with other options, the message names one. */
enum status resume_find(struct trainer *trainer) MUST_CHECK;
/* Into arenas that are open and initialised. */
enum status resume_restore(struct trainer *trainer) MUST_CHECK;
/* What metrics_keep() gave of the steps before, and the folder that has their lines; NULL: the run begins. */
void resume_kept(const struct trainer *trainer, const void **kept, size_t *bytes, const char **folder);
void resume_close(struct trainer *trainer); /* all is restored, or nothing will be */

/* After `trainer->put` steps, all collected. Nothing is written when something is not finite: the next step tells that. The
 * last two are kept. A failure is that of the worker that could not write; earlier checkpoints stay. */
enum status resume_save(struct trainer *trainer) MUST_CHECK;

#endif
