/* Whole training steps of the cpu backend. */
#include <criterion/criterion.h>
#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/profile.h"
#include "nn/backend.h"
#include "support_golden.h"

#define OK(expression) cr_assert_geq((expression), 0, "%s", status_message())

/* A backend with everything that a step needs. Parameters and gradients are native. */
struct trainee {
    struct model *model;
    struct backend *backend;
    int batch;
    size_t image; /* floats of one */
    float *parameters, *gradients, *momentum, *state, *images;
    int32_t *labels;
};

static float *floats(size_t count)
{
    float *values = calloc(count + 1, sizeof *values);
    cr_assert_not_null(values);
    return values;
}

static struct trainee train_open(const char *name, int size, int batch, int threads)
{
    struct trainee t = {.batch = batch, .image = 3 * (size_t)(size * size)};
    OK(model_create(name, 10, size, &t.model));
    OK(backend_cpu.open(&(struct backend_request){.model = t.model, .batch = batch, .threads = threads}, &t.backend));
    size_t parameters = t.model->parameters;
    t.parameters = floats(parameters);
    t.gradients = floats(parameters);
    t.momentum = floats(parameters);
    t.state = floats(t.model->state);
    t.images = floats((size_t)batch * t.image);
    t.labels = calloc((size_t)batch, sizeof *t.labels);
    cr_assert_not_null(t.labels);
    float *canonical = floats(parameters);
    model_initialise(t.model, 1, canonical, t.state);
    OK(backend_cpu.to_native(t.backend, canonical, t.parameters));
    free(canonical);
    formula_fill(SEED_INPUT, 1, 0, t.images, (size_t)batch * t.image);
    for (int n = 0; n < batch; n++)
        t.labels[n] = n * 7 % 10;
    return t;
}

static void train_close(struct trainee *t)
{
    backend_cpu.close(t->backend);
    model_destroy(t->model);
    free(t->parameters);
    free(t->gradients);
    free(t->momentum);
    free(t->state);
    free(t->images);
    free(t->labels);
}

/* `count` images from `first` on. */
static struct batch images(const struct trainee *t, int first, int count)
{
    return (struct batch){
        .count = count, .canonical = t->images + (size_t)first * t->image, .labels = t->labels + first};
}

static enum status evaluate(const struct trainee *t, int first, int count, double *loss_sum, size_t *correct)
{
    const struct batch batch = images(t, first, count);
    struct evaluation sum = {.loss_sum = 0};
    const enum status status = backend_cpu.evaluate(t->backend, t->parameters, t->state, &batch, &sum);
    cr_expect_leq(sum.top1, sum.top5);
    cr_expect_leq(sum.top5, (size_t)(count > 0 ? count : 0));
    *loss_sum = sum.loss_sum;
    *correct = sum.top1;
    return status;
}

static struct step_result step(struct trainee *t)
{
    const struct batch batch = images(t, 0, t->batch);
    struct step_result result;
    OK(backend_cpu.step(t->backend, t->parameters, t->state, &batch, t->gradients, NULL));
    OK(backend_cpu.collect(t->backend, &result));
    return result;
}

/* ---- who is told of gradients ---- */

struct told {
    const struct trainee *trainee;
    const float *final; /* NULL: only counted */
    size_t offset, calls, changes;
};

static enum status told_of(void *context, size_t offset)
{
    struct told *told = context;
    const size_t end = told->trainee->model->parameters;
    cr_expect_leq(offset, told->offset);
    told->changes += offset < told->offset;
    told->offset = offset;
    told->calls++;
    cr_expect_arr_eq(told->trainee->gradients + offset, told->final + offset, (end - offset) * sizeof(float),
                     "from %zu on", offset);
    return STATUS_OK;
}

static enum status told_to_end(void *context, size_t offset)
{
    (void)context, (void)offset;
    return fail(STATUS_TIMEOUT, "nobody listens");
}

Test(cpu, tells_how_far_the_gradients_are)
{
    struct step_result result;
    struct trainee t = train_open("resnet18", 32, 2, 1);
    (void)step(&t);
    const size_t bytes = t.model->parameters * sizeof(float);
    float *final = malloc(bytes);
    cr_assert_not_null(final);
    memcpy(final, t.gradients, bytes);
    memset(t.gradients, 0xff, bytes); /* NaN */
    struct told told = {.trainee = &t, .final = final, .offset = t.model->parameters};
    struct gradient_watch watch = {.context = &told, .ready = told_of};
    const struct batch batch = images(&t, 0, t.batch);
    OK(backend_cpu.step(t.backend, t.parameters, t.state, &batch, t.gradients, &watch));
    OK(backend_cpu.collect(t.backend, &result));
    cr_expect_eq(told.offset, 0);
    cr_expect_geq(told.changes, 38, "%zu", told.changes); /* 41 layers have some; 3 stand beside residual branches */
    watch.ready = told_to_end;
    cr_expect_eq(backend_cpu.step(t.backend, t.parameters, t.state, &batch, t.gradients, &watch), STATUS_TIMEOUT);
    free(final);
    train_close(&t);
}

/* m = momentum m + g + decay w; w -= lr m */
static void update(struct trainee *t, double lr, double momentum, double decay)
{
    for (int k = 0; k < t->model->tensors; k++) {
        const struct tensor *tensor = &t->model->tensor[k];
        float rate = (float)lr, keep = (float)momentum, shrink = tensor->decays ? (float)decay : 0.0F;
        for (size_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
            t->momentum[i] = keep * t->momentum[i] + t->gradients[i] + shrink * t->parameters[i];
            t->parameters[i] -= rate * t->momentum[i];
        }
    }
}

/* ---- against PyTorch in double precision ---- */

static void golden_parameters(const struct model *model, float *canonical)
{
    for (int k = 0; k < model->tensors; k++) {
        const struct tensor *tensor = &model->tensor[k];
        const struct layer *layer = &model->layer[tensor->layer];
        double scale = 0.5, shift = 0;
        if (layer->kind == LAYER_CONV)
            scale = sqrt(6.0 / (layer->kernel * layer->kernel * layer->out_channels));
        else if (layer->kind == LAYER_LINEAR)
            scale = 1 / sqrt(layer->in_channels);
        else if (k == layer->first_tensor)
            shift = 1;
        if (shift > 0 && layer->zero_gamma)
            scale = shift = 0;
        formula_fill(SEED_PARAMETER + (uint64_t)k, scale, shift, canonical + tensor->offset, tensor->count);
    }
}

Test(cpu_train, five_steps_agree_with_double_precision)
{
    FILE *file = golden_open("steps.txt");
    char comment[256];
    cr_assert_not_null(fgets(comment, sizeof comment, file));
    int steps, size, batch, classes;
    double lr, momentum, decay;
    cr_assert_eq(fscanf(file, "steps count=%d size=%d batch=%d classes=%d lr=%lf momentum=%lf decay=%lf", &steps, &size,
                        &batch, &classes, &lr, &momentum, &decay),
                 7);
    struct trainee t = train_open("resnet18", size, batch, 2);
    float *before = floats(t.model->parameters), *after = floats(t.model->parameters);
    golden_parameters(t.model, before);
    OK(backend_cpu.to_native(t.backend, before, t.parameters));
    for (int k = 0; k < steps; k++) {
        double expected;
        cr_assert_eq(fscanf(file, " loss %lf", &expected), 1);
        struct step_result result = step(&t);
        cr_expect_lt(fabs(result.loss - expected) / expected, 1e-3, "step %d: loss %.7f, not %.7f", k, result.loss,
                     expected);
        update(&t, lr, momentum, decay);
    }
    OK(backend_cpu.to_canonical(t.backend, t.parameters, after));
    struct golden golden;
    golden_read(file, "parameters", &golden);
    cr_expect_lt(golden_difference(&golden, after), 1e-3);
    for (size_t i = 0; i < t.model->parameters; i++)
        after[i] -= before[i];
    golden_read(file, "change", &golden);
    cr_expect_lt(golden_difference(&golden, after), 1e-2, "the updates themselves: %g",
                 golden_difference(&golden, after));
    fclose(file);
    free(before);
    free(after);
    train_close(&t);
}

/* ---- against itself ---- */

/* The slope of the loss along a direction of one tensor, by central differences. */
static double slope(struct trainee *t, const struct tensor *tensor, const float *direction, double length)
{
    float *kept = floats(tensor->count), *values = t->parameters + tensor->offset;
    memcpy(kept, values, tensor->count * sizeof *kept);
    double loss[2];
    for (int side = 0; side < 2; side++) {
        float h = (float)(side ? length : -length);
        for (size_t i = 0; i < tensor->count; i++)
            values[i] = kept[i] + h * direction[i];
        loss[side] = step(t).loss;
    }
    memcpy(values, kept, tensor->count * sizeof *kept);
    free(kept);
    return (loss[1] - loss[0]) / (2 * length);
}

Test(cpu_train, gradients_are_the_slopes_of_the_loss)
{
    struct trainee t = train_open("cnn", 16, 8, 1);
    float *gradients = floats(t.model->parameters);
    step(&t);
    memcpy(gradients, t.gradients, t.model->parameters * sizeof *gradients);
    for (int k = 0; k < t.model->tensors; k++) {
        const struct tensor *tensor = &t.model->tensor[k];
        float *gradient = gradients + tensor->offset;
        double norm = 0;
        for (size_t i = 0; i < tensor->count; i++)
            norm += (double)gradient[i] * (double)gradient[i];
        norm = sqrt(norm);
        for (size_t i = 0; i < tensor->count; i++)
            gradient[i] = (float)((double)gradient[i] / norm);
        double measured = slope(&t, tensor, gradient, 2e-3);
        cr_expect_lt(fabs(measured / norm - 1), 0.02, "%s: slope %g, gradient %g", tensor->name, measured, norm);
    }
    free(gradients);
    train_close(&t);
}

/* The bits after three steps. */
static uint64_t fingerprint(const char *name, int size, int batch, int threads)
{
    struct trainee t = train_open(name, size, batch, threads);
    for (int k = 0; k < 3; k++) {
        step(&t);
        update(&t, 0.05, 0.9, 1e-4);
    }
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < t.model->parameters; i++) {
        uint32_t bits;
        memcpy(&bits, t.parameters + i, sizeof bits);
        hash = (hash ^ bits) * UINT64_C(1099511628211);
    }
    for (size_t i = 0; i < t.model->state; i++) {
        uint32_t bits;
        memcpy(&bits, t.state + i, sizeof bits);
        hash = (hash ^ bits) * UINT64_C(1099511628211);
    }
    train_close(&t);
    return hash;
}

Test(cpu_train, same_threads_give_the_same_bits)
{
    cr_expect_eq(fingerprint("cnn", 28, 6, 1), fingerprint("cnn", 28, 6, 1));
    cr_expect_eq(fingerprint("cnn", 28, 6, 2), fingerprint("cnn", 28, 6, 2));
    cr_expect_eq(fingerprint("resnet18", 40, 3, 2), fingerprint("resnet18", 40, 3, 2));
}

Test(cpu_train, losses_fall_for_every_network)
{
    const char *names[] = {"cnn", "resnet18", "resnet50"};
    for (size_t k = 0; k < 3; k++) {
        struct trainee t = train_open(names[k], 32, 4, 2);
        double first = step(&t).loss;
        update(&t, 0.02, 0.9, 0);
        for (int s = 0; s < 4; s++) {
            step(&t);
            update(&t, 0.02, 0.9, 0);
        }
        double last = step(&t).loss;
        cr_expect_lt(last, 0.8 * first, "%s: loss %g, then %g", names[k], first, last);
        train_close(&t);
    }
}

Test(cpu_train, batches_of_one_to_five_images_work)
{
    for (int batch = 1; batch <= 5; batch++) {
        struct trainee t = train_open("resnet18", 32, batch, 1);
        struct step_result result = step(&t);
        cr_expect(isfinite(result.loss) && result.loss > 0, "batch %d: loss %g", batch, result.loss);
        cr_expect_leq(result.correct, (size_t)batch);
        cr_expect(result.forward_s > 0 && result.backward_s > 0);
        for (size_t i = 0; i < t.model->parameters; i++)
            cr_assert(isfinite(t.gradients[i]));
        for (size_t i = 0; i < t.model->state; i++)
            cr_assert(isfinite(t.state[i]));
        train_close(&t);
    }
}

Test(cpu_train, every_gradient_is_overwritten)
{
    struct trainee t = train_open("resnet50", 32, 2, 1);
    for (size_t i = 0; i < t.model->parameters; i++)
        t.gradients[i] = NAN;
    step(&t);
    for (size_t i = 0; i < t.model->parameters; i++)
        cr_assert_not(isnan(t.gradients[i]));
    train_close(&t);
}

Test(cpu_train, order_of_parameters_survives_a_round_trip)
{
    const char *names[] = {"cnn", "resnet18", "resnet50"};
    for (size_t k = 0; k < 3; k++) {
        struct trainee t = train_open(names[k], 64, 2, 1);
        size_t bytes = t.model->parameters * sizeof(float);
        formula_fill(SEED_PARAMETER, 1, 0, t.parameters, t.model->parameters);
        OK(backend_cpu.to_native(t.backend, t.parameters, t.gradients));
        OK(backend_cpu.to_canonical(t.backend, t.gradients, t.momentum));
        cr_expect_eq(memcmp(t.parameters, t.momentum, bytes), 0);
        train_close(&t);
    }
}

/* ---- batches that are not full ---- */

static struct step_result step_some(struct trainee *t, int count, double divisor)
{
    struct batch batch = images(t, 0, count);
    struct step_result result;
    batch.divisor = divisor;
    memset(t->gradients, 0xff, t->model->parameters * sizeof(float)); /* NaN */
    OK(backend_cpu.step(t->backend, t->parameters, t->state, &batch, t->gradients, NULL));
    OK(backend_cpu.collect(t->backend, &result));
    return result;
}

static float *canonical_gradients(const struct trainee *t)
{
    float *canonical = floats(t->model->parameters);
    OK(backend_cpu.to_canonical(t->backend, t->gradients, canonical));
    return canonical;
}

static double off(const float *found, const float *wanted, size_t count)
{
    double sum = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        sum += ((double)found[i] - (double)wanted[i]) * ((double)found[i] - (double)wanted[i]);
        size += (double)wanted[i] * (double)wanted[i];
    }
    return sqrt(sum / size);
}

/* `count` images in a backend for `batch` are those of a backend for `count`, whatever stands behind them. */
static void like_one_of_that_size(const char *name, int size, int batch, int count)
{
    struct trainee part = train_open(name, size, batch, 2), whole = train_open(name, size, count, 1);
    for (size_t i = (size_t)count * part.image; i < (size_t)batch * part.image; i++)
        part.images[i] = INFINITY;
    const double loss = step(&whole).loss;
    const struct step_result result = step_some(&part, count, 0);
    cr_expect_float_eq(result.loss, loss, 1e-6 * loss, "%s, %d of %d: %.9g, not %.9g", name, count, batch, result.loss,
                       loss);
    float *wanted = canonical_gradients(&whole), *found = canonical_gradients(&part);
    const size_t parameters = part.model->parameters;
    cr_expect_lt(off(found, wanted, parameters), 1e-5, "%s, %d of %d: gradients are %g off", name, count, batch,
                 off(found, wanted, parameters));
    if (part.model->state > 0)
        cr_expect_lt(off(part.state, whole.state, part.model->state), 1e-6, "%s: running statistics", name);
    (void)step_some(&part, count, 4 * count); /* as of a worker that has a quarter of its share */
    float *quarter = canonical_gradients(&part);
    for (size_t i = 0; i < parameters; i++)
        quarter[i] *= 4;
    cr_expect_lt(off(quarter, found, parameters), 1e-6, "%s: the divisor", name);
    free(quarter);
    free(wanted);
    free(found);
    train_close(&part);
    train_close(&whole);
}

Test(cpu_train, a_part_of_a_batch_is_like_a_batch_of_that_size)
{
    like_one_of_that_size("cnn", 28, 7, 3);
    like_one_of_that_size("cnn", 28, 8, 1);
    like_one_of_that_size("resnet18", 32, 8, 5);
    like_one_of_that_size("resnet50", 32, 4, 3);
}

Test(cpu_train, without_images_nothing_is_learnt)
{
    struct trainee t = train_open("resnet18", 32, 4, 2);
    float *state = floats(t.model->state);
    memcpy(state, t.state, t.model->state * sizeof *state);
    cr_expect_eq(step_some(&t, 0, 0.5).loss, 0);
    for (size_t i = 0; i < t.model->parameters; i++)
        cr_assert_eq(t.gradients[i], 0, "gradient %zu", i);
    cr_expect_arr_eq(t.state, state, t.model->state * sizeof *state);
    cr_expect_gt(step(&t).loss, 0, "and the next batch is a whole one again");
    free(state);
    train_close(&t);
}

/* ---- evaluation ---- */

Test(cpu_train, evaluation_of_any_count_sums_to_the_whole)
{
    struct trainee t = train_open("cnn", 28, 7, 1);
    for (int k = 0; k < 5; k++) {
        step(&t);
        update(&t, 0.05, 0.9, 0);
    }
    double whole, sum = 0;
    size_t correct, total = 0;
    OK(evaluate(&t, 0, 7, &whole, &correct));
    for (int start = 0, count = 1; start < 7; start += count, count++) {
        count = start + count > 7 ? 7 - start : count; /* 1, 2, 3, then the one that is left */
        double part;
        size_t right;
        OK(evaluate(&t, start, count, &part, &right));
        sum += part;
        total += right;
    }
    cr_expect_float_eq(sum, whole, 1e-6 * whole);
    cr_expect_eq(total, correct);
    train_close(&t);
}

Test(cpu_train, evaluation_changes_nothing)
{
    struct trainee t = train_open("cnn", 28, 4, 1);
    step(&t);
    float *state = floats(t.model->state);
    memcpy(state, t.state, t.model->state * sizeof *state);
    double loss;
    size_t correct;
    OK(evaluate(&t, 0, 4, &loss, &correct));
    cr_expect_eq(memcmp(state, t.state, t.model->state * sizeof *state), 0);
    free(state);
    train_close(&t);
}

/* After many steps on one batch, its statistics are the running ones, so both modes see the same network. */
Test(cpu_train, running_statistics_approach_those_of_the_batch)
{
    struct trainee t = train_open("cnn", 28, 64, 1);
    double loss = 0, evaluated;
    size_t correct;
    for (int k = 0; k < 100; k++)
        loss = step(&t).loss; /* no update */
    OK(evaluate(&t, 0, 64, &evaluated, &correct));
    cr_expect_float_eq(evaluated / 64, loss, 1e-3 * loss, "evaluated %g, trained %g", evaluated / 64, loss);
    train_close(&t);
}

/* ---- what goes wrong ---- */

Test(cpu_train, wrong_requests_are_refused)
{
    struct model *model = NULL;
    struct backend *backend = NULL;
    OK(model_create("cnn", 10, 28, &model));
    cr_expect_lt(backend_cpu.open(&(struct backend_request){.model = model, .batch = 0, .threads = 1}, &backend), 0);
    cr_expect_lt(backend_cpu.open(&(struct backend_request){.model = model, .batch = 1, .threads = 0}, &backend), 0);
    const struct backend_request half = {.model = model, .batch = 1, .threads = 1, .precision = PRECISION_BF16};
    cr_expect_eq(backend_cpu.open(&half, &backend), STATUS_REFUSED);
    cr_expect_not_null(strstr(status_message(), "bf16"));
    cr_expect_null(backend);
    backend_cpu.close(NULL);
    model_destroy(model);

    struct trainee t = train_open("cnn", 28, 2, 1);
    double loss;
    size_t correct;
    cr_expect_lt(evaluate(&t, 0, 3, &loss, &correct), 0);
    cr_expect_lt(evaluate(&t, 0, 0, &loss, &correct), 0);
    t.labels[1] = 10;
    struct step_result result;
    const struct batch bad = images(&t, 0, 2), large = images(&t, 0, 3);
    cr_expect_eq(backend_cpu.step(t.backend, t.parameters, t.state, &bad, t.gradients, NULL), STATUS_FORMAT);
    cr_expect_eq(backend_cpu.collect(t.backend, &result), STATUS_INTERNAL, "a step that failed has no result");
    cr_expect_eq(backend_cpu.step(t.backend, t.parameters, t.state, &large, t.gradients, NULL), STATUS_INTERNAL);
    train_close(&t);
}

/* A primitive without generated code would be hundreds of times slower: opening must find none. */
Test(cpu_train, every_size_of_image_and_batch_has_fast_kernels)
{
    static const struct {
        const char *name;
        int size[6];
    } networks[] = {
        {"resnet50", {32, 64, 96, 128, 224}},
        {"resnet18", {32, 64, 96, 128, 224}},
        {"vgg16", {32, 45, 224}},
        {"cnn", {8, 28, 32, 45, 64}},
    };
    static const int batches[] = {1, 2, 3, 4, 8, 16, 32};
    for (size_t k = 0; k < sizeof networks / sizeof networks[0]; k++) {
        for (const int *size = networks[k].size; *size; size++) {
            struct model *model = NULL;
            OK(model_create(networks[k].name, 10, *size, &model));
            for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
                struct backend *backend = NULL;
                struct backend_request request = {.model = model, .batch = batches[b], .threads = 2};
                cr_expect_geq(backend_cpu.open(&request, &backend), 0, "%s, %d pixels, batch %d: %s", networks[k].name,
                              *size, batches[b], status_message());
                backend_cpu.close(backend);
            }
            model_destroy(model);
        }
    }
}

/* What oneDNN says of the primitives of one step, as lines "onednn_verbose,exec,cpu,<kind>,<implementation>,...". */
static FILE *log_of_step(struct trainee *t)
{
    FILE *log = tmpfile();
    cr_assert_not_null(log);
    (void)fflush(stdout);
    int shown = dup(STDOUT_FILENO);
    cr_assert(shown >= 0 && dup2(fileno(log), STDOUT_FILENO) >= 0);
    cr_assert_eq(dnnl_set_verbose(1), dnnl_success);
    (void)step(t);
    cr_assert_eq(dnnl_set_verbose(0), dnnl_success);
    (void)fflush(stdout);
    cr_assert_geq(dup2(shown, STDOUT_FILENO), 0);
    (void)close(shown);
    rewind(log);
    return log;
}

Test(cpu_train, a_step_reorders_nothing_and_uses_no_reference_kernels)
{
    const int blocks_of_16 =
        ((unsigned)dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == (unsigned)dnnl_cpu_isa_avx512_core;
    const char *names[] = {"resnet18", "resnet50", "cnn"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct trainee t = train_open(names[k], 64, 3, 1);
        FILE *log = log_of_step(&t);
        char line[1024], kind[64], implementation[128];
        int convolutions = 0, reorders = 0;
        while (fgets(line, sizeof line, log)) {
            if (sscanf(line, "onednn_verbose,exec,cpu,%63[^,],%127[^,],", kind, implementation) != 2)
                continue;
            convolutions += strcmp(kind, "convolution") == 0;
            reorders += strcmp(kind, "reorder") == 0;
            cr_expect_neq(strncmp(implementation, "ref", 3), 0, "%s: %s", names[k], line);
            cr_expect_eq(strstr(implementation, "simple"), NULL, "%s: %s", names[k], line);
        }
        cr_expect_gt(convolutions, 0, "%s: %d convolutions: is the log read?", names[k], convolutions);
        if (!blocks_of_16) /* whose weights oneDNN itself turns for backward by data */
            cr_expect_eq(reorders, 0, "%s: %d reorders", names[k], reorders);
        (void)fclose(log);
        train_close(&t);
    }
}

Test(cpu_train, the_profile_can_be_read_back)
{
    struct trainee t = train_open("cnn", 28, 4, 1);
    struct text text = {0};
    cr_expect_eq(backend_cpu.profile(t.backend, &text), STATUS_REFUSED);
    double forward = 0, backward = 0;
    for (int k = 0; k < 70; k++) { /* more than are kept */
        struct step_result result = step(&t);
        forward = result.forward_s;
        backward = result.backward_s;
    }
    OK(backend_cpu.profile(t.backend, &text));
    struct profile profile;
    OK(profile_parse(text_string(&text), "profile", &profile));
    cr_expect_str_eq(profile.model, "cnn");
    cr_expect_eq(profile.batch, 4);
    cr_expect_eq(profile.image_size, 28);
    cr_expect_eq(profile.layers, (size_t)t.model->layers);
    size_t parameters = 0;
    double total = 0;
    for (size_t k = 0; k < profile.layers; k++) {
        cr_expect_str_eq(profile.layer[k].name, t.model->layer[k].name);
        parameters += profile.layer[k].parameters;
        total += profile.layer[k].forward_s + profile.layer[k].backward_s;
    }
    cr_expect_eq(parameters, t.model->parameters);
    cr_expect(total > 0 && total < 10 * (forward + backward), "%g s in all, %g in the last step", total,
              forward + backward);
    profile_release(&profile);
    text_clear(&text);
    backend_cpu.describe(t.backend, &text);
    cr_expect_not_null(strstr(text_string(&text), "oneDNN"));
    text_release(&text);
    train_close(&t);
}
