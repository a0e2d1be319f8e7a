/* bf16.c - bfloat16: half the bytes, f32's range with 8 bits of precision. */
#include <math.h>

#include "base/half.h"
#include "comm/codec.h"

static size_t bf16_bound(const struct option_values *o, size_t count)
{
    (void)o;
    return count * sizeof(uint16_t);
}

static size_t bf16_encode_segment(const struct option_values *o, uint64_t key, const float *values, size_t count,
                                  unsigned char *bytes)
{
    (void)o, (void)key;
    bf16_encode((uint16_t *)(void *)bytes, values, count);
    return count * sizeof(uint16_t);
}

static enum status bf16_decode_segment(const struct option_values *o, const unsigned char *bytes, size_t length,
                                       float *values, size_t count)
{
    (void)o;
    if (length != count * sizeof(uint16_t))
        return fail(STATUS_FORMAT, "bf16: %zu elements in %zu bytes", count, length);
    bf16_decode(values, (const uint16_t *)(const void *)bytes, count);
    return STATUS_OK;
}

/* Half of the last place: relative for normal numbers, absolute for denormal ones. */
static double bf16_error(const struct option_values *o, size_t count, double norm, double most)
{
    (void)o, (void)most;
    return 0x1p-8 * norm + 0x1p-134 * sqrt((double)count);
}

const struct codec codec_bf16 = {
    .name = "bf16",
    .summary = "bfloat16: half the bytes, f32's range with 8 bits of precision",
    .source = "Google TPU; Kalamkar et al. 2019",
    .traits = CODEC_CLOSED_UNDER_SUM | CODEC_IDEMPOTENT,
    .element_bytes = sizeof(uint16_t),
    .bound = bf16_bound,
    .encode = bf16_encode_segment,
    .decode = bf16_decode_segment,
    .error = bf16_error,
};
