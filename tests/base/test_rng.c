/* test_rng.c - Philox against its published answers; the functions on it against what they promise. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/rng.h"
#include "tests/base/expect.h"

/* kat_vectors of Random123, philox4x32 with 10 rounds. */
static const struct {
    uint32_t counter[4], key[2], out[4];
} known_answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

Test(rng, philox_gives_the_published_answers)
{
    for (size_t i = 0; i < sizeof known_answers / sizeof known_answers[0]; i++) {
        uint32_t out[4];
        rng_philox4x32(known_answers[i].counter, known_answers[i].key, out);
        for (int word = 0; word < 4; word++)
            cr_expect_eq(out[word], known_answers[i].out[word], "vector %zu word %d: %08x", i, word, out[word]);
    }
}

Test(rng, u64_is_the_first_two_words)
{
    cr_expect_eq(rng_u64(0, 0), UINT64_C(0xe169c58d6627e8d5));
}

Test(rng, keys_differ_in_every_part)
{
    const uint64_t keys[] = {rng_key(1, "shuffle", 0, 0), rng_key(2, "shuffle", 0, 0), rng_key(1, "crop", 0, 0),
                             rng_key(1, "shuffle", 1, 0), rng_key(1, "shuffle", 0, 1), rng_key(1, "", 0, 0),
                             rng_key(0, "shuffle", 1, 0), rng_key(1, "shuffle", 1, 1)};
    const size_t count = sizeof keys / sizeof keys[0];
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            cr_expect_neq(keys[i], keys[j], "%zu %zu", i, j);
    cr_expect_eq(keys[0], rng_key(1, "shuffle", 0, 0));
}

Test(rng, uniform_fills_its_interval_evenly)
{
    enum { BINS = 16, DRAWS = 160000 };
    int bins[BINS] = {0};
    double sum = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double value = rng_uniform(3, i);
        cr_assert(value >= 0 && value < 1);
        bins[(int)(value * BINS)]++;
        sum += value;
    }
    cr_expect_float_eq(sum / DRAWS, 0.5, 0.005);
    const double expected = (double)DRAWS / BINS;
    double chi_square = 0;
    for (int i = 0; i < BINS; i++)
        chi_square += pow(bins[i] - expected, 2) / expected;
    cr_expect_lt(chi_square, 44.3, "chi-square %g of 15 degrees", chi_square); /* p = 1e-4 */
}

Test(rng, normal_has_its_moments)
{
    enum { DRAWS = 200000 };
    double sum = 0, squares = 0, fourth = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double value = rng_normal(4, i);
        cr_assert(isfinite(value));
        sum += value;
        squares += value * value;
        fourth += value * value * value * value;
    }
    cr_expect_float_eq(sum / DRAWS, 0, 0.01);
    cr_expect_float_eq(squares / DRAWS, 1, 0.015);
    cr_expect_float_eq(fourth / DRAWS, 3, 0.15);
}

Test(rng, below_is_the_upper_half_of_a_product)
{
    const uint64_t bounds[] = {1, 2, 3, 10, 1000003, UINT64_C(1) << 32, UINT64_C(1) << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        for (uint64_t counter = 0; counter < 2000; counter++) {
            uint64_t value = rng_below(5, counter, bounds[i]);
            long double fraction = (long double)rng_u64(5, counter) / 18446744073709551616.0L;
            cr_assert_lt(value, bounds[i]);
            cr_assert(fabsl((long double)value - floorl(fraction * (long double)bounds[i])) <= 1, "%zu", i);
        }
    }
    int counts[10] = {0};
    for (uint64_t counter = 0; counter < 100000; counter++)
        counts[rng_below(6, counter, 10)]++;
    for (int i = 0; i < 10; i++)
        cr_expect(abs(counts[i] - 10000) < 450, "%d: %d", i, counts[i]);
}

static void expect_bijection(uint64_t key, uint64_t n)
{
    void *memory = NULL;
    cr_assert_eq(memory_zeroed(&memory, n, 1), STATUS_OK);
    unsigned char *seen = memory;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t image = rng_permute(key, n, i);
        cr_assert_lt(image, n, "n %zu", (size_t)n);
        cr_assert_eq(seen[image]++, 0, "n %zu: %zu comes twice", (size_t)n, (size_t)image);
    }
    free(memory);
}

Test(rng, permute_is_a_bijection)
{
    for (uint64_t n = 1; n <= 300; n++)
        for (uint64_t key = 0; key < 4; key++)
            expect_bijection(rng_key(key, "shuffle", n, 0), n);
    expect_bijection(9, 60000);
    expect_bijection(9, 65536);
    expect_bijection(9, 65537);
    expect_bijection(9, 1281167);
}

Test(rng, permute_takes_the_largest_n)
{
    for (uint64_t i = 0; i < 1000; i++) {
        cr_assert_lt(rng_permute(1, UINT64_MAX, i), UINT64_MAX);
        cr_assert_lt(rng_permute(1, (UINT64_C(1) << 62) + 1, i), (UINT64_C(1) << 62) + 1);
    }
}

/* Where 0 goes over many keys: every place alike. */
Test(rng, permute_favours_no_place)
{
    enum { N = 10, KEYS = 50000 };
    int counts[N][N] = {{0}};
    for (uint64_t key = 0; key < KEYS; key++)
        for (uint64_t i = 0; i < N; i++)
            counts[i][rng_permute(rng_key(key, "shuffle", 0, 0), N, i)]++;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            cr_expect(abs(counts[i][j] - KEYS / N) < 350, "%d to %d: %d", i, j, counts[i][j]);
}

Test(rng, permute_depends_on_its_key)
{
    int fixed = 0, same = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        fixed += rng_permute(1, 1000, i) == i;
        same += rng_permute(1, 1000, i) == rng_permute(2, 1000, i);
    }
    cr_expect_lt(fixed, 12);
    cr_expect_lt(same, 12);
}
