/* folder.c - ImageFolder, ILSVRC as people have it: train/CLASS/NAME.JPEG and val/CLASS/NAME.JPEG, or test/. Classes and files
 * count in the order of their names; names that begin with a dot are passed over. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "nn/data/reader.h"

#define LARGEST_FILE ((off_t)1 << 30)

struct folder {
    char *root[PARTS];    /* PATH/train, PATH/val */
    char *names[PARTS];   /* of the files, one after the other, each ended by NUL */
    size_t *begin[PARTS]; /* of each file's name */
    size_t length[PARTS], name_capacity[PARTS], begin_capacity[PARTS];
    size_t others; /* files that are no JPEG by their name */
};

static bool is_jpeg(const char *name)
{
    return ends_with(name, ".jpg") || ends_with(name, ".jpeg");
}

static const char *test_folder(const char *path)
{
    return path_has(path, "val") ? "val" : "test";
}

static bool recognises(const char *path)
{
    char *train = NULL;
    bool there = path_join(&train, path, "train") >= 0 && is_folder(train);
    free(train);
    return there;
}

static void note(struct data_set *set)
{
    if (set->notes.length > 0)
        text_add(&set->notes, "; ");
}

/* ---- classes ---- */

/* Folders in `root`, sorted by name. */
static enum status class_folders(const char *root, char ***names, size_t *count)
{
    size_t kept = 0;
    TRY(folder_names(root, NULL, names, count));
    for (size_t i = 0; i < *count; i++) {
        char *path = NULL;
        enum status status = path_join(&path, root, (*names)[i]);
        bool keep = status >= 0 && is_folder(path);
        free(path);
        if (keep)
            (*names)[kept++] = (*names)[i];
        else
            free((*names)[i]);
    }
    *count = kept;
    return STATUS_OK;
}

/* Training and validation are about the same things. */
static enum status compare_classes(const char *root, const struct data_set *set, char *const *names, size_t count)
{
    for (size_t c = 0; c < count || c < (size_t)set->classes; c++) {
        const char *trained = c < (size_t)set->classes ? set->class_name[c] : NULL,
                   *tested = c < count ? names[c] : NULL;
        if (trained != NULL && tested != NULL && strcmp(trained, tested) == 0)
            continue;
        bool missing = tested == NULL || (trained != NULL && strcmp(trained, tested) < 0);
        return fail(STATUS_FORMAT, "data %s: class %s is %s: both need the same class folders", root,
                    missing ? trained : tested, missing ? "missing here, train/ has it" : "missing in train/");
    }
    return STATUS_OK;
}

/* ---- files ---- */

static enum status add_file(struct folder *folder, enum part part, size_t number, const char *name)
{
    size_t bytes = strlen(name) + 1;
    void *names = folder->names[part], *begin = folder->begin[part];
    enum status status = memory_grow(&names, &folder->name_capacity[part], folder->length[part] + bytes, 1);
    folder->names[part] = names;
    TRY(status);
    status = memory_grow(&begin, &folder->begin_capacity[part], number + 1, sizeof(size_t));
    folder->begin[part] = begin;
    TRY(status);
    folder->begin[part][number] = folder->length[part];
    memcpy(folder->names[part] + folder->length[part], name, bytes);
    folder->length[part] += bytes;
    return STATUS_OK;
}

/* The files of one class; *number grows with them. */
static enum status add_class(struct folder *folder, enum part part, const char *class_name, size_t *number)
{
    char *path = NULL, **names = NULL;
    size_t count = 0;
    enum status status = STATUS_OK;
    TRY_TO(done, path_join(&path, folder->root[part], class_name));
    TRY_TO(done, folder_names(path, NULL, &names, &count));
    for (size_t i = 0; i < count; i++) {
        if (!is_jpeg(names[i])) {
            folder->others++;
            continue;
        }
        TRY_TO(done, add_file(folder, part, *number, names[i]));
        ++*number;
    }
done:
    names_release(names, count);
    free(path);
    return status;
}

static enum status read_part(struct data_set *set, enum part part)
{
    struct folder *folder = set->state;
    size_t number = 0, empty = 0;
    void *until = NULL;
    struct text which = {0};
    enum status status = STATUS_OK;
    TRY_TO(done, memory_zeroed(&until, (size_t)set->classes, sizeof(size_t)));
    size_t *end = until; /* of each class */
    for (int c = 0; c < set->classes; c++) {
        size_t before = number;
        TRY_TO(done, add_class(folder, part, set->class_name[c], &number));
        end[c] = number;
        if (number == before && empty++ < 3)
            text_addf(&which, "%s%s", which.length > 0 ? ", " : "", set->class_name[c]);
    }
    if (empty > 0) {
        note(set);
        text_addf(&set->notes, "%zu empty class folder%s in %s: %s%s", empty, empty > 1 ? "s" : "", folder->root[part],
                  text_string(&which), empty > 3 ? ", ..." : "");
    }
    TRY_TO(done, set_labels(set, part, number));
    for (size_t i = 0, c = 0; i < number; i++) {
        while (i >= end[c])
            c++;
        set->label[part][i] = (int32_t)c;
    }
done:
    free(until);
    text_release(&which);
    return status;
}

/* ---- the set ---- */

static enum status read_classes(struct data_set *set)
{
    const struct folder *folder = set->state;
    size_t count = 0;
    TRY(class_folders(folder->root[PART_TRAIN], &set->class_name, &count));
    set->classes = (int)count;
    if (count == 0)
        return fail(STATUS_FORMAT, "data %s: no class folders in it", folder->root[PART_TRAIN]);
    return STATUS_OK;
}

static enum status read_test(const char *path, struct data_set *set)
{
    struct folder *folder = set->state;
    char **names = NULL;
    size_t count = 0;
    TRY(path_join(&folder->root[PART_TEST], path, test_folder(path)));
    if (!is_folder(folder->root[PART_TEST])) {
        note(set);
        text_add(&set->notes, "neither val/ nor test/: nothing is evaluated");
        return set_labels(set, PART_TEST, 0);
    }
    TRY(class_folders(folder->root[PART_TEST], &names, &count));
    enum status status = compare_classes(folder->root[PART_TEST], set, names, count);
    names_release(names, count);
    TRY(status);
    return read_part(set, PART_TEST);
}

static enum status folder_open(const char *path, struct data_set *set)
{
    TRY(memory_zeroed(&set->state, 1, sizeof(struct folder)));
    struct folder *folder = set->state;
    TRY(path_join(&folder->root[PART_TRAIN], path, "train"));
    TRY(read_classes(set));
    TRY(read_part(set, PART_TRAIN));
    TRY(read_test(path, set));
    if (folder->others > 0) {
        note(set);
        text_addf(&set->notes, "%zu files in class folders are named neither .jpg nor .jpeg and left out",
                  folder->others);
    }
    return STATUS_OK;
}

static void folder_close(struct data_set *set)
{
    struct folder *folder = set->state;
    for (int part = 0; folder != NULL && part < PARTS; part++) {
        free(folder->root[part]);
        free(folder->names[part]);
        free(folder->begin[part]);
    }
    free(folder);
}

static void folder_name(const struct data_set *set, enum part part, size_t index, struct text *text)
{
    const struct folder *folder = set->state;
    text_addf(text, "%s/%s/%s", folder->root[part], set->class_name[set->label[part][index]],
              folder->names[part] + folder->begin[part][index]);
}

/* A link that leads nowhere is one bad image. A file that is gone, or can't be read, was there or is: that is no image's
 * fault. */
static enum status cant_open(const char *path, int reason)
{
    struct stat about;
    const bool dangles = (reason == ENOENT || reason == ELOOP) && lstat(path, &about) == 0 && S_ISLNK(about.st_mode);
    if (dangles)
        return fail(STATUS_FORMAT, "data %s: a link to nothing", path);
    return fail(STATUS_IO, "data %s: %s", path, strerror(reason));
}

/* Without O_NONBLOCK a pipe of that name would wait for its writer. */
static enum status read_file(const char *path, struct bytes *bytes)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return cant_open(path, errno);
    enum status status = STATUS_OK;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size > LARGEST_FILE)
        status = fail(STATUS_FORMAT, "data %s: no regular file of at most 1 GiB", path);
    if (status >= 0)
        status = bytes_reserve(bytes, (size_t)about.st_size);
    if (status >= 0)
        status = file_pread(fd, path, 0, bytes->data, bytes->length);
    (void)close(fd);
    return status;
}

static enum status folder_encoded(const struct data_set *set, enum part part, size_t index, struct bytes *bytes)
{
    struct text path = {0};
    folder_name(set, part, index, &path);
    enum status status = text_check(&path);
    if (status >= 0)
        status = read_file(text_string(&path), bytes);
    text_release(&path);
    return status;
}

extern const struct reader reader_folder;
const struct reader reader_folder = {
    .name = "folder",
    .summary = "ImageFolder: train/CLASS/*.jpg and val/CLASS/*.jpg",
    .photographs = true,
    .recognises = recognises,
    .open = folder_open,
    .close = folder_close,
    .encoded = folder_encoded,
    .name_of = folder_name,
};
