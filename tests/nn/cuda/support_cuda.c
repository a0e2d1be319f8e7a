/* support_cuda.c - see support_cuda.h. */
#include "support_cuda.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "nn/models/build.h"
#include "nn/optimizer.h"

#define FAKE_MODULE CHORALE_FAKE_FOLDER "/chorale-device-cuda.so"

bool on_card(void)
{
    const char *card = getenv("CHORALE_CARD"); /* NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile */
    return card != NULL && strcmp(card, "1") == 0;
}

const struct device_module *cuda_module(void)
{
    const struct device_module *module = NULL;
    cr_assert_eq(setenv("CHORALE_MODULES", on_card() ? CHORALE_MODULE_FOLDER : CHORALE_FAKE_FOLDER, 1), 0);
    OK(device_module_load("cuda", &module));
    return module;
}

const struct fake_control *fake_control(void)
{
    if (on_card())
        cr_skip_test("it steers the fake device, this is a card");
    (void)cuda_module();
    void *handle = dlopen(FAKE_MODULE, RTLD_NOW | RTLD_NOLOAD);
    const struct fake_control *control = handle != NULL ? dlsym(handle, "chorale_fake") : NULL;
    cr_assert_not_null(control);
    return control;
}

/* ---- the model ---- */

struct name {
    char text[48];
};

/* "a" and "1" -> "a.1" */
static struct name join(const char *block, const char *part)
{
    struct name name;
    snprintf(name.text, sizeof name.text, "%.30s.%.10s", block, part);
    return name;
}

static int conv_norm(struct build *build, int input, const char *name, int channels, int kernel, int stride, bool relu)
{
    int x = build_conv(build, input, join(name, "conv").text, channels, kernel, stride);
    x = build_batch_norm(build, x, join(name, "bn").text, false);
    return relu ? build_relu(build, x, join(name, "relu").text) : x;
}

static int bottleneck(struct build *build, int input, const char *name, int width, int stride, bool project)
{
    int x = conv_norm(build, input, join(name, "1").text, width, 1, 1, true);
    x = conv_norm(build, x, join(name, "2").text, width, 3, stride, true);
    x = conv_norm(build, x, join(name, "3").text, 2 * width, 1, 1, false);
    const int shortcut =
        project ? conv_norm(build, input, join(name, "down").text, 2 * width, 1, stride, false) : input;
    return build_add_relu(build, x, shortcut, join(name, "add").text);
}

struct model *small_resnet(int image_size)
{
    struct model *model = NULL;
    struct build build;
    build_begin(&build, "small", 10, image_size, 3);
    int x = conv_norm(&build, BUILD_IMAGES, "stem", 16, 7, 2, true);
    x = build_max_pool(&build, x, "pool");
    x = bottleneck(&build, x, "a", 16, 1, true);
    x = bottleneck(&build, x, "b", 16, 1, false);
    x = bottleneck(&build, x, "c", 16, 2, true);
    x = build_average_pool(&build, x, "average");
    build_linear(&build, x, "fc", 10);
    OK(build_end(&build, &model));
    return model;
}

/* ---- rigs ---- */

static float *arena(struct device *device, size_t count)
{
    void *memory = NULL;
    if (device != NULL)
        OK(device->ops->alloc(device, count * sizeof(float), &memory));
    else
        memory = calloc(count, sizeof(float));
    cr_assert_not_null(memory);
    return memory;
}

static void *host(struct device *device, size_t bytes)
{
    void *memory = NULL;
    if (device != NULL)
        OK(device->ops->host_alloc(device, bytes, &memory));
    else
        memory = calloc(1, bytes);
    cr_assert_not_null(memory);
    return memory;
}

static size_t image_elements(const struct model *model)
{
    return 3 * (size_t)model->image_size * (size_t)model->image_size;
}

struct rig rig_open(const struct model *model, const struct backend_request *request, bool cuda)
{
    struct rig rig = {.ops = cuda ? cuda_module()->backend : &backend_cpu, .model = model, .batch = request->batch};
    struct backend_request with = *request;
    if (cuda)
        OK(cuda_module()->open(&(struct device_request){.number = 0}, &rig.device));
    with.model = model;
    with.device = rig.device;
    with.threads = 1;
    OK(rig.ops->open(&with, &rig.backend));
    rig.parameters = arena(rig.device, model->parameters);
    rig.gradients = arena(rig.device, model->parameters);
    rig.velocity = arena(rig.device, model->parameters);
    rig.state = arena(rig.device, model->state);
    rig.images = host(rig.device, (size_t)rig.batch * image_elements(model) * sizeof(float));
    rig.labels = host(rig.device, (size_t)rig.batch * sizeof *rig.labels);
    return rig;
}

void rig_close(struct rig *rig)
{
    float *const arenas[] = {rig->parameters, rig->gradients, rig->velocity, rig->state};
    rig->ops->close(rig->backend);
    for (size_t k = 0; k < 4; k++) {
        if (rig->device != NULL)
            rig->device->ops->free(rig->device, arenas[k]);
        else
            free(arenas[k]);
    }
    if (rig->device != NULL) {
        rig->device->ops->host_free(rig->device, rig->images);
        rig->device->ops->host_free(rig->device, rig->labels);
        rig->device->ops->close(rig->device);
    } else {
        free(rig->images);
        free(rig->labels);
    }
}

/* Between host and device memory; plain copies without a device. */
static void transfer(struct rig *rig, void *to, const void *from, size_t bytes)
{
    if (rig->device == NULL) {
        memcpy(to, from, bytes);
        return;
    }
    const struct device_ops *ops = rig->device->ops;
    struct device_event *event = NULL;
    OK(ops->copy(ops->compute(rig->device), to, from, bytes));
    OK(ops->event_create(rig->device, &event));
    OK(ops->record(ops->compute(rig->device), event));
    OK(ops->wait(event));
    ops->event_destroy(event);
}

void rig_fill(struct rig *rig, uint64_t seed)
{
    const struct model *model = rig->model;
    float *parameters = malloc(model->parameters * sizeof *parameters), *state = malloc(model->state * sizeof *state);
    cr_assert(parameters != NULL && state != NULL);
    model_initialise(model, seed, parameters, state);
    OK(rig->ops->to_native(rig->backend, parameters, rig->parameters));
    transfer(rig, rig->state, state, model->state * sizeof *state);
    const uint64_t key = rng_key(seed, "images", 0, 0);
    for (size_t i = 0; i < (size_t)rig->batch * image_elements(model); i++)
        rig->images[i] = (float)rng_normal(key, i);
    for (int n = 0; n < rig->batch; n++)
        rig->labels[n] = (int32_t)((n * 7 + (int)seed) % model->classes);
    free(parameters);
    free(state);
}

struct batch rig_batch(const struct rig *rig, int count)
{
    return (struct batch){.count = count, .canonical = rig->images, .labels = rig->labels};
}

struct step_result rig_step(struct rig *rig)
{
    struct step_result result;
    const struct batch batch = rig_batch(rig, rig->batch);
    OK(rig->ops->step(rig->backend, rig->parameters, rig->state, &batch, rig->gradients, NULL));
    OK(rig->ops->collect(rig->backend, &result));
    return result;
}

/* The host's by plain C: u = m u + (g + d w), w -= lr u. */
static void update_host(struct rig *rig, const struct update *update)
{
    for (int t = 0; t < rig->model->tensors; t++) {
        const struct tensor *tensor = &rig->model->tensor[t];
        const bool of_norm = rig->model->layer[tensor->layer].kind == LAYER_BATCH_NORM;
        const float decay = (float)(tensor->decays ? update->weight_decay
                                    : of_norm      ? update->norm_decay
                                                   : update->bias_decay);
        for (size_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
            rig->velocity[i] =
                (float)update->momentum * rig->velocity[i] + (rig->gradients[i] + decay * rig->parameters[i]);
            rig->parameters[i] -= (float)update->rate * rig->velocity[i];
        }
    }
}

void rig_update(struct rig *rig, const struct update *update)
{
    if (rig->device == NULL)
        update_host(rig, update);
    else
        OK(rig->ops->update(rig->backend, update, rig->gradients, rig->velocity, rig->parameters));
}

float *rig_canonical(struct rig *rig, const float *native)
{
    float *canonical = malloc(rig->model->parameters * sizeof *canonical);
    cr_assert_not_null(canonical);
    OK(rig->ops->to_canonical(rig->backend, native, canonical));
    return canonical;
}

float *rig_state(struct rig *rig)
{
    float *state = malloc(rig->model->state * sizeof *state);
    cr_assert_not_null(state);
    transfer(rig, state, rig->state, rig->model->state * sizeof *state);
    return state;
}

double distance(const float *a, const float *b, size_t count)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / size);
}

uint64_t fingerprint(const float *values, size_t count)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        hash = (hash ^ bits) * UINT64_C(1099511628211);
    }
    return hash;
}
