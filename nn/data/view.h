/* view.h - which part of an image is looked at, and how large it becomes. Pure. */
#ifndef CHORALE_NN_DATA_VIEW_H
#define CHORALE_NN_DATA_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "nn/batch.h"

/* The rectangle left, top, width, height of the image becomes out_width x out_height pixels, of which the size x size
 * ones from (x, y) on are wanted. */
struct view {
    int left, top, width, height;
    int out_width, out_height, x, y, size;
    bool flip;
};

/* A random piece: its area is 0.08..1 of the image, the logarithm of its aspect ratio uniform between those of 3/4 and
 * 4/3, ten attempts, else the largest piece in the middle within these ratios: torchvision's RandomResizedCrop with draws
 * from (seed, epoch, sample). Mirrored with probability 1/2. */
struct view view_random(int width, int height, int size, uint64_t seed, uint64_t epoch, uint64_t sample);
/* The shorter side becomes size * 256 / 224 (images not larger than `size`: size) pixels, of which the middle ones are
 * taken: torchvision's Resize(256) and CenterCrop(224). */
struct view view_middle(int width, int height, int size);
/* The middle square of the shorter side. */
struct view view_square(int width, int height, int size);
/* All of it, the aspect ratio not kept. */
struct view view_whole(int width, int height, int size);
/* The same of a stored image. */
struct image_box view_box(const struct view *view);

#endif
