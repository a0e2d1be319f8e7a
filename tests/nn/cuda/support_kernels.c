/* support_kernels.c - see support_kernels.h. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include "support_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/half.h"
#include "base/rng.h"

const unsigned orders[4] = {0, 1, 2, 77};
const enum dtype storages[3] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* ---- memory ---- */

struct guarded {
    unsigned char *map, *begin;
    size_t mapped, bytes, slack; /* slack: from the end of the bytes to the page */
    struct guarded *next;
};

enum { MARK = 0x5a };
static struct guarded *in_use, *spare; /* mappings are kept for arrays of the same pages */

static struct guarded *map_pages(size_t page, size_t inside)
{
    for (struct guarded **at = &spare; *at; at = &(*at)->next) {
        struct guarded *guarded = *at;
        if (guarded->mapped == inside + 2 * page) {
            *at = guarded->next;
            return guarded;
        }
    }
    struct guarded *guarded = calloc(1, sizeof *guarded);
    cr_assert_not_null(guarded);
    guarded->mapped = inside + 2 * page;
    void *map = mmap(NULL, guarded->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(map, MAP_FAILED);
    guarded->map = map;
    cr_assert_eq(mprotect(guarded->map, page, PROT_NONE), 0);
    cr_assert_eq(mprotect(guarded->map + page + inside, page, PROT_NONE), 0);
    return guarded;
}

void *device(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), round = (bytes + 15) / 16 * 16;
    const size_t inside = (round + page - 1) / page * page;
    struct guarded *guarded = map_pages(page, inside);
    guarded->begin = guarded->map + page + inside - round;
    guarded->bytes = bytes;
    guarded->slack = round - bytes;
    guarded->next = in_use;
    in_use = guarded;
    memset(guarded->begin, 0xff, bytes);
    memset(guarded->begin + bytes, MARK, guarded->slack);
    return guarded->begin;
}

void devices_release(void)
{
    while (in_use) {
        struct guarded *guarded = in_use;
        in_use = guarded->next;
        for (size_t i = 0; i < guarded->slack; i++)
            cr_assert_eq(guarded->begin[guarded->bytes + i], MARK, "byte %zu after an array of %zu was written", i,
                         guarded->bytes);
        guarded->next = spare;
        spare = guarded;
    }
}

/* ---- data ---- */

float number(uint64_t seed, size_t i)
{
    const uint64_t bits = rng_key(seed, "kernels", i, 0);
    return (float)(bits >> 40) * 0x1p-23F - 1.0F;
}

float *device_f32(const float *values, size_t count)
{
    return device_storage(DTYPE_F32, values, count);
}

void *device_storage(enum dtype type, const float *values, size_t count)
{
    void *to = device(count * dtype_size(type));
    if (type == DTYPE_F32)
        memcpy(to, values, count * sizeof(float));
    else if (type == DTYPE_F16)
        f16_encode(to, values, count);
    else
        bf16_encode(to, values, count);
    return to;
}

float storage_at(enum dtype type, const void *array, size_t i)
{
    if (type == DTYPE_F32)
        return ((const float *)array)[i];
    const uint16_t half = ((const uint16_t *)array)[i];
    return type == DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

float storage_round(enum dtype type, float value)
{
    if (type == DTYPE_F32)
        return value;
    return type == DTYPE_F16 ? f16_to_f32(f16_from_f32(value)) : bf16_to_f32(bf16_from_f32(value));
}

double storage_epsilon(enum dtype type)
{
    if (type == DTYPE_F32)
        return 0x1p-24;
    return type == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

/* ---- comparisons ---- */

void expect_near(double got, double want, double relative, double absolute, const char *what, size_t i)
{
    if (isnan(want) && isnan(got))
        return;
    cr_assert(fabs(got - want) <= relative * fabs(want) + absolute, "%s[%zu]: %.9g instead of %.9g", what, i, got,
              want);
}

void expect_same_bits(struct first_bits *first, const void *got, size_t bytes, const char *what)
{
    if (first->bits == NULL) {
        first->bits = malloc(bytes + 1);
        cr_assert_not_null(first->bits);
        memcpy(first->bits, got, bytes);
        return;
    }
    cr_assert_eq(memcmp(first->bits, got, bytes), 0, "%s depends on the order of threads", what);
}

void first_bits_release(struct first_bits *first)
{
    free(first->bits);
    first->bits = NULL;
}
