/* f16.c - IEEE binary16: half the bytes, 11 bits of precision, nothing beyond 65504. */
#include <math.h>

#include "base/half.h"
#include "comm/codec.h"

static size_t f16_bound(const struct option_values *o, size_t count)
{
    (void)o;
    return count * sizeof(uint16_t);
}

static size_t f16_encode_segment(const struct option_values *o, uint64_t key, const float *values, size_t count,
                                 unsigned char *bytes)
{
    (void)o, (void)key;
    f16_encode((uint16_t *)(void *)bytes, values, count);
    return count * sizeof(uint16_t);
}

static enum status f16_decode_segment(const struct option_values *o, const unsigned char *bytes, size_t length,
                                      float *values, size_t count)
{
    (void)o;
    if (length != count * sizeof(uint16_t))
        return fail(STATUS_FORMAT, "f16: %zu elements in %zu bytes", count, length);
    f16_decode(values, (const uint16_t *)(const void *)bytes, count);
    return STATUS_OK;
}

/* Half of the last place: relative for normal numbers, absolute for denormal ones. */
static double f16_error(const struct option_values *o, size_t count, double norm, double most)
{
    (void)o, (void)most;
    return 0x1p-11 * norm + 0x1p-25 * sqrt((double)count);
}

const struct codec codec_f16 = {
    .name = "f16",
    .summary = "IEEE binary16: half the bytes, 11 bits of precision, nothing beyond 65504",
    .source = "IEEE 754; Micikevicius et al. 2018 (mixed precision)",
    .traits = CODEC_CLOSED_UNDER_SUM | CODEC_IDEMPOTENT,
    .element_bytes = sizeof(uint16_t),
    .bound = f16_bound,
    .encode = f16_encode_segment,
    .decode = f16_decode_segment,
    .error = f16_error,
};
