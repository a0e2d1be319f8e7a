/* value.h - where the output of a layer lies in memory.
 *
 * Blocked: [N][C/b][H*W][b] with b = onednn_block(), the library's nChw8c. Folded: [C/b][N*H*W][b], which is the same
 * layout for one image of width N*H*W: for small images it gives a 1x1 convolution long rows to work on. Flat: (N, C).
 */
#ifndef CHORALE_NN_CPU_VALUE_H
#define CHORALE_NN_CPU_VALUE_H

#include <stdbool.h>
#include <stddef.h>

struct value {
    size_t images, channels, height, width;
    size_t block; /* b; 1 = flat */
    bool folded;
    size_t count; /* floats */
    float *data;  /* NULL where the value is never stored: a batch norm fused with its ReLU */
};

static inline size_t value_pixels(const struct value *value)
{
    return value->height * value->width;
}

/* Floats from one image to the next, within one block of channels. */
static inline size_t value_image_stride(const struct value *value)
{
    return value_pixels(value) * (value->folded ? value->block : value->channels);
}

/* Floats from one block of channels to the next, within one image. */
static inline size_t value_block_stride(const struct value *value)
{
    return value_pixels(value) * value->block * (value->folded ? value->images : 1);
}

/* First float of an image's block of channels. */
static inline size_t value_offset(const struct value *value, size_t image, size_t block)
{
    return image * value_image_stride(value) + block * value_block_stride(value);
}

#endif
