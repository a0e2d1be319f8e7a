/* half.c - conversions of halves, one by one and in ranges. */
#include "base/half.h"

#include <stdatomic.h>
#include <string.h>

#include "base/half_avx2.h"

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

/* Drops the lower `places` bits, rounding to nearest even; a carry into the exponent is the right one. */
static uint32_t round_off(uint32_t magnitude, unsigned places)
{
    const uint32_t below_half = (UINT32_C(1) << (places - 1)) - 1, odd = magnitude >> places & 1;
    return (magnitude + below_half + odd) >> places;
}

#define F32_INFINITY UINT32_C(0x7f800000)
#define F32_OF_65536 UINT32_C(0x47800000)
#define F32_OF_2_TO_M14 UINT32_C(0x38800000)         /* the smallest normal f16                        */
#define EXPONENTS_APART ((uint32_t)(127 - 15) << 10) /* of the biases, in the place of an f16's exponent */

uint16_t f16_from_f32(float value)
{
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > F32_INFINITY)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= F32_OF_65536)
        return (uint16_t)(sign | F16_INFINITY);
    if (magnitude < F32_OF_2_TO_M14) /* 0.5 has the last place of a denormal f16: the addition rounds */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F)));
    return (uint16_t)(sign | (round_off(magnitude, 13) - EXPONENTS_APART));
}

float f16_to_f32(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude > F16_INFINITY)
        return float_of(sign | F32_INFINITY | UINT32_C(0x400000) | magnitude << 13);
    if (magnitude == F16_INFINITY)
        return float_of(sign | F32_INFINITY);
    if (magnitude < 0x400)
        return float_of(sign | bits_of((float)magnitude * 0x1p-24F));
    return float_of(sign | (magnitude + EXPONENTS_APART) << 13);
}

uint16_t bf16_from_f32(float value)
{
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > F32_INFINITY)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)round_off(bits, 16);
}

float bf16_to_f32(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

/* ---- ranges ---- */

static void plain_f16_encode(uint16_t *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = f16_from_f32(from[i]);
}

static void plain_f16_decode(float *to, const uint16_t *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = f16_to_f32(from[i]);
}

static void plain_bf16_encode(uint16_t *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = bf16_from_f32(from[i]);
}

static void plain_bf16_decode(float *to, const uint16_t *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = bf16_to_f32(from[i]);
}

static atomic_int plain_forced;

void half_force_plain(bool plain)
{
    atomic_store_explicit(&plain_forced, plain, memory_order_relaxed);
}

#if defined(__x86_64__)

static bool use_avx2(void)
{
    return half_has_avx2() && !atomic_load_explicit(&plain_forced, memory_order_relaxed);
}

/* How many of `count` elements are converted eight by eight; the rest is left to the plain loop. */
#define EIGHTS(count) ((count) & ~(size_t)7)

HALF_AVX2 static size_t avx2_f16_encode(uint16_t *to, const float *from, size_t count)
{
    for (size_t i = 0; i < EIGHTS(count); i += 8)
        f16_store(to + i, _mm256_loadu_ps(from + i));
    return EIGHTS(count);
}

HALF_AVX2 static size_t avx2_f16_decode(float *to, const uint16_t *from, size_t count)
{
    for (size_t i = 0; i < EIGHTS(count); i += 8)
        _mm256_storeu_ps(to + i, f16_load(from + i));
    return EIGHTS(count);
}

HALF_AVX2 static size_t avx2_bf16_encode(uint16_t *to, const float *from, size_t count)
{
    for (size_t i = 0; i < EIGHTS(count); i += 8)
        bf16_store(to + i, _mm256_loadu_ps(from + i));
    return EIGHTS(count);
}

HALF_AVX2 static size_t avx2_bf16_decode(float *to, const uint16_t *from, size_t count)
{
    for (size_t i = 0; i < EIGHTS(count); i += 8)
        _mm256_storeu_ps(to + i, bf16_load(from + i));
    return EIGHTS(count);
}

#else

static bool use_avx2(void)
{
    return false;
}

#define avx2_f16_encode(to, from, count) 0
#define avx2_f16_decode(to, from, count) 0
#define avx2_bf16_encode(to, from, count) 0
#define avx2_bf16_decode(to, from, count) 0

#endif

void f16_encode(uint16_t *to, const float *from, size_t count)
{
    const size_t done = use_avx2() ? avx2_f16_encode(to, from, count) : 0;
    plain_f16_encode(to + done, from + done, count - done);
}

void f16_decode(float *to, const uint16_t *from, size_t count)
{
    const size_t done = use_avx2() ? avx2_f16_decode(to, from, count) : 0;
    plain_f16_decode(to + done, from + done, count - done);
}

void bf16_encode(uint16_t *to, const float *from, size_t count)
{
    const size_t done = use_avx2() ? avx2_bf16_encode(to, from, count) : 0;
    plain_bf16_encode(to + done, from + done, count - done);
}

void bf16_decode(float *to, const uint16_t *from, size_t count)
{
    const size_t done = use_avx2() ? avx2_bf16_decode(to, from, count) : 0;
    plain_bf16_decode(to + done, from + done, count - done);
}
