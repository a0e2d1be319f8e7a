/* loss.cu - the linear layer's bias, and softmax with cross-entropy: a warp a row. */
#include "nn/cuda/kernels/device.h"

namespace
{

/* ---- bias ---- */

template <typename T> struct bias_add {
    T *y;
    const float *bias;
    size_t columns;

    __device__ void operator()(size_t e, int n) const
    {
        float v[PACK];
        load(y + e, n, v);
        for (int k = 0; k < n; k++)
            v[k] += bias[(e + (size_t)k) % columns];
        store(y + e, n, v);
    }
};

template <typename T>
__global__ void __launch_bounds__(THREADS)
    bias_gradient_kernel(const T *dy, float *gradient, size_t rows, size_t columns, float scale, bool add)
{
    DYNAMIC_SHARED(float, shared); /* (lanes, across) */
    const unsigned place = threadIdx.y * blockDim.x + threadIdx.x;
    const size_t column = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (size_t row = threadIdx.y; column < columns && row < rows; row += blockDim.y)
        sum += widen(dy[row * columns + column]);
    shared[place] = sum;
    __syncthreads();
    for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
        if (threadIdx.y < half)
            shared[place] += shared[place + half * blockDim.x];
        __syncthreads();
    }
    if (threadIdx.y == 0 && column < columns)
        gradient[column] = add ? gradient[column] + scale * shared[place] : scale * shared[place];
}

/* ---- cross-entropy ---- */

enum { ROW_WARPS = 4, LOSS_BLOCKS = 4096 };
#define BAD_LABEL UINT32_MAX

__device__ float warp_max(float v)
{
    for (int lanes = FULL_WARP / 2; lanes > 0; lanes /= 2) {
        const float other = __shfl_xor_sync(WHOLE_WARP, v, lanes);
        v = other > v || element_is_nan(other) ? other : v;
    }
    return v;
}

template <typename N> __device__ N warp_sum(N v)
{
    for (int lanes = FULL_WARP / 2; lanes > 0; lanes /= 2)
        v += __shfl_xor_sync(WHOLE_WARP, v, lanes);
    return v;
}

/* Logit k is ahead of the label's: larger, or as large and before it. Everything is ahead of a NaN. */
__device__ bool ahead(float logit, size_t k, float labels, size_t label)
{
    return !(logit <= labels) || (logit == labels && k < label);
}

template <typename T> __device__ void row_without_label(const struct cuda_cross_entropy &in, size_t row, unsigned lane)
{
    T *const gradient = static_cast<T *>(in.gradient);
    for (size_t k = lane; gradient && k < in.classes; k += FULL_WARP)
        narrow(0, gradient + row * in.classes + k);
    if (lane == 0)
        in.row_loss[row] = 0, in.row_rank[row] = BAD_LABEL;
}

/* The label's logit is read by all lanes before the first exchange, so before any gradient overwrites a logit. */
template <typename T> __device__ void row_loss(const struct cuda_cross_entropy &in, size_t row, unsigned lane)
{
    const T *const logit = static_cast<const T *>(in.logits) + row * in.classes;
    T *const gradient = static_cast<T *>(in.gradient);
    const size_t label = (size_t)in.labels[row];
    const float labels = widen(logit[label]), classes = (float)in.classes;

    float most = labels, total = 0, sum = 0;
    uint32_t rank = 0;
    for (size_t k = lane; k < in.classes; k += FULL_WARP) {
        const float v = widen(logit[k]);
        most = v > most || element_is_nan(v) ? v : most;
        rank += k != label && ahead(v, k, labels, label);
    }
    most = warp_max(most);
    for (size_t k = lane; k < in.classes; k += FULL_WARP) {
        const float v = widen(logit[k]) - most;
        total += v;
        sum += expf(v);
    }
    sum = warp_sum(sum);
    total = warp_sum(total);
    rank = warp_sum(rank);
    if (lane == 0) {
        const float smooth = in.smoothing > 0 ? in.smoothing / classes * total : 0; /* total may be -infinity */
        in.row_loss[row] = logf(sum) - (1 - in.smoothing) * (labels - most) - smooth;
        in.row_rank[row] = rank;
    }
    const float share = 1 / sum, elsewhere = in.smoothing / classes, at_label = 1 - in.smoothing + elsewhere;
    for (size_t k = lane; gradient && k < in.classes; k += FULL_WARP) {
        const float probability = expf(widen(logit[k]) - most) * share;
        narrow((probability - (k == label ? at_label : elsewhere)) * in.scale, gradient + row * in.classes + k);
    }
}

template <typename T>
__global__ void __launch_bounds__(ROW_WARPS *FULL_WARP) row_loss_kernel(struct cuda_cross_entropy in)
{
    const unsigned lane = threadIdx.x % FULL_WARP, warp = threadIdx.x / FULL_WARP;
    for (size_t row = (size_t)blockIdx.x * ROW_WARPS + warp; row < in.rows; row += (size_t)gridDim.x * ROW_WARPS) {
        const int32_t label = in.labels[row];
        if (label < 0 || (size_t)label >= in.classes)
            row_without_label<T>(in, row, lane);
        else
            row_loss<T>(in, row, lane);
    }
}

__global__ void loss_kernel(const float *row_loss, const uint32_t *row_rank, size_t rows, struct cuda_loss *loss)
{
    DYNAMIC_SHARED(double, shared);
    double sum = 0;
    uint32_t top1 = 0, top5 = 0, bad = 0;
    for (size_t row = threadIdx.x; row < rows; row += blockDim.x) {
        const uint32_t rank = row_rank[row];
        sum += (double)row_loss[row];
        top1 += rank < 1;
        top5 += rank < 5;
        bad += rank == BAD_LABEL;
    }
    sum = block_sum(sum, shared);
    uint32_t *const counts = reinterpret_cast<uint32_t *>(shared);
    top1 = block_sum(top1, counts);
    top5 = block_sum(top5, counts);
    bad = block_sum(bad, counts);
    if (threadIdx.x == 0)
        *loss = {sum, top1, top5, bad, 0};
}

} // namespace

int cuda_bias_add(cuda_stream stream, enum dtype type, void *y, const float *bias, size_t rows, size_t columns)
{
    if (!aligned_16(y))
        return CUDA_BAD_ARGUMENT;
    return with_storage(type, [=](auto element) {
        typedef decltype(element) T;
        return each_pack(stream, rows * columns, bias_add<T>{static_cast<T *>(y), bias, columns});
    });
}

int cuda_bias_gradient(cuda_stream stream, enum dtype type, const void *dy, float *gradient, size_t rows,
                       size_t columns, float scale, bool add)
{
    if (columns == 0)
        return 0;
    const struct columns_shape block = columns_shape(columns, 1);
    const unsigned blocks = (unsigned)ceil_div(columns, (size_t)block.across);
    return with_storage(type, [=](auto element) {
        typedef decltype(element) T;
        return launch(bias_gradient_kernel<T>, dim3(blocks), dim3(block.across, block.lanes), THREADS * sizeof(float),
                      stream, static_cast<const T *>(dy), gradient, rows, columns, scale, add);
    });
}

int cuda_cross_entropy(cuda_stream stream, const struct cuda_cross_entropy *in)
{
    if (in->classes == 0 || in->classes > INT32_MAX)
        return CUDA_BAD_ARGUMENT;
    if (in->rows > 0) {
        const unsigned blocks = blocks_for(in->rows, ROW_WARPS, LOSS_BLOCKS);
        LAUNCHED(with_storage(in->type, [=](auto element) {
            return launch(row_loss_kernel<decltype(element)>, dim3(blocks), dim3(ROW_WARPS * FULL_WARP), 0, stream,
                          *in);
        }));
    }
    return launch(loss_kernel, dim3(1), dim3(THREADS), THREADS * sizeof(double), stream, in->row_loss, in->row_rank,
                  in->rows, in->loss);
}
