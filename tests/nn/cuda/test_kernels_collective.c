/* Reductions against comm/kernels.c to the bit; distances against plain C. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "comm/kernels.h"
#include "support_kernels.h"

static const size_t counts[] = {0, 1, 3, 8, 17, 1003};

static void store_number(enum dtype dtype, void *x, size_t i, double value)
{
    switch (dtype) {
    case DTYPE_F32:
        ((float *)x)[i] = (float)value;
        break;
    case DTYPE_F64:
        ((double *)x)[i] = value;
        break;
    case DTYPE_I32: /* large, so that sums wrap around */
        ((int32_t *)x)[i] = (int32_t)(value * 2e9);
        break;
    case DTYPE_I64:
        ((int64_t *)x)[i] = (int64_t)(value * 9e18);
        break;
    case DTYPE_F16:
        ((uint16_t *)x)[i] = f16_from_f32((float)value);
        break;
    default:
        ((uint16_t *)x)[i] = bf16_from_f32((float)value);
    }
}

/* Zeros of both signs, infinities and NaN where they say something: NaN only for min and max. */
static double operand(enum reduce_op op, int term, size_t i)
{
    static const double odd[] = {0.0, -0.0, INFINITY, 1e-40, -1.0, NAN};
    const size_t kinds = op == REDUCE_MIN || op == REDUCE_MAX ? 6 : 5;
    if (i % 4 == 1 && (i + (size_t)term) % 3 != 0)
        return odd[(i / 4 + (size_t)term) % kinds];
    return (double)number((uint64_t)term + 1, i);
}

static double finite_operand(enum reduce_op op, int term, size_t i)
{
    const double value = operand(op, term, i);
    return isfinite(value) ? value : -0.5;
}

/* dst lies over term `over` (-1: nowhere); arrays begin `skip` elements in, other terms `apart` elements further. */
static void check_reduce(enum dtype dtype, enum reduce_op op, int terms, size_t count, size_t skip, size_t apart,
                         int over)
{
    const size_t size = dtype_size(dtype);
    const double divisor = op == REDUCE_AVG ? (dtype_is_half(dtype) ? 0.75 : 3) : 1;
    const bool whole = dtype == DTYPE_I32 || dtype == DTYPE_I64;
    unsigned char *want = calloc(count + 1, size);
    void *at[CUDA_TERMS_MOST];
    for (int t = 0; t < terms; t++) {
        const size_t begin = skip + (t > 0 ? apart : 0);
        at[t] = (unsigned char *)device((count + begin) * size) + begin * size;
        for (size_t i = 0; i < count; i++)
            store_number(dtype, at[t], i, whole ? finite_operand(op, t, i) : operand(op, t, i));
    }
    memcpy(want, at[0], count * size);
    for (int t = 1; t < terms; t++)
        kernel_reduce(dtype, op, want, want, at[t], count, t == terms - 1 ? divisor : 1);
    unsigned char *dst = over >= 0 ? at[over] : (unsigned char *)device((count + skip) * size) + skip * size;
    DONE(cuda_reduce(NULL, dtype, op, dst, (const void *const *)at, terms, count, divisor));
    cr_assert_eq(memcmp(dst, want, count * size), 0, "%s %s of %d terms, %zu at %zu", dtype_name(dtype),
                 reduce_op_name(op), terms, count, skip);
    free(want);
    devices_release();
}

static void check_reductions(enum dtype dtype, enum reduce_op op)
{
    for (size_t k = 0; k < COUNT_OF(counts); k++) {
        check_reduce(dtype, op, 2, counts[k], 0, 0, 0);
        check_reduce(dtype, op, 2, counts[k], 3, 0, 1);
        check_reduce(dtype, op, 3, counts[k], 1, 2, -1);
    }
    check_reduce(dtype, op, 7, 100, 0, 0, 4);
    check_reduce(dtype, op, CUDA_TERMS_MOST, 50, 5, 0, -1);
}

Test(kernels_collective, reductions_have_the_bits_of_the_host)
{
    EACH_ORDER(order)
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (int op = 0; op < REDUCE_OP_COUNT; op++)
            check_reductions((enum dtype)dtype, (enum reduce_op)op);
    }
}

/* One term: a copy, or for the average its quotient. */
Test(kernels_collective, one_term)
{
    enum { COUNT = 19 };
    for (int d = 0; d < DTYPE_COUNT; d++) {
        const enum dtype dtype = (enum dtype)d;
        void *x = device(COUNT * dtype_size(dtype)), *got = device(COUNT * dtype_size(dtype));
        for (size_t i = 0; i < COUNT; i++)
            store_number(dtype, x, i, (double)number(1, i));
        const void *term[] = {x};
        DONE(cuda_reduce(NULL, dtype, REDUCE_MAX, got, term, 1, COUNT, 1));
        cr_assert_eq(memcmp(got, x, COUNT * dtype_size(dtype)), 0);
        DONE(cuda_reduce(NULL, dtype, REDUCE_AVG, got, term, 1, COUNT, 4));
        for (size_t i = 0; i < COUNT; i++) {
            if (dtype == DTYPE_I32)
                cr_assert_eq(((int32_t *)got)[i], ((int32_t *)x)[i] / 4);
            else if (dtype == DTYPE_I64)
                cr_assert_eq(((int64_t *)got)[i], ((int64_t *)x)[i] / 4);
            else if (dtype == DTYPE_F64)
                cr_assert_eq(((double *)got)[i], ((double *)x)[i] / 4);
            else
                cr_assert_eq(storage_at(dtype, got, i), storage_round(dtype, storage_at(dtype, x, i) / 4));
        }
        REFUSED(cuda_reduce(NULL, dtype, REDUCE_SUM, got, term, 0, COUNT, 1));
        REFUSED(cuda_reduce(NULL, dtype, REDUCE_SUM, got, term, CUDA_TERMS_MOST + 1, COUNT, 1));
        REFUSED(cuda_reduce(NULL, dtype, REDUCE_OP_COUNT, got, term, 1, COUNT, 1));
        devices_release();
    }
    REFUSED(cuda_reduce(NULL, DTYPE_COUNT, REDUCE_SUM, NULL, (const void *const[]){NULL}, 1, 1, 1));
}

static void check_products(enum dtype dtype, size_t count, size_t skip, double weight)
{
    const size_t size = dtype_size(dtype), bytes = (count + skip) * size;
    unsigned char *a = device(bytes), *b = device(bytes), *got = device(bytes), *want = calloc(count + 1, size);
    a += skip * size, b += skip * size, got += skip * size;
    for (size_t i = 0; i < count; i++) {
        store_number(dtype, a, i, operand(REDUCE_SUM, 0, i));
        store_number(dtype, b, i, finite_operand(REDUCE_SUM, 1, i));
    }
    if (dtype < DTYPE_I32) {
        kernel_axpy(dtype, want, a, b, weight, count);
        DONE(cuda_axpy(NULL, dtype, got, a, b, weight, count));
        cr_assert_eq(memcmp(got, want, count * size), 0, "axpy %s %zu", dtype_name(dtype), count);
    } else {
        REFUSED(cuda_axpy(NULL, dtype, got, a, b, weight, count));
    }
    kernel_scale(dtype, want, a, weight, count);
    DONE(cuda_scale(NULL, dtype, a, a, weight, count));
    cr_assert_eq(memcmp(a, want, count * size), 0, "scale %s %zu", dtype_name(dtype), count);
    free(want);
    devices_release();
}

Test(kernels_collective, products_have_the_bits_of_the_host)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16};
    EACH_ORDER(order)
    for (size_t d = 0; d < COUNT_OF(dtypes); d++) {
        for (size_t k = 0; k < COUNT_OF(counts); k++) {
            check_products(dtypes[d], counts[k], 0, 1.0 / 3);
            check_products(dtypes[d], counts[k], 1, -0.7);
        }
    }
    REFUSED(cuda_scale(NULL, DTYPE_I32, NULL, NULL, 2, 1));
}

static void check_distance(size_t count, bool two, struct first_bits *bits)
{
    float *a = device(count * sizeof *a), *b = device(count * sizeof *b);
    double want = 0, *sum = device(sizeof *sum);
    for (size_t i = 0; i < count; i++) {
        a[i] = number(1, i), b[i] = number(2, i);
        const double apart = (double)a[i] - (two ? (double)b[i] : 0);
        want += apart * apart;
    }
    DONE(cuda_squared_distance(NULL, a, two ? b : NULL, count, sum, device(cuda_squared_distance_workspace(count))));
    expect_near(*sum, want, 1e-6, 0, "distance", count);
    expect_same_bits(bits, sum, sizeof *sum, "distance");
    devices_release();
}

Test(kernels_collective, squared_distance)
{
    static const size_t lengths[] = {0, 1, 300, 5000, 100003};
    for (size_t k = 0; k < COUNT_OF(lengths); k++) {
        struct first_bits two = {0}, one = {0};
        EACH_ORDER(order)
        {
            check_distance(lengths[k], true, &two);
            check_distance(lengths[k], false, &one);
        }
        first_bits_release(&two);
        first_bits_release(&one);
    }
}
