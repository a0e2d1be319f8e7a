/* dnn.c - the handle on cuDNN: versions, devices and their descriptions, errors, time. */
#include "nn/cuda/dnn.h"

#include <dlfcn.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/cuda/dnn_internal.h"

#define WORDS_BYTES 400     /* of the library's explanation that a message takes */
#define WARM_UPS 3          /* runs before any is timed                          */
#define SAMPLES 5           /* the median of them is the result                  */
#define SAMPLE_US 500.0     /* a sample is as many runs as last about this       */
#define SAMPLE_RUNS_MAX 20U /* at most                                           */

/* ---- errors ---- */

static enum status status_of(cudnnStatus_t code)
{
    if (code == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    if (code / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000)
        return STATUS_REFUSED;
    if (code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        return STATUS_NO_MEMORY;
    return STATUS_INTERNAL;
}

enum status dnn_status(cudnnStatus_t code, const char *call)
{
    if (code == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    char words[WORDS_BYTES] = "";
    cudnnGetLastErrorString(words, sizeof words);
    words[sizeof words - 1] = '\0';
    return fail(status_of(code), "cuDNN: %.*s: %s%s%s", (int)strcspn(call, "("), call, cudnnGetErrorString(code),
                words[0] != '\0' ? ": " : "", words);
}

static enum status cuda_status(cudaError_t code, const char *call)
{
    if (code == cudaSuccess)
        return STATUS_OK;
    return fail(STATUS_INTERNAL, "CUDA: %.*s: %s", (int)strcspn(call, "("), call, cudaGetErrorString(code));
}
#define CUDA_TRY(call) TRY(cuda_status((call), #call))
#define CUDA_TRY_TO(label, call) TRY_TO(label, cuda_status((call), #call))

enum status dnn_need_device(const struct dnn *dnn, const char *what)
{
    if (dnn->handle == NULL)
        return fail(STATUS_UNAVAILABLE, "cuDNN: %s needs a device; this was opened for planning only", what);
    return STATUS_OK;
}

/* ---- versions and types ---- */

enum status dnn_check_version(size_t version)
{
    size_t major = version < 10000 ? version / 1000 : version / 10000; /* 8907 is 8.9.7, 91900 is 9.19.0 */
    if (major == CUDNN_MAJOR)
        return STATUS_OK;
    return fail(STATUS_UNAVAILABLE,
                "cuDNN: library version %zu is loaded, but this was built for %d.x: install cuDNN %d, or name its "
                "folder in LD_LIBRARY_PATH",
                version, CUDNN_MAJOR, CUDNN_MAJOR);
}

cudnnDataType_t dnn_data_type(enum dtype type)
{
    return type == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : type == DTYPE_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

/* ---- devices ---- */

/* A word of the engine file. */
static void set_card(struct dnn *dnn, const char *name)
{
    size_t length = 0;
    for (; name[length] != '\0' && length + 1 < sizeof dnn->card; length++)
        dnn->card[length] = strchr(" \t\r\n#", name[length]) != NULL ? '_' : name[length];
    dnn->card[length] = '\0';
}

static enum status card_of_description(struct dnn *dnn, const char *description)
{
    json_error_t error;
    json_t *document = json_loads(description, 0, &error);
    const char *name = json_string_value(json_object_get(document, "deviceName"));
    enum status status = STATUS_OK;
    if (document == NULL)
        status = fail(STATUS_FORMAT, "device description: %s", error.text);
    else if (name == NULL || name[0] == '\0')
        status = fail(STATUS_FORMAT, "device description: it has no deviceName");
    else
        set_card(dnn, name);
    json_decref(document);
    return status;
}

static enum status describe_device(struct dnn *dnn, const char *description)
{
    TRY(card_of_description(dnn, description));
    DNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &dnn->device));
    DNN_TRY(cudnnBackendSetAttribute(dnn->device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                     (int64_t)strlen(description) + 1, description));
    enum status status = dnn_status(cudnnBackendFinalize(dnn->device), "cudnnBackendFinalize");
    return status < 0 ? fail_context(status, "device description") : STATUS_OK;
}

static enum status ask_device(struct dnn *dnn, int device)
{
    struct cudaDeviceProp properties;
    CUDA_TRY(cudaGetDeviceProperties(&properties, device));
    set_card(dnn, properties.name);
    return STATUS_OK;
}

static enum status open_handle(struct dnn *dnn)
{
    enum status status = dnn_status(cudnnCreate(&dnn->handle), "cudnnCreate");
    if (status < 0) {
        int devices = 0;
        dnn->handle = NULL;
        return fail(STATUS_UNAVAILABLE, "%s (CUDA: %s)", status_message(),
                    cudaGetErrorString(cudaGetDeviceCount(&devices)));
    }
    DNN_TRY(cudnnSetStream(dnn->handle, dnn->stream));
    return STATUS_OK;
}

bool dnn_find_compiler(const struct dnn *dnn, const char *name)
{
    struct text line = {NULL};
    if (dlopen(name, RTLD_LAZY | RTLD_GLOBAL) != NULL)
        return true;
    text_addf(&line,
              "cuDNN: %s is not to be found, so engines that it compiles are left out: install it beside the CUDA "
              "toolkit's other libraries, or name its folder in LD_LIBRARY_PATH",
              name);
    dnn_note(dnn, text_check(&line) >= 0 ? text_string(&line) : name);
    text_release(&line);
    return false;
}

enum status dnn_open(const struct dnn_request *request, struct dnn **dnn)
{
    struct dnn *made = NULL;
    void *memory = NULL;
    enum status status = STATUS_OK;
    *dnn = NULL;
    size_t version = cudnnGetVersion();
    TRY(dnn_check_version(version));
    TRY(memory_zeroed(&memory, 1, sizeof *made));
    made = memory;
    made->stream = request->stream;
    made->note = request->note;
    made->context = request->context;
    snprintf(made->version, sizeof made->version, "%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    if (request->planning && request->description == NULL)
        TRY_TO(fail, fail(STATUS_INTERNAL, "cuDNN: planning without a device needs a device description"));
    if (!request->planning) {
        char compiler[32];
        snprintf(compiler, sizeof compiler, "libnvrtc.so.%zu", cudnnGetCudartVersion() / 1000);
        (void)dnn_find_compiler(made, compiler);
        TRY_TO(fail, open_handle(made));
    }
    TRY_TO(fail, request->description != NULL ? describe_device(made, request->description)
                                              : ask_device(made, request->device));
    if (request->engine_file != NULL) {
        TRY_TO(fail, memory_string(&made->engine_path, request->engine_file));
        TRY_TO(fail, engine_file_read(&made->engines, request->engine_file));
    }
    *dnn = made;
    return STATUS_OK;
fail:
    dnn_close(made);
    return status;
}

void dnn_close(struct dnn *dnn)
{
    if (dnn == NULL)
        return;
    if (dnn->device != NULL)
        cudnnBackendDestroyDescriptor(dnn->device);
    if (dnn->handle != NULL)
        cudnnDestroy(dnn->handle);
    engine_file_release(&dnn->engines);
    free(dnn->engine_path);
    free(dnn);
}

enum status dnn_reread(struct dnn *dnn)
{
    return dnn->engine_path != NULL ? engine_file_read(&dnn->engines, dnn->engine_path) : STATUS_OK;
}

enum status dnn_lock(const struct dnn *dnn, double seconds, int *lock)
{
    *lock = -1;
    return dnn->engine_path != NULL ? engine_file_lock(dnn->engine_path, seconds, lock) : STATUS_OK;
}

void dnn_unlock(int lock)
{
    engine_file_unlock(lock);
}

void dnn_note(const struct dnn *dnn, const char *line)
{
    if (dnn->note != NULL)
        dnn->note(dnn->context, line);
}

bool dnn_planning(const struct dnn *dnn)
{
    return dnn->handle == NULL;
}

void dnn_describe(const struct dnn *dnn, struct text *text)
{
    text_addf(text, "cuDNN %s", dnn->version);
}

static enum status add_properties(cudnnBackendDescriptor_t device, struct text *text)
{
    int64_t length = 0;
    void *json = NULL;
    enum status status = STATUS_OK;
    DNN_TRY(
        cudnnBackendGetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &length, NULL));
    TRY(memory_zeroed(&json, (size_t)length + 1, 1));
    DNN_TRY_TO(out, cudnnBackendGetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, length,
                                             &length, json));
    text_add(text, json);
    TRY_TO(out, text_check(text));
out:
    free(json);
    return status;
}

enum status dnn_description(const struct dnn *dnn, struct text *text)
{
    if (dnn->device != NULL)
        return add_properties(dnn->device, text);
    cudnnBackendDescriptor_t device = NULL;
    enum status status = STATUS_OK;
    DNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device));
    DNN_TRY_TO(out, cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle));
    DNN_TRY_TO(out, cudnnBackendFinalize(device));
    TRY_TO(out, add_properties(device, text));
out:
    cudnnBackendDestroyDescriptor(device);
    return status;
}

/* ---- time ---- */

struct stopwatch {
    cudaStream_t stream;
    cudaEvent_t start, stop;
};

/* Microseconds of one run, of `runs` in a row. */
static enum status sample(const struct stopwatch *watch, enum status (*work)(void *argument), void *argument,
                          unsigned runs, double *microseconds)
{
    float milliseconds = 0;
    CUDA_TRY(cudaEventRecord(watch->start, watch->stream));
    for (unsigned k = 0; k < runs; k++)
        TRY(work(argument));
    CUDA_TRY(cudaEventRecord(watch->stop, watch->stream));
    CUDA_TRY(cudaEventSynchronize(watch->stop));
    CUDA_TRY(cudaEventElapsedTime(&milliseconds, watch->start, watch->stop));
    *microseconds = (double)milliseconds * 1e3 / runs;
    return STATUS_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum status measure(const struct stopwatch *watch, enum status (*work)(void *argument), void *argument,
                           double *microseconds)
{
    double once = 0, samples[SAMPLES];
    TRY(sample(watch, work, argument, WARM_UPS, &once));
    TRY(sample(watch, work, argument, 1, &once));
    unsigned runs = 1;
    if (once > 0) /* else the clock is too coarse to be helped */
        runs = once * SAMPLE_RUNS_MAX > SAMPLE_US ? (unsigned)(SAMPLE_US / once) + 1 : SAMPLE_RUNS_MAX;
    for (size_t k = 0; k < SAMPLES; k++)
        TRY(sample(watch, work, argument, runs, &samples[k]));
    qsort(samples, SAMPLES, sizeof *samples, ascending);
    *microseconds = samples[SAMPLES / 2];
    return STATUS_OK;
}

enum status dnn_measure(struct dnn *dnn, enum status (*work)(void *argument), void *argument, double *microseconds)
{
    struct stopwatch watch = {.stream = dnn->stream};
    enum status status = STATUS_OK;
    TRY(dnn_need_device(dnn, "measuring"));
    CUDA_TRY(cudaEventCreate(&watch.start));
    CUDA_TRY_TO(no_stop, cudaEventCreate(&watch.stop));
    TRY_TO(out, measure(&watch, work, argument, microseconds));
out:
    (void)cudaEventDestroy(watch.stop);
no_stop:
    (void)cudaEventDestroy(watch.start);
    return status;
}

static enum status once(const struct stopwatch *watch, enum status (*work)(void *argument), void *argument)
{
    TRY(work(argument));
    CUDA_TRY(cudaEventRecord(watch->stop, watch->stream));
    CUDA_TRY(cudaEventSynchronize(watch->stop));
    return STATUS_OK;
}

enum status dnn_run_once(struct dnn *dnn, enum status (*work)(void *argument), void *argument)
{
    struct stopwatch watch = {.stream = dnn->stream};
    CUDA_TRY(cudaEventCreate(&watch.stop));
    const enum status status = once(&watch, work, argument);
    (void)cudaEventDestroy(watch.stop);
    return status;
}
