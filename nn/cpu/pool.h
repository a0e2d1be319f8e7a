/* pool.h - max pooling (3x3, stride 2, padding 1) and global average pooling. */
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
    uint8_t *which;            /* max pooling: the winning tap of each output     */
};

void max_pool_forward(const struct pool *pool, const float *x, float *y);
void max_pool_backward(const struct pool *pool, const float *gradient, float *input_gradient);
/* y is flat: (N, C) */
void average_pool_forward(const struct pool *pool, const float *x, float *y);
void average_pool_backward(const struct pool *pool, const float *gradient, float *input_gradient);

#endif
