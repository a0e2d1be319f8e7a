/* examine.h - what a trained model is like: accuracy on the whole test set, hashes of its bits, distance between
 * workers.
 *
 * Exact runs, in which all workers hold equal parameters, share the test set: it is cut into batches in the order of its
 * images, the same for any number of workers, of which worker r takes r, r + p, ... without padding. Each batch's loss is
 * rounded to a multiple of 2^-24, so that sums do not depend on who has which: with the same --batch the figures have
 * equal bits on any number of workers. In inexact runs each worker's own model is tested on the whole set.
 */
#ifndef CHORALE_NN_EXAMINE_H
#define CHORALE_NN_EXAMINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/job.h"
#include "nn/arena.h"
#include "nn/backend.h"
#include "nn/data.h"
#include "nn/data/loader.h"
#include "nn/exchange.h"

/* All that is needed to examine; nothing is owned. No step is uncollected. Every function below is collective. */
struct examiner {
    struct job *job;
    const struct model *model;
    const struct backend_ops *ops;
    struct backend *backend;
    const struct data *data;
    struct exchanges *exchanges;
    bool exact;
    const struct loader_request *loading; /* how batches are made; of training        */
    const struct place *place;            /* of parameters and state                   */
};

struct accuracy {
    double top1, top5, loss; /* shares of correct images, mean cross-entropy; inexact runs: means over the workers */
};

/* Over the whole test set, each image once, whatever the number of workers. top1_of[job size]: of each worker's model (exact
 * runs: all equal). */
enum status examine_accuracy(const struct examiner *examiner, const float *parameters, const float *state,
                             struct accuracy *accuracy, double *top1_of) MUST_CHECK;

/* Of the average of the workers' parameters, with the average of their running statistics: the model that an inexact run
 * agrees on. */
enum status examine_average(const struct examiner *examiner, const float *parameters, const float *state,
                            struct accuracy *accuracy) MUST_CHECK;

/* 64 bits of the bits of `count` values (FNV-1a over 32-bit words). */
uint64_t examine_hash(const float *values, size_t count);

/* Hashes of each worker's parameters in canonical order, and of its running statistics: parameter_of[job size],
 * state_of[job size]. STATUS_INTERNAL when those of an exact run differ; the message names two workers and `step`. */
enum status examine_hashes(const struct examiner *examiner, const float *parameters, const float *state, uint64_t step,
                           uint64_t *parameter_of, uint64_t *state_of) MUST_CHECK;

/* Mean over the workers of the squared distance between a worker's parameters and their mean. */
enum status examine_consensus(const struct examiner *examiner, const float *parameters, double *consensus) MUST_CHECK;

#endif
