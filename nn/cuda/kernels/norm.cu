/* norm.cu - batch norm with the addition and ReLU after it: forward, evaluation, backward.
 *
 * Sums over rows have two stages. First a grid of (groups of columns) x (parts of the rows), about 500 blocks, which
 * fill a card, whatever the shape: a thread takes W = 8 neighbouring channels (16 bytes of halves; 1 where channels are no multiple
 * of 8) and every lanes-th row of its part, a block adds up its lanes. Then one small launch adds up the parts in f64.
 * The passes that write run over the flat array; where channels are a multiple of 8, a thread keeps to one group of
 * channels, whose coefficients stay in registers.
 */
#include "nn/cuda/kernels/device.h"
#include "nn/cuda/kernels/mask.h"

namespace
{

enum { BLOCKS_AIM = 512, ROWS_A_LANE = 8, UNROLL = 4, APPLY_BLOCKS = 2048, FINISH_LANES = 32 };

/* ---- the grid of the first stage ---- */

struct parts {
    size_t per; /* rows of each, but the last */
    unsigned count;
};

int width_of(size_t channels)
{
    return channels % PACK == 0 ? PACK : 1;
}

unsigned groups_of(size_t channels)
{
    const int width = width_of(channels);
    return (unsigned)ceil_div(channels, columns_shape(channels, width).across * (size_t)width);
}

struct parts parts_of(size_t rows, size_t channels)
{
    const struct columns_shape shape = columns_shape(channels, width_of(channels));
    const size_t groups = groups_of(channels), useful = ceil_div(rows, (size_t)shape.lanes * ROWS_A_LANE);
    size_t count = groups < BLOCKS_AIM ? BLOCKS_AIM / groups : 1;
    if (count > useful)
        count = useful;
    struct parts parts;
    parts.per = ceil_div(rows, count);
    parts.count = (unsigned)ceil_div(rows, parts.per);
    return parts;
}

__device__ size_t part_rows(size_t rows, size_t per, size_t part)
{
    const size_t left = rows - part * per;
    return left < per ? left : per;
}

/* Two values of every part and channel, (parts, 2, channels), between the stages. */
__device__ float *partial_at(float *partial, size_t part, int which, size_t channels, size_t channel)
{
    return partial + (part * 2 + (size_t)which) * channels + channel;
}

/* ---- statistics ---- */

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    statistics_kernel(const T *x, size_t rows, size_t channels, size_t per, float *partial)
{
    DYNAMIC_SHARED(struct element_moments, shared); /* (lanes, across, W) */
    const unsigned lane = threadIdx.y, lanes = blockDim.y;
    const size_t channel = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    const size_t begin = blockIdx.y * per, end = begin + part_rows(rows, per, blockIdx.y);
    const bool inside = channel < channels;
    float count = 0, mean[W] = {0}, squares[W] = {0};

    size_t row = begin + lane;
    for (; inside && row + (UNROLL - 1) * lanes < end; row += UNROLL * lanes) {
        float v[UNROLL][W]; /* loads that don't wait for one another */
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            load_wide<W>(x + (row + (size_t)u * lanes) * channels + channel, v[u]);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const float share = 1.0F / ++count;
#pragma unroll
            for (int k = 0; k < W; k++)
                element_welford(v[u][k], share, &mean[k], &squares[k]);
        }
    }
    for (; inside && row < end; row += lanes) {
        float v[W];
        load_wide<W>(x + row * channels + channel, v);
        const float share = 1.0F / ++count;
#pragma unroll
        for (int k = 0; k < W; k++)
            element_welford(v[k], share, &mean[k], &squares[k]);
    }

    const unsigned place = (lane * blockDim.x + threadIdx.x) * W;
#pragma unroll
    for (int k = 0; k < W; k++)
        shared[place + (unsigned)k] = {count, mean[k], squares[k]};
    __syncthreads();
    for (unsigned half = lanes / 2; half > 0; half /= 2) {
        if (lane < half) {
#pragma unroll
            for (int k = 0; k < W; k++)
                shared[place + (unsigned)k] =
                    element_merge(shared[place + (unsigned)k], shared[place + half * blockDim.x * W + (unsigned)k]);
        }
        __syncthreads();
    }
    if (lane == 0 && inside) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            *partial_at(partial, blockIdx.y, 0, channels, channel + (size_t)k) = shared[place + (unsigned)k].mean;
            *partial_at(partial, blockIdx.y, 1, channels, channel + (size_t)k) = shared[place + (unsigned)k].squares;
        }
    }
}

/* Sum over the lanes of a channel, for all of them; `shared` (lanes, across). */
__device__ double lanes_sum(double value, double *shared)
{
    const unsigned place = threadIdx.y * blockDim.x + threadIdx.x;
    shared[place] = value;
    __syncthreads();
    for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
        if (threadIdx.y < half)
            shared[place] += shared[place + half * blockDim.x];
        __syncthreads();
    }
    const double sum = shared[threadIdx.x];
    __syncthreads();
    return sum;
}

struct statistics_finish {
    float *partial;
    size_t rows, channels, per;
    unsigned parts;
    double epsilon, momentum;
    float *mean, *inverse, *running_mean, *running_variance;
};

__global__ void __launch_bounds__(FULL_WARP *FINISH_LANES) statistics_finish_kernel(struct statistics_finish in)
{
    DYNAMIC_SHARED(double, shared);
    const size_t channel = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const bool inside = channel < in.channels;
    const double rows = (double)in.rows;

    double sum = 0;
    for (unsigned part = threadIdx.y; inside && part < in.parts; part += blockDim.y)
        sum +=
            (double)part_rows(in.rows, in.per, part) * (double)*partial_at(in.partial, part, 0, in.channels, channel);
    const double mean = lanes_sum(sum, shared) / rows;

    double squares = 0;
    for (unsigned part = threadIdx.y; inside && part < in.parts; part += blockDim.y) {
        const double apart = (double)*partial_at(in.partial, part, 0, in.channels, channel) - mean;
        squares += (double)*partial_at(in.partial, part, 1, in.channels, channel) +
                   (double)part_rows(in.rows, in.per, part) * apart * apart;
    }
    const double variance = lanes_sum(squares, shared) / rows;

    if (!inside || threadIdx.y != 0)
        return;
    in.mean[channel] = (float)mean;
    in.inverse[channel] = (float)(1 / sqrt(variance + in.epsilon));
    if (in.running_mean) {
        const double unbiased = in.rows > 1 ? variance * rows / (rows - 1) : variance, keep = 1 - in.momentum;
        float *const running_mean = in.running_mean + channel, *const running_variance = in.running_variance + channel;
        *running_mean = (float)(keep * (double)*running_mean + in.momentum * mean);
        *running_variance = (float)(keep * (double)*running_variance + in.momentum * unbiased);
    }
}

/* ---- result ---- */

/* Coefficients of a channel: y = (x - mean) scale + beta. */
struct coefficients {
    const float *mean, *inverse, *variance, *gamma, *beta; /* variance instead of inverse: evaluation */
    double epsilon;

    __device__ float scale(size_t c) const
    {
        const float inverse_of = variance ? (float)(1 / sqrt((double)variance[c] + epsilon)) : inverse[c];
        return inverse_of * gamma[c];
    }
};

template <typename T> struct result_pass {
    struct coefficients in;
    const T *x, *addend;
    T *y;
    uint8_t *mask;
    size_t count, channels;
    bool relu;

    __device__ void operator()(size_t e, int n, const float *mean, const float *scale, const float *beta) const
    {
        float v[PACK], z[PACK];
        load(x + e, n, v);
#pragma unroll
        for (int k = 0; k < PACK; k++)
            v[k] = element_norm(v[k], mean[k], scale[k], beta[k]);
        if (addend) {
            load(addend + e, n, z);
#pragma unroll
            for (int k = 0; k < PACK; k++)
                v[k] += z[k];
        }
#pragma unroll
        for (int k = 0; k < PACK; k++)
            v[k] = rounded<T>(relu ? element_relu(v[k]) : v[k]);
        store(y + e, n, v);
        if (mask)
            mask[e / PACK] = mask_of(v, n);
    }
};

/* Threads that take part in a pass over packs with `groups` packs a row, so that each keeps to its group. */
__device__ size_t steady_threads(size_t groups)
{
    return thread_count() / groups * groups;
}

template <typename T> __global__ void __launch_bounds__(THREADS) result_kernel(struct result_pass<T> pass)
{
    float mean[PACK], scale[PACK], beta[PACK];
    if (pass.channels % PACK == 0) {
        const size_t groups = pass.channels / PACK, threads = steady_threads(groups), first = thread_index();
        if (first >= threads)
            return;
#pragma unroll
        for (int k = 0; k < PACK; k++) {
            const size_t c = first % groups * PACK + (size_t)k;
            mean[k] = pass.in.mean[c], scale[k] = pass.in.scale(c), beta[k] = pass.in.beta[c];
        }
        for (size_t p = first; p * PACK < pass.count; p += threads)
            pass(p * PACK, PACK, mean, scale, beta);
        return;
    }
    for (size_t p = thread_index(); p * PACK < pass.count; p += thread_count()) {
        const size_t left = pass.count - p * PACK;
        for (int k = 0; k < PACK; k++) {
            const size_t c = (p * PACK + (size_t)k) % pass.channels;
            mean[k] = pass.in.mean[c], scale[k] = pass.in.scale(c), beta[k] = pass.in.beta[c];
        }
        pass(p * PACK, left < PACK ? (int)left : PACK, mean, scale, beta);
    }
}

unsigned pass_blocks(size_t count)
{
    return blocks_for(ceil_div(count, (size_t)PACK), THREADS, APPLY_BLOCKS);
}

/* More groups of channels than threads of a pass: none could keep to its group. */
bool too_many_channels(size_t channels)
{
    return channels / (size_t)width_of(channels) > (size_t)APPLY_BLOCKS * THREADS;
}

template <typename T>
int result(cuda_stream stream, const struct cuda_norm *norm, const struct cuda_norm_forward *forward,
           const struct coefficients &in)
{
    const struct result_pass<T> pass = {
        in, static_cast<const T *>(norm->x), static_cast<const T *>(forward->addend), static_cast<T *>(forward->y),
            norm->relu ? forward->mask : NULL, norm->rows * norm->channels, norm->channels, norm->relu
    };
    return launch(result_kernel<T>, dim3(pass_blocks(pass.count)), dim3(THREADS), 0, stream, pass);
}

template <typename T, int W>
int forward_stages(cuda_stream stream, const struct cuda_norm *norm, const struct cuda_norm_forward *forward)
{
    const struct columns_shape shape = columns_shape(norm->channels, W);
    const struct parts parts = parts_of(norm->rows, norm->channels);
    float *const partial = static_cast<float *>(norm->workspace);
    LAUNCHED(launch(statistics_kernel<T, W>, dim3(groups_of(norm->channels), parts.count),
                    dim3(shape.across, shape.lanes), THREADS * W * sizeof(struct element_moments), stream,
                    static_cast<const T *>(norm->x), norm->rows, norm->channels, parts.per, partial));
    const struct statistics_finish finish = {partial,
                                             norm->rows,
                                             norm->channels,
                                             parts.per,
                                             parts.count,
                                             norm->epsilon,
                                             forward->momentum,
                                             norm->mean,
                                             norm->inverse,
                                             forward->running_mean,
                                             forward->running_variance};
    LAUNCHED(launch(statistics_finish_kernel, dim3((unsigned)ceil_div(norm->channels, (size_t)FULL_WARP)),
                    dim3(FULL_WARP, FINISH_LANES), FULL_WARP * FINISH_LANES * sizeof(double), stream, finish));
    const struct coefficients in = {norm->mean, norm->inverse, NULL, norm->gamma, norm->beta, 0};
    return result<T>(stream, norm, forward, in);
}

/* ---- backward ---- */

/* Where the ReLU was open: by mask, by y, by x with the coefficients of forward, or everywhere. */
enum open_by { OPEN_ALL, OPEN_MASK, OPEN_RESULT, OPEN_INPUT };

template <typename T> struct gradient_source {
    const T *x, *dy, *more, *y;
    const uint8_t *mask;
    enum open_by by;
};

/* Bits of the W elements from e on, W = 8 or 1. `v`: x. */
template <int W, typename T>
__device__ unsigned open_bits(const struct gradient_source<T> &in, size_t e, const float *v, const float *mean,
                              const float *scale, const float *beta)
{
    float y[W];
    unsigned open = 0;
    switch (in.by) {
    case OPEN_ALL:
        return ~0U;
    case OPEN_MASK:
        return (unsigned)in.mask[e / PACK] >> e % PACK; /* W = 8: e is a multiple of 8 */
    case OPEN_RESULT:
        load_wide<W>(in.y + e, y);
        break;
    case OPEN_INPUT:
#pragma unroll
        for (int k = 0; k < W; k++)
            y[k] = rounded<T>(element_norm(v[k], mean[k], scale[k], beta[k]));
        break;
    }
#pragma unroll
    for (int k = 0; k < W; k++)
        open |= (unsigned)element_open(y[k]) << k;
    return open;
}

/* The masked gradient of W elements. */
template <int W, typename T>
__device__ void gradient_of(const struct gradient_source<T> &in, size_t e, const float *v, const float *mean,
                            const float *scale, const float *beta, float *g)
{
    load_wide<W>(in.dy + e, g);
    if (in.more) {
        float more[W];
        load_wide<W>(in.more + e, more);
#pragma unroll
        for (int k = 0; k < W; k++)
            g[k] += more[k];
    }
    const unsigned open = open_bits<W>(in, e, v, mean, scale, beta);
#pragma unroll
    for (int k = 0; k < W; k++)
        g[k] = open >> k & 1 ? g[k] : 0;
}

/* First stage: sums of g and of g (x - mean). g, where it is wanted as dz, is stored and counts as stored. */
template <typename T> struct sums_pass {
    struct gradient_source<T> in;
    const float *mean, *inverse, *gamma, *beta;
    T *dz;
    size_t rows, channels, per;
    float *partial;
};

template <int W, typename T>
__device__ void sums_row(const struct sums_pass<T> &pass, size_t e, const float *mean, const float *scale,
                         const float *beta, float *sum, float *product)
{
    float v[W], g[W];
    load_wide<W>(pass.in.x + e, v);
    gradient_of<W>(pass.in, e, v, mean, scale, beta, g);
    if (pass.dz) {
#pragma unroll
        for (int k = 0; k < W; k++)
            g[k] = rounded<T>(g[k]);
        store_wide<W>(pass.dz + e, g);
    }
#pragma unroll
    for (int k = 0; k < W; k++) {
        sum[k] += g[k];
        product[k] = fmaf(g[k], v[k] - mean[k], product[k]);
    }
}

template <typename T, int W> __global__ void __launch_bounds__(THREADS) sums_kernel(struct sums_pass<T> pass)
{
    DYNAMIC_SHARED(float, shared); /* (lanes, across, W, 2) */
    const unsigned lane = threadIdx.y, lanes = blockDim.y;
    const size_t channels = pass.channels;
    const size_t channel = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    const size_t begin = blockIdx.y * pass.per, end = begin + part_rows(pass.rows, pass.per, blockIdx.y);
    const bool inside = channel < channels;
    float sum[W] = {0}, product[W] = {0}, mean[W] = {0}, scale[W] = {0}, beta[W] = {0};
#pragma unroll
    for (int k = 0; k < W; k++) {
        const size_t c = channel + (size_t)k;
        if (inside)
            mean[k] = pass.mean[c], scale[k] = pass.inverse[c] * pass.gamma[c], beta[k] = pass.beta[c];
    }
#pragma unroll 2
    for (size_t row = begin + lane; inside && row < end; row += lanes)
        sums_row<W>(pass, row * channels + channel, mean, scale, beta, sum, product);

    const unsigned place = (lane * blockDim.x + threadIdx.x) * W * 2;
#pragma unroll
    for (unsigned k = 0; k < W; k++)
        shared[place + 2 * k] = sum[k], shared[place + 2 * k + 1] = product[k];
    __syncthreads();
    for (unsigned half = lanes / 2; half > 0; half /= 2) {
        if (lane < half) {
#pragma unroll
            for (unsigned k = 0; k < 2 * W; k++)
                shared[place + k] += shared[place + half * blockDim.x * W * 2 + k];
        }
        __syncthreads();
    }
    if (lane == 0 && inside) {
#pragma unroll
        for (unsigned k = 0; k < W; k++) {
            *partial_at(pass.partial, blockIdx.y, 0, channels, channel + k) = shared[place + 2 * k];
            *partial_at(pass.partial, blockIdx.y, 1, channels, channel + k) = shared[place + 2 * k + 1];
        }
    }
}

/* Second stage. With n rows and means over them: dx = gamma inverse (g - mean(g) - (x - mean) inverse^2
 * mean(g (x - mean))) = a g - b (x - mean) - c. */
struct sums_finish {
    float *partial;
    size_t rows, channels;
    unsigned parts;
    const float *inverse, *gamma;
    float *b, *c, *dgamma, *dbeta;
    float scale;
    bool add;
};

__global__ void __launch_bounds__(FULL_WARP *FINISH_LANES) sums_finish_kernel(struct sums_finish in)
{
    DYNAMIC_SHARED(double, shared);
    const size_t channel = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const bool inside = channel < in.channels;
    double sum = 0, product = 0;
    for (unsigned part = threadIdx.y; inside && part < in.parts; part += blockDim.y) {
        sum += (double)*partial_at(in.partial, part, 0, in.channels, channel);
        product += (double)*partial_at(in.partial, part, 1, in.channels, channel);
    }
    sum = lanes_sum(sum, shared);
    product = lanes_sum(product, shared);

    if (!inside || threadIdx.y != 0)
        return;
    const double inverse = (double)in.inverse[channel], gain = (double)in.gamma[channel] * inverse;
    const double rows = (double)in.rows, scale = (double)in.scale;
    in.b[channel] = (float)(gain * inverse * inverse * product / rows);
    in.c[channel] = (float)(gain * sum / rows);
    const float dgamma = (float)(scale * product * inverse), dbeta = (float)(scale * sum);
    in.dgamma[channel] = in.add ? in.dgamma[channel] + dgamma : dgamma;
    in.dbeta[channel] = in.add ? in.dbeta[channel] + dbeta : dbeta;
}

/* Third: dx. */
template <typename T> struct input_pass {
    struct gradient_source<T> in;
    const float *mean, *inverse, *gamma, *beta, *b, *c;
    T *dx;
    size_t count, channels;
};

/* Of W channels. */
template <int W> struct input_coefficients {
    float mean[W], a[W], beta[W], b[W], c[W];
};

template <typename T>
__device__ void take_coefficients(const struct input_pass<T> &pass, size_t channel, int k, float *mean, float *a,
                                  float *beta, float *b, float *c)
{
    mean[k] = pass.mean[channel], a[k] = pass.inverse[channel] * pass.gamma[channel], beta[k] = pass.beta[channel];
    b[k] = pass.b[channel], c[k] = pass.c[channel];
}

template <int W, typename T>
__device__ void input_gradient(const struct input_pass<T> &pass, size_t e, const struct input_coefficients<W> &by)
{
    float v[W], g[W];
    load_wide<W>(pass.in.x + e, v);
    gradient_of<W>(pass.in, e, v, by.mean, by.a, by.beta, g);
#pragma unroll
    for (int k = 0; k < W; k++)
        g[k] = element_norm_gradient(g[k], v[k], by.mean[k], by.a[k], by.b[k], by.c[k]);
    store_wide<W>(pass.dx + e, g);
}

template <typename T, int W> __global__ void __launch_bounds__(THREADS) input_kernel(struct input_pass<T> pass)
{
    const size_t groups = pass.channels / W, threads = steady_threads(groups), first = thread_index();
    if (first >= threads)
        return;
    struct input_coefficients<W> by;
#pragma unroll
    for (int k = 0; k < W; k++)
        take_coefficients(pass, first % groups * W + (size_t)k, k, by.mean, by.a, by.beta, by.b, by.c);
    for (size_t p = first; p * W < pass.count; p += threads)
        input_gradient<W>(pass, p * W, by);
}

template <typename T, int W>
int backward_stages(cuda_stream stream, const struct cuda_norm *norm, const struct cuda_norm_backward *backward)
{
    const size_t channels = norm->channels, count = norm->rows * channels;
    const struct columns_shape shape = columns_shape(channels, W);
    const struct parts parts = parts_of(norm->rows, channels);
    float *const partial = static_cast<float *>(norm->workspace);
    float *const b = partial + (size_t)parts.count * 2 * channels, *const c = b + channels;
    enum open_by by = OPEN_ALL;
    if (norm->relu)
        by = backward->mask ? OPEN_MASK : backward->y ? OPEN_RESULT : OPEN_INPUT;

    struct gradient_source<T> in = {
        static_cast<const T *>(norm->x), static_cast<const T *>(backward->dy), static_cast<const T *>(backward->more),
            static_cast<const T *>(backward->y), backward->mask, by
    };
    T *const dz = static_cast<T *>(backward->dz);
    const struct sums_pass<T> sums = {
        in, norm->mean, norm->inverse, norm->gamma, norm->beta, dz, norm->rows, channels, parts.per, partial
    };
    LAUNCHED(launch(sums_kernel<T, W>, dim3(groups_of(channels), parts.count), dim3(shape.across, shape.lanes),
                    THREADS * W * 2 * sizeof(float), stream, sums));
    const struct sums_finish finish = {
        partial, norm->rows, channels,         parts.count,     norm->inverse,   norm->gamma,
        b,       c,          backward->dgamma, backward->dbeta, backward->scale, backward->add};
    LAUNCHED(launch(sums_finish_kernel, dim3((unsigned)ceil_div(channels, (size_t)FULL_WARP)),
                    dim3(FULL_WARP, FINISH_LANES), FULL_WARP * FINISH_LANES * sizeof(double), stream, finish));
    if (dz) { /* it holds the masked sum by now */
        in.dy = dz;
        in.more = NULL;
        in.by = OPEN_ALL;
    }
    const struct input_pass<T> pass = {
        in, norm->mean, norm->inverse, norm->gamma, norm->beta, b, c, static_cast<T *>(backward->dx), count, channels
    };
    return launch(input_kernel<T, W>, dim3(blocks_for(count / W, THREADS, APPLY_BLOCKS)), dim3(THREADS), 0, stream,
                  pass);
}

bool bad_norm(const struct cuda_norm *norm)
{
    return norm->channels == 0 || too_many_channels(norm->channels) || !aligned_16(norm->x);
}

} // namespace

size_t cuda_norm_workspace(size_t rows, size_t channels)
{
    if (rows == 0 || channels == 0)
        return 0;
    return ((size_t)parts_of(rows, channels).count + 1) * 2 * channels * sizeof(float);
}

int cuda_norm_forward(cuda_stream stream, const struct cuda_norm *norm, const struct cuda_norm_forward *forward)
{
    if (bad_norm(norm) || !aligned_16(forward->addend) || !aligned_16(forward->y))
        return CUDA_BAD_ARGUMENT;
    if (norm->rows == 0)
        return 0;
    return with_storage(norm->storage, [=](auto element) {
        typedef decltype(element) T;
        return norm->channels % PACK == 0 ? forward_stages<T, PACK>(stream, norm, forward)
                                          : forward_stages<T, 1>(stream, norm, forward);
    });
}

int cuda_norm_infer(cuda_stream stream, const struct cuda_norm *norm, const struct cuda_norm_forward *forward)
{
    if (bad_norm(norm) || !aligned_16(forward->addend) || !aligned_16(forward->y) || !forward->running_mean)
        return CUDA_BAD_ARGUMENT;
    if (norm->rows == 0)
        return 0;
    const struct coefficients in = {forward->running_mean, NULL,       forward->running_variance,
                                    norm->gamma,           norm->beta, norm->epsilon};
    return with_storage(norm->storage,
                        [=](auto element) { return result<decltype(element)>(stream, norm, forward, in); });
}

int cuda_norm_backward(cuda_stream stream, const struct cuda_norm *norm, const struct cuda_norm_backward *backward)
{
    if (bad_norm(norm) || !aligned_16(backward->dy) || !aligned_16(backward->more) || !aligned_16(backward->y) ||
        !aligned_16(backward->dz) || !aligned_16(backward->dx) || (backward->dz && backward->dz == backward->dx))
        return CUDA_BAD_ARGUMENT;
    if (norm->rows == 0)
        return 0;
    return with_storage(norm->storage, [=](auto element) {
        typedef decltype(element) T;
        return norm->channels % PACK == 0 ? backward_stages<T, PACK>(stream, norm, backward)
                                          : backward_stages<T, 1>(stream, norm, backward);
    });
}
