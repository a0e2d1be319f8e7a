/* Single layers of the cpu backend against PyTorch in double precision (golden.py). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "nn/cpu/kernels.h"
#include "nn/cpu/loss.h"
#include "nn/cpu/net.h"
#include "nn/cpu/norm.h"
#include "nn/models/build.h"
#include "support_golden.h"

void omp_set_num_threads(int threads); /* as in omp.h; oneDNN's */

#define OK(expression) cr_assert_geq((expression), 0, "%s", status_message())

struct layer_case {
    char kind[32];
    int channels, size, batch, out, kernel, stride;
};

/* False at the end of the file. Lines of comments were skipped by the caller. */
static bool next_case(FILE *file, struct layer_case *c)
{
    return fscanf(file, " case kind=%31s channels=%d size=%d batch=%d out=%d kernel=%d stride=%d", c->kind,
                  &c->channels, &c->size, &c->batch, &c->out, &c->kernel, &c->stride) == 7;
}

static FILE *open_layers(void)
{
    FILE *file = golden_open("layers.txt");
    char comment[256];
    cr_assert_not_null(fgets(comment, sizeof comment, file));
    return file;
}

static bool is(const struct layer_case *c, const char *kind)
{
    return strcmp(c->kind, kind) == 0;
}

static struct model *model_of(const struct layer_case *c)
{
    struct build build;
    build_begin(&build, "one layer", c->out, c->size, c->channels);
    if (is(c, "conv")) {
        build_conv(&build, BUILD_IMAGES, "conv", c->out, c->kernel, c->stride);
    } else if (is(c, "conv_relu")) {
        build_relu(&build, build_conv_bias(&build, BUILD_IMAGES, "conv", c->out, c->kernel, c->stride), "relu");
    } else if (is(c, "linear_relu")) {
        int pool = build_average_pool_to(&build, BUILD_IMAGES, "pool", c->kernel);
        build_relu(&build, build_linear(&build, pool, "linear", c->out), "relu");
    } else if (is(c, "max_pool_2x2")) {
        build_max_pool_2x2(&build, BUILD_IMAGES, "pool");
    } else if (is(c, "norm")) {
        build_batch_norm(&build, BUILD_IMAGES, "norm", false);
    } else if (is(c, "norm_relu")) {
        build_relu(&build, build_batch_norm(&build, BUILD_IMAGES, "norm", false), "relu");
    } else if (is(c, "add_relu")) {
        int first = build_batch_norm(&build, BUILD_IMAGES, "norm1", false);
        int second = build_batch_norm(&build, BUILD_IMAGES, "norm2", false);
        build_add_relu(&build, first, second, "add");
    } else if (is(c, "max_pool")) {
        build_max_pool(&build, BUILD_IMAGES, "pool");
    } else {
        int pool = build_average_pool(&build, BUILD_IMAGES, "pool");
        if (is(c, "linear"))
            build_linear(&build, pool, "linear", c->out);
    }
    struct model *model = NULL;
    OK(build_end(&build, &model));
    return model;
}

static float *floats(size_t count)
{
    float *values = calloc(count + 1, sizeof *values);
    cr_assert_not_null(values);
    return values;
}

static float *parameters_of(const struct model *model)
{
    float *parameters = floats(model->parameters);
    for (int t = 0; t < model->tensors; t++) {
        const struct tensor *tensor = &model->tensor[t];
        const struct layer *layer = &model->layer[tensor->layer];
        bool norm = layer->kind == LAYER_BATCH_NORM, gamma = norm && t == layer->first_tensor;
        formula_fill(SEED_PARAMETER + (uint64_t)t, norm ? 0.5 : 1, gamma ? 1 : 0, parameters + tensor->offset,
                     tensor->count);
    }
    return parameters;
}

static float *state_of(const struct model *model)
{
    float *parameters = floats(model->parameters), *state = floats(model->state);
    model_initialise(model, 0, parameters, state);
    free(parameters);
    return state;
}

static void compare(FILE *file, const char *name, const struct layer_case *c, int threads, const float *values)
{
    struct golden golden;
    golden_read(file, name, &golden);
    double difference = golden_difference(&golden, values);
    cr_expect(difference <= 1e-5, "%s %d->%d channels, %d pixels, kernel %d, stride %d, batch %d, %d threads: %s: %.3g",
              c->kind, c->channels, c->out, c->size, c->kernel, c->stride, c->batch, threads, name, difference);
}

static void run_loss(FILE *file, const struct layer_case *c)
{
    size_t batch = (size_t)c->batch, classes = (size_t)c->out, correct = 0;
    float *logits = floats(batch * classes), *gradient = floats(batch * classes);
    int32_t labels[16];
    formula_fill(SEED_INPUT, c->channels, 0, logits, batch * classes); /* the scale stands where others have channels */
    for (size_t n = 0; n < batch; n++)
        labels[n] = (int32_t)(n * 7 % classes);
    double loss = 0;
    const struct cross_entropy of = {.logits = logits, .labels = labels, .count = batch, .classes = classes};
    OK(cross_entropy(&of, &loss, &correct, NULL, gradient));
    compare(file, "output", c, 1, &(float){(float)loss});
    compare(file, "input_gradient", c, 1, gradient);
    free(logits);
    free(gradient);
}

static void run_layer(FILE *file, const struct layer_case *c, int threads)
{
    struct model *model = model_of(c);
    const struct layer *last = &model->layer[model->layers - 1];
    size_t in = (size_t)c->batch * (size_t)(c->channels * c->size * c->size);
    size_t out = (size_t)c->batch * (size_t)(last->out_channels * last->out_height * last->out_width);
    float *images = floats(in), *canonical = parameters_of(model), *native = floats(model->parameters);
    float *gradients = floats(model->parameters), *state = state_of(model), *result = floats(in > out ? in : out);
    formula_fill(SEED_INPUT, 1, strstr(c->kind, "norm") ? 4 : 0, images, in);
    if (is(c, "add_relu"))
        formula_fill(SEED_INPUT, 1, 0, images, in);

    struct net *net = NULL;
    bool image_gradient = c->channels != 3;
    omp_set_num_threads(threads); /* idle ones would spin */
    OK(net_create(&(struct net_request){model, c->batch, threads, image_gradient, NULL}, &net));
    OK(net_to_native(net, canonical, native));
    OK(net_train(net, native, state, images, NULL));
    net_read_output(net, result);
    compare(file, "output", c, threads, result);

    formula_fill(SEED_GRADIENT, 1, 0, result, out);
    net_write_last_gradient(net, result);
    OK(net_backward(net, native, gradients, NULL));
    if (image_gradient) {
        net_read_image_gradient(net, result);
        compare(file, "input_gradient", c, threads, result);
    }
    if (model->parameters > 0) {
        OK(net_to_canonical(net, gradients, canonical));
        compare(file, "gradient", c, threads, canonical);
    }
    if (model->state > 0)
        compare(file, "state", c, threads, state);

    net_destroy(net);
    free(images);
    free(canonical);
    free(native);
    free(gradients);
    free(state);
    free(result);
    model_destroy(model);
}

static void run_all(int threads)
{
    FILE *file = open_layers();
    struct layer_case c;
    int cases = 0;
    for (; next_case(file, &c); cases++) {
        if (is(&c, "loss"))
            run_loss(file, &c);
        else
            run_layer(file, &c, threads);
    }
    cr_expect_geq(cases, 50);
    fclose(file);
}

Test(cpu_layers, agree_with_double_precision)
{
    run_all(1);
}

Test(cpu_layers, agree_on_two_threads)
{
    run_all(2);
}

/* ---- our kernels, for instruction sets and blocks that this machine may not have ---- */

enum { IMAGES = 2, CHANNELS = 32, SIDE = 5, PIXELS = SIDE * SIDE, FLOATS = IMAGES * CHANNELS * PIXELS };

struct norm_run {
    float result[FLOATS], input_gradient[FLOATS], parameter_gradient[2 * CHANNELS], state[2 * CHANNELS];
};

static size_t at(const struct value *value, size_t n, size_t c, size_t p)
{
    return n * value_image_stride(value) + c / value->block * value_block_stride(value) + p * value->block +
           c % value->block;
}

/* Batch norm, addition and ReLU of formula values in one layout; results are put in the order (N, C, P). */
static void run_norm(const struct kernels *kernels, size_t block, bool folded, bool with_addend, struct norm_run *run)
{
    static float x[FLOATS], addend[FLOATS], result[FLOATS], gradient[FLOATS], more[FLOATS], dx[FLOATS];
    float parameters[2 * CHANNELS], mean[CHANNELS], inverse[CHANNELS], scale[CHANNELS], shift[CHANNELS];
    struct value value = {IMAGES, CHANNELS, SIDE, SIDE, block, folded, FLOATS, x};
    for (size_t i = 0; i < FLOATS; i++) {
        size_t to = at(&value, i / PIXELS / CHANNELS, i / PIXELS % CHANNELS, i % PIXELS);
        x[to] = (float)formula(SEED_INPUT, i);
        addend[to] = (float)formula(SEED_PROBE, i);
        gradient[to] = (float)formula(SEED_GRADIENT, i);
        more[to] = (float)formula(SEED_GRADIENT + 10, i);
    }
    formula_fill(SEED_PARAMETER, 1, 0.5, parameters, 2 * CHANNELS);
    memset(run->state, 0, sizeof run->state);
    struct norm norm = {.kernels = kernels,
                        .threads = 1,
                        .x = &value,
                        .mean = mean,
                        .inverse = inverse,
                        .scale = scale,
                        .shift = shift};
    OK(norm_train(&norm, parameters, run->state, with_addend ? addend : NULL, true, result));
    OK(norm_backward(&norm, &(struct norm_backward){.parameters = parameters,
                                                    .result = result,
                                                    .relu = true,
                                                    .gradient = gradient,
                                                    .more = more,
                                                    .parameter_gradient = run->parameter_gradient,
                                                    .input_gradient = dx,
                                                    .addend = with_addend}));
    for (size_t i = 0; i < FLOATS; i++) {
        size_t from = at(&value, i / PIXELS / CHANNELS, i / PIXELS % CHANNELS, i % PIXELS);
        run->result[i] = result[from];
        run->input_gradient[i] = dx[from];
    }
}

static double distance(const float *a, const float *b, size_t count)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return difference / size;
}

Test(cpu_kernels, any_block_and_layout_gives_the_same)
{
    static struct norm_run expected, run;
    for (int with_addend = 0; with_addend < 2; with_addend++) {
        run_norm(kernels_plain(), 8, false, with_addend, &expected);
        for (int variant = 1; variant < 4; variant++) {
            run_norm(kernels_select(), variant & 1 ? 16 : 8, variant & 2, with_addend, &run);
            cr_expect_lt(distance(run.result, expected.result, FLOATS), 1e-12);
            cr_expect_lt(distance(run.input_gradient, expected.input_gradient, FLOATS), 1e-12);
            cr_expect_lt(distance(run.parameter_gradient, expected.parameter_gradient, 2 * CHANNELS), 1e-12);
            cr_expect_lt(distance(run.state, expected.state, 2 * CHANNELS), 1e-12);
        }
    }
}

Test(cpu_kernels, plain_and_vector_code_give_the_same_bits)
{
    static struct norm_run plain, selected;
    for (int with_addend = 0; with_addend < 2; with_addend++) {
        run_norm(kernels_plain(), 8, false, with_addend, &plain);
        run_norm(kernels_select(), 8, false, with_addend, &selected);
        cr_expect_arr_eq(plain.result, selected.result, sizeof plain.result);
        cr_expect_arr_eq(plain.input_gradient, selected.input_gradient, sizeof plain.input_gradient);
        cr_expect_arr_eq(plain.parameter_gradient, selected.parameter_gradient, sizeof plain.parameter_gradient);
        cr_expect_arr_eq(plain.state, selected.state, sizeof plain.state);
    }
}

Test(cpu_kernels, a_nan_is_never_hidden_by_relu)
{
    float x[8], y[8], one[LANES], zero[LANES] = {0};
    for (size_t k = 0; k < LANES; k++)
        one[k] = 1;
    for (size_t k = 0; k < 8; k++)
        x[k] = k % 2 ? -1.0F : (float)NAN;
    struct runs runs = {1, 8, 0};
    kernels_select()->scale_shift(&runs, x, NULL, one, zero, true, y);
    for (size_t k = 0; k < 8; k++)
        cr_expect(k % 2 ? y[k] == 0 : isnan(y[k]));
}

Test(cpu_kernels, blocks_are_transposed)
{
    const struct kernels *both[] = {kernels_plain(), kernels_select()};
    float from[TRANSPOSED * TRANSPOSED], to[TRANSPOSED * TRANSPOSED];
    for (int k = 0; k < TRANSPOSED * TRANSPOSED; k++)
        from[k] = (float)k;
    for (int which = 0; which < 2; which++) {
        memset(to, 0, sizeof to);
        both[which]->transpose(from, to);
        for (int k = 0; k < TRANSPOSED * TRANSPOSED; k++)
            cr_expect_eq(to[k], from[k % TRANSPOSED * TRANSPOSED + k / TRANSPOSED]);
    }
}

/* As PyTorch's: of several NaNs the last one gets the gradient. */
Test(cpu_kernels, a_nan_comes_through_max_pooling)
{
    enum { TAPS = 9, WIDTH = 8 };
    const struct kernels *both[] = {kernels_plain(), kernels_select()};
    for (int which = 0; which < 2; which++) {
        for (int nan = 0; nan < TAPS; nan++) {
            for (int outside = 0; outside < TAPS; outside++) {
                float x[TAPS * WIDTH], y[WIDTH], dx[TAPS * WIDTH] = {0};
                uint8_t index[WIDTH];
                ptrdiff_t offset[TAPS];
                for (int t = 0; t < TAPS; t++) {
                    offset[t] = t == outside ? -1 : t * WIDTH;
                    for (int k = 0; k < WIDTH; k++)
                        x[t * WIDTH + k] = t == nan && k % 2 ? (float)NAN : -(float)INFINITY;
                }
                both[which]->pool_forward(x, offset, TAPS, WIDTH, y, index);
                for (int k = 0; k < WIDTH; k++) {
                    bool there = nan != outside && k % 2;
                    cr_expect(there ? isnan(y[k]) : isinf(y[k]), "NaN at %d, %d outside", nan, outside);
                    cr_expect_eq(index[k], there ? nan : outside == 0);
                }
                both[which]->pool_backward((float[WIDTH]){1, 1, 1, 1, 1, 1, 1, 1}, index, offset, TAPS, WIDTH, dx);
                float sum = 0;
                for (int k = 0; k < TAPS * WIDTH; k++)
                    sum += dx[k];
                cr_expect_eq(sum, WIDTH); /* no gradient is lost outside */
            }
        }
    }
}

Test(cpu_loss, a_label_that_is_no_class_is_named)
{
    float logits[4] = {0};
    double loss;
    size_t correct;
    const struct cross_entropy of = {.logits = logits, .labels = (int32_t[]){0, 2}, .count = 2, .classes = 2};
    cr_expect_eq(cross_entropy(&of, &loss, &correct, NULL, NULL), STATUS_FORMAT);
    cr_expect_str_eq(status_message(), "label 2 of image 1: the model has classes 0 to 1");
}

/* A model that has become worthless must not look right. */
Test(cpu_loss, what_is_not_a_number_is_no_hit)
{
    static const float nan_label[8] = {NAN, 1, 2, 3, 4, 5, 6, 7}, nan_others[8] = {9, NAN, NAN, NAN, NAN, NAN, 0, 0};
    const float *const logits[] = {nan_label, nan_others};
    const int32_t label = 0;
    for (size_t k = 0; k < 2; k++) {
        const struct cross_entropy of = {.logits = logits[k], .labels = &label, .count = 1, .classes = 8};
        double loss = 0;
        size_t top1 = 1, top5 = 1;
        cr_assert_eq(cross_entropy(&of, &loss, &top1, &top5, NULL), STATUS_OK);
        cr_expect(isnan(loss));
        cr_expect_eq(top1, 0);
        cr_expect_eq(top5, 0);
    }
}

/* PyTorch's label smoothing: (1 - s) of the label's term and s / classes of every class's; the gradient is that of the
 * loss. */
Test(cpu_loss, smoothed_targets_are_those_of_the_definition)
{
    enum { COUNT = 2, CLASSES = 3 };
    const double smoothing = 0.25, step = 1.0 / 1024;
    float logits[COUNT * CLASSES] = {0.5F, -1.25F, 2, 0, 3, -0.75F}, gradient[COUNT * CLASSES];
    const int32_t labels[COUNT] = {1, 2};
    const struct cross_entropy of = {
        .logits = logits, .labels = labels, .count = COUNT, .classes = CLASSES, .smoothing = smoothing};
    double loss, expected = 0, up, down;
    size_t correct;
    for (int n = 0; n < COUNT; n++) {
        double sum = 0;
        for (int k = 0; k < CLASSES; k++)
            sum += exp((double)logits[n * CLASSES + k]);
        for (int k = 0; k < CLASSES; k++)
            expected -= (smoothing / CLASSES + (k == labels[n] ? 1 - smoothing : 0)) *
                        log(exp((double)logits[n * CLASSES + k]) / sum);
    }
    OK(cross_entropy(&of, &loss, &correct, NULL, gradient));
    cr_expect_float_eq(loss, expected, 1e-12, "%.15g, not %.15g", loss, expected);
    for (int k = 0; k < COUNT * CLASSES; k++) {
        const float value = logits[k];
        logits[k] = value + (float)step;
        OK(cross_entropy(&of, &up, &correct, NULL, NULL));
        logits[k] = value - (float)step;
        OK(cross_entropy(&of, &down, &correct, NULL, NULL));
        logits[k] = value;
        cr_expect_float_eq((double)gradient[k], (up - down) / (2 * step) / COUNT, 1e-6);
    }
}
