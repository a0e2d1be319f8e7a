/* kernels.c - each loop once, as an always-inlined body; compiled for AVX2 and for any CPU at the end of the file. */
#include "nn/cpu/kernels.h"

#include <math.h>

#define BODY static inline __attribute__((always_inline)) void
#define UNROLL _Pragma("GCC unroll 4")

/* Eight floats at any address, and the mask of a comparison. */
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t m8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef double d8 __attribute__((vector_size(64), aligned(8), may_alias)); /* their sums,             */
typedef uint8_t u8 __attribute__((vector_size(8), aligned(1), may_alias)); /* and the numbers of taps */

enum { WIDTH = 8, VECTORS = LANES / WIDTH };

/* Floats that are summed in single precision before the sum goes into a double. */
enum { EXACT_EVERY = LANES * 512 };

#define LOAD(p, u) (*(const v8 *)((p) + (size_t)(u)*WIDTH))
#define STORE(p, u) (*(v8 *)((p) + (size_t)(u)*WIDTH))
/* !(x <= 0) and not x > 0: a NaN passes, so that a diverged run is seen. */
#define POSITIVE(x) (~((x) <= 0.0F))
#define KEEP(mask, x) ((v8)((m8)(x) & (mask)))

BODY fold(const v8 *vector, double *sum)
{
    for (int u = 0; u < VECTORS; u++)
        *(d8 *)(sum + (size_t)u * WIDTH) += __builtin_convertvector(vector[u], d8);
}

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- statistics ---- */

BODY statistics_trip(const float *x, const float *center, int vectors, v8 *sum, v8 *square)
{
    UNROLL
    for (int u = 0; u < vectors; u++) {
        v8 d = LOAD(x, u) - LOAD(center, u);
        sum[u] += d;
        square[u] += d * d;
    }
}

BODY statistics_body(const struct runs *runs, const float *x, const float *center, double *sum, double *square)
{
    for (size_t r = 0; r < runs->count; r++) {
        const float *run = x + r * runs->stride;
        for (size_t start = 0; start < runs->length; start += EXACT_EVERY) {
            v8 s[VECTORS] = {{0}}, q[VECTORS] = {{0}};
            size_t end = smaller(start + EXACT_EVERY, runs->length), i = start;
            for (; i + LANES <= end; i += LANES)
                statistics_trip(run + i, center, VECTORS, s, q);
            statistics_trip(run + i, center, (int)((end - i) / WIDTH), s, q);
            fold(s, sum);
            fold(q, square);
        }
    }
}

/* ---- forward ---- */

BODY scale_shift_trip(const float *x, const float *add, const float *scale, const float *shift, bool relu, int vectors,
                      float *y)
{
    UNROLL
    for (int u = 0; u < vectors; u++) {
        v8 v = LOAD(x, u) * LOAD(scale, u) + LOAD(shift, u);
        if (add)
            v += LOAD(add, u);
        if (relu)
            v = KEEP(POSITIVE(v), v);
        STORE(y, u) = v;
    }
}

BODY scale_shift_runs(const struct runs *runs, const float *x, const float *add, const float *scale, const float *shift,
                      bool relu, float *y)
{
    for (size_t r = 0; r < runs->count; r++) {
        size_t start = r * runs->stride, end = start + runs->length, i = start;
        for (; i + LANES <= end; i += LANES)
            scale_shift_trip(x + i, add ? add + i : NULL, scale, shift, relu, VECTORS, y + i);
        scale_shift_trip(x + i, add ? add + i : NULL, scale, shift, relu, (int)((end - i) / WIDTH), y + i);
    }
}

/* The branches are taken here, once, so that the loops have none. */
BODY scale_shift_body(const struct runs *runs, const float *x, const float *add, const float *scale, const float *shift,
                      bool relu, float *y)
{
    if (add && relu)
        scale_shift_runs(runs, x, add, scale, shift, true, y);
    else if (add)
        scale_shift_runs(runs, x, add, scale, shift, false, y);
    else if (relu)
        scale_shift_runs(runs, x, NULL, scale, shift, true, y);
    else
        scale_shift_runs(runs, x, NULL, scale, shift, false, y);
}

/* ---- backward ---- */

/* The input and the masked gradient of vector u, at floats i + 8 u. */
BODY masked_gradient(const struct norm_gradient *in, size_t i, int u, enum mask_kind mask, bool more, v8 *x, v8 *g)
{
    *x = LOAD(in->x + i, u);
    *g = LOAD(in->gradient + i, u);
    if (more)
        *g += LOAD(in->more + i, u);
    if (mask == MASK_BY_INPUT)
        *g = KEEP(POSITIVE(*x * LOAD(in->scale, u) + LOAD(in->shift, u)), *g);
    else if (mask == MASK_BY_RESULT)
        *g = KEEP(POSITIVE(LOAD(in->result + i, u)), *g);
}

BODY reduce_trip(const struct norm_gradient *in, size_t i, enum mask_kind mask, bool more, int vectors, float *masked,
                 v8 *sum, v8 *product)
{
    UNROLL
    for (int u = 0; u < vectors; u++) {
        v8 x, g;
        masked_gradient(in, i, u, mask, more, &x, &g);
        if (masked)
            STORE(masked + i, u) = g;
        sum[u] += g;
        product[u] += g * (x - LOAD(in->mean, u));
    }
}

BODY reduce_runs(const struct runs *runs, const struct norm_gradient *in, enum mask_kind mask, bool more, float *masked,
                 double *sum, double *product)
{
    for (size_t r = 0; r < runs->count; r++) {
        size_t run_end = r * runs->stride + runs->length;
        for (size_t start = r * runs->stride; start < run_end; start += EXACT_EVERY) {
            v8 s[VECTORS] = {{0}}, p[VECTORS] = {{0}};
            size_t end = smaller(start + EXACT_EVERY, run_end), i = start;
            for (; i + LANES <= end; i += LANES)
                reduce_trip(in, i, mask, more, VECTORS, masked, s, p);
            reduce_trip(in, i, mask, more, (int)((end - i) / WIDTH), masked, s, p);
            fold(s, sum);
            fold(p, product);
        }
    }
}

BODY reduce_masked(const struct runs *runs, const struct norm_gradient *in, enum mask_kind mask, float *masked,
                   double *sum, double *product)
{
    if (in->more && masked)
        reduce_runs(runs, in, mask, true, masked, sum, product);
    else if (in->more)
        reduce_runs(runs, in, mask, true, NULL, sum, product);
    else if (masked)
        reduce_runs(runs, in, mask, false, masked, sum, product);
    else
        reduce_runs(runs, in, mask, false, NULL, sum, product);
}

BODY norm_reduce_body(const struct runs *runs, const struct norm_gradient *in, float *masked, double *sum,
                      double *product)
{
    if (in->mask == MASK_BY_INPUT)
        reduce_masked(runs, in, MASK_BY_INPUT, masked, sum, product);
    else if (in->mask == MASK_BY_RESULT)
        reduce_masked(runs, in, MASK_BY_RESULT, masked, sum, product);
    else
        reduce_masked(runs, in, MASK_NONE, masked, sum, product);
}

BODY apply_trip(const struct norm_gradient *in, size_t i, enum mask_kind mask, bool more, int vectors, const float *a,
                const float *b, const float *c, float *dx)
{
    UNROLL
    for (int u = 0; u < vectors; u++) {
        v8 x, g;
        masked_gradient(in, i, u, mask, more, &x, &g);
        STORE(dx + i, u) = LOAD(a, u) * g - LOAD(b, u) * (x - LOAD(in->mean, u)) - LOAD(c, u);
    }
}

BODY apply_runs(const struct runs *runs, const struct norm_gradient *in, enum mask_kind mask, bool more, const float *a,
                const float *b, const float *c, float *dx)
{
    for (size_t r = 0; r < runs->count; r++) {
        size_t start = r * runs->stride, end = start + runs->length, i = start;
        for (; i + LANES <= end; i += LANES)
            apply_trip(in, i, mask, more, VECTORS, a, b, c, dx);
        apply_trip(in, i, mask, more, (int)((end - i) / WIDTH), a, b, c, dx);
    }
}

BODY apply_masked(const struct runs *runs, const struct norm_gradient *in, enum mask_kind mask, const float *a,
                  const float *b, const float *c, float *dx)
{
    if (in->more)
        apply_runs(runs, in, mask, true, a, b, c, dx);
    else
        apply_runs(runs, in, mask, false, a, b, c, dx);
}

BODY norm_apply_body(const struct runs *runs, const struct norm_gradient *in, const float *a, const float *b,
                     const float *c, float *dx)
{
    if (in->mask == MASK_BY_INPUT)
        apply_masked(runs, in, MASK_BY_INPUT, a, b, c, dx);
    else if (in->mask == MASK_BY_RESULT)
        apply_masked(runs, in, MASK_BY_RESULT, a, b, c, dx);
    else
        apply_masked(runs, in, MASK_NONE, a, b, c, dx);
}

BODY add_body(const float *x, float *y, size_t count)
{
    for (size_t i = 0; i < count; i += WIDTH)
        STORE(y + i, 0) += LOAD(x + i, 0);
}

/* Pairs of lanes, then pairs of pairs, then halves. */
BODY transpose_body(const float *from, float *to)
{
    v8 a[TRANSPOSED], b[TRANSPOSED];
    for (int k = 0; k < 4; k++) {
        v8 low = LOAD(from, 2 * k), high = LOAD(from, 2 * k + 1);
        a[2 * k] = __builtin_shufflevector(low, high, 0, 8, 1, 9, 4, 12, 5, 13);
        a[2 * k + 1] = __builtin_shufflevector(low, high, 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int k = 0; k < 2; k++) {
        for (int u = 0; u < 2; u++) {
            v8 low = a[4 * k + u], high = a[4 * k + u + 2];
            b[4 * k + 2 * u] = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
            b[4 * k + 2 * u + 1] = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
    for (int k = 0; k < 4; k++) {
        STORE(to, k) = __builtin_shufflevector(b[k], b[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        STORE(to, k + 4) = __builtin_shufflevector(b[k], b[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* ---- max pooling ---- */

BODY pool_forward_body(const float *x, const ptrdiff_t *offset, int taps, size_t lanes, float *y, uint8_t *which)
{
    int first = 0;
    while (offset[first] < 0) /* a window has a pixel of the image */
        first++;
    for (size_t lane = 0; lane < lanes; lane += WIDTH) {
        v8 best = LOAD(x + offset[first] + lane, 0);
        m8 index = (m8){0} + first;
        for (int t = first + 1; t < taps; t++) {
            if (offset[t] < 0)
                continue;
            v8 v = LOAD(x + offset[t] + lane, 0);
            m8 taken =
                (v > best) | ~(v <= INFINITY); /* or is NaN, which stays whatever comes after it, as in PyTorch */
            best = (v8)(((m8)v & taken) | ((m8)best & ~taken));
            index = (t & taken) | (index & ~taken);
        }
        STORE(y + lane, 0) = best;
        *(u8 *)(which + lane) = __builtin_convertvector(index, u8);
    }
}

BODY pool_backward_body(const float *gradient, const uint8_t *which, const ptrdiff_t *offset, int taps, size_t lanes,
                        float *dx)
{
    for (size_t lane = 0; lane < lanes; lane += WIDTH) {
        v8 g = LOAD(gradient + lane, 0);
        const m8 index = __builtin_convertvector(*(const u8 *)(which + lane), m8);
        for (int t = 0; t < taps; t++) {
            if (offset[t] >= 0)
                STORE(dx + offset[t] + lane, 0) += KEEP(index == t, g);
        }
    }
}

/* ---- the two compilations ---- */

/* NOLINTBEGIN(bugprone-macro-parentheses): an attribute can't stand in parentheses */
#define COMPILE(suffix, target)                                                                                        \
    target static void statistics_##suffix(const struct runs *runs, const float *x, const float *center, double *sum,  \
                                           double *square)                                                             \
    {                                                                                                                  \
        statistics_body(runs, x, center, sum, square);                                                                 \
    }                                                                                                                  \
    target static void scale_shift_##suffix(const struct runs *runs, const float *x, const float *add,                 \
                                            const float *scale, const float *shift, bool relu, float *y)               \
    {                                                                                                                  \
        scale_shift_body(runs, x, add, scale, shift, relu, y);                                                         \
    }                                                                                                                  \
    target static void norm_reduce_##suffix(const struct runs *runs, const struct norm_gradient *in, float *masked,    \
                                            double *sum, double *product)                                              \
    {                                                                                                                  \
        norm_reduce_body(runs, in, masked, sum, product);                                                              \
    }                                                                                                                  \
    target static void norm_apply_##suffix(const struct runs *runs, const struct norm_gradient *in, const float *a,    \
                                           const float *b, const float *c, float *dx)                                  \
    {                                                                                                                  \
        norm_apply_body(runs, in, a, b, c, dx);                                                                        \
    }                                                                                                                  \
    target static void add_##suffix(const float *x, float *y, size_t count)                                            \
    {                                                                                                                  \
        add_body(x, y, count);                                                                                         \
    }                                                                                                                  \
    target static void transpose_##suffix(const float *from, float *to)                                                \
    {                                                                                                                  \
        transpose_body(from, to);                                                                                      \
    }                                                                                                                  \
    target static void pool_forward_##suffix(const float *x, const ptrdiff_t *offset, int taps, size_t lanes,          \
                                             float *y, uint8_t *which)                                                 \
    {                                                                                                                  \
        pool_forward_body(x, offset, taps, lanes, y, which);                                                           \
    }                                                                                                                  \
    target static void pool_backward_##suffix(const float *gradient, const uint8_t *which, const ptrdiff_t *offset,    \
                                              int taps, size_t lanes, float *dx)                                       \
    {                                                                                                                  \
        pool_backward_body(gradient, which, offset, taps, lanes, dx);                                                  \
    }                                                                                                                  \
    static const struct kernels kernels_##suffix##_table = {                                                           \
        .name = #suffix,                                                                                               \
        .statistics = statistics_##suffix,                                                                             \
        .scale_shift = scale_shift_##suffix,                                                                           \
        .norm_reduce = norm_reduce_##suffix,                                                                           \
        .norm_apply = norm_apply_##suffix,                                                                             \
        .add = add_##suffix,                                                                                           \
        .transpose = transpose_##suffix,                                                                               \
        .pool_forward = pool_forward_##suffix,                                                                         \
        .pool_backward = pool_backward_##suffix,                                                                       \
    };

/* NOLINTEND(bugprone-macro-parentheses) */

COMPILE(plain, )

const struct kernels *kernels_plain(void)
{
    return &kernels_plain_table;
}

#if defined(__x86_64__)
COMPILE(avx2, __attribute__((target("avx2,fma"))))

const struct kernels *kernels_select(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels_avx2_table : &kernels_plain_table;
}
#else
const struct kernels *kernels_select(void)
{
    return &kernels_plain_table;
}
#endif
