/* collective.cu - reductions of ranges for collectives, with the bits of comm/kernels.c, and sums over vectors. */
#include "nn/cuda/kernels/device.h"

namespace
{

/* ---- types: how an element is computed with, and stored ---- */

template <typename T> struct number { /* f32, f64, i32, i64: as they are */
    typedef T value;
    __device__ static T get(T stored)
    {
        return stored;
    }
    __device__ static T put(T v)
    {
        return v;
    }
};

template <typename Half> struct half_number {
    typedef float value;
    __device__ static float get(Half stored)
    {
        return widen(stored);
    }
    __device__ static Half put(float v)
    {
        Half stored;
        narrow(v, &stored);
        return stored;
    }
};

template <> struct number<f16> : half_number<f16> {
};
template <> struct number<bf16> : half_number<bf16> {
};

__device__ float plus(float a, float b)
{
    return a + b;
}
__device__ double plus(double a, double b)
{
    return a + b;
}
/* Wraps around. */
__device__ int32_t plus(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}
__device__ int64_t plus(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

__device__ float smaller(float a, float b)
{
    return element_min_f32(a, b);
}
__device__ double smaller(double a, double b)
{
    return element_min_f64(a, b);
}
template <typename N> __device__ N smaller(N a, N b)
{
    return a < b ? a : b;
}

__device__ float larger(float a, float b)
{
    return element_max_f32(a, b);
}
__device__ double larger(double a, double b)
{
    return element_max_f64(a, b);
}
template <typename N> __device__ N larger(N a, N b)
{
    return a > b ? a : b;
}

struct sum {
    template <typename N> __device__ static N combine(N a, N b)
    {
        return plus(a, b);
    }
};
struct least {
    template <typename N> __device__ static N combine(N a, N b)
    {
        return smaller(a, b);
    }
};
struct most {
    template <typename N> __device__ static N combine(N a, N b)
    {
        return larger(a, b);
    }
};

/* W elements as 16 bytes. */
template <typename T> struct words {
    enum { W = 16 / sizeof(T) };
    union {
        uint4 all;
        T element[W];
    };
};

template <typename T> __device__ void read_words(const T *from, struct words<T> *to)
{
    to->all = *reinterpret_cast<const uint4 *>(from);
}

template <typename T> __device__ void write_words(T *to, const struct words<T> &from)
{
    *reinterpret_cast<uint4 *>(to) = from.all;
}

/* ---- reduction ---- */

struct terms {
    const void *at[CUDA_TERMS_MOST];
    int count;
};

/* As pairs would be reduced one after the other: every intermediate result is stored in T, so rounded. */
template <typename T, typename Op> struct reduce {
    typedef number<T> as;
    typedef typename as::value N;
    T *dst;
    struct terms terms;
    N divisor;
    bool divides;

    __device__ const T *term(int t) const
    {
        return static_cast<const T *>(terms.at[t]);
    }
    __device__ T finish(N v) const
    {
        return as::put(divides ? v / divisor : v);
    }
    __device__ void vector(size_t i) const
    {
        struct words<T> result, next;
        read_words(term(0) + i, &result);
        for (int t = 1; t < terms.count; t++) {
            const bool last = t == terms.count - 1;
            read_words(term(t) + i, &next);
#pragma unroll
            for (int k = 0; k < words<T>::W; k++) {
                const N v = Op::combine(as::get(result.element[k]), as::get(next.element[k]));
                result.element[k] = last ? finish(v) : as::put(v);
            }
        }
        if (terms.count == 1 && divides) {
#pragma unroll
            for (int k = 0; k < words<T>::W; k++)
                result.element[k] = finish(as::get(result.element[k]));
        }
        write_words(dst + i, result);
    }
    __device__ void element(size_t i) const
    {
        T result = term(0)[i];
        for (int t = 1; t < terms.count; t++) {
            const N v = Op::combine(as::get(result), as::get(term(t)[i]));
            result = t == terms.count - 1 ? finish(v) : as::put(v);
        }
        if (terms.count == 1 && divides)
            result = finish(as::get(result));
        dst[i] = result;
    }
};

template <typename T, typename Op>
int reduce_range(cuda_stream stream, T *dst, const struct terms &terms, size_t count, double divisor, bool divides)
{
    constexpr int W = words<T>::W;
    struct place places[CUDA_TERMS_MOST + 1];
    for (int t = 0; t < CUDA_TERMS_MOST; t++)
        places[t + 1] = {terms.at[t < terms.count ? t : 0], sizeof(T)};
    places[0] = {dst, sizeof(T)};
    typedef typename number<T>::value N;
    return each_in_span<W>(stream, make_span<W>(count, places), reduce<T, Op>{dst, terms, (N)divisor, divides});
}

template <typename T>
int reduce_by(cuda_stream stream, enum reduce_op op, T *dst, const struct terms &terms, size_t count, double divisor)
{
    switch (op) {
    case REDUCE_SUM:
    case REDUCE_AVG:
        return reduce_range<T, sum>(stream, dst, terms, count, divisor, op == REDUCE_AVG && divisor != 1);
    case REDUCE_MIN:
        return reduce_range<T, least>(stream, dst, terms, count, 1, false);
    case REDUCE_MAX:
        return reduce_range<T, most>(stream, dst, terms, count, 1, false);
    default:
        return CUDA_BAD_ARGUMENT;
    }
}

/* f(an element of the type) */
template <typename F> int with_dtype(enum dtype dtype, F f)
{
    switch (dtype) {
    case DTYPE_F64:
        return f(double());
    case DTYPE_I32:
        return f(int32_t());
    case DTYPE_I64:
        return f(int64_t());
    default:
        return with_storage(dtype, f);
    }
}

/* ---- products ---- */

template <typename T> struct axpy {
    T *dst;
    const T *a, *b;
    T weight;

    __device__ void vector(size_t i) const
    {
        struct words<T> left, right;
        read_words(a + i, &left);
        read_words(b + i, &right);
#pragma unroll
        for (int k = 0; k < words<T>::W; k++)
            left.element[k] = left.element[k] + weight * right.element[k];
        write_words(dst + i, left);
    }
    __device__ void element(size_t i) const
    {
        dst[i] = a[i] + weight * b[i];
    }
};

template <typename T> int axpy_range(cuda_stream stream, T *dst, const T *a, const T *b, double weight, size_t count)
{
    const struct place places[] = {{dst, sizeof(T)}, {a, sizeof(T)}, {b, sizeof(T)}};
    constexpr int W = words<T>::W;
    return each_in_span<W>(stream, make_span<W>(count, places), axpy<T>{dst, a, b, (T)weight});
}

template <typename T> struct scale {
    typedef number<T> as;
    T *dst;
    const T *a;
    typename as::value weight;

    __device__ void vector(size_t i) const
    {
        struct words<T> v;
        read_words(a + i, &v);
#pragma unroll
        for (int k = 0; k < words<T>::W; k++)
            v.element[k] = as::put(weight * as::get(v.element[k]));
        write_words(dst + i, v);
    }
    __device__ void element(size_t i) const
    {
        dst[i] = as::put(weight * as::get(a[i]));
    }
};

template <typename T> int scale_range(cuda_stream stream, T *dst, const T *a, double weight, size_t count)
{
    const struct place places[] = {{dst, sizeof(T)}, {a, sizeof(T)}};
    constexpr int W = words<T>::W;
    return each_in_span<W>(stream, make_span<W>(count, places), scale<T>{dst, a, (typename number<T>::value)weight});
}

/* ---- distances ---- */

enum { DISTANCE_PARTS = 1024, DISTANCE_ITEMS = 8 };

unsigned distance_parts(size_t count)
{
    return blocks_for(count, THREADS * DISTANCE_ITEMS, DISTANCE_PARTS);
}

__global__ void __launch_bounds__(THREADS) squares_kernel(const float *a, const float *b, size_t count, double *partial)
{
    DYNAMIC_SHARED(double, shared);
    float sum = 0;
    for (size_t i = thread_index(); i < count; i += thread_count()) {
        const float apart = b ? a[i] - b[i] : a[i];
        sum = fmaf(apart, apart, sum);
    }
    const double total = block_sum((double)sum, shared);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = total;
}

__global__ void __launch_bounds__(THREADS) total_kernel(const double *partial, unsigned parts, double *to)
{
    DYNAMIC_SHARED(double, shared);
    double sum = 0;
    for (unsigned part = threadIdx.x; part < parts; part += blockDim.x)
        sum += partial[part];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        *to = sum;
}

} // namespace

int cuda_reduce(cuda_stream stream, enum dtype dtype, enum reduce_op op, void *dst, const void *const *term, int terms,
                size_t count, double divisor)
{
    if (terms < 1 || terms > CUDA_TERMS_MOST)
        return CUDA_BAD_ARGUMENT;
    struct terms all = {{NULL}, terms};
    for (int t = 0; t < terms; t++)
        all.at[t] = term[t];
    return with_dtype(dtype, [=](auto element) {
        return reduce_by(stream, op, static_cast<decltype(element) *>(dst), all, count, divisor);
    });
}

int cuda_axpy(cuda_stream stream, enum dtype dtype, void *dst, const void *a, const void *b, double weight,
              size_t count)
{
    if (dtype == DTYPE_F32)
        return axpy_range(stream, static_cast<float *>(dst), static_cast<const float *>(a),
                          static_cast<const float *>(b), weight, count);
    if (dtype == DTYPE_F64)
        return axpy_range(stream, static_cast<double *>(dst), static_cast<const double *>(a),
                          static_cast<const double *>(b), weight, count);
    return CUDA_BAD_ARGUMENT;
}

int cuda_scale(cuda_stream stream, enum dtype dtype, void *dst, const void *a, double weight, size_t count)
{
    if (dtype == DTYPE_F64)
        return scale_range(stream, static_cast<double *>(dst), static_cast<const double *>(a), weight, count);
    return with_storage(dtype, [=](auto element) {
        typedef decltype(element) T;
        return scale_range(stream, static_cast<T *>(dst), static_cast<const T *>(a), weight, count);
    });
}

size_t cuda_squared_distance_workspace(size_t count)
{
    return (size_t)distance_parts(count) * sizeof(double);
}

int cuda_squared_distance(cuda_stream stream, const float *a, const float *b, size_t count, double *sum,
                          void *workspace)
{
    double *const partial = static_cast<double *>(workspace);
    const unsigned parts = distance_parts(count);
    if (parts > 0)
        LAUNCHED(
            launch(squares_kernel, dim3(parts), dim3(THREADS), THREADS * sizeof(double), stream, a, b, count, partial));
    return launch(total_kernel, dim3(1), dim3(THREADS), THREADS * sizeof(double), stream, partial, parts, sum);
}
