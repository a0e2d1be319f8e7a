/* update.cu - parameters: working copies, gradients of filters, SGD and LARS. A launch takes a whole arena. */
#include "nn/cuda/kernels/device.h"

namespace
{

/* ---- which tensor an element belongs to ---- */

/* The last entry that begins at or before element e; 0 where none does. */
__device__ int find_tensor(const struct cuda_arena &arena, size_t e)
{
    int low = 0, high = arena.tensors - 1;
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (arena.tensor[middle].offset <= e)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

__device__ bool has(const struct cuda_tensor &tensor, size_t e, size_t count)
{
    return e >= tensor.offset && e + count <= tensor.offset + tensor.count;
}

__device__ size_t copy_place(const struct cuda_tensor &tensor, size_t e)
{
    const size_t within = e - tensor.offset;
    if (tensor.channels == tensor.padded)
        return tensor.copy + within;
    return tensor.copy + within / tensor.channels * tensor.padded + within % tensor.channels;
}

/* Parameters v of elements e .. e + count - 1 of the tensor, to its working copy. */
template <typename T>
__device__ void store_copy(T *copy, const struct cuda_tensor &tensor, size_t e, int count, const float *v)
{
    if (!copy || tensor.copy == CUDA_NO_COPY)
        return;
    const size_t to = copy_place(tensor, e);
    if (count == PACK && tensor.channels == tensor.padded && to % PACK == 0) {
        store_pack(copy + to, v);
        return;
    }
    for (int k = 0; k < count; k++)
        narrow(v[k], copy + copy_place(tensor, e + (size_t)k));
}

/* f.some(entry, first element, how many) for all elements of the arena that an entry covers: packs of 8 within one
 * entry at once, others one by one. */
template <typename F> struct by_tensor {
    struct cuda_arena arena;
    F f;

    __device__ void operator()(size_t e, int n) const
    {
        int t = find_tensor(arena, e);
        if (n == PACK && has(arena.tensor[t], e, PACK)) {
            f.some(t, e, PACK);
            return;
        }
        for (int k = 0; k < n; k++) {
            const size_t i = e + (size_t)k;
            while (t + 1 < arena.tensors && arena.tensor[t + 1].offset <= i)
                t++;
            if (has(arena.tensor[t], i, 1))
                f.some(t, i, 1);
        }
    }
};

template <typename F> int each_of_tensors(cuda_stream stream, const struct cuda_arena *arena, F f)
{
    if (arena->tensors < 1)
        return 0;
    return each_pack(stream, arena->elements, by_tensor<F>{*arena, f});
}

/* count = 8 at 16 bytes, or 1 */
__device__ void load_some(const float *from, int count, float *v)
{
    if (count == PACK)
        load_pack(from, v);
    else
        v[0] = *from;
}

__device__ void store_some(float *to, int count, const float *v)
{
    if (count == PACK)
        store_pack(to, v);
    else
        *to = v[0];
}

/* ---- working copies, gradients of filters ---- */

template <typename T> struct pack_copy {
    const struct cuda_tensor *tensor;
    const float *parameters;
    T *copy;

    __device__ void some(int t, size_t e, int count) const
    {
        float v[PACK];
        load_some(parameters + e, count, v);
        store_copy(copy, tensor[t], e, count, v);
    }
};

template <typename T> struct unpack {
    const T *from;
    float *to;
    float scale;
    bool add;

    __device__ void vector(size_t i) const
    {
        float v[PACK], was[PACK];
        load_pack(from + i, v);
        if (add)
            load_pack(to + i, was);
#pragma unroll
        for (int k = 0; k < PACK; k++)
            v[k] = add ? was[k] + scale * v[k] : scale * v[k];
        store_pack(to + i, v);
    }
    __device__ void element(size_t i) const
    {
        const float v = scale * widen(from[i]);
        to[i] = add ? to[i] + v : v;
    }
};

template <typename T> int unpack_same(cuda_stream stream, const T *from, float *to, size_t count, float scale, bool add)
{
    const struct place from_place = {from, sizeof *from}, to_place = {to, sizeof *to};
    const struct place places[] = {from_place, to_place};
    return each_in_span<PACK>(stream, make_span<PACK>(count, places), unpack<T>{from, to, scale, add});
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    unpad_kernel(const T *from, float *to, size_t count, size_t channels, size_t padded, float scale, bool add)
{
    for (size_t i = thread_index(); i < count; i += thread_count()) {
        const float v = scale * widen(from[i / channels * padded + i % channels]);
        to[i] = add ? to[i] + v : v;
    }
}

/* ---- SGD ---- */

/* One update with the rate of each tensor, or one rate; LARS multiplies the rate into the momentum. */
template <typename T, bool LARS> struct update_step {
    const struct cuda_tensor *tensor;
    struct cuda_update in;
    const float *rates; /* LARS */

    __device__ void some(int t, size_t e, int count) const
    {
        if (in.skip && *in.skip)
            return;
        float g[PACK], w[PACK], u[PACK];
        load_some(in.gradients + e, count, g);
        load_some(in.parameters + e, count, w);
        load_some(in.momentum + e, count, u);
        const float decay = tensor[t].decays ? in.weight_decay : tensor[t].bias ? in.bias_decay : in.norm_decay;
        bool finite = true;
        for (int k = 0; k < count; k++) {
            finite = finite && element_is_finite(g[k]);
            if constexpr (LARS)
                element_lars(g[k] * in.gradient_scale, &w[k], &u[k], rates[t], in.momentum_factor, decay);
            else if (in.nesterov)
                element_nesterov(g[k] * in.gradient_scale, &w[k], &u[k], in.rate, in.momentum_factor, decay);
            else
                element_sgd(g[k] * in.gradient_scale, &w[k], &u[k], in.rate, in.momentum_factor, decay);
        }
        store_some(in.parameters + e, count, w);
        store_some(in.momentum + e, count, u);
        store_copy(static_cast<T *>(in.copy), tensor[t], e, count, w);
        if (!finite && in.not_finite)
            atomicOr(in.not_finite, 1U);
    }
};

/* ---- LARS ---- */

enum { NORM_PARTS = 64 };

/* Squares of one part of one tensor: of the parameters, and of the scaled gradient; partial (tensors, NORM_PARTS, 2). */
__global__ void __launch_bounds__(THREADS)
    squares_kernel(struct cuda_arena arena, struct cuda_update in, double *partial)
{
    DYNAMIC_SHARED(double, shared);
    const struct cuda_tensor tensor = arena.tensor[blockIdx.y];
    if (!tensor.decays)
        return;
    float w2 = 0, g2 = 0;
    for (size_t i = thread_index(); i < tensor.count; i += thread_count()) {
        const float w = in.parameters[tensor.offset + i], g = in.gradients[tensor.offset + i] * in.gradient_scale;
        w2 = fmaf(w, w, w2);
        g2 = fmaf(g, g, g2);
    }
    const double w_sum = block_sum((double)w2, shared), g_sum = block_sum((double)g2, shared);
    if (threadIdx.x == 0) {
        double *const to = partial + ((size_t)blockIdx.y * NORM_PARTS + blockIdx.x) * 2;
        to[0] = w_sum, to[1] = g_sum;
    }
}

/* A block a tensor, a thread a part. */
__global__ void rates_kernel(struct cuda_arena arena, struct cuda_update in, struct cuda_lars lars)
{
    DYNAMIC_SHARED(double, shared);
    const unsigned t = blockIdx.x;
    if (!arena.tensor[t].decays) {
        if (threadIdx.x == 0)
            lars.rates[t] = in.rate;
        return;
    }
    const double *const part = static_cast<const double *>(lars.workspace) + ((size_t)t * NORM_PARTS + threadIdx.x) * 2;
    const double w = sqrt(block_sum(part[0], shared)), g = sqrt(block_sum(part[1], shared));
    if (threadIdx.x == 0) {
        const double local = (double)lars.trust * w / (g + (double)in.weight_decay * w + (double)lars.epsilon);
        lars.rates[t] = w > 0 && g > 0 ? (float)((double)in.rate * local) : in.rate;
    }
}

bool bad_update(const struct cuda_update *update)
{
    return !aligned_16(update->gradients) || !aligned_16(update->parameters) || !aligned_16(update->momentum) ||
           !aligned_16(update->copy);
}

template <bool LARS>
int all_steps(cuda_stream stream, const struct cuda_arena *arena, const struct cuda_update *update, const float *rates)
{
    return with_storage(update->storage, [=](auto element) {
        return each_of_tensors(stream, arena, update_step<decltype(element), LARS>{arena->tensor, *update, rates});
    });
}

} // namespace

int cuda_pack(cuda_stream stream, const struct cuda_arena *arena, const float *parameters, enum dtype storage,
              void *copy)
{
    if (!aligned_16(parameters) || !aligned_16(copy))
        return CUDA_BAD_ARGUMENT;
    return with_storage(storage, [=](auto element) {
        typedef decltype(element) T;
        return each_of_tensors(stream, arena, pack_copy<T>{arena->tensor, parameters, static_cast<T *>(copy)});
    });
}

int cuda_unpack_gradient(cuda_stream stream, enum dtype type, const void *from, float *to, size_t rows, int channels,
                         int padded, float scale, bool add)
{
    if (channels < 1 || padded < channels)
        return CUDA_BAD_ARGUMENT;
    const size_t count = rows * (size_t)channels;
    if (count == 0)
        return 0;
    return with_storage(type, [=](auto element) {
        typedef decltype(element) T;
        const T *const packed = static_cast<const T *>(from);
        if (channels == padded)
            return unpack_same(stream, packed, to, count, scale, add);
        return launch(unpad_kernel<T>, dim3(blocks_for(count, THREADS, PASS_BLOCKS)), dim3(THREADS), 0, stream, packed,
                      to, count, (size_t)channels, (size_t)padded, scale, add);
    });
}

int cuda_sgd(cuda_stream stream, const struct cuda_arena *arena, const struct cuda_update *update)
{
    if (bad_update(update))
        return CUDA_BAD_ARGUMENT;
    return all_steps<false>(stream, arena, update, NULL);
}

size_t cuda_lars_workspace(int tensors)
{
    return (size_t)tensors * NORM_PARTS * 2 * sizeof(double);
}

int cuda_lars(cuda_stream stream, const struct cuda_arena *arena, const struct cuda_update *update,
              const struct cuda_lars *lars)
{
    if (bad_update(update) || arena->tensors > UINT16_MAX)
        return CUDA_BAD_ARGUMENT;
    if (arena->tensors < 1)
        return 0;
    const unsigned tensors = (unsigned)arena->tensors;
    LAUNCHED(launch(squares_kernel, dim3(NORM_PARTS, tensors), dim3(THREADS), THREADS * sizeof(double), stream, *arena,
                    *update, static_cast<double *>(lars->workspace)));
    LAUNCHED(launch(rates_kernel, dim3(tensors), dim3(NORM_PARTS), NORM_PARTS * sizeof(double), stream, *arena, *update,
                    *lars));
    return all_steps<true>(stream, arena, update, lars->rates);
}
