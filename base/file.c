/* file.c - whole files in, whole files out. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/memory.h"
#include "base/text.h"

#define FIRST_BLOCK 65536
#define LONGEST_READ ((size_t)1 << 30) /* gzread counts in int */

/* Where bytes come from: either `fd` or `gzip` is in use. */
struct source {
    const char *path;
    int fd;
    gzFile gzip;
};

static enum status fail_errno(const char *what, const char *path)
{
    return fail(STATUS_IO, "%s %s: %s", what, path, strerror(errno));
}

static enum status fail_gzip(const struct source *source)
{
    int code;
    const char *reason = gzerror(source->gzip, &code);
    if (code == Z_ERRNO)
        return fail_errno("read", source->path);
    if (code == Z_MEM_ERROR)
        return fail(STATUS_NO_MEMORY, "out of memory: inflating %s", source->path);
    return fail(STATUS_FORMAT, "inflate %s: %s", source->path, reason);
}

/* Up to `wanted` bytes; *got = 0 at the end. */
static enum status source_read(const struct source *source, char *bytes, size_t wanted, size_t *got)
{
    if (wanted > LONGEST_READ)
        wanted = LONGEST_READ;
    ssize_t count;
    if (source->gzip != NULL) {
        count = gzread(source->gzip, bytes, (unsigned)wanted);
        if (count < 0)
            return fail_gzip(source);
    } else {
        do
            count = read(source->fd, bytes, wanted);
        while (count < 0 && errno == EINTR);
        if (count < 0)
            return fail_errno("read", source->path);
    }
    *got = (size_t)count;
    return STATUS_OK;
}

/* Read until the end. A size known beforehand is only a hint: pipes have none, and files grow. */
static enum status source_read_all(const struct source *source, size_t hint, size_t limit, char **data, size_t *length)
{
    enum status status = STATUS_OK;
    void *bytes = NULL;
    size_t capacity = 0, used = 0;
    const size_t most = limit < SIZE_MAX - 2 ? limit : SIZE_MAX - 2;
    size_t needed = hint <= most ? hint + 2 : most + 2; /* one byte to see the end, one for NUL */
    for (size_t got = 1; got != 0; used += got) {
        TRY_TO(failed, memory_grow(&bytes, &capacity, needed, 1));
        TRY_TO(failed, source_read(source, (char *)bytes + used, capacity - 1 - used, &got));
        if (got > most - used) {
            status = fail(STATUS_FORMAT, "read %s: it is larger than the limit of %zu bytes", source->path, limit);
            goto failed;
        }
        needed = used + got + 2;
    }
    ((char *)bytes)[used] = '\0';
    *data = bytes;
    *length = used;
    return STATUS_OK;
failed:
    free(bytes);
    return status;
}

enum status file_read(const char *path, size_t limit, char **data, size_t *length)
{
    *data = NULL;
    *length = 0;
    struct source source = {.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (source.fd < 0)
        return fail_errno("open", path);
    struct stat about;
    bool sized = fstat(source.fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0;
    enum status status = source_read_all(&source, sized ? (size_t)about.st_size : FIRST_BLOCK, limit, data, length);
    (void)close(source.fd);
    return status;
}

enum status file_read_gzip(const char *path, size_t limit, unsigned char **data, size_t *length)
{
    *data = NULL;
    *length = 0;
    errno = 0;
    struct source source = {.path = path, .fd = -1, .gzip = gzopen(path, "rbe")};
    if (source.gzip == NULL)
        return errno != 0 ? fail_errno("open", path) : fail(STATUS_NO_MEMORY, "out of memory: inflating %s", path);
    char *bytes = NULL;
    enum status status = source_read_all(&source, FIRST_BLOCK, limit, &bytes, length);
    /* A file that ends in the middle of its stream reads as a short one; only closing tells. */
    int closed = gzclose_r(source.gzip);
    if (status == STATUS_OK && closed != Z_OK) {
        free(bytes);
        bytes = NULL;
        *length = 0;
        status = fail(STATUS_FORMAT, "inflate %s: the file ends too early", path);
    }
    *data = (unsigned char *)bytes;
    return status;
}

static enum status write_all(int fd, const char *path, const char *bytes, size_t length)
{
    while (length != 0) {
        ssize_t count = write(fd, bytes, length < SSIZE_MAX ? length : SSIZE_MAX);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return fail_errno("write", path);
        bytes += count;
        length -= (size_t)count;
    }
    return STATUS_OK;
}

/* Some file systems report a full disk only in fsync or close, so both count as writing. */
static enum status write_file(const char *temporary, const char *path, const void *data, size_t length)
{
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return fail_errno("create", path);
    enum status status = write_all(fd, path, data, length);
    if (status == STATUS_OK && fsync(fd) != 0 && errno != EINVAL)
        status = fail_errno("fsync", path);
    if (close(fd) != 0 && status == STATUS_OK)
        status = fail_errno("close", path);
    return status;
}

/* The folder that holds `path`, as open() takes it. */
static enum status folder_of(const char *path, char **folder)
{
    TRY(memory_string(folder, path));
    char *slash = strrchr(*folder, '/');
    if (slash == NULL) {
        free(*folder);
        return memory_string(folder, ".");
    }
    slash[slash == *folder ? 1 : 0] = '\0'; /* "/name" lies in "/" */
    return STATUS_OK;
}

/* Without this the rename may be lost in a crash. Not every file system can do it: those answer EINVAL. */
static enum status folder_sync(const char *path)
{
    char *folder = NULL;
    TRY(folder_of(path, &folder));
    enum status status = STATUS_OK;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        status = fail_errno("fsync", folder);
    if (fd >= 0)
        (void)close(fd);
    free(folder);
    return status;
}

/* A device, a pipe, a file without a name: what is there takes the bytes, and stays. Renaming over it would replace it,
 * and can't give a name. */
static bool is_stream(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && !S_ISDIR(about.st_mode) && (!S_ISREG(about.st_mode) || about.st_nlink == 0);
}

static enum status write_stream(const char *path, const void *data, size_t length)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return fail_errno("open", path);
    enum status status = write_all(fd, path, data, length);
    if (close(fd) != 0 && status == STATUS_OK)
        status = fail_errno("close", path);
    return status;
}

static enum status write_and_rename(const char *path, const void *data, size_t length)
{
    struct text temporary = {0};
    text_addf(&temporary, "%s.tmp.%ld", path, (long)getpid());
    enum status status = text_check(&temporary);
    if (status == STATUS_OK)
        status = write_file(text_string(&temporary), path, data, length);
    if (status == STATUS_OK && rename(text_string(&temporary), path) != 0)
        status = fail_errno("rename to", path);
    if (status < 0 && !temporary.failed)
        (void)unlink(text_string(&temporary));
    if (status == STATUS_OK)
        status = folder_sync(path);
    text_release(&temporary);
    return status;
}

enum status file_write_atomic(const char *path, const void *data, size_t length)
{
    if (is_stream(path))
        return write_stream(path, data, length);
    char *target = realpath(path, NULL); /* behind symbolic links, which stay; NULL: there is no such file yet */
    enum status status = write_and_rename(target != NULL ? target : path, data, length);
    free(target);
    return status;
}

/* ---- piece by piece ---- */

struct file_writer {
    char *path, *temporary;
    int fd;
};

static void forget(struct file_writer *writer)
{
    if (writer->fd >= 0)
        (void)close(writer->fd);
    free(writer->path);
    free(writer->temporary);
    free(writer);
}

enum status file_begin(const char *path, struct file_writer **out)
{
    void *memory = NULL;
    struct text temporary = {0};
    enum status status = STATUS_OK;
    *out = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct file_writer)));
    struct file_writer *writer = memory;
    writer->fd = -1;
    text_addf(&temporary, "%s.tmp", path);
    TRY_TO(done, text_check(&temporary));
    TRY_TO(done, memory_string(&writer->temporary, text_string(&temporary)));
    TRY_TO(done, memory_string(&writer->path, path));
    writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (writer->fd < 0)
        status = fail_errno("create", path);
done:
    text_release(&temporary);
    if (status < 0)
        forget(writer);
    else
        *out = writer;
    return status;
}

enum status file_append(struct file_writer *writer, const void *data, size_t length)
{
    return write_all(writer->fd, writer->path, data, length);
}

enum status file_rewrite_start(struct file_writer *writer, const void *data, size_t length)
{
    if (lseek(writer->fd, 0, SEEK_SET) != 0)
        return fail_errno("seek in", writer->path);
    TRY(write_all(writer->fd, writer->path, data, length));
    return lseek(writer->fd, 0, SEEK_END) >= 0 ? STATUS_OK : fail_errno("seek in", writer->path);
}

void file_abandon(struct file_writer *writer)
{
    if (writer == NULL)
        return;
    (void)unlink(writer->temporary);
    forget(writer);
}

enum status file_commit(struct file_writer *writer)
{
    enum status status = STATUS_OK;
    if (fsync(writer->fd) != 0 && errno != EINVAL)
        status = fail_errno("fsync", writer->path);
    if (close(writer->fd) != 0 && status == STATUS_OK)
        status = fail_errno("close", writer->path);
    writer->fd = -1;
    if (status == STATUS_OK && rename(writer->temporary, writer->path) != 0)
        status = fail_errno("rename to", writer->path);
    if (status < 0)
        (void)unlink(writer->temporary);
    else
        status = folder_sync(writer->path);
    forget(writer);
    return status;
}

enum status file_writable(const char *path)
{
    struct stat about;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        return fail(STATUS_IO, "write %s: %s", path, strerror(EISDIR));
    if (is_stream(path))
        return access(path, W_OK) == 0 ? STATUS_OK : fail_errno("write", path);
    char *target = realpath(path, NULL), *folder = NULL;
    enum status status = folder_of(target != NULL ? target : path, &folder);
    free(target);
    if (status == STATUS_OK && access(folder, W_OK | X_OK) != 0)
        status = fail_errno("create", path);
    free(folder);
    return status;
}

bool file_exists(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0;
}

bool file_is_plain(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

static bool is_folder(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* EEXIST is fine for a folder, and so is EACCES or EROFS above one that is already there. */
static enum status folder_make(const char *path)
{
    if (mkdir(path, 0777) == 0)
        return STATUS_OK;
    int reason = errno;
    if (is_folder(path))
        return STATUS_OK;
    if (reason == EEXIST)
        return fail(STATUS_IO, "create folder %s: a file of that name is in the way", path);
    return fail(STATUS_IO, "create folder %s: %s", path, strerror(reason));
}

enum status folder_create(const char *path)
{
    char *prefix = NULL;
    TRY(memory_string(&prefix, path));
    enum status status = STATUS_OK;
    for (char *slash = strchr(prefix, '/'); slash != NULL && status == STATUS_OK; slash = strchr(slash + 1, '/')) {
        if (slash == prefix)
            continue;
        *slash = '\0';
        status = folder_make(prefix);
        *slash = '/';
    }
    if (status == STATUS_OK)
        status = folder_make(prefix);
    free(prefix);
    return status;
}
