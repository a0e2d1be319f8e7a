/* cifar.c - the binary versions of CIFAR-10 (data_batch_1.bin .. data_batch_5.bin, test_batch.bin, batches.meta.txt) and
 * CIFAR-100 (train.bin, test.bin, fine_label_names.txt; fine labels): records of one or two bytes of label, then 32x32
 * pixels in three planes. Source: https://www.cs.toronto.edu/~kriz/cifar.html. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "nn/data/reader.h"

enum { SIDE = 32, PIXELS = SIDE * SIDE, COLOURS = 3, MOST_FILES = 5 };
#define CURE "the binary version, unpacked, from https://www.cs.toronto.edu/~kriz/cifar.html"

/* What tells the two from each other. */
struct kind {
    const char *files[PARTS][MOST_FILES + 1];
    const char *names;
    int classes;
    size_t label_bytes; /* the last of them counts */
};

static const struct kind cifar10 = {
    .files = {{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
              {"test_batch.bin"}},
    .names = "batches.meta.txt",
    .classes = 10,
    .label_bytes = 1,
};
static const struct kind cifar100 = {
    .files = {{"train.bin"}, {"test.bin"}},
    .names = "fine_label_names.txt",
    .classes = 100,
    .label_bytes = 2,
};

struct cifar {
    const struct kind *kind;
    struct data_file file[PARTS][MOST_FILES];
    size_t until[PARTS][MOST_FILES]; /* records of this file and those before it */
};

static const struct kind *kind_of(const char *folder)
{
    if (path_has(folder, cifar10.files[PART_TRAIN][0]))
        return &cifar10;
    return path_has(folder, cifar100.files[PART_TRAIN][0]) ? &cifar100 : NULL;
}

static bool recognises(const char *path)
{
    return kind_of(path) != NULL;
}

static size_t record_bytes(const struct kind *kind)
{
    return kind->label_bytes + (size_t)PIXELS * COLOURS;
}

static enum status open_file(const char *folder, struct cifar *cifar, enum part part, int f, size_t *records)
{
    char *path = NULL;
    const size_t record = record_bytes(cifar->kind);
    TRY(path_join(&path, folder, cifar->kind->files[part][f]));
    enum status status = data_file_open(path, &cifar->file[part][f]);
    const uint64_t length = cifar->file[part][f].length;
    if (status < 0)
        status = fail(status, "%s: take " CURE, status_message());
    else if (length % record != 0)
        status = fail(STATUS_FORMAT, "data %s: %llu bytes are no whole number of records of %zu: take " CURE, path,
                      (unsigned long long)length, record);
    else
        *records += (size_t)(length / record);
    cifar->until[part][f] = *records;
    free(path);
    return status;
}

/* Bytes `from` and more of record `index`. */
static enum status read_record(const struct cifar *cifar, enum part part, size_t index, size_t from, uint8_t *to,
                               size_t bytes)
{
    int f = 0;
    while (index >= cifar->until[part][f])
        f++;
    size_t before = f > 0 ? cifar->until[part][f - 1] : 0;
    const uint64_t offset = (uint64_t)(index - before) * record_bytes(cifar->kind) + from;
    return data_file_read(&cifar->file[part][f], offset, to, bytes);
}

static enum status open_part(const char *folder, struct data_set *set, enum part part)
{
    struct cifar *cifar = set->state;
    size_t records = 0;
    for (int f = 0; cifar->kind->files[part][f] != NULL; f++)
        TRY(open_file(folder, cifar, part, f, &records));
    TRY(set_labels(set, part, records));
    for (size_t i = 0; i < records; i++) {
        uint8_t label = 0;
        TRY(read_record(cifar, part, i, cifar->kind->label_bytes - 1, &label, 1));
        if (label >= cifar->kind->classes)
            return fail(STATUS_FORMAT, "data %s: record %zu of %s has label %d of %d classes: take " CURE, folder, i,
                        part == PART_TRAIN ? "training" : "test", label, cifar->kind->classes);
        set->label[part][i] = label;
    }
    return STATUS_OK;
}

static enum status read_names(const char *folder, struct data_set *set)
{
    const struct cifar *cifar = set->state;
    char *path = NULL;
    set->classes = cifar->kind->classes;
    if (!path_has(folder, cifar->kind->names))
        return STATUS_OK;
    TRY(path_join(&path, folder, cifar->kind->names));
    enum status status = set_class_names(set, path);
    if (status >= 0 && set->classes != cifar->kind->classes)
        status = fail(STATUS_FORMAT, "data %s: %d class names, not %d: take " CURE, path, set->classes,
                      cifar->kind->classes);
    free(path);
    return status;
}

static enum status cifar_open(const char *folder, struct data_set *set)
{
    TRY(memory_zeroed(&set->state, 1, sizeof(struct cifar)));
    struct cifar *cifar = set->state;
    cifar->kind = kind_of(folder);
    if (cifar->kind == NULL)
        return fail(STATUS_IO, "data %s: neither data_batch_1.bin nor train.bin is there: take " CURE, folder);
    TRY(open_part(folder, set, PART_TRAIN));
    TRY(open_part(folder, set, PART_TEST));
    set->height = SIDE;
    set->width = SIDE;
    set->channels = COLOURS;
    return read_names(folder, set);
}

static void cifar_close(struct data_set *set)
{
    struct cifar *cifar = set->state;
    for (int part = 0; cifar != NULL && part < PARTS; part++)
        for (int f = 0; f < MOST_FILES; f++)
            data_file_close(&cifar->file[part][f]);
    free(cifar);
}

static enum status cifar_pixels(const struct data_set *set, enum part part, size_t index, uint8_t *to)
{
    const struct cifar *cifar = set->state;
    uint8_t plane[PIXELS * COLOURS];
    TRY(read_record(cifar, part, index, cifar->kind->label_bytes, plane, sizeof plane));
    for (size_t p = 0; p < PIXELS; p++)
        for (size_t c = 0; c < COLOURS; c++)
            to[p * COLOURS + c] = plane[c * PIXELS + p];
    return STATUS_OK;
}

static void cifar_name(const struct data_set *set, enum part part, size_t index, struct text *text)
{
    (void)set;
    text_addf(text, "%s record %zu", part == PART_TRAIN ? "training" : "test", index);
}

extern const struct reader reader_cifar;
const struct reader reader_cifar = {
    .name = "cifar",
    .summary = "CIFAR-10's data_batch_1.bin and more, or CIFAR-100's train.bin and test.bin",
    .photographs = true,
    .recognises = recognises,
    .open = cifar_open,
    .close = cifar_close,
    .pixels = cifar_pixels,
    .name_of = cifar_name,
};
