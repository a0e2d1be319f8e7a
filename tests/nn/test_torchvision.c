/* test_torchvision.c - our networks against torchvision's: parameter counts, logits with running statistics, losses of
 * training steps, from the files in the tree (export_torchvision.py), some of them by experiments/bench/torch_train.py, which
 * ours is compared with; and, where PyTorch and torchvision are installed, live: logits with the weights that torchvision
 * itself begins with, and torch_train.py's losses.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nn/backend.h"
#include "nn/cpu/net.h"
#include "nn/learning_rate.h"
#include "nn/model.h"
#include "nn/optimizer.h"
#include "support_golden.h"
#include "tests/base/expect.h"

void omp_set_num_threads(int threads); /* as in omp.h; oneDNN's */

enum { CLASSES = 10, SEED_MEAN = 10000, SEED_VARIANCE = 20000, NUMBERS_MOST = 64 };

#define RECIPE_TOLERANCE 1e-4

#define SCRIPT "/usr/bin/python3 '" CHORALE_SOURCE_DIR "/tests/nn/export_torchvision.py'"

static float *floats(size_t count)
{
    float *values = calloc(count + 1, sizeof *values);
    cr_assert_not_null(values);
    return values;
}

static struct model *make(const char *name, int classes, int size)
{
    struct model *model = NULL;
    EXPECT_OK(model_create(name, classes, size, &model));
    cr_assert_not_null(model);
    return model;
}

/* ---- weights by the formula, as the script's fill() makes them ---- */

static void fill_tensor(const struct model *model, int t, double residual, float *values)
{
    const struct tensor *tensor = &model->tensor[t];
    const struct layer *layer = &model->layer[tensor->layer];
    const bool first = t == layer->first_tensor;
    double scale = 0.5, shift = 0;
    if (layer->kind == LAYER_CONV && first)
        scale = sqrt(6.0 / (layer->kernel * layer->kernel * layer->out_channels));
    else if (layer->kind == LAYER_CONV)
        scale = 0.05;
    else if (layer->kind == LAYER_LINEAR)
        scale = 1 / sqrt(layer->in_channels * layer->in_height * layer->in_width);
    else if (layer->kind == LAYER_BATCH_NORM && first)
        shift = 1;
    if (layer->kind == LAYER_BATCH_NORM && first && layer->zero_gamma)
        scale *= residual, shift *= residual;
    formula_fill(SEED_PARAMETER + (uint64_t)t, scale, shift, values + tensor->offset, tensor->count);
}

static void fill_state(const struct model *model, float *state)
{
    uint64_t norm = 0;
    for (int k = 0; k < model->layers; k++) {
        const struct layer *layer = &model->layer[k];
        const size_t count = (size_t)layer->in_channels;
        if (layer->kind != LAYER_BATCH_NORM)
            continue;
        formula_fill(SEED_MEAN + norm, 0.5, 0, state + layer->state_offset, count);
        formula_fill(SEED_VARIANCE + norm, 0.5, 1, state + layer->state_offset + count, count);
        norm++;
    }
}

static float *make_images(int batch, int size)
{
    const size_t count = (size_t)batch * 3 * (size_t)(size * size);
    float *images = floats(count);
    formula_fill(SEED_INPUT, 1, 0, images, count);
    return images;
}

/* ---- logits ---- */

static void evaluate(const struct model *model, int batch, const float *canonical, const float *state, float *logits)
{
    struct net *net = NULL;
    float *native = floats(model->parameters), *images = make_images(batch, model->image_size);
    const struct net_request request = {.model = model, .batch = batch, .threads = 1};
    omp_set_num_threads(1); /* idle ones would spin */
    EXPECT_OK(net_create(&request, &net));
    cr_assert_not_null(net);
    EXPECT_OK(net_to_native(net, canonical, native));
    EXPECT_OK(net_evaluate(net, native, state, images));
    net_read_output(net, logits);
    net_destroy(net);
    free(native);
    free(images);
}

static void expect_near(const char *name, const float *values, const double *wanted, size_t count, double tolerance)
{
    double largest = 0;
    for (size_t k = 0; k < count; k++)
        largest = fmax(largest, fabs(wanted[k]));
    for (size_t k = 0; k < count; k++)
        cr_expect(fabs((double)values[k] - wanted[k]) <= tolerance * largest, "%s: number %zu is %.7g, not %.7g", name,
                  k, (double)values[k], wanted[k]);
}

static void check_logits(const char *name, int size, int batch, const double *wanted, size_t count)
{
    struct model *model = make(name, CLASSES, size);
    float *canonical = floats(model->parameters), *state = floats(model->state), *logits = floats(count);
    cr_assert_eq(count, (size_t)batch * CLASSES);
    for (int t = 0; t < model->tensors; t++)
        fill_tensor(model, t, 0.5, canonical);
    fill_state(model, state);
    evaluate(model, batch, canonical, state, logits);
    expect_near(name, logits, wanted, count, 1e-4);
    free(canonical);
    free(state);
    free(logits);
    model_destroy(model);
}

/* ---- losses ---- */

static void fill_labels(int32_t *labels, int count)
{
    for (int n = 0; n < count; n++)
        labels[n] = n * 7 % CLASSES;
}

struct training {
    struct model *model;
    struct backend *backend;
    struct optimizer *optimizer;
    float *parameters, *gradients, *state;
};

static void training_open(struct training *training, const char *name, int size, int batch, double smoothing,
                          const struct optimizer_settings *settings)
{
    struct model *model = make(name, CLASSES, size);
    const struct backend_request request = {.model = model, .batch = batch, .threads = 1, .label_smoothing = smoothing};
    *training = (struct training){.model = model};
    EXPECT_OK(backend_cpu.open(&request, &training->backend));
    EXPECT_OK(optimizer_create(model, settings, NULL, &training->optimizer));
    cr_assert(training->backend != NULL && training->optimizer != NULL);
    training->parameters = floats(model->parameters);
    training->gradients = floats(model->parameters);
    training->state = floats(model->state);
    for (int t = 0; t < model->tensors; t++)
        fill_tensor(model, t, 0, training->gradients);
    EXPECT_OK(backend_cpu.to_native(training->backend, training->gradients, training->parameters));
}

static void training_close(struct training *training)
{
    backend_cpu.close(training->backend);
    optimizer_destroy(training->optimizer);
    model_destroy(training->model);
    free(training->parameters);
    free(training->gradients);
    free(training->state);
}

/* The loss before the step. */
static float train_step(struct training *training, double rate, const struct batch *batch)
{
    struct step_result result;
    bool finite = true;
    EXPECT_OK(
        backend_cpu.step(training->backend, training->parameters, training->state, batch, training->gradients, NULL));
    EXPECT_OK(backend_cpu.collect(training->backend, &result));
    EXPECT_OK(optimizer_step(training->optimizer, rate, training->gradients, training->parameters, &finite));
    return (float)result.loss;
}

static void check_losses(const char *name, int size, int batch, double rate, const double *wanted, size_t count)
{
    const struct optimizer_settings settings = {
        .momentum = 0.9, .weight_decay = 1e-4, .norm_decay = 1e-4, .bias_decay = 1e-4}; /* PyTorch's SGD decays all */
    struct training training;
    float *images = make_images(batch, size), losses[NUMBERS_MOST];
    int32_t labels[NUMBERS_MOST];
    training_open(&training, name, size, batch, 0, &settings);
    fill_labels(labels, batch);
    const struct batch inputs = {.count = batch, .canonical = images, .labels = labels};
    for (size_t step = 0; step < count; step++)
        losses[step] = train_step(&training, rate, &inputs);
    expect_near(name, losses, wanted, count, 1e-3);
    training_close(&training);
    free(images);
}

/* ---- losses by the recipe that experiments/bench/torch_train.py trains after ---- */

enum { RECIPE_STEPS = 10, RECIPE_WARMUP = 3, RECIPE_BATCH = 8 };

static struct batch recipe_batch(const float *images, const int32_t *labels, int size, size_t step)
{
    return (struct batch){.count = RECIPE_BATCH,
                          .canonical = images + step * RECIPE_BATCH * 3 * (size_t)(size * size),
                          .labels = labels + step * RECIPE_BATCH};
}

static void start_statistics(const struct training *training)
{
    float *unused = floats(training->model->parameters);
    model_initialise(training->model, 1, unused, training->state);
    free(unused);
}

/* A batch of its own each step, and at the end the loss of the first one by the running statistics. */
static void check_recipe(const char *name, int size, const double *wanted)
{
    const struct optimizer_settings settings = {.rule = UPDATE_NESTEROV,
                                                .momentum = 0.9,
                                                .weight_decay = 0.1,
                                                .norm_decay = 0.2,
                                                .bias_decay = 0.4,
                                                .clip = 0.5};
    const struct learning_rate rate = {.schedule = RATE_COSINE,
                                       .rate = 8,
                                       .images = 256,
                                       .global_batch = RECIPE_BATCH,
                                       .warmup = RECIPE_WARMUP,
                                       .steps = RECIPE_STEPS};
    struct training training;
    struct evaluation evaluation = {0};
    float *images = make_images(RECIPE_STEPS * RECIPE_BATCH, size), losses[RECIPE_STEPS + 1];
    int32_t labels[RECIPE_STEPS * RECIPE_BATCH];
    fill_labels(labels, RECIPE_STEPS * RECIPE_BATCH);
    training_open(&training, name, size, RECIPE_BATCH, 0.1, &settings);
    start_statistics(&training);
    for (size_t step = 0; step < RECIPE_STEPS; step++) {
        const struct batch batch = recipe_batch(images, labels, size, step);
        losses[step] = train_step(&training, learning_rate_at(&rate, step), &batch);
    }
    const struct batch first = recipe_batch(images, labels, size, 0);
    EXPECT_OK(backend_cpu.evaluate(training.backend, training.parameters, training.state, &first, &evaluation));
    losses[RECIPE_STEPS] = (float)(evaluation.loss_sum / RECIPE_BATCH);
    expect_near(name, losses, wanted, RECIPE_STEPS + 1, RECIPE_TOLERANCE);
    training_close(&training);
    free(images);
}

/* ---- the script's file ---- */

static void read_numbers(FILE *file, double *numbers, size_t count)
{
    cr_assert_leq(count, (size_t)NUMBERS_MOST);
    for (size_t k = 0; k < count; k++)
        cr_assert_eq(fscanf(file, "%lf", &numbers[k]), 1);
}

static void check_parameters(const char *name, size_t count)
{
    struct model *model = make(name, 1000, 224);
    cr_expect_eq(model->parameters, count, "%s has %zu parameters, torchvision's %zu", name, model->parameters, count);
    model_destroy(model);
}

/* Each line of the file; at least `least` of them. */
static void check_file(FILE *file, int least)
{
    char comment[256], kind[16], name[32];
    double numbers[NUMBERS_MOST], rate;
    size_t count;
    int size, batch, checked = 0;
    cr_assert_not_null(fgets(comment, sizeof comment, file));
    for (; fscanf(file, " %15s %31s", kind, name) == 2; checked++) {
        if (strcmp(kind, "parameters") == 0) {
            cr_assert_eq(fscanf(file, " count=%zu", &count), 1);
            check_parameters(name, count);
        } else if (strcmp(kind, "logits") == 0) {
            cr_assert_eq(fscanf(file, " size=%d batch=%d count=%zu", &size, &batch, &count), 3);
            read_numbers(file, numbers, count);
            check_logits(name, size, batch, numbers, count);
        } else {
            cr_assert_str_eq(kind, "losses");
            cr_assert_eq(fscanf(file, " size=%d batch=%d rate=%lf count=%zu", &size, &batch, &rate, &count), 4);
            read_numbers(file, numbers, count);
            check_losses(name, size, batch, rate, numbers, count);
        }
    }
    cr_expect_geq(checked, least);
}

static void check_recipes(FILE *file)
{
    char comment[256], name[32];
    double numbers[RECIPE_STEPS + 1];
    int size, checked = 0;
    cr_assert_not_null(fgets(comment, sizeof comment, file));
    for (; fscanf(file, " recipe %31s size=%d", name, &size) == 2; checked++) {
        read_numbers(file, numbers, RECIPE_STEPS + 1);
        check_recipe(name, size, numbers);
    }
    cr_expect_geq(checked, 1);
}

Test(torchvision, a_recipe_with_all_features_gives_the_losses_on_file)
{
    FILE *file = golden_open("recipe.txt");
    check_recipes(file);
    (void)fclose(file);
}

Test(torchvision, counts_logits_and_losses_are_those_on_file)
{
    FILE *file = golden_open("torchvision.txt");
    check_file(file, 14);
    (void)fclose(file);
}

/* ---- live ---- */

static void skip_without_torchvision(void)
{
    if (system("/usr/bin/python3 -c 'import torchvision' 2>/dev/null") != 0)
        cr_skip_test("no torchvision (Debian: python3-torch, python3-torchvision)");
}

/* What a run of the script with `words` and a file's name writes. */
static FILE *export_with(const char *words)
{
    char path[] = "/tmp/chorale-torchvision-XXXXXX", command[1024];
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    (void)close(fd);
    (void)snprintf(command, sizeof command, SCRIPT " %s '%s'", words, path);
    const int code = system(command);
    FILE *file = fopen(path, "rb");
    (void)unlink(path);
    cr_assert_eq(code, 0, "%s", command);
    cr_assert_not_null(file);
    return file;
}

struct listed {
    char name[80];
    size_t count;
};

/* Where a tensor of torchvision's goes: a parameter, running statistics, the logits. NULL: nowhere. */
static float *place_of(const struct model *model, const struct listed *listed, float *canonical, float *state,
                       float *logits)
{
    if (strcmp(listed->name, "logits") == 0)
        return logits;
    for (int t = 0; t < model->tensors; t++)
        if (strcmp(model->tensor[t].name, listed->name) == 0 && model->tensor[t].count == listed->count)
            return canonical + model->tensor[t].offset;
    for (int k = 0; k < model->layers; k++) {
        const struct layer *layer = &model->layer[k];
        const size_t length = strlen(layer->name);
        if (layer->kind != LAYER_BATCH_NORM || strncmp(layer->name, listed->name, length) != 0)
            continue;
        if (strcmp(listed->name + length, ".running_mean") == 0)
            return state + layer->state_offset;
        if (strcmp(listed->name + length, ".running_var") == 0)
            return state + layer->state_offset + layer->in_channels;
    }
    return NULL;
}

static size_t read_list(FILE *file, struct listed *list, size_t most)
{
    char line[256];
    size_t count = 0;
    while (fgets(line, sizeof line, file) != NULL && line[0] != '\n') {
        cr_assert_lt(count, most);
        cr_assert_eq(sscanf(line, "tensor %79s %zu", list[count].name, &list[count].count), 2, "%s", line);
        count++;
    }
    return count;
}

static void check_own_weights(const char *name)
{
    enum { SIZE = 64, BATCH = 2, MOST = 1000 };
    static struct listed list[MOST];
    char words[64];
    float ours[BATCH * CLASSES] = {0};
    double numbers[BATCH * CLASSES];
    size_t read = 0;
    struct model *model = make(name, CLASSES, SIZE);
    float *canonical = floats(model->parameters), *state = floats(model->state);
    float *wanted = floats((size_t)BATCH * CLASSES);
    (void)snprintf(words, sizeof words, "--weights=%s", name);
    FILE *file = export_with(words);
    const size_t count = read_list(file, list, MOST);
    for (size_t k = 0; k < count; k++) {
        float *to = place_of(model, &list[k], canonical, state, wanted);
        cr_assert_not_null(to, "%s: we have no tensor %s of %zu", name, list[k].name, list[k].count);
        cr_assert_eq(fread(to, sizeof(float), list[k].count, file), list[k].count);
        read += list[k].count;
    }
    (void)fclose(file);
    cr_assert_eq(read, model->parameters + model->state + BATCH * CLASSES, "%s: every number comes from torchvision",
                 name);
    evaluate(model, BATCH, canonical, state, ours);
    for (size_t k = 0; k < BATCH * CLASSES; k++)
        numbers[k] = (double)wanted[k];
    expect_near(name, ours, numbers, BATCH * CLASSES, 1e-4);
    free(wanted);
    free(canonical);
    free(state);
    model_destroy(model);
}

Test(torchvision, its_own_weights_give_its_logits)
{
    static const char *const names[] = {"resnet18", "resnet50", "vgg16"};
    skip_without_torchvision();
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        check_own_weights(names[k]);
}

Test(torchvision, torch_train_gives_our_losses)
{
    skip_without_torchvision();
    FILE *file = export_with("--recipe");
    check_recipes(file);
    (void)fclose(file);
}
