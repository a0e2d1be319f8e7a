/* convolution.c - one convolution by plain loops, in double precision. */
#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "tests/nn/cuda/fake/fake.h"

enum { ALIGNMENT = 16 };

static size_t size_of(const struct fake_convolution *of)
{
    return of->type == CUDNN_DATA_FLOAT ? sizeof(float) : sizeof(uint16_t);
}

static size_t count_x(const struct fake_convolution *of)
{
    return (size_t)of->n * (size_t)of->h * (size_t)of->w * (size_t)of->c;
}

static size_t count_f(const struct fake_convolution *of)
{
    return (size_t)of->k * (size_t)of->r * (size_t)of->s * (size_t)of->c;
}

static size_t count_y(const struct fake_convolution *of)
{
    return (size_t)of->n * (size_t)of->p * (size_t)of->q * (size_t)of->k;
}

static bool good(const void *address, size_t bytes)
{
    return (uintptr_t)address % ALIGNMENT == 0 && fake_is_device(address, bytes);
}

bool fake_convolution_check(const struct fake_convolution *of)
{
    const size_t size = size_of(of);
    if (of->p != (of->h + 2 * of->padding - of->r) / of->stride + 1 ||
        of->q != (of->w + 2 * of->padding - of->s) / of->stride + 1)
        return false;
    return good(of->x, count_x(of) * size) && good(of->f, count_f(of) * size) && good(of->y, count_y(of) * size) &&
           (of->workspace_bytes == 0 || good(of->workspace, of->workspace_bytes));
}

static void decode(const struct fake_convolution *of, const void *from, float *to, size_t count)
{
    if (of->type == CUDNN_DATA_FLOAT)
        memcpy(to, from, count * sizeof *to);
    else if (of->type == CUDNN_DATA_BFLOAT16)
        bf16_decode(to, from, count);
    else
        f16_decode(to, from, count);
}

static void encode(const struct fake_convolution *of, const float *from, void *to, size_t count)
{
    if (of->type == CUDNN_DATA_FLOAT)
        memcpy(to, from, count * sizeof *from);
    else if (of->type == CUDNN_DATA_BFLOAT16)
        bf16_encode(to, from, count);
    else
        f16_encode(to, from, count);
}

/* Decoded operands, and the result in double. */
struct loops {
    const struct fake_convolution *of;
    const float *x, *f, *y;
    double *out;
};

/* One pixel of y with one tap of the filters: rows of c channels of x, and of k filters of y. */
static void tap(const struct loops *loops, size_t pixel_x, size_t pixel_y, size_t place)
{
    const struct fake_convolution *of = loops->of;
    const size_t c = (size_t)of->c, k = (size_t)of->k, taps = (size_t)of->r * (size_t)of->s;
    for (size_t i = 0; i < k; i++) {
        const size_t filter = (i * taps + place) * c;
        const float *x = loops->x + pixel_x * c, *f = loops->f + filter;
        const float y = loops->y[pixel_y * k + i];
        double sum = 0, *out = loops->out;
        switch (of->direction) {
        case FAKE_FORWARD:
            for (size_t j = 0; j < c; j++)
                sum += (double)x[j] * (double)f[j];
            out[pixel_y * k + i] += sum;
            break;
        case FAKE_BACKWARD_DATA:
            for (size_t j = 0; j < c; j++)
                out[pixel_x * c + j] += (double)y * (double)f[j];
            break;
        case FAKE_BACKWARD_FILTER:
            for (size_t j = 0; j < c; j++)
                out[filter + j] += (double)y * (double)x[j];
            break;
        }
    }
}

static void image(const struct loops *loops, int n)
{
    const struct fake_convolution *of = loops->of;
    for (int p = 0; p < of->p; p++) {
        for (int q = 0; q < of->q; q++) {
            for (int place = 0; place < of->r * of->s; place++) {
                const int row = p * of->stride - of->padding + place / of->s;
                const int column = q * of->stride - of->padding + place % of->s;
                if (row < 0 || row >= of->h || column < 0 || column >= of->w)
                    continue;
                tap(loops, ((size_t)n * (size_t)of->h + (size_t)row) * (size_t)of->w + (size_t)column,
                    ((size_t)n * (size_t)of->p + (size_t)p) * (size_t)of->q + (size_t)q, (size_t)place);
            }
        }
    }
}

static void *checked(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        abort();
    return memory;
}

void fake_convolution_run(const struct fake_convolution *of)
{
    const size_t counts[3] = {count_x(of), count_f(of), count_y(of)};
    void *const places[3] = {of->x, of->f, of->y};
    const int written = of->direction == FAKE_FORWARD ? 2 : of->direction == FAKE_BACKWARD_DATA ? 0 : 1;
    float *operand[3];
    if (of->workspace_bytes > 0 && fake_settings()->clobber)
        memset(of->workspace, 0xff, of->workspace_bytes);
    for (int k = 0; k < 3; k++) {
        operand[k] = checked(counts[k], sizeof *operand[k]);
        decode(of, places[k], operand[k], counts[k]);
    }
    double *out = checked(counts[written], sizeof *out);
    const struct loops loops = {of, operand[0], operand[1], operand[2], out};
    for (int n = 0; n < of->n; n++)
        image(&loops, n);
    for (size_t i = 0; i < counts[written]; i++) {
        const float before = of->beta == 0 ? 0 : of->beta * operand[written][i];
        operand[written][i] = of->alpha * (float)out[i] + before;
    }
    encode(of, operand[written], places[written], counts[written]);
    for (int k = 0; k < 3; k++)
        free(operand[k]);
    free(out);
}
