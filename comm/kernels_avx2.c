/* kernels_avx2.c - the kernels for x86 processors with AVX2: whole vectors here, the rest by the plain kernels.
 *
 * Compiled for the base instruction set; only these functions use AVX2, and only after the processor was asked.
 * The loops are bound by memory: unrolling gained nothing, and streaming stores would throw segments out of the cache
 * that the network reads next.
 */
#include "base/half_avx2.h"
#include "comm/kernels_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define AVX2 __attribute__((target("avx2")))
#define INLINE AVX2 static inline

INLINE __m256i load_integers(const void *from)
{
    return _mm256_loadu_si256(from);
}

INLINE void store_integers(void *to, __m256i value)
{
    _mm256_storeu_si256(to, value);
}

/* The processor's minimum gives its second operand when the two are equal or unordered. Taken in both orders the two
 * results differ only there: equal ones (zeros) join their sign bits, unordered ones become the one NaN. */
INLINE __m256 min_ps(__m256 a, __m256 b)
{
    __m256 least = _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
    return _mm256_blendv_ps(least, _mm256_set1_ps(NAN), _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

INLINE __m256 max_ps(__m256 a, __m256 b)
{
    __m256 greatest = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
    return _mm256_blendv_ps(greatest, _mm256_set1_ps(NAN), _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

INLINE __m256d min_pd(__m256d a, __m256d b)
{
    __m256d least = _mm256_or_pd(_mm256_min_pd(a, b), _mm256_min_pd(b, a));
    return _mm256_blendv_pd(least, _mm256_set1_pd((double)NAN), _mm256_cmp_pd(a, b, _CMP_UNORD_Q));
}

INLINE __m256d max_pd(__m256d a, __m256d b)
{
    __m256d greatest = _mm256_and_pd(_mm256_max_pd(a, b), _mm256_max_pd(b, a));
    return _mm256_blendv_pd(greatest, _mm256_set1_pd((double)NAN), _mm256_cmp_pd(a, b, _CMP_UNORD_Q));
}

INLINE __m256i min_epi64(__m256i a, __m256i b)
{
    return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b));
}

INLINE __m256i max_epi64(__m256i a, __m256i b)
{
    return _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b));
}

/* NOLINTBEGIN(bugprone-macro-parentheses): the arguments are types and members */
#define WIDTH(type) (32 / sizeof(type))

#define COMBINE(name, type, load, store, vector, rest)                                                                 \
    AVX2 static void name(void *out, const void *a, const void *b, size_t count)                                       \
    {                                                                                                                  \
        type *to = out;                                                                                                \
        const type *left = a, *right = b;                                                                              \
        size_t i = 0;                                                                                                  \
        for (; count - i >= WIDTH(type); i += WIDTH(type))                                                             \
            store(to + i, vector(load(left + i), load(right + i)));                                                    \
        kernel_set_plain.rest(to + i, left + i, right + i, count - i);                                                 \
    }

#define AVERAGE(name, type, load, store, add, quotient, spread, dtype)                                                 \
    AVX2 static void name(void *out, const void *a, const void *b, size_t count, double divisor)                       \
    {                                                                                                                  \
        type *to = out;                                                                                                \
        const type *left = a, *right = b;                                                                              \
        size_t i = 0;                                                                                                  \
        for (; count - i >= WIDTH(type); i += WIDTH(type))                                                             \
            store(to + i, quotient(add(load(left + i), load(right + i)), spread((type)divisor)));                      \
        kernel_set_plain.average[dtype](to + i, left + i, right + i, count - i, divisor);                              \
    }

#define DIVIDE(name, type, load, store, quotient, spread, dtype)                                                       \
    AVX2 static void name(void *out, const void *a, size_t count, int divisor)                                         \
    {                                                                                                                  \
        type *to = out;                                                                                                \
        const type *from = a;                                                                                          \
        size_t i = 0;                                                                                                  \
        for (; count - i >= WIDTH(type); i += WIDTH(type))                                                             \
            store(to + i, quotient(load(from + i), spread((type)divisor)));                                            \
        kernel_set_plain.divide[dtype](to + i, from + i, count - i, divisor);                                          \
    }

#define AXPY(name, type, load, store, add, multiply, spread, dtype)                                                    \
    AVX2 static void name(void *out, const void *a, const void *b, double weight, size_t count)                        \
    {                                                                                                                  \
        type *to = out;                                                                                                \
        const type *left = a, *right = b;                                                                              \
        size_t i = 0;                                                                                                  \
        for (; count - i >= WIDTH(type); i += WIDTH(type))                                                             \
            store(to + i, add(load(left + i), multiply(spread((type)weight), load(right + i))));                       \
        kernel_set_plain.axpy[dtype](to + i, left + i, right + i, weight, count - i);                                  \
    }

#define SCALE(name, type, load, store, multiply, spread, dtype)                                                        \
    AVX2 static void name(void *out, const void *a, double weight, size_t count)                                       \
    {                                                                                                                  \
        type *to = out;                                                                                                \
        const type *from = a;                                                                                          \
        size_t i = 0;                                                                                                  \
        for (; count - i >= WIDTH(type); i += WIDTH(type))                                                             \
            store(to + i, multiply(spread((type)weight), load(from + i)));                                             \
        kernel_set_plain.scale[dtype](to + i, from + i, weight, count - i);                                            \
    }

/* Halves: eight of them as f32. */
#define HALF_COMBINE(name, half, vector, rest)                                                                         \
    HALF_AVX2 static void name(void *out, const void *a, const void *b, size_t count)                                  \
    {                                                                                                                  \
        uint16_t *to = out;                                                                                            \
        const uint16_t *left = a, *right = b;                                                                          \
        size_t i = 0;                                                                                                  \
        for (; count - i >= 8; i += 8)                                                                                 \
            half##_store(to + i, vector(half##_load(left + i), half##_load(right + i)));                               \
        kernel_set_plain.rest(to + i, left + i, right + i, count - i);                                                 \
    }

#define HALF_AVERAGE(name, half, dtype)                                                                                \
    HALF_AVX2 static void name(void *out, const void *a, const void *b, size_t count, double divisor)                  \
    {                                                                                                                  \
        uint16_t *to = out;                                                                                            \
        const uint16_t *left = a, *right = b;                                                                          \
        const __m256 by = _mm256_set1_ps((float)divisor);                                                              \
        size_t i = 0;                                                                                                  \
        for (; count - i >= 8; i += 8)                                                                                 \
            half##_store(to + i, _mm256_div_ps(_mm256_add_ps(half##_load(left + i), half##_load(right + i)), by));     \
        kernel_set_plain.average[dtype](to + i, left + i, right + i, count - i, divisor);                              \
    }

#define HALF_SCALE(name, half, dtype)                                                                                  \
    HALF_AVX2 static void name(void *out, const void *a, double weight, size_t count)                                  \
    {                                                                                                                  \
        uint16_t *to = out;                                                                                            \
        const uint16_t *from = a;                                                                                      \
        const __m256 factor = _mm256_set1_ps((float)weight);                                                           \
        size_t i = 0;                                                                                                  \
        for (; count - i >= 8; i += 8)                                                                                 \
            half##_store(to + i, _mm256_mul_ps(factor, half##_load(from + i)));                                        \
        kernel_set_plain.scale[dtype](to + i, from + i, weight, count - i);                                            \
    }

/* NOLINTEND(bugprone-macro-parentheses) */

COMBINE(avx2_sum_f32, float, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, sum[DTYPE_F32])
COMBINE(avx2_sum_f64, double, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_add_pd, sum[DTYPE_F64])
COMBINE(avx2_sum_i32, int32_t, load_integers, store_integers, _mm256_add_epi32, sum[DTYPE_I32])
COMBINE(avx2_sum_i64, int64_t, load_integers, store_integers, _mm256_add_epi64, sum[DTYPE_I64])
COMBINE(avx2_min_f32, float, _mm256_loadu_ps, _mm256_storeu_ps, min_ps, min[DTYPE_F32])
COMBINE(avx2_min_f64, double, _mm256_loadu_pd, _mm256_storeu_pd, min_pd, min[DTYPE_F64])
COMBINE(avx2_min_i32, int32_t, load_integers, store_integers, _mm256_min_epi32, min[DTYPE_I32])
COMBINE(avx2_min_i64, int64_t, load_integers, store_integers, min_epi64, min[DTYPE_I64])
COMBINE(avx2_max_f32, float, _mm256_loadu_ps, _mm256_storeu_ps, max_ps, max[DTYPE_F32])
COMBINE(avx2_max_f64, double, _mm256_loadu_pd, _mm256_storeu_pd, max_pd, max[DTYPE_F64])
COMBINE(avx2_max_i32, int32_t, load_integers, store_integers, _mm256_max_epi32, max[DTYPE_I32])
COMBINE(avx2_max_i64, int64_t, load_integers, store_integers, max_epi64, max[DTYPE_I64])
AVERAGE(avx2_average_f32, float, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_div_ps, _mm256_set1_ps,
        DTYPE_F32)
AVERAGE(avx2_average_f64, double, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_add_pd, _mm256_div_pd, _mm256_set1_pd,
        DTYPE_F64)
DIVIDE(avx2_divide_f32, float, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_div_ps, _mm256_set1_ps, DTYPE_F32)
DIVIDE(avx2_divide_f64, double, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_div_pd, _mm256_set1_pd, DTYPE_F64)
AXPY(avx2_axpy_f32, float, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_mul_ps, _mm256_set1_ps, DTYPE_F32)
AXPY(avx2_axpy_f64, double, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_add_pd, _mm256_mul_pd, _mm256_set1_pd, DTYPE_F64)
SCALE(avx2_scale_f32, float, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_mul_ps, _mm256_set1_ps, DTYPE_F32)
SCALE(avx2_scale_f64, double, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_mul_pd, _mm256_set1_pd, DTYPE_F64)
HALF_COMBINE(avx2_sum_f16, f16, _mm256_add_ps, sum[DTYPE_F16])
HALF_COMBINE(avx2_min_f16, f16, min_ps, min[DTYPE_F16])
HALF_COMBINE(avx2_max_f16, f16, max_ps, max[DTYPE_F16])
HALF_AVERAGE(avx2_average_f16, f16, DTYPE_F16)
HALF_SCALE(avx2_scale_f16, f16, DTYPE_F16)
HALF_COMBINE(avx2_sum_bf16, bf16, _mm256_add_ps, sum[DTYPE_BF16])
HALF_COMBINE(avx2_min_bf16, bf16, min_ps, min[DTYPE_BF16])
HALF_COMBINE(avx2_max_bf16, bf16, max_ps, max[DTYPE_BF16])
HALF_AVERAGE(avx2_average_bf16, bf16, DTYPE_BF16)
HALF_SCALE(avx2_scale_bf16, bf16, DTYPE_BF16)

/* There is no vector division of integers: theirs goes through the plain loops. */
AVX2 static void avx2_average_i32(void *out, const void *a, const void *b, size_t count, double divisor)
{
    kernel_set_plain.average[DTYPE_I32](out, a, b, count, divisor);
}

AVX2 static void avx2_average_i64(void *out, const void *a, const void *b, size_t count, double divisor)
{
    kernel_set_plain.average[DTYPE_I64](out, a, b, count, divisor);
}

AVX2 static void avx2_divide_i32(void *out, const void *a, size_t count, int divisor)
{
    kernel_set_plain.divide[DTYPE_I32](out, a, count, divisor);
}

AVX2 static void avx2_divide_i64(void *out, const void *a, size_t count, int divisor)
{
    kernel_set_plain.divide[DTYPE_I64](out, a, count, divisor);
}

static const struct kernel_set avx2_set = {
    .name = "AVX2",
    .sum = {avx2_sum_f32, avx2_sum_f64, avx2_sum_i32, avx2_sum_i64, avx2_sum_f16, avx2_sum_bf16},
    .min = {avx2_min_f32, avx2_min_f64, avx2_min_i32, avx2_min_i64, avx2_min_f16, avx2_min_bf16},
    .max = {avx2_max_f32, avx2_max_f64, avx2_max_i32, avx2_max_i64, avx2_max_f16, avx2_max_bf16},
    .average = {avx2_average_f32, avx2_average_f64, avx2_average_i32, avx2_average_i64, avx2_average_f16,
                avx2_average_bf16},
    .divide = {avx2_divide_f32, avx2_divide_f64, avx2_divide_i32, avx2_divide_i64},
    .axpy = {avx2_axpy_f32, avx2_axpy_f64},
    .scale = {[DTYPE_F32] = avx2_scale_f32,
              [DTYPE_F64] = avx2_scale_f64,
              [DTYPE_F16] = avx2_scale_f16,
              [DTYPE_BF16] = avx2_scale_bf16},
};

const struct kernel_set *kernels_avx2(void)
{
    return half_has_avx2() ? &avx2_set : NULL;
}

#else

const struct kernel_set *kernels_avx2(void)
{
    return NULL;
}

#endif
