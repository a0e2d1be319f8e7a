/* test_text.c - growable strings, numbers whatever the locale, and spelling help. */
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"
#include "base/text.h"
#include "tests/base/expect.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

Test(text, zeroed_is_empty_and_valid)
{
    struct text text = {0};
    cr_expect_str_eq(text_string(&text), "");
    EXPECT_OK(text_check(&text));
    text_clear(&text);
    text_release(&text);
}

Test(text, grows)
{
    struct text text = {0};
    for (int i = 0; i < 1000; i++)
        text_addf(&text, "%d,%s;", i, "x");
    EXPECT_OK(text_check(&text));
    cr_expect_eq(text.length, strlen(text.data));
    cr_expect(strncmp(text.data, "0,x;1,x;2,x;", 12) == 0);
    cr_expect_str_eq(text.data + text.length - 6, "999,x;");
    text_clear(&text);
    text_add_bytes(&text, "a\0b", 3);
    text_add(&text, "c");
    cr_expect_eq(text.length, 4);
    cr_expect(memcmp(text.data, "a\0bc", 5) == 0);
    text_release(&text);
    cr_expect_null(text.data);
}

Test(text, failure_sticks_and_is_reported_once)
{
    struct text text = {0};
    text_add(&text, "kept");
    text_add_bytes(&text, "", SIZE_MAX - 2);
    text_add(&text, "not added");
    cr_expect(text.failed);
    cr_expect_str_eq(text_string(&text), "kept");
    EXPECT_FAIL(STATUS_NO_MEMORY, "out of memory", text_check(&text));
    text_release(&text);
}

static void expect_real(double value, int digits, const char *wanted)
{
    struct text text = {0};
    text_add_real(&text, value, digits);
    cr_expect_str_eq(text_string(&text), wanted);
    text_release(&text);
}

static void expect_fixed(double value, int decimals, const char *wanted)
{
    struct text text = {0};
    text_add_fixed(&text, value, decimals);
    cr_expect_str_eq(text_string(&text), wanted);
    text_release(&text);
}

Test(text, reals_are_as_short_as_they_can_be)
{
    expect_real(0.1, 17, "0.1");
    expect_real(0.1 + 0.2, 17, "0.30000000000000004");
    expect_real(0.1 + 0.2, 12, "0.3");
    expect_real(5, 17, "5");
    expect_real(-0.0, 17, "-0");
    expect_real(1.0 / 3, 3, "0.333");
    expect_real(1e20, 6, "1e+20");
    expect_real(123456.0, 3, "123000");
    expect_real(30.0, 9, "30");
    expect_real((double)NAN, 6, "nan");
    expect_real(-(double)INFINITY, 6, "-inf");
    expect_fixed(12.5, 2, "12.50");
    expect_fixed(-0.125, 0, "-0");
    struct text longest = {0};
    text_add_fixed(&longest, DBL_MAX, 1);
    cr_expect_eq(longest.length, 311);
    text_release(&longest);
}

Test(text, seventeen_digits_come_back_bit_for_bit)
{
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bits = rng_u64(7, i);
        uint64_t bits_back = 0;
        double value, back = 0;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        struct text text = {0};
        text_add_real(&text, value, 17);
        cr_assert_eq(parse_real(text_string(&text), &back), STATUS_OK, "%s", text_string(&text));
        memcpy(&bits_back, &back, sizeof back);
        cr_assert_eq(bits_back, bits, "%s", text_string(&text));
        text_release(&text);
    }
}

/* A locale whose decimal point is a comma, or skip: not every system has one installed. */
static void use_comma_locale(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (setlocale(LC_ALL, names[i]) != NULL && strcmp(localeconv()->decimal_point, ",") == 0)
            return;
    cr_skip_test("no locale with a decimal comma is installed");
}

Test(text, numbers_ignore_the_locale)
{
    use_comma_locale();
    expect_real(0.5, 17, "0.5");
    expect_fixed(12.5, 2, "12.50");
    double value = 0;
    size_t bytes = 0;
    EXPECT_OK(parse_real("1.25", &value));
    cr_expect_eq(value, 1.25);
    EXPECT_FAIL(STATUS_FORMAT, "1,25", parse_real("1,25", &value));
    EXPECT_OK(parse_size("1.5K", &bytes));
    cr_expect_eq(bytes, 1536);
    EXPECT_OK(parse_quantity("1.5us", "s", &value));
    cr_expect_float_eq(value, 1.5e-6, 1e-20);
    char buffer[16];
    (void)snprintf(buffer, sizeof buffer, "%.1f", 0.5);
    cr_expect_str_eq(buffer, "0,5", "the caller's locale stands afterwards");
}

Test(parse, real_takes_numbers)
{
    const struct {
        const char *string;
        double value;
    } good[] = {{"0", 0},          {"-1.5", -1.5}, {"+2", 2}, {".5", 0.5}, {"1e-3", 1e-3}, {"inf", (double)INFINITY},
                {"1e-320", 1e-320}};
    for (size_t i = 0; i < COUNT(good); i++) {
        double value = -99;
        EXPECT_OK(parse_real(good[i].string, &value));
        cr_expect(value == good[i].value, "%s", good[i].string);
    }
}

Test(parse, real_refuses_the_rest)
{
    static const char *const bad[] = {"",    " 1",    "1 ",     "1x",  "0x10", "-0X1p3",
                                      "nan", "1e999", "-1e999", "1,5", "-",    "."};
    double value = -99;
    for (size_t i = 0; i < COUNT(bad); i++)
        EXPECT_FAIL(STATUS_FORMAT, bad[i], parse_real(bad[i], &value));
    cr_expect_eq(value, -99);
}

Test(parse, int_takes_whole_numbers_of_64_bits)
{
    long long value = 0;
    EXPECT_OK(parse_int("-9223372036854775808", &value));
    cr_expect_eq(value, INT64_MIN);
    EXPECT_OK(parse_int("+007", &value));
    cr_expect_eq(value, 7);
    static const char *const bad[] = {"", "-", "1.0", " 1", "1 ", "9223372036854775808", "0x1", "1e3"};
    for (size_t i = 0; i < COUNT(bad); i++)
        EXPECT_FAIL(STATUS_FORMAT, bad[i], parse_int(bad[i], &value));
    cr_expect_eq(value, 7);
}

Test(parse, size_takes_binary_suffixes)
{
    const struct {
        const char *string;
        size_t value;
    } good[] = {
        {"0", 0},       {"8", 8},      {"64M", (size_t)64 << 20},         {"256k", 256 * 1024}, {"1T", (size_t)1 << 40},
        {"1.5K", 1536}, {"1e3", 1000}, {"18446744073709551615", SIZE_MAX}};
    for (size_t i = 0; i < COUNT(good); i++) {
        size_t value = 99;
        EXPECT_OK(parse_size(good[i].string, &value));
        cr_expect_eq(value, good[i].value, "%s", good[i].string);
    }
    static const char *const bad[] = {
        "",     "M",   "-1",  "1MB",  "1 M", "18446744073709551616", "17179869184G", "0.3K",
        "1e30", "1.5", "1KK", "-.5K", "0x10"};
    size_t value = 99;
    for (size_t i = 0; i < COUNT(bad); i++)
        EXPECT_FAIL(STATUS_FORMAT, bad[i], parse_size(bad[i], &value));
    cr_expect_eq(value, 99);
}

Test(parse, quantities_become_base_units)
{
    const struct {
        const char *string, *dimension;
        double value;
    } good[] = {{"1.9us", "s", 1.9e-6},     {"30 s", "s", 30},
                {"2min", "s", 120},         {"12.5GB/s", "B/s", 12.5e9},
                {"56Gbit/s", "B/s", 7e9},   {"1KiB/s", "B/s", 1024},
                {"0.1ns/B", "s/B", 0.1e-9}, {"4KiB", "B", 4096},
                {"100MB", "B", 1e8},        {"350 images/s", "images/s", 350},
                {"3.5", "", 3.5},           {"inf GB/s", "B/s", (double)INFINITY}};
    for (size_t i = 0; i < COUNT(good); i++) {
        double value = -99;
        EXPECT_OK(parse_quantity(good[i].string, good[i].dimension, &value));
        cr_expect(value == good[i].value || fabs(value / good[i].value - 1) < 1e-15, "%s is %.17g", good[i].string,
                  value);
    }
    double value = -99;
    EXPECT_FAIL(STATUS_FORMAT, "s, ms, us, ns", parse_quantity("30", "s", &value));
    EXPECT_FAIL(STATUS_FORMAT, "GB/s", parse_quantity("12.5GB", "B/s", &value));
    EXPECT_FAIL(STATUS_FORMAT, "MiB", parse_quantity("4 mib", "B", &value));
    EXPECT_FAIL(STATUS_FORMAT, "plain number", parse_quantity("4B", "", &value));
    EXPECT_FAIL(STATUS_FORMAT, "", parse_quantity("us", "s", &value));
    EXPECT_FAIL(STATUS_FORMAT, "", parse_quantity("1us ", "s", &value));
    cr_expect_eq(value, -99);
}

Test(spelling, the_nearest_is_found)
{
    static const char *const words[] = {"ring", "rhd", "binomial", "hierarchical", "double-buffered"};
    cr_expect_str_eq(nearest_spelling("rnig", words, COUNT(words)), "ring");
    cr_expect_str_eq(nearest_spelling("hierachical", words, COUNT(words)), "hierarchical");
    cr_expect_str_eq(nearest_spelling("double_bufered", words, COUNT(words)), "double-buffered");
    cr_expect_eq(nearest_spelling("ring", words, COUNT(words)), words[0]);
}

Test(spelling, nothing_near_is_nothing)
{
    static const char *const words[] = {"ring", "rhd", "op"};
    cr_expect_null(nearest_spelling("butterfly", words, COUNT(words)));
    cr_expect_null(nearest_spelling("x", words, COUNT(words)));
    cr_expect_null(nearest_spelling("", words, COUNT(words)));
    cr_expect_null(nearest_spelling("ring", words, 0));
    char longest[200];
    memset(longest, 'r', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    const char *const long_word[] = {longest};
    cr_expect_null(nearest_spelling(longest, words, COUNT(words)));
    cr_expect_null(nearest_spelling("ring", long_word, 1));
}
