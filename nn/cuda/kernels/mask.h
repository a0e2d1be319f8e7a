/* mask.h - a ReLU's mask: bit e % 8 of byte e / 8 is set where element e is open. */
#ifndef CHORALE_NN_CUDA_KERNELS_MASK_H
#define CHORALE_NN_CUDA_KERNELS_MASK_H

#include "nn/cuda/kernels/device.h"

/* The byte of 8 results as stored, of which n exist. */
__device__ static inline uint8_t mask_of(const float *y, int n)
{
    unsigned open = 0;
#pragma unroll
    for (int k = 0; k < PACK; k++)
        open |= (unsigned)(k < n && element_open(y[k])) << k;
    return (uint8_t)open;
}

#endif
