/* rng.h - counter-based randomness: a value is a pure function of (key, counter), so results do not depend on
 * the number of threads, workers or calls made before. Philox4x32-10 (Salmon et al., SC'11).
 */
#ifndef CHORALE_BASE_RNG_H
#define CHORALE_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* The generator itself: 10 rounds, as published (Random123's philox4x32-10, known answers in the tests). */
void rng_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* A key for one purpose: mixes seed, a purpose word (e.g. "shuffle") and up to two numbers (epoch, layer...). */
uint64_t rng_key(uint64_t seed, const char *purpose, uint64_t a, uint64_t b);

uint64_t rng_u64(uint64_t key, uint64_t counter);
double rng_uniform(uint64_t key, uint64_t counter); /* [0, 1), 53 bits */
double rng_normal(uint64_t key, uint64_t counter);  /* mean 0, variance 1 (Box-Muller on counter) */
uint64_t rng_below(uint64_t key, uint64_t counter,
                   uint64_t bound); /* [0, bound), bound > 0, without bias worth naming */

/* Position `index` of a keyed permutation of [0, n): a Feistel network with cycle walking, O(1) memory. index < n. */
uint64_t rng_permute(uint64_t key, uint64_t n, uint64_t index);

#endif
