/* engine_file.h - a text file that remembers which engine was the fastest for a convolution, on which card.
 *
 *     chorale-engines 1
 *     NVIDIA_H200 9.19.0 graph forward bf16 64x56x56x64,64x3x3x64,s1,p1 any cap=268435456 = 62:2=4,13=0 41.5us
 *
 * Before the "=" the key, ENGINE_KEY_WORDS words: card, cuDNN's version, implementation, direction, type, shape (x as NHWC,
 * filters as KRSC, stride, padding), "deterministic" or "any" order of addition, and the cap on workspace. After it the
 * engine with its settings, and the time that was measured. '#' begins a comment. Lines of other cards and versions are
 * kept as they are. Several processes may write one file: each writes a whole one. Whoever measures holds the file's lock, so
 * that one does it while others wait for what it writes.
 */
#ifndef CHORALE_NN_CUDA_ENGINE_FILE_H
#define CHORALE_NN_CUDA_ENGINE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define ENGINE_KEY_WORDS 8

struct engine_line {
    char *key;    /* its words with one blank between them */
    char *engine; /* one word */
    double microseconds;
    int number; /* line of the file, 0: not from there */
};

/* Zeroed: empty and valid. */
struct engine_file {
    struct engine_line *line;
    size_t lines, capacity;
};

/* Add the lines of `path` to *file; an absent file has none. STATUS_FORMAT names file and line of what is damaged, or says
 * that it is no plain file. What was put stays as it is. */
enum status engine_file_read(struct engine_file *file, const char *path) MUST_CHECK;
/* NULL: not there. Valid until the next put or read. */
const struct engine_line *engine_file_find(const struct engine_file *file, const char *key);
/* Add it, or replace what is there for the key. */
enum status engine_file_put(struct engine_file *file, const char *key, const char *engine,
                            double microseconds) MUST_CHECK;
/* Lines of `file` over those that `path` has by now; nothing is written when they say the same. */
enum status engine_file_write(const struct engine_file *file, const char *path) MUST_CHECK;
void engine_file_release(struct engine_file *file);

/* Lock path.lock against everyone else who does, in other processes, too; it ends with whoever holds it. STATUS_AGAIN:
 * somebody has held it for all of `seconds`. *lock is for engine_file_unlock(), -1 (and STATUS_OK) where there can be no such
 * file: then nobody can write beside it either. */
enum status engine_file_lock(const char *path, double seconds, int *lock) MUST_CHECK;
void engine_file_unlock(int lock); /* accepts -1 */

#endif
