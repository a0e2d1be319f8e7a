/* codec.c - the catalogue of wire formats, their spelling, and what encoding has done to values. */
#include "comm/codec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "base/memory.h"

#define CODEC(stem) extern const struct codec codec_##stem;
#include "comm/codec.def"
#undef CODEC

static const struct codec *const catalogue[] = {
#define CODEC(stem) &codec_##stem,
#include "comm/codec.def"
#undef CODEC
};

enum {
#define CODEC(stem) NUMBER_OF_##stem,
#include "comm/codec.def"
#undef CODEC
    CODECS
};

const struct codec *const *codec_catalogue(size_t *count)
{
    *count = CODECS;
    return catalogue;
}

const struct codec *codec_find(const char *name)
{
    for (size_t i = 0; i < CODECS; i++)
        if (strcmp(catalogue[i]->name, name) == 0)
            return catalogue[i];
    return NULL;
}

/* ---- of a part of the elements ---- */

const struct option codec_ratio_options[] = {
    {.key = "ratio",
     .type = OPTION_REAL,
     .default_text = "0.01",
     .min = 1e-6,
     .max = 1,
     .help = "of the elements that travel"},
    {.key = NULL},
};

size_t codec_ratio_count(const struct option_values *o, size_t count)
{
    const double wanted = ceil(option_real(o, "ratio") * (double)count);
    return wanted < (double)count ? (size_t)wanted : count;
}

/* ---- spelling ---- */

static enum status unknown(const char *name)
{
    const char *names[CODECS], *nearest = NULL;
    struct text list = {0};
    for (size_t i = 0; i < CODECS; i++) {
        names[i] = catalogue[i]->name;
        text_addf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    nearest = nearest_spelling(name, names, CODECS);
    if (nearest != NULL)
        (void)fail(STATUS_USAGE, "unknown wire format %s: did you mean %s? (%s)", name, nearest, text_string(&list));
    else
        (void)fail(STATUS_USAGE, "unknown wire format %s: give one of %s", name, text_string(&list));
    text_release(&list);
    return STATUS_USAGE;
}

/* "key=value,key=value" into the options; the text is cut up. */
static enum status set_options(const struct codec *codec, char *text, struct option_values *options)
{
    while (text != NULL) {
        char *comma = strchr(text, ','), *equals = strchr(text, '=');
        if (comma != NULL)
            *comma = '\0';
        if (equals == NULL || (comma != NULL && equals > comma))
            return fail(STATUS_USAGE, "%s:%s: options are key=value", codec->name, text);
        *equals = '\0';
        const enum status status = option_set(options, text, equals + 1);
        if (status < 0)
            return fail_context(status, "%s", codec->name);
        text = comma != NULL ? comma + 1 : NULL;
    }
    return STATUS_OK;
}

static enum status parse(char *text, struct wire_format *format)
{
    char *colon = strchr(text, ':');
    if (colon != NULL)
        *colon = '\0';
    format->codec = codec_find(text);
    if (format->codec == NULL)
        return unknown(text);
    if (format->codec->options != NULL)
        TRY(option_values_init(&format->options, format->codec->options));
    if (colon == NULL)
        return STATUS_OK;
    if (format->codec->options == NULL)
        return fail(STATUS_USAGE, "%s takes no options", format->codec->name);
    return set_options(format->codec, colon + 1, &format->options);
}

enum status wire_format_parse(const char *text, struct wire_format *format)
{
    char *copy = NULL;
    *format = (struct wire_format){.codec = NULL};
    TRY(memory_string(&copy, text));
    const enum status status = parse(copy, format);
    free(copy);
    if (status < 0)
        wire_format_release(format);
    return status;
}

void wire_format_release(struct wire_format *format)
{
    if (format->codec != NULL && format->options.table != NULL)
        option_values_release(&format->options);
    *format = (struct wire_format){.codec = NULL};
}

void wire_format_canonical(const struct wire_format *format, struct text *text)
{
    struct text options = {0};
    text_add(text, format->codec != NULL ? format->codec->name : "none");
    if (format->codec == NULL || format->codec->options == NULL)
        return;
    option_describe(&format->options, &options);
    if (options.length > 0)
        text_add(text, ":");
    for (size_t i = 0; i < options.length; i++)
        text_add_bytes(text, options.data[i] == ' ' ? "," : options.data + i, 1);
    text_release(&options);
}

/* ---- use ---- */

bool wire_format_changes(const struct wire_format *format, enum dtype dtype)
{
    return format != NULL && format->codec != NULL && strcmp(format->codec->name, dtype_name(dtype)) != 0;
}

/* Partial sums travel: names the schedules in which they don't. */
static enum status refuse_sums(const struct wire_format *format, const struct shape *shape)
{
    size_t count = 0;
    struct text names = {0};
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++)
        if ((algorithms[i]->traits & TRAIT_WHOLE_INPUTS) && algorithm_in_all(algorithms[i]))
            text_addf(&names, "%s%s", names.length > 0 ? ", " : "", algorithms[i]->name);
    (void)fail(STATUS_REFUSED,
               "%s sends partial sums, of which the wire format %s would lose more at each hop: take one of %s, or "
               "--wire=f16 or bf16",
               shape->algorithm->name, format->codec->name, text_string(&names));
    text_release(&names);
    return STATUS_REFUSED;
}

enum status wire_format_check(const struct wire_format *format, enum dtype dtype, enum reduce_op op,
                              const struct shape *shape)
{
    if (!wire_format_changes(format, dtype))
        return STATUS_OK;
    if (dtype != DTYPE_F32)
        return fail(STATUS_REFUSED,
                    "the wire format %s is made from f32, not from %s: take --dtype=f32, or leave --wire out",
                    format->codec->name, dtype_name(dtype));
    if (wire_format_by_element(format))
        return STATUS_OK;
    if (op != REDUCE_SUM && op != REDUCE_AVG)
        return fail(STATUS_REFUSED,
                    "the wire format %s sends later what it left out, which helps sums and means, not %s: take "
                    "--wire=f16 or bf16",
                    format->codec->name, reduce_op_name(op));
    return shape->traits & TRAIT_WHOLE_INPUTS ? STATUS_OK : refuse_sums(format, shape);
}

bool wire_format_by_element(const struct wire_format *format)
{
    return (format->codec->traits & CODEC_CLOSED_UNDER_SUM) != 0;
}

size_t wire_format_bound(const struct wire_format *format, size_t count)
{
    return format->codec->bound(&format->options, count);
}

double wire_format_ratio(const struct wire_format *format, size_t segment)
{
    return (double)wire_format_bound(format, segment) / ((double)segment * sizeof(float));
}

size_t wire_format_encode(const struct wire_format *format, uint64_t key, const float *values, size_t count,
                          void *bytes)
{
    return format->codec->encode(&format->options, key, values, count, bytes);
}

enum status wire_format_decode(const struct wire_format *format, const void *bytes, size_t length, float *values,
                               size_t count)
{
    return format->codec->decode(&format->options, bytes, length, values, count);
}

double wire_format_error(const struct wire_format *format, size_t count, double norm, double most)
{
    return format->codec->error(&format->options, count, norm, most);
}
