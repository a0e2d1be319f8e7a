/* model.h - networks as layer lists over two flat arenas: parameters and gradients.
 *
 * A model is pure description: which layers, their shapes, where each tensor lies. Backends compute with it, the
 * trainer, the buckets and the checkpoints see only the flat arenas. Tensors lie in layer order; gradients become
 * ready in the reverse order, so buckets are slices taken from the end.
 *
 * Canonical order of elements inside a tensor is PyTorch's: convolution (O, I, kh, kw), linear (O, I). A backend may
 * keep another order in its arena ("native"); backend.h converts. Both have the same offsets and counts.
 *
 * Networks, with the parameters of torchvision's: ResNet-18, 34, 50, 101, 152 v1.5 (stride in the 3x3; He et al. 2015,
 * Goyal et al. 2017), VGG-16 (Simonyan, Zisserman 2015) and a small CNN. ResNet-50: 25,557,032 parameters at 1000 classes,
 * 161 tensors; 23,528,522 at 10.
 */
#ifndef CHORALE_NN_MODEL_H
#define CHORALE_NN_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum layer_kind {
    LAYER_CONV,       /* weight (O, I, kh, kw), then bias (O) where the layer has one              */
    LAYER_BATCH_NORM, /* gamma then beta, contiguous (2, C); eps 1e-5; running statistics in state */
    LAYER_RELU,
    LAYER_ADD_RELU,     /* max(input + second input, 0): the end of a residual block                */
    LAYER_MAX_POOL,     /* kernel, stride, padding                                                   */
    LAYER_AVERAGE_POOL, /* (N, C, H, W) -> (N, C, side, side), mostly side 1. Row r of the result is the mean of rows
                           floor(r H / side) to ceil((r + 1) H / side) - 1, columns likewise (PyTorch's adaptive) */
    LAYER_LINEAR        /* weight (O, I), then bias (O); I = C H W of its input                      */
};

/* One layer: reads the output of layer `input` (-1 = the images), writes its own. ADD_RELU also reads `second`. */
struct layer {
    enum layer_kind kind;
    char name[48]; /* PyTorch's module path: "layer1.0.conv1"                            */
    int input, second;
    int in_channels, out_channels;
    int in_height, in_width, out_height, out_width;
    int kernel, stride, padding;
    bool bias;                 /* convolution                                                        */
    double deviation;          /* linear: weights start at N(0, deviation^2), bias at 0; 0: PyTorch's default */
    bool zero_gamma;           /* batch norm that ends a residual block: gamma starts at 0           */
    int first_tensor, tensors; /* its entries in model.tensor                                        */
    size_t state_offset;       /* batch norm: running mean (C), then running variance (C), in state  */
};

struct tensor {
    char name[64]; /* "layer1.0.conv1.weight"                                            */
    int layer;
    size_t offset, count; /* elements in the parameter and gradient arenas                      */
    bool decays;          /* weight decay applies: convolution and linear weights only          */
};

struct model {
    char name[32];
    int classes, image_size, channels; /* input (N, channels, image_size, image_size); channels = 3 */
    struct layer *layer;
    int layers;
    struct tensor *tensor;
    int tensors;
    size_t parameters; /* elements of the parameter arena                                    */
    size_t state;      /* elements of the running statistics                                 */
};

#define MODEL_NAMES "resnet18|resnet34|resnet50|resnet101|resnet152|vgg16|cnn"

/* image_size >= 32, for "cnn" >= 8. STATUS_USAGE with the nearest name or the least size.
 * Free with model_destroy(). */
enum status model_create(const char *name, int classes, int image_size, struct model **model) MUST_CHECK;
void model_destroy(struct model *model); /* accepts NULL */
/* Multiplications and additions of convolutions and linear layers in a training step of so many images: forward, and
 * backward by the weights and by each layer's input but the images. */
double model_flop(const struct model *model, int images);
/* Every gamma is to start at 1: after model_create(), before model_initialise(). */
void model_without_zero_gamma(struct model *model);
const char *model_names(void); /* MODEL_NAMES */

/* Canonical initial values, a pure function of (model, seed): convolutions N(0, 2/(kh*kw*O)) (He, fan out), gamma 1
 * (0 where zero_gamma), beta 0, bias 0, linear weights U(+-1/sqrt(I)) and bias likewise (PyTorch's default).
 * parameters[model->parameters], state[model->state] (running mean 0, variance 1). */
void model_initialise(const struct model *model, uint64_t seed, float *parameters, float *state);

#endif
