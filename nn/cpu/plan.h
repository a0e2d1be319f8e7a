/* plan.h - a model as the steps that the CPU takes: which layers are fused, in which layout each value lies, which
 * gradient lies in which buffer. Pure description: no oneDNN, no memory but its own.
 */
#ifndef CHORALE_NN_CPU_PLAN_H
#define CHORALE_NN_CPU_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "nn/cpu/value.h"
#include "nn/model.h"

/* Feature maps of at most FOLD_SIDE pixels a side are folded, and those of their convolutions that winograd.h does not
 * take run over columns (windows.h); up to COLUMN_SIDE only the gradients of 3x3 weights do. Measured on AVX2: beyond,
 * the columns cost more than they bring.
 */
enum { FOLD_SIDE = 14, COLUMN_SIDE = 28 };

enum node_kind { NODE_CONV, NODE_NORM, NODE_MAX_POOL, NODE_AVERAGE_POOL, NODE_LINEAR };

/* One step: a layer, a batch norm with the ReLU (and residual addition) after it, or a convolution or linear layer with the
 * ReLU after it. */
struct node {
    enum node_kind kind;
    int layer;                 /* the time and the parameters are this layer's               */
    int input, second, output; /* values; second -1 = no addend                              */
    bool relu;
    int gradient, more; /* buffers that hold the output's gradient, to be added; more may be -1            */
    int input_gradient; /* buffer for the input's gradient; -1 = not wanted. An addend's takes `gradient` */
};

struct plan {
    const struct model *model;
    struct value *value; /* [layers + 1]: the images, then the output of each layer    */
    struct node *node;   /* forward order                                              */
    int nodes;
    size_t *buffer; /* floats of each gradient buffer                             */
    int buffers;
    int image_gradient[2]; /* buffers whose sum is the gradient by the images; -1 = none */
    bool plain_images;     /* (N, C, H, W), read where the caller has them               */
};

/* `image_gradient`: the gradient by the images is wanted too (tests). STATUS_REFUSED names a layer that can't run. */
enum status plan_create(const struct model *model, int batch, int block, bool image_gradient,
                        struct plan **plan) MUST_CHECK;
void plan_destroy(struct plan *plan); /* accepts NULL */

#endif
