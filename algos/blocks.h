/* blocks.h - schedules in which each block of the vector goes along a tree of its own, all trees of one form.
 *
 * The vector has a block for each worker, and block b is reduced to worker b, then spread from it. Who passes it on in
 * which step depends only on how far the sender is from b. So one table serves all workers: set i holds the deltas
 * b - sender of the blocks that a sender passes on in step i (with several peers a step: to its i-th peer). What it sends
 * is then a set of ranges, which travel joined (OP_MORE) as one message.
 *
 * In the spreading half every message goes back over the same blocks, receiver to sender, last set first.
 */
#ifndef CHORALE_ALGOS_BLOCKS_H
#define CHORALE_ALGOS_BLOCKS_H

#include "algos/schedule.h"

#define BLOCKS_OWN UINT32_MAX /* the set of delta 0: the owner passes its own block on to nobody */

struct block_sets {
    uint32_t blocks; /* workers that own one                                              */
    uint32_t radix;  /* chunks are blocks by reversed digits in this radix; 0: chunk b is block b */
    int digits;
    uint32_t *first; /* set i: delta[first[i]] .. delta[first[i + 1] - 1], ascending       */
    uint32_t *delta;
};

/* From the set of each delta, set_of[0 .. blocks). With a radix, blocks must be a power of it and each set all deltas of
 * one residue modulo a lower power: numbered by reversed digits, such a set is one range. A delta without a set is
 * STATUS_INTERNAL: a block that does not reach everyone. Free with block_sets_destroy(). */
enum status block_sets_create(const uint32_t *set_of, uint32_t blocks, uint32_t sets, uint32_t radix,
                              struct block_sets **made) MUST_CHECK;
void block_sets_destroy(struct block_sets *sets); /* accepts NULL */

/* The worker whose block a chunk is, and the reverse (the same function). */
uint32_t block_of_chunk(const struct block_sets *sets, uint32_t chunk);

/* One message between two workers, as `rank` has it, which is one of them. */
struct block_move {
    uint32_t set;
    int from, to;  /* in the reducing half; spreading, it goes back */
    bool mirrored; /* the sender's deltas count downwards           */
    bool reducing;
    bool final; /* of the reducing half: the reduction that completes the receiver's own block */
};
enum status blocks_emit(const struct block_sets *sets, int rank, const struct block_move *move,
                        struct sink *sink) MUST_CHECK;

/* The digits of `value`, the lowest first. */
uint32_t reversed_digits(uint32_t value, uint32_t radix, int digits);

#endif
