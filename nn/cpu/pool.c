/* pool.c - see pool.h. One (image, block of channels) is one thread's work. */
#include "nn/cpu/pool.h"

#include <string.h>

enum { KERNEL = 3, STRIDE = 2, PADDING = 1 };

/* Offsets, in floats from the start of the image, of the inputs of output (oy, ox); -1 outside. */
static void window(const struct value *x, size_t oy, size_t ox, ptrdiff_t offset[POOL_TAPS])
{
    for (size_t t = 0; t < POOL_TAPS; t++) {
        size_t row = oy * STRIDE + t / KERNEL, column = ox * STRIDE + t % KERNEL; /* one too large: the padding */
        bool outside = row < PADDING || row >= x->height + PADDING || column < PADDING || column >= x->width + PADDING;
        offset[t] = outside ? -1 : (ptrdiff_t)(((row - PADDING) * x->width + column - PADDING) * x->block);
    }
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
        for (size_t p = 0; p < value_pixels(pool->y); p++, to += block) {
            ptrdiff_t offset[POOL_TAPS];
            window(pool->x, p / pool->y->width, p % pool->y->width, offset);
            pool->kernels->pool_forward(from, offset, POOL_TAPS, block, y + to, pool->which + to);
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
        for (size_t p = 0; p < value_pixels(pool->y); p++, from += block) {
            ptrdiff_t offset[POOL_TAPS];
            window(pool->x, p / pool->y->width, p % pool->y->width, offset);
            pool->kernels->pool_backward(gradient + from, pool->which + from, offset, POOL_TAPS, block, into);
        }
    }
}

void average_pool_forward(const struct pool *pool, const float *x, float *y)
{
    size_t block = pool->x->block, blocks = pool->x->channels / block, pixels = value_pixels(pool->x);
    int tasks = (int)(pool->x->images * blocks);
#pragma omp parallel for schedule(static) num_threads(pool->threads)
    for (int task = 0; task < tasks; task++) {
        size_t n = (size_t)task / blocks, c = (size_t)task % blocks;
        const float *from = x + value_offset(pool->x, n, c);
        for (size_t k = 0; k < block; k++) {
            double sum = 0;
            for (size_t p = 0; p < pixels; p++)
                sum += (double)from[p * block + k];
            y[n * pool->x->channels + c * block + k] = (float)(sum / (double)pixels);
        }
    }
}

void average_pool_backward(const struct pool *pool, const float *gradient, float *input_gradient)
{
    size_t block = pool->x->block, blocks = pool->x->channels / block, pixels = value_pixels(pool->x);
    int tasks = (int)(pool->x->images * blocks);
    float share = 1.0F / (float)pixels;
#pragma omp parallel for schedule(static) num_threads(pool->threads)
    for (int task = 0; task < tasks; task++) {
        size_t n = (size_t)task / blocks, c = (size_t)task % blocks;
        float *into = input_gradient + value_offset(pool->x, n, c);
        const float *from = gradient + n * pool->x->channels + c * block;
        for (size_t p = 0; p < pixels; p++) {
            for (size_t k = 0; k < block; k++)
                into[p * block + k] = from[k] * share;
        }
    }
}
