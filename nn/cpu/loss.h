/* loss.h - softmax and cross-entropy. */
#ifndef CHORALE_NN_CPU_LOSS_H
#define CHORALE_NN_CPU_LOSS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct cross_entropy {
    const float *logits;   /* (count, classes) */
    const int32_t *labels; /* (count)          */
    size_t count, classes;
    double divisor;   /* of the gradient; 0: count */
    double smoothing; /* the target is 1 - smoothing of the label and smoothing / classes of every class */
};

/* loss_sum: sum over the images of -log softmax(logits)[class], weighted by the target. correct, top5 (may be NULL): images
 * whose label has the largest logit, one of the five largest; of equal ones the first, and a NaN is never behind another.
 * gradient (count, classes), or NULL: of loss_sum / divisor by the logits. STATUS_FORMAT where a label is not a class. */
enum status cross_entropy(const struct cross_entropy *of, double *loss_sum, size_t *correct, size_t *top5,
                          float *gradient) MUST_CHECK;

#endif
