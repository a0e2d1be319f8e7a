/* resample.h - resizing with an antialiased triangle filter, row by row as they are decoded: the bits of Pillow's
 * Image.resize(BILINEAR), which torchvision uses, on 8 bits a channel.
 *
 * Each output pixel is the weighted mean of the input within `scale` pixels of its centre (within 1 where images are
 * enlarged), first along rows, then along columns, weights rounded to 22 bits, each pass rounded to 8 bits. Rows pass
 * through a ring as high as the filter; nothing else is stored.
 */
#ifndef CHORALE_NN_DATA_RESAMPLE_H
#define CHORALE_NN_DATA_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* One axis: the pixels begin .. begin + extent become `out` ones, of which `size` from `from` on are wanted. Only pixels
 * first .. end - 1, those that the piece touches, are looked at. */
struct resample_axis {
    double begin, extent;
    int first, end;
    int out, from, size;
};

struct resample;

enum status resample_create(struct resample **resample) MUST_CHECK;
void resample_destroy(struct resample *resample); /* accepts NULL */

/* A new image. */
enum status resample_begin(struct resample *resample, const struct resample_axis *across,
                           const struct resample_axis *down) MUST_CHECK;
/* Which rows and columns of the input have any weight: first .. end - 1. */
void resample_needs(const struct resample *resample, int *first_row, int *end_row, int *first_column, int *end_column);
/* Rows first_row .. end_row - 1, one after the other: `rgbx` is 4 bytes a pixel from first_column on. Output rows go to
 * `rgb` (size rows of size x 3 bytes) as soon as they are complete. */
void resample_row(struct resample *resample, const uint8_t *rgbx, uint8_t *rgb);

/* For tests: the plain C path (true), or the best one again. Not thread-safe. */
void resample_force_plain(int plain);

#endif
