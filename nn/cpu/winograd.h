/* winograd.h - 3x3 convolutions with padding 1 by minimal filtering: F(m x m, 3 x 3) with m = 2 or 4 for stride 1; for stride
 * 2 the taps fall on odd and even pixels, F(2, 2) and plain products.
 *
 * S. Winograd, Arithmetic Complexity of Computations (1980); A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural
 * Networks (2016). A tile of pixels, the weights and a tile of m x m results are transformed so that each point of the
 * transformed tile needs one product of matrices (tiles x channels): 2.25 (m = 2), 4 (m = 4), with stride 2 1.44 times
 * fewer multiplications than the sum over nine taps. The three directions share the transforms:
 *   result         Y = A' [(G w G') . (B' x B)] A
 *   by data        the same of Y's gradient, with the weights turned by 180 degrees and transposed
 *   by weights    dw = G' [(A dY A') . (B' x B)] G, points summed over tiles
 *                 (of results of at most 2 x 2 pixels plain products instead: taps.h)
 * Rounding in the 2-norm, relative to the result: below 1e-6 with m = 2, 4e-6 with m = 4.
 *
 * For AVX2 with FMA, in either layout of value.h, with blocks of 8 channels or of AVX-512's 16. Every sum is made by one
 * thread in a fixed order, so the bits do not depend on the number of threads.
 */
#ifndef CHORALE_NN_CPU_WINOGRAD_H
#define CHORALE_NN_CPU_WINOGRAD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "nn/cpu/value.h"

/* Weights and their gradients lie as (O/b, I/b, 3, 3, b i, b o), b the values' block. Only shapes and layouts of the values
 * are read. */
struct winograd {
    const struct value *source, *result; /* (N, I, H, W) and (N, O, H, W) */
    int tile;                            /* m; 2 with stride 2 */
    int stride;
    int threads;
};

bool winograd_runs(void); /* on this processor */
/* m for the values' shapes and the stride, or 0: another way is faster or the shape is not supported. */
int winograd_tile(const struct value *source, const struct value *result, int stride);

/* Floats that the caller lends to each call below, aligned to 64 bytes. */
enum status winograd_scratch(const struct winograd *winograd, size_t *count) MUST_CHECK;

void winograd_forward(const struct winograd *winograd, const float *source, const float *weights, float *result,
                      float *scratch);
void winograd_backward_data(const struct winograd *winograd, const float *result_gradient, const float *weights,
                            float *source_gradient, float *scratch);
void winograd_backward_weights(const struct winograd *winograd, const float *source, const float *result_gradient,
                               float *weights_gradient, float *scratch);

#endif
