/* bench_data.c - exact data, their expected results, and random data. */
#include "experiments/bench_data.h"

#include <math.h>
#include <stdbool.h>

#include "base/half.h"
#include "base/rng.h"

#define TABLE 1021 /* data repeat after this prime number of elements */

/* ---- exact ---- */

/* The largest whole number up to which an element type has all of them, beyond what is needed here. */
static long whole_most(enum dtype dtype)
{
    return dtype == DTYPE_F16 ? 1L << 11 : dtype == DTYPE_BF16 ? 1L << 8 : 1L << 24;
}

/* Small integers that depend on worker and index: partial sums are exact in every type and order. Where even ones are
 * too large for that, only the first workers have something to say. */
static long value(enum dtype dtype, int workers, int rank, size_t i)
{
    const size_t k = i % TABLE;
    const long room = whole_most(dtype) / workers, most = room > 20 ? 20 : room > 0 ? room : 1;
    if (rank >= whole_most(dtype))
        return 0;
    return (long)((k * 7 + (size_t)rank * 13 + k / 11) % (size_t)(2 * most + 1)) - most;
}

static long expected(enum dtype dtype, enum reduce_op op, int workers, size_t i)
{
    long result = value(dtype, workers, 0, i);
    for (int r = 1; r < workers; r++) {
        const long v = value(dtype, workers, r, i);
        if (op == REDUCE_MIN)
            result = v < result ? v : result;
        else if (op == REDUCE_MAX)
            result = v > result ? v : result;
        else
            result += v;
    }
    return result;
}

static void put(enum dtype dtype, void *data, size_t i, long v)
{
    switch (dtype) {
    case DTYPE_F32:
        ((float *)data)[i] = (float)v;
        break;
    case DTYPE_F64:
        ((double *)data)[i] = (double)v;
        break;
    case DTYPE_I32:
        ((int32_t *)data)[i] = (int32_t)v;
        break;
    case DTYPE_F16:
        ((uint16_t *)data)[i] = f16_from_f32((float)v);
        break;
    case DTYPE_BF16:
        ((uint16_t *)data)[i] = bf16_from_f32((float)v);
        break;
    default:
        ((int64_t *)data)[i] = v;
    }
}

static void put_real(enum dtype dtype, void *data, size_t i, double v)
{
    switch (dtype) {
    case DTYPE_F32:
        ((float *)data)[i] = (float)v;
        break;
    case DTYPE_F64:
        ((double *)data)[i] = v;
        break;
    case DTYPE_F16:
        ((uint16_t *)data)[i] = f16_from_f32((float)v);
        break;
    case DTYPE_BF16:
        ((uint16_t *)data)[i] = bf16_from_f32((float)v);
        break;
    default:
        put(dtype, data, i, (long)(v * 1024));
    }
}

static bool equals(enum dtype dtype, const void *data, size_t i, long total, int divisor)
{
    switch (dtype) {
    case DTYPE_F32:
        return ((const float *)data)[i] == (float)total / (float)divisor;
    case DTYPE_F64:
        return ((const double *)data)[i] == (double)total / divisor;
    case DTYPE_I32:
        return ((const int32_t *)data)[i] == (int32_t)(total / divisor);
    case DTYPE_F16: /* by value: a sum of zeros has the sign that its order gave it */
        return f16_to_f32(((const uint16_t *)data)[i]) == f16_to_f32(f16_from_f32((float)total / (float)divisor));
    case DTYPE_BF16:
        return bf16_to_f32(((const uint16_t *)data)[i]) == bf16_to_f32(bf16_from_f32((float)total / (float)divisor));
    default:
        return ((const int64_t *)data)[i] == total / divisor;
    }
}

void bench_fill(const struct bench_data *data, void *vector, size_t count)
{
    long table[TABLE];
    for (size_t k = 0; k < TABLE; k++)
        table[k] = value(data->dtype, data->workers, data->rank, k);
    for (size_t i = 0, k = 0; i < count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        put(data->dtype, vector, i, table[k]);
}

size_t bench_count_wrong(const struct bench_data *data, const void *vector, size_t count)
{
    const int divisor = data->op == REDUCE_AVG ? data->workers : 1;
    long table[TABLE];
    size_t wrong = 0;
    for (size_t k = 0; k < TABLE; k++)
        table[k] = expected(data->dtype, data->op, data->workers, k);
    for (size_t i = 0, k = 0; i < count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        wrong += !equals(data->dtype, vector, i, table[k], divisor);
    return wrong;
}

/* ---- random ---- */

void bench_fill_random(const struct bench_data *data, void *vector, size_t first, size_t count)
{
    const uint64_t key = rng_key(0, "bench", (uint64_t)data->rank, 0);
    double table[TABLE];
    for (size_t k = 0; k < TABLE; k++)
        table[k] = ldexp(2 * rng_uniform(key, 2 * k) - 1, (int)rng_below(key, 2 * k + 1, 12));
    for (size_t i = 0, k = first % TABLE; i < count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        put_real(data->dtype, vector, i, table[k]);
}
