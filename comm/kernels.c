/* kernels.c - the plain C kernels, and the choice between the sets.
 *
 * Compiled without contraction: a product and a sum never become one fused operation, so that every set gives the same
 * bits. min and max are commutative to the bit (-0 is below +0, every NaN result is the one quiet NaN): workers that
 * exchange and combine in opposite orders end with equal vectors. Sums are commutative but for the payload of a NaN.
 */
#include "comm/kernels.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/half.h"
#include "comm/kernels_internal.h"

static float add_f32(float a, float b)
{
    return a + b;
}

static double add_f64(double a, double b)
{
    return a + b;
}

/* Wraps around: signed overflow is undefined, unsigned is not. */
static int32_t add_i32(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}

static int64_t add_i64(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static float min_f32(float a, float b)
{
    if (isunordered(a, b))
        return NAN;
    if (a == b)
        return signbit(a) ? a : b;
    return a < b ? a : b;
}

static float max_f32(float a, float b)
{
    if (isunordered(a, b))
        return NAN;
    if (a == b)
        return signbit(a) ? b : a;
    return a > b ? a : b;
}

static double min_f64(double a, double b)
{
    if (isunordered(a, b))
        return (double)NAN;
    if (a == b)
        return signbit(a) ? a : b;
    return a < b ? a : b;
}

static double max_f64(double a, double b)
{
    if (isunordered(a, b))
        return (double)NAN;
    if (a == b)
        return signbit(a) ? b : a;
    return a > b ? a : b;
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* NOLINTBEGIN(bugprone-macro-parentheses): the arguments are types */
#define COMBINE(name, type, element)                                                                                   \
    static void name(void *out, const void *a, const void *b, size_t count)                                            \
    {                                                                                                                  \
        type *to = out;                                                                                                \
        const type *left = a, *right = b;                                                                              \
        for (size_t i = 0; i < count; i++)                                                                             \
            to[i] = element(left[i], right[i]);                                                                        \
    }

#define AVERAGE(name, type, element)                                                                                   \
    static void name(void *out, const void *a, const void *b, size_t count, double divisor)                            \
    {                                                                                                                  \
        type *to = out;                                                                                                \
        const type *left = a, *right = b;                                                                              \
        const type by = (type)divisor;                                                                                 \
        for (size_t i = 0; i < count; i++)                                                                             \
            to[i] = element(left[i], right[i]) / by;                                                                   \
    }

#define DIVIDE(name, type)                                                                                             \
    static void name(void *out, const void *a, size_t count, int divisor)                                              \
    {                                                                                                                  \
        type *to = out;                                                                                                \
        const type *from = a;                                                                                          \
        const type by = (type)divisor;                                                                                 \
        for (size_t i = 0; i < count; i++)                                                                             \
            to[i] = from[i] / by;                                                                                      \
    }

#define AXPY(name, type)                                                                                               \
    static void name(void *out, const void *a, const void *b, double weight, size_t count)                             \
    {                                                                                                                  \
        type *to = out;                                                                                                \
        const type *left = a, *right = b;                                                                              \
        const type factor = (type)weight;                                                                              \
        for (size_t i = 0; i < count; i++)                                                                             \
            to[i] = left[i] + factor * right[i];                                                                       \
    }

#define SCALE(name, type)                                                                                              \
    static void name(void *out, const void *a, double weight, size_t count)                                            \
    {                                                                                                                  \
        type *to = out;                                                                                                \
        const type *from = a;                                                                                          \
        const type factor = (type)weight;                                                                              \
        for (size_t i = 0; i < count; i++)                                                                             \
            to[i] = factor * from[i];                                                                                  \
    }

/* Halves: in f32, then rounded. */
#define HALF_COMBINE(name, half, element)                                                                              \
    static void name(void *out, const void *a, const void *b, size_t count)                                            \
    {                                                                                                                  \
        uint16_t *to = out;                                                                                            \
        const uint16_t *left = a, *right = b;                                                                          \
        for (size_t i = 0; i < count; i++)                                                                             \
            to[i] = half##_from_f32(element(half##_to_f32(left[i]), half##_to_f32(right[i])));                         \
    }

#define HALF_AVERAGE(name, half)                                                                                       \
    static void name(void *out, const void *a, const void *b, size_t count, double divisor)                            \
    {                                                                                                                  \
        uint16_t *to = out;                                                                                            \
        const uint16_t *left = a, *right = b;                                                                          \
        const float by = (float)divisor;                                                                               \
        for (size_t i = 0; i < count; i++)                                                                             \
            to[i] = half##_from_f32((half##_to_f32(left[i]) + half##_to_f32(right[i])) / by);                          \
    }

#define HALF_SCALE(name, half)                                                                                         \
    static void name(void *out, const void *a, double weight, size_t count)                                            \
    {                                                                                                                  \
        uint16_t *to = out;                                                                                            \
        const uint16_t *from = a;                                                                                      \
        const float factor = (float)weight;                                                                            \
        for (size_t i = 0; i < count; i++)                                                                             \
            to[i] = half##_from_f32(factor * half##_to_f32(from[i]));                                                  \
    }

/* NOLINTEND(bugprone-macro-parentheses) */

COMBINE(plain_sum_f32, float, add_f32)
COMBINE(plain_sum_f64, double, add_f64)
COMBINE(plain_sum_i32, int32_t, add_i32)
COMBINE(plain_sum_i64, int64_t, add_i64)
COMBINE(plain_min_f32, float, min_f32)
COMBINE(plain_min_f64, double, min_f64)
COMBINE(plain_min_i32, int32_t, min_i32)
COMBINE(plain_min_i64, int64_t, min_i64)
COMBINE(plain_max_f32, float, max_f32)
COMBINE(plain_max_f64, double, max_f64)
COMBINE(plain_max_i32, int32_t, max_i32)
COMBINE(plain_max_i64, int64_t, max_i64)
AVERAGE(plain_average_f32, float, add_f32)
AVERAGE(plain_average_f64, double, add_f64)
AVERAGE(plain_average_i32, int32_t, add_i32)
AVERAGE(plain_average_i64, int64_t, add_i64)
DIVIDE(plain_divide_f32, float)
DIVIDE(plain_divide_f64, double)
DIVIDE(plain_divide_i32, int32_t)
DIVIDE(plain_divide_i64, int64_t)
AXPY(plain_axpy_f32, float)
AXPY(plain_axpy_f64, double)
SCALE(plain_scale_f32, float)
SCALE(plain_scale_f64, double)
HALF_COMBINE(plain_sum_f16, f16, add_f32)
HALF_COMBINE(plain_min_f16, f16, min_f32)
HALF_COMBINE(plain_max_f16, f16, max_f32)
HALF_AVERAGE(plain_average_f16, f16)
HALF_SCALE(plain_scale_f16, f16)
HALF_COMBINE(plain_sum_bf16, bf16, add_f32)
HALF_COMBINE(plain_min_bf16, bf16, min_f32)
HALF_COMBINE(plain_max_bf16, bf16, max_f32)
HALF_AVERAGE(plain_average_bf16, bf16)
HALF_SCALE(plain_scale_bf16, bf16)

const struct kernel_set kernel_set_plain = {
    .name = "C",
    .sum = {plain_sum_f32, plain_sum_f64, plain_sum_i32, plain_sum_i64, plain_sum_f16, plain_sum_bf16},
    .min = {plain_min_f32, plain_min_f64, plain_min_i32, plain_min_i64, plain_min_f16, plain_min_bf16},
    .max = {plain_max_f32, plain_max_f64, plain_max_i32, plain_max_i64, plain_max_f16, plain_max_bf16},
    .average = {plain_average_f32, plain_average_f64, plain_average_i32, plain_average_i64, plain_average_f16,
                plain_average_bf16},
    .divide = {plain_divide_f32, plain_divide_f64, plain_divide_i32, plain_divide_i64},
    .axpy = {plain_axpy_f32, plain_axpy_f64},
    .scale = {[DTYPE_F32] = plain_scale_f32,
              [DTYPE_F64] = plain_scale_f64,
              [DTYPE_F16] = plain_scale_f16,
              [DTYPE_BF16] = plain_scale_bf16},
};

static atomic_int plain_forced;

static const struct kernel_set *kernels(void)
{
    const struct kernel_set *best = atomic_load_explicit(&plain_forced, memory_order_relaxed) ? NULL : kernels_avx2();
    return best != NULL ? best : &kernel_set_plain;
}

void kernel_reduce(enum dtype dtype, enum reduce_op op, void *out, const void *a, const void *b, size_t count,
                   double divisor)
{
    const struct kernel_set *set = kernels();
    switch (op) {
    case REDUCE_MIN:
        set->min[dtype](out, a, b, count);
        return;
    case REDUCE_MAX:
        set->max[dtype](out, a, b, count);
        return;
    case REDUCE_AVG:
        if (divisor != 1) {
            set->average[dtype](out, a, b, count, divisor);
            return;
        }
        break;
    case REDUCE_SUM:
    case REDUCE_OP_COUNT:
        break;
    }
    set->sum[dtype](out, a, b, count);
}

void kernel_axpy(enum dtype dtype, void *out, const void *a, const void *b, double weight, size_t count)
{
    assert(dtype < REAL_DTYPES);
    kernels()->axpy[dtype](out, a, b, weight, count);
}

void kernel_scale(enum dtype dtype, void *out, const void *a, double weight, size_t count)
{
    assert(kernels()->scale[dtype] != NULL);
    kernels()->scale[dtype](out, a, weight, count);
}

void kernel_divide(enum dtype dtype, void *out, const void *a, int divisor, size_t count)
{
    assert(divisor > 0 && dtype < WIDE_DTYPES);
    kernels()->divide[dtype](out, a, count, divisor);
}

double mean_scale(int workers)
{
    double scale = 1;
    while (scale * workers > 1)
        scale /= 2;
    return scale;
}

double mean_divisor(int workers)
{
    return workers * mean_scale(workers);
}

const char *kernel_name(void)
{
    return kernels()->name;
}

void kernel_force_plain(bool plain)
{
    atomic_store_explicit(&plain_forced, plain, memory_order_relaxed);
}
