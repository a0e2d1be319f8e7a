/* jpeg.h - JPEG files to RGB pixels of a wanted view, with libjpeg-turbo: what Pillow gives, where that reads the file.
 *
 * Only the rows and columns that the view needs are decoded. With `reduced`, the discrete cosine transform halves images
 * (to 1/2, 1/4, 1/8) as long as the view stays at least as large as it will become: quicker, and for training good
 * enough. Then the view is resized with Pillow's antialiased triangle filter (nn/data/resample.h).
 *
 * Grey, RGB, YCbCr, CMYK and YCCK (as Adobe stores them, inverted) are converted. What is no JPEG (PNG under that name),
 * is cut short or damaged where it is read, has above 2^28 pixels, more than 100 scans, or coefficients of a progressive
 * image above 1 GiB is STATUS_FORMAT: the decoder can go on with the next file.
 *
 * A decoder belongs to one thread at a time.
 */
#ifndef CHORALE_NN_DATA_JPEG_H
#define CHORALE_NN_DATA_JPEG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "nn/data/view.h"

struct jpeg;

/* STATUS_UNAVAILABLE: built without libjpeg-turbo. */
enum status jpeg_open(struct jpeg **jpeg) MUST_CHECK;
void jpeg_close(struct jpeg *jpeg); /* accepts NULL */
/* Read the header of a file in memory, which must stay as it is until jpeg_view(). */
enum status jpeg_begin(struct jpeg *jpeg, const uint8_t *bytes, size_t length, int *width, int *height) MUST_CHECK;
/* The view of the image begun: (view->size, view->size, 3) bytes, not mirrored. */
enum status jpeg_view(struct jpeg *jpeg, const struct view *view, bool reduced, uint8_t *rgb) MUST_CHECK;
/* "libjpeg-turbo 2.1.5", or that there is none. */
const char *jpeg_version(void);

#endif
