/* plan.c - nodes first, then spans: forward and backward are walked once to see what is needed until when. */
#include "nn/cuda/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/fusion.h"

enum { READERS_MOST = 2, SPANS_OF_A_NODE = 4 }; /* output, kept, two gradients */

/* Gradients of a value that are still to be added. */
struct pending {
    int span[READERS_MOST];
    int spans;
};

struct walk {
    struct cuda_plan *plan;
    const struct cuda_plan_request *request;
    struct pending *pending; /* [layers + 1] */
};

/* ---- nodes ---- */

static void add_node(struct cuda_plan *plan, enum cuda_node_kind kind, int layer, int last)
{
    const struct fused fused = fused_layers(plan->model, layer, last);
    plan->node[plan->nodes++] = (struct cuda_node){
        .kind = kind,
        .layer = layer,
        .input = fused.input,
        .second = fused.second,
        .output = fused.output,
        .relu = fused.relu,
        .kept = CUDA_NO_SPAN,
        .gradient = CUDA_NO_SPAN,
        .more = CUDA_NO_SPAN,
        .input_gradient = CUDA_NO_SPAN,
    };
}

static enum status check_fused(const struct model *model, int k)
{
    const int before = model->layer[k].input;
    if (before < 0 || model->layer[before].kind != LAYER_BATCH_NORM || fused_with(model, before) != k)
        return fail(STATUS_REFUSED, "layer %s: the cuda backend wants a batch norm of its own before it",
                    model->layer[k].name);
    return STATUS_OK;
}

static enum status check_linear(const struct model *model, int k)
{
    const struct layer *layer = &model->layer[k];
    if (layer->in_height != 1 || layer->in_width != 1)
        return fail(STATUS_REFUSED, "layer %s: the cuda backend wants a linear layer after an average pool",
                    layer->name);
    if (k != model->layers - 1)
        return fail(STATUS_REFUSED, "layer %s: the cuda backend wants one linear layer, at the end", layer->name);
    return STATUS_OK;
}

/* What other networks have of these kinds. */
static enum status check_kernels(const struct layer *layer)
{
    const char *lacks = NULL;
    if (layer->kind == LAYER_CONV && layer->bias)
        lacks = "convolutions with bias";
    if (layer->kind == LAYER_MAX_POOL && layer->kernel != 3)
        lacks = "max pooling but 3x3";
    if (layer->kind == LAYER_AVERAGE_POOL && layer->out_height != 1)
        lacks = "average pooling to more than one pixel";
    return lacks == NULL
               ? STATUS_OK
               : fail(STATUS_REFUSED, "layer %s: the cuda backend has no %s: take --device=cpu", layer->name, lacks);
}

static enum status list_layer(struct cuda_plan *plan, int k)
{
    const struct model *model = plan->model;
    TRY(check_kernels(&model->layer[k]));
    switch (model->layer[k].kind) {
    case LAYER_CONV:
        add_node(plan, CUDA_CONV, k, k);
        break;
    case LAYER_BATCH_NORM:
        if (fused_with(model, k) < 0)
            add_node(plan, CUDA_NORM, k, k);
        break;
    case LAYER_RELU:
    case LAYER_ADD_RELU:
        TRY(check_fused(model, k));
        add_node(plan, CUDA_NORM, model->layer[k].input, k);
        break;
    case LAYER_MAX_POOL:
        add_node(plan, CUDA_MAX_POOL, k, k);
        break;
    case LAYER_AVERAGE_POOL:
        add_node(plan, CUDA_AVERAGE_POOL, k, k);
        break;
    case LAYER_LINEAR:
        TRY(check_linear(model, k));
        add_node(plan, CUDA_LINEAR, k, k);
        break;
    }
    return STATUS_OK;
}

static enum status list_nodes(struct cuda_plan *plan)
{
    const struct model *model = plan->model;
    if (model->layers < 1 || model->layer[model->layers - 1].kind != LAYER_LINEAR)
        return fail(STATUS_REFUSED, "model %s: the cuda backend wants a linear layer at the end", model->name);
    for (int k = 0; k < model->layers; k++)
        TRY(list_layer(plan, k));
    return STATUS_OK;
}

/* ---- values and spans ---- */

static enum status set_value(struct cuda_value *value, const char *name, int batch, int height, int width, int channels)
{
    const size_t pixels = (size_t)height * (size_t)width;
    *value = (struct cuda_value){.channels = (size_t)channels, .span = CUDA_NO_SPAN};
    if (!checked_multiply((size_t)batch, pixels, &value->rows) ||
        !checked_multiply(value->rows, value->channels, &value->count) || value->count > SIZE_MAX / 64)
        return fail(STATUS_USAGE, "layer %s: a batch of %d images is too large", name, batch);
    return STATUS_OK;
}

static enum status set_values(struct walk *walk)
{
    struct cuda_plan *plan = walk->plan;
    const struct model *model = plan->model;
    const int batch = walk->request->batch;
    TRY(set_value(&plan->value[0], "images", batch, model->image_size, model->image_size,
                  walk->request->image_channels));
    for (int k = 0; k < model->layers; k++) {
        const struct layer *layer = &model->layer[k];
        TRY(set_value(&plan->value[k + 1], layer->name, batch, layer->out_height, layer->out_width,
                      layer->out_channels));
    }
    return STATUS_OK;
}

static int new_span(struct cuda_plan *plan, size_t bytes, int moment)
{
    const size_t unit = CUDA_SPAN_ALIGNMENT;
    plan->span[plan->spans] =
        (struct cuda_span){.bytes = (bytes + unit - 1) / unit * unit, .first = moment, .last = moment};
    return plan->spans++;
}

static void keep_until(struct cuda_plan *plan, int span, int moment)
{
    if (span != CUDA_NO_SPAN && plan->span[span].last < moment)
        plan->span[span].last = moment;
}

static int backward_moment(const struct cuda_plan *plan, int k)
{
    return 2 * plan->nodes - k;
}

/* What node k writes forward, and until when it and what it has read are kept. */
static void walk_forward(struct walk *walk, int k)
{
    struct cuda_plan *plan = walk->plan;
    struct cuda_node *node = &plan->node[k];
    struct cuda_value *out = &plan->value[node->output];
    const bool logits = node->kind == CUDA_LINEAR; /* f32, so that the loss sees all digits */
    const int backward = backward_moment(plan, k);
    out->span = new_span(plan, out->count * dtype_size(logits ? DTYPE_F32 : walk->request->storage), k);
    if (logits)
        keep_until(plan, out->span, backward);
    if (node->kind == CUDA_MAX_POOL)
        node->kept = new_span(plan, out->count, k);
    else if (node->kind == CUDA_NORM && node->relu && node->second >= 0)
        node->kept = new_span(plan, (out->count + 7) / 8, k);
    keep_until(plan, node->kept, backward);
    const bool again = node->kind == CUDA_CONV || node->kind == CUDA_NORM || node->kind == CUDA_LINEAR;
    keep_until(plan, plan->value[node->input].span, again ? backward : k);
    if (node->second >= 0)
        keep_until(plan, plan->value[node->second].span, k);
}

/* ---- gradients ---- */

static enum status contribute(struct walk *walk, int value, int span)
{
    struct pending *pending = &walk->pending[value];
    if (pending->spans == READERS_MOST)
        return fail(STATUS_REFUSED, "layer %s: the cuda backend wants at most %d readers of a layer",
                    walk->plan->model->layer[value - 1].name, READERS_MOST);
    pending->span[pending->spans++] = span;
    return STATUS_OK;
}

static int gradient_span(struct walk *walk, int value, int moment)
{
    return new_span(walk->plan, walk->plan->value[value].count * dtype_size(walk->request->storage), moment);
}

/* Batch norm works in place; with an addend, the masked gradient stays where it is, as the addend's. */
static enum status walk_norm(struct walk *walk, struct cuda_node *node, int moment)
{
    if (node->second < 0) {
        node->input_gradient = node->gradient;
    } else {
        node->input_gradient = node->more != CUDA_NO_SPAN ? node->more : gradient_span(walk, node->input, moment);
        TRY(contribute(walk, node->second, node->gradient));
    }
    return contribute(walk, node->input, node->input_gradient);
}

static enum status walk_backward(struct walk *walk, int k)
{
    struct cuda_plan *plan = walk->plan;
    struct cuda_node *node = &plan->node[k];
    const struct pending *pending = &walk->pending[node->output];
    const int moment = backward_moment(plan, k);
    if (pending->spans == 0)
        return fail(STATUS_REFUSED, "layer %s: nothing reads it", plan->model->layer[node->output - 1].name);
    node->gradient = pending->span[0];
    node->more = pending->spans > 1 ? pending->span[1] : CUDA_NO_SPAN;
    keep_until(plan, node->gradient, moment);
    keep_until(plan, node->more, moment);
    if (node->kind == CUDA_NORM)
        return walk_norm(walk, node, moment);
    if (node->input == 0)
        return STATUS_OK; /* nobody asks for the gradient by the images */
    node->input_gradient = gradient_span(walk, node->input, moment);
    return contribute(walk, node->input, node->input_gradient);
}

static enum status walk_all(struct walk *walk)
{
    struct cuda_plan *plan = walk->plan;
    const int last = plan->model->layers;
    plan->value[0].span = new_span(plan, plan->value[0].count * dtype_size(walk->request->storage), 0);
    for (int k = 0; k < plan->nodes; k++)
        walk_forward(walk, k);
    TRY(contribute(walk, last, gradient_span(walk, last, plan->nodes)));
    for (int k = plan->nodes - 1; k >= 0; k--)
        TRY(walk_backward(walk, k));
    return STATUS_OK;
}

/* ---- places ---- */

static int larger_first(const void *a, const void *b)
{
    const struct cuda_span *x = *(struct cuda_span *const *)a, *y = *(struct cuda_span *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return (x > y) - (x < y); /* the same places on every worker */
}

static bool at_one_time(const struct cuda_span *a, const struct cuda_span *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest gap between those of `placed`, sorted by offset, that live at the same time; and among them. */
static void place(struct cuda_span *span, struct cuda_span **placed, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        const struct cuda_span *other = placed[k];
        if (!at_one_time(span, other))
            continue;
        if (span->offset + span->bytes <= other->offset)
            break;
        if (span->offset < other->offset + other->bytes)
            span->offset = other->offset + other->bytes;
    }
    size_t at = count;
    while (at > 0 && placed[at - 1]->offset > span->offset) {
        placed[at] = placed[at - 1];
        at--;
    }
    placed[at] = span;
}

static enum status place_all(struct cuda_plan *plan)
{
    const size_t spans = (size_t)plan->spans;
    void *order = NULL, *placed = NULL;
    enum status status;
    TRY_TO(done, memory_zeroed(&order, spans, sizeof(struct cuda_span *)));
    TRY_TO(done, memory_zeroed(&placed, spans, sizeof(struct cuda_span *)));
    struct cuda_span **sorted = order;
    for (size_t k = 0; k < spans; k++)
        sorted[k] = &plan->span[k];
    qsort(sorted, spans, sizeof(struct cuda_span *), larger_first);
    for (size_t k = 0; k < spans; k++) {
        place(sorted[k], placed, k);
        const size_t end = sorted[k]->offset + sorted[k]->bytes;
        plan->bytes = plan->bytes > end ? plan->bytes : end;
    }
done:
    free(order);
    free(placed);
    return status;
}

/* ---- the whole ---- */

static enum status allocate(struct cuda_plan *plan)
{
    const size_t values = (size_t)plan->model->layers + 1;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, values, sizeof *plan->value));
    plan->value = memory;
    TRY(memory_zeroed(&memory, values, sizeof *plan->node));
    plan->node = memory;
    TRY(memory_zeroed(&memory, SPANS_OF_A_NODE * values, sizeof *plan->span));
    plan->span = memory;
    return STATUS_OK;
}

enum status cuda_plan_create(const struct cuda_plan_request *request, struct cuda_plan **plan)
{
    *plan = NULL;
    if (request->batch < 1)
        return fail(STATUS_USAGE, "batch %d: at least one image", request->batch);
    void *memory = NULL, *pending = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct cuda_plan)));
    struct cuda_plan *made = memory;
    made->model = request->model;
    made->storage = request->storage;
    struct walk walk = {.plan = made, .request = request};
    enum status status;
    TRY_TO(done, memory_zeroed(&pending, (size_t)request->model->layers + 1, sizeof *walk.pending));
    walk.pending = pending;
    TRY_TO(done, allocate(made));
    TRY_TO(done, list_nodes(made));
    TRY_TO(done, set_values(&walk));
    TRY_TO(done, walk_all(&walk));
    TRY_TO(done, place_all(made));
    *plan = made;
    made = NULL;
done:
    free(pending);
    cuda_plan_destroy(made);
    return status;
}

void cuda_plan_destroy(struct cuda_plan *plan)
{
    if (plan == NULL)
        return;
    free(plan->value);
    free(plan->node);
    free(plan->span);
    free(plan);
}

size_t cuda_plan_unshared(const struct cuda_plan *plan)
{
    size_t bytes = 0;
    for (int k = 0; k < plan->spans; k++)
        bytes += plan->span[k].bytes;
    return bytes;
}

/* ---- bytes moved ---- */

enum { FLOAT = sizeof(float) };

/* A node's tensors in bytes. */
struct traffic {
    uint64_t in, out;           /* activations or their gradients, in the storage type */
    uint64_t weights, gradient; /* as they are read, in f32 */
    uint64_t mask;              /* one bit an element, where there is one */
    uint64_t elements;          /* of the output */
    uint64_t channels;
};

static struct traffic traffic_of(const struct cuda_plan *plan, const struct cuda_node *node)
{
    const struct cuda_value *in = &plan->value[node->input], *out = &plan->value[node->output];
    const struct layer *layer = &plan->model->layer[node->layer];
    const uint64_t size = dtype_size(plan->storage);
    const bool conv = node->kind == CUDA_CONV, product = conv || node->kind == CUDA_LINEAR;
    const uint64_t taps = conv ? (uint64_t)layer->kernel * (uint64_t)layer->kernel : 1;
    const uint64_t rows = product ? (uint64_t)layer->out_channels * taps : 0;
    return (struct traffic){.in = in->count * size,
                            .out = out->count * size,
                            .weights = rows * in->channels * size,
                            .gradient = rows * (uint64_t)layer->in_channels * FLOAT,
                            .mask = node->relu && node->second >= 0 ? (out->count + 7) / 8 : 0,
                            .elements = out->count,
                            .channels = out->channels};
}

static void add_conv(const struct cuda_node *node, const struct traffic *t, uint64_t *bytes)
{
    bytes[MOVED_CONV_FORWARD] += t->in + t->weights + t->out;
    bytes[MOVED_CONV_WEIGHTS] += t->in + t->out + t->gradient;
    if (node->input_gradient != CUDA_NO_SPAN)
        bytes[MOVED_CONV_DATA] += t->out + t->weights + t->in;
}

/* Forward: gamma and beta, the batch's two statistics, the running ones read and written. Backward: the four read again, two
 * gradients. */
static uint64_t norm_bytes(const struct cuda_node *node, const struct traffic *t)
{
    const uint64_t addend = node->second >= 0 ? t->out : 0, more = node->more != CUDA_NO_SPAN ? t->out : 0;
    const uint64_t forward = t->in + addend + t->out + t->mask + 8 * t->channels * FLOAT;
    const uint64_t backward = t->out + more + t->in + t->mask + addend + t->in + 6 * t->channels * FLOAT;
    return forward + backward;
}

/* Logits are f32, and so is what the bias's gradient is made from. */
static void add_linear(const struct cuda_node *node, const struct traffic *t, uint64_t *bytes)
{
    const uint64_t logits = t->elements * FLOAT, bias = t->channels * FLOAT;
    bytes[MOVED_LINEAR] += t->in + t->weights + bias + logits;           /* forward     */
    bytes[MOVED_LINEAR] += t->in + t->out + t->gradient + logits + bias; /* its weights */
    if (node->input_gradient != CUDA_NO_SPAN)
        bytes[MOVED_LINEAR] += t->out + t->weights + t->in;
    const uint64_t labels = t->elements / t->channels * sizeof(int32_t);
    bytes[MOVED_LOSS] += logits + labels + logits + t->out; /* the gradient in both types */
}

static void add_node_bytes(const struct cuda_plan *plan, const struct cuda_node *node, uint64_t *bytes)
{
    const struct traffic t = traffic_of(plan, node);
    const bool joins = node->more != CUDA_NO_SPAN && node->kind != CUDA_NORM;
    bytes[MOVED_NORM] += joins ? 3 * t.out : 0;
    bytes[MOVED_UPDATE] += plan->storage != DTYPE_F32 ? t.weights : 0;
    switch (node->kind) {
    case CUDA_CONV:
        add_conv(node, &t, bytes);
        break;
    case CUDA_NORM:
        bytes[MOVED_NORM] += norm_bytes(node, &t);
        break;
    case CUDA_MAX_POOL: /* and a byte for each place that was chosen */
        bytes[MOVED_POOL] += 2 * (t.in + t.out + t.elements);
        break;
    case CUDA_AVERAGE_POOL:
        bytes[MOVED_POOL] += 2 * (t.in + t.out);
        break;
    case CUDA_LINEAR:
        add_linear(node, &t, bytes);
        break;
    }
}

void cuda_plan_moved(const struct cuda_plan *plan, struct moved *moved)
{
    enum { UPDATE_TOUCHES = 5 }; /* gradient, parameter and momentum are read, the last two are written */
    *moved = (struct moved){.bytes = {[MOVED_UPDATE] = UPDATE_TOUCHES * FLOAT * (uint64_t)plan->model->parameters}};
    for (int k = 0; k < plan->nodes; k++)
        add_node_bytes(plan, &plan->node[k], moved->bytes);
}
