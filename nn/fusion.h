/* fusion.h - which layers backends compute in one pass. */
#ifndef CHORALE_NN_FUSION_H
#define CHORALE_NN_FUSION_H

#include "nn/model.h"

/* The ReLU or residual addition that computes together with batch norm `k`: its only reader, by its first input; else
 * -1. */
int fused_with(const struct model *model, int k);

#endif
