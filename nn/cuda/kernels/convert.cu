/* convert.cu - between f32, f16 and bf16: casts, wire formats, and whether values are finite. */
#include "nn/cuda/kernels/device.h"

namespace
{

template <typename To, typename From> struct cast {
    To *to;
    const From *from;

    __device__ void vector(size_t i) const
    {
        float v[PACK];
        load_pack(from + i, v);
        store_pack(to + i, v);
    }
    __device__ void element(size_t i) const
    {
        narrow(widen(from[i]), to + i);
    }
};

template <typename To, typename From> int cast_range(cuda_stream stream, To *to, const From *from, size_t count)
{
    const struct place to_place = {to, sizeof *to}, from_place = {from, sizeof *from};
    const bool to_first = sizeof *to < sizeof *from;
    const struct place places[] = {to_first ? to_place : from_place, to_first ? from_place : to_place};
    return each_in_span<PACK>(stream, make_span<PACK>(count, places), cast<To, From>{to, from});
}

__device__ uint32_t magnitude(float v)
{
    return element_bits(v) & 0x7fffffff;
}

/* Counts on the way in registers: what is counted is rare, so that the additions are, too. */
template <typename Half> struct encode {
    Half *to;
    const float *from;
    float *decoded;
    struct cuda_encoded *encoded;

    __device__ void count(float before, float after) const
    {
        const uint32_t was = magnitude(before), is = magnitude(after);
        if (is == ELEMENT_INFINITY && was < ELEMENT_INFINITY)
            atomicAdd(&encoded->infinite, 1ULL);
        if (is > ELEMENT_INFINITY)
            atomicAdd(&encoded->nan, 1ULL);
        if (is == 0 && was != 0)
            atomicAdd(&encoded->flushed, 1ULL);
    }
    __device__ void vector(size_t i) const
    {
        float v[PACK], back[PACK];
        load_pack(from + i, v);
#pragma unroll
        for (int k = 0; k < PACK; k++) {
            back[k] = rounded<Half>(v[k]);
            if (encoded)
                count(v[k], back[k]);
        }
        store_pack(to + i, back);
        if (decoded)
            store_pack(decoded + i, back);
    }
    __device__ void element(size_t i) const
    {
        const float v = from[i], back = rounded<Half>(v);
        narrow(back, to + i);
        if (encoded)
            count(v, back);
        if (decoded)
            decoded[i] = back;
    }
};

template <typename Half>
int encode_range(cuda_stream stream, Half *to, const float *from, size_t count, float *decoded,
                 struct cuda_encoded *encoded)
{
    const struct place places[] = {{to, sizeof *to}, {from, sizeof *from}, {decoded, sizeof *decoded}};
    return each_in_span<PACK>(stream, make_span<PACK>(count, places), encode<Half>{to, from, decoded, encoded});
}

__device__ bool finite(double v)
{
    return (element_bits_f64(v) & 0x7fffffffffffffff) < 0x7ff0000000000000;
}
__device__ bool finite(float v)
{
    return element_is_finite(v);
}
__device__ bool finite(f16 v)
{
    return (v.bits & 0x7fff) < 0x7c00;
}
__device__ bool finite(bf16 v)
{
    return (v.bits & 0x7fff) < 0x7f80;
}

template <typename T> struct check_finite {
    enum { W = 16 / sizeof(T) };
    const T *x;
    uint32_t *flag;

    __device__ void vector(size_t i) const
    {
        union {
            uint4 words;
            T element[W];
        } u;
        u.words = *reinterpret_cast<const uint4 *>(x + i);
        bool all = true;
#pragma unroll
        for (int k = 0; k < W; k++)
            all = all && finite(u.element[k]);
        if (!all)
            atomicOr(flag, 1U);
    }
    __device__ void element(size_t i) const
    {
        if (!finite(x[i]))
            atomicOr(flag, 1U);
    }
};

template <typename T> int check_range(cuda_stream stream, const T *x, size_t count, uint32_t *flag)
{
    const struct place places[] = {{x, sizeof *x}};
    constexpr int W = check_finite<T>::W;
    return each_in_span<W>(stream, make_span<W>(count, places), check_finite<T>{x, flag});
}

} // namespace

int cuda_cast(cuda_stream stream, enum dtype to_type, void *to, enum dtype from_type, const void *from, size_t count)
{
    return with_storage(to_type, [=](auto to_element) {
        return with_storage(from_type, [=](auto from_element) {
            typedef decltype(to_element) To;
            typedef decltype(from_element) From;
            return cast_range(stream, static_cast<To *>(to), static_cast<const From *>(from), count);
        });
    });
}

int cuda_encode(cuda_stream stream, enum dtype wire, void *to, const float *from, size_t count, float *decoded,
                struct cuda_encoded *encoded)
{
    if (wire == DTYPE_F16)
        return encode_range(stream, static_cast<f16 *>(to), from, count, decoded, encoded);
    if (wire == DTYPE_BF16)
        return encode_range(stream, static_cast<bf16 *>(to), from, count, decoded, encoded);
    return CUDA_BAD_ARGUMENT;
}

int cuda_check_finite(cuda_stream stream, enum dtype dtype, const void *x, size_t count, uint32_t *flag)
{
    if (dtype == DTYPE_F64)
        return check_range(stream, static_cast<const double *>(x), count, flag);
    return with_storage(dtype, [=](auto element) {
        return check_range(stream, static_cast<const decltype(element) *>(x), count, flag);
    });
}
