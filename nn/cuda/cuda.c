/* cuda.c - the `cuda` backend: steps that are put and collected, the update, evaluation, and what is told of it.
 *
 * A step takes one of two slots: memory for its input, events, and pinned memory for its result. Its work is, in the
 * compute queue: wait for the copies of the input, [begin] convert it, forward with the loss, [middle] backward, copy the
 * result out, [end]. Forward and backward are graphs (replays.h); input, result and update are not: their addresses and
 * their rate change, and they are a launch or two.
 */
#include <math.h>
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/backend.h"
#include "nn/cuda/device.h"
#include "nn/cuda/dnn.h"
#include "nn/cuda/input.h"
#include "nn/cuda/kernels.h"
#include "nn/cuda/net.h"
#include "nn/cuda/replays.h"
#include "nn/cuda/runtime.h"
#include "nn/layer_times.h"

extern const struct backend_ops backend_cuda;

enum { FORWARD, BACKWARD };                              /* sequences of replays */
enum { PARTS = 12 };                                     /* in which backward is cut at most; each is a graph */
enum { PROFILE_STEPS = LAYER_TIMES_WARM_UP + 20 };       /* of which the median is taken */
static const size_t usual_workspace = (size_t)256 << 20; /* bytes at most for one convolution */

/* What a step tells, in pinned memory. */
struct report {
    struct cuda_loss loss;
    uint32_t not_finite; /* as updates have left it that were put before */
};

struct slot {
    cudaEvent_t begin, middle, end;
    struct report *report;
};

struct backend {
    const struct model *model;
    struct device *device;
    cudaStream_t stream;
    int batch;
    enum precision precision;
    float loss_scale;
    bool deterministic, legacy;
    struct dnn *dnn;
    struct cuda_net *net;
    struct cuda_input *input;
    struct cuda_replays *replays;

    struct slot slot[CUDA_SLOTS];
    uint64_t put, collected;  /* steps */
    struct cuda_pass latest;  /* what the latest step worked on, for profile() */
    uint32_t *not_finite;     /* device: what updates have seen */
    struct report *read_back; /* pinned: of updates_finite() */

    float *rates; /* LARS: one for each tensor, device; NULL until it is wanted */
    void *lars_workspace;
    size_t lars_bytes;
};

static size_t bytes_of_floats(size_t count)
{
    return count * sizeof(float);
}

static enum dtype storage_of(enum precision precision)
{
    return precision == PRECISION_BF16 ? DTYPE_BF16 : precision == PRECISION_F16 ? DTYPE_F16 : DTYPE_F32;
}

/* ---- opening ---- */

static bool power_of_two(float value)
{
    int exponent;
    return value > 0 && isfinite(value) && frexpf(value, &exponent) == 0.5F;
}

static enum status check_request(const struct backend_request *request)
{
    if (request->device == NULL || request->device->ops == NULL || strcmp(request->device->ops->name, "cuda") != 0)
        return fail(STATUS_INTERNAL, "the cuda backend wants a cuda device");
    if (request->sums != NULL)
        return fail(STATUS_REFUSED,
                    "the cuda backend keeps the statistics of batch norms in its queue, where nothing is "
                    "exchanged: take --bn=averaged or local");
    if (request->batch < 1)
        return fail(STATUS_USAGE, "batch %d: at least one image", request->batch);
    if (request->loss_scale != 0 && request->loss_scale != 1 && request->precision != PRECISION_F16)
        return fail(STATUS_USAGE, "loss scale %g: only f16 wants one", (double)request->loss_scale);
    if (request->loss_scale != 0 && !power_of_two(request->loss_scale))
        return fail(STATUS_USAGE, "loss scale %g: a power of two", (double)request->loss_scale);
    if (!(request->label_smoothing >= 0 && request->label_smoothing < 1))
        return fail(STATUS_USAGE, "label smoothing %g: from 0 up to 1, which is excluded", request->label_smoothing);
    return STATUS_OK;
}

static enum status open_slot(struct backend *backend, struct slot *slot)
{
    void *memory = NULL;
    TRY(backend->device->ops->host_alloc(backend->device, sizeof *slot->report, &memory));
    slot->report = memory;
    TRY(cuda_check(cudaEventCreateWithFlags(&slot->begin, cudaEventBlockingSync), "an event"));
    TRY(cuda_check(cudaEventCreateWithFlags(&slot->middle, cudaEventBlockingSync), "an event"));
    return cuda_check(cudaEventCreateWithFlags(&slot->end, cudaEventBlockingSync), "an event");
}

/* Which kernel is the fastest is not decided equally in each run: a deterministic one takes what is foreseen. */
static enum status open_net(struct backend *backend, const struct backend_request *request)
{
    const struct dnn_request dnn = {.device = backend->device->number,
                                    .stream = backend->stream,
                                    .engine_file = request->deterministic ? NULL : request->engines,
                                    .note = request->note,
                                    .context = request->note_context};
    TRY(dnn_open(&dnn, &backend->dnn));
    const struct cuda_net_request net = {
        .model = request->model,
        .batch = request->batch,
        .device = backend->device,
        .dnn = backend->dnn,
        .storage = storage_of(request->precision),
        .tf32 = request->precision == PRECISION_TF32,
        .loss_scale = backend->loss_scale,
        .label_smoothing = (float)request->label_smoothing,
        .deterministic = request->deterministic,
        .legacy = request->legacy,
        .measure = !request->deterministic,
        .patience = request->patience,
        .workspace = request->workspace > 0 ? request->workspace : usual_workspace,
    };
    return cuda_net_create(&net, &backend->net);
}

static enum status open_rest(struct backend *backend, const struct backend_request *request)
{
    void *memory = NULL;
    TRY(open_net(backend, request));
    const bool capture = !cuda_net_synchronises(backend->net);
    TRY(cuda_replays_create(backend->stream, capture, "CHORALE_CUDA_SYNC", &backend->replays));
    TRY(cuda_input_create(request->model, request->batch, backend->device, &backend->input));
    for (int k = 0; k < CUDA_SLOTS; k++)
        TRY(open_slot(backend, &backend->slot[k]));
    TRY(backend->device->ops->alloc(backend->device, sizeof *backend->not_finite, &memory));
    backend->not_finite = memory;
    TRY(backend->device->ops->host_alloc(backend->device, sizeof *backend->read_back, &memory));
    backend->read_back = memory;
    return STATUS_OK;
}

static enum status cuda_open(const struct backend_request *request, struct backend **backend)
{
    *backend = NULL;
    TRY(check_request(request));
    TRY(cuda_device_use(request->device));
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct backend)));
    struct backend *made = memory;
    made->model = request->model;
    made->device = request->device;
    made->stream = cuda_device_stream(request->device);
    made->batch = request->batch;
    made->precision = request->precision;
    made->loss_scale = request->loss_scale > 0 ? request->loss_scale : 1;
    made->deterministic = request->deterministic;
    made->legacy = request->legacy;
    const enum status status = open_rest(made, request);
    if (status < 0)
        backend_cuda.close(made);
    else
        *backend = made;
    return status;
}

static void destroy_event(cudaEvent_t event)
{
    if (event != NULL)
        (void)cudaEventDestroy(event);
}

static void close_slot(struct backend *backend, struct slot *slot)
{
    destroy_event(slot->begin);
    destroy_event(slot->middle);
    destroy_event(slot->end);
    backend->device->ops->host_free(backend->device, slot->report);
}

/* What is still under way reads and writes the memory that is freed here: it is waited for. */
static void cuda_close(struct backend *backend)
{
    if (backend == NULL)
        return;
    struct device *device = backend->device;
    if (cuda_device_use(device) == STATUS_OK)
        (void)cudaStreamSynchronize(backend->stream);
    for (int k = 0; k < CUDA_SLOTS; k++)
        close_slot(backend, &backend->slot[k]);
    cuda_replays_destroy(backend->replays);
    cuda_input_destroy(backend->input);
    cuda_net_destroy(backend->net);
    dnn_close(backend->dnn);
    device->ops->free(device, backend->not_finite);
    device->ops->free(device, backend->rates);
    device->ops->free(device, backend->lars_workspace);
    device->ops->host_free(device, backend->read_back);
    free(backend);
}

/* ---- order of the parameters ---- */

static enum status copy_and_wait(struct backend *backend, void *to, const void *from, size_t bytes)
{
    TRY(cuda_device_use(backend->device));
    TRY(cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, backend->stream), "parameters"));
    return cuda_check(cudaStreamSynchronize(backend->stream), "parameters");
}

static enum status cuda_to_native(struct backend *backend, const float *canonical, float *native)
{
    const size_t bytes = bytes_of_floats(backend->model->parameters);
    void *between = NULL;
    TRY(memory_pages(&between, bytes));
    cuda_weights_to_native(backend->model, canonical, between);
    const enum status status = copy_and_wait(backend, native, between, bytes);
    memory_pages_release(between, bytes);
    return status;
}

static enum status cuda_to_canonical(struct backend *backend, const float *native, float *canonical)
{
    const size_t bytes = bytes_of_floats(backend->model->parameters);
    void *between = NULL;
    TRY(memory_pages(&between, bytes));
    const enum status status = copy_and_wait(backend, between, native, bytes);
    if (status >= 0)
        cuda_weights_to_canonical(backend->model, between, canonical);
    memory_pages_release(between, bytes);
    return status;
}

/* ---- a step ---- */

/* What the replayed sequences need. */
struct passage {
    struct backend *backend;
    struct cuda_pass pass;
    int begin, end; /* nodes of this part of backward */
};

static enum status put_forward(void *argument)
{
    struct passage *passage = argument;
    return cuda_net_forward(passage->backend->net, &passage->pass);
}

static enum status put_backward(void *argument)
{
    struct passage *passage = argument;
    return cuda_net_backward_part(passage->backend->net, &passage->pass, passage->begin, passage->end);
}

static enum status put_sequence(struct passage *passage, int number)
{
    const struct cuda_pass *pass = &passage->pass;
    const struct cuda_sequence sequence = {.number = number,
                                           .begin = passage->begin,
                                           .end = passage->end,
                                           .address = {pass->parameters, number == FORWARD ? pass->state : NULL,
                                                       number == BACKWARD ? pass->gradients : NULL}};
    nvtxRangePushA(number == FORWARD ? "forward" : "backward");
    const enum status status =
        cuda_replays_run(passage->backend->replays, &sequence, number == FORWARD ? put_forward : put_backward, passage);
    nvtxRangePop();
    return status;
}

/* Backward as a whole, or in parts behind which the watch is told. A cut that would make a small part is left out: what it
 * would have told comes with the next. */
static enum status put_backward_parts(struct passage *passage, const struct gradient_watch *watch)
{
    const struct cuda_net *net = passage->backend->net;
    const int nodes = cuda_net_nodes(net), least = (nodes + PARTS - 1) / PARTS;
    passage->end = nodes;
    for (size_t k = 0; watch != NULL && k < watch->cuts; k++) {
        passage->begin = cuda_net_needs(net, watch->cut[k]);
        if (passage->end - passage->begin < least || passage->begin == 0)
            continue;
        TRY(put_sequence(passage, BACKWARD));
        TRY(watch->ready(watch->context, watch->cut[k]));
        passage->end = passage->begin;
    }
    passage->begin = 0;
    TRY(put_sequence(passage, BACKWARD));
    return watch != NULL ? watch->ready(watch->context, 0) : STATUS_OK;
}

static enum status record(const struct backend *backend, cudaEvent_t event)
{
    return cuda_check(cudaEventRecord(event, backend->stream), "a step's time");
}

static enum status copy_out(const struct backend *backend, void *to, const void *from, size_t bytes)
{
    return cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, backend->stream), "a step's result");
}

static enum status put_step(struct passage *passage, const struct batch *batch, int number,
                            const struct gradient_watch *watch)
{
    struct backend *backend = passage->backend;
    struct slot *slot = &backend->slot[number];
    const struct cuda_net_input to = cuda_net_input(backend->net);
    TRY(cuda_input_copy(backend->input, number, batch));
    TRY(record(backend, slot->begin));
    TRY(cuda_input_convert(backend->input, number, batch, &to));
    TRY(put_sequence(passage, FORWARD));
    TRY(record(backend, slot->middle));
    TRY(put_backward_parts(passage, watch));
    TRY(copy_out(backend, &slot->report->loss, cuda_net_loss(backend->net), sizeof slot->report->loss));
    TRY(copy_out(backend, &slot->report->not_finite, backend->not_finite, sizeof slot->report->not_finite));
    return record(backend, slot->end);
}

static enum status cuda_step(struct backend *backend, const float *parameters, float *state, const struct batch *batch,
                             float *gradients, const struct gradient_watch *watch)
{
    if (backend->put - backend->collected >= CUDA_SLOTS)
        return fail(STATUS_INTERNAL, "step: %d results are still to be collected", CUDA_SLOTS);
    if (batch->count != backend->batch)
        return fail(STATUS_INTERNAL, "step: %d images, but the backend was opened for %d", batch->count,
                    backend->batch);
    TRY(cuda_input_check(backend->input, batch));
    TRY(cuda_device_use(backend->device));
    struct passage passage = {.backend = backend,
                              .pass = {.parameters = parameters, .state = state, .gradients = gradients}};
    nvtxRangePushA("step");
    const enum status status = put_step(&passage, batch, (int)(backend->put % CUDA_SLOTS), watch);
    nvtxRangePop();
    TRY(status);
    backend->latest = passage.pass;
    backend->put++;
    return STATUS_OK;
}

static enum status seconds_between(cudaEvent_t from, cudaEvent_t to, double *seconds)
{
    float milliseconds = 0;
    TRY(cuda_check(cudaEventElapsedTime(&milliseconds, from, to), "the time between two events"));
    *seconds = (double)milliseconds * 1e-3;
    return STATUS_OK;
}

static enum status cuda_collect(struct backend *backend, struct step_result *result)
{
    if (backend->put == backend->collected)
        return fail(STATUS_INTERNAL, "collect: no step is under way");
    const struct slot *slot = &backend->slot[backend->collected % CUDA_SLOTS];
    const struct report *report = slot->report;
    TRY(cuda_device_use(backend->device));
    TRY(cuda_check(cudaEventSynchronize(slot->end), "a step"));
    backend->collected++;
    TRY(seconds_between(slot->begin, slot->middle, &result->forward_s));
    TRY(seconds_between(slot->middle, slot->end, &result->backward_s));
    result->loss = report->loss.sum / backend->batch;
    result->correct = report->loss.top1;
    result->updates_finite = report->not_finite == 0;
    return STATUS_OK;
}

/* ---- update ---- */

static enum status open_lars(struct backend *backend)
{
    struct device *device = backend->device;
    const int tensors = backend->model->tensors;
    void *memory = NULL;
    if (backend->rates != NULL)
        return STATUS_OK;
    backend->lars_bytes = cuda_lars_workspace(tensors) + bytes_of_floats((size_t)tensors);
    TRY(device->ops->alloc(device, cuda_lars_workspace(tensors), &backend->lars_workspace));
    TRY(device->ops->alloc(device, bytes_of_floats((size_t)tensors), &memory));
    backend->rates = memory;
    return STATUS_OK;
}

static enum status put_update(struct backend *backend, const struct cuda_update *update, float trust)
{
    const struct cuda_arena *arena = cuda_weights_arena(cuda_net_weights(backend->net));
    if (trust == 0)
        return cuda_launched(cuda_sgd(backend->stream, arena, update), "the update");
    TRY(open_lars(backend));
    const struct cuda_lars lars = {.trust = trust, .rates = backend->rates, .workspace = backend->lars_workspace};
    return cuda_launched(cuda_lars(backend->stream, arena, update, &lars), "the update");
}

static enum status cuda_update_parameters(struct backend *backend, const struct update *update, const float *gradient,
                                          float *velocity, float *parameters)
{
    const struct cuda_update with = {.gradients = gradient,
                                     .parameters = parameters,
                                     .momentum = velocity,
                                     .rate = (float)update->rate,
                                     .momentum_factor = (float)update->momentum,
                                     .weight_decay = (float)update->weight_decay,
                                     .norm_decay = (float)update->norm_decay,
                                     .bias_decay = (float)update->bias_decay,
                                     .nesterov = update->nesterov,
                                     .gradient_scale = 1,
                                     .not_finite = backend->not_finite};
    TRY(cuda_device_use(backend->device));
    nvtxRangePushA("update");
    enum status status = put_update(backend, &with, (float)update->trust);
    nvtxRangePop();
    if (status >= 0 && cuda_net_synchronises(backend->net))
        status = cuda_check(cudaStreamSynchronize(backend->stream), "the update");
    return status;
}

static enum status cuda_updates_finite(struct backend *backend, bool *finite)
{
    TRY(copy_and_wait(backend, &backend->read_back->not_finite, backend->not_finite, sizeof *backend->not_finite));
    *finite = backend->read_back->not_finite == 0;
    return STATUS_OK;
}

/* ---- evaluation ---- */

/* With running statistics the images do not see each other: those beyond the count are what was there before. */
static enum status cuda_evaluate(struct backend *backend, const float *parameters, const float *state,
                                 const struct batch *batch, struct evaluation *sum)
{
    if (backend->put != backend->collected)
        return fail(STATUS_INTERNAL, "evaluate: a step is still to be collected");
    TRY(cuda_input_check(backend->input, batch));
    TRY(cuda_device_use(backend->device));
    const struct cuda_net_input to = cuda_net_input(backend->net);
    const struct cuda_pass pass = {.parameters = parameters, .state = (float *)(uintptr_t)state}; /* only read */
    struct report *report = backend->read_back;
    TRY(cuda_input_copy(backend->input, 0, batch));
    TRY(cuda_input_convert(backend->input, 0, batch, &to));
    TRY(cuda_net_evaluate(backend->net, &pass, batch->count));
    TRY(copy_and_wait(backend, &report->loss, cuda_net_loss(backend->net), sizeof report->loss));
    *sum = (struct evaluation){.loss_sum = report->loss.sum, .top1 = report->loss.top1, .top5 = report->loss.top5};
    return STATUS_OK;
}

/* ---- layer times ---- */

/* Steps of their own, piece by piece, over copies of what they write: training goes on as if they had not been. */
struct profiler {
    struct backend *backend;
    struct cuda_pass pass;
    void *state, *gradients; /* device, its own */
    cudaEvent_t *event;      /* [2 (nodes + 1)]: forward, backward */
    int events;
    double *forward, *backward; /* [layers] */
    struct layer_times *times;
};

static enum status open_profiler(struct profiler *profiler, struct backend *backend)
{
    struct device *device = backend->device;
    const struct model *model = backend->model;
    const int events = 2 * (cuda_net_nodes(backend->net) + 1);
    void *memory = NULL;
    profiler->backend = backend;
    TRY(device->ops->alloc(device, bytes_of_floats(model->state), &profiler->state));
    TRY(device->ops->alloc(device, bytes_of_floats(model->parameters), &profiler->gradients));
    TRY(copy_and_wait(backend, profiler->state, backend->latest.state, bytes_of_floats(model->state)));
    TRY(memory_zeroed(&memory, (size_t)events, sizeof(cudaEvent_t)));
    profiler->event = memory;
    for (; profiler->events < events; profiler->events++)
        TRY(cuda_check(cudaEventCreate(&profiler->event[profiler->events]), "an event"));
    TRY(memory_zeroed(&memory, 2 * (size_t)model->layers, sizeof *profiler->forward));
    profiler->forward = memory;
    profiler->backward = profiler->forward + model->layers;
    profiler->pass = (struct cuda_pass){
        .parameters = backend->latest.parameters, .state = profiler->state, .gradients = profiler->gradients};
    return layer_times_create(model, &profiler->times);
}

static void close_profiler(struct profiler *profiler)
{
    struct device *device = profiler->backend->device;
    (void)cudaStreamSynchronize(profiler->backend->stream);
    device->ops->free(device, profiler->state);
    device->ops->free(device, profiler->gradients);
    for (int k = 0; k < profiler->events; k++)
        destroy_event(profiler->event[k]);
    free(profiler->event);
    free(profiler->forward);
    layer_times_destroy(profiler->times);
}

static enum status read_times(struct profiler *profiler)
{
    const struct cuda_net *net = profiler->backend->net;
    const int nodes = cuda_net_nodes(net);
    const cudaEvent_t *forward = profiler->event, *backward = forward + nodes + 1;
    for (int k = 0; k < nodes; k++) {
        const int first = cuda_net_layer(net, k), last = cuda_net_layer(net, nodes - 1 - k);
        TRY(seconds_between(forward[k], forward[k + 1], &profiler->forward[first]));
        TRY(seconds_between(backward[k], backward[k + 1], &profiler->backward[last]));
    }
    layer_times_add(profiler->times, profiler->forward, profiler->backward);
    return STATUS_OK;
}

static enum status profile_step(struct profiler *profiler)
{
    struct backend *backend = profiler->backend;
    struct cuda_pass pass = profiler->pass;
    pass.event = profiler->event;
    TRY(cuda_net_forward(backend->net, &pass));
    pass.event = profiler->event + cuda_net_nodes(backend->net) + 1;
    TRY(cuda_net_backward(backend->net, &pass));
    TRY(cuda_check(cudaStreamSynchronize(backend->stream), "a step for its layers' times"));
    return read_times(profiler);
}

static enum status cuda_profile(struct backend *backend, struct text *text)
{
    struct profiler profiler = {.backend = backend};
    struct text device = {0};
    enum status status;
    if (backend->put == 0)
        return fail(STATUS_REFUSED, "profile: no step has run yet");
    TRY(cuda_device_use(backend->device));
    TRY_TO(done, open_profiler(&profiler, backend));
    for (int k = 0; k < PROFILE_STEPS; k++)
        TRY_TO(done, profile_step(&profiler));
    backend_cuda.describe(backend, &device);
    TRY_TO(done, text_check(&device));
    TRY_TO(done, layer_times_profile(profiler.times, backend->batch, text_string(&device), text));
done:
    close_profiler(&profiler);
    text_release(&device);
    return status;
}

/* ---- description ---- */

static const char *name_of(enum precision precision)
{
    static const char *const names[] = {"f32", "tf32", "bf16", "f16"};
    return names[precision];
}

static void cuda_describe(struct backend *backend, struct text *text)
{
    backend->device->ops->describe(backend->device, text);
    text_addf(text, ", %s", name_of(backend->precision));
    if (backend->precision == PRECISION_F16) {
        text_add(text, ", loss scale ");
        text_add_real(text, (double)backend->loss_scale, 9);
    }
    if (backend->deterministic)
        text_add(text, ", deterministic");
    if (backend->legacy)
        text_add(text, ", legacy convolutions");
    text_add(text, ", ");
    cuda_replays_describe(backend->replays, text);
}

static size_t cuda_memory(struct backend *backend)
{
    return cuda_net_memory(backend->net) + cuda_input_memory(backend->input) + sizeof *backend->not_finite +
           backend->lars_bytes;
}

static void cuda_moved(struct backend *backend, struct moved *moved)
{
    cuda_net_moved(backend->net, moved);
}

const struct backend_ops backend_cuda = {
    .name = "cuda",
    .stored = true,
    .open = cuda_open,
    .close = cuda_close,
    .to_native = cuda_to_native,
    .to_canonical = cuda_to_canonical,
    .step = cuda_step,
    .collect = cuda_collect,
    .update = cuda_update_parameters,
    .updates_finite = cuda_updates_finite,
    .evaluate = cuda_evaluate,
    .profile = cuda_profile,
    .describe = cuda_describe,
    .memory = cuda_memory,
    .moved = cuda_moved,
};
