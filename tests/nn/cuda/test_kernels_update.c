/* Updates against nn/optimizer.c to the bit, LARS against plain C, working copies element by element. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/optimizer.h"
#include "support_kernels.h"

/* A working copy in which the first tensor's 3 channels are padded to 8; norms and biases have none. */
enum { STEM_CHANNELS = 3, STEM_PADDED = 8 };

struct table {
    struct cuda_arena arena;
    size_t copy_elements;
};

static struct table table_of(const struct model *model)
{
    struct table table = {.arena = {.tensors = model->tensors, .elements = model->parameters}};
    struct cuda_tensor *tensor = device((size_t)model->tensors * sizeof *tensor);
    for (int t = 0; t < model->tensors; t++) {
        const struct tensor *from = &model->tensor[t];
        const bool stem = t == 0;
        tensor[t] = (struct cuda_tensor){.offset = from->offset,
                                         .count = from->count,
                                         .copy = from->decays ? table.copy_elements : CUDA_NO_COPY,
                                         .channels = stem ? STEM_CHANNELS : 1,
                                         .padded = stem ? STEM_PADDED : 1,
                                         .decays = from->decays,
                                         .bias = !from->decays && model->layer[from->layer].kind != LAYER_BATCH_NORM};
        if (from->decays)
            table.copy_elements += stem ? from->count / STEM_CHANNELS * STEM_PADDED : from->count;
    }
    table.arena.tensor = tensor;
    return table;
}

static void check_copy(const struct table *table, const float *parameters, enum dtype storage, const void *copy)
{
    for (int t = 0; t < table->arena.tensors; t++) {
        const struct cuda_tensor *tensor = &table->arena.tensor[t];
        for (size_t i = 0; tensor->copy != CUDA_NO_COPY && i < tensor->count; i++) {
            const size_t to = tensor->copy + i / tensor->channels * tensor->padded + i % tensor->channels;
            cr_assert_eq(storage_at(storage, copy, to), storage_round(storage, parameters[tensor->offset + i]),
                         "tensor %d, element %zu", t, i);
        }
    }
    for (size_t i = STEM_CHANNELS; i < STEM_PADDED; i++)
        cr_assert_eq(storage_at(storage, copy, i), 0, "padding %zu", i);
}

static struct model *small_model(void)
{
    struct model *model = NULL;
    cr_assert_geq(model_create("cnn", 7, 8, &model), 0, "%s", status_message());
    return model;
}

/* The device's side of an update, and the host's. */
struct pair {
    struct model *model;
    struct table table;
    struct cuda_update update;
    float *gradients, *parameters; /* host */
};

static float *numbers_f32(size_t count, uint64_t seed, float size)
{
    float *values = calloc(count, sizeof *values);
    cr_assert_not_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = size * number(seed, i);
    return values;
}

static void pair_open(struct pair *pair, enum dtype storage)
{
    pair->model = small_model();
    pair->table = table_of(pair->model);
    const size_t count = pair->model->parameters, copy_bytes = pair->table.copy_elements * dtype_size(storage);
    pair->gradients = numbers_f32(count, 1, 0.1F);
    pair->parameters = numbers_f32(count, 2, 1);
    void *copy = device(copy_bytes);
    float *momentum = device(count * sizeof(float));
    uint32_t *not_finite = device(sizeof *not_finite);
    memset(copy, 0, copy_bytes);
    memset(momentum, 0, count * sizeof(float));
    *not_finite = 0;
    pair->update = (struct cuda_update){.gradients = device_f32(pair->gradients, count),
                                        .parameters = device_f32(pair->parameters, count),
                                        .momentum = momentum,
                                        .rate = 0.05F,
                                        .momentum_factor = 0.9F,
                                        .weight_decay = 1e-4F,
                                        .gradient_scale = 1,
                                        .storage = storage,
                                        .copy = copy,
                                        .not_finite = not_finite};
}

static void pair_close(struct pair *pair)
{
    free(pair->gradients);
    free(pair->parameters);
    model_destroy(pair->model);
    devices_release();
}

Test(kernels_update, working_copy)
{
    EACH_ORDER(order)
    EACH_STORAGE(storage)
    {
        struct pair pair;
        pair_open(&pair, *storage);
        DONE(cuda_pack(NULL, &pair.table.arena, pair.update.parameters, *storage, pair.update.copy));
        check_copy(&pair.table, pair.parameters, *storage, pair.update.copy);
        pair_close(&pair);
    }
}

static void expect_bits_of_the_optimizer(bool nesterov, float norm_decay, float bias_decay)
{
    const struct optimizer_settings settings = {.rule = nesterov ? UPDATE_NESTEROV : UPDATE_SGD,
                                                .momentum = 0.9,
                                                .weight_decay = 1e-4,
                                                .norm_decay = (double)norm_decay,
                                                .bias_decay = (double)bias_decay};
    EACH_ORDER(order)
    EACH_STORAGE(storage)
    {
        struct pair pair;
        pair_open(&pair, *storage);
        const size_t bytes = pair.model->parameters * sizeof(float);
        struct optimizer *optimizer = NULL;
        cr_assert_geq(optimizer_create(pair.model, &settings, NULL, &optimizer), 0);
        pair.update.nesterov = nesterov;
        pair.update.norm_decay = norm_decay;
        pair.update.bias_decay = bias_decay;
        for (int step = 0; step < 3; step++) {
            pair.update.rate = 0.05F / (float)(step + 1);
            bool finite = true;
            cr_assert_geq(optimizer_step(optimizer, (double)pair.update.rate, pair.gradients, pair.parameters, &finite),
                          0);
            DONE(cuda_sgd(NULL, &pair.table.arena, &pair.update));
            cr_assert_eq(memcmp(pair.update.parameters, pair.parameters, bytes), 0, "step %d", step);
            check_copy(&pair.table, pair.parameters, *storage, pair.update.copy);
        }
        cr_assert_eq(*pair.update.not_finite, 0);
        optimizer_destroy(optimizer);
        pair_close(&pair);
    }
}

Test(kernels_update, sgd_has_the_bits_of_the_optimizer)
{
    expect_bits_of_the_optimizer(false, 0, 0);
    expect_bits_of_the_optimizer(false, 0.03F, 0.25F);
}

Test(kernels_update, nesterov_has_the_bits_of_the_optimizer)
{
    expect_bits_of_the_optimizer(true, 0, 0);
    expect_bits_of_the_optimizer(true, 0.03F, 0.25F);
}

/* Norms are added up in different orders. */
Test(kernels_update, lars_is_as_near_to_the_optimizer_as_its_norms)
{
    const struct optimizer_settings settings = {
        .rule = UPDATE_LARS, .momentum = 0.9, .weight_decay = 5e-3, .norm_decay = 1e-3, .bias_decay = 2e-3};
    struct pair pair;
    struct optimizer *optimizer = NULL;
    pair_open(&pair, DTYPE_F32);
    const int tensors = pair.table.arena.tensors;
    const struct cuda_lars lars = {.trust = (float)LARS_TRUST,
                                   .rates = device((size_t)tensors * sizeof(float)),
                                   .workspace = device(cuda_lars_workspace(tensors))};
    pair.update.weight_decay = 5e-3F;
    pair.update.norm_decay = 1e-3F;
    pair.update.bias_decay = 2e-3F;
    cr_assert_geq(optimizer_create(pair.model, &settings, NULL, &optimizer), 0);
    for (int step = 0; step < 3; step++) {
        bool finite = true;
        pair.update.rate = 4.0F / (float)(step + 1);
        cr_assert_geq(optimizer_step(optimizer, (double)pair.update.rate, pair.gradients, pair.parameters, &finite), 0);
        DONE(cuda_lars(NULL, &pair.table.arena, &pair.update, &lars));
        for (size_t i = 0; i < pair.model->parameters; i++)
            expect_near((double)pair.update.parameters[i], (double)pair.parameters[i], 1e-6, 1e-6, "w", i);
    }
    optimizer_destroy(optimizer);
    pair_close(&pair);
}

/* A gradient times 128 and a scale of 1 / 128 is the gradient. */
Test(kernels_update, gradient_scale)
{
    struct pair one, other;
    pair_open(&one, DTYPE_F32);
    DONE(cuda_sgd(NULL, &one.table.arena, &one.update));
    pair_open(&other, DTYPE_F32);
    float *scaled = device(other.model->parameters * sizeof(float));
    for (size_t i = 0; i < other.model->parameters; i++)
        scaled[i] = other.gradients[i] * 128;
    other.update.gradients = scaled;
    other.update.gradient_scale = 1 / 128.0F;
    DONE(cuda_sgd(NULL, &other.table.arena, &other.update));
    cr_assert_eq(memcmp(one.update.parameters, other.update.parameters, one.model->parameters * sizeof(float)), 0);
    free(one.gradients);
    free(one.parameters);
    model_destroy(one.model);
    pair_close(&other);
}

/* Without a working copy, and where a flag of an earlier check says so, nothing at all. */
Test(kernels_update, skipped_and_not_finite)
{
    struct pair pair;
    pair_open(&pair, DTYPE_BF16);
    const size_t count = pair.model->parameters;
    uint32_t *skip = device(sizeof *skip);
    *skip = 1;
    pair.update.skip = skip;
    DONE(cuda_sgd(NULL, &pair.table.arena, &pair.update));
    cr_assert_eq(memcmp(pair.update.parameters, pair.parameters, count * sizeof(float)), 0);
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(pair.update.momentum[i], 0);

    *skip = 0;
    pair.update.copy = NULL;
    const size_t places[] = {0, count / 2, count - 1};
    for (size_t k = 0; k < COUNT_OF(places); k++) {
        float *gradients = device_f32(pair.gradients, count);
        gradients[places[k]] = k == 1 ? NAN : INFINITY;
        pair.update.gradients = gradients;
        *pair.update.not_finite = 0;
        DONE(cuda_sgd(NULL, &pair.table.arena, &pair.update));
        cr_assert_eq(*pair.update.not_finite, 1, "place %zu", places[k]);
    }
    pair_close(&pair);
}

/* What no entry covers is left alone; tables may begin and end anywhere. */
Test(kernels_update, gaps)
{
    enum { COUNT = 41 };
    struct cuda_tensor *tensor = device(3 * sizeof *tensor);
    tensor[0] = (struct cuda_tensor){.offset = 3, .count = 2, .copy = 0, .channels = 1, .padded = 1};
    tensor[1] = (struct cuda_tensor){.offset = 7, .count = 20, .copy = 5, .channels = 1, .padded = 1, .decays = 1};
    tensor[2] = (struct cuda_tensor){.offset = 30, .count = 10, .copy = 32, .channels = 5, .padded = 6};
    const struct cuda_arena arena = {.tensor = tensor, .tensors = 3, .elements = COUNT};
    EACH_ORDER(order)
    {
        float *parameters = device(COUNT * sizeof(float)), *gradients = device(COUNT * sizeof(float));
        float *momentum = device(COUNT * sizeof(float)), *copy = device(44 * sizeof(float));
        for (size_t i = 0; i < COUNT; i++)
            parameters[i] = (float)i, gradients[i] = 1, momentum[i] = 0;
        memset(copy, 0, 44 * sizeof(float));
        const struct cuda_update update = {.gradients = gradients,
                                           .parameters = parameters,
                                           .momentum = momentum,
                                           .rate = 0.5F,
                                           .gradient_scale = 1,
                                           .copy = copy};
        DONE(cuda_sgd(NULL, &arena, &update));
        for (size_t i = 0; i < COUNT; i++) {
            const bool covered = (i >= 3 && i < 5) || (i >= 7 && i < 27) || (i >= 30 && i < 40);
            cr_assert_eq(parameters[i], (float)i - (covered ? 0.5F : 0), "element %zu", i);
        }
        cr_assert_eq(copy[0], 2.5F);
        cr_assert_eq(copy[2], 0);
        cr_assert_eq(copy[5], 6.5F);
        cr_assert_eq(copy[24], 25.5F);
        cr_assert_eq(copy[32 + 4], 33.5F);
        cr_assert_eq(copy[32 + 5], 0);
        cr_assert_eq(copy[32 + 6], 34.5F);
        devices_release();
        tensor = device(3 * sizeof *tensor);
        tensor[0] = (struct cuda_tensor){.offset = 3, .count = 2, .copy = 0, .channels = 1, .padded = 1};
        tensor[1] = (struct cuda_tensor){.offset = 7, .count = 20, .copy = 5, .channels = 1, .padded = 1, .decays = 1};
        tensor[2] = (struct cuda_tensor){.offset = 30, .count = 10, .copy = 32, .channels = 5, .padded = 6};
        *(const struct cuda_tensor **)&arena.tensor = tensor;
    }
    devices_release();
}

static double norm_of(const float *values, const struct cuda_tensor *tensor)
{
    double sum = 0;
    for (size_t i = 0; i < tensor->count; i++)
        sum += (double)values[tensor->offset + i] * (double)values[tensor->offset + i];
    return sqrt(sum);
}

Test(kernels_update, lars)
{
    struct first_bits bits = {0};
    EACH_ORDER(order)
    {
        struct pair pair;
        pair_open(&pair, DTYPE_F16);
        const int tensors = pair.table.arena.tensors;
        pair.update.rate = 4;
        pair.update.weight_decay = 5e-3F;
        pair.update.gradient_scale = 0.25F;
        const struct cuda_lars lars = {.trust = 0.001F,
                                       .rates = device((size_t)tensors * sizeof(float)),
                                       .workspace = device(cuda_lars_workspace(tensors))};
        DONE(cuda_lars(NULL, &pair.table.arena, &pair.update, &lars));
        for (int t = 0; t < tensors; t++) {
            const struct cuda_tensor *tensor = &pair.table.arena.tensor[t];
            const double w = norm_of(pair.parameters, tensor), g = norm_of(pair.gradients, tensor) / 4;
            const double local = tensor->decays ? 0.001 * w / (g + 5e-3 * w) : 1;
            const double decay = tensor->decays ? 5e-3 : 0;
            expect_near((double)lars.rates[t], 4 * local, 1e-5, 0, "rate", (size_t)t);
            for (size_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
                const double v = 4 * local * ((double)pair.gradients[i] / 4 + decay * (double)pair.parameters[i]);
                expect_near((double)pair.update.momentum[i], v, 2e-5, 1e-9, "v", i);
                expect_near((double)pair.update.parameters[i], (double)pair.parameters[i] - v, 1e-6, 1e-6, "w", i);
            }
        }
        check_copy(&pair.table, pair.update.parameters, DTYPE_F16, pair.update.copy);
        expect_same_bits(&bits, pair.update.parameters, pair.model->parameters * sizeof(float), "w");
        pair_close(&pair);
    }
    first_bits_release(&bits);
}

/* ---- gradients of filters ---- */

static void check_unpack(enum dtype type, size_t rows, size_t channels, size_t padded, size_t skip, bool add)
{
    float *from = calloc(rows * padded, sizeof *from), *to = device((rows * channels + skip) * sizeof(float));
    for (size_t i = 0; i < rows * padded; i++)
        from[i] = storage_round(type, number(1, i));
    to += skip;
    for (size_t i = 0; i < rows * channels; i++)
        to[i] = add ? (float)i : NAN;
    DONE(cuda_unpack_gradient(NULL, type, device_storage(type, from, rows * padded), to, rows, (int)channels,
                              (int)padded, 0.125F, add));
    for (size_t i = 0; i < rows * channels; i++) {
        const float want = 0.125F * from[i / channels * padded + i % channels];
        cr_assert_eq(to[i], add ? (float)i + want : want, "element %zu", i);
    }
    free(from);
    devices_release();
}

Test(kernels_update, unpacked_gradients)
{
    EACH_ORDER(order)
    EACH_STORAGE(type)
    for (int add = 0; add <= 1; add++) {
        check_unpack(*type, 49 * 5, 3, 8, 0, add);
        check_unpack(*type, 9, 64, 64, 0, add);
        check_unpack(*type, 9, 7, 7, 5, add);
        check_unpack(*type, 1, 1, 1, 1, add);
    }
    REFUSED(cuda_unpack_gradient(NULL, DTYPE_F32, NULL, NULL, 1, 4, 3, 1, false));
}
