/* checkpoint.h - the files in which a training run is kept: their form, their checks, and their names.
 *
 * One file:
 *
 *   chorale checkpoint 2, header 0000001234 bytes, crc32 89abcdef      the first line, of fixed length
 *   { "step": 40, ... "sections": [ { "name", "bytes", "crc32" } ] }    the header: JSON, as many bytes as that says
 *   ... the sections, one after the other, in that order, little-endian, nothing between them and after them
 *
 * Every byte is covered: the first line is compared, the header and each section have a CRC-32 (zlib's), and the length
 * of the file must be the sum. So a file that was cut or changed is refused with its name and the part that is wrong.
 *
 * A checkpoint of a run after STEP steps is FOLDER/checkpoint-STEP, with FOLDER/checkpoint-STEP.worker-RANK beside it
 * where workers differ. That one is written last and tells what the others must be: without it nothing is there.
 * Files are written as NAME.tmp, synchronised, and renamed.
 */
#ifndef CHORALE_NN_CHECKPOINT_H
#define CHORALE_NN_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "base/text.h"

enum { CHECKPOINT_VERSION = 2 };

/* ---- writing ---- */

struct checkpoint_section {
    const char *name;
    size_t bytes;
};

/* What tells a file from others of its name. */
struct checkpoint_identity {
    uint64_t bytes;
    uint32_t crc32; /* of the header, and through it of all */
};

struct checkpoint_writer;

/* header: an object, taken over also on failure; "byte_order" and "sections" are added to it. The names must outlive the
 * writer. STATUS_IO: the disk is full, the folder is gone, ...; the message names the file. */
enum status checkpoint_create(const char *path, json_t *header, const struct checkpoint_section *sections, size_t count,
                              struct checkpoint_writer **writer) MUST_CHECK;
/* The next section, whole. */
enum status checkpoint_put(struct checkpoint_writer *writer, const void *data) MUST_CHECK;
/* After the last one: it is there now. The writer is gone, also on failure. identity may be NULL. */
enum status checkpoint_commit(struct checkpoint_writer *writer, struct checkpoint_identity *identity) MUST_CHECK;
void checkpoint_abandon(struct checkpoint_writer *writer); /* accepts NULL; leaves nothing */

/* ---- reading ---- */

struct checkpoint;

/* The header, checked. STATUS_IO: no such file; STATUS_FORMAT: it is none, was cut, changed, written by another version or
 * on a machine of another byte order. */
enum status checkpoint_open(const char *path, struct checkpoint **checkpoint) MUST_CHECK;
void checkpoint_close(struct checkpoint *checkpoint); /* accepts NULL */
const json_t *checkpoint_header(const struct checkpoint *checkpoint);
struct checkpoint_identity checkpoint_identity(const struct checkpoint *checkpoint);
/* All sections are read and compared with their checksums. */
enum status checkpoint_verify(struct checkpoint *checkpoint) MUST_CHECK;
/* False: it has no such section. */
bool checkpoint_has(const struct checkpoint *checkpoint, const char *name, size_t *bytes);
/* A section that has just so many bytes, checked. STATUS_FORMAT also when there is none, or it has another length. */
enum status checkpoint_read(struct checkpoint *checkpoint, const char *name, void *to, size_t bytes) MUST_CHECK;

/* ---- names ---- */

/* Appended; rank < 0: the file that makes it one. */
void checkpoint_path(const char *folder, uint64_t step, int rank, struct text *path);
/* True for FOLDER/checkpoint-STEP. */
bool checkpoint_parse(const char *path, uint64_t *step);
/* Steps of the checkpoints in a folder, the latest first; caller frees. A folder that is not there has none. */
enum status checkpoint_list(const char *folder, uint64_t **steps, size_t *count) MUST_CHECK;
/* Of the checkpoints in a folder those after `latest` and all but the last `kept` go, and what is left of unfinished
 * ones. What can't be removed stays. */
enum status checkpoint_prune(const char *folder, uint64_t latest, size_t kept) MUST_CHECK;
/* STATUS_REFUSED: something that is no file bears a name that checkpoints in this folder have, so they could not be
 * written. A folder that is not there is good. */
enum status checkpoint_check_folder(const char *folder) MUST_CHECK;
/* Whether a file begins like a checkpoint, whole or not. */
bool checkpoint_is(const char *path);

#endif
