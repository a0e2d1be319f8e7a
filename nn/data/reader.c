/* reader.c - the table of formats, how one is chosen, and what readers share. */
#include "nn/data/reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "nn/data.h"

#define LARGEST_NAMES ((size_t)16 << 20)

extern const struct reader reader_idx, reader_cifar, reader_folder, reader_tar, reader_pack, reader_synthetic;

const struct reader *const readers[] = {&reader_idx,       &reader_cifar, &reader_folder, &reader_tar, &reader_pack,
                                        &reader_synthetic, NULL};

/* ---- choosing ---- */

static const struct reader *by_name(const char *name, size_t length)
{
    for (size_t i = 0; readers[i] != NULL; i++)
        if (strlen(readers[i]->name) == length && memcmp(readers[i]->name, name, length) == 0)
            return readers[i];
    return NULL;
}

static enum status nothing_known(const char *path)
{
    struct text known = {0};
    if (!file_exists(path))
        return fail(STATUS_IO, "data %s: no such file or folder: %s", path,
                    strcmp(path, DATA_FOLDER) == 0 ? DATA_CURE : "look at the path");
    for (size_t i = 0; readers[i] != NULL; i++)
        text_addf(&known, "%s%s (%s)", i > 0 ? "; " : "", readers[i]->name, readers[i]->summary);
    enum status status = fail(STATUS_IO, "data %s: no data set that is known here: give --data=FOLDER with one of %s",
                              path, text_string(&known));
    text_release(&known);
    return status;
}

enum status reader_choose(const char *words, const struct reader **reader, const char **path)
{
    const char *colon = strchr(words, ':');
    size_t length = colon != NULL ? (size_t)(colon - words) : strlen(words);
    if (words[0] == '\0' || (colon != NULL && colon[1] == '\0' && by_name(words, length) != NULL))
        return fail(STATUS_USAGE, "data %s: a path is missing: PATH or FORMAT:PATH", words);
    *reader = by_name(words, length);
    if (*reader != NULL && colon != NULL && (*reader)->recognises == NULL)
        return fail(STATUS_USAGE, "data %s: %s reads nothing: leave the path out", words, (*reader)->name);
    *path = colon != NULL ? colon + 1 : "made from the seed";
    if (*reader != NULL && (colon != NULL || (*reader)->recognises == NULL))
        return STATUS_OK;
    *path = words;
    for (size_t i = 0; readers[i] != NULL; i++) {
        *reader = readers[i];
        if (readers[i]->recognises != NULL && readers[i]->recognises(words))
            return STATUS_OK;
    }
    return nothing_known(words);
}

/* ---- sets ---- */

enum status set_labels(struct data_set *set, enum part part, size_t count)
{
    void *labels = NULL;
    TRY(memory_zeroed(&labels, count, sizeof(int32_t)));
    set->label[part] = labels;
    set->count[part] = count;
    return STATUS_OK;
}

/* Lines of `text` (which is cut up), empty ones at the end left out. */
static enum status split_lines(char *text, char ***lines, size_t *count)
{
    void *array = NULL;
    size_t capacity = 0, n = 0, kept = 0;
    enum status status = STATUS_OK;
    for (char *line = text, *next; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        line[strcspn(line, "\r")] = '\0';
        TRY_TO(failed, memory_grow(&array, &capacity, n + 1, sizeof(char *)));
        TRY_TO(failed, memory_string((char **)array + n, line));
        n++;
        if (line[0] != '\0')
            kept = n;
    }
    while (n > kept)
        free(((char **)array)[--n]);
    *lines = array;
    *count = n;
    return STATUS_OK;
failed:
    names_release(array, n);
    return status;
}

enum status set_class_names(struct data_set *set, const char *path)
{
    char *text = NULL;
    size_t length = 0, count = 0;
    if (!file_is_plain(path))
        return fail(STATUS_FORMAT, "data %s: no regular file", path);
    TRY(file_read(path, LARGEST_NAMES, &text, &length));
    enum status status = split_lines(text, &set->class_name, &count);
    free(text);
    set->classes = (int)count;
    if (status >= 0 && count == 0)
        return fail(STATUS_FORMAT, "data %s: no class names in it", path);
    return status;
}

/* ---- names ---- */

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void names_release(char **names, size_t count)
{
    for (size_t i = 0; names != NULL && i < count; i++)
        free(names[i]);
    free(names);
}

enum status folder_names(const char *path, bool (*want)(const char *name), char ***names, size_t *count)
{
    void *array = NULL;
    size_t capacity = 0, n = 0;
    enum status status = STATUS_OK;
    DIR *folder = opendir(path);
    *names = NULL;
    *count = 0;
    if (folder == NULL && errno == ENOTDIR && file_exists(path))
        return fail(STATUS_IO, "data %s: %s, not a folder: give the folder of the files", path,
                    file_is_plain(path) ? "a file" : "a pipe or a device");
    if (folder == NULL)
        return fail(STATUS_IO, "data %s: %s", path, strerror(errno));
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL)
            break;
        if (entry->d_name[0] == '.' || (want != NULL && !want(entry->d_name)))
            continue;
        TRY_TO(done, memory_grow(&array, &capacity, n + 1, sizeof(char *)));
        TRY_TO(done, memory_string((char **)array + n, entry->d_name));
        n++;
    }
    if (errno != 0)
        status = fail(STATUS_IO, "data %s: %s", path, strerror(errno));
done:
    (void)closedir(folder);
    if (status < 0) {
        names_release(array, n);
        return status;
    }
    if (n > 0)
        qsort(array, n, sizeof(char *), by_bytes);
    *names = array;
    *count = n;
    return STATUS_OK;
}

enum status path_join(char **path, const char *folder, const char *name)
{
    struct text text = {0};
    text_addf(&text, "%s/%s", folder, name);
    enum status status = text_check(&text);
    if (status >= 0)
        status = memory_string(path, text_string(&text));
    text_release(&text);
    return status;
}

bool path_has(const char *folder, const char *name)
{
    char *path = NULL;
    bool there = path_join(&path, folder, name) >= 0 && file_exists(path);
    free(path);
    return there;
}

bool is_folder(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

bool ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), tail = strlen(ending);
    return length >= tail && strcasecmp(name + length - tail, ending) == 0;
}

/* ---- files ---- */

enum status data_file_open(const char *path, struct data_file *file)
{
    struct stat about = {.st_size = 0};
    enum status status = STATUS_OK;
    *file = (struct data_file){.path = NULL};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about) != 0)
        status = fail(STATUS_IO, "data %s: %s%s", path, strerror(errno),
                      errno == EMFILE ? ": every file of a set stays open: raise ulimit -n" : "");
    else if (!S_ISREG(about.st_mode) || about.st_size <= 0)
        status = fail(STATUS_FORMAT, "data %s: %s", path, S_ISREG(about.st_mode) ? "it is empty" : "no regular file");
    else
        status = memory_string(&file->path, path);
    if (status < 0) {
        if (fd >= 0)
            (void)close(fd);
        return status;
    }
    file->fd = fd;
    file->length = (uint64_t)about.st_size;
    file->changed = about.st_mtim;
    return STATUS_OK;
}

void data_file_close(struct data_file *file)
{
    if (file->length > 0)
        (void)close(file->fd);
    free(file->path);
    *file = (struct data_file){.path = NULL};
}

enum status data_file_read(const struct data_file *file, uint64_t offset, void *to, size_t length)
{
    struct stat about;
    const enum status status = file_pread(file->fd, file->path, offset, to, length);
    if (status < 0 && status != STATUS_FORMAT)
        return status;
    if (fstat(file->fd, &about) != 0)
        return fail(STATUS_IO, "data %s: %s", file->path, strerror(errno));
    if (status < 0 || (uint64_t)about.st_size < file->length)
        return fail(STATUS_IO, "data %s: it was cut while it was read: put the whole file back", file->path);
    if ((uint64_t)about.st_size != file->length || about.st_mtim.tv_sec != file->changed.tv_sec ||
        about.st_mtim.tv_nsec != file->changed.tv_nsec)
        return fail(STATUS_IO, "data %s: it was changed while it was read: leave the files of a run alone", file->path);
    return STATUS_OK;
}

enum status file_pread(int fd, const char *path, uint64_t offset, void *to, size_t length)
{
    uint8_t *next = to;
    while (length > 0) {
        ssize_t got = pread(fd, next, length, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(STATUS_IO, "data %s: read: %s", path, strerror(errno));
        if (got == 0)
            return fail(STATUS_FORMAT, "data %s: it ends at byte %llu, in the middle of a sample", path,
                        (unsigned long long)offset);
        next += got;
        offset += (uint64_t)got;
        length -= (size_t)got;
    }
    return STATUS_OK;
}

enum status bytes_reserve(struct bytes *bytes, size_t length)
{
    void *data = bytes->data;
    enum status status = memory_grow(&data, &bytes->capacity, length, 1);
    bytes->data = data;
    bytes->length = status < 0 ? 0 : length;
    return status;
}
