/* optimizer.c - updates as runs of elements that share a weight decay. */
#include "nn/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

const char *update_rule_name(enum update_rule rule)
{
    static const char *const names[] = {[UPDATE_SGD] = "sgd", [UPDATE_NESTEROV] = "nesterov", [UPDATE_LARS] = "lars"};
    return rule < sizeof names / sizeof names[0] ? names[rule] : NULL;
}

/* Neighbouring tensors with the same decay are one run; with LARS each tensor is. */
struct run {
    size_t offset, count;
    float decay;
    bool adapts; /* LARS */
};

struct optimizer {
    struct optimizer_settings settings;
    struct optimizer_device on; /* device NULL: host memory */
    float *velocity;            /* u */
    size_t bytes;
    struct run *run; /* host memory */
    size_t runs;
    bool finite; /* all gradients so far; host memory */
};

static double decay_of(const struct optimizer_settings *settings, const struct model *model,
                       const struct tensor *tensor)
{
    if (tensor->decays)
        return settings->weight_decay;
    return model->layer[tensor->layer].kind == LAYER_BATCH_NORM ? settings->norm_decay : settings->bias_decay;
}

static bool continues(const struct run *run, const struct run *next)
{
    return run->decay == next->decay && run->offset + run->count == next->offset;
}

static void add_tensor(struct optimizer *optimizer, const struct model *model, const struct tensor *tensor)
{
    const bool lars = optimizer->settings.rule == UPDATE_LARS;
    const struct run next = {.offset = tensor->offset,
                             .count = tensor->count,
                             .decay = (float)decay_of(&optimizer->settings, model, tensor),
                             .adapts = lars && tensor->decays};
    if (!lars && optimizer->runs > 0 && continues(&optimizer->run[optimizer->runs - 1], &next))
        optimizer->run[optimizer->runs - 1].count += next.count;
    else
        optimizer->run[optimizer->runs++] = next;
}

/* What would be another update there is refused. */
static enum status check_device(const struct optimizer_settings *settings)
{
    if (settings->clip > 0)
        return fail(STATUS_REFUSED, "clip: a device computes no norm of the whole gradient: leave it out, or train on "
                                    "the cpu");
    return STATUS_OK;
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

enum status optimizer_create(const struct model *model, const struct optimizer_settings *settings,
                             const struct optimizer_device *on, struct optimizer **out)
{
    *out = NULL;
    void *memory = NULL, *runs = NULL;
    enum status status = STATUS_OK;
    if (on != NULL)
        TRY(check_device(settings));
    TRY(memory_zeroed(&memory, 1, sizeof(struct optimizer)));
    struct optimizer *optimizer = memory;
    *optimizer = (struct optimizer){.settings = *settings, .bytes = model->parameters * sizeof(float), .finite = true};
    if (on != NULL)
        optimizer->on = *on;
    TRY_TO(failed, memory_zeroed(&runs, (size_t)model->tensors, sizeof(struct run)));
    optimizer->run = runs;
    TRY_TO(failed, get_velocity(optimizer));
    for (int t = 0; t < model->tensors; t++)
        add_tensor(optimizer, model, &model->tensor[t]);
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

float *optimizer_velocity(struct optimizer *optimizer)
{
    return optimizer->velocity;
}

struct coefficients {
    float scale, rate, momentum, decay;
};

static inline __attribute__((always_inline)) void update_element(enum update_rule rule, const struct coefficients *with,
                                                                 float g, float *u, float *w)
{
    g = with->scale * g + with->decay * *w;
    if (rule == UPDATE_LARS) {
        *u = with->momentum * *u + with->rate * g;
        *w = *w - *u;
        return;
    }
    *u = with->momentum * *u + g;
    *w = *w - with->rate * (rule == UPDATE_NESTEROV ? g + with->momentum * *u : *u);
}

/* A gradient that is not finite turns 0 * g into nan, and the sum with it: checked in the pass that reads it anyway. */
static inline __attribute__((always_inline)) float update_all(enum update_rule rule, const struct coefficients *with,
                                                              size_t count, const float *restrict gradient,
                                                              float *restrict velocity, float *restrict parameters)
{
    enum { LANES = 16 }; /* of the check, so that it needs no order */
    float check[LANES] = {0};
    size_t whole = count - count % LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            float g = gradient[i + k];
            update_element(rule, with, g, &velocity[i + k], &parameters[i + k]);
            check[k] += 0.0F * g;
        }
    }
    for (size_t i = whole; i < count; i++) {
        float g = gradient[i];
        update_element(rule, with, g, &velocity[i], &parameters[i]);
        check[0] += 0.0F * g;
    }
    float sum = 0;
    for (size_t k = 0; k < LANES; k++)
        sum += check[k];
    return sum;
}

/* One loop for each rule. */
static float update(enum update_rule rule, const struct coefficients *with, size_t count, const float *gradient,
                    float *velocity, float *parameters)
{
    const struct coefficients own = *with; /* stays in registers */
    switch (rule) {
    case UPDATE_NESTEROV:
        return update_all(UPDATE_NESTEROV, &own, count, gradient, velocity, parameters);
    case UPDATE_LARS:
        return update_all(UPDATE_LARS, &own, count, gradient, velocity, parameters);
    case UPDATE_SGD:
        break;
    }
    return update_all(UPDATE_SGD, &own, count, gradient, velocity, parameters);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Slices of whole cache lines; a short run is one. */
static float update_slices(const struct optimizer *optimizer, const struct coefficients *with, const struct run *run,
                           const float *gradient, float *parameters)
{
    enum { LINE = 16, LEAST = 1 << 14 };
    const size_t threads = optimizer->settings.threads > 1 ? (size_t)optimizer->settings.threads : 1;
    const size_t slice = (run->count / threads / LINE + 1) * LINE;
    float check = 0;
    if (slice < LEAST || threads == 1)
        return update(optimizer->settings.rule, with, run->count, gradient + run->offset,
                      optimizer->velocity + run->offset, parameters + run->offset);
#pragma omp parallel for schedule(static) num_threads(optimizer->settings.threads) reduction(+ : check)
    for (int k = 0; k < optimizer->settings.threads; k++) {
        const size_t begin = smaller((size_t)k * slice, run->count), end = smaller(begin + slice, run->count);
        const size_t first = run->offset + begin;
        check += update(optimizer->settings.rule, with, end - begin, gradient + first, optimizer->velocity + first,
                        parameters + first);
    }
    return check;
}

static double squares(const float *values, size_t count)
{
    enum { LANES = 8 };
    double sum[LANES] = {0}, all = 0;
    size_t whole = count - count % LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            sum[k] += (double)values[i + k] * (double)values[i + k];
    for (size_t i = whole; i < count; i++)
        sum[0] += (double)values[i] * (double)values[i];
    for (size_t k = 0; k < LANES; k++)
        all += sum[k];
    return all;
}

static float clip_scale(const struct optimizer *optimizer, const float *gradient)
{
    const double clip = optimizer->settings.clip;
    if (clip == 0)
        return 1;
    const double norm = sqrt(squares(gradient, optimizer->bytes / sizeof(float)));
    return norm + 1e-6 > clip ? (float)(clip / (norm + 1e-6)) : 1; /* PyTorch's clip_grad_norm_ */
}

static float lars_rate(const struct run *run, const struct coefficients *with, double rate, const float *gradient,
                       const float *parameters)
{
    const double w = sqrt(squares(parameters + run->offset, run->count));
    const double g = (double)with->scale * sqrt(squares(gradient + run->offset, run->count));
    return (float)(w > 0 && g > 0 ? rate * (LARS_TRUST * w / (g + (double)run->decay * w)) : rate);
}

/* What a run and [offset, offset + count) share. */
static struct run intersect(const struct run *run, size_t offset, size_t count)
{
    const size_t begin = run->offset > offset ? run->offset : offset;
    const size_t end = run->offset + run->count < offset + count ? run->offset + run->count : offset + count;
    struct run both = *run;
    both.offset = begin;
    both.count = end > begin ? end - begin : 0;
    return both;
}

/* The elements from `offset` on. */
static bool step_on_host(struct optimizer *optimizer, double rate, float scale, size_t offset, size_t count,
                         const float *gradient, float *parameters)
{
    float check = 0;
    struct coefficients with = {.scale = scale, .momentum = (float)optimizer->settings.momentum};
    for (size_t k = 0; k < optimizer->runs; k++) {
        const struct run run = intersect(&optimizer->run[k], offset, count);
        if (run.count == 0)
            continue;
        with.decay = run.decay;
        with.rate = run.adapts ? lars_rate(&run, &with, rate, gradient, parameters) : (float)rate;
        check += update_slices(optimizer, &with, &run, gradient, parameters);
    }
    return check == 0; /* false for nan */
}

enum status optimizer_step(struct optimizer *optimizer, double rate, const float *gradient, float *parameters,
                           bool *finite)
{
    const struct optimizer_settings *settings = &optimizer->settings;
    if (optimizer->on.device != NULL) {
        const struct update update = {.rate = rate,
                                      .momentum = settings->momentum,
                                      .weight_decay = settings->weight_decay,
                                      .norm_decay = settings->norm_decay,
                                      .bias_decay = settings->bias_decay,
                                      .nesterov = settings->rule == UPDATE_NESTEROV,
                                      .trust = settings->rule == UPDATE_LARS ? LARS_TRUST : 0};
        return optimizer->on.ops->update(optimizer->on.backend, &update, gradient, optimizer->velocity, parameters);
    }
    if (!step_on_host(optimizer, rate, clip_scale(optimizer, gradient), 0, optimizer->bytes / sizeof(float), gradient,
                      parameters))
        optimizer->finite = *finite = false;
    return STATUS_OK;
}

bool optimizer_takes_parts(const struct optimizer *optimizer)
{
    return optimizer->on.device == NULL && optimizer->settings.clip == 0;
}

enum status optimizer_step_part(struct optimizer *optimizer, double rate, size_t offset, size_t count,
                                const float *gradient, float *parameters, bool *finite)
{
    if (!optimizer_takes_parts(optimizer))
        return fail(STATUS_INTERNAL, "optimizer: an update by parts, where it needs the whole gradient");
    if (!step_on_host(optimizer, rate, 1, offset, count, gradient, parameters))
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
