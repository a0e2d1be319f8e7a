/* memory.c - checked allocation. */
#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise */
#include "base/memory.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SMALLEST_CAPACITY 8
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

bool checked_multiply(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *out = a * b;
    return true;
}

bool checked_add(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b)
        return false;
    *out = a + b;
    return true;
}

enum status memory_zeroed(void **out, size_t count, size_t size)
{
    *out = NULL;
    size_t bytes;
    if (!checked_multiply(count, size, &bytes))
        return fail(STATUS_NO_MEMORY, "out of memory: %zu x %zu bytes do not fit an address space", count, size);
    void *block = calloc(bytes != 0 ? bytes : 1, 1);
    if (block == NULL)
        return fail(STATUS_NO_MEMORY, "out of memory: %zu bytes asked for", bytes);
    *out = block;
    return STATUS_OK;
}

/* Doubling keeps a series of appends linear; where doubling would overflow the exact need is enough. */
static size_t grown_capacity(size_t capacity, size_t needed)
{
    size_t grown = capacity > SIZE_MAX / 2 ? needed : 2 * capacity;
    if (grown < SMALLEST_CAPACITY)
        grown = SMALLEST_CAPACITY;
    return grown < needed ? needed : grown;
}

enum status memory_grow(void **array, size_t *capacity, size_t needed, size_t size)
{
    if (needed <= *capacity && *array != NULL)
        return STATUS_OK;
    size_t grown = grown_capacity(*capacity, needed);
    size_t bytes;
    if (!checked_multiply(grown, size, &bytes))
        return fail(STATUS_NO_MEMORY, "out of memory: %zu x %zu bytes do not fit an address space", grown, size);
    void *block = realloc(*array, bytes != 0 ? bytes : 1);
    if (block == NULL)
        return fail(STATUS_NO_MEMORY, "out of memory: %zu bytes asked for", bytes);
    *array = block;
    *capacity = grown;
    return STATUS_OK;
}

enum status memory_pages(void **out, size_t bytes)
{
    *out = NULL;
    void *pages =
        mmap(NULL, bytes != 0 ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /* fd */ -1, 0);
    if (pages == MAP_FAILED)
        return fail(STATUS_NO_MEMORY, "out of memory: %zu bytes of pages asked for: %s", bytes, strerror(errno));
    /* Only advice: a kernel without transparent huge pages refuses it and everything still works. */
    if (bytes >= HUGE_PAGE_BYTES)
        (void)madvise(pages, bytes, MADV_HUGEPAGE);
    *out = pages;
    return STATUS_OK;
}

void memory_pages_release(void *pointer, size_t bytes)
{
    if (pointer != NULL)
        (void)munmap(pointer, bytes != 0 ? bytes : 1);
}

enum status memory_string(char **out, const char *string)
{
    *out = NULL;
    if (string == NULL)
        return STATUS_OK;
    size_t bytes = strlen(string) + 1;
    char *copy = malloc(bytes);
    if (copy == NULL)
        return fail(STATUS_NO_MEMORY, "out of memory: %zu bytes asked for", bytes);
    memcpy(copy, string, bytes);
    *out = copy;
    return STATUS_OK;
}
