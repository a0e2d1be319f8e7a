/* replay.c - an emulated accelerator: sleeps for the times of a profile. */
#include "nn/replay/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/profile.h"
#include "base/rng.h"
#include "nn/backend.h"

enum { ARENAS = 4, IMAGENET_CLASSES = 1000, IMAGENET_SIZE = 224 };

/* ---- the model ---- */

static bool is_ours(const char *name)
{
    const char *names = model_names();
    size_t length = strlen(name);
    for (const char *next = names; *next != '\0'; next += strcspn(next, "|"), next += *next == '|') {
        if (strcspn(next, "|") == length && memcmp(next, name, length) == 0)
            return true;
    }
    return false;
}

static enum status named_model(const char *path, const struct profile *profile, struct model **model)
{
    int classes = profile->classes > 0 ? profile->classes : IMAGENET_CLASSES;
    int size = profile->image_size > 0 ? profile->image_size : IMAGENET_SIZE;
    TRY(model_create(profile->model, classes, size, model));
    if ((*model)->parameters == profile->parameters)
        return STATUS_OK;
    enum status status = fail(STATUS_FORMAT,
                              "profile %s: %s with %d classes has %zu parameters, the profile tells of %zu: correct "
                              "classes= or parameters= in its model line",
                              path, profile->model, classes, (*model)->parameters, profile->parameters);
    model_destroy(*model);
    *model = NULL;
    return status;
}

/* A network that we can't build, as tensors without layers. */
static enum status foreign_model(const struct profile *profile, struct model **out)
{
    void *memory = NULL, *tensors = NULL;
    size_t count = profile->layers > 0 ? profile->layers : 1;
    TRY(memory_zeroed(&memory, 1, sizeof(struct model)));
    struct model *model = memory;
    enum status status = memory_zeroed(&tensors, count, sizeof(struct tensor));
    if (status < 0) {
        free(model);
        return status;
    }
    snprintf(model->name, sizeof model->name, "%s", profile->model);
    model->classes = profile->classes;
    model->image_size = profile->image_size;
    model->channels = 3;
    model->tensor = tensors;
    for (size_t k = 0; k < count; k++) {
        struct tensor *tensor = &model->tensor[model->tensors++];
        *tensor = (struct tensor){.offset = model->parameters, .decays = true};
        tensor->count = profile->layers > 0 ? profile->layer[k].parameters : profile->parameters;
        snprintf(tensor->name, sizeof tensor->name, "%s", profile->layers > 0 ? profile->layer[k].name : "all");
        model->parameters += tensor->count;
    }
    *out = model;
    return STATUS_OK;
}

enum status replay_model(const char *profile_path, struct model **model)
{
    *model = NULL;
    struct profile profile = {.layers = 0};
    TRY(profile_read(profile_path, &profile));
    enum status status =
        is_ours(profile.model) ? named_model(profile_path, &profile, model) : foreign_model(&profile, model);
    profile_release(&profile);
    return status;
}

/* ---- the backend ---- */

struct backend {
    size_t parameters;
    uint64_t seed;
    struct profile profile;
    int batch;
    uint64_t forward_ns, backward_ns;
    const float *filled[ARENAS]; /* gradient arenas that have their values */
    int fills;
    char device[128];
    struct step_result result; /* updates_finite: of the latest step, not collected yet */
    int scaled_from;           /* the batch that the times were measured with, when it was another; else 0 */
};

static enum status replay_open(const struct backend_request *request, struct backend **out)
{
    *out = NULL;
    void *memory = NULL;
    struct profile profile = {.layers = 0};
    if (request->precision != PRECISION_F32)
        return fail(STATUS_REFUSED, "precision %s: the device replay computes nothing",
                    precision_name(request->precision));
    if (request->sums != NULL)
        return fail(STATUS_REFUSED, "device replay: it has no batch norms: leave out --bn");
    if (request->profile == NULL)
        return fail(STATUS_USAGE, "device replay: no profile: give --device=replay:FILE");
    TRY(profile_read(request->profile, &profile));
    enum status status = memory_zeroed(&memory, 1, sizeof(struct backend));
    if (status == STATUS_OK) {
        double forward_s = 0, backward_s = 0;
        bool scaled = false;
        profile_times(&profile, request->batch, &forward_s, &backward_s, &scaled);
        struct backend *backend = memory;
        *backend = (struct backend){.parameters = request->model->parameters,
                                    .profile = profile,
                                    .batch = request->batch,
                                    .seed = request->seed,
                                    .forward_ns = (uint64_t)(forward_s * 1e9),
                                    .backward_ns = (uint64_t)(backward_s * 1e9),
                                    .scaled_from = scaled ? profile.batch : 0};
        snprintf(backend->device, sizeof backend->device, "%s", profile.device);
        *out = backend;
    } else {
        profile_release(&profile);
    }
    return status;
}

static void replay_close(struct backend *backend)
{
    if (backend != NULL)
        profile_release(&backend->profile);
    free(backend);
}

/* Values below 1e-3 in size. What an exchange leaves in the arena is
 * as good as what was there: nothing is written again. */
static void fill_once(struct backend *backend, float *gradients)
{
    for (int k = 0; k < backend->fills && k < ARENAS; k++) {
        if (backend->filled[k] == gradients)
            return;
    }
    backend->filled[backend->fills++ % ARENAS] = gradients;
    uint64_t value = rng_u64(backend->seed, 0);
    for (size_t i = 0; i < backend->parameters; i++) {
        value = value * 6364136223846793005U + 1442695040888963407U;
        gradients[i] = ((float)(value >> 40) - 8388608.0F) * (1e-3F / 8388608.0F);
    }
}

static void sleep_until(uint64_t target_ns)
{
    uint64_t now = clock_ns();
    if (now < target_ns)
        clock_sleep_ns(target_ns - now);
}

/* Backward from `start_ns` on. What the watch does passes beside it, as on a device. */
static enum status sleep_backward(const struct backend *backend, uint64_t start_ns, const struct gradient_watch *watch)
{
    for (size_t k = 0; watch != NULL && k < watch->cuts; k++) {
        const double until_s = profile_backward_until(&backend->profile, backend->batch, watch->cut[k]);
        sleep_until(start_ns + (uint64_t)(until_s * 1e9));
        TRY(watch->ready(watch->context, watch->cut[k]));
    }
    sleep_until(start_ns + backend->backward_ns);
    return watch != NULL ? watch->ready(watch->context, 0) : STATUS_OK;
}

static enum status replay_step(struct backend *backend, const float *parameters, float *state,
                               const struct batch *batch, float *gradients, const struct gradient_watch *watch)
{
    (void)parameters, (void)state, (void)batch;
    fill_once(backend, gradients);
    uint64_t start = clock_ns();
    sleep_until(start + backend->forward_ns);
    uint64_t middle = clock_ns();
    TRY(sleep_backward(backend, start + backend->forward_ns, watch)); /* a late wake-up is not added up */
    backend->result = (struct step_result){.forward_s = (double)(middle - start) * 1e-9,
                                           .backward_s = (double)(clock_ns() - middle) * 1e-9,
                                           .updates_finite = true};
    return STATUS_OK;
}

static enum status replay_collect(struct backend *backend, struct step_result *result)
{
    if (!backend->result.updates_finite)
        return fail(STATUS_INTERNAL, "collect: no step since the last one");
    *result = backend->result;
    backend->result.updates_finite = false;
    return STATUS_OK;
}

static void replay_describe(struct backend *backend, struct text *text)
{
    text_addf(text, "replay of %s", backend->device[0] != '\0' ? backend->device : "an unnamed device");
    if (backend->scaled_from > 0)
        text_addf(text, ", times scaled from batch %d", backend->scaled_from);
}

const struct backend_ops backend_replay = {
    .name = "replay",
    .open = replay_open,
    .close = replay_close,
    .step = replay_step,
    .collect = replay_collect,
    .describe = replay_describe,
};
