/* Pooling against plain loops. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "support_kernels.h"

/* One pixel, odd and even sides, channels by 8 and not, an odd batch. */
static const struct cuda_shape shapes[] = {{1, 1, 1, 1},  {3, 1, 1, 8},  {2, 2, 2, 16}, {1, 5, 4, 3},
                                           {3, 7, 9, 24}, {2, 8, 6, 10}, {1, 33, 17, 8}};

static size_t at(const struct cuda_shape *shape, int n, int y, int x, int c)
{
    const int pixel = (n * shape->height + y) * shape->width + x, i = pixel * shape->channels + c;
    return (size_t)i;
}

static size_t elements(const struct cuda_shape *shape)
{
    const int count = shape->images * shape->height * shape->width * shape->channels;
    return (size_t)count;
}

static struct cuda_shape pooled(const struct cuda_shape *shape)
{
    struct cuda_shape out = *shape;
    out.height = (shape->height - 1) / 2 + 1;
    out.width = (shape->width - 1) / 2 + 1;
    return out;
}

/* Small whole numbers, so that the largest is often there twice. */
static float whole(uint64_t seed, size_t i)
{
    return floorf(number(seed, i) * 4);
}

/* The first largest of a window: which tap, and the element's place. */
static size_t first_largest(const struct cuda_shape *shape, const float *x, int n, int oy, int ox, int c, int *tap)
{
    size_t best = SIZE_MAX;
    for (int t = 0; t < 9; t++) {
        const int y = 2 * oy - 1 + t / 3, column = 2 * ox - 1 + t % 3;
        if (y < 0 || y >= shape->height || column < 0 || column >= shape->width)
            continue;
        const size_t i = at(shape, n, y, column, c);
        if (best == SIZE_MAX || x[i] > x[best])
            best = i, *tap = t;
    }
    return best;
}

static void check_max(const struct cuda_shape *shape, enum dtype storage)
{
    const struct cuda_shape out = pooled(shape);
    const size_t in_count = elements(shape), out_count = elements(&out);
    float *x = calloc(in_count, sizeof *x), *dy = calloc(out_count, sizeof *dy), *dx = calloc(in_count, sizeof *dx);
    for (size_t i = 0; i < in_count; i++)
        x[i] = whole(1, i);
    for (size_t i = 0; i < out_count; i++)
        dy[i] = whole(2, i);
    void *y = device(out_count * dtype_size(storage)), *got = device(in_count * dtype_size(storage));
    uint8_t *which = device(out_count);
    DONE(cuda_max_pool_forward(NULL, storage, shape, device_storage(storage, x, in_count), y, which));
    DONE(cuda_max_pool_backward(NULL, storage, shape, device_storage(storage, dy, out_count), which, got));
    for (size_t i = 0; i < out_count; i++) {
        const int c = (int)i % out.channels, ox = (int)i / out.channels % out.width;
        const int oy = (int)i / out.channels / out.width % out.height;
        int tap = -1;
        const size_t from = first_largest(shape, x, (int)i / out.channels / out.width / out.height, oy, ox, c, &tap);
        cr_assert_eq(storage_at(storage, y, i), x[from]);
        cr_assert_eq(which[i], tap, "output %zu: tap %d instead of %d", i, which[i], tap);
        dx[from] += dy[i];
    }
    for (size_t i = 0; i < in_count; i++)
        cr_assert_eq(storage_at(storage, got, i), dx[i], "gradient of input %zu", i);
    free(x);
    free(dy);
    free(dx);
    devices_release();
}

Test(kernels_pool, max)
{
    EACH_ORDER(order)
    EACH_STORAGE(storage)
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        check_max(&shapes[s], *storage);
}

/* NaN is larger than everything, the first one stays; all -infinity is no hole. */
Test(kernels_pool, nan_and_infinity)
{
    const struct cuda_shape shape = {1, 3, 3, 1};
    float x[9] = {1, NAN, 2, 3, 4, 5, 6, 7, 8}, *y = device(4 * sizeof *y);
    uint8_t *which = device(4);
    DONE(cuda_max_pool_forward(NULL, DTYPE_F32, &shape, device_f32(x, 9), y, which));
    cr_assert(isnan(y[0]) && isnan(y[1]));
    cr_assert_eq(which[0], 5);
    cr_assert_eq(which[1], 3);
    cr_assert_eq(y[3], 8);
    for (int i = 0; i < 9; i++)
        x[i] = -INFINITY;
    DONE(cuda_max_pool_forward(NULL, DTYPE_F32, &shape, device_f32(x, 9), y, which));
    cr_assert_eq(y[0], -INFINITY);
    cr_assert_eq(which[0], 4); /* the first inside the image */
    devices_release();
}

static void check_average(const struct cuda_shape *shape, enum dtype storage)
{
    const size_t count = elements(shape), channels = (size_t)shape->channels, small = (size_t)shape->images * channels;
    const size_t pixels = (size_t)shape->height * (size_t)shape->width;
    assert(channels > 0 && pixels > 0);
    float *x = calloc(count, sizeof *x), *dy = calloc(small, sizeof *dy);
    for (size_t i = 0; i < count; i++)
        x[i] = storage_round(storage, number(3, i));
    for (size_t i = 0; i < small; i++)
        dy[i] = storage_round(storage, number(4, i));
    void *y = device(small * dtype_size(storage)), *dx = device(count * dtype_size(storage));
    DONE(cuda_average_pool_forward(NULL, storage, shape, device_storage(storage, x, count), y));
    DONE(cuda_average_pool_backward(NULL, storage, shape, device_storage(storage, dy, small), dx));
    const double epsilon = storage_epsilon(storage);
    for (size_t i = 0; i < small; i++) {
        double sum = 0;
        for (size_t p = 0; p < pixels; p++)
            sum += (double)x[(i / channels * pixels + p) * channels + i % channels];
        expect_near((double)storage_at(storage, y, i), sum / (double)pixels, epsilon * 1.01, 1e-6, "average", i);
    }
    for (size_t i = 0; i < count; i++) {
        const size_t from = i / channels / pixels * channels + i % channels;
        expect_near((double)storage_at(storage, dx, i), (double)dy[from] / (double)pixels, epsilon * 1.01 + 2e-7, 1e-7,
                    "gradient of an average", i);
    }
    free(x);
    free(dy);
    devices_release();
}

Test(kernels_pool, average)
{
    EACH_ORDER(order)
    EACH_STORAGE(storage)
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        check_average(&shapes[s], *storage);
}

Test(kernels_pool, what_is_refused)
{
    const struct cuda_shape empty = {0, 4, 4, 8}, flat = {1, 0, 4, 8};
    void *x = device(4096), *y = device(4096);
    DONE(cuda_max_pool_forward(NULL, DTYPE_F32, &empty, x, y, y));
    DONE(cuda_average_pool_backward(NULL, DTYPE_F32, &empty, x, y));
    REFUSED(cuda_max_pool_forward(NULL, DTYPE_F32, &flat, x, y, y));
    REFUSED(cuda_max_pool_backward(NULL, DTYPE_I64, &shapes[0], x, y, y));
    REFUSED(cuda_average_pool_forward(NULL, DTYPE_F32, &shapes[0], (char *)x + 4, y));
    devices_release();
}
