/* hash.c - FNV-1a (G. Fowler, L. C. Noll, K.-P. Vo). */
#include "base/hash.h"

uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}
