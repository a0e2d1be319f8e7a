/* kernels.h - reduction of element ranges, with run-time dispatch (AVX2 where the processor has it, else plain C).
 *
 * Both give the same bits: the operation on each element is the same IEEE operation in the same order.
 * f16 and bf16 are computed in f32 and the result is rounded to nearest even: the sum of two halves is round(f32(a) +
 * f32(b)).
 * min and max: if either operand is NaN, the result is NaN (the one quiet NaN), on every path; -0 is below +0. So they
 * are commutative to the bit; sums are, but for the payload of a NaN.
 * Ranges may be unaligned to vectors (but aligned to their type); out may be a or b, else they don't overlap.
 */
#ifndef CHORALE_COMM_KERNELS_H
#define CHORALE_COMM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/dtype.h"

/* out[i] = a[i] (op) b[i]; for REDUCE_AVG the sum, then / divisor unless it is 1 (integers truncate towards zero).
 * Other operators ignore divisor. Integer sums wrap around. divisor > 0: for integers a whole number, for all others
 * exact in f32 (a number of workers, or mean_divisor()). */
void kernel_reduce(enum dtype dtype, enum reduce_op op, void *out, const void *a, const void *b, size_t count,
                   double divisor);

/* The mean of halves, or of what travels as halves: inputs times mean_scale(workers) = 2^-ceil(log2 workers), so that
 * no partial sum is larger than the largest input; the complete sum is divided by mean_divisor(workers) = workers *
 * mean_scale(workers), which is exact and in (1/2, 1]. */
double mean_scale(int workers);
double mean_divisor(int workers);

/* out[i] = a[i] + weight * b[i], f32 and f64 only (product and sum rounded separately: no fused multiply-add). */
void kernel_axpy(enum dtype dtype, void *out, const void *a, const void *b, double weight, size_t count);
/* out[i] = weight * a[i], not for integers. */
void kernel_scale(enum dtype dtype, void *out, const void *a, double weight, size_t count);
/* out[i] = a[i] / divisor (integers truncate); divisor > 0, not for f16 and bf16. */
void kernel_divide(enum dtype dtype, void *out, const void *a, int divisor, size_t count);

/* "AVX2" or "C". */
const char *kernel_name(void);
/* For tests: force the plain C path (true) or go back to the best one (false). Not thread-safe. */
void kernel_force_plain(bool plain);

#endif
