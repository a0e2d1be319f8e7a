/* coder.h - a wire format at work in one collective (executor.c): the schedule that runs with it, buffers for one
 * segment, the residual, statistics. Private to comm/; the lock is held.
 *
 * Error feedback (formats that are not closed under sum): a segment is rounded once, by the worker that made it, before
 * it is first sent (algos/rounding.h): x + residual is encoded, what is decoded of it becomes the worker's own copy, and
 * what is left is the new residual. Whoever sends a rounded segment encodes it to the same again.
 */
#ifndef CHORALE_COMM_CODER_H
#define CHORALE_COMM_CODER_H

#include "comm/codec.h"
#include "comm/comm.h"

struct coder;

/* *coder is NULL where the format changes nothing. `segment`: bytes of a wire segment. STATUS_REFUSED as
 * wire_format_check() and rounding_shape() say. */
enum status coder_create(const struct collective_request *request, size_t segment, struct coder **coder) MUST_CHECK;
void coder_destroy(struct coder *coder); /* accepts NULL */

const struct shape *coder_shape(const struct coder *coder); /* the schedule with its roundings                  */
const char *coder_name(const struct coder *coder);          /* canonical spelling of the format                 */
size_t coder_segment(const struct coder *coder);            /* elements, such that the bound fits a wire segment */
size_t coder_bound(const struct coder *coder, size_t count);
/* f16 or bf16, where the format rounds element by element; else DTYPE_F32. */
enum dtype coder_half(const struct coder *coder);
/* Rule 6: partial sums are rounded to halves, so that inputs are made smaller first. */
bool coder_scales(const struct coder *coder);

void *coder_room(struct coder *coder); /* for one segment, encoded or not: valid until the next call of any of these */

void coder_start(struct coder *coder);
/* The residual of each element of the vector, NULL where none is kept, and the number of runs so far, from which random
 * draws are made. Both may be written between runs. */
float *coder_residual(struct coder *coder, uint32_t **run);
/* A segment that starts at element `offset`. Returns the length. */
size_t coder_encode(struct coder *coder, const float *values, size_t offset, size_t count, void *bytes);
enum status coder_decode(const struct coder *coder, const void *bytes, size_t length, float *values,
                         size_t count) MUST_CHECK;
/* OP_ROUND_SOURCE. to and from are equal or apart. */
enum status coder_round(struct coder *coder, float *to, const float *from, size_t offset, size_t count) MUST_CHECK;
const struct codec_statistics *coder_statistics(const struct coder *coder); /* of this run */

#endif
