/* cpu.c - the `cpu` backend: a net, the loss, and the settings of the threads that compute.
 *
 * Opening, stepping and evaluating set the OpenMP thread count of the calling thread, and flush denormals to zero in it
 * and in the threads that help it: near the end of training they would slow every multiplication down.
 */
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.h"
#include "base/memory.h"
#include "nn/backend.h"
#include "nn/cpu/loss.h"
#include "nn/cpu/net.h"
#include "nn/cpu/onednn.h"
#include "nn/layer_times.h"

void omp_set_num_threads(int threads); /* as in omp.h, which belongs to one compiler and stops the tools of others */

struct backend {
    const struct model *model;
    int batch, threads;
    struct net *net;
    struct layer_times *times;
    float *padded; /* images that do not fill the batch */
    size_t padded_bytes;
    double label_smoothing;
    struct step_result result; /* of the latest step, */
    bool uncollected;
};

static void set_threads(int threads)
{
    omp_set_num_threads(threads);
#if defined(__x86_64__)
    enum { FLUSH_RESULTS = 0x8000, FLUSH_OPERANDS = 0x0040 };
#pragma omp parallel num_threads(threads)
    _mm_setcsr(_mm_getcsr() | FLUSH_RESULTS | FLUSH_OPERANDS);
#endif
}

static size_t floats_per_image(const struct model *model)
{
    return (size_t)model->channels * (size_t)model->image_size * (size_t)model->image_size;
}

static void cpu_close(struct backend *backend)
{
    if (!backend)
        return;
    net_destroy(backend->net);
    layer_times_destroy(backend->times);
    memory_pages_release(backend->padded, backend->padded_bytes);
    free(backend);
}

static enum status check_request(const struct backend_request *request)
{
    enum { MOST_THREADS = 4096 };
    const struct model *model = request->model;
    if (request->precision != PRECISION_F32)
        return fail(STATUS_REFUSED, "precision %s: the device cpu computes in f32", precision_name(request->precision));
    if (request->device != NULL)
        return fail(STATUS_INTERNAL, "the device cpu computes in host memory");
    if (request->batch < 1)
        return fail(STATUS_USAGE, "batch %d: at least one image", request->batch);
    if (request->threads < 1 || request->threads > MOST_THREADS)
        return fail(STATUS_USAGE, "threads %d: 1 to %d", request->threads, MOST_THREADS);
    if (model->layers < 1 || model->layer[model->layers - 1].kind != LAYER_LINEAR)
        return fail(STATUS_REFUSED, "model %s: the cpu backend wants a linear layer at the end", model->name);
    return STATUS_OK;
}

static enum status cpu_open(const struct backend_request *request, struct backend **backend)
{
    *backend = NULL;
    TRY(check_request(request));
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct backend)));
    struct backend *made = memory;
    made->model = request->model;
    made->batch = request->batch;
    made->threads = request->threads;
    made->label_smoothing = request->label_smoothing;
    set_threads(made->threads); /* before the net: oneDNN plans for the threads it finds */
    enum status status;
    struct net_request net = {
        .model = made->model, .batch = made->batch, .threads = made->threads, .sums = request->sums};
    TRY_TO(failed, net_create(&net, &made->net));
    TRY_TO(failed, layer_times_create(made->model, &made->times));
    made->padded_bytes = (size_t)made->batch * floats_per_image(made->model) * sizeof *made->padded;
    TRY_TO(failed, memory_pages(&memory, made->padded_bytes));
    made->padded = memory;
    *backend = made;
    return STATUS_OK;
failed:
    cpu_close(made);
    return status;
}

static enum status cpu_to_native(struct backend *backend, const float *canonical, float *native)
{
    return net_to_native(backend->net, canonical, native);
}

static enum status cpu_to_canonical(struct backend *backend, const float *native, float *canonical)
{
    return net_to_canonical(backend->net, native, canonical);
}

/* What stands where the last images of a batch are missing is computed with, but counts nowhere: zeros, since of a product
 * with their zero gradients something infinite would be left. */
static const float *fill_up(struct backend *backend, const struct batch *batch)
{
    const size_t image = floats_per_image(backend->model), count = (size_t)batch->count;
    if (batch->count == backend->batch)
        return batch->canonical;
    memcpy(backend->padded, batch->canonical, count * image * sizeof(float));
    memset(backend->padded + count * image, 0, ((size_t)backend->batch - count) * image * sizeof(float));
    return backend->padded;
}

/* The loss and its gradient, which is 0 for what stands where images are missing. */
static enum status lose(struct backend *backend, const struct batch *batch, double divisor)
{
    const size_t count = (size_t)batch->count, classes = (size_t)backend->model->classes;
    float *gradient = net_last_gradient(backend->net);
    struct step_result *result = &backend->result;
    double loss_sum = 0;
    const struct cross_entropy loss = {.logits = net_last_output(backend->net),
                                       .labels = batch->labels,
                                       .count = count,
                                       .classes = classes,
                                       .divisor = divisor,
                                       .smoothing = backend->label_smoothing};
    TRY(cross_entropy(&loss, &loss_sum, &result->correct, NULL, gradient));
    memset(gradient + count * classes, 0, ((size_t)backend->batch - count) * classes * sizeof *gradient);
    result->loss = count > 0 ? loss_sum / (double)count : 0;
    return STATUS_OK;
}

static enum status cpu_step(struct backend *backend, const float *parameters, float *state, const struct batch *batch,
                            float *gradients, const struct gradient_watch *watch)
{
    struct step_result *result = &backend->result;
    if (batch->canonical == NULL || batch->count < 0 || batch->count > backend->batch || backend->uncollected)
        return fail(STATUS_INTERNAL, "step: at most %d canonical images, and the result of the last one collected",
                    backend->batch);
    const double divisor = batch->divisor > 0 ? batch->divisor : batch->count > 0 ? (double)batch->count : 1;
    set_threads(backend->threads);
    double start = clock_seconds();
    net_share(backend->net, batch->count, divisor);
    TRY(net_train(backend->net, parameters, state, fill_up(backend, batch), watch));
    TRY(lose(backend, batch, divisor));
    double between = clock_seconds();
    TRY(net_backward(backend->net, parameters, gradients, watch));
    result->updates_finite = true;
    result->forward_s = between - start;
    result->backward_s = clock_seconds() - between;
    backend->uncollected = true;
    layer_times_add(backend->times, net_forward_seconds(backend->net), net_backward_seconds(backend->net));
    return STATUS_OK;
}

static enum status cpu_collect(struct backend *backend, struct step_result *result)
{
    if (!backend->uncollected)
        return fail(STATUS_INTERNAL, "collect: no step since the last one");
    *result = backend->result;
    backend->uncollected = false;
    return STATUS_OK;
}

/* With running statistics the images do not see each other: what a batch is filled up with changes nothing. */
static enum status cpu_evaluate(struct backend *backend, const float *parameters, const float *state,
                                const struct batch *batch, struct evaluation *sum)
{
    if (batch->canonical == NULL || batch->count < 1 || batch->count > backend->batch)
        return fail(STATUS_INTERNAL, "evaluate: %d images, but the backend was opened for 1 to %d canonical ones",
                    batch->count, backend->batch);
    set_threads(backend->threads);
    TRY(net_evaluate(backend->net, parameters, state, fill_up(backend, batch)));
    const struct cross_entropy loss = {.logits = net_last_output(backend->net),
                                       .labels = batch->labels,
                                       .count = (size_t)batch->count,
                                       .classes = (size_t)backend->model->classes};
    return cross_entropy(&loss, &sum->loss_sum, &sum->top1, &sum->top5, NULL);
}

static void cpu_describe(struct backend *backend, struct text *text)
{
    (void)backend;
    onednn_describe(text);
}

static enum status cpu_profile(struct backend *backend, struct text *text)
{
    struct text device = {0};
    text_addf(&device, "cpu threads=%d ", backend->threads);
    onednn_describe(&device);
    enum status status;
    TRY_TO(done, text_check(&device));
    TRY_TO(done, layer_times_profile(backend->times, backend->batch, text_string(&device), text));
done:
    text_release(&device);
    return status;
}

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .partial = true,
    .open = cpu_open,
    .close = cpu_close,
    .to_native = cpu_to_native,
    .to_canonical = cpu_to_canonical,
    .step = cpu_step,
    .collect = cpu_collect,
    .evaluate = cpu_evaluate,
    .profile = cpu_profile,
    .describe = cpu_describe,
};
