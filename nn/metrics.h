/* metrics.h - what each step of a run was like: gathered from all workers every so often, one JSON object a step in
 * metrics.jsonl; what all of them come to; and the folder of a run.
 *
 * Losses and times are means over the workers, bytes the largest of any worker. Steps are gathered about once a second,
 * so that the gathering costs next to nothing; inexact strategies, whose workers are not in step, at least 16 at a
 * time.
 *
 * Memory does not grow with the steps: metrics.jsonl has them one by one, here are sums, a few losses, and the times of at
 * most METRICS_TIMES steps, of longer runs drawn evenly among all (Vitter's algorithm R, by the number of the step). A
 * checkpoint keeps these, and how long metrics.jsonl was and its checksum: a run that goes on takes its lines from there.
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

/* Doubles only: one is kept in checkpoints as it is. */
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
    bool in_step;        /* all workers end each step together */
    uint64_t timed_from; /* the step that times and bytes count from */
    const void *kept;    /* by metrics_keep(), of an earlier run that goes on, and checked; NULL: it begins */
    size_t kept_bytes;
    const char *kept_in; /* the folder of its metrics.jsonl */
};

enum { METRICS_LOSSES = 20, METRICS_TIMES = 8192 };

/* A run so far, over all workers. Doubles only: kept in checkpoints as it is. */
struct metrics_totals {
    double steps;
    double first[METRICS_LOSSES]; /* losses, of the first steps */
    double last[METRICS_LOSSES];  /* of the latest: of step s at s % METRICS_LOSSES */
    double timed_from;            /* the step that the following count from; of a run that goes on its own, unless the
                                     wanted one is of its future */
    double timed;                 /* steps since then, and sums over them */
    double images, step_s, compute_s, comm_s, exposed_s, bytes;
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

/* Of what has been gathered so far; alike on all workers. */
const struct metrics_totals *metrics_totals(const struct metrics *metrics);
/* Seconds of the timed steps, sorted, at most METRICS_TIMES of them; caller frees. */
enum status metrics_times(const struct metrics *metrics, double **sorted, size_t *count) MUST_CHECK;

/* What a checkpoint after the latest gathered step keeps, so that metrics_open() can go on; caller frees. metrics.jsonl is
 * on the disk then. */
enum status metrics_keep(struct metrics *metrics, void **kept, size_t *bytes) MUST_CHECK;
/* Whether that can be what was kept after `steps` steps. */
bool metrics_kept_is_good(const void *kept, size_t bytes, uint64_t steps);
/* The lines of the steps before, which were to be in metrics.jsonl, are not there, and so they are left out. */
bool metrics_lost_lines(const struct metrics *metrics);

#endif
