/* order.h - which worker trains on which sample when: a pure function of seed, epoch and position.
 *
 * global: one permutation an epoch, split among the workers. Global batch b takes positions b*G .. b*G + G-1 of it, G =
 *         workers * batch; of these worker r takes r*batch .. r*batch + batch-1. A global batch is the same however it
 *         is split.
 * fixed:  the set is shuffled once and cut into one share a worker (ChainerMN's scatter_dataset with shuffle=True, but
 *         without its duplicates: shares differ by at most one sample); each worker shuffles its own share anew each
 *         epoch.
 * label:  the same with samples sorted by label instead of shuffled: each worker sees few classes (research on gossip).
 *
 * No sample is given twice in an epoch. What does not fill a global batch at the end of an epoch is left out of it
 * (another permutation, others next time): batch norm wants whole batches. With keep_last it is a smaller batch, split as
 * evenly as can be: every sample is given once, some workers get an image less than others, or none.
 *
 * A run may begin within an epoch, where one with another number of workers ended: a global order goes on with the samples
 * that are left of it; shares are cut anew, so for them it must be where an epoch begins.
 */
#ifndef CHORALE_NN_DATA_ORDER_H
#define CHORALE_NN_DATA_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum data_shard { SHARD_GLOBAL, SHARD_FIXED, SHARD_LABEL };

struct data_order {
    uint64_t seed;
    size_t samples;     /* of the training set  */
    int workers, batch; /* images of one worker */
    enum data_shard shard;
    const uint32_t *by_label; /* SHARD_LABEL: all samples, sorted by label (data_sort_by_label) */
    bool keep_last;
    struct data_origin {
        uint64_t step, epoch; /* step `step` is the first one of this order, in that epoch, ... */
        size_t position;      /* ... of which so many samples have been given before; 0 for shares */
    } origin;
};

/* Global batches in a whole epoch; 0 when one is larger than the training set. */
size_t data_order_batches(const struct data_order *order);
/* Where a step takes its samples; step >= origin.step, and there is at least one batch in an epoch. */
struct data_place {
    uint64_t epoch;
    size_t batch;    /* of those that this order has in that epoch    */
    size_t position; /* samples that are given before it in the epoch */
};
struct data_place data_order_place(const struct data_order *order, uint64_t step);
/* Epochs that are over when `step` begins, with a fraction. */
double data_order_epochs(const struct data_order *order, uint64_t step);
/* Images of worker `rank` in global batch `batch` of `epoch`: order->batch, but for the last one that is kept. */
int data_order_images(const struct data_order *order, uint64_t epoch, size_t batch, int rank);
/* The same of all workers together. */
size_t data_order_all_images(const struct data_order *order, uint64_t epoch, size_t batch);
/* Images that an epoch from its beginning on leaves out, or, with keep_last, that its last global batch has: 0 where it is
 * like the others. */
size_t data_order_rest(const struct data_order *order);
/* Steps that so many epochs of `batches` steps take. A part of a step is a whole one, but what is due to rounding is none:
 * 0.07 epochs of 100 steps are 7, though 0.07 * 100 is more than that. */
uint64_t data_order_steps(double epochs, double batches);
/* The step that begins when so many epochs are over, of a part of an epoch the first one beyond it; at least origin.step. */
uint64_t data_order_end(const struct data_order *order, double epochs);
/* Image i of worker `rank` in global batch `batch` of `epoch`. */
size_t data_order_sample(const struct data_order *order, uint64_t epoch, size_t batch, int rank, int i);
/* What worker `rank` takes instead of `sample`, which can't be decoded: attempt 0, 1, ... until one can. From the whole
 * set, alike on all workers, or from this worker's share. */
size_t data_order_substitute(const struct data_order *order, uint64_t epoch, int rank, size_t sample, int attempt);

/* Samples 0 .. count-1, sorted by label and in their order within a label; caller frees. */
enum status data_sort_by_label(const int32_t *labels, size_t count, int classes, uint32_t **sorted) MUST_CHECK;

const char *data_shard_name(enum data_shard shard); /* "global", "fixed", "label" */

#endif
