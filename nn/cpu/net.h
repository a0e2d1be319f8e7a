/* net.h - a model made ready to run on the CPU with one batch size: forward, backward, times of the layers.
 *
 * Everything is allocated at creation, in one piece; a step allocates nothing. The backend (cpu.c) adds the loss; tests
 * run single layers through it.
 */
#ifndef CHORALE_NN_CPU_NET_H
#define CHORALE_NN_CPU_NET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "nn/backend.h"
#include "nn/model.h"

struct net;

struct net_request {
    const struct model *model; /* must outlive the net */
    int batch, threads;
    bool image_gradient;            /* backward also makes the gradient by the images */
    const struct worker_sums *sums; /* of batch norms; NULL: of this worker's batch */
};

enum status net_create(const struct net_request *request, struct net **net) MUST_CHECK;
void net_destroy(struct net *net); /* accepts NULL */

/* Parameters between canonical and native order: convolution weights differ. */
enum status net_to_native(struct net *net, const float *canonical, float *native) MUST_CHECK;
enum status net_to_canonical(struct net *net, const float *native, float *canonical) MUST_CHECK;

/* For the training passes that follow: the first `images` of the batch, 0 to all of it, are training images, and the
 * gradient of the outputs, 0 for the others, has been divided by `divisor` (struct batch). Batch norms have the statistics
 * of those; of the others everything is 0 behind a batch norm, both ways. At creation: all of the batch. */
void net_share(struct net *net, int images, double divisor);
/* images (batch, C, S, S) must stay in place until backward is done. `state` is updated. */
enum status net_train(struct net *net, const float *parameters, float *state, const float *images,
                      const struct gradient_watch *watch) MUST_CHECK;
enum status net_evaluate(struct net *net, const float *parameters, const float *state, const float *images) MUST_CHECK;
/* After net_train(), with net_last_gradient() filled in: every element of `gradients` is written. watch: NULL, or told after
 * each layer. */
enum status net_backward(struct net *net, const float *parameters, float *gradients,
                         const struct gradient_watch *watch) MUST_CHECK;

/* Output of the last layer and its gradient where that layer is linear: (batch, classes). */
const float *net_last_output(const struct net *net);
float *net_last_gradient(struct net *net);

/* Seconds of the latest forward and backward pass, one for each layer, without watching; a fused ReLU counts with its batch
 * norm. */
const double *net_forward_seconds(const struct net *net);
const double *net_backward_seconds(const struct net *net);
const double *net_weights_seconds(const struct net *net); /* of backward, the part by weights, of convolutions */

/* For tests, all in the order (batch, C, H, W): */
void net_read_output(const struct net *net, float *canonical);
void net_write_last_gradient(struct net *net, const float *canonical);
/* Once after a backward pass of a net made with image_gradient. */
void net_read_image_gradient(const struct net *net, float *canonical);

#endif
