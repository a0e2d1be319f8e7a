/* hash.h - a quick hash of bytes, for telling whether two workers or two runs had the same. Not for adversaries. */
#ifndef CHORALE_BASE_HASH_H
#define CHORALE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

/* FNV-1a, 64 bits: `hash` (HASH_START at first) goes on over `bytes` bytes of `data`. */
uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes);

/* The same steps over little-endian words of 64 bits in four lanes, then over the lanes and the length, then over the bytes
 * that are left: another hash, several times quicker, for pixels. One word that differs always shows. */
uint64_t hash_quick(const void *data, size_t bytes);

#endif
