/* optimizer.c - SGD with momentum as runs of elements that share a weight decay. */
#include "nn/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

/* ---- learning rate ---- */

double learning_rate_at(const struct learning_rate *rate, uint64_t step)
{
    double value = rate->rate * (double)rate->global_batch / 256;
    if (step < rate->warmup)
        value *= (double)(step + 1) / (double)rate->warmup;
    for (int k = 0; k < rate->milestones; k++)
        value *= step >= rate->milestone[k] ? 0.1 : 1;
    return value;
}

static enum status bad_milestones(const char *epochs)
{
    return fail(STATUS_USAGE, "decay epochs %s: at most %d rising positive numbers, like 30,60,80, or nothing", epochs,
                MILESTONES_MOST);
}

enum status learning_rate_milestones(struct learning_rate *rate, const char *epochs, double steps_per_epoch)
{
    rate->milestones = 0;
    double last = 0;
    for (const char *next = epochs; *next != '\0';) {
        char number[32];
        size_t length = strcspn(next, ",");
        double epoch = 0;
        if (length >= sizeof number || rate->milestones == MILESTONES_MOST)
            return bad_milestones(epochs);
        memcpy(number, next, length);
        number[length] = '\0';
        next += length;
        bool more = *next == ',';
        if (parse_real(number, &epoch) < 0 || !(epoch > last) || epoch > 1e9 || (more && next[1] == '\0'))
            return bad_milestones(epochs);
        next += more;
        last = epoch;
        rate->milestone[rate->milestones++] = (uint64_t)(epoch * steps_per_epoch);
    }
    return STATUS_OK;
}

void learning_rate_usual_milestones(struct learning_rate *rate, uint64_t steps)
{
    static const int epochs[] = {30, 60, 80};
    rate->milestones = sizeof epochs / sizeof epochs[0];
    for (int k = 0; k < rate->milestones; k++)
        rate->milestone[k] = (uint64_t)((double)steps * epochs[k] / 90);
}

/* ---- updates ---- */

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
