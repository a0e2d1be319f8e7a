/* data.h - labelled images in idx files (MNIST's format), and who trains on which of them when.
 *
 * The default is Debian's dataset-fashion-mnist: 60,000 + 10,000 grey photographs of 28x28 pixels in 10 classes. Images
 * become 3 equal channels, normalised with the mean and deviation of that data set, resized bilinearly without
 * antialiasing (PyTorch's interpolate(mode="bilinear", align_corners=False)). Nothing is augmented.
 *
 * Order: one permutation an epoch, a pure function of seed and epoch, split among the workers. Global batch b of an
 * epoch takes positions b*G .. b*G + G-1 of it, G = workers * batch; of these worker r takes r*batch .. r*batch +
 * batch-1. What does not fill a global batch at the end of an epoch is left out of it (another permutation, others next
 * time).
 */
#ifndef CHORALE_NN_DATA_H
#define CHORALE_NN_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "nn/batch.h"

#define DATA_FOLDER "/usr/share/datasets/fashion-mnist"
#define DATA_MEAN 0.2860F
#define DATA_DEVIATION 0.3530F

/* ---- order ---- */

struct data_order {
    uint64_t seed;
    size_t samples;     /* of the training set  */
    int workers, batch; /* images of one worker */
};

/* Global batches in an epoch; 0 when one is larger than the training set. */
size_t data_order_batches(const struct data_order *order);
/* The image at `position` < samples of the epoch. Pure; a permutation of [0, samples) for each (seed, epoch). */
size_t data_order_sample(const struct data_order *order, uint64_t epoch, size_t position);
/* The position of image i of worker `rank` in global batch `batch` of any epoch. */
size_t data_order_position(const struct data_order *order, size_t batch, int rank, int i);

/* ---- images ---- */

struct data;

/* Read train- and t10k- images-idx3-ubyte and labels-idx1-ubyte, plain or with .gz, from `folder` (NULL = DATA_FOLDER).
 * image_size: pixels of the images given out. STATUS_IO for a missing file, STATUS_FORMAT for one that is damaged; the
 * message names the file and the cure. Free with data_close(). */
enum status data_open(const char *folder, int image_size, struct data **data) MUST_CHECK;
void data_close(struct data *data); /* accepts NULL */
size_t data_train_count(const struct data *data);
size_t data_test_count(const struct data *data);
int data_classes(const struct data *data);

/* Worker `rank`'s images of training step `step`, counted from the start of the run: images (batch, 3, S, S), labels
 * (batch). The order must hold at least one batch. */
void data_train_batch(const struct data *data, const struct data_order *order, uint64_t step, int rank, float *images,
                      int32_t *labels);
/* `count` test images first, first + stride, ... */
void data_test_batch(const struct data *data, size_t first, size_t stride, int count, float *images, int32_t *labels);
size_t data_image_elements(const struct data *data); /* of one image: 3 * S * S */

/* The same images as they are stored, for a backend that resizes and normalises them itself to the same values: bytes
 * (count, height, width, channels) and a box for each. data_stored(): what is alike for all; bytes and box are NULL. */
void data_stored(const struct data *data, struct stored_images *about);
void data_train_stored(const struct data *data, const struct data_order *order, uint64_t step, int rank, uint8_t *bytes,
                       struct image_box *box, int32_t *labels);
void data_test_stored(const struct data *data, size_t first, size_t stride, int count, uint8_t *bytes,
                      struct image_box *box, int32_t *labels);

#endif
