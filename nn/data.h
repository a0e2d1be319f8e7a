/* data.h - labelled images: a data set in one of several formats (nn/data/reader.h), and the images that a network gets.
 *
 * The default is Debian's dataset-fashion-mnist: 60,000 + 10,000 grey photographs of 28x28 pixels in 10 classes, idx
 * files. Images of the network have 3 channels (grey: three equal ones), normalised with the mean and deviation of that
 * data set, or for colour of ImageNet.
 *
 * Stored pixels (idx, cifar, pack, synthetic) are resized bilinearly without antialiasing (PyTorch's
 * interpolate(mode="bilinear", align_corners=False)), by the host or by a device, which then gets the bytes. JPEG files
 * (folder, tar) are decoded and resized with antialiasing to the network's size (nn/data/jpeg.h), alike for both.
 *
 * Augmentation `crop-flip`: a random piece of 8 % to 100 % of the area and an aspect ratio of 3/4 to 4/3, mirrored every
 * second time. `none`: what evaluation sees: of photographs larger than the network's size the middle (7/8 of the shorter
 * side each way: 224 of 256), of smaller ones the middle square, of idx images all. Every draw is a pure function of
 * seed, epoch and sample: the same for any number of workers and threads, in any order.
 *
 * A JPEG file that can't be decoded is counted, and in training replaced by another sample (data_order_substitute()), in
 * evaluation left out.
 */
#ifndef CHORALE_NN_DATA_H
#define CHORALE_NN_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "nn/batch.h"
#include "nn/data/order.h"

#define DATA_FOLDER "/usr/share/datasets/fashion-mnist"
#define DATA_MEAN 0.2860F
#define DATA_DEVIATION 0.3530F

enum data_augment { AUGMENT_USUAL, AUGMENT_NONE, AUGMENT_CROP_FLIP }; /* usual: crop-flip of colour photographs */

struct data_request {
    const char *path;          /* PATH or FORMAT:PATH, "synthetic"; NULL: DATA_FOLDER */
    int image_size;            /* pixels of the images given out                      */
    uint64_t seed;             /* of augmentation, and of synthetic images            */
    enum data_augment augment; /* of training                                         */
};

struct data;

/* STATUS_IO for what is missing, STATUS_FORMAT for what is damaged, STATUS_UNAVAILABLE for JPEG files where the build has
 * no libjpeg-turbo; the message names the file and the cure. Free with data_close(). */
enum status data_open(const struct data_request *request, struct data **data) MUST_CHECK;
void data_close(struct data *data); /* accepts NULL */
size_t data_train_count(const struct data *data);
size_t data_test_count(const struct data *data); /* 0: none (synthetic) */
int data_classes(const struct data *data);
int data_size(const struct data *data); /* pixels of the images given out */

/* What was opened, for people and summaries. */
struct data_facts {
    const char *format, *path; /* "idx", "tar", ...                                                             */
    const char *augment;       /* "none", "crop-flip"                                                           */
    const char *notes;         /* "" or what is odd: empty class folders, files left out                        */
    const int32_t *labels;     /* of the training set                                                           */
    char *const *class_name;   /* or NULL: no names                                                             */
    uint64_t class_hash;       /* of the names, one after the other; of their number where there are none       */
    uint64_t hash;             /* of classes and all labels: what workers must agree in, besides data_contents() */
    bool repeats;              /* any batch may stand for all (synthetic): they are made once                   */
    size_t skipped;            /* images that could not be decoded so far, each time anew; of all threads       */
};
void data_facts(const struct data *data, struct data_facts *facts);

/* A hash of the images as they are stored: of the bytes of 64 of each part, always the same ones, and of the lengths of all
 * files where the format tells them (tar). Neither paths nor times count, so a copy has the same. Another resolution,
 * quality or order shows; a few changed images of many may not. What can't be read counts as such. */
enum status data_contents(const struct data *data, uint64_t *hash) MUST_CHECK;

/* ---- images ---- */

/* Form of all stored images, `bytes` and `box` NULL. JPEG files: the network's size. */
void data_form(const struct data *data, struct stored_images *form);

/* What one thread needs to read and decode. */
struct data_scratch;
enum status data_scratch_open(const struct data *data, struct data_scratch **scratch) MUST_CHECK;
void data_scratch_close(struct data_scratch *scratch); /* accepts NULL */

/* Where one image goes. */
struct data_image {
    uint8_t *bytes; /* (height, width, channels) of the form */
    struct image_box *box;
    int32_t *label; /* -1: a test image that can't be decoded; neither bytes nor box are set */
};

/* Image i of worker `rank` in training step `step`, counted from the start of the run. The order must hold at least one
 * batch. Any thread with a scratch of its own. STATUS_FORMAT when even substitutes can't be decoded. */
enum status data_train_image(const struct data *data, struct data_scratch *scratch, const struct data_order *order,
                             uint64_t step, int rank, int i, const struct data_image *to) MUST_CHECK;
enum status data_test_image(const struct data *data, struct data_scratch *scratch, size_t index,
                            const struct data_image *to) MUST_CHECK;
int32_t data_label(const struct data *data, bool test, size_t index);
/* What people call a sample: a path, a file and a place in it. */
void data_name(const struct data *data, bool test, size_t index, struct text *text);
/* Read a sample's size; `decode`: and decode all of it. STATUS_FORMAT: it is bad, the message says why. */
enum status data_look(const struct data *data, struct data_scratch *scratch, bool test, size_t index, bool decode,
                      int *width, int *height) MUST_CHECK;
/* Sample `index` of the training or the test set whole, in the form: JPEG files as the middle square of their shorter side.
 * *label -1: it can't be decoded. */
enum status data_square(const struct data *data, struct data_scratch *scratch, bool test, size_t index, uint8_t *bytes,
                        int32_t *label) MUST_CHECK;
/* A stored image as the network gets it: (3, S, S). */
void data_canonical(const struct data *data, struct data_scratch *scratch, const uint8_t *bytes,
                    const struct image_box *box, float *image);

/* A worker's images of a step, as many as data_order_images() tells: images (batch, 3, S, S), labels (batch). Batches
 * that are made ahead: nn/data/loader.h. */
enum status data_train_batch(const struct data *data, const struct data_order *order, uint64_t step, int rank,
                             float *images, int32_t *labels) MUST_CHECK;
/* *count test images first, first + stride, ...; *count becomes the number of those that could be decoded. */
enum status data_test_batch(const struct data *data, size_t first, size_t stride, int *count, float *images,
                            int32_t *labels) MUST_CHECK;

#endif
