/* resample.c - weights, and the two passes. */
#include "nn/data/resample.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LANES = 4, COLOURS = 3, PRECISION = 22, HALF = 1 << (PRECISION - 1) }; /* bits of a weight: 8 are the pixel's */

/* Output o = sum of weight[o * most + k] * in[first[o] + k], k < count[o]. */
struct taps {
    int size, most;
    int *first, *count;
    int32_t *weight;
    size_t places, weights; /* capacities */
};

struct resample {
    struct taps across, down;
    uint8_t *ring; /* down.most rows of across.size pixels: what the first pass made */
    size_t ring_capacity;
    int first_column, end_column, first_row, end_row;
    int next_in, next_out; /* rows */
};

/* ---- weights ---- */

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

/* Positions are relative to axis->first, so that they don't depend on where in the image the piece lies. */
static void weigh(const struct resample_axis *axis, struct taps *taps, int o)
{
    const double scale = axis->extent / axis->out, reach = scale > 1 ? scale : 1;
    const double centre = (axis->begin - axis->first) + (axis->from + o + 0.5) * scale;
    const int pixels = axis->end - axis->first;
    int first = (int)(centre - reach + 0.5), end = (int)(centre + reach + 0.5);
    first = first < 0 ? 0 : first > pixels - 1 ? pixels - 1 : first;
    end = end > pixels ? pixels : end <= first ? first + 1 : end;
    double sum = 0;
    for (int k = first; k < end; k++)
        sum += triangle((k - centre + 0.5) * (1.0 / reach));
    taps->first[o] = axis->first + first;
    taps->count[o] = end - first;
    int32_t *weight = taps->weight + (size_t)o * (size_t)taps->most;
    for (int k = first; k < end; k++) {
        double share = sum > 0 ? triangle((k - centre + 0.5) * (1.0 / reach)) / sum : 1.0 / (end - first);
        weight[k - first] = (int32_t)(share * (1 << PRECISION) + 0.5);
    }
}

static enum status aim(const struct resample_axis *axis, struct taps *taps)
{
    const double scale = axis->extent / axis->out, reach = scale > 1 ? scale : 1;
    void *first = taps->first, *count = taps->count, *weight = taps->weight;
    size_t places = taps->places, size = (size_t)axis->size;
    taps->size = axis->size;
    taps->most = (int)ceil(reach) * 2 + 1;
    enum status status = memory_grow(&first, &places, size, sizeof(int));
    taps->first = first;
    TRY(status);
    status = memory_grow(&count, &taps->places, size, sizeof(int));
    taps->count = count;
    TRY(status);
    status = memory_grow(&weight, &taps->weights, size * (size_t)taps->most, sizeof(int32_t));
    taps->weight = weight;
    TRY(status);
    for (int o = 0; o < axis->size; o++)
        weigh(axis, taps, o);
    return STATUS_OK;
}

/* Both first and end grow with o. */
static void bounds(const struct taps *taps, int *first, int *end)
{
    *first = taps->first[0];
    *end = taps->first[taps->size - 1] + taps->count[taps->size - 1];
}

/* ---- passes ---- */

static inline uint8_t rounded(int32_t sum)
{
    int32_t value = sum >> PRECISION;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void along_row_plain(const struct taps *taps, const uint8_t *rgbx, uint8_t *to)
{
    for (int o = 0; o < taps->size; o++, to += LANES) {
        const int32_t *weight = taps->weight + (size_t)o * (size_t)taps->most;
        const uint8_t *from = rgbx + (size_t)taps->first[o] * LANES;
        int32_t sum[LANES] = {HALF, HALF, HALF, HALF};
        for (int k = 0; k < taps->count[o]; k++, from += LANES)
            for (int lane = 0; lane < LANES; lane++)
                sum[lane] += weight[k] * from[lane];
        for (int lane = 0; lane < LANES; lane++)
            to[lane] = rounded(sum[lane]);
    }
}

/* Row k of the taps of output row o, in the ring. */
static const uint8_t *tapped_row(const struct resample *resample, int o, int k)
{
    const int row = (resample->down.first[o] + k) % resample->down.most;
    return resample->ring + (size_t)row * (size_t)resample->across.size * LANES;
}

/* Pixels from `pixel` on. */
static void down_columns_plain(const struct resample *resample, int o, int pixel, uint8_t *rgb)
{
    const struct taps *taps = &resample->down;
    const int32_t *weight = taps->weight + (size_t)o * (size_t)taps->most;
    for (; pixel < resample->across.size; pixel++)
        for (int c = 0; c < COLOURS; c++) {
            int32_t sum = HALF;
            for (int k = 0; k < taps->count[o]; k++)
                sum += weight[k] * tapped_row(resample, o, k)[pixel * LANES + c];
            rgb[pixel * COLOURS + c] = rounded(sum);
        }
}

#if defined(__x86_64__)
/* A pixel is four lanes of 32 bits. */
__attribute__((target("avx2"))) static void along_row_avx2(const struct taps *taps, const uint8_t *rgbx, uint8_t *to)
{
    for (int o = 0; o < taps->size; o++, to += LANES) {
        const int32_t *weight = taps->weight + (size_t)o * (size_t)taps->most;
        const uint8_t *from = rgbx + (size_t)taps->first[o] * LANES;
        __m128i sum = _mm_set1_epi32(HALF);
        for (int k = 0; k < taps->count[o]; k++) {
            int32_t word;
            memcpy(&word, from + (size_t)k * LANES, sizeof word);
            __m128i pixel = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(word));
            sum = _mm_add_epi32(sum, _mm_mullo_epi32(pixel, _mm_set1_epi32(weight[k])));
        }
        __m128i narrow = _mm_packs_epi32(_mm_srai_epi32(sum, PRECISION), _mm_setzero_si128());
        int32_t word = _mm_cvtsi128_si32(_mm_packus_epi16(narrow, narrow)); /* saturates: 0 .. 255 */
        memcpy(to, &word, sizeof word);
    }
}

/* Four pixels at a time. */
__attribute__((target("avx2"))) static void down_columns_avx2(const struct resample *resample, int o, int pixel,
                                                              uint8_t *rgb)
{
    const __m128i colours = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const struct taps *taps = &resample->down;
    const int32_t *weight = taps->weight + (size_t)o * (size_t)taps->most;
    for (; pixel + 4 <= resample->across.size; pixel += 4) {
        __m256i low = _mm256_set1_epi32(HALF), high = low; /* two pixels each */
        for (int k = 0; k < taps->count[o]; k++) {
            const uint8_t *row = tapped_row(resample, o, k) + (size_t)pixel * LANES;
            const __m256i share = _mm256_set1_epi32(weight[k]);
            const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)row);
            low = _mm256_add_epi32(low, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), share));
            high = _mm256_add_epi32(high,
                                    _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)), share));
        }
        low = _mm256_srai_epi32(low, PRECISION);
        high = _mm256_srai_epi32(high, PRECISION);
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
        const __m128i four = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        uint8_t packed[16];
        _mm_storeu_si128((__m128i *)(void *)packed, _mm_shuffle_epi8(four, colours));
        memcpy(rgb + (size_t)pixel * COLOURS, packed, (size_t)4 * COLOURS);
    }
    down_columns_plain(resample, o, pixel, rgb);
}
#endif

static bool plain_only;

void resample_force_plain(int plain)
{
    plain_only = plain != 0;
}

static bool has_avx2(void)
{
#if defined(__x86_64__)
    return !plain_only && __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

#if !defined(__x86_64__)
#define along_row_avx2 along_row_plain
#define down_columns_avx2 down_columns_plain
#endif

/* ---- an image ---- */

enum status resample_create(struct resample **resample)
{
    void *memory = NULL;
    enum status status = memory_zeroed(&memory, 1, sizeof(struct resample));
    *resample = memory;
    return status;
}

static void release_taps(struct taps *taps)
{
    free(taps->first);
    free(taps->count);
    free(taps->weight);
}

void resample_destroy(struct resample *resample)
{
    if (resample == NULL)
        return;
    release_taps(&resample->across);
    release_taps(&resample->down);
    free(resample->ring);
    free(resample);
}

enum status resample_begin(struct resample *resample, const struct resample_axis *across,
                           const struct resample_axis *down)
{
    TRY(aim(across, &resample->across));
    TRY(aim(down, &resample->down));
    const size_t row = (size_t)across->size * LANES;
    void *ring = resample->ring;
    enum status status = memory_grow(&ring, &resample->ring_capacity, row * (size_t)resample->down.most, 1);
    resample->ring = ring;
    TRY(status);
    bounds(&resample->across, &resample->first_column, &resample->end_column);
    bounds(&resample->down, &resample->first_row, &resample->end_row);
    for (int o = 0; o < across->size; o++)
        resample->across.first[o] -= resample->first_column; /* rows begin there */
    resample->next_in = resample->first_row;
    resample->next_out = 0;
    return STATUS_OK;
}

void resample_needs(const struct resample *resample, int *first_row, int *end_row, int *first_column, int *end_column)
{
    *first_row = resample->first_row;
    *end_row = resample->end_row;
    *first_column = resample->first_column;
    *end_column = resample->end_column;
}

void resample_row(struct resample *resample, const uint8_t *rgbx, uint8_t *rgb)
{
    const struct taps *down = &resample->down;
    const size_t row = (size_t)resample->across.size * LANES;
    const bool fast = has_avx2();
    const int in = resample->next_in++;
    (fast ? along_row_avx2 : along_row_plain)(&resample->across, rgbx,
                                              resample->ring + (size_t)(in % down->most) * row);
    while (resample->next_out < down->size &&
           down->first[resample->next_out] + down->count[resample->next_out] <= in + 1) {
        uint8_t *to = rgb + (size_t)resample->next_out * (size_t)resample->across.size * COLOURS;
        (fast ? down_columns_avx2 : down_columns_plain)(resample, resample->next_out, 0, to);
        resample->next_out++;
    }
}
