/* tar_index.c - tar headers, samples made of entries, and the file beside the shard. */
#include "nn/data/tar_index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/text.h"
#include "nn/data/reader.h"

enum { BLOCK = 512, LONGEST_NAME = 4096, LONGEST_LABEL = 32, MOST_CLASSES = 1000000 };
#define LARGEST_INDEX ((size_t)4 << 30)
#define LARGEST_EXTENSION ((uint64_t)1 << 20) /* of a pax header */
#define VERSION "chorale tar index 1\n"

/* ---- entries ---- */

struct scan {
    const char *path;
    int fd;
    uint64_t at, size; /* next header; bytes of the file */
    uint8_t header[BLOCK];
    char name[LONGEST_NAME]; /* of the entry at hand */
    char long_name[LONGEST_NAME];
    uint64_t long_size; /* by a pax header; UINT64_MAX: none */

    char key[LONGEST_NAME];                   /* of the sample at hand */
    bool open, has_image, has_label, has_two; /* of one of them */
    struct tar_sample sample;
    struct tar_index *index;
};

static enum status wrong(const struct scan *scan, const char *what)
{
    return fail(STATUS_FORMAT, "data %s: byte %llu: %s: is it a whole tar file?", scan->path,
                (unsigned long long)scan->at, what);
}

/* Octal digits, or with the top bit set a number of base 256. False: neither. */
static bool number(const uint8_t *field, size_t width, uint64_t *value)
{
    *value = 0;
    if ((field[0] & 0x80) != 0) {
        for (size_t i = 0; i < width; i++) {
            uint8_t digit = i == 0 ? field[0] & 0x7f : field[i];
            if (*value >> 55 != 0)
                return false;
            *value = *value << 8 | digit;
        }
        return true;
    }
    size_t i = 0;
    while (i < width && field[i] == ' ')
        i++;
    for (; i < width && field[i] >= '0' && field[i] <= '7'; i++) {
        if (*value >> 60 != 0)
            return false;
        *value = *value << 3 | (uint64_t)(field[i] - '0');
    }
    return i == width || field[i] == '\0' || field[i] == ' ';
}

static bool all_zero(const uint8_t *block)
{
    for (size_t i = 0; i < BLOCK; i++)
        if (block[i] != 0)
            return false;
    return true;
}

static bool sum_is_right(const uint8_t *header)
{
    uint64_t stored = 0, sum = 0;
    for (size_t i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : header[i];
    return number(header + 148, 8, &stored) && stored == sum;
}

/* PREFIX/NAME of a USTAR header, neither ended by NUL when full. */
static void short_name(struct scan *scan)
{
    const char *name = (const char *)scan->header, *prefix = name + 345;
    size_t length = strnlen(name, 100), before = 0;
    if (memcmp(scan->header + 257, "ustar\0", 6) == 0)
        before = strnlen(prefix, 155);
    memcpy(scan->name, prefix, before);
    if (before > 0)
        scan->name[before++] = '/';
    memcpy(scan->name + before, name, length);
    scan->name[before + length] = '\0';
}

/* "LENGTH KEY=VALUE\n" again and again: path and size count. */
static enum status read_pax(struct scan *scan, const char *text, size_t length)
{
    for (size_t at = 0; at < length;) {
        char *end = NULL;
        unsigned long long record = strtoull(text + at, &end, 10);
        if (end == text + at || *end != ' ' || record > length - at || record < (size_t)(end - (text + at)) + 3)
            return wrong(scan, "a pax header that is torn");
        const char *key = end + 1, *stop = text + at + record - 1, *sign = memchr(key, '=', (size_t)(stop - key));
        if (sign == NULL || *stop != '\n')
            return wrong(scan, "a pax header that is torn");
        size_t value = (size_t)(stop - sign) - 1;
        if (sign - key == 4 && memcmp(key, "path", 4) == 0) {
            if (value >= LONGEST_NAME)
                return wrong(scan, "a name above 4095 bytes");
            memcpy(scan->long_name, sign + 1, value);
            scan->long_name[value] = '\0';
        } else if (sign - key == 4 && memcmp(key, "size", 4) == 0) {
            scan->long_size = strtoull(sign + 1, NULL, 10);
        }
        at += (size_t)record;
    }
    return STATUS_OK;
}

/* What an entry of type L (GNU's long name) or x (pax) says about the next one. */
static enum status read_extension(struct scan *scan, char type, uint64_t length)
{
    struct bytes bytes = {0};
    enum status status = STATUS_OK;
    if (length > LARGEST_EXTENSION)
        return wrong(scan, "an extended header above 1 MiB");
    TRY_TO(done, bytes_reserve(&bytes, (size_t)length + 1));
    TRY_TO(done, file_pread(scan->fd, scan->path, scan->at + BLOCK, bytes.data, (size_t)length));
    bytes.data[length] = '\0';
    if (type == 'x') {
        status = read_pax(scan, (const char *)bytes.data, (size_t)length);
    } else if (strlen((const char *)bytes.data) >= LONGEST_NAME) {
        status = wrong(scan, "a name above 4095 bytes");
    } else {
        memcpy(scan->long_name, bytes.data, strlen((const char *)bytes.data) + 1);
    }
done:
    free(bytes.data);
    return status;
}

/* ---- samples ---- */

static enum status end_sample(struct scan *scan)
{
    struct tar_index *index = scan->index;
    if (!scan->open)
        return STATUS_OK;
    scan->open = false;
    if (!scan->has_image || !scan->has_label || scan->has_two) {
        index->left_out += scan->has_image || scan->has_label;
        return STATUS_OK;
    }
    void *samples = index->sample;
    enum status status = memory_grow(&samples, &index->capacity, index->count + 1, sizeof(struct tar_sample));
    index->sample = samples;
    TRY(status);
    index->sample[index->count++] = scan->sample;
    return STATUS_OK;
}

static enum status read_label(struct scan *scan, uint64_t offset, uint64_t length)
{
    char text[LONGEST_LABEL + 1] = "";
    long long label = -1;
    if (length > LONGEST_LABEL)
        return wrong(scan, "a label above 32 bytes");
    TRY(file_pread(scan->fd, scan->path, offset, text, (size_t)length));
    text[strcspn(text, " \r\n")] = '\0';
    if (parse_int(text, &label) < 0 || label < 0 || label >= MOST_CLASSES)
        return wrong(scan, "a label (.cls) that is no number below 1000000");
    scan->sample.label = (int32_t)label;
    scan->has_label = true;
    return STATUS_OK;
}

/* A file: part of the sample at hand, or of the next one. */
static enum status take_file(struct scan *scan, uint64_t length)
{
    const uint64_t offset = scan->at + BLOCK;
    const char *slash = strrchr(scan->name, '/'), *base = slash != NULL ? slash + 1 : scan->name;
    const char *dot = strchr(base, '.');
    if (dot == NULL || base[0] == '.')
        return STATUS_OK;
    size_t key = (size_t)(dot - scan->name);
    if (!scan->open || strlen(scan->key) != key || memcmp(scan->key, scan->name, key) != 0) {
        TRY(end_sample(scan));
        memcpy(scan->key, scan->name, key);
        scan->key[key] = '\0';
        scan->open = true;
        scan->has_image = scan->has_label = scan->has_two = false;
    }
    if (strcasecmp(dot, ".cls") == 0) {
        scan->has_two = scan->has_two || scan->has_label;
        return read_label(scan, offset, length);
    }
    if (strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0) {
        scan->has_two = scan->has_two || scan->has_image;
        scan->sample.offset = offset;
        scan->sample.length = length;
        scan->has_image = true;
    }
    return STATUS_OK;
}

/* ---- the file ---- */

/* GNU's sparse files have blocks of their map behind the header, which their size does not count. */
static enum status pass_map(struct scan *scan)
{
    uint8_t block[BLOCK];
    bool more = scan->header[482] != 0;
    while (more) {
        TRY(file_pread(scan->fd, scan->path, scan->at + BLOCK, block, BLOCK));
        more = block[504] != 0;
        scan->at += BLOCK;
    }
    return STATUS_OK;
}

static enum status take_entry(struct scan *scan)
{
    uint64_t length = 0;
    const char type = (char)scan->header[156];
    if (!sum_is_right(scan->header))
        return wrong(scan, "no header of a tar file (its checksum is wrong)");
    if (!number(scan->header + 124, 12, &length))
        return wrong(scan, "an entry's size is no number");
    const bool extension = type == 'L' || type == 'x', file = !extension && type != 'g' && type != 'K';
    if (file && scan->long_size != UINT64_MAX)
        length = scan->long_size;
    if (type == 'S')
        TRY(pass_map(scan));
    if (length > scan->size - scan->at - BLOCK)
        return wrong(scan, "an entry that is longer than the file");
    if (extension) {
        TRY(read_extension(scan, type, length));
    } else if (file) { /* g and K say nothing about the next one */
        if (scan->long_name[0] != '\0')
            memcpy(scan->name, scan->long_name, sizeof scan->name);
        else
            short_name(scan);
        if (type == '0' || type == '\0' || type == '7')
            TRY(take_file(scan, length));
        scan->long_name[0] = '\0';
        scan->long_size = UINT64_MAX;
    }
    scan->at += BLOCK + (length + BLOCK - 1) / BLOCK * BLOCK;
    return STATUS_OK;
}

/* To the block of zeros at the end; a file that ends after an entry does, too. */
static enum status scan_entries(struct scan *scan)
{
    while (scan->at < scan->size) {
        if (scan->size - scan->at < BLOCK)
            return wrong(scan, "it ends in the middle of a header");
        TRY(file_pread(scan->fd, scan->path, scan->at, scan->header, BLOCK));
        if (all_zero(scan->header))
            break;
        TRY(take_entry(scan));
    }
    return end_sample(scan);
}

enum status tar_index_scan(const char *tar, struct tar_index *index)
{
    void *memory = NULL;
    struct stat about;
    *index = (struct tar_index){.sample = NULL};
    TRY(memory_zeroed(&memory, 1, sizeof(struct scan)));
    struct scan *scan = memory;
    enum status status = STATUS_OK;
    scan->path = tar;
    scan->index = index;
    scan->long_size = UINT64_MAX;
    scan->fd = open(tar, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (scan->fd < 0 || fstat(scan->fd, &about) != 0) {
        status = fail(STATUS_IO, "data %s: %s", tar, strerror(errno));
    } else if (!S_ISREG(about.st_mode)) {
        status = fail(STATUS_FORMAT, "data %s: no regular file", tar);
    } else {
        scan->size = (uint64_t)about.st_size;
        status = scan_entries(scan);
    }
    if (scan->fd >= 0)
        (void)close(scan->fd);
    free(scan);
    if (status < 0)
        tar_index_release(index);
    return status;
}

void tar_index_release(struct tar_index *index)
{
    free(index->sample);
    *index = (struct tar_index){.sample = NULL};
}

/* ---- beside the shard ---- */

static void write_samples(const struct tar_index *index, struct text *text)
{
    for (size_t i = 0; i < index->count; i++)
        text_addf(text, "%llu,%llu,%d\n", (unsigned long long)index->sample[i].offset,
                  (unsigned long long)index->sample[i].length, (int)index->sample[i].label);
}

/* Of all that a line can be wrong about. */
static uint64_t hash_index(const struct tar_index *index, const char *samples, size_t length)
{
    return hash_bytes(hash_bytes(HASH_START, &index->left_out, sizeof index->left_out), samples, length);
}

/* The first two lines. */
static void write_head(const struct tar_index *index, const struct stat *about, const char *samples, size_t length,
                       struct text *text)
{
    text_addf(text, VERSION "size=%llu mtime=%lld.%09ld samples=%zu left_out=%zu hash=%016llx\n",
              (unsigned long long)about->st_size, (long long)about->st_mtim.tv_sec, about->st_mtim.tv_nsec,
              index->count, index->left_out, (unsigned long long)hash_index(index, samples, length));
}

static enum status write_index(const char *path, const struct stat *about, const struct tar_index *index)
{
    struct text samples = {0}, all = {0};
    write_samples(index, &samples);
    write_head(index, about, text_string(&samples), samples.length, &all);
    text_add_bytes(&all, text_string(&samples), samples.length);
    enum status status = text_check(&samples);
    if (status >= 0)
        status = text_check(&all);
    if (status >= 0 && file_exists(path) && !file_is_plain(path))
        status = fail(STATUS_IO, "data %s: what is there is no regular file", path);
    if (status >= 0)
        status = file_write_atomic(path, text_string(&all), all.length);
    text_release(&samples);
    text_release(&all);
    return status;
}

/* One number and the character after it. */
static bool take_number(const char **at, char after, unsigned long long *value)
{
    char *end = NULL;
    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *value = strtoull(*at, &end, 10);
    if (errno != 0 || *end != after)
        return false;
    *at = end + 1;
    return true;
}

/* All samples within the tar file. */
static enum status parse_samples(const char *at, uint64_t size, struct tar_index *index)
{
    while (*at != '\0') {
        unsigned long long offset, length, label;
        if (!take_number(&at, ',', &offset) || !take_number(&at, ',', &length) || !take_number(&at, '\n', &label) ||
            offset > size || length > size - offset || label >= MOST_CLASSES)
            return STATUS_FORMAT;
        void *samples = index->sample;
        enum status status = memory_grow(&samples, &index->capacity, index->count + 1, sizeof(struct tar_sample));
        index->sample = samples;
        TRY(status);
        index->sample[index->count++] =
            (struct tar_sample){.offset = offset, .length = length, .label = (int32_t)label};
    }
    return STATUS_OK;
}

/* Whether the index holds: what would be written for its samples is what is there. */
static bool parse_index(const char *text, size_t length, const struct stat *about, struct tar_index *index)
{
    const char *first = memchr(text, '\n', length), *head = first != NULL ? strchr(first + 1, '\n') : NULL;
    const char *left_out = first != NULL ? strstr(first, " left_out=") : NULL;
    if (head == NULL || left_out == NULL || left_out > head || strlen(text) != length)
        return false;
    unsigned long long count = 0;
    left_out += strlen(" left_out=");
    if (!take_number(&left_out, ' ', &count) || parse_samples(head + 1, (uint64_t)about->st_size, index) < 0)
        return false;
    index->left_out = (size_t)count;
    struct text wanted = {0};
    write_head(index, about, head + 1, length - (size_t)(head + 1 - text), &wanted);
    bool same =
        !wanted.failed && wanted.length == (size_t)(head + 1 - text) && memcmp(wanted.data, text, wanted.length) == 0;
    text_release(&wanted);
    return same;
}

static bool read_index(const char *path, const struct stat *about, struct tar_index *index)
{
    char *text = NULL;
    size_t length = 0;
    *index = (struct tar_index){.sample = NULL};
    if (!file_is_plain(path) || file_read(path, LARGEST_INDEX, &text, &length) < 0)
        return false;
    bool holds = parse_index(text, length, about, index);
    free(text);
    if (!holds)
        tar_index_release(index);
    return holds;
}

enum status tar_index_open(const char *tar, struct tar_index *index, bool *scanned, bool *stored)
{
    struct text path = {0};
    struct stat about;
    enum status status = STATUS_OK;
    *index = (struct tar_index){.sample = NULL};
    *scanned = false;
    *stored = true;
    if (stat(tar, &about) != 0)
        return fail(STATUS_IO, "data %s: %s", tar, strerror(errno));
    text_addf(&path, "%s.index", tar);
    TRY_TO(done, text_check(&path));
    if (read_index(text_string(&path), &about, index))
        goto done;
    *scanned = true;
    TRY_TO(done, tar_index_scan(tar, index));
    *stored = write_index(text_string(&path), &about, index) >= 0;
done:
    text_release(&path);
    return status;
}
