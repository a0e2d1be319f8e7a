/* build.h - how a network family writes down its layers, one call each; also for models made by hand in tests.
 *
 * Each function appends one layer and returns its index, to be the `input` of later ones. The first failure sticks in
 * `status` and later calls do nothing, so a family reads as a plain list; build_end() reports.
 */
#ifndef CHORALE_NN_MODELS_BUILD_H
#define CHORALE_NN_MODELS_BUILD_H

#include "nn/model.h"

struct build {
    struct model *model; /* owned by the builder until build_end() */
    size_t layer_capacity, tensor_capacity;
    enum status status;
};

#define BUILD_IMAGES (-1) /* the `input` of a layer that reads the images */

/* `channels` is 3 for every network of ours; tests use others. */
void build_begin(struct build *build, const char *name, int classes, int image_size, int channels);
/* Hands the model over, or frees it and returns the first failure. */
enum status build_end(struct build *build, struct model **model) MUST_CHECK;

/* Square kernel, padding kernel / 2. */
int build_conv(struct build *build, int input, const char *name, int out_channels, int kernel, int stride);
int build_conv_bias(struct build *build, int input, const char *name, int out_channels, int kernel, int stride);
int build_batch_norm(struct build *build, int input, const char *name, bool zero_gamma);
int build_relu(struct build *build, int input, const char *name);
int build_add_relu(struct build *build, int input, int second, const char *name);
int build_max_pool(struct build *build, int input, const char *name);     /* 3x3, stride 2, padding 1 */
int build_max_pool_2x2(struct build *build, int input, const char *name); /* stride 2, no padding     */
int build_average_pool(struct build *build, int input, const char *name); /* of all pixels            */
int build_average_pool_to(struct build *build, int input, const char *name, int side);
int build_linear(struct build *build, int input, const char *name, int outputs);
int build_linear_normal(struct build *build, int input, const char *name, int outputs, double deviation);

/* The families: each appends its layers after build_begin(). */
void resnet18_layers(struct build *build);
void resnet34_layers(struct build *build);
void resnet50_layers(struct build *build);
void resnet101_layers(struct build *build);
void resnet152_layers(struct build *build);
void vgg16_layers(struct build *build);
void cnn_layers(struct build *build);

#endif
