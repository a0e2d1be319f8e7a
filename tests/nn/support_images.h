/* support_images.h - JPEG files of a pattern, made in memory with libjpeg. */
#ifndef CHORALE_TESTS_NN_SUPPORT_IMAGES_H
#define CHORALE_TESTS_NN_SUPPORT_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct picture {
    int width, height;
    int quality;
    bool grey, progressive;
    int across, down; /* sampling of luma against chroma: 1 or 2 each; 0: 2 */
    unsigned seed;    /* another pattern */
};

/* Caller frees; NULL: built without libjpeg. */
uint8_t *picture_jpeg(const struct picture *picture, size_t *length);
/* Value of the pattern. */
uint8_t picture_value(const struct picture *picture, int x, int y, int channel);

#endif
