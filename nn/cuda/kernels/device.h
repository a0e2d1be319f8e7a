/* device.h - what all kernels share: launches, storage types, loads and stores of 8 elements, sums over a block.
 *
 * Kernels are CUDA and nothing else, except that launches go through launch() and dynamic shared memory through
 * DYNAMIC_SHARED: tests compile the same files for the host with a launch() of their own (tests/nn/cuda/shim).
 * No static shared memory, whole warps only: block sizes are multiples of 32, every thread reaches every barrier.
 */
#ifndef CHORALE_NN_CUDA_KERNELS_DEVICE_H
#define CHORALE_NN_CUDA_KERNELS_DEVICE_H

#include <cstddef>
#include <cstdint>

#include "nn/cuda/element.h"
#include "nn/cuda/kernels.h"

#ifdef CHORALE_CUDA_SHIM
#include "cuda_shim.h"
#else
#include <cuda_runtime.h>

template <typename... P, typename... A>
static int launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cuda_stream stream, A... arguments)
{
    (void)cudaGetLastError(); /* what a library has left there is not this launch's */
    kernel<<<grid, block, shared, stream>>>(arguments...);
    return (int)cudaGetLastError();
}

/* The memory's size is that of the launch. It holds garbage at first. */
#define DYNAMIC_SHARED(type, name)                                                                                     \
    extern __shared__ __align__(16) unsigned char dynamic_shared[];                                                    \
    type *name = reinterpret_cast<type *>(dynamic_shared)
#endif

#define LAUNCHED(expression)                                                                                           \
    do {                                                                                                               \
        int launched = (expression);                                                                                   \
        if (launched != 0)                                                                                             \
            return launched;                                                                                           \
    } while (0)

enum { THREADS = 256, PACK = 8, FULL_WARP = 32 };
#define WHOLE_WARP 0xffffffffU

template <typename N> static inline N ceil_div(N a, N b)
{
    return a / b + (a % b != 0);
}

static inline bool aligned_16(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0; /* NULL is */
}

/* Blocks for `items`, one a thread, at most `most` (threads then take several). */
static inline unsigned blocks_for(size_t items, size_t threads, size_t most)
{
    const size_t blocks = ceil_div(items, threads);
    return (unsigned)(blocks < most ? blocks : most);
}

__device__ static inline size_t thread_index()
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ static inline size_t thread_count()
{
    return (size_t)gridDim.x * blockDim.x;
}

/* ---- storage types ---- */

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

__device__ static inline float widen(float v)
{
    return v;
}
__device__ static inline float widen(f16 v)
{
    return element_from_f16(v.bits);
}
__device__ static inline float widen(bf16 v)
{
    return element_from_bf16(v.bits);
}

__device__ static inline void narrow(float from, float *to)
{
    *to = from;
}
__device__ static inline void narrow(float from, f16 *to)
{
    to->bits = element_to_f16(from);
}
__device__ static inline void narrow(float from, bf16 *to)
{
    to->bits = element_to_bf16(from);
}

/* As stored. */
template <typename T> __device__ static inline float rounded(float v)
{
    T stored;
    narrow(v, &stored);
    return widen(stored);
}

/* f(a value of the type) for one of the three storage types. */
template <typename F> static int with_storage(enum dtype storage, F f)
{
    switch (storage) {
    case DTYPE_F32:
        return f(float());
    case DTYPE_F16:
        return f(f16());
    case DTYPE_BF16:
        return f(bf16());
    default:
        return CUDA_BAD_ARGUMENT;
    }
}

/* ---- 8 elements at 16 bytes ---- */

__device__ static inline void load_pack(const float *from, float *v)
{
    const float4 low = *reinterpret_cast<const float4 *>(from), high = *reinterpret_cast<const float4 *>(from + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

__device__ static inline void store_pack(float *to, const float *v)
{
    *reinterpret_cast<float4 *>(to) = make_float4(v[0], v[1], v[2], v[3]);
    *reinterpret_cast<float4 *>(to + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

/* Halves: two in a word, the first in its lower bits. */
template <typename T> __device__ static inline void load_pack(const T *from, float *v)
{
    const uint4 words = *reinterpret_cast<const uint4 *>(from);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        T low, high;
        low.bits = (uint16_t)word[k], high.bits = (uint16_t)(word[k] >> 16);
        v[2 * k] = widen(low), v[2 * k + 1] = widen(high);
    }
}

template <typename T> __device__ static inline void store_pack(T *to, const float *v)
{
    uint32_t word[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        T low, high;
        narrow(v[2 * k], &low), narrow(v[2 * k + 1], &high);
        word[k] = low.bits | (uint32_t)high.bits << 16;
    }
    *reinterpret_cast<uint4 *>(to) = make_uint4(word[0], word[1], word[2], word[3]);
}

/* The first `n` of 8 elements at 16 bytes; the others are 0. Not NULL. */
template <typename T> __device__ static inline void load(const T *from, int n, float *v)
{
    if (n == PACK) {
        load_pack(from, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < PACK; k++)
        v[k] = k < n ? widen(from[k]) : 0;
}

template <typename T> __device__ static inline void store(T *to, int n, const float *v)
{
    if (n == PACK) {
        store_pack(to, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < PACK; k++) {
        if (k < n)
            narrow(v[k], to + k);
    }
}

/* W = 8 elements at 16 bytes, or one. */
template <int W, typename T> __device__ static inline void load_wide(const T *from, float *v)
{
    if constexpr (W == PACK)
        load_pack(from, v);
    else
        v[0] = widen(*from);
}

template <int W, typename T> __device__ static inline void store_wide(T *to, const float *v)
{
    if constexpr (W == PACK)
        store_pack(to, v);
    else
        narrow(v[0], to);
}

/* ---- one pass over `count` elements at 16 bytes, 8 at a time ---- */

/* f(first element, how many: 8, fewer at the end) */
template <typename F> __global__ void __launch_bounds__(THREADS, 1) each_pack_kernel(F f, size_t count)
{
    for (size_t p = thread_index(); p * PACK < count; p += thread_count()) {
        const size_t left = count - p * PACK;
        f(p * PACK, left < PACK ? (int)left : PACK);
    }
}

enum { PASS_BLOCKS = 4096 };

template <typename F> static int each_pack(cuda_stream stream, size_t count, F f)
{
    if (count == 0)
        return 0;
    const unsigned blocks = blocks_for(ceil_div(count, (size_t)PACK), THREADS, PASS_BLOCKS);
    return launch(each_pack_kernel<F>, dim3(blocks), dim3(THREADS), 0, stream, f, count);
}

/* ---- ranges at any address ---- */

struct place {
    const void *address;
    size_t size; /* of an element */
};

/* A range in packs of W elements that begin where vectors do: pack p has elements p W - shift .. p W - shift + W,
 * those from 0 to count. `vectors`: a whole pack is at 16 bytes in every array. */
struct span {
    size_t count;
    unsigned shift;
    bool vectors;
};

/* By the first array; it is the one with the smallest elements. */
template <int W, int N> static struct span make_span(size_t count, const struct place (&places)[N])
{
    const uintptr_t first = reinterpret_cast<uintptr_t>(places[0].address) / places[0].size;
    struct span span = {count, (unsigned)(first % W), true};
    for (const struct place &place : places) {
        const uintptr_t address = reinterpret_cast<uintptr_t>(place.address);
        span.vectors = span.vectors && (place.address == NULL || (address - span.shift * place.size) % 16 == 0);
    }
    return span;
}

/* f(first element, whole): whole: W elements by vectors, else called for each element with W = 1 in mind */
template <int W, typename F> __global__ void __launch_bounds__(THREADS, 1) each_in_span_kernel(F f, struct span span)
{
    for (size_t p = thread_index(); p * W < span.count + span.shift; p += thread_count()) {
        const size_t begin = p * W < span.shift ? 0 : p * W - span.shift, end = p * W + W - span.shift;
        if (span.vectors && end - begin == W && end <= span.count) {
            f.vector(begin);
        } else {
            for (size_t i = begin; i < end && i < span.count; i++)
                f.element(i);
        }
    }
}

template <int W, typename F> static int each_in_span(cuda_stream stream, struct span span, F f)
{
    if (span.count == 0)
        return 0;
    const unsigned blocks = blocks_for(ceil_div(span.count + span.shift, (size_t)W), THREADS, PASS_BLOCKS);
    return launch(each_in_span_kernel<W, F>, dim3(blocks), dim3(THREADS), 0, stream, f, span);
}

/* ---- sums over a block ---- */

/* Sum of every thread's value, for all of them, in a fixed order; `shared` has blockDim.x elements, a power of two. */
template <typename N> __device__ static inline N block_sum(N value, N *shared)
{
    shared[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    const N sum = shared[0];
    __syncthreads();
    return sum;
}

/* ---- columns of a matrix (rows, columns): a thread takes W neighbouring columns and every lanes-th row ---- */

struct columns {
    size_t rows, columns, per; /* rows of a part */
    unsigned parts;
};

struct columns_shape {
    unsigned across, lanes; /* threads of a block: groups of W columns, rows */
};

static inline struct columns_shape columns_shape(size_t columns, int width)
{
    struct columns_shape shape = {1, 0};
    while (shape.across < FULL_WARP && shape.across * (size_t)width < columns)
        shape.across *= 2;
    shape.lanes = THREADS / shape.across;
    return shape;
}

#endif
