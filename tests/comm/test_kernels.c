/* test_kernels.c - every kernel against an oracle that works on one element at a time, on both paths. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"
#include "comm/kernels.h"

#define LARGEST 1000
#define SHIFTS 3 /* starts of 0, 1, 2 elements behind an aligned address */
#define GUARD 0xA5
#define GUARD_BYTES 64
#define ROOM (LARGEST * sizeof(double) + 2 * GUARD_BYTES + SHIFTS * sizeof(double))

union value {
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
    uint16_t half;
};

/* Halves as what they stand for. */
static float half_value(enum dtype dtype, union value value)
{
    return dtype == DTYPE_F16 ? f16_to_f32(value.half) : bf16_to_f32(value.half);
}

static union value half_of(enum dtype dtype, float value)
{
    return (union value){.half = dtype == DTYPE_F16 ? f16_from_f32(value) : bf16_from_f32(value)};
}

struct buffer {
    _Alignas(64) unsigned char bytes[ROOM];
};

/* Where the elements stand: behind the guard, shifted. */
static void *start(struct buffer *buffer, enum dtype dtype, size_t shift)
{
    return buffer->bytes + GUARD_BYTES + shift * dtype_size(dtype);
}

static union value load(enum dtype dtype, const void *from, size_t index)
{
    union value value = {.i64 = 0};
    memcpy(&value, (const char *)from + index * dtype_size(dtype), dtype_size(dtype));
    return value;
}

static void store(enum dtype dtype, void *to, size_t index, union value value)
{
    memcpy((char *)to + index * dtype_size(dtype), &value, dtype_size(dtype));
}

/* Values of both signs and many magnitudes, with every special one among them. */
static union value sample(enum dtype dtype, uint64_t index)
{
    static const double specials[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 5e-324, -1e-40, 3.4e38};
    static const int64_t edges[] = {0, -1, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX, 1, -7};
    uint64_t bits = (index + 1) * UINT64_C(0x9E3779B97F4A7C15);
    bits ^= bits >> 29;
    bool special = bits % 5 == 0;
    double real = special ? specials[bits / 5 % 8] : ldexp((double)(int64_t)bits, (int)(bits % 40) - 80);
    int64_t whole = special ? edges[bits / 5 % 8] : (int64_t)bits;
    switch (dtype) {
    case DTYPE_F32:
        return (union value){.f32 = (float)real};
    case DTYPE_F64:
        return (union value){.f64 = real};
    case DTYPE_I32:
        return (union value){.i32 = special ? (int32_t)edges[bits / 5 % 4] : (int32_t)(bits >> 32)};
    case DTYPE_F16:
    case DTYPE_BF16:
        if (!special && !isnan(half_value(dtype, (union value){.half = (uint16_t)(bits >> 32)})))
            return (union value){.half = (uint16_t)(bits >> 32)};
        return half_of(dtype, (float)real);
    default:
        return (union value){.i64 = whole};
    }
}

static int64_t whole_oracle(enum reduce_op op, int64_t a, int64_t b, bool narrow)
{
    if (op == REDUCE_MIN)
        return a < b ? a : b;
    if (op == REDUCE_MAX)
        return a > b ? a : b;
    uint64_t sum = (uint64_t)a + (uint64_t)b;
    return narrow ? (int32_t)(uint32_t)sum : (int64_t)sum;
}

/* The binary64 kernels are checked in volatile steps: nothing is fused, nothing is kept wider. */
static double real_oracle(enum reduce_op op, double a, double b, double divisor)
{
    if (op == REDUCE_SUM || op == REDUCE_AVG) {
        volatile double sum = a + b;
        volatile double mean = op == REDUCE_AVG && divisor != 1 ? sum / divisor : sum;
        return mean;
    }
    if (isnan(a) || isnan(b))
        return (double)NAN;
    bool a_below = a < b || (a == b && signbit(a) && !signbit(b));
    return (op == REDUCE_MIN) == a_below ? a : b;
}

static float single_oracle(enum reduce_op op, float a, float b, double divisor)
{
    if (op == REDUCE_SUM || op == REDUCE_AVG) {
        volatile float sum = a + b;
        volatile float mean = op == REDUCE_AVG && divisor != 1 ? sum / (float)divisor : sum;
        return mean;
    }
    return (float)real_oracle(op, (double)a, (double)b, 1);
}

static union value oracle(enum dtype dtype, enum reduce_op op, union value a, union value b, double divisor)
{
    int64_t by = op == REDUCE_AVG ? (int64_t)divisor : 1;
    switch (dtype) {
    case DTYPE_F32:
        return (union value){.f32 = single_oracle(op, a.f32, b.f32, divisor)};
    case DTYPE_F64:
        return (union value){.f64 = real_oracle(op, a.f64, b.f64, divisor)};
    case DTYPE_I32:
        return (union value){.i32 = (int32_t)(whole_oracle(op, a.i32, b.i32, true) / by)};
    case DTYPE_F16:
    case DTYPE_BF16:
        return half_of(dtype, single_oracle(op, half_value(dtype, a), half_value(dtype, b), divisor));
    default:
        return (union value){.i64 = whole_oracle(op, a.i64, b.i64, false) / by};
    }
}

/* Bit for bit, but for the payload of a NaN that a sum has made. */
static bool same(enum dtype dtype, union value a, union value b)
{
    if (dtype == DTYPE_F32 && isnan(a.f32) && isnan(b.f32))
        return true;
    if (dtype == DTYPE_F64 && isnan(a.f64) && isnan(b.f64))
        return true;
    if (dtype_is_half(dtype) && isnan(half_value(dtype, a)) && isnan(half_value(dtype, b)))
        return true;
    return memcmp(&a, &b, dtype_size(dtype)) == 0;
}

static void fill(struct buffer *buffer, enum dtype dtype, size_t shift, size_t count, uint64_t seed)
{
    memset(buffer->bytes, GUARD, sizeof buffer->bytes);
    for (size_t i = 0; i < count; i++)
        store(dtype, start(buffer, dtype, shift), i, sample(dtype, seed + i));
}

static void expect_guards(const struct buffer *buffer, enum dtype dtype, size_t shift, size_t count, const char *what)
{
    size_t first = GUARD_BYTES + shift * dtype_size(dtype), end = first + count * dtype_size(dtype);
    bool whole = true;
    for (size_t i = 0; i < sizeof buffer->bytes; i++)
        if ((i < first || i >= end) && buffer->bytes[i] != GUARD)
            whole = false;
    cr_assert(whole, "%s of %zu %s: wrote outside of its range", what, count, dtype_name(dtype));
}

enum alias { APART, OUT_IS_A, OUT_IS_B, ALIASES };

static struct buffer left, right, result, plain_result;

static void check_reduce(enum dtype dtype, enum reduce_op op, size_t count, size_t shift, enum alias alias,
                         double divisor)
{
    size_t shift_b = (shift + 1) % SHIFTS;
    fill(&left, dtype, shift, count, 11);
    fill(&right, dtype, shift_b, count, 5000);
    fill(&result, dtype, shift, 0, 0);
    struct buffer *to = alias == APART ? &result : alias == OUT_IS_A ? &left : &right;
    size_t to_shift = alias == OUT_IS_B ? shift_b : shift;
    void *out = start(to, dtype, to_shift);
    kernel_reduce(dtype, op, out, start(&left, dtype, shift), start(&right, dtype, shift_b), count, divisor);
    for (size_t i = 0; i < count; i++) {
        union value a = sample(dtype, 11 + i), b = sample(dtype, 5000 + i);
        cr_assert(same(dtype, load(dtype, out, i), oracle(dtype, op, a, b, divisor)),
                  "%s %s by %g, %zu elements, shift %zu, alias %d: element %zu is wrong", reduce_op_name(op),
                  dtype_name(dtype), divisor, count, shift, (int)alias, i);
    }
    expect_guards(to, dtype, to_shift, count, reduce_op_name(op));
}

static void check_reduces(enum dtype dtype, enum reduce_op op)
{
    static const double whole[] = {1, 2, 3, 7}, mean[] = {1, 0.75, 0.625, 7};
    const double *divisors = dtype == DTYPE_I32 || dtype == DTYPE_I64 ? whole : mean;
    for (size_t count = 0; count <= 71; count++)
        for (size_t shift = 0; shift < SHIFTS; shift++)
            for (int alias = 0; alias < ALIASES; alias++)
                check_reduce(dtype, op, count <= 70 ? count : LARGEST, shift, (enum alias)alias,
                             divisors[(count + shift) % 4]);
}

static void check_all_reduces(void)
{
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (int op = 0; op < REDUCE_OP_COUNT; op++)
            check_reduces((enum dtype)dtype, (enum reduce_op)op);
}

Test(kernels, reduce_like_the_oracle)
{
    check_all_reduces();
}

Test(kernels, plain_ones_reduce_like_the_oracle)
{
    kernel_force_plain(true);
    cr_assert_str_eq(kernel_name(), "C");
    check_all_reduces();
}

/* Sums of NaN included: whoever chooses the path must not choose the result. */
Test(kernels, both_paths_give_the_same_bits)
{
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (int op = 0; op < REDUCE_OP_COUNT; op++) {
            fill(&left, (enum dtype)dtype, 1, LARGEST, 3);
            fill(&right, (enum dtype)dtype, 1, LARGEST, 8000);
            const void *a = start(&left, (enum dtype)dtype, 1), *b = start(&right, (enum dtype)dtype, 1);
            fill(&result, (enum dtype)dtype, 1, 0, 0);
            fill(&plain_result, (enum dtype)dtype, 1, 0, 0);
            kernel_force_plain(false);
            kernel_reduce((enum dtype)dtype, (enum reduce_op)op, start(&result, (enum dtype)dtype, 1), a, b, LARGEST,
                          3);
            kernel_force_plain(true);
            kernel_reduce((enum dtype)dtype, (enum reduce_op)op, start(&plain_result, (enum dtype)dtype, 1), a, b,
                          LARGEST, 3);
            cr_assert(memcmp(result.bytes, plain_result.bytes, ROOM) == 0, "%s %s differs",
                      reduce_op_name((enum reduce_op)op), dtype_name((enum dtype)dtype));
        }
}

/* Workers that exchange combine in opposite orders. */
Test(kernels, min_and_max_commute_to_the_bit)
{
    static const enum reduce_op ops[] = {REDUCE_MIN, REDUCE_MAX};
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (size_t k = 0; k < 4; k++) {
            enum dtype type = (enum dtype)dtype;
            fill(&left, type, 0, LARGEST, 100);
            fill(&right, type, 0, LARGEST, 9000);
            void *a = start(&left, type, 0), *b = start(&right, type, 0);
            kernel_force_plain(k >= 2);
            fill(&result, type, 0, 0, 0);
            fill(&plain_result, type, 0, 0, 0);
            kernel_reduce(type, ops[k % 2], start(&result, type, 0), a, b, LARGEST, 1);
            kernel_reduce(type, ops[k % 2], start(&plain_result, type, 0), b, a, LARGEST, 1);
            cr_assert(memcmp(result.bytes, plain_result.bytes, ROOM) == 0);
        }
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void check_min_max(float a, float b, float min, float max)
{
    float as[9], bs[9], out[9];
    for (int i = 0; i < 9; i++) {
        as[i] = a;
        bs[i] = b;
    }
    kernel_reduce(DTYPE_F32, REDUCE_MIN, out, as, bs, 9, 1);
    for (int i = 0; i < 9; i++)
        cr_assert(bits_of(out[i]) == bits_of(min), "min(%g, %g) is %g", (double)a, (double)b, (double)out[i]);
    kernel_reduce(DTYPE_F32, REDUCE_MAX, out, as, bs, 9, 1);
    for (int i = 0; i < 9; i++)
        cr_assert(bits_of(out[i]) == bits_of(max), "max(%g, %g) is %g", (double)a, (double)b, (double)out[i]);
}

Test(kernels, a_nan_wins_and_zeros_are_ordered)
{
    for (int plain = 0; plain < 2; plain++) {
        kernel_force_plain(plain != 0);
        check_min_max(NAN, 1.0F, NAN, NAN);
        check_min_max(1.0F, NAN, NAN, NAN);
        check_min_max(-NAN, INFINITY, NAN, NAN);
        check_min_max(NAN, NAN, NAN, NAN);
        check_min_max(0.0F, -0.0F, -0.0F, 0.0F);
        check_min_max(-0.0F, 0.0F, -0.0F, 0.0F);
        check_min_max(-INFINITY, INFINITY, -INFINITY, INFINITY);
    }
}

Test(kernels, integers_wrap_and_truncate)
{
    int32_t a[] = {INT32_MAX, INT32_MIN, -7, 7}, b[] = {1, -1, 0, 0}, out[4];
    kernel_reduce(DTYPE_I32, REDUCE_SUM, out, a, b, 4, 1);
    cr_assert_eq(out[0], INT32_MIN);
    cr_assert_eq(out[1], INT32_MAX);
    kernel_reduce(DTYPE_I32, REDUCE_AVG, out, a, b, 4, 2);
    cr_assert_eq(out[2], -3);
    cr_assert_eq(out[3], 3);
    int64_t wide[] = {INT64_MIN, -9}, zero[] = {-1, 0}, wide_out[2];
    kernel_reduce(DTYPE_I64, REDUCE_SUM, wide_out, wide, zero, 2, 1);
    cr_assert_eq(wide_out[0], INT64_MAX);
    kernel_divide(DTYPE_I64, wide_out, wide, 4, 2);
    cr_assert_eq(wide_out[1], -2);
}

/* a + weight * b, weight * a and a / divisor, one element. */
static union value weighted(enum dtype dtype, int which, union value a, union value b, double weight, int divisor)
{
    if (dtype_is_half(dtype)) {
        volatile float product = (float)weight * half_value(dtype, a);
        return half_of(dtype, product);
    }
    if (dtype == DTYPE_F32) {
        volatile float product = (float)weight * (which == 0 ? b.f32 : a.f32);
        volatile float sum = which == 0 ? a.f32 + product : product;
        return (union value){.f32 = which == 2 ? a.f32 / (float)divisor : sum};
    }
    volatile double product = weight * (which == 0 ? b.f64 : a.f64);
    volatile double sum = which == 0 ? a.f64 + product : product;
    return (union value){.f64 = which == 2 ? a.f64 / divisor : sum};
}

static void check_weighted(enum dtype dtype, int which, size_t count, size_t shift, bool in_place)
{
    const double weight = 1.0 / 3.0;
    fill(&left, dtype, shift, count, 21);
    fill(&right, dtype, 0, count, 7000);
    fill(&result, dtype, shift, 0, 0);
    struct buffer *to = in_place ? &left : &result;
    void *out = start(to, dtype, shift);
    const void *a = start(&left, dtype, shift), *b = start(&right, dtype, 0);
    if (which == 0)
        kernel_axpy(dtype, out, a, b, weight, count);
    else if (which == 1)
        kernel_scale(dtype, out, a, weight, count);
    else
        kernel_divide(dtype, out, a, 7, count);
    for (size_t i = 0; i < count; i++) {
        union value wanted = weighted(dtype, which, sample(dtype, 21 + i), sample(dtype, 7000 + i), weight, 7);
        cr_assert(same(dtype, load(dtype, out, i), wanted), "kernel %d, %s, %zu elements: element %zu is wrong", which,
                  dtype_name(dtype), count, i);
    }
    expect_guards(to, dtype, shift, count, "weighting");
}

Test(kernels, weigh_without_fusing)
{
    for (int plain = 0; plain < 2; plain++) {
        kernel_force_plain(plain != 0);
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
            for (int which = 0; which < 3; which++)
                for (size_t count = 0; count <= 71; count++)
                    for (size_t shift = 0; shift < SHIFTS; shift++) {
                        size_t elements = count <= 70 ? count : LARGEST;
                        bool is_real = dtype == DTYPE_F32 || dtype == DTYPE_F64;
                        if (!is_real && !(dtype_is_half((enum dtype)dtype) && which == 1))
                            continue; /* halves are scaled only */
                        check_weighted((enum dtype)dtype, which, elements, shift, false);
                        check_weighted((enum dtype)dtype, which, elements, shift, true);
                    }
    }
}

/* Where f16 would overflow: 8 x 16384 is beyond its largest value, the mean is not. */
Test(kernels, the_mean_of_halves_does_not_overflow_on_the_way)
{
    static const int workers[] = {1, 2, 3, 5, 7, 8, 1000};
    for (size_t k = 0; k < 7; k++)
        for (int plain = 0; plain < 2; plain++) {
            uint16_t sum[9], input[9];
            const int p = workers[k];
            kernel_force_plain(plain != 0);
            cr_assert(mean_scale(p) * p <= 1 && mean_scale(p) * p > 0.5 && mean_divisor(p) == mean_scale(p) * p);
            for (int i = 0; i < 9; i++)
                sum[i] = input[i] = f16_from_f32(16384);
            kernel_scale(DTYPE_F16, input, input, mean_scale(p), 9);
            kernel_scale(DTYPE_F16, sum, sum, mean_scale(p), 9);
            for (int r = 1; r < p; r++)
                kernel_reduce(DTYPE_F16, REDUCE_AVG, sum, sum, input, 9, r == p - 1 ? mean_divisor(p) : 1);
            for (int i = 0; i < 9; i++)
                cr_assert_eq(f16_to_f32(sum[i]), 16384, "%d workers: %g", p, (double)f16_to_f32(sum[i]));
        }
}
