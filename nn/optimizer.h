/* optimizer.h - stochastic gradient descent with momentum; learning_rate.h has the rate of each step.
 *
 * PyTorch's form: u = m u + (g + d w), w = w - lr u; d = weight decay where the tensor decays (convolution and linear
 * weights), else 0. Element by element in single precision, without contraction: workers with equal inputs have equal
 * bits afterwards, in whatever order a backend keeps the elements of a tensor.
 */
#ifndef CHORALE_NN_OPTIMIZER_H
#define CHORALE_NN_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/device.h"
#include "nn/backend.h"
#include "nn/model.h"

struct optimizer;

/* Where an optimizer works that is not to work in host memory: the backend's arenas, by its update(). */
struct optimizer_device {
    struct device *device; /* momentum lies in its memory */
    const struct backend_ops *ops;
    struct backend *backend; /* must outlive the optimizer's last step */
};

/* Momentum starts at 0. The model is not kept. on: NULL for host memory. Free with optimizer_destroy(). */
enum status optimizer_create(const struct model *model, double momentum, double weight_decay,
                             const struct optimizer_device *on, struct optimizer **optimizer) MUST_CHECK;
void optimizer_destroy(struct optimizer *optimizer); /* accepts NULL */

/* One update of parameters[model->parameters] with the gradient and the rate. *finite turns false when an element of the
 * gradient is not finite: the parameters are then worthless. On a device the update is only put into its queue, and
 * *finite stays as it is: optimizer_finite(), and the results of later steps, tell. */
enum status optimizer_step(struct optimizer *optimizer, double rate, const float *gradient, float *parameters,
                           bool *finite) MUST_CHECK;
/* *finite turns false when a gradient of any step so far was not finite. Waits for steps that were only put. */
enum status optimizer_finite(struct optimizer *optimizer, bool *finite) MUST_CHECK;

#endif
