/* cudnn.c - what of cuDNN needs a card, for the fake device; see fake.h.
 *
 * The real library answers everything else: its descriptors, heuristics and plans. Where it would ask the card, it is told
 * the described one. The addresses of a variant pack can't be read back: they are looked at as they are set.
 */
#define _GNU_SOURCE /* RTLD_NOLOAD */
#include <cudnn.h>
#include <dlfcn.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/nn/cuda/fake/fake.h"

enum { ENGINES_MOST = 2, FAKE_ALGORITHMS = 2, DESCRIPTION_MOST = 4096, LEGACY_WORKSPACE = 1024 };

struct cudnnContext {
    cudaStream_t stream;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the real library ---- */

typedef cudnnStatus_t set_attribute_fn(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                       cudnnBackendAttributeType_t, int64_t, const void *);
typedef cudnnStatus_t get_attribute_fn(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                       cudnnBackendAttributeType_t, int64_t, int64_t *, void *);
typedef cudnnStatus_t destroy_fn(cudnnBackendDescriptor_t);

static set_attribute_fn *real_set;
static get_attribute_fn *real_get;
static destroy_fn *real_destroy;
static cudnnBackendDescriptor_t card; /* its properties */

static void *real(const char *name)
{
    void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library != NULL ? dlsym(library, name) : NULL;
    if (symbol == NULL) {
        (void)fprintf(stderr, "fake device: %s is not in libcudnn.so.9\n", name);
        abort();
    }
    return symbol;
}

static void read_description(char *text, size_t size)
{
    FILE *file = fopen(CHORALE_SOURCE_DIR "/tests/nn/cuda/h200.json", "r");
    const size_t length = file != NULL ? fread(text, 1, size - 1, file) : 0;
    text[length] = '\0';
    if (file != NULL)
        (void)fclose(file);
}

static void find_library(void)
{
    char text[DESCRIPTION_MOST];
    *(void **)&real_set = real("cudnnBackendSetAttribute");
    *(void **)&real_get = real("cudnnBackendGetAttribute");
    *(void **)&real_destroy = real("cudnnBackendDestroyDescriptor");
    read_description(text, sizeof text);
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &card) != CUDNN_STATUS_SUCCESS ||
        real_set(card, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(text) + 1, text) !=
            CUDNN_STATUS_SUCCESS ||
        cudnnBackendFinalize(card) != CUDNN_STATUS_SUCCESS) {
        (void)fprintf(stderr, "fake device: cuDNN does not take tests/nn/cuda/h200.json\n");
        abort();
    }
}

static void library(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, find_library);
}

/* ---- handles ---- */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    library();
    *handle = calloc(1, sizeof **handle);
    return *handle != NULL ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- the graph API ---- */

/* A variant pack, and what a plan computes: remembered by their descriptors. */
struct pack {
    cudnnBackendDescriptor_t of;
    int64_t id[8], ids;
    void *address[8], *workspace;
    int64_t addresses;
    struct pack *next;
};
struct plan {
    cudnnBackendDescriptor_t of;
    struct fake_convolution convolution;
    struct plan *next;
};

static struct pack *packs;
static struct plan *plans;

static struct pack *pack_of(cudnnBackendDescriptor_t descriptor)
{
    struct pack *pack = packs;
    while (pack != NULL && pack->of != descriptor)
        pack = pack->next;
    if (pack != NULL)
        return pack;
    pack = calloc(1, sizeof *pack);
    if (pack == NULL)
        abort();
    pack->of = descriptor;
    pack->next = packs;
    packs = pack;
    return pack;
}

static void look_at_pack(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, int64_t count,
                         const void *values)
{
    struct pack *pack = pack_of(descriptor);
    if (count > 8)
        abort();
    if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) {
        memcpy(pack->id, values, (size_t)count * sizeof pack->id[0]);
        pack->ids = count;
    } else if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS) {
        memcpy(pack->address, values, (size_t)count * sizeof pack->address[0]);
        pack->addresses = count;
    } else {
        memcpy(&pack->workspace, values, sizeof pack->workspace);
    }
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    library();
    cudnnStatus_t code = CUDNN_STATUS_SUCCESS;
    switch ((int)name) {
    case CUDNN_ATTR_OPERATIONGRAPH_HANDLE:
        return code;
    case CUDNN_ATTR_EXECUTION_PLAN_HANDLE:
        return real_set(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &card);
    case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH:
        code = real_set(descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &card);
        break;
    case CUDNN_ATTR_ENGINE_OPERATION_GRAPH:
        code = real_set(descriptor, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &card);
        break;
    case CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS:
    case CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS:
    case CUDNN_ATTR_VARIANT_PACK_WORKSPACE:
        (void)pthread_mutex_lock(&lock);
        look_at_pack(descriptor, name, count, values);
        (void)pthread_mutex_unlock(&lock);
        break;
    default:
        break;
    }
    return code == CUDNN_STATUS_SUCCESS ? real_set(descriptor, name, type, count, values) : code;
}

/* Few engines, so that little is timed. */
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count, void *values)
{
    library();
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && wanted > ENGINES_MOST)
        wanted = ENGINES_MOST;
    const cudnnStatus_t code = real_get(descriptor, name, type, wanted, count, values);
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && count != NULL && *count > wanted)
        *count = wanted;
    return code;
}

static void forget(cudnnBackendDescriptor_t descriptor)
{
    for (struct pack **at = &packs; *at != NULL;) {
        struct pack *pack = *at;
        if (pack->of != descriptor) {
            at = &pack->next;
            continue;
        }
        *at = pack->next;
        free(pack);
    }
    for (struct plan **at = &plans; *at != NULL;) {
        struct plan *plan = *at;
        if (plan->of != descriptor) {
            at = &plan->next;
            continue;
        }
        *at = plan->next;
        free(plan);
    }
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    library();
    (void)pthread_mutex_lock(&lock);
    forget(descriptor);
    (void)pthread_mutex_unlock(&lock);
    return real_destroy(descriptor);
}

/* ---- what a plan computes ---- */

struct tensor {
    int64_t dim[4], stride[4];
    const char *type;
};

static bool read_numbers(const json_t *array, int64_t *to, size_t count)
{
    if (json_array_size(array) != count)
        return false;
    for (size_t k = 0; k < count; k++)
        to[k] = json_integer_value(json_array_get(array, k));
    return true;
}

static bool find_tensor(const json_t *graph, const char *name, struct tensor *tensor)
{
    const json_t *tensors = json_object_get(graph, "tensors"), *entry = NULL;
    const size_t count = json_is_array(tensors) ? json_array_size(tensors) : 0;
    for (size_t k = 0; k < count; k++) {
        const json_t *at = json_array_get(tensors, k);
        const char *found = json_string_value(json_object_get(at, "name"));
        if (found != NULL && strcmp(found, name) == 0)
            entry = at;
    }
    if (entry == NULL && json_is_object(tensors))
        entry = json_object_get(tensors, name);
    tensor->type = json_string_value(json_object_get(entry, "dataType"));
    const json_t *dim = json_object_get(entry, "dim"), *stride = json_object_get(entry, "stride");
    return tensor->type != NULL && read_numbers(dim, tensor->dim, 4) && read_numbers(stride, tensor->stride, 4);
}

/* Rows of channels: NHWC, KRSC. */
static bool channels_last(const struct tensor *tensor)
{
    const int64_t c = tensor->dim[1], w = tensor->dim[3], h = tensor->dim[2];
    return tensor->stride[0] == h * w * c && tensor->stride[1] == 1 && tensor->stride[2] == w * c &&
           tensor->stride[3] == c;
}

static int type_of(const char *name)
{
    if (strcmp(name, "CUDNN_DATA_FLOAT") == 0)
        return CUDNN_DATA_FLOAT;
    if (strcmp(name, "CUDNN_DATA_BFLOAT16") == 0)
        return CUDNN_DATA_BFLOAT16;
    return strcmp(name, "CUDNN_DATA_HALF") == 0 ? CUDNN_DATA_HALF : -1;
}

static bool set_shapes(struct fake_convolution *convolution, const json_t *graph)
{
    struct tensor x, f, y;
    if (!find_tensor(graph, "120", &x) || !find_tensor(graph, "119", &f) || !find_tensor(graph, "121", &y))
        return false;
    convolution->type = type_of(x.type);
    convolution->n = (int)x.dim[0];
    convolution->c = (int)x.dim[1];
    convolution->h = (int)x.dim[2];
    convolution->w = (int)x.dim[3];
    convolution->k = (int)f.dim[0];
    convolution->r = (int)f.dim[2];
    convolution->s = (int)f.dim[3];
    convolution->p = (int)y.dim[2];
    convolution->q = (int)y.dim[3];
    return convolution->type >= 0 && strcmp(x.type, f.type) == 0 && strcmp(x.type, y.type) == 0 &&
           f.dim[1] == x.dim[1] && y.dim[1] == f.dim[0] && y.dim[0] == x.dim[0] && channels_last(&x) &&
           channels_last(&f) && channels_last(&y);
}

static bool set_direction(struct fake_convolution *convolution, const json_t *node)
{
    static const char *const names[] = {"CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR",
                                        "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR",
                                        "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR"};
    const char *operation = json_string_value(json_object_get(node, "operation"));
    for (int k = 0; operation != NULL && k < 3; k++) {
        if (strcmp(operation, names[k]) != 0)
            continue;
        convolution->direction = (enum fake_direction)k;
        return true;
    }
    return false;
}

static int first_number(const json_t *node, const char *name)
{
    const json_t *value = json_object_get(node, name);
    return (int)json_integer_value(json_is_array(value) ? json_array_get(value, 0) : value);
}

static bool read_plan(const char *text, struct fake_convolution *convolution)
{
    json_error_t error;
    json_t *document = json_loads(text, 0, &error);
    const json_t *graph = json_object_get(document, "operationGraph");
    const json_t *node = json_array_get(json_object_get(graph, "nodes"), 0);
    *convolution = (struct fake_convolution){.alpha = (float)json_number_value(json_object_get(node, "alpha")),
                                             .beta = (float)json_number_value(json_object_get(node, "beta"))};
    const bool good = node != NULL && set_direction(convolution, node) && set_shapes(convolution, graph);
    convolution->padding = first_number(node, "pad");
    convolution->stride = first_number(node, "stride");
    json_decref(document);
    return good;
}

static struct plan *new_plan(cudnnBackendDescriptor_t descriptor)
{
    struct plan *plan = calloc(1, sizeof *plan);
    char *text = NULL;
    int64_t length = 0, bytes = 0, got = 0;
    if (plan == NULL || real_get(descriptor, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &length,
                                 NULL) != CUDNN_STATUS_SUCCESS)
        goto failed;
    text = calloc((size_t)length + 1, 1);
    if (text == NULL ||
        real_get(descriptor, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, length, &length, text) !=
            CUDNN_STATUS_SUCCESS ||
        !read_plan(text, &plan->convolution) ||
        real_get(descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &got, &bytes) !=
            CUDNN_STATUS_SUCCESS)
        goto failed;
    plan->convolution.workspace_bytes = (size_t)bytes;
    plan->of = descriptor;
    plan->next = plans;
    plans = plan;
    free(text);
    return plan;
failed:
    (void)fprintf(stderr, "fake device: a plan can't be read back: %.1500s\n", text != NULL ? text : "no text");
    free(text);
    free(plan);
    return NULL;
}

static void *address_of(const struct pack *pack, int64_t id)
{
    for (int64_t k = 0; k < pack->ids; k++) {
        if (pack->id[k] == id)
            return pack->address[k];
    }
    return NULL;
}

static void run(void *argument)
{
    fake_convolution_run(argument);
}

static cudnnStatus_t put(cudnnHandle_t handle, const struct fake_convolution *convolution)
{
    if (!fake_convolution_check(convolution))
        return CUDNN_STATUS_BAD_PARAM;
    struct fake_convolution *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    *copy = *convolution;
    return fake_put(handle->stream, &(struct fake_work){run, free, copy}) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t of_plan,
                                  cudnnBackendDescriptor_t of_pack)
{
    struct fake_convolution convolution = {.n = 0};
    (void)pthread_mutex_lock(&lock);
    struct plan *plan = plans;
    while (plan != NULL && plan->of != of_plan)
        plan = plan->next;
    if (plan == NULL)
        plan = new_plan(of_plan);
    if (plan != NULL) {
        const struct pack *pack = pack_of(of_pack);
        convolution = plan->convolution;
        convolution.x = address_of(pack, 'x');
        convolution.f = address_of(pack, 'w');
        convolution.y = address_of(pack, 'y');
        convolution.workspace = pack->workspace;
    }
    (void)pthread_mutex_unlock(&lock);
    if (!fake_execution())
        return CUDNN_STATUS_EXECUTION_FAILED;
    return plan != NULL ? put(handle, &convolution) : CUDNN_STATUS_NOT_SUPPORTED;
}

/* ---- legacy calls ---- */

/* Each direction's ranking: both algorithms, of which the second wants workspace. */
#define RANKING(found, type, count)                                                                                    \
    for (int k = 0; k < FAKE_ALGORITHMS && k < wanted; k++) {                                                          \
        memset(&(found)[k], 0, sizeof(found)[k]);                                                                      \
        (found)[k].algo = (type)(k + 1);                                                                               \
        (found)[k].memory = (size_t)k * LEGACY_WORKSPACE;                                                              \
        (found)[k].determinism = CUDNN_DETERMINISTIC;                                                                  \
        (void)cudnnGetConvolutionMathType(convolution, &(found)[k].mathType);                                          \
        *(count) = k + 1;                                                                                              \
    }

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t convolution,
                                                     const cudnnTensorDescriptor_t y, const int wanted, int *count,
                                                     cudnnConvolutionFwdAlgoPerf_t *found)
{
    (void)handle;
    (void)x;
    (void)w;
    (void)y;
    RANKING(found, cudnnConvolutionFwdAlgo_t, count)
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t dy,
                                                          const cudnnConvolutionDescriptor_t convolution,
                                                          const cudnnTensorDescriptor_t dx, const int wanted,
                                                          int *count, cudnnConvolutionBwdDataAlgoPerf_t *found)
{
    (void)handle;
    (void)w;
    (void)dy;
    (void)dx;
    RANKING(found, cudnnConvolutionBwdDataAlgo_t, count)
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t dy,
                                                            const cudnnConvolutionDescriptor_t convolution,
                                                            const cudnnFilterDescriptor_t dw, const int wanted,
                                                            int *count, cudnnConvolutionBwdFilterAlgoPerf_t *found)
{
    (void)handle;
    (void)x;
    (void)dy;
    (void)dw;
    RANKING(found, cudnnConvolutionBwdFilterAlgo_t, count)
    return CUDNN_STATUS_SUCCESS;
}

/* Descriptors as the real library has them. */
struct legacy {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t convolution;
};

static bool read_tensor(cudnnTensorDescriptor_t tensor, cudnnDataType_t *type, int *dim)
{
    int stride[4];
    if (cudnnGetTensor4dDescriptor(tensor, type, &dim[0], &dim[1], &dim[2], &dim[3], &stride[0], &stride[1], &stride[2],
                                   &stride[3]) != CUDNN_STATUS_SUCCESS)
        return false;
    return stride[1] == 1 && stride[3] == dim[1] && stride[2] == dim[3] * dim[1] &&
           stride[0] == dim[2] * dim[3] * dim[1];
}

static bool read_legacy(const struct legacy *legacy, struct fake_convolution *to)
{
    cudnnDataType_t types[3], compute;
    cudnnTensorFormat_t format;
    cudnnConvolutionMode_t mode;
    int x[4], y[4], w[4], pad[2], stride[2], dilation[2];
    if (!read_tensor(legacy->x, &types[0], x) || !read_tensor(legacy->y, &types[1], y) ||
        cudnnGetFilter4dDescriptor(legacy->w, &types[2], &format, &w[0], &w[1], &w[2], &w[3]) != CUDNN_STATUS_SUCCESS ||
        cudnnGetConvolution2dDescriptor(legacy->convolution, &pad[0], &pad[1], &stride[0], &stride[1], &dilation[0],
                                        &dilation[1], &mode, &compute) != CUDNN_STATUS_SUCCESS)
        return false;
    to->type = (int)types[0];
    to->n = x[0];
    to->c = x[1];
    to->h = x[2];
    to->w = x[3];
    to->k = w[0];
    to->r = w[2];
    to->s = w[3];
    to->p = y[2];
    to->q = y[3];
    to->padding = pad[0];
    to->stride = stride[0];
    return types[1] == types[0] && types[2] == types[0] && format == CUDNN_TENSOR_NHWC &&
           mode == CUDNN_CROSS_CORRELATION && compute == CUDNN_DATA_FLOAT && pad[0] == pad[1] &&
           stride[0] == stride[1] && dilation[0] == 1 && dilation[1] == 1 && w[1] == x[1] && y[1] == w[0] &&
           y[0] == x[0];
}

static cudnnStatus_t put_legacy(cudnnHandle_t handle, const struct legacy *legacy, struct fake_convolution *convolution,
                                const void *alpha, const void *beta, int algorithm)
{
    memcpy(&convolution->alpha, alpha, sizeof convolution->alpha);
    memcpy(&convolution->beta, beta, sizeof convolution->beta);
    const size_t wanted = (size_t)(algorithm - 1) * LEGACY_WORKSPACE;
    if (algorithm < 1 || algorithm > FAKE_ALGORITHMS || convolution->workspace_bytes < wanted ||
        !read_legacy(legacy, convolution))
        return CUDNN_STATUS_BAD_PARAM;
    return put(handle, convolution);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t of_x,
                                      const void *x, const cudnnFilterDescriptor_t of_w, const void *w,
                                      const cudnnConvolutionDescriptor_t convolution,
                                      cudnnConvolutionFwdAlgo_t algorithm, void *workspace, size_t bytes,
                                      const void *beta, const cudnnTensorDescriptor_t of_y, void *y)
{
    struct fake_convolution put = {.direction = FAKE_FORWARD,
                                   .x = (void *)(uintptr_t)x,
                                   .f = (void *)(uintptr_t)w,
                                   .y = y,
                                   .workspace = workspace,
                                   .workspace_bytes = bytes};
    return put_legacy(handle, &(struct legacy){of_x, of_y, of_w, convolution}, &put, alpha, beta, (int)algorithm);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, const cudnnFilterDescriptor_t of_w,
                                           const void *w, const cudnnTensorDescriptor_t of_dy, const void *dy,
                                           const cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace, size_t bytes,
                                           const void *beta, const cudnnTensorDescriptor_t of_dx, void *dx)
{
    struct fake_convolution put = {.direction = FAKE_BACKWARD_DATA,
                                   .x = dx,
                                   .f = (void *)(uintptr_t)w,
                                   .y = (void *)(uintptr_t)dy,
                                   .workspace = workspace,
                                   .workspace_bytes = bytes};
    return put_legacy(handle, &(struct legacy){of_dx, of_dy, of_w, convolution}, &put, alpha, beta, (int)algorithm);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t of_x, const void *x,
                                             const cudnnTensorDescriptor_t of_dy, const void *dy,
                                             const cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void *workspace, size_t bytes,
                                             const void *beta, const cudnnFilterDescriptor_t of_dw, void *dw)
{
    struct fake_convolution put = {.direction = FAKE_BACKWARD_FILTER,
                                   .x = (void *)(uintptr_t)x,
                                   .f = dw,
                                   .y = (void *)(uintptr_t)dy,
                                   .workspace = workspace,
                                   .workspace_bytes = bytes};
    return put_legacy(handle, &(struct legacy){of_x, of_dy, of_dw, convolution}, &put, alpha, beta, (int)algorithm);
}
