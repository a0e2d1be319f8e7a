/* hash.c - FNV-1a (G. Fowler, L. C. Noll, K.-P. Vo). */
#include "base/hash.h"

#define PRIME UINT64_C(0x100000001b3)

uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * PRIME;
    return hash;
}

/* Compilers make one load of it. */
static uint64_t word_at(const unsigned char *at)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        word |= (uint64_t)at[i] << 8 * i;
    return word;
}

uint64_t hash_quick(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t a = HASH_START, b = ~a, c = a << 1, d = ~c, hash = HASH_START;
    size_t left = bytes;
    for (; left >= 32; left -= 32, at += 32) {
        a = (a ^ word_at(at)) * PRIME;
        b = (b ^ word_at(at + 8)) * PRIME;
        c = (c ^ word_at(at + 16)) * PRIME;
        d = (d ^ word_at(at + 24)) * PRIME;
    }
    const uint64_t rest[] = {a, b, c, d, bytes};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++)
        hash = (hash ^ rest[i] ^ rest[i] >> 32) * PRIME;
    return hash_bytes(hash, at, left);
}
