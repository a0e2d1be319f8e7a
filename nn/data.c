/* data.c - an opened data set, and from its samples to what the network gets. */
#include "nn/data.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/rng.h"
#include "nn/data/jpeg.h"
#include "nn/data/reader.h"
#include "nn/data/view.h"

enum { CHANNELS = 3, SUBSTITUTES = 64 };

static const float grey_mean = DATA_MEAN, grey_deviation = DATA_DEVIATION;
static const float colour_mean[CHANNELS] = {0.485F, 0.456F, 0.406F}; /* ImageNet's */
static const float colour_deviation[CHANNELS] = {0.229F, 0.224F, 0.225F};

struct data {
    struct data_set set;
    char *path;
    int size; /* pixels of the images given out */
    uint64_t seed;
    bool augments;
    bool encoded;
    float mean[CHANNELS], deviation[CHANNELS];
    float value[CHANNELS][256]; /* normalised, of each byte */
    uint64_t class_hash, hash;
    _Atomic size_t skipped;
};

/* ---- opening ---- */

static void normalisation(struct data *data)
{
    const bool grey = data->set.channels == 1;
    for (int c = 0; c < CHANNELS; c++) {
        data->mean[c] = grey ? grey_mean : colour_mean[c];
        data->deviation[c] = grey ? grey_deviation : colour_deviation[c];
        for (int v = 0; v < 256; v++)
            data->value[c][v] = ((float)v / 255.0F - data->mean[c]) / data->deviation[c];
    }
}

static uint64_t hash_classes(const struct data_set *set)
{
    uint64_t hash = hash_bytes(HASH_START, &set->classes, sizeof set->classes);
    for (int c = 0; set->class_name != NULL && c < set->classes; c++)
        hash = hash_bytes(hash, set->class_name[c], strlen(set->class_name[c]) + 1);
    return hash;
}

static uint64_t hash_labels(uint64_t hash, const struct data_set *set)
{
    for (int part = 0; part < PARTS; part++) {
        hash = hash_bytes(hash, &set->count[part], sizeof set->count[part]);
        hash = hash_bytes(hash, set->label[part], set->count[part] * sizeof(int32_t));
    }
    return hash;
}

static enum status check_labels(const struct data *data)
{
    const struct data_set *set = &data->set;
    if (set->count[PART_TRAIN] == 0)
        return fail(STATUS_FORMAT, "data %s: no training images", data->path);
    for (int part = 0; part < PARTS; part++)
        for (size_t i = 0; i < set->count[part]; i++)
            if (set->label[part][i] < 0 || set->label[part][i] >= set->classes)
                return fail(STATUS_FORMAT, "data %s: label %d of %d classes", data->path, (int)set->label[part][i],
                            set->classes);
    return STATUS_OK;
}

static enum status open_set(const struct data_request *request, struct data *data)
{
    const char *path = NULL, *words = request->path != NULL ? request->path : DATA_FOLDER;
    struct data_set *set = &data->set;
    TRY(reader_choose(words, &set->reader, &path));
    TRY(memory_string(&data->path, path));
    TRY(set->reader->open(path, set));
    TRY(text_check(&set->notes));
    TRY(check_labels(data));
    if (set->reader->encoded == NULL)
        return STATUS_OK;
    struct jpeg *jpeg = NULL; /* whether there can be one */
    enum status status = jpeg_open(&jpeg);
    jpeg_close(jpeg);
    return status;
}

enum status data_open(const struct data_request *request, struct data **out)
{
    *out = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct data)));
    struct data *data = memory;
    data->size = request->image_size;
    data->seed = request->seed;
    data->set.size = request->image_size;
    data->set.seed = request->seed;
    enum status status = open_set(request, data);
    if (status < 0) {
        data_close(data);
        return status;
    }
    data->encoded = data->set.reader->encoded != NULL;
    data->augments = request->augment == AUGMENT_CROP_FLIP ||
                     (request->augment == AUGMENT_USUAL && data->set.reader->photographs && data->set.channels != 1);
    data->class_hash = hash_classes(&data->set);
    data->hash = hash_labels(data->class_hash, &data->set);
    normalisation(data);
    *out = data;
    return STATUS_OK;
}

void data_close(struct data *data)
{
    if (data == NULL)
        return;
    struct data_set *set = &data->set;
    if (data->path != NULL && set->reader != NULL)
        set->reader->close(set);
    for (int part = 0; part < PARTS; part++)
        free(set->label[part]);
    if (set->class_name != NULL)
        names_release(set->class_name, (size_t)set->classes);
    text_release(&set->notes);
    free(data->path);
    free(data);
}

size_t data_train_count(const struct data *data)
{
    return data->set.count[PART_TRAIN];
}

size_t data_test_count(const struct data *data)
{
    return data->set.count[PART_TEST];
}

int data_classes(const struct data *data)
{
    return data->set.classes;
}

int data_size(const struct data *data)
{
    return data->size;
}

void data_facts(const struct data *data, struct data_facts *facts)
{
    const struct data_set *set = &data->set;
    *facts = (struct data_facts){.format = set->reader->name,
                                 .path = data->path,
                                 .augment = data->augments ? "crop-flip" : "none",
                                 .notes = text_string(&set->notes),
                                 .labels = set->label[PART_TRAIN],
                                 .class_name = set->class_name,
                                 .class_hash = data->class_hash,
                                 .hash = data->hash,
                                 .repeats = set->reader->repeats,
                                 .skipped = atomic_load(&data->skipped)};
}

/* ---- contents ---- */

static uint64_t hash_lengths(uint64_t hash, const struct data_set *set, enum part part)
{
    for (size_t i = 0; set->reader->length != NULL && i < set->count[part]; i++) {
        const uint64_t length = set->reader->length(set, part, i);
        hash = hash_bytes(hash, &length, sizeof length);
    }
    return hash;
}

/* The bytes of one sample; `stored`: room for those of a stored one. */
static uint64_t hash_sample(uint64_t hash, const struct data_set *set, enum part part, size_t index,
                            struct bytes *bytes, size_t stored)
{
    bytes->length = 0;
    const enum status status = set->reader->encoded != NULL ? set->reader->encoded(set, part, index, bytes)
                                                            : set->reader->pixels(set, part, index, bytes->data);
    const size_t length = status < 0 ? 0 : set->reader->encoded != NULL ? bytes->length : stored;
    const uint64_t words[] = {index, length, hash_quick(bytes->data, length)};
    return hash_bytes(hash, words, sizeof words);
}

enum status data_contents(const struct data *data, uint64_t *hash)
{
    enum { SAMPLES = 64 };
    const struct data_set *set = &data->set;
    const size_t stored = (size_t)set->height * (size_t)set->width * (size_t)set->channels;
    const uint64_t key = rng_key(0, "contents", 0, 0);
    struct bytes bytes = {.data = NULL};
    *hash = HASH_START;
    TRY(bytes_reserve(&bytes, stored > 0 ? stored : 1));
    for (enum part part = PART_TRAIN; part < PARTS; part++) {
        const size_t count = set->count[part];
        *hash = hash_lengths(*hash, set, part);
        for (size_t k = 0; k < count && k < SAMPLES; k++)
            *hash = hash_sample(*hash, set, part, (size_t)rng_permute(key, count, k), &bytes, stored);
    }
    free(bytes.data);
    return STATUS_OK;
}

/* ---- resizing ---- */

/* One axis: output pixel o = (1 - weight[o]) * in[low[o]] + weight[o] * in[high[o]]. */
struct axis {
    int *low, *high;
    float *weight;
};

struct data_scratch {
    const struct data *data;
    struct jpeg *jpeg;
    struct bytes bytes;
    struct axis vertical, horizontal; /* of `box`, not mirrored */
    struct image_box box;             /* zeroed: none           */
};

static enum status make_axis(int out, struct axis *axis)
{
    void *low = NULL, *high = NULL, *weight = NULL;
    enum status status = STATUS_OK;
    TRY_TO(done, memory_zeroed(&low, (size_t)out, sizeof(int)));
    TRY_TO(done, memory_zeroed(&high, (size_t)out, sizeof(int)));
    TRY_TO(done, memory_zeroed(&weight, (size_t)out, sizeof(float)));
done:
    *axis = (struct axis){.low = low, .high = high, .weight = weight};
    return status;
}

static void release_axis(struct axis *axis)
{
    free(axis->low);
    free(axis->high);
    free(axis->weight);
}

static int clamped(int value, int least, int most)
{
    return value < least ? least : value > most ? most : value;
}

/* `out` pixels over begin .. begin + extent of an axis of `in` pixels; centres of pixels, clamped to those that the
 * extent touches (nn/cuda/element.h has the same for devices). */
static void aim_axis(const struct axis *axis, int out, float begin, float extent, int in)
{
    const float scale = extent / (float)out, from = floorf(begin);
    const int first = clamped((int)from, 0, in - 1), last = clamped((int)ceilf(begin + extent) - 1, first, in - 1);
    for (int o = 0; o < out; o++) {
        float source = fmaxf(scale * ((float)o + 0.5F) - 0.5F, 0.0F) + (begin - from);
        int low = first + (int)source < last ? first + (int)source : last;
        axis->low[o] = low;
        axis->high[o] = low + 1 <= last ? low + 1 : low;
        axis->weight[o] = source - (float)(low - first);
    }
}

static bool same_piece(const struct image_box *a, const struct image_box *b)
{
    return a->left == b->left && a->top == b->top && a->width == b->width && a->height == b->height;
}

/* One channel of a stored image, `form` says which form it has. */
static void resize_channel(const struct data_scratch *scratch, const struct stored_images *form, const uint8_t *bytes,
                           int channel, bool flip, float *to)
{
    const struct axis *vertical = &scratch->vertical, *horizontal = &scratch->horizontal;
    const size_t size = (size_t)scratch->data->size, step = (size_t)form->channels;
    const size_t row = (size_t)form->width * step;
    const float *value = scratch->data->value[channel];
    const uint8_t *image = bytes + (form->channels == 1 ? 0 : channel);
    for (size_t y = 0; y < size; y++) {
        const uint8_t *upper = image + (size_t)vertical->low[y] * row;
        const uint8_t *lower = image + (size_t)vertical->high[y] * row;
        float down = vertical->weight[y], up = 1.0F - down;
        for (size_t x = 0; x < size; x++) {
            size_t west = (size_t)horizontal->low[x] * step, east = (size_t)horizontal->high[x] * step;
            float right = horizontal->weight[x], left = 1.0F - right;
            to[y * size + (flip ? size - 1 - x : x)] = up * (left * value[upper[west]] + right * value[upper[east]]) +
                                                       down * (left * value[lower[west]] + right * value[lower[east]]);
        }
    }
}

/* The same where every pixel stays one. */
static void copy_channel(const struct data *data, const struct stored_images *form, const uint8_t *bytes, int channel,
                         bool flip, float *to)
{
    const size_t size = (size_t)data->size, step = (size_t)form->channels;
    const float *value = data->value[channel];
    const uint8_t *image = bytes + (form->channels == 1 ? 0 : channel);
    for (size_t y = 0; y < size; y++, image += size * step, to += size)
        for (size_t x = 0; x < size; x++)
            to[flip ? size - 1 - x : x] = value[image[x * step]];
}

void data_canonical(const struct data *data, struct data_scratch *scratch, const uint8_t *bytes,
                    const struct image_box *box, float *image)
{
    struct stored_images form;
    data_form(data, &form);
    const size_t plane = (size_t)data->size * (size_t)data->size;
    const struct image_box all = {.width = (float)form.width, .height = (float)form.height};
    const bool copies = same_piece(box, &all) && form.width == data->size && form.height == data->size;
    if (!copies && !same_piece(box, &scratch->box)) {
        aim_axis(&scratch->vertical, data->size, box->top, box->height, form.height);
        aim_axis(&scratch->horizontal, data->size, box->left, box->width, form.width);
        scratch->box = *box;
    }
    for (int channel = 0; channel < form.channels; channel++) {
        float *to = image + (size_t)channel * plane;
        if (copies)
            copy_channel(data, &form, bytes, channel, box->flip, to);
        else
            resize_channel(scratch, &form, bytes, channel, box->flip, to);
    }
    for (int channel = form.channels; channel < CHANNELS; channel++)
        memcpy(image + (size_t)channel * plane, image, plane * sizeof(float));
}

/* ---- one image ---- */

void data_form(const struct data *data, struct stored_images *form)
{
    const struct data_set *set = &data->set;
    *form = (struct stored_images){.height = data->encoded ? data->size : set->height,
                                   .width = data->encoded ? data->size : set->width,
                                   .channels = data->encoded ? CHANNELS : set->channels};
    memcpy(form->mean, data->mean, sizeof form->mean);
    memcpy(form->deviation, data->deviation, sizeof form->deviation);
}

enum status data_scratch_open(const struct data *data, struct data_scratch **out)
{
    void *memory = NULL;
    *out = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct data_scratch)));
    struct data_scratch *scratch = memory;
    enum status status = STATUS_OK;
    scratch->data = data;
    TRY_TO(failed, make_axis(data->size, &scratch->vertical));
    TRY_TO(failed, make_axis(data->size, &scratch->horizontal));
    if (data->encoded)
        TRY_TO(failed, jpeg_open(&scratch->jpeg));
    *out = scratch;
    return STATUS_OK;
failed:
    data_scratch_close(scratch);
    return status;
}

void data_scratch_close(struct data_scratch *scratch)
{
    if (scratch == NULL)
        return;
    release_axis(&scratch->vertical);
    release_axis(&scratch->horizontal);
    jpeg_close(scratch->jpeg);
    free(scratch->bytes.data);
    free(scratch);
}

/* What is looked at of sample `index`. */
static struct view view_of(const struct data *data, enum part part, uint64_t epoch, size_t index, int width, int height)
{
    if (part == PART_TRAIN && data->augments)
        return view_random(width, height, data->size, data->seed, epoch, index);
    if (data->set.reader->photographs)
        return view_middle(width, height, data->size);
    return view_whole(width, height, data->size);
}

static enum status decode(const struct data *data, struct data_scratch *scratch, enum part part, uint64_t epoch,
                          size_t index, const struct data_image *to)
{
    int width = 0, height = 0;
    TRY(data->set.reader->encoded(&data->set, part, index, &scratch->bytes));
    TRY(jpeg_begin(scratch->jpeg, scratch->bytes.data, scratch->bytes.length, &width, &height));
    struct view view = view_of(data, part, epoch, index, width, height);
    TRY(jpeg_view(scratch->jpeg, &view, part == PART_TRAIN, to->bytes));
    *to->box = (struct image_box){.width = (float)data->size, .height = (float)data->size, .flip = view.flip};
    return STATUS_OK;
}

/* STATUS_FORMAT: it can't be decoded. */
static enum status give(const struct data *data, struct data_scratch *scratch, enum part part, uint64_t epoch,
                        size_t index, const struct data_image *to)
{
    const struct data_set *set = &data->set;
    *to->label = set->label[part][index];
    if (data->encoded)
        return decode(data, scratch, part, epoch, index, to);
    struct view view = view_of(data, part, epoch, index, set->width, set->height);
    *to->box = view_box(&view);
    return set->reader->pixels(set, part, index, to->bytes);
}

static void count_skipped(const struct data *data)
{
    atomic_fetch_add(&((struct data *)(uintptr_t)data)->skipped, 1); /* a count is all that changes */
}

enum status data_train_image(const struct data *data, struct data_scratch *scratch, const struct data_order *order,
                             uint64_t step, int rank, int i, const struct data_image *to)
{
    const struct data_place place = data_order_place(order, step);
    const uint64_t epoch = place.epoch;
    const size_t wanted = data_order_sample(order, epoch, place.batch, rank, i);
    size_t index = wanted;
    for (int attempt = 0; attempt < SUBSTITUTES; attempt++) {
        enum status status = give(data, scratch, PART_TRAIN, epoch, index, to);
        if (status != STATUS_FORMAT || !data->encoded)
            return status;
        count_skipped(data);
        index = data_order_substitute(order, epoch, rank, wanted, attempt);
    }
    return fail_context(STATUS_FORMAT, "data %s: %d images in a row can't be decoded: chorale data inspect names them",
                        data->path, SUBSTITUTES);
}

enum status data_test_image(const struct data *data, struct data_scratch *scratch, size_t index,
                            const struct data_image *to)
{
    enum status status = give(data, scratch, PART_TEST, 0, index, to);
    if (status != STATUS_FORMAT || !data->encoded)
        return status;
    count_skipped(data);
    *to->label = -1;
    return STATUS_OK;
}

static enum part part_of(bool test)
{
    return test ? PART_TEST : PART_TRAIN;
}

int32_t data_label(const struct data *data, bool test, size_t index)
{
    return data->set.label[part_of(test)][index];
}

void data_name(const struct data *data, bool test, size_t index, struct text *text)
{
    data->set.reader->name_of(&data->set, part_of(test), index, text);
}

enum status data_look(const struct data *data, struct data_scratch *scratch, bool test, size_t index, bool decode,
                      int *width, int *height)
{
    *width = data->set.width;
    *height = data->set.height;
    if (!data->encoded)
        return STATUS_OK;
    TRY(data->set.reader->encoded(&data->set, part_of(test), index, &scratch->bytes));
    TRY(jpeg_begin(scratch->jpeg, scratch->bytes.data, scratch->bytes.length, width, height));
    if (!decode)
        return STATUS_OK;
    uint8_t rgb[3]; /* of the whole image in one pixel */
    struct view view = view_whole(*width, *height, 1);
    return jpeg_view(scratch->jpeg, &view, false, rgb);
}

enum status data_square(const struct data *data, struct data_scratch *scratch, bool test, size_t index, uint8_t *bytes,
                        int32_t *label)
{
    const enum part part = part_of(test);
    int width = 0, height = 0;
    *label = data->set.label[part][index];
    if (!data->encoded)
        return data->set.reader->pixels(&data->set, part, index, bytes);
    enum status status = data->set.reader->encoded(&data->set, part, index, &scratch->bytes);
    if (status >= 0)
        status = jpeg_begin(scratch->jpeg, scratch->bytes.data, scratch->bytes.length, &width, &height);
    if (status >= 0) {
        struct view view = view_square(width, height, data->size);
        status = jpeg_view(scratch->jpeg, &view, false, bytes);
    }
    if (status == STATUS_FORMAT) {
        *label = -1;
        return STATUS_OK;
    }
    return status;
}

/* ---- batches ---- */

/* One stored image that becomes a canonical one at once. */
struct desk {
    struct data_scratch *scratch;
    uint8_t *bytes;
    struct image_box box;
};

static void close_desk(struct desk *desk)
{
    data_scratch_close(desk->scratch);
    free(desk->bytes);
}

static enum status open_desk(const struct data *data, struct desk *desk)
{
    struct stored_images form;
    void *bytes = NULL;
    *desk = (struct desk){.scratch = NULL};
    data_form(data, &form);
    TRY(memory_zeroed(&bytes, (size_t)form.height * (size_t)form.width, (size_t)form.channels));
    desk->bytes = bytes;
    return data_scratch_open(data, &desk->scratch);
}

static size_t image_elements(const struct data *data)
{
    return CHANNELS * (size_t)data->size * (size_t)data->size;
}

enum status data_train_batch(const struct data *data, const struct data_order *order, uint64_t step, int rank,
                             float *images, int32_t *labels)
{
    struct desk desk;
    const struct data_place place = data_order_place(order, step);
    const int count = data_order_images(order, place.epoch, place.batch, rank);
    enum status status = open_desk(data, &desk);
    for (int i = 0; status >= 0 && i < count; i++) {
        struct data_image to = {.bytes = desk.bytes, .box = &desk.box, .label = labels + i};
        status = data_train_image(data, desk.scratch, order, step, rank, i, &to);
        if (status >= 0)
            data_canonical(data, desk.scratch, desk.bytes, &desk.box, images + (size_t)i * image_elements(data));
    }
    close_desk(&desk);
    return status;
}

enum status data_test_batch(const struct data *data, size_t first, size_t stride, int *count, float *images,
                            int32_t *labels)
{
    struct desk desk;
    int good = 0;
    enum status status = open_desk(data, &desk);
    for (int i = 0; status >= 0 && i < *count; i++) {
        struct data_image to = {.bytes = desk.bytes, .box = &desk.box, .label = labels + good};
        status = data_test_image(data, desk.scratch, first + (size_t)i * stride, &to);
        if (status < 0 || labels[good] < 0)
            continue;
        data_canonical(data, desk.scratch, desk.bytes, &desk.box, images + (size_t)good * image_elements(data));
        good++;
    }
    *count = good;
    close_desk(&desk);
    return status;
}
