/* settings.c - see settings.h. */
#include "nn/settings.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"

enum { OPTIONS_MOST = 64, VALUE_BYTES = 256 };

/* ---- option by option ---- */

static void add(json_t *settings, const char *key, struct text *value)
{
    (void)json_object_set_new(settings, key,
                              json_name(text_string(value))); /* a missing one is noticed by its reader */
    text_release(value);
}

static void add_word(json_t *settings, const char *key, const char *word)
{
    (void)json_object_set_new(settings, key, json_string(word));
}

static void add_number(json_t *settings, const char *key, double value)
{
    struct text text = {0};
    text_add_real(&text, value, 17);
    add(settings, key, &text);
}

static void add_hash(json_t *settings, const char *key, uint64_t hash)
{
    struct text text = {0};
    text_addf(&text, "%016llx", (unsigned long long)hash);
    add(settings, key, &text);
}

static void add_spec(json_t *settings, const struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    struct text spec = {0}, nodes = {0}, wire = {0};
    uint64_t hash = 0;
    spec_canonical(request->spec, &spec);
    add(settings, "allreduce", &spec);
    if (spec_files_hash(request->spec, &hash))
        add_hash(settings, "allreduce: contents of its files", hash);
    layout_describe(request->layout, &nodes);
    add(settings, "nodes", &nodes);
    if (wire_format_changes(request->wire, DTYPE_F32))
        wire_format_canonical(request->wire, &wire);
    else
        text_add(&wire, "f32");
    add(settings, "wire", &wire);
    struct text bucket = {0};
    if (trainer->bucket == BUCKET_TENSOR)
        text_add(&bucket, "tensor");
    else
        text_addf(&bucket, "%zu", trainer->bucket);
    add(settings, "bucket", &bucket);
}

static void add_optimizer(json_t *settings, const struct optimizer_settings *optimizer)
{
    add_word(settings, "optimizer", update_rule_name(optimizer->rule));
    add_number(settings, "momentum", optimizer->momentum);
    add_number(settings, "weight-decay", optimizer->weight_decay);
    add_number(settings, "norm-weight-decay", optimizer->norm_decay);
    add_number(settings, "bias-weight-decay", optimizer->bias_decay);
    add_number(settings, "clip", optimizer->clip);
}

static void add_rate(json_t *settings, const struct train_request *request)
{
    add_number(settings, "lr", request->lr);
    add_number(settings, "lr-batch", (double)request->lr_images);
    add_word(settings, "lr-schedule", rate_schedule_name(request->schedule));
    add_number(settings, "lr-end", request->lr_end);
    add_number(settings, "lr-power", request->lr_power);
    add_number(settings, "decay-factor", request->decay_factor);
    add_word(settings, "decay-epochs", request->decay_epochs != NULL ? request->decay_epochs : "the usual ones");
    add_number(settings, "epochs", request->steps > 0 ? 0 : request->epochs);
    add_number(settings, "warmup-lr", request->warmup_lr);
    add_number(settings, "warmup-steps", (double)request->warmup_steps);
    add_number(settings, "warmup-epochs", request->warmup_epochs);
}

/* What is known before the data is read. */
static void add_options(json_t *settings, const struct trainer *trainer)
{
    static const char *const norms[] = {[NORMS_LOCAL] = "local", [NORMS_SYNC] = "sync", [NORMS_AVERAGED] = "averaged"};
    const struct train_request *request = trainer->request;
    add_spec(settings, trainer);
    add_word(settings, "model", request->model != NULL ? request->model : TRAIN_MODEL);
    add_number(settings, "image-size", request->image_size);
    add_word(settings, "shard", data_shard_name(request->shard));
    add_word(settings, "last", request->keep_last ? "keep" : "drop");
    add_number(settings, "batch", request->batch);
    add_number(settings, "seed", (double)request->seed);
    add_word(settings, "bn", norms[request->norms]);
    add_rate(settings, request);
    add_word(settings, "zero-gamma", request->zero_gamma ? "yes" : "no");
    add_optimizer(settings, &request->optimizer);
    add_number(settings, "label-smoothing", request->label_smoothing);
    add_word(settings, "device", request->backend->name);
    add_word(settings, "precision", precision_name(request->precision));
    add_number(settings, "loss-scale", request->loss_scale > 0 ? (double)request->loss_scale : 1);
    add_word(settings, "convolutions", request->legacy ? "legacy" : "graph");
}

json_t *settings_of(const struct trainer *trainer)
{
    json_t *settings = json_object();
    struct data_facts facts;
    add_options(settings, trainer);
    data_facts(trainer->data, &facts);
    add_hash(settings, "data", facts.hash);
    add_hash(settings, "data: some of its images", trainer->contents);
    add_word(settings, "augment", facts.augment);
    return settings;
}

/* ---- of all workers ---- */

/* With what decides which calls the workers make together. NULL: no memory. */
static json_t *agreed_of(const struct trainer *trainer)
{
    static const char *const augments[] = {
        [AUGMENT_USUAL] = "the usual one", [AUGMENT_NONE] = "none", [AUGMENT_CROP_FLIP] = "crop-flip"};
    static const char *const evaluations[] = {
        [EVALUATE_EPOCHS] = "epoch", [EVALUATE_END] = "end", [EVALUATE_NEVER] = "never"};
    static const char *const checkpoints[] = {
        [CHECKPOINT_EPOCHS] = "epoch", [CHECKPOINT_END] = "end", [CHECKPOINT_NEVER] = "never"};
    static const char *const overlaps[] = {
        [OVERLAP_USUAL] = "the usual one", [OVERLAP_NONE] = "none", [OVERLAP_BUCKET] = "bucket"};
    const struct train_request *request = trainer->request;
    struct text inject = {0};
    json_t *settings = json_object();
    add_word(settings, "overlap", overlaps[request->overlap]); /* before the buckets that it decides */
    if (request->inject != NULL)
        inject_describe(request->inject, &inject);
    if (inject.length == 0)
        text_add(&inject, "nothing");
    add(settings, "inject", &inject);
    add_options(settings, trainer);
    add_word(settings, "augment", augments[request->augment]);
    add_number(settings, "steps", (double)request->steps);
    add_word(settings, "eval", evaluations[request->evaluation]);
    if (request->checkpoint == CHECKPOINT_STEPS)
        add_number(settings, "checkpoint", (double)request->checkpoint_steps);
    else
        add_word(settings, "checkpoint", checkpoints[request->checkpoint]);
    add_word(settings, "resume", request->resume != NULL ? "yes" : "no");
    add_word(settings, "change-workers", request->change_workers ? "yes" : "no");
    return settings;
}

/* The option at place `k`; NULL: there are not so many. */
static const char *option_at(json_t *settings, size_t k, const char **value)
{
    void *at = json_object_iter(settings);
    for (; at != NULL && k > 0; k--)
        at = json_object_iter_next(settings, at);
    *value = at != NULL ? json_string_value(json_object_iter_value(at)) : NULL;
    return at != NULL ? json_object_iter_key(at) : NULL;
}

static enum status gather(const struct trainer *trainer, const void *mine, size_t bytes, void **all)
{
    struct job *job = trainer->request->job;
    TRY(memory_zeroed(all, (size_t)job_size(job), bytes));
    return job_allgather(job, mine, bytes, *all);
}

/* The first one that differs, the same on all workers; OPTIONS_MOST: none does. */
static enum status find_difference(const struct trainer *trainer, json_t *settings, size_t *option, int *rank)
{
    uint64_t mine[OPTIONS_MOST] = {0};
    void *all = NULL;
    for (size_t k = 0; k < OPTIONS_MOST; k++) {
        const char *value = NULL, *key = option_at(settings, k, &value);
        if (key != NULL && value != NULL)
            mine[k] = hash_bytes(hash_bytes(HASH_START, key, strlen(key) + 1), value, strlen(value));
    }
    const enum status status = gather(trainer, mine, sizeof mine, &all);
    const uint64_t *hashes = all;
    *option = OPTIONS_MOST;
    for (int r = 1; status >= 0 && r < job_size(trainer->request->job); r++)
        for (size_t k = 0; k < *option; k++)
            if (hashes[(size_t)r * OPTIONS_MOST + k] != hashes[k]) {
                *option = k;
                *rank = r;
            }
    free(all);
    return status;
}

static enum status say_difference(const struct trainer *trainer, json_t *settings, size_t option, int rank)
{
    char mine[VALUE_BYTES] = "";
    void *all = NULL;
    const char *value = NULL, *key = option_at(settings, option, &value);
    if (value != NULL)
        (void)strncpy(mine, value, sizeof mine - 1);
    enum status status = gather(trainer, mine, sizeof mine, &all);
    const char *values = all;
    if (status >= 0)
        status = fail(STATUS_MISMATCH,
                      "--%s=%s of rank 0, %s of rank %d: start all workers with the same options and the same program",
                      key != NULL ? key : "option", values, values + (size_t)rank * sizeof mine, rank);
    free(all);
    return status;
}

enum status settings_agree(const struct trainer *trainer)
{
    size_t option = OPTIONS_MOST;
    int rank = 0;
    json_t *settings = agreed_of(trainer);
    enum status status = settings != NULL && json_object_size(settings) <= OPTIONS_MOST
                             ? find_difference(trainer, settings, &option, &rank)
                             : fail(STATUS_NO_MEMORY, "out of memory: options");
    if (status >= 0 && option < OPTIONS_MOST)
        status = say_difference(trainer, settings, option, rank);
    json_decref(settings);
    return status;
}
