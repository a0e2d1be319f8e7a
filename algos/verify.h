/* verify.h - proves a schedule from its ops alone: for one shape, all workers, without data or network.
 *
 * Drives one progression for each worker with symbolic values: for each leaf chunk the set of workers whose
 * contribution it holds, which chunk it is a part of, whether it is finalised, and the hash of its expression tree. Every
 * send waits for its posted receive (rendezvous everywhere), the window is 1, what is sent is read as late as may be.
 *
 * Trials: in order in place, newest first out of place, and three in random order with segments of one leaf, two, or
 * whole ranges; then each half of a schedule that has halves. Above 32 workers fewer: one at random out of place, and
 * the halves in place, or where there are none, one in order in place. That loses nothing: where no race is found,
 * conflicting ops have one order and messages match in order, so that workers are a Kahn network: what is computed, and
 * whether it comes to an end, is the same in every order (G. Kahn, IFIP 1974). The halves one after the other are one
 * such order of the whole. What the other trials guard against is an error in progression.c, which does not hide until
 * there are 33 workers.
 *
 * Proved: every message is matched with equal size, lane and round; ranges, peers and lanes are within bounds; every
 * contribution arrives exactly once in every chunk on every worker; every chunk is finalised exactly once, and only
 * when complete; no deadlock; no race between lanes; scratch is written before it is read. A schedule that leaves equal
 * bits on all workers does so with an idempotent lossy wire format, too: up to 32 workers one more trial runs it with the
 * roundings that rounding.h puts in, as nodes of the expression trees.
 *
 * Up to VERIFY_EXACT_WORKERS contributions are sets of bits. Above, every worker has a random weight below the prime
 * q = 2^61 - 1, and a value holds the sum of its contributors' weights mod q, and their number. A value is taken as
 * complete if its number is p and its sum that of all weights. Let worker i be in it m(i) times, sum m(i) = p, and not
 * m = (1, ..., 1): then d = m - (1, ..., 1) has some d(j) != 0 with |d(j)| < p < q, and the sums are equal only if
 * w(j) = -d(j)^-1 * sum of the other d(i) w(i) mod q: one value of q, given the other weights. A weight, drawn from 64
 * random bits, has any one value with a probability of at most 9 / 2^64, so a wrong value passes with less than 2^-60.
 * Mixing likewise: rows by their sums, columns by whether a product with a random real vector keeps its sum.
 *
 * Memory: a proof takes at most about VERIFY_BYTES. If all chunks would take more, a random sample of VERIFY_SAMPLE of
 * them is followed, for what happens to a chunk does not depend on the others as long as each stays at its place in all
 * ops, which is checked; result.chunks tells. Matching, deadlock and races are found for all of it all the same.
 * What can't be had in that memory is refused.
 */
#ifndef CHORALE_ALGOS_VERIFY_H
#define CHORALE_ALGOS_VERIFY_H

#include <stdbool.h>
#include <stddef.h>

#include "algos/schedule.h"

#define VERIFY_EXACT_WORKERS 512
#define VERIFY_MEBIBYTES 1024
#define VERIFY_BYTES ((size_t)VERIFY_MEBIBYTES << 20)
#define VERIFY_SAMPLE 64

enum fault {
    FAULT_NONE,
    FAULT_BAD_OP,    /* unknown kind, peer, lane, chunk or plane out of range, unequal src and dst */
    FAULT_UNMATCHED, /* a SEND without its RECV or the reverse                                     */
    FAULT_SIZE,      /* matched, but of unequal size                                               */
    FAULT_ROUND,     /* matched, but of unequal round (rule 1)                                     */
    FAULT_DEADLOCK,
    FAULT_RACE,            /* two lanes touch a range and nothing orders them                            */
    FAULT_MISSING,         /* a contribution is missing at the end                                       */
    FAULT_DOUBLED,         /* a contribution was reduced twice                                           */
    FAULT_NOT_FINALISED,   /* complete but never finalised, or used as a result unfinalised              */
    FAULT_FINALISED_EARLY, /* finalised before every contribution was there                              */
    FAULT_FINALISED_TWICE,
    FAULT_SCRATCH, /* scratch read before it was written, or a plane out of range                */
    FAULT_WAIT,    /* WAIT for a future round                                                    */
    FAULT_OWNER,   /* after round split-1 the owner's chunk is not complete                      */
    FAULT_WEIGHTS, /* mixing: a row or a column does not sum to one                              */
    FAULT_TRAIT,   /* the shape claims a trait of enum trait that its ops don't have             */
    FAULT_ROUNDING /* equal bits on all workers, but no more where a wire format rounds (rule 7) */
};
const char *fault_name(enum fault fault); /* "missing-contribution", "race", "deadlock", ... */

struct verify_result {
    bool ok;
    enum fault fault;
    char reason[256];  /* "missing-contribution: worker 3 chunk 5 lacks worker 1 (round 7)" */
    bool exact;        /* proved with sets, not with random weights                       */
    uint32_t chunks;   /* so many were followed: all of the shape's, or a random sample   */
    bool equal_bits;   /* TRAIT_EQUAL_BITS: the expression tree of each chunk is the same on all workers  */
    bool same_order;   /* TRAIT_SAME_ORDER: and the same for all chunks                                   */
    bool whole_inputs; /* TRAIT_WHOLE_INPUTS: every SEND reads one worker's contribution, or a result     */
};

/* STATUS_OK with result->ok false is a proof of a fault. STATUS_REFUSED: it takes too much memory; any other failing status
 * is memory that is not there, or an internal error. */
enum status verify_shape(const struct shape *shape, struct verify_result *result) MUST_CHECK;
/* The same in at most about `bytes`; verify_shape() takes VERIFY_BYTES. */
enum status verify_shape_within(const struct shape *shape, size_t bytes, struct verify_result *result) MUST_CHECK;

#endif
