/* rng.c - Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC'11). */
#include "base/rng.h"

#include <assert.h>
#include <math.h>

#define PHILOX_ROUNDS 10
#define FEISTEL_ROUNDS 8 /* 4 suffice for security proofs; the narrow halves of a small n mix slower */

static const double two_pi = 6.283185307179586;
static const double two_to_minus_53 = 1.0 / 9007199254740992.0;

void rng_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t product0 = UINT64_C(0xD2511F53) * c0;
        uint64_t product1 = UINT64_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

struct pair {
    uint64_t first, second;
};

/* The same generator in 64-bit words: (a, b) is the counter. */
static struct pair philox(uint64_t key, uint64_t a, uint64_t b)
{
    const uint32_t counter[4] = {(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)};
    const uint32_t words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t out[4];
    rng_philox4x32(counter, words, out);
    return (struct pair){(uint64_t)out[1] << 32 | out[0], (uint64_t)out[3] << 32 | out[2]};
}

/* FNV-1a: a purpose word becomes a number. */
static uint64_t word_hash(const char *word)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (; *word != '\0'; word++)
        hash = (hash ^ (unsigned char)*word) * UINT64_C(0x100000001B3);
    return hash;
}

uint64_t rng_key(uint64_t seed, const char *purpose, uint64_t a, uint64_t b)
{
    uint64_t purpose_key = philox(0, seed, word_hash(purpose)).first;
    return philox(purpose_key, a, b).first;
}

uint64_t rng_u64(uint64_t key, uint64_t counter)
{
    return philox(key, counter, 0).first;
}

double rng_uniform(uint64_t key, uint64_t counter)
{
    return (double)(rng_u64(key, counter) >> 11) * two_to_minus_53;
}

double rng_normal(uint64_t key, uint64_t counter)
{
    struct pair bits = philox(key, counter, 0);
    double radius = (double)((bits.first >> 11) + 1) * two_to_minus_53; /* (0, 1]: its logarithm is finite */
    double angle = (double)(bits.second >> 11) * two_to_minus_53;
    return sqrt(-2.0 * log(radius)) * cos(two_pi * angle);
}

/* The upper 64 bits of a 64 x 64 bit product. */
static uint64_t multiply_high(uint64_t a, uint64_t b)
{
    uint64_t a_low = (uint32_t)a, a_high = a >> 32;
    uint64_t b_low = (uint32_t)b, b_high = b >> 32;
    uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
    uint64_t middle_low = a_low * b_high + (uint32_t)middle;
    return a_high * b_high + (middle >> 32) + (middle_low >> 32);
}

uint64_t rng_below(uint64_t key, uint64_t counter, uint64_t bound)
{
    assert(bound > 0);
    return multiply_high(rng_u64(key, counter), bound);
}

/* SplitMix64's finaliser: a cheap bijective mixer for the Feistel rounds. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static uint64_t feistel(uint64_t key, unsigned half_bits, uint64_t value)
{
    uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = value >> half_bits, right = value & mask;
    for (unsigned round = 1; round <= FEISTEL_ROUNDS; round++) {
        uint64_t round_key = mix(key + round * UINT64_C(0x9E3779B97F4A7C15));
        uint64_t next = left ^ (mix(round_key ^ right) >> 7 & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t rng_permute(uint64_t key, uint64_t n, uint64_t index)
{
    assert(index < n);
    if (n <= 1)
        return 0;
    unsigned half_bits = 1;
    while (half_bits < 32 && (n - 1) >> (2 * half_bits) != 0)
        half_bits++;
    /* The network permutes [0, 4^half_bits); walking its cycle from inside [0, n) comes back inside, after fewer
     * than four steps on average, and the walk is itself a permutation of [0, n). */
    do
        index = feistel(key, half_bits, index);
    while (index >= n);
    return index;
}
