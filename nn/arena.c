/* arena.c - allocation by the comm, copies through the device's compute queue. */
#include "nn/arena.h"

#include <string.h>

enum status arena_create(const struct place *place, size_t count, float **arena)
{
    const size_t bytes = count * sizeof(float);
    void *memory = NULL;
    *arena = NULL;
    if (place->device != NULL)
        TRY(comm_device_alloc(place->comm, bytes, &memory));
    else
        TRY(comm_alloc(place->comm, bytes, &memory));
    *arena = memory;
    return STATUS_OK;
}

void arena_destroy(const struct place *place, float *arena)
{
    if (place->device != NULL)
        comm_device_free(place->comm, arena);
    else
        comm_free(place->comm, arena);
}

static enum status copy_and_wait(struct device *device, void *to, const void *from, size_t bytes)
{
    const struct device_ops *ops = device->ops;
    struct device_queue *queue = ops->compute(device);
    struct device_event *done = NULL;
    enum status status = STATUS_OK;
    TRY(ops->event_create(device, &done));
    TRY_TO(out, ops->copy(queue, to, from, bytes));
    TRY_TO(out, ops->record(queue, done));
    TRY_TO(out, ops->wait(done));
out:
    ops->event_destroy(done);
    return status;
}

enum status arena_write(const struct place *place, float *arena, const float *host, size_t count)
{
    if (place->device != NULL)
        return copy_and_wait(place->device, arena, host, count * sizeof(float));
    memcpy(arena, host, count * sizeof(float));
    return STATUS_OK;
}

enum status arena_read(const struct place *place, const float *arena, float *host, size_t count)
{
    if (place->device != NULL)
        return copy_and_wait(place->device, host, arena, count * sizeof(float));
    memcpy(host, arena, count * sizeof(float));
    return STATUS_OK;
}
