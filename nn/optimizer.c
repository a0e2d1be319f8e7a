/* optimizer.c - SGD with momentum as runs of elements that share a weight decay. */
#include "nn/optimizer.h"

#include <stdlib.h>

#include "base/memory.h"

/* Neighbouring tensors with the same decay are one run. */
struct run {
    size_t offset, count;
    bool decays;
};

struct optimizer {
    double momentum, weight_decay;
    struct optimizer_device on; /* device NULL: host memory */
    float *velocity;            /* u */
    size_t bytes;
    struct run *run; /* host memory */
    size_t runs;
    bool finite; /* all gradients so far; host memory */
};

static bool continues(const struct run *run, const struct tensor *tensor)
{
    return run->decays == tensor->decays && run->offset + run->count == tensor->offset;
}

static void add_tensor(struct optimizer *optimizer, const struct tensor *tensor)
{
    if (optimizer->runs > 0 && continues(&optimizer->run[optimizer->runs - 1], tensor)) {
        optimizer->run[optimizer->runs - 1].count += tensor->count;
        return;
    }
    optimizer->run[optimizer->runs++] =
        (struct run){.offset = tensor->offset, .count = tensor->count, .decays = tensor->decays};
}

static enum status get_velocity(struct optimizer *optimizer)
{
    void *velocity = NULL;
    struct device *device = optimizer->on.device;
    TRY(device != NULL ? device->ops->alloc(device, optimizer->bytes, &velocity)
                       : memory_pages(&velocity, optimizer->bytes));
    optimizer->velocity = velocity;
    return STATUS_OK;
}

enum status optimizer_create(const struct model *model, double momentum, double weight_decay,
                             const struct optimizer_device *on, struct optimizer **out)
{
    *out = NULL;
    void *memory = NULL, *runs = NULL;
    enum status status = STATUS_OK;
    TRY(memory_zeroed(&memory, 1, sizeof(struct optimizer)));
    struct optimizer *optimizer = memory;
    *optimizer = (struct optimizer){
        .momentum = momentum, .weight_decay = weight_decay, .bytes = model->parameters * sizeof(float), .finite = true};
    if (on != NULL)
        optimizer->on = *on;
    TRY_TO(failed, memory_zeroed(&runs, (size_t)model->tensors, sizeof(struct run)));
    optimizer->run = runs;
    TRY_TO(failed, get_velocity(optimizer));
    for (int t = 0; t < model->tensors; t++)
        add_tensor(optimizer, &model->tensor[t]);
    *out = optimizer;
    return STATUS_OK;
failed:
    optimizer_destroy(optimizer);
    return status;
}

void optimizer_destroy(struct optimizer *optimizer)
{
    if (optimizer == NULL)
        return;
    struct device *device = optimizer->on.device;
    if (device != NULL)
        device->ops->free(device, optimizer->velocity);
    else
        memory_pages_release(optimizer->velocity, optimizer->bytes);
    free(optimizer->run);
    free(optimizer);
}

/* A gradient that is not finite turns 0 * g into nan, and the sum with it: checked in the pass that reads it anyway. */
static float update(size_t count, float rate, float momentum, float decay, const float *restrict gradient,
                    float *restrict velocity, float *restrict parameters)
{
    enum { LANES = 16 }; /* of the check, so that it needs no order */
    float check[LANES] = {0};
    size_t whole = count - count % LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            float g = gradient[i + k], w = parameters[i + k];
            float u = momentum * velocity[i + k] + (g + decay * w);
            velocity[i + k] = u;
            parameters[i + k] = w - rate * u;
            check[k] += 0.0F * g;
        }
    }
    for (size_t i = whole; i < count; i++) {
        float g = gradient[i], w = parameters[i];
        float u = momentum * velocity[i] + (g + decay * w);
        velocity[i] = u;
        parameters[i] = w - rate * u;
        check[0] += 0.0F * g;
    }
    float sum = 0;
    for (size_t k = 0; k < LANES; k++)
        sum += check[k];
    return sum;
}

static bool step_on_host(struct optimizer *optimizer, double rate, const float *gradient, float *parameters)
{
    float check = 0;
    for (size_t k = 0; k < optimizer->runs; k++) {
        const struct run *run = &optimizer->run[k];
        check += update(run->count, (float)rate, (float)optimizer->momentum,
                        run->decays ? (float)optimizer->weight_decay : 0.0F, gradient + run->offset,
                        optimizer->velocity + run->offset, parameters + run->offset);
    }
    return check == 0; /* false for nan */
}

enum status optimizer_step(struct optimizer *optimizer, double rate, const float *gradient, float *parameters,
                           bool *finite)
{
    if (optimizer->on.device != NULL) {
        const struct update update = {
            .rate = rate, .momentum = optimizer->momentum, .weight_decay = optimizer->weight_decay};
        return optimizer->on.ops->update(optimizer->on.backend, &update, gradient, optimizer->velocity, parameters);
    }
    if (!step_on_host(optimizer, rate, gradient, parameters))
        optimizer->finite = *finite = false;
    return STATUS_OK;
}

enum status optimizer_finite(struct optimizer *optimizer, bool *finite)
{
    bool all = optimizer->finite;
    if (optimizer->on.device != NULL)
        TRY(optimizer->on.ops->updates_finite(optimizer->on.backend, &all));
    *finite = *finite && all;
    return STATUS_OK;
}
