/* cuda_shim.h - the part of CUDA that nn/cuda/kernels uses, for a host compiler; see shim.h. */
#ifndef CHORALE_TESTS_NN_CUDA_CUDA_SHIM_H
#define CHORALE_TESTS_NN_CUDA_CUDA_SHIM_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "shim.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

/* Vectors are read and written over arrays of anything. */
#define SHIM_VECTOR(name, type, bytes, ...)                                                                            \
    struct __attribute__((may_alias, aligned(bytes))) name {                                                           \
        type __VA_ARGS__;                                                                                              \
    }
SHIM_VECTOR(uint2, unsigned, 8, x, y);
SHIM_VECTOR(uint4, unsigned, 16, x, y, z, w);
SHIM_VECTOR(float4, float, 16, x, y, z, w);

static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

/* ---- where a thread is ---- */

struct shim_place {
    struct dim3 thread, block, block_dim, grid_dim;
    void *shared;
};
const struct shim_place *shim_here();

#define threadIdx (shim_here()->thread)
#define blockIdx (shim_here()->block)
#define blockDim (shim_here()->block_dim)
#define gridDim (shim_here()->grid_dim)
#define DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(shim_here()->shared)

/* ---- barriers and warps ---- */

void shim_barrier(const char *file, int line);
/* Gives a value, waits for the whole warp, returns the values of its 32 lanes (until the operation after the next). */
const uint64_t *shim_exchange(unsigned mask, uint64_t value, const char *file, int line);

#define __syncthreads() shim_barrier(__FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, lanes) shim_shuffle_xor(mask, value, lanes, __FILE__, __LINE__)

static inline unsigned shim_lane()
{
    const struct shim_place *here = shim_here();
    return (here->thread.x + here->block_dim.x * (here->thread.y + here->block_dim.y * here->thread.z)) % 32;
}

template <typename N> static inline N shim_shuffle_xor(unsigned mask, N value, int lanes, const char *file, int line)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const uint64_t *all = shim_exchange(mask, bits, file, line);
    memcpy(&value, &all[shim_lane() ^ (unsigned)lanes], sizeof value);
    return value;
}

/* One fiber runs at a time. */
static inline unsigned atomicOr(unsigned *at, unsigned bits)
{
    const unsigned was = *at;
    *at |= bits;
    return was;
}
static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long more)
{
    const unsigned long long was = *at;
    *at += more;
    return was;
}

/* ---- launches ---- */

struct shim_kernel {
    struct dim3 grid, block;
    size_t shared;
    unsigned order; /* that of the launching thread */
    void (*thread)(struct shim_kernel *kernel);
    void (*release)(struct shim_kernel *kernel);
};
int shim_start(void *stream, struct shim_kernel *kernel); /* takes the kernel over */

template <typename... P> struct shim_call : shim_kernel {
    void (*function)(P...);
    std::tuple<P...> arguments;

    static void run_thread(struct shim_kernel *kernel)
    {
        struct shim_call *call = static_cast<struct shim_call *>(kernel);
        std::apply(call->function, call->arguments);
    }
    static void free_it(struct shim_kernel *kernel)
    {
        delete static_cast<struct shim_call *>(kernel);
    }
    shim_call(void (*function_)(P...), dim3 grid_, dim3 block_, size_t shared_, std::tuple<P...> arguments_)
        : shim_kernel{grid_, block_, shared_, 0, run_thread, free_it}, function(function_), arguments(arguments_)
    {
    }
};

template <typename... P, typename... A>
static int launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream,
                  A... arguments)
{
    return shim_start(stream, new shim_call<P...>(kernel, grid, block, shared, std::tuple<P...>(arguments...)));
}

#endif
