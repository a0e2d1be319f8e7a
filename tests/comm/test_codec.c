/* test_codec.c - wire formats: spelling, lengths, round trips against oracles, promised errors, idempotence, and bytes
 * that are no encoding.
 */
#include "comm/codec.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "base/half.h"
#include "base/rng.h"
#include "tests/base/expect.h"

#define LONGEST 70000 /* beyond what two bytes of index reach */
#define GUARD 0xa5
#define KEY UINT64_C(77)

static float values[LONGEST], decoded[LONGEST], again[LONGEST];
static unsigned char bytes[16 + 8 * LONGEST + 16];

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void fill(size_t count, uint64_t seed, double scale)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(rng_normal(seed, i) * scale);
}

/* Released when the test ends: each runs in a process of its own. */
static struct wire_format formats[64];
static size_t format_count;

static struct wire_format format_of(const char *text)
{
    cr_assert_lt(format_count, 64);
    EXPECT_OK(wire_format_parse(text, &formats[format_count]));
    return formats[format_count++];
}

static void release_formats(void)
{
    while (format_count > 0)
        wire_format_release(&formats[--format_count]);
}

TestSuite(codec, .fini = release_formats);

/* values -> bytes -> decoded, within the bound on the length. */
static size_t pass(const struct wire_format *format, size_t count)
{
    const size_t bound = wire_format_bound(format, count);
    cr_assert_leq(bound, sizeof bytes - 16);
    memset(bytes, GUARD, bound + 16);
    const size_t length = wire_format_encode(format, KEY, values, count, bytes);
    cr_assert_leq(length, bound, "%s: %zu bytes, at most %zu were promised", format->codec->name, length, bound);
    for (size_t i = length; i < bound + 16; i++)
        cr_assert_eq(bytes[i], GUARD, "%s wrote beyond its length", format->codec->name);
    EXPECT_OK(wire_format_decode(format, bytes, length, decoded, count));
    return length;
}

static double norm(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += ((double)a[i] - (b != NULL ? (double)b[i] : 0)) * ((double)a[i] - (b != NULL ? (double)b[i] : 0));
    return sqrt(sum);
}

static double largest(const float *a, size_t count)
{
    double most = 0;
    for (size_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)a[i]));
    return most;
}

struct format_case {
    char text[32];
};

ParameterizedTestParameters(codec, keeps_its_promises)
{
    static const char *const texts[] = {"f32",
                                        "f16",
                                        "bf16",
                                        "int8",
                                        "sign",
                                        "top-k",
                                        "top-k:ratio=0.3",
                                        "top-k:ratio=1",
                                        "random-k",
                                        "random-k:ratio=0.25"};
    struct format_case *cases = cr_malloc(10 * sizeof *cases);
    for (size_t i = 0; i < 10; i++)
        snprintf(cases[i].text, sizeof cases[i].text, "%s", texts[i]);
    return cr_make_param_array(struct format_case, cases, 10);
}

/* The error is within what is promised, at any size and scale; again, what was decoded gives the same. */
ParameterizedTest(struct format_case *c, codec, keeps_its_promises)
{
    static const size_t counts[] = {0, 1, 2, 7, 8, 9, 100, 1021, 65536, LONGEST};
    static const double scales[] = {1, 1e-3, 1e-7, 1e3};
    struct wire_format format = format_of(c->text);
    for (size_t k = 0; k < 10; k++)
        for (size_t s = 0; s < 4; s++) {
            const size_t count = counts[k];
            fill(count, k * 10 + s, scales[s]);
            pass(&format, count);
            const double error = norm(values, decoded, count), all = norm(values, NULL, count);
            const double promised = wire_format_error(&format, count, all, largest(values, count));
            cr_assert(error <= promised * (1 + 1e-6), "%s, %zu elements of size %g: error %g of %g, %g promised",
                      c->text, count, scales[s], error, all, promised);
            memcpy(values, decoded, count * sizeof *values);
            memcpy(again, decoded, count * sizeof *values);
            pass(&format, count);
            for (size_t i = 0; i < count; i++)
                cr_assert_eq(bits_of(decoded[i]), bits_of(again[i]), "%s: element %zu of %zu changed again", c->text, i,
                             count);
        }
}

Test(codec, f16_and_bf16_round_each_element)
{
    struct wire_format f16 = format_of("f16"), bf16 = format_of("bf16");
    fill(1000, 5, 300);
    values[3] = 1e6F;
    cr_assert_eq(pass(&f16, 1000), 2000);
    for (size_t i = 0; i < 1000; i++)
        cr_assert_eq(decoded[i], f16_to_f32(f16_from_f32(values[i])));
    cr_assert_eq(pass(&bf16, 1000), 2000);
    for (size_t i = 0; i < 1000; i++)
        cr_assert_eq(decoded[i], bf16_to_f32(bf16_from_f32(values[i])));
}

static int by_size(const void *a, const void *b)
{
    const float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
    return (x < y) - (x > y);
}

/* Against sorting: the k largest are there, nothing else is; ties go to the first. */
static void check_top_k(size_t count, size_t k, const char *text)
{
    struct wire_format format = format_of(text);
    static float sorted[LONGEST];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, by_size);
    pass(&format, count);
    const float edge = fabsf(sorted[k - 1]);
    size_t kept = 0, tied = 0, room = 0;
    for (size_t i = 0; i < k; i++)
        room += fabsf(sorted[i]) == edge;
    for (size_t i = 0; i < count; i++) {
        const bool takes = fabsf(values[i]) > edge || (fabsf(values[i]) == edge && tied++ < room);
        cr_assert_eq(decoded[i], takes ? values[i] : 0, "%s of %zu: element %zu", text, count, i);
        kept += takes;
    }
    cr_assert_eq(kept, k);
}

Test(codec, top_k_takes_the_largest)
{
    fill(LONGEST, 9, 1);
    check_top_k(LONGEST, 700, "top-k");
    check_top_k(65536, 656, "top-k"); /* ceil */
    check_top_k(1021, 307, "top-k:ratio=0.3");
    for (size_t i = 0; i < 1000; i++) /* ties without end, of both signs */
        values[i] = (float)(i * 7 % 5) - 2;
    check_top_k(1000, 200, "top-k:ratio=0.2");
    check_top_k(1000, 399, "top-k:ratio=0.399");
    for (size_t i = 0; i < 4096; i++) /* apart in the last digit only */
        values[i] = ldexpf(1 + (float)(i * 1021 % 4096) / 4194304, 3);
    check_top_k(4096, 410, "top-k:ratio=0.1");
}

Test(codec, top_k_sends_no_zeros)
{
    struct wire_format format = format_of("top-k:ratio=0.5");
    memset(values, 0, 1000 * sizeof *values);
    cr_assert_eq(pass(&format, 1000), 4);
    values[17] = -3;
    cr_assert_eq(pass(&format, 1000), 4 + 2 + 4);
    cr_assert_eq(decoded[17], -3);
}

Test(codec, random_k_draws_evenly_and_again_by_its_key)
{
    enum { COUNT = 1000, DRAWS = 4000 };
    struct wire_format format = format_of("random-k:ratio=0.1");
    size_t times[COUNT] = {0};
    for (size_t i = 0; i < COUNT; i++)
        values[i] = 1;
    for (uint64_t key = 0; key < DRAWS; key++) {
        const size_t length = wire_format_encode(&format, key, values, COUNT, bytes);
        EXPECT_OK(wire_format_decode(&format, bytes, length, decoded, COUNT));
        size_t taken = 0;
        for (size_t i = 0; i < COUNT; i++) {
            times[i] += decoded[i] == 1;
            taken += decoded[i] == 1;
        }
        cr_assert_eq(taken, 100);
    }
    for (size_t i = 0; i < COUNT; i++) /* 400 expected, deviation 19 */
        cr_assert(times[i] > 280 && times[i] < 520, "element %zu was drawn %zu times", i, times[i]);
}

Test(codec, sign_sends_the_mean_magnitude)
{
    struct wire_format format = format_of("sign");
    const float some[] = {1, -2, 3, -6, -0.0F, 0, 4, 8, -24};
    memcpy(values, some, sizeof some);
    cr_assert_eq(pass(&format, 9), 4 + 2);
    for (size_t i = 0; i < 9; i++)
        cr_assert_eq(decoded[i], signbit(some[i]) ? -48.0F / 9 : 48.0F / 9);
}

Test(codec, int8_is_exact_for_what_fits)
{
    struct wire_format format = format_of("int8");
    for (int e = -126; e <= 120; e++) {
        for (size_t i = 0; i < 255; i++)
            values[i] = ldexpf((float)i - 127, e);
        cr_assert_eq(pass(&format, 255), 257);
        for (size_t i = 0; i < 255; i++)
            cr_assert_eq(decoded[i], values[i], "2^%d: element %zu", e, i);
    }
}

/* What is not finite never turns into a number that looks like one. */
Test(codec, not_finite_is_never_hidden)
{
    static const char *const texts[] = {"f32", "f16", "bf16", "int8", "sign", "top-k"};
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t f = 0; f < 6; f++)
        for (size_t b = 0; b < 3; b++) {
            struct wire_format format = format_of(texts[f]);
            fill(1000, 3, 1);
            values[123] = bad[b];
            pass(&format, 1000);
            cr_assert(!isfinite(decoded[123]), "%s makes %g of %g", texts[f], (double)decoded[123], (double)bad[b]);
        }
}

Test(codec, bytes_that_are_no_encoding_are_refused)
{
    static const char *const texts[] = {"f32", "f16", "bf16", "int8", "sign", "top-k:ratio=0.1", "random-k:ratio=0.1"};
    for (size_t f = 0; f < 7; f++) {
        struct wire_format format = format_of(texts[f]);
        fill(100, 3, 1);
        const size_t length = pass(&format, 100);
        for (size_t wrong = 0; wrong < length + 8; wrong++)
            if (wrong != length)
                EXPECT_FAIL(STATUS_FORMAT, "elements in", wire_format_decode(&format, bytes, wrong, decoded, 100));
    }
    struct wire_format top = format_of("top-k:ratio=0.1");
    const size_t length = pass(&top, 100);
    bytes[4] = 101;
    EXPECT_FAIL(STATUS_FORMAT, "index 101 of 100", wire_format_decode(&top, bytes, length, decoded, 100));
    bytes[4] = bytes[6];
    EXPECT_FAIL(STATUS_FORMAT, "not ascending", wire_format_decode(&top, bytes, length, decoded, 100));
    struct wire_format int8 = format_of("int8");
    const size_t whole = pass(&int8, 100);
    bytes[1] = 0x7f;
    EXPECT_FAIL(STATUS_FORMAT, "scale", wire_format_decode(&int8, bytes, whole, decoded, 100));
}

/* Noise never makes a decoder read or write elsewhere (seen by the address sanitizer) nor hang. */
Test(codec, noise_is_survived)
{
    size_t count = 0;
    const struct codec *const *codecs = codec_catalogue(&count);
    for (size_t f = 0; f < count; f++) {
        struct wire_format format = format_of(codecs[f]->name);
        for (uint64_t round = 0; round < 2000; round++) {
            const size_t elements = (size_t)rng_below(1, round, 40), length = (size_t)rng_below(2, round, 100);
            unsigned char *noise = malloc(length + 1);
            float *out = malloc(elements * sizeof(float) + 1);
            cr_assert(noise != NULL && out != NULL);
            for (size_t i = 0; i < length; i++)
                noise[i] = (unsigned char)rng_below(3 + round, i, i % 4 == 0 ? 4 : 256);
            (void)!wire_format_decode(&format, noise, length, out, elements);
            free(noise);
            free(out);
        }
    }
}

Test(codec, statistics_count_what_happened)
{
    const float before[] = {1, 1e6F, -1e6F, INFINITY, NAN, 1e-9F, -1e-9F, 0, 3, -4, 2};
    const float after[] = {1, INFINITY, -INFINITY, INFINITY, NAN, 0, -0.0F, 0, 3, -4, 1};
    struct codec_statistics s = {0}, sum = {.infinite = 1, .worst = 1e-3};
    codec_examine(before, after, 11, &s);
    cr_assert_eq(s.infinite, 2, "an infinity that was one is no overflow");
    cr_assert_eq(s.nan, 1);
    cr_assert_eq(s.flushed, 2);
    cr_assert_float_eq(s.worst, 1 / sqrt(1 + 9 + 16 + 4), 1e-9);
    codec_statistics_add(&sum, &s);
    cr_assert(sum.infinite == 3 && sum.nan == 1 && sum.flushed == 2 && sum.worst == s.worst);
    fill(5000, 3, 1);
    struct wire_format format = format_of("top-k:ratio=0.25");
    pass(&format, 5000);
    s = (struct codec_statistics){0};
    codec_examine(values, decoded, 5000, &s);
    cr_assert_eq(s.flushed, 3750);
    cr_assert_float_eq(s.worst, norm(values, decoded, 5000) / norm(values, NULL, 5000), 1e-9);
}

/* Eight at a time or one by one: with every kind of value at every place, and counts that eight does not divide. */
Test(codec, statistics_are_the_same_at_any_place)
{
    static const float before[] = {1.5F, 1e6F, NAN, 1e-9F, INFINITY, -2, 0, -1e6F, 3, -1e-40F, 7};
    static const float after[] = {1.5F, INFINITY, NAN, 0, INFINITY, -3, 0, -INFINITY, NAN, 0, 7};
    for (size_t shift = 0; shift < 11; shift++)
        for (size_t count = 0; count < 60; count++) {
            struct codec_statistics s = {0};
            uint64_t infinite = 0, nan = 0, flushed = 0;
            double error = 0, all = 0;
            for (size_t i = 0; i < count; i++) {
                const size_t k = (i + shift) % 11;
                values[i] = before[k];
                decoded[i] = after[k];
                infinite += k == 1 || k == 7;
                nan += k == 2 || k == 8;
                flushed += k == 3 || k == 9;
                error += k == 5 ? 1 : k == 3 ? 1e-18 : k == 9 ? 1e-80 : 0;
                all += k == 0 ? 2.25 : k == 5 ? 4 : k == 10 ? 49 : k == 3 ? 1e-18 : k == 9 ? 1e-80 : 0;
            }
            codec_examine(values, decoded, count, &s);
            cr_assert(s.infinite == infinite && s.nan == nan && s.flushed == flushed, "%zu from %zu", count, shift);
            cr_assert_float_eq(s.worst, all > 0 ? sqrt(error / all) : 0, 1e-6, "%zu from %zu: %g", count, shift,
                               s.worst);
        }
}

static void expect_canonical(const char *text, const char *wanted)
{
    struct wire_format format = format_of(text);
    struct text canonical = {0};
    wire_format_canonical(&format, &canonical);
    cr_expect_str_eq(text_string(&canonical), wanted);
    text_release(&canonical);
}

Test(codec, spelling)
{
    struct wire_format format;
    size_t count = 0;
    const struct codec *const *codecs = codec_catalogue(&count);
    for (size_t i = 0; i < count; i++) {
        expect_canonical(codecs[i]->name, codecs[i]->name);
        cr_expect_eq(codec_find(codecs[i]->name), codecs[i]);
        if (codecs[i]->options != NULL)
            EXPECT_OK(option_table_check(codecs[i]->options));
    }
    expect_canonical("top-k:ratio=0.010", "top-k");
    expect_canonical("top-k:ratio=0.20", "top-k:ratio=0.2");
    EXPECT_FAIL(STATUS_USAGE, "did you mean bf16?", wire_format_parse("bf61", &format));
    EXPECT_FAIL(STATUS_USAGE, "did you mean top-k?", wire_format_parse("topk:ratio=0.1", &format));
    EXPECT_FAIL(STATUS_USAGE, "give one of f32", wire_format_parse("mpeg", &format));
    EXPECT_FAIL(STATUS_USAGE, "f16 takes no options", wire_format_parse("f16:ratio=1", &format));
    EXPECT_FAIL(STATUS_USAGE, "ratio", wire_format_parse("top-k:ration=0.1", &format));
    EXPECT_FAIL(STATUS_USAGE, "ratio", wire_format_parse("top-k:ratio=2", &format));
    EXPECT_FAIL(STATUS_USAGE, "key=value", wire_format_parse("top-k:", &format));
    EXPECT_FAIL(STATUS_USAGE, "key=value", wire_format_parse("top-k:ratio=0.1,x", &format));
    cr_expect_null(codec_find("f3"));
}

Test(codec, what_changes_elements)
{
    struct wire_format none = {0}, f32 = format_of("f32"), f16 = format_of("f16"), top = format_of("top-k");
    cr_expect(!wire_format_changes(NULL, DTYPE_F64) && !wire_format_changes(&none, DTYPE_I32));
    cr_expect(!wire_format_changes(&f32, DTYPE_F32) && wire_format_changes(&f32, DTYPE_F64));
    cr_expect(!wire_format_changes(&f16, DTYPE_F16) && wire_format_changes(&f16, DTYPE_F32));
    const struct shape ring = {.algorithm = algorithm_find("ring"), .traits = TRAIT_EQUAL_BITS};
    const struct shape naive = {.algorithm = algorithm_find("naive"), .traits = TRAIT_WHOLE_INPUTS};
    EXPECT_OK(wire_format_check(&top, DTYPE_F32, REDUCE_SUM, &naive));
    EXPECT_OK(wire_format_check(&f16, DTYPE_F32, REDUCE_MAX, &ring));
    EXPECT_OK(wire_format_check(&f16, DTYPE_F16, REDUCE_MAX, &ring));
    EXPECT_FAIL(STATUS_REFUSED, "made from f32, not from i32", wire_format_check(&top, DTYPE_I32, REDUCE_SUM, &naive));
    EXPECT_FAIL(STATUS_REFUSED, "not from bf16", wire_format_check(&f16, DTYPE_BF16, REDUCE_SUM, &ring));
    EXPECT_FAIL(STATUS_REFUSED, "not max", wire_format_check(&top, DTYPE_F32, REDUCE_MAX, &naive));
    EXPECT_FAIL(STATUS_REFUSED, "ring sends partial sums", wire_format_check(&top, DTYPE_F32, REDUCE_SUM, &ring));
    EXPECT_FAIL(STATUS_REFUSED, "take one of naive", wire_format_check(&top, DTYPE_F32, REDUCE_SUM, &ring));
    cr_expect(wire_format_by_element(&f16) && !wire_format_by_element(&top));
    cr_expect_eq(wire_format_ratio(&f16, 1000), 0.5);
    cr_expect_float_eq(wire_format_ratio(&top, 65536), (4 + 656 * 6) / (4.0 * 65536), 1e-12);
}
