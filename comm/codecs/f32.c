/* f32.c - elements as they are. */
#include <string.h>

#include "comm/codec.h"

static size_t f32_bound(const struct option_values *o, size_t count)
{
    (void)o;
    return count * sizeof(float);
}

static size_t f32_encode(const struct option_values *o, uint64_t key, const float *values, size_t count,
                         unsigned char *bytes)
{
    (void)o, (void)key;
    memcpy(bytes, values, count * sizeof(float));
    return count * sizeof(float);
}

static enum status f32_decode(const struct option_values *o, const unsigned char *bytes, size_t length, float *values,
                              size_t count)
{
    (void)o;
    if (length != count * sizeof(float))
        return fail(STATUS_FORMAT, "f32: %zu elements in %zu bytes", count, length);
    memcpy(values, bytes, length);
    return STATUS_OK;
}

static double f32_error(const struct option_values *o, size_t count, double norm, double most)
{
    (void)o, (void)count, (void)norm, (void)most;
    return 0;
}

const struct codec codec_f32 = {
    .name = "f32",
    .summary = "as it is: exact",
    .source = "IEEE 754",
    .traits = CODEC_LOSSLESS | CODEC_CLOSED_UNDER_SUM | CODEC_IDEMPOTENT,
    .element_bytes = sizeof(float),
    .bound = f32_bound,
    .encode = f32_encode,
    .decode = f32_decode,
    .error = f32_error,
};
