/* norm.c - see norm.h. A block of channels is one thread's work from statistics to result, so that no sum is split
 * between threads and the bits do not depend on their number. */
#include "nn/cpu/norm.h"

#include <math.h>
#include <string.h>

static const double epsilon = 1e-5, momentum = 0.1; /* PyTorch's defaults */

static struct runs runs_of_block(const struct value *value, size_t images)
{
    size_t pixels = value_pixels(value) * value->block;
    if (value->folded)
        return (struct runs){.count = 1, .length = images * pixels, .stride = 0};
    return (struct runs){.count = images, .length = pixels, .stride = value_image_stride(value)};
}

/* Images that training counts: the first ones. */
static size_t images_of(const struct norm *norm)
{
    return norm->share != NULL ? norm->share->images : norm->x->images;
}

/* A block's values of the images that don't count. */
static void clear_others(const struct norm *norm, int block, float *values)
{
    const struct value *x = norm->x;
    for (size_t n = images_of(norm); n < x->images; n++)
        memset(values + value_offset(x, n, (size_t)block), 0, value_pixels(x) * x->block * sizeof *values);
}

/* (b) -> (LANES): the operand of one trip. */
static void spread(const float *channel, size_t block, float *lane)
{
    for (size_t first = 0; first < LANES; first += block)
        memcpy(lane + first, channel, block * sizeof *lane);
}

/* (LANES) -> (b) */
static void gather(double *lane, size_t block)
{
    for (size_t first = block; first < LANES; first += block) {
        for (size_t k = 0; k < block; k++)
            lane[k] += lane[first + k];
    }
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

/* Values of a channel on this worker. */
static double values_of(const struct norm *norm)
{
    return (double)(images_of(norm) * value_pixels(norm->x));
}

/* Mean and biased variance of a block's channels. One pass: sums of differences from the first pixel, which is near enough to
 * the mean for them not to cancel. */
static void block_moments(const struct norm *norm, const float *x, const struct runs *runs, double *mean,
                          double *variance)
{
    size_t block = norm->x->block;
    double count = values_of(norm);
    float center[LANES];
    double sum[LANES] = {0}, square[LANES] = {0};
    spread(x, block, center);
    norm->kernels->statistics(runs, x, center, sum, square);
    gather(sum, block);
    gather(square, block);
    for (size_t k = 0; k < block; k++) {
        double offset = sum[k] / count;
        mean[k] = (double)center[k] + offset;
        variance[k] = square[k] / count - offset * offset;
        if (variance[k] < 0) /* by rounding; a NaN stays one */
            variance[k] = 0;
    }
}

/* What the mean and the variance of `count` values of channel c make. */
static void set_channel(struct norm *norm, const float *parameters, float *state, size_t c, double mean,
                        double variance, double count)
{
    set_coefficients(norm, parameters, c, mean, variance);
    double unbiased = count > 1 ? variance * count / (count - 1) : variance;
    float *running_mean = state + c, *running_variance = state + norm->x->channels + c;
    *running_mean = (float)((1 - momentum) * (double)*running_mean + momentum * mean);
    *running_variance = (float)((1 - momentum) * (double)*running_variance + momentum * unbiased);
}

static void block_statistics(struct norm *norm, size_t first, const float *x, const struct runs *runs,
                             const float *parameters, float *state)
{
    double mean[LANES], variance[LANES];
    block_moments(norm, x, runs, mean, variance);
    for (size_t k = 0; k < norm->x->block; k++)
        set_channel(norm, parameters, state, first + k, mean[k], variance[k], values_of(norm));
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

static void train_block(const struct norm *norm, int k, const struct runs *runs, const float *addend, bool relu,
                        float *result)
{
    if (images_of(norm) > 0)
        block_result(norm, (size_t)k * norm->x->block, (size_t)k * value_block_stride(norm->x), runs, addend, relu,
                     result);
    clear_others(norm, k, result);
}

/* For all workers: values, then of each channel its sum and its sum of squares. In double precision they lose nothing that
 * is in values of single precision. */
static void sum_channels(const struct norm *norm)
{
    const struct value *x = norm->x;
    const struct runs runs = runs_of_block(x, images_of(norm));
    const double count = values_of(norm);
    double *sum = norm->exchanged + 1, *square = sum + x->channels;
    int blocks = (int)(x->channels / x->block);
    memset(norm->exchanged, 0, norm_exchanged(x->channels) * sizeof *norm->exchanged);
    if (images_of(norm) == 0)
        return;
    norm->exchanged[0] = count;
#pragma omp parallel for schedule(static) num_threads(norm->threads)
    for (int k = 0; k < blocks; k++) {
        double mean[LANES], variance[LANES];
        const size_t first = (size_t)k * x->block;
        block_moments(norm, x->data + (size_t)k * value_block_stride(x), &runs, mean, variance);
        for (size_t c = 0; c < x->block; c++) {
            sum[first + c] = count * mean[c];
            square[first + c] = count * (variance[c] + mean[c] * mean[c]);
        }
    }
}

static enum status train_together(struct norm *norm, const float *parameters, float *state, const float *addend,
                                  bool relu, float *result)
{
    const struct value *x = norm->x;
    const struct runs runs = runs_of_block(x, images_of(norm));
    const double *sum = norm->exchanged + 1, *square = sum + x->channels;
    int blocks = (int)(x->channels / x->block);
    sum_channels(norm);
    TRY(norm->sums->add(norm->sums->context, norm->exchanged, norm_exchanged(x->channels)));
    norm->values = norm->exchanged[0];
    for (size_t c = 0; c < x->channels; c++) {
        const double mean = sum[c] / norm->values;
        double variance = square[c] / norm->values - mean * mean;
        if (variance < 0)
            variance = 0;
        set_channel(norm, parameters, state, c, mean, variance, norm->values);
    }
#pragma omp parallel for schedule(static) num_threads(norm->threads)
    for (int k = 0; k < blocks; k++)
        train_block(norm, k, &runs, addend, relu, result);
    return STATUS_OK;
}

enum status norm_train(struct norm *norm, const float *parameters, float *state, const float *addend, bool relu,
                       float *result)
{
    const struct value *x = norm->x;
    struct runs runs = runs_of_block(x, images_of(norm));
    int blocks = (int)(x->channels / x->block);
    if (norm->sums != NULL)
        return train_together(norm, parameters, state, addend, relu, result);
#pragma omp parallel for schedule(static) num_threads(norm->threads)
    for (int k = 0; k < blocks; k++) {
        size_t first = (size_t)k * x->block, offset = (size_t)k * value_block_stride(x);
        if (images_of(norm) > 0)
            block_statistics(norm, first, x->data + offset, &runs, parameters, state);
        train_block(norm, k, &runs, addend, relu, result);
    }
    return STATUS_OK;
}

void norm_evaluate(struct norm *norm, const float *parameters, const float *state, const float *addend, bool relu,
                   float *result)
{
    const struct value *x = norm->x;
    struct runs runs = runs_of_block(x, x->images);
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

/* `sum` and `product` are over `count` values. */
static void solve(const struct norm *norm, const struct norm_backward *in, size_t first, const double *sum,
                  const double *product, double count, struct input_coefficients *out)
{
    size_t block = norm->x->block;
    float a[LANES], b[LANES], c[LANES];
    for (size_t k = 0; k < block; k++) {
        double inverse = (double)norm->inverse[first + k], gain = (double)in->parameters[first + k] * inverse;
        a[k] = (float)gain;
        b[k] = (float)(gain * inverse * inverse * product[k] / count);
        c[k] = (float)(gain * sum[k] / count);
    }
    spread(a, block, out->a);
    spread(b, block, out->b);
    spread(c, block, out->c);
}

/* A block of channels on its way backward. */
struct block {
    size_t first; /* channel */
    const struct runs *runs;
    float scale[LANES], shift[LANES], mean[LANES];
    struct norm_gradient operands;
    float *masked, *input_gradient;
    double sum[LANES], product[LANES]; /* over this worker's values: of g, of g (x - mean) */
};

static void block_open(const struct norm *norm, const struct norm_backward *in, int k, const struct runs *runs,
                       struct block *block)
{
    const size_t width = norm->x->block, offset = (size_t)k * value_block_stride(norm->x);
    *block = (struct block){.first = (size_t)k * width, .runs = runs};
    spread(norm->scale + block->first, width, block->scale);
    spread(norm->shift + block->first, width, block->shift);
    spread(norm->mean + block->first, width, block->mean);
    enum mask_kind by = in->addend ? MASK_BY_RESULT : MASK_BY_INPUT;
    block->operands = (struct norm_gradient){
        .x = norm->x->data + offset,
        .result = in->addend ? in->result + offset : NULL,
        .gradient = in->gradient + offset,
        .more = in->more ? in->more + offset : NULL,
        .scale = block->scale,
        .shift = block->shift,
        .mean = block->mean,
        .mask = in->relu ? by : MASK_NONE,
    };
    block->masked = in->addend ? in->gradient + offset : NULL;
    block->input_gradient = in->input_gradient + offset;
}

/* Sums, and the gradients of gamma and beta. */
static void block_reduce(const struct norm *norm, const struct norm_backward *in, struct block *block)
{
    const size_t width = norm->x->block, channels = norm->x->channels;
    if (images_of(norm) > 0)
        norm->kernels->norm_reduce(block->runs, &block->operands, block->masked, block->sum, block->product);
    gather(block->sum, width);
    gather(block->product, width);
    for (size_t k = 0; k < width; k++) {
        const size_t c = block->first + k;
        in->parameter_gradient[c] = (float)(block->product[k] * (double)norm->inverse[c]);
        in->parameter_gradient[channels + c] = (float)block->sum[k];
    }
}

static void block_apply(const struct norm *norm, const struct norm_backward *in, struct block *block, const double *sum,
                        const double *product, double count)
{
    struct input_coefficients coefficients;
    clear_others(norm, (int)(block->first / norm->x->block), in->input_gradient);
    if (images_of(norm) == 0)
        return;
    solve(norm, in, block->first, sum, product, count, &coefficients);
    if (in->addend) { /* the masked sum is stored by now */
        block->operands.more = NULL;
        block->operands.mask = MASK_NONE;
    }
    norm->kernels->norm_apply(block->runs, &block->operands, coefficients.a, coefficients.b, coefficients.c,
                              block->input_gradient);
}

/* Gradients are those of each worker's losses divided by its own divisor: sums are exchanged times that, and come back in
 * units of this worker's. */
static enum status backward_together(struct norm *norm, const struct norm_backward *in)
{
    const struct value *x = norm->x;
    const struct runs runs = runs_of_block(x, images_of(norm));
    const double divisor = norm->share != NULL ? norm->share->divisor : (double)x->images;
    double *sum = norm->exchanged, *product = sum + x->channels;
    int blocks = (int)(x->channels / x->block);
#pragma omp parallel for schedule(static) num_threads(norm->threads)
    for (int k = 0; k < blocks; k++) {
        struct block block;
        block_open(norm, in, k, &runs, &block);
        block_reduce(norm, in, &block);
        for (size_t c = 0; c < x->block; c++) {
            sum[block.first + c] = divisor * block.sum[c];
            product[block.first + c] = divisor * block.product[c];
        }
    }
    TRY(norm->sums->add(norm->sums->context, norm->exchanged, 2 * x->channels));
    for (size_t c = 0; c < 2 * x->channels; c++)
        norm->exchanged[c] /= divisor;
#pragma omp parallel for schedule(static) num_threads(norm->threads)
    for (int k = 0; k < blocks; k++) {
        struct block block;
        block_open(norm, in, k, &runs, &block);
        block_apply(norm, in, &block, sum + block.first, product + block.first, norm->values);
    }
    return STATUS_OK;
}

enum status norm_backward(struct norm *norm, const struct norm_backward *in)
{
    const struct value *x = norm->x;
    const struct runs runs = runs_of_block(x, images_of(norm));
    int blocks = (int)(x->channels / x->block);
    if (norm->sums != NULL)
        return backward_together(norm, in);
#pragma omp parallel for schedule(static) num_threads(norm->threads)
    for (int k = 0; k < blocks; k++) {
        struct block block;
        block_open(norm, in, k, &runs, &block);
        block_reduce(norm, in, &block);
        block_apply(norm, in, &block, block.sum, block.product, values_of(norm));
    }
    return STATUS_OK;
}
