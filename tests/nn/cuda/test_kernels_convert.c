/* Conversions, wire formats and checks, against base/half.c and comm/codec_examine.c, to the bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "comm/codec.h"
#include "nn/cuda/element.h"
#include "support_kernels.h"

/* ---- elements ---- */

Test(kernels_convert, all_halves)
{
    for (uint32_t half = 0; half <= UINT16_MAX; half++) {
        cr_assert_eq(element_bits(element_from_f16((uint16_t)half)), element_bits(f16_to_f32((uint16_t)half)));
        cr_assert_eq(element_bits(element_from_bf16((uint16_t)half)), element_bits(bf16_to_f32((uint16_t)half)));
    }
}

/* Every 4099th of all floats, and all near the places where rounding changes. */
Test(kernels_convert, many_floats)
{
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 4099) {
        const float value = element_float((uint32_t)bits);
        cr_assert_eq(element_to_f16(value), f16_from_f32(value), "%08x", (unsigned)bits);
        cr_assert_eq(element_to_bf16(value), bf16_from_f32(value), "%08x", (unsigned)bits);
    }
    for (uint32_t half = 0; half <= UINT16_MAX; half++) {
        for (int near = -2; near <= 2; near++) {
            const float f16 = element_float(element_bits(f16_to_f32((uint16_t)half)) + 0x1000 + (uint32_t)near);
            const float bf16 = element_float((half << 16) + 0x8000 + (uint32_t)near);
            cr_assert_eq(element_to_f16(f16), f16_from_f32(f16));
            cr_assert_eq(element_to_bf16(bf16), bf16_from_f32(bf16));
        }
    }
}

/* ---- ranges ---- */

static const size_t counts[] = {0, 1, 7, 8, 9, 31, 1000};

/* Large, small, infinite, NaN among ordinary numbers. */
static float odd_number(size_t i)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN,     65504, 65519, 65520,
                                1e-8F,    -1e-30F,   3.4e38F, 0,     -0.0F, 1e-41F};
    return i % 5 == 3 ? odd[i / 5 % COUNT_OF(odd)] : number(1, i) * ldexpf(1, (int)(i % 40) - 20);
}

/* What kernels must give: by f32, element by element. */
static void cast_on_host(enum dtype to_type, void *to, enum dtype from_type, const void *from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float value = storage_at(from_type, from, i);
        if (to_type == DTYPE_F32)
            ((float *)to)[i] = value;
        else
            ((uint16_t *)to)[i] = to_type == DTYPE_F16 ? f16_from_f32(value) : bf16_from_f32(value);
    }
}

/* Ranges that begin `skip` elements into their arrays, by different amounts: vectors, and none. */
static void check_cast(enum dtype to_type, enum dtype from_type, size_t count, size_t skip_to, size_t skip_from)
{
    const size_t to_size = dtype_size(to_type), from_size = dtype_size(from_type);
    unsigned char *to = device((count + skip_to) * to_size), *from = device((count + skip_from) * from_size);
    unsigned char *want = malloc(count * to_size + 1);
    cr_assert_not_null(want);
    to += skip_to * to_size, from += skip_from * from_size;
    for (size_t i = 0; i < count; i++) {
        const float value = odd_number(i);
        cast_on_host(from_type, from + i * from_size, DTYPE_F32, &value, 1);
    }
    cast_on_host(to_type, want, from_type, from, count);
    DONE(cuda_cast(NULL, to_type, to, from_type, from, count));
    cr_assert_eq(memcmp(to, want, count * to_size), 0, "%s from %s, %zu at %zu from %zu", dtype_name(to_type),
                 dtype_name(from_type), count, skip_to, skip_from);
    for (size_t i = 0; i < skip_to * to_size; i++)
        cr_assert_eq(to[i - skip_to * to_size], 0xff, "written before the range");
    free(want);
    devices_release();
}

Test(kernels_convert, casts)
{
    EACH_ORDER(order)
    {
        EACH_STORAGE(to)
        {
            EACH_STORAGE(from)
            {
                for (const size_t *count = counts; count < counts + COUNT_OF(counts); count++) {
                    check_cast(*to, *from, *count, 0, 0);
                    check_cast(*to, *from, *count, 3, 3);
                    check_cast(*to, *from, *count, 1, 6);
                }
            }
        }
    }
}

Test(kernels_convert, cast_in_place)
{
    float values[20];
    for (size_t i = 0; i < COUNT_OF(values); i++)
        values[i] = number(2, i);
    uint16_t *x = device_storage(DTYPE_BF16, values, COUNT_OF(values));
    DONE(cuda_cast(NULL, DTYPE_F16, x, DTYPE_BF16, x, COUNT_OF(values)));
    for (size_t i = 0; i < COUNT_OF(values); i++)
        cr_assert_eq(x[i], f16_from_f32(bf16_to_f32(bf16_from_f32(values[i]))));
    REFUSED(cuda_cast(NULL, DTYPE_I32, x, DTYPE_BF16, x, 1));
    devices_release();
}

static void check_encode(enum dtype wire, size_t count, size_t skip, bool keeps)
{
    float *from = device((count + skip) * sizeof(float)), *decoded = keeps ? from + skip : NULL;
    uint16_t *to = device((count + skip) * sizeof(uint16_t)), *want = calloc(count + 1, sizeof *want);
    float *back = calloc(count + 1, sizeof *back);
    struct cuda_encoded *found = device(sizeof *found);
    *found = (struct cuda_encoded){.infinite = 5};
    from += skip, to += skip;
    for (size_t i = 0; i < count; i++)
        from[i] = odd_number(i);
    cast_on_host(wire, want, DTYPE_F32, from, count);
    cast_on_host(DTYPE_F32, back, wire, want, count);
    struct codec_statistics statistics = {0};
    codec_examine(from, back, count, &statistics);

    DONE(cuda_encode(NULL, wire, to, from, count, decoded, found));
    cr_assert_eq(memcmp(to, want, count * sizeof *want), 0);
    if (keeps)
        cr_assert_eq(memcmp(decoded, back, count * sizeof *back), 0);
    cr_assert_eq(found->infinite, 5 + statistics.infinite);
    cr_assert_eq(found->nan, statistics.nan);
    cr_assert_eq(found->flushed, statistics.flushed);
    free(want);
    free(back);
    devices_release();
}

Test(kernels_convert, wire_formats)
{
    EACH_ORDER(order)
    {
        for (const size_t *count = counts; count < counts + COUNT_OF(counts); count++) {
            check_encode(DTYPE_F16, *count, 0, true);
            check_encode(DTYPE_BF16, *count, 0, false);
            check_encode(DTYPE_F16, *count, 5, false);
            check_encode(DTYPE_BF16, *count, 2, true);
        }
    }
    REFUSED(cuda_encode(NULL, DTYPE_F32, NULL, NULL, 1, NULL, NULL));
}

/* ---- finite? ---- */

static void store_any(enum dtype dtype, void *x, size_t i, float value)
{
    if (dtype == DTYPE_F64)
        ((double *)x)[i] = (double)value;
    else
        cast_on_host(dtype, (unsigned char *)x + i * dtype_size(dtype), DTYPE_F32, &value, 1);
}

Test(kernels_convert, finite)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t d = 0; d < COUNT_OF(dtypes); d++) {
        enum { COUNT = 37 };
        const enum dtype dtype = dtypes[d];
        unsigned char *x = device((COUNT + 1) * dtype_size(dtype));
        uint32_t *flag = device(sizeof *flag);
        *flag = 0;
        x += dtype_size(dtype); /* a head that is no vector */
        for (size_t i = 0; i < COUNT; i++)
            store_any(dtype, x, i, i % 2 == 0 ? 65504 : -1e-8F);
        DONE(cuda_check_finite(NULL, dtype, x, COUNT, flag));
        cr_assert_eq(*flag, 0);
        for (size_t i = 0; i < COUNT; i++) {
            store_any(dtype, x, i, bad[i % 3]);
            *flag = 0;
            DONE(cuda_check_finite(NULL, dtype, x, COUNT, flag));
            cr_assert_eq(*flag, 1, "%s[%zu]", dtype_name(dtype), i);
            DONE(cuda_check_finite(NULL, dtype, x, i, flag)); /* stays */
            cr_assert_eq(*flag, 1);
            *flag = 0;
            DONE(cuda_check_finite(NULL, dtype, x, i, flag)); /* what lies behind is not looked at */
            cr_assert_eq(*flag, 0);
            store_any(dtype, x, i, 1);
        }
    }
    devices_release();
}
