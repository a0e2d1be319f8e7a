/* dnn_graph.c - convolutions on cuDNN's graph API: one operation a graph, engines by heuristics or by name.
 *
 *     tensors x, w, y + convolution -> operation -> operation graph -> heuristics -> engine configurations
 *     -> execution plans; run: plan + variant pack (addresses)
 *
 * On a described device (planning, or a stand-in) heuristics, engines and plans get the device's properties; else the
 * handle.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/cuda/dnn_internal.h"

#define KNOBS_MAX 32 /* of one engine                         */
#define ASKED_MAX 64 /* configurations asked of the heuristics */
#define NOTES_MAX CUDNN_NUMERICAL_NOTE_TYPE_COUNT

typedef cudnnBackendDescriptor_t descriptor;

enum { ID_W = 'w', ID_X = 'x', ID_Y = 'y' }; /* unique ids of tensors: dnn.h tells them */

/* ---- descriptors ---- */

struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *value;
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void destroy(descriptor *made)
{
    if (*made != NULL)
        cudnnBackendDestroyDescriptor(*made);
    *made = NULL;
}

/* In the place of what *made was. */
static enum status make(cudnnBackendDescriptorType_t type, const struct attribute *attribute, size_t attributes,
                        descriptor *made)
{
    enum status status = STATUS_OK;
    destroy(made);
    DNN_TRY(cudnnBackendCreateDescriptor(type, made));
    for (size_t k = 0; k < attributes; k++)
        DNN_TRY_TO(fail, cudnnBackendSetAttribute(*made, attribute[k].name, attribute[k].type, attribute[k].count,
                                                  attribute[k].value));
    DNN_TRY_TO(fail, cudnnBackendFinalize(*made));
    return STATUS_OK;
fail:
    destroy(made);
    return status;
}

static enum status make_tensor(int64_t id, cudnnDataType_t type, int64_t n, int64_t c, int64_t h, int64_t w,
                               descriptor *tensor)
{
    const int64_t dimensions[4] = {n, c, h, w}, strides[4] = {h * w * c, 1, w * c, c}, alignment = 16;
    const struct attribute attributes[] = {
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id},
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dimensions},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment},
    };
    return make(CUDNN_BACKEND_TENSOR_DESCRIPTOR, attributes, COUNT(attributes), tensor);
}

static enum status make_tensors(const struct dnn_convolution_request *request, struct operation *operation)
{
    cudnnDataType_t type = dnn_data_type(request->type);
    TRY(make_tensor(ID_X, type, request->batch, request->in_channels, request->in_height, request->in_width,
                    &operation->x));
    TRY(make_tensor(ID_W, type, request->out_channels, request->in_channels, request->kernel_height,
                    request->kernel_width, &operation->w));
    return make_tensor(ID_Y, type, request->batch, request->out_channels, shape_out_height(request),
                       shape_out_width(request), &operation->y);
}

static enum status make_convolution(const struct dnn_convolution_request *request, descriptor *convolution)
{
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t dimensions = 2, dilations[2] = {1, 1};
    const int64_t strides[2] = {request->stride, request->stride}, padding[2] = {request->padding, request->padding};
    const struct attribute attributes[] = {
        {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode},
        {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dimensions},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides},
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations},
    };
    return make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, attributes, COUNT(attributes), convolution);
}

/* The three directions differ in names only. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t convolution, x, w, y, alpha, beta;
} operation_names[DNN_DIRECTIONS] = {
    [DNN_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [DNN_BACKWARD_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [DNN_BACKWARD_FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

static enum status make_node(enum dnn_direction direction, struct operation *operation)
{
    const float one = 1, zero = 0;
    const struct attribute attributes[] = {
        {operation_names[direction].convolution, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation->convolution},
        {operation_names[direction].x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation->x},
        {operation_names[direction].w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation->w},
        {operation_names[direction].y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation->y},
        {operation_names[direction].alpha, CUDNN_TYPE_FLOAT, 1, &one},
        {operation_names[direction].beta, CUDNN_TYPE_FLOAT, 1, &zero},
    };
    return make(operation_names[direction].type, attributes, COUNT(attributes), &operation->node);
}

static enum status make_graph(struct dnn *dnn, struct operation *operation)
{
    const struct attribute attributes[] = {
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation->node},
        {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle},
    };
    return make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, attributes, dnn->device != NULL ? 1 : 2, &operation->graph);
}

static enum status prepare(struct dnn *dnn, struct shape *shape, enum dnn_direction direction)
{
    struct operation *operation = &shape->operation[direction];
    if (operation->graph != NULL)
        return STATUS_OK;
    TRY(make_tensors(&shape->request, operation));
    TRY(make_convolution(&shape->request, &operation->convolution));
    TRY(make_node(direction, operation));
    return make_graph(dnn, operation);
}

static void release(struct shape *shape)
{
    for (size_t k = 0; k < DNN_DIRECTIONS; k++) {
        struct operation *operation = &shape->operation[k];
        destroy(&operation->graph);
        destroy(&operation->node);
        destroy(&operation->convolution);
        destroy(&operation->y);
        destroy(&operation->w);
        destroy(&operation->x);
    }
}

/* ---- an engine's words ---- */

struct engine {
    int64_t index;
    int64_t knobs;
    cudnnBackendKnobType_t knob[KNOBS_MAX];
    int64_t value[KNOBS_MAX];
    bool note[NOTES_MAX];
};

static enum status read_notes(descriptor handle, struct engine *engine)
{
    cudnnBackendNumericalNote_t notes[NOTES_MAX];
    int64_t count = 0;
    DNN_TRY(cudnnBackendGetAttribute(handle, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MAX,
                                     &count, notes));
    for (int64_t k = 0; k < count && k < NOTES_MAX; k++) {
        if ((unsigned)notes[k] < NOTES_MAX)
            engine->note[notes[k]] = true;
    }
    return STATUS_OK;
}

static enum status read_knob(descriptor choice, cudnnBackendKnobType_t *knob, int64_t *value)
{
    int64_t count = 0;
    DNN_TRY(cudnnBackendGetAttribute(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &count, knob));
    DNN_TRY(cudnnBackendGetAttribute(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &count, value));
    return STATUS_OK;
}

static enum status read_knobs(descriptor config, struct engine *engine)
{
    descriptor choices[KNOBS_MAX] = {NULL};
    enum status status = STATUS_OK;
    for (size_t k = 0; k < KNOBS_MAX; k++)
        DNN_TRY_TO(out, cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &choices[k]));
    DNN_TRY_TO(out, cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                             KNOBS_MAX, &engine->knobs, choices));
    if (engine->knobs > KNOBS_MAX)
        TRY_TO(out, fail(STATUS_REFUSED, "cuDNN: an engine of %" PRId64 " knobs", engine->knobs));
    for (int64_t k = 0; k < engine->knobs; k++)
        TRY_TO(out, read_knob(choices[k], &engine->knob[k], &engine->value[k]));
out:
    for (size_t k = 0; k < KNOBS_MAX; k++)
        destroy(&choices[k]);
    return status;
}

static enum status read_engine(descriptor config, struct engine *engine)
{
    descriptor handle = NULL;
    int64_t count = 0;
    enum status status = STATUS_OK;
    *engine = (struct engine){0};
    DNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &handle));
    DNN_TRY_TO(out, cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                             &count, &handle));
    DNN_TRY_TO(out, cudnnBackendGetAttribute(handle, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                                             &engine->index));
    TRY_TO(out, read_notes(handle, engine));
    TRY_TO(out, read_knobs(config, engine));
out:
    destroy(&handle);
    return status;
}

/* "62:2=4,13=0" */
static enum status engine_words(const struct engine *engine, char *words, size_t size)
{
    struct text text = {NULL};
    text_addf(&text, "%" PRId64, engine->index);
    for (int64_t k = 0; k < engine->knobs; k++)
        text_addf(&text, "%c%d=%" PRId64, k == 0 ? ':' : ',', (int)engine->knob[k], engine->value[k]);
    enum status status = text_check(&text);
    if (status >= 0 && text.length >= size)
        status = fail(STATUS_REFUSED, "cuDNN: an engine of too many knobs: %s", text_string(&text));
    if (status >= 0)
        memcpy(words, text.data, text.length + 1);
    text_release(&text);
    return status;
}

static bool take_number(const char **at, int64_t *number)
{
    if (**at < '0' || **at > '9')
        return false;
    char *end = NULL;
    *number = strtoll(*at, &end, 10);
    *at = end;
    return true;
}

/* Some knobs have -1 for "as the library thinks". */
static bool take_value(const char **at, int64_t *value)
{
    const bool negative = **at == '-';
    *at += negative;
    const bool taken = take_number(at, value);
    if (taken && negative)
        *value = -*value;
    return taken;
}

static enum status parse_engine(const char *words, struct engine *engine)
{
    const char *at = words;
    *engine = (struct engine){0};
    bool whole = take_number(&at, &engine->index);
    while (whole && *at == (engine->knobs == 0 ? ':' : ',') && engine->knobs < KNOBS_MAX) {
        int64_t type = 0;
        at++;
        whole = take_number(&at, &type) && *at++ == '=' && take_value(&at, &engine->value[engine->knobs]);
        engine->knob[engine->knobs++] = (cudnnBackendKnobType_t)type;
    }
    if (!whole || *at != '\0')
        return fail(STATUS_FORMAT, "%s is no engine with its knobs (62:2=4,13=0)", words);
    return STATUS_OK;
}

/* ---- plans ---- */

static void plan_release(struct plan *plan)
{
    destroy(&plan->execution);
    destroy(&plan->config);
}

/* Why an engine is left out; NULL: it is not. Accumulation is f32 always, and inputs are what they are said to be. */
static const char *left_out(const struct dnn_convolution_request *request, const struct engine *engine)
{
    if (request->deterministic && engine->note[CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC])
        return "it is not deterministic";
    if (engine->note[CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS] ||
        engine->note[CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION])
        return "it computes in a smaller type";
    if (request->type == DTYPE_F32 && !request->tf32 && engine->note[CUDNN_NUMERICAL_NOTE_TENSOR_CORE])
        return "it rounds to tf32";
    return NULL;
}

static enum status finalise_plan(struct dnn *dnn, struct plan *plan)
{
    const struct attribute attributes[] = {
        {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &plan->config},
        dnn->device != NULL
            ? (struct attribute){CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dnn->device}
            : (struct attribute){CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle},
    };
    int64_t workspace = 0, count = 0;
    TRY(make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, attributes, COUNT(attributes), &plan->execution));
    DNN_TRY(cudnnBackendGetAttribute(plan->execution, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                     &count, &workspace));
    plan->choice.workspace = workspace > 0 ? (size_t)workspace : 0;
    return STATUS_OK;
}

/* plan->config is there: the rest. STATUS_REFUSED: not within the request's bounds, or the library's refusal. */
static enum status complete_plan(struct dnn *dnn, const struct dnn_convolution_request *request, struct plan *plan)
{
    struct engine engine;
    TRY(read_engine(plan->config, &engine));
    TRY(engine_words(&engine, plan->choice.engine, sizeof plan->choice.engine));
    const char *reason = left_out(request, &engine);
    if (reason != NULL)
        return fail(STATUS_REFUSED, "engine %s: %s", plan->choice.engine, reason);
    TRY(finalise_plan(dnn, plan));
    if (plan->choice.workspace > request->workspace_cap)
        return fail(STATUS_REFUSED, "engine %s wants %zu bytes of workspace, %zu are allowed", plan->choice.engine,
                    plan->choice.workspace, request->workspace_cap);
    plan->choice.tensor_core = engine.note[CUDNN_NUMERICAL_NOTE_TENSOR_CORE];
    plan->choice.deterministic = !engine.note[CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC];
    return STATUS_OK;
}

/* ---- heuristics ---- */

static enum status make_heuristics(struct dnn *dnn, descriptor graph, cudnnBackendHeurMode_t mode, descriptor *made)
{
    const struct attribute attributes[] = {
        {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph},
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode},
        {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dnn->device},
    };
    return make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, attributes, dnn->device != NULL ? 3 : 2, made);
}

/* The configurations of ranks [first, asked) that are within bounds become plans; *got is how many ranks there are. */
static enum status take_configs(struct dnn *dnn, struct shape *shape, struct direction *direction,
                                descriptor heuristics, size_t first, size_t asked, size_t wanted, size_t *got)
{
    descriptor configs[ASKED_MAX] = {NULL};
    int64_t count = 0;
    enum status status = STATUS_OK;
    for (size_t k = 0; k < asked; k++)
        DNN_TRY_TO(out, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[k]));
    DNN_TRY_TO(out, cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                             (int64_t)asked, &count, configs));
    *got = count < 0 ? 0 : (size_t)count < asked ? (size_t)count : asked;
    for (size_t k = first; k < *got && direction->plans < wanted; k++) {
        struct plan plan = {.config = configs[k]};
        configs[k] = NULL;
        if (complete_plan(dnn, &shape->request, &plan) >= 0)
            direction->plan[direction->plans++] = plan;
        else
            plan_release(&plan);
    }
out:
    for (size_t k = 0; k < asked; k++)
        destroy(&configs[k]);
    return status;
}

/* Few are asked for at first: where engines are compiled at run time, the library compiles whatever it lists. */
static enum status ask(struct dnn *dnn, struct shape *shape, enum dnn_direction which, cudnnBackendHeurMode_t mode,
                       size_t wanted)
{
    struct direction *direction = &shape->direction[which];
    descriptor heuristics = NULL;
    size_t seen = 0, asked = wanted, got = 0;
    enum status status = STATUS_OK;
    TRY(make_heuristics(dnn, shape->operation[which].graph, mode, &heuristics));
    do {
        TRY_TO(out, take_configs(dnn, shape, direction, heuristics, seen, asked, wanted, &got));
        if (got < asked || asked == ASKED_MAX)
            break;
        seen = asked;
        asked = 2 * asked < ASKED_MAX ? 2 * asked : ASKED_MAX;
    } while (direction->plans < wanted);
out:
    destroy(&heuristics);
    return status;
}

static enum status candidates(struct dnn *dnn, struct shape *shape, enum dnn_direction direction, size_t wanted)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    status_clear();
    for (size_t k = 0; k < COUNT(modes) && shape->direction[direction].plans == 0; k++) {
        enum status status = ask(dnn, shape, direction, modes[k], wanted);
        if (status < 0 && status != STATUS_REFUSED)
            return status;
    }
    if (shape->direction[direction].plans == 0)
        return fail(STATUS_REFUSED, "cuDNN %s offers no engine%s%s", dnn->version,
                    status_message()[0] != '\0' ? "; the last: " : "", status_message());
    return STATUS_OK;
}

/* ---- by name ---- */

static enum status make_engine(struct dnn *dnn, descriptor graph, const struct engine *engine, descriptor *made)
{
    const struct attribute attributes[] = {
        {CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph},
        {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &engine->index},
        {CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dnn->device},
    };
    return make(CUDNN_BACKEND_ENGINE_DESCRIPTOR, attributes, dnn->device != NULL ? 3 : 2, made);
}

static enum status make_knob(cudnnBackendKnobType_t knob, int64_t value, descriptor *made)
{
    const struct attribute attributes[] = {
        {CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &knob},
        {CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value},
    };
    return make(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, attributes, COUNT(attributes), made);
}

static enum status make_config(struct dnn *dnn, descriptor graph, const struct engine *engine, descriptor *config)
{
    descriptor handle = NULL, knobs[KNOBS_MAX] = {NULL};
    enum status status = STATUS_OK;
    TRY_TO(out, make_engine(dnn, graph, engine, &handle));
    for (int64_t k = 0; k < engine->knobs; k++)
        TRY_TO(out, make_knob(engine->knob[k], engine->value[k], &knobs[k]));
    const struct attribute attributes[] = {
        {CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle},
        {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, engine->knobs, knobs},
    };
    TRY_TO(out, make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, attributes, engine->knobs > 0 ? 2 : 1, config));
out:
    for (size_t k = 0; k < KNOBS_MAX; k++)
        destroy(&knobs[k]);
    destroy(&handle);
    return status;
}

static enum status recall(struct dnn *dnn, struct shape *shape, enum dnn_direction direction, const char *words)
{
    struct engine engine;
    struct plan plan = {.choice.chosen = true};
    TRY(parse_engine(words, &engine));
    TRY(make_config(dnn, shape->operation[direction].graph, &engine, &plan.config));
    enum status status = complete_plan(dnn, &shape->request, &plan);
    if (status < 0) {
        plan_release(&plan);
        return status;
    }
    shape->direction[direction].plan[0] = plan;
    shape->direction[direction].plans = 1;
    return STATUS_OK;
}

/* ---- running ---- */

static void pack_release(struct pack *pack)
{
    destroy(&pack->variant);
}

static enum status make_pack(struct pack *pack, const struct addresses *addresses)
{
    const int64_t ids[3] = {ID_X, ID_W, ID_Y};
    const void *const pointers[3] = {addresses->x, addresses->w, addresses->y};
    const struct attribute attributes[] = {
        {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &addresses->workspace},
    };
    TRY(make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, attributes, COUNT(attributes), &pack->variant));
    pack->addresses = *addresses;
    return STATUS_OK;
}

static bool same_addresses(const struct addresses *a, const struct addresses *b)
{
    return a->x == b->x && a->w == b->w && a->y == b->y && a->workspace == b->workspace;
}

static enum status run(struct dnn *dnn, struct shape *shape, enum dnn_direction direction, const struct plan *plan,
                       struct pack *pack, const struct addresses *addresses)
{
    (void)shape;
    (void)direction;
    if (pack->variant == NULL || !same_addresses(&pack->addresses, addresses))
        TRY(make_pack(pack, addresses));
    DNN_TRY(cudnnBackendExecute(dnn->handle, plan->execution, pack->variant));
    return STATUS_OK;
}

const struct implementation dnn_graph = {.prepare = prepare,
                                         .candidates = candidates,
                                         .recall = recall,
                                         .run = run,
                                         .plan_release = plan_release,
                                         .release = release,
                                         .pack_release = pack_release};
