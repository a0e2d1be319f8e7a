/* net.c - runs a plan: convolutions by cuDNN, the linear layer by cuBLAS, the rest by our kernels. */
#include "nn/cuda/net.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "nn/cuda/device.h"
#include "nn/cuda/linear.h"
#include "nn/cuda/plan.h"
#include "nn/cuda/runtime.h"

static const float epsilon = 1e-5F, momentum = 0.1F; /* of batch norm, as nn/backend.h and nn/model.h have it */

/* What a node needs besides its description; only the part of its kind is used. */
struct work {
    struct dnn_convolution *convolution;
    float *mean, *inverse; /* of a batch norm, (channels) */
};

struct cuda_net {
    const struct model *model;
    struct cuda_net_request request;
    struct device *device;
    cudaStream_t stream;
    bool synchronises;
    int image_channels;
    struct cuda_plan *plan;
    struct work *work; /* [nodes] */
    struct cuda_weights *weights;
    struct cuda_linear *linear;

    unsigned char *arena; /* activations and gradients, by the plan */
    void *workspace;      /* of one node at a time */
    float *statistics;    /* means and inverse deviations */
    int32_t *labels;
    float *row_loss;
    uint32_t *row_rank;
    struct cuda_loss *loss;
    size_t workspace_bytes, memory; /* of the device */
};

/* ---- shorthands ---- */

static const struct layer *layer_of(const struct cuda_net *net, const struct cuda_node *node)
{
    return &net->model->layer[node->layer];
}

static const struct cuda_value *input_of(const struct cuda_net *net, const struct cuda_node *node)
{
    return &net->plan->value[node->input];
}

static const struct cuda_value *output_of(const struct cuda_net *net, const struct cuda_node *node)
{
    return &net->plan->value[node->output];
}

static void *address(const struct cuda_net *net, int span)
{
    return span == CUDA_NO_SPAN ? NULL : net->arena + net->plan->span[span].offset;
}

static void *data_of(const struct cuda_net *net, int value)
{
    return address(net, net->plan->value[value].span);
}

static size_t parameter_offset(const struct cuda_net *net, const struct layer *layer)
{
    return layer->tensors > 0 ? net->model->tensor[layer->first_tensor].offset : 0;
}

static struct cuda_shape shape_of(const struct cuda_net *net, const struct layer *layer)
{
    return (struct cuda_shape){.images = net->request.batch,
                               .height = layer->in_height,
                               .width = layer->in_width,
                               .channels = layer->in_channels};
}

static struct cuda_linear_shape product_of(const struct cuda_net *net, const struct layer *layer)
{
    return (struct cuda_linear_shape){
        .rows = net->request.batch, .inputs = layer->in_channels, .outputs = layer->out_channels};
}

static const struct cuda_node *last_node(const struct cuda_net *net)
{
    return &net->plan->node[net->plan->nodes - 1];
}

/* ---- creation ---- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static enum status take(struct cuda_net *net, size_t bytes, void **memory)
{
    TRY(net->device->ops->alloc(net->device, bytes, memory));
    net->memory += bytes;
    return STATUS_OK;
}

static struct dnn_convolution_request convolution_of(const struct cuda_net *net, const struct cuda_node *node)
{
    const struct layer *layer = layer_of(net, node);
    const struct cuda_net_request *request = &net->request;
    return (struct dnn_convolution_request){
        .name = layer->name,
        .type = request->storage,
        .tf32 = request->tf32,
        .batch = request->batch,
        .in_channels = (int)input_of(net, node)->channels,
        .in_height = layer->in_height,
        .in_width = layer->in_width,
        .out_channels = layer->out_channels,
        .kernel_height = layer->kernel,
        .kernel_width = layer->kernel,
        .stride = layer->stride,
        .padding = layer->padding,
        .no_backward_data = node->input_gradient == CUDA_NO_SPAN,
        .deterministic = request->deterministic,
        .workspace_cap = request->workspace,
        .implementation = request->legacy ? DNN_LEGACY : DNN_GRAPH,
    };
}

/* What the largest node wants. */
static void measure_workspace(struct cuda_net *net)
{
    net->workspace_bytes = 0;
    for (int k = 0; k < net->plan->nodes; k++) {
        const struct cuda_node *node = &net->plan->node[k];
        const struct cuda_value *out = output_of(net, node);
        size_t bytes = 0;
        if (node->kind == CUDA_CONV)
            bytes = dnn_convolution_workspace(net->work[k].convolution);
        else if (node->kind == CUDA_NORM)
            bytes = cuda_norm_workspace(out->rows, out->channels);
        net->workspace_bytes = larger(net->workspace_bytes, bytes);
    }
}

static enum status make_work(struct cuda_net *net, size_t *channels)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)net->plan->nodes, sizeof *net->work));
    net->work = memory;
    for (int k = 0; k < net->plan->nodes; k++) {
        const struct cuda_node *node = &net->plan->node[k];
        const struct dnn_convolution_request convolution = convolution_of(net, node);
        if (node->kind == CUDA_CONV)
            TRY(dnn_convolution_create(net->request.dnn, &convolution, &net->work[k].convolution));
        else if (node->kind == CUDA_NORM)
            *channels += output_of(net, node)->channels;
    }
    measure_workspace(net);
    return STATUS_OK;
}

static void place_statistics(struct cuda_net *net)
{
    float *next = net->statistics;
    for (int k = 0; k < net->plan->nodes; k++) {
        const struct cuda_node *node = &net->plan->node[k];
        if (node->kind != CUDA_NORM)
            continue;
        net->work[k].mean = next;
        net->work[k].inverse = next + output_of(net, node)->channels;
        next += 2 * output_of(net, node)->channels;
    }
}

static enum status allocate(struct cuda_net *net, size_t channels)
{
    const size_t rows = (size_t)net->request.batch;
    void *memory = NULL;
    TRY(take(net, net->plan->bytes, &memory));
    net->arena = memory;
    TRY(take(net, 2 * channels * sizeof(float), &memory));
    net->statistics = memory;
    TRY(take(net, rows * sizeof(int32_t), &memory));
    net->labels = memory;
    TRY(take(net, rows * sizeof(float), &memory));
    net->row_loss = memory;
    TRY(take(net, rows * sizeof(uint32_t), &memory));
    net->row_rank = memory;
    TRY(take(net, sizeof(struct cuda_loss), &memory));
    net->loss = memory;
    TRY(take(net, net->workspace_bytes, &net->workspace));
    place_statistics(net);
    return STATUS_OK;
}

/* ---- the choice of convolutions ---- */

/* To time what the engine file doesn't know. */
struct turn {
    bool measure, taken;
    int lock;       /* of the file, held; -1: none */
    uint64_t until; /* when time is up */
};

static size_t filter_bytes(const struct cuda_net *net, const struct cuda_node *node)
{
    const struct layer *layer = layer_of(net, node);
    return (size_t)layer->out_channels * (size_t)layer->kernel * (size_t)layer->kernel * input_of(net, node)->channels *
           dtype_size(net->request.storage);
}

/* Activations lie where they will; filters and their gradients in memory of the moment. */
static struct dnn_buffers buffers_of(const struct cuda_net *net, const struct cuda_node *node, void *const *memory)
{
    return (struct dnn_buffers){.x = data_of(net, node->input),
                                .w = memory[0],
                                .y = data_of(net, node->output),
                                .dw = memory[1],
                                .workspace = net->workspace,
                                .workspace_bytes = net->workspace_bytes};
}

static enum status prove_all(struct cuda_net *net, void *const *memory)
{
    for (int k = 0; k < net->plan->nodes; k++) {
        const struct cuda_node *node = &net->plan->node[k];
        const struct dnn_buffers buffers = buffers_of(net, node, memory);
        if (node->kind == CUDA_CONV)
            TRY(dnn_convolution_prove(net->work[k].convolution, &buffers));
    }
    return STATUS_OK;
}

static void note_untimed(const struct cuda_net *net, int untimed)
{
    struct text line = {NULL};
    text_addf(&line,
              "%d convolution%s could not be timed within %.3g s: the first engine%s that run%s %s taken, the next "
              "start goes on (more time: --deadline=)",
              untimed, untimed > 1 ? "s" : "", net->request.patience, untimed > 1 ? "s" : "", untimed > 1 ? "" : "s",
              untimed > 1 ? "are" : "is");
    dnn_note(net->request.dnn, text_check(&line) >= 0 ? text_string(&line) : "some convolutions could not be timed");
    text_release(&line);
}

/* For as long as there is time for it, each is timed. */
static enum status choose_all(struct cuda_net *net, void *const *memory, const struct turn *turn)
{
    int untimed = 0;
    for (int k = 0; k < net->plan->nodes; k++) {
        const struct cuda_node *node = &net->plan->node[k];
        struct dnn_convolution *convolution = net->work[k].convolution;
        if (node->kind != CUDA_CONV || !dnn_convolution_undecided(convolution))
            continue;
        const struct dnn_buffers buffers = buffers_of(net, node, memory);
        const bool in_time = net->request.patience <= 0 || clock_ns() < turn->until;
        untimed += turn->measure && !in_time;
        TRY(dnn_convolution_choose(convolution, &buffers, turn->measure && in_time));
    }
    if (untimed > 0)
        note_untimed(net, untimed);
    return STATUS_OK;
}

/* Of the largest filter of those that have not run here. */
static size_t unproved_bytes(const struct cuda_net *net)
{
    size_t bytes = 0;
    for (int k = 0; k < net->plan->nodes; k++) {
        const struct cuda_node *node = &net->plan->node[k];
        if (node->kind == CUDA_CONV && dnn_convolution_unproved(net->work[k].convolution))
            bytes = larger(bytes, filter_bytes(net, node));
    }
    return bytes;
}

/* As large as those want that are left. */
static enum status fit_workspace(struct cuda_net *net)
{
    const size_t before = net->workspace_bytes;
    measure_workspace(net);
    if (net->workspace_bytes == before)
        return STATUS_OK;
    net->device->ops->free(net->device, net->workspace);
    net->workspace = NULL;
    net->memory -= before;
    return take(net, net->workspace_bytes, &net->workspace);
}

/* ---- whose turn it is ---- */

static bool any_undecided(const struct cuda_net *net)
{
    for (int k = 0; k < net->plan->nodes; k++) {
        if (net->plan->node[k].kind == CUDA_CONV && dnn_convolution_undecided(net->work[k].convolution))
            return true;
    }
    return false;
}

static enum status file_knows_all(const struct cuda_net *net, bool *known)
{
    *known = true;
    for (int k = 0; k < net->plan->nodes && *known; k++) {
        const struct cuda_node *node = &net->plan->node[k];
        const struct dnn_convolution_request convolution = convolution_of(net, node);
        if (node->kind == CUDA_CONV)
            TRY(dnn_convolution_known(net->request.dnn, &convolution, known));
    }
    return STATUS_OK;
}

static void note_no_turn(const struct cuda_net *net, double seconds)
{
    struct text line = {NULL};
    text_addf(&line,
              "another process has held the lock of the engine file for %.3g s: what the file does not know is not "
              "timed in this run (another file: --engines=, more time: --deadline=)",
              seconds);
    dnn_note(net->request.dnn, text_check(&line) >= 0 ? text_string(&line) : "the engine file is locked");
    text_release(&line);
}

/* Workers of a node, on one card or on several of a kind, come at the same time: one measures, the others wait for what it
 * writes. They wait longer than it measures, so that each has what it has found. */
static enum status take_turn(struct cuda_net *net, struct turn *turn)
{
    static const double endless_s = 1e9;
    const double seconds = net->request.patience > 0 ? 1.5 * net->request.patience : endless_s;
    const enum status status = dnn_lock(net->request.dnn, seconds, &turn->lock);
    TRY(status);
    turn->until = clock_ns() + (uint64_t)(net->request.patience * 1e9);
    turn->taken = true;
    if (status == STATUS_AGAIN) {
        turn->measure = false;
        note_no_turn(net, seconds);
    }
    return dnn_reread(net->request.dnn);
}

/* Before anything is planned: what is known need not be. */
static enum status await_turn(struct cuda_net *net, struct turn *turn)
{
    bool known = false;
    TRY(file_knows_all(net, &known));
    if (!turn->measure || known)
        return STATUS_OK;
    TRY(take_turn(net, turn));
    TRY(file_knows_all(net, &known));
    if (!known)
        return STATUS_OK;
    dnn_unlock(turn->lock);
    turn->lock = -1;
    turn->taken = false;
    return STATUS_OK;
}

/* What the file knew is no good here: a neighbour may have found that out already. */
static enum status await_correction(struct cuda_net *net, struct turn *turn, void *const *memory)
{
    if (!turn->measure || turn->taken || !any_undecided(net))
        return STATUS_OK;
    TRY(take_turn(net, turn));
    for (int k = 0; k < net->plan->nodes; k++) {
        if (net->plan->node[k].kind == CUDA_CONV)
            TRY(dnn_convolution_recall(net->work[k].convolution));
    }
    TRY(fit_workspace(net));
    return prove_all(net, memory);
}

/* Every engine runs once before training, which none of them could fail without ending it. */
static enum status choose_convolutions(struct cuda_net *net, struct turn *turn)
{
    struct device *device = net->device;
    const size_t bytes = unproved_bytes(net);
    void *memory[2] = {NULL, NULL};
    enum status status;
    if (bytes == 0)
        return STATUS_OK;
    TRY_TO(done, device->ops->alloc(device, bytes, &memory[0]));
    TRY_TO(done, device->ops->alloc(device, bytes, &memory[1]));
    TRY_TO(done, prove_all(net, memory));
    TRY_TO(done, await_correction(net, turn, memory));
    TRY_TO(done, fit_workspace(net));
    TRY_TO(done, choose_all(net, memory, turn));
    TRY_TO(done, fit_workspace(net));
    if (dnn_remember(net->request.dnn) < 0)
        dnn_note(net->request.dnn, status_message());
done:
    device->ops->free(device, memory[0]);
    device->ops->free(device, memory[1]);
    return status;
}

/* ---- creation, again ---- */

static enum status create(struct cuda_net *net)
{
    const struct cuda_net_request *request = &net->request;
    const struct cuda_plan_request plan = {.model = net->model,
                                           .batch = request->batch,
                                           .storage = request->storage,
                                           .image_channels = net->image_channels};
    const struct cuda_weights_request weights = {
        .model = net->model, .device = net->device, .storage = request->storage, .image_channels = net->image_channels};
    size_t channels = 0;
    TRY(cuda_plan_create(&plan, &net->plan));
    TRY(cuda_weights_create(&weights, &net->weights));
    TRY(cuda_linear_open(net->device, request->storage, request->tf32, &net->linear));
    struct turn turn = {.measure = request->measure, .lock = -1};
    enum status status;
    TRY_TO(done, await_turn(net, &turn));
    TRY_TO(done, make_work(net, &channels));
    TRY_TO(done, allocate(net, channels));
    TRY_TO(done, choose_convolutions(net, &turn));
done:
    dnn_unlock(turn.lock);
    return status;
}

static bool wants_waits(void)
{
    const char *value = getenv("CHORALE_CUDA_SYNC"); /* NOLINT(concurrency-mt-unsafe): nobody sets the environment */
    return value != NULL && strcmp(value, "1") == 0;
}

enum status cuda_net_create(const struct cuda_net_request *request, struct cuda_net **net)
{
    enum { PIXEL_BYTES = 16 };
    *net = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct cuda_net)));
    struct cuda_net *made = memory;
    const int unit = PIXEL_BYTES / (int)dtype_size(request->storage);
    made->model = request->model;
    made->request = *request;
    made->device = request->device;
    made->stream = cuda_device_stream(request->device);
    made->synchronises = wants_waits();
    made->image_channels = (request->model->channels + unit - 1) / unit * unit;
    const enum status status = create(made);
    if (status < 0)
        cuda_net_destroy(made);
    else
        *net = made;
    return status;
}

void cuda_net_destroy(struct cuda_net *net)
{
    if (net == NULL)
        return;
    void *const memory[] = {net->arena,    net->statistics, net->labels,   net->row_loss,
                            net->row_rank, net->loss,       net->workspace};
    for (int k = 0; net->work != NULL && k < net->plan->nodes; k++)
        dnn_convolution_destroy(net->work[k].convolution);
    for (size_t k = 0; k < sizeof memory / sizeof memory[0]; k++)
        net->device->ops->free(net->device, memory[k]);
    cuda_linear_close(net->linear);
    cuda_weights_destroy(net->weights);
    cuda_plan_destroy(net->plan);
    free(net->work);
    free(net);
}

size_t cuda_net_memory(const struct cuda_net *net)
{
    return net->memory + cuda_weights_memory(net->weights) + cuda_linear_memory();
}

void cuda_net_moved(const struct cuda_net *net, struct moved *moved)
{
    cuda_plan_moved(net->plan, moved);
}

bool cuda_net_synchronises(const struct cuda_net *net)
{
    return net->synchronises;
}

struct cuda_net_input cuda_net_input(const struct cuda_net *net)
{
    return (struct cuda_net_input){.storage = net->request.storage,
                                   .channels = net->image_channels,
                                   .images = data_of(net, 0),
                                   .labels = net->labels};
}

struct cuda_weights *cuda_net_weights(const struct cuda_net *net)
{
    return net->weights;
}

const struct cuda_loss *cuda_net_loss(const struct cuda_net *net)
{
    return net->loss;
}

int cuda_net_nodes(const struct cuda_net *net)
{
    return net->plan->nodes;
}

int cuda_net_layer(const struct cuda_net *net, int k)
{
    return net->plan->node[k].layer;
}

/* ---- forward ---- */

static struct cuda_norm norm_of(const struct cuda_net *net, int k, const float *parameters)
{
    const struct cuda_node *node = &net->plan->node[k];
    const struct cuda_value *out = output_of(net, node);
    const float *gamma = parameters + parameter_offset(net, layer_of(net, node));
    return (struct cuda_norm){.storage = net->request.storage,
                              .rows = out->rows,
                              .channels = out->channels,
                              .x = data_of(net, node->input),
                              .gamma = gamma,
                              .beta = gamma + out->channels,
                              .epsilon = epsilon,
                              .mean = net->work[k].mean,
                              .inverse = net->work[k].inverse,
                              .relu = node->relu,
                              .workspace = net->workspace};
}

static enum status forward_norm(struct cuda_net *net, int k, const struct cuda_pass *pass, bool training)
{
    const struct cuda_node *node = &net->plan->node[k];
    const struct cuda_norm norm = norm_of(net, k, pass->parameters);
    float *state = pass->state + layer_of(net, node)->state_offset;
    const struct cuda_norm_forward forward = {.addend = node->second < 0 ? NULL : data_of(net, node->second),
                                              .y = data_of(net, node->output),
                                              .mask = training ? address(net, node->kept) : NULL,
                                              .running_mean = state,
                                              .running_variance = state + norm.channels,
                                              .momentum = momentum};
    return cuda_launched(training ? cuda_norm_forward(net->stream, &norm, &forward)
                                  : cuda_norm_infer(net->stream, &norm, &forward),
                         "batch norm");
}

static enum status forward_linear(struct cuda_net *net, const struct cuda_node *node, const float *parameters)
{
    const struct layer *layer = layer_of(net, node);
    const struct cuda_linear_shape shape = product_of(net, layer);
    const struct tensor *bias = &net->model->tensor[layer->first_tensor + 1];
    float *logits = data_of(net, node->output);
    TRY(cuda_linear_forward(net->linear, &shape, data_of(net, node->input),
                            cuda_weights_read(net->weights, parameters, layer->first_tensor), logits));
    return cuda_launched(cuda_bias_add(net->stream, DTYPE_F32, logits, parameters + bias->offset, (size_t)shape.rows,
                                       (size_t)shape.outputs),
                         "bias");
}

static enum status forward_node(struct cuda_net *net, int k, const struct cuda_pass *pass, bool training)
{
    const struct cuda_node *node = &net->plan->node[k];
    const struct layer *layer = layer_of(net, node);
    const struct cuda_shape shape = shape_of(net, layer);
    const enum dtype storage = net->request.storage;
    const void *x = data_of(net, node->input);
    void *y = data_of(net, node->output);
    switch (node->kind) {
    case CUDA_CONV:
        return dnn_convolution_forward(net->work[k].convolution, x,
                                       cuda_weights_read(net->weights, pass->parameters, layer->first_tensor), y,
                                       net->workspace);
    case CUDA_NORM:
        return forward_norm(net, k, pass, training);
    case CUDA_MAX_POOL:
        return cuda_launched(cuda_max_pool_forward(net->stream, storage, &shape, x, y, address(net, node->kept)),
                             "max pool");
    case CUDA_AVERAGE_POOL:
        return cuda_launched(cuda_average_pool_forward(net->stream, storage, &shape, x, y), "average pool");
    case CUDA_LINEAR:
        return forward_linear(net, node, pass->parameters);
    }
    return STATUS_OK;
}

/* After node k: a fault is told with its layer (by dnn.h itself, unless it shows only now that the work is waited for). */
static enum status after_node(struct cuda_net *net, int k, enum status status, const char *direction)
{
    const struct cuda_node *node = &net->plan->node[k];
    const bool told = status < 0 && node->kind == CUDA_CONV;
    if (status >= 0 && net->synchronises)
        status = cuda_check(cudaStreamSynchronize(net->stream), "its work");
    if (status < 0 && !told)
        return fail_context(status, "layer %s, %s", layer_of(net, node)->name, direction);
    return status;
}

static enum status record(const struct cuda_net *net, const struct cuda_pass *pass, int event)
{
    if (pass->event == NULL)
        return STATUS_OK;
    return cuda_check(cudaEventRecord(pass->event[event], net->stream), "a layer's time");
}

static enum status forward(struct cuda_net *net, const struct cuda_pass *pass, bool training)
{
    TRY(cuda_weights_pack(net->weights, pass->parameters));
    TRY(record(net, pass, 0));
    for (int k = 0; k < net->plan->nodes; k++) {
        TRY(after_node(net, k, forward_node(net, k, pass, training), "forward"));
        TRY(record(net, pass, k + 1));
    }
    return STATUS_OK;
}

static enum status loss(struct cuda_net *net, size_t rows, bool training)
{
    void *logits = data_of(net, net->model->layers);
    const struct cuda_cross_entropy entropy = {
        .type = DTYPE_F32,
        .logits = logits,
        .labels = net->labels,
        .rows = rows,
        .classes = (size_t)net->model->classes,
        .smoothing = training ? net->request.label_smoothing : 0,
        .scale = net->request.loss_scale / (float)rows,
        .gradient = training ? logits : NULL,
        .row_loss = net->row_loss,
        .row_rank = net->row_rank,
        .loss = net->loss,
    };
    return cuda_launched(cuda_cross_entropy(net->stream, &entropy), "the loss");
}

enum status cuda_net_forward(struct cuda_net *net, const struct cuda_pass *pass)
{
    const struct cuda_node *last = last_node(net);
    TRY(forward(net, pass, true));
    TRY(loss(net, (size_t)net->request.batch, true));
    return cuda_launched(cuda_cast(net->stream, net->request.storage, address(net, last->gradient), DTYPE_F32,
                                   data_of(net, last->output), output_of(net, last)->count),
                         "the loss's gradient");
}

enum status cuda_net_evaluate(struct cuda_net *net, const struct cuda_pass *pass, int count)
{
    TRY(forward(net, pass, false));
    return loss(net, (size_t)count, false);
}

/* ---- backward ---- */

static enum status backward_convolution(struct cuda_net *net, int k, const struct cuda_pass *pass)
{
    const struct cuda_node *node = &net->plan->node[k];
    const int filter = layer_of(net, node)->first_tensor;
    struct dnn_convolution *convolution = net->work[k].convolution;
    const void *dy = address(net, node->gradient);
    TRY(dnn_convolution_backward_filter(convolution, data_of(net, node->input), dy,
                                        cuda_weights_gradient(net->weights, pass->gradients, filter), net->workspace));
    TRY(cuda_weights_settle(net->weights, pass->gradients, filter, 1 / net->request.loss_scale));
    if (node->input_gradient == CUDA_NO_SPAN)
        return STATUS_OK;
    return dnn_convolution_backward_data(convolution, cuda_weights_read(net->weights, pass->parameters, filter), dy,
                                         address(net, node->input_gradient), net->workspace);
}

static enum status backward_norm(struct cuda_net *net, int k, const struct cuda_pass *pass)
{
    const struct cuda_node *node = &net->plan->node[k];
    const struct cuda_norm norm = norm_of(net, k, pass->parameters);
    float *dgamma = pass->gradients + parameter_offset(net, layer_of(net, node));
    const struct cuda_norm_backward backward = {.dy = address(net, node->gradient),
                                                .more = address(net, node->more),
                                                .mask = address(net, node->kept),
                                                .dz = node->second < 0 ? NULL : address(net, node->gradient),
                                                .dx = address(net, node->input_gradient),
                                                .dgamma = dgamma,
                                                .dbeta = dgamma + norm.channels,
                                                .scale = 1 / net->request.loss_scale};
    return cuda_launched(cuda_norm_backward(net->stream, &norm, &backward), "batch norm");
}

/* The bias's gradient is made from f32, which the loss has left where the logits were. */
static enum status backward_linear(struct cuda_net *net, const struct cuda_node *node, const struct cuda_pass *pass)
{
    const struct layer *layer = layer_of(net, node);
    const struct cuda_linear_shape shape = product_of(net, layer);
    const struct tensor *weight = &net->model->tensor[layer->first_tensor], *bias = weight + 1;
    const float scale = 1 / net->request.loss_scale;
    const void *dy = address(net, node->gradient);
    TRY(cuda_linear_backward_weights(net->linear, &shape, dy, data_of(net, node->input), scale,
                                     pass->gradients + weight->offset));
    TRY(cuda_launched(cuda_bias_gradient(net->stream, DTYPE_F32, data_of(net, node->output),
                                         pass->gradients + bias->offset, (size_t)shape.rows, (size_t)shape.outputs,
                                         scale, false),
                      "bias"));
    if (node->input_gradient == CUDA_NO_SPAN)
        return STATUS_OK;
    return cuda_linear_backward_data(net->linear, &shape, dy,
                                     cuda_weights_read(net->weights, pass->parameters, layer->first_tensor),
                                     address(net, node->input_gradient));
}

/* Batch norm adds the two gradients of its output itself, on the way. */
static enum status join_gradients(struct cuda_net *net, const struct cuda_node *node)
{
    if (node->more == CUDA_NO_SPAN || node->kind == CUDA_NORM)
        return STATUS_OK;
    void *gradient = address(net, node->gradient);
    return cuda_launched(cuda_add_relu_backward(net->stream, net->request.storage, gradient, gradient,
                                                address(net, node->more), NULL, NULL, output_of(net, node)->count),
                         "two gradients");
}

static enum status backward_node(struct cuda_net *net, int k, const struct cuda_pass *pass)
{
    const struct cuda_node *node = &net->plan->node[k];
    const struct cuda_shape shape = shape_of(net, layer_of(net, node));
    const enum dtype storage = net->request.storage;
    const void *dy = address(net, node->gradient);
    void *dx = address(net, node->input_gradient);
    TRY(join_gradients(net, node));
    switch (node->kind) {
    case CUDA_CONV:
        return backward_convolution(net, k, pass);
    case CUDA_NORM:
        return backward_norm(net, k, pass);
    case CUDA_MAX_POOL:
        if (dx == NULL)
            return STATUS_OK;
        return cuda_launched(cuda_max_pool_backward(net->stream, storage, &shape, dy, address(net, node->kept), dx),
                             "max pool");
    case CUDA_AVERAGE_POOL:
        if (dx == NULL)
            return STATUS_OK;
        return cuda_launched(cuda_average_pool_backward(net->stream, storage, &shape, dy, dx), "average pool");
    case CUDA_LINEAR:
        return backward_linear(net, node, pass);
    }
    return STATUS_OK;
}

enum status cuda_net_backward(struct cuda_net *net, const struct cuda_pass *pass)
{
    TRY(record(net, pass, 0));
    return cuda_net_backward_part(net, pass, 0, net->plan->nodes);
}

int cuda_net_needs(const struct cuda_net *net, size_t offset)
{
    for (int k = 0; k < net->plan->nodes; k++) {
        const struct layer *layer = layer_of(net, &net->plan->node[k]);
        if (layer->tensors == 0)
            continue;
        const struct tensor *last = &net->model->tensor[layer->first_tensor + layer->tensors - 1];
        if (last->offset + last->count > offset)
            return k;
    }
    return net->plan->nodes;
}

enum status cuda_net_backward_part(struct cuda_net *net, const struct cuda_pass *pass, int begin, int end)
{
    const int nodes = net->plan->nodes;
    for (int k = end - 1; k >= begin; k--) {
        TRY(after_node(net, k, backward_node(net, k, pass), "backward"));
        TRY(record(net, pass, nodes - k));
    }
    return STATUS_OK;
}
