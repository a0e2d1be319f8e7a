/* winograd.h - 3x3 convolutions of stride 1 and padding 1 by minimal filtering F(m x m, 3 x 3), m = 2 or 4.
 *
 * S. Winograd, Arithmetic Complexity of Computations (1980); A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural
 * Networks (2016). A tile of (m+2) x (m+2) pixels, the weights and a tile of m x m results are transformed so that each
 * of the (m+2)^2 points needs one product of matrices (tiles x channels): 2.25 (m = 2) or 4 (m = 4) times fewer
 * multiplications than the sum over nine taps. The three directions share the transforms:
 *   result         Y = A' [(G w G') . (B' x B)] A
 *   by data        the same of Y's gradient, with the weights turned by 180 degrees and transposed
 *   by weights    dw = G' [(A dY A') . (B' x B)] G, points summed over tiles
 * Rounding: relative to the plain sum about 3e-7 (m = 2) and 2e-6 (m = 4) in the 2-norm.
 *
 * For AVX2 with FMA and blocks of 8 channels, in either layout of value.h. Every sum is made by one thread in a fixed
 * order, so the bits do not depend on the number of threads.
 */
#ifndef CHORALE_NN_CPU_WINOGRAD_H
#define CHORALE_NN_CPU_WINOGRAD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "nn/cpu/value.h"

/* Weights and their gradients lie as (O/8, I/8, 3, 3, 8 i, 8 o). Only shapes and layouts of the values are read. */
struct winograd {
    const struct value *source, *result; /* (N, I, H, W) and (N, O, H, W) */
    int tile;                            /* m */
    int threads;
};

bool winograd_runs(void); /* on this processor */
/* m for the values' shapes, or 0: another way is faster or the shape is not supported. */
int winograd_tile(const struct value *source, const struct value *result);

/* Floats that the caller lends to each call below, aligned to 64 bytes. */
enum status winograd_scratch(const struct winograd *winograd, size_t *count) MUST_CHECK;

void winograd_forward(const struct winograd *winograd, const float *source, const float *weights, float *result,
                      float *scratch);
void winograd_backward_data(const struct winograd *winograd, const float *result_gradient, const float *weights,
                            float *source_gradient, float *scratch);
void winograd_backward_weights(const struct winograd *winograd, const float *source, const float *result_gradient,
                               float *weights_gradient, float *scratch);

#endif
