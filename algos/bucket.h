/* bucket.h - how vectors of gradients are cut into buckets: alike in training and in simulation.
 *
 * Pieces (tensors, or layers) are taken from the end, as backward completes them; a bucket takes pieces until it would be
 * larger than the limit. The first bucket of several is smaller, so that exchanges begin early (as in PyTorch's
 * DistributedDataParallel).
 */
#ifndef CHORALE_ALGOS_BUCKET_H
#define CHORALE_ALGOS_BUCKET_H

#include <stddef.h>

#define BUCKET_FIRST ((size_t)1 << 20)   /* bytes at most of the first bucket, where the limit is higher */
#define BUCKET_OVERLAP ((size_t)4 << 20) /* bytes: the usual limit where exchanges begin during backward */

/* Elements of 4 bytes that bucket `number` (from 0) may hold, of `most` at most. */
static inline size_t bucket_room(size_t number, size_t most)
{
    const size_t first = BUCKET_FIRST / sizeof(float);
    return number == 0 && most > first ? first : most;
}

#endif
