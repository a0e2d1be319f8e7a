/* weights.c - see weights.h. */
#include "nn/cuda/weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/cuda/device.h"
#include "nn/cuda/runtime.h"

enum { VECTOR_BYTES = 16, COPY_UNIT = 128 }; /* of an address that kernels read in vectors; elements between copies */

struct cuda_weights {
    const struct model *model;
    struct device *device;
    cudaStream_t stream;
    enum dtype storage;
    struct cuda_tensor *table; /* [tensors], host */
    struct cuda_arena arena;   /* the same on the device */
    void *tensor;              /* its memory */
    unsigned char *copy;
    void *gradient; /* of one filter at a time, as the convolution leaves it */
    size_t copy_elements, gradient_elements;
};

/* ---- the table ---- */

static bool aligned(size_t offset)
{
    return offset * sizeof(float) % VECTOR_BYTES == 0;
}

static bool is_filter(const struct model *model, int t)
{
    return model->layer[model->tensor[t].layer].kind == LAYER_CONV;
}

static bool is_product(const struct model *model, int t)
{
    const struct layer *layer = &model->layer[model->tensor[t].layer];
    return layer->kind == LAYER_LINEAR && t == layer->first_tensor;
}

/* Elements of a working copy, or of a filter's gradient. */
static size_t padded_count(const struct cuda_tensor *entry)
{
    return entry->count / entry->channels * entry->padded;
}

static void set_entry(struct cuda_weights *weights, int t, int image_channels)
{
    const struct tensor *tensor = &weights->model->tensor[t];
    const struct layer *layer = &weights->model->layer[tensor->layer];
    struct cuda_tensor *entry = &weights->table[t];
    const bool filter = is_filter(weights->model, t);
    *entry = (struct cuda_tensor){.offset = tensor->offset,
                                  .count = tensor->count,
                                  .copy = CUDA_NO_COPY,
                                  .channels = (uint32_t)layer->in_channels,
                                  .padded = (uint32_t)layer->in_channels,
                                  .decays = tensor->decays,
                                  .bias = !tensor->decays && layer->kind != LAYER_BATCH_NORM};
    if (!filter && !is_product(weights->model, t)) {
        entry->channels = entry->padded = 1; /* single values in a row */
        return;
    }
    if (filter && layer->input < 0)
        entry->padded = (uint32_t)image_channels;
    const bool direct = weights->storage == DTYPE_F32 && entry->padded == entry->channels && aligned(tensor->offset);
    const size_t elements = padded_count(entry);
    if (!direct) {
        entry->copy = weights->copy_elements;
        weights->copy_elements += (elements + COPY_UNIT - 1) / COPY_UNIT * COPY_UNIT;
    }
    if (filter && !direct && weights->gradient_elements < elements)
        weights->gradient_elements = elements;
}

static enum status upload(struct cuda_weights *weights)
{
    struct device *device = weights->device;
    const size_t bytes = (size_t)weights->model->tensors * sizeof *weights->table;
    TRY(device->ops->alloc(device, bytes, &weights->tensor));
    TRY(cuda_check(cudaMemcpyAsync(weights->tensor, weights->table, bytes, cudaMemcpyDefault, weights->stream),
                   "the table of tensors"));
    weights->arena = (struct cuda_arena){
        .tensor = weights->tensor, .tensors = weights->model->tensors, .elements = weights->model->parameters};
    return cuda_check(cudaStreamSynchronize(weights->stream), "the table of tensors");
}

enum status cuda_weights_create(const struct cuda_weights_request *request, struct cuda_weights **weights)
{
    *weights = NULL;
    struct device *device = request->device;
    const size_t size = dtype_size(request->storage);
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct cuda_weights)));
    struct cuda_weights *made = memory;
    made->model = request->model;
    made->device = device;
    made->stream = cuda_device_stream(device);
    made->storage = request->storage;
    enum status status;
    TRY_TO(failed, memory_zeroed(&memory, (size_t)made->model->tensors, sizeof *made->table));
    made->table = memory;
    for (int t = 0; t < made->model->tensors; t++)
        set_entry(made, t, request->image_channels);
    TRY_TO(failed, upload(made));
    TRY_TO(failed, device->ops->alloc(device, made->copy_elements * size, &memory));
    made->copy = memory;
    TRY_TO(failed, device->ops->alloc(device, made->gradient_elements * size, &made->gradient));
    *weights = made;
    return STATUS_OK;
failed:
    cuda_weights_destroy(made);
    return status;
}

void cuda_weights_destroy(struct cuda_weights *weights)
{
    if (weights == NULL)
        return;
    struct device *device = weights->device;
    device->ops->free(device, weights->tensor);
    device->ops->free(device, weights->copy);
    device->ops->free(device, weights->gradient);
    free(weights->table);
    free(weights);
}

size_t cuda_weights_memory(const struct cuda_weights *weights)
{
    return (weights->copy_elements + weights->gradient_elements) * dtype_size(weights->storage) +
           (size_t)weights->model->tensors * sizeof *weights->table;
}

const struct cuda_arena *cuda_weights_arena(const struct cuda_weights *weights)
{
    return &weights->arena;
}

/* ---- working copies and gradients ---- */

enum status cuda_weights_pack(struct cuda_weights *weights, const float *parameters)
{
    if (weights->copy_elements == 0)
        return STATUS_OK;
    return cuda_launched(cuda_pack(weights->stream, &weights->arena, parameters, weights->storage, weights->copy),
                         "working copies");
}

const void *cuda_weights_read(const struct cuda_weights *weights, const float *parameters, int t)
{
    const struct cuda_tensor *entry = &weights->table[t];
    if (entry->copy == CUDA_NO_COPY)
        return parameters + entry->offset;
    return weights->copy + entry->copy * dtype_size(weights->storage);
}

void *cuda_weights_gradient(const struct cuda_weights *weights, float *gradients, int t)
{
    const struct cuda_tensor *entry = &weights->table[t];
    return entry->copy == CUDA_NO_COPY ? gradients + entry->offset : weights->gradient;
}

enum status cuda_weights_settle(struct cuda_weights *weights, float *gradients, int t, float scale)
{
    const struct cuda_tensor *entry = &weights->table[t];
    if (entry->copy == CUDA_NO_COPY)
        return STATUS_OK;
    return cuda_launched(cuda_unpack_gradient(weights->stream, weights->storage, weights->gradient,
                                              gradients + entry->offset, entry->count / entry->channels,
                                              (int)entry->channels, (int)entry->padded, scale, false),
                         "a filter's gradient");
}

/* ---- orders ---- */

/* Matrices of (rows, columns), one for each filter: transposed. */
static void transpose(const float *from, float *to, size_t filters, size_t rows, size_t columns)
{
    for (size_t f = 0; f < filters; f++, from += rows * columns, to += rows * columns) {
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = 0; c < columns; c++)
                memcpy(&to[c * rows + r], &from[r * columns + c], sizeof *to); /* bits, whatever they mean */
        }
    }
}

static void reorder(const struct model *model, const float *from, float *to, bool to_native)
{
    for (int t = 0; t < model->tensors; t++) {
        const struct tensor *tensor = &model->tensor[t];
        const struct layer *layer = &model->layer[tensor->layer];
        const size_t channels = (size_t)layer->in_channels, taps = (size_t)layer->kernel * (size_t)layer->kernel;
        if (layer->kind != LAYER_CONV)
            memcpy(to + tensor->offset, from + tensor->offset, tensor->count * sizeof *to);
        else
            transpose(from + tensor->offset, to + tensor->offset, (size_t)layer->out_channels,
                      to_native ? channels : taps, to_native ? taps : channels);
    }
}

void cuda_weights_to_native(const struct model *model, const float *canonical, float *native)
{
    reorder(model, canonical, native, true);
}

void cuda_weights_to_canonical(const struct model *model, const float *native, float *canonical)
{
    reorder(model, native, canonical, false);
}
