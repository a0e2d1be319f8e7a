/* linear.h - the linear layer's three products by cuBLAS.
 *
 * x (rows, inputs), w (outputs, inputs), dy (rows, outputs), dx like x: in the storage type; y (rows, outputs) and dw like
 * w: f32. Sums are f32. One workspace of its own and one stream make results repeatable.
 */
#ifndef CHORALE_NN_CUDA_LINEAR_H
#define CHORALE_NN_CUDA_LINEAR_H

#include <stdbool.h>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/device.h"

struct cuda_linear;

struct cuda_linear_shape {
    int rows, inputs, outputs;
};

/* Products go into the device's compute queue. tf32: f32 may be rounded to 10 bits of mantissa. */
enum status cuda_linear_open(struct device *device, enum dtype storage, bool tf32,
                             struct cuda_linear **linear) MUST_CHECK;
void cuda_linear_close(struct cuda_linear *linear); /* accepts NULL */
size_t cuda_linear_memory(void);                    /* bytes of device memory */

/* y = x w^T */
enum status cuda_linear_forward(struct cuda_linear *linear, const struct cuda_linear_shape *shape, const void *x,
                                const void *w, float *y) MUST_CHECK;
/* dx = dy w */
enum status cuda_linear_backward_data(struct cuda_linear *linear, const struct cuda_linear_shape *shape, const void *dy,
                                      const void *w, void *dx) MUST_CHECK;
/* dw = scale dy^T x */
enum status cuda_linear_backward_weights(struct cuda_linear *linear, const struct cuda_linear_shape *shape,
                                         const void *dy, const void *x, float scale, float *dw) MUST_CHECK;

#endif
