/* bias.h - what follows a convolution or a linear layer where no batch norm does: bias, ReLU, both or none, in place.
 *
 * Values are blocked, folded, or flat with one pixel. The bits do not depend on the number of threads.
 */
#ifndef CHORALE_NN_CPU_BIAS_H
#define CHORALE_NN_CPU_BIAS_H

#include <stdbool.h>

#include "nn/cpu/value.h"

struct bias {
    const struct value *value; /* whose layout the result and its gradient have */
    bool relu;
    int threads;
};

/* y = [relu] (y + bias); bias (C) or NULL. A NaN stays one. */
void bias_forward(const struct bias *of, const float *bias, float *y);
/* gradient = 0 where the result is not above 0 (ReLU; a NaN's gradient passes); bias_gradient (C) = its sums, or NULL. */
void bias_backward(const struct bias *of, const float *result, float *gradient, float *bias_gradient);

#endif
