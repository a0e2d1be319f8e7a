/* idx.c - MNIST's format: train- and t10k- images-idx3-ubyte and labels-idx1-ubyte, plain or with .gz. Grey. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "nn/data/reader.h"

enum { LARGEST_SIDE = 1024, IMAGES_HEADER = 16, LABELS_HEADER = 8 };
#define LARGEST_FILE ((size_t)4 << 30)
#define CURE DATA_CURE " with the four idx files"

struct idx {
    unsigned char *images[PARTS]; /* files as read */
    int height[PARTS], width[PARTS];
    int classes[PARTS]; /* the largest label, plus 1 */
};

static const char *const prefix_of[PARTS] = {[PART_TRAIN] = "train", [PART_TEST] = "t10k"};

static bool recognises(const char *path)
{
    static const char *const names[] = {"train-images-idx3-ubyte", "train-images-idx3-ubyte.gz",
                                        "train-labels-idx1-ubyte", "train-labels-idx1-ubyte.gz"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (path_has(path, names[i]))
            return true;
    return false;
}

static uint32_t big_endian(const unsigned char *bytes)
{
    assert(bytes != NULL);
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | (uint32_t)bytes[3];
}

static enum status damaged(const char *path, const char *what)
{
    return fail(STATUS_FORMAT, "data %s: %s: " CURE, path, what);
}

/* FOLDER/NAME.gz, or FOLDER/NAME where there is no such file. */
static void find_file(const char *folder, const char *prefix, const char *rest, struct text *path)
{
    text_addf(path, "%s/%s-%s.gz", folder, prefix, rest);
    if (file_exists(text_string(path)))
        return;
    text_clear(path);
    text_addf(path, "%s/%s-%s", folder, prefix, rest);
}

/* The whole file, its magic number and the bytes that its header promises checked. */
static enum status read_idx(const char *path, uint32_t magic, size_t header, unsigned char **file)
{
    size_t length = 0;
    if (!file_exists(path))
        return fail(STATUS_IO, "data %s: no such file, plain or with .gz: " CURE, path);
    if (!file_is_plain(path))
        return damaged(path, "no regular file");
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

static enum status read_labels(struct data_set *set, enum part part, const char *path, size_t images)
{
    struct idx *idx = set->state;
    unsigned char *file = NULL;
    enum status status = STATUS_OK;
    TRY_TO(done, read_idx(path, 0x801, LABELS_HEADER, &file));
    size_t count = big_endian(file + 4);
    if (count != images) {
        status = fail(STATUS_FORMAT, "data %s: %zu labels for %zu images: " CURE, path, count, images);
        goto done;
    }
    TRY_TO(done, set_labels(set, part, count));
    for (size_t i = 0; i < count; i++) {
        set->label[part][i] = file[LABELS_HEADER + i];
        if (file[LABELS_HEADER + i] >= idx->classes[part])
            idx->classes[part] = file[LABELS_HEADER + i] + 1;
    }
done:
    free(file);
    return status;
}

static enum status read_part(const char *folder, struct data_set *set, enum part part)
{
    struct idx *idx = set->state;
    enum status status = STATUS_OK;
    struct text images = {0}, labels = {0};
    find_file(folder, prefix_of[part], "images-idx3-ubyte", &images);
    find_file(folder, prefix_of[part], "labels-idx1-ubyte", &labels);
    TRY_TO(done, text_check(&images));
    TRY_TO(done, text_check(&labels));
    TRY_TO(done, read_idx(text_string(&images), 0x803, IMAGES_HEADER, &idx->images[part]));
    idx->height[part] = (int)big_endian(idx->images[part] + 8);
    idx->width[part] = (int)big_endian(idx->images[part] + 12);
    TRY_TO(done, read_labels(set, part, text_string(&labels), big_endian(idx->images[part] + 4)));
done:
    text_release(&images);
    text_release(&labels);
    return status;
}

static enum status idx_open(const char *folder, struct data_set *set)
{
    TRY(memory_zeroed(&set->state, 1, sizeof(struct idx)));
    const struct idx *idx = set->state;
    TRY(read_part(folder, set, PART_TRAIN));
    TRY(read_part(folder, set, PART_TEST));
    if (idx->height[PART_TRAIN] != idx->height[PART_TEST] || idx->width[PART_TRAIN] != idx->width[PART_TEST])
        return fail(STATUS_FORMAT, "data %s: training images of %dx%d pixels, test images of %dx%d: " CURE, folder,
                    idx->width[PART_TRAIN], idx->height[PART_TRAIN], idx->width[PART_TEST], idx->height[PART_TEST]);
    if (idx->classes[PART_TEST] > idx->classes[PART_TRAIN])
        return fail(STATUS_FORMAT, "data %s: the test set has labels that the training set lacks: " CURE, folder);
    set->classes = idx->classes[PART_TRAIN];
    set->height = idx->height[PART_TRAIN];
    set->width = idx->width[PART_TRAIN];
    set->channels = 1;
    return STATUS_OK;
}

static void idx_close(struct data_set *set)
{
    struct idx *idx = set->state;
    for (int part = 0; idx != NULL && part < PARTS; part++)
        free(idx->images[part]);
    free(idx);
}

static enum status idx_pixels(const struct data_set *set, enum part part, size_t index, uint8_t *to)
{
    const struct idx *idx = set->state;
    size_t bytes = (size_t)set->height * (size_t)set->width;
    memcpy(to, idx->images[part] + IMAGES_HEADER + index * bytes, bytes);
    return STATUS_OK;
}

static void idx_name(const struct data_set *set, enum part part, size_t index, struct text *text)
{
    (void)set;
    text_addf(text, "image %zu of %s-images-idx3-ubyte", index, prefix_of[part]);
}

extern const struct reader reader_idx;
const struct reader reader_idx = {
    .name = "idx",
    .summary = "MNIST's: train-images-idx3-ubyte and three more, plain or .gz",
    .recognises = recognises,
    .open = idx_open,
    .close = idx_close,
    .pixels = idx_pixels,
    .name_of = idx_name,
};
