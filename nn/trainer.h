/* trainer.h - the state of one worker's run. Private to train.c, which opens and runs it, steps.c, resume.c, which
 * keeps it in checkpoints, and summary.c, which writes it down.
 */
#ifndef CHORALE_NN_TRAINER_H
#define CHORALE_NN_TRAINER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "nn/arena.h"
#include "nn/data.h"
#include "nn/data/loader.h"
#include "nn/examine.h"
#include "nn/exchange.h"
#include "nn/learning_rate.h"
#include "nn/metrics.h"
#include "nn/optimizer.h"
#include "nn/strategies/method.h"
#include "nn/train.h"

struct trainer {
    const struct train_request *request;
    bool exact;    /* all workers hold equal parameters */
    bool overlaps; /* exchanges begin during backward */
    size_t bucket; /* bytes, or BUCKET_WHOLE, BUCKET_TENSOR */

    struct model *model;
    struct data *data;
    uint64_t contents; /* data_contents() */
    size_t skipped;    /* images that could not be decoded, all workers */
    struct data_order order;
    uint32_t *by_label; /* of the order, if it needs that */
    uint64_t steps;
    struct learning_rate rate;
    struct backend *backend;
    struct optimizer *optimizer;
    struct exchanges *exchanges;
    struct worker_sums sums; /* of batch norms */
    struct trace *trace;     /* NULL: none */
    uint64_t put_ns;         /* the latest step was given to the backend */
    uint64_t applied_ns;     /* of its time in the backend: updates between layers */
    struct metrics *metrics;
    const struct method *method;
    struct place place;            /* where arenas lie */
    struct replica replica;        /* its parameters and gradients are ours: native arenas */
    float *state;                  /* running statistics */
    struct loader_request loading; /* of training */
    struct loader *loader;         /* NULL: nothing is read */
    float *poison;                 /* NaN, for what spoils a gradient on a device */
    struct text folder;            /* rank 0 */
    struct text shared_folder;     /* the same on every worker, where checkpoints are written */
    struct text computes;          /* describes the device; nothing of a host */
    int sharers;                   /* workers on this worker's card */
    struct text decided;           /* by the schedules, exchanges_describe() */
    FILE *log;                     /* rank 0: in that folder, until `metrics` has it */
    char started[32];              /* wall clock */

    uint64_t first;          /* step that this run begins with: 0, or where an earlier one was kept */
    struct resumed *resumed; /* that one, until all is restored; NULL: none */
    int passed_over;         /* checkpoints that were no good */
    struct {
        double wait_s;
        size_t skipped;
        struct codec_statistics wire;
    } before; /* of the steps before `first` */

    uint64_t mark_ns;                  /* end of the latest step */
    uint64_t put, collected, recorded; /* steps so far; a device is up to two ahead of what is collected */
    struct step_row row[2];            /* of this worker in step t: row[t % 2] */
    struct {
        bool known;
        uint64_t step;
        double loss;
    } bad;                    /* its first loss that was not finite */
    bool spoils;              /* its next gradient is to be spoiled by that */
    double wait_s;            /* for images, of all steps */
    double run_s, run_images; /* of the steps so far, for the progress */
    uint64_t run_steps;
    struct accuracy accuracy; /* latest */
    struct accuracy average;  /* latest, of the average of the workers' models; of inexact runs */
    double *top1_of;          /* latest, of each worker */
    bool evaluated;
    bool averaged, examined;               /* the running statistics, the model, since the latest step */
    uint64_t *parameter_hash, *state_hash; /* of each worker */
    double consensus;
    struct codec_statistics wire; /* all workers */
};

/* ---- steps.c ---- */

/* The next step: images, forward and backward, what the strategy does. On a device the result of the step before is
 * collected and recorded meanwhile; `settle`: of this one, too, so that nothing is left under way but exchanges that the
 * strategy keeps. A gradient that was not finite is a failure, see train.h. */
enum status trainer_step(struct trainer *trainer, bool settle) MUST_CHECK;
/* After the last step: what the strategy has under way is applied. */
enum status trainer_finish_steps(struct trainer *trainer) MUST_CHECK;
/* The next step begins now. */
void trainer_mark(struct trainer *trainer);
void trainer_tell(struct trainer *trainer, uint64_t step, bool evaluated);

/* ---- summary.c ---- */

/* The step that times and bytes count from: the first ones are left out, and those that were made with another number of
 * workers, which were of another machine. */
uint64_t trainer_timing_skip(const struct trainer *trainer);
/* After the last step: the run in figures, and summary.json on rank 0. */
enum status trainer_summarise(const struct trainer *trainer, struct train_summary *summary) MUST_CHECK;

#endif
