/* Gradients of the cpu backend against central differences of its own forward pass: every kind of layer, every fused form,
 * every way of a convolution, and small nets of them.
 *
 * The loss is L = sum of p_i y_i over the results, in double precision. A parameter or pixel moves by +-h and +-h/2; the
 * two differences D(h), D(h/2) make (4 D(h/2) - D(h)) / 3, off by O(h^4). Where a ReLU or a maximum changes sides between
 * -h and h there is no such slope: the element is left out, and few may be.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/cpu/loss.h"
#include "nn/cpu/net.h"
#include "nn/cpu/onednn.h"
#include "nn/cpu/plan.h"
#include "nn/cpu/winograd.h"
#include "nn/models/build.h"
#include "support_golden.h"

#define OK(expression) cr_assert_geq((expression), 0, "%s", status_message())

enum { ELEMENTS_MOST = 100 }; /* tried of a tensor */

enum data {
    WHOLE,    /* small whole numbers, biases and a half: sums are exact, no ReLU after a bias is near its kink */
    THIRDS,   /* the same, where tiles of four or means divide by three */
    DISTINCT, /* images: whole numbers, no two equal */
    REAL,     /* images in two heaps, so that a ReLU after a batch norm has its kink between them */
    NET,      /* the same, and whole channels pass a ReLU or don't */
    MAXIMA,   /* as REAL with a small step: few of many maxima and ReLUs change sides */
};

/* step: h. limit: of an error, relative to the largest slope of its tensor. kink: what makes a difference no slope, likewise.
 * Measured on AVX2: WHOLE and DISTINCT exact; THIRDS 1e-4, REAL and NET 7e-4, nearly all of it the rounding of results
 * divided by h; MAXIMA 1e-2, of sides changed below `kink`. A bias, a window or a mean that a formula forgets is above 2e-2
 * in one case at least. */
static const struct {
    double step, limit, kink;
} of_data[] = {[WHOLE] = {0.25, 0, 0},          [THIRDS] = {0.25, 1e-3, 1e-2},  [DISTINCT] = {0.25, 0, 0},
               [REAL] = {1.0 / 16, 2e-3, 1e-2}, [NET] = {1.0 / 16, 2e-3, 1e-2}, [MAXIMA] = {1.0 / 512, 2e-2, 1e-2}};

struct gradient_case {
    const char *name;
    void (*layers)(struct build *build, const struct gradient_case *c);
    int channels, size, batch, out, kernel, stride; /* out: channels or the side of an average pool */
    enum data data;
    bool together; /* batch norms exchange their sums */
};

/* ---- what is tried ---- */

static void conv(struct build *build, const struct gradient_case *c)
{
    build_conv(build, BUILD_IMAGES, "conv", c->out, c->kernel, c->stride);
}

static void conv_bias(struct build *build, const struct gradient_case *c)
{
    build_conv_bias(build, BUILD_IMAGES, "conv", c->out, c->kernel, c->stride);
}

static void conv_relu(struct build *build, const struct gradient_case *c)
{
    build_relu(build, build_conv(build, BUILD_IMAGES, "conv", c->out, c->kernel, c->stride), "relu");
}

static void conv_bias_relu(struct build *build, const struct gradient_case *c)
{
    build_relu(build, build_conv_bias(build, BUILD_IMAGES, "conv", c->out, c->kernel, c->stride), "relu");
}

static void linear(struct build *build, const struct gradient_case *c)
{
    build_linear(build, build_average_pool_to(build, BUILD_IMAGES, "pool", c->size), "linear", c->out);
}

static void linear_relu(struct build *build, const struct gradient_case *c)
{
    int pool = build_average_pool_to(build, BUILD_IMAGES, "pool", c->size);
    build_relu(build, build_linear(build, pool, "linear", c->out), "relu");
}

static void norm(struct build *build, const struct gradient_case *c)
{
    (void)c;
    build_batch_norm(build, BUILD_IMAGES, "norm", false);
}

static void norm_relu(struct build *build, const struct gradient_case *c)
{
    (void)c;
    build_relu(build, build_batch_norm(build, BUILD_IMAGES, "norm", false), "relu");
}

/* The addend is a layer of its own. */
static void norm_add_relu(struct build *build, const struct gradient_case *c)
{
    (void)c;
    int first = build_batch_norm(build, BUILD_IMAGES, "norm1", false);
    int second = build_batch_norm(build, BUILD_IMAGES, "norm2", false);
    build_add_relu(build, first, second, "add");
}

static void max_pool(struct build *build, const struct gradient_case *c)
{
    (void)c;
    build_max_pool(build, BUILD_IMAGES, "pool");
}

static void max_pool_2x2(struct build *build, const struct gradient_case *c)
{
    (void)c;
    build_max_pool_2x2(build, BUILD_IMAGES, "pool");
}

static void average_pool(struct build *build, const struct gradient_case *c)
{
    build_average_pool_to(build, BUILD_IMAGES, "pool", c->out);
}

static int conv_norm(struct build *build, int input, int out, int kernel, int stride)
{
    return build_batch_norm(build, build_conv(build, input, "conv", out, kernel, stride), "norm", false);
}

static int conv_norm_relu(struct build *build, int input, int out, int kernel, int stride)
{
    return build_relu(build, conv_norm(build, input, out, kernel, stride), "relu");
}

/* As of ResNet; the input is the shortcut where the shape stays. */
static int shortcut(struct build *build, int input, const struct gradient_case *c, int out)
{
    return c->stride == 1 && c->channels == out ? input : conv_norm(build, input, out, 1, c->stride);
}

/* `x` has two readers. */
static void basic_block_of(struct build *build, int x, const struct gradient_case *c)
{
    int y = conv_norm_relu(build, x, c->out, 3, c->stride);
    y = conv_norm(build, y, c->out, 3, 1);
    build_add_relu(build, y, shortcut(build, x, c, c->out), "add");
}

static void basic_block(struct build *build, const struct gradient_case *c)
{
    basic_block_of(build, conv_norm_relu(build, BUILD_IMAGES, c->channels, 3, 1), c);
}

static void basic_block_of_maxima(struct build *build, const struct gradient_case *c)
{
    basic_block_of(build, build_max_pool(build, BUILD_IMAGES, "maximum"), c);
}

static void basic_block_of_conv(struct build *build, const struct gradient_case *c)
{
    int x = build_conv_bias(build, BUILD_IMAGES, "conv", c->channels, 3, 1);
    basic_block_of(build, build_relu(build, x, "relu"), c);
}

static void bottleneck(struct build *build, const struct gradient_case *c)
{
    int x = conv_norm_relu(build, BUILD_IMAGES, c->channels, 1, 1);
    int y = conv_norm_relu(build, x, 16, 1, 1);
    y = conv_norm_relu(build, y, 16, 3, c->stride);
    y = conv_norm(build, y, c->out, 1, 1);
    build_add_relu(build, y, shortcut(build, x, c, c->out), "add");
}

/* The head of a ResNet: plain images, 7x7, maximum, mean, linear. */
static void resnet_ends(struct build *build, const struct gradient_case *c)
{
    int x = conv_norm_relu(build, BUILD_IMAGES, c->out, 7, 2);
    x = build_average_pool(build, build_max_pool(build, x, "maximum"), "mean");
    build_linear(build, x, "linear", 7);
}

static void vgg_block(struct build *build, const struct gradient_case *c)
{
    int x = build_relu(build, build_conv_bias(build, BUILD_IMAGES, "conv1", c->out, 3, 1), "relu1");
    x = build_relu(build, build_conv_bias(build, x, "conv2", c->out, 3, 1), "relu2");
    x = build_average_pool_to(build, build_max_pool_2x2(build, x, "maximum"), "mean", 2);
    x = build_relu(build, build_linear(build, x, "linear1", 13), "relu3");
    build_linear(build, x, "linear2", 5);
}

/* name, layers, channels, size, batch, out, kernel, stride. 24 channels: no multiple of 16, which winograd.h wants. */
static const struct gradient_case cases[] = {
    {"3x3, tiles of 4", conv, 16, 15, 1, 16, 3, 1, .data = THIRDS},
    {"3x3, tiles of 4, folded", conv, 16, 11, 3, 32, 3, 1, .data = THIRDS},
    {"3x3, tiles of 2", conv, 32, 2, 32, 16, 3, 1, .data = WHOLE},
    {"3x3 / 2, tiles of 2, folded", conv, 16, 27, 3, 32, 3, 2, .data = WHOLE},
    {"3x3 / 2, tiles of 2, blocked", conv, 16, 31, 1, 16, 3, 2, .data = WHOLE},
    {"3x3, direct", conv, 24, 29, 1, 8, 3, 1, .data = WHOLE},
    {"3x3 / 2, direct", conv, 8, 59, 1, 24, 3, 2, .data = WHOLE},
    {"3x3, weights by columns", conv, 24, 17, 1, 8, 3, 1, .data = WHOLE},
    {"3x3 / 2, weights by columns", conv, 24, 29, 3, 8, 3, 2, .data = WHOLE},
    {"3x3, columns", conv, 24, 7, 3, 8, 3, 1, .data = WHOLE},
    {"3x3 / 2, columns", conv, 8, 9, 3, 24, 3, 2, .data = WHOLE},
    {"3x3 / 2, columns of blocked images", conv, 24, 27, 1, 8, 3, 2, .data = WHOLE},
    {"3x3, one pixel", conv, 24, 1, 1, 8, 3, 1, .data = WHOLE},
    {"1x1, direct", conv, 16, 15, 1, 24, 1, 1, .data = WHOLE},
    {"1x1 / 2, direct", conv, 24, 31, 1, 16, 1, 2, .data = WHOLE},
    {"1x1, folded", conv, 32, 5, 3, 24, 1, 1, .data = WHOLE},
    {"1x1 / 2, columns", conv, 24, 7, 3, 32, 1, 2, .data = WHOLE},
    {"7x7 / 2 of plain images", conv, 3, 33, 3, 16, 7, 2, .data = WHOLE},
    {"7x7 / 2 of small plain images", conv, 3, 9, 1, 24, 7, 2, .data = WHOLE},
    {"3x3 of plain images", conv, 3, 9, 3, 8, 3, 1, .data = WHOLE},
    {"bias, tiles of 4", conv_bias, 16, 15, 3, 16, 3, 1, .data = THIRDS},
    {"bias, folded", conv_bias, 24, 5, 3, 8, 3, 1, .data = WHOLE},
    {"bias, one image", conv_bias, 24, 3, 1, 16, 1, 1, .data = WHOLE},
    {"bias, plain", conv_bias, 3, 9, 3, 8, 3, 1, .data = WHOLE},
    {"ReLU without bias", conv_relu, 24, 2, 1, 8, 3, 1, .data = WHOLE},
    {"ReLU without bias, blocked", conv_relu, 24, 15, 1, 8, 3, 1, .data = MAXIMA},
    {"bias and ReLU, tiles of 4", conv_bias_relu, 16, 15, 1, 16, 3, 1, .data = THIRDS},
    {"bias and ReLU, tiles of 2", conv_bias_relu, 32, 2, 32, 16, 3, 1, .data = WHOLE},
    {"bias and ReLU, direct", conv_bias_relu, 24, 29, 1, 8, 3, 1, .data = WHOLE},
    {"bias and ReLU, columns", conv_bias_relu, 24, 7, 3, 8, 3, 1, .data = WHOLE},
    {"bias and ReLU, plain", conv_bias_relu, 3, 17, 3, 24, 3, 1, .data = WHOLE},
    {"linear", linear, 16, 1, 3, 10, 0, 0, .data = WHOLE},
    {"linear, one image", linear, 24, 3, 1, 7, 0, 0, .data = WHOLE},
    {"linear and ReLU", linear_relu, 16, 1, 3, 13, 0, 0, .data = WHOLE},
    {"linear and ReLU of pixels", linear_relu, 24, 3, 3, 9, 0, 0, .data = WHOLE},
    {"linear and ReLU, one image", linear_relu, 8, 5, 1, 3, 0, 0, .data = WHOLE},
    {"batch norm, blocked", norm, 16, 15, 3, 0, 0, 0, .data = REAL},
    {"batch norm, folded", norm, 24, 5, 3, 0, 0, 0, .data = REAL},
    {"batch norm, one image", norm, 8, 5, 1, 0, 0, 0, .data = REAL},
    {"batch norm and ReLU, blocked", norm_relu, 8, 17, 1, 0, 0, 0, .data = REAL},
    {"batch norm and ReLU, folded", norm_relu, 24, 5, 3, 0, 0, 0, .data = REAL},
    {"batch norm, addition and ReLU, blocked", norm_add_relu, 24, 15, 1, 0, 0, 0, .data = REAL},
    {"batch norm, addition and ReLU, folded", norm_add_relu, 16, 5, 3, 0, 0, 0, .data = REAL},
    {"batch norm with others", norm, 24, 5, 3, 0, 0, 0, .data = REAL, .together = true},
    {"batch norm and ReLU with others", norm_relu, 8, 5, 3, 0, 0, 0, .data = REAL, .together = true},
    {"batch norm, addition and ReLU with others", norm_add_relu, 8, 7, 1, 0, 0, 0, .data = REAL, .together = true},
    {"3x3 maxima, blocked", max_pool, 8, 33, 1, 0, 0, 0, .data = DISTINCT},
    {"3x3 maxima, folded", max_pool, 24, 7, 3, 0, 0, 0, .data = DISTINCT},
    {"3x3 maxima, even side", max_pool, 16, 4, 3, 0, 0, 0, .data = DISTINCT},
    {"2x2 maxima, blocked", max_pool_2x2, 8, 33, 1, 0, 0, 0, .data = DISTINCT},
    {"2x2 maxima, folded, a row unread", max_pool_2x2, 24, 7, 3, 0, 0, 0, .data = DISTINCT},
    {"2x2 maxima, even side", max_pool_2x2, 16, 4, 3, 0, 0, 0, .data = DISTINCT},
    {"mean, blocked", average_pool, 8, 15, 1, 1, 0, 0, .data = THIRDS},
    {"mean, folded", average_pool, 24, 7, 3, 1, 0, 0, .data = THIRDS},
    {"means that overlap", average_pool, 24, 7, 3, 3, 0, 0, .data = THIRDS},
    {"means that overlap, blocked", average_pool, 8, 17, 1, 7, 0, 0, .data = THIRDS},
    {"more means than pixels", average_pool, 8, 3, 3, 7, 0, 0, .data = THIRDS},
    {"basic block", basic_block, 16, 5, 3, 16, 0, 1, .data = NET},
    {"basic block, one image", basic_block, 24, 7, 1, 24, 0, 1, .data = NET},
    {"basic block, downsampling", basic_block, 16, 9, 3, 32, 0, 2, .data = NET},
    {"basic block of maxima", basic_block_of_maxima, 24, 9, 3, 24, 0, 1, .data = MAXIMA},
    {"basic block of a convolution with bias", basic_block_of_conv, 24, 5, 3, 24, 0, 1, .data = MAXIMA},
    {"bottleneck", bottleneck, 24, 5, 3, 24, 0, 1, .data = NET},
    {"bottleneck, projected", bottleneck, 16, 5, 3, 32, 0, 1, .data = NET},
    {"bottleneck, downsampling", bottleneck, 16, 9, 3, 32, 0, 2, .data = NET},
    {"ends of a ResNet", resnet_ends, 3, 17, 3, 8, 0, 0, .data = MAXIMA},
    {"VGG", vgg_block, 3, 9, 3, 16, 0, 0, .data = MAXIMA},
    {"VGG, one image", vgg_block, 3, 7, 1, 8, 0, 0, .data = MAXIMA},
};

enum { CASES = sizeof cases / sizeof cases[0] };

/* The table has blocks of 8 channels, AVX-512 wants 16. */
static struct gradient_case case_here(size_t k)
{
    struct gradient_case c = cases[k];
    c.channels *= c.channels % 8 == 0 ? onednn_block() / 8 : 1;
    c.out *= c.out % 8 == 0 ? onednn_block() / 8 : 1;
    return c;
}

static struct model *model_of(const struct gradient_case *c)
{
    struct build build;
    struct model *model = NULL;
    build_begin(&build, c->name, 10, c->size, c->channels);
    c->layers(&build, c);
    OK(build_end(&build, &model));
    return model;
}

/* ---- one case ---- */

struct trial {
    const struct gradient_case *c;
    struct model *model;
    struct net *net;
    size_t pixels, results;
    float *parameters, *gradients, *state, *images, *image_gradient, *result, *weight; /* of the results in the loss */
    size_t tried, left_out;
};

static float *floats(size_t count)
{
    float *values = calloc(count + 1, sizeof *values);
    cr_assert_not_null(values);
    return values;
}

/* From -2 to 2. */
static float whole(uint64_t seed, size_t index)
{
    return (float)floor(2.5 * (formula(seed, index) + 1)) - 2;
}

static void fill_whole(uint64_t seed, float shift, float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = whole(seed, i) + shift;
}

/* Largely positive: three of four channels pass the ReLU that follows, the fourth none of its values. */
static void fill_apart(uint64_t seed, double apart, float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)((i % 4 == 3 ? -apart : apart) + formula(seed, i) / 4);
}

static void fill_tensor(const struct model *model, enum data data, int t, float *values)
{
    const struct tensor *tensor = &model->tensor[t];
    const struct layer *layer = &model->layer[tensor->layer];
    const uint64_t seed = SEED_PARAMETER + (uint64_t)t;
    const bool first = t == layer->first_tensor, norm = layer->kind == LAYER_BATCH_NORM;
    values += tensor->offset;
    if (data < REAL)
        fill_whole(seed, first ? 0 : 0.5F, values, tensor->count);
    else if (first)
        formula_fill(seed, norm ? 0.25 : sqrt(3 * layer->out_channels / (double)tensor->count), norm, values,
                     tensor->count);
    else if (data != NET)
        formula_fill(seed, 0.25, 0, values, tensor->count);
    else
        fill_apart(seed, 5, values, tensor->count);
}

static void fill_images(enum data data, float *images, size_t count)
{
    const size_t stride = 2053 /* prime to every count here */, middle = count / 2;
    for (size_t i = 0; data >= REAL && i < count; i++)
        images[i] = (float)(2 + formula(SEED_PROBE, i) / 2) * (formula(SEED_INPUT, i) < 0 ? -1.0F : 1.0F);
    if (data == WHOLE || data == THIRDS)
        fill_whole(SEED_INPUT, 0, images, count);
    for (size_t i = 0; data == DISTINCT && i < count; i++)
        images[i] = (float)(i * stride % count) - (float)middle;
}

static enum status add_of_one_worker(void *context, double *values, size_t count)
{
    (void)context, (void)values, (void)count;
    return STATUS_OK;
}

static void trial_begin(const struct gradient_case *c, struct trial *trial)
{
    static const struct worker_sums sums = {.add = add_of_one_worker};
    *trial = (struct trial){.c = c, .model = model_of(c)};
    struct model *model = trial->model;
    const struct layer *last = &model->layer[model->layers - 1];
    trial->pixels = (size_t)c->batch * (size_t)(c->channels * c->size * c->size);
    trial->results = (size_t)c->batch * (size_t)(last->out_channels * last->out_height * last->out_width);
    trial->images = floats(trial->pixels);
    trial->image_gradient = c->channels % 8 == 0 ? floats(trial->pixels) : NULL; /* plain images have none */
    trial->parameters = floats(model->parameters);
    trial->gradients = floats(model->parameters);
    trial->state = floats(model->state);
    trial->result = floats(trial->results);
    trial->weight = floats(trial->results);
    OK(net_create(&(struct net_request){model, c->batch, 1, trial->image_gradient != NULL, c->together ? &sums : NULL},
                  &trial->net));
    float *canonical = floats(model->parameters);
    fill_images(c->data, trial->images, trial->pixels);
    fill_whole(SEED_PROBE, 0, trial->weight, trial->results);
    for (int t = 0; t < model->tensors; t++)
        fill_tensor(model, c->data, t, canonical);
    OK(net_to_native(trial->net, canonical, trial->parameters));
    free(canonical);
}

static void trial_end(struct trial *trial)
{
    net_destroy(trial->net);
    model_destroy(trial->model);
    free(trial->images);
    free(trial->image_gradient);
    free(trial->parameters);
    free(trial->gradients);
    free(trial->state);
    free(trial->result);
    free(trial->weight);
}

static double loss(struct trial *trial)
{
    double sum = 0;
    OK(net_train(trial->net, trial->parameters, trial->state, trial->images, NULL));
    net_read_output(trial->net, trial->result);
    for (size_t i = 0; i < trial->results; i++)
        sum += (double)trial->weight[i] * (double)trial->result[i];
    return sum;
}

static void backward(struct trial *trial)
{
    (void)loss(trial);
    net_write_last_gradient(trial->net, trial->weight);
    for (size_t i = 0; i < trial->model->parameters; i++)
        trial->gradients[i] = NAN;
    OK(net_backward(trial->net, trial->parameters, trial->gradients, NULL));
    if (trial->image_gradient != NULL)
        net_read_image_gradient(trial->net, trial->image_gradient);
}

/* kink: what the slope may be off by because it is not the same on both sides, or not all the way. */
struct slope {
    double value, kink;
};

static struct slope slope_of(struct trial *trial, float *element, float step, double loss_here)
{
    const float here = *element;
    double difference[2], bend[2];
    for (int k = 0; k < 2; k++) {
        const float h = k == 0 ? step : step / 2;
        *element = here + h;
        const double up = loss(trial), h_up = (double)*element - (double)here;
        *element = here - h;
        const double down = loss(trial), h_down = (double)here - (double)*element;
        difference[k] = (up - down) / (h_up + h_down);
        bend[k] = (up - loss_here) / h_up - (loss_here - down) / h_down;
    }
    *element = here;
    return (struct slope){.value = (4 * difference[1] - difference[0]) / 3,
                          .kink = fmax(fabs(difference[1] - difference[0]), fabs(2 * bend[1] - bend[0]))};
}

/* `count` values that the loss depends on, some of them if they are many. */
static void try_values(struct trial *trial, const char *name, float *values, const float *gradient, size_t count)
{
    static struct slope slope[ELEMENTS_MOST];
    const size_t stride = 7919 /* prime to every count here */, tried = count < ELEMENTS_MOST ? count : ELEMENTS_MOST;
    const double here = loss(trial), limit = of_data[trial->c->data].limit;
    const float step = (float)of_data[trial->c->data].step * (values == trial->images && trial->c->data == NET ? 4 : 1);
    double largest = 0, worst = 0;
    for (size_t k = 0; k < tried; k++) {
        slope[k] = slope_of(trial, &values[k * stride % count], step, here);
        largest = fmax(largest, fabs(slope[k].value));
    }
    cr_assert_gt(largest, 0, "%s: nothing depends on %s", trial->c->name, name);
    for (size_t k = 0; k < tried; k++) {
        const double error = fabs((double)gradient[k * stride % count] - slope[k].value) / largest;
        if (slope[k].kink > of_data[trial->c->data].kink * largest)
            trial->left_out++;
        else if (!(error <= worst))
            worst = isnan(error) ? INFINITY : error;
    }
    trial->tried += tried;
    cr_expect(worst <= limit, "%s: gradient by %s: %.3g of the largest", trial->c->name, name, worst);
}

static void run(const struct gradient_case *c)
{
    struct trial trial;
    trial_begin(c, &trial);
    backward(&trial);
    for (int t = 0; t < trial.model->tensors; t++) {
        const struct tensor *tensor = &trial.model->tensor[t];
        try_values(&trial, tensor->name, trial.parameters + tensor->offset, trial.gradients + tensor->offset,
                   tensor->count);
    }
    if (trial.image_gradient != NULL)
        try_values(&trial, "the images", trial.images, trial.image_gradient, trial.pixels);
    cr_expect_leq(4 * trial.left_out, trial.tried, "%s: %zu of %zu elements are at a kink", c->name, trial.left_out,
                  trial.tried);
    trial_end(&trial);
}

void omp_set_num_threads(int threads); /* as in omp.h; oneDNN's */

/* ---- whether all is tried ---- */

/* NULL behind the last; a new kind does not compile without its name. */
static const char *kind_name(int kind)
{
    switch ((enum layer_kind)kind) {
    case LAYER_CONV:
        return "convolution";
    case LAYER_BATCH_NORM:
        return "batch norm";
    case LAYER_RELU:
        return "ReLU";
    case LAYER_ADD_RELU:
        return "addition and ReLU";
    case LAYER_MAX_POOL:
        return "maxima";
    case LAYER_AVERAGE_POOL:
        return "means";
    case LAYER_LINEAR:
        return "linear";
    }
    return NULL;
}

/* Ways of net.c through a convolution. */
enum way {
    TILES_OF_TWO,
    TILES_OF_FOUR,
    TILES_OF_STRIDE_TWO,
    PLAIN,
    WHERE_IT_LIES, /* folded */
    COLUMNS,       /* of a folded input; of a blocked one */
    COLUMNS_OF_BLOCKED,
    WEIGHTS_BY_COLUMNS,
    DIRECT,
    WAYS
};

static const char *const way_name[WAYS] = {"tiles of two",       "tiles of four",        "stride two, tiles",
                                           "plain images",       "folded where it lies", "columns",
                                           "columns of blocked", "weights by columns",   "direct"};

static enum way way_of(const struct layer *layer, const struct value *in, const struct value *out)
{
    const int tile = layer->kernel == 3 ? winograd_tile(in, out, layer->stride) : 0;
    if (tile > 0)
        return layer->stride == 2 ? TILES_OF_STRIDE_TWO : tile == 2 ? TILES_OF_TWO : TILES_OF_FOUR;
    if (in->block == 1)
        return PLAIN;
    if (out->folded && layer->kernel == 1 && layer->stride == 1)
        return WHERE_IT_LIES;
    if (out->folded)
        return in->folded ? COLUMNS : COLUMNS_OF_BLOCKED;
    return layer->kernel == 3 && layer->out_height <= COLUMN_SIDE ? WEIGHTS_BY_COLUMNS : DIRECT;
}

/* Bits of a node's form: what is fused and how the result lies. */
enum { FORM_RELU = 1, FORM_ADD = 2, FORM_BIAS = 4, FORM_FOLDED = 8, FORMS = 16 };

static int form_of(const struct plan *plan, const struct node *node)
{
    return (node->relu ? FORM_RELU : 0) + (node->second >= 0 ? FORM_ADD : 0) +
           (plan->model->layer[node->layer].bias ? FORM_BIAS : 0) +
           (plan->value[node->output].folded ? FORM_FOLDED : 0);
}

struct tally {
    size_t kind[LAYER_LINEAR + 1], way[WAYS], form[NODE_LINEAR + 1][FORMS];
};

static void count_case(const struct gradient_case *c, struct tally *tally)
{
    struct model *model = model_of(c);
    struct plan *plan = NULL;
    OK(plan_create(model, c->batch, onednn_block(), c->channels % 8 == 0, &plan));
    for (int k = 0; k < model->layers; k++)
        tally->kind[model->layer[k].kind]++;
    for (int k = 0; k < plan->nodes; k++) {
        const struct node *node = &plan->node[k];
        tally->form[node->kind][form_of(plan, node)]++;
        if (node->kind == NODE_CONV)
            tally->way[way_of(&model->layer[node->layer], &plan->value[node->input], &plan->value[node->output])]++;
    }
    plan_destroy(plan);
    model_destroy(model);
}

Test(cpu_gradients, every_kind_form_and_way_is_tried)
{
    struct tally tally = {0};
    for (size_t k = 0; k < CASES; k++) {
        const struct gradient_case c = case_here(k);
        count_case(&c, &tally);
    }
    for (int kind = 0; kind_name(kind) != NULL; kind++)
        cr_expect_gt(tally.kind[kind], 0, "no case of %s", kind_name(kind));
    for (int folded = 0; folded <= FORM_FOLDED; folded += FORM_FOLDED) {
        for (int k = 0; k < 4; k++) /* with and without bias and ReLU */
            cr_expect_gt(tally.form[NODE_CONV][folded + (k & 1) + (k & 2) * 2], 0, "no convolution of form %d", k);
        cr_expect_gt(tally.form[NODE_NORM][folded], 0);
        cr_expect_gt(tally.form[NODE_NORM][folded + FORM_RELU], 0);
        cr_expect_gt(tally.form[NODE_NORM][folded + FORM_RELU + FORM_ADD], 0);
        cr_expect_gt(tally.form[NODE_MAX_POOL][folded], 0);
    }
    cr_expect_gt(tally.form[NODE_AVERAGE_POOL][0], 0);
    cr_expect_gt(tally.form[NODE_LINEAR][0], 0);
    cr_expect_gt(tally.form[NODE_LINEAR][FORM_RELU], 0);
    for (int way = winograd_runs() && onednn_block() == 8 ? 0 : PLAIN; way < WAYS; way++)
        cr_expect_gt(tally.way[way], 0, "no convolution by %s", way_name[way]);
}

Test(cpu_gradients, are_the_slopes_of_the_loss)
{
    omp_set_num_threads(1);
    for (size_t k = 0; k < CASES; k++) {
        const struct gradient_case c = case_here(k);
        run(&c);
    }
}

/* The gradient is of the mean over the images. */
static void try_loss(size_t count, size_t classes, double smoothing)
{
    enum { VALUES_MOST = 64 };
    const float step = 1.0F / 64;
    float logits[VALUES_MOST], gradient[VALUES_MOST];
    int32_t labels[VALUES_MOST];
    size_t correct = 0;
    const struct cross_entropy of = {
        .logits = logits, .labels = labels, .count = count, .classes = classes, .smoothing = smoothing};
    formula_fill(SEED_INPUT, 4, 0, logits, count * classes);
    for (size_t n = 0; n < count; n++)
        labels[n] = (int32_t)((n * 7 + 2) % classes);
    double sum = 0;
    OK(cross_entropy(&of, &sum, &correct, NULL, gradient));
    for (size_t k = 0; k < count * classes; k++) {
        double difference[2];
        for (int half = 0; half < 2; half++) {
            const float here = logits[k], h = half ? step / 2 : step;
            double up, down;
            logits[k] = here + h;
            const double above = (double)logits[k];
            OK(cross_entropy(&of, &up, &correct, NULL, NULL));
            logits[k] = here - h;
            const double below = (double)logits[k];
            OK(cross_entropy(&of, &down, &correct, NULL, NULL));
            logits[k] = here;
            difference[half] = (up - down) / (above - below);
        }
        cr_expect_float_eq((double)gradient[k], (4 * difference[1] - difference[0]) / 3 / (double)count, 1e-7,
                           "%zu images, %zu classes, smoothing %g", count, classes, smoothing);
    }
}

Test(cpu_gradients, of_cross_entropy)
{
    for (size_t count = 1; count <= 3; count += 2) {
        for (size_t classes = 1; classes <= 13; classes += 3) {
            try_loss(count, classes, 0);
            try_loss(count, classes, 0.1);
            try_loss(count, classes, 1);
        }
    }
}
