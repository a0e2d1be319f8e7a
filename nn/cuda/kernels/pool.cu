/* pool.cu - max pooling 3x3/2 and global average pooling. A thread takes W = 8 channels of a pixel, or 1. */
#include "nn/cuda/kernels/device.h"

namespace
{

enum { WINDOW = 3, STRIDE = 2, PADDING = 1, POOL_THREADS = 128, GRID_SIDE = 65535 };

/* Input and output sides of a max pooling. */
struct sides {
    int images, height, width, channels, out_height, out_width;
};

struct sides sides_of(const struct cuda_shape *shape)
{
    return {shape->images,
            shape->height,
            shape->width,
            shape->channels,
            (shape->height - 1) / STRIDE + 1,
            (shape->width - 1) / STRIDE + 1};
}

bool bad_shape(const struct cuda_shape *shape, const void *x, const void *y)
{
    return shape->images < 0 || shape->height < 1 || shape->width < 1 || shape->channels < 1 || !aligned_16(x) ||
           !aligned_16(y);
}

/* Blocks over (a row of `width` pixels, rows, images); kernels go on where a side is cut. */
dim3 row_grid(int width, int height, int images, int channels, int w)
{
    return dim3(blocks_for((size_t)width * (size_t)(channels / w), POOL_THREADS, PASS_BLOCKS),
                blocks_for((size_t)height, 1, GRID_SIDE), blocks_for((size_t)images, 1, GRID_SIDE));
}

/* f(image, row, column, first channel) for every group of W channels of (images, height, width, channels). */
template <int W, typename F> __device__ void each_group(int images, int height, int width, int channels, F f)
{
    const unsigned groups = (unsigned)(channels / W);
    const size_t row = (size_t)width * groups;
    for (int n = (int)blockIdx.z; n < images; n += (int)gridDim.z) {
        for (int y = (int)blockIdx.y; y < height; y += (int)gridDim.y) {
            for (size_t i = thread_index(); i < row; i += thread_count())
                f(n, y, (int)(i / groups), (int)(i % groups) * W);
        }
    }
}

__device__ size_t at(int n, int y, int x, int c, int height, int width, int channels)
{
    return (((size_t)n * (size_t)height + (size_t)y) * (size_t)width + (size_t)x) * (size_t)channels + (size_t)c;
}

template <int W> __device__ void load_bytes(const uint8_t *from, uint8_t *v)
{
    if constexpr (W == PACK) {
        const uint2 words = *reinterpret_cast<const uint2 *>(from);
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = (uint8_t)(words.x >> 8 * k), v[k + 4] = (uint8_t)(words.y >> 8 * k);
    } else {
        v[0] = *from;
    }
}

template <int W> __device__ void store_bytes(uint8_t *to, const int *v)
{
    if constexpr (W == PACK) {
        uint32_t low = 0, high = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            low |= (uint32_t)v[k] << 8 * k, high |= (uint32_t)v[k + 4] << 8 * k;
        *reinterpret_cast<uint2 *>(to) = make_uint2(low, high);
    } else {
        *to = (uint8_t)v[0];
    }
}

/* ---- max ---- */

template <typename T, int W> struct max_pixel {
    struct sides in;
    const T *x;
    T *y;
    uint8_t *which;

    __device__ void operator()(int n, int oy, int ox, int c) const
    {
        float best[W] = {0};
        int first[W] = {0};
        bool any = false;
        for (int tap = 0; tap < WINDOW * WINDOW; tap++) {
            const int iy = oy * STRIDE - PADDING + tap / WINDOW, ix = ox * STRIDE - PADDING + tap % WINDOW;
            if (iy < 0 || iy >= in.height || ix < 0 || ix >= in.width)
                continue;
            float v[W];
            load_wide<W>(x + at(n, iy, ix, c, in.height, in.width, in.channels), v);
#pragma unroll
            for (int k = 0; k < W; k++) {
                /* larger, or the first NaN */
                if (!any || (!(v[k] <= best[k]) && !element_is_nan(best[k])))
                    best[k] = v[k], first[k] = tap;
            }
            any = true;
        }
        const size_t to = at(n, oy, ox, c, in.out_height, in.out_width, in.channels);
        store_wide<W>(y + to, best);
        store_bytes<W>(which + to, first);
    }
};

template <typename T, int W> __global__ void __launch_bounds__(POOL_THREADS) max_kernel(struct max_pixel<T, W> pixel)
{
    each_group<W>(pixel.in.images, pixel.in.out_height, pixel.in.out_width, pixel.in.channels, pixel);
}

/* Of one input: the windows whose largest it is. */
template <typename T, int W> struct max_gradient {
    struct sides in;
    const T *dy;
    const uint8_t *which;
    T *dx;

    __device__ void operator()(int n, int iy, int ix, int c) const
    {
        float sum[W] = {0};
        for (int oy = iy / STRIDE; oy <= (iy + PADDING) / STRIDE && oy < in.out_height; oy++) {
            for (int ox = ix / STRIDE; ox <= (ix + PADDING) / STRIDE && ox < in.out_width; ox++) {
                const int tap = (iy - oy * STRIDE + PADDING) * WINDOW + ix - ox * STRIDE + PADDING;
                const size_t from = at(n, oy, ox, c, in.out_height, in.out_width, in.channels);
                float g[W];
                uint8_t first[W];
                load_wide<W>(dy + from, g);
                load_bytes<W>(which + from, first);
#pragma unroll
                for (int k = 0; k < W; k++)
                    sum[k] += first[k] == tap ? g[k] : 0;
            }
        }
        store_wide<W>(dx + at(n, iy, ix, c, in.height, in.width, in.channels), sum);
    }
};

template <typename T, int W>
__global__ void __launch_bounds__(POOL_THREADS) max_gradient_kernel(struct max_gradient<T, W> pixel)
{
    each_group<W>(pixel.in.images, pixel.in.height, pixel.in.width, pixel.in.channels, pixel);
}

/* ---- average ---- */

/* A block takes groups of channels of one image, its lanes share the pixels. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS) average_kernel(const T *x, T *y, int images, size_t pixels, size_t channels)
{
    DYNAMIC_SHARED(float, shared); /* (lanes, across, W) */
    const unsigned lane = threadIdx.y, lanes = blockDim.y, place = (lane * blockDim.x + threadIdx.x) * W;
    const size_t channel = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    const bool inside = channel < channels;
    for (int n = (int)blockIdx.y; n < images; n += (int)gridDim.y) {
        float sum[W] = {0};
        for (size_t pixel = lane; inside && pixel < pixels; pixel += lanes) {
            float v[W];
            load_wide<W>(x + ((size_t)n * pixels + pixel) * channels + channel, v);
#pragma unroll
            for (int k = 0; k < W; k++)
                sum[k] += v[k];
        }
#pragma unroll
        for (int k = 0; k < W; k++)
            shared[place + (unsigned)k] = sum[k];
        __syncthreads();
        for (unsigned half = lanes / 2; half > 0; half /= 2) {
            if (lane < half) {
#pragma unroll
                for (unsigned k = 0; k < W; k++)
                    shared[place + k] += shared[place + half * blockDim.x * W + k];
            }
            __syncthreads();
        }
        if (lane == 0 && inside) {
#pragma unroll
            for (int k = 0; k < W; k++)
                sum[k] = shared[place + (unsigned)k] / (float)pixels;
            store_wide<W>(y + (size_t)n * channels + channel, sum);
        }
        __syncthreads();
    }
}

template <typename T, int W> struct average_gradient {
    const T *dy;
    T *dx;
    struct cuda_shape shape;
    float share;

    __device__ void operator()(int n, int y, int x, int c) const
    {
        float g[W];
        load_wide<W>(dy + (size_t)n * (size_t)shape.channels + (size_t)c, g);
#pragma unroll
        for (int k = 0; k < W; k++)
            g[k] *= share;
        store_wide<W>(dx + at(n, y, x, c, shape.height, shape.width, shape.channels), g);
    }
};

template <typename T, int W>
__global__ void __launch_bounds__(POOL_THREADS) average_gradient_kernel(struct average_gradient<T, W> pixel)
{
    each_group<W>(pixel.shape.images, pixel.shape.height, pixel.shape.width, pixel.shape.channels, pixel);
}

/* ---- launches ---- */

template <typename T, int W>
int launch_max(cuda_stream stream, const struct sides &in, const void *x, void *y, uint8_t *which)
{
    return launch(max_kernel<T, W>, row_grid(in.out_width, in.out_height, in.images, in.channels, W),
                  dim3(POOL_THREADS), 0, stream,
                  max_pixel<T, W>{in, static_cast<const T *>(x), static_cast<T *>(y), which});
}

template <typename T, int W>
int launch_max_gradient(cuda_stream stream, const struct sides &in, const void *dy, const uint8_t *which, void *dx)
{
    return launch(max_gradient_kernel<T, W>, row_grid(in.width, in.height, in.images, in.channels, W),
                  dim3(POOL_THREADS), 0, stream,
                  max_gradient<T, W>{in, static_cast<const T *>(dy), which, static_cast<T *>(dx)});
}

template <typename T, int W> int launch_average(cuda_stream stream, const struct cuda_shape &in, const void *x, void *y)
{
    const size_t channels = (size_t)in.channels;
    const struct columns_shape block = columns_shape(channels, W);
    const dim3 grid((unsigned)ceil_div(channels, block.across * (size_t)W),
                    blocks_for((size_t)in.images, 1, GRID_SIDE));
    return launch(average_kernel<T, W>, grid, dim3(block.across, block.lanes), THREADS * W * sizeof(float), stream,
                  static_cast<const T *>(x), static_cast<T *>(y), in.images, (size_t)in.height * (size_t)in.width,
                  channels);
}

template <typename T, int W>
int launch_average_gradient(cuda_stream stream, const struct cuda_shape &in, const void *dy, void *dx)
{
    const float share = 1.0F / (float)((size_t)in.height * (size_t)in.width);
    return launch(average_gradient_kernel<T, W>, row_grid(in.width, in.height, in.images, in.channels, W),
                  dim3(POOL_THREADS), 0, stream,
                  average_gradient<T, W>{static_cast<const T *>(dy), static_cast<T *>(dx), in, share});
}

} // namespace

int cuda_max_pool_forward(cuda_stream stream, enum dtype storage, const struct cuda_shape *shape, const void *x,
                          void *y, uint8_t *which)
{
    if (bad_shape(shape, x, y) || !aligned_16(which))
        return CUDA_BAD_ARGUMENT;
    if (shape->images == 0)
        return 0;
    return with_storage(storage, [=](auto element) {
        typedef decltype(element) T;
        return shape->channels % PACK == 0 ? launch_max<T, PACK>(stream, sides_of(shape), x, y, which)
                                           : launch_max<T, 1>(stream, sides_of(shape), x, y, which);
    });
}

int cuda_max_pool_backward(cuda_stream stream, enum dtype storage, const struct cuda_shape *shape, const void *dy,
                           const uint8_t *which, void *dx)
{
    if (bad_shape(shape, dy, dx) || !aligned_16(which))
        return CUDA_BAD_ARGUMENT;
    if (shape->images == 0)
        return 0;
    return with_storage(storage, [=](auto element) {
        typedef decltype(element) T;
        return shape->channels % PACK == 0 ? launch_max_gradient<T, PACK>(stream, sides_of(shape), dy, which, dx)
                                           : launch_max_gradient<T, 1>(stream, sides_of(shape), dy, which, dx);
    });
}

int cuda_average_pool_forward(cuda_stream stream, enum dtype storage, const struct cuda_shape *shape, const void *x,
                              void *y)
{
    if (bad_shape(shape, x, y))
        return CUDA_BAD_ARGUMENT;
    if (shape->images == 0)
        return 0;
    return with_storage(storage, [=](auto element) {
        typedef decltype(element) T;
        return shape->channels % PACK == 0 ? launch_average<T, PACK>(stream, *shape, x, y)
                                           : launch_average<T, 1>(stream, *shape, x, y);
    });
}

int cuda_average_pool_backward(cuda_stream stream, enum dtype storage, const struct cuda_shape *shape, const void *dy,
                               void *dx)
{
    if (bad_shape(shape, dy, dx))
        return CUDA_BAD_ARGUMENT;
    if (shape->images == 0)
        return 0;
    return with_storage(storage, [=](auto element) {
        typedef decltype(element) T;
        return shape->channels % PACK == 0 ? launch_average_gradient<T, PACK>(stream, *shape, dy, dx)
                                           : launch_average_gradient<T, 1>(stream, *shape, dy, dx);
    });
}
