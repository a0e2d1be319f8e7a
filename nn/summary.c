/* summary.c - a run in figures: means and quantiles over its steps, and summary.json. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/memory.h"
#include "nn/trainer.h"

static double mean_of(const double *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum / (double)count;
}

/* Of the latest steps, in their order. */
static double mean_of_last(const struct metrics_totals *totals, size_t count)
{
    double values[METRICS_LOSSES];
    for (size_t i = 0; i < count; i++)
        values[i] = totals->last[((uint64_t)totals->steps - count + i) % METRICS_LOSSES];
    return mean_of(values, count);
}

/* Who drives exchanges while a worker computes. */
static const char *progress_name(const struct comm *comm)
{
    return comm_has_thread(comm) ? "thread" : "between-layers";
}

/* Steps of a mean loss: the first and the last ones do not overlap. */
static size_t loss_steps(size_t count)
{
    size_t half = count > 1 ? count / 2 : 1;
    return half < METRICS_LOSSES ? half : METRICS_LOSSES;
}

/* Nearest rank of sorted values. */
static double quantile(const double *sorted, size_t count, double q)
{
    size_t rank = (size_t)ceil(q * (double)count);
    if (count == 0)
        return (double)NAN;
    return sorted[rank > 0 ? rank - 1 : 0];
}

uint64_t trainer_timing_skip(const struct trainer *trainer)
{
    const int wanted = trainer->request->timing_skip;
    const uint64_t steps = trainer->steps, began = trainer->order.origin.step, others = began < steps ? began : 0;
    const uint64_t own = steps - others;
    uint64_t skip = own > 4 ? 2 : own > 1;
    if (wanted >= 0)
        skip = (uint64_t)wanted;
    return others + (skip < own ? skip : own - 1);
}

/* Steps with the present number of workers. */
static double own_steps(const struct trainer *trainer)
{
    const uint64_t others = trainer->order.origin.step;
    return others < trainer->steps ? (double)(trainer->steps - others) : 1;
}

static enum status summarise_times(const struct metrics *metrics, struct train_summary *summary)
{
    const struct metrics_totals *totals = metrics_totals(metrics);
    const double n = totals->timed;
    double *times = NULL;
    size_t count = 0;
    TRY(metrics_times(metrics, &times, &count));
    summary->images_per_s = totals->images / totals->step_s;
    summary->step_ms = totals->step_s / n * 1e3;
    summary->step_ms_p50 = quantile(times, count, 0.5) * 1e3;
    summary->step_ms_p99 = quantile(times, count, 0.99) * 1e3;
    summary->compute_ms = totals->compute_s / n * 1e3;
    summary->comm_ms = totals->comm_s / n * 1e3;
    summary->exposed_ms = totals->exposed_s / n * 1e3;
    summary->bytes_sent_per_step = totals->bytes / n;
    free(times);
    return STATUS_OK;
}

/* How many steps the times are of, and how many of them were drawn for the quantiles: all, of a run that is not long. */
static int add_timed(const struct trainer *trainer, json_t *object)
{
    const struct metrics_totals *totals = metrics_totals(trainer->metrics);
    const double drawn = totals->timed < METRICS_TIMES ? totals->timed : METRICS_TIMES;
    return json_object_set_new(object, "timing_skip", json_integer((json_int_t)totals->timed_from)) |
           json_object_set_new(object, "steps_timed", json_integer((json_int_t)totals->timed)) |
           json_object_set_new(object, "quantiles_of_steps", json_integer((json_int_t)drawn));
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
    if (object != NULL && trainer->computes.length > 0)
        (void)json_object_set_new(object, "device", json_string(text_string(&trainer->computes)));
    text_release(&backend);
    text_release(&transport);
    return object;
}

/* What rank 0 has of the device's memory: arenas, momentum, and what the backend has taken; null in host memory. */
static json_t *device_memory_json(const struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    if (request->device == NULL)
        return json_null();
    const size_t vectors = 2 + (size_t)trainer->method->gradients; /* with parameters and momentum */
    const size_t arenas = (vectors * trainer->model->parameters + trainer->model->state) * sizeof(float);
    const size_t taken = request->backend->memory != NULL ? request->backend->memory(trainer->backend) : 0;
    const size_t bytes = arenas + taken;
    return json_integer((json_int_t)bytes);
}

/* What a step of one worker has to move in device memory; null: nobody has counted. */
static int add_moved(const struct trainer *trainer, json_t *object)
{
    const struct backend_ops *backend = trainer->request->backend;
    struct moved moved;
    uint64_t total = 0;
    if (backend->moved == NULL)
        return json_object_set_new(object, "bytes_moved_per_step", json_null());
    backend->moved(trainer->backend, &moved);
    json_t *parts = json_object();
    for (int k = 0; k < MOVED_PARTS; k++) {
        (void)json_object_set_new(parts, moved_part_name((enum moved_part)k), json_integer((json_int_t)moved.bytes[k]));
        total += moved.bytes[k];
    }
    return json_object_set_new(object, "bytes_moved_per_step", json_integer((json_int_t)total)) |
           json_object_set_new(object, "bytes_moved", parts);
}

/* What was measured. */
static json_t *results_json(const struct trainer *trainer, const struct train_summary *summary)
{
    int workers = job_size(trainer->request->job);
    return json_pack(
        "{so so so so so so so so so so so so so so so so so so so so so}", "images_per_s",
        json_number(summary->images_per_s), "step_ms", json_number(summary->step_ms), "step_ms_p50",
        json_number(summary->step_ms_p50), "step_ms_p99", json_number(summary->step_ms_p99), "compute_ms",
        json_number(summary->compute_ms), "comm_ms", json_number(summary->comm_ms), "exposed_ms",
        json_number(summary->exposed_ms), "bytes_sent_per_step",
        isfinite(summary->bytes_sent_per_step) ? json_integer((json_int_t)llround(summary->bytes_sent_per_step))
                                               : json_null(),
        "loss_first", json_number(summary->loss_first), "loss_last", json_number(summary->loss_last), "top1",
        json_number(summary->top1), "test_loss", json_number(summary->test_loss), "top1_of_workers",
        trainer->evaluated ? reals_json(trainer->top1_of, workers) : json_null(), "parameter_hash",
        hashes_json(trainer->parameter_hash, workers), "state_hash", hashes_json(trainer->state_hash, workers),
        "consensus", json_number(summary->consensus), "versions", versions_json(trainer), "wire_infinite",
        json_integer((json_int_t)trainer->wire.infinite), "wire_nan", json_integer((json_int_t)trainer->wire.nan),
        "wire_flushed", json_integer((json_int_t)trainer->wire.flushed), "wire_error",
        json_number(trainer->wire.worst));
}

static json_t *bucket_json(size_t bucket)
{
    return bucket == BUCKET_TENSOR ? json_string("tensor") : json_integer((json_int_t)bucket);
}

/* Of the files that the spec names. */
static json_t *files_hash_json(const struct spec *spec)
{
    char text[17];
    uint64_t hash;
    if (!spec_files_hash(spec, &hash))
        return json_null();
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_string(text);
}

static json_t *wire_json(const struct wire_format *wire)
{
    struct text name = {0};
    if (wire_format_changes(wire, DTYPE_F32))
        wire_format_canonical(wire, &name);
    else
        text_add(&name, "f32");
    json_t *json = json_string(text_string(&name));
    text_release(&name);
    return json;
}

/* Of rank 0's card; null where there is none. */
static json_t *sharers_json(const struct trainer *trainer)
{
    return trainer->sharers > 0 ? json_integer(trainer->sharers) : json_null();
}

static json_t *class_names_json(const struct trainer *trainer, const struct data_facts *facts)
{
    if (facts->class_name == NULL)
        return json_null();
    json_t *array = json_array();
    for (int c = 0; c < data_classes(trainer->data); c++)
        (void)json_array_append_new(array, json_name(facts->class_name[c]));
    return array;
}

/* What was trained on. */
static json_t *data_json(const struct trainer *trainer, double wait_ms)
{
    struct data_facts facts;
    char hash[17];
    if (trainer->data == NULL)
        return json_null();
    data_facts(trainer->data, &facts);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)facts.class_hash);
    return json_pack("{ss so sI sI si so ss ss ss ss sI si sI so so}", "format", facts.format, "path",
                     json_name(facts.path), "train_images", (json_int_t)data_train_count(trainer->data), "test_images",
                     (json_int_t)data_test_count(trainer->data), "classes", data_classes(trainer->data), "class_names",
                     class_names_json(trainer, &facts), "class_hash", hash, "augment", facts.augment, "shard",
                     data_shard_name(trainer->request->shard), "last", trainer->order.keep_last ? "keep" : "drop",
                     "rest", (json_int_t)data_order_rest(&trainer->order), "loaders", trainer->request->loaders,
                     "skipped_images", (json_int_t)trainer->skipped, "wait_ms", json_number(wait_ms), "notes",
                     json_name(facts.notes));
}

/* null: nothing impairs the run. */
static json_t *inject_json(const struct inject *inject)
{
    struct text text = {.length = 0};
    if (inject == NULL)
        return json_null();
    inject_describe(inject, &text);
    json_t *value = json_string(text_string(&text));
    text_release(&text);
    return value;
}

static json_t *clip_json(double clip)
{
    return clip > 0 ? json_number(clip) : json_null();
}

/* What the learning rate was for the global batch, and how it went on. */
static json_t *rate_json(const struct learning_rate *rate)
{
    json_t *milestones = json_array();
    for (int k = 0; rate->schedule == RATE_STEP && k < rate->milestones; k++)
        (void)json_array_append_new(milestones, json_integer((json_int_t)rate->milestone[k]));
    return json_pack("{ss so sI sI sI so so so so so}", "schedule", rate_schedule_name(rate->schedule), "scaled",
                     json_number(learning_rate_scaled(rate)), "global_batch", (json_int_t)rate->global_batch,
                     "lr_batch", (json_int_t)rate->images, "warmup_steps", (json_int_t)rate->warmup, "warmup_lr",
                     json_number(rate->warmup_from), "end", json_number(rate->end), "power", json_number(rate->power),
                     "decay_factor", json_number(rate->factor), "decay_steps", milestones);
}

/* What is not in results_json(): the five largest, and of inexact runs the average of the workers' models. */
static int add_shares(const struct trainer *trainer, json_t *object)
{
    const bool average = trainer->evaluated && !trainer->exact;
    const double none = (double)NAN;
    return json_object_set_new(object, "top5", json_number(trainer->evaluated ? trainer->accuracy.top5 : none)) |
           json_object_set_new(object, "top1_average", json_number(average ? trainer->average.top1 : none)) |
           json_object_set_new(object, "top5_average", json_number(average ? trainer->average.top5 : none)) |
           json_object_set_new(object, "test_loss_average", json_number(average ? trainer->average.loss : none));
}

/* The step at which the latest run began that went on with an earlier one; null: none did. */
static json_t *resumed_json(const struct trainer *trainer)
{
    return trainer->first > 0 ? json_integer((json_int_t)trainer->first) : json_null();
}

/* Of the running statistics. */
static const char *norms_name(const struct trainer *trainer)
{
    if (trainer->request->norms == NORMS_SYNC)
        return "sync";
    return trainer->request->norms == NORMS_AVERAGED || trainer->exact ? "averaged" : "local";
}

/* What was asked for. */
static json_t *settings_json(const struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    struct text spec = {0}, nodes = {0};
    spec_canonical(request->spec, &spec);
    layout_describe(request->layout, &nodes);
    json_t *object = json_pack(
        "{so si ss ss sI sI so so so so sI si si si sI so sb ss ss ss sI si ss ss}", "allreduce",
        json_name(text_string(&spec)), "workers", job_size(request->job), "device", request->backend->name, "model",
        trainer->model->name, "steps", (json_int_t)trainer->steps, "parameters", (json_int_t)trainer->model->parameters,
        "epochs", json_number(data_order_epochs(&trainer->order, trainer->steps)), "lr", json_number(request->lr),
        "momentum", json_number(request->optimizer.momentum), "weight_decay",
        json_number(request->optimizer.weight_decay), "warmup_steps", (json_int_t)trainer->rate.warmup, "batch",
        request->batch, "threads", request->threads, "image_size", trainer->model->image_size, "global_batch",
        (json_int_t)trainer->rate.global_batch, "bucket_bytes", bucket_json(trainer->bucket), "exact", trainer->exact,
        "batch_norm_statistics", norms_name(trainer), "nodes", text_string(&nodes), "transport",
        comm_transport(request->comm), "segment", (json_int_t)comm_segment(request->comm), "window",
        (int)comm_window(request->comm), "host", job_host(request->job), "started", trainer->started);
    text_release(&spec);
    text_release(&nodes);
    const char *mode = request->backend == &backend_replay ? "replayed" : "measured";
    const double loss_scale = request->loss_scale > 0 ? (double)request->loss_scale : 1;
    const char *decided = trainer->decided.length > 0 ? text_string(&trainer->decided) : NULL;
    if (object != NULL &&
        (json_object_set_new(object, "seed", json_integer((json_int_t)request->seed)) != 0 ||
         json_object_set_new(object, "mode", json_string(mode)) != 0 ||
         json_object_set_new(object, "overlap", json_string(trainer->overlaps ? "bucket" : "none")) != 0 ||
         json_object_set_new(object, "progress", json_string(progress_name(request->comm))) != 0 ||
         json_object_set_new(object, "precision", json_string(precision_name(request->precision))) != 0 ||
         json_object_set_new(object, "loss_scale", json_number(loss_scale)) != 0 ||
         json_object_set_new(object, "learning_rate", rate_json(&trainer->rate)) != 0 ||
         json_object_set_new(object, "optimizer", json_string(update_rule_name(request->optimizer.rule))) != 0 ||
         json_object_set_new(object, "norm_weight_decay", json_number(request->optimizer.norm_decay)) != 0 ||
         json_object_set_new(object, "bias_weight_decay", json_number(request->optimizer.bias_decay)) != 0 ||
         json_object_set_new(object, "clip", clip_json(request->optimizer.clip)) != 0 ||
         json_object_set_new(object, "zero_gamma", json_boolean(request->zero_gamma)) != 0 ||
         json_object_set_new(object, "recipe", json_name(request->recipe)) != 0 ||
         json_object_set_new(object, "label_smoothing", json_number(request->label_smoothing)) != 0 ||
         json_object_set_new(object, "workers_per_card", sharers_json(trainer)) != 0 ||
         json_object_set_new(object, "deterministic", json_boolean(request->deterministic)) != 0 ||
         json_object_set_new(object, "decided", json_name(decided)) != 0 ||
         (request->placement != NULL && json_object_set(object, "placement", request->placement) != 0) ||
         json_object_set_new(object, "resumed_at", resumed_json(trainer)) != 0 || add_shares(trainer, object) < 0 ||
         json_object_set_new(object, "wire", wire_json(request->wire)) != 0 ||
         json_object_set_new(object, "inject", inject_json(request->inject)) != 0 ||
         json_object_set_new(object, "files_hash", files_hash_json(request->spec)) != 0)) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static enum status make_document(const struct trainer *trainer, struct train_summary *summary)
{
    json_t *document = settings_json(trainer), *results = results_json(trainer, summary);
    const double flop = model_flop(trainer->model, trainer->request->batch);
    bool made = document != NULL && results != NULL && json_object_update(document, results) == 0 &&
                json_object_set_new(document, "device_memory_bytes", device_memory_json(trainer)) == 0 &&
                json_object_set_new(document, "flop_per_step", json_number(flop)) == 0 &&
                add_moved(trainer, document) == 0 && add_timed(trainer, document) == 0 &&
                json_object_set_new(document, "data", data_json(trainer, summary->data_wait_ms)) == 0;
    json_decref(results);
    if (!made) {
        json_decref(document);
        return fail(STATUS_NO_MEMORY, "out of memory: the summary");
    }
    summary->document = document;
    return STATUS_OK;
}

enum status trainer_summarise(const struct trainer *trainer, struct train_summary *summary)
{
    const struct metrics_totals *totals = metrics_totals(trainer->metrics);
    const size_t some = loss_steps((size_t)totals->steps);
    TRY(summarise_times(trainer->metrics, summary));
    if (trainer->request->library != NULL)
        summary->bytes_sent_per_step = NAN;
    const bool learns = trainer->request->backend != &backend_replay;
    summary->loss_first = learns ? mean_of(totals->first, some) : (double)NAN;
    summary->loss_last = learns ? mean_of_last(totals, some) : (double)NAN;
    summary->top1 = trainer->evaluated ? trainer->accuracy.top1 : (double)NAN;
    summary->top1_average = trainer->evaluated && !trainer->exact ? trainer->average.top1 : (double)NAN;
    summary->top5 = trainer->evaluated ? trainer->accuracy.top5 : (double)NAN;
    summary->test_loss = trainer->evaluated ? trainer->accuracy.loss : (double)NAN;
    summary->consensus = trainer->consensus;
    summary->data_wait_ms = (trainer->before.wait_s + trainer->wait_s) / own_steps(trainer) * 1e3;
    summary->undecoded = trainer->skipped;
    summary->wire = trainer->wire;
    TRY(make_document(trainer, summary));
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
