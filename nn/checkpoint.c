/* checkpoint.c - see checkpoint.h for the form of the file. */
#include "nn/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/file.h"
#include "base/memory.h"

#define MAGIC "chorale checkpoint "
#define FIRST_LINE MAGIC "%d, header %010zu bytes, crc32 %08x\n"
enum { LINE_BYTES = 62, HEADER_MOST = 1 << 26, SECTIONS_MOST = 64, NAME_BYTES = 32, PIECE = 1 << 20 };

static const char *byte_order(void)
{
    const uint16_t one = 1;
    return *(const unsigned char *)&one == 1 ? "little-endian" : "big-endian";
}

static uint32_t checksum(uint32_t crc, const void *data, size_t bytes)
{
    return (uint32_t)crc32_z(crc, data, bytes);
}

/* ---- writing ---- */

struct checkpoint_writer {
    struct file_writer *file;
    json_t *header;
    json_t *sections; /* in the header */
    size_t *bytes;    /* of each section */
    size_t count, next;
    size_t header_bytes;
    uint64_t total;
};

static enum status no_header(void)
{
    return fail(STATUS_NO_MEMORY, "out of memory: the header of a checkpoint");
}

/* First line and header, of the same length whatever the checksums are. Caller frees. */
static enum status header_text(const json_t *header, char **out, size_t *length, uint32_t *crc)
{
    char *body = json_dumps(header, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    void *memory = NULL;
    if (body == NULL)
        return no_header();
    const size_t bytes = strlen(body);
    enum status status = bytes <= HEADER_MOST ? memory_zeroed(&memory, LINE_BYTES + bytes + 1, 1)
                                              : fail(STATUS_REFUSED, "a checkpoint's header takes %zu bytes", bytes);
    if (memory != NULL) {
        *crc = checksum(0, body, bytes);
        *out = memory;
        *length = LINE_BYTES + bytes;
        char line[2 * LINE_BYTES];
        (void)snprintf(line, sizeof line, FIRST_LINE, CHECKPOINT_VERSION, bytes, (unsigned)*crc);
        memcpy(*out, line, LINE_BYTES);
        memcpy(*out + LINE_BYTES, body, bytes);
    }
    free(body);
    return status;
}

static enum status describe_sections(struct checkpoint_writer *writer, const struct checkpoint_section *sections)
{
    writer->sections = json_array();
    if (json_object_set_new(writer->header, "byte_order", json_string(byte_order())) != 0 ||
        json_object_set_new(writer->header, "sections", writer->sections) != 0)
        return no_header();
    for (size_t s = 0; s < writer->count; s++) {
        json_t *section = json_pack("{ss sI ss}", "name", sections[s].name, "bytes", (json_int_t)sections[s].bytes,
                                    "crc32", "00000000");
        if (json_array_append_new(writer->sections, section) != 0)
            return no_header();
        writer->bytes[s] = sections[s].bytes;
        writer->total += sections[s].bytes;
    }
    return STATUS_OK;
}

enum status checkpoint_create(const char *path, json_t *header, const struct checkpoint_section *sections, size_t count,
                              struct checkpoint_writer **out)
{
    void *memory = NULL, *bytes = NULL;
    char *text = NULL;
    uint32_t crc = 0;
    *out = NULL;
    enum status status = header != NULL ? memory_zeroed(&memory, 1, sizeof(struct checkpoint_writer)) : no_header();
    if (memory == NULL) {
        json_decref(header);
        return status;
    }
    struct checkpoint_writer *writer = memory;
    writer->header = header;
    writer->count = count;
    TRY_TO(done, memory_zeroed(&bytes, count, sizeof(size_t)));
    writer->bytes = bytes;
    TRY_TO(done, describe_sections(writer, sections));
    TRY_TO(done, header_text(header, &text, &writer->header_bytes, &crc));
    writer->total += writer->header_bytes;
    TRY_TO(done, file_begin(path, &writer->file));
    TRY_TO(done, file_append(writer->file, text, writer->header_bytes)); /* room for it */
done:
    free(text);
    if (status < 0)
        checkpoint_abandon(writer);
    else
        *out = writer;
    return status;
}

enum status checkpoint_put(struct checkpoint_writer *writer, const void *data)
{
    char crc[9];
    if (writer->next == writer->count)
        return fail(STATUS_INTERNAL, "a checkpoint has no section %zu", writer->count);
    const size_t bytes = writer->bytes[writer->next];
    json_t *section = json_array_get(writer->sections, writer->next++);
    (void)snprintf(crc, sizeof crc, "%08x", (unsigned)checksum(0, data, bytes));
    if (json_object_set_new(section, "crc32", json_string(crc)) != 0)
        return no_header();
    return file_append(writer->file, data, bytes);
}

enum status checkpoint_commit(struct checkpoint_writer *writer, struct checkpoint_identity *identity)
{
    char *text = NULL;
    size_t length = 0;
    struct checkpoint_identity made = {.bytes = writer->total};
    enum status status = STATUS_OK;
    TRY_TO(done, header_text(writer->header, &text, &length, &made.crc32));
    if (writer->next != writer->count || length != writer->header_bytes) {
        status = fail(STATUS_INTERNAL, "a checkpoint: section %zu of %zu, header of %zu bytes instead of %zu",
                      writer->next, writer->count, length, writer->header_bytes);
        goto done;
    }
    TRY_TO(done, file_rewrite_start(writer->file, text, length));
    struct file_writer *file = writer->file;
    writer->file = NULL;
    TRY_TO(done, file_commit(file));
    if (identity != NULL)
        *identity = made;
done:
    free(text);
    checkpoint_abandon(writer);
    return status;
}

void checkpoint_abandon(struct checkpoint_writer *writer)
{
    if (writer == NULL)
        return;
    file_abandon(writer->file);
    json_decref(writer->header);
    free(writer->bytes);
    free(writer);
}

/* ---- reading ---- */

struct stored_section {
    const char *name; /* in the header */
    uint64_t offset;
    size_t bytes;
    uint32_t crc32;
};

struct checkpoint {
    char *path;
    int fd;
    json_t *header;
    struct checkpoint_identity identity;
    struct stored_section *section;
    size_t sections;
};

/* The cure is the caller's to tell: an older one, or none. */
static enum status bad(const struct checkpoint *checkpoint, const char *what)
{
    return fail(STATUS_FORMAT, "checkpoint %s: %s", checkpoint->path, what);
}

static enum status read_at(const struct checkpoint *checkpoint, uint64_t offset, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const size_t left = bytes - done;
        const ssize_t got =
            pread(checkpoint->fd, (char *)to + done, left < (1U << 30) ? left : (1U << 30), (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(STATUS_IO, "read %s: %s", checkpoint->path, strerror(errno));
        if (got == 0)
            return bad(checkpoint, "it ends too early");
        done += (size_t)got;
    }
    return STATUS_OK;
}

/* "89abcdef" */
static bool parse_crc(const char *text, uint32_t *crc)
{
    if (text == NULL || strlen(text) != 8 || strspn(text, "0123456789abcdef") != 8)
        return false;
    *crc = (uint32_t)strtoul(text, NULL, 16);
    return true;
}

/* The first line is what we would write for the same numbers, or it is none of ours. */
static enum status read_first_line(const struct checkpoint *checkpoint, size_t *bytes, uint32_t *crc)
{
    char line[LINE_BYTES + 1] = {0}, again[LINE_BYTES + 64];
    int version = 0;
    unsigned long length = 0;
    unsigned sum = 0;
    const enum status status = read_at(checkpoint, 0, line, LINE_BYTES);
    if (status == STATUS_IO)
        return status;
    if (strncmp(line, MAGIC, strlen(MAGIC)) != 0)
        return bad(checkpoint, "it is no checkpoint: its first bytes are not \"" MAGIC "\"");
    version = (int)strtol(line + strlen(MAGIC), NULL, 10);
    if (version != CHECKPOINT_VERSION && version > 0 && strstr(line, ", header ") != NULL)
        return fail(
            STATUS_FORMAT,
            "checkpoint %s: written by %s chorale (version %d, this one reads %d): go on with that one, or begin "
            "another run",
            checkpoint->path, version < CHECKPOINT_VERSION ? "an older" : "a newer", version, CHECKPOINT_VERSION);
    TRY(status);
    const char *numbers = strstr(line, "header "), *crc_word = strstr(line, "crc32 ");
    if (numbers != NULL && crc_word != NULL) {
        length = strtoul(numbers + strlen("header "), NULL, 10);
        sum = (unsigned)strtoul(crc_word + strlen("crc32 "), NULL, 16);
    }
    (void)snprintf(again, sizeof again, FIRST_LINE, CHECKPOINT_VERSION, (size_t)length, sum);
    if (strcmp(line, again) != 0 || length > HEADER_MOST)
        return bad(checkpoint, "its first line was changed");
    *bytes = length;
    *crc = sum;
    return STATUS_OK;
}

static enum status read_section(struct checkpoint *checkpoint, const json_t *from, uint64_t *end)
{
    const json_t *bytes = json_object_get(from, "bytes");
    struct stored_section *section = &checkpoint->section[checkpoint->sections];
    const json_int_t length = json_integer_value(bytes);
    section->name = json_string_value(json_object_get(from, "name"));
    if (section->name == NULL || strlen(section->name) >= NAME_BYTES || !json_is_integer(bytes) || length < 0 ||
        length > INT64_MAX / 4 || !parse_crc(json_string_value(json_object_get(from, "crc32")), &section->crc32))
        return bad(checkpoint, "its header has a section without name, length or checksum");
    section->offset = *end;
    section->bytes = (size_t)length;
    *end += (uint64_t)length;
    if (*end > INT64_MAX / 2)
        return bad(checkpoint, "its sections are longer than any file");
    checkpoint->sections++;
    return STATUS_OK;
}

static enum status read_sections(struct checkpoint *checkpoint, uint64_t *end)
{
    const json_t *sections = json_object_get(checkpoint->header, "sections");
    void *memory = NULL;
    if (!json_is_array(sections) || json_array_size(sections) > SECTIONS_MOST)
        return bad(checkpoint, "its header has no list of sections");
    TRY(memory_zeroed(&memory, json_array_size(sections), sizeof(struct stored_section)));
    checkpoint->section = memory;
    for (size_t s = 0; s < json_array_size(sections); s++)
        TRY(read_section(checkpoint, json_array_get(sections, s), end));
    return STATUS_OK;
}

static enum status parse_header(struct checkpoint *checkpoint, const char *text, size_t bytes)
{
    json_error_t error;
    checkpoint->header = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(checkpoint->header))
        return bad(checkpoint, "its header is no JSON object");
    const char *order = json_string_value(json_object_get(checkpoint->header, "byte_order"));
    if (order == NULL || strcmp(order, byte_order()) != 0)
        return fail(STATUS_FORMAT, "checkpoint %s: its numbers are %s, this machine is %s", checkpoint->path,
                    order != NULL ? order : "of no byte order", byte_order());
    return STATUS_OK;
}

/* All of it, or when only the header is known at least that. */
static enum status check_length(const struct checkpoint *checkpoint, uint64_t wanted, bool all)
{
    struct stat about;
    if (fstat(checkpoint->fd, &about) != 0)
        return fail(STATUS_IO, "read %s: %s", checkpoint->path, strerror(errno));
    if ((uint64_t)about.st_size == wanted || (!all && (uint64_t)about.st_size > wanted))
        return STATUS_OK;
    return fail(STATUS_FORMAT, "checkpoint %s: it has %llu bytes instead of %s%llu: it was %s", checkpoint->path,
                (unsigned long long)about.st_size, all ? "" : "at least ", (unsigned long long)wanted,
                (uint64_t)about.st_size < wanted ? "cut" : "added to");
}

static enum status read_header(struct checkpoint *checkpoint)
{
    size_t bytes = 0;
    uint32_t crc = 0;
    void *text = NULL;
    enum status status = STATUS_OK;
    TRY(read_first_line(checkpoint, &bytes, &crc));
    uint64_t end = LINE_BYTES + bytes;
    TRY(check_length(checkpoint, end, false));
    TRY(memory_zeroed(&text, bytes + 1, 1));
    TRY_TO(done, read_at(checkpoint, LINE_BYTES, text, bytes));
    if (checksum(0, text, bytes) != crc) {
        status = bad(checkpoint, "the checksum of its header differs: it was damaged");
        goto done;
    }
    TRY_TO(done, parse_header(checkpoint, text, bytes));
    TRY_TO(done, read_sections(checkpoint, &end));
    TRY_TO(done, check_length(checkpoint, end, true));
    checkpoint->identity = (struct checkpoint_identity){.bytes = end, .crc32 = crc};
done:
    free(text);
    return status;
}

enum status checkpoint_open(const char *path, struct checkpoint **out)
{
    void *memory = NULL;
    *out = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct checkpoint)));
    struct checkpoint *checkpoint = memory;
    checkpoint->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes fails */
    enum status status = checkpoint->fd >= 0 ? memory_string(&checkpoint->path, path)
                                             : fail(STATUS_IO, "open checkpoint %s: %s", path, strerror(errno));
    if (status >= 0)
        status = read_header(checkpoint);
    if (status < 0)
        checkpoint_close(checkpoint);
    else
        *out = checkpoint;
    return status;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    if (checkpoint->fd >= 0)
        (void)close(checkpoint->fd);
    json_decref(checkpoint->header);
    free(checkpoint->section);
    free(checkpoint->path);
    free(checkpoint);
}

const json_t *checkpoint_header(const struct checkpoint *checkpoint)
{
    return checkpoint->header;
}

struct checkpoint_identity checkpoint_identity(const struct checkpoint *checkpoint)
{
    return checkpoint->identity;
}

static enum status damaged(const struct checkpoint *checkpoint, const struct stored_section *section)
{
    return fail(STATUS_FORMAT, "checkpoint %s: the checksum of its section %s differs: it was damaged",
                checkpoint->path, section->name);
}

enum status checkpoint_verify(struct checkpoint *checkpoint)
{
    void *piece = NULL;
    enum status status = memory_zeroed(&piece, PIECE, 1);
    for (size_t s = 0; status >= 0 && s < checkpoint->sections; s++) {
        const struct stored_section *section = &checkpoint->section[s];
        uint32_t crc = 0;
        for (size_t done = 0; status >= 0 && done < section->bytes; done += PIECE) {
            const size_t left = section->bytes - done, bytes = left < PIECE ? left : PIECE;
            status = read_at(checkpoint, section->offset + done, piece, bytes);
            crc = checksum(crc, piece, bytes);
        }
        if (status >= 0 && crc != section->crc32)
            status = damaged(checkpoint, section);
    }
    free(piece);
    return status;
}

static const struct stored_section *section_find(const struct checkpoint *checkpoint, const char *name)
{
    for (size_t s = 0; s < checkpoint->sections; s++)
        if (strcmp(checkpoint->section[s].name, name) == 0)
            return &checkpoint->section[s];
    return NULL;
}

bool checkpoint_has(const struct checkpoint *checkpoint, const char *name, size_t *bytes)
{
    const struct stored_section *section = section_find(checkpoint, name);
    *bytes = section != NULL ? section->bytes : 0;
    return section != NULL;
}

enum status checkpoint_read(struct checkpoint *checkpoint, const char *name, void *to, size_t bytes)
{
    const struct stored_section *section = section_find(checkpoint, name);
    if (section == NULL)
        return fail(STATUS_FORMAT, "checkpoint %s: it has no section %s", checkpoint->path, name);
    if (section->bytes != bytes)
        return fail(STATUS_FORMAT, "checkpoint %s: its section %s has %zu bytes, %zu are wanted", checkpoint->path,
                    name, section->bytes, bytes);
    TRY(read_at(checkpoint, section->offset, to, bytes));
    return checksum(0, to, bytes) == section->crc32 ? STATUS_OK : damaged(checkpoint, section);
}

/* ---- names ---- */

#define STEM "checkpoint-"

void checkpoint_path(const char *folder, uint64_t step, int rank, struct text *path)
{
    text_addf(path, "%s/" STEM "%09llu", folder, (unsigned long long)step);
    if (rank >= 0)
        text_addf(path, ".worker-%d", rank);
}

/* "checkpoint-000000040" and what follows the number. */
static bool parse_name(const char *name, uint64_t *step, const char **rest)
{
    if (strncmp(name, STEM, strlen(STEM)) != 0)
        return false;
    const char *digits = name + strlen(STEM);
    const size_t count = strspn(digits, "0123456789");
    if (count < 9 || count > 18)
        return false;
    *step = strtoull(digits, NULL, 10);
    *rest = digits + count;
    return true;
}

bool checkpoint_parse(const char *path, uint64_t *step)
{
    const char *slash = strrchr(path, '/'), *rest = NULL;
    return parse_name(slash != NULL ? slash + 1 : path, step, &rest) && *rest == '\0';
}

static int latest_first(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

enum status checkpoint_list(const char *folder, uint64_t **steps, size_t *count)
{
    void *list = NULL;
    size_t capacity = 0;
    enum status status = STATUS_OK;
    *steps = NULL;
    *count = 0;
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return errno == ENOENT ? STATUS_OK : fail(STATUS_IO, "read folder %s: %s", folder, strerror(errno));
    for (struct dirent *entry; status >= 0 && (entry = readdir(entries)) != NULL;) {
        uint64_t step = 0;
        if (!checkpoint_parse(entry->d_name, &step))
            continue;
        status = memory_grow(&list, &capacity, *count + 1, sizeof(uint64_t));
        if (status >= 0)
            ((uint64_t *)list)[(*count)++] = step;
    }
    (void)closedir(entries);
    if (status < 0) {
        free(list);
        *count = 0;
        return status;
    }
    if (*count > 0)
        qsort(list, *count, sizeof(uint64_t), latest_first);
    *steps = list;
    return STATUS_OK;
}

enum status checkpoint_check_folder(const char *folder)
{
    enum status status = STATUS_OK;
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return STATUS_OK;
    for (struct dirent *entry; status >= 0 && (entry = readdir(entries)) != NULL;) {
        uint64_t step = 0;
        const char *rest = NULL;
        struct stat about;
        if (parse_name(entry->d_name, &step, &rest) && fstatat(dirfd(entries), entry->d_name, &about, 0) == 0 &&
            S_ISDIR(about.st_mode))
            status = fail(STATUS_REFUSED,
                          "%s/%s: a folder that is called like a checkpoint: remove it, or give another --out=FOLDER",
                          folder, entry->d_name);
    }
    (void)closedir(entries);
    return status;
}

static void remove_in(const char *folder, const char *name)
{
    struct text path = {0};
    text_addf(&path, "%s/%s", folder, name);
    if (!path.failed)
        (void)unlink(text_string(&path));
    text_release(&path);
}

/* Files of workers without the one that makes them a checkpoint, and unfinished ones. */
static void remove_rest(const char *folder, uint64_t oldest, uint64_t latest)
{
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        uint64_t step = 0;
        const char *rest = NULL;
        if (!parse_name(entry->d_name, &step, &rest) || *rest == '\0')
            continue;
        const size_t length = strlen(rest);
        const bool unfinished = length >= 4 && strcmp(rest + length - 4, ".tmp") == 0;
        if (unfinished || (strncmp(rest, ".worker-", 8) == 0 && (step < oldest || step > latest)))
            remove_in(folder, entry->d_name);
    }
    (void)closedir(entries);
}

enum status checkpoint_prune(const char *folder, uint64_t latest, size_t kept)
{
    uint64_t *steps = NULL, oldest = latest;
    size_t count = 0, good = 0;
    TRY(checkpoint_list(folder, &steps, &count));
    for (size_t s = 0; s < count; s++) {
        struct text path = {0};
        if (steps[s] <= latest && good < kept) {
            good++;
            oldest = steps[s];
            continue;
        }
        checkpoint_path(folder, steps[s], -1, &path);
        if (!path.failed)
            (void)unlink(text_string(&path));
        text_release(&path);
    }
    free(steps);
    remove_rest(folder, oldest, latest);
    return STATUS_OK;
}

bool checkpoint_is(const char *path)
{
    char start[sizeof MAGIC] = {0};
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool is = fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
                    read(fd, start, strlen(MAGIC)) == (ssize_t)strlen(MAGIC) && strcmp(start, MAGIC) == 0;
    if (fd >= 0)
        (void)close(fd);
    return is;
}
