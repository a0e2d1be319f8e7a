/* norm.h - batch norm over blocked or folded values, fused with the residual addition and the ReLU after it.
 *
 * Statistics are those of the batch (training), with `sums` of all workers' batches together, or the running ones
 * (evaluation). Nothing but the mean and the two
 * coefficients of a channel is kept for backward: the ReLU's mask is recomputed or read off the result.
 */
#ifndef CHORALE_NN_CPU_NORM_H
#define CHORALE_NN_CPU_NORM_H

#include <stdbool.h>

#include "base/status.h"
#include "nn/backend.h"
#include "nn/cpu/kernels.h"
#include "nn/cpu/value.h"

/* Of a batch that is not full: the others' results and gradients are 0. */
struct norm_share {
    size_t images;  /* the first ones of x that there are */
    double divisor; /* of the gradients: they are those of sums of losses divided by this */
};

struct norm {
    const struct kernels *kernels;
    int threads;
    const struct norm_share *share;        /* in training; NULL: all images, and their number */
    const struct value *x;                 /* input; result, addend and gradients have its layout */
    float *mean, *inverse, *scale, *shift; /* (C) each: y = scale x + shift, inverse = 1 / deviation */
    const struct worker_sums *sums;        /* NULL: this worker's batch */
    double *exchanged;                     /* with sums: norm_exchanged() values, shared by norms */
    double values;                         /* with sums: of a channel, on all workers */
};

/* What a norm exchanges at most: a count, and two values of each channel. */
static inline size_t norm_exchanged(size_t channels)
{
    return 1 + 2 * channels;
}

/* result = [relu] (norm(x) [+ addend]). parameters: gamma (C), beta (C). state: running mean (C), variance (C). */
enum status norm_train(struct norm *norm, const float *parameters, float *state, const float *addend, bool relu,
                       float *result) MUST_CHECK;
void norm_evaluate(struct norm *norm, const float *parameters, const float *state, const float *addend, bool relu,
                   float *result);

struct norm_backward {
    const float *parameters; /* gamma (C), beta (C)                                        */
    const float *result;     /* only where there is an addend                              */
    bool relu;
    float *gradient;           /* of the result; with an addend it becomes the addend's      */
    const float *more;         /* a second gradient of the result, or NULL                   */
    float *parameter_gradient; /* of gamma (C), beta (C)                                     */
    float *input_gradient;     /* may be `gradient` where there is no addend, or `more`      */
    bool addend;
};
/* With sums: the gradients of the parameters are those of this worker's loss, as everywhere; in the input's the means are
 * over all workers' values, of a loss that is the mean over all images. Each worker's divisor brings its gradients to a
 * common unit. */
enum status norm_backward(struct norm *norm, const struct norm_backward *in) MUST_CHECK;

#endif
