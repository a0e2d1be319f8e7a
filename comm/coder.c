/* coder.c - a wire format at work in one collective (coder.h). */
#include "comm/coder.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algos/rounding.h"
#include "base/memory.h"
#include "base/rng.h"

struct coder {
    struct wire_format format;
    char *name;
    struct shape *shape;
    size_t segment;
    bool scales;
    uint32_t run;            /* number of the latest one */
    unsigned char *bytes;    /* one encoded segment                                */
    float *values, *decoded; /* one segment each                                   */
    float *residual;         /* of each element of the vector; NULL: none is kept  */
    struct codec_statistics statistics;
};

/* As many elements as a wire segment has room for, encoded or not. */
static size_t segment_elements(const struct wire_format *format, size_t segment)
{
    size_t count = segment / sizeof(float) > 0 ? segment / sizeof(float) : 1;
    while (count > 1 && wire_format_bound(format, count) > segment)
        count -= count / 16 + 1;
    return count;
}

static enum status reals(size_t count, float **out)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, count, sizeof(float)));
    *out = memory;
    return STATUS_OK;
}

static enum status copy_format(const struct wire_format *format, struct coder *coder)
{
    struct text name = {0};
    coder->format.codec = format->codec;
    if (format->options.table != NULL)
        TRY(option_values_copy(&coder->format.options, &format->options));
    wire_format_canonical(format, &name);
    enum status status = text_check(&name);
    if (status >= 0)
        status = memory_string(&coder->name, text_string(&name));
    text_release(&name);
    return status;
}

static enum status fill(const struct collective_request *request, size_t segment, struct coder *coder)
{
    void *memory = NULL;
    const bool by_element = wire_format_by_element(request->wire);
    TRY(copy_format(request->wire, coder));
    TRY(rounding_shape(request->shape, team_rank(request->team), by_element ? ROUNDING_ELEMENTS : ROUNDING_SEGMENTS,
                       &coder->shape));
    coder->scales = by_element && request->op == REDUCE_AVG;
    coder->segment = segment_elements(request->wire, segment);
    if (wire_format_bound(request->wire, coder->segment) > segment)
        return fail(STATUS_REFUSED, "%s: an element does not fit a segment of %zu bytes: take a larger --segment",
                    coder->name, segment);
    TRY(memory_zeroed(&memory, segment, 1));
    coder->bytes = memory;
    TRY(reals(coder->segment, &coder->values));
    TRY(reals(coder->segment, &coder->decoded));
    return by_element ? STATUS_OK : reals(request->count, &coder->residual);
}

enum status coder_create(const struct collective_request *request, size_t segment, struct coder **out)
{
    void *memory = NULL;
    *out = NULL;
    if (!wire_format_changes(request->wire, request->dtype))
        return STATUS_OK;
    TRY(wire_format_check(request->wire, request->dtype, request->op, request->shape));
    TRY(memory_zeroed(&memory, 1, sizeof(struct coder)));
    struct coder *coder = memory;
    const enum status status = fill(request, segment, coder);
    if (status < 0)
        coder_destroy(coder);
    else
        *out = coder;
    return status;
}

void coder_destroy(struct coder *coder)
{
    if (coder == NULL)
        return;
    wire_format_release(&coder->format);
    shape_destroy(coder->shape);
    free(coder->name);
    free(coder->bytes);
    free(coder->values);
    free(coder->decoded);
    free(coder->residual);
    free(coder);
}

const struct shape *coder_shape(const struct coder *coder)
{
    return coder->shape;
}

const char *coder_name(const struct coder *coder)
{
    return coder->name;
}

size_t coder_segment(const struct coder *coder)
{
    return coder->segment;
}

size_t coder_bound(const struct coder *coder, size_t count)
{
    return wire_format_bound(&coder->format, count);
}

enum dtype coder_half(const struct coder *coder)
{
    enum dtype half = DTYPE_F32;
    if (wire_format_by_element(&coder->format))
        (void)!dtype_parse(coder->format.codec->name, &half);
    return half;
}

bool coder_scales(const struct coder *coder)
{
    return coder->scales;
}

void *coder_room(struct coder *coder)
{
    return coder->bytes;
}

void coder_start(struct coder *coder)
{
    coder->run++;
    coder->statistics = (struct codec_statistics){0};
}

float *coder_residual(struct coder *coder, uint32_t **run)
{
    *run = &coder->run;
    return coder->residual;
}

const struct codec_statistics *coder_statistics(const struct coder *coder)
{
    return &coder->statistics;
}

/* ---- segments ---- */

/* The same for everyone who encodes this segment in this run. */
static size_t encode(const struct coder *coder, const float *values, size_t offset, size_t count, void *bytes)
{
    assert(count <= coder->segment && "the progression cuts by coder_segment()");
    return wire_format_encode(&coder->format, rng_key(coder->run, "wire", offset, count), values, count, bytes);
}

size_t coder_encode(struct coder *coder, const float *values, size_t offset, size_t count, void *bytes)
{
    const size_t length = encode(coder, values, offset, count, bytes);
    if (coder->residual == NULL && wire_format_decode(&coder->format, bytes, length, coder->decoded, count) >= 0)
        codec_examine(values, coder->decoded, count, &coder->statistics);
    return length; /* with a residual: what coder_round() has looked at */
}

enum status coder_decode(const struct coder *coder, const void *bytes, size_t length, float *values, size_t count)
{
    return wire_format_decode(&coder->format, bytes, length, values, count);
}

static const float *add_residual(struct coder *coder, const float *from, size_t offset, size_t count)
{
    const float *residual = coder->residual + offset;
    for (size_t i = 0; i < count; i++)
        coder->values[i] = from[i] + residual[i];
    return coder->values;
}

/* What is not finite can't be made up for. */
static void keep_residual(struct coder *coder, const float *values, const float *decoded, size_t offset, size_t count)
{
    float *residual = coder->residual + offset;
    for (size_t i = 0; i < count; i++) {
        const float left = values[i] - decoded[i];
        residual[i] = isfinite(left) ? left : 0;
    }
}

enum status coder_round(struct coder *coder, float *to, const float *from, size_t offset, size_t count)
{
    const float *values = coder->residual != NULL ? add_residual(coder, from, offset, count) : from;
    const size_t length = encode(coder, values, offset, count, coder->bytes);
    TRY(wire_format_decode(&coder->format, coder->bytes, length, coder->decoded, count));
    codec_examine(values, coder->decoded, count, &coder->statistics);
    if (coder->residual != NULL)
        keep_residual(coder, values, coder->decoded, offset, count);
    memcpy(to, coder->decoded, count * sizeof(float));
    return STATUS_OK;
}
