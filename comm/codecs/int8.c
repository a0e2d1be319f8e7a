/* int8.c - a scale for each segment and eight bits for each element.
 *
 *   [ e: int16 ] [ q: int8 for each element ]     x = q * 2^e
 *
 * The scale is the smallest power of two with which the largest magnitude fits 127: it costs at most one bit, and what
 * was decoded is encoded to the same again (the largest |q| is 64 or more, so e does not change). q = -128 stands for
 * what is not finite, and is decoded as NaN. Source: D. Alistarh et al., NeurIPS 2017 (QSGD); rounded to nearest here,
 * error feedback makes up for it.
 */
#include <math.h>
#include <string.h>

#include "comm/codec.h"

#define HEADER sizeof(int16_t)
#define LARGEST 127
#define NOT_FINITE (-128)
#define LEAST_EXPONENT (-126)

static size_t int8_bound(const struct option_values *o, size_t count)
{
    (void)o;
    return HEADER + count;
}

static float largest_finite(const float *values, size_t count)
{
    float most = 0;
    for (size_t i = 0; i < count; i++) {
        const float size = fabsf(values[i]);
        most = size > most && size < INFINITY ? size : most;
    }
    return most;
}

/* The smallest e with most <= 127 * 2^e. */
static int exponent_for(float most)
{
    int e = 0;
    if (most == 0)
        return 0;
    (void)frexpf(most, &e); /* most in [2^(e-1), 2^e) */
    e -= 7;
    if (most > ldexpf(LARGEST, e))
        e++;
    return e > LEAST_EXPONENT ? e : LEAST_EXPONENT;
}

static size_t int8_encode(const struct option_values *o, uint64_t key, const float *values, size_t count,
                          unsigned char *bytes)
{
    (void)o, (void)key;
    const int16_t e = (int16_t)exponent_for(largest_finite(values, count));
    const float factor = ldexpf(1, -e), rounder = 0x1.8p23F; /* adding it rounds to a whole number */
    int8_t *q = (int8_t *)(bytes + HEADER);
    memcpy(bytes, &e, HEADER);
    for (size_t i = 0; i < count; i++) {
        const float scaled = values[i] * factor;
        const float whole = (scaled + rounder) - rounder;
        q[i] = fabsf(whole) <= LARGEST ? (int8_t)whole : NOT_FINITE;
    }
    return HEADER + count;
}

static enum status int8_decode(const struct option_values *o, const unsigned char *bytes, size_t length, float *values,
                               size_t count)
{
    (void)o;
    int16_t e = 0;
    if (length != HEADER + count)
        return fail(STATUS_FORMAT, "int8: %zu elements in %zu bytes", count, length);
    memcpy(&e, bytes, HEADER);
    if (e < LEAST_EXPONENT || e > 127)
        return fail(STATUS_FORMAT, "int8: a scale of 2^%d", (int)e);
    const float factor = ldexpf(1, e);
    const int8_t *q = (const int8_t *)(bytes + HEADER);
    for (size_t i = 0; i < count; i++)
        values[i] = q[i] == NOT_FINITE ? NAN : (float)q[i] * factor;
    return STATUS_OK;
}

/* Half a step for each element; 127 steps are less than twice the largest. */
static double int8_error(const struct option_values *o, size_t count, double norm, double most)
{
    (void)o, (void)norm;
    return sqrt((double)count) * fmax(most / LARGEST, 0x1p-127);
}

const struct codec codec_int8 = {
    .name = "int8",
    .summary = "eight bits an element and a scale for each segment, with error feedback",
    .source = "QSGD: Alistarh et al. 2017; Seide et al. 2014 (feedback)",
    .traits = CODEC_IDEMPOTENT,
    .bound = int8_bound,
    .encode = int8_encode,
    .decode = int8_decode,
    .error = int8_error,
};
