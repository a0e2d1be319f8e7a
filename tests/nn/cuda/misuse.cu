/* misuse.cu - kernels for test_shim.c: two that are right, and what the shim must notice in others. */
#include "misuse.h"

#include "nn/cuda/kernels/device.h"

namespace
{

/* Reverses each block's numbers by way of shared memory. */
__global__ void reverse_kernel(int *x, bool barrier)
{
    DYNAMIC_SHARED(int, shared);
    shared[threadIdx.x] = x[thread_index()];
    if (barrier)
        __syncthreads();
    x[thread_index()] = shared[blockDim.x - 1 - threadIdx.x];
}

__global__ void warp_kernel(int *x)
{
    int sum = x[thread_index()];
    for (int lanes = FULL_WARP / 2; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(WHOLE_WARP, sum, lanes);
    x[thread_index()] = sum;
}

__global__ void half_at_barrier_kernel()
{
    if (threadIdx.x % 2 == 0)
        __syncthreads();
}

__global__ void two_barriers_kernel()
{
    if (threadIdx.x % 2 == 0)
        __syncthreads();
    else
        __syncthreads();
}

__global__ void half_a_warp_kernel(int *x)
{
    if (threadIdx.x < FULL_WARP / 2)
        x[threadIdx.x] = __shfl_xor_sync(0x0000ffffU, x[threadIdx.x], 1);
}

__global__ void lanes_leave_kernel(int *x)
{
    if (threadIdx.x < FULL_WARP / 2)
        return;
    x[threadIdx.x] = __shfl_xor_sync(WHOLE_WARP, x[threadIdx.x], 1);
}

__global__ void beyond_shared_kernel()
{
    DYNAMIC_SHARED(float, shared);
    shared[blockDim.x] = 0; /* one too many */
}

__global__ void garbage_kernel(float *x)
{
    DYNAMIC_SHARED(float, shared);
    x[thread_index()] = shared[threadIdx.x];
    shared[threadIdx.x] = 1; /* must not be there in the next block */
}

} // namespace

int misuse_reverse(int *x, unsigned blocks, unsigned threads, bool barrier)
{
    return launch(reverse_kernel, dim3(blocks), dim3(threads), threads * sizeof(int), NULL, x, barrier);
}

int misuse_warp_sum(int *x, unsigned blocks, unsigned threads)
{
    return launch(warp_kernel, dim3(blocks), dim3(threads), 0, NULL, x);
}

int misuse_run(enum misuse misuse, int *x)
{
    switch (misuse) {
    case HALF_AT_BARRIER:
        return launch(half_at_barrier_kernel, dim3(1), dim3(64), 0, NULL);
    case TWO_BARRIERS:
        return launch(two_barriers_kernel, dim3(1), dim3(64), 0, NULL);
    case HALF_A_WARP:
        return launch(half_a_warp_kernel, dim3(1), dim3(32), 0, NULL, x);
    case LANES_LEAVE:
        return launch(lanes_leave_kernel, dim3(1), dim3(32), 0, NULL, x);
    case BEYOND_SHARED:
        return launch(beyond_shared_kernel, dim3(1), dim3(64), 64 * sizeof(float), NULL);
    }
    return 0;
}

int misuse_garbage(float *x, unsigned blocks, unsigned threads)
{
    return launch(garbage_kernel, dim3(blocks), dim3(threads), threads * sizeof(float), NULL, x);
}

int misuse_launch(unsigned grid_x, unsigned grid_y, unsigned block_x, unsigned block_z, size_t shared)
{
    return launch(warp_kernel, dim3(grid_x, grid_y), dim3(block_x, 1, block_z), shared, NULL, (int *)NULL);
}
