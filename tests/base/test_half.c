/* test_half.c - halves against an oracle that knows only precision and exponents, on both paths: every pattern, every
 * tie between neighbours, and a walk through all of f32. */
#include "base/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/base/expect.h"

#define PATTERNS 65536

/* A binary format by its definition. */
struct format {
    const char *name;
    int precision, lowest, highest; /* bits of the significand with the leading one; exponents of normal numbers */
    uint16_t (*from)(float);
    float (*to)(uint16_t);
    void (*encode)(uint16_t *, const float *, size_t);
    void (*decode)(float *, const uint16_t *, size_t);
};

static const struct format formats[] = {
    {"f16", 11, -14, 15, f16_from_f32, f16_to_f32, f16_encode, f16_decode},
    {"bf16", 8, -126, 127, bf16_from_f32, bf16_to_f32, bf16_encode, bf16_decode},
};
#define FORMATS 2

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The value of a pattern, by the definition of sign, exponent and fraction. */
static double value_of(const struct format *f, uint16_t bits)
{
    const int fraction_bits = f->precision - 1, exponent = (bits & 0x7fff) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1), sign = bits >> 15 != 0 ? -1 : 1;
    const int special = f->highest + 1 - (f->lowest - 1);
    if (exponent == special)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, f->lowest - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits), exponent - 1 + f->lowest - fraction_bits);
}

/* The nearest value of the format, ties to even, infinite beyond the largest. */
static double nearest(const struct format *f, double value)
{
    if (isnan(value) || isinf(value) || value == 0)
        return value;
    int exponent = ilogb(value);
    if (exponent < f->lowest)
        exponent = f->lowest;
    const double place = ldexp(1, exponent - (f->precision - 1)), rounded = rint(value / place) * place;
    return fabs(rounded) >= ldexp(1, f->highest + 1) ? copysign((double)INFINITY, value) : rounded;
}

static bool is_same(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

/* One f32, by both functions of one element; returns the pattern. */
static uint16_t check_from(const struct format *f, float value)
{
    const uint16_t bits = f->from(value);
    cr_assert(is_same(value_of(f, bits), nearest(f, (double)value)), "%s of %a (%08x) is %04x, %a", f->name,
              (double)value, (unsigned)bits_of(value), bits, value_of(f, bits));
    return bits;
}

Test(half, every_pattern_has_its_value_and_comes_back)
{
    for (int k = 0; k < FORMATS; k++)
        for (uint32_t bits = 0; bits < PATTERNS; bits++) {
            const struct format *f = &formats[k];
            const float value = f->to((uint16_t)bits);
            cr_assert(is_same((double)value, value_of(f, (uint16_t)bits)), "%s %04x is %a", f->name, (unsigned)bits,
                      (double)value);
            const uint16_t back = f->from(value);
            const uint32_t quiet = isnan(value) ? 1U << (f->precision - 2) : 0;
            cr_assert_eq(back, bits | quiet, "%s %04x comes back as %04x", f->name, (unsigned)bits, back);
        }
}

/* Halfway between a value and the next, just below and just above. */
Test(half, ties_go_to_even)
{
    for (int k = 0; k < FORMATS; k++)
        for (uint32_t bits = 0; bits < PATTERNS; bits++) {
            const struct format *f = &formats[k];
            const float low = f->to((uint16_t)bits), high = f->to((uint16_t)(bits + 1));
            if (!isfinite(low) || (bits & 0x7fff) == 0x7fff)
                continue;
            const double top = copysign(ldexp(1, f->highest + 1), (double)low); /* in the place of infinity */
            const float tie = (float)(((double)low + (isinf(high) ? top : (double)high)) / 2);
            check_from(f, tie);
            check_from(f, nextafterf(tie, 0));
            check_from(f, nextafterf(tie, copysignf(INFINITY, low)));
        }
}

Test(half, f32_from_end_to_end)
{
    for (int k = 0; k < FORMATS; k++)
        for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 4093)
            check_from(&formats[k], float_of((uint32_t)bits));
}

Test(half, limits)
{
    cr_expect_eq(f16_from_f32(65504), 0x7bff);
    cr_expect_eq(f16_from_f32(65519.996F), 0x7bff);
    cr_expect_eq(f16_from_f32(65520), F16_INFINITY);
    cr_expect_eq(f16_from_f32(-1e30F), 0xfc00);
    cr_expect_eq(f16_from_f32(0x1p-24F), 1);
    cr_expect_eq(f16_from_f32(0x1p-25F), 0);
    cr_expect_eq(f16_from_f32(-0x1.000002p-25F), 0x8001);
    cr_expect_eq(bf16_from_f32(3.4e38F), BF16_INFINITY);
    cr_expect_eq(bf16_from_f32(1), 0x3f80);
    cr_expect_eq(f16_from_f32(float_of(0x7f800001)), 0x7e00, "a signalling NaN is no infinity");
    cr_expect_eq(bf16_from_f32(float_of(0xff800001)), 0xffc0);
}

#define LONGEST 70

/* f32 of every kind, denormal numbers and NaNs of both sorts among them. */
static float sample(uint32_t index)
{
    uint32_t bits = (index + 1) * UINT32_C(0x9e3779b9);
    bits ^= bits >> 13;
    switch (bits % 7) {
    case 0:
        return float_of(bits | UINT32_C(0x7f800000)); /* infinite or NaN */
    case 1:
        return float_of(bits & UINT32_C(0x807fffff)); /* denormal or zero */
    case 2:
        return f16_to_f32((uint16_t)bits);
    case 3:
        return ldexpf((float)(int32_t)bits, (int)(bits % 80) - 71); /* around f16's limits */
    default:
        return float_of(bits);
    }
}

static void check_range(const struct format *f, size_t count, size_t shift, bool plain)
{
    float values[LONGEST + 4], back[LONGEST + 4];
    uint16_t halves[LONGEST + 4];
    memset(halves, 0xa5, sizeof halves);
    memset(back, 0xa5, sizeof back);
    for (size_t i = 0; i < LONGEST + 4; i++)
        values[i] = sample((uint32_t)(i + 1000 * count));
    half_force_plain(plain);
    f->encode(halves + shift, values + shift, count);
    f->decode(back + shift, halves + shift, count);
    for (size_t i = 0; i < LONGEST + 4; i++) {
        const bool inside = i >= shift && i < shift + count;
        const uint16_t wanted = inside ? f->from(values[i]) : 0xa5a5;
        cr_assert_eq(halves[i], wanted, "%s, %zu from %zu: element %zu is %04x, not %04x", f->name, count, shift, i,
                     halves[i], wanted);
        const uint32_t whole = inside ? bits_of(f->to(wanted)) : 0xa5a5a5a5;
        cr_assert_eq(bits_of(back[i]), whole, "%s, %zu from %zu: element %zu comes back as %08x", f->name, count, shift,
                     i, (unsigned)bits_of(back[i]));
    }
}

Test(half, ranges_are_converted_like_elements_on_both_paths)
{
    for (int k = 0; k < FORMATS; k++)
        for (size_t count = 0; count <= LONGEST; count++)
            for (size_t shift = 0; shift < 3; shift++) {
                check_range(&formats[k], count, shift, false);
                check_range(&formats[k], count, shift, true);
            }
}

/* Eight lanes may differ from one element in what no sample shows: all patterns, signalling NaNs included. */
Test(half, both_paths_decode_every_pattern_alike)
{
    static uint16_t patterns[PATTERNS];
    static float fast[PATTERNS], plain[PATTERNS];
    for (uint32_t bits = 0; bits < PATTERNS; bits++)
        patterns[bits] = (uint16_t)bits;
    for (int k = 0; k < FORMATS; k++) {
        half_force_plain(false);
        formats[k].decode(fast, patterns, PATTERNS);
        half_force_plain(true);
        formats[k].decode(plain, patterns, PATTERNS);
        for (uint32_t bits = 0; bits < PATTERNS; bits++)
            cr_assert_eq(bits_of(fast[bits]), bits_of(plain[bits]), "%s %04x", formats[k].name, (unsigned)bits);
    }
}
