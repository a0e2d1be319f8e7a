/* norm.c - see norm.h. A block of channels is one thread's work from statistics to result, so that no sum is split
 * between threads and the bits do not depend on their number. */
#include "nn/cpu/norm.h"

#include <math.h>

static const double epsilon = 1e-5, momentum = 0.1; /* PyTorch's defaults */

static struct runs runs_of_block(const struct value *value)
{
    size_t pixels = value_pixels(value) * value->block;
    if (value->folded)
        return (struct runs){.count = 1, .length = value->images * pixels, .stride = 0};
    return (struct runs){.count = value->images, .length = pixels, .stride = value_image_stride(value)};
}

/* (b) -> (LANES): the operand of one trip. */
static void spread(const float *channel, size_t block, float *lane)
{
    for (size_t k = 0; k < LANES; k++)
        lane[k] = channel[k % block];
}

/* (LANES) -> (b) */
static void gather(double *lane, size_t block)
{
    for (size_t k = block; k < LANES; k++)
        lane[k % block] += lane[k];
}

/* y = scale x + shift of channel `c`. */
static void set_coefficients(struct norm *norm, const float *parameters, size_t c, double mean, double variance)
{
    double inverse = 1 / sqrt(variance + epsilon), scale = (double)parameters[c] * inverse;
    norm->mean[c] = (float)mean;
    norm->inverse[c] = (float)inverse;
    norm->scale[c] = (float)scale;
    norm->shift[c] = (float)((double)parameters[norm->x->channels + c] - mean * scale);
}

/* One pass: sums of differences from the first pixel, which is near enough to the mean for them not to cancel. */
static void block_statistics(struct norm *norm, size_t first, const float *x, const struct runs *runs,
                             const float *parameters, float *state)
{
    size_t block = norm->x->block, channels = norm->x->channels;
    double count = (double)(norm->x->images * value_pixels(norm->x));
    float center[LANES];
    double sum[LANES] = {0}, square[LANES] = {0};
    spread(x, block, center);
    norm->kernels->statistics(runs, x, center, sum, square);
    gather(sum, block);
    gather(square, block);
    for (size_t k = 0; k < block; k++) {
        size_t c = first + k;
        double offset = sum[k] / count, mean = (double)center[k] + offset;
        double variance = square[k] / count - offset * offset;
        if (variance < 0) /* by rounding; a NaN stays one */
            variance = 0;
        set_coefficients(norm, parameters, c, mean, variance);
        double unbiased = count > 1 ? variance * count / (count - 1) : variance;
        float *running_mean = state + c, *running_variance = state + channels + c;
        *running_mean = (float)((1 - momentum) * (double)*running_mean + momentum * mean);
        *running_variance = (float)((1 - momentum) * (double)*running_variance + momentum * unbiased);
    }
}

static void block_result(const struct norm *norm, size_t first, size_t offset, const struct runs *runs,
                         const float *addend, bool relu, float *result)
{
    float scale[LANES], shift[LANES];
    spread(norm->scale + first, norm->x->block, scale);
    spread(norm->shift + first, norm->x->block, shift);
    norm->kernels->scale_shift(runs, norm->x->data + offset, addend ? addend + offset : NULL, scale, shift, relu,
                               result + offset);
}

void norm_train(struct norm *norm, const float *parameters, float *state, const float *addend, bool relu, float *result)
{
    const struct value *x = norm->x;
    struct runs runs = runs_of_block(x);
    int blocks = (int)(x->channels / x->block);
#pragma omp parallel for schedule(static) num_threads(norm->threads)
    for (int k = 0; k < blocks; k++) {
        size_t first = (size_t)k * x->block, offset = (size_t)k * value_block_stride(x);
        block_statistics(norm, first, x->data + offset, &runs, parameters, state);
        block_result(norm, first, offset, &runs, addend, relu, result);
    }
}

void norm_evaluate(struct norm *norm, const float *parameters, const float *state, const float *addend, bool relu,
                   float *result)
{
    const struct value *x = norm->x;
    struct runs runs = runs_of_block(x);
    int blocks = (int)(x->channels / x->block);
    for (size_t c = 0; c < x->channels; c++)
        set_coefficients(norm, parameters, c, (double)state[c], (double)state[x->channels + c]);
#pragma omp parallel for schedule(static) num_threads(norm->threads)
    for (int k = 0; k < blocks; k++)
        block_result(norm, (size_t)k * x->block, (size_t)k * value_block_stride(x), &runs, addend, relu, result);
}

/* With g the masked gradient, n values a channel and means over them:
 * dx = gamma inverse (g - mean(g) - (x - mean) inverse^2 mean(g (x - mean))) = a g - b (x - mean) - c. */
struct input_coefficients {
    float a[LANES], b[LANES], c[LANES];
};

static void solve(const struct norm *norm, const struct norm_backward *in, size_t first, const double *sum,
                  const double *product, struct input_coefficients *out)
{
    size_t block = norm->x->block, channels = norm->x->channels;
    double count = (double)(norm->x->images * value_pixels(norm->x));
    float a[LANES], b[LANES], c[LANES];
    for (size_t k = 0; k < block; k++) {
        double inverse = (double)norm->inverse[first + k], gain = (double)in->parameters[first + k] * inverse;
        in->parameter_gradient[first + k] = (float)(product[k] * inverse);
        in->parameter_gradient[channels + first + k] = (float)sum[k];
        a[k] = (float)gain;
        b[k] = (float)(gain * inverse * inverse * product[k] / count);
        c[k] = (float)(gain * sum[k] / count);
    }
    spread(a, block, out->a);
    spread(b, block, out->b);
    spread(c, block, out->c);
}

static void block_backward(const struct norm *norm, const struct norm_backward *in, size_t first, size_t offset,
                           const struct runs *runs)
{
    size_t block = norm->x->block;
    float scale[LANES], shift[LANES], mean[LANES];
    spread(norm->scale + first, block, scale);
    spread(norm->shift + first, block, shift);
    spread(norm->mean + first, block, mean);
    enum mask_kind by = in->addend ? MASK_BY_RESULT : MASK_BY_INPUT;
    struct norm_gradient operands = {
        .x = norm->x->data + offset,
        .result = in->addend ? in->result + offset : NULL,
        .gradient = in->gradient + offset,
        .more = in->more ? in->more + offset : NULL,
        .scale = scale,
        .shift = shift,
        .mean = mean,
        .mask = in->relu ? by : MASK_NONE,
    };
    double sum[LANES] = {0}, product[LANES] = {0};
    norm->kernels->norm_reduce(runs, &operands, in->addend ? in->gradient + offset : NULL, sum, product);
    gather(sum, block);
    gather(product, block);
    struct input_coefficients coefficients;
    solve(norm, in, first, sum, product, &coefficients);
    if (in->addend) { /* the masked sum is stored by now */
        operands.more = NULL;
        operands.mask = MASK_NONE;
    }
    norm->kernels->norm_apply(runs, &operands, coefficients.a, coefficients.b, coefficients.c,
                              in->input_gradient + offset);
}

void norm_backward(struct norm *norm, const struct norm_backward *in)
{
    const struct value *x = norm->x;
    struct runs runs = runs_of_block(x);
    int blocks = (int)(x->channels / x->block);
#pragma omp parallel for schedule(static) num_threads(norm->threads)
    for (int k = 0; k < blocks; k++)
        block_backward(norm, in, (size_t)k * x->block, (size_t)k * value_block_stride(x), &runs);
}
