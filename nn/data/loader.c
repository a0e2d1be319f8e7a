/* loader.c - a ring of batches, a counter of images to be made, one mutex. */
#include "nn/data/loader.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { CHANNELS = 3, MESSAGE_BYTES = 1024 };

/* One batch of the ring: batch b lies in slot b % slots. */
struct slot {
    uint8_t *bytes; /* (batch, height, width, channels) */
    float *canonical;
    int32_t *labels;
    struct image_box *box;
    int wanted, made; /* images */
    int filled;       /* of a set that repeats so many are there, and stay */
    enum status status;
    char message[MESSAGE_BYTES]; /* of the first failure */
    struct stored_images stored;
    struct batch batch;
};

struct loader {
    struct loader_request request;
    size_t slots, image_bytes, image_elements;
    struct slot *slot;
    struct data_scratch **scratch; /* of each thread; [0]: the caller's where there is none */
    bool repeats;
    struct data_order any; /* of a set that repeats: one image a step; who has which share stays */

    pthread_mutex_t mutex;
    pthread_cond_t work, ready; /* a slot became free; a batch became complete */
    pthread_t *thread;
    int started;
    bool stops;
    uint64_t begun; /* batch whose images are being given out ...   */
    int next;       /* ... and the next of them                     */
    uint64_t given; /* batches that loader_next() gave              */
    uint64_t done;  /* batches that came back                       */
};

/* ---- one image ---- */

static bool trains(const struct loader *loader)
{
    return loader->request.order != NULL;
}

static size_t first_test_image(const struct loader_request *request, uint64_t b)
{
    return ((size_t)request->first + (size_t)b * request->stride) * (size_t)request->batch;
}

/* Images of batch b. */
static int images_of(const struct loader *loader, uint64_t b)
{
    const struct loader_request *request = &loader->request;
    if (trains(loader)) {
        const struct data_place place = data_order_place(request->order, request->first + b);
        return data_order_images(request->order, place.epoch, place.batch, request->rank);
    }
    const size_t before = first_test_image(request, b), images = data_test_count(request->data);
    const size_t left = before < images ? images - before : 0;
    return left < (size_t)request->batch ? (int)left : request->batch;
}

static enum status make_image(const struct loader *loader, struct data_scratch *scratch, struct slot *slot, uint64_t b,
                              int i)
{
    const struct loader_request *request = &loader->request;
    uint8_t *bytes = slot->bytes + (size_t)i * loader->image_bytes;
    struct data_image to = {.bytes = bytes, .box = slot->box + i, .label = slot->labels + i};
    if (loader->repeats) { /* the same in all slots, however many there are */
        const bool shared = loader->any.shard == SHARD_GLOBAL;
        const size_t number = (shared ? (size_t)request->rank * (size_t)request->batch : 0) + (size_t)i;
        TRY(data_train_image(request->data, scratch, &loader->any, number % data_order_batches(&loader->any),
                             shared ? 0 : request->rank, 0, &to));
    } else if (trains(loader)) {
        TRY(data_train_image(request->data, scratch, request->order, request->first + b, request->rank, i, &to));
    } else {
        TRY(data_test_image(request->data, scratch, first_test_image(request, b) + (size_t)i, &to));
    }
    if (!request->stored && slot->labels[i] >= 0)
        data_canonical(request->data, scratch, bytes, slot->box + i,
                       slot->canonical + (size_t)i * loader->image_elements);
    return STATUS_OK;
}

/* ---- a slot ---- */

static struct slot *slot_of(const struct loader *loader, uint64_t b)
{
    return &loader->slot[b % loader->slots];
}

static void begin_slot(const struct loader *loader, struct slot *slot, uint64_t b)
{
    slot->wanted = images_of(loader, b);
    slot->made = slot->filled < slot->wanted ? slot->filled : slot->wanted;
    slot->status = STATUS_OK;
}

static void note_failure(struct slot *slot, enum status status)
{
    if (slot->status < 0)
        return;
    slot->status = status;
    (void)strncpy(slot->message, status_message(), sizeof slot->message - 1);
}

/* Images that could not be decoded leave the batch. */
static void close_ranks(const struct loader *loader, struct slot *slot)
{
    int count = 0;
    for (int i = 0; i < slot->wanted; i++) {
        if (slot->labels[i] < 0)
            continue;
        if (count < i) {
            slot->labels[count] = slot->labels[i];
            slot->box[count] = slot->box[i];
            memcpy(slot->bytes + (size_t)count * loader->image_bytes, slot->bytes + (size_t)i * loader->image_bytes,
                   loader->image_bytes);
            if (slot->canonical != NULL)
                memcpy(slot->canonical + (size_t)count * loader->image_elements,
                       slot->canonical + (size_t)i * loader->image_elements, loader->image_elements * sizeof(float));
        }
        count++;
    }
    slot->batch.count = count;
}

/* The images of the step on a worker, on the average; of a test batch nobody asks. */
static double divisor_of(const struct loader *loader, uint64_t b)
{
    const struct data_order *order = loader->request.order;
    if (order == NULL)
        return 0;
    const struct data_place place = data_order_place(order, loader->request.first + b);
    return (double)data_order_all_images(order, place.epoch, place.batch) / (double)order->workers;
}

static enum status hand_out(struct loader *loader, struct slot *slot, const struct batch **batch)
{
    if (slot->status < 0)
        return fail(slot->status, "%s", slot->message);
    close_ranks(loader, slot);
    if (loader->repeats && slot->filled < slot->wanted)
        slot->filled = slot->wanted;
    slot->batch.divisor = divisor_of(loader, loader->given - 1);
    *batch = &slot->batch;
    return STATUS_OK;
}

/* ---- threads ---- */

/* The next image to be made, if its slot is free: those before b - slots must be done. Mutex held. */
static bool take_image(struct loader *loader, struct slot **slot, uint64_t *b, int *i)
{
    while (loader->begun < loader->request.batches && loader->begun < loader->done + loader->slots) {
        *slot = slot_of(loader, loader->begun);
        if (loader->next == 0) {
            begin_slot(loader, *slot, loader->begun);
            loader->next = (*slot)->made;
        }
        if (loader->next < (*slot)->wanted) {
            *b = loader->begun;
            *i = loader->next++;
            return true;
        }
        loader->begun++;
        loader->next = 0;
        pthread_cond_broadcast(&loader->ready); /* it may be a batch without images to be made */
    }
    return false;
}

struct thread_start {
    struct loader *loader;
    struct data_scratch *scratch;
};

static void *run_thread(void *argument)
{
    struct thread_start start = *(struct thread_start *)argument;
    struct loader *loader = start.loader;
    free(argument);
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stops) {
        struct slot *slot = NULL;
        uint64_t b = 0;
        int i = 0;
        if (!take_image(loader, &slot, &b, &i)) {
            pthread_cond_wait(&loader->work, &loader->mutex);
            continue;
        }
        pthread_mutex_unlock(&loader->mutex);
        enum status status = make_image(loader, start.scratch, slot, b, i);
        pthread_mutex_lock(&loader->mutex);
        if (status < 0)
            note_failure(slot, status);
        if (++slot->made == slot->wanted)
            pthread_cond_broadcast(&loader->ready);
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

static enum status start_thread(struct loader *loader, int t)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct thread_start)));
    *(struct thread_start *)memory = (struct thread_start){.loader = loader, .scratch = loader->scratch[t]};
    if (pthread_create(&loader->thread[t], NULL, run_thread, memory) != 0) {
        free(memory);
        return fail(STATUS_IO, "loader: thread %d of %d can't be started: take fewer --loaders", t + 1,
                    loader->request.threads);
    }
    loader->started = t + 1;
    return STATUS_OK;
}

static void stop_threads(struct loader *loader)
{
    pthread_mutex_lock(&loader->mutex);
    loader->stops = true;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    for (int t = 0; t < loader->started; t++)
        pthread_join(loader->thread[t], NULL);
}

/* ---- opening and closing ---- */

static enum status allocate(const struct loader *loader, size_t count, size_t size, void **memory)
{
    const struct loader_request *request = &loader->request;
    size_t bytes;
    if (!checked_multiply(count, size, &bytes))
        return fail(STATUS_NO_MEMORY, "loader: a batch of %d images does not fit memory", request->batch);
    struct device *device = request->device;
    return device != NULL ? device->ops->host_alloc(device, bytes, memory) : memory_pages(memory, bytes);
}

static void release(const struct loader *loader, void *memory, size_t bytes)
{
    struct device *device = loader->request.device;
    if (device != NULL)
        device->ops->host_free(device, memory);
    else
        memory_pages_release(memory, bytes);
}

static enum status open_slot(const struct loader *loader, struct slot *slot)
{
    const size_t batch = (size_t)loader->request.batch;
    void *bytes = NULL, *canonical = NULL, *labels = NULL, *box = NULL;
    TRY(allocate(loader, batch, loader->image_bytes, &bytes));
    slot->bytes = bytes;
    TRY(allocate(loader, batch, sizeof(int32_t), &labels));
    slot->labels = labels;
    TRY(memory_zeroed(&box, batch, sizeof(struct image_box)));
    slot->box = box;
    data_form(loader->request.data, &slot->stored);
    slot->stored.bytes = slot->bytes;
    slot->stored.box = slot->box;
    slot->batch = (struct batch){.labels = slot->labels};
    if (loader->request.stored) {
        slot->batch.stored = &slot->stored;
        return STATUS_OK;
    }
    TRY(allocate(loader, batch, loader->image_elements * sizeof(float), &canonical));
    slot->canonical = canonical;
    slot->batch.canonical = slot->canonical;
    return STATUS_OK;
}

static void close_slot(const struct loader *loader, struct slot *slot)
{
    const size_t batch = (size_t)loader->request.batch;
    release(loader, slot->bytes, batch * loader->image_bytes);
    release(loader, slot->canonical, batch * loader->image_elements * sizeof(float));
    release(loader, slot->labels, batch * sizeof(int32_t));
    free(slot->box);
}

static struct data_order any_order(const struct data_order *order)
{
    struct data_order any = *order;
    any.workers = order->shard == SHARD_GLOBAL ? 1 : order->workers;
    any.batch = 1;
    any.keep_last = false;
    any.origin = (struct data_origin){.step = 0};
    return any;
}

static void measure(struct loader *loader, int size)
{
    struct stored_images form;
    struct data_facts facts;
    data_form(loader->request.data, &form);
    data_facts(loader->request.data, &facts);
    loader->image_bytes = (size_t)form.height * (size_t)form.width * (size_t)form.channels;
    loader->image_elements = CHANNELS * (size_t)size * (size_t)size;
    loader->repeats = facts.repeats && trains(loader);
    if (loader->repeats)
        loader->any = any_order(loader->request.order);
    loader->slots = (size_t)loader->request.held + (size_t)(loader->request.threads > 0 ? loader->request.ahead : 0);
}

static enum status open_all(struct loader *loader)
{
    const int threads = loader->request.threads;
    const size_t scratches = threads > 0 ? (size_t)threads : 1;
    void *slot = NULL, *scratch = NULL, *thread = NULL;
    TRY(memory_zeroed(&slot, loader->slots, sizeof(struct slot)));
    loader->slot = slot;
    TRY(memory_zeroed(&scratch, scratches, sizeof(struct data_scratch *)));
    loader->scratch = scratch;
    TRY(memory_zeroed(&thread, (size_t)threads, sizeof(pthread_t)));
    loader->thread = thread;
    for (size_t s = 0; s < loader->slots; s++)
        TRY(open_slot(loader, &loader->slot[s]));
    for (size_t t = 0; t < scratches; t++)
        TRY(data_scratch_open(loader->request.data, &loader->scratch[t]));
    for (int t = 0; t < threads; t++)
        TRY(start_thread(loader, t));
    return STATUS_OK;
}

enum status loader_open(const struct loader_request *request, struct loader **out)
{
    void *memory = NULL;
    *out = NULL;
    assert(request->held >= 1 && (request->threads == 0 || request->ahead >= 1));
    TRY(memory_zeroed(&memory, 1, sizeof(struct loader)));
    struct loader *loader = memory;
    loader->request = *request;
    measure(loader, data_size(request->data));
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->work, NULL);
    pthread_cond_init(&loader->ready, NULL);
    enum status status = open_all(loader);
    if (status < 0) {
        loader_close(loader);
        return status;
    }
    *out = loader;
    return STATUS_OK;
}

void loader_close(struct loader *loader)
{
    if (loader == NULL)
        return;
    stop_threads(loader);
    const int threads = loader->request.threads;
    for (size_t t = 0; loader->scratch != NULL && t < (threads > 0 ? (size_t)threads : 1); t++)
        data_scratch_close(loader->scratch[t]);
    for (size_t s = 0; loader->slot != NULL && s < loader->slots; s++)
        close_slot(loader, &loader->slot[s]);
    pthread_cond_destroy(&loader->ready);
    pthread_cond_destroy(&loader->work);
    pthread_mutex_destroy(&loader->mutex);
    free(loader->slot);
    free(loader->scratch);
    free(loader->thread);
    free(loader);
}

/* ---- giving batches out ---- */

/* Without threads: here and now. */
static void make_batch(struct loader *loader, struct slot *slot, uint64_t b)
{
    begin_slot(loader, slot, b);
    for (int i = slot->made; i < slot->wanted && slot->status >= 0; i++) {
        enum status status = make_image(loader, loader->scratch[0], slot, b, i);
        if (status < 0)
            note_failure(slot, status);
    }
}

enum status loader_next(struct loader *loader, const struct batch **batch)
{
    const uint64_t b = loader->given;
    struct slot *slot = slot_of(loader, b);
    assert(b < loader->request.batches && b < loader->done + (uint64_t)loader->request.held);
    if (loader->request.threads == 0) {
        make_batch(loader, slot, b);
    } else {
        pthread_mutex_lock(&loader->mutex);
        while (loader->begun <= b || slot->made < slot->wanted)
            pthread_cond_wait(&loader->ready, &loader->mutex);
        pthread_mutex_unlock(&loader->mutex);
    }
    loader->given++;
    return hand_out(loader, slot, batch);
}

void loader_done(struct loader *loader)
{
    pthread_mutex_lock(&loader->mutex);
    assert(loader->done < loader->given);
    loader->done++;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
}
