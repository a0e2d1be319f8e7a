/* taps.h - the weights' gradient of 3x3 convolutions with padding 1 onto feature maps of at most 2 x 2 pixels: most taps
 * fall outside of the source and are left out.
 *
 * Of the 36 products of a 2 x 2 result 16 are left with stride 1, 25 with stride 2: as many as minimal filtering needs
 * (winograd.h, which calls this), but nothing is transformed. For AVX2 with FMA, in either layout of value.h, with blocks of
 * 8 channels. Every sum is made by one thread in a fixed order, so the bits do not depend on the number of threads.
 */
#ifndef CHORALE_NN_CPU_TAPS_H
#define CHORALE_NN_CPU_TAPS_H

#include <stdbool.h>

#include "nn/cpu/value.h"

/* Only shapes and layouts of the values are read. */
struct taps {
    const struct value *source, *result; /* (N, I, H, W) and (N, O, h, w) */
    int stride, threads;
};

/* On this processor, for these shapes. */
bool taps_run(const struct taps *taps);

/* weights_gradient (O/8, I/8, 3, 3, 8 i, 8 o) is written. */
void taps_backward_weights(const struct taps *taps, const float *source, const float *result_gradient,
                           float *weights_gradient);

#endif
