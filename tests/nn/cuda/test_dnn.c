/* cuDNN without a card: what can be planned from a description, what is refused, and with which words. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "nn/cuda/dnn_internal.h"
#include "support_dnn.h"

/* ---- opening ---- */

Test(dnn, without_a_driver_the_library_s_words_are_told)
{
    int cards = 0;
    if (cudaGetDeviceCount(&cards) == cudaSuccess && cards > 0)
        cr_skip_test("there is a card here");
    struct dnn *dnn = NULL;
    EXPECT_STATUS(dnn_open(&(struct dnn_request){.device = 0}, &dnn), STATUS_UNAVAILABLE);
    EXPECT_MESSAGE("cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED");
    EXPECT_MESSAGE("driver");
    cr_expect_null(strchr(status_message(), '\n'));
    cr_expect_null(dnn);
    dnn_close(NULL);
}

Test(dnn, another_major_version_is_refused_by_its_number)
{
    OK(dnn_check_version(cudnnGetVersion()));
    OK(dnn_check_version((size_t)CUDNN_MAJOR * 10000));
    EXPECT_STATUS(dnn_check_version(8907), STATUS_UNAVAILABLE);
    EXPECT_MESSAGE("8907");
    EXPECT_MESSAGE("LD_LIBRARY_PATH");
    EXPECT_STATUS(dnn_check_version(((size_t)CUDNN_MAJOR + 1) * 10000), STATUS_UNAVAILABLE);
}

static enum status open_with(const char *description)
{
    struct dnn *dnn = NULL;
    enum status status = dnn_open(&(struct dnn_request){.planning = true, .description = description}, &dnn);
    cr_expect_null(dnn);
    return status;
}

Test(dnn, descriptions_that_are_none_are_told)
{
    EXPECT_STATUS(open_with(NULL), STATUS_INTERNAL);
    EXPECT_STATUS(open_with("no JSON"), STATUS_FORMAT);
    EXPECT_STATUS(open_with("{}"), STATUS_FORMAT);
    EXPECT_MESSAGE("deviceName");
    cr_expect_lt(open_with("{\"deviceName\":\"H200\"}"), 0, "cuDNN needs more than a name");
    EXPECT_MESSAGE("device description");
}

Test(dnn, a_description_can_be_read_back_and_opened_again)
{
    struct dnn *dnn = open_planning(NULL), *again = NULL;
    struct text first = {NULL}, second = {NULL}, version = {NULL};
    cr_expect(dnn_planning(dnn));
    cr_expect_str_eq(dnn->card, "NVIDIA_H200");
    OK(dnn_description(dnn, &first));
    OK(dnn_open(&(struct dnn_request){.planning = true, .description = text_string(&first)}, &again));
    OK(dnn_description(again, &second));
    cr_expect_str_eq(text_string(&first), text_string(&second));
    dnn_describe(dnn, &version);
    cr_expect_eq(strncmp(text_string(&version), "cuDNN 9.", 8), 0, "%s", text_string(&version));
    text_release(&version);
    text_release(&second);
    text_release(&first);
    dnn_close(again);
    dnn_close(dnn);
}

/* ---- requests ---- */

static void expect_refused(struct dnn *dnn, struct dnn_convolution_request request, const char *part)
{
    struct dnn_convolution *convolution = NULL;
    EXPECT_STATUS(dnn_convolution_create(dnn, &request, &convolution), STATUS_REFUSED);
    EXPECT_MESSAGE("conv");
    EXPECT_MESSAGE(part);
    cr_expect_null(convolution);
}

Test(dnn, what_is_no_convolution_is_refused)
{
    struct dnn *dnn = open_planning(NULL);
    struct dnn_convolution_request request = request_3x3();
    request.type = DTYPE_F64;
    expect_refused(dnn, request, "f64");
    request = request_3x3();
    request.stride = 0;
    expect_refused(dnn, request, "stride 0");
    request = request_3x3();
    request.in_height = 1;
    request.padding = 0;
    expect_refused(dnn, request, "filters of 3x3");
    cr_expect_null(dnn->shapes, "what failed leaves nothing behind");
    dnn_close(dnn);
}

static const struct dnn_choice *choice_of(const struct dnn_convolution *convolution, size_t direction)
{
    return dnn_convolution_choice(convolution, (enum dnn_direction)direction);
}

Test(dnn, directions_that_nobody_needs_are_not_planned)
{
    struct dnn *dnn = open_planning(NULL);
    struct dnn_convolution_request request = request_3x3();
    request.no_backward_data = true;
    struct dnn_convolution *first = create(dnn, &request);
    cr_expect_not_null(choice_of(first, DNN_FORWARD));
    cr_expect_null(choice_of(first, DNN_BACKWARD_DATA));
    cr_expect_not_null(choice_of(first, DNN_BACKWARD_FILTER));
    request.no_backward = true;
    struct dnn_convolution *evaluating = create(dnn, &request);
    cr_expect_null(choice_of(evaluating, DNN_BACKWARD_FILTER));
    cr_expect_eq(dnn_convolution_workspace(evaluating), choice_of(evaluating, DNN_FORWARD)->workspace);
    dnn_convolution_destroy(evaluating);
    dnn_convolution_destroy(first);
    dnn_convolution_destroy(NULL);
    dnn_close(dnn);
}

Test(dnn, equal_requests_share_their_plans_and_others_do_not)
{
    struct dnn *dnn = open_planning(NULL);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *one = create(dnn, &request);
    request.name = "another name";
    struct dnn_convolution *two = create(dnn, &request);
    request.deterministic = true;
    struct dnn_convolution *three = create(dnn, &request);
    cr_expect_eq(one->shape, two->shape);
    cr_expect_neq(one->shape, three->shape);
    dnn_convolution_destroy(one);
    cr_expect_not_null(choice_of(two, DNN_FORWARD));
    dnn_convolution_destroy(two);
    dnn_convolution_destroy(three);
    cr_expect_null(dnn->shapes);
    dnn_close(dnn);
}

/* ---- bounds ---- */

/* Calls `check` for each candidate of each direction. */
static void for_candidates(const struct dnn_convolution *convolution,
                           void (*check)(const struct dnn_convolution *convolution, enum dnn_direction direction,
                                         const struct plan *plan))
{
    for (size_t d = 0; d < DNN_DIRECTIONS; d++) {
        const struct direction *direction = &convolution->shape->direction[d];
        cr_expect_gt(direction->plans, 0);
        for (size_t k = 0; k < direction->plans; k++)
            check(convolution, (enum dnn_direction)d, &direction->plan[k]);
    }
}

static void within_cap(const struct dnn_convolution *convolution, enum dnn_direction direction, const struct plan *plan)
{
    (void)direction;
    cr_expect_leq(plan->choice.workspace, convolution->shape->request.workspace_cap);
    cr_expect_leq(plan->choice.workspace, dnn_convolution_workspace(convolution));
}

Test(dnn, workspace_stays_within_its_cap)
{
    struct dnn *dnn = open_planning(NULL);
    struct dnn_convolution_request request = request_3x3();
    request.candidates = PLANS_MAX;
    struct dnn_convolution *generous = create(dnn, &request);
    for_candidates(generous, within_cap);
    request.workspace_cap = 200;
    struct dnn_convolution *thrifty = create(dnn, &request);
    for_candidates(thrifty, within_cap);
    cr_expect_gt(dnn_convolution_workspace(generous), 200, "else this test says nothing");
    dnn_convolution_destroy(thrifty);
    dnn_convolution_destroy(generous);
    dnn_close(dnn);
}

static void is_deterministic(const struct dnn_convolution *convolution, enum dnn_direction direction,
                             const struct plan *plan)
{
    (void)convolution;
    cr_expect(plan->choice.deterministic, "%s: engine %s", dnn_direction_name(direction), plan->choice.engine);
}

/* f32 without tensor cores is where the library prefers engines that add up in any order. */
Test(dnn, deterministic_leaves_out_engines_that_are_not)
{
    struct dnn *dnn = open_planning(NULL);
    struct dnn_convolution_request request = request_3x3();
    request.type = DTYPE_F32;
    struct dnn_convolution *any = create(dnn, &request);
    const struct direction *filters = &any->shape->direction[DNN_BACKWARD_FILTER];
    bool some = false;
    for (size_t k = 0; k < filters->plans; k++)
        some = some || !filters->plan[k].choice.deterministic;
    cr_expect(some, "else this test says nothing");
    request.deterministic = true;
    struct dnn_convolution *strict = create(dnn, &request);
    for_candidates(strict, is_deterministic);
    dnn_convolution_destroy(strict);
    dnn_convolution_destroy(any);
    dnn_close(dnn);
}

static void has_no_tensor_cores(const struct dnn_convolution *convolution, enum dnn_direction direction,
                                const struct plan *plan)
{
    (void)convolution;
    cr_expect_not(plan->choice.tensor_core, "%s: engine %s", dnn_direction_name(direction), plan->choice.engine);
}

Test(dnn, f32_is_not_rounded_unless_tf32_is_allowed)
{
    struct dnn *dnn = open_planning(NULL);
    struct dnn_convolution_request request = request_3x3();
    request.type = DTYPE_F32;
    struct dnn_convolution *exact = create(dnn, &request);
    for_candidates(exact, has_no_tensor_cores);
    request.tf32 = true;
    struct dnn_convolution *rounded = create(dnn, &request);
    cr_expect_neq(exact->shape, rounded->shape);
    for (size_t d = 0; d < DNN_DIRECTIONS; d++)
        cr_expect(choice_of(rounded, d)->tensor_core);
    dnn_convolution_destroy(rounded);
    dnn_convolution_destroy(exact);
    dnn_close(dnn);
}

/* Shapes that nobody trains with at 224 pixels, but tests do. */
Test(dnn, small_and_odd_shapes_have_plans)
{
    static const struct {
        int batch, channels, pixels, filters, kernel, stride;
    } shapes[] = {
        {1, 8, 5, 8, 3, 1}, {3, 8, 7, 16, 3, 2}, {2, 3, 9, 5, 1, 1}, {7, 24, 11, 40, 1, 2}, {4, 8, 32, 64, 7, 2}};
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    struct dnn *dnn = open_planning(NULL);
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        for (size_t t = 0; t < 3; t++) {
            struct dnn_convolution_request request = request_3x3();
            request.type = types[t];
            request.batch = shapes[k].batch;
            request.in_channels = shapes[k].channels;
            request.in_height = shapes[k].pixels;
            request.in_width = shapes[k].pixels + 1;
            request.out_channels = shapes[k].filters;
            request.kernel_height = request.kernel_width = shapes[k].kernel;
            request.stride = shapes[k].stride;
            request.padding = shapes[k].kernel / 2;
            dnn_convolution_destroy(create(dnn, &request));
        }
    }
    dnn_close(dnn);
}

/* ---- engines by name ---- */

/* Made again from its words, an engine has the same plan. */
static void comes_back(const struct dnn_convolution *convolution, enum dnn_direction direction, const struct plan *plan)
{
    struct dnn *dnn = convolution->dnn;
    struct shape again = {.request = convolution->shape->request, .users = 1};
    OK(dnn_graph.prepare(dnn, &again, direction));
    OK(dnn_graph.recall(dnn, &again, direction, plan->choice.engine));
    cr_assert_eq(again.direction[direction].plans, 1);
    const struct dnn_choice *choice = &again.direction[direction].plan[0].choice;
    cr_expect_str_eq(choice->engine, plan->choice.engine);
    cr_expect_eq(choice->workspace, plan->choice.workspace);
    cr_expect_eq(choice->tensor_core, plan->choice.tensor_core);
    cr_expect_eq(choice->deterministic, plan->choice.deterministic);
    cr_expect(choice->chosen);
    dnn_graph.plan_release(&again.direction[direction].plan[0]);
    dnn_graph.release(&again);
}

static int negative_settings;

static void comes_back_and_counts(const struct dnn_convolution *convolution, enum dnn_direction direction,
                                  const struct plan *plan)
{
    comes_back(convolution, direction, plan);
    negative_settings += strstr(plan->choice.engine, "=-") != NULL;
}

Test(dnn, engines_come_back_from_their_words)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    struct dnn *dnn = open_planning(NULL);
    struct dnn_convolution_request request = request_3x3(), few = request_3x3();
    few.batch = 3;
    few.in_channels = 8;
    few.in_height = few.in_width = 16;
    few.out_channels = 16;
    few.kernel_height = few.kernel_width = 7;
    few.stride = 2;
    few.padding = 3;
    request.candidates = few.candidates = PLANS_MAX;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        request.type = few.type = types[k];
        struct dnn_convolution *usual = create(dnn, &request), *small = create(dnn, &few);
        for_candidates(usual, comes_back_and_counts);
        for_candidates(small, comes_back_and_counts);
        dnn_convolution_destroy(small);
        dnn_convolution_destroy(usual);
    }
    cr_expect_gt(negative_settings, 0, "some engines have a setting below 0");
    dnn_close(dnn);
}

static enum status recall_words(const char *words)
{
    struct dnn *dnn = open_planning(NULL);
    struct shape shape = {.request = request_3x3(), .users = 1};
    OK(dnn_graph.prepare(dnn, &shape, DNN_FORWARD));
    enum status status = dnn_graph.recall(dnn, &shape, DNN_FORWARD, words);
    if (status >= 0)
        dnn_graph.plan_release(&shape.direction[DNN_FORWARD].plan[0]);
    dnn_graph.release(&shape);
    dnn_close(dnn);
    return status;
}

Test(dnn, words_that_name_no_engine_are_told)
{
    static const char *const damaged[] = {"",   ":",   "62:", "62:2",   "62:2=",    "62:2=4,", "62:2=4;13=0",
                                          "-1", "62 ", "x",   "62:2=-", "62:2=--4", "62:-2=4"};
    for (size_t k = 0; k < sizeof damaged / sizeof *damaged; k++)
        EXPECT_STATUS(recall_words(damaged[k]), STATUS_FORMAT);
    cr_expect_lt(recall_words("9999"), 0, "there is no such engine");
    cr_expect_lt(recall_words("62:2=123456"), 0, "nor such a setting");
}

/* ---- the file ---- */

static char path[64];

static void write_file(const char *text)
{
    snprintf(path, sizeof path, "/tmp/chorale-test-dnn-%ld", (long)getpid());
    OK(file_write_atomic(path, text, strlen(text)));
}

/* The forward direction of request_3x3(). */
static void write_line(const char *version, const char *engine)
{
    struct text text = {NULL};
    text_addf(&text,
              "chorale-engines 1\nNVIDIA_H200 %s graph forward bf16 64x56x56x64,64x3x3x64,s1,p1 any cap=268435456 = %s "
              "41.5us\n",
              version, engine);
    write_file(text_string(&text));
    text_release(&text);
}

/* The heuristics' last candidate is none that would come first by itself. */
static void last_candidate(char *engine, size_t size)
{
    struct dnn *dnn = open_planning(NULL);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *convolution = create(dnn, &request);
    const struct direction *direction = &convolution->shape->direction[DNN_FORWARD];
    snprintf(engine, size, "%s", direction->plan[direction->plans - 1].choice.engine);
    cr_assert_str_neq(engine, direction->plan[0].choice.engine);
    cr_expect(dnn_convolution_undecided(convolution));
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

static bool is_9_19(void)
{
    return cudnnGetVersion() == 91900;
}

Test(dnn, what_the_file_knows_is_taken_without_asking)
{
    char engine[160];
    if (!is_9_19())
        cr_skip_test("the file's key is of cuDNN 9.19.0");
    last_candidate(engine, sizeof engine);
    write_line("9.19.0", engine);
    struct dnn *dnn = open_planning(path);
    struct dnn_convolution_request request = request_3x3();
    request.no_backward = true;
    struct dnn_convolution *convolution = create(dnn, &request);
    const struct dnn_choice *choice = choice_of(convolution, DNN_FORWARD);
    cr_assert_not_null(choice);
    cr_expect_str_eq(choice->engine, engine);
    cr_expect(choice->chosen);
    cr_expect_float_eq(choice->microseconds, 41.5, 1e-9);
    cr_expect_not(dnn_convolution_undecided(convolution));
    OK(dnn_convolution_choose(convolution, &(struct dnn_buffers){NULL}, true));
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
    unlink(path);
}

static bool undecided_with(const char *version, const char *engine)
{
    write_line(version, engine);
    struct dnn *dnn = open_planning(path);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *convolution = create(dnn, &request);
    bool undecided = dnn_convolution_undecided(convolution);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
    unlink(path);
    return undecided;
}

Test(dnn, engines_of_another_version_or_that_are_no_more_are_chosen_anew)
{
    cr_expect(undecided_with("9.18.0", "as-9.18-calls-it"), "a key with another version");
    cr_expect(undecided_with("9.19.0", "9999:1=2"));
}

Test(dnn, a_damaged_engine_is_named_by_file_and_line)
{
    if (!is_9_19())
        cr_skip_test("the file's key is of cuDNN 9.19.0");
    write_line("9.19.0", "62:2=");
    struct dnn *dnn = open_planning(path);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *convolution = NULL;
    EXPECT_STATUS(dnn_convolution_create(dnn, &request, &convolution), STATUS_FORMAT);
    EXPECT_MESSAGE(path);
    EXPECT_MESSAGE(":2: ");
    dnn_close(dnn);
    unlink(path);
}

Test(dnn, a_damaged_file_is_refused_when_it_is_opened)
{
    struct dnn *dnn = NULL;
    char *description = h200_description();
    write_file("chorale-engines 1\nNVIDIA_H200 9.19.0 graph forward\n");
    EXPECT_STATUS(
        dnn_open(&(struct dnn_request){.planning = true, .description = description, .engine_file = path}, &dnn),
        STATUS_FORMAT);
    EXPECT_MESSAGE(":2: damaged");
    cr_expect_null(dnn);
    free(description);
    unlink(path);
}

/* ---- what needs a device ---- */

Test(dnn, planning_runs_nothing)
{
    struct dnn *dnn = open_planning(NULL);
    struct dnn_convolution_request request = request_3x3();
    struct dnn_convolution *convolution = create(dnn, &request), *legacy = NULL;
    double microseconds = 0;
    char memory[4] = "";
    EXPECT_STATUS(dnn_convolution_forward(convolution, memory, memory, memory, NULL), STATUS_UNAVAILABLE);
    EXPECT_MESSAGE("planning only");
    EXPECT_STATUS(dnn_convolution_backward_data(convolution, memory, memory, memory, NULL), STATUS_UNAVAILABLE);
    EXPECT_STATUS(dnn_convolution_backward_filter(convolution, memory, memory, memory, NULL), STATUS_UNAVAILABLE);
    EXPECT_STATUS(dnn_convolution_choose(convolution, &(struct dnn_buffers){NULL}, true), STATUS_UNAVAILABLE);
    EXPECT_STATUS(dnn_measure(dnn, NULL, NULL, &microseconds), STATUS_UNAVAILABLE);
    request.implementation = DNN_LEGACY;
    EXPECT_STATUS(dnn_convolution_create(dnn, &request, &legacy), STATUS_UNAVAILABLE);
    OK(dnn_remember(dnn));
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}

/* ---- what a stand-in of the execution reads (dnn.h) ---- */

static json_t *tensor_named(const json_t *graph, const char *name)
{
    size_t k = 0;
    json_t *tensor = NULL;
    json_array_foreach(json_object_get(graph, "tensors"), k, tensor)
    {
        if (strcmp(json_string_value(json_object_get(tensor, "name")), name) == 0)
            return tensor;
    }
    cr_assert_fail("no tensor %s", name);
    return NULL;
}

static void expect_dimensions(const json_t *graph, const json_t *node, const char *role, const char *name,
                              const int *expected)
{
    cr_assert_str_eq(json_string_value(json_object_get(node, role)), name);
    const json_t *dimensions = json_object_get(tensor_named(graph, name), "dim");
    cr_assert_eq(json_array_size(dimensions), 4);
    for (size_t k = 0; k < 4; k++)
        cr_expect_eq(json_integer_value(json_array_get(dimensions, k)), expected[k]);
}

static void can_be_read_back(const struct dnn_convolution *convolution, enum dnn_direction direction,
                             const struct plan *plan)
{
    static const char *const roles[DNN_DIRECTIONS][3] = {{"X", "W", "Y"}, {"dX", "W", "dY"}, {"X", "dW", "dY"}};
    static const int x[4] = {3, 8, 7, 9}, w[4] = {16, 8, 3, 3}, y[4] = {3, 16, 4, 5};
    char text[1 << 13] = ""; /* the library does not end it */
    int64_t length = 0;
    (void)convolution;
    cr_assert_eq(cudnnBackendGetAttribute(plan->execution, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                          CUDNN_TYPE_CHAR, sizeof text, &length, text),
                 CUDNN_STATUS_SUCCESS);
    json_t *document = json_loads(text, 0, NULL);
    const json_t *graph = json_object_get(document, "operationGraph");
    const json_t *node = json_array_get(json_object_get(graph, "nodes"), 0);
    cr_assert_not_null(node, "%s", text);
    expect_dimensions(graph, node, roles[direction][0], "120", x);
    expect_dimensions(graph, node, roles[direction][1], "119", w);
    expect_dimensions(graph, node, roles[direction][2], "121", y);
    cr_expect_eq(json_integer_value(json_array_get(json_object_get(node, "stride"), 0)), 2);
    cr_expect_eq(json_integer_value(json_array_get(json_object_get(node, "pad"), 0)), 1);
    json_decref(document);
}

Test(dnn, plans_tell_what_they_compute)
{
    struct dnn *dnn = open_planning(NULL);
    struct dnn_convolution_request request = request_3x3();
    request.batch = 3;
    request.in_channels = 8;
    request.in_height = 7;
    request.in_width = 9;
    request.out_channels = 16;
    request.stride = 2;
    request.candidates = PLANS_MAX;
    struct dnn_convolution *convolution = create(dnn, &request);
    for_candidates(convolution, can_be_read_back);
    dnn_convolution_destroy(convolution);
    dnn_close(dnn);
}
