/* optimizer.h - stochastic gradient descent with momentum, and the learning rate of each step.
 *
 * PyTorch's form: u = m u + (g + d w), w = w - lr u; d = weight decay where the tensor decays (convolution and linear
 * weights), else 0. Element by element in single precision, without contraction: workers with equal inputs have equal
 * bits afterwards, in whatever order a backend keeps the elements of a tensor.
 *
 * Learning rate (Goyal et al. 2017): lr is given for 256 images and scaled with the global batch; it rises linearly
 * over the warm-up, lr (t+1) / warmup in step t, and falls to a tenth at each milestone.
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

enum { MILESTONES_MOST = 16 };

struct learning_rate {
    double rate;                         /* for 256 images */
    size_t global_batch;                 /* images         */
    uint64_t warmup;                     /* steps          */
    uint64_t milestone[MILESTONES_MOST]; /* steps from which on another factor of 0.1 holds */
    int milestones;
};

double learning_rate_at(const struct learning_rate *rate, uint64_t step);

/* Milestones from a list of epochs like "30,60,80" ("" = none) and the steps of an epoch. STATUS_USAGE for anything
 * that is no list of rising positive numbers. */
enum status learning_rate_milestones(struct learning_rate *rate, const char *epochs, double steps_per_epoch) MUST_CHECK;
/* The usual ones, 30, 60 and 80 of 90 epochs, as fractions of a run of `steps`. */
void learning_rate_usual_milestones(struct learning_rate *rate, uint64_t steps);

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
