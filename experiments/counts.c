/* counts.c - reading lists of counts and sizes. */
#include "experiments/counts.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

static enum status bad_count(const char *text, int most)
{
    return fail(STATUS_USAGE, "-n %s: numbers from 1 to %d, as in 4 or 2,3,5 or 1..64", text, most);
}

static enum status add_range(int **counts, size_t *count, size_t *capacity, int first, int last)
{
    void *memory = *counts;
    TRY(memory_grow(&memory, capacity, *count + (size_t)(last - first) + 1, sizeof(int)));
    *counts = memory;
    for (int n = first; n <= last; n++)
        (*counts)[(*count)++] = n;
    return STATUS_OK;
}

static enum status read_piece(char *piece, int most, int *first, int *last)
{
    long long a = 0, b = 0;
    char *dots = strstr(piece, "..");
    if (dots != NULL)
        *dots = '\0';
    if (parse_int(piece, &a) < 0)
        return STATUS_USAGE;
    b = a;
    if (dots != NULL && parse_int(dots + 2, &b) < 0)
        return STATUS_USAGE;
    *first = (int)a;
    *last = (int)b;
    return a >= 1 && b >= a && b <= most ? STATUS_OK : STATUS_USAGE;
}

enum status counts_parse(const char *text, int most, int **counts, size_t *count)
{
    enum status status = STATUS_OK;
    size_t capacity = 0;
    char *copy = NULL;
    *counts = NULL;
    *count = 0;
    TRY(memory_string(&copy, text));
    for (char *piece = copy, *next = NULL; piece != NULL && status >= 0; piece = next) {
        int first = 0, last = 0;
        next = strchr(piece, ',');
        if (next != NULL)
            *next++ = '\0';
        status = read_piece(piece, most, &first, &last);
        status = status < 0 ? bad_count(text, most) : add_range(counts, count, &capacity, first, last);
    }
    free(copy);
    if (status < 0) {
        free(*counts);
        *counts = NULL;
    }
    return status;
}

static enum status read_sizes(char *text, size_t *begin, size_t *end, size_t *factor)
{
    long long times = 2;
    char *colon = strchr(text, ':'), *dots = strstr(text, "..");
    if (dots == NULL && colon != NULL)
        return STATUS_USAGE;
    if (dots != NULL)
        *dots = '\0';
    if (colon != NULL) {
        *colon = '\0';
        if (colon[1] != 'x' || parse_int(colon + 2, &times) < 0 || times < 2)
            return STATUS_USAGE;
    }
    if (parse_size(text, begin) < 0 || parse_size(dots != NULL ? dots + 2 : text, end) < 0 || *end < *begin)
        return STATUS_USAGE;
    *factor = (size_t)times;
    return STATUS_OK;
}

enum status sizes_parse(const char *text, size_t *begin, size_t *end, size_t *factor)
{
    char *copy = NULL;
    TRY(memory_string(&copy, text));
    enum status status = read_sizes(copy, begin, end, factor);
    free(copy);
    return status < 0
               ? fail(STATUS_USAGE, "--sizes=%s: one size or from..to[:xFACTOR], as in 8..64M or 1K..1M:x4", text)
               : STATUS_OK;
}
