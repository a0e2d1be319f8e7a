/* images.cu - images in: NHWC in storage type, channels padded; a thread makes one pixel. */
#include "nn/cuda/kernels/device.h"

namespace
{

enum { IMAGE_BLOCKS = 65535 }; /* of a grid's second side */

/* The channels of a pixel that is made 8 at a time: value(channel). */
template <typename T, typename F> __device__ void store_pixel(T *to, int padded, F value)
{
    for (int c = 0; c < padded; c += PACK) {
        float v[PACK];
        for (int k = 0; k < PACK; k++)
            v[k] = c + k < padded ? value(c + k) : 0;
        if (padded % PACK == 0) {
            store_pack(to + c, v);
        } else {
            for (int k = 0; k < PACK && c + k < padded; k++)
                narrow(v[k], to + c + k);
        }
    }
}

template <typename T> struct plane_pixel {
    const float *from; /* of this pixel, in the first plane */
    size_t plane;
    int channels;

    __device__ float operator()(int c) const
    {
        return c < channels ? from[(size_t)c * plane] : 0;
    }
};

template <typename T>
__global__ void __launch_bounds__(THREADS)
    planes_kernel(T *to, const float *from, int images, int channels, size_t plane, int padded)
{
    for (int n = (int)blockIdx.y; n < images; n += (int)gridDim.y) {
        const float *image = from + (size_t)n * (size_t)channels * plane;
        for (size_t p = thread_index(); p < plane; p += thread_count())
            store_pixel(to + ((size_t)n * plane + p) * (size_t)padded, padded,
                        plane_pixel<T>{image + p, plane, channels});
    }
}

struct three_channels {
    float v[3];

    __device__ float operator()(int c) const
    {
        return c == 0 ? v[0] : c == 1 ? v[1] : c == 2 ? v[2] : 0;
    }
};

/* One channel of an image. */
struct channel {
    const uint8_t *first;
    size_t stride; /* of pixels */
    int width;
    float mean, deviation;

    __device__ float at(int y, int x) const
    {
        const float grey = first[((size_t)y * (size_t)width + (size_t)x) * stride];
        return (grey / 255.0F - mean) / deviation;
    }
    __device__ float between(const struct element_tap &down, const struct element_tap &across) const
    {
        const float upper = element_between(at(down.low, across.low), at(down.low, across.high), across.weight);
        const float lower = element_between(at(down.high, across.low), at(down.high, across.high), across.weight);
        return element_between(upper, lower, down.weight);
    }
};

template <typename T> __global__ void __launch_bounds__(THREADS) resize_kernel(struct cuda_resize in)
{
    const size_t plane = (size_t)in.out_height * (size_t)in.out_width, stride = (size_t)in.channels;
    for (int n = (int)blockIdx.y; n < in.images; n += (int)gridDim.y) {
        struct cuda_crop crop = {0, 0, (float)in.height, (float)in.width, 0};
        if (in.crops)
            crop = in.crops[n];
        const uint8_t *const image = in.from + (size_t)n * (size_t)in.height * (size_t)in.width * stride;
        for (size_t p = thread_index(); p < plane; p += thread_count()) {
            const int y = (int)(p / (size_t)in.out_width), x = (int)(p % (size_t)in.out_width);
            const int column = crop.flip ? in.out_width - 1 - x : x;
            const struct element_tap down = element_tap(y, in.out_height, crop.top, crop.height, in.height);
            const struct element_tap across = element_tap(column, in.out_width, crop.left, crop.width, in.width);
            struct three_channels pixel;
#pragma unroll
            for (int c = 0; c < 3; c++) {
                const struct channel from = {image + (stride == 1 ? 0 : c), stride, in.width, in.mean[c],
                                             in.deviation[c]};
                pixel.v[c] = from.between(down, across);
            }
            store_pixel(static_cast<T *>(in.to) + ((size_t)n * plane + p) * (size_t)in.padded, in.padded, pixel);
        }
    }
}

dim3 pixel_grid(size_t plane, int images)
{
    return dim3(blocks_for(plane, THREADS, PASS_BLOCKS), blocks_for((size_t)images, 1, IMAGE_BLOCKS));
}

} // namespace

int cuda_images_from_planes(cuda_stream stream, enum dtype storage, void *to, const float *from, int images,
                            int channels, int height, int width, int padded)
{
    const size_t plane = (size_t)height * (size_t)width;
    if (images < 0 || channels < 1 || height < 1 || width < 1 || padded < channels || !aligned_16(to))
        return CUDA_BAD_ARGUMENT;
    if (images == 0)
        return 0;
    return with_storage(storage, [=](auto element) {
        typedef decltype(element) T;
        return launch(planes_kernel<T>, pixel_grid(plane, images), dim3(THREADS), 0, stream, static_cast<T *>(to), from,
                      images, channels, plane, padded);
    });
}

int cuda_images_resize(cuda_stream stream, enum dtype storage, const struct cuda_resize *resize)
{
    if (resize->images < 0 || resize->height < 1 || resize->width < 1 ||
        (resize->channels != 1 && resize->channels != 3) || resize->out_height < 1 || resize->out_width < 1 ||
        resize->padded < 3 || !aligned_16(resize->to))
        return CUDA_BAD_ARGUMENT;
    if (resize->images == 0)
        return 0;
    const size_t plane = (size_t)resize->out_height * (size_t)resize->out_width;
    return with_storage(storage, [=](auto element) {
        return launch(resize_kernel<decltype(element)>, pixel_grid(plane, resize->images), dim3(THREADS), 0, stream,
                      *resize);
    });
}
