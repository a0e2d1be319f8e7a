/* metrics.h - what each step of a run was like: gathered from all workers every so often, one JSON object a step in
 * metrics.jsonl; and the folder of a run.
 *
 * Losses and times are means over the workers, bytes the largest of any worker. Steps are gathered about once a second,
 * so that the gathering costs next to nothing; inexact strategies, whose workers are not in step, at least 16 at a
 * time.
 */
#ifndef CHORALE_NN_METRICS_H
#define CHORALE_NN_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "base/text.h"
#include "comm/job.h"
#include "nn/learning_rate.h"

/* The folder of a run. `out` as the user gave it: refused when it holds a run already, or another one writes there; made
 * when it is not there. NULL: a fresh results/train-DATE-N. `folder` gets the name, `log` metrics.jsonl, open and locked;
 * give it to metrics_open(), or close it. */
enum status run_folder(const char *out, struct text *folder, FILE **log) MUST_CHECK;

struct step_row {
    double loss;
    double step_s, compute_s, comm_s, exposed_s; /* compute + exposed + what is left = step */
    double bytes;                                /* payload sent */
};

struct metrics_request {
    struct job *job;
    FILE *log; /* rank 0: metrics.jsonl, closed by metrics_close() once metrics_open() has succeeded; NULL elsewhere */
    const struct learning_rate *rate;
    uint64_t steps_per_epoch;
    bool in_step; /* all workers end each step together */
};

struct metrics;

/* Free with metrics_close(). What is gathered but not flushed is lost. */
enum status metrics_open(const struct metrics_request *request, struct metrics **metrics) MUST_CHECK;
void metrics_close(struct metrics *metrics); /* accepts NULL */

/* The next step of this worker. Collective over the job when it is time to gather. */
enum status metrics_add(struct metrics *metrics, const struct step_row *row) MUST_CHECK;
/* Gather and write what is there. Collective. top1 of the model after the latest step, NAN = not evaluated. */
enum status metrics_flush(struct metrics *metrics, double top1) MUST_CHECK;

/* The steps gathered so far, from the first on; alike on all workers. Valid until the next call. */
const struct step_row *metrics_rows(const struct metrics *metrics, size_t *count);

#endif
