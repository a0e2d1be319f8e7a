/* device.c - see device.h. */
#include "nn/cuda/device.h"

#include <cublas_v2.h>
#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/cuda/kernels.h"
#include "nn/cuda/runtime.h"

enum { LEAST_CAPABILITY = 80 }; /* bf16 on tensor cores; the build has code from there on */

struct device_queue {
    struct cuda_device *device;
    cudaStream_t stream;
};

struct device_event {
    struct cuda_device *device;
    cudaEvent_t event;
};

struct cuda_device {
    struct device base;
    struct device_queue compute;
    struct device_queue zeroing; /* of new memory: any thread asks for it, also while another one captures `compute` */
    char card[256];
    int driver, runtime; /* 13000 = 13.0 */
};

_Static_assert(sizeof(cudaUUID_t) == sizeof((struct device *)NULL)->identity, "a card's UUID is its identity");
_Static_assert(sizeof(cudaIpcMemHandle_t) <= sizeof(struct device_export), "an IPC handle fits");
_Static_assert(DEVICE_TERMS <= CUDA_TERMS_MOST, "a chain of reductions is two launches at most");

static const struct device_ops cuda_ops;

static struct cuda_device *cuda_of(struct device *device)
{
    return (struct cuda_device *)device;
}

cudaStream_t cuda_device_stream(struct device *device)
{
    return cuda_of(device)->compute.stream;
}

enum status cuda_device_use(const struct device *device)
{
    return cuda_check(cudaSetDevice(device->number), "the card is made current");
}

/* ---- opening ---- */

static enum status check_driver(struct cuda_device *device)
{
    TRY(cuda_check(cudaRuntimeGetVersion(&device->runtime), "the runtime's version"));
    const cudaError_t code = cudaDriverGetVersion(&device->driver);
    if (code != cudaSuccess || device->driver == 0)
        return fail(STATUS_UNAVAILABLE,
                    "device cuda: no NVIDIA driver on this machine: install it, or use --device=cpu");
    return STATUS_OK;
}

static enum status count_cards(const struct cuda_device *device, int *cards)
{
    *cards = 0; /* which a failing call leaves as it is */
    const cudaError_t code = cudaGetDeviceCount(cards);
    if (code == cudaErrorInsufficientDriver)
        return fail(STATUS_UNAVAILABLE,
                    "device cuda: the NVIDIA driver is for CUDA %d.%d, this build is for %d.%d: update the driver",
                    device->driver / 1000, device->driver % 1000 / 10, device->runtime / 1000,
                    device->runtime % 1000 / 10);
    if (code == cudaErrorNoDevice || (code == cudaSuccess && *cards < 1))
        return fail(STATUS_UNAVAILABLE, "device cuda: the NVIDIA driver finds no card: see nvidia-smi and "
                                        "CUDA_VISIBLE_DEVICES");
    if (code != cudaSuccess)
        return fail(STATUS_UNAVAILABLE, "device cuda: cards can't be counted: %s", cudaGetErrorString(code));
    return STATUS_OK;
}

static enum status choose_card(struct cuda_device *device, const struct device_request *request)
{
    int cards = 0;
    TRY(count_cards(device, &cards));
    if (request->number >= cards)
        return fail(STATUS_USAGE, "device cuda:%d: cards 0 to %d are here", request->number, cards - 1);
    device->base.number = request->number >= 0 ? request->number : request->local_rank % cards;
    return STATUS_OK;
}

static enum status check_card(struct cuda_device *device)
{
    struct cudaDeviceProp card;
    TRY(cuda_check(cudaGetDeviceProperties(&card, device->base.number), "the card's properties"));
    snprintf(device->card, sizeof device->card, "%s", card.name);
    memcpy(device->base.identity, card.uuid.bytes, sizeof device->base.identity);
    if (10 * card.major + card.minor < LEAST_CAPABILITY)
        return fail(STATUS_UNAVAILABLE, "device cuda:%d: %s has compute capability %d.%d: %d.%d or newer is needed",
                    device->base.number, card.name, card.major, card.minor, LEAST_CAPABILITY / 10,
                    LEAST_CAPABILITY % 10);
    return STATUS_OK;
}

static int cublas_property(libraryPropertyType property)
{
    int value = 0;
    return cublasGetProperty(property, &value) == CUBLAS_STATUS_SUCCESS ? value : 0;
}

/* The loader looks for the major version, but a library's name can be changed. */
static enum status check_libraries(void)
{
    const int cudnn = (int)(cudnnGetVersion() / 10000), cublas = cublas_property(MAJOR_VERSION);
    if (cudnn != CUDNN_MAJOR)
        return fail(STATUS_UNAVAILABLE,
                    "device cuda: cuDNN %d is loaded, this build is for cuDNN %d: see LD_LIBRARY_PATH", cudnn,
                    CUDNN_MAJOR);
    if (cublas != CUBLAS_VER_MAJOR)
        return fail(STATUS_UNAVAILABLE,
                    "device cuda: cuBLAS %d is loaded, this build is for cuBLAS %d: see LD_LIBRARY_PATH", cublas,
                    CUBLAS_VER_MAJOR);
    return STATUS_OK;
}

static enum status make_stream(struct device_queue *queue, bool first)
{
    int least = 0, greatest = 0;
    TRY(cuda_device_use(&queue->device->base));
    TRY(cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of queues"));
    return cuda_check(cudaStreamCreateWithPriority(&queue->stream, cudaStreamNonBlocking, first ? greatest : least),
                      "a queue is made");
}

enum status cuda_device_open(const struct device_request *request, struct device **device)
{
    *device = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct cuda_device)));
    struct cuda_device *made = memory;
    made->base.ops = &cuda_ops;
    made->compute.device = made->zeroing.device = made;
    enum status status;
    TRY_TO(failed, check_driver(made));
    TRY_TO(failed, choose_card(made, request));
    TRY_TO(failed, check_card(made));
    TRY_TO(failed, check_libraries());
    TRY_TO(failed, make_stream(&made->compute, false));
    TRY_TO(no_zeroing, make_stream(&made->zeroing, false));
    *device = &made->base;
    return STATUS_OK;
no_zeroing:
    (void)cudaStreamDestroy(made->compute.stream);
failed:
    free(made);
    return status;
}

static void cuda_close(struct device *device)
{
    if (device == NULL)
        return;
    if (cuda_device_use(device) == STATUS_OK) {
        (void)cudaStreamDestroy(cuda_of(device)->compute.stream);
        (void)cudaStreamDestroy(cuda_of(device)->zeroing.stream);
    }
    free(device);
}

static void cuda_describe(const struct device *device, struct text *text)
{
    const struct cuda_device *cuda = (const struct cuda_device *)device;
    const int cudnn = (int)cudnnGetVersion();
    text_addf(text, "%s, driver for CUDA %d.%d, CUDA %d.%d, cuDNN %d.%d.%d, cuBLAS %d.%d.%d", cuda->card,
              cuda->driver / 1000, cuda->driver % 1000 / 10, cuda->runtime / 1000, cuda->runtime % 1000 / 10,
              cudnn / 10000, cudnn % 10000 / 100, cudnn % 100, cublas_property(MAJOR_VERSION),
              cublas_property(MINOR_VERSION), cublas_property(PATCH_LEVEL));
}

/* ---- memory ---- */

static enum status no_memory(const struct device *device, size_t bytes)
{
    size_t left = 0, total = 0;
    (void)cudaGetLastError();
    if (cudaMemGetInfo(&left, &total) != cudaSuccess)
        left = total = 0;
    return fail(STATUS_NO_MEMORY,
                "device cuda:%d: %zu MiB are wanted, %zu of its %zu MiB are free: see what else is on the card, or "
                "give it less, as by a smaller --batch",
                device->number, (bytes >> 20) + 1, left >> 20, total >> 20);
}

static enum status cuda_alloc(struct device *device, size_t bytes, void **memory)
{
    const cudaStream_t stream = cuda_of(device)->zeroing.stream;
    *memory = NULL;
    bytes += bytes == 0;
    TRY(cuda_device_use(device));
    const cudaError_t code = cudaMalloc(memory, bytes);
    if (code == cudaErrorMemoryAllocation)
        return no_memory(device, bytes);
    TRY(cuda_check(code, "device memory"));
    enum status status;
    TRY_TO(failed, cuda_check(cudaMemsetAsync(*memory, 0, bytes, stream), "device memory is zeroed"));
    TRY_TO(failed, cuda_check(cudaStreamSynchronize(stream), "device memory is zeroed"));
    return STATUS_OK;
failed:
    (void)cudaFree(*memory);
    *memory = NULL;
    return status;
}

static void cuda_free(struct device *device, void *memory)
{
    if (memory != NULL && cuda_device_use(device) == STATUS_OK)
        (void)cudaFree(memory);
}

static enum status cuda_host_alloc(struct device *device, size_t bytes, void **memory)
{
    *memory = NULL;
    bytes += bytes == 0;
    TRY(cuda_device_use(device));
    TRY(cuda_check(cudaHostAlloc(memory, bytes, cudaHostAllocPortable), "pinned host memory"));
    memset(*memory, 0, bytes);
    return STATUS_OK;
}

static void cuda_host_free(struct device *device, void *memory)
{
    if (memory != NULL && cuda_device_use(device) == STATUS_OK)
        (void)cudaFreeHost(memory);
}

static enum status cuda_host_register(struct device *device, void *memory, size_t bytes)
{
    TRY(cuda_device_use(device));
    const cudaError_t code = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    if (code == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError();
    return fail(STATUS_UNAVAILABLE, "device cuda: host memory can't be pinned: %s", cudaGetErrorString(code));
}

static void cuda_host_unregister(struct device *device, void *memory)
{
    if (cuda_device_use(device) == STATUS_OK)
        (void)cudaHostUnregister(memory);
}

/* ---- between processes ---- */

static enum status cuda_export(struct device *device, void *memory, struct device_export *card)
{
    cudaIpcMemHandle_t handle;
    TRY(cuda_device_use(device));
    const cudaError_t code = cudaIpcGetMemHandle(&handle, memory);
    memset(card, 0, sizeof *card);
    memcpy(card->bytes, &handle, sizeof handle);
    if (code == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError();
    return fail(STATUS_UNAVAILABLE, "device cuda: memory can't be shown to other processes: %s",
                cudaGetErrorString(code));
}

static enum status cuda_import(struct device *device, const struct device_export *card, void **memory)
{
    cudaIpcMemHandle_t handle;
    *memory = NULL;
    memcpy(&handle, card->bytes, sizeof handle);
    TRY(cuda_device_use(device));
    const cudaError_t code = cudaIpcOpenMemHandle(memory, handle, cudaIpcMemLazyEnablePeerAccess);
    if (code == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError();
    return fail(STATUS_UNAVAILABLE, "device cuda: memory of another process can't be reached: %s",
                cudaGetErrorString(code));
}

static void cuda_import_release(struct device *device, void *memory)
{
    if (memory != NULL && cuda_device_use(device) == STATUS_OK)
        (void)cudaIpcCloseMemHandle(memory);
}

/* ---- queues and events ---- */

static enum status cuda_queue_create(struct device *device, struct device_queue **queue)
{
    *queue = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct device_queue)));
    struct device_queue *made = memory;
    made->device = cuda_of(device);
    const enum status status = make_stream(made, true);
    if (status < 0)
        free(made);
    else
        *queue = made;
    return status;
}

static void cuda_queue_destroy(struct device_queue *queue)
{
    if (queue == NULL)
        return;
    if (cuda_device_use(&queue->device->base) == STATUS_OK)
        (void)cudaStreamDestroy(queue->stream);
    free(queue);
}

static struct device_queue *cuda_compute(struct device *device)
{
    return &cuda_of(device)->compute;
}

static void *cuda_native(struct device_queue *queue)
{
    return queue->stream;
}

/* Whoever waits sleeps: workers of one host may be more than its cores. */
static enum status cuda_event_create(struct device *device, struct device_event **event)
{
    *event = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct device_event)));
    struct device_event *made = memory;
    made->device = cuda_of(device);
    enum status status;
    TRY_TO(failed, cuda_device_use(device));
    TRY_TO(failed, cuda_check(cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming | cudaEventBlockingSync),
                              "an event"));
    *event = made;
    return STATUS_OK;
failed:
    free(made);
    return status;
}

static void cuda_event_destroy(struct device_event *event)
{
    if (event == NULL)
        return;
    if (cuda_device_use(&event->device->base) == STATUS_OK)
        (void)cudaEventDestroy(event->event);
    free(event);
}

static enum status cuda_record(struct device_queue *queue, struct device_event *event)
{
    TRY(cuda_device_use(&queue->device->base));
    return cuda_check(cudaEventRecord(event->event, queue->stream), "an event is recorded");
}

static enum status cuda_order(struct device_queue *queue, struct device_event *event)
{
    TRY(cuda_device_use(&queue->device->base));
    return cuda_check(cudaStreamWaitEvent(queue->stream, event->event, 0), "a queue waits for an event");
}

static enum status cuda_query(struct device_event *event)
{
    TRY(cuda_device_use(&event->device->base));
    const cudaError_t code = cudaEventQuery(event->event);
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* it would be taken for the next launch's */
        return STATUS_AGAIN;
    }
    return cuda_check(code, "work before an event");
}

static enum status cuda_wait(struct device_event *event)
{
    TRY(cuda_device_use(&event->device->base));
    return cuda_check(cudaEventSynchronize(event->event), "work before an event");
}

/* ---- work ---- */

static enum status cuda_copy(struct device_queue *queue, void *to, const void *from, size_t bytes)
{
    if (bytes == 0)
        return STATUS_OK;
    TRY(cuda_device_use(&queue->device->base));
    return cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue->stream), "a copy");
}

/* The operands of one launch: what has been reduced so far, then terms up to one that is divided by something. */
struct chain {
    const void *operand[CUDA_TERMS_MOST];
    int operands;
    double divisor;
};

static size_t next_chain(struct chain *chain, enum reduce_op op, const void *so_far, const struct device_term *term,
                         size_t terms)
{
    size_t taken = 0;
    *chain = (struct chain){.operand = {so_far}, .operands = 1, .divisor = 1};
    while (taken < terms && chain->operands < CUDA_TERMS_MOST && chain->divisor == 1) {
        if (op == REDUCE_AVG)
            chain->divisor = term[taken].divisor;
        chain->operand[chain->operands++] = term[taken++].data;
    }
    return taken;
}

/* A later launch would read what an earlier one has written over. */
static enum status check_terms(const void *out, const struct device_term *term, size_t first, size_t terms)
{
    for (size_t k = first; k < terms; k++) {
        if (term[k].data == out)
            return fail(STATUS_INTERNAL, "device cuda: the result of a chain lies where its term %zu does", k);
    }
    return STATUS_OK;
}

static enum status cuda_reduce_terms(struct device_queue *queue, enum dtype dtype, enum reduce_op op, void *out,
                                     const void *first, const struct device_term *term, size_t terms, size_t count)
{
    TRY(cuda_device_use(&queue->device->base));
    const void *so_far = first;
    for (size_t done = 0; done < terms; so_far = out) {
        struct chain chain;
        done += next_chain(&chain, op, so_far, term + done, terms - done);
        TRY(check_terms(out, term, done, terms));
        TRY(cuda_launched(
            cuda_reduce(queue->stream, dtype, op, out, chain.operand, chain.operands, count, chain.divisor),
            "a reduction"));
    }
    return STATUS_OK;
}

static enum status cuda_mix(struct device_queue *queue, enum dtype dtype, void *out, const void *first,
                            const struct device_term *term, size_t terms, size_t count)
{
    TRY(cuda_device_use(&queue->device->base));
    TRY(check_terms(out, term, 1, terms));
    const void *so_far = first;
    for (size_t k = 0; k < terms; k++, so_far = out)
        TRY(cuda_launched(cuda_axpy(queue->stream, dtype, out, so_far, term[k].data, term[k].weight, count),
                          "a weighted sum"));
    return STATUS_OK;
}

static enum status cuda_scale_by(struct device_queue *queue, enum dtype dtype, void *out, const void *from,
                                 double weight, size_t count)
{
    TRY(cuda_device_use(&queue->device->base));
    return cuda_launched(cuda_scale(queue->stream, dtype, out, from, weight, count), "a scaling");
}

static enum status cuda_divide(struct device_queue *queue, enum dtype dtype, void *out, const void *from, int divisor,
                               size_t count)
{
    TRY(cuda_device_use(&queue->device->base));
    return cuda_launched(cuda_reduce(queue->stream, dtype, REDUCE_AVG, out, &from, 1, count, divisor), "a division");
}

static enum status cuda_convert(struct device_queue *queue, enum dtype to_type, void *to, enum dtype from_type,
                                const void *from, size_t count)
{
    TRY(cuda_device_use(&queue->device->base));
    return cuda_launched(cuda_cast(queue->stream, to_type, to, from_type, from, count), "a conversion");
}

static const struct device_ops cuda_ops = {
    .name = "cuda",
    .close = cuda_close,
    .describe = cuda_describe,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .export_memory = cuda_export,
    .import_memory = cuda_import,
    .import_release = cuda_import_release,
    .queue_create = cuda_queue_create,
    .queue_destroy = cuda_queue_destroy,
    .compute = cuda_compute,
    .native = cuda_native,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .record = cuda_record,
    .order = cuda_order,
    .query = cuda_query,
    .wait = cuda_wait,
    .copy = cuda_copy,
    .reduce = cuda_reduce_terms,
    .mix = cuda_mix,
    .scale = cuda_scale_by,
    .divide = cuda_divide,
    .convert = cuda_convert,
};
