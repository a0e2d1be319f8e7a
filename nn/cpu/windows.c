/* windows.c - see windows.h. */
#include "nn/cpu/windows.h"

#include <string.h>

#include "base/memory.h"

enum status windows_count(const struct windows *windows, size_t *count)
{
    const struct value *columns = &windows->columns;
    if (!checked_multiply(columns->images * value_pixels(columns), columns->channels, count))
        return fail(STATUS_USAGE, "a batch of %zu images is too large", columns->images);
    return STATUS_OK;
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
    struct span rows = inside(windows->source->height, windows->columns.height, windows->stride, windows->padding, ky);
    struct span span = inside(width, windows->columns.width, windows->stride, windows->padding, kx);
    for (size_t oy = 0; oy < windows->columns.height; oy++, column += windows->columns.width * block) {
        if (oy < rows.first || oy >= rows.end) {
            memset(column, 0, windows->columns.width * block * sizeof *column);
            continue;
        }
        const float *row = image + (oy * windows->stride + ky - windows->padding) * width * block;
        gather_row(row, span, windows->columns.width, windows->stride, kx - windows->padding, block, column);
    }
}

void windows_gather(const struct windows *windows, const float *source, float *columns)
{
    const struct value *from = windows->source, *to = &windows->columns;
    size_t taps = windows->kernel * windows->kernel;
    int tasks = (int)(to->channels / to->block); /* (block, tap) */
#pragma omp parallel for schedule(static) num_threads(windows->threads)
    for (int task = 0; task < tasks; task++) {
        size_t block = (size_t)task / taps, tap = (size_t)task % taps;
        for (size_t n = 0; n < from->images; n++)
            gather_image(windows, source + value_offset(from, n, block), tap / windows->kernel, tap % windows->kernel,
                         columns + value_offset(to, n, (size_t)task));
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
    struct span rows = inside(windows->source->height, windows->columns.height, windows->stride, windows->padding, ky);
    struct span span = inside(width, windows->columns.width, windows->stride, windows->padding, kx);
    for (size_t oy = rows.first; oy < rows.end; oy++) {
        float *row = image + (oy * windows->stride + ky - windows->padding) * width * block;
        scatter_row(column + oy * windows->columns.width * block, span, windows->stride, kx - windows->padding, block,
                    row);
    }
}

void windows_scatter(const struct windows *windows, const float *columns, float *source_gradient)
{
    const struct value *to = windows->source, *from = &windows->columns;
    size_t blocks = to->channels / to->block, taps = windows->kernel * windows->kernel;
    int tasks = (int)(blocks * to->images); /* (image, block): no two write the same pixel */
#pragma omp parallel for schedule(static) num_threads(windows->threads)
    for (int task = 0; task < tasks; task++) {
        size_t n = (size_t)task / blocks, block = (size_t)task % blocks;
        float *image = source_gradient + value_offset(to, n, block);
        memset(image, 0, value_pixels(to) * to->block * sizeof *image);
        for (size_t tap = 0; tap < taps; tap++)
            scatter_image(windows, columns + value_offset(from, n, block * taps + tap), tap / windows->kernel,
                          tap % windows->kernel, image);
    }
}
