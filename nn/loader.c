/* loader.c - batches in a ring, filled by a thread where there is a device. */
#include "nn/loader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* ---- memory of one batch ---- */

static size_t rounded(size_t bytes)
{
    enum { ALIGNMENT = 64 };
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static enum status get_memory(struct batch_memory *memory)
{
    struct device *device = memory->form.device;
    return device != NULL ? device->ops->host_alloc(device, memory->bytes, &memory->memory)
                          : memory_pages(&memory->memory, memory->bytes);
}

enum status batch_memory_create(const struct batch_form *form, struct batch_memory *memory)
{
    const size_t count = (size_t)form->batch;
    *memory = (struct batch_memory){.form = *form};
    data_stored(form->data, &memory->about);
    const size_t stored = (size_t)memory->about.height * (size_t)memory->about.width * (size_t)memory->about.channels;
    const size_t images = rounded(count * (form->stored ? stored : data_image_elements(form->data) * sizeof(float)));
    const size_t boxes = form->stored ? rounded(count * sizeof(struct image_box)) : 0;
    memory->bytes = images + boxes + count * sizeof(int32_t);
    TRY(get_memory(memory));
    unsigned char *bytes = memory->memory;
    if (form->stored) {
        memory->stored = bytes;
        memory->box = (void *)(bytes + images);
        memory->about.bytes = memory->stored;
        memory->about.box = memory->box;
    } else {
        memory->canonical = memory->memory;
    }
    memory->labels = (void *)(bytes + images + boxes);
    memory->batch = (struct batch){
        .canonical = memory->canonical, .stored = form->stored ? &memory->about : NULL, .labels = memory->labels};
    return STATUS_OK;
}

void batch_memory_release(struct batch_memory *memory)
{
    struct device *device = memory->form.device;
    if (device != NULL)
        device->ops->host_free(device, memory->memory);
    else
        memory_pages_release(memory->memory, memory->bytes);
    memory->memory = NULL;
}

void batch_memory_train(struct batch_memory *memory, const struct data_order *order, uint64_t step, int rank)
{
    const struct data *data = memory->form.data;
    if (memory->form.stored)
        data_train_stored(data, order, step, rank, memory->stored, memory->box, memory->labels);
    else
        data_train_batch(data, order, step, rank, memory->canonical, memory->labels);
    memory->batch.count = order->batch;
}

void batch_memory_test(struct batch_memory *memory, size_t first, size_t stride, int count)
{
    const struct data *data = memory->form.data;
    if (memory->form.stored)
        data_test_stored(data, first, stride, count, memory->stored, memory->box, memory->labels);
    else
        data_test_batch(data, first, stride, count, memory->canonical, memory->labels);
    memory->batch.count = count;
}

/* ---- the batches of a run ---- */

enum { SLOTS = 3 };

/* Steps [back, taken) are out, [taken, made) wait to be taken; step t lies in slot[t % slots]. */
struct loader {
    struct loader_request request;
    struct batch_memory slot[SLOTS];
    uint64_t slots;
    bool threaded;
    pthread_t thread;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    uint64_t made, taken, back;
    bool ends;
};

static void make(struct loader *loader, uint64_t step)
{
    batch_memory_train(&loader->slot[step % loader->slots], loader->request.order, step, loader->request.rank);
}

static void *run(void *context)
{
    struct loader *loader = context;
    (void)pthread_mutex_lock(&loader->mutex);
    while (!loader->ends && loader->made < loader->request.steps) {
        if (loader->made == loader->back + loader->slots) {
            (void)pthread_cond_wait(&loader->changed, &loader->mutex);
            continue;
        }
        const uint64_t step = loader->made;
        (void)pthread_mutex_unlock(&loader->mutex);
        make(loader, step);
        (void)pthread_mutex_lock(&loader->mutex);
        loader->made++;
        (void)pthread_cond_broadcast(&loader->changed);
    }
    (void)pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

enum status loader_create(const struct loader_request *request, struct loader **out)
{
    void *memory = NULL;
    enum status status = STATUS_OK;
    *out = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct loader)));
    struct loader *loader = memory;
    loader->request = *request;
    loader->slots = request->form.device != NULL ? SLOTS : 1;
    (void)pthread_mutex_init(&loader->mutex, NULL);
    (void)pthread_cond_init(&loader->changed, NULL);
    for (uint64_t k = 0; k < loader->slots; k++)
        TRY_TO(failed, batch_memory_create(&request->form, &loader->slot[k]));
    if (request->form.device != NULL) {
        const int error = pthread_create(&loader->thread, NULL, run, loader);
        if (error != 0) {
            status = fail(STATUS_NO_MEMORY, "the thread that loads images: %s", strerror(error));
            goto failed;
        }
        loader->threaded = true;
    }
    *out = loader;
    return STATUS_OK;
failed:
    loader_destroy(loader);
    return status;
}

void loader_destroy(struct loader *loader)
{
    if (loader == NULL)
        return;
    if (loader->threaded) {
        (void)pthread_mutex_lock(&loader->mutex);
        loader->ends = true;
        (void)pthread_cond_broadcast(&loader->changed);
        (void)pthread_mutex_unlock(&loader->mutex);
        (void)pthread_join(loader->thread, NULL);
    }
    for (uint64_t k = 0; k < loader->slots; k++)
        batch_memory_release(&loader->slot[k]);
    (void)pthread_cond_destroy(&loader->changed);
    (void)pthread_mutex_destroy(&loader->mutex);
    free(loader);
}

const struct batch *loader_take(struct loader *loader)
{
    (void)pthread_mutex_lock(&loader->mutex);
    if (!loader->threaded)
        make(loader, loader->made++);
    while (loader->made == loader->taken)
        (void)pthread_cond_wait(&loader->changed, &loader->mutex);
    const struct batch *batch = &loader->slot[loader->taken++ % loader->slots].batch;
    (void)pthread_mutex_unlock(&loader->mutex);
    return batch;
}

void loader_give_back(struct loader *loader)
{
    (void)pthread_mutex_lock(&loader->mutex);
    loader->back++;
    (void)pthread_cond_broadcast(&loader->changed);
    (void)pthread_mutex_unlock(&loader->mutex);
}
