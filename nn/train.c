/* train.c - one worker's training run: opened, stepped through, examined. */
#include "nn/train.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "nn/checkpoint.h"
#include "nn/replay/replay.h"
#include "nn/resume.h"
#include "nn/settings.h"
#include "nn/trainer.h"

enum { REPLAY_SAMPLES = 60000 };

/* ---- opening ---- */

/* All workers have the same classes, labels and, as far as that is looked at, images. */
static enum status compare_data(struct trainer *trainer)
{
    struct job *job = trainer->request->job;
    struct data_facts facts;
    void *all = NULL;
    data_facts(trainer->data, &facts);
    TRY(data_contents(trainer->data, &trainer->contents));
    const uint64_t mine[2] = {facts.hash, trainer->contents};
    TRY(memory_zeroed(&all, (size_t)job_size(job), sizeof mine));
    enum status status = job_allgather(job, mine, sizeof mine, all);
    const uint64_t *hashes = all;
    for (int r = 1; status >= 0 && r < job_size(job); r++)
        for (int k = 0; status >= 0 && k < 2; k++)
            if (hashes[2 * r + k] != hashes[k])
                status =
                    fail(STATUS_MISMATCH, "data %s: %s of rank 0 and of rank %d differ: give all the same data set",
                         facts.path, k == 0 ? "labels" : "images", r);
    free(all);
    return status;
}

static enum status make_model(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    if (request->profile == NULL) {
        const char *name = request->model != NULL ? request->model : TRAIN_MODEL;
        const struct data_request data = {.path = request->data,
                                          .image_size = request->image_size,
                                          .seed = request->seed,
                                          .augment = request->augment};
        TRY(data_open(&data, &trainer->data));
        TRY(compare_data(trainer));
        TRY(model_create(name, data_classes(trainer->data), request->image_size, &trainer->model));
        if (!request->zero_gamma)
            model_without_zero_gamma(trainer->model);
        return STATUS_OK;
    }
    TRY(replay_model(request->profile, &trainer->model));
    if (request->model != NULL && strcmp(request->model, trainer->model->name) != 0)
        return fail(STATUS_USAGE, "--model=%s: the profile %s is of %s: leave --model out", request->model,
                    request->profile, trainer->model->name);
    return STATUS_OK;
}

/* Steps by which epochs begin later than in a run of as many workers from the start: whole ones, also where an earlier run
 * was left within an epoch. */
static double milestones_shift(const struct data_order *order)
{
    const uint64_t next = order->origin.epoch + 1;
    return (double)data_order_end(order, (double)next) - (double)next * (double)data_order_batches(order);
}

/* When the learning rate changes. `shift`: steps of this run at which epoch 0 began, or would have with as many workers: what
 * is told in epochs counts from there (milestones from whole steps), what is told in steps from 0. */
static enum status make_rate(struct trainer *trainer, double shift)
{
    const struct train_request *request = trainer->request;
    const double epoch = (double)data_order_batches(&trainer->order);
    struct learning_rate *rate = &trainer->rate;
    *rate = (struct learning_rate){
        .schedule = request->schedule,
        .rate = request->lr,
        .images = request->lr_images,
        .global_batch = (size_t)trainer->order.workers * (size_t)trainer->order.batch,
        .warmup = request->warmup_epochs > 0 ? data_order_steps(request->warmup_epochs, epoch) : request->warmup_steps,
        .warmup_from = request->warmup_lr,
        .steps = trainer->steps,
        .warmup_began = request->warmup_epochs > 0 ? shift : 0,
        .began = request->steps > 0 ? 0 : shift,
        .end = request->lr_end,
        .power = request->lr_power,
        .factor = request->decay_factor};
    if (request->decay_epochs != NULL)
        TRY(learning_rate_milestones(rate, request->decay_epochs, epoch));
    else if (request->steps > 0)
        learning_rate_usual_milestones(rate, request->steps);
    else
        learning_rate_usual_milestones(rate, data_order_steps(request->epochs, epoch));
    if (request->decay_epochs != NULL || request->steps == 0)
        learning_rate_shift(rate, milestones_shift(&trainer->order));
    return STATUS_OK;
}

/* Who takes what from the data; where an earlier run goes on, resume_find() says. */
static enum status make_order(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    struct data_order *order = &trainer->order;
    const size_t global_batch = (size_t)job_size(request->job) * (size_t)request->batch;
    const size_t emulated = global_batch > REPLAY_SAMPLES ? global_batch : REPLAY_SAMPLES;
    *order = (struct data_order){.seed = request->seed,
                                 .samples = trainer->data != NULL ? data_train_count(trainer->data) : emulated,
                                 .workers = job_size(request->job),
                                 .batch = request->batch,
                                 .shard = request->shard,
                                 .keep_last = request->keep_last};
    if (order->shard == SHARD_LABEL && trainer->data != NULL) {
        struct data_facts facts;
        data_facts(trainer->data, &facts);
        TRY(data_sort_by_label(facts.labels, order->samples, data_classes(trainer->data), &trainer->by_label));
        order->by_label = trainer->by_label;
    }
    if (data_order_batches(order) == 0)
        return fail(
            STATUS_USAGE,
            "--batch=%d: a step of %d worker%s takes %zu images, the training set has %zu: take a smaller batch, "
            "or --last=keep",
            order->batch, order->workers, plural((size_t)order->workers), global_batch, order->samples);
    return STATUS_OK;
}

/* How long the run is, in steps. */
static enum status make_plan(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    const struct data_order *order = &trainer->order;
    const double each = (double)data_order_batches(order);
    const double shift = (double)order->origin.step - data_order_epochs(order, order->origin.step) * each;
    trainer->steps = request->steps > 0 ? request->steps : data_order_end(order, request->epochs);
    if (trainer->steps < trainer->first && request->steps > 0)
        return fail(STATUS_USAGE, "--steps=%llu: the run that is to go on has done %llu already",
                    (unsigned long long)trainer->steps, (unsigned long long)trainer->first);
    if (trainer->steps < trainer->first)
        return fail(STATUS_USAGE, "--epochs=%g: the run that is to go on has done more already, %llu steps",
                    request->epochs, (unsigned long long)trainer->first);
    trainer->put = trainer->collected = trainer->recorded = trainer->first;
    return make_rate(trainer, shift);
}

static enum status make_arenas(struct trainer *trainer)
{
    struct replica *replica = &trainer->replica;
    const struct place *place = &trainer->place;
    const struct model *model = trainer->model;
    size_t workers = (size_t)job_size(trainer->request->job);
    void *top1 = NULL, *hashes = NULL;
    TRY(arena_create(place, model->parameters, &replica->parameters));
    for (int k = 0; k < trainer->method->gradients; k++)
        TRY(arena_create(place, model->parameters, &replica->gradient[k]));
    TRY(arena_create(place, model->state, &trainer->state));
    TRY(memory_zeroed(&top1, workers, sizeof(double)));
    trainer->top1_of = top1;
    TRY(memory_zeroed(&hashes, 2 * workers, sizeof(uint64_t)));
    trainer->parameter_hash = hashes;
    trainer->state_hash = trainer->parameter_hash + workers;
    return STATUS_OK;
}

static enum status make_poison(struct trainer *trainer)
{
    struct device *device = trainer->place.device;
    void *poison = NULL;
    if (device == NULL)
        return STATUS_OK;
    TRY(device->ops->host_alloc(device, sizeof(float), &poison));
    trainer->poison = poison;
    *trainer->poison = NAN;
    return STATUS_OK;
}

static enum status make_batches(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    if (trainer->data == NULL)
        return STATUS_OK;
    trainer->loading = (struct loader_request){.data = trainer->data,
                                               .batch = request->batch,
                                               .batches = trainer->steps - trainer->first,
                                               .first = trainer->first,
                                               .order = &trainer->order,
                                               .rank = job_rank(request->job),
                                               .stored = request->backend->stored,
                                               .threads = request->loaders,
                                               .ahead = 2,
                                               .held = request->device != NULL ? 2 : 1,
                                               .device = request->device};
    return loader_open(&trainer->loading, &trainer->loader);
}

/* What is exchanged lies in the backend's order, which follows from the processor: equal parameters must lie equally. */
static enum status compare_orders(const struct trainer *trainer)
{
    struct order {
        uint64_t hash;
        char backend[64];
    };
    const struct train_request *request = trainer->request;
    struct job *job = request->job;
    struct order mine = {.hash = examine_hash(trainer->replica.parameters, trainer->model->parameters)};
    struct text backend = {0};
    void *memory = NULL;
    request->backend->describe(trainer->backend, &backend);
    (void)snprintf(mine.backend, sizeof mine.backend, "%s", text_string(&backend));
    text_release(&backend);
    TRY(memory_zeroed(&memory, (size_t)job_size(job), sizeof mine));
    const struct order *all = memory;
    enum status status = job_allgather(job, &mine, sizeof mine, memory);
    for (int r = 1; status >= 0 && r < job_size(job); r++)
        if (all[r].hash != all[0].hash)
            status = fail(STATUS_MISMATCH,
                          "rank 0 (%s) and rank %d (%s) keep weights in orders of their own, since their processors "
                          "differ: set ONEDNN_MAX_CPU_ISA=AVX2 for all workers",
                          all[0].backend, r, all[r].backend);
    free(memory);
    return status;
}

/* The same on every worker, by the seed. An emulated device keeps the zeros. */
static enum status initialise(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    const struct backend_ops *ops = request->backend;
    const struct model *model = trainer->model;
    void *parameters = NULL, *state = NULL;
    enum status status = STATUS_OK;
    if (request->profile != NULL)
        return STATUS_OK;
    TRY_TO(done, memory_pages(&parameters, model->parameters * sizeof(float)));
    TRY_TO(done, memory_zeroed(&state, model->state, sizeof(float)));
    model_initialise(model, request->seed, parameters, state);
    TRY_TO(done, arena_write(&trainer->place, trainer->state, state, model->state));
    status = ops->to_native != NULL
                 ? ops->to_native(trainer->backend, parameters, trainer->replica.parameters)
                 : arena_write(&trainer->place, trainer->replica.parameters, parameters, model->parameters);
    if (status >= 0 && ops->to_native != NULL && request->device == NULL)
        status = compare_orders(trainer);
done:
    memory_pages_release(parameters, model->parameters * sizeof(float));
    free(state);
    return status;
}

static enum status open_backend(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    const bool together = request->norms == NORMS_SYNC && job_size(request->job) > 1;
    struct backend_request backend = {.model = trainer->model,
                                      .sums = together ? &trainer->sums : NULL,
                                      .batch = request->batch,
                                      .threads = request->threads,
                                      .profile = request->profile,
                                      .seed = request->seed + (uint64_t)job_rank(request->job),
                                      .label_smoothing = request->label_smoothing,
                                      .device = request->device,
                                      .precision = request->precision,
                                      .loss_scale = request->loss_scale,
                                      .deterministic = request->deterministic,
                                      .legacy = request->legacy,
                                      .workspace = request->workspace,
                                      .engines = request->engines,
                                      .patience = job_size(request->job) > 1 ? job_deadline(request->job) / 2 : 0,
                                      .note = request->note,
                                      .note_context = request->context};
    return request->backend->open(&backend, &trainer->backend);
}

static enum status open_optimizer(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    const struct optimizer_device device = {
        .device = request->device, .ops = request->backend, .backend = trainer->backend};
    if (request->profile != NULL)
        return STATUS_OK;
    return optimizer_create(trainer->model, &request->optimizer, request->device != NULL ? &device : NULL,
                            &trainer->optimizer);
}

static enum status open_records(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    struct metrics_request metrics = {.job = request->job,
                                      .log = trainer->log,
                                      .in_step = trainer->exact,
                                      .timed_from = trainer_timing_skip(trainer)};
    resume_kept(trainer, &metrics.kept, &metrics.kept_bytes, &metrics.kept_in);
    enum status status = metrics_open(&metrics, &trainer->metrics);
    if (status >= 0)
        trainer->log = NULL;
    if (status >= 0 && metrics_lost_lines(trainer->metrics) && request->note != NULL)
        request->note(request->context,
                      "--resume: the checkpoint's metrics.jsonl is not beside it, or was changed: this "
                      "one begins with the steps that follow");
    return status;
}

/* A card by what it says of itself: two workers may give it different numbers, or call its host by two names. */
struct card {
    unsigned char identity[16];
    uint64_t host;
    int64_t number;
};

static struct card card_of(const struct device *device, const char *host)
{
    static const unsigned char none[sizeof device->identity];
    struct card card = {.host = 0};
    memcpy(card.identity, device->identity, sizeof card.identity);
    if (memcmp(card.identity, none, sizeof none) == 0) {
        card.host = hash_bytes(HASH_START, host, strlen(host));
        card.number = device->number;
    }
    return card;
}

/* How many workers compute on the card of this one. */
static enum status count_sharers(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    struct job *job = request->job;
    void *all = NULL;
    if (request->device == NULL)
        return STATUS_OK;
    const struct card mine = card_of(request->device, job_host(job));
    TRY(memory_zeroed(&all, (size_t)job_size(job), sizeof mine));
    const struct card *cards = all;
    const enum status status = job_allgather(job, &mine, sizeof mine, all);
    for (int r = 0; status >= 0 && r < job_size(job); r++)
        trainer->sharers += memcmp(&cards[r], &mine, sizeof mine) == 0;
    free(all);
    return status;
}

static enum status describe_device(struct trainer *trainer)
{
    struct device *device = trainer->place.device;
    if (device == NULL)
        return STATUS_OK;
    device->ops->describe(device, &trainer->computes);
    return text_check(&trainer->computes);
}

/* Whether exchanges begin during backward, and in what pieces. */
static enum status find_overlap(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    const enum status can = request->overlap == OVERLAP_NONE ? STATUS_REFUSED : exchange_can_overlap(request->spec);
    if (can < 0 && (can != STATUS_REFUSED || request->overlap == OVERLAP_BUCKET))
        return can;
    trainer->overlaps = can == STATUS_OK;
    trainer->bucket = request->bucket;
    if (request->bucket == BUCKET_USUAL)
        trainer->bucket = trainer->overlaps ? BUCKET_OVERLAP : BUCKET_WHOLE;
    return STATUS_OK;
}

/* Where the run that is to go on has its folder; "": `out`. Allocated. */
static enum status resume_folder(const char *resume, char **folder)
{
    struct stat about;
    TRY(memory_string(folder, resume));
    if (stat(resume, &about) == 0 && S_ISDIR(about.st_mode))
        return STATUS_OK;
    char *slash = strrchr(*folder, '/');
    if (slash != NULL && slash != *folder) {
        *slash = '\0';
        return STATUS_OK;
    }
    free(*folder);
    return memory_string(folder, slash != NULL ? "/" : ".");
}

static bool same_folder(const char *a, const char *b)
{
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/* A run goes on in its own folder, or in one that holds no run. */
static enum status open_folder(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    const char *resume = request->resume;
    char *from = NULL;
    enum status status = STATUS_OK;
    if (resume == NULL || resume[0] == '\0') {
        if (resume != NULL && request->out == NULL)
            return fail(STATUS_USAGE, "--resume: of which run: give --out=FOLDER, or --resume=FOLDER");
        status = run_folder(request->out, resume != NULL, &trainer->folder, &trainer->log);
    } else {
        TRY(resume_folder(resume, &from));
        const char *out = request->out != NULL ? request->out : from;
        status = run_folder(out, same_folder(out, from), &trainer->folder, &trainer->log);
        free(from);
    }
    if (status >= 0 && request->checkpoint != CHECKPOINT_NEVER)
        status = checkpoint_check_folder(text_string(&trainer->folder));
    return status;
}

/* Each worker knows it by rank 0's name for it. */
static enum status share_folder(struct trainer *trainer)
{
    struct job *job = trainer->request->job;
    char mine[PATH_MAX] = "";
    void *all = NULL;
    if (trainer->folder.length >= sizeof mine)
        return fail(STATUS_REFUSED, "--out: the name of the folder is too long");
    memcpy(mine, text_string(&trainer->folder), trainer->folder.length);
    TRY(memory_zeroed(&all, (size_t)job_size(job), sizeof mine));
    enum status status = job_allgather(job, mine, sizeof mine, all);
    if (status >= 0)
        text_add(&trainer->shared_folder, all);
    free(all);
    return status < 0 ? status : text_check(&trainer->shared_folder);
}

static enum status trainer_open(const struct train_request *request, struct trainer *trainer)
{
    const struct spec *spec = request->spec;
    *trainer = (struct trainer){
        .request = request, .exact = spec_is_exact(spec), .place = {.comm = request->comm, .device = request->device}};
    clock_wall_text(trainer->started, sizeof trainer->started);
    TRY(method_find(spec->kind == SPEC_STRATEGY ? spec->strategy->name : "synchronous", &trainer->method));
    TRY(find_overlap(trainer));
    if (request->norms == NORMS_SYNC && !trainer->exact)
        return fail(STATUS_REFUSED,
                    "--bn=sync: the workers' models differ, and so what their batch norms would share: take "
                    "--bn=averaged or local");
    if (request->keep_last && !request->backend->partial)
        return fail(STATUS_REFUSED, "--last=keep: the device %s computes whole batches only: take --last=drop",
                    request->backend->name);
    if (job_rank(request->job) == 0) /* before anything that takes time */
        TRY(open_folder(trainer));
    TRY(share_folder(trainer));
    TRY(settings_agree(trainer));
    TRY(make_model(trainer));
    TRY(make_order(trainer));
    TRY(resume_find(trainer));
    TRY(make_plan(trainer));

    if (request->trace != NULL)
        TRY(trace_create(request->trace, job_rank(request->job), job_size(request->job), &trainer->trace));
    struct exchange_request exchange = {.comm = request->comm,
                                        .trace = trainer->trace,
                                        .spec = spec,
                                        .layout = request->layout,
                                        .model = trainer->model,
                                        .bucket = trainer->bucket,
                                        .sums = request->norms == NORMS_SYNC,
                                        .emulated = request->profile != NULL,
                                        .wire = request->wire,
                                        .device = request->device,
                                        .library = request->library};
    TRY(exchanges_create(&exchange, &trainer->exchanges));
    trainer->sums = exchanges_sums(trainer->exchanges);
    TRY(open_backend(trainer));
    TRY(open_optimizer(trainer));
    TRY(make_arenas(trainer));
    TRY(initialise(trainer));
    trainer->replica.optimizer = trainer->optimizer;
    trainer->replica.rate = &trainer->rate;
    trainer->replica.trace = trainer->place.device == NULL ? trainer->trace : NULL; /* of a device nobody knows when */
    TRY(resume_restore(trainer));
    TRY(make_poison(trainer));
    TRY(make_batches(trainer));
    TRY(open_records(trainer));
    resume_close(trainer);
    exchanges_describe(trainer->exchanges, &trainer->decided);
    TRY(text_check(&trainer->decided));
    TRY(describe_device(trainer));
    TRY(count_sharers(trainer));
    const struct train_start start = {.request = request,
                                      .model = trainer->model,
                                      .data = trainer->data,
                                      .rest = trainer->data != NULL ? data_order_rest(&trainer->order) : 0,
                                      .rate = &trainer->rate,
                                      .steps = trainer->steps,
                                      .overlaps = trainer->overlaps,
                                      .bucket = trainer->bucket,
                                      .first = trainer->first,
                                      .folder = text_string(&trainer->folder),
                                      .device = trainer->computes.length > 0 ? text_string(&trainer->computes) : NULL,
                                      .sharers = trainer->sharers,
                                      .decided = trainer->decided.length > 0 ? text_string(&trainer->decided) : NULL};
    if (request->started != NULL && job_rank(request->job) == 0)
        request->started(request->context, &start);
    return STATUS_OK;
}

static void release_arenas(struct trainer *trainer)
{
    arena_destroy(&trainer->place, trainer->replica.parameters);
    for (int k = 0; k < 2; k++)
        arena_destroy(&trainer->place, trainer->replica.gradient[k]);
    arena_destroy(&trainer->place, trainer->state);
}

static void trainer_close(struct trainer *trainer)
{
    /* What a failure left in flight may still be read and written by the transport: those arenas stay. */
    bool in_flight = trainer->exchanges != NULL && exchanges_under_way(trainer->exchanges);
    exchanges_destroy(trainer->exchanges);
    trainer->request->backend->close(trainer->backend); /* a device has done its work then */
    if (!in_flight)
        release_arenas(trainer);
    loader_close(trainer->loader);
    if (trainer->poison != NULL)
        trainer->place.device->ops->host_free(trainer->place.device, trainer->poison);
    metrics_close(trainer->metrics);
    optimizer_destroy(trainer->optimizer);
    model_destroy(trainer->model);
    data_close(trainer->data);
    free(trainer->by_label);
    free(trainer->top1_of);
    free(trainer->parameter_hash);
    if (trainer->log != NULL)
        (void)fclose(trainer->log); /* nothing was written */
    resume_close(trainer);
    text_release(&trainer->folder);
    text_release(&trainer->shared_folder);
    trace_destroy(trainer->trace);
    text_release(&trainer->computes);
    text_release(&trainer->decided);
}

/* ---- examining ---- */

static struct examiner examiner_of(struct trainer *trainer)
{
    return (struct examiner){.job = trainer->request->job,
                             .model = trainer->model,
                             .ops = trainer->request->backend,
                             .backend = trainer->backend,
                             .data = trainer->data,
                             .exchanges = trainer->exchanges,
                             .exact = trainer->exact,
                             .loading = &trainer->loading,
                             .place = &trainer->place};
}

static enum status average_statistics(struct trainer *trainer)
{
    const enum train_norms norms = trainer->request->norms;
    if (norms == NORMS_SYNC || (norms == NORMS_LOCAL && !trainer->exact)) /* sync: they are equal */
        return STATUS_OK;
    return exchanges_mean(trainer->exchanges, "mean of the running statistics", trainer->state, trainer->model->state);
}

static struct shares shares_of(const struct trainer *trainer)
{
    const double none = (double)NAN;
    return (struct shares){.top1 = trainer->accuracy.top1,
                           .top5 = trainer->accuracy.top5,
                           .average = trainer->exact ? none : trainer->average.top1,
                           .five = trainer->exact ? none : trainer->average.top5};
}

/* Parameters may be finite, and yet so large that nothing can be computed with them. All workers have the same sums. Where
 * no test image could be decoded there is no top-1 either, and the model is not at fault. */
static enum status check_test_loss(const struct trainer *trainer, uint64_t step)
{
    struct text loss = {0};
    if (isfinite(trainer->accuracy.loss) || isnan(trainer->accuracy.top1))
        return STATUS_OK;
    text_add_real(&loss, trainer->accuracy.loss, 6);
    const enum status status = fail(STATUS_FORMAT, "after step %llu: the test loss is %s: lower --lr",
                                    (unsigned long long)step, text_string(&loss));
    text_release(&loss);
    return status;
}

/* After step `step`: hashes compared, accuracy if wanted; takes no time of any step. */
static enum status examine(struct trainer *trainer, uint64_t step, bool evaluate)
{
    struct examiner examiner = examiner_of(trainer);
    const float *parameters = trainer->replica.parameters;
    TRY(examine_hashes(&examiner, parameters, trainer->state, step + 1, trainer->parameter_hash, trainer->state_hash));
    evaluate = evaluate && trainer->data != NULL && data_test_count(trainer->data) > 0 &&
               trainer->request->backend->evaluate != NULL;
    if (evaluate) {
        TRY(examine_accuracy(&examiner, parameters, trainer->state, &trainer->accuracy, trainer->top1_of));
        if (!trainer->exact)
            TRY(examine_average(&examiner, parameters, trainer->state, &trainer->average));
        trainer->evaluated = true;
        trainer_tell(trainer, step, true);
    }
    const struct shares shares = shares_of(trainer);
    TRY(metrics_flush(trainer->metrics, evaluate ? &shares : NULL));
    if (evaluate)
        TRY(check_test_loss(trainer, step));
    trainer->examined = true;
    trainer_mark(trainer);
    return STATUS_OK;
}

static bool epoch_ends(const struct trainer *trainer, uint64_t step)
{
    return data_order_place(&trainer->order, step + 1).batch == 0;
}

static bool is_kept(const struct trainer *trainer, uint64_t step)
{
    const struct train_request *request = trainer->request;
    const bool last = step + 1 == trainer->steps;
    switch (request->checkpoint) {
    case CHECKPOINT_EPOCHS:
        return last || epoch_ends(trainer, step);
    case CHECKPOINT_STEPS:
        return last || (step + 1) % request->checkpoint_steps == 0;
    case CHECKPOINT_END:
        return last;
    case CHECKPOINT_NEVER:
        break;
    }
    return false;
}

/* The last step is kept before what is in flight is applied, so that a run can go on for longer than it was meant to, as if
 * it had been meant to from the start. */
static enum status all_steps(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    const bool whole = trainer->method->finish == NULL; /* nothing is in flight between steps */
    trainer_mark(trainer);
    for (uint64_t step = trainer->first; step < trainer->steps; step++) {
        const bool ends = epoch_ends(trainer, step), last = step + 1 == trainer->steps, kept = is_kept(trainer, step);
        TRY(trainer_step(trainer, ends || last || kept));
        trainer->examined = false;
        trainer->averaged = ends;
        if (ends)
            TRY(average_statistics(trainer));
        if (ends && (!last || (whole && request->evaluation == EVALUATE_EPOCHS)))
            TRY(examine(trainer, step, request->evaluation == EVALUATE_EPOCHS));
        if (kept)
            TRY(resume_save(trainer));
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
    codec_statistics_add(&trainer->wire, &trainer->before.wire);
    free(memory);
    return status;
}

static enum status gather_skipped(struct trainer *trainer)
{
    struct job *job = trainer->request->job;
    struct data_facts facts;
    void *all = NULL;
    if (trainer->data == NULL)
        return STATUS_OK;
    data_facts(trainer->data, &facts);
    TRY(memory_zeroed(&all, (size_t)job_size(job), sizeof facts.skipped));
    const size_t *skipped = all;
    const enum status status = job_allgather(job, &facts.skipped, sizeof facts.skipped, all);
    for (int r = 0; status >= 0 && r < job_size(job); r++)
        trainer->skipped += skipped[r];
    trainer->skipped += trainer->before.skipped;
    free(all);
    return status;
}

/* What is in flight is applied, and the result examined. */
static enum status finish(struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    TRY(trainer_finish_steps(trainer));
    if (!trainer->averaged)
        TRY(average_statistics(trainer));
    if (!trainer->examined)
        TRY(examine(trainer, trainer->steps - 1, request->evaluation != EVALUATE_NEVER));
    TRY(gather_wire(trainer));
    TRY(gather_skipped(trainer));
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
    TRY_TO(done, trainer_summarise(&trainer, summary)); /* first: a disk may have no room for the others */
    TRY_TO(done, write_profile(&trainer));
    if (trainer.trace != NULL)
        TRY_TO(done, trace_write(trainer.trace));
done:
    trainer_close(&trainer);
    if (status < 0)
        train_summary_release(summary);
    return status;
}
