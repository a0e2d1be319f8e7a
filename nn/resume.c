/* resume.c - see resume.h. */
#include "nn/resume.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "nn/checkpoint.h"
#include "nn/settings.h"

#define COUNT_MOST ((uint64_t)1 << 60)
enum { KEPT = 2, GATHER_MOST = 1 << 16, METRICS_MOST = 1 << 20 };

/* An earlier run that goes on. */
struct resumed {
    char *path;
    struct checkpoint *main;
    struct checkpoint **worker; /* [0]: this worker's; with another number of workers all of theirs; NULL: none */
    int workers;                /* of that run */
    int files;                  /* of worker[] */
    bool in_flight;
    void *kept; /* of its metrics */
    size_t kept_bytes;
    char *folder;
};

/* ---- talking ---- */

static void note(const struct trainer *trainer, const struct text *line)
{
    const struct train_request *request = trainer->request;
    if (request->note != NULL && job_rank(request->job) == 0)
        request->note(request->context, text_string(line));
}

struct verdict {
    int status;
    bool good;
    struct checkpoint_identity identity;
    char message[512];
};

/* Of every worker, in rank order; caller frees. */
static enum status gather_verdicts(struct trainer *trainer, enum status status,
                                   const struct checkpoint_identity *identity, bool good, struct verdict **all)
{
    struct job *job = trainer->request->job;
    struct verdict mine = {.status = status, .good = good};
    void *memory = NULL;
    if (identity != NULL)
        mine.identity = *identity;
    if (status < 0)
        (void)strncpy(mine.message, status_message(), sizeof mine.message - 1);
    *all = NULL;
    TRY(memory_zeroed(&memory, (size_t)job_size(job), sizeof mine));
    const enum status told = job_allgather(job, &mine, sizeof mine, memory);
    if (told < 0)
        free(memory);
    else
        *all = memory;
    return told;
}

/* The worker that failed says why; the others wait to be ended by that. */
static enum status first_failure(struct trainer *trainer, enum status status, const struct verdict *all)
{
    struct job *job = trainer->request->job;
    int culprit = 0;
    while (culprit < job_size(job) && all[culprit].status >= 0)
        culprit++;
    if (culprit == job_size(job))
        return STATUS_OK;
    if (culprit == job_rank(job))
        return fail(status, "%s", all[culprit].message);
    TRY(job_barrier(job));
    return fail((enum status)all[culprit].status, "%s", all[culprit].message);
}

/* ---- what must agree ---- */

/* With as many workers the steps at which the rate changes are compared (compare_milestones()), else what they follow from. */
static bool may_differ(const struct trainer *trainer, const char *key)
{
    const struct train_request *request = trainer->request;
    if (strcmp(key, "decay-epochs") == 0)
        return !request->change_workers;
    if (strcmp(key, "epochs") == 0)
        return !request->change_workers || request->steps > 0 || request->schedule == RATE_CONSTANT ||
               (request->schedule == RATE_STEP && request->decay_epochs != NULL);
    return request->change_workers && (strcmp(key, "batch") == 0 || strcmp(key, "nodes") == 0);
}

static enum status compare_setting(const struct trainer *trainer, const char *key, const char *ours, const char *theirs)
{
    const char *path = trainer->resumed->path;
    if (may_differ(trainer, key) || (theirs != NULL && strcmp(ours, theirs) == 0))
        return STATUS_OK;
    if (theirs == NULL)
        return fail(STATUS_USAGE, "--%s: checkpoint %s does not tell it: begin another run", key, path);
    const bool labels = strcmp(key, "data") == 0;
    if (labels || strcmp(key, "data: some of its images") == 0)
        return fail(STATUS_USAGE,
                    "--data: its %s are not those that checkpoint %s was trained on (hash %s%s, then %s): give the "
                    "same data set",
                    labels ? "classes or labels" : "images", path, labels ? "" : "of some ", ours, theirs);
    if (strcmp(key, "bucket") == 0 && trainer->request->bucket == BUCKET_USUAL)
        return fail(
            STATUS_USAGE,
            "--overlap=%s: without --bucket it exchanges in buckets of %s, and checkpoint %s was made with %s: give "
            "--bucket=%s, or the --overlap that it was made with",
            trainer->overlaps ? "bucket" : "none", ours, path, theirs, theirs);
    if (strcmp(key, "epochs") == 0)
        return fail(
            STATUS_USAGE,
            "--epochs: the rate's way to its end follows from --epochs or --steps, and checkpoint %s was made with "
            "another one: give what it was made with, or begin another run",
            path);
    return fail(STATUS_USAGE, "--%s=%s: checkpoint %s was made with --%s=%s: give that, or begin another run", key,
                ours, path, key, theirs);
}

static enum status compare_settings(const struct trainer *trainer, const json_t *header)
{
    const json_t *theirs = json_object_get(header, "options");
    json_t *ours = settings_of(trainer);
    const char *key = NULL;
    json_t *value = NULL;
    enum status status = ours != NULL ? STATUS_OK : fail(STATUS_NO_MEMORY, "out of memory: options");
    json_object_foreach(ours, key, value)
    {
        if (status >= 0)
            status = compare_setting(trainer, key, json_string_value(value),
                                     json_string_value(json_object_get(theirs, key)));
    }
    json_decref(ours);
    return status;
}

/* "12,24": steps; or the one that the rate's way ends at. */
static void add_milestones(const struct learning_rate *rate, struct text *text)
{
    if (rate->schedule == RATE_COSINE || rate->schedule == RATE_POLYNOMIAL)
        text_addf(text, "%llu", (unsigned long long)rate->steps);
    for (int k = 0; rate->schedule == RATE_STEP && k < rate->milestones; k++)
        text_addf(text, "%s%llu", k > 0 ? "," : "", (unsigned long long)rate->milestone[k]);
}

/* They follow from --decay-epochs, or from the length of the run, which may differ where they don't. Other workers change
 * those that are told in epochs. */
static enum status compare_milestones(const struct trainer *trainer, const json_t *header)
{
    struct text ours = {0};
    const char *theirs = json_string_value(json_object_get(header, "milestones"));
    const bool in_steps = trainer->request->steps > 0 && trainer->request->decay_epochs == NULL;
    add_milestones(&trainer->rate, &ours);
    enum status status = text_check(&ours);
    if (status >= 0 && (!trainer->request->change_workers || in_steps) &&
        (theirs == NULL || strcmp(text_string(&ours), theirs) != 0))
        status =
            fail(STATUS_USAGE,
                 "--decay-epochs, --epochs or --steps: the learning rate of the %s schedule would change at step "
                 "%s, in the run of checkpoint %s it does at %s: give the same (a run that may become longer wants "
                 "--lr-schedule=constant or its --decay-epochs from the start)",
                 rate_schedule_name(trainer->rate.schedule), text_string(&ours), trainer->resumed->path,
                 theirs != NULL ? theirs : "others");
    text_release(&ours);
    return status;
}

static void compare_word(const struct trainer *trainer, const char *what, const char *ours, const json_t *theirs)
{
    struct text line = {0};
    const char *then = json_string_value(theirs);
    if (then != NULL && strcmp(ours, then) != 0) {
        text_addf(&line, "checkpoint %s was made with %s %s, not %s: bits may differ from here on",
                  trainer->resumed->path, what, then, ours);
        note(trainer, &line);
    }
    text_release(&line);
}

/* What need not agree, but may change bits. */
static void compare_machine(const struct trainer *trainer, const json_t *header)
{
    struct text backend = {0}, threads = {0};
    text_addf(&threads, "%d", trainer->request->threads);
    compare_word(trainer, "--threads", text_string(&threads), json_object_get(header, "threads"));
    trainer->request->backend->describe(trainer->backend, &backend);
    compare_word(trainer, "the backend", text_string(&backend),
                 json_object_get(json_object_get(header, "versions"), "backend"));
    text_release(&backend);
    text_release(&threads);
}

/* ---- finding one ---- */

static enum status bad_header(const char *path, const char *key)
{
    return fail(STATUS_FORMAT, "checkpoint %s: its header does not tell \"%s\"", path, key);
}

static enum status header_integer(const struct resumed *resumed, const json_t *object, const char *key, uint64_t most,
                                  uint64_t *value)
{
    const json_t *number = json_object_get(object, key);
    const json_int_t integer = json_integer_value(number);
    if (!json_is_integer(number) || integer < 0 || (uint64_t)integer > most)
        return bad_header(resumed->path, key);
    *value = (uint64_t)integer;
    return STATUS_OK;
}

/* The file of an earlier worker, which the main one describes. */
static enum status open_worker_file(struct resumed *resumed, int rank, struct checkpoint **file)
{
    const json_t *all = json_object_get(checkpoint_header(resumed->main), "worker_files");
    const json_t *of = json_array_get(all, (size_t)rank);
    struct text path = {0};
    uint64_t bytes = 0, crc = 0;
    TRY(header_integer(resumed, of, "bytes", INT64_MAX, &bytes));
    TRY(header_integer(resumed, of, "crc32", UINT32_MAX, &crc));
    text_addf(&path, "%s.worker-%d", resumed->path, rank);
    enum status status = text_check(&path);
    if (status >= 0)
        status = checkpoint_open(text_string(&path), file);
    if (status >= 0) {
        const struct checkpoint_identity identity = checkpoint_identity(*file);
        status =
            identity.bytes == bytes && identity.crc32 == crc
                ? checkpoint_verify(*file)
                : fail(STATUS_FORMAT, "checkpoint %s: it is of another run than %s", text_string(&path), resumed->path);
    }
    text_release(&path);
    return status;
}

static enum status open_worker_files(struct trainer *trainer)
{
    struct resumed *resumed = trainer->resumed;
    const struct job *job = trainer->request->job;
    const bool same = resumed->workers == job_size(job);
    void *memory = NULL;
    if (json_array_size(json_object_get(checkpoint_header(resumed->main), "worker_files")) == 0)
        return STATUS_OK;
    if (!same && trainer->exact) /* what wire formats left out: for nobody */
        return STATUS_OK;
    if (json_array_size(json_object_get(checkpoint_header(resumed->main), "worker_files")) != (size_t)resumed->workers)
        return bad_header(resumed->path, "worker_files");
    TRY(memory_zeroed(&memory, (size_t)(same ? 1 : resumed->workers), sizeof(struct checkpoint *)));
    resumed->worker = memory;
    resumed->files = same ? 1 : resumed->workers;
    for (int f = 0; f < resumed->files; f++)
        TRY(open_worker_file(resumed, same ? job_rank(job) : f, &resumed->worker[f]));
    return STATUS_OK;
}

static enum status read_metrics(struct resumed *resumed, uint64_t step)
{
    if (!checkpoint_has(resumed->main, "metrics", &resumed->kept_bytes) || resumed->kept_bytes > METRICS_MOST)
        return bad_header(resumed->path, "metrics");
    TRY(memory_zeroed(&resumed->kept, resumed->kept_bytes, 1));
    TRY(checkpoint_read(resumed->main, "metrics", resumed->kept, resumed->kept_bytes));
    if (!metrics_kept_is_good(resumed->kept, resumed->kept_bytes, step))
        return bad_header(resumed->path, "metrics");
    TRY(memory_string(&resumed->folder, resumed->path));
    char *slash = strrchr(resumed->folder, '/');
    if (slash != NULL) {
        slash[slash == resumed->folder] = '\0';
        return STATUS_OK;
    }
    free(resumed->folder);
    return memory_string(&resumed->folder, ".");
}

static enum status read_place(struct trainer *trainer)
{
    struct resumed *resumed = trainer->resumed;
    const json_t *header = checkpoint_header(resumed->main), *origin = json_object_get(header, "origin");
    struct data_origin *to = &trainer->order.origin;
    uint64_t position = 0, workers = 0;
    TRY(header_integer(resumed, header, "step", (uint64_t)1 << 60, &trainer->first));
    TRY(header_integer(resumed, header, "workers", INT_MAX, &workers));
    if (workers == 0)
        return bad_header(resumed->path, "workers");
    resumed->workers = (int)workers;
    resumed->in_flight = json_is_true(json_object_get(header, "in_flight"));
    if (resumed->workers == job_size(trainer->request->job) && !trainer->request->change_workers) {
        TRY(header_integer(resumed, origin, "step", trainer->first, &to->step));
        TRY(header_integer(resumed, origin, "epoch", UINT32_MAX, &to->epoch));
        TRY(header_integer(resumed, origin, "position", SIZE_MAX / 2, &position));
    } else {
        to->step = trainer->first;
        TRY(header_integer(resumed, header, "epoch", UINT32_MAX, &to->epoch));
        TRY(header_integer(resumed, header, "position", SIZE_MAX / 2, &position));
    }
    to->position = (size_t)position;
    return read_metrics(resumed, trainer->first);
}

static enum status open_candidate(struct trainer *trainer, const char *path)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct resumed)));
    trainer->resumed = memory;
    TRY(memory_string(&trainer->resumed->path, path));
    TRY(checkpoint_open(path, &trainer->resumed->main));
    TRY(checkpoint_verify(trainer->resumed->main));
    TRY(read_place(trainer));
    return open_worker_files(trainer);
}

void resume_close(struct trainer *trainer)
{
    struct resumed *resumed = trainer->resumed;
    if (resumed == NULL)
        return;
    for (int f = 0; f < resumed->files; f++)
        checkpoint_close(resumed->worker[f]);
    checkpoint_close(resumed->main);
    free(resumed->worker);
    free(resumed->kept);
    free(resumed->folder);
    free(resumed->path);
    free(resumed);
    trainer->resumed = NULL;
}

/* Rank 0 knows what is there. */
struct candidates {
    struct text folder;
    char *file; /* this one and no other; NULL: all of the folder */
    uint64_t *step;
    size_t count, next;
};

/* A run that was killed before its first checkpoint begins anew; what one that has ended left is not to be lost. */
static enum status has_no_results(const char *folder)
{
    struct text path = {0};
    struct stat about;
    text_addf(&path, "%s/summary.json", folder);
    enum status status = text_check(&path);
    if (status >= 0 && stat(text_string(&path), &about) == 0 && about.st_size > 0)
        status = fail(STATUS_REFUSED,
                      "--resume: %s holds a run that has ended (summary.json) and no checkpoint to go on "
                      "with: give another --out=FOLDER without --resume",
                      folder);
    text_release(&path);
    return status;
}

static enum status find_candidates(const struct trainer *trainer, struct candidates *candidates)
{
    const char *resume = trainer->request->resume;
    struct stat about;
    if (job_rank(trainer->request->job) != 0)
        return STATUS_OK;
    if (resume[0] != '\0' && (stat(resume, &about) != 0 || !S_ISDIR(about.st_mode))) {
        candidates->count = 1;
        return memory_string(&candidates->file, resume);
    }
    text_add(&candidates->folder, resume[0] != '\0' ? resume : text_string(&trainer->folder));
    TRY(text_check(&candidates->folder));
    const char *folder = text_string(&candidates->folder);
    TRY(checkpoint_list(folder, &candidates->step, &candidates->count));
    return candidates->count == 0 ? has_no_results(folder) : STATUS_OK;
}

struct offer {
    int status;
    char path[PATH_MAX];
};

/* The next one, by rank 0 for all; "" when there is none. */
static enum status offer_next(struct trainer *trainer, struct candidates *candidates, struct offer *offer)
{
    struct job *job = trainer->request->job;
    struct text path = {0};
    void *all = NULL;
    *offer = (struct offer){.status = STATUS_OK};
    if (candidates->next < candidates->count) {
        if (candidates->file != NULL)
            text_add(&path, candidates->file);
        else
            checkpoint_path(text_string(&candidates->folder), candidates->step[candidates->next], -1, &path);
        candidates->next++;
        if (path.failed || path.length >= sizeof offer->path)
            offer->status = STATUS_REFUSED;
        else
            memcpy(offer->path, text_string(&path), path.length);
    }
    text_release(&path);
    TRY(memory_zeroed(&all, (size_t)job_size(job), sizeof *offer));
    const enum status status = job_allgather(job, offer, sizeof *offer, all);
    if (status >= 0)
        memcpy(offer, all, sizeof *offer);
    free(all);
    TRY(status);
    return offer->status < 0 ? fail(STATUS_REFUSED, "--resume: the path of a checkpoint is too long") : STATUS_OK;
}

/* *good: all workers can read all they need of it. */
static enum status try_candidate(struct trainer *trainer, const char *path, bool last, bool *good)
{
    struct verdict *all = NULL;
    struct text line = {0};
    const enum status opened = open_candidate(trainer, path);
    int bad = 0;
    TRY(gather_verdicts(trainer, opened, NULL, true, &all));
    while (bad < job_size(trainer->request->job) && all[bad].status >= 0)
        bad++;
    *good = bad == job_size(trainer->request->job);
    enum status status = STATUS_OK;
    if (!*good) {
        resume_close(trainer);
        if (last)
            status = fail((enum status)all[bad].status, "--resume: %s%s", all[bad].message,
                          trainer->passed_over > 0 ? ": no checkpoint here is good" : "");
        text_addf(&line, "%s: going on with an earlier one", all[bad].message);
        trainer->passed_over++;
        if (!last)
            note(trainer, &line);
    }
    text_release(&line);
    free(all);
    return status;
}

static enum status find_good(struct trainer *trainer, struct candidates *candidates)
{
    struct offer *offer = NULL, *next = NULL;
    void *memory = NULL;
    bool good = false;
    TRY(memory_zeroed(&memory, 2, sizeof(struct offer)));
    offer = memory;
    next = offer + 1;
    enum status status = offer_next(trainer, candidates, offer);
    const bool any = status >= 0 && offer->path[0] != '\0';
    while (status >= 0 && !good && offer->path[0] != '\0') {
        status = offer_next(trainer, candidates, next);
        if (status >= 0)
            status = try_candidate(trainer, offer->path, next->path[0] == '\0', &good);
        *offer = *next;
    }
    free(memory);
    if (status >= 0 && !any) {
        struct text line = {0};
        text_addf(&line, "--resume: %s holds no checkpoint: the run begins at step 0",
                  text_string(&candidates->folder));
        note(trainer, &line);
        text_release(&line);
    }
    return status;
}

static enum status check_workers(const struct trainer *trainer)
{
    const struct train_request *request = trainer->request;
    const struct resumed *resumed = trainer->resumed;
    const int workers = job_size(request->job);
    if (resumed->workers != workers && !request->change_workers)
        return fail(STATUS_USAGE, "-n %d: checkpoint %s was made by %d worker%s: give -n %d, or --change-workers",
                    workers, resumed->path, resumed->workers, plural((size_t)resumed->workers), resumed->workers);
    if (request->shard != SHARD_GLOBAL && trainer->order.origin.position > 0)
        return fail(STATUS_REFUSED,
                    "--change-workers: with --shard=%s each worker has a share of the data, which can be cut anew only "
                    "where an epoch begins, and checkpoint %s was made within one",
                    data_shard_name(request->shard), resumed->path);
    return STATUS_OK;
}

/* A place in the data that this run could have come to: of the data set and options, which are known to be the same. */
static enum status check_place(const struct trainer *trainer)
{
    const struct resumed *resumed = trainer->resumed;
    const json_t *header = checkpoint_header(resumed->main);
    const struct data_order *order = &trainer->order;
    const struct data_place place = data_order_place(order, trainer->first);
    uint64_t epoch = 0, position = 0;
    TRY(header_integer(resumed, header, "epoch", trainer->first, &epoch)); /* each has a step at least */
    TRY(header_integer(resumed, header, "position", order->samples, &position));
    if (order->origin.position > order->samples)
        return bad_header(resumed->path, "origin");
    const bool same = resumed->workers == order->workers && !trainer->request->change_workers;
    if (same && (place.epoch != epoch || place.position != position))
        return bad_header(resumed->path, "position");
    if (json_is_true(json_object_get(header, "exact")) != trainer->exact)
        return bad_header(resumed->path, "exact");
    return STATUS_OK;
}

enum status resume_find(struct trainer *trainer)
{
    struct candidates candidates = {.file = NULL};
    if (trainer->request->resume == NULL)
        return STATUS_OK;
    if (trainer->data == NULL)
        return fail(STATUS_REFUSED, "--resume: an emulated device learns nothing that could go on");
    enum status status = find_candidates(trainer, &candidates);
    if (status >= 0)
        status = find_good(trainer, &candidates);
    free(candidates.file);
    free(candidates.step);
    text_release(&candidates.folder);
    if (status < 0 || trainer->resumed == NULL)
        return status;
    TRY(check_workers(trainer));
    TRY(compare_settings(trainer, checkpoint_header(trainer->resumed->main)));
    return check_place(trainer);
}

/* ---- restoring ---- */

static enum status to_arena(const struct trainer *trainer, const float *canonical, float *arena)
{
    const struct backend_ops *ops = trainer->request->backend;
    return ops->to_native != NULL ? ops->to_native(trainer->backend, canonical, arena)
                                  : arena_write(&trainer->place, arena, canonical, trainer->model->parameters);
}

static enum status from_arena(const struct trainer *trainer, const float *arena, float *canonical)
{
    const struct backend_ops *ops = trainer->request->backend;
    return ops->to_canonical != NULL ? ops->to_canonical(trainer->backend, arena, canonical)
                                     : arena_read(&trainer->place, arena, canonical, trainer->model->parameters);
}

/* The mean of a section over files, in the order of ranks: equal bits everywhere. */
static enum status read_mean(struct checkpoint *const *files, int count, const char *name, float *to, size_t elements)
{
    void *sums = NULL;
    if (count == 1)
        return checkpoint_read(files[0], name, to, elements * sizeof(float));
    TRY(memory_zeroed(&sums, elements, sizeof(double)));
    double *sum = sums;
    enum status status = STATUS_OK;
    for (int f = 0; status >= 0 && f < count; f++) {
        status = checkpoint_read(files[f], name, to, elements * sizeof(float));
        for (size_t i = 0; status >= 0 && i < elements; i++)
            sum[i] += (double)to[i];
    }
    for (size_t i = 0; status >= 0 && i < elements; i++)
        to[i] = (float)(sum[i] / count);
    free(sums);
    return status;
}

static bool all_finite(const float *values, size_t count)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bad |= (bits & 0x7f800000U) == 0x7f800000U;
    }
    return bad == 0;
}

static enum status not_finite(const char *path, const char *what)
{
    return fail(STATUS_FORMAT, "checkpoint %s: its %s are not finite, which this program never keeps", path, what);
}

/* What must be finite, into an arena. */
static enum status restore_arena(const struct trainer *trainer, struct checkpoint *const *files, int count,
                                 const char *name, float *buffer, float *arena)
{
    const size_t elements = trainer->model->parameters;
    TRY(read_mean(files, count, name, buffer, elements));
    if (!all_finite(buffer, elements))
        return not_finite(trainer->resumed->path, name);
    return to_arena(trainer, buffer, arena);
}

static enum status restore_model(struct trainer *trainer, float *buffer)
{
    const struct resumed *resumed = trainer->resumed;
    struct replica *replica = &trainer->replica;
    struct checkpoint *const *files = trainer->exact ? &resumed->main : resumed->worker;
    const int number = trainer->exact ? 1 : resumed->files;
    TRY(restore_arena(trainer, files, number, "parameters", buffer, replica->parameters));
    TRY(restore_arena(trainer, files, number, "momentum", buffer, optimizer_velocity(trainer->optimizer)));
    if (!resumed->in_flight)
        return STATUS_OK;
    uint64_t bytes = 0;
    if (trainer->first == 0 || trainer->method->gradients < 2)
        return bad_header(resumed->path, "in_flight");
    TRY(header_integer(resumed, checkpoint_header(resumed->main), "in_flight_bytes", COUNT_MOST, &bytes));
    exchanges_restore_settled(trainer->exchanges, (size_t)bytes);
    return restore_arena(trainer, &resumed->main, 1, "gradient", buffer, replica->gradient[(trainer->first - 1) % 2]);
}

/* Of an exact run: of all workers, one after the other. */
static enum status restore_statistics(struct trainer *trainer)
{
    const struct resumed *resumed = trainer->resumed;
    const size_t count = trainer->model->state, all = count * (size_t)resumed->workers;
    const int rank = job_rank(trainer->request->job);
    size_t bytes = 0;
    void *memory = NULL;
    if (trainer->exact && (!checkpoint_has(resumed->main, "statistics", &bytes) || bytes / sizeof(float) != all))
        return bad_header(resumed->path, "statistics"); /* before so much memory is taken */
    TRY(memory_zeroed(&memory, all, sizeof(float)));
    float *state = memory;
    enum status status = trainer->exact ? checkpoint_read(resumed->main, "statistics", state, all * sizeof(float))
                                        : read_mean(resumed->worker, resumed->files, "statistics", state, count);
    if (status >= 0 && trainer->exact && resumed->workers == job_size(trainer->request->job)) {
        memmove(state, state + (size_t)rank * count, count * sizeof(float));
    } else if (status >= 0 && trainer->exact) {
        for (size_t i = 0; i < count; i++) {
            double sum = 0;
            for (int w = 0; w < resumed->workers; w++)
                sum += (double)state[(size_t)w * count + i];
            state[i] = (float)(sum / resumed->workers);
        }
    }
    if (status >= 0 && !all_finite(state, count))
        status = not_finite(resumed->path, "statistics");
    if (status >= 0)
        status = arena_write(&trainer->place, trainer->state, state, count);
    free(memory);
    return status;
}

static enum status restore_feedback(struct trainer *trainer)
{
    const struct resumed *resumed = trainer->resumed;
    const size_t count = exchanges_feedback_count(trainer->exchanges), lines = exchanges_lines(trainer->exchanges);
    void *residuals = NULL, *runs = NULL;
    if (count == 0 || resumed->workers != job_size(trainer->request->job))
        return STATUS_OK;
    if (resumed->worker == NULL)
        return bad_header(resumed->path, "worker_files");
    enum status status = memory_zeroed(&residuals, count, sizeof(float));
    if (status >= 0)
        status = memory_zeroed(&runs, lines, sizeof(uint32_t));
    if (status >= 0)
        status = checkpoint_read(resumed->worker[0], "residuals", residuals, count * sizeof(float));
    if (status >= 0)
        status = checkpoint_read(resumed->worker[0], "exchanges", runs, lines * sizeof(uint32_t));
    if (status >= 0)
        exchanges_feedback_set(trainer->exchanges, residuals, runs);
    free(residuals);
    free(runs);
    return status;
}

/* Sums over the run before. */
static enum status restore_sums(struct trainer *trainer)
{
    const struct resumed *resumed = trainer->resumed;
    const json_t *sums = json_object_get(checkpoint_header(resumed->main), "sums");
    const json_t *wait = json_object_get(sums, "wait_s"), *error = json_object_get(sums, "wire_error");
    struct codec_statistics *wire = &trainer->before.wire;
    uint64_t skipped = 0;
    if (!json_is_number(wait) || json_number_value(wait) < 0)
        return bad_header(resumed->path, "wait_s");
    if (!json_is_number(error) || json_number_value(error) < 0)
        return bad_header(resumed->path, "wire_error");
    if (trainer->order.origin.step < trainer->first) /* of the present workers */
        trainer->before.wait_s = json_number_value(wait);
    wire->worst = json_number_value(error);
    TRY(header_integer(resumed, sums, "skipped_images", COUNT_MOST, &skipped));
    TRY(header_integer(resumed, sums, "wire_infinite", COUNT_MOST, &wire->infinite));
    TRY(header_integer(resumed, sums, "wire_nan", COUNT_MOST, &wire->nan));
    TRY(header_integer(resumed, sums, "wire_flushed", COUNT_MOST, &wire->flushed));
    trainer->before.skipped = (size_t)skipped;
    return STATUS_OK;
}

/* Samples of its epoch that the run before had given, by its own batches; 0: an epoch had just ended. */
static json_int_t resumed_position(const struct resumed *resumed)
{
    return json_integer_value(json_object_get(checkpoint_header(resumed->main), "position"));
}

static void say_changes(struct trainer *trainer)
{
    const struct resumed *resumed = trainer->resumed;
    const int workers = job_size(trainer->request->job);
    struct text line = {0};
    if (resumed->workers != workers) {
        text_addf(&line, "checkpoint %s of %d worker%s goes on with %d: %s are averaged", resumed->path,
                  resumed->workers, plural((size_t)resumed->workers), workers,
                  trainer->exact ? "their running statistics" : "their parameters, momentum and running statistics");
        if (resumed->in_flight)
            text_addf(&line, "; the gradient in flight is the mean over the %d", resumed->workers);
        if (exchanges_feedback_count(trainer->exchanges) > 0)
            text_add(&line, "; what the wire format has left out so far is lost");
        note(trainer, &line);
    }
    text_release(&line);
}

enum status resume_restore(struct trainer *trainer)
{
    void *buffer = NULL;
    const size_t bytes = trainer->model->parameters * sizeof(float);
    if (trainer->resumed == NULL)
        return STATUS_OK;
    TRY(compare_milestones(trainer, checkpoint_header(trainer->resumed->main)));
    compare_machine(trainer, checkpoint_header(trainer->resumed->main));
    enum status status = memory_pages(&buffer, bytes);
    if (status >= 0)
        status = restore_model(trainer, buffer);
    memory_pages_release(buffer, bytes);
    TRY(status);
    TRY(restore_statistics(trainer));
    TRY(restore_feedback(trainer));
    TRY(restore_sums(trainer));
    trainer->averaged = resumed_position(trainer->resumed) == 0; /* it was kept after that */
    say_changes(trainer);
    return STATUS_OK;
}

void resume_kept(const struct trainer *trainer, const void **kept, size_t *bytes, const char **folder)
{
    const struct resumed *resumed = trainer->resumed;
    if (resumed == NULL)
        return;
    *kept = resumed->kept;
    *bytes = resumed->kept_bytes;
    *folder = resumed->folder;
}

/* ---- saving ---- */

/* What one checkpoint is made of, while it is made. */
struct saving {
    uint64_t step;
    size_t settled; /* bytes of what is in flight, of the worker that sent most */
    bool in_flight, good;
    float *buffer; /* of the parameters' size */
    float *statistics;
    struct checkpoint_identity *file; /* of each worker; NULL: there are none */
    struct codec_statistics wire;
    size_t skipped;
};

static enum status put_arena(struct trainer *trainer, struct saving *saving, struct checkpoint_writer *writer,
                             const float *arena)
{
    TRY(from_arena(trainer, arena, saving->buffer));
    saving->good = saving->good && all_finite(saving->buffer, trainer->model->parameters);
    return checkpoint_put(writer, saving->buffer);
}

static enum status put_model(struct trainer *trainer, struct saving *saving, struct checkpoint_writer *writer)
{
    TRY(put_arena(trainer, saving, writer, trainer->replica.parameters));
    return put_arena(trainer, saving, writer, optimizer_velocity(trainer->optimizer));
}

/* In pieces that the control channel takes. */
static enum status gather_statistics(struct trainer *trainer, float *all)
{
    struct job *job = trainer->request->job;
    const size_t count = trainer->model->state, workers = (size_t)job_size(job), most = GATHER_MOST / sizeof(float);
    void *mine = NULL, *piece = NULL;
    enum status status = memory_zeroed(&mine, count, sizeof(float));
    if (status >= 0)
        status = memory_zeroed(&piece, most * workers, sizeof(float));
    if (status >= 0)
        status = arena_read(&trainer->place, trainer->state, mine, count);
    for (size_t done = 0; status >= 0 && done < count; done += most) {
        const size_t some = count - done < most ? count - done : most;
        status = job_allgather(job, (float *)mine + done, some * sizeof(float), piece);
        for (size_t w = 0; status >= 0 && w < workers; w++)
            memcpy(all + w * count + done, (float *)piece + w * some, some * sizeof(float));
    }
    free(mine);
    free(piece);
    return status;
}

static enum status put_feedback(struct trainer *trainer, size_t count, struct checkpoint_writer *writer)
{
    void *residuals = NULL, *runs = NULL;
    enum status status = memory_zeroed(&residuals, count, sizeof(float));
    if (status >= 0)
        status = memory_zeroed(&runs, exchanges_lines(trainer->exchanges), sizeof(uint32_t));
    if (status >= 0) {
        exchanges_feedback_get(trainer->exchanges, residuals, runs);
        status = checkpoint_put(writer, residuals);
    }
    if (status >= 0)
        status = checkpoint_put(writer, runs);
    free(residuals);
    free(runs);
    return status;
}

static enum status put_statistics(struct trainer *trainer, struct saving *saving, struct checkpoint_writer *writer)
{
    const size_t count = trainer->model->state;
    void *state = NULL;
    enum status status = memory_zeroed(&state, count, sizeof(float));
    if (status >= 0)
        status = arena_read(&trainer->place, trainer->state, state, count);
    if (status >= 0) {
        saving->good = saving->good && all_finite(state, count);
        status = checkpoint_put(writer, state);
    }
    free(state);
    return status;
}

/* What this worker has for itself. */
static enum status write_worker_file(struct trainer *trainer, struct saving *saving,
                                     struct checkpoint_identity *identity)
{
    struct job *job = trainer->request->job;
    const size_t model = trainer->model->parameters * sizeof(float),
                 feedback = exchanges_feedback_count(trainer->exchanges);
    struct checkpoint_section section[5];
    size_t sections = 0;
    struct checkpoint_writer *writer = NULL;
    struct text path = {0};
    enum status status = STATUS_OK;
    if (!trainer->exact) {
        section[sections++] = (struct checkpoint_section){"parameters", model};
        section[sections++] = (struct checkpoint_section){"momentum", model};
        section[sections++] = (struct checkpoint_section){"statistics", trainer->model->state * sizeof(float)};
    }
    if (feedback > 0) {
        section[sections++] = (struct checkpoint_section){"residuals", feedback * sizeof(float)};
        section[sections++] =
            (struct checkpoint_section){"exchanges", exchanges_lines(trainer->exchanges) * sizeof(uint32_t)};
    }
    checkpoint_path(text_string(&trainer->shared_folder), saving->step, job_rank(job), &path);
    TRY_TO(done, text_check(&path));
    TRY_TO(done, checkpoint_create(text_string(&path),
                                   json_pack("{sI si si ss}", "step", (json_int_t)saving->step, "rank", job_rank(job),
                                             "workers", job_size(job), "host", job_host(job)),
                                   section, sections, &writer));
    if (!trainer->exact) {
        TRY_TO(done, put_model(trainer, saving, writer));
        TRY_TO(done, put_statistics(trainer, saving, writer));
    }
    if (feedback > 0)
        TRY_TO(done, put_feedback(trainer, feedback, writer));
    if (saving->good) {
        struct checkpoint_writer *done = writer;
        writer = NULL;
        status = checkpoint_commit(done, identity);
    }
done:
    checkpoint_abandon(writer);
    text_release(&path);
    return status;
}

static json_t *versions_of(const struct trainer *trainer)
{
    struct text backend = {0}, transport = {0};
    trainer->request->backend->describe(trainer->backend, &backend);
    comm_describe(trainer->request->comm, &transport);
    json_t *versions = json_pack("{ss ss}", "backend", text_string(&backend), "transport", text_string(&transport));
    text_release(&backend);
    text_release(&transport);
    return versions;
}

static json_t *worker_files_of(const struct saving *saving, int workers)
{
    json_t *files = json_array();
    for (int w = 0; saving->file != NULL && w < workers; w++)
        (void)json_array_append_new(files, json_pack("{sI sI}", "bytes", (json_int_t)saving->file[w].bytes, "crc32",
                                                     (json_int_t)saving->file[w].crc32));
    return files;
}

static json_t *sums_of(const struct trainer *trainer, const struct saving *saving)
{
    struct codec_statistics wire = trainer->before.wire;
    codec_statistics_add(&wire, &saving->wire);
    const size_t skipped = trainer->before.skipped + saving->skipped;
    return json_pack("{so sI sI sI sI so}", "wait_s", json_number(trainer->before.wait_s + trainer->wait_s),
                     "skipped_images", (json_int_t)skipped, "wire_infinite", (json_int_t)wire.infinite, "wire_nan",
                     (json_int_t)wire.nan, "wire_flushed", (json_int_t)wire.flushed, "wire_error",
                     json_number(wire.worst));
}

static json_t *header_of(const struct trainer *trainer, const struct saving *saving)
{
    const struct train_request *request = trainer->request;
    const struct data_place place = data_order_place(&trainer->order, saving->step);
    const struct data_origin *origin = &trainer->order.origin;
    const int workers = job_size(request->job);
    struct text milestones = {0};
    char threads[16];
    (void)snprintf(threads, sizeof threads, "%d", request->threads);
    add_milestones(&trainer->rate, &milestones);
    json_t *header = json_pack(
        "{sI sI sI s{sI sI sI} si sb sb sI ss ss so so so so sI sI}", "step", (json_int_t)saving->step, "epoch",
        (json_int_t)place.epoch, "position", (json_int_t)place.position, "origin", "step", (json_int_t)origin->step,
        "epoch", (json_int_t)origin->epoch, "position", (json_int_t)origin->position, "workers", workers, "exact",
        trainer->exact, "in_flight", saving->in_flight, "in_flight_bytes", (json_int_t)saving->settled, "threads",
        threads, "milestones", text_string(&milestones), "options", settings_of(trainer), "versions",
        versions_of(trainer), "sums", sums_of(trainer, saving), "worker_files", worker_files_of(saving, workers),
        "parameters", (json_int_t)trainer->model->parameters, "state", (json_int_t)trainer->model->state);
    text_release(&milestones);
    return header;
}

/* By rank 0, when all others have written. */
static enum status write_main_file(struct trainer *trainer, struct saving *saving)
{
    const size_t model = trainer->model->parameters * sizeof(float);
    const size_t statistics = trainer->model->state * (size_t)job_size(trainer->request->job) * sizeof(float);
    struct checkpoint_section section[5];
    size_t sections = 0, kept_bytes = 0;
    struct checkpoint_writer *writer = NULL;
    struct text path = {0};
    void *kept = NULL;
    enum status status = STATUS_OK;
    TRY(metrics_keep(trainer->metrics, &kept, &kept_bytes));
    if (trainer->exact) {
        section[sections++] = (struct checkpoint_section){"parameters", model};
        section[sections++] = (struct checkpoint_section){"momentum", model};
        if (saving->in_flight)
            section[sections++] = (struct checkpoint_section){"gradient", model};
        section[sections++] = (struct checkpoint_section){"statistics", statistics};
    }
    section[sections++] = (struct checkpoint_section){"metrics", kept_bytes};
    checkpoint_path(text_string(&trainer->shared_folder), saving->step, -1, &path);
    TRY_TO(done, text_check(&path));
    TRY_TO(done, checkpoint_create(text_string(&path), header_of(trainer, saving), section, sections, &writer));
    if (trainer->exact) {
        TRY_TO(done, put_model(trainer, saving, writer));
        if (saving->in_flight)
            TRY_TO(done, put_arena(trainer, saving, writer, trainer->replica.gradient[(saving->step - 1) % 2]));
        TRY_TO(done, checkpoint_put(writer, saving->statistics));
    }
    TRY_TO(done, checkpoint_put(writer, kept));
    if (saving->good) {
        struct checkpoint_writer *done = writer;
        writer = NULL;
        TRY_TO(done, checkpoint_commit(done, NULL));
        status = checkpoint_prune(text_string(&trainer->shared_folder), saving->step, KEPT);
    }
done:
    checkpoint_abandon(writer);
    free(kept);
    text_release(&path);
    return status;
}

static enum status sum_tallies(struct trainer *trainer, struct saving *saving)
{
    struct tally {
        struct codec_statistics wire;
        size_t skipped, settled;
    };
    struct job *job = trainer->request->job;
    struct data_facts facts;
    void *memory = NULL;
    data_facts(trainer->data, &facts);
    const struct tally mine = {.wire = exchanges_wire(trainer->exchanges),
                               .skipped = facts.skipped,
                               .settled = exchanges_settled_bytes(trainer->exchanges)};
    TRY(memory_zeroed(&memory, (size_t)job_size(job), sizeof mine));
    const struct tally *all = memory;
    const enum status status = job_allgather(job, &mine, sizeof mine, memory);
    for (int r = 0; status >= 0 && r < job_size(job); r++) {
        codec_statistics_add(&saving->wire, &all[r].wire);
        saving->skipped += all[r].skipped;
        saving->settled = all[r].settled > saving->settled ? all[r].settled : saving->settled;
    }
    free(memory);
    return status;
}

/* Every worker has done its part, or nobody's counts. */
static enum status agree(struct trainer *trainer, enum status status, const struct checkpoint_identity *identity,
                         struct saving *saving)
{
    struct verdict *all = NULL;
    TRY(gather_verdicts(trainer, status, identity, saving->good, &all));
    status = first_failure(trainer, status, all);
    for (int r = 0; r < job_size(trainer->request->job); r++) {
        saving->good = saving->good && all[r].good;
        if (saving->file != NULL && identity != NULL)
            saving->file[r] = all[r].identity;
    }
    free(all);
    return status;
}

static enum status write_files(struct trainer *trainer, struct saving *saving)
{
    struct job *job = trainer->request->job;
    struct checkpoint_identity identity = {0};
    enum status status = STATUS_OK;
    if (saving->file != NULL && saving->good)
        status = write_worker_file(trainer, saving, &identity);
    TRY(agree(trainer, status, &identity, saving));
    if (saving->good && job_rank(job) == 0)
        status = write_main_file(trainer, saving);
    return agree(trainer, status, NULL, saving);
}

enum status resume_save(struct trainer *trainer)
{
    const size_t bytes = trainer->model->parameters * sizeof(float), workers = (size_t)job_size(trainer->request->job);
    struct saving saving = {.step = trainer->put,
                            .in_flight = trainer->method->finish != NULL, /* a step leaves it to the next */
                            .good = !trainer->bad.known};
    void *buffer = NULL, *statistics = NULL, *files = NULL;
    enum status status = STATUS_OK;
    TRY(exchanges_settle(trainer->exchanges));
    TRY(metrics_gather(trainer->metrics));
    TRY(sum_tallies(trainer, &saving));
    TRY_TO(done, memory_pages(&buffer, bytes));
    saving.buffer = buffer;
    if (trainer->exact) {
        TRY_TO(done, memory_zeroed(&statistics, workers * trainer->model->state, sizeof(float)));
        saving.statistics = statistics;
        TRY_TO(done, gather_statistics(trainer, saving.statistics));
        saving.good = saving.good && all_finite(saving.statistics, workers * trainer->model->state);
    }
    if (!trainer->exact || exchanges_feedback_count(trainer->exchanges) > 0) {
        TRY_TO(done, memory_zeroed(&files, workers, sizeof(struct checkpoint_identity)));
        saving.file = files;
    }
    status = write_files(trainer, &saving);
done:
    memory_pages_release(buffer, bytes);
    free(statistics);
    free(files);
    trainer_mark(trainer);
    return status;
}
