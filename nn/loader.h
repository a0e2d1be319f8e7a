/* loader.h - the images of each training step, in memory that the backend takes them from.
 *
 * Of a backend with a device the memory is pinned, and a thread makes batches ahead: while the device computes one step and
 * has the next one queued, the thread fills a third. A host backend has no thread, which would take time from compute.
 */
#ifndef CHORALE_NN_LOADER_H
#define CHORALE_NN_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/device.h"
#include "nn/batch.h"
#include "nn/data.h"

/* ---- memory of one batch ---- */

struct batch_form {
    const struct data *data;
    int batch;             /* images at most                               */
    bool stored;           /* as they are stored, else canonical           */
    struct device *device; /* whose copies reach the memory; NULL: none    */
};

struct batch_memory {
    struct batch_form form;
    void *memory;
    size_t bytes;
    float *canonical; /* one of the two */
    uint8_t *stored;
    struct image_box *box;
    int32_t *labels;
    struct stored_images about;
    struct batch batch; /* what was filled in last */
};

/* It must not be moved afterwards. */
enum status batch_memory_create(const struct batch_form *form, struct batch_memory *memory) MUST_CHECK;
void batch_memory_release(struct batch_memory *memory); /* accepts one that is all zeros */

/* data_train_batch() and data_test_batch() into the memory; the result is memory->batch, valid until the next call. */
void batch_memory_train(struct batch_memory *memory, const struct data_order *order, uint64_t step, int rank);
void batch_memory_test(struct batch_memory *memory, size_t first, size_t stride, int count);

/* ---- the batches of a run ---- */

struct loader_request {
    struct batch_form form;
    const struct data_order *order; /* must outlive the loader */
    int rank;
    uint64_t steps; /* of the run */
};

struct loader;

/* Free with loader_destroy(), when nothing reads its memory any more. */
enum status loader_create(const struct loader_request *request, struct loader **loader) MUST_CHECK;
void loader_destroy(struct loader *loader); /* accepts NULL */

/* The batch of the next step, from step 0 on; waits for it. It stays as it is until it is given back. At most two are out
 * with a device, else one. */
const struct batch *loader_take(struct loader *loader);
/* The oldest batch that is out has been read. */
void loader_give_back(struct loader *loader);

#endif
