/* net.c - runs a plan: 3x3 convolutions mostly by winograd.h, the others by oneDNN, the rest by our kernels. */
#include "nn/cpu/net.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "nn/cpu/bias.h"
#include "nn/cpu/kernels.h"
#include "nn/cpu/norm.h"
#include "nn/cpu/onednn.h"
#include "nn/cpu/plan.h"
#include "nn/cpu/pool.h"
#include "nn/cpu/windows.h"
#include "nn/cpu/winograd.h"

/* What a node needs besides its description; only the part of its kind is used. */
struct work {
    struct conv *conv;
    struct conv *weights_conv; /* for the gradients of the weights, over columns; NULL = `conv` */
    bool by_columns;           /* `conv` works on columns too                                   */
    struct winograd winograd;  /* computes instead of `conv`, which then tells the weights' order; tile 0 = not */
    struct windows windows;
    struct norm norm;
    struct pool pool;
    size_t complete_from; /* gradients are complete from this element on when this node has run backward */
};

struct net {
    struct plan *plan;
    const struct model *model;
    const struct kernels *kernels;
    struct onednn *library;
    struct work *work; /* [nodes] */
    int threads;

    float **gradient;  /* [buffers] of the plan */
    float *columns;    /* of one convolution at a time, or their gradient, or what else it computes with */
    float *rearranged; /* weights of one convolution at a time, for backward by data */
    void *scratch;     /* oneDNN's */
    size_t columns_count, rearranged_bytes, scratch_bytes;
    const struct worker_sums *sums;
    double *exchanged; /* by one batch norm at a time */
    struct norm_share share;

    void *memory; /* all of the above and the values */
    size_t memory_bytes;
    double *forward_seconds, *backward_seconds, *weights_seconds; /* [layers] */
};

/* ---- creation ---- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static const struct layer *layer_of(const struct net *net, const struct node *node)
{
    return &net->model->layer[node->layer];
}

static const struct value *input_of(const struct net *net, const struct node *node)
{
    return &net->plan->value[node->input];
}

static const struct value *output_of(const struct net *net, const struct node *node)
{
    return &net->plan->value[node->output];
}

static size_t parameter_offset(const struct net *net, const struct layer *layer)
{
    return layer->tensors > 0 ? net->model->tensor[layer->first_tensor].offset : 0;
}

static size_t weights_of(const struct net *net, const struct layer *layer)
{
    return net->model->tensor[layer->first_tensor].count;
}

static size_t taps_of(const struct layer *layer)
{
    return (size_t)layer->kernel * (size_t)layer->kernel;
}

static struct conv_shape shape_of(const struct net *net, const struct node *node)
{
    const struct layer *layer = layer_of(net, node);
    return (struct conv_shape){
        .name = layer->name,
        .batch = (int)input_of(net, node)->images,
        .in_channels = layer->in_channels,
        .out_channels = layer->out_channels,
        .in_height = layer->in_height,
        .in_width = layer->in_width,
        .out_height = layer->out_height,
        .out_width = layer->out_width,
        .kernel = layer->kernel,
        .stride = layer->stride,
        .padding = layer->padding,
        .plain_source = input_of(net, node)->block == 1,
        .forward = true,
        .weights_gradient = true,
        .data_gradient = node->input_gradient >= 0,
    };
}

static enum status set_windows(struct net *net, const struct node *node, struct work *work)
{
    const struct layer *layer = layer_of(net, node);
    size_t count = 0;
    work->windows = (struct windows){.source = input_of(net, node),
                                     .columns = *output_of(net, node),
                                     .kernel = (size_t)layer->kernel,
                                     .stride = (size_t)layer->stride,
                                     .padding = (size_t)layer->padding,
                                     .threads = net->threads};
    work->windows.columns.channels = (size_t)layer->in_channels * taps_of(layer);
    work->windows.columns.data = NULL;
    TRY(windows_count(&work->windows, &count));
    net->columns_count = larger(net->columns_count, count);
    return STATUS_OK;
}

/* A folded value is one image of height 1. A 1x1 convolution of stride 1 reads it where it lies. */
static enum status make_folded_conv(struct net *net, const struct node *node, struct work *work)
{
    const struct layer *layer = layer_of(net, node);
    const struct value *out = output_of(net, node);
    struct conv_shape shape = shape_of(net, node);
    work->by_columns = layer->kernel != 1 || layer->stride != 1 || !input_of(net, node)->folded;
    if (work->by_columns)
        TRY(set_windows(net, node, work));
    shape.columns = true;
    shape.batch = shape.out_height = 1;
    shape.out_width = (int)(out->images * value_pixels(out));
    return conv_create(net->library, &shape, &work->conv);
}

static enum status make_weights_conv(struct net *net, const struct node *node, struct work *work)
{
    struct conv_shape shape = shape_of(net, node);
    shape.columns = true;
    shape.forward = shape.data_gradient = false;
    TRY(conv_create(net->library, &shape, &work->weights_conv));
    if (conv_same_order(work->conv, work->weights_conv))
        return set_windows(net, node, work);
    conv_destroy(work->weights_conv);
    work->weights_conv = NULL;
    return STATUS_OK;
}

static bool takes_winograd(const struct net *net, const struct node *node, struct work *work)
{
    const struct layer *layer = layer_of(net, node);
    work->winograd = (struct winograd){.source = input_of(net, node),
                                       .result = output_of(net, node),
                                       .stride = layer->stride,
                                       .threads = net->threads};
    if (layer->kernel == 3 && layer->padding == 1)
        work->winograd.tile = winograd_tile(work->winograd.source, work->winograd.result, layer->stride);
    return work->winograd.tile > 0;
}

static enum status make_winograd(struct net *net, const struct node *node, struct work *work)
{
    struct conv_shape shape = shape_of(net, node);
    size_t count = 0;
    shape.columns = true;
    shape.forward = shape.weights_gradient = shape.data_gradient = false;
    TRY(conv_create(net->library, &shape, &work->conv));
    TRY(winograd_scratch(&work->winograd, &count));
    net->columns_count = larger(net->columns_count, count);
    return STATUS_OK;
}

static enum status make_conv(struct net *net, const struct node *node, struct work *work)
{
    const struct layer *layer = layer_of(net, node);
    if (takes_winograd(net, node, work))
        return make_winograd(net, node, work);
    bool middle = layer->out_height <= COLUMN_SIDE && layer->out_width <= COLUMN_SIDE;
    struct conv_shape shape = shape_of(net, node);
    if (output_of(net, node)->folded) {
        TRY(make_folded_conv(net, node, work));
    } else {
        TRY(conv_create(net->library, &shape, &work->conv));
        if (middle && layer->kernel == 3 && !shape.plain_source)
            TRY(make_weights_conv(net, node, work));
    }
    net->scratch_bytes = larger(net->scratch_bytes, conv_scratch_bytes(work->conv));
    net->rearranged_bytes = larger(net->rearranged_bytes, conv_rearranged_bytes(work->conv));
    if (work->weights_conv)
        net->scratch_bytes = larger(net->scratch_bytes, conv_scratch_bytes(work->weights_conv));
    return STATUS_OK;
}

/* The end of the parameters of all nodes before k: behind it gradients are complete when k has run backward. */
static size_t end_before(const struct net *net, int k)
{
    size_t end = 0;
    for (int j = 0; j < k; j++) {
        const struct layer *layer = layer_of(net, &net->plan->node[j]);
        if (layer->tensors == 0)
            continue;
        const struct tensor *last = &net->model->tensor[layer->first_tensor + layer->tensors - 1];
        end = larger(end, last->offset + last->count);
    }
    return end;
}

static enum status make_work(struct net *net)
{
    for (int k = 0; k < net->plan->nodes; k++) {
        const struct node *node = &net->plan->node[k];
        struct work *work = &net->work[k];
        work->complete_from = end_before(net, k);
        work->norm = (struct norm){.kernels = net->kernels,
                                   .threads = net->threads,
                                   .x = input_of(net, node),
                                   .sums = net->sums,
                                   .share = &net->share};
        work->pool = (struct pool){.kernels = net->kernels,
                                   .threads = net->threads,
                                   .x = input_of(net, node),
                                   .y = output_of(net, node),
                                   .kernel = (size_t)layer_of(net, node)->kernel,
                                   .padding = (size_t)layer_of(net, node)->padding};
        if (node->kind == NODE_CONV)
            TRY(make_conv(net, node, work));
    }
    return STATUS_OK;
}

/* A region handed out front to back; with base NULL it only counts. */
struct region {
    char *base;
    size_t used;
    bool overflow;
};

static void *take(struct region *region, size_t count, size_t size)
{
    enum { LINE = 64 };
    size_t bytes = 0, start = region->used;
    if (!checked_multiply(count, size, &bytes) || !checked_add(bytes, LINE - 1, &bytes) ||
        !checked_add(region->used, bytes / LINE * LINE, &region->used))
        region->overflow = true;
    return region->base ? region->base + start : NULL;
}

static void place_work(struct net *net, struct region *region, int k)
{
    const struct node *node = &net->plan->node[k];
    struct work *work = &net->work[k];
    struct value *output = &net->plan->value[node->output];
    output->data = take(region, output->count, sizeof *output->data);
    if (node->kind == NODE_NORM) {
        size_t channels = output->channels;
        work->norm.mean = take(region, channels, sizeof(float));
        work->norm.inverse = take(region, channels, sizeof(float));
        work->norm.scale = take(region, channels, sizeof(float));
        work->norm.shift = take(region, channels, sizeof(float));
        work->norm.exchanged = net->exchanged;
    } else if (node->kind == NODE_MAX_POOL) {
        work->pool.which = take(region, output->count, sizeof *work->pool.which);
    }
}

static size_t most_channels(const struct net *net)
{
    size_t most = 0;
    for (int k = 0; k < net->plan->nodes; k++)
        most = larger(most, output_of(net, &net->plan->node[k])->channels);
    return most;
}

static void place(struct net *net, struct region *region)
{
    struct plan *plan = net->plan;
    if (net->sums != NULL)
        net->exchanged = take(region, norm_exchanged(most_channels(net)), sizeof(double));
    if (!plan->plain_images)
        plan->value[0].data = take(region, plan->value[0].count, sizeof(float));
    for (int k = 0; k < plan->nodes; k++)
        place_work(net, region, k);
    for (int k = 0; k < plan->buffers; k++)
        net->gradient[k] = take(region, plan->buffer[k], sizeof(float));
    net->columns = take(region, net->columns_count, sizeof(float));
    net->rearranged = take(region, net->rearranged_bytes, 1);
    net->scratch = take(region, net->scratch_bytes, 1);
}

static enum status allocate_tables(struct net *net)
{
    void *memory = NULL;
    size_t layers = (size_t)net->model->layers;
    TRY(memory_zeroed(&memory, (size_t)net->plan->nodes, sizeof *net->work));
    net->work = memory;
    TRY(memory_zeroed(&memory, (size_t)net->plan->buffers, sizeof *net->gradient));
    net->gradient = memory;
    TRY(memory_zeroed(&memory, layers, sizeof *net->forward_seconds));
    net->forward_seconds = memory;
    TRY(memory_zeroed(&memory, layers, sizeof *net->backward_seconds));
    net->backward_seconds = memory;
    TRY(memory_zeroed(&memory, layers, sizeof *net->weights_seconds));
    net->weights_seconds = memory;
    return STATUS_OK;
}

static enum status allocate_arena(struct net *net)
{
    struct region region = {0};
    place(net, &region);
    if (region.overflow)
        return fail(STATUS_USAGE, "model %s: this batch does not fit in memory", net->model->name);
    net->memory_bytes = region.used;
    TRY(memory_pages(&net->memory, net->memory_bytes));
    place(net, &(struct region){.base = net->memory});
    return STATUS_OK;
}

enum status net_create(const struct net_request *request, struct net **net)
{
    *net = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct net)));
    struct net *made = memory;
    made->model = request->model;
    made->threads = request->threads;
    made->sums = request->sums;
    made->kernels = kernels_select();
    enum status status;
    TRY_TO(failed, plan_create(request->model, request->batch, onednn_block(), request->image_gradient, &made->plan));
    TRY_TO(failed, onednn_create(&made->library));
    TRY_TO(failed, allocate_tables(made));
    net_share(made, request->batch, request->batch);
    TRY_TO(failed, make_work(made));
    TRY_TO(failed, allocate_arena(made));
    *net = made;
    return STATUS_OK;
failed:
    net_destroy(made);
    return status;
}

void net_destroy(struct net *net)
{
    if (!net)
        return;
    for (int k = 0; net->work && k < net->plan->nodes; k++) {
        conv_destroy(net->work[k].conv);
        conv_destroy(net->work[k].weights_conv);
    }
    onednn_destroy(net->library);
    memory_pages_release(net->memory, net->memory_bytes);
    plan_destroy(net->plan);
    free(net->work);
    free(net->gradient);
    free(net->forward_seconds);
    free(net->backward_seconds);
    free(net->weights_seconds);
    free(net);
}

/* ---- order of the parameters ---- */

/* Those of a layer from its tensor number `first` on. */
static void copy_tensors(const struct net *net, const struct layer *layer, int first, const float *from, float *to)
{
    for (int t = layer->first_tensor + first; t < layer->first_tensor + layer->tensors; t++) {
        const struct tensor *tensor = &net->model->tensor[t];
        memcpy(to + tensor->offset, from + tensor->offset, tensor->count * sizeof *to);
    }
}

static enum status reorder(struct net *net, const float *from, float *to,
                           enum status (*weights)(struct conv *, const float *, float *))
{
    for (int k = 0; k < net->plan->nodes; k++) {
        const struct layer *layer = layer_of(net, &net->plan->node[k]);
        size_t offset = parameter_offset(net, layer);
        if (net->work[k].conv)
            TRY(weights(net->work[k].conv, from + offset, to + offset));
        copy_tensors(net, layer, net->work[k].conv ? 1 : 0, from, to);
    }
    return STATUS_OK;
}

enum status net_to_native(struct net *net, const float *canonical, float *native)
{
    return reorder(net, canonical, native, conv_weights_to_native);
}

enum status net_to_canonical(struct net *net, const float *native, float *canonical)
{
    return reorder(net, native, canonical, conv_weights_to_canonical);
}

/* ---- order of the values ---- */

/* Float of (n, c, p) in a value's layout. */
static size_t position(const struct value *value, size_t n, size_t c, size_t p)
{
    if (value->block == 1)
        return (n * value->channels + c) * value_pixels(value) + p;
    return n * value_image_stride(value) + c / value->block * value_block_stride(value) + p * value->block +
           c % value->block;
}

static void to_layout(const struct value *value, const float *canonical, float *data)
{
    size_t pixels = value_pixels(value), rows = value->images * value->channels;
    for (size_t row = 0; row < rows; row++) {
        for (size_t p = 0; p < pixels; p++)
            data[position(value, row / value->channels, row % value->channels, p)] = canonical[row * pixels + p];
    }
}

static void from_layout(const struct value *value, const float *data, float *canonical)
{
    size_t pixels = value_pixels(value), rows = value->images * value->channels;
    for (size_t row = 0; row < rows; row++) {
        for (size_t p = 0; p < pixels; p++)
            canonical[row * pixels + p] = data[position(value, row / value->channels, row % value->channels, p)];
    }
}

static const struct node *last_node(const struct net *net)
{
    return &net->plan->node[net->plan->nodes - 1];
}

const float *net_last_output(const struct net *net)
{
    return output_of(net, last_node(net))->data;
}

float *net_last_gradient(struct net *net)
{
    return net->gradient[last_node(net)->gradient];
}

void net_read_output(const struct net *net, float *canonical)
{
    const struct value *value = output_of(net, last_node(net));
    from_layout(value, value->data, canonical);
}

void net_write_last_gradient(struct net *net, const float *canonical)
{
    to_layout(output_of(net, last_node(net)), canonical, net_last_gradient(net));
}

void net_read_image_gradient(const struct net *net, float *canonical)
{
    const struct value *images = &net->plan->value[0];
    const int *buffer = net->plan->image_gradient;
    if (buffer[1] >= 0)
        net->kernels->add(net->gradient[buffer[1]], net->gradient[buffer[0]], images->count);
    from_layout(images, net->gradient[buffer[0]], canonical);
}

/* ---- forward ---- */

static const float *gather_columns(struct net *net, const struct node *node, const struct work *work)
{
    windows_gather(&work->windows, input_of(net, node)->data, net->columns);
    return net->columns;
}

/* What follows a convolution or a linear layer. */
static struct bias after(const struct net *net, const struct node *node)
{
    return (struct bias){.value = output_of(net, node), .relu = node->relu, .threads = net->threads};
}

static enum status convolve(struct net *net, const struct node *node, struct work *work, const float *weights)
{
    float *result = output_of(net, node)->data;
    if (work->winograd.tile > 0) {
        winograd_forward(&work->winograd, input_of(net, node)->data, weights, result, net->columns);
        return STATUS_OK;
    }
    const float *source = work->by_columns ? gather_columns(net, node, work) : input_of(net, node)->data;
    return conv_forward(work->conv, source, weights, result, net->scratch);
}

static enum status forward_conv(struct net *net, const struct node *node, struct work *work, const float *weights)
{
    const struct layer *layer = layer_of(net, node);
    const struct bias bias = after(net, node);
    TRY(convolve(net, node, work, weights));
    if (layer->bias || node->relu)
        bias_forward(&bias, layer->bias ? weights + weights_of(net, layer) : NULL, output_of(net, node)->data);
    return STATUS_OK;
}

/* y (N, O) = x (N, I) W^T + b */
static enum status forward_linear(struct net *net, const struct node *node, const float *parameters)
{
    const struct value *in = input_of(net, node), *out = output_of(net, node);
    const size_t inputs = in->channels * value_pixels(in);
    const float *bias = parameters + out->channels * inputs;
    for (size_t n = 0; n < out->images; n++)
        memcpy(out->data + n * out->channels, bias, out->channels * sizeof *bias);
    struct product product = {.m = out->images, .n = out->channels, .k = inputs, .b_transposed = true, .beta = 1.0F};
    TRY(onednn_product(&product, in->data, parameters, out->data));
    const struct bias relu = after(net, node);
    if (node->relu)
        bias_forward(&relu, NULL, out->data);
    return STATUS_OK;
}

/* `state` is written in training only. */
static enum status forward_node(struct net *net, int k, const float *parameters, float *state, bool training)
{
    const struct node *node = &net->plan->node[k];
    const struct layer *layer = layer_of(net, node);
    struct work *work = &net->work[k];
    const float *own = parameters + parameter_offset(net, layer);
    float *output = output_of(net, node)->data;
    const float *addend = node->second < 0 ? NULL : net->plan->value[node->second].data;
    switch (node->kind) {
    case NODE_CONV:
        return forward_conv(net, node, work, own);
    case NODE_NORM:
        if (training)
            return norm_train(&work->norm, own, state + layer->state_offset, addend, node->relu, output);
        norm_evaluate(&work->norm, own, state + layer->state_offset, addend, node->relu, output);
        return STATUS_OK;
    case NODE_MAX_POOL:
        max_pool_forward(&work->pool, input_of(net, node)->data, output);
        return STATUS_OK;
    case NODE_AVERAGE_POOL:
        average_pool_forward(&work->pool, input_of(net, node)->data, output);
        return STATUS_OK;
    case NODE_LINEAR:
        return forward_linear(net, node, own);
    }
    return STATUS_OK;
}

static enum status forward(struct net *net, const float *parameters, float *state, const float *images, bool training,
                           const struct gradient_watch *watch)
{
    struct value *input = &net->plan->value[0];
    if (net->plan->plain_images)
        input->data = (float *)(size_t)images; /* only read */
    else
        to_layout(input, images, input->data);
    for (int k = 0; k < net->plan->nodes; k++) {
        double start = clock_seconds();
        TRY(forward_node(net, k, parameters, state, training));
        net->forward_seconds[net->plan->node[k].layer] = clock_seconds() - start;
        if (watch != NULL)
            TRY(watch->ready(watch->context, net->model->parameters));
    }
    return STATUS_OK;
}

void net_share(struct net *net, int images, double divisor)
{
    net->share = (struct norm_share){.images = (size_t)images, .divisor = divisor};
}

enum status net_train(struct net *net, const float *parameters, float *state, const float *images,
                      const struct gradient_watch *watch)
{
    return forward(net, parameters, state, images, true, watch);
}

enum status net_evaluate(struct net *net, const float *parameters, const float *state, const float *images)
{
    return forward(net, parameters, (float *)(size_t)state, images, false, NULL);
}

/* ---- backward ---- */

static void backward_winograd(struct net *net, const struct node *node, struct work *work, const float *weights,
                              float *weights_gradient)
{
    const float *gradient = net->gradient[node->gradient];
    double start = clock_seconds();
    winograd_backward_weights(&work->winograd, input_of(net, node)->data, gradient, weights_gradient, net->columns);
    net->weights_seconds[node->layer] = clock_seconds() - start;
    if (node->input_gradient >= 0)
        winograd_backward_data(&work->winograd, gradient, weights, net->gradient[node->input_gradient], net->columns);
}

static enum status backward_conv(struct net *net, const struct node *node, struct work *work, const float *weights,
                                 float *weights_gradient)
{
    const struct layer *layer = layer_of(net, node);
    const struct bias bias = after(net, node);
    float *gradient = net->gradient[node->gradient];
    if (layer->bias || node->relu)
        bias_backward(&bias, output_of(net, node)->data, gradient,
                      layer->bias ? weights_gradient + weights_of(net, layer) : NULL);
    if (work->winograd.tile > 0) {
        backward_winograd(net, node, work, weights, weights_gradient);
        return STATUS_OK;
    }
    bool columns = work->by_columns || work->weights_conv;
    double start = clock_seconds();
    const float *source = columns ? gather_columns(net, node, work) : input_of(net, node)->data;
    TRY(conv_backward_weights(work->weights_conv ? work->weights_conv : work->conv, source, gradient, weights_gradient,
                              net->scratch));
    net->weights_seconds[node->layer] = clock_seconds() - start;
    if (node->input_gradient < 0)
        return STATUS_OK;
    float *into = net->gradient[node->input_gradient];
    TRY(conv_backward_data(work->conv, gradient, weights, work->by_columns ? net->columns : into, net->scratch,
                           net->rearranged));
    if (work->by_columns)
        windows_scatter(&work->windows, net->columns, into);
    return STATUS_OK;
}

static enum status backward_norm(struct net *net, const struct node *node, struct work *work, const float *parameters,
                                 float *parameter_gradient)
{
    return norm_backward(&work->norm, &(struct norm_backward){
                                          .parameters = parameters,
                                          .result = output_of(net, node)->data,
                                          .relu = node->relu,
                                          .gradient = net->gradient[node->gradient],
                                          .more = node->more < 0 ? NULL : net->gradient[node->more],
                                          .parameter_gradient = parameter_gradient,
                                          .input_gradient = net->gradient[node->input_gradient],
                                          .addend = node->second >= 0,
                                      });
}

/* dW (O, I) = dy^T x, db = sum of dy, dx (N, I) = dy W */
static enum status backward_linear(struct net *net, const struct node *node, const float *weights,
                                   float *weights_gradient)
{
    const struct value *in = input_of(net, node), *out = output_of(net, node);
    const size_t inputs = in->channels * value_pixels(in);
    float *gradient = net->gradient[node->gradient];
    const struct bias bias = after(net, node);
    bias_backward(&bias, out->data, gradient, weights_gradient + out->channels * inputs);
    struct product by_weights = {.m = out->channels, .n = inputs, .k = out->images, .a_transposed = true};
    TRY(onednn_product(&by_weights, gradient, in->data, weights_gradient));
    if (node->input_gradient < 0)
        return STATUS_OK;
    struct product by_data = {.m = out->images, .n = inputs, .k = out->channels};
    return onednn_product(&by_data, gradient, weights, net->gradient[node->input_gradient]);
}

/* Batch norm adds the two gradients of its output itself, on the way. */
static void join_gradients(struct net *net, const struct node *node)
{
    if (node->more >= 0 && node->kind != NODE_NORM)
        net->kernels->add(net->gradient[node->more], net->gradient[node->gradient], output_of(net, node)->count);
}

static enum status backward_node(struct net *net, int k, const float *parameters, float *gradients)
{
    const struct node *node = &net->plan->node[k];
    const struct layer *layer = layer_of(net, node);
    struct work *work = &net->work[k];
    size_t offset = parameter_offset(net, layer);
    float *into = node->input_gradient < 0 ? NULL : net->gradient[node->input_gradient];
    join_gradients(net, node);
    switch (node->kind) {
    case NODE_CONV:
        return backward_conv(net, node, work, parameters + offset, gradients + offset);
    case NODE_NORM:
        return backward_norm(net, node, work, parameters + offset, gradients + offset);
    case NODE_MAX_POOL:
        if (into)
            max_pool_backward(&work->pool, net->gradient[node->gradient], into);
        return STATUS_OK;
    case NODE_AVERAGE_POOL:
        if (into)
            average_pool_backward(&work->pool, net->gradient[node->gradient], into);
        return STATUS_OK;
    case NODE_LINEAR:
        return backward_linear(net, node, parameters + offset, gradients + offset);
    }
    return STATUS_OK;
}

enum status net_backward(struct net *net, const float *parameters, float *gradients, const struct gradient_watch *watch)
{
    for (int k = net->plan->nodes - 1; k >= 0; k--) {
        double start = clock_seconds();
        TRY(backward_node(net, k, parameters, gradients));
        net->backward_seconds[net->plan->node[k].layer] = clock_seconds() - start;
        if (watch != NULL)
            TRY(watch->ready(watch->context, net->work[k].complete_from));
    }
    return STATUS_OK;
}

const double *net_forward_seconds(const struct net *net)
{
    return net->forward_seconds;
}

const double *net_backward_seconds(const struct net *net)
{
    return net->backward_seconds;
}

const double *net_weights_seconds(const struct net *net)
{
    return net->weights_seconds;
}
