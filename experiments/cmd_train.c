/* cmd_train.c - chorale train: trains a network on several workers with any algorithm. */
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "algos/spec.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "comm/host.h"
#include "experiments/library.h"
#include "experiments/program.h"
#include "experiments/recipe.h"
#include "experiments/worker.h"
#include "nn/exchange.h"
#include "nn/train.h"

static const char head[] = "usage: chorale train --allreduce=SPEC -n N [options]\n"
                           "Trains on N workers; metrics.jsonl and summary.json go to a folder of their own.\n";

static const struct option options_table[] = {
    {.key = "allreduce", .type = OPTION_SPEC, .default_text = "ring", .help = "algorithm or strategy (chorale list)"},
    WORKER_OPTION_COUNT,
    {.key = "recipe",
     .type = OPTION_STRING,
     .help = "file of options, one key=value a line (experiments/recipes/); the command line wins"},
    {.key = "model", .type = OPTION_CHOICE, .choices = MODEL_NAMES, .help = "network (default resnet50)"},
    {.key = "data",
     .type = OPTION_STRING,
     .help = "data set, its format found out or FORMAT:PATH, or synthetic (default Debian's dataset-fashion-mnist); "
             "chorale data --help tells the formats"},
    {.key = "augment",
     .type = OPTION_CHOICE,
     .choices = "none|crop-flip",
     .help = "training images whole, or random pieces, mirrored at random (default crop-flip for colour photographs)"},
    {.key = "shard",
     .type = OPTION_CHOICE,
     .default_text = "global",
     .choices = "global|fixed|label",
     .help = "who trains on what: all shuffled each epoch, a fixed share a worker (ChainerMN), shares sorted by label"},
    {.key = "last",
     .type = OPTION_CHOICE,
     .default_text = "drop",
     .choices = "drop|keep",
     .help = "images that do not fill the last batches of an epoch: left out of it, or trained on in smaller batches"},
    {.key = "loaders",
     .type = OPTION_INT,
     .unit = "threads",
     .min = 0,
     .max = 1024,
     .help = "of one worker, that make images ahead; 0: in the step (default 0, with a card cores / workers)"},
    {.key = "image-size",
     .type = OPTION_INT,
     .default_text = "64",
     .unit = "pixels",
     .min = 8,
     .max = 1024,
     .help = "images are resized to this"},
    {.key = "batch",
     .type = OPTION_INT,
     .default_text = "16",
     .unit = "images",
     .min = 1,
     .max = 65536,
     .help = "of one worker"},
    {.key = "steps", .type = OPTION_INT, .min = 1, .max = 1e12, .help = "length of the run, instead of --epochs"},
    {.key = "epochs", .type = OPTION_REAL, .min = 1e-6, .max = 1e6, .help = "length of the run (default 1)"},
    {.key = "lr",
     .type = OPTION_REAL,
     .default_text = "0.1",
     .min = 0,
     .max = 1e6,
     .help = "learning rate for --lr-batch images of global batch, scaled linearly"},
    {.key = "lr-batch",
     .type = OPTION_INT,
     .default_text = "256",
     .unit = "images",
     .min = 0,
     .max = 1e9,
     .help = "of all workers, that --lr is for; 0: --lr is not scaled"},
    {.key = "optimizer",
     .type = OPTION_CHOICE,
     .default_text = "sgd",
     .choices = "sgd|nesterov|lars",
     .help = "how the mean gradient changes the weights"},
    {.key = "momentum", .type = OPTION_REAL, .default_text = "0.9", .min = 0, .max = 1, .help = "of the optimizer"},
    {.key = "weight-decay",
     .type = OPTION_REAL,
     .default_text = "0.0001",
     .min = 0,
     .max = 1,
     .help = "of convolution and linear weights"},
    {.key = "norm-weight-decay",
     .type = OPTION_REAL,
     .default_text = "0",
     .min = 0,
     .max = 1,
     .help = "of batch norms"},
    {.key = "bias-weight-decay",
     .type = OPTION_REAL,
     .default_text = "0",
     .min = 0,
     .max = 1,
     .help = "of the biases of convolutions and linear layers"},
    {.key = "clip",
     .type = OPTION_REAL,
     .min = 0,
     .max = 1e9,
     .help = "the largest norm of the whole mean gradient (gossip: each worker's own); larger ones are scaled to it; "
             "0: any"},
    {.key = "zero-gamma",
     .type = OPTION_CHOICE,
     .default_text = "yes",
     .choices = "yes|no",
     .help = "the last batch norm of each residual block starts at 0 (torchvision: zero_init_residual)"},
    {.key = "warmup-steps",
     .type = OPTION_INT,
     .default_text = "0",
     .min = 0,
     .max = 1e12,
     .help = "the learning rate rises linearly over these, as many after --change-workers"},
    {.key = "warmup-epochs", .type = OPTION_REAL, .min = 0, .max = 1e6, .help = "instead of --warmup-steps"},
    {.key = "warmup-lr",
     .type = OPTION_REAL,
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .help = "the rate it rises from, not scaled with the batch"},
    {.key = "lr-schedule",
     .type = OPTION_CHOICE,
     .default_text = "step",
     .choices = "constant|step|cosine|polynomial",
     .help = "of the learning rate after the warm-up, until the end of the run"},
    {.key = "decay-epochs",
     .type = OPTION_STRING,
     .help = "step: the learning rate falls after each (default 30,60,80 of 90, as shares of the run)"},
    {.key = "decay-factor",
     .type = OPTION_REAL,
     .default_text = "0.1",
     .min = 0,
     .max = 1,
     .help = "step: by this factor"},
    {.key = "lr-end",
     .type = OPTION_REAL,
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .help = "cosine, polynomial: the rate at the end of the run, not scaled with the batch"},
    {.key = "lr-power",
     .type = OPTION_REAL,
     .default_text = "2",
     .min = 0,
     .max = 100,
     .help = "polynomial: its exponent"},
    {.key = "bucket",
     .type = OPTION_STRING,
     .help = "exchange in pieces of whole tensors up to this many bytes; tensor: one by one; 0 or all: all at once "
             "(default 4M with --overlap=bucket, else all)"},
    {.key = "overlap",
     .type = OPTION_CHOICE,
     .choices = "none|bucket",
     .help =
         "when a bucket's exchange begins: after backward, or when backward has completed it (default where it can)"},
    {.key = "bn",
     .type = OPTION_CHOICE,
     .default_text = "local",
     .choices = "local|sync|averaged",
     .help =
         "batch norms have statistics of each worker's batch, or of all; averaged: running ones over gossip's workers, "
         "too"},
    {.key = "wire",
     .type = OPTION_STRING,
     .default_text = "f32",
     .help = "what travels (chorale list): f16, top-k:ratio=0.01"},
    {.key = "threads",
     .type = OPTION_INT,
     .min = 1,
     .max = 4096,
     .help = "compute threads of one worker (default OMP_NUM_THREADS, else cores / workers that share them)"},
    {.key = "device",
     .type = OPTION_STRING,
     .default_text = "cpu",
     .help = "cpu; cuda, or cuda:NUMBER of the card; replay:FILE (sleeps for a profile)"},
    {.key = "precision",
     .type = OPTION_CHOICE,
     .choices = "f32|tf32|bf16|f16",
     .help = "of activations (default bf16 on cuda, f32 elsewhere); weights and sums are f32"},
    {.key = "loss-scale",
     .type = OPTION_REAL,
     .min = 1,
     .max = 16777216,
     .help = "of --precision=f16: gradients are multiplied by this power of two on their way (default 1024)"},
    {.key = "label-smoothing",
     .type = OPTION_REAL,
     .default_text = "0",
     .min = 0,
     .max = 0.999,
     .help = "share of the target that goes to all classes alike"},
    {.key = "deterministic", .type = OPTION_FLAG, .help = "cuda: only kernels that give equal bits run after run"},
    {.key = "workspace", .type = OPTION_SIZE, .unit = "B", .help = "cuda: memory that a convolution may take"},
    {.key = "engines",
     .type = OPTION_STRING,
     .help = "cuda: file that remembers the fastest kernels (default in the user's cache folder)"},
    {.key = "convolutions",
     .type = OPTION_CHOICE,
     .choices = "graph|legacy",
     .help = "cuda: by cuDNN's graphs (default) or its older functions"},
    {.key = "eval",
     .type = OPTION_CHOICE,
     .default_text = "epoch",
     .choices = "epoch|end|never",
     .help = "test after each epoch and at the end, at the end, never"},
    {.key = "checkpoint",
     .type = OPTION_STRING,
     .help = "keep the run, so that it can go on: epoch (after each, and at the end), STEPS (after so many each, and "
             "at the "
             "end), end, never (default epoch with --out, else never); the last two stay"},
    {.key = "resume",
     .type = OPTION_STRING,
     .bare = "",
     .help =
         "go on with the latest good checkpoint in --out=FOLDER, or with that FILE; for longer than it was meant to "
         "only with --lr-schedule=constant or --decay-epochs"},
    {.key = "change-workers",
     .type = OPTION_FLAG,
     .help = "--resume: with another number of workers than before, from the same place in the data"},
    {.key = "out", .type = OPTION_STRING, .help = "folder for the results (default a fresh one under results/)"},
    {.key = "profile-out", .type = OPTION_STRING, .help = "file for layer times, for --device=replay and sim"},
    {.key = "trace",
     .type = OPTION_STRING,
     .help =
         "folder for trace.RANK.json of every worker, in place of an earlier run's: steps, phases, buckets in flight, "
         "as ui.perfetto.dev shows them"},
    {.key = "timing-skip",
     .type = OPTION_INT,
     .unit = "steps",
     .min = 0,
     .max = 1e9,
     .help = "first ones left out of mean times (default 2, fewer in very short runs)"},
    {.key = "json", .type = OPTION_FLAG, .help = "the summary on stdout and nothing else"},
    WORKER_OPTIONS,
    {.key = NULL},
};

/* What the options say, checked as far as it goes without a job. */
struct plan {
    struct option_values *options;
    struct spec spec;
    struct accelerator accelerator;
    enum precision precision;
    float loss_scale;
    struct text engines; /* empty: none */
    size_t bucket;
    struct wire_format wire;
    enum train_checkpoint checkpoint;
    uint64_t checkpoint_steps;
};

/* ---- options ---- */

static enum status read_precision(const struct option_values *options, struct plan *plan)
{
    static const enum precision precisions[] = {PRECISION_F32, PRECISION_TF32, PRECISION_BF16, PRECISION_F16};
    const bool on_host = plan->accelerator.module == NULL;
    const char *text = option_text(options, "precision");
    plan->precision = on_host ? PRECISION_F32 : PRECISION_BF16;
    for (size_t k = 0; text != NULL && k < sizeof precisions / sizeof precisions[0]; k++)
        if (strcmp(text, precision_name(precisions[k])) == 0)
            plan->precision = precisions[k];
    if (on_host && plan->precision != PRECISION_F32)
        return fail(STATUS_REFUSED, "--precision=%s: the device %s %s: leave it out, or take --device=cuda", text,
                    plan->accelerator.name, plan->accelerator.profile != NULL ? "computes nothing" : "computes in f32");
    return STATUS_OK;
}

static enum status read_loss_scale(const struct option_values *options, struct plan *plan)
{
    enum { USUAL = 1024 };
    int exponent = 0;
    plan->loss_scale = plan->precision == PRECISION_F16 ? USUAL : 1;
    if (!option_given(options, "loss-scale"))
        return STATUS_OK;
    if (plan->precision != PRECISION_F16)
        return fail(STATUS_USAGE, "--loss-scale: %s needs none: leave it out, or take --precision=f16",
                    precision_name(plan->precision));
    plan->loss_scale = (float)option_real(options, "loss-scale");
    if (frexpf(plan->loss_scale, &exponent) != 0.5F)
        return fail(STATUS_USAGE, "--loss-scale=%g: no power of two: take 512 or 1024", (double)plan->loss_scale);
    return STATUS_OK;
}

/* One that is there may be only for reading. */
static enum status check_engines(const char *path)
{
    if (file_is_plain(path))
        return STATUS_OK;
    if (file_exists(path))
        return fail(STATUS_USAGE, "--engines=%s: no plain file: what is remembered is written there, and read again",
                    path);
    const enum status status = file_writable(path);
    return status < 0 ? fail(STATUS_USAGE, "--engines: %s", status_message()) : status;
}

/* What only a device's kernels have. */
static enum status read_kernels(const struct option_values *options, struct plan *plan)
{
    static const char *const keys[] = {"workspace", "engines", "convolutions"};
    for (size_t k = 0; plan->accelerator.module == NULL && k < sizeof keys / sizeof keys[0]; k++)
        if (option_given(options, keys[k]))
            return fail(STATUS_REFUSED, "--%s: the device %s has no such thing: leave it out, or take --device=cuda",
                        keys[k], plan->accelerator.name);
    if (option_given(options, "engines")) {
        TRY(check_engines(option_text(options, "engines")));
        text_add(&plan->engines, option_text(options, "engines"));
    } else if (plan->accelerator.module != NULL) {
        accelerator_engines(&plan->accelerator, &plan->engines);
    }
    return text_check(&plan->engines);
}

/* What nobody reads is not ignored. */
static enum status check_emulated(const struct option_values *options, const struct plan *plan)
{
    static const char *const keys[] = {"data", "loaders"}; /* not augment: recipes tell it */
    for (size_t k = 0; plan->accelerator.profile != NULL && k < sizeof keys / sizeof keys[0]; k++)
        if (option_given(options, keys[k]))
            return fail(STATUS_REFUSED, "--%s: an emulated device reads no images: leave it out", keys[k]);
    return STATUS_OK;
}

static enum status read_device(const struct option_values *options, struct plan *plan)
{
    const char *text = option_text(options, "device");
    TRY(accelerator_parse(text, &plan->accelerator));
    if (plan->accelerator.backend == NULL)
        return fail(STATUS_REFUSED, "--device=%s: its module does not compute", text);
    TRY(check_emulated(options, plan));
    TRY(read_precision(options, plan));
    TRY(read_loss_scale(options, plan));
    return read_kernels(options, plan);
}

static enum rate_schedule schedule_of(const struct option_values *options)
{
    enum rate_schedule schedule = RATE_CONSTANT;
    while (strcmp(rate_schedule_name(schedule), option_text(options, "lr-schedule")) != 0)
        schedule++;
    return schedule;
}

/* Options that only some schedules have. */
static const struct {
    const char *key;
    unsigned schedules;
} owned[] = {
    {"decay-epochs", 1U << RATE_STEP},
    {"decay-factor", 1U << RATE_STEP},
    {"lr-end", 1U << RATE_COSINE | 1U << RATE_POLYNOMIAL},
    {"lr-power", 1U << RATE_POLYNOMIAL},
};
enum { OWNED = sizeof owned / sizeof owned[0] };

static bool fits(const struct option_values *options, size_t k)
{
    return (owned[k].schedules >> schedule_of(options) & 1) != 0;
}

static bool warms_up(const struct option_values *options)
{
    return option_int(options, "warmup-steps") > 0 ||
           (option_given(options, "warmup-epochs") && option_real(options, "warmup-epochs") > 0);
}

/* What a schedule does not have is not ignored. */
static enum status check_schedule(const struct option_values *options)
{
    for (size_t k = 0; k < OWNED; k++)
        if (option_given(options, owned[k].key) && !fits(options, k))
            return fail(STATUS_USAGE, "--%s: --lr-schedule=%s has no such thing: leave it out", owned[k].key,
                        rate_schedule_name(schedule_of(options)));
    if (option_given(options, "warmup-lr") && !warms_up(options))
        return fail(STATUS_USAGE, "--warmup-lr: there is no warm-up: give --warmup-steps or --warmup-epochs, too");
    return STATUS_OK;
}

static const struct recipe_instead instead[] = {{"steps", "epochs"}, {"warmup-steps", "warmup-epochs"}};
enum { INSTEAD = sizeof instead / sizeof instead[0] };

/* Where the command line gives another schedule, or no warm-up, the recipe's has none of its own to say. */
static enum status take_recipe(struct option_values *options)
{
    const bool chosen = option_given(options, "lr-schedule");
    const bool cold = (option_given(options, "warmup-steps") || option_given(options, "warmup-epochs")) &&
                      !warms_up(options) && !option_given(options, "warmup-lr");
    bool given[OWNED];
    for (size_t k = 0; k < OWNED; k++)
        given[k] = option_given(options, owned[k].key);
    TRY(recipe_read(option_text(options, "recipe"), instead, INSTEAD, options));
    for (size_t k = 0; k < OWNED; k++)
        if (chosen && !given[k] && !fits(options, k))
            option_unset(options, owned[k].key);
    if (cold)
        option_unset(options, "warmup-lr");
    return STATUS_OK;
}

static enum status read_recipe(struct option_values *options)
{
    if (option_given(options, "recipe"))
        TRY(take_recipe(options));
    for (size_t k = 0; k < INSTEAD; k++)
        if (option_given(options, instead[k].one) && option_given(options, instead[k].other))
            return fail(STATUS_USAGE, "--%s and --%s: give one of them", instead[k].one, instead[k].other);
    return STATUS_OK;
}

static enum status read_bucket(const char *text, size_t *bucket)
{
    *bucket = BUCKET_USUAL;
    if (text == NULL)
        return STATUS_OK;
    *bucket = strcmp(text, "tensor") == 0 ? BUCKET_TENSOR : BUCKET_WHOLE;
    if (*bucket == BUCKET_TENSOR || strcmp(text, "all") == 0)
        return STATUS_OK;
    if (parse_size(text, bucket) < 0 || *bucket >= BUCKET_USUAL)
        return fail(STATUS_USAGE, "--bucket=%s: bytes (25M), tensor, or all", text);
    return STATUS_OK;
}

/* It is written at the very end. */
static enum status check_profile_out(const char *path, const struct backend_ops *backend)
{
    if (path == NULL)
        return STATUS_OK;
    if (backend->profile == NULL)
        return fail(STATUS_REFUSED, "--profile-out=%s: the device %s measures no layer times", path, backend->name);
    enum status status = file_writable(path);
    return status < 0 ? fail(status, "--profile-out: %s", status_message()) : status;
}

static enum status read_checkpoint(const struct option_values *options, struct plan *plan)
{
    static const char *const words[] = {
        [CHECKPOINT_EPOCHS] = "epoch", [CHECKPOINT_END] = "end", [CHECKPOINT_NEVER] = "never"};
    const char *text = option_text(options, "checkpoint");
    const bool emulated = plan->accelerator.profile != NULL;
    long long steps = 0;
    plan->checkpoint = option_given(options, "out") && !emulated ? CHECKPOINT_EPOCHS : CHECKPOINT_NEVER;
    if (option_given(options, "change-workers") && !option_given(options, "resume"))
        return fail(STATUS_USAGE, "--change-workers: it says how to --resume: give that, too");
    if (text == NULL)
        return STATUS_OK;
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
        if (words[k] == NULL || strcmp(text, words[k]) != 0)
            continue;
        plan->checkpoint = (enum train_checkpoint)k;
        return emulated && k != CHECKPOINT_NEVER
                   ? fail(STATUS_REFUSED, "--checkpoint: an emulated device learns nothing to be kept")
                   : STATUS_OK;
    }
    if (parse_int(text, &steps) < 0 || steps < 1)
        return fail(STATUS_USAGE, "--checkpoint=%s: epoch, a number of steps, end, or never", text);
    if (emulated)
        return fail(STATUS_REFUSED, "--checkpoint: an emulated device learns nothing to be kept");
    plan->checkpoint = CHECKPOINT_STEPS;
    plan->checkpoint_steps = (uint64_t)steps;
    return STATUS_OK;
}

static enum status read_plan(struct option_values *options, struct plan *plan)
{
    struct inject inject;
    *plan = (struct plan){.options = options};
    TRY(read_recipe(options));
    TRY(program_spec(option_text(options, "allreduce"), &plan->spec));
    TRY(check_schedule(options));
    if (option_given(options, "inject"))
        TRY(inject_parse(option_text(options, "inject"), &inject));
    TRY(read_bucket(option_text(options, "bucket"), &plan->bucket));
    TRY(wire_format_parse(option_text(options, "wire"), &plan->wire));
    TRY(read_device(options, plan));
    TRY(read_checkpoint(options, plan));
    if (plan->spec.kind == SPEC_EXTERNAL)
        TRY(library_possible(plan->spec.external, plan->accelerator.module != NULL ? plan->accelerator.name : NULL));
    return check_profile_out(option_text(options, "profile-out"), plan->accelerator.backend);
}

/* ---- what the user sees ---- */

#define SAY_EVERY_NS 1000000000U

struct telling {
    const struct worker *worker;
    uint64_t said_ns; /* when progress was last told */
};

static void say_device(const struct train_start *start)
{
    const struct train_request *request = start->request;
    if (request->device == NULL)
        return;
    printf("rank 0 computes on %s", start->device);
    if (start->sharers > 1)
        printf(", a card that %d workers share", start->sharers);
    printf("; %s", precision_name(request->precision));
    if (request->precision == PRECISION_F16)
        printf(", loss scale %g", (double)request->loss_scale);
    if (request->deterministic) /* they are not timed, then */
        printf(", deterministic\n");
    else
        printf(", engines remembered in %s\n", request->engines != NULL ? request->engines : "no file");
}

static void say_data(const struct train_start *start)
{
    const struct train_request *request = start->request;
    struct data_facts facts;
    if (start->data == NULL)
        return;
    data_facts(start->data, &facts);
    printf("data: %s %s: %zu + %zu images in %d classes, augmentation %s, shards %s, %d loader%s%s%s\n", facts.format,
           facts.path, data_train_count(start->data), data_test_count(start->data), data_classes(start->data),
           facts.augment, data_shard_name(request->shard), request->loaders, plural((size_t)request->loaders),
           facts.notes[0] != '\0' ? "; " : "", facts.notes);
    if (start->rest > 0 && request->keep_last)
        printf("the last batch of an epoch has %zu images on all workers together\n", start->rest);
    else if (start->rest > 0)
        printf("each epoch leaves out %zu images: --last=keep trains on them, too\n", start->rest);
}

static void say_setup(const struct worker *worker)
{
    struct text text = {0};
    text_add(&text, "network: ");
    comm_describe(worker->comm, &text);
    text_add(&text, "; ");
    placement_describe(&worker->placement, worker->job, &text);
    printf("%s\n", text_string(&text));
    text_release(&text);
}

/* What travels. Segments are the comm's; what is left of a tensor or bucket is a smaller one. */
static void say_wire(const struct train_request *request)
{
    struct text name = {0};
    if (!wire_format_changes(request->wire, DTYPE_F32)) {
        printf(", wire f32");
        return;
    }
    wire_format_canonical(request->wire, &name);
    printf(", wire %s (%.3g of the bytes of f32)", text_string(&name),
           wire_format_ratio(request->wire, comm_segment(request->comm) / sizeof(float)));
    text_release(&name);
}

static void say_exchange(const struct train_start *start)
{
    if (job_size(start->request->job) == 1)
        return;
    if (start->bucket == BUCKET_WHOLE)
        printf("exchanged all at once");
    else if (start->bucket == BUCKET_TENSOR)
        printf("exchanged tensor by tensor");
    else
        printf("exchanged in buckets of up to %zu B", start->bucket);
    printf(", overlap %s, driven %s", start->overlaps ? "bucket" : "none",
           comm_has_thread(start->request->comm) ? "by a thread of its own" : "between layers");
    say_wire(start->request);
    if (start->request->norms == NORMS_SYNC)
        printf("; batch norms over all workers");
    printf("\n");
}

/* Where the rate changes, in steps counted from 0, as metrics.jsonl does. */
static void say_schedule(const struct learning_rate *rate, uint64_t steps)
{
    int within = 0;
    printf(", %s", rate_schedule_name(rate->schedule));
    if (rate->schedule == RATE_COSINE || rate->schedule == RATE_POLYNOMIAL)
        printf(" to %g at step %llu", rate->end, (unsigned long long)rate->steps);
    if (rate->schedule != RATE_STEP)
        return;
    if (rate->milestones > 0)
        printf(" x%g at step%s", rate->factor, plural((size_t)rate->milestones));
    for (int k = 0; k < rate->milestones; k++) {
        within += rate->milestone[k] < steps;
        printf("%s %llu", k > 0 ? "," : "", (unsigned long long)rate->milestone[k]);
    }
    if (within == 0)
        printf(" (%s: the rate stays)", rate->milestones > 0 ? "beyond this run" : "no milestones");
}

/* What a short run makes of a schedule for long ones. */
static void say_odd_schedule(const struct learning_rate *rate, uint64_t steps)
{
    const double warm = rate->warmup_began + (double)rate->warmup;
    if (rate->warmup == 0)
        return;
    if (warm > (double)steps)
        printf("the warm-up ends at step %.0f, after the run: the rate of %g is not reached\n", warm,
               learning_rate_scaled(rate));
    for (int k = 0; rate->schedule == RATE_STEP && k < rate->milestones && rate->milestone[k] < steps; k++)
        if (rate->milestone[k] > 0 && (double)rate->milestone[k] < warm) { /* 0: long ago */
            printf("the rate falls at step %llu already, within the warm-up\n", (unsigned long long)rate->milestone[k]);
            break;
        }
}

/* The rate that a step takes is for the images of all workers together. */
static void say_rate(const struct train_start *start)
{
    const struct train_request *request = start->request;
    const struct learning_rate *rate = start->rate;
    const struct optimizer_settings *settings = &request->optimizer;
    printf("%llu step%s, global batch %zu, lr %g", (unsigned long long)start->steps, plural((size_t)start->steps),
           rate->global_batch, rate->rate);
    if (rate->images > 0)
        printf(" for %zu images: %g for %zu", rate->images, learning_rate_scaled(rate), rate->global_batch);
    say_schedule(rate, start->steps);
    printf(", warm-up %llu step%s\n", (unsigned long long)rate->warmup, plural((size_t)rate->warmup));
    say_odd_schedule(rate, start->steps);
    printf("%s, momentum %g, weight decay %g of weights, %g of norms, %g of biases, ", update_rule_name(settings->rule),
           settings->momentum, settings->weight_decay, settings->norm_decay, settings->bias_decay);
    if (settings->clip > 0)
        printf("clipped to %g, ", settings->clip);
    printf("seed %llu%s%s\n", (unsigned long long)request->seed, request->recipe != NULL ? ", recipe " : "",
           request->recipe != NULL ? request->recipe : "");
}

static void say_start(void *context, const struct train_start *start)
{
    const struct telling *telling = context;
    const struct train_request *request = start->request;
    const struct model *model = start->model;
    struct text spec = {0};
    spec_canonical(request->spec, &spec);
    printf("%s on %d worker%s: %s (%zu parameters), %d x %d pixels, batch %d a worker, device %s%s%s, %d thread%s\n",
           text_string(&spec), job_size(request->job), plural((size_t)job_size(request->job)), model->name,
           model->parameters, model->image_size, model->image_size, request->batch, request->backend->name,
           request->profile != NULL ? " of " : "", request->profile != NULL ? request->profile : "", request->threads,
           plural((size_t)request->threads));
    say_rate(start);
    say_exchange(start);
    say_setup(telling->worker);
    say_data(start);
    say_device(start);
    if (start->decided != NULL)
        printf("decided: %s\n", start->decided);
    if (start->first > 0)
        printf("going on at step %llu\n", (unsigned long long)start->first);
    printf("results in %s\n", start->folder);
    (void)fflush(stdout);
    text_release(&spec);
}

static void say_progress(void *context, const struct train_progress *progress)
{
    struct telling *telling = context;
    const uint64_t now = clock_ns();
    if (progress->evaluated) {
        printf("epoch %.2f: top-1 %.4f, top-5 %.4f, test loss %.4f\n", progress->epoch, progress->top1, progress->top5,
               progress->test_loss);
    } else {
        if (now - telling->said_ns < SAY_EVERY_NS && progress->step < progress->steps)
            return;
        telling->said_ns = now;
        printf("step %llu of %llu", (unsigned long long)progress->step, (unsigned long long)progress->steps);
        if (progress->loss > 0) /* an emulated device learns nothing */
            printf(", loss %.4f of rank 0, lr %.4g for %zu images", progress->loss, progress->rate,
                   progress->global_batch);
        if (progress->images_per_s > 0)
            printf(", %.1f images/s, %.0f s left", progress->images_per_s, progress->left_s);
        printf("\n");
    }
    (void)fflush(stdout);
}

static void say_summary(const struct train_summary *summary, bool replayed)
{
    printf("\n%s; times of a step in ms, mean over workers:\n",
           replayed ? "replayed: computing was slept, nothing was learnt" : "measured");
    printf("%-12s %10s %10s %10s %10s %10s %10s\n", "images/s", "step", "p50", "p99", "compute", "comm", "exposed");
    printf("%-12.2f %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f\n", summary->images_per_s, summary->step_ms,
           summary->step_ms_p50, summary->step_ms_p99, summary->compute_ms, summary->comm_ms, summary->exposed_ms);
    if (isfinite(summary->bytes_sent_per_step))
        printf("sent by the busiest worker: %.0f bytes a step", summary->bytes_sent_per_step);
    else
        printf("what was sent only the library knows");
    if (!replayed)
        printf("; mean loss of all workers, first and last steps: %.4f -> %.4f", summary->loss_first,
               summary->loss_last);
    if (isfinite(summary->top1))
        printf(", top-1 %.4f, top-5 %.4f", summary->top1, summary->top5);
    if (isfinite(summary->top1_average))
        printf(", of the average of the models top-1 %.4f", summary->top1_average);
    if (summary->wire.infinite > 0 || summary->wire.nan > 0)
        printf(", on the wire %llu values became infinite and %llu were NaN",
               (unsigned long long)summary->wire.infinite, (unsigned long long)summary->wire.nan);
    if (summary->undecoded > 0)
        printf(
            "; an image could not be decoded %zu times (training takes another then): chorale data inspect names them",
            summary->undecoded);
    if (summary->data_wait_ms > 0.05 * summary->step_ms)
        printf("; waited %.2f ms a step for images: more --loaders may help", summary->data_wait_ms);
    if (summary->consensus > 0)
        printf(", consensus distance %.3g", summary->consensus);
    printf("\n%s/summary.json\n", text_string(&summary->folder));
}

static void say_survived(const struct inject *inject)
{
    char line[120];
    (void)snprintf(line, sizeof line, "--inject: die=%d@%llu: the run had no such step, counted from 0: nobody died",
                   inject->victim, (unsigned long long)inject->step);
    program_note(NULL, line);
}

static enum status say_result(const struct train_summary *summary, bool json, bool replayed)
{
    if (json)
        return json_print(stdout, summary->document);
    say_summary(summary, replayed);
    return fflush(stdout) == 0 ? STATUS_OK : fail(STATUS_IO, "standard output: the summary could not be written");
}

/* ---- the run ---- */

static enum train_evaluation evaluation_of(const struct option_values *options)
{
    const char *text = option_text(options, "eval");
    if (strcmp(text, "never") == 0)
        return EVALUATE_NEVER;
    return strcmp(text, "end") == 0 ? EVALUATE_END : EVALUATE_EPOCHS;
}

static enum train_norms norms_of(const struct option_values *options)
{
    const char *text = option_text(options, "bn");
    if (strcmp(text, "sync") == 0)
        return NORMS_SYNC;
    return strcmp(text, "averaged") == 0 ? NORMS_AVERAGED : NORMS_LOCAL;
}

static enum train_overlap overlap_of(const struct option_values *options)
{
    if (!option_given(options, "overlap"))
        return OVERLAP_USUAL;
    return strcmp(option_text(options, "overlap"), "none") == 0 ? OVERLAP_NONE : OVERLAP_BUCKET;
}

static int loaders_of(const struct option_values *options, const struct worker *worker)
{
    if (option_given(options, "loaders"))
        return (int)option_int(options, "loaders");
    const int share = host_cores() / job_share_size(worker->job);
    return worker->device == NULL ? 0 : share > 1 ? share : 1;
}

static enum data_augment augment_of(const struct option_values *options)
{
    if (!option_given(options, "augment"))
        return AUGMENT_USUAL;
    return strcmp(option_text(options, "augment"), "none") == 0 ? AUGMENT_NONE : AUGMENT_CROP_FLIP;
}

static enum data_shard shard_of(const struct option_values *options)
{
    enum data_shard shard = SHARD_GLOBAL;
    while (strcmp(data_shard_name(shard), option_text(options, "shard")) != 0)
        shard++;
    return shard;
}

static struct optimizer_settings optimizer_of(const struct option_values *options, int threads)
{
    enum update_rule rule = UPDATE_SGD;
    while (strcmp(update_rule_name(rule), option_text(options, "optimizer")) != 0)
        rule++;
    return (struct optimizer_settings){.rule = rule,
                                       .momentum = option_real(options, "momentum"),
                                       .weight_decay = option_real(options, "weight-decay"),
                                       .norm_decay = option_real(options, "norm-weight-decay"),
                                       .bias_decay = option_real(options, "bias-weight-decay"),
                                       .clip = option_real(options, "clip"),
                                       .threads = threads};
}

static struct train_request request_of(const struct plan *plan, const struct worker *worker,
                                       const struct library *library, json_t *placement)
{
    const struct option_values *options = plan->options;
    return (struct train_request){
        .job = worker->job,
        .comm = worker->comm,
        .layout = &worker->layout,
        .spec = &plan->spec,
        .library = library->external,
        .backend = plan->accelerator.backend,
        .device = worker->device,
        .precision = plan->precision,
        .loss_scale = plan->loss_scale,
        .deterministic = option_flag(options, "deterministic"),
        .legacy = option_given(options, "convolutions") && strcmp(option_text(options, "convolutions"), "legacy") == 0,
        .workspace = option_size(options, "workspace"),
        .engines = plan->engines.length > 0 ? text_string(&plan->engines) : NULL,
        .label_smoothing = option_real(options, "label-smoothing"),
        .profile = plan->accelerator.profile,
        .model = option_text(options, "model"),
        .data = option_text(options, "data"),
        .augment = augment_of(options),
        .shard = shard_of(options),
        .keep_last = strcmp(option_text(options, "last"), "keep") == 0,
        .loaders = loaders_of(options, worker),
        .image_size = (int)option_int(options, "image-size"),
        .batch = (int)option_int(options, "batch"),
        .threads = worker->placement.threads,
        .placement = placement,
        .seed = (uint64_t)option_int(options, "seed"),
        .steps = (uint64_t)option_int(options, "steps"),
        .epochs = option_given(options, "epochs") ? option_real(options, "epochs") : 1,
        .lr = option_real(options, "lr"),
        .lr_images = (size_t)option_int(options, "lr-batch"),
        .optimizer = optimizer_of(options, worker->placement.threads),
        .schedule = schedule_of(options),
        .warmup_lr = option_real(options, "warmup-lr"),
        .lr_end = option_real(options, "lr-end"),
        .lr_power = option_real(options, "lr-power"),
        .decay_factor = option_real(options, "decay-factor"),
        .warmup_steps = (uint64_t)option_int(options, "warmup-steps"),
        .warmup_epochs = option_given(options, "warmup-epochs") ? option_real(options, "warmup-epochs") : 0,
        .zero_gamma = strcmp(option_text(options, "zero-gamma"), "yes") == 0,
        .recipe = option_text(options, "recipe"),
        .decay_epochs = option_text(options, "decay-epochs"),
        .bucket = plan->bucket,
        .overlap = overlap_of(options),
        .norms = norms_of(options),
        .trace = option_text(options, "trace"),
        .wire = &plan->wire,
        .inject = worker->inject,
        .evaluation = evaluation_of(options),
        .out = option_text(options, "out"),
        .checkpoint = plan->checkpoint,
        .checkpoint_steps = plan->checkpoint_steps,
        .resume = option_text(options, "resume"),
        .change_workers = option_flag(options, "change-workers"),
        .profile_out = option_text(options, "profile-out"),
        .timing_skip = option_given(options, "timing-skip") ? (int)option_int(options, "timing-skip") : -1,
    };
}

static enum status train(const struct plan *plan, const struct worker *worker, const struct library *library)
{
    json_t *placement = placement_json(&worker->placement, worker->job);
    struct train_request request = request_of(plan, worker, library, placement);
    struct train_summary summary;
    struct telling telling = {.worker = worker, .said_ns = clock_ns()};
    bool json = option_flag(plan->options, "json");
    request.note = program_note;
    if (!json) {
        request.started = say_start;
        request.progress = say_progress;
        request.context = &telling;
    }
    enum status status = train_run(&request, &summary);
    json_decref(placement);
    TRY(status);
    if (job_rank(worker->job) == 0 && worker->inject != NULL && worker->inject->dies)
        say_survived(worker->inject);
    if (job_rank(worker->job) == 0)
        status = say_result(&summary, json, plan->accelerator.profile != NULL);
    train_summary_release(&summary);
    return status;
}

static int run(const struct plan *plan, int argc, char **argv)
{
    const struct option_values *options = plan->options;
    struct worker worker;
    if (worker_launches(options))
        return worker_launch(worker_count(options), worker_deadline(options), argc, argv);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file that grows beyond its limit is a failure to be told, not the end */
    struct library library = {.external = NULL};
    const struct external *external = plan->spec.external;
    const unsigned wants =
        WORKER_PROGRESS | WORKER_COMPUTES | (external != NULL && library_is_mpi(external) ? WORKER_EXTERNAL : 0);
    enum status status = worker_open(options, worker_count(options), wants, &plan->accelerator, &worker);
    if (status == STATUS_OK && external != NULL)
        status = library_find(external, &worker, &library);
    if (status == STATUS_OK)
        status = train(plan, &worker, &library);
    library_release(&library, status >= 0);
    return worker_close(&worker, status);
}

int cmd_train(int argc, char **argv)
{
    struct option_values options;
    struct plan plan;
    int exit_code = 0;
    if (!program_options(head, options_table, argc, argv, &options, &exit_code))
        return exit_code;
    enum status status = read_plan(&options, &plan);
    exit_code = status < 0 ? program_refuse(status) : run(&plan, argc, argv);
    spec_release(&plan.spec);
    wire_format_release(&plan.wire);
    text_release(&plan.engines);
    option_values_release(&options);
    return exit_code;
}
