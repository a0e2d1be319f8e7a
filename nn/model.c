/* model.c - layer lists, the offsets of their tensors, and their initial values. */
#include "nn/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"
#include "nn/models/build.h"

enum { LARGEST_IMAGE = 1024, MOST_CLASSES = 100000 };

struct family {
    const char *name;
    int least_size; /* pixels: below it a feature map would vanish or a stage would see nothing but padding */
    void (*layers)(struct build *build);
};

static const struct family families[] = {
    {"resnet18", 32, resnet18_layers},
    {"resnet34", 32, resnet34_layers},
    {"resnet50", 32, resnet50_layers},
    {"resnet101", 32, resnet101_layers},
    {"resnet152", 32, resnet152_layers},
    {"vgg16", 32, vgg16_layers},
    {"cnn", 8, cnn_layers},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

const char *model_names(void)
{
    return MODEL_NAMES;
}

static enum status unknown_name(const char *name)
{
    const char *names[FAMILIES];
    for (size_t k = 0; k < FAMILIES; k++)
        names[k] = families[k].name;
    const char *near = nearest_spelling(name, names, FAMILIES);
    if (near)
        return fail(STATUS_USAGE, "model %s: no such network: did you mean %s?", name, near);
    return fail(STATUS_USAGE, "model %s: no such network: one of %s", name, model_names());
}

static const struct family *find_family(const char *name)
{
    for (size_t k = 0; k < FAMILIES; k++) {
        if (strcmp(families[k].name, name) == 0)
            return &families[k];
    }
    return NULL;
}

enum status model_create(const char *name, int classes, int image_size, struct model **model)
{
    *model = NULL;
    const struct family *family = find_family(name);
    if (!family)
        return unknown_name(name);
    if (image_size < family->least_size || image_size > LARGEST_IMAGE)
        return fail(STATUS_USAGE, "model %s: image size %d: %d to %d pixels", name, image_size, family->least_size,
                    LARGEST_IMAGE);
    if (classes < 1 || classes > MOST_CLASSES)
        return fail(STATUS_USAGE, "model %s: %d classes: 1 to %d", name, classes, MOST_CLASSES);

    struct build build;
    build_begin(&build, name, classes, image_size, 3);
    family->layers(&build);
    return build_end(&build, model);
}

void model_destroy(struct model *model)
{
    if (!model)
        return;
    free(model->layer);
    free(model->tensor);
    free(model);
}

double model_flop(const struct model *model, int images)
{
    double sum = 0;
    for (int k = 0; k < model->layers; k++) {
        const struct layer *layer = &model->layer[k];
        if (layer->kind != LAYER_CONV && layer->kind != LAYER_LINEAR)
            continue;
        const double taps = layer->kind == LAYER_CONV ? (double)layer->kernel * layer->kernel
                                                      : (double)layer->in_height * layer->in_width;
        const double pixels = layer->kind == LAYER_CONV ? (double)layer->out_height * layer->out_width : 1;
        const double products = taps * layer->in_channels * layer->out_channels * pixels;
        const int passes = layer->input < 0 ? 2 : 3; /* nobody asks for the gradient by the images */
        sum += 2 * passes * products;
    }
    return sum * images;
}

/* ---- building ---- */

void build_begin(struct build *build, const char *name, int classes, int image_size, int channels)
{
    *build = (struct build){.status = STATUS_OK};
    void *memory = NULL;
    build->status = memory_zeroed(&memory, 1, sizeof *build->model);
    if (build->status < 0)
        return;
    build->model = memory;
    snprintf(build->model->name, sizeof build->model->name, "%s", name);
    build->model->classes = classes;
    build->model->image_size = image_size;
    build->model->channels = channels;
}

enum status build_end(struct build *build, struct model **model)
{
    if (build->status < 0) {
        model_destroy(build->model);
        build->model = NULL;
        return build->status;
    }
    *model = build->model;
    build->model = NULL;
    return STATUS_OK;
}

/* A new layer whose input shape is filled in; NULL once anything has failed. */
static struct layer *add_layer(struct build *build, enum layer_kind kind, const char *name, int input)
{
    struct model *model = build->model;
    if (build->status < 0)
        return NULL;
    if (input < BUILD_IMAGES || input >= model->layers) {
        build->status = fail(STATUS_INTERNAL, "layer %s: reads layer %d of %d", name, input, model->layers);
        return NULL;
    }
    void *array = model->layer;
    build->status = memory_grow(&array, &build->layer_capacity, (size_t)model->layers + 1, sizeof *model->layer);
    if (build->status < 0)
        return NULL;
    model->layer = array;

    struct layer *layer = &model->layer[model->layers++];
    *layer = (struct layer){.kind = kind, .input = input, .second = BUILD_IMAGES, .first_tensor = model->tensors};
    snprintf(layer->name, sizeof layer->name, "%s", name);
    if (input == BUILD_IMAGES) {
        layer->in_channels = model->channels;
        layer->in_height = layer->in_width = model->image_size;
    } else {
        layer->in_channels = model->layer[input].out_channels;
        layer->in_height = model->layer[input].out_height;
        layer->in_width = model->layer[input].out_width;
    }
    layer->out_channels = layer->in_channels;
    layer->out_height = layer->in_height;
    layer->out_width = layer->in_width;
    return layer;
}

/* The next tensor of the newest layer: "layer.part", `count` elements at the end of the arena. */
static void add_tensor(struct build *build, const char *part, size_t count, bool decays)
{
    struct model *model = build->model;
    if (build->status < 0)
        return;
    void *array = model->tensor;
    build->status = memory_grow(&array, &build->tensor_capacity, (size_t)model->tensors + 1, sizeof *model->tensor);
    if (build->status < 0)
        return;
    model->tensor = array;

    struct layer *layer = &model->layer[model->layers - 1];
    struct tensor *tensor = &model->tensor[model->tensors++];
    *tensor =
        (struct tensor){.layer = model->layers - 1, .offset = model->parameters, .count = count, .decays = decays};
    snprintf(tensor->name, sizeof tensor->name, "%s.%s", layer->name, part);
    layer->tensors++;
    model->parameters += count;
}

static int newest(const struct build *build)
{
    return build->status < 0 ? BUILD_IMAGES : build->model->layers - 1;
}

static int after_window(int in, int kernel, int stride, int padding)
{
    return (in + 2 * padding - kernel) / stride + 1;
}

static void set_window(struct layer *layer, int kernel, int stride, int padding)
{
    layer->kernel = kernel;
    layer->stride = stride;
    layer->padding = padding;
    layer->out_height = after_window(layer->in_height, kernel, stride, padding);
    layer->out_width = after_window(layer->in_width, kernel, stride, padding);
}

int build_conv(struct build *build, int input, const char *name, int out_channels, int kernel, int stride)
{
    struct layer *layer = add_layer(build, LAYER_CONV, name, input);
    if (layer) {
        layer->out_channels = out_channels;
        set_window(layer, kernel, stride, kernel / 2);
        /* (O, I, kh, kw) */
        size_t count = (size_t)out_channels * (size_t)layer->in_channels * (size_t)kernel * (size_t)kernel;
        add_tensor(build, "weight", count, true);
    }
    return newest(build);
}

int build_conv_bias(struct build *build, int input, const char *name, int out_channels, int kernel, int stride)
{
    const int conv = build_conv(build, input, name, out_channels, kernel, stride);
    if (build->status >= 0) {
        build->model->layer[conv].bias = true;
        add_tensor(build, "bias", (size_t)out_channels, false);
    }
    return newest(build);
}

int build_batch_norm(struct build *build, int input, const char *name, bool zero_gamma)
{
    struct layer *layer = add_layer(build, LAYER_BATCH_NORM, name, input);
    if (layer) {
        size_t channels = (size_t)layer->in_channels;
        layer->zero_gamma = zero_gamma;
        layer->state_offset = build->model->state; /* running mean (C), running variance (C) */
        build->model->state += 2 * channels;
        add_tensor(build, "weight", channels, false);
        add_tensor(build, "bias", channels, false);
    }
    return newest(build);
}

int build_relu(struct build *build, int input, const char *name)
{
    add_layer(build, LAYER_RELU, name, input);
    return newest(build);
}

int build_add_relu(struct build *build, int input, int second, const char *name)
{
    struct layer *layer = add_layer(build, LAYER_ADD_RELU, name, input);
    if (!layer)
        return newest(build);
    layer->second = second;
    const struct layer *other = second < 0 || second >= build->model->layers ? NULL : &build->model->layer[second];
    if (!other || other->out_channels != layer->in_channels || other->out_height != layer->in_height ||
        other->out_width != layer->in_width)
        build->status = fail(STATUS_INTERNAL, "layer %s: its two inputs differ in shape", name);
    return newest(build);
}

static int add_max_pool(struct build *build, int input, const char *name, int kernel, int padding)
{
    struct layer *layer = add_layer(build, LAYER_MAX_POOL, name, input);
    if (layer)
        set_window(layer, kernel, 2, padding);
    return newest(build);
}

int build_max_pool(struct build *build, int input, const char *name)
{
    return add_max_pool(build, input, name, 3, 1);
}

int build_max_pool_2x2(struct build *build, int input, const char *name)
{
    return add_max_pool(build, input, name, 2, 0);
}

int build_average_pool_to(struct build *build, int input, const char *name, int side)
{
    struct layer *layer = add_layer(build, LAYER_AVERAGE_POOL, name, input);
    if (layer)
        layer->out_height = layer->out_width = side;
    return newest(build);
}

int build_average_pool(struct build *build, int input, const char *name)
{
    return build_average_pool_to(build, input, name, 1);
}

int build_linear(struct build *build, int input, const char *name, int outputs)
{
    struct layer *layer = add_layer(build, LAYER_LINEAR, name, input);
    if (layer) {
        layer->out_channels = outputs;
        layer->out_height = layer->out_width = 1;
        size_t inputs = (size_t)layer->in_channels * (size_t)layer->in_height * (size_t)layer->in_width;
        add_tensor(build, "weight", (size_t)outputs * inputs, true); /* (O, I) */
        add_tensor(build, "bias", (size_t)outputs, false);
    }
    return newest(build);
}

int build_linear_normal(struct build *build, int input, const char *name, int outputs, double deviation)
{
    const int linear = build_linear(build, input, name, outputs);
    if (build->status >= 0)
        build->model->layer[linear].deviation = deviation;
    return linear;
}

/* ---- initial values ---- */

static void fill(float *values, size_t count, float value)
{
    for (size_t i = 0; i < count; i++)
        values[i] = value;
}

static void fill_normal(float *values, size_t count, double deviation, uint64_t key)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(deviation * rng_normal(key, i));
}

static void fill_uniform(float *values, size_t count, double bound, uint64_t key)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(bound * (2 * rng_uniform(key, i) - 1));
}

void model_without_zero_gamma(struct model *model)
{
    for (int k = 0; k < model->layers; k++)
        model->layer[k].zero_gamma = false;
}

static void initialise_tensor(const struct model *model, int t, uint64_t seed, float *values)
{
    const struct tensor *tensor = &model->tensor[t];
    const struct layer *layer = &model->layer[tensor->layer];
    const bool first = t == layer->first_tensor;
    uint64_t key = rng_key(seed, "initial values", (uint64_t)t, 0);
    switch (layer->kind) {
    case LAYER_CONV:
        if (first)
            fill_normal(values, tensor->count, sqrt(2.0 / (layer->kernel * layer->kernel * layer->out_channels)), key);
        else
            fill(values, tensor->count, 0.0F);
        break;
    case LAYER_LINEAR:
        if (layer->deviation == 0)
            fill_uniform(values, tensor->count, 1.0 / sqrt(layer->in_channels * layer->in_height * layer->in_width),
                         key);
        else if (first)
            fill_normal(values, tensor->count, layer->deviation, key);
        else
            fill(values, tensor->count, 0.0F);
        break;
    case LAYER_BATCH_NORM:
        fill(values, tensor->count, first && !layer->zero_gamma ? 1.0F : 0.0F);
        break;
    case LAYER_RELU:
    case LAYER_ADD_RELU:
    case LAYER_MAX_POOL:
    case LAYER_AVERAGE_POOL:
        break;
    }
}

void model_initialise(const struct model *model, uint64_t seed, float *parameters, float *state)
{
    for (int t = 0; t < model->tensors; t++)
        initialise_tensor(model, t, seed, parameters + model->tensor[t].offset);
    for (int k = 0; k < model->layers; k++) {
        const struct layer *layer = &model->layer[k];
        if (layer->kind == LAYER_BATCH_NORM) {
            size_t channels = (size_t)layer->in_channels;
            fill(state + layer->state_offset, channels, 0.0F);
            fill(state + layer->state_offset + channels, channels, 1.0F);
        }
    }
}
