/* memory.h - allocation with checked arithmetic. All report STATUS_NO_MEMORY naming the bytes asked for. */
#ifndef CHORALE_BASE_MEMORY_H
#define CHORALE_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* count * size bytes, zeroed; count or size 0 gives a valid pointer. Free with free(). */
enum status memory_zeroed(void **out, size_t count, size_t size) MUST_CHECK;
/* Grow *array (of `size`-byte elements) so that it holds at least `needed`; *capacity is doubled as wanted.
 * New elements are not initialised. On failure *array and *capacity are unchanged. */
enum status memory_grow(void **array, size_t *capacity, size_t needed, size_t size) MUST_CHECK;
/* `bytes` at a 4 KiB boundary, zeroed, huge pages advised from 2 MiB on. Release with memory_pages_release(). */
enum status memory_pages(void **out, size_t bytes) MUST_CHECK;
void memory_pages_release(void *pointer, size_t bytes);
/* A copy of a string, or NULL for NULL. */
enum status memory_string(char **out, const char *string) MUST_CHECK;

bool checked_multiply(size_t a, size_t b, size_t *out); /* false on overflow */
bool checked_add(size_t a, size_t b, size_t *out);

#endif
