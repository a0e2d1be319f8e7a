/* Convolutions where there is a card: every candidate of every direction, by the graph API and by legacy calls, against
 * plain loops. The same suite runs on the fake device (fake/fake.h), so that what a card is given is known to be right;
 * without either it is skipped.
 *
 * Data are small integers, so that all sums are exact, or rounded once: what differs by more is a wrong index, not rounding
 * (Winograd and FFT engines round, by far less). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/half.h"
#include "base/rng.h"
#include "nn/cuda/dnn_internal.h"
#include "support_dnn.h"

#define CUDA_OK(call)                                                                                                  \
    do {                                                                                                               \
        cudaError_t cuda_code = (call);                                                                                \
        cr_assert_eq(cuda_code, cudaSuccess, "%s: %s", #call, cudaGetErrorString(cuda_code));                          \
    } while (0)

/* ---- the card ---- */

static cudaStream_t stream;
static struct dnn *dnn;

static void open_card(void)
{
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(dnn_open(&(struct dnn_request){.device = 0, .stream = stream}, &dnn));
}

static void close_card(void)
{
    dnn_close(dnn);
    CUDA_OK(cudaStreamDestroy(stream));
}

/* ---- tensors ---- */

/* On the host as f32, on the card in its type. */
struct tensor_pair {
    float *host;
    void *card;
    size_t count, bytes;
    enum dtype type;
};

static struct tensor_pair pair_create(size_t count, enum dtype type)
{
    struct tensor_pair pair = {.count = count, .bytes = count * dtype_size(type), .type = type};
    pair.host = calloc(count, sizeof(float));
    cr_assert_not_null(pair.host);
    CUDA_OK(cudaMalloc(&pair.card, pair.bytes));
    return pair;
}

static void pair_destroy(struct tensor_pair *pair)
{
    free(pair->host);
    CUDA_OK(cudaFree(pair->card));
}

/* -1, 0 or 1 by index: sums of a few hundred products stay below 256, which even bf16 holds. */
static void fill(struct tensor_pair *pair, uint64_t seed)
{
    for (size_t i = 0; i < pair->count; i++)
        pair->host[i] = (float)((int)rng_below(seed, i, 3) - 1);
}

static void encode(const struct tensor_pair *pair, void *to)
{
    if (pair->type == DTYPE_F16)
        f16_encode(to, pair->host, pair->count);
    else if (pair->type == DTYPE_BF16)
        bf16_encode(to, pair->host, pair->count);
    else
        memcpy(to, pair->host, pair->bytes);
}

static void decode(const struct tensor_pair *pair, const void *from, float *to)
{
    if (pair->type == DTYPE_F16)
        f16_decode(to, from, pair->count);
    else if (pair->type == DTYPE_BF16)
        bf16_decode(to, from, pair->count);
    else
        memcpy(to, from, pair->bytes);
}

static void upload(const struct tensor_pair *pair)
{
    void *encoded = malloc(pair->bytes);
    cr_assert_not_null(encoded);
    encode(pair, encoded);
    CUDA_OK(cudaMemcpyAsync(pair->card, encoded, pair->bytes, cudaMemcpyDefault, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    free(encoded);
}

/* All bits set are NaN in every type. */
static void poison(const struct tensor_pair *pair)
{
    CUDA_OK(cudaMemsetAsync(pair->card, 0xff, pair->bytes, stream));
}

static void download(const struct tensor_pair *pair, float *to)
{
    void *encoded = malloc(pair->bytes);
    cr_assert_not_null(encoded);
    CUDA_OK(cudaMemcpyAsync(encoded, pair->card, pair->bytes, cudaMemcpyDefault, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    decode(pair, encoded, to);
    free(encoded);
}

static void expect_equal(const struct tensor_pair *expected, const char *what, const char *engine)
{
    float *seen = calloc(expected->count, sizeof(float));
    size_t wrong = 0, first = 0;
    cr_assert_not_null(seen);
    download(expected, seen);
    for (size_t i = 0; i < expected->count; i++) {
        /* large sums of 16-bit types are rounded once: by a half of the last of 8 or 11 bits */
        if (fabsf(seen[i] - expected->host[i]) < 0.25F + fabsf(expected->host[i]) / 128)
            continue;
        if (wrong++ == 0)
            first = i;
    }
    cr_expect_eq(wrong, 0, "%s in %s by engine %s: %zu of %zu are wrong, the first at %zu: %g, not %g", what,
                 dtype_name(expected->type), engine, wrong, expected->count, first, (double)seen[first],
                 (double)expected->host[first]);
    free(seen);
}

/* ---- plain loops ---- */

struct problem {
    struct dnn_convolution_request request;
    struct tensor_pair x, w, y, dx, dw, dy;
    struct tensor_pair workspace; /* as f32 */
};

/* Calls `term` for each product of the convolution with its places in x, w and y. */
static void for_products(const struct problem *problem, void (*term)(const struct problem *, int, int, int))
{
    const struct dnn_convolution_request *q = &problem->request;
    int height = shape_out_height(q), width = shape_out_width(q);
    for (int n = 0; n < q->batch; n++) {
        for (int i = 0; i < height * width * q->kernel_height * q->kernel_width; i++) {
            int s = i % q->kernel_width, r = i / q->kernel_width % q->kernel_height;
            int at = i / (q->kernel_width * q->kernel_height), column = at % width, row = at / width;
            int h = row * q->stride - q->padding + r, v = column * q->stride - q->padding + s;
            if (h < 0 || h >= q->in_height || v < 0 || v >= q->in_width)
                continue;
            for (int k = 0; k < q->out_channels; k++) {
                for (int c = 0; c < q->in_channels; c++)
                    term(problem, ((n * q->in_height + h) * q->in_width + v) * q->in_channels + c,
                         ((k * q->kernel_height + r) * q->kernel_width + s) * q->in_channels + c,
                         ((n * height + row) * width + column) * q->out_channels + k);
            }
        }
    }
}

static void add_product(const struct problem *p, int x, int w, int y)
{
    p->y.host[y] += p->x.host[x] * p->w.host[w];
    p->dx.host[x] += p->w.host[w] * p->dy.host[y];
    p->dw.host[w] += p->x.host[x] * p->dy.host[y];
}

static size_t elements(int a, int b, int c, int d)
{
    return (size_t)a * (size_t)b * (size_t)c * (size_t)d;
}

static struct problem problem_create(const struct dnn_convolution_request *request)
{
    struct problem problem = {.request = *request};
    size_t x = elements(request->batch, request->in_height, request->in_width, request->in_channels);
    size_t w = elements(request->out_channels, request->kernel_height, request->kernel_width, request->in_channels);
    size_t y = elements(request->batch, shape_out_height(request), shape_out_width(request), request->out_channels);
    problem.x = pair_create(x, request->type);
    problem.dx = pair_create(x, request->type);
    problem.w = pair_create(w, request->type);
    problem.dw = pair_create(w, request->type);
    problem.y = pair_create(y, request->type);
    problem.dy = pair_create(y, request->type);
    problem.workspace = pair_create(request->workspace_cap / sizeof(float), DTYPE_F32);
    fill(&problem.x, 1);
    fill(&problem.w, 2);
    fill(&problem.dy, 3);
    upload(&problem.x);
    upload(&problem.w);
    upload(&problem.dy);
    return problem;
}

static void problem_destroy(struct problem *problem)
{
    pair_destroy(&problem->workspace);
    pair_destroy(&problem->dy);
    pair_destroy(&problem->dw);
    pair_destroy(&problem->dx);
    pair_destroy(&problem->y);
    pair_destroy(&problem->w);
    pair_destroy(&problem->x);
}

/* ---- checking ---- */

static void run_direction(const struct problem *problem, struct dnn_convolution *convolution,
                          enum dnn_direction direction)
{
    void *workspace = problem->workspace.card;
    const struct dnn_choice *choice = dnn_convolution_choice(convolution, direction);
    cr_assert_not_null(choice);
    switch (direction) {
    case DNN_FORWARD:
        poison(&problem->y);
        OK(dnn_convolution_forward(convolution, problem->x.card, problem->w.card, problem->y.card, workspace));
        expect_equal(&problem->y, "y", choice->engine);
        break;
    case DNN_BACKWARD_DATA:
        poison(&problem->dx);
        OK(dnn_convolution_backward_data(convolution, problem->w.card, problem->dy.card, problem->dx.card, workspace));
        expect_equal(&problem->dx, "dx", choice->engine);
        break;
    case DNN_BACKWARD_FILTER:
        poison(&problem->dw);
        OK(dnn_convolution_backward_filter(convolution, problem->x.card, problem->dy.card, problem->dw.card,
                                           workspace));
        expect_equal(&problem->dw, "dw", choice->engine);
        break;
    case DNN_DIRECTIONS:
        break;
    }
}

/* Each candidate comes first once. */
static void run_candidates(const struct problem *problem, struct dnn_convolution *convolution)
{
    for (size_t d = 0; d < DNN_DIRECTIONS; d++) {
        struct direction *direction = &convolution->shape->direction[d];
        cr_expect_eq(direction->plans > 0, convolution->planned[d]);
        for (size_t k = 0; k < direction->plans; k++) {
            struct plan first = direction->plan[0];
            direction->plan[0] = direction->plan[k];
            direction->plan[k] = first;
            run_direction(problem, convolution, (enum dnn_direction)d);
        }
    }
}

static void check(struct dnn_convolution_request request)
{
    struct problem problem = problem_create(&request);
    for_products(&problem, add_product);
    const struct dnn_buffers buffers = {problem.x.card,  problem.w.card,         problem.y.card,
                                        problem.dw.card, problem.workspace.card, request.workspace_cap};
    for (int legacy = 0; legacy < 2; legacy++) {
        request.implementation = legacy != 0 ? DNN_LEGACY : DNN_GRAPH;
        struct dnn_convolution *convolution = create(dnn, &request);
        run_candidates(&problem, convolution);
        OK(dnn_convolution_choose(convolution, &buffers, true)); /* overwrites x */
        upload(&problem.x);
        run_candidates(&problem, convolution);
        dnn_convolution_destroy(convolution);
    }
    problem_destroy(&problem);
}

/* Too large for plain loops: what the first engine says, all others must say. */
static void check_agreement(const struct layer *layer, int batch, enum dtype type)
{
    struct dnn_convolution_request request = request_of_layer(layer, batch, type, false);
    request.workspace_cap = 32 * MIB;
    struct problem problem = problem_create(&request);
    struct tensor_pair *results[DNN_DIRECTIONS] = {&problem.y, &problem.dx, &problem.dw};
    struct dnn_convolution *graph = create(dnn, &request);
    OK(dnn_convolution_forward(graph, problem.x.card, problem.w.card, problem.y.card, problem.workspace.card));
    if (!request.no_backward_data)
        OK(dnn_convolution_backward_data(graph, problem.w.card, problem.dy.card, problem.dx.card,
                                         problem.workspace.card));
    OK(dnn_convolution_backward_filter(graph, problem.x.card, problem.dy.card, problem.dw.card,
                                       problem.workspace.card));
    for (size_t d = 0; d < DNN_DIRECTIONS; d++) {
        if (graph->planned[d])
            download(results[d], results[d]->host);
    }
    request.implementation = DNN_LEGACY;
    struct dnn_convolution *legacy = create(dnn, &request);
    run_candidates(&problem, graph);
    run_candidates(&problem, legacy);
    dnn_convolution_destroy(legacy);
    dnn_convolution_destroy(graph);
    problem_destroy(&problem);
}

static bool is_fake(void)
{
    return strstr(dnn->card, "fake") != NULL;
}

static bool seen_before(const struct model *model, int layer)
{
    const struct layer *b = &model->layer[layer];
    for (int k = 0; k < layer; k++) {
        const struct layer *a = &model->layer[k];
        if (a->kind == LAYER_CONV && a->in_channels == b->in_channels && a->out_channels == b->out_channels &&
            a->in_height == b->in_height && a->kernel == b->kernel && a->stride == b->stride)
            return true;
    }
    return false;
}

/* ---- the cases ---- */

static void check_shapes(enum dtype type, bool tf32)
{
    static const struct {
        int batch, channels, height, width, filters, kernel, stride;
    } shapes[] = {{2, 8, 6, 5, 16, 3, 1},  /* as most            */
                  {1, 8, 9, 10, 8, 7, 2},  /* as the stem        */
                  {3, 24, 5, 4, 40, 1, 1}, /* no powers of two   */
                  {2, 16, 7, 5, 8, 1, 2},  /* as a shortcut      */
                  {2, 16, 5, 7, 24, 3, 2}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        struct dnn_convolution_request request = request_3x3();
        request.type = type;
        request.tf32 = tf32;
        request.batch = shapes[k].batch;
        request.in_channels = shapes[k].channels;
        request.in_height = shapes[k].height;
        request.in_width = shapes[k].width;
        request.out_channels = shapes[k].filters;
        request.kernel_height = request.kernel_width = shapes[k].kernel;
        request.stride = shapes[k].stride;
        request.padding = shapes[k].kernel / 2;
        request.workspace_cap = 8 * MIB;
        check(request);
    }
}

TestSuite(dnn_card, .init = open_card, .fini = close_card);

Test(dnn_card, f32)
{
    check_shapes(DTYPE_F32, false);
}

Test(dnn_card, tf32)
{
    check_shapes(DTYPE_F32, true);
}

Test(dnn_card, bf16)
{
    check_shapes(DTYPE_BF16, false);
}

Test(dnn_card, f16)
{
    check_shapes(DTYPE_F16, false);
}

/* A card computes ResNet-50's convolutions; the fake device, in plain loops, those of the small network. */
static void check_model(enum dtype type)
{
    struct model *model = NULL;
    OK(is_fake() ? model_create("cnn", 10, 8, &model) : model_create("resnet50", 1000, 224, &model));
    cr_assert_not_null(model);
    for (int k = 0; k < model->layers; k++) {
        if (model->layer[k].kind == LAYER_CONV && !seen_before(model, k))
            check_agreement(&model->layer[k], 8, type);
    }
    model_destroy(model);
}

Test(dnn_card, engines_agree_in_bf16)
{
    check_model(DTYPE_BF16);
}

Test(dnn_card, engines_agree_in_f16)
{
    check_model(DTYPE_F16);
}

/* What the card is to cuDNN, in the words of h200.json; tests/card.sh keeps it. */
Test(dnn_card, describes_itself)
{
    if (is_fake())
        cr_skip_test("the fake device has none of these properties");
    struct text text = {0};
    const char *path = getenv("CHORALE_DESCRIBE_CARD"); /* NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile */
    OK(dnn_description(dnn, &text));
    cr_expect_not_null(strstr(text_string(&text), "\"deviceVer\""), "%s", text_string(&text));
    if (path != NULL)
        OK(file_write_atomic(path, text_string(&text), text.length));
    text_release(&text);
}

/* Without a card the whole suite is skipped, and says why. */
int main(int argc, char **argv)
{
    int cards = 0;
    cudaError_t code = cudaGetDeviceCount(&cards);
    if (code != cudaSuccess || cards < 1) {
        printf("skipped: no card here: %s\n", cudaGetErrorString(code));
        return 77;
    }
    struct criterion_test_set *tests = criterion_initialize();
    int failed = 0;
    if (criterion_handle_args(argc, argv, true) != 0)
        failed = criterion_run_all_tests(tests) == 0;
    criterion_finalize(tests);
    return failed;
}
