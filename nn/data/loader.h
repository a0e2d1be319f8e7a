/* loader.h - batches of one worker, made ahead by threads of their own, or in the step.
 *
 * A ring of batches: threads take images one by one, so that one slow image does not hold up the others of its batch.
 * Which images, and their every bit, don't depend on the number of threads. Memory is allocated once.
 *
 * A failure (a file that is gone) comes out of loader_next() of the batch that it belongs to, with its message.
 */
#ifndef CHORALE_NN_DATA_LOADER_H
#define CHORALE_NN_DATA_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/device.h"
#include "nn/batch.h"
#include "nn/data.h"

struct loader;

struct loader_request {
    const struct data *data;
    int batch;
    uint64_t batches; /* in all */

    const struct data_order
        *order;     /* training, its batch == batch; NULL: the test set. A batch has as many images as it */
                    /* tells, and the step's divisor (nn/batch.h)         */
    int rank;       /* training: whose images                              */
    uint64_t first; /* training: step of the first batch; else of the test set's batches */
    size_t stride;  /* test set: batches first, first + stride, ..., each of the next `batch` images. The */
                    /* last one of the set may be smaller, and so is one with images that can't be decoded */

    bool stored; /* batch->stored; else batch->canonical                                               */
    int threads; /* 0: batches are made in loader_next()                                               */
    int ahead;   /* batches that may be ready or being made, besides those the caller has; >= 1       */
    int held;    /* batches that the caller may have at once: >= 1                                    */

    struct device *device; /* whose copies reach the batches' memory; NULL: pages of the host */
};

/* What `request` points to must outlive the loader; itself need not. */
enum status loader_open(const struct loader_request *request, struct loader **loader) MUST_CHECK;
/* Stops and joins the threads; accepts NULL. Batches are gone. */
void loader_close(struct loader *loader);

/* The next batch, waiting for it; it stays until loader_done(). Called by one thread, at most `held` times before a
 * loader_done(), `batches` times in all. */
enum status loader_next(struct loader *loader, const struct batch **batch) MUST_CHECK;
/* The oldest batch that loader_next() gave is no longer needed. */
void loader_done(struct loader *loader);

#endif
