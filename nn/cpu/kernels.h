/* kernels.h - the vector loops of batch norm, ReLU, residual additions and max pooling.
 *
 * Each loop is written once with vectors of 8 floats and compiled twice, for AVX2 and for any CPU; kernels_select()
 * takes the best at run time. No multiplication is contracted with an addition, so both give the same bits.
 * One thread each: the caller spreads blocks of channels over threads.
 */
#ifndef CHORALE_NN_CPU_KERNELS_H
#define CHORALE_NN_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRANSPOSED = 8 }; /* side of a transposed block */

enum { LANES = 32 }; /* floats of one trip: a per-channel operand is repeated until it fills them */

/* One block of channels over all images: `count` runs of `length` floats, a multiple of 8, `stride` floats apart. */
struct runs {
    size_t count, length, stride;
};

enum mask_kind {
    MASK_NONE,
    MASK_BY_INPUT, /* pass where scale x + shift > 0: recomputed, so ReLU stores nothing */
    MASK_BY_RESULT /* pass where the stored result > 0                                    */
};

/* Operands of batch norm's backward loops; per-channel ones have LANES floats. */
struct norm_gradient {
    const float *x;               /* input of the batch norm                              */
    const float *result;          /* MASK_BY_RESULT                                       */
    const float *gradient, *more; /* their sum is the result's gradient; more may be NULL */
    const float *scale, *shift;   /* MASK_BY_INPUT                                        */
    const float *mean;
    enum mask_kind mask;
};

struct kernels {
    const char *name;
    /* Per lane: sum of (x - center) and of its square. */
    void (*statistics)(const struct runs *runs, const float *x, const float *center, double *sum, double *square);
    /* y = scale x + shift [+ add] [, at least 0]; add may be NULL. */
    void (*scale_shift)(const struct runs *runs, const float *x, const float *add, const float *scale,
                        const float *shift, bool relu, float *y);
    /* Per lane: sum of g and of g (x - mean), g the masked gradient, which is also stored in `masked` unless NULL. */
    void (*norm_reduce)(const struct runs *runs, const struct norm_gradient *in, float *masked, double *sum,
                        double *product);
    /* dx = a g - b (x - mean) - c; may be done in place of either gradient. */
    void (*norm_apply)(const struct runs *runs, const struct norm_gradient *in, const float *a, const float *b,
                       const float *c, float *dx);
    /* y += x, `count` floats, a multiple of 8 */
    void (*add)(const float *x, float *y, size_t count);
    /* A block of 8 x 8 floats */
    void (*transpose)(const float *from, float *to);
    /* One pixel of `lanes` channels (a multiple of 8): maximum over `taps` inputs and the number of the first that
     * has it. offset[t] < 0: outside the image. */
    void (*pool_forward)(const float *x, const ptrdiff_t *offset, int taps, size_t lanes, float *y, uint8_t *which);
    /* Its gradient is added to the input that was largest. */
    void (*pool_backward)(const float *gradient, const uint8_t *which, const ptrdiff_t *offset, int taps, size_t lanes,
                          float *dx);
};

const struct kernels *kernels_select(void);
const struct kernels *kernels_plain(void); /* for tests */

#endif
