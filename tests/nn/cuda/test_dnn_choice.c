/* Choosing, remembering and running, on a device that is played: the calls of cuDNN and CUDA that need a card are defined
 * here, note what they are given, and cost what the test says. All descriptors are the library's own. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "nn/cuda/dnn_internal.h"
#include "support_dnn.h"

/* ---- the device that is played ---- */

#define COSTS_MAX 64

/* Addresses are never followed. */
static char stream_memory, handle_memory, memory[16];
#define STREAM ((cudaStream_t)(void *)&stream_memory)
#define HANDLE ((cudnnHandle_t)(void *)&handle_memory)
#define X ((void *)&memory[0])
#define W ((void *)&memory[1])
#define Y ((void *)&memory[2])
#define DX ((void *)&memory[3])
#define DW ((void *)&memory[4])
#define DY ((void *)&memory[5])
#define WORKSPACE ((void *)&memory[6])

struct CUevent_st {
    double microseconds;
};

static struct {
    double clock; /* microseconds */
    struct {
        cudnnBackendDescriptor_t plan;
        double microseconds; /* negative: it fails to run */
    } cost[COSTS_MAX];
    size_t costs, executions, packs;
    const void *x, *w, *y, *workspace; /* of the latest execution or legacy call */
    cudnnBackendDescriptor_t executed;
    cudaError_t synchronise;
} played;

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = HANDLE;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    cr_expect_eq(handle, HANDLE);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    cr_expect_eq(handle, HANDLE);
    cr_expect_eq(stream, STREAM);
    return CUDNN_STATUS_SUCCESS;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = calloc(1, sizeof **event);
    return *event != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cr_expect_eq(stream, STREAM, "work is timed on its own stream");
    event->microseconds = played.clock;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    return played.synchronise;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    *milliseconds = (float)((end->microseconds - start->microseconds) / 1e3);
    return cudaSuccess;
}

typedef cudnnStatus_t set_attribute_fn(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *elements);

/* Addresses can't be read from a variant pack: they are noted as they are set. A pack is set and used in one go. */
static void note_addresses(cudnnBackendAttributeName_t name, int64_t count, const void *elements)
{
    static int64_t ids[3];
    const void *const *pointers = elements;
    if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS && count == 3)
        memcpy(ids, elements, sizeof ids);
    if (name == CUDNN_ATTR_VARIANT_PACK_WORKSPACE)
        played.workspace = pointers[0];
    for (int64_t k = 0; name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS && k < count; k++)
        *(ids[k] == 'x' ? &played.x : ids[k] == 'w' ? &played.w : &played.y) = pointers[k];
    played.packs += name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *elements)
{
    static set_attribute_fn *library;
    if (library == NULL) {
        void *symbol = dlsym(RTLD_NEXT, "cudnnBackendSetAttribute");
        memcpy(&library, &symbol, sizeof library);
    }
    cr_assert_not_null(library);
    note_addresses(name, count, elements);
    return library(descriptor, name, type, count, elements);
}

typedef cudnnStatus_t destroy_fn(cudnnBackendDescriptor_t descriptor);

/* The next plan may lie at its address: it has a cost of its own. */
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    static destroy_fn *library;
    if (library == NULL) {
        void *symbol = dlsym(RTLD_NEXT, "cudnnBackendDestroyDescriptor");
        memcpy(&library, &symbol, sizeof library);
    }
    cr_assert_not_null(library);
    for (size_t k = 0; k < played.costs; k++) {
        if (played.cost[k].plan == descriptor)
            played.cost[k].plan = NULL;
    }
    return library(descriptor);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    cr_expect_eq(handle, HANDLE);
    cr_expect_not_null(pack);
    played.executions++;
    played.executed = plan;
    for (size_t k = 0; k < played.costs; k++) {
        if (played.cost[k].plan != plan)
            continue;
        if (played.cost[k].microseconds < 0)
            return CUDNN_STATUS_EXECUTION_FAILED;
        played.clock += played.cost[k].microseconds;
    }
    return CUDNN_STATUS_SUCCESS;
}

static struct text notes;

static void take_note(void *context, const char *line)
{
    text_add(context, line);
    text_add(context, "\n");
}

static struct dnn *open_played(const char *engine_file)
{
    struct dnn *dnn = NULL;
    char *description = h200_description();
    OK(dnn_open(&(struct dnn_request){.stream = STREAM,
                                      .description = description,
                                      .engine_file = engine_file,
                                      .note = take_note,
                                      .context = &notes},
                &dnn));
    cr_assert_not_null(dnn);
    cr_expect_not(dnn_planning(dnn));
    free(description);
    return dnn;
}

/* Candidate k of a direction takes microseconds[k]. */
static void set_costs(const struct dnn_convolution *convolution, enum dnn_direction which, const double *microseconds)
{
    const struct direction *direction = &convolution->shape->direction[which];
    for (size_t k = 0; k < direction->plans; k++) {
        cr_assert_lt(played.costs, COSTS_MAX);
        played.cost[played.costs].plan = direction->plan[k].execution;
        played.cost[played.costs++].microseconds = microseconds[k];
    }
}

static const struct dnn_buffers buffers = {X, W, Y, DW, WORKSPACE, 256 * MIB};

static void engine_of(const struct dnn_convolution *convolution, enum dnn_direction direction, size_t candidate,
                      char *engine)
{
    cr_assert_lt(candidate, convolution->shape->direction[direction].plans);
    snprintf(engine, sizeof((struct dnn_choice *)NULL)->engine, "%s",
             convolution->shape->direction[direction].plan[candidate].choice.engine);
}

/* ---- choosing ---- */

Test(dnn_choice, the_fastest_of_each_direction_is_kept)
{
    static const double forward[] = {50, 20.5, 30, 40}, data[] = {9, 8, 7, 6}, filter[] = {1, 2, 3, 4};
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *convolution = create(dnn, &request);
    char engines[DNN_DIRECTIONS][160];
    engine_of(convolution, DNN_FORWARD, 1, engines[DNN_FORWARD]);
    engine_of(convolution, DNN_BACKWARD_DATA, 3, engines[DNN_BACKWARD_DATA]);
    engine_of(convolution, DNN_BACKWARD_FILTER, 0, engines[DNN_BACKWARD_FILTER]);
    set_costs(convolution, DNN_FORWARD, forward);
    set_costs(convolution, DNN_BACKWARD_DATA, data);
    set_costs(convolution, DNN_BACKWARD_FILTER, filter);
    cr_expect(dnn_convolution_undecided(convolution));
    OK(dnn_convolution_choose(convolution, &buffers, true));
    cr_expect_not(dnn_convolution_undecided(convolution));
    static const double expected[] = {20.5, 6, 1};
    for (size_t d = 0; d < DNN_DIRECTIONS; d++) {
        const struct dnn_choice *choice = dnn_convolution_choice(convolution, (enum dnn_direction)d);
        cr_assert_not_null(choice);
        cr_expect_str_eq(choice->engine, engines[d]);
        cr_expect(choice->chosen);
        cr_expect_float_eq(choice->microseconds, expected[d], 1e-3);
        cr_expect_eq(convolution->shape->direction[d].plans, 1, "the others are gone");
    }
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

Test(dnn_choice, an_equal_shape_is_not_timed_again)
{
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *one = create(dnn, &request), *two = create(dnn, &request);
    OK(dnn_convolution_choose(one, &buffers, true));
    cr_expect_gt(played.executions, 0);
    size_t executions = played.executions;
    cr_expect_not(dnn_convolution_undecided(two));
    OK(dnn_convolution_choose(two, &buffers, true));
    OK(dnn_convolution_choose(one, &buffers, true));
    dnn_convolution_destroy(one);
    dnn_convolution_destroy(two);
    struct dnn_convolution *three = create(dnn, &request);
    cr_expect_not(dnn_convolution_undecided(three), "known after all users of the shape are gone");
    cr_expect_eq(played.executions, executions);
    dnn_convolution_destroy(three);
    dnn_close(dnn);
}

Test(dnn_choice, an_engine_that_fails_to_run_is_left_out)
{
    static const double forward[] = {-1, -1, 30, 40};
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_3x3();
    char engine[160];
    request.no_backward = true;
    struct dnn_convolution *convolution = create(dnn, &request);
    engine_of(convolution, DNN_FORWARD, 2, engine);
    set_costs(convolution, DNN_FORWARD, forward);
    OK(dnn_convolution_choose(convolution, &buffers, true));
    cr_expect_str_eq(dnn_convolution_choice(convolution, DNN_FORWARD)->engine, engine);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

static void expect_none_runs(const char *part)
{
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_3x3();
    request.no_backward = true;
    struct dnn_convolution *convolution = create(dnn, &request);
    static const double failing[] = {-1, -1, -1, -1};
    set_costs(convolution, DNN_FORWARD, failing);
    EXPECT_STATUS(dnn_convolution_choose(convolution, &buffers, true), STATUS_REFUSED);
    EXPECT_MESSAGE("conv, forward: of 4 engines none runs");
    EXPECT_MESSAGE(part);
    cr_expect(dnn_convolution_undecided(convolution));
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

Test(dnn_choice, where_none_runs_the_last_reason_is_told)
{
    expect_none_runs("CUDNN_STATUS_EXECUTION_FAILED");
}

Test(dnn_choice, a_failing_device_is_told_in_its_own_words)
{
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *convolution = create(dnn, &request);
    played.synchronise = cudaErrorIllegalAddress;
    EXPECT_STATUS(dnn_convolution_choose(convolution, &buffers, true), STATUS_REFUSED);
    EXPECT_MESSAGE("cudaEventSynchronize: an illegal memory access");
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

/* Of the filters' candidates the first wants the most workspace, and would be the fastest. */
Test(dnn_choice, engines_that_want_more_workspace_than_there_is_are_left_out)
{
    static const double filter[] = {1, 4, 3, 5};
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *convolution = create(dnn, &request);
    const struct plan *plans = convolution->shape->direction[DNN_BACKWARD_FILTER].plan;
    struct dnn_buffers small = buffers;
    small.workspace_bytes = plans[0].choice.workspace - 1;
    cr_assert_gt(plans[0].choice.workspace, 1);
    set_costs(convolution, DNN_BACKWARD_FILTER, filter);
    OK(dnn_convolution_choose(convolution, &small, true));
    cr_expect_float_eq(plans[0].choice.microseconds, 3, 1e-3);
    cr_expect_leq(dnn_convolution_workspace(convolution), small.workspace_bytes);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

/* ---- remembering ---- */

Test(dnn_choice, a_choice_is_remembered_in_the_file)
{
    static const double costs[] = {4, 3, 2, 1};
    char path[64], engine[160];
    snprintf(path, sizeof path, "/tmp/chorale-test-choice-%ld", (long)getpid());
    unlink(path);
    struct dnn *dnn = open_played(path);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *convolution = create(dnn, &request);
    engine_of(convolution, DNN_BACKWARD_DATA, 3, engine);
    for (size_t d = 0; d < DNN_DIRECTIONS; d++)
        set_costs(convolution, (enum dnn_direction)d, costs);
    OK(dnn_convolution_choose(convolution, &buffers, true));
    cr_expect_not(file_exists(path), "not before it is asked for");
    OK(dnn_remember(dnn));
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);

    size_t executions = played.executions;
    dnn = open_played(path);
    convolution = create(dnn, &request);
    OK(dnn_convolution_choose(convolution, &buffers, true));
    cr_expect_eq(played.executions, executions, "nothing is timed");
    const struct dnn_choice *choice = dnn_convolution_choice(convolution, DNN_BACKWARD_DATA);
    cr_assert_not_null(choice);
    cr_expect_str_eq(choice->engine, engine);
    cr_expect_float_eq(choice->microseconds, 1, 1e-3);
    request.deterministic = true;
    struct dnn_convolution *strict = create(dnn, &request);
    cr_expect(dnn_convolution_undecided(strict), "another key");
    dnn_convolution_destroy(strict);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
    unlink(path);
}

/* What a first run has left in `path`: candidate 3 of forward, and which one that is. */
static void remember_the_last(const char *path, const struct dnn_convolution_request *request, char *engine)
{
    static const double costs[] = {4, 3, 2, 1};
    unlink(path);
    struct dnn *dnn = open_played(path);
    struct dnn_convolution *convolution = create(dnn, request);
    engine_of(convolution, DNN_FORWARD, 3, engine);
    set_costs(convolution, DNN_FORWARD, costs);
    OK(dnn_convolution_choose(convolution, &buffers, true));
    OK(dnn_remember(dnn));
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
    played.costs = 0;
}

Test(dnn_choice, a_remembered_engine_that_fails_is_replaced_and_the_file_corrected)
{
    static const double failing[] = {-1}, costs[] = {4, 3, 5};
    char path[64], engine[160], other[160];
    struct dnn_convolution_request request = request_3x3();
    snprintf(path, sizeof path, "/tmp/chorale-test-choice-%ld", (long)getpid());
    request.no_backward = true;
    remember_the_last(path, &request, engine);

    bool known = false;
    struct dnn *dnn = open_played(path);
    OK(dnn_convolution_known(dnn, &request, &known));
    cr_expect(known);
    struct dnn_convolution *convolution = create(dnn, &request);
    cr_expect(!dnn_convolution_undecided(convolution) && dnn_convolution_unproved(convolution));
    set_costs(convolution, DNN_FORWARD, failing);
    OK(dnn_convolution_prove(convolution, &buffers));
    cr_expect_not_null(strstr(text_string(&notes), "conv, forward: engine "));
    cr_expect_not_null(strstr(text_string(&notes), engine));
    cr_expect_not_null(strstr(text_string(&notes), "CUDNN_STATUS_EXECUTION_FAILED"));
    cr_assert(dnn_convolution_undecided(convolution));
    cr_expect_eq(convolution->shape->direction[DNN_FORWARD].plans, 3, "all but the failing one of four");
    OK(dnn_convolution_recall(convolution));
    cr_expect(dnn_convolution_undecided(convolution), "the file still tells of that engine, which is no news");
    engine_of(convolution, DNN_FORWARD, 1, other);
    cr_expect_str_neq(other, engine);
    set_costs(convolution, DNN_FORWARD, costs);
    OK(dnn_convolution_choose(convolution, &buffers, true));
    OK(dnn_remember(dnn));
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);

    dnn = open_played(path);
    convolution = create(dnn, &request);
    cr_expect_str_eq(dnn_convolution_choice(convolution, DNN_FORWARD)->engine, other);
    OK(dnn_convolution_prove(convolution, &buffers));
    cr_expect_not(dnn_convolution_unproved(convolution));
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
    unlink(path);
    text_release(&notes);
}

/* A neighbour has measured meanwhile. */
Test(dnn_choice, what_another_process_writes_is_taken)
{
    char path[64], engine[160];
    struct dnn_convolution_request request = request_3x3();
    snprintf(path, sizeof path, "/tmp/chorale-test-choice-%ld", (long)getpid());
    unlink(path);
    request.no_backward = true;
    struct dnn *dnn = open_played(path);
    struct dnn_convolution *convolution = create(dnn, &request);
    bool known = true;
    OK(dnn_convolution_known(dnn, &request, &known));
    cr_expect_not(known);
    remember_the_last(path, &request, engine);
    OK(dnn_reread(dnn));
    OK(dnn_convolution_recall(convolution));
    cr_expect_not(dnn_convolution_undecided(convolution));
    cr_expect_str_eq(dnn_convolution_choice(convolution, DNN_FORWARD)->engine, engine);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
    unlink(path);
}

Test(dnn_choice, untimed_the_first_that_runs_is_taken_and_not_remembered)
{
    static const double costs[] = {-1, 9, 1, 1};
    char path[64], engine[160];
    snprintf(path, sizeof path, "/tmp/chorale-test-choice-%ld", (long)getpid());
    unlink(path);
    struct dnn *dnn = open_played(path);
    struct dnn_convolution_request request = request_3x3();
    request.no_backward = request.deterministic = true;
    struct dnn_convolution *convolution = create(dnn, &request);
    engine_of(convolution, DNN_FORWARD, 1, engine);
    set_costs(convolution, DNN_FORWARD, costs);
    OK(dnn_convolution_choose(convolution, &buffers, false));
    cr_expect_str_eq(dnn_convolution_choice(convolution, DNN_FORWARD)->engine, engine);
    cr_expect_eq(played.executions, 2);
    cr_expect_not_null(strstr(text_string(&notes), "the next one is taken"));
    OK(dnn_remember(dnn));
    cr_expect_not(file_exists(path));
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
    text_release(&notes);
}

/* ---- running ---- */

static void expect_addresses(const void *x, const void *w, const void *y)
{
    cr_expect_eq(played.x, x);
    cr_expect_eq(played.w, w);
    cr_expect_eq(played.y, y);
    cr_expect_eq(played.workspace, WORKSPACE);
}

static void run_all(struct dnn_convolution *convolution)
{
    OK(dnn_convolution_forward(convolution, X, W, Y, WORKSPACE));
    OK(dnn_convolution_backward_data(convolution, W, DY, DX, WORKSPACE));
    OK(dnn_convolution_backward_filter(convolution, X, DY, DW, WORKSPACE));
}

Test(dnn_choice, each_direction_gets_its_addresses_and_its_plan)
{
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *convolution = create(dnn, &request);
    const struct direction *direction = convolution->shape->direction;
    OK(dnn_convolution_forward(convolution, X, W, Y, WORKSPACE));
    expect_addresses(X, W, Y);
    cr_expect_eq(played.executed, direction[DNN_FORWARD].plan[0].execution);
    OK(dnn_convolution_backward_data(convolution, W, DY, DX, WORKSPACE));
    expect_addresses(DX, W, DY);
    cr_expect_eq(played.executed, direction[DNN_BACKWARD_DATA].plan[0].execution);
    OK(dnn_convolution_backward_filter(convolution, X, DY, DW, WORKSPACE));
    expect_addresses(X, DW, DY);
    cr_expect_eq(played.executed, direction[DNN_BACKWARD_FILTER].plan[0].execution);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

Test(dnn_choice, the_same_addresses_make_nothing_new)
{
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *convolution = create(dnn, &request), *twin = create(dnn, &request);
    run_all(convolution);
    cr_expect_eq(played.packs, 3);
    for (int step = 0; step < 5; step++)
        run_all(convolution);
    cr_expect_eq(played.packs, 3);
    run_all(twin);
    run_all(convolution);
    cr_expect_eq(played.packs, 6, "each convolution keeps its own");
    OK(dnn_convolution_forward(convolution, DX, W, Y, WORKSPACE));
    cr_expect_eq(played.packs, 7);
    expect_addresses(DX, W, Y);
    dnn_convolution_destroy(twin);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

Test(dnn_choice, a_failing_call_names_layer_and_direction)
{
    static const double failing[] = {-1, -1, -1, -1};
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_3x3();
    request.name = "layer3.0.conv2";
    request.no_backward_data = true;
    struct dnn_convolution *convolution = create(dnn, &request);
    set_costs(convolution, DNN_FORWARD, failing);
    EXPECT_STATUS(dnn_convolution_forward(convolution, X, W, Y, WORKSPACE), STATUS_INTERNAL);
    EXPECT_MESSAGE("layer3.0.conv2, forward: cuDNN: cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED");
    EXPECT_STATUS(dnn_convolution_backward_data(convolution, W, DY, DX, WORKSPACE), STATUS_INTERNAL);
    EXPECT_MESSAGE("not planned");
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

/* ---- time ---- */

static enum status take_5_us(void *argument)
{
    size_t *calls = argument;
    played.clock += ++*calls == 6 ? 5000 : 5; /* one run is disturbed */
    return STATUS_OK;
}

static enum status take_no_time(void *argument)
{
    ++*(size_t *)argument;
    return STATUS_OK;
}

static enum status fails(void *argument)
{
    (void)argument;
    return fail(STATUS_IO, "as it was told to");
}

Test(dnn_choice, time_is_the_median_of_a_few_samples)
{
    struct dnn *dnn = open_played(NULL);
    double microseconds = 0;
    size_t calls = 0;
    OK(dnn_measure(dnn, take_5_us, &calls, &microseconds));
    cr_expect_float_eq(microseconds, 5, 1e-3);
    calls = 0;
    OK(dnn_measure(dnn, take_no_time, &calls, &microseconds));
    cr_expect_eq(microseconds, 0);
    cr_expect_lt(calls, 16, "a clock that stands still is not waited for");
    EXPECT_STATUS(dnn_measure(dnn, fails, NULL, &microseconds), STATUS_IO);
    dnn_close(dnn);
}

/* ---- legacy calls ---- */

static cudnnStatus_t legacy_support = CUDNN_STATUS_SUCCESS;
static struct {
    int algorithm;
    cudnnMathType_t math;
    size_t workspace;
} legacy_call;

static void expect_tensor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n, int c, int h, int w)
{
    int seen[8];
    cudnnDataType_t seen_type;
    cr_assert_eq(cudnnGetTensor4dDescriptor(tensor, &seen_type, &seen[0], &seen[1], &seen[2], &seen[3], &seen[4],
                                            &seen[5], &seen[6], &seen[7]),
                 CUDNN_STATUS_SUCCESS);
    cr_expect_eq(seen_type, type);
    cr_expect(seen[0] == n && seen[1] == c && seen[2] == h && seen[3] == w);
    cr_expect(h * w == 1 || (seen[4] == c * h * w && seen[5] == 1 && seen[6] == w * c && seen[7] == c), "NHWC");
}

/* The shape of request_legacy(). */
static void expect_descriptors(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                               cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t y)
{
    int k, c, r, s, padding[2], stride[2], dilation[2];
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    cudnnConvolutionMode_t mode;
    expect_tensor(x, CUDNN_DATA_HALF, 3, 8, 7, 9);
    expect_tensor(y, CUDNN_DATA_HALF, 3, 16, 4, 5);
    cr_assert_eq(cudnnGetFilter4dDescriptor(w, &type, &format, &k, &c, &r, &s), CUDNN_STATUS_SUCCESS);
    cr_expect(type == CUDNN_DATA_HALF && format == CUDNN_TENSOR_NHWC && k == 16 && c == 8 && r == 3 && s == 3);
    cr_assert_eq(cudnnGetConvolution2dDescriptor(convolution, &padding[0], &padding[1], &stride[0], &stride[1],
                                                 &dilation[0], &dilation[1], &mode, &type),
                 CUDNN_STATUS_SUCCESS);
    cr_expect(padding[0] == 1 && padding[1] == 1 && stride[0] == 2 && stride[1] == 2 && dilation[0] == 1);
    cr_expect(mode == CUDNN_CROSS_CORRELATION && type == CUDNN_DATA_FLOAT);
}

/* Algorithm 0 is not deterministic, 1 wants 64 bytes, 2 more than the cap, 3 is not there, 4 is deterministic and small. */
#define RANK(found, got)                                                                                               \
    do {                                                                                                               \
        for (int k = 0; k < 5; k++) {                                                                                  \
            memset(&(found)[k], 0, sizeof *(found));                                                                   \
            (found)[k].algo = k;                                                                                       \
            (found)[k].status = k == 3 ? CUDNN_STATUS_NOT_SUPPORTED : legacy_support;                                  \
            (found)[k].memory = k == 1 ? 64 : k == 2 ? 1024 * MIB : 0;                                                 \
            (found)[k].determinism = k == 0 ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;                           \
            (found)[k].mathType = k == 4 ? CUDNN_DEFAULT_MATH : CUDNN_TENSOR_OP_MATH;                                  \
        }                                                                                                              \
        *(got) = 5;                                                                                                    \
    } while (0)

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t srcDesc,
                                                     const cudnnFilterDescriptor_t filterDesc,
                                                     const cudnnConvolutionDescriptor_t convDesc,
                                                     const cudnnTensorDescriptor_t destDesc,
                                                     const int requestedAlgoCount, int *returnedAlgoCount,
                                                     cudnnConvolutionFwdAlgoPerf_t *perfResults)
{
    cr_expect(handle == HANDLE && requestedAlgoCount >= 5);
    expect_descriptors(srcDesc, filterDesc, convDesc, destDesc);
    RANK(perfResults, returnedAlgoCount);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t filterDesc, const cudnnTensorDescriptor_t diffDesc,
    const cudnnConvolutionDescriptor_t convDesc, const cudnnTensorDescriptor_t gradDesc, const int requestedAlgoCount,
    int *returnedAlgoCount, cudnnConvolutionBwdDataAlgoPerf_t *perfResults)
{
    cr_expect(handle == HANDLE && requestedAlgoCount >= 5);
    expect_descriptors(gradDesc, filterDesc, convDesc, diffDesc);
    RANK(perfResults, returnedAlgoCount);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t srcDesc,
                                                            const cudnnTensorDescriptor_t diffDesc,
                                                            const cudnnConvolutionDescriptor_t convDesc,
                                                            const cudnnFilterDescriptor_t gradDesc,
                                                            const int requestedAlgoCount, int *returnedAlgoCount,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *perfResults)
{
    cr_expect(handle == HANDLE && requestedAlgoCount >= 5);
    expect_descriptors(srcDesc, gradDesc, convDesc, diffDesc);
    RANK(perfResults, returnedAlgoCount);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t note_call(cudnnConvolutionDescriptor_t convolution, int algorithm, const void *alpha,
                               const void *beta, void *workspace, size_t bytes)
{
    static const double microseconds[] = {10, 20, 0, 0, 30};
    cr_expect(*(const float *)alpha == 1 && *(const float *)beta == 0);
    cr_assert_eq(cudnnGetConvolutionMathType(convolution, &legacy_call.math), CUDNN_STATUS_SUCCESS);
    legacy_call.algorithm = algorithm;
    legacy_call.workspace = bytes;
    played.workspace = workspace;
    played.executions++;
    played.clock += microseconds[algorithm];
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t xDesc,
                                      const void *x, const cudnnFilterDescriptor_t wDesc, const void *w,
                                      const cudnnConvolutionDescriptor_t convDesc, cudnnConvolutionFwdAlgo_t algo,
                                      void *workSpace, size_t workSpaceSizeInBytes, const void *beta,
                                      const cudnnTensorDescriptor_t yDesc, void *y)
{
    cr_expect_eq(handle, HANDLE);
    expect_descriptors(xDesc, wDesc, convDesc, yDesc);
    played.x = x;
    played.w = w;
    played.y = y;
    return note_call(convDesc, (int)algo, alpha, beta, workSpace, workSpaceSizeInBytes);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, const cudnnFilterDescriptor_t wDesc,
                                           const void *w, const cudnnTensorDescriptor_t dyDesc, const void *dy,
                                           const cudnnConvolutionDescriptor_t convDesc,
                                           cudnnConvolutionBwdDataAlgo_t algo, void *workSpace,
                                           size_t workSpaceSizeInBytes, const void *beta,
                                           const cudnnTensorDescriptor_t dxDesc, void *dx)
{
    cr_expect_eq(handle, HANDLE);
    expect_descriptors(dxDesc, wDesc, convDesc, dyDesc);
    played.x = dx;
    played.w = w;
    played.y = dy;
    return note_call(convDesc, (int)algo, alpha, beta, workSpace, workSpaceSizeInBytes);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t xDesc, const void *x,
                                             const cudnnTensorDescriptor_t dyDesc, const void *dy,
                                             const cudnnConvolutionDescriptor_t convDesc,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workSpace,
                                             size_t workSpaceSizeInBytes, const void *beta,
                                             const cudnnFilterDescriptor_t dwDesc, void *dw)
{
    cr_expect_eq(handle, HANDLE);
    expect_descriptors(xDesc, dwDesc, convDesc, dyDesc);
    played.x = x;
    played.w = dw;
    played.y = dy;
    return note_call(convDesc, (int)algo, alpha, beta, workSpace, workSpaceSizeInBytes);
}

static struct dnn_convolution_request request_legacy(void)
{
    struct dnn_convolution_request request = request_3x3();
    request.type = DTYPE_F16;
    request.batch = 3;
    request.in_channels = 8;
    request.in_height = 7;
    request.in_width = 9;
    request.out_channels = 16;
    request.stride = 2;
    request.implementation = DNN_LEGACY;
    return request;
}

Test(dnn_choice, legacy_algorithms_are_bounded_timed_and_run)
{
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_legacy();
    struct dnn_convolution *convolution = create(dnn, &request);
    for (size_t d = 0; d < DNN_DIRECTIONS; d++)
        cr_expect_eq(convolution->shape->direction[d].plans, 3, "0, 1 and 4");
    cr_expect_eq(dnn_convolution_workspace(convolution), 64);
    OK(dnn_convolution_choose(convolution, &buffers, true));
    const struct dnn_choice *choice = dnn_convolution_choice(convolution, DNN_BACKWARD_DATA);
    cr_assert_not_null(choice);
    cr_expect_str_eq(choice->engine, "0:tensor-core");
    cr_expect(choice->tensor_core && !choice->deterministic && choice->chosen);
    cr_expect_float_eq(choice->microseconds, 10, 1e-3);
    OK(dnn_convolution_forward(convolution, X, W, Y, WORKSPACE));
    expect_addresses(X, W, Y);
    OK(dnn_convolution_backward_data(convolution, W, DY, DX, WORKSPACE));
    expect_addresses(DX, W, DY);
    OK(dnn_convolution_backward_filter(convolution, X, DY, DW, WORKSPACE));
    expect_addresses(X, DW, DY);
    cr_expect(legacy_call.algorithm == 0 && legacy_call.math == CUDNN_TENSOR_OP_MATH && legacy_call.workspace == 0);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

Test(dnn_choice, legacy_deterministic_and_remembered)
{
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_legacy();
    request.deterministic = true;
    struct dnn_convolution *convolution = create(dnn, &request);
    OK(dnn_convolution_choose(convolution, &buffers, true));
    cr_expect_str_eq(dnn_convolution_choice(convolution, DNN_FORWARD)->engine, "1:tensor-core");
    size_t executions = played.executions;
    dnn_convolution_destroy(convolution);
    convolution = create(dnn, &request);
    cr_expect_not(dnn_convolution_undecided(convolution));
    OK(dnn_convolution_choose(convolution, &buffers, true));
    cr_expect_eq(played.executions, executions);
    OK(dnn_convolution_forward(convolution, X, W, Y, WORKSPACE));
    cr_expect(legacy_call.algorithm == 1 && legacy_call.workspace == 64);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

Test(dnn_choice, legacy_without_an_algorithm_within_bounds_is_refused)
{
    struct dnn *dnn = open_played(NULL);
    struct dnn_convolution_request request = request_legacy();
    struct dnn_convolution *convolution = NULL, *refused = NULL;
    request.workspace_cap = 0;
    request.deterministic = true;
    convolution = create(dnn, &request);
    cr_expect_str_eq(dnn_convolution_choice(convolution, DNN_FORWARD)->engine, "4:default");
    legacy_support = CUDNN_STATUS_NOT_SUPPORTED;
    request.workspace_cap = 1;
    EXPECT_STATUS(dnn_convolution_create(dnn, &request, &refused), STATUS_REFUSED);
    EXPECT_MESSAGE("conv, forward in f16");
    EXPECT_MESSAGE("no legacy algorithm in 1 bytes of workspace that is deterministic");
    cr_expect_null(refused);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

/* ---- the compiler of some engines ---- */

Test(dnn_choice, a_compiler_that_is_not_found_is_noted)
{
    char name[32];
    struct dnn *dnn = open_played(NULL);
    snprintf(name, sizeof name, "libnvrtc.so.%zu", cudnnGetCudartVersion() / 1000);
    const bool here = dlopen(name, RTLD_LAZY | RTLD_NOLOAD) != NULL;
    cr_expect_eq(notes.length == 0, here, "it is loaded when cuDNN is opened, or noted: %s", text_string(&notes));
    text_clear(&notes);
    cr_expect_not(dnn_find_compiler(dnn, "libnvrtc.so.0"));
    cr_expect_not_null(strstr(text_string(&notes), "libnvrtc.so.0 is not to be found"));
    cr_expect_not_null(strstr(text_string(&notes), "LD_LIBRARY_PATH"));
    dnn_close(dnn);
    text_release(&notes);
}
