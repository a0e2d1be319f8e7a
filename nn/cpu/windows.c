/* windows.c - see windows.h. */
#include "nn/cpu/windows.h"

#include <string.h>

size_t windows_count(const struct windows *windows)
{
    const struct value *source = windows->source;
    return windows->kernel * windows->kernel * source->channels * source->images * windows->out_height *
           windows->out_width;
}

/* Outputs [first, end) of a row whose tap k lies inside a row of `in` pixels. */
struct span {
    size_t first, end;
};

static struct span inside(size_t in, size_t out, size_t stride, size_t padding, size_t k)
{
    struct span span = {0, 0};
    while (span.first < out && span.first * stride + k < padding)
        span.first++;
    span.end = span.first;
    while (span.end < out && span.end * stride + k < padding + in)
        span.end++;
    return span;
}

/* Row oy of one tap: columns (OW, b) from row y of the source. */
static void gather_row(const float *row, struct span span, size_t out, size_t stride, size_t shift, size_t block,
                       float *column)
{
    memset(column, 0, span.first * block * sizeof *column);
    if (stride == 1) {
        memcpy(column + span.first * block, row + (span.first + shift) * block,
               (span.end - span.first) * block * sizeof *column);
    } else {
        for (size_t x = span.first; x < span.end; x++)
            memcpy(column + x * block, row + (x * stride + shift) * block, block * sizeof *column);
    }
    memset(column + span.end * block, 0, (out - span.end) * block * sizeof *column);
}

/* One tap (ky, kx), one block of channels, one image. `shift` may wrap below 0; sums with it do not. */
static void gather_image(const struct windows *windows, const float *image, size_t ky, size_t kx, float *column)
{
    size_t block = windows->source->block, width = windows->source->width;
    struct span rows = inside(windows->source->height, windows->out_height, windows->stride, windows->padding, ky);
    struct span span = inside(width, windows->out_width, windows->stride, windows->padding, kx);
    for (size_t oy = 0; oy < windows->out_height; oy++, column += windows->out_width * block) {
        if (oy < rows.first || oy >= rows.end) {
            memset(column, 0, windows->out_width * block * sizeof *column);
            continue;
        }
        const float *row = image + (oy * windows->stride + ky - windows->padding) * width * block;
        gather_row(row, span, windows->out_width, windows->stride, kx - windows->padding, block, column);
    }
}

void windows_gather(const struct windows *windows, const float *source, float *columns)
{
    const struct value *value = windows->source;
    size_t blocks = value->channels / value->block, pixels = windows->out_height * windows->out_width;
    int tasks = (int)(windows->kernel * windows->kernel * blocks); /* (tap, block) */
#pragma omp parallel for schedule(static) num_threads(windows->threads)
    for (int task = 0; task < tasks; task++) {
        size_t tap = (size_t)task / blocks, from = (size_t)task % blocks * value_block_stride(value);
        float *column = columns + (size_t)task * value->images * pixels * value->block;
        for (size_t n = 0; n < value->images; n++)
            gather_image(windows, source + from + n * value_image_stride(value), tap / windows->kernel,
                         tap % windows->kernel, column + n * pixels * value->block);
    }
}

static void add(const float *from, float *to, size_t count)
{
    for (size_t k = 0; k < count; k++)
        to[k] += from[k];
}

static void scatter_row(const float *column, struct span span, size_t stride, size_t shift, size_t block, float *row)
{
    if (stride == 1) {
        add(column + span.first * block, row + (span.first + shift) * block, (span.end - span.first) * block);
        return;
    }
    for (size_t x = span.first; x < span.end; x++)
        add(column + x * block, row + (x * stride + shift) * block, block);
}

static void scatter_image(const struct windows *windows, const float *column, size_t ky, size_t kx, float *image)
{
    size_t block = windows->source->block, width = windows->source->width;
    struct span rows = inside(windows->source->height, windows->out_height, windows->stride, windows->padding, ky);
    struct span span = inside(width, windows->out_width, windows->stride, windows->padding, kx);
    for (size_t oy = rows.first; oy < rows.end; oy++) {
        float *row = image + (oy * windows->stride + ky - windows->padding) * width * block;
        scatter_row(column + oy * windows->out_width * block, span, windows->stride, kx - windows->padding, block, row);
    }
}

void windows_scatter(const struct windows *windows, const float *columns, float *source_gradient)
{
    const struct value *value = windows->source;
    size_t blocks = value->channels / value->block, taps = windows->kernel * windows->kernel;
    size_t pixels = windows->out_height * windows->out_width;
    int tasks = (int)(blocks * value->images); /* (block, image): no two write the same pixel */
#pragma omp parallel for schedule(static) num_threads(windows->threads)
    for (int task = 0; task < tasks; task++) {
        size_t c = (size_t)task / value->images, n = (size_t)task % value->images;
        float *image = source_gradient + c * value_block_stride(value) + n * value_image_stride(value);
        memset(image, 0, value_pixels(value) * value->block * sizeof *image);
        for (size_t tap = 0; tap < taps; tap++) {
            const float *column = columns + ((tap * blocks + c) * value->images + n) * pixels * value->block;
            scatter_image(windows, column, tap / windows->kernel, tap % windows->kernel, image);
        }
    }
}

void windows_weights(const float *canonical, size_t out, size_t in, size_t taps, float *by_tap)
{
    for (size_t o = 0; o < out; o++) {
        for (size_t i = 0; i < in; i++) {
            for (size_t t = 0; t < taps; t++)
                by_tap[(o * taps + t) * in + i] = canonical[(o * in + i) * taps + t];
        }
    }
}

void windows_weights_back(const float *by_tap, size_t out, size_t in, size_t taps, float *canonical)
{
    for (size_t o = 0; o < out; o++) {
        for (size_t i = 0; i < in; i++) {
            for (size_t t = 0; t < taps; t++)
                canonical[(o * in + i) * taps + t] = by_tap[(o * taps + t) * in + i];
        }
    }
}
