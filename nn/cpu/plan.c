/* plan.c - layouts first, then fusion, then buffers: backward is walked once to see which can be used again. */
#include "nn/cpu/plan.h"

#include <stdlib.h>

#include "base/memory.h"
#include "nn/fusion.h"

/* ---- layouts ---- */

static bool small(const struct layer *layer)
{
    return layer->out_height <= FOLD_SIDE && layer->out_width <= FOLD_SIDE;
}

/* Shape and layout of a layer's output. What works element by element keeps the layout of its input. */
static struct value output_of(const struct plan *plan, const struct layer *layer, size_t block)
{
    const struct value *in = &plan->value[layer->input + 1];
    struct value out = {.images = in->images,
                        .channels = (size_t)layer->out_channels,
                        .height = (size_t)layer->out_height,
                        .width = (size_t)layer->out_width,
                        .block = block,
                        .folded = small(layer)};
    switch (layer->kind) {
    case LAYER_CONV:
        if (layer->input < 0 && plan->plain_images)
            out.folded = false; /* windows are gathered from blocks only */
        break;
    case LAYER_AVERAGE_POOL:
    case LAYER_LINEAR:
        out.block = 1;
        out.folded = false;
        break;
    case LAYER_BATCH_NORM:
    case LAYER_RELU:
    case LAYER_ADD_RELU:
        out.block = in->block;
        out.folded = in->folded;
        break;
    case LAYER_MAX_POOL:
        break;
    }
    return out;
}

static enum status count_floats(struct value *value, const char *name)
{
    if (!checked_multiply(value->images, value->channels, &value->count) ||
        !checked_multiply(value->count, value_pixels(value), &value->count))
        return fail(STATUS_USAGE, "layer %s: a batch of %zu images is too large", name, value->images);
    return STATUS_OK;
}

static enum status check_layer(const struct plan *plan, const struct layer *layer, size_t block)
{
    const struct value *in = &plan->value[layer->input + 1];
    if (layer->kind == LAYER_LINEAR) {
        if (in->block != 1 || layer->input < 0)
            return fail(STATUS_REFUSED,
                        "layer %s: the cpu backend wants a linear layer after an average pool or another one",
                        layer->name);
        return STATUS_OK;
    }
    if (layer->kind == LAYER_RELU && in->block == 1 && layer->input >= 0)
        return STATUS_OK;
    if (layer->kind == LAYER_ADD_RELU && plan->value[layer->second + 1].folded != in->folded)
        return fail(STATUS_INTERNAL, "layer %s: its inputs differ in layout", layer->name);
    bool reads_plain = layer->input < 0 && plan->plain_images && layer->kind == LAYER_CONV;
    if ((!reads_plain && in->block != block) || (size_t)layer->out_channels % block != 0)
        return fail(STATUS_REFUSED, "layer %s: %d to %d channels: the cpu backend wants multiples of %zu", layer->name,
                    layer->in_channels, layer->out_channels, block);
    return STATUS_OK;
}

static enum status lay_out(struct plan *plan, size_t batch, size_t block)
{
    const struct model *model = plan->model;
    size_t channels = (size_t)model->channels, size = (size_t)model->image_size;
    plan->plain_images = channels % block != 0;
    plan->value[0] = (struct value){.images = batch, .channels = channels, .height = size, .width = size};
    plan->value[0].block = plan->plain_images ? 1 : block;
    plan->value[0].folded = !plan->plain_images && size <= FOLD_SIDE;
    TRY(count_floats(&plan->value[0], "images"));
    for (int k = 0; k < model->layers; k++) {
        TRY(check_layer(plan, &model->layer[k], block));
        plan->value[k + 1] = output_of(plan, &model->layer[k], block);
        TRY(count_floats(&plan->value[k + 1], model->layer[k].name));
    }
    return STATUS_OK;
}

/* ---- fusion ---- */

static void add_node(struct plan *plan, enum node_kind kind, int layer, int last)
{
    const struct fused fused = fused_layers(plan->model, layer, last);
    plan->node[plan->nodes++] = (struct node){
        .kind = kind,
        .layer = layer,
        .input = fused.input,
        .second = fused.second,
        .output = fused.output,
        .relu = fused.relu,
        .gradient = -1,
        .more = -1,
        .input_gradient = -1,
    };
}

/* The layer that ends the step which begins with layer k: a ReLU (with an addition only after a batch norm), or -1. */
static int step_end(const struct model *model, int k)
{
    const int end = fused_with(model, k);
    switch (model->layer[k].kind) {
    case LAYER_BATCH_NORM:
        return end;
    case LAYER_CONV:
    case LAYER_LINEAR:
        return end >= 0 && model->layer[end].kind == LAYER_RELU ? end : -1;
    case LAYER_RELU:
    case LAYER_ADD_RELU:
    case LAYER_MAX_POOL:
    case LAYER_AVERAGE_POOL:
        break;
    }
    return -1;
}

static enum node_kind kind_of(enum layer_kind kind)
{
    return kind == LAYER_CONV ? NODE_CONV : kind == LAYER_LINEAR ? NODE_LINEAR : NODE_NORM;
}

/* A fused step stands where its last layer stands: the addend is ready there. */
static enum status list_nodes(struct plan *plan)
{
    const struct model *model = plan->model;
    for (int k = 0; k < model->layers; k++) {
        const struct layer *layer = &model->layer[k];
        switch (layer->kind) {
        case LAYER_CONV:
        case LAYER_LINEAR:
        case LAYER_BATCH_NORM:
            if (step_end(model, k) < 0)
                add_node(plan, kind_of(layer->kind), k, k);
            break;
        case LAYER_RELU:
        case LAYER_ADD_RELU:
            if (layer->input < 0 || step_end(model, layer->input) != k)
                return fail(STATUS_REFUSED, "layer %s: the cpu backend wants a batch norm%s of its own before it",
                            layer->name, layer->kind == LAYER_RELU ? ", convolution or linear layer" : "");
            add_node(plan, kind_of(model->layer[layer->input].kind), layer->input, k);
            break;
        case LAYER_MAX_POOL:
            add_node(plan, NODE_MAX_POOL, k, k);
            break;
        case LAYER_AVERAGE_POOL:
            add_node(plan, NODE_AVERAGE_POOL, k, k);
            break;
        }
    }
    return STATUS_OK;
}

/* ---- gradient buffers ---- */

struct pending {
    int buffer[2]; /* contributions to the gradient of a value */
    int count;
};

struct walk {
    struct plan *plan;
    struct pending *pending; /* [layers + 1] */
    bool *busy;              /* [buffers] */
};

/* The smallest free buffer that is large enough, else the largest free one, which grows, else a new one. */
static int acquire(struct walk *walk, size_t count)
{
    struct plan *plan = walk->plan;
    int fits = -1, largest = -1;
    for (int k = 0; k < plan->buffers; k++) {
        if (walk->busy[k])
            continue;
        if (plan->buffer[k] >= count && (fits < 0 || plan->buffer[k] < plan->buffer[fits]))
            fits = k;
        if (largest < 0 || plan->buffer[k] > plan->buffer[largest])
            largest = k;
    }
    int chosen = fits >= 0 ? fits : largest;
    if (chosen < 0)
        chosen = plan->buffers++;
    if (plan->buffer[chosen] < count)
        plan->buffer[chosen] = count;
    walk->busy[chosen] = true;
    return chosen;
}

static void release(struct walk *walk, int buffer)
{
    if (buffer >= 0)
        walk->busy[buffer] = false;
}

static enum status contribute(struct walk *walk, int value, int buffer)
{
    struct pending *pending = &walk->pending[value];
    if (pending->count == 2)
        return fail(STATUS_REFUSED, "layer %s: the cpu backend wants at most two readers of a layer",
                    value > 0 ? walk->plan->model->layer[value - 1].name : "images");
    pending->buffer[pending->count++] = buffer;
    return STATUS_OK;
}

/* Batch norm works in place; with an addend, the masked gradient stays where it is, as the addend's. */
static enum status walk_norm(struct walk *walk, struct node *node)
{
    if (node->second < 0) {
        node->input_gradient = node->gradient;
        release(walk, node->more);
    } else {
        size_t count = walk->plan->value[node->input].count;
        node->input_gradient = node->more >= 0 ? node->more : acquire(walk, count);
        TRY(contribute(walk, node->second, node->gradient));
    }
    return contribute(walk, node->input, node->input_gradient);
}

static enum status walk_other(struct walk *walk, struct node *node, bool image_gradient)
{
    release(walk, node->more); /* added to the first before the step begins */
    if (node->input > 0 || image_gradient) {
        node->input_gradient = acquire(walk, walk->plan->value[node->input].count);
        TRY(contribute(walk, node->input, node->input_gradient));
    }
    release(walk, node->gradient);
    return STATUS_OK;
}

static enum status walk_backward(struct walk *walk, bool image_gradient)
{
    struct plan *plan = walk->plan;
    int last = plan->model->layers;
    TRY(contribute(walk, last, acquire(walk, plan->value[last].count)));
    for (int k = plan->nodes - 1; k >= 0; k--) {
        struct node *node = &plan->node[k];
        const struct pending *pending = &walk->pending[node->output];
        if (pending->count == 0)
            return fail(STATUS_REFUSED, "layer %s: nothing reads it", plan->model->layer[node->output - 1].name);
        node->gradient = pending->buffer[0];
        node->more = pending->count > 1 ? pending->buffer[1] : -1;
        TRY(node->kind == NODE_NORM ? walk_norm(walk, node) : walk_other(walk, node, image_gradient));
    }
    for (int k = 0; k < 2; k++)
        plan->image_gradient[k] = k < walk->pending[0].count ? walk->pending[0].buffer[k] : -1;
    return STATUS_OK;
}

static enum status assign_buffers(struct plan *plan, bool image_gradient)
{
    size_t values = (size_t)plan->model->layers + 1;
    struct walk walk = {.plan = plan};
    void *pending = NULL, *busy = NULL;
    enum status status;
    TRY_TO(done, memory_zeroed(&pending, values, sizeof *walk.pending));
    TRY_TO(done, memory_zeroed(&busy, 2 * values + 1, sizeof *walk.busy));
    walk.pending = pending;
    walk.busy = busy;
    TRY_TO(done, walk_backward(&walk, image_gradient));
done:
    free(pending);
    free(busy);
    return status;
}

/* ---- the whole ---- */

static enum status plan_allocate(struct plan *plan)
{
    size_t values = (size_t)plan->model->layers + 1;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, values, sizeof *plan->value));
    plan->value = memory;
    TRY(memory_zeroed(&memory, values, sizeof *plan->node));
    plan->node = memory;
    TRY(memory_zeroed(&memory, 2 * values + 1, sizeof *plan->buffer)); /* at most two for a value */
    plan->buffer = memory;
    return STATUS_OK;
}

enum status plan_create(const struct model *model, int batch, int block, bool image_gradient, struct plan **plan)
{
    *plan = NULL;
    if (batch < 1)
        return fail(STATUS_USAGE, "batch %d: at least one image", batch);
    if (model->layers < 1)
        return fail(STATUS_USAGE, "model %s: it has no layers", model->name);
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct plan)));
    struct plan *made = memory;
    made->model = model;
    enum status status;
    TRY_TO(failed, plan_allocate(made));
    TRY_TO(failed, lay_out(made, (size_t)batch, (size_t)block));
    TRY_TO(failed, list_nodes(made));
    TRY_TO(failed, assign_buffers(made, image_gradient));
    *plan = made;
    return STATUS_OK;
failed:
    plan_destroy(made);
    return status;
}

void plan_destroy(struct plan *plan)
{
    if (!plan)
        return;
    free(plan->value);
    free(plan->node);
    free(plan->buffer);
    free(plan);
}
