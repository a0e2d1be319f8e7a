/* taps.c - see taps.h. Sums over images and pairs of pixels stay in registers: a weight is written once. */
#include "nn/cpu/taps.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))
#define BODY static inline __attribute__((always_inline, target("avx2,fma")))
#define UNROLL _Pragma("GCC unroll 8")

enum { WIDTH = 8, KERNEL = 3, TAPS = KERNEL * KERNEL, WEIGHTS = WIDTH * WIDTH };
enum { SIDE = 2, MOST_PIXELS = SIDE * SIDE }; /* of the result */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t blocks_of(const struct value *value)
{
    return value->channels / WIDTH;
}

/* Pixels that a tap joins: floats from the start of the image. */
struct pair {
    size_t source, result;
};

struct pairs {
    struct pair pair[MOST_PIXELS];
    size_t count;
};

static void find_pairs(const struct taps *taps, size_t tap, struct pairs *pairs)
{
    const struct value *source = taps->source, *result = taps->result;
    const size_t stride = (size_t)taps->stride;
    *pairs = (struct pairs){0};
    for (size_t p = 0; p < value_pixels(result); p++) {
        const size_t y = p / result->width * stride + tap / KERNEL; /* too large by the padding */
        const size_t x = p % result->width * stride + tap % KERNEL;
        if (y < 1 || y > source->height || x < 1 || x > source->width)
            continue;
        const size_t q = (y - 1) * source->width + x - 1;
        pairs->pair[pairs->count++] = (struct pair){.source = q * WIDTH, .result = p * WIDTH};
    }
}

static bool same_size(size_t source, size_t result, int stride)
{
    return (source + (size_t)stride - 1) / (size_t)stride == result;
}

bool taps_run(const struct taps *taps)
{
    const struct value *source = taps->source, *result = taps->result;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && source->block == WIDTH &&
           result->block == WIDTH && source->channels % WIDTH == 0 && result->channels % WIDTH == 0 &&
           taps->stride >= 1 && taps->stride <= 2 && result->height <= SIDE && result->width <= SIDE &&
           same_size(source->height, result->height, taps->stride) &&
           same_size(source->width, result->width, taps->stride);
}

enum { MOST_GROUPS = 3, INPUTS = 4 }; /* blocks of outputs, and inputs, that are summed together */

/* One tap, INPUTS inputs, up to three blocks of outputs: sums over images and pairs of pixels. */
struct of_weights {
    const float *source, *gradient; /* of the first image */
    size_t source_image, gradient_image, gradient_block, images;
    struct pairs pairs;
    float *to;
    size_t to_block;
};

BODY void sum_weights(int groups, const struct of_weights *of)
{
    __m256 sum[INPUTS][MOST_GROUPS];
    UNROLL for (int i = 0; i < INPUTS; i++)
    {
        UNROLL for (int g = 0; g < groups; g++) sum[i][g] = _mm256_setzero_ps();
    }
    for (size_t k = 0; k < of->pairs.count; k++) {
        const float *x = of->source + of->pairs.pair[k].source, *y = of->gradient + of->pairs.pair[k].result;
        for (size_t n = 0; n < of->images; n++, x += of->source_image, y += of->gradient_image) {
            __m256 gradient[MOST_GROUPS];
            UNROLL for (int g = 0; g < groups; g++) gradient[g] = _mm256_loadu_ps(y + (size_t)g * of->gradient_block);
            UNROLL for (int i = 0; i < INPUTS; i++)
            {
                const __m256 factor = _mm256_broadcast_ss(x + i);
                UNROLL for (int g = 0; g < groups; g++) sum[i][g] = _mm256_fmadd_ps(factor, gradient[g], sum[i][g]);
            }
        }
    }
    UNROLL for (int i = 0; i < INPUTS; i++)
    {
        UNROLL for (int g = 0; g < groups; g++)
            _mm256_storeu_ps(of->to + (size_t)g * of->to_block + i * WIDTH, sum[i][g]);
    }
}

TARGET static void sum_groups(size_t groups, const struct of_weights *of)
{
    if (groups == 1)
        sum_weights(1, of);
    else if (groups == 2)
        sum_weights(2, of);
    else
        sum_weights(MOST_GROUPS, of);
}

/* Blocks of outputs, from block `out` on, and all inputs. */
static void weights_group(const struct taps *taps, const struct pairs *pairs, const float *source,
                          const float *result_gradient, size_t out, float *weights_gradient)
{
    const size_t inputs = blocks_of(taps->source), groups = smaller(MOST_GROUPS, blocks_of(taps->result) - out);
    struct of_weights of = {.gradient = result_gradient + value_offset(taps->result, 0, out),
                            .source_image = value_image_stride(taps->source),
                            .gradient_image = value_image_stride(taps->result),
                            .gradient_block = value_block_stride(taps->result),
                            .images = taps->source->images,
                            .to_block = inputs * TAPS * WEIGHTS};
    for (size_t in = 0; in < inputs; in++) {
        for (size_t tap = 0; tap < TAPS; tap++) {
            of.pairs = pairs[tap];
            for (size_t row = 0; row < WIDTH; row += INPUTS) {
                of.source = source + value_offset(taps->source, 0, in) + row;
                of.to = weights_gradient + ((out * inputs + in) * TAPS + tap) * WEIGHTS + row * WIDTH;
                sum_groups(groups, &of);
            }
        }
    }
}

void taps_backward_weights(const struct taps *taps, const float *source, const float *result_gradient,
                           float *weights_gradient)
{
    const int groups = (int)((blocks_of(taps->result) + MOST_GROUPS - 1) / MOST_GROUPS);
    struct pairs pairs[TAPS];
    for (size_t tap = 0; tap < TAPS; tap++)
        find_pairs(taps, tap, &pairs[tap]);
#pragma omp parallel for schedule(static) num_threads(taps->threads)
    for (int k = 0; k < groups; k++)
        weights_group(taps, pairs, source, result_gradient, (size_t)k * MOST_GROUPS, weights_gradient);
}

#else /* the header's contract: nothing below is called where taps_run() is false */

bool taps_run(const struct taps *taps)
{
    (void)taps;
    return false;
}

void taps_backward_weights(const struct taps *taps, const float *source, const float *result_gradient,
                           float *weights_gradient)
{
    (void)taps, (void)source, (void)result_gradient, (void)weights_gradient;
}

#endif
