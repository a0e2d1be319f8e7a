/* rounding.h - a schedule for a lossy wire format: the same ops, and before a SEND whose range its sender goes on using
 * one that makes the sender's own copy what the receiver will decode, so that all workers compute with the same values.
 *
 * Rule 7 of schedule.h says where; no algorithm knows. The op put in is a SCALE by 1 with OP_ROUND_SOURCE: dst becomes
 * what a receiver would decode of it, in every driver like any other local op (hazards, first touch). Found by walking
 * emit: a value is rounded when it came by RECV, or when such an op has stood before; a SEND of anything else is
 * preceded by one if the value is read or left as a result before it is overwritten.
 */
#ifndef CHORALE_ALGOS_ROUNDING_H
#define CHORALE_ALGOS_ROUNDING_H

#include "algos/schedule.h"

enum rounding {
    /* Each element by itself, and rounding again changes nothing, however ranges are cut (f16, bf16): only values that
     * are used again are rounded, and every result ends as a value of the format, also where nobody sends it. */
    ROUNDING_ELEMENTS,
    /* A segment as a whole, with a residual that is kept for the next time (top-k, sign, ...): every value is rounded
     * once, by the worker that made it, before it is first sent. Needs TRAIT_WHOLE_INPUTS. */
    ROUNDING_SEGMENTS
};

#define ROUNDING_ALL_RANKS (-1)

/* `shape` must outlive *rounded. `rank`: whose ops will be asked for. Its traits are those of `shape`; it has no halves.
 * ROUNDING_SEGMENTS: STATUS_REFUSED where a value is sent in other pieces than it was rounded in, from scratch, or
 * where a worker makes two values of one chunk that it sends (its residual is one). Free with shape_destroy(). */
enum status rounding_shape(const struct shape *shape, int rank, enum rounding kind, struct shape **rounded) MUST_CHECK;

#endif
