/* train.h - a training run from the first step to the last, on one worker of a job; all workers call it alike.
 *
 * Every step: images, forward and backward (compute), then what the strategy does: exchange and update. Times: compute
 * is the backend's, exposed is the time blocked on an exchange, comm the time that an exchange was in flight, hidden or
 * not; compute + exposed + other = step, in which other holds images, update and records. Evaluation is outside steps.
 *
 * With OVERLAP_BUCKET exchanges begin in the middle of backward; what the compute thread spends on that is exposed, and no
 * part of compute.
 *
 * On a device the host only puts work into its queues: compute is told by the device's events, exposed is the time in which
 * the device had nothing to do until an exchange was done, and an exchange is in flight from when its gradient is there. A
 * step ends where the host has put all of it; a result is collected when the next step has been put.
 *
 * A loss or gradient that is not finite ends the run. In exact runs a worker that sees such a loss spoils its own
 * gradient, so that the mean is spoiled on all workers in the same step; the update, which reads every gradient,
 * notices it, and the worker whose loss it was reports. In inexact runs each worker looks at its own. On a device all this
 * is known one or two steps later, on all workers of an exact run after the same step.
 *
 * An emulated device (replay) spends the profile's time on each step, the update included: parameters stay 0, nothing
 * but the exchange is real.
 *
 * Batch norm: see enum train_norms.
 */
#ifndef CHORALE_NN_TRAIN_H
#define CHORALE_NN_TRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "algos/spec.h"
#include "base/json.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/external.h"
#include "comm/inject.h"
#include "comm/job.h"
#include "nn/backend.h"
#include "nn/data.h"
#include "nn/learning_rate.h"
#include "nn/optimizer.h"

enum train_evaluation {
    EVALUATE_EPOCHS, /* after each epoch and at the end */
    EVALUATE_END,
    EVALUATE_NEVER
};

enum train_overlap {
    OVERLAP_USUAL, /* OVERLAP_BUCKET where it can */
    OVERLAP_NONE,  /* exchanges begin when backward has ended */
    OVERLAP_BUCKET /* each bucket's as soon as backward has completed it; STATUS_REFUSED where that can't be */
};

/* Whose statistics batch norms have. */
enum train_norms {
    NORMS_LOCAL, /* each worker's batch; exact runs average the running ones before each evaluation and at the end */
    NORMS_SYNC, /* all workers' batches together, forward and backward: as one worker with the whole batch. Exact runs on
                      backends that can, else STATUS_REFUSED */
    NORMS_AVERAGED /* as local, but running ones are averaged in inexact runs, too */
};

/* What a request without a bucket size means: BUCKET_OVERLAP with OVERLAP_BUCKET, else BUCKET_WHOLE. */
#define BUCKET_USUAL (SIZE_MAX - 1)

enum train_checkpoint {
    CHECKPOINT_EPOCHS, /* after each epoch and at the end */
    CHECKPOINT_STEPS,  /* after so many steps each, and at the end */
    CHECKPOINT_END,
    CHECKPOINT_NEVER
};

/* How far a run is, told on rank 0 after each step, and after each evaluation. */
struct train_progress {
    uint64_t step, steps; /* done, in all */
    double epoch;
    double loss, rate;   /* of rank 0's images in this step; its learning rate */
    size_t global_batch; /* images that the rate is for */
    double images_per_s; /* of all workers, from this one's step times so far */
    double left_s;
    bool evaluated;
    double top1, top5, test_loss; /* when evaluated */
};

/* What a run is about to do, told on rank 0. */
struct train_start {
    const struct train_request *request;
    const struct model *model;
    const struct data *data; /* NULL: nothing is read */
    size_t rest; /* images that each epoch leaves out, with keep_last of its last global batch; 0: none is odd */
    const struct learning_rate *rate;
    uint64_t steps;
    uint64_t first; /* step it begins with: 0, or where an earlier run was kept */
    const char *folder;
    const char *device;  /* what rank 0 computes on, where that is a device; else NULL */
    bool overlaps;       /* exchanges begin during backward */
    size_t bucket;       /* bytes, or BUCKET_WHOLE, BUCKET_TENSOR */
    int sharers;         /* workers on its card */
    const char *decided; /* by the schedules, exchanges_describe(); NULL: nothing */
};

#define TRAIN_MODEL "resnet50"

struct train_request {
    struct job *job;
    struct comm *comm;
    const struct layout *layout;
    const struct spec *spec;          /* a schedule means synchronous over it, and so does an external */
    const struct inject *inject;      /* impairments; NULL: none */
    struct external_library *library; /* of a spec that is an external, for these workers; else NULL */

    const struct backend_ops *backend;
    struct device *device;    /* on which the backend computes, also the comm's; NULL: host memory */
    enum precision precision; /* and what follows: as in struct backend_request */
    float loss_scale;
    bool deterministic, legacy;
    size_t workspace;
    const char *engines;
    double label_smoothing;

    const char *profile; /* replay: path; else NULL                 */
    const char *model;   /* NULL: the profile's, else TRAIN_MODEL   */
    const char *data;    /* data.h tells what; NULL = Debian's Fashion-MNIST */
    enum data_augment augment;
    enum data_shard shard;
    bool keep_last; /* what does not fill the last global batch of an epoch is trained on, too: STATUS_REFUSED where the
                       backend can't. Each image of it counts alike in the mean gradient; in the average of the models of
                       workers that differ. Without: left out of that epoch */
    int loaders;    /* threads that make images ahead; 0: in the step */
    int image_size; /* pixels; replay: the profile's instead   */
    int batch, threads; /* of one worker                           */
    json_t *placement;  /* where workers and threads run, for the summary; NULL: not told */
    uint64_t seed;

    uint64_t steps; /* 0: by epochs                             */
    double epochs;
    double lr;
    struct optimizer_settings optimizer;
    size_t lr_images;            /* of global batch that lr is for; 0: it is not scaled */
    enum rate_schedule schedule; /* and what it takes: learning_rate.h */
    double warmup_lr, lr_end, lr_power, decay_factor;
    uint64_t warmup_steps;
    double warmup_epochs;     /* instead of warmup_steps; 0: those */
    const char *decay_epochs; /* "30,60,80"; NULL: at 1/3, 2/3 and 8/9 of the run */
    size_t bucket;            /* bytes, or BUCKET_WHOLE, BUCKET_TENSOR, BUCKET_USUAL */
    enum train_overlap overlap;
    enum train_norms norms;
    const char *trace;              /* folder for each worker's trace (nn/trace.h); NULL: none */
    bool zero_gamma;                /* the last batch norm of each residual block starts at 0 */
    const char *recipe;             /* file that options came from, for the summary; NULL: none */
    const struct wire_format *wire; /* what travels; NULL: f32 */

    enum train_evaluation evaluation;
    const char *out;                  /* folder; NULL = a fresh one under results/                                */
    enum train_checkpoint checkpoint; /* when the run is kept in `out`, so that it can go on (nn/resume.h) */
    uint64_t checkpoint_steps;        /* CHECKPOINT_STEPS */
    const char *resume;      /* go on: with the checkpoint of that path, "" and folders: the latest good one in it (""
                            `out`); NULL: begin */
    bool change_workers;     /* the checkpoint may be that of another number of workers */
    const char *profile_out; /* file for layer times, written by rank 0; NULL = none                     */
    int timing_skip;         /* first steps left out of mean times; negative: 2, fewer in very short runs */

    void (*note)(void *context,
                 const char *line); /* any rank: what the user should read, though it goes on; may be NULL */
    void (*started)(void *context, const struct train_start *start); /* rank 0, before the first step; may be NULL */
    void (*progress)(void *context, const struct train_progress *progress); /* rank 0; may be NULL */
    void *context;
};

/* The run in figures, alike on all workers except `folder` (rank 0 only). */
struct train_summary {
    double images_per_s;
    double step_ms, step_ms_p50, step_ms_p99, compute_ms, comm_ms, exposed_ms;
    double loss_first, loss_last; /* means of up to 20 steps; NAN: nothing is learnt (replay) */
    double top1, top5, test_loss; /* NAN: not evaluated */
    double top1_average;          /* of the average of the models of workers that differ, else NAN */
    double consensus;
    double data_wait_ms;          /* a step, of rank 0: until its images were there */
    double bytes_sent_per_step;   /* NAN: an external's, which nobody counts */
    size_t undecoded;             /* times that an image could not be decoded, all workers */
    struct codec_statistics wire; /* of the run, all workers */
    struct text folder;
    json_t *document; /* what summary.json holds */
};

/* Runs it; writes DIR/metrics.jsonl and DIR/summary.json on rank 0. On success the summary is released with
 * train_summary_release(). A failure leaves the job in no state to go on. */
enum status train_run(const struct train_request *request, struct train_summary *summary) MUST_CHECK;
void train_summary_release(struct train_summary *summary);

#endif
