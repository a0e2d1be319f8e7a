/* relu.cu - additions and ReLU where no batch norm stands just before. */
#include "nn/cuda/kernels/device.h"
#include "nn/cuda/kernels/mask.h"

namespace
{

template <typename T> struct add_relu {
    T *y;
    const T *a, *b;
    uint8_t *mask;

    __device__ void operator()(size_t e, int n) const
    {
        float v[PACK], w[PACK];
        load(a + e, n, v);
        if (b) {
            load(b + e, n, w);
            for (int k = 0; k < PACK; k++)
                v[k] += w[k];
        }
        for (int k = 0; k < PACK; k++)
            v[k] = rounded<T>(element_relu(v[k]));
        store(y + e, n, v);
        if (mask)
            mask[e / PACK] = mask_of(v, n);
    }
};

template <typename T> struct relu_backward {
    T *dx;
    const T *dy, *more, *y;
    const uint8_t *mask;

    __device__ void operator()(size_t e, int n) const
    {
        float g[PACK], w[PACK];
        load(dy + e, n, g);
        if (more) {
            load(more + e, n, w);
            for (int k = 0; k < PACK; k++)
                g[k] += w[k];
        }
        unsigned open = 0xff;
        if (mask) {
            open = mask[e / PACK];
        } else if (y) {
            load(y + e, n, w);
            open = mask_of(w, n);
        }
        for (int k = 0; k < PACK; k++)
            g[k] = open >> k & 1 ? g[k] : 0;
        store(dx + e, n, g);
    }
};

} // namespace

int cuda_add_relu(cuda_stream stream, enum dtype storage, void *y, const void *a, const void *b, size_t count,
                  uint8_t *mask)
{
    if (!aligned_16(y) || !aligned_16(a) || !aligned_16(b))
        return CUDA_BAD_ARGUMENT;
    return with_storage(storage, [=](auto element) {
        typedef decltype(element) T;
        return each_pack(stream, count,
                         add_relu<T>{static_cast<T *>(y), static_cast<const T *>(a), static_cast<const T *>(b), mask});
    });
}

int cuda_add_relu_backward(cuda_stream stream, enum dtype storage, void *dx, const void *dy, const void *more,
                           const uint8_t *mask, const void *y, size_t count)
{
    if (!aligned_16(dx) || !aligned_16(dy) || !aligned_16(more) || !aligned_16(y))
        return CUDA_BAD_ARGUMENT;
    return with_storage(storage, [=](auto element) {
        typedef decltype(element) T;
        return each_pack(stream, count,
                         relu_backward<T>{static_cast<T *>(dx), static_cast<const T *>(dy),
                                          static_cast<const T *>(more), static_cast<const T *>(y), mask});
    });
}
