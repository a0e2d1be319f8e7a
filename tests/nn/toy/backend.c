/* backend.c - the toy's backend: the cpu backend over device memory, put off (toy.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tests/nn/toy/toy.h"

enum { SLOTS = 2 };

struct backend {
    const struct model *model;
    struct device *device;
    struct backend *cpu;
    uint64_t put, done, collected; /* steps */
    struct step_result result[SLOTS];
    float *own;  /* gradients of a step that is watched, until its pieces appear in the arena */
    bool finite; /* what updates have read so far */
};

static float *floats(const void *memory, size_t count)
{
    return toy_touch(memory, count * sizeof(float), false);
}

static enum status open_backend(const struct backend_request *request, struct backend **backend)
{
    void *memory = NULL;
    *backend = NULL;
    if (request->sums != NULL)
        return fail(STATUS_REFUSED, "the toy exchanges nothing in its queue");
    struct backend_request cpu = *request;
    cpu.device = NULL;
    cpu.precision = PRECISION_F32;
    TRY(memory_zeroed(&memory, 1, sizeof(struct backend)));
    struct backend *made = memory;
    made->model = request->model;
    made->device = request->device;
    made->finite = true;
    TRY(memory_zeroed(&memory, request->model->parameters, sizeof(float)));
    made->own = memory;
    const enum status status = backend_cpu.open(&cpu, &made->cpu);
    if (status < 0) {
        free(made->own);
        free(made);
    } else {
        *backend = made;
    }
    return status;
}

static void close_backend(struct backend *backend)
{
    if (backend == NULL)
        return;
    toy_finish(backend->device);
    backend_cpu.close(backend->cpu);
    free(backend->own);
    free(backend);
}

static enum status to_native(struct backend *backend, const float *canonical, float *native)
{
    toy_finish(backend->device);
    return backend_cpu.to_native(backend->cpu, canonical, floats(native, backend->model->parameters));
}

static enum status to_canonical(struct backend *backend, const float *native, float *canonical)
{
    toy_finish(backend->device);
    return backend_cpu.to_canonical(backend->cpu, floats(native, backend->model->parameters), canonical);
}

/* ---- a step ---- */

struct step {
    struct toy_work work;
    struct backend *backend;
    const float *parameters;
    float *state, *gradients; /* gradients NULL: the backend's own */
    struct batch batch;
};

static void must(enum status status)
{
    if (status < 0)
        toy_fault(status_message());
}

/* The images are read only now. */
static void run_step(struct toy_work *work)
{
    const struct step *step = (struct step *)work;
    struct backend *backend = step->backend;
    const struct model *model = backend->model;
    struct step_result *result = &backend->result[backend->done % SLOTS];
    float *gradients = step->gradients != NULL ? floats(step->gradients, model->parameters) : backend->own;
    if (toy_touch(step->batch.canonical, 1, true) == NULL || toy_touch(step->batch.labels, 1, true) == NULL)
        toy_fault("images in memory that is not pinned");
    must(backend_cpu.step(backend->cpu, floats(step->parameters, model->parameters), floats(step->state, model->state),
                          &step->batch, gradients, NULL));
    must(backend_cpu.collect(backend->cpu, result));
    result->updates_finite = backend->finite;
    if ((long long)backend->done == toy_settings()->nan && toy_local_rank(backend->device) == 0)
        result->loss = NAN; /* its gradient stays finite: nobody else can know */
    backend->done++;
}

/* A piece of the gradients appears in the arena, which until then holds what the last exchange has left there. */
struct piece {
    struct toy_work work;
    const float *from;
    float *gradients;
    size_t begin, end;
};

static void run_piece(struct toy_work *work)
{
    const struct piece *piece = (struct piece *)work;
    float *to = floats(piece->gradients + piece->begin, piece->end - piece->begin);
    memcpy(to, piece->from + piece->begin, (piece->end - piece->begin) * sizeof *to);
}

static enum status put_pieces(struct backend *backend, float *gradients, const struct gradient_watch *watch)
{
    size_t end = backend->model->parameters;
    for (size_t k = 0; k <= watch->cuts; k++) {
        void *memory = NULL;
        const size_t begin = k < watch->cuts ? watch->cut[k] : 0;
        TRY(memory_zeroed(&memory, 1, sizeof(struct piece)));
        struct piece *piece = memory;
        *piece = (struct piece){
            .work = {.run = run_piece}, .from = backend->own, .gradients = gradients, .begin = begin, .end = end};
        toy_put(backend->device, &piece->work);
        TRY(watch->ready(watch->context, begin));
        end = begin;
    }
    return STATUS_OK;
}

static enum status put_step(struct backend *backend, const float *parameters, float *state, const struct batch *batch,
                            float *gradients, const struct gradient_watch *watch)
{
    if ((long long)backend->put == toy_settings()->end)
        return fail(STATUS_IO, "device cuda: the toy is lost");
    if (backend->put - backend->collected >= SLOTS)
        return fail(STATUS_INTERNAL, "toy: more than %d steps are uncollected", SLOTS);
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct step)));
    struct step *step = memory;
    *step = (struct step){.work = {.run = run_step},
                          .backend = backend,
                          .parameters = parameters,
                          .state = state,
                          .gradients = watch == NULL ? gradients : NULL,
                          .batch = *batch};
    toy_put(backend->device, &step->work);
    backend->put++;
    return watch != NULL ? put_pieces(backend, gradients, watch) : STATUS_OK;
}

static enum status collect(struct backend *backend, struct step_result *result)
{
    if (backend->put == backend->collected)
        return fail(STATUS_INTERNAL, "collect: no step is uncollected");
    if (backend->done == backend->collected)
        toy_finish(backend->device);
    *result = backend->result[backend->collected++ % SLOTS];
    return STATUS_OK;
}

/* ---- update ---- */

struct update_work {
    struct toy_work work;
    struct backend *backend;
    struct update update;
    const float *gradient;
    float *velocity, *parameters;
};

static void run_update(struct toy_work *work)
{
    const struct update_work *of = (struct update_work *)work;
    const struct model *model = of->backend->model;
    const float rate = (float)of->update.rate, momentum = (float)of->update.momentum;
    const float *gradient = floats(of->gradient, model->parameters);
    float *velocity = floats(of->velocity, model->parameters), *parameters = floats(of->parameters, model->parameters);
    for (int t = 0; t < model->tensors; t++) {
        const struct tensor *tensor = &model->tensor[t];
        const bool of_norm = model->layer[tensor->layer].kind == LAYER_BATCH_NORM;
        const float decay = (float)(tensor->decays ? of->update.weight_decay
                                    : of_norm      ? of->update.norm_decay
                                                   : of->update.bias_decay);
        for (size_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
            const float w = parameters[i], g = gradient[i] + decay * w;
            of->backend->finite = of->backend->finite && isfinite(gradient[i]);
            velocity[i] = momentum * velocity[i] + g;
            parameters[i] = w - rate * (of->update.nesterov ? g + momentum * velocity[i] : velocity[i]);
        }
    }
}

static enum status put_update(struct backend *backend, const struct update *update, const float *gradient,
                              float *velocity, float *parameters)
{
    void *memory = NULL;
    if (update->trust > 0)
        return fail(STATUS_REFUSED, "the toy device has no LARS");
    TRY(memory_zeroed(&memory, 1, sizeof(struct update_work)));
    struct update_work *work = memory;
    *work = (struct update_work){.work = {.run = run_update},
                                 .backend = backend,
                                 .update = *update,
                                 .gradient = gradient,
                                 .velocity = velocity,
                                 .parameters = parameters};
    toy_put(backend->device, &work->work);
    return STATUS_OK;
}

static enum status updates_finite(struct backend *backend, bool *finite)
{
    toy_finish(backend->device);
    *finite = backend->finite;
    return STATUS_OK;
}

/* ---- the rest ---- */

static enum status evaluate(struct backend *backend, const float *parameters, const float *state,
                            const struct batch *batch, struct evaluation *sum)
{
    const struct model *model = backend->model;
    if (backend->put != backend->collected)
        return fail(STATUS_INTERNAL, "evaluate: a step is uncollected");
    toy_finish(backend->device);
    return backend_cpu.evaluate(backend->cpu, floats(parameters, model->parameters), floats(state, model->state), batch,
                                sum);
}

static enum status profile(struct backend *backend, struct text *text)
{
    return backend_cpu.profile(backend->cpu, text);
}

static void describe(struct backend *backend, struct text *text)
{
    text_add(text, "toy backend: ");
    backend_cpu.describe(backend->cpu, text);
}

static size_t memory(struct backend *backend)
{
    (void)backend;
    return 1000;
}

static const struct backend_ops backend_toy = {
    .name = "cuda",
    .open = open_backend,
    .close = close_backend,
    .to_native = to_native,
    .to_canonical = to_canonical,
    .step = put_step,
    .collect = collect,
    .update = put_update,
    .updates_finite = updates_finite,
    .evaluate = evaluate,
    .profile = profile,
    .describe = describe,
    .memory = memory,
};

extern const struct device_module chorale_device;

__attribute__((visibility("default"))) const struct device_module chorale_device = {
    .version = DEVICE_MODULE_VERSION, .share = status_share, .open = toy_open, .backend = &backend_toy};
