/* pool.c - see pool.h. One (image, block of channels) is one thread's work. */
#include "nn/cpu/pool.h"

#include <string.h>

enum { STRIDE = 2 };

/* Offsets, in floats from the start of the image, of the inputs of output pixel (oy, ox); -1 outside. Returns their count. */
static int window(const struct pool *pool, size_t oy, size_t ox, ptrdiff_t offset[POOL_TAPS])
{
    const size_t height = pool->x->height, width = pool->x->width, padding = pool->padding;
    int taps = 0;
    for (size_t row = oy * STRIDE; row < oy * STRIDE + pool->kernel; row++) { /* too large by the padding */
        for (size_t column = ox * STRIDE; column < ox * STRIDE + pool->kernel; column++) {
            bool outside = row < padding || row >= height + padding || column < padding || column >= width + padding;
            offset[taps++] = outside ? -1 : (ptrdiff_t)(((row - padding) * width + column - padding) * pool->x->block);
        }
    }
    return taps;
}

void max_pool_forward(const struct pool *pool, const float *x, float *y)
{
    size_t blocks = pool->x->channels / pool->x->block, block = pool->x->block;
    int tasks = (int)(pool->x->images * blocks);
#pragma omp parallel for schedule(static) num_threads(pool->threads)
    for (int task = 0; task < tasks; task++) {
        size_t n = (size_t)task / blocks, c = (size_t)task % blocks;
        const float *from = x + value_offset(pool->x, n, c);
        size_t to = value_offset(pool->y, n, c);
        for (size_t oy = 0; oy < pool->y->height; oy++) {
            for (size_t ox = 0; ox < pool->y->width; ox++, to += block) {
                ptrdiff_t offset[POOL_TAPS];
                const int taps = window(pool, oy, ox, offset);
                pool->kernels->pool_forward(from, offset, taps, block, y + to, pool->which + to);
            }
        }
    }
}

void max_pool_backward(const struct pool *pool, const float *gradient, float *input_gradient)
{
    size_t blocks = pool->x->channels / pool->x->block, block = pool->x->block;
    int tasks = (int)(pool->x->images * blocks);
#pragma omp parallel for schedule(static) num_threads(pool->threads)
    for (int task = 0; task < tasks; task++) {
        size_t n = (size_t)task / blocks, c = (size_t)task % blocks;
        float *into = input_gradient + value_offset(pool->x, n, c);
        size_t from = value_offset(pool->y, n, c);
        memset(into, 0, value_pixels(pool->x) * block * sizeof *into);
        for (size_t oy = 0; oy < pool->y->height; oy++) {
            for (size_t ox = 0; ox < pool->y->width; ox++, from += block) {
                ptrdiff_t offset[POOL_TAPS];
                const int taps = window(pool, oy, ox, offset);
                pool->kernels->pool_backward(gradient + from, pool->which + from, offset, taps, block, into);
            }
        }
    }
}

/* The inputs of one output pixel. */
struct field {
    size_t top, bottom, left, right; /* bottom and right beyond it */
};

static struct field field_of(const struct pool *pool, size_t p)
{
    const struct value *x = pool->x, *y = pool->y;
    const size_t row = p / y->width, column = p % y->width;
    return (struct field){.top = row * x->height / y->height,
                          .bottom = ((row + 1) * x->height + y->height - 1) / y->height,
                          .left = column * x->width / y->width,
                          .right = ((column + 1) * x->width + y->width - 1) / y->width};
}

static size_t field_pixels(const struct field *field)
{
    return (field->bottom - field->top) * (field->right - field->left);
}

/* Of the channel that `from` begins with. */
static float field_mean(const struct pool *pool, const struct field *field, const float *from)
{
    const struct value *x = pool->x;
    double sum = 0;
    for (size_t row = field->top; row < field->bottom; row++)
        for (size_t column = field->left; column < field->right; column++)
            sum += (double)from[(row * x->width + column) * x->block];
    return (float)(sum / (double)field_pixels(field));
}

void average_pool_forward(const struct pool *pool, const float *x, float *y)
{
    size_t block = pool->x->block, blocks = pool->x->channels / block, pixels = value_pixels(pool->y);
    int tasks = (int)(pool->x->images * blocks);
#pragma omp parallel for schedule(static) num_threads(pool->threads)
    for (int task = 0; task < tasks; task++) {
        size_t n = (size_t)task / blocks, c = (size_t)task % blocks;
        const float *from = x + value_offset(pool->x, n, c);
        float *to = y + (n * pool->x->channels + c * block) * pixels;
        for (size_t p = 0; p < pixels; p++) {
            const struct field field = field_of(pool, p);
            for (size_t k = 0; k < block; k++)
                to[k * pixels + p] = field_mean(pool, &field, from + k);
        }
    }
}

/* Adds the gradient of output pixel p, `gradient` that of the first channel of a block. */
static void spread(const struct pool *pool, size_t p, const float *gradient, float *into)
{
    const struct value *x = pool->x;
    const struct field field = field_of(pool, p);
    const size_t pixels = value_pixels(pool->y);
    const float share = 1.0F / (float)field_pixels(&field);
    for (size_t row = field.top; row < field.bottom; row++) {
        for (size_t column = field.left; column < field.right; column++) {
            float *at = into + (row * x->width + column) * x->block;
            for (size_t k = 0; k < x->block; k++)
                at[k] += gradient[k * pixels] * share;
        }
    }
}

void average_pool_backward(const struct pool *pool, const float *gradient, float *input_gradient)
{
    size_t block = pool->x->block, blocks = pool->x->channels / block, pixels = value_pixels(pool->y);
    int tasks = (int)(pool->x->images * blocks);
#pragma omp parallel for schedule(static) num_threads(pool->threads)
    for (int task = 0; task < tasks; task++) {
        size_t n = (size_t)task / blocks, c = (size_t)task % blocks;
        float *into = input_gradient + value_offset(pool->x, n, c);
        const float *from = gradient + (n * pool->x->channels + c * block) * pixels;
        memset(into, 0, value_pixels(pool->x) * block * sizeof *into);
        for (size_t p = 0; p < pixels; p++)
            spread(pool, p, from + p, into);
    }
}
