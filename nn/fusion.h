/* fusion.h - which layers backends compute in one pass. */
#ifndef CHORALE_NN_FUSION_H
#define CHORALE_NN_FUSION_H

#include "nn/model.h"

/* The ReLU or residual addition that computes together with batch norm `k`: its only reader, by its first input; else
 * -1. */
int fused_with(const struct model *model, int k);

/* What layers `first` to `last` are when they compute together. Values: 0 is the images, k + 1 the output of layer k. */
struct fused {
    int input, second, output; /* second -1: no addend */
    bool relu;
};
struct fused fused_layers(const struct model *model, int first, int last);

#endif
