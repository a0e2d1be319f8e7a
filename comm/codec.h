/* codec.h - wire formats: what a vector of f32 looks like while it travels (rule 7 of algos/schedule.h).
 *
 * Every segment of a message is encoded by itself, so that everything pipelines: the number of segments comes from the
 * uncompressed size, and both ends know a bound on the length of each; how long it really is tells its arrival. Whoever
 * encodes, the bytes are the same. A user names a format like a spec: f16, top-k:ratio=0.01.
 *
 * Two kinds. f16 and bf16 round each element by itself: sums of such values may be rounded again (closed under sum), so
 * every schedule can use them. The others send a segment as a whole and lose so much that it has to be made up for:
 * what an encoding left out is kept and added to the next (error feedback; see collective_request in comm.h). They run
 * only where no partial sum travels.
 */
#ifndef CHORALE_COMM_CODEC_H
#define CHORALE_COMM_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "algos/schedule.h"
#include "base/dtype.h"
#include "base/option.h"
#include "base/status.h"
#include "base/text.h"

enum codec_trait {
    CODEC_LOSSLESS = 1,         /* what is decoded is what was encoded                                       */
    CODEC_CLOSED_UNDER_SUM = 2, /* element by element: partial sums may travel                               */
    CODEC_IDEMPOTENT = 4,       /* what was decoded is encoded (with the same key) and decoded to the same   */
    CODEC_COARSE = 8 /* one encoding tells little: fit for gradients, with error feedback, not for parameters */
};

/* One of the catalogue. `o`: values of its options, NULL where it has none. */
struct codec {
    const char *name, *summary, *source;
    unsigned traits;
    const struct option *options; /* NULL = none */
    size_t element_bytes;         /* of each element, 0 where that is not all there is */
    /* Bytes that `count` elements need at most. */
    size_t (*bound)(const struct option_values *o, size_t count);
    /* Returns the length, at most the bound. `key`: for choices at random; the same key, the same choice. */
    size_t (*encode)(const struct option_values *o, uint64_t key, const float *values, size_t count,
                     unsigned char *bytes);
    /* STATUS_FORMAT for bytes that are no encoding of `count` elements. */
    enum status (*decode)(const struct option_values *o, const unsigned char *bytes, size_t length, float *values,
                          size_t count);
    /* The error that it promises: a bound on |x - decoded x| (Euclidean) for finite x of `count` elements, with |x| =
     * norm and the largest magnitude `most`, as long as nothing overflows. */
    double (*error)(const struct option_values *o, size_t count, double norm, double most);
};

/* For codecs by which only a part of the elements travels: their option, `ratio`, and how many of `count` that is. */
extern const struct option codec_ratio_options[];
size_t codec_ratio_count(const struct option_values *o, size_t count);

/* Every codec of codec.def, in its order. */
const struct codec *const *codec_catalogue(size_t *count);
const struct codec *codec_find(const char *name); /* NULL when there is none */

/* A codec with its options: what --wire= names. Zeroed: elements travel as they are. */
struct wire_format {
    const struct codec *codec;
    struct option_values options;
};

/* NAME[:key=value[,key=value...]]. STATUS_USAGE with the nearest spelling, or with the value and what is taken. Release
 * with wire_format_release(). */
enum status wire_format_parse(const char *text, struct wire_format *format) MUST_CHECK;
void wire_format_release(struct wire_format *format);
/* Canonical spelling, appended: defaults left out, keys sorted. "none" for a zeroed one. */
void wire_format_canonical(const struct wire_format *format, struct text *text);

/* Whether elements of `dtype` change on the wire: not by a zeroed format (or NULL), nor by that of their own type. */
bool wire_format_changes(const struct wire_format *format, enum dtype dtype);
/* Whether a schedule can run with it; always when it changes nothing. STATUS_REFUSED, with the reason and what can,
 * unless elements are f32; and for what is not closed under sum, where partial sums travel, or are not sums. */
enum status wire_format_check(const struct wire_format *format, enum dtype dtype, enum reduce_op op,
                              const struct shape *shape) MUST_CHECK;
/* Rounds element by element: sums may travel. The others need whole inputs and keep residuals. */
bool wire_format_by_element(const struct wire_format *format);

size_t wire_format_bound(const struct wire_format *format, size_t count);
/* Wire bytes of `count` f32 in segments of `segment` elements, by the bound, in proportion to their own size. */
double wire_format_ratio(const struct wire_format *format, size_t segment);
size_t wire_format_encode(const struct wire_format *format, uint64_t key, const float *values, size_t count,
                          void *bytes);
enum status wire_format_decode(const struct wire_format *format, const void *bytes, size_t length, float *values,
                               size_t count) MUST_CHECK;
double wire_format_error(const struct wire_format *format, size_t count, double norm, double most);

/* What encoding has done to values. Added up over encodings; `worst` is the largest. */
struct codec_statistics {
    uint64_t infinite; /* finite values that became infinite                           */
    uint64_t nan;      /* values that were decoded as NaN                              */
    uint64_t flushed;  /* values that were not zero and were decoded as zero           */
    double worst;      /* |x - decoded x| / |x| of a segment (Euclidean, finite values) */
};
void codec_examine(const float *values, const float *decoded, size_t count, struct codec_statistics *statistics);
void codec_statistics_add(struct codec_statistics *sum, const struct codec_statistics *more);

#endif
