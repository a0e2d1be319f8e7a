/* synthetic.c - images made from the seed when the set is opened, as many as ImageNet has: for measuring everything but
 * the reading of data. A pool of a few images stands for all; labels are random, and nothing can be learnt from it. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "nn/data/reader.h"

enum { POOL = 32, CLASSES = 1000, IMAGES = 1281167, COLOURS = 3 };

static size_t image_bytes(const struct data_set *set)
{
    return (size_t)set->height * (size_t)set->width * COLOURS;
}

static enum status synthetic_open(const char *path, struct data_set *set)
{
    (void)path;
    set->height = set->width = set->size;
    set->channels = COLOURS;
    set->classes = CLASSES;
    TRY(memory_zeroed(&set->state, POOL, image_bytes(set)));
    TRY(set_labels(set, PART_TRAIN, IMAGES));
    TRY(set_labels(set, PART_TEST, 0)); /* nothing to be tested on */
    uint64_t pixels = rng_key(set->seed, "synthetic pixels", 0, 0),
             labels = rng_key(set->seed, "synthetic labels", 0, 0);
    uint8_t *to = set->state;
    for (size_t i = 0; i < POOL * image_bytes(set); i += 8) {
        uint64_t word = rng_u64(pixels, i / 8);
        size_t left = POOL * image_bytes(set) - i;
        memcpy(to + i, &word, left < 8 ? left : 8);
    }
    for (size_t i = 0; i < IMAGES; i++)
        set->label[PART_TRAIN][i] = (int32_t)rng_below(labels, i, CLASSES);
    return STATUS_OK;
}

static void synthetic_close(struct data_set *set)
{
    free(set->state);
}

static enum status synthetic_pixels(const struct data_set *set, enum part part, size_t index, uint8_t *to)
{
    (void)part;
    memcpy(to, (const uint8_t *)set->state + index % POOL * image_bytes(set), image_bytes(set));
    return STATUS_OK;
}

static void synthetic_name(const struct data_set *set, enum part part, size_t index, struct text *text)
{
    (void)set;
    (void)part;
    text_addf(text, "synthetic image %zu", index);
}

extern const struct reader reader_synthetic;
const struct reader reader_synthetic = {
    .name = "synthetic",
    .summary = "made from the seed; --data=synthetic",
    .repeats = true,
    .open = synthetic_open,
    .close = synthetic_close,
    .pixels = synthetic_pixels,
    .name_of = synthetic_name,
};
