/* train.c - one worker's training run: opened, stepped through, examined, written down. */
#include "nn/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "nn/data.h"
#include "nn/examine.h"
#include "nn/exchange.h"
#include "nn/metrics.h"
#include "nn/optimizer.h"
#include "nn/replay/replay.h"
#include "nn/strategies/method.h"

enum { REPLAY_SAMPLES = 60000, LOSS_STEPS = 20 };
#define DEFAULT_MODEL "resnet50"

struct trainer {
    const struct train_request *request;
    bool exact; /* all workers hold equal parameters */

    struct model *model;
    struct data *data;
    struct data_order order;
    uint64_t steps_per_epoch, steps;
    struct learning_rate rate;
    struct backend *backend;
    struct optimizer *optimizer;
    struct exchanges *exchanges;
    struct metrics *metrics;
    const struct method *method;
    struct replica replica; /* its parameters and gradients are ours: native arenas */
    float *state;           /* running statistics */
    float *images;
    int32_t *labels;
    struct text folder; /* rank 0 */
    char started[32];   /* wall clock */

    uint64_t mark_ns; /* end of the latest step */
    double loss[2];   /* of this worker in step t: loss[t % 2] */
    double run_s;     /* of the steps so far, for the progress */
    uint64_t run_steps;
    struct accuracy accuracy; /* latest */
    double *top1_of;          /* latest, of each worker */
    bool evaluated;
    uint64_t *parameter_hash, *state_hash; /* of each worker */
    double consensus;
};

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
    TRY(make_arena(trainer->model->parameters, &replica->parameters));
    for (int k = 0; k < trainer->method->gradients; k++)
        TRY(make_arena(trainer->model->parameters, &replica->gradient[k]));
    TRY(make_arena(trainer->model->state, &trainer->state));
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
                                      .folder = trainer->folder.length > 0 ? text_string(&trainer->folder) : NULL,
                                      .rate = &trainer->rate,
                                      .steps_per_epoch = trainer->steps_per_epoch,
                                      .in_step = trainer->exact};
    return metrics_open(&metrics, &trainer->metrics);
}

static enum status trainer_open(const struct train_request *request, struct trainer *trainer)
{
    const struct spec *spec = request->spec;
    *trainer = (struct trainer){.request = request, .exact = spec_is_exact(spec)};
    clock_wall_text(trainer->started, sizeof trainer->started);
    TRY(method_find(spec->kind == SPEC_STRATEGY ? spec->strategy->name : "synchronous", &trainer->method));
    if (job_rank(request->job) == 0)
        TRY(run_folder(request->out, &trainer->folder)); /* before anything that takes time */
    TRY(make_model(trainer));
    TRY(make_plan(trainer));

    struct exchange_request exchange = {.comm = request->comm,
                                        .spec = spec,
                                        .layout = request->layout,
                                        .model = trainer->model,
                                        .bucket = request->bucket};
    TRY(exchanges_create(&exchange, &trainer->exchanges));
    TRY(open_backend(trainer));
    if (request->profile == NULL)
        TRY(optimizer_create(trainer->model, request->momentum, request->weight_decay, &trainer->optimizer));
    TRY(make_arenas(trainer));
    TRY(initialise(trainer));
    trainer->replica.optimizer = trainer->optimizer;
    trainer->replica.rate = &trainer->rate;
    TRY(open_records(trainer));
    if (request->started != NULL && job_rank(request->job) == 0)
        request->started(request->context, request, trainer->model, trainer->steps, text_string(&trainer->folder));
    return STATUS_OK;
}

static void release_arenas(struct trainer *trainer)
{
    if (trainer->model == NULL)
        return;
    size_t bytes = trainer->model->parameters * sizeof(float);
    memory_pages_release(trainer->replica.parameters, bytes);
    for (int k = 0; k < 2; k++)
        memory_pages_release(trainer->replica.gradient[k], bytes);
    memory_pages_release(trainer->state, trainer->model->state * sizeof(float));
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
    text_release(&trainer->folder);
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
    struct step_result result = {.loss = 0};
    if (trainer->data != NULL)
        data_train_batch(trainer->data, &trainer->order, step, job_rank(request->job), trainer->images,
                         trainer->labels);
    uint64_t before = clock_ns();
    TRY(request->backend->step(trainer->backend, trainer->replica.parameters, trainer->state, trainer->images,
                               trainer->labels, gradient, &result));
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

/* ---- the summary ---- */

static double mean_loss(const struct step_row *rows, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += rows[i].loss;
    return sum / (double)count;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Steps of a mean loss: the first and the last ones do not overlap. */
static size_t loss_steps(size_t count)
{
    size_t half = count > 1 ? count / 2 : 1;
    return half < LOSS_STEPS ? half : LOSS_STEPS;
}

/* Nearest rank of sorted values. */
static double quantile(const double *sorted, size_t count, double q)
{
    size_t rank = (size_t)ceil(q * (double)count);
    return sorted[rank > 0 ? rank - 1 : 0];
}

static size_t timing_skip(const struct trainer *trainer, size_t steps)
{
    int wanted = trainer->request->timing_skip;
    size_t skip = steps > 4 ? 2 : steps > 1;
    if (wanted >= 0)
        skip = (size_t)wanted;
    return skip < steps ? skip : steps - 1;
}

static enum status summarise_times(const struct step_row *rows, size_t count, size_t global_batch,
                                   struct train_summary *summary)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, count, sizeof(double)));
    double *steps_ms = memory;
    struct step_row sum = {.loss = 0};
    for (size_t i = 0; i < count; i++) {
        steps_ms[i] = rows[i].step_s * 1e3;
        sum.step_s += rows[i].step_s;
        sum.compute_s += rows[i].compute_s;
        sum.comm_s += rows[i].comm_s;
        sum.exposed_s += rows[i].exposed_s;
        sum.bytes += rows[i].bytes;
    }
    qsort(steps_ms, count, sizeof steps_ms[0], by_value);
    double n = (double)count;
    summary->images_per_s = n * (double)global_batch / sum.step_s;
    summary->step_ms = sum.step_s / n * 1e3;
    summary->step_ms_p50 = quantile(steps_ms, count, 0.5);
    summary->step_ms_p99 = quantile(steps_ms, count, 0.99);
    summary->compute_ms = sum.compute_s / n * 1e3;
    summary->comm_ms = sum.comm_s / n * 1e3;
    summary->exposed_ms = sum.exposed_s / n * 1e3;
    summary->bytes_sent_per_step = sum.bytes / n;
    free(memory);
    return STATUS_OK;
}

static json_t *hashes_json(const uint64_t *hashes, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++) {
        char text[17];
        snprintf(text, sizeof text, "%016llx", (unsigned long long)hashes[i]);
        (void)json_array_append_new(array, json_string(text)); /* a missing one fails in json_write(), too */
    }
    return array;
}

static json_t *reals_json(const double *values, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        (void)json_array_append_new(array, json_number(values[i]));
    return array;
}

static json_t *versions_json(const struct trainer *trainer)
{
    struct text backend = {0}, transport = {0};
    trainer->request->backend->describe(trainer->backend, &backend);
    comm_describe(trainer->request->comm, &transport);
    json_t *object = json_pack("{ss ss}", "backend", text_string(&backend), "transport", text_string(&transport));
    text_release(&backend);
    text_release(&transport);
    return object;
}

/* What was measured. */
static json_t *results_json(const struct trainer *trainer, const struct train_summary *summary)
{
    int workers = job_size(trainer->request->job);
    return json_pack(
        "{so so so so so so so so so so so so so so so so so}", "images_per_s", json_number(summary->images_per_s),
        "step_ms", json_number(summary->step_ms), "step_ms_p50", json_number(summary->step_ms_p50), "step_ms_p99",
        json_number(summary->step_ms_p99), "compute_ms", json_number(summary->compute_ms), "comm_ms",
        json_number(summary->comm_ms), "exposed_ms", json_number(summary->exposed_ms), "bytes_sent_per_step",
        json_integer((json_int_t)llround(summary->bytes_sent_per_step)), "loss_first", json_number(summary->loss_first),
        "loss_last", json_number(summary->loss_last), "top1", json_number(summary->top1), "test_loss",
        json_number(summary->test_loss), "top1_of_workers",
        trainer->evaluated ? reals_json(trainer->top1_of, workers) : json_null(), "parameter_hash",
        hashes_json(trainer->parameter_hash, workers), "state_hash", hashes_json(trainer->state_hash, workers),
        "consensus", json_number(summary->consensus), "versions", versions_json(trainer));
}

static json_t *bucket_json(size_t bucket)
{
    return bucket == BUCKET_TENSOR ? json_string("tensor") : json_integer((json_int_t)bucket);
}

/* What was asked for. */
static json_t *settings_json(const struct trainer *trainer, size_t skip)
{
    const struct train_request *request = trainer->request;
    struct text spec = {0}, nodes = {0};
    spec_canonical(request->spec, &spec);
    layout_describe(request->layout, &nodes);
    json_t *object = json_pack(
        "{ss si ss ss sI sI so so so so sI si si si sI so sb ss ss ss sI si ss ss si}", "allreduce", text_string(&spec),
        "workers", job_size(request->job), "device", request->backend->name, "model", trainer->model->name, "steps",
        (json_int_t)trainer->steps, "parameters", (json_int_t)trainer->model->parameters, "epochs",
        json_number((double)trainer->steps / (double)trainer->steps_per_epoch), "lr", json_number(request->lr),
        "momentum", json_number(request->momentum), "weight_decay", json_number(request->weight_decay), "warmup_steps",
        (json_int_t)request->warmup_steps, "batch", request->batch, "threads", request->threads, "image_size",
        trainer->model->image_size, "global_batch", (json_int_t)trainer->rate.global_batch, "bucket_bytes",
        bucket_json(request->bucket), "exact", trainer->exact, "batch_norm_statistics",
        trainer->exact ? "averaged" : "local", "nodes", text_string(&nodes), "transport", comm_transport(request->comm),
        "segment", (json_int_t)comm_segment(request->comm), "window", (int)comm_window(request->comm), "host",
        job_host(request->job), "started", trainer->started, "timing_skip", (int)skip);
    text_release(&spec);
    text_release(&nodes);
    if (object != NULL && json_object_set_new(object, "seed", json_integer((json_int_t)request->seed)) != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static enum status make_document(const struct trainer *trainer, size_t skip, struct train_summary *summary)
{
    json_t *document = settings_json(trainer, skip), *results = results_json(trainer, summary);
    bool made = document != NULL && results != NULL && json_object_update(document, results) == 0;
    json_decref(results);
    if (!made) {
        json_decref(document);
        return fail(STATUS_NO_MEMORY, "out of memory: the summary");
    }
    summary->document = document;
    return STATUS_OK;
}

static enum status summarise(struct trainer *trainer, struct train_summary *summary)
{
    size_t count = 0;
    const struct step_row *rows = metrics_rows(trainer->metrics, &count);
    size_t skip = timing_skip(trainer, count);
    size_t some = loss_steps(count);
    TRY(summarise_times(rows + skip, count - skip, trainer->rate.global_batch, summary));
    summary->loss_first = mean_loss(rows, some);
    summary->loss_last = mean_loss(rows + count - some, some);
    summary->top1 = trainer->evaluated ? trainer->accuracy.top1 : (double)NAN;
    summary->test_loss = trainer->evaluated ? trainer->accuracy.loss : (double)NAN;
    summary->consensus = trainer->consensus;
    TRY(make_document(trainer, skip, summary));
    if (trainer->folder.length == 0)
        return STATUS_OK;
    text_add(&summary->folder, text_string(&trainer->folder));
    struct text path = {0};
    text_addf(&path, "%s/summary.json", text_string(&trainer->folder));
    enum status status = text_check(&path);
    if (status >= 0)
        status = json_write(text_string(&path), summary->document);
    text_release(&path);
    return status;
}

void train_summary_release(struct train_summary *summary)
{
    text_release(&summary->folder);
    json_decref(summary->document);
    *summary = (struct train_summary){.document = NULL};
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
    TRY_TO(done, summarise(&trainer, summary));
done:
    trainer_close(&trainer);
    if (status < 0)
        train_summary_release(summary);
    return status;
}
