/* sign.c - one bit for each element and the mean magnitude of the segment.
 *
 *   [ m: f32, mean |x| ] [ one bit for each element: 1 is negative ]     x = +m or -m
 *
 * |x - decoded| < |x| for every x but 0. What was decoded has magnitudes m only, whose mean is m again (the sum is exact
 * in f64 for segments of up to 2^29 elements). Infinite and NaN elements show in m. Source: F. Seide et al., Interspeech
 * 2014; S. P. Karimireddy et al., ICML 2019 (EF-SIGNSGD).
 */
#include <math.h>
#include <string.h>

#include "comm/codec.h"

#define HEADER sizeof(float)

static size_t sign_bound(const struct option_values *o, size_t count)
{
    (void)o;
    return HEADER + (count + 7) / 8;
}

static size_t sign_encode(const struct option_values *o, uint64_t key, const float *values, size_t count,
                          unsigned char *bytes)
{
    (void)key;
    unsigned char *bits = bytes + HEADER;
    double sum[4] = {0}; /* four sums side by side: one waits for the one before */
    for (size_t i = 0; i < count; i++)
        sum[i % 4] += (double)fabsf(values[i]);
    const float mean = count > 0 ? (float)((sum[0] + sum[1] + (sum[2] + sum[3])) / (double)count) : 0;
    memcpy(bytes, &mean, HEADER);
    for (size_t i = 0; i < count; i += 8) {
        unsigned byte = 0;
        for (size_t k = 0; k < 8 && i + k < count; k++)
            byte |= (unsigned)(signbit(values[i + k]) != 0) << k;
        bits[i / 8] = (unsigned char)byte;
    }
    return sign_bound(o, count);
}

static enum status sign_decode(const struct option_values *o, const unsigned char *bytes, size_t length, float *values,
                               size_t count)
{
    float mean = 0;
    if (length != sign_bound(o, count))
        return fail(STATUS_FORMAT, "sign: %zu elements in %zu bytes", count, length);
    memcpy(&mean, bytes, HEADER);
    const float either[2] = {mean, -mean};
    for (size_t i = 0; i < count; i++)
        values[i] = either[bytes[HEADER + i / 8] >> (i % 8) & 1];
    return STATUS_OK;
}

static double sign_error(const struct option_values *o, size_t count, double norm, double most)
{
    (void)o, (void)count, (void)most;
    return norm;
}

const struct codec codec_sign = {
    .name = "sign",
    .summary = "one bit an element and the mean magnitude of each segment, with error feedback",
    .source = "Seide et al. 2014; Karimireddy et al. 2019 (EF-SIGNSGD)",
    .traits = CODEC_IDEMPOTENT | CODEC_COARSE,
    .bound = sign_bound,
    .encode = sign_encode,
    .decode = sign_decode,
    .error = sign_error,
};
