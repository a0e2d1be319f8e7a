/* file.c - whole files in, whole files out. */
#define _GNU_SOURCE /* realpath, O_TMPFILE */
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

/* A pipe that nobody writes ends at once: opened without O_NONBLOCK, it would wait for a writer who may never come. */
static int open_to_read(const char *path, struct stat *about)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && (fstat(fd, about) != 0 || fcntl(fd, F_SETFL, 0) != 0)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

enum status file_read(const char *path, size_t limit, char **data, size_t *length)
{
    *data = NULL;
    *length = 0;
    struct stat about;
    struct source source = {.path = path, .fd = open_to_read(path, &about)};
    if (source.fd < 0)
        return fail_errno("open", path);
    bool sized = S_ISREG(about.st_mode) && about.st_size > 0;
    enum status status = source_read_all(&source, sized ? (size_t)about.st_size : FIRST_BLOCK, limit, data, length);
    (void)close(source.fd);
    if (status >= 0 && *length == 0 && S_ISFIFO(about.st_mode)) {
        free(*data);
        *data = NULL;
        status = fail(STATUS_IO, "read %s: a pipe that nobody writes to", path);
    }
    return status;
}

enum status file_read_gzip(const char *path, size_t limit, unsigned char **data, size_t *length)
{
    *data = NULL;
    *length = 0;
    struct stat about;
    const int fd = open_to_read(path, &about);
    if (fd < 0)
        return fail_errno("open", path);
    struct source source = {.path = path, .fd = -1, .gzip = gzdopen(fd, "rb")}; /* closes fd, too */
    if (source.gzip == NULL) {
        (void)close(fd);
        return fail(STATUS_NO_MEMORY, "out of memory: inflating %s", path);
    }
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

/* A new file in the folder of `path`, without a name where the file system can have such: then nothing is left of it
 * however this process ends. Else `temporary`. */
static int create_temporary(const char *path, const char *temporary, bool *named)
{
    char *folder = NULL;
    int fd = -1;
    if (access("/proc/self/fd", X_OK) == 0 && folder_of(path, &folder) >= 0)
        fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    free(folder);
    *named = fd < 0;
    return fd >= 0 ? fd : open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
}

/* One without a name gets that of `path`, where there is nothing yet, else `temporary`. */
static int give_name(int fd, const char *path, const char *temporary, bool *linked)
{
    char here[32];
    (void)snprintf(here, sizeof here, "/proc/self/fd/%d", fd);
    *linked = linkat(AT_FDCWD, here, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
    if (*linked || errno != EEXIST)
        return *linked ? 0 : -1;
    (void)unlink(temporary);
    return linkat(AT_FDCWD, here, AT_FDCWD, temporary, AT_SYMLINK_FOLLOW);
}

/* The file is whole: it becomes `path`. Closes fd in any case; on failure nothing is left. Some file systems report a full
 * disk only in fsync or close, so both count as writing. */
static enum status finish_temporary(int fd, const char *path, const char *temporary, bool named)
{
    enum status status = STATUS_OK;
    bool linked = false;
    if (fsync(fd) != 0 && errno != EINVAL)
        status = fail_errno("fsync", path);
    if (status == STATUS_OK && !named && give_name(fd, path, temporary, &linked) != 0)
        status = fail_errno("create", path);
    if (close(fd) != 0 && status == STATUS_OK)
        status = fail_errno("close", path);
    if (status == STATUS_OK && !linked && rename(temporary, path) != 0)
        status = fail_errno("rename to", path);
    if (status < 0)
        (void)unlink(linked ? path : temporary);
    return status < 0 ? status : folder_sync(path);
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

static enum status write_and_rename(const char *path, const char *temporary, const void *data, size_t length)
{
    bool named = false;
    const int fd = create_temporary(path, temporary, &named);
    if (fd < 0)
        return fail_errno("create", path);
    const enum status status = write_all(fd, path, data, length);
    if (status == STATUS_OK)
        return finish_temporary(fd, path, temporary, named);
    (void)close(fd);
    if (named)
        (void)unlink(temporary);
    return status;
}

enum status file_write_atomic(const char *path, const void *data, size_t length)
{
    if (is_stream(path))
        return write_stream(path, data, length);
    char *target = realpath(path, NULL); /* behind symbolic links, which stay; NULL: there is no such file yet */
    const char *where = target != NULL ? target : path;
    struct text temporary = {0};
    text_addf(&temporary, "%s.tmp.%ld", where, (long)getpid());
    enum status status = text_check(&temporary);
    if (status == STATUS_OK)
        status = write_and_rename(where, text_string(&temporary), data, length);
    text_release(&temporary);
    free(target);
    return status;
}

/* ---- piece by piece ---- */

struct file_writer {
    char *path, *temporary;
    int fd;
    bool named; /* `temporary` is there */
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
    writer->fd = create_temporary(path, writer->temporary, &writer->named);
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
    if (writer->named)
        (void)unlink(writer->temporary);
    forget(writer);
}

int file_descriptor(const struct file_writer *writer)
{
    return writer->fd;
}

enum status file_commit(struct file_writer *writer)
{
    const enum status status = finish_temporary(writer->fd, writer->path, writer->temporary, writer->named);
    writer->fd = -1;
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
