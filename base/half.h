/* half.h - 16-bit floating point from and to f32: IEEE binary16 (f16) and bfloat16 (bf16, the upper half of an f32).
 *
 * Rounding is to nearest, ties to even; what is too large becomes infinity, what is too small a denormal number or
 * zero, with its sign. A NaN stays one, made quiet, with the upper bits of its payload. To f32 every value is exact.
 * Ranges are converted with F16C and AVX2 where the processor has both, else in plain C, to the same bits.
 */
#ifndef CHORALE_BASE_HALF_H
#define CHORALE_BASE_HALF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint16_t f16_from_f32(float value);
float f16_to_f32(uint16_t bits);
uint16_t bf16_from_f32(float value);
float bf16_to_f32(uint16_t bits);

/* `count` elements; ranges don't overlap. Halves may lie at any even address, floats at any that is a multiple of 4. */
void f16_encode(uint16_t *to, const float *from, size_t count);
void f16_decode(float *to, const uint16_t *from, size_t count);
void bf16_encode(uint16_t *to, const float *from, size_t count);
void bf16_decode(float *to, const uint16_t *from, size_t count);

#define F16_LARGEST 65504.0F /* what rounds beyond is infinite: 65520 and more */
#define F16_INFINITY ((uint16_t)0x7c00)
#define BF16_INFINITY ((uint16_t)0x7f80)

/* For tests: force the plain C path (true) or go back to the best one (false). Not thread-safe. */
void half_force_plain(bool plain);

#endif
