/* plan.h - a model as the steps that a card takes: which layers are fused, and where in one arena each activation and
 * gradient lies, so that what is never needed at the same moment shares its place. Pure description: no CUDA.
 *
 * Moments count what follows each other on the queue: node k runs forward at moment k, the loss at moment `nodes`, node k
 * backward at moment 2 nodes - k. A span is a piece of the arena from its first to its last moment, both included.
 *
 * What backward reads is kept from forward: inputs of convolutions and of linear layers, inputs of batch norms, one bit an
 * element of a ReLU behind a residual addition (without an addition it is found again from the input), one byte an element
 * of a max pool. Gradients that a batch norm changes element by element stay where they are.
 */
#ifndef CHORALE_NN_CUDA_PLAN_H
#define CHORALE_NN_CUDA_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/dtype.h"
#include "base/status.h"
#include "nn/backend.h"
#include "nn/model.h"

enum cuda_node_kind { CUDA_CONV, CUDA_NORM, CUDA_MAX_POOL, CUDA_AVERAGE_POOL, CUDA_LINEAR };

enum { CUDA_SPAN_ALIGNMENT = 256, CUDA_NO_SPAN = -1 };

struct cuda_span {
    size_t bytes, offset; /* multiples of CUDA_SPAN_ALIGNMENT */
    int first, last;      /* moments */
};

/* The images (value 0) or the output of a layer: rows = batch x height x width, of `channels` elements. */
struct cuda_value {
    size_t rows, channels, count;
    int span; /* CUDA_NO_SPAN: it is never stored, as the output of a batch norm that is fused with what follows */
};

/* One step: a layer, or a batch norm with the ReLU (and residual addition) after it. */
struct cuda_node {
    enum cuda_node_kind kind;
    int layer;                 /* the time and the parameters are this layer's */
    int input, second, output; /* values; second -1: no addend */
    bool relu;
    int kept;           /* span: the mask of a ReLU behind an addition, the places that a max pool chose */
    int gradient, more; /* spans of the output's gradient, to be added; more may be CUDA_NO_SPAN */
    int input_gradient; /* span; CUDA_NO_SPAN: not wanted. An addend's gradient takes the place of `gradient` */
};

struct cuda_plan {
    const struct model *model;
    enum dtype storage;
    struct cuda_value *value; /* [layers + 1] */
    struct cuda_node *node;   /* [nodes], forward order */
    int nodes;
    struct cuda_span *span;
    int spans;
    size_t bytes; /* of the arena */
};

struct cuda_plan_request {
    const struct model *model; /* must outlive the plan */
    int batch;
    enum dtype storage;
    int image_channels; /* of the padded images */
};

/* STATUS_REFUSED names a layer that can't run on a card, STATUS_USAGE a batch that is too large. */
enum status cuda_plan_create(const struct cuda_plan_request *request, struct cuda_plan **plan) MUST_CHECK;
void cuda_plan_destroy(struct cuda_plan *plan); /* accepts NULL */

/* Bytes that would be taken if nothing shared its place. */
size_t cuda_plan_unshared(const struct cuda_plan *plan);

/* What a step moves at least (nn/backend.h). */
void cuda_plan_moved(const struct cuda_plan *plan, struct moved *moved);

#endif
