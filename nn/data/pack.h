/* pack.h - a data set in one file of plain pixels, all of one size: nothing to decode, each read when it is wanted.
 *
 * Little-endian:
 *     0  "chorpack"             32  bytes of class names   64  where labels begin
 *     8  version, 2             40  training images        72  where images begin, a multiple of 4096
 *    12  height                 48  test images            80  length of the file
 *    16  width                  56  images left out        88  where images' checksums begin
 *    20  channels, 1 or 3                                  96  hash of names, labels, checksums
 *    24  classes                                          104  hash of the bytes before
 *   112  class names, each ended by NUL, or none; labels of 32 bits; checksums of the images (hash_quick()) of 64 bits; images
 * (height, width, channels), training first (8 to 24: 32 bits; from 32 on 64 bits; hashes of base/hash.h). Opening checks
 * all but the images: each of them is checked when it is read, all by pack_check().
 */
#ifndef CHORALE_NN_DATA_PACK_H
#define CHORALE_NN_DATA_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "nn/data.h"

struct pack_written {
    size_t train, test; /* images in it */
    size_t left_out;    /* that could not be decoded */
};
/* Write all images of `data` as data_square() gives them. Appears at `path` only when complete. */
enum status pack_write(const struct data *data, const char *path, struct pack_written *written) MUST_CHECK;
/* Whether the images are those that were written: STATUS_FORMAT if not. */
enum status pack_check(const char *path) MUST_CHECK;

#endif
