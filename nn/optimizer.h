/* optimizer.h - stochastic gradient descent with momentum; learning_rate.h has the rate of each step.
 *
 * With g' = s g + d w:
 *
 *   sgd       u = m u + g',          w = w - lr u               PyTorch's form: u does not hold lr, and so needs no
 *   nesterov  u = m u + g',          w = w - lr (g' + m u)      correction when lr changes (Goyal et al. 2017, 3)
 *   lars      v = m v + lr local g', w = w - v                  You, Gitman, Ginsburg 2017, as in MLPerf: v holds lr
 *             local = 0.001 |w| / (s |g| + d |w|) of each convolution and linear weight; 1 for the others, and where a
 *             norm is 0
 *
 * d is the weight decay of the tensor's kind. s is 1, or with clipping min(1, clip / (norm + 1e-6)), norm that of the whole
 * gradient: in exact runs the mean over all workers, alike on all. Element by element in single precision, without
 * contraction: workers with equal inputs have equal bits afterwards.
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

enum update_rule { UPDATE_SGD, UPDATE_NESTEROV, UPDATE_LARS };
const char *update_rule_name(enum update_rule rule); /* "sgd", ...: as users write it; NULL beyond the last */

#define LARS_TRUST 0.001

struct optimizer_settings {
    enum update_rule rule;
    double momentum;
    double weight_decay, norm_decay, bias_decay; /* of convolution and linear weights, of batch norms, of biases */
    double clip;                                 /* 0: none */
    int threads;                                 /* in host memory; 0: one. Their number changes no bit */
};

/* Where an optimizer works that is not to work in host memory: the backend's arenas, by its update(). */
struct optimizer_device {
    struct device *device; /* momentum lies in its memory */
    const struct backend_ops *ops;
    struct backend *backend; /* must outlive the optimizer's last step */
};

/* Momentum starts at 0. The model is not kept. on: NULL for host memory. STATUS_REFUSED for what devices do not do: clip.
 * Free with optimizer_destroy(). */
enum status optimizer_create(const struct model *model, const struct optimizer_settings *settings,
                             const struct optimizer_device *on, struct optimizer **optimizer) MUST_CHECK;
void optimizer_destroy(struct optimizer *optimizer); /* accepts NULL */

/* The momentum u, in native order where the optimizer works; its own. Read and written between steps. */
float *optimizer_velocity(struct optimizer *optimizer);

/* One update of parameters[model->parameters] with the gradient and the rate. *finite turns false when an element of the
 * gradient is not finite: the parameters are then worthless. On a device the update is only put into its queue, and
 * *finite stays as it is: optimizer_finite(), and the results of later steps, tell. */
enum status optimizer_step(struct optimizer *optimizer, double rate, const float *gradient, float *parameters,
                           bool *finite) MUST_CHECK;
/* The same by slices of whole tensors, each once a step, in any order: the same bits. Only where optimizer_takes_parts():
 * in host memory, and without clip, which needs the whole gradient first; else STATUS_INTERNAL. */
bool optimizer_takes_parts(const struct optimizer *optimizer);
enum status optimizer_step_part(struct optimizer *optimizer, double rate, size_t offset, size_t count,
                                const float *gradient, float *parameters, bool *finite) MUST_CHECK;
/* *finite turns false when a gradient of any step so far was not finite. Waits for steps that were only put. */
enum status optimizer_finite(struct optimizer *optimizer, bool *finite) MUST_CHECK;

#endif
