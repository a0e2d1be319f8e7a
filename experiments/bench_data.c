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
        table[k] = value(data->sums, data->workers, data->rank, k);
    for (size_t i = 0, k = 0; i < count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        put(data->dtype, vector, i, table[k]);
}

/* Results of a format that rounds each element are values of the format. */
static size_t count_wrong_rounded(const struct bench_data *data, const long *totals, const float *vector, size_t count)
{
    const int divisor = data->op == REDUCE_AVG ? data->workers : 1;
    float wanted[TABLE];
    _Alignas(8) unsigned char bytes[TABLE * sizeof(float)];
    size_t wrong = 0;
    for (size_t k = 0; k < TABLE; k++)
        wanted[k] = (float)totals[k] / (float)divisor;
    const size_t length = wire_format_encode(data->wire, 0, wanted, TABLE, bytes);
    if (wire_format_decode(data->wire, bytes, length, wanted, TABLE) < 0)
        return count;
    for (size_t i = 0, k = 0; i < count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        wrong += vector[i] != wanted[k];
    return wrong;
}

size_t bench_count_wrong(const struct bench_data *data, const void *vector, size_t count)
{
    const int divisor = data->op == REDUCE_AVG ? data->workers : 1;
    long table[TABLE];
    size_t wrong = 0;
    for (size_t k = 0; k < TABLE; k++)
        table[k] = expected(data->sums, data->op, data->workers, k);
    if (data->wire != NULL)
        return count_wrong_rounded(data, table, vector, count);
    for (size_t i = 0, k = 0; i < count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        wrong += !equals(data->dtype, vector, i, table[k], divisor);
    return wrong;
}

/* ---- random ---- */

/* The start of the endless vector of `rank`, which repeats. */
static void random_table(int rank, double table[TABLE])
{
    const uint64_t key = rng_key(0, "bench", (uint64_t)rank, 0);
    for (size_t k = 0; k < TABLE; k++)
        table[k] = ldexp(2 * rng_uniform(key, 2 * k) - 1, (int)rng_below(key, 2 * k + 1, 12));
}

void bench_fill_random(const struct bench_data *data, void *vector, size_t first, size_t count)
{
    double table[TABLE];
    random_table(data->rank, table);
    for (size_t i = 0, k = first % TABLE; i < count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        put_real(data->dtype, vector, i, table[k]);
}

/* Length and largest magnitude of `count` elements that repeat a table. */
static void measure(const double table[TABLE], size_t count, double *norm, double *most)
{
    double sum = 0;
    *most = 0;
    for (size_t k = 0; k < TABLE && k < count; k++) {
        const size_t times = (count - 1 - k) / TABLE + 1;
        sum += table[k] * table[k] * (double)times;
        *most = fmax(*most, fabs(table[k]));
    }
    *norm = sqrt(sum);
}

#define F32_SLACK 1e-5 /* what additions in f32 may be off, in proportion */

void bench_distance(const struct bench_data *data, const void *vector, size_t count, double *distance, double *promised)
{
    const double divisor = data->op == REDUCE_AVG ? data->workers : 1;
    double exact[TABLE] = {0}, table[TABLE], norm, most, sum = 0;
    *promised = 0;
    for (int r = 0; r < data->workers; r++) {
        random_table(r, table);
        for (size_t k = 0; k < TABLE; k++) {
            table[k] = (double)(float)table[k];
            exact[k] += table[k] / divisor;
        }
        measure(table, count, &norm, &most);
        *promised += (wire_format_error(data->wire, count, norm, most) + F32_SLACK * norm) / divisor;
    }
    measure(exact, count, &norm, &most);
    *promised += wire_format_error(data->wire, count, norm + *promised, most + *promised);
    for (size_t i = 0; i < count; i++) {
        const double off = (double)((const float *)vector)[i] - exact[i % TABLE];
        sum += off * off;
    }
    *distance = sqrt(sum);
}
