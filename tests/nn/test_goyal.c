/* test_goyal.c - the five traps of data-parallel training that Goyal et al. 2017 (section 3) warn of: a run that falls into
 * one of them still trains, only to something else.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/backend.h"
#include "nn/data/order.h"
#include "nn/learning_rate.h"
#include "nn/models/build.h"
#include "nn/optimizer.h"
#include "support_golden.h"
#include "tests/base/expect.h"

enum { CLASSES = 10, SIZE = 16, IMAGES = 12, FLOATS = 3 * SIZE * SIZE };

/* ---- 1: the loss is the mean over the global batch ---- */

/* Without batch norm, so that an image's gradient is its own; all that VGG-16 is made of. */
static struct model *small_vgg(void)
{
    struct build build;
    struct model *model = NULL;
    build_begin(&build, "small vgg", CLASSES, SIZE, 3);
    int x = build_relu(&build, build_conv_bias(&build, BUILD_IMAGES, "features.0", 16, 3, 1), "features.1");
    x = build_max_pool_2x2(&build, x, "features.2");
    x = build_relu(&build, build_conv_bias(&build, x, "features.3", 32, 3, 1), "features.4");
    x = build_max_pool_2x2(&build, x, "features.5");
    x = build_average_pool_to(&build, x, "avgpool", 3);
    x = build_relu(&build, build_linear(&build, x, "classifier.0", 24), "classifier.1");
    build_linear(&build, x, "classifier.3", CLASSES);
    EXPECT_OK(build_end(&build, &model));
    cr_assert_not_null(model);
    return model;
}

static float *floats(size_t count)
{
    float *values = calloc(count, sizeof *values);
    cr_assert_not_null(values);
    return values;
}

/* The mean over `workers` of the gradients of their shares of the images, and of their losses. */
static double mean_over_workers(const struct model *model, int workers, float *mean)
{
    const int batch = IMAGES / workers;
    const struct backend_request request = {.model = model, .batch = batch, .threads = 1};
    struct backend *backend = NULL;
    float *canonical = floats(model->parameters), *native = floats(model->parameters),
          *images = floats(IMAGES * FLOATS);
    float *gradient = floats(model->parameters), *state = floats(model->state + 1);
    int32_t labels[IMAGES];
    double loss = 0;
    EXPECT_OK(backend_cpu.open(&request, &backend));
    cr_assert_not_null(backend);
    model_initialise(model, 1, canonical, state);
    EXPECT_OK(backend_cpu.to_native(backend, canonical, native));
    formula_fill(SEED_INPUT, 1, 0, images, (size_t)IMAGES * FLOATS);
    for (int n = 0; n < IMAGES; n++)
        labels[n] = n * 7 % CLASSES;
    memset(mean, 0, model->parameters * sizeof *mean);
    for (int r = 0; r < workers; r++) {
        struct step_result result;
        const struct batch share = {
            .count = batch, .canonical = images + (size_t)(r * batch) * FLOATS, .labels = labels + (size_t)(r * batch)};
        EXPECT_OK(backend_cpu.step(backend, native, state, &share, gradient, NULL));
        EXPECT_OK(backend_cpu.collect(backend, &result));
        EXPECT_OK(backend_cpu.to_canonical(backend, gradient, canonical));
        loss += result.loss / workers;
        for (size_t i = 0; i < model->parameters; i++)
            mean[i] += canonical[i] / (float)workers;
    }
    backend_cpu.close(backend);
    free(canonical);
    free(native);
    free(images);
    free(gradient);
    free(state);
    return loss;
}

Test(goyal, the_mean_over_workers_is_the_mean_over_the_global_batch)
{
    struct model *model = small_vgg();
    float *whole = floats(model->parameters), *split = floats(model->parameters);
    const double loss = mean_over_workers(model, 1, whole);
    double size = 0;
    for (size_t i = 0; i < model->parameters; i++)
        size += (double)whole[i] * (double)whole[i];
    for (int workers = 2; workers <= IMAGES; workers++) {
        if (IMAGES % workers != 0)
            continue;
        double difference = 0;
        cr_expect_float_eq(mean_over_workers(model, workers, split), loss, 1e-6 * loss, "%d workers", workers);
        for (size_t i = 0; i < model->parameters; i++)
            difference += ((double)split[i] - (double)whole[i]) * ((double)split[i] - (double)whole[i]);
        cr_expect_lt(sqrt(difference / size), 1e-5, "%d workers: gradients differ by %g", workers,
                     sqrt(difference / size));
    }
    free(whole);
    free(split);
    model_destroy(model);
}

/* ---- 2 and 3: one weight ---- */

static struct tensor one_tensor[] = {{.name = "w", .offset = 0, .count = 1, .decays = true}};
static struct layer one_layer[] = {{.kind = LAYER_LINEAR}};
static const struct model one = {.layer = one_layer, .layers = 1, .tensor = one_tensor, .tensors = 1, .parameters = 1};

/* What becomes of w = 1 after `steps` updates with gradient `g`, step t with rate[t]. */
static double updated(const struct optimizer_settings *by, float g, const double *rate, int steps)
{
    struct optimizer *optimizer = NULL;
    float w = 1;
    bool finite = true;
    EXPECT_OK(optimizer_create(&one, by, NULL, &optimizer));
    cr_assert_not_null(optimizer);
    for (int t = 0; t < steps; t++)
        EXPECT_OK(optimizer_step(optimizer, rate[t], &g, &w, &finite));
    optimizer_destroy(optimizer);
    return (double)w;
}

/* Scaling the rate scales the decay's pull, too; scaling the loss would not. */
Test(goyal, weight_decay_is_scaled_with_the_rate_and_is_no_part_of_the_loss)
{
    const struct optimizer_settings by = {.weight_decay = 0.125};
    struct learning_rate rate = {.rate = 0.25, .images = 256, .global_batch = 256};
    const double small = learning_rate_at(&rate, 0);
    rate.global_batch = 1024;
    const double large = learning_rate_at(&rate, 0);
    cr_expect_eq(updated(&by, 0.5F, &small, 1), 1 - 0.25 * (0.5 + 0.125));
    cr_expect_eq(updated(&by, 0.5F, &large, 1), 1 - 1.0 * (0.5 + 0.125));
    cr_expect_neq(updated(&by, 4 * 0.5F, &small, 1), updated(&by, 0.5F, &large, 1));
}

/* u holds no rate: when the rate changes, all of it is applied at the new one, and nothing needs correction. LARS, which
 * holds it as MLPerf's does, goes on with the old one. */
Test(goyal, momentum_needs_no_correction_when_the_rate_changes)
{
    static const double rates[] = {0.5, 0.125};
    const struct optimizer_settings sgd = {.rule = UPDATE_SGD, .momentum = 0.5};
    const struct optimizer_settings nesterov = {.rule = UPDATE_NESTEROV, .momentum = 0.5};
    cr_expect_eq(updated(&sgd, 1, rates, 2), 1 - 0.5 * 1 - 0.125 * 1.5);
    cr_expect_eq(updated(&nesterov, 1, rates, 2), 1 - 0.5 * 1.5 - 0.125 * (1 + 0.5 * 1.5));
}

/* ---- 4: one shuffle an epoch, split among the workers ---- */

Test(goyal, one_shuffle_of_the_whole_set_is_split_among_the_workers)
{
    enum { SAMPLES = 240 };
    static const int counts[] = {1, 2, 3, 4, 6, 12};
    const struct data_order alone = {.seed = 5, .samples = SAMPLES, .workers = 1, .batch = 12};
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        const int workers = counts[k], batch = 12 / workers;
        const struct data_order order = {.seed = 5, .samples = SAMPLES, .workers = workers, .batch = batch};
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            int given[SAMPLES] = {0};
            for (size_t b = 0; b < SAMPLES / 12; b++)
                for (int i = 0; i < 12; i++) {
                    const size_t sample = data_order_sample(&order, epoch, b, i / batch, i % batch);
                    cr_expect_eq(sample, data_order_sample(&alone, epoch, b, 0, i), "%d workers", workers);
                    given[sample]++;
                }
            for (int s = 0; s < SAMPLES; s++)
                cr_expect_eq(given[s], 1, "%d workers: sample %d", workers, s);
        }
    }
}

/* ---- 5: the batch of a worker stays as it is, whatever their number; the rate follows ---- */

Test(goyal, more_workers_take_fewer_steps_of_the_same_batch_each_at_a_higher_rate)
{
    const struct learning_rate rate = {.rate = 0.1, .images = 256, .global_batch = 32};
    for (int workers = 1; workers <= 256; workers *= 2) {
        const struct data_order order = {.seed = 1, .samples = 1281167, .workers = workers, .batch = 32};
        struct learning_rate scaled = rate;
        scaled.global_batch = (size_t)workers * 32;
        cr_expect_eq(data_order_batches(&order), 1281167U / (32U * (unsigned)workers));
        cr_expect_eq(data_order_images(&order, 0, 0, workers - 1), 32);
        cr_expect_float_eq(learning_rate_at(&scaled, 0), workers * learning_rate_at(&rate, 0), 1e-12);
    }
}
