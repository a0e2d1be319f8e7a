/* bias.c - see bias.h. A block of channels is one thread's work. */
#include "nn/cpu/bias.h"

#include <stddef.h>

static void add_bias(float *restrict y, const float *restrict bias, size_t pixels, size_t block)
{
    for (size_t p = 0; p < pixels; p++, y += block)
        for (size_t k = 0; k < block; k++)
            y[k] += bias[k];
}

static void apply_relu(float *y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] = y[i] < 0 ? 0 : y[i];
}

void bias_forward(const struct bias *of, const float *bias, float *y)
{
    const struct value *value = of->value;
    const size_t pixels = value_pixels(value), block = value->block, blocks = value->channels / block;
#pragma omp parallel for schedule(static) num_threads(of->threads)
    for (int c = 0; c < (int)blocks; c++) {
        for (size_t n = 0; n < value->images; n++) {
            float *at = y + value_offset(value, n, (size_t)c);
            if (bias != NULL)
                add_bias(at, bias + (size_t)c * block, pixels, block);
            if (of->relu)
                apply_relu(at, pixels * block);
        }
    }
}

static void mask(float *restrict gradient, const float *restrict result, size_t count)
{
    for (size_t i = 0; i < count; i++)
        gradient[i] = result[i] <= 0 ? 0 : gradient[i];
}

static void add_sums(const float *restrict gradient, size_t pixels, size_t block, double *restrict sum)
{
    for (size_t p = 0; p < pixels; p++, gradient += block)
        for (size_t k = 0; k < block; k++)
            sum[k] += (double)gradient[k];
}

void bias_backward(const struct bias *of, const float *result, float *gradient, float *bias_gradient)
{
    enum { BLOCK_MOST = 16 };
    const struct value *value = of->value;
    const size_t pixels = value_pixels(value), block = value->block, blocks = value->channels / block;
#pragma omp parallel for schedule(static) num_threads(of->threads)
    for (int c = 0; c < (int)blocks; c++) {
        double sum[BLOCK_MOST] = {0};
        for (size_t n = 0; n < value->images; n++) {
            const size_t at = value_offset(value, n, (size_t)c);
            if (of->relu)
                mask(gradient + at, result + at, pixels * block);
            if (bias_gradient != NULL)
                add_sums(gradient + at, pixels, block, sum);
        }
        for (size_t k = 0; bias_gradient != NULL && k < block; k++)
            bias_gradient[(size_t)c * block + k] = (float)sum[k];
    }
}
