/* input.c - see input.h. */
#include "nn/cuda/input.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/cuda/device.h"
#include "nn/cuda/runtime.h"

struct slot {
    void *images; /* device, as they came */
    size_t bytes;
    void *labels, *crops;           /* device, for a whole batch */
    struct cuda_crop *pinned_crops; /* what `crops` is copied from */
    struct device_event *copied;
};

struct cuda_input {
    const struct model *model;
    int batch;
    struct device *device;
    const struct device_ops *ops;
    struct device_queue *queue; /* of copies */
    struct slot slot[CUDA_SLOTS];
};

static enum status slot_create(struct cuda_input *input, struct slot *slot)
{
    const size_t batch = (size_t)input->batch;
    void *memory = NULL;
    TRY(input->ops->alloc(input->device, batch * sizeof(int32_t), &slot->labels));
    TRY(input->ops->alloc(input->device, batch * sizeof(struct cuda_crop), &slot->crops));
    TRY(input->ops->host_alloc(input->device, batch * sizeof(struct cuda_crop), &memory));
    slot->pinned_crops = memory;
    return input->ops->event_create(input->device, &slot->copied);
}

static void slot_release(struct cuda_input *input, struct slot *slot)
{
    input->ops->free(input->device, slot->images);
    input->ops->free(input->device, slot->labels);
    input->ops->free(input->device, slot->crops);
    input->ops->host_free(input->device, slot->pinned_crops);
    input->ops->event_destroy(slot->copied);
}

enum status cuda_input_create(const struct model *model, int batch, struct device *device, struct cuda_input **input)
{
    *input = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct cuda_input)));
    struct cuda_input *made = memory;
    *made = (struct cuda_input){.model = model, .batch = batch, .device = device, .ops = device->ops};
    enum status status;
    TRY_TO(failed, made->ops->queue_create(device, &made->queue));
    for (int k = 0; k < CUDA_SLOTS; k++)
        TRY_TO(failed, slot_create(made, &made->slot[k]));
    *input = made;
    return STATUS_OK;
failed:
    cuda_input_destroy(made);
    return status;
}

void cuda_input_destroy(struct cuda_input *input)
{
    if (input == NULL)
        return;
    for (int k = 0; k < CUDA_SLOTS; k++)
        slot_release(input, &input->slot[k]);
    input->ops->queue_destroy(input->queue);
    free(input);
}

size_t cuda_input_memory(const struct cuda_input *input)
{
    size_t bytes = CUDA_SLOTS * (size_t)input->batch * (sizeof(int32_t) + sizeof(struct cuda_crop));
    for (int k = 0; k < CUDA_SLOTS; k++)
        bytes += input->slot[k].bytes;
    return bytes;
}

/* ---- checks ---- */

static bool inside(const struct image_box *box, const struct stored_images *images)
{
    return box->left >= 0 && box->top >= 0 && box->width > 0 && box->height > 0 &&
           box->left + box->width <= (float)images->width && box->top + box->height <= (float)images->height;
}

static enum status check_stored(const struct stored_images *images, int count)
{
    if (images->channels != 1 && images->channels != 3)
        return fail(STATUS_INTERNAL, "device cuda: stored images of %d channels: 1 or 3", images->channels);
    for (int n = 0; images->box != NULL && n < count; n++) {
        if (!inside(&images->box[n], images))
            return fail(STATUS_FORMAT, "image %d: its box is not inside of %d x %d pixels", n, images->width,
                        images->height);
    }
    return STATUS_OK;
}

enum status cuda_input_check(const struct cuda_input *input, const struct batch *batch)
{
    const int classes = input->model->classes;
    if (batch->count < 1 || batch->count > input->batch)
        return fail(STATUS_INTERNAL, "device cuda: %d images, but the backend was opened for 1 to %d", batch->count,
                    input->batch);
    if ((batch->canonical == NULL) == (batch->stored == NULL))
        return fail(STATUS_INTERNAL, "device cuda: a batch is either canonical or stored");
    for (int n = 0; n < batch->count; n++) {
        if (batch->labels[n] < 0 || batch->labels[n] >= classes)
            return fail(STATUS_FORMAT, "label %d of image %d: the model has classes 0 to %d", batch->labels[n], n,
                        classes - 1);
    }
    return batch->stored != NULL ? check_stored(batch->stored, batch->count) : STATUS_OK;
}

/* ---- copies ---- */

static size_t image_bytes(const struct cuda_input *input, const struct batch *batch)
{
    const struct model *model = input->model;
    const size_t size = (size_t)model->image_size;
    if (batch->canonical != NULL)
        return (size_t)model->channels * size * size * sizeof(float);
    return (size_t)batch->stored->height * (size_t)batch->stored->width * (size_t)batch->stored->channels;
}

static enum status make_room(struct cuda_input *input, struct slot *slot, size_t bytes)
{
    if (bytes <= slot->bytes)
        return STATUS_OK;
    input->ops->free(input->device, slot->images);
    slot->images = NULL;
    slot->bytes = 0;
    TRY(input->ops->alloc(input->device, bytes, &slot->images));
    slot->bytes = bytes;
    return STATUS_OK;
}

static enum status copy_boxes(struct cuda_input *input, struct slot *slot, const struct batch *batch)
{
    const struct image_box *box = batch->stored->box;
    if (box == NULL)
        return STATUS_OK;
    for (int n = 0; n < batch->count; n++) {
        slot->pinned_crops[n] = (struct cuda_crop){.top = box[n].top,
                                                   .left = box[n].left,
                                                   .height = box[n].height,
                                                   .width = box[n].width,
                                                   .flip = box[n].flip};
    }
    return input->ops->copy(input->queue, slot->crops, slot->pinned_crops,
                            (size_t)batch->count * sizeof *slot->pinned_crops);
}

enum status cuda_input_copy(struct cuda_input *input, int slot, const struct batch *batch)
{
    struct slot *to = &input->slot[slot];
    const size_t count = (size_t)batch->count, image = image_bytes(input, batch);
    TRY(make_room(input, to, (size_t)input->batch * image));
    const void *from = batch->canonical != NULL ? (const void *)batch->canonical : batch->stored->bytes;
    TRY(input->ops->copy(input->queue, to->images, from, count * image));
    TRY(input->ops->copy(input->queue, to->labels, batch->labels, count * sizeof *batch->labels));
    if (batch->stored != NULL)
        TRY(copy_boxes(input, to, batch));
    TRY(input->ops->record(input->queue, to->copied));
    return input->ops->order(input->ops->compute(input->device), to->copied);
}

/* ---- conversion ---- */

static enum status convert_canonical(const struct cuda_input *input, const struct slot *slot, int count,
                                     const struct cuda_net_input *to)
{
    const struct model *model = input->model;
    return cuda_launched(cuda_images_from_planes(cuda_device_stream(input->device), to->storage, to->images,
                                                 slot->images, count, model->channels, model->image_size,
                                                 model->image_size, to->channels),
                         "images");
}

static enum status convert_stored(const struct cuda_input *input, const struct slot *slot, const struct batch *batch,
                                  const struct cuda_net_input *to)
{
    const struct stored_images *images = batch->stored;
    struct cuda_resize resize = {
        .from = slot->images,
        .images = batch->count,
        .height = images->height,
        .width = images->width,
        .channels = images->channels,
        .crops = images->box != NULL ? slot->crops : NULL,
        .to = to->images,
        .out_height = input->model->image_size,
        .out_width = input->model->image_size,
        .padded = to->channels,
    };
    memcpy(resize.mean, images->mean, sizeof resize.mean);
    memcpy(resize.deviation, images->deviation, sizeof resize.deviation);
    return cuda_launched(cuda_images_resize(cuda_device_stream(input->device), to->storage, &resize), "images");
}

enum status cuda_input_convert(struct cuda_input *input, int slot, const struct batch *batch,
                               const struct cuda_net_input *to)
{
    const struct slot *from = &input->slot[slot];
    TRY(input->ops->copy(input->ops->compute(input->device), to->labels, from->labels,
                         (size_t)batch->count * sizeof *batch->labels));
    if (batch->canonical != NULL)
        return convert_canonical(input, from, batch->count, to);
    return convert_stored(input, from, batch, to);
}
