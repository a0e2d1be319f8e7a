/* codec_examine.c - what encoding has done to values: plain, and with AVX2, eight values at a time. Counts are the same;
 * the relative error may differ in its last digits, since sums are added up in another order. */
#include <math.h>
#include <string.h>

#include "base/half_avx2.h"
#include "comm/codec.h"

#define INFINITE UINT32_C(0x7f800000)

/* Of some values; counters have 32 bits. */
struct findings {
    uint32_t infinite, nan, flushed;
    double error, norm; /* squares */
};

static uint32_t magnitude(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffff;
}

static void examine_plain(const float *values, const float *decoded, size_t count, struct findings *found)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t before = magnitude(values[i]), after = magnitude(decoded[i]);
        found->infinite += after == INFINITE && before < INFINITE;
        found->nan += after > INFINITE;
        found->flushed += after == 0 && before != 0;
        if (before >= INFINITE || after >= INFINITE)
            continue;
        const double error = (double)values[i] - (double)decoded[i];
        found->error += error * error;
        found->norm += (double)values[i] * (double)values[i];
    }
}

#if defined(__x86_64__)

HALF_AVX2 static inline __m256d add_squares(__m256d sum, __m256 values)
{
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(values));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
    return _mm256_add_pd(sum, _mm256_add_pd(_mm256_mul_pd(low, low), _mm256_mul_pd(high, high)));
}

HALF_AVX2 static double sum_of(__m256d values)
{
    double lane[4];
    _mm256_storeu_pd(lane, values);
    return lane[0] + lane[1] + (lane[2] + lane[3]);
}

/* Every hit has counted down by one. */
HALF_AVX2 static uint32_t hits_of(__m256i counters)
{
    int32_t lane[8];
    uint32_t hits = 0;
    _mm256_storeu_si256((__m256i *)lane, counters);
    for (int i = 0; i < 8; i++)
        hits += (uint32_t)-lane[i];
    return hits;
}

/* Returns how many values it has looked at. */
HALF_AVX2 static size_t examine_avx2(const float *values, const float *decoded, size_t count, struct findings *found)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff), infinity = _mm256_set1_epi32((int)INFINITE);
    const __m256i zero = _mm256_setzero_si256();
    __m256i infinite = zero, nan = zero, flushed = zero;
    __m256d error = _mm256_setzero_pd(), norm = _mm256_setzero_pd();
    size_t i = 0;
    for (; count - i >= 8; i += 8) {
        const __m256 value = _mm256_loadu_ps(values + i), back = _mm256_loadu_ps(decoded + i);
        const __m256i before = _mm256_and_si256(_mm256_castps_si256(value), mask);
        const __m256i after = _mm256_and_si256(_mm256_castps_si256(back), mask);
        const __m256i was_finite = _mm256_cmpgt_epi32(infinity, before);
        const __m256i is_zero = _mm256_cmpeq_epi32(after, zero);
        infinite = _mm256_add_epi32(infinite, _mm256_and_si256(was_finite, _mm256_cmpeq_epi32(after, infinity)));
        nan = _mm256_add_epi32(nan, _mm256_cmpgt_epi32(after, infinity));
        flushed = _mm256_add_epi32(flushed, _mm256_andnot_si256(_mm256_cmpeq_epi32(before, zero), is_zero));
        const __m256 finite = _mm256_castsi256_ps(_mm256_and_si256(was_finite, _mm256_cmpgt_epi32(infinity, after)));
        error = add_squares(error, _mm256_and_ps(_mm256_sub_ps(value, back), finite));
        norm = add_squares(norm, _mm256_and_ps(value, finite));
    }
    found->infinite += hits_of(infinite);
    found->nan += hits_of(nan);
    found->flushed += hits_of(flushed);
    found->error += sum_of(error);
    found->norm += sum_of(norm);
    return i;
}

#else

static bool half_has_avx2(void)
{
    return false;
}

static size_t examine_avx2(const float *values, const float *decoded, size_t count, struct findings *found)
{
    (void)values, (void)decoded, (void)count, (void)found;
    return 0;
}

#endif

#define EXAMINED_AT_ONCE ((size_t)1 << 30)

void codec_examine(const float *values, const float *decoded, size_t count, struct codec_statistics *statistics)
{
    double error = 0, norm = 0;
    for (size_t begin = 0; begin < count; begin += EXAMINED_AT_ONCE) {
        struct findings found = {0};
        const size_t left = count - begin, part = left < EXAMINED_AT_ONCE ? left : EXAMINED_AT_ONCE;
        const size_t done = half_has_avx2() ? examine_avx2(values + begin, decoded + begin, part, &found) : 0;
        examine_plain(values + begin + done, decoded + begin + done, part - done, &found);
        statistics->infinite += found.infinite;
        statistics->nan += found.nan;
        statistics->flushed += found.flushed;
        error += found.error;
        norm += found.norm;
    }
    if (norm > 0)
        statistics->worst = fmax(statistics->worst, sqrt(error / norm));
}

void codec_statistics_add(struct codec_statistics *sum, const struct codec_statistics *more)
{
    sum->infinite += more->infinite;
    sum->nan += more->nan;
    sum->flushed += more->flushed;
    sum->worst = fmax(sum->worst, more->worst);
}
