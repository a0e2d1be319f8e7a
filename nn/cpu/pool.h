/* pool.h - max pooling (stride 2) and average pooling to a few pixels. */
#ifndef CHORALE_NN_CPU_POOL_H
#define CHORALE_NN_CPU_POOL_H

#include <stdint.h>

#include "nn/cpu/kernels.h"
#include "nn/cpu/value.h"

enum { POOL_TAPS = 9 };

struct pool {
    const struct kernels *kernels;
    int threads;
    const struct value *x, *y; /* layouts of input and output; each may be folded */
    size_t kernel, padding;    /* max pooling: 3 and 1, or 2 and 0                */
    uint8_t *which;            /* max pooling: the winning tap of each output     */
};

void max_pool_forward(const struct pool *pool, const float *x, float *y);
void max_pool_backward(const struct pool *pool, const float *gradient, float *input_gradient);
/* y is flat: (N, C, pixels); LAYER_AVERAGE_POOL has which pixels are averaged. */
void average_pool_forward(const struct pool *pool, const float *x, float *y);
void average_pool_backward(const struct pool *pool, const float *gradient, float *input_gradient);

#endif
