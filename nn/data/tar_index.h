/* tar_index.h - where the samples of a WebDataset shard lie: found by reading its headers, kept beside it.
 *
 * Entries that follow each other and have the same name up to the first dot of the last component are one sample: .jpg or
 * .jpeg is the image, .cls the label in decimal, others are passed over. Names are keys only: nothing is ever written to
 * where they lead. A sample that lacks either, or has two of one, is left out and counted. USTAR, with GNU's and pax's long
 * names and large sizes; sparse entries are passed over.
 *
 * FILE.tar.index is text: a line of version, a line "size=BYTES mtime=SECONDS.NANOSECONDS samples=N left_out=N hash=HEX",
 * then "offset,length,label" of each sample. It holds as long as the tar file has that size and time, and the hash that
 * of the lines; else it is made anew.
 */
#ifndef CHORALE_NN_DATA_TAR_INDEX_H
#define CHORALE_NN_DATA_TAR_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct tar_sample {
    uint64_t offset; /* of the image's bytes */
    uint64_t length;
    int32_t label;
};

struct tar_index {
    struct tar_sample *sample;
    size_t count, capacity;
    size_t left_out; /* samples without image or label, or with two */
};

/* Read every header. STATUS_FORMAT names file, byte and what is wrong. Release with tar_index_release(). */
enum status tar_index_scan(const char *tar, struct tar_index *index) MUST_CHECK;
/* From FILE.tar.index if that holds, else by scanning (*scanned), and then it is written; a folder that can't be written
 * to is no error (*stored false). */
enum status tar_index_open(const char *tar, struct tar_index *index, bool *scanned, bool *stored) MUST_CHECK;
void tar_index_release(struct tar_index *index);

#endif
