/* trainer.h - the state of one worker's run. Private to train.c, which runs it, and summary.c, which writes it down. */
#ifndef CHORALE_NN_TRAINER_H
#define CHORALE_NN_TRAINER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "nn/data.h"
#include "nn/examine.h"
#include "nn/exchange.h"
#include "nn/metrics.h"
#include "nn/optimizer.h"
#include "nn/strategies/method.h"
#include "nn/train.h"

struct trainer {
    const struct train_request *request;
    bool exact; /* all workers hold equal parameters */

    struct model *model;
    struct data *data;
    struct data_order order;
    uint64_t steps_per_epoch, steps;
    struct learning_rate rate;
    struct backend *backend;
    struct optimizer *optimizer;
    struct exchanges *exchanges;
    struct metrics *metrics;
    const struct method *method;
    struct replica replica; /* its parameters and gradients are ours: native arenas */
    float *state;           /* running statistics */
    float *images;
    int32_t *labels;
    struct text folder;  /* rank 0 */
    struct text decided; /* by the schedules, exchanges_describe() */
    FILE *log;           /* rank 0: in that folder, until `metrics` has it */
    char started[32];    /* wall clock */

    uint64_t mark_ns; /* end of the latest step */
    double loss[2];   /* of this worker in step t: loss[t % 2] */
    double run_s;     /* of the steps so far, for the progress */
    uint64_t run_steps;
    struct accuracy accuracy; /* latest */
    double *top1_of;          /* latest, of each worker */
    bool evaluated;
    uint64_t *parameter_hash, *state_hash; /* of each worker */
    double consensus;
    struct codec_statistics wire; /* all workers */
};

/* After the last step: the run in figures, and summary.json on rank 0. */
enum status trainer_summarise(const struct trainer *trainer, struct train_summary *summary) MUST_CHECK;

#endif
