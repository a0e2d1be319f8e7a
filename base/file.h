/* file.h - reading whole files, and writing so that nothing is ever half-written. */
#ifndef CHORALE_BASE_FILE_H
#define CHORALE_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* The whole file with a NUL after it; caller frees. STATUS_IO names the path and the reason; STATUS_FORMAT when
 * it holds more than `limit` bytes. On failure *data is NULL. Pipes and devices work, too; of a pipe that nobody writes
 * to nothing is awaited: STATUS_IO. */
enum status file_read(const char *path, size_t limit, char **data, size_t *length) MUST_CHECK;
/* The whole of a gzip or plain file (zlib), inflated, with a NUL after it; caller frees. STATUS_FORMAT when it is
 * damaged, ends too early or inflates to more than `limit` bytes. */
enum status file_read_gzip(const char *path, size_t limit, unsigned char **data, size_t *length) MUST_CHECK;
/* Write to a file without a name (where the file system has none: "path.tmp.PID"), fsync, link or rename it to path, fsync
 * the folder. Nothing else is left, on failure or when the process is killed. A symbolic link stays and its file is
 * replaced; a device, a pipe or a file without a name (/proc/PID/fd/N) is written to. */
enum status file_write_atomic(const char *path, const void *data, size_t length) MUST_CHECK;
/* Whether file_write_atomic() will find the folder and may write to it: to be known before hours of work, not after. */
enum status file_writable(const char *path) MUST_CHECK;
bool file_exists(const char *path);
bool file_is_plain(const char *path); /* there, and no folder, pipe or device */

/* A large file, written piece by piece, that is there whole or not at all: until it is committed it has no name, or where the
 * file system has no such files "path.tmp". */
struct file_writer;
enum status file_begin(const char *path, struct file_writer **writer) MUST_CHECK;
enum status file_append(struct file_writer *writer, const void *data, size_t length) MUST_CHECK;
/* Over the first bytes, which must have been appended before. */
enum status file_rewrite_start(struct file_writer *writer, const void *data, size_t length) MUST_CHECK;
/* For those who write otherwise than from the start to the end: open for reading and writing, the writer's. */
int file_descriptor(const struct file_writer *writer);
/* fsync, rename over path, fsync the folder. Also on failure the writer is gone, and then so is the temporary file. */
enum status file_commit(struct file_writer *writer) MUST_CHECK;
void file_abandon(struct file_writer *writer); /* accepts NULL; removes the temporary file */

/* mkdir -p. */
enum status folder_create(const char *path) MUST_CHECK;

#endif
