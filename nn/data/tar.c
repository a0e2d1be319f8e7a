/* tar.c - WebDataset: a folder of tar files train*.tar and val*.tar or test*.tar (tar_index.h), maybe with classes.txt,
 * one name a line. Shards and their samples count in the order of names and of their place. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/data/reader.h"
#include "nn/data/tar_index.h"

#define NAMES "classes.txt"
#define LARGEST_IMAGE ((uint64_t)1 << 30)

struct shard {
    struct data_file file;
    size_t until; /* samples of this shard and of those before it */
    struct tar_index index;
};

struct tar {
    struct shard *shard[PARTS];
    size_t shards[PARTS];
};

static bool is_train(const char *name)
{
    return strncmp(name, "train", 5) == 0 && ends_with(name, ".tar");
}

static bool is_test(const char *name)
{
    return (strncmp(name, "val", 3) == 0 || strncmp(name, "test", 4) == 0) && ends_with(name, ".tar");
}

static bool recognises(const char *path)
{
    char **names = NULL;
    size_t count = 0;
    bool any = folder_names(path, is_train, &names, &count) >= 0 && count > 0;
    names_release(names, count);
    return any;
}

static enum status open_shard(const char *folder, const char *name, struct shard *shard, size_t *samples, bool *stored)
{
    bool scanned = false, kept = true;
    char *path = NULL;
    enum status status = path_join(&path, folder, name);
    if (status >= 0)
        status = tar_index_open(path, &shard->index, &scanned, &kept);
    if (status >= 0)
        status = data_file_open(path, &shard->file);
    free(path);
    TRY(status);
    *stored = *stored && kept;
    *samples += shard->index.count;
    shard->until = *samples;
    return STATUS_OK;
}

static enum status open_shards(const char *folder, struct data_set *set, enum part part, char **names, size_t count)
{
    struct tar *tar = set->state;
    void *shards = NULL;
    size_t samples = 0, left_out = 0, at = 0;
    bool stored = true;
    TRY(memory_zeroed(&shards, count, sizeof(struct shard)));
    tar->shard[part] = shards;
    for (size_t s = 0; s < count; s++) {
        tar->shards[part] = s + 1;
        TRY(open_shard(folder, names[s], &tar->shard[part][s], &samples, &stored));
        left_out += tar->shard[part][s].index.left_out;
    }
    TRY(set_labels(set, part, samples));
    for (size_t s = 0; s < count; s++)
        for (size_t i = 0; i < tar->shard[part][s].index.count; i++)
            set->label[part][at++] = tar->shard[part][s].index.sample[i].label;
    if (left_out > 0)
        text_addf(&set->notes, "%s%zu %s samples without .jpg or .cls, or with two, are left out",
                  set->notes.length > 0 ? "; " : "", left_out, part == PART_TRAIN ? "training" : "test");
    if (!stored)
        text_addf(&set->notes, "%sindices can't be kept in this folder and are made each time",
                  set->notes.length > 0 ? "; " : "");
    return STATUS_OK;
}

static enum status open_part(const char *folder, struct data_set *set, enum part part)
{
    char **names = NULL;
    size_t count = 0;
    TRY(folder_names(folder, part == PART_TRAIN ? is_train : is_test, &names, &count));
    enum status status = open_shards(folder, set, part, names, count);
    names_release(names, count);
    return status;
}

/* Of classes.txt, or as many as training labels tell. */
static enum status count_classes(const char *folder, struct data_set *set)
{
    int most[PARTS] = {0, 0};
    for (int part = 0; part < PARTS; part++)
        for (size_t i = 0; i < set->count[part]; i++)
            if (set->label[part][i] >= most[part])
                most[part] = set->label[part][i] + 1;
    if (path_has(folder, NAMES)) {
        char *path = NULL;
        TRY(path_join(&path, folder, NAMES));
        enum status status = set_class_names(set, path);
        free(path);
        TRY(status);
    } else {
        set->classes = most[PART_TRAIN];
    }
    if (most[PART_TRAIN] > set->classes)
        return fail(STATUS_FORMAT, "data %s: label %d, but " NAMES " names %d classes", folder, most[PART_TRAIN] - 1,
                    set->classes);
    if (most[PART_TEST] > set->classes)
        return fail(STATUS_FORMAT, "data %s: the test set has label %d that the training set lacks", folder,
                    most[PART_TEST] - 1);
    return STATUS_OK;
}

static enum status tar_open(const char *folder, struct data_set *set)
{
    TRY(memory_zeroed(&set->state, 1, sizeof(struct tar)));
    const struct tar *tar = set->state;
    TRY(open_part(folder, set, PART_TRAIN));
    TRY(open_part(folder, set, PART_TEST));
    if (tar->shards[PART_TRAIN] == 0)
        return fail(STATUS_IO, "data %s: no train*.tar in it", folder);
    if (tar->shards[PART_TEST] == 0)
        text_addf(&set->notes, "%sno val*.tar or test*.tar: nothing is evaluated", set->notes.length > 0 ? "; " : "");
    return count_classes(folder, set);
}

static void tar_close(struct data_set *set)
{
    struct tar *tar = set->state;
    for (int part = 0; tar != NULL && part < PARTS; part++) {
        for (size_t s = 0; s < tar->shards[part]; s++) {
            struct shard *shard = &tar->shard[part][s];
            data_file_close(&shard->file);
            tar_index_release(&shard->index);
        }
        free(tar->shard[part]);
    }
    free(tar);
}

/* The shard that holds sample `index`, and which of its samples that is. */
static const struct shard *find(const struct tar *tar, enum part part, size_t index, const struct tar_sample **sample)
{
    const struct shard *shards = tar->shard[part];
    size_t low = 0, high = tar->shards[part] - 1;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (index < shards[middle].until)
            high = middle;
        else
            low = middle + 1;
    }
    *sample = &shards[low].index.sample[index - (shards[low].until - shards[low].index.count)];
    return &shards[low];
}

static enum status tar_encoded(const struct data_set *set, enum part part, size_t index, struct bytes *bytes)
{
    const struct tar_sample *sample = NULL;
    const struct shard *shard = find(set->state, part, index, &sample);
    if (sample->length > LARGEST_IMAGE)
        return fail(STATUS_FORMAT, "data %s: byte %llu: no image but %llu bytes: at most 1 GiB are taken",
                    shard->file.path, (unsigned long long)sample->offset, (unsigned long long)sample->length);
    TRY(bytes_reserve(bytes, (size_t)sample->length));
    return data_file_read(&shard->file, sample->offset, bytes->data, bytes->length);
}

static uint64_t tar_length(const struct data_set *set, enum part part, size_t index)
{
    const struct tar_sample *sample = NULL;
    (void)find(set->state, part, index, &sample);
    return sample->length;
}

static void tar_name(const struct data_set *set, enum part part, size_t index, struct text *text)
{
    const struct tar_sample *sample = NULL;
    const struct shard *shard = find(set->state, part, index, &sample);
    text_addf(text, "%s byte %llu", shard->file.path, (unsigned long long)sample->offset);
}

extern const struct reader reader_tar;
const struct reader reader_tar = {
    .name = "tar",
    .summary = "WebDataset: train*.tar and val*.tar or test*.tar of KEY.jpg and KEY.cls",
    .photographs = true,
    .recognises = recognises,
    .open = tar_open,
    .close = tar_close,
    .encoded = tar_encoded,
    .length = tar_length,
    .name_of = tar_name,
};
