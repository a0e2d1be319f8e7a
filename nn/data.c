/* data.c - idx files, the order of training, and bilinear resizing. */
#include "nn/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"

enum { CHANNELS = 3, LARGEST_SIDE = 1024, IMAGES_HEADER = 16, LABELS_HEADER = 8 };
#define LARGEST_FILE ((size_t)4 << 30)
#define CURE "apt-get install dataset-fashion-mnist, or --data=FOLDER with the four idx files"

/* ---- order ---- */

static size_t global_batch(const struct data_order *order)
{
    return (size_t)order->workers * (size_t)order->batch;
}

size_t data_order_batches(const struct data_order *order)
{
    return order->samples / global_batch(order);
}

size_t data_order_sample(const struct data_order *order, uint64_t epoch, size_t position)
{
    return (size_t)rng_permute(rng_key(order->seed, "shuffle", epoch, 0), order->samples, position);
}

size_t data_order_position(const struct data_order *order, size_t batch, int rank, int i)
{
    return batch * global_batch(order) + (size_t)rank * (size_t)order->batch + (size_t)i;
}

/* ---- idx files ---- */

/* One set: the files as read, and what their headers say. */
struct part {
    unsigned char *image_file, *label_file;
    size_t count;
    int height, width;
    int classes; /* the largest label, plus 1 */
};

static uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | (uint32_t)bytes[3];
}

static enum status damaged(const char *path, const char *what)
{
    return fail(STATUS_FORMAT, "data %s: %s: " CURE, path, what);
}

/* FOLDER/NAME.gz, or FOLDER/NAME where there is no such file. */
static void find_file(const char *folder, const char *name, struct text *path)
{
    text_addf(path, "%s/%s.gz", folder, name);
    if (file_exists(text_string(path)))
        return;
    text_clear(path);
    text_addf(path, "%s/%s", folder, name);
}

/* The whole file, its magic number and the bytes that its header promises checked. */
static enum status read_idx(const char *path, uint32_t magic, size_t header, unsigned char **file)
{
    size_t length = 0;
    if (!file_exists(path))
        return fail(STATUS_IO, "data %s: no such file, plain or with .gz: " CURE, path);
    enum status status = file_read_gzip(path, LARGEST_FILE, file, &length);
    if (status == STATUS_NO_MEMORY)
        return fail(status, "data %s: %s", path, status_message());
    if (status < 0)
        return fail(status, "data %s: %s: " CURE, path, status_message());
    if (length < header)
        return damaged(path, "shorter than the header of an idx file");
    if (big_endian(*file) != magic)
        return damaged(path, header == IMAGES_HEADER ? "no idx file of images (its magic number is not 0x803)"
                                                     : "no idx file of labels (its magic number is not 0x801)");
    size_t promised = big_endian(*file + 4);
    if (header == IMAGES_HEADER) {
        size_t height = big_endian(*file + 8), width = big_endian(*file + 12);
        if (height < 1 || height > LARGEST_SIDE || width < 1 || width > LARGEST_SIDE)
            return damaged(path, "images of no pixels, or above 1024 pixels");
        promised *= height * width;
    }
    if (promised == 0)
        return damaged(path, "it is empty");
    if (length - header < promised)
        return fail(STATUS_FORMAT, "data %s: cut short: %zu of %zu bytes: " CURE, path, length, header + promised);
    if (length - header > promised)
        return fail(STATUS_FORMAT, "data %s: %zu bytes, its header tells of %zu: " CURE, path, length,
                    header + promised);
    return STATUS_OK;
}

static enum status read_part(const char *folder, const char *prefix, struct part *part)
{
    enum status status = STATUS_OK;
    struct text images = {0}, labels = {0}, name = {0};
    text_addf(&name, "%s-images-idx3-ubyte", prefix);
    find_file(folder, text_string(&name), &images);
    text_clear(&name);
    text_addf(&name, "%s-labels-idx1-ubyte", prefix);
    find_file(folder, text_string(&name), &labels);
    TRY_TO(done, text_check(&name));
    TRY_TO(done, text_check(&images));
    TRY_TO(done, text_check(&labels));

    TRY_TO(done, read_idx(text_string(&images), 0x803, IMAGES_HEADER, &part->image_file));
    TRY_TO(done, read_idx(text_string(&labels), 0x801, LABELS_HEADER, &part->label_file));
    part->count = big_endian(part->image_file + 4);
    part->height = (int)big_endian(part->image_file + 8);
    part->width = (int)big_endian(part->image_file + 12);
    size_t label_count = big_endian(part->label_file + 4);
    if (label_count != part->count) {
        status = fail(STATUS_FORMAT, "data %s: %zu labels for %zu images: " CURE, text_string(&labels), label_count,
                      part->count);
        goto done;
    }
    for (size_t i = 0; i < label_count; i++) {
        if (part->label_file[LABELS_HEADER + i] >= part->classes)
            part->classes = part->label_file[LABELS_HEADER + i] + 1;
    }
done:
    text_release(&images);
    text_release(&labels);
    text_release(&name);
    return status;
}

static void release_part(struct part *part)
{
    free(part->image_file);
    free(part->label_file);
}

/* ---- resizing ---- */

/* One axis: output pixel o = (1 - weight[o]) * in[low[o]] + weight[o] * in[high[o]]. */
struct axis {
    int *low, *high;
    float *weight;
};

static enum status make_axis(int in, int out, struct axis *axis)
{
    void *low = NULL, *high = NULL, *weight = NULL;
    enum status status = STATUS_OK;
    TRY_TO(done, memory_zeroed(&low, (size_t)out, sizeof(int)));
    TRY_TO(done, memory_zeroed(&high, (size_t)out, sizeof(int)));
    TRY_TO(done, memory_zeroed(&weight, (size_t)out, sizeof(float)));
done:
    *axis = (struct axis){.low = low, .high = high, .weight = weight};
    if (status < 0)
        return status;
    float scale = (float)in / (float)out;
    for (int o = 0; o < out; o++) {
        float source = fmaxf(scale * ((float)o + 0.5F) - 0.5F, 0.0F); /* centres of pixels, clamped at the first */
        int first = (int)source < in - 1 ? (int)source : in - 1;
        axis->low[o] = first;
        axis->high[o] = first + 1 < in ? first + 1 : first;
        axis->weight[o] = source - (float)first;
    }
    return STATUS_OK;
}

static void release_axis(struct axis *axis)
{
    free(axis->low);
    free(axis->high);
    free(axis->weight);
}

/* ---- the data set ---- */

struct data {
    struct part train, test;
    int size; /* pixels of the images given out */
    struct axis vertical, horizontal;
    float value[256]; /* normalised, of each grey */
};

static enum status check_parts(const char *folder, const struct data *data)
{
    if (data->train.height != data->test.height || data->train.width != data->test.width)
        return fail(STATUS_FORMAT, "data %s: training images of %dx%d pixels, test images of %dx%d: " CURE, folder,
                    data->train.width, data->train.height, data->test.width, data->test.height);
    if (data->test.classes > data->train.classes)
        return fail(STATUS_FORMAT, "data %s: the test set has labels that the training set lacks: " CURE, folder);
    return STATUS_OK;
}

enum status data_open(const char *folder, int image_size, struct data **out)
{
    *out = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct data)));
    struct data *data = memory;
    data->size = image_size;
    for (int grey = 0; grey < 256; grey++)
        data->value[grey] = ((float)grey / 255.0F - DATA_MEAN) / DATA_DEVIATION;

    enum status status = STATUS_OK;
    if (folder == NULL)
        folder = DATA_FOLDER;
    TRY_TO(failed, read_part(folder, "train", &data->train));
    TRY_TO(failed, read_part(folder, "t10k", &data->test));
    TRY_TO(failed, check_parts(folder, data));
    TRY_TO(failed, make_axis(data->train.height, image_size, &data->vertical));
    TRY_TO(failed, make_axis(data->train.width, image_size, &data->horizontal));
    *out = data;
    return STATUS_OK;
failed:
    data_close(data);
    return status;
}

void data_close(struct data *data)
{
    if (data == NULL)
        return;
    release_part(&data->train);
    release_part(&data->test);
    release_axis(&data->vertical);
    release_axis(&data->horizontal);
    free(data);
}

size_t data_train_count(const struct data *data)
{
    return data->train.count;
}

size_t data_test_count(const struct data *data)
{
    return data->test.count;
}

int data_classes(const struct data *data)
{
    return data->train.classes;
}

/* Image `index` of a part -> to (3, S, S), and its label. Resized anew each time: it costs a thousandth of a step, and
 * a resized copy of the set would need gigabytes. */
static void give(const struct data *data, const struct part *part, size_t index, float *to, int32_t *label)
{
    size_t size = (size_t)data->size, width = (size_t)part->width, plane = size * size;
    const unsigned char *image = part->image_file + IMAGES_HEADER + index * (size_t)part->height * width;
    for (size_t y = 0; y < size; y++) {
        const unsigned char *upper = image + (size_t)data->vertical.low[y] * width;
        const unsigned char *lower = image + (size_t)data->vertical.high[y] * width;
        float down = data->vertical.weight[y], up = 1.0F - down;
        for (size_t x = 0; x < size; x++) {
            int west = data->horizontal.low[x], east = data->horizontal.high[x];
            float right = data->horizontal.weight[x], left = 1.0F - right;
            to[y * size + x] = up * (left * data->value[upper[west]] + right * data->value[upper[east]]) +
                               down * (left * data->value[lower[west]] + right * data->value[lower[east]]);
        }
    }
    for (size_t channel = 1; channel < CHANNELS; channel++)
        memcpy(to + channel * plane, to, plane * sizeof(float));
    *label = part->label_file[LABELS_HEADER + index];
}

size_t data_image_elements(const struct data *data)
{
    return CHANNELS * (size_t)data->size * (size_t)data->size;
}

/* Image i of a worker's batch in `step`, in the training set. */
static size_t train_index(const struct data_order *order, uint64_t step, int rank, int i)
{
    const size_t batches = data_order_batches(order);
    return data_order_sample(order, step / batches, data_order_position(order, (size_t)(step % batches), rank, i));
}

void data_train_batch(const struct data *data, const struct data_order *order, uint64_t step, int rank, float *images,
                      int32_t *labels)
{
    for (int i = 0; i < order->batch; i++)
        give(data, &data->train, train_index(order, step, rank, i), images + (size_t)i * data_image_elements(data),
             labels + i);
}

void data_test_batch(const struct data *data, size_t first, size_t stride, int count, float *images, int32_t *labels)
{
    for (int i = 0; i < count; i++)
        give(data, &data->test, first + (size_t)i * stride, images + (size_t)i * data_image_elements(data), labels + i);
}

/* ---- as stored ---- */

void data_stored(const struct data *data, struct stored_images *about)
{
    *about = (struct stored_images){.height = data->train.height, .width = data->train.width, .channels = 1};
    for (int channel = 0; channel < CHANNELS; channel++) {
        about->mean[channel] = DATA_MEAN;
        about->deviation[channel] = DATA_DEVIATION;
    }
}

/* Image `index` of a part as image i of a batch. */
static void give_stored(const struct part *part, size_t index, int i, uint8_t *bytes, struct image_box *box,
                        int32_t *label)
{
    const size_t size = (size_t)part->height * (size_t)part->width;
    memcpy(bytes + (size_t)i * size, part->image_file + IMAGES_HEADER + index * size, size);
    box[i] = (struct image_box){.width = (float)part->width, .height = (float)part->height};
    label[i] = part->label_file[LABELS_HEADER + index];
}

void data_train_stored(const struct data *data, const struct data_order *order, uint64_t step, int rank, uint8_t *bytes,
                       struct image_box *box, int32_t *labels)
{
    for (int i = 0; i < order->batch; i++)
        give_stored(&data->train, train_index(order, step, rank, i), i, bytes, box, labels);
}

void data_test_stored(const struct data *data, size_t first, size_t stride, int count, uint8_t *bytes,
                      struct image_box *box, int32_t *labels)
{
    for (int i = 0; i < count; i++)
        give_stored(&data->test, first + (size_t)i * stride, i, bytes, box, labels);
}
