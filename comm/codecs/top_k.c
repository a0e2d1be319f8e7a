/* top_k.c - the largest elements of a segment.
 *
 *   [ k: uint32 ] [ k indices, ascending: uint16 up to 65536 elements, else uint32 ] [ k values: f32 ]
 *
 * k = ceil(ratio * count), less where there are fewer that are not zero. NaN is larger than everything: it travels. Of
 * equal magnitudes at the edge the first are taken. What was decoded has at most k elements that are not zero, so the
 * same travel again. Source: S. U. Stich, J.-B. Cordonnier, M. Jaggi, NeurIPS 2018; Y. Lin et al., ICLR 2018.
 */
#include <math.h>
#include <string.h>

#include "comm/codec.h"

#define HEADER sizeof(uint32_t)

static size_t index_bytes(size_t count)
{
    return count <= 65536 ? sizeof(uint16_t) : sizeof(uint32_t);
}

static size_t top_k_bound(const struct option_values *o, size_t count)
{
    return HEADER + codec_ratio_count(o, count) * (index_bytes(count) + sizeof(float));
}

static uint32_t magnitude(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffff;
}

#define DIGIT_BITS 11
#define DIGITS (1U << DIGIT_BITS)

/* The magnitude of the k-th largest, digit by digit from the top: each pass counts what agrees in the digits known.
 * *equal: how many of that very magnitude are among the k. */
static uint32_t edge_of(const float *values, size_t count, size_t k, size_t *equal)
{
    uint32_t edge = 0, known = 0;
    for (int shift = 31 - DIGIT_BITS; known != 0x7fffffff; shift = shift > DIGIT_BITS ? shift - DIGIT_BITS : 0) {
        uint32_t larger[DIGITS] = {0};
        const uint32_t places = (DIGITS - 1) << shift & ~known;
        for (size_t i = 0; i < count; i++) {
            const uint32_t m = magnitude(values[i]);
            if ((m & known) == edge)
                larger[(m & places) >> shift]++;
        }
        uint32_t digit = DIGITS - 1;
        while (larger[digit] < k)
            k -= larger[digit--];
        edge |= digit << shift;
        known |= places;
    }
    *equal = k;
    return edge;
}

static void put_index(unsigned char *bytes, size_t width, size_t at, size_t index)
{
    const uint16_t narrow = (uint16_t)index;
    const uint32_t wide = (uint32_t)index;
    memcpy(bytes + at * width, width == sizeof narrow ? (const void *)&narrow : &wide, width);
}

static size_t get_index(const unsigned char *bytes, size_t width, size_t at)
{
    uint16_t narrow = 0;
    uint32_t wide = 0;
    memcpy(width == sizeof narrow ? (void *)&narrow : &wide, bytes + at * width, width);
    return width == sizeof narrow ? narrow : wide;
}

static size_t count_nonzero(const float *values, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += magnitude(values[i]) != 0;
    return n;
}

static size_t top_k_encode(const struct option_values *o, uint64_t key, const float *values, size_t count,
                           unsigned char *bytes)
{
    (void)key;
    const size_t nonzero = count_nonzero(values, count), most = codec_ratio_count(o, count), width = index_bytes(count);
    const uint32_t k = (uint32_t)(nonzero < most ? nonzero : most);
    unsigned char *indices = bytes + HEADER, *taken = indices + k * width;
    size_t equal = k;
    uint32_t edge = 0; /* where all that are not zero travel: none is equal to the edge */
    if (nonzero > most)
        edge = edge_of(values, count, k, &equal);
    memcpy(bytes, &k, HEADER);
    for (size_t i = 0, n = 0; n < k; i++) {
        const uint32_t m = magnitude(values[i]);
        if (m < edge || m == 0 || (m == edge && equal == 0))
            continue;
        equal -= m == edge;
        put_index(indices, width, n, i);
        memcpy(taken + n++ * sizeof(float), &values[i], sizeof(float));
    }
    return HEADER + k * (width + sizeof(float));
}

static enum status top_k_decode(const struct option_values *o, const unsigned char *bytes, size_t length, float *values,
                                size_t count)
{
    const size_t width = index_bytes(count);
    uint32_t k = 0;
    if (length >= HEADER)
        memcpy(&k, bytes, HEADER);
    if (length < HEADER || k > codec_ratio_count(o, count) || length != HEADER + k * (width + sizeof(float)))
        return fail(STATUS_FORMAT, "top-k: %u of %zu elements in %zu bytes", (unsigned)k, count, length);
    const unsigned char *indices = bytes + HEADER, *taken = indices + k * width;
    memset(values, 0, count * sizeof(float));
    for (size_t n = 0, from = 0; n < k; n++) {
        const size_t index = get_index(indices, width, n);
        if (index < from || index >= count)
            return fail(STATUS_FORMAT, "top-k: index %zu of %zu elements, not ascending", index, count);
        memcpy(&values[index], taken + n * sizeof(float), sizeof(float));
        from = index + 1;
    }
    return STATUS_OK;
}

static double top_k_error(const struct option_values *o, size_t count, double norm, double most)
{
    (void)count, (void)most;
    return sqrt(1 - option_real(o, "ratio")) * norm;
}

const struct codec codec_top_k = {
    .name = "top-k",
    .summary = "the largest elements of each segment, with error feedback",
    .source = "Stich, Cordonnier, Jaggi 2018; Lin et al. 2018 (deep gradient compression)",
    .traits = CODEC_IDEMPOTENT | CODEC_COARSE,
    .options = codec_ratio_options,
    .bound = top_k_bound,
    .encode = top_k_encode,
    .decode = top_k_decode,
    .error = top_k_error,
};
