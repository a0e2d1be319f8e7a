/* train.c - one worker's training run: opened, stepped through, examined. */
#include "nn/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "nn/replay/replay.h"
#include "nn/trainer.h"

enum { REPLAY_SAMPLES = 60000 };
#define DEFAULT_MODEL "resnet50"

/* ---- opening ---- */

static enum status make_model(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    if (request->profile == NULL) {
        const char *name = request->model != NULL ? request->model : DEFAULT_MODEL;
        TRY(data_open(request->data, request->image_size, &trainer->data));
        return model_create(name, data_classes(trainer->data), request->image_size, &trainer->model);
    }
    TRY(replay_model(request->profile, &trainer->model));
    if (request->model != NULL && strcmp(request->model, trainer->model->name) != 0)
        return fail(STATUS_USAGE, "--model=%s: the profile %s is of %s: leave --model out", request->model,
                    request->profile, trainer->model->name);
    return STATUS_OK;
}

/* How long the run is, in steps, and when the learning rate changes. */
static enum status make_plan(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    struct data_order *order = &trainer->order;
    *order = (struct data_order){.seed = request->seed,
                                 .samples = trainer->data != NULL ? data_train_count(trainer->data) : REPLAY_SAMPLES,
                                 .workers = job_size(request->job),
                                 .batch = request->batch};
    size_t global_batch = (size_t)order->workers * (size_t)order->batch;
    trainer->steps_per_epoch = data_order_batches(order);
    if (trainer->steps_per_epoch == 0 && trainer->data != NULL)
        return fail(STATUS_USAGE, "--batch=%d: %d workers take %zu images a step, the training set has %zu",
                    order->batch, order->workers, global_batch, order->samples);
    if (trainer->steps_per_epoch == 0)
        trainer->steps_per_epoch = 1; /* nothing is read */
    double epochs = request->epochs * (double)trainer->steps_per_epoch;
    trainer->steps = request->steps > 0 ? request->steps : (uint64_t)ceil(epochs);
    trainer->rate =
        (struct learning_rate){.rate = request->lr, .global_batch = global_batch, .warmup = request->warmup_steps};
    if (request->decay_epochs != NULL)
        return learning_rate_milestones(&trainer->rate, request->decay_epochs, (double)trainer->steps_per_epoch);
    if (request->steps > 0)
        return learning_rate_milestones(&trainer->rate, "30,60,80", (double)trainer->steps_per_epoch);
    learning_rate_usual_milestones(&trainer->rate, trainer->steps);
    return STATUS_OK;
}

static enum status make_arena(size_t count, float **arena)
{
    void *memory = NULL;
    TRY(memory_pages(&memory, count * sizeof(float)));
    *arena = memory;
    return STATUS_OK;
}

/* What workers exchange, where those of a node can read it in place. */
static enum status make_shared_arena(struct trainer *trainer, size_t count, float **arena)
{
    void *memory = NULL;
    TRY(comm_alloc(trainer->request->comm, count * sizeof(float), &memory));
    *arena = memory;
    return STATUS_OK;
}

static size_t image_elements(const struct trainer *trainer)
{
    const struct model *model = trainer->model;
    return (size_t)trainer->request->batch * (size_t)model->channels * (size_t)model->image_size *
           (size_t)model->image_size;
}

static enum status make_arenas(struct trainer *trainer)
{
    struct replica *replica = &trainer->replica;
    size_t workers = (size_t)job_size(trainer->request->job);
    void *labels = NULL, *top1 = NULL, *hashes = NULL;
    TRY(make_shared_arena(trainer, trainer->model->parameters, &replica->parameters));
    for (int k = 0; k < trainer->method->gradients; k++)
        TRY(make_shared_arena(trainer, trainer->model->parameters, &replica->gradient[k]));
    TRY(make_shared_arena(trainer, trainer->model->state, &trainer->state));
    TRY(memory_zeroed(&top1, workers, sizeof(double)));
    trainer->top1_of = top1;
    TRY(memory_zeroed(&hashes, 2 * workers, sizeof(uint64_t)));
    trainer->parameter_hash = hashes;
    trainer->state_hash = trainer->parameter_hash + workers;
    if (trainer->data == NULL)
        return STATUS_OK;
    TRY(make_arena(image_elements(trainer), &trainer->images));
    TRY(memory_zeroed(&labels, (size_t)trainer->request->batch, sizeof(int32_t)));
    trainer->labels = labels;
    return STATUS_OK;
}

/* The same on every worker, by the seed. An emulated device keeps the zeros. */
static enum status initialise(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    const struct backend_ops *ops = request->backend;
    float *parameters = trainer->replica.parameters;
    if (request->profile != NULL)
        return STATUS_OK;
    if (ops->to_native == NULL) {
        model_initialise(trainer->model, request->seed, parameters, trainer->state);
        return STATUS_OK;
    }
    float *canonical = NULL;
    TRY(make_arena(trainer->model->parameters, &canonical));
    model_initialise(trainer->model, request->seed, canonical, trainer->state);
    enum status status = ops->to_native(trainer->backend, canonical, parameters);
    memory_pages_release(canonical, trainer->model->parameters * sizeof(float));
    return status;
}

static enum status open_backend(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    struct backend_request backend = {.model = trainer->model,
                                      .batch = request->batch,
                                      .threads = request->threads,
                                      .profile = request->profile,
                                      .seed = request->seed + (uint64_t)job_rank(request->job)};
    return request->backend->open(&backend, &trainer->backend);
}

static enum status open_records(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    struct metrics_request metrics = {.job = request->job,
                                      .log = trainer->log,
                                      .rate = &trainer->rate,
                                      .steps_per_epoch = trainer->steps_per_epoch,
                                      .in_step = trainer->exact};
    TRY(metrics_open(&metrics, &trainer->metrics));
    trainer->log = NULL;
    return STATUS_OK;
}

static enum status trainer_open(const struct train_request *request, struct trainer *trainer)
{
    const struct spec *spec = request->spec;
    *trainer = (struct trainer){.request = request, .exact = spec_is_exact(spec)};
    clock_wall_text(trainer->started, sizeof trainer->started);
    TRY(method_find(spec->kind == SPEC_STRATEGY ? spec->strategy->name : "synchronous", &trainer->method));
    if (job_rank(request->job) == 0)
        TRY(run_folder(request->out, &trainer->folder, &trainer->log)); /* before anything that takes time */
    TRY(make_model(trainer));
    TRY(make_plan(trainer));

    struct exchange_request exchange = {.comm = request->comm,
                                        .spec = spec,
                                        .layout = request->layout,
                                        .model = trainer->model,
                                        .bucket = request->bucket,
                                        .wire = request->wire};
    TRY(exchanges_create(&exchange, &trainer->exchanges));
    TRY(open_backend(trainer));
    if (request->profile == NULL)
        TRY(optimizer_create(trainer->model, request->momentum, request->weight_decay, &trainer->optimizer));
    TRY(make_arenas(trainer));
    TRY(initialise(trainer));
    trainer->replica.optimizer = trainer->optimizer;
    trainer->replica.rate = &trainer->rate;
    TRY(open_records(trainer));
    exchanges_describe(trainer->exchanges, &trainer->decided);
    TRY(text_check(&trainer->decided));
    const struct train_start start = {.request = request,
                                      .model = trainer->model,
                                      .steps = trainer->steps,
                                      .folder = text_string(&trainer->folder),
                                      .decided = trainer->decided.length > 0 ? text_string(&trainer->decided) : NULL};
    if (request->started != NULL && job_rank(request->job) == 0)
        request->started(request->context, &start);
    return STATUS_OK;
}

static void release_arenas(struct trainer *trainer)
{
    if (trainer->model == NULL)
        return;
    struct comm *comm = trainer->request->comm;
    comm_free(comm, trainer->replica.parameters);
    for (int k = 0; k < 2; k++)
        comm_free(comm, trainer->replica.gradient[k]);
    comm_free(comm, trainer->state);
    memory_pages_release(trainer->images, image_elements(trainer) * sizeof(float));
}

static void trainer_close(struct trainer *trainer)
{
    /* What a failure left in flight may still be read and written by the transport: those arenas stay. */
    bool in_flight = trainer->exchanges != NULL && exchanges_under_way(trainer->exchanges);
    exchanges_destroy(trainer->exchanges);
    if (!in_flight)
        release_arenas(trainer);
    metrics_close(trainer->metrics);
    optimizer_destroy(trainer->optimizer);
    trainer->request->backend->close(trainer->backend);
    model_destroy(trainer->model);
    data_close(trainer->data);
    free(trainer->labels);
    free(trainer->top1_of);
    free(trainer->parameter_hash);
    if (trainer->log != NULL)
        (void)fclose(trainer->log); /* nothing was written */
    text_release(&trainer->folder);
    text_release(&trainer->decided);
}

/* ---- a step ---- */

static enum status plan_step(const struct trainer *trainer, uint64_t step, struct step_plan *plan)
{
    const struct spec *spec = trainer->request->spec;
    if (spec->kind == SPEC_STRATEGY)
        return spec->strategy->plan(&spec->options, step, plan);
    *plan = (struct step_plan){.exchanges = true, .updates = true};
    return STATUS_OK;
}

/* Forward and backward; a loss that is not finite spoils the gradient, so that whoever gets its mean notices. */
static enum status compute(struct trainer *trainer, uint64_t step, double *seconds)
{
    const struct train_request *request = trainer->request;
    float *gradient = trainer->replica.gradient[step % (uint64_t)trainer->method->gradients];
    const struct batch batch = {.count = request->batch, .canonical = trainer->images, .labels = trainer->labels};
    struct step_result result;
    if (trainer->data != NULL)
        data_train_batch(trainer->data, &trainer->order, step, job_rank(request->job), trainer->images,
                         trainer->labels);
    uint64_t before = clock_ns();
    TRY(request->backend->step(trainer->backend, trainer->replica.parameters, trainer->state, &batch, gradient));
    TRY(request->backend->collect(trainer->backend, &result));
    *seconds = (double)(clock_ns() - before) * 1e-9;
    trainer->loss[step % 2] = result.loss;
    if (!isfinite(result.loss))
        gradient[0] = NAN;
    return STATUS_OK;
}

/* The gradient of `step` was not finite. In exact runs all workers are here in the same step: the first one whose own
 * loss was at fault reports, the others wait to be ended by that. */
static enum status not_finite(struct trainer *trainer, uint64_t step)
{
    struct job *job = trainer->request->job;
    int culprit = job_rank(job);
    double loss = trainer->loss[step % 2];
    if (trainer->exact) {
        void *all = NULL;
        TRY(memory_zeroed(&all, (size_t)job_size(job), sizeof(double)));
        const double *losses = all;
        enum status status = job_allgather(job, &loss, sizeof loss, all);
        culprit = 0;
        while (status >= 0 && culprit < job_size(job) && isfinite(losses[culprit]))
            culprit++;
        free(all);
        TRY(status);
    }
    if (culprit != job_rank(job) && culprit < job_size(job))
        TRY(job_barrier(job));
    struct text value = {0};
    text_add_real(&value, loss, 6);
    enum status status = isfinite(loss)
                             ? fail(STATUS_FORMAT, "step %llu: the gradient is not finite (loss %s): lower --lr",
                                    (unsigned long long)step, text_string(&value))
                             : fail(STATUS_FORMAT, "step %llu: the loss is %s: lower --lr, or raise --warmup-steps",
                                    (unsigned long long)step, text_string(&value));
    text_release(&value);
    return status;
}

/* The next step begins now. */
static void mark(struct trainer *trainer)
{
    trainer->mark_ns = clock_ns();
    exchanges_mark(trainer->exchanges, trainer->mark_ns);
}

static enum status record(struct trainer *trainer, uint64_t step, double compute_s)
{
    struct exchange_tally tally;
    uint64_t now = clock_ns();
    TRY(exchanges_take(trainer->exchanges, now, &tally));
    struct step_row row = {.loss = trainer->loss[step % 2],
                           .step_s = (double)(now - trainer->mark_ns) * 1e-9,
                           .compute_s = compute_s,
                           .comm_s = (double)tally.flight_ns * 1e-9,
                           .exposed_s = (double)tally.blocked_ns * 1e-9,
                           .bytes = (double)tally.bytes};
    trainer->mark_ns = now;
    if (step > 0 || trainer->steps == 1) { /* the first one is no measure of the others */
        trainer->run_s += row.step_s;
        trainer->run_steps++;
    }
    return metrics_add(trainer->metrics, &row);
}

static void tell(struct trainer *trainer, uint64_t step, bool evaluated)
{
    const struct train_request *request = trainer->request;
    if (request->progress == NULL || job_rank(request->job) != 0)
        return;
    double step_s = trainer->run_steps > 0 ? trainer->run_s / (double)trainer->run_steps : 0;
    struct train_progress progress = {
        .step = step + 1,
        .steps = trainer->steps,
        .epoch = (double)(step + 1) / (double)trainer->steps_per_epoch,
        .loss = trainer->loss[step % 2],
        .images_per_s = step_s > 0 ? (double)trainer->rate.global_batch / step_s : 0,
        .left_s = (double)(trainer->steps - step - 1) * step_s,
        .evaluated = evaluated,
        .top1 = trainer->accuracy.top1,
        .test_loss = trainer->accuracy.loss,
    };
    request->progress(request->context, &progress);
}

static enum status one_step(struct trainer *trainer, uint64_t step)
{
    struct exchanger exchanger = exchanges_exchanger(trainer->exchanges);
    struct step_plan plan;
    double compute_s = 0;
    bool finite = true;
    TRY(plan_step(trainer, step, &plan));
    TRY(compute(trainer, step, &compute_s));
    TRY(trainer->method->step(&trainer->replica, &exchanger, &plan, step, &finite));
    if (!finite)
        return not_finite(trainer, step - (uint64_t)plan.gradient_age);
    TRY(record(trainer, step, compute_s));
    tell(trainer, step, false);
    return STATUS_OK;
}

/* ---- examining ---- */

static struct examiner examiner_of(const struct trainer *trainer)
{
    return (struct examiner){.job = trainer->request->job,
                             .model = trainer->model,
                             .ops = trainer->request->backend,
                             .backend = trainer->backend,
                             .data = trainer->data,
                             .exchanges = trainer->exchanges,
                             .exact = trainer->exact,
                             .batch = trainer->request->batch,
                             .images = trainer->images,
                             .labels = trainer->labels};
}

/* After step `step`: statistics averaged, hashes compared, accuracy if wanted; takes no time of any step. */
static enum status examine(struct trainer *trainer, uint64_t step, bool evaluate)
{
    struct examiner examiner = examiner_of(trainer);
    const float *parameters = trainer->replica.parameters;
    if (trainer->exact)
        TRY(exchanges_mean(trainer->exchanges, "mean of the running statistics", trainer->state,
                           trainer->model->state));
    TRY(examine_hashes(&examiner, parameters, trainer->state, step + 1, trainer->parameter_hash, trainer->state_hash));
    evaluate = evaluate && trainer->data != NULL && trainer->request->backend->evaluate != NULL;
    if (evaluate) {
        TRY(examine_accuracy(&examiner, parameters, trainer->state, &trainer->accuracy, trainer->top1_of));
        trainer->evaluated = true;
        tell(trainer, step, true);
    }
    TRY(metrics_flush(trainer->metrics, evaluate ? trainer->accuracy.top1 : (double)NAN));
    mark(trainer);
    return STATUS_OK;
}

static enum status all_steps(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    mark(trainer);
    for (uint64_t step = 0; step < trainer->steps; step++) {
        TRY(one_step(trainer, step));
        if ((step + 1) % trainer->steps_per_epoch == 0 && step + 1 < trainer->steps)
            TRY(examine(trainer, step, request->evaluation == EVALUATE_EPOCHS));
    }
    return STATUS_OK;
}

/* What encoding has done on all workers. */
static enum status gather_wire(struct trainer *trainer)
{
    struct job *job = trainer->request->job;
    const struct codec_statistics mine = exchanges_wire(trainer->exchanges);
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)job_size(job), sizeof mine));
    const struct codec_statistics *all = memory;
    const enum status status = job_allgather(job, &mine, sizeof mine, memory);
    for (int r = 0; status >= 0 && r < job_size(job); r++)
        codec_statistics_add(&trainer->wire, &all[r]);
    free(memory);
    return status;
}

/* What is in flight is applied, and the result examined. */
static enum status finish(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    struct exchanger exchanger = exchanges_exchanger(trainer->exchanges);
    uint64_t last = trainer->steps - 1;
    bool finite = true;
    if (trainer->method->finish != NULL)
        TRY(trainer->method->finish(&trainer->replica, &exchanger, trainer->steps, &finite));
    if (!finite)
        return not_finite(trainer, last);
    TRY(examine(trainer, last, request->evaluation != EVALUATE_NEVER));
    TRY(gather_wire(trainer));
    struct examiner examiner = examiner_of(trainer);
    if (!trainer->exact)
        TRY(examine_consensus(&examiner, trainer->replica.parameters, &trainer->consensus));
    return STATUS_OK;
}

static enum status write_profile(const struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    if (request->profile_out == NULL || job_rank(request->job) != 0)
        return STATUS_OK;
    if (request->backend->profile == NULL)
        return fail(STATUS_REFUSED, "--profile-out=%s: the device %s measures no layer times", request->profile_out,
                    request->backend->name);
    struct text text = {0};
    enum status status = request->backend->profile(trainer->backend, &text);
    if (status >= 0)
        status = text_check(&text);
    if (status >= 0)
        status = file_write_atomic(request->profile_out, text_string(&text), text.length);
    text_release(&text);
    return status;
}

enum status train_run(const struct train_request *request, struct train_summary *summary)
{
    struct trainer trainer;
    enum status status = STATUS_OK;
    *summary = (struct train_summary){.document = NULL};
    TRY_TO(done, trainer_open(request, &trainer));
    TRY_TO(done, all_steps(&trainer));
    TRY_TO(done, finish(&trainer));
    TRY_TO(done, write_profile(&trainer));
    TRY_TO(done, trainer_summarise(&trainer, summary));
done:
    trainer_close(&trainer);
    if (status < 0)
        train_summary_release(summary);
    return status;
}
