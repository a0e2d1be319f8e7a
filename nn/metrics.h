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

/* The folder of a run. `out` as the user gave it: refused when it holds a run already, unless that is to go on (resume), or
 * another one writes there; made when it is not there. NULL: a fresh results/train-DATE-N. `folder` gets the name, `log`
 * metrics.jsonl, open and locked, as it was; give it to metrics_open(), or close it. */
enum status run_folder(const char *out, bool resume, struct text *folder, FILE **log) MUST_CHECK;

/* Doubles only: rows are kept in checkpoints as they are. */
struct step_row {
    double loss;                                 /* mean over the images; of the workers' rows: over all images */
    double step_s, compute_s, comm_s, exposed_s; /* compute + exposed + what is left = step */
    double bytes;                                /* payload sent */
    double images;                               /* of this worker; of all */
    double epoch, rate;                          /* alike on all workers */
    struct shares {
        double top1, top5; /* of the model after the step, NAN: not evaluated; where workers differ their mean, ... */
        double average, five; /* ... and of the average of their models, NAN: they do not differ */
    } shares;                 /* set by metrics_flush() */
};

struct metrics_request {
    struct job *job;
    FILE *log; /* rank 0: metrics.jsonl, closed by metrics_close() once metrics_open() has succeeded; NULL elsewhere */
    bool in_step;                /* all workers end each step together */
    const struct step_row *rows; /* of an earlier run that goes on, from step 0 on: they are written again; copied */
    size_t count;
};

struct metrics;

/* Free with metrics_close(). What is gathered but not flushed is lost. */
enum status metrics_open(const struct metrics_request *request, struct metrics **metrics) MUST_CHECK;
void metrics_close(struct metrics *metrics); /* accepts NULL */

/* The next step of this worker. Collective over the job when it is time to gather. */
enum status metrics_add(struct metrics *metrics, const struct step_row *row) MUST_CHECK;
/* Gather what is there. Collective. The line of the latest step is written with what follows: shares may still come. */
enum status metrics_gather(struct metrics *metrics) MUST_CHECK;
/* Gather and write. Collective. Shares of the model after the latest step, NULL: it was not evaluated. */
enum status metrics_flush(struct metrics *metrics, const struct shares *shares) MUST_CHECK;

/* The steps gathered so far, from the first on; alike on all workers. Valid until the next call. */
const struct step_row *metrics_rows(const struct metrics *metrics, size_t *count);

#endif
