/* element.h - what the kernels do to one element, for device and host alike: C11, C++17 and CUDA.
 *
 * Operations are written so that nothing can be contracted by surprise: where a product and a sum are one operation it
 * says fmaf, elsewhere they are two (kernels are compiled with --fmad=false).
 */
#ifndef CHORALE_NN_CUDA_ELEMENT_H
#define CHORALE_NN_CUDA_ELEMENT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define ELEMENT __host__ __device__ static inline
#else
#define ELEMENT static inline
#endif

ELEMENT uint32_t element_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

ELEMENT float element_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- halves: the bits of base/half.h ---- */

#define ELEMENT_INFINITY 0x7f800000U

ELEMENT uint16_t element_to_bf16(float value)
{
    const uint32_t bits = element_bits(value);
    if ((bits & 0x7fffffff) > ELEMENT_INFINITY)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

ELEMENT float element_from_bf16(uint16_t half)
{
    return element_float((uint32_t)half << 16);
}

ELEMENT uint16_t element_to_f16(float value)
{
    const uint32_t bits = element_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > ELEMENT_INFINITY) /* the device's conversion would lose the payload */
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
#ifdef __CUDA_ARCH__
    return __half_as_ushort(__float2half_rn(value));
#else
    if (magnitude >= 0x47800000) /* 65536 */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* 2^-14, the smallest normal one; 0.5 has the last place of a denormal: this rounds */
        return (uint16_t)(sign | (element_bits(element_float(magnitude) + 0.5F) - 0x3f000000));
    return (uint16_t)(sign | (((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112U << 10)));
#endif
}

ELEMENT float element_from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    if (magnitude > 0x7c00)
        return element_float(sign | ELEMENT_INFINITY | 0x400000U | magnitude << 13);
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(half));
#else
    if (magnitude == 0x7c00)
        return element_float(sign | ELEMENT_INFINITY);
    if (magnitude < 0x400)
        return element_float(sign | element_bits((float)magnitude * 0x1p-24F));
    return element_float(sign | (magnitude + (112U << 10)) << 13);
#endif
}

/* ---- layers ---- */

ELEMENT bool element_is_nan(float value)
{
    return value != value; /* NOLINT(misc-redundant-expression): that is what it is */
}

ELEMENT bool element_is_finite(float value)
{
    return (element_bits(value) & 0x7fffffff) < ELEMENT_INFINITY;
}

/* Whether a ReLU with this result lets the gradient through; NaN is let through, both ways. */
ELEMENT bool element_open(float y)
{
    return !(y <= 0);
}

ELEMENT float element_relu(float value)
{
    return element_open(value) ? value : 0;
}

/* Batch norm with scale = gamma / deviation. */
ELEMENT float element_norm(float x, float mean, float scale, float beta)
{
    return fmaf(x - mean, scale, beta);
}

/* dx = a g - b (x - mean) - c */
ELEMENT float element_norm_gradient(float g, float x, float mean, float a, float b, float c)
{
    return fmaf(a, g, -fmaf(b, x - mean, c));
}

/* Mean and sum of squared distances from it, of some values (Welford; Chan, Golub, LeVeque). */
struct element_moments {
    float count, mean, squares;
};

/* Takes in one more value, the count-th: share = 1 / count. */
ELEMENT void element_welford(float value, float share, float *mean, float *squares)
{
    const float before = value - *mean;
    *mean = fmaf(before, share, *mean);
    *squares = fmaf(before, value - *mean, *squares);
}

ELEMENT struct element_moments element_merge(struct element_moments a, struct element_moments b)
{
    struct element_moments both = a;
    if (b.count > 0) {
        const float apart = b.mean - a.mean, share = b.count / (a.count + b.count);
        both.count = a.count + b.count;
        both.mean = fmaf(apart, share, a.mean);
        both.squares = a.squares + b.squares + apart * apart * a.count * share;
    }
    return both;
}

/* ---- images ---- */

/* Output pixel o of one axis = (1 - weight) in[low] + weight in[high]. */
struct element_tap {
    int low, high;
    float weight;
};

/* `out` pixels over begin .. begin + extent of an axis of `in` pixels; centres of pixels, clamped to those that the
 * extent touches. For the whole axis what nn/data.c does. */
ELEMENT struct element_tap element_tap(int o, int out, float begin, float extent, int in)
{
    const float scale = extent / (float)out, centre = scale * ((float)o + 0.5F) - 0.5F;
    const float from = floorf(begin), source = (centre > 0 ? centre : 0) + (begin - from);
    int first = (int)from, last = (int)ceilf(begin + extent) - 1;
    if (first < 0)
        first = 0;
    if (first > in - 1)
        first = in - 1;
    if (last > in - 1)
        last = in - 1;
    if (last < first)
        last = first;
    struct element_tap tap;
    tap.low = first + (int)source < last ? first + (int)source : last;
    tap.high = tap.low + 1 <= last ? tap.low + 1 : tap.low;
    tap.weight = source - (float)(tap.low - first);
    return tap;
}

ELEMENT float element_between(float left, float right, float weight)
{
    return (1.0F - weight) * left + weight * right;
}

/* ---- updates ---- */

/* u = m u + (g + d w), w = w - rate u */
ELEMENT void element_sgd(float g, float *w, float *u, float rate, float momentum, float decay)
{
    *u = momentum * *u + (g + decay * *w);
    *w = *w - rate * *u;
}

/* g' = g + d w, u = m u + g', w = w - rate (g' + m u) */
ELEMENT void element_nesterov(float g, float *w, float *u, float rate, float momentum, float decay)
{
    const float decayed = g + decay * *w;
    *u = momentum * *u + decayed;
    *w = *w - rate * (decayed + momentum * *u);
}

/* v = m v + rate (g + d w), w = w - v */
ELEMENT void element_lars(float g, float *w, float *v, float rate, float momentum, float decay)
{
    *v = momentum * *v + rate * (g + decay * *w);
    *w = *w - *v;
}

/* ---- reductions of collectives: the bits of comm/kernels.c ---- */

ELEMENT float element_min_f32(float a, float b)
{
    if (element_is_nan(a) || element_is_nan(b))
        return element_float(0x7fc00000);
    if (a == b) /* -0 is below +0 */
        return element_bits(a) >> 31 ? a : b;
    return a < b ? a : b;
}

ELEMENT float element_max_f32(float a, float b)
{
    if (element_is_nan(a) || element_is_nan(b))
        return element_float(0x7fc00000);
    if (a == b)
        return element_bits(a) >> 31 ? b : a;
    return a > b ? a : b;
}

ELEMENT uint64_t element_bits_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

ELEMENT double element_nan_f64(void)
{
    const uint64_t bits = 0x7ff8000000000000U;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ELEMENT bool element_is_nan_f64(double value)
{
    return value != value; /* NOLINT(misc-redundant-expression): that is what it is */
}

ELEMENT double element_min_f64(double a, double b)
{
    if (element_is_nan_f64(a) || element_is_nan_f64(b))
        return element_nan_f64();
    if (a == b)
        return element_bits_f64(a) >> 63 ? a : b;
    return a < b ? a : b;
}

ELEMENT double element_max_f64(double a, double b)
{
    if (element_is_nan_f64(a) || element_is_nan_f64(b))
        return element_nan_f64();
    if (a == b)
        return element_bits_f64(a) >> 63 ? b : a;
    return a > b ? a : b;
}

#endif
