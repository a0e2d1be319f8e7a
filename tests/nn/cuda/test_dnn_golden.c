/* Every convolution of ResNet-50 and ResNet-18 gets plans on an H200 that is only described (h200.json), and the first
 * choices are those of h200.plans. CHORALE_WRITE_GOLDEN=1 writes that file anew. Of another cuDNN than the file's, the
 * plans are made, but not compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "nn/cuda/dnn_internal.h"
#include "support_dnn.h"

#define GOLDEN CHORALE_SOURCE_DIR "/tests/nn/cuda/h200.plans"
#define SHAPES_MAX 64

static const struct {
    const char *name;
    enum dtype type;
    bool tf32;
} precisions[] = {
    {"bf16", DTYPE_BF16, false}, {"f16", DTYPE_F16, false}, {"tf32", DTYPE_F32, true}, {"f32", DTYPE_F32, false}};
static const int batches[] = {64, 256};
static const char *const models[] = {"resnet50", "resnet18"};
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- the distinct shapes of both models ---- */

struct shapes {
    struct model *model[COUNT(models)];
    const struct layer *layer[SHAPES_MAX];
    size_t count, convolutions;
};

static bool same_shape(const struct layer *a, const struct layer *b)
{
    return a->in_channels == b->in_channels && a->out_channels == b->out_channels && a->in_height == b->in_height &&
           a->in_width == b->in_width && a->kernel == b->kernel && a->stride == b->stride && a->padding == b->padding;
}

static void add_shape(struct shapes *shapes, const struct layer *layer)
{
    shapes->convolutions++;
    for (size_t k = 0; k < shapes->count; k++) {
        if (same_shape(shapes->layer[k], layer))
            return;
    }
    cr_assert_lt(shapes->count, SHAPES_MAX);
    shapes->layer[shapes->count++] = layer;
}

static struct shapes shapes_create(void)
{
    struct shapes shapes = {.count = 0};
    for (size_t m = 0; m < COUNT(models); m++) {
        OK(model_create(models[m], 1000, 224, &shapes.model[m]));
        for (int k = 0; k < shapes.model[m]->layers; k++) {
            if (shapes.model[m]->layer[k].kind == LAYER_CONV)
                add_shape(&shapes, &shapes.model[m]->layer[k]);
        }
    }
    return shapes;
}

static void shapes_destroy(struct shapes *shapes)
{
    for (size_t m = 0; m < COUNT(models); m++)
        model_destroy(shapes->model[m]);
}

/* ---- one line for each direction ---- */

/* "bf16 64x56x56x64,64x3x3x64,s1,p1 forward engine=62 workspace=131 tensor-core deterministic" */
static void add_line(struct text *text, const char *precision, const struct dnn_convolution_request *request,
                     enum dnn_direction direction, const struct dnn_choice *choice)
{
    text_addf(text, "%s %dx%dx%dx%d,%dx%dx%dx%d,s%d,p%d %s ", precision, request->batch, request->in_height,
              request->in_width, request->in_channels, request->out_channels, request->kernel_height,
              request->kernel_width, request->in_channels, request->stride, request->padding,
              dnn_direction_name(direction));
    text_addf(text, "engine=%.*s workspace=%zu%s%s\n", (int)strcspn(choice->engine, ":"), choice->engine,
              choice->workspace, choice->tensor_core ? " tensor-core" : "",
              choice->deterministic ? " deterministic" : "");
}

static void check_stem(const struct layer *layer, enum dtype type, const struct dnn_convolution *convolution)
{
    if (layer->input >= 0)
        return;
    cr_expect_null(dnn_convolution_choice(convolution, DNN_BACKWARD_DATA), "the images need no gradient");
    if (type != DTYPE_F32)
        cr_expect_eq(dnn_convolution_choice(convolution, DNN_FORWARD)->workspace, 0,
                     "padded to 8 channels, the stem needs no conversion in a workspace");
}

/* The heuristics' first need not: engine 1 is its first for ResNet-18's narrow shortcut. */
static bool has_tensor_cores(const struct dnn_convolution *convolution, size_t which)
{
    const struct direction *direction = &convolution->shape->direction[which];
    for (size_t k = 0; k < direction->plans; k++) {
        if (direction->plan[k].choice.tensor_core)
            return true;
    }
    return false;
}

static void plan_layer(struct dnn *dnn, const struct layer *layer, int batch, size_t precision, struct text *text)
{
    struct dnn_convolution_request request =
        request_of_layer(layer, batch, precisions[precision].type, precisions[precision].tf32);
    struct dnn_convolution *convolution = create(dnn, &request);
    for (size_t d = 0; d < DNN_DIRECTIONS; d++) {
        const struct dnn_choice *choice = dnn_convolution_choice(convolution, (enum dnn_direction)d);
        if (choice == NULL)
            continue;
        add_line(text, precisions[precision].name, &request, (enum dnn_direction)d, choice);
        cr_expect_leq(choice->workspace, request.workspace_cap);
        if (precisions[precision].type != DTYPE_F32)
            cr_expect(has_tensor_cores(convolution, d), "%s, %s: no candidate uses tensor cores", layer->name,
                      dnn_direction_name((enum dnn_direction)d));
        if (strcmp(precisions[precision].name, "f32") == 0)
            cr_expect_not(choice->tensor_core, "%s: f32 must not round to tf32", layer->name);
    }
    check_stem(layer, precisions[precision].type, convolution);
    dnn_convolution_destroy(convolution);
}

static void plan_all(struct dnn *dnn, const struct shapes *shapes, struct text *text)
{
    text_add(text, "# First choices of the heuristics on the device of h200.json (see README.md here), by\n"
                   "# CHORALE_WRITE_GOLDEN=1 nn_test_dnn_golden\n");
    dnn_describe(dnn, text);
    text_add(text, "\n");
    for (size_t p = 0; p < COUNT(precisions); p++) {
        for (size_t b = 0; b < COUNT(batches); b++) {
            for (size_t k = 0; k < shapes->count; k++)
                plan_layer(dnn, shapes->layer[k], batches[b], p, text);
        }
    }
    OK(text_check(text));
}

/* ---- comparing ---- */

static void compare(const char *seen, const char *golden)
{
    for (int line = 1; *seen != '\0' || *golden != '\0'; line++) {
        size_t a = strcspn(seen, "\n"), b = strcspn(golden, "\n");
        cr_expect(a == b && memcmp(seen, golden, a) == 0, "h200.plans:%d:\n  is   %.*s\n  was  %.*s", line, (int)a,
                  seen, (int)b, golden);
        seen += a + (seen[a] == '\n');
        golden += b + (golden[b] == '\n');
    }
}

static bool of_this_version(struct dnn *dnn, const char *golden)
{
    struct text version = {NULL}, line = {NULL};
    dnn_describe(dnn, &version);
    text_addf(&line, "\n%s\n", text_string(&version));
    bool same = strstr(golden, text_string(&line)) != NULL;
    if (!same)
        cr_log_warn("plans are not compared: h200.plans is not of %s", text_string(&version));
    text_release(&line);
    text_release(&version);
    return same;
}

Test(dnn_golden, every_convolution_of_the_resnets_has_plans_on_a_described_h200)
{
    struct dnn *dnn = open_planning(NULL);
    struct shapes shapes = shapes_create();
    cr_expect_eq(shapes.convolutions, 53 + 20);
    struct text text = {NULL};
    plan_all(dnn, &shapes, &text);
    if (getenv("CHORALE_WRITE_GOLDEN") != NULL) {
        OK(file_write_atomic(GOLDEN, text_string(&text), text.length));
    } else {
        char *golden = NULL;
        size_t length = 0;
        OK(file_read(GOLDEN, 1 << 20, &golden, &length));
        if (of_this_version(dnn, golden))
            compare(text_string(&text), golden);
        free(golden);
    }
    text_release(&text);
    shapes_destroy(&shapes);
    dnn_close(dnn);
}
