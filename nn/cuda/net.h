/* net.h - a model made ready to run on a card with one batch size: forward with the loss, and backward.
 *
 * Everything is allocated at creation; a pass only puts work into the device's compute queue, always the same for the same
 * addresses, so that it can be captured once and replayed. With CHORALE_CUDA_SYNC=1 in the environment each node is waited
 * for, and an error names the layer at fault.
 */
#ifndef CHORALE_NN_CUDA_NET_H
#define CHORALE_NN_CUDA_NET_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/device.h"
#include "nn/backend.h"
#include "nn/cuda/dnn.h"
#include "nn/cuda/kernels.h"
#include "nn/cuda/weights.h"
#include "nn/model.h"

struct cuda_net;

struct cuda_net_request {
    const struct model *model; /* must outlive the net */
    int batch;
    struct device *device;
    struct dnn *dnn;
    enum dtype storage; /* of activations */
    bool tf32;          /* storage f32: products may be rounded to 10 bits of mantissa */
    float loss_scale;
    float label_smoothing;
    bool deterministic, legacy; /* convolutions: see dnn.h */
    bool measure;               /* convolutions are timed, unless the engine file knows them */
    double patience;  /* seconds for that, and half as much again for whoever does it meanwhile; 0: no limit */
    size_t workspace; /* bytes at most for one convolution */
};

enum status cuda_net_create(const struct cuda_net_request *request, struct cuda_net **net) MUST_CHECK;
void cuda_net_destroy(struct cuda_net *net);            /* accepts NULL */
size_t cuda_net_memory(const struct cuda_net *net);     /* bytes of device memory */
bool cuda_net_synchronises(const struct cuda_net *net); /* CHORALE_CUDA_SYNC is set */
void cuda_net_moved(const struct cuda_net *net, struct moved *moved);

/* What is to be filled in before forward, in the compute queue: images (batch, S, S, channels) in the storage type, and
 * labels (batch). */
struct cuda_net_input {
    enum dtype storage;
    int channels; /* 3, padded to 16 bytes a pixel */
    void *images;
    int32_t *labels;
};
struct cuda_net_input cuda_net_input(const struct cuda_net *net);

struct cuda_weights *cuda_net_weights(const struct cuda_net *net);

/* Arenas of a pass. `event`: NULL, or nodes + 1 events that are recorded before the first and after each node, of
 * backward in the order it runs them. */
struct cuda_pass {
    const float *parameters;
    float *state;     /* written in training only */
    float *gradients; /* backward only */
    cudaEvent_t *event;
};

/* Training: forward from the images to the loss and its gradient by the logits. */
enum status cuda_net_forward(struct cuda_net *net, const struct cuda_pass *pass) MUST_CHECK;
/* After it: every element of gradients is written. */
enum status cuda_net_backward(struct cuda_net *net, const struct cuda_pass *pass) MUST_CHECK;
/* The same in parts, one after the other: of the nodes, numbered forward, those from `begin` on and before `end`. */
enum status cuda_net_backward_part(struct cuda_net *net, const struct cuda_pass *pass, int begin, int end) MUST_CHECK;
/* The last node whose backward the gradients from element `offset` on need. */
int cuda_net_needs(const struct cuda_net *net, size_t offset);
/* With the running statistics; the loss is that of the first `count` images, without smoothing. */
enum status cuda_net_evaluate(struct cuda_net *net, const struct cuda_pass *pass, int count) MUST_CHECK;
/* Of the latest forward pass or evaluation: in device memory. */
const struct cuda_loss *cuda_net_loss(const struct cuda_net *net);

int cuda_net_nodes(const struct cuda_net *net);
/* The layer whose time node k's is. */
int cuda_net_layer(const struct cuda_net *net, int k);

#endif
