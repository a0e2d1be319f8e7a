/* metrics.c - rows of steps, gathered over the job's channel, written as whole lines. */
#include "nn/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"

enum { PENDING_MOST = 64, APART_LEAST = 16, FOLDERS_MOST = 10000 };
#define GATHER_EVERY_S 1.0

/* ---- folders ---- */

static bool has_content(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && about.st_size > 0;
}

/* A file of a run in `folder`; the text is released by the caller. */
static const char *file_in(const char *folder, const char *name, struct text *path)
{
    text_clear(path);
    text_addf(path, "%s/%s", folder, name);
    return text_string(path);
}

static enum status fresh_folder(struct text *folder)
{
    char date[32];
    clock_wall_text(date, sizeof date);
    TRY(folder_create("results"));
    for (int n = 1; n <= FOLDERS_MOST; n++) {
        text_clear(folder);
        text_addf(folder, "results/train-%.10s-%d", date, n); /* 2026-11-30 */
        TRY(text_check(folder));
        if (mkdir(text_string(folder), 0777) == 0)
            return STATUS_OK;
        if (errno != EEXIST)
            return fail(STATUS_IO, "create %s: %s: give --out=FOLDER", text_string(folder), strerror(errno));
    }
    return fail(STATUS_IO, "results: %d runs of %.10s are there: give --out=FOLDER", FOLDERS_MOST, date);
}

static enum status holds_no_run(const char *folder)
{
    struct text path = {0};
    enum status status = STATUS_OK;
    if (has_content(file_in(folder, "summary.json", &path)) || has_content(file_in(folder, "metrics.jsonl", &path)))
        status = fail(STATUS_REFUSED, "--out=%s: it holds a run (%s): give another folder, or remove that one", folder,
                      text_string(&path));
    text_release(&path);
    return status;
}

static enum status named_folder(const char *out, struct text *folder)
{
    text_add(folder, out);
    TRY(text_check(folder));
    TRY(holds_no_run(out));
    enum status status = folder_create(out);
    return status < 0 ? fail(status, "--out=%s: %s: give a folder that can be written", out, status_message()) : status;
}

/* The lock ends with the run, however that ends; where the file system has none, nothing is locked. O_NONBLOCK: a pipe
 * that nobody reads fails instead of waiting. */
static enum status open_log(const char *folder, FILE **log)
{
    struct text path = {0};
    int fd = open(file_in(folder, "metrics.jsonl", &path), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    *log = fd >= 0 && fcntl(fd, F_SETFL, 0) == 0 ? fdopen(fd, "w") : NULL;
    enum status status = STATUS_OK;
    if (*log == NULL) {
        status = fail(STATUS_IO, "open %s: %s: give an --out=FOLDER that can be written", text_string(&path),
                      strerror(errno));
        if (fd >= 0)
            (void)close(fd);
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        status = fail(STATUS_REFUSED, "--out=%s: another run is writing there: give another folder", folder);
    } else {
        status = holds_no_run(folder); /* one that has ended since we looked */
    }
    text_release(&path);
    return status;
}

enum status run_folder(const char *out, struct text *folder, FILE **log)
{
    *log = NULL;
    TRY(out != NULL ? named_folder(out, folder) : fresh_folder(folder));
    enum status status = open_log(text_string(folder), log);
    if (status < 0 && *log != NULL) {
        (void)fclose(*log);
        *log = NULL;
    }
    return status;
}

/* ---- rows ---- */

struct metrics {
    struct metrics_request request;
    FILE *log;                             /* rank 0; ours */
    struct step_row pending[PENDING_MOST]; /* this worker's */
    size_t pendings, gather_at;
    struct step_row *gathered; /* PENDING_MOST of each worker, in rank order */
    struct step_row *row;      /* of all workers together, from step 0       */
    size_t rows, capacity;
};

enum status metrics_open(const struct metrics_request *request, struct metrics **out)
{
    *out = NULL;
    void *memory = NULL, *gathered = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct metrics)));
    struct metrics *metrics = memory;
    metrics->request = *request;
    metrics->gather_at = request->in_step ? 1 : APART_LEAST;
    enum status status =
        memory_zeroed(&gathered, PENDING_MOST * (size_t)job_size(request->job), sizeof(struct step_row));
    metrics->gathered = gathered;
    if (status < 0) {
        metrics_close(metrics);
        return status;
    }
    metrics->log = request->log;
    *out = metrics;
    return STATUS_OK;
}

void metrics_close(struct metrics *metrics)
{
    if (metrics == NULL)
        return;
    if (metrics->log != NULL)
        (void)fclose(metrics->log); /* every line was flushed and checked */
    free(metrics->gathered);
    free(metrics->row);
    free(metrics);
}

/* Step `i` of what was gathered, over all workers. In rank order: equal bits on all workers. */
static struct step_row combine(const struct metrics *metrics, size_t i)
{
    struct step_row sum = {.loss = 0};
    size_t workers = (size_t)job_size(metrics->request.job);
    for (size_t rank = 0; rank < workers; rank++) {
        const struct step_row *row = &metrics->gathered[rank * metrics->pendings + i];
        sum.loss += row->loss;
        sum.step_s += row->step_s;
        sum.compute_s += row->compute_s;
        sum.comm_s += row->comm_s;
        sum.exposed_s += row->exposed_s;
        sum.bytes = row->bytes > sum.bytes ? row->bytes : sum.bytes;
    }
    double share = 1 / (double)workers;
    return (struct step_row){.loss = sum.loss * share,
                             .step_s = sum.step_s * share,
                             .compute_s = sum.compute_s * share,
                             .comm_s = sum.comm_s * share,
                             .exposed_s = sum.exposed_s * share,
                             .bytes = sum.bytes};
}

static json_t *row_json(const struct metrics *metrics, size_t step, double top1)
{
    const struct step_row *row = &metrics->row[step];
    const struct learning_rate *rate = metrics->request.rate;
    json_t *object =
        json_pack("{sI sI so so so so so so so}", "step", (json_int_t)step, "epoch",
                  (json_int_t)(step / metrics->request.steps_per_epoch), "loss", json_number(row->loss), "lr",
                  json_number(learning_rate_at(rate, step)), "images_per_s",
                  json_number((double)rate->global_batch / row->step_s), "step_ms", json_number(row->step_s * 1e3),
                  "compute_ms", json_number(row->compute_s * 1e3), "comm_ms", json_number(row->comm_s * 1e3),
                  "exposed_ms", json_number(row->exposed_s * 1e3));
    if (object != NULL && isfinite(top1) && json_object_set_new(object, "top1", json_real(top1)) != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static enum status write_row(const struct metrics *metrics, size_t step, double top1)
{
    json_t *object = row_json(metrics, step, top1);
    char *line = object != NULL ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    enum status status = STATUS_OK;
    if (line == NULL)
        status = fail(STATUS_NO_MEMORY, "out of memory: a line of metrics.jsonl");
    else if (fprintf(metrics->log, "%s\n", line) < 0 || fflush(metrics->log) != 0)
        status = fail(STATUS_IO, "write metrics.jsonl: %s", strerror(errno));
    free(line);
    json_decref(object);
    return status;
}

/* How many steps to gather next time, from the latest: the same on all workers, since the rows are. */
static size_t next_gathering(const struct metrics *metrics)
{
    double step_s = metrics->row[metrics->rows - 1].step_s;
    double steps = step_s > 0 ? GATHER_EVERY_S / step_s : PENDING_MOST;
    size_t least = metrics->request.in_step ? 1 : APART_LEAST;
    if (!(steps < PENDING_MOST))
        return PENDING_MOST;
    return steps > (double)least ? (size_t)steps : least;
}

enum status metrics_flush(struct metrics *metrics, double top1)
{
    size_t count = metrics->pendings;
    if (count == 0)
        return STATUS_OK;
    TRY(job_allgather(metrics->request.job, metrics->pending, count * sizeof metrics->pending[0], metrics->gathered));
    void *memory = metrics->row;
    TRY(memory_grow(&memory, &metrics->capacity, metrics->rows + count, sizeof metrics->row[0]));
    metrics->row = memory;
    for (size_t i = 0; i < count; i++) {
        metrics->row[metrics->rows++] = combine(metrics, i);
        if (metrics->log != NULL)
            TRY(write_row(metrics, metrics->rows - 1, i + 1 == count ? top1 : (double)NAN));
    }
    metrics->pendings = 0;
    metrics->gather_at = next_gathering(metrics);
    return STATUS_OK;
}

enum status metrics_add(struct metrics *metrics, const struct step_row *row)
{
    if (metrics->pendings >= metrics->gather_at)
        TRY(metrics_flush(metrics, (double)NAN));
    metrics->pending[metrics->pendings++] = *row;
    return STATUS_OK;
}

const struct step_row *metrics_rows(const struct metrics *metrics, size_t *count)
{
    *count = metrics->rows;
    return metrics->row;
}
