/* dnn_convolution.c - convolutions: plans shared by equal shapes, the choice among them, what is remembered, running. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/cuda/dnn_internal.h"

#define CANDIDATES_DEFAULT 8

const char *dnn_direction_name(enum dnn_direction direction)
{
    static const char *const names[DNN_DIRECTIONS] = {"forward", "backward-data", "backward-filter"};
    return names[direction];
}

const char *dnn_implementation_name(enum dnn_implementation implementation)
{
    return implementation == DNN_LEGACY ? "legacy" : "graph";
}

static const struct implementation *implementation_of(const struct shape *shape)
{
    return shape->request.implementation == DNN_LEGACY ? &dnn_legacy : &dnn_graph;
}

int shape_out_height(const struct dnn_convolution_request *request)
{
    return (request->in_height + 2 * request->padding - request->kernel_height) / request->stride + 1;
}

int shape_out_width(const struct dnn_convolution_request *request)
{
    return (request->in_width + 2 * request->padding - request->kernel_width) / request->stride + 1;
}

/* ---- requests ---- */

static enum status check_request(const struct dnn_convolution_request *request)
{
    if (request->type != DTYPE_F32 && request->type != DTYPE_BF16 && request->type != DTYPE_F16)
        return fail(STATUS_REFUSED, "convolutions in %s: f32, bf16 and f16 are offered", dtype_name(request->type));
    if (request->batch < 1 || request->in_channels < 1 || request->out_channels < 1 || request->kernel_height < 1 ||
        request->kernel_width < 1 || request->stride < 1 || request->padding < 0 || request->candidates < 0 ||
        request->in_height + 2 * request->padding < request->kernel_height ||
        request->in_width + 2 * request->padding < request->kernel_width)
        return fail(STATUS_REFUSED, "no such convolution: %dx%dx%dx%d, %d filters of %dx%d, stride %d, padding %d",
                    request->batch, request->in_height, request->in_width, request->in_channels, request->out_channels,
                    request->kernel_height, request->kernel_width, request->stride, request->padding);
    return STATUS_OK;
}

static bool same_shape(const struct dnn_convolution_request *a, const struct dnn_convolution_request *b)
{
    return a->type == b->type && a->tf32 == b->tf32 && a->batch == b->batch && a->in_channels == b->in_channels &&
           a->in_height == b->in_height && a->in_width == b->in_width && a->out_channels == b->out_channels &&
           a->kernel_height == b->kernel_height && a->kernel_width == b->kernel_width && a->stride == b->stride &&
           a->padding == b->padding && a->deterministic == b->deterministic && a->workspace_cap == b->workspace_cap &&
           a->candidates == b->candidates && a->implementation == b->implementation;
}

/* The words of engine_file.h that say what was asked. */
static void add_key(const struct dnn *dnn, const struct dnn_convolution_request *request, enum dnn_direction direction,
                    struct text *key)
{
    const char *type = request->type == DTYPE_F32 && request->tf32 ? "tf32" : dtype_name(request->type);
    text_addf(key, "%s %s %s %s %s ", dnn->card, dnn->version, dnn_implementation_name(request->implementation),
              dnn_direction_name(direction), type);
    text_addf(key, "%dx%dx%dx%d,%dx%dx%dx%d,s%d,p%d ", request->batch, request->in_height, request->in_width,
              request->in_channels, request->out_channels, request->kernel_height, request->kernel_width,
              request->in_channels, request->stride, request->padding);
    text_addf(key, "%s cap=%zu", request->deterministic ? "deterministic" : "any", request->workspace_cap);
}

/* ---- shapes ---- */

static void direction_release(const struct implementation *implementation, struct direction *direction)
{
    for (size_t k = 0; k < direction->plans; k++)
        implementation->plan_release(&direction->plan[k]);
    direction->plans = 0;
}

static void shape_release(struct dnn *dnn, struct shape *shape)
{
    if (--shape->users > 0)
        return;
    struct shape **at = &dnn->shapes;
    while (*at != shape)
        at = &(*at)->next;
    *at = shape->next;
    for (size_t k = 0; k < DNN_DIRECTIONS; k++)
        direction_release(implementation_of(shape), &shape->direction[k]);
    implementation_of(shape)->release(shape);
    free(shape);
}

static enum status find_shape(struct dnn *dnn, const struct dnn_convolution_request *request, struct shape **shape)
{
    void *memory = NULL;
    for (*shape = dnn->shapes; *shape != NULL; *shape = (*shape)->next) {
        if (same_shape(&(*shape)->request, request)) {
            (*shape)->users++;
            return STATUS_OK;
        }
    }
    TRY(memory_zeroed(&memory, 1, sizeof **shape));
    *shape = memory;
    (*shape)->request = *request;
    (*shape)->request.name = NULL;
    (*shape)->users = 1;
    (*shape)->next = dnn->shapes;
    dnn->shapes = *shape;
    return STATUS_OK;
}

/* NULL: nothing, or an engine that has failed here. */
static enum status find_line(struct dnn *dnn, const struct shape *shape, enum dnn_direction which,
                             const struct engine_line **line)
{
    struct text key = {NULL};
    add_key(dnn, &shape->request, which, &key);
    const enum status status = text_check(&key);
    *line = status >= 0 ? engine_file_find(&dnn->engines, text_string(&key)) : NULL;
    if (*line != NULL && strcmp((*line)->engine, shape->direction[which].failed) == 0)
        *line = NULL;
    text_release(&key);
    return status;
}

/* What the file or an earlier choice says. STATUS_AGAIN: nothing that can be had. */
static enum status recall(struct dnn *dnn, struct shape *shape, enum dnn_direction which)
{
    const struct engine_line *line = NULL;
    TRY(find_line(dnn, shape, which, &line));
    if (line == NULL)
        return STATUS_AGAIN;
    enum status status = implementation_of(shape)->recall(dnn, shape, which, line->engine);
    if (status == STATUS_FORMAT && line->number > 0)
        return fail_context(status, "%s:%d", dnn->engine_path, line->number);
    if (status < 0)
        return status == STATUS_NO_MEMORY ? status : STATUS_AGAIN; /* another driver: chosen anew */
    shape->direction[which].plan[0].choice.microseconds = line->microseconds;
    shape->direction[which].settled = true;
    return STATUS_OK;
}

static size_t candidates_of(const struct dnn_convolution_request *request)
{
    size_t candidates = request->candidates > 0 ? (size_t)request->candidates : CANDIDATES_DEFAULT;
    return candidates < PLANS_MAX ? candidates : PLANS_MAX;
}

static enum status plan_direction(struct dnn *dnn, struct shape *shape, enum dnn_direction which)
{
    if (shape->direction[which].plans > 0)
        return STATUS_OK;
    TRY(implementation_of(shape)->prepare(dnn, shape, which));
    enum status status = recall(dnn, shape, which);
    if (status == STATUS_AGAIN)
        status = implementation_of(shape)->candidates(dnn, shape, which, candidates_of(&shape->request));
    return status;
}

enum status dnn_convolution_known(struct dnn *dnn, const struct dnn_convolution_request *request, bool *known)
{
    const bool wanted[DNN_DIRECTIONS] = {[DNN_FORWARD] = true,
                                         [DNN_BACKWARD_DATA] = !request->no_backward && !request->no_backward_data,
                                         [DNN_BACKWARD_FILTER] = !request->no_backward};
    *known = true;
    for (size_t k = 0; k < DNN_DIRECTIONS; k++) {
        struct text key = {NULL};
        add_key(dnn, request, (enum dnn_direction)k, &key);
        const enum status status = text_check(&key);
        *known = *known && (!wanted[k] || (status >= 0 && engine_file_find(&dnn->engines, text_string(&key)) != NULL));
        text_release(&key);
        TRY(status);
    }
    return STATUS_OK;
}

/* ---- convolutions ---- */

static enum status plan_convolution(struct dnn_convolution *convolution)
{
    for (size_t k = 0; k < DNN_DIRECTIONS; k++) {
        enum dnn_direction which = (enum dnn_direction)k;
        enum status status =
            convolution->planned[k] ? plan_direction(convolution->dnn, convolution->shape, which) : STATUS_OK;
        if (status < 0)
            return fail_context(status, "%s, %s in %s", convolution->name, dnn_direction_name(which),
                                dtype_name(convolution->shape->request.type));
    }
    return STATUS_OK;
}

enum status dnn_convolution_create(struct dnn *dnn, const struct dnn_convolution_request *request,
                                   struct dnn_convolution **convolution)
{
    void *memory = NULL;
    enum status status = check_request(request);
    *convolution = NULL;
    if (status < 0)
        return fail_context(status, "%s", request->name);
    TRY(memory_zeroed(&memory, 1, sizeof **convolution));
    struct dnn_convolution *made = memory;
    made->dnn = dnn;
    snprintf(made->name, sizeof made->name, "%s", request->name);
    made->planned[DNN_FORWARD] = true;
    made->planned[DNN_BACKWARD_DATA] = !request->no_backward && !request->no_backward_data;
    made->planned[DNN_BACKWARD_FILTER] = !request->no_backward;
    TRY_TO(fail, find_shape(dnn, request, &made->shape));
    TRY_TO(fail, plan_convolution(made));
    *convolution = made;
    return STATUS_OK;
fail:
    dnn_convolution_destroy(made);
    return status;
}

void dnn_convolution_destroy(struct dnn_convolution *convolution)
{
    if (convolution == NULL)
        return;
    if (convolution->shape != NULL) {
        for (size_t k = 0; k < DNN_DIRECTIONS; k++)
            implementation_of(convolution->shape)->pack_release(&convolution->pack[k]);
        shape_release(convolution->dnn, convolution->shape);
    }
    free(convolution);
}

size_t dnn_convolution_workspace(const struct dnn_convolution *convolution)
{
    size_t workspace = 0;
    for (size_t k = 0; k < DNN_DIRECTIONS; k++) {
        const struct direction *direction = &convolution->shape->direction[k];
        for (size_t j = 0; convolution->planned[k] && j < direction->plans; j++) {
            if (direction->plan[j].choice.workspace > workspace)
                workspace = direction->plan[j].choice.workspace;
        }
    }
    return workspace;
}

const struct dnn_choice *dnn_convolution_choice(const struct dnn_convolution *convolution, enum dnn_direction direction)
{
    return convolution->planned[direction] ? &convolution->shape->direction[direction].plan[0].choice : NULL;
}

/* ---- running ---- */

static enum status run(struct dnn_convolution *convolution, enum dnn_direction which, const struct addresses *addresses)
{
    struct dnn *dnn = convolution->dnn;
    struct shape *shape = convolution->shape;
    TRY(dnn_need_device(dnn, convolution->name));
    if (!convolution->planned[which])
        return fail(STATUS_INTERNAL, "%s: %s was not planned", convolution->name, dnn_direction_name(which));
    enum status status = implementation_of(shape)->run(dnn, shape, which, &shape->direction[which].plan[0],
                                                       &convolution->pack[which], addresses);
    return status < 0 ? fail_context(status, "%s, %s", convolution->name, dnn_direction_name(which)) : STATUS_OK;
}

enum status dnn_convolution_forward(struct dnn_convolution *convolution, const void *x, const void *w, void *y,
                                    void *workspace)
{
    return run(convolution, DNN_FORWARD, &(struct addresses){(void *)x, (void *)w, y, workspace});
}

enum status dnn_convolution_backward_data(struct dnn_convolution *convolution, const void *w, const void *dy, void *dx,
                                          void *workspace)
{
    return run(convolution, DNN_BACKWARD_DATA, &(struct addresses){dx, (void *)w, (void *)dy, workspace});
}

enum status dnn_convolution_backward_filter(struct dnn_convolution *convolution, const void *x, const void *dy,
                                            void *dw, void *workspace)
{
    return run(convolution, DNN_BACKWARD_FILTER, &(struct addresses){(void *)x, dw, (void *)dy, workspace});
}

/* ---- choosing ---- */

bool dnn_convolution_undecided(const struct dnn_convolution *convolution)
{
    for (size_t k = 0; k < DNN_DIRECTIONS; k++) {
        if (convolution->planned[k] && !convolution->shape->direction[k].settled)
            return true;
    }
    return false;
}

bool dnn_convolution_unproved(const struct dnn_convolution *convolution)
{
    for (size_t k = 0; k < DNN_DIRECTIONS; k++) {
        if (convolution->planned[k] && !convolution->shape->direction[k].proved)
            return true;
    }
    return false;
}

struct trial {
    struct dnn_convolution *convolution;
    enum dnn_direction direction;
    struct plan *plan;
    struct addresses addresses;
};

static enum status trial_run(void *argument)
{
    struct trial *trial = argument;
    struct dnn_convolution *convolution = trial->convolution;
    return implementation_of(convolution->shape)
        ->run(convolution->dnn, convolution->shape, trial->direction, trial->plan, &convolution->pack[trial->direction],
              &trial->addresses);
}

static struct trial trial_of(struct dnn_convolution *convolution, enum dnn_direction which,
                             const struct dnn_buffers *buffers)
{
    return (struct trial){
        convolution,
        which,
        &convolution->shape->direction[which].plan[0],
        {buffers->x, which == DNN_BACKWARD_FILTER ? buffers->dw : buffers->w, buffers->y, buffers->workspace}};
}

static void put_first(struct direction *direction, struct plan *plan)
{
    struct plan chosen = *plan;
    *plan = direction->plan[0];
    direction->plan[0] = chosen;
}

static enum status none_runs(const struct direction *direction, size_t workspace)
{
    return fail(STATUS_REFUSED, "of %zu engines none runs in %zu bytes of workspace%s%s", direction->plans, workspace,
                status_message()[0] != '\0' ? ": " : "", status_message());
}

/* "conv1, forward: engine 62:2=4 fails (why); what follows" */
static void note_failure(const struct dnn_convolution *convolution, enum dnn_direction which, const char *engine,
                         const char *follows)
{
    struct text line = {NULL};
    text_addf(&line, "%s, %s: engine %s fails when it is run (%s): %s", convolution->name, dnn_direction_name(which),
              engine, status_message(), follows);
    dnn_note(convolution->dnn, text_check(&line) >= 0 ? text_string(&line) : "an engine fails when it is run");
    text_release(&line);
}

/* The first that runs comes first. */
static enum status first_that_runs(struct dnn_convolution *convolution, enum dnn_direction which,
                                   const struct dnn_buffers *buffers)
{
    struct direction *direction = &convolution->shape->direction[which];
    struct trial trial = trial_of(convolution, which, buffers);
    for (size_t k = 0; k < direction->plans; k++) {
        trial.plan = &direction->plan[k];
        if (trial.plan->choice.workspace > buffers->workspace_bytes)
            continue;
        if (dnn_run_once(convolution->dnn, trial_run, &trial) >= 0) {
            put_first(direction, trial.plan);
            return STATUS_OK;
        }
        if (k + 1 < direction->plans)
            note_failure(convolution, which, trial.plan->choice.engine, "the next one is taken");
    }
    return none_runs(direction, buffers->workspace_bytes);
}

/* The fastest of them comes first; those that fail to run are left at time 0. STATUS_REFUSED: all do. */
static enum status time_candidates(struct dnn_convolution *convolution, enum dnn_direction which,
                                   const struct dnn_buffers *buffers)
{
    struct direction *direction = &convolution->shape->direction[which];
    struct trial trial = trial_of(convolution, which, buffers);
    struct plan *best = NULL;
    for (size_t k = 0; k < direction->plans; k++) {
        struct plan *plan = &direction->plan[k];
        trial.plan = plan;
        if (plan->choice.workspace > buffers->workspace_bytes ||
            dnn_measure(convolution->dnn, trial_run, &trial, &plan->choice.microseconds) < 0)
            continue;
        if (best == NULL || plan->choice.microseconds < best->choice.microseconds)
            best = plan;
    }
    if (best == NULL)
        return none_runs(direction, buffers->workspace_bytes);
    put_first(direction, best);
    direction->plan[0].choice.chosen = true;
    return STATUS_OK;
}

/* Drop all but the first. */
static void settle(struct shape *shape, enum dnn_direction which)
{
    struct direction *direction = &shape->direction[which];
    for (; direction->plans > 1; direction->plans--)
        implementation_of(shape)->plan_release(&direction->plan[direction->plans - 1]);
    direction->settled = direction->proved = true;
}

static enum status write_down(struct dnn *dnn, const struct shape *shape, enum dnn_direction which)
{
    const struct dnn_choice *choice = &shape->direction[which].plan[0].choice;
    struct text key = {NULL};
    add_key(dnn, &shape->request, which, &key);
    enum status status = text_check(&key);
    if (status >= 0)
        status = engine_file_put(&dnn->engines, text_string(&key), choice->engine, choice->microseconds);
    text_release(&key);
    return status;
}

static enum status choose(struct dnn_convolution *convolution, enum dnn_direction which,
                          const struct dnn_buffers *buffers, bool measure)
{
    status_clear();
    enum status status =
        measure ? time_candidates(convolution, which, buffers) : first_that_runs(convolution, which, buffers);
    if (status < 0)
        return fail_context(status, "%s, %s", convolution->name, dnn_direction_name(which));
    settle(convolution->shape, which);
    return measure ? write_down(convolution->dnn, convolution->shape, which) : STATUS_OK;
}

enum status dnn_convolution_choose(struct dnn_convolution *convolution, const struct dnn_buffers *buffers, bool measure)
{
    if (!dnn_convolution_undecided(convolution))
        return STATUS_OK;
    TRY(dnn_need_device(convolution->dnn, "choosing by time"));
    for (size_t k = 0; k < DNN_DIRECTIONS; k++) {
        enum dnn_direction which = (enum dnn_direction)k;
        if (!convolution->planned[k] || convolution->shape->direction[k].settled)
            continue;
        TRY(choose(convolution, which, buffers, measure));
    }
    return STATUS_OK;
}

/* ---- what the file has told ---- */

static void leave_out(struct shape *shape, struct direction *direction, const char *engine)
{
    for (size_t k = direction->plans; k-- > 0;) {
        if (strcmp(direction->plan[k].choice.engine, engine) != 0)
            continue;
        implementation_of(shape)->plan_release(&direction->plan[k]);
        memmove(&direction->plan[k], &direction->plan[k + 1], (--direction->plans - k) * sizeof(struct plan));
    }
}

/* It is as if the file had not known it, but for the engine that is no good. */
static enum status choose_anew(struct dnn_convolution *convolution, enum dnn_direction which)
{
    struct dnn *dnn = convolution->dnn;
    struct shape *shape = convolution->shape;
    struct direction *direction = &shape->direction[which];
    memcpy(direction->failed, direction->plan[0].choice.engine, sizeof direction->failed);
    direction_release(implementation_of(shape), direction);
    direction->settled = false;
    TRY(implementation_of(shape)->candidates(dnn, shape, which, candidates_of(&shape->request)));
    leave_out(shape, direction, direction->failed);
    if (direction->plans == 0)
        return fail(STATUS_REFUSED, "engine %s fails, and cuDNN offers no other", direction->failed);
    return STATUS_OK;
}

enum status dnn_convolution_recall(struct dnn_convolution *convolution)
{
    struct shape *shape = convolution->shape;
    for (size_t k = 0; k < DNN_DIRECTIONS; k++) {
        const enum dnn_direction which = (enum dnn_direction)k;
        const struct engine_line *line = NULL;
        if (!convolution->planned[k] || shape->direction[k].settled)
            continue;
        TRY(find_line(convolution->dnn, shape, which, &line));
        if (line == NULL)
            continue;
        direction_release(implementation_of(shape), &shape->direction[k]);
        TRY(plan_direction(convolution->dnn, shape, which));
    }
    return STATUS_OK;
}

static enum status prove(struct dnn_convolution *convolution, enum dnn_direction which,
                         const struct dnn_buffers *buffers)
{
    struct direction *direction = &convolution->shape->direction[which];
    struct trial trial = trial_of(convolution, which, buffers);
    if (dnn_run_once(convolution->dnn, trial_run, &trial) >= 0) {
        direction->proved = true;
        return STATUS_OK;
    }
    note_failure(convolution, which, direction->plan[0].choice.engine, "it is forgotten, another one is chosen");
    const enum status status = choose_anew(convolution, which);
    return status < 0 ? fail_context(status, "%s, %s", convolution->name, dnn_direction_name(which)) : status;
}

enum status dnn_convolution_prove(struct dnn_convolution *convolution, const struct dnn_buffers *buffers)
{
    TRY(dnn_need_device(convolution->dnn, "running"));
    for (size_t k = 0; k < DNN_DIRECTIONS; k++) {
        const struct direction *direction = &convolution->shape->direction[k];
        if (convolution->planned[k] && direction->settled && !direction->proved)
            TRY(prove(convolution, (enum dnn_direction)k, buffers));
    }
    return STATUS_OK;
}

enum status dnn_remember(struct dnn *dnn)
{
    return dnn->engine_path != NULL ? engine_file_write(&dnn->engines, dnn->engine_path) : STATUS_OK;
}
