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
#include "nn/checkpoint.h"

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

/* What a run leaves; checkpoints may be alone where it was killed while it took its earlier rows over. */
static bool holds_run(const char *folder, struct text *path)
{
    uint64_t *steps = NULL;
    size_t checkpoints = 0;
    if (has_content(file_in(folder, "summary.json", path)) || has_content(file_in(folder, "metrics.jsonl", path)))
        return true;
    if (checkpoint_list(folder, &steps, &checkpoints) < 0 || checkpoints == 0)
        return false;
    text_clear(path);
    checkpoint_path(folder, steps[0], -1, path);
    free(steps);
    return true;
}

static enum status holds_no_run(const char *folder)
{
    struct text path = {0};
    enum status status = STATUS_OK;
    if (holds_run(folder, &path))
        status =
            fail(STATUS_REFUSED, "--out=%s: it holds a run (%s): give another folder, or --resume to go on with it",
                 folder, text_string(&path));
    text_release(&path);
    return status;
}

static enum status named_folder(const char *out, bool resume, struct text *folder)
{
    text_add(folder, out);
    TRY(text_check(folder));
    if (!resume)
        TRY(holds_no_run(out));
    enum status status = folder_create(out);
    return status < 0 ? fail(status, "--out=%s: %s: give a folder that can be written", out, status_message()) : status;
}

/* The lock ends with the run, however that ends; where the file system has none, nothing is locked. O_NONBLOCK: a pipe
 * that nobody reads fails instead of waiting. */
static enum status open_log(const char *folder, bool resume, FILE **log)
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
    } else if (setvbuf(*log, NULL, _IONBF, 0) != 0) {
        status = fail(STATUS_IO, "open %s: it can't be written line by line", text_string(&path));
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        status = fail(STATUS_REFUSED, "--out=%s: another run is writing there: give another folder", folder);
    } else if (!resume) {
        status = holds_no_run(folder); /* one that has ended since we looked */
    }
    text_release(&path);
    return status;
}

enum status run_folder(const char *out, bool resume, struct text *folder, FILE **log)
{
    *log = NULL;
    TRY(out != NULL ? named_folder(out, resume, folder) : fresh_folder(folder));
    enum status status = open_log(text_string(folder), resume, log);
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
    size_t written; /* lines */
};

static enum status write_rows(struct metrics *metrics, size_t end);

/* In place: the lock is that of the file. */
static enum status take_rows(struct metrics *metrics)
{
    const struct metrics_request *request = &metrics->request;
    void *memory = NULL;
    TRY(memory_grow(&memory, &metrics->capacity, request->count > 0 ? request->count : 1, sizeof metrics->row[0]));
    metrics->row = memory;
    if (request->count > 0)
        memcpy(metrics->row, request->rows, request->count * sizeof metrics->row[0]);
    metrics->rows = request->count;
    metrics->request.rows = NULL;
    if (metrics->log == NULL)
        return STATUS_OK;
    if (ftruncate(fileno(metrics->log), 0) != 0 && errno != EINVAL) /* a pipe has no length */
        return fail(STATUS_IO, "write metrics.jsonl: %s", strerror(errno));
    return metrics->rows > 0 ? write_rows(metrics, metrics->rows - 1) : STATUS_OK;
}

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
    metrics->log = request->log;
    if (status >= 0)
        status = take_rows(metrics);
    if (status < 0) {
        metrics->log = NULL; /* still the caller's */
        metrics_close(metrics);
        return status;
    }
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
    const size_t workers = (size_t)job_size(metrics->request.job);
    const struct step_row *own = &metrics->gathered[i];
    struct step_row sum = {.epoch = own->epoch, .rate = own->rate, .shares = {NAN, NAN, NAN, NAN}};
    double losses = 0;
    bool even = true;
    for (size_t rank = 0; rank < workers; rank++) {
        const struct step_row *row = &metrics->gathered[rank * metrics->pendings + i];
        even = even && row->images == own->images;
        losses += row->loss;
        sum.loss += row->images > 0 ? row->images * row->loss : 0;
        sum.images += row->images;
        sum.step_s += row->step_s;
        sum.compute_s += row->compute_s;
        sum.comm_s += row->comm_s;
        sum.exposed_s += row->exposed_s;
        sum.bytes = row->bytes > sum.bytes ? row->bytes : sum.bytes;
    }
    const double share = 1 / (double)workers;
    sum.loss = even ? losses * share : sum.loss / sum.images;
    sum.step_s *= share;
    sum.compute_s *= share;
    sum.comm_s *= share;
    sum.exposed_s *= share;
    return sum;
}

static bool add_share(json_t *object, const char *key, double value)
{
    return !isfinite(value) || json_object_set_new(object, key, json_real(value)) == 0;
}

static json_t *row_json(const struct metrics *metrics, size_t step)
{
    const struct step_row *row = &metrics->row[step];
    json_t *object =
        json_pack("{sI sI so so sI so so so so so}", "step", (json_int_t)step, "epoch", (json_int_t)row->epoch, "loss",
                  json_number(row->loss), "lr", json_number(row->rate), "images", (json_int_t)row->images,
                  "images_per_s", json_number(row->images / row->step_s), "step_ms", json_number(row->step_s * 1e3),
                  "compute_ms", json_number(row->compute_s * 1e3), "comm_ms", json_number(row->comm_s * 1e3),
                  "exposed_ms", json_number(row->exposed_s * 1e3));
    const struct shares *shares = &row->shares;
    if (object != NULL &&
        (!add_share(object, "top1", shares->top1) || !add_share(object, "top5", shares->top5) ||
         !add_share(object, "top1_average", shares->average) || !add_share(object, "top5_average", shares->five))) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* Lines are whole: of one that the disk has no room for, nothing stays. */
static enum status write_line(FILE *log, const struct text *line)
{
    const int fd = fileno(log);
    const off_t before = lseek(fd, 0, SEEK_CUR); /* a pipe has none */
    if (fwrite(line->data, 1, line->length, log) == line->length)
        return STATUS_OK;
    const enum status status = fail(STATUS_IO, "write metrics.jsonl: %s", strerror(errno));
    if (before >= 0 && ftruncate(fd, before) == 0)
        (void)lseek(fd, before, SEEK_SET);
    return status;
}

static enum status write_row(const struct metrics *metrics, size_t step)
{
    struct text line = {0};
    json_t *object = row_json(metrics, step);
    char *dump = object != NULL ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    if (dump != NULL)
        text_addf(&line, "%s\n", dump);
    enum status status = dump == NULL || line.failed ? fail(STATUS_NO_MEMORY, "out of memory: a line of metrics.jsonl")
                                                     : write_line(metrics->log, &line);
    text_release(&line);
    free(dump);
    json_decref(object);
    return status;
}

static enum status write_rows(struct metrics *metrics, size_t end)
{
    for (; metrics->log != NULL && metrics->written < end; metrics->written++)
        TRY(write_row(metrics, metrics->written));
    return STATUS_OK;
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

enum status metrics_gather(struct metrics *metrics)
{
    const size_t count = metrics->pendings;
    if (count == 0)
        return STATUS_OK;
    TRY(job_allgather(metrics->request.job, metrics->pending, count * sizeof metrics->pending[0], metrics->gathered));
    void *memory = metrics->row;
    TRY(memory_grow(&memory, &metrics->capacity, metrics->rows + count, sizeof metrics->row[0]));
    metrics->row = memory;
    for (size_t i = 0; i < count; i++)
        metrics->row[metrics->rows++] = combine(metrics, i);
    metrics->pendings = 0;
    metrics->gather_at = next_gathering(metrics);
    return write_rows(metrics, metrics->rows - 1);
}

enum status metrics_flush(struct metrics *metrics, const struct shares *shares)
{
    TRY(metrics_gather(metrics));
    if (metrics->rows > 0 && shares != NULL)
        metrics->row[metrics->rows - 1].shares = *shares;
    return write_rows(metrics, metrics->rows);
}

enum status metrics_add(struct metrics *metrics, const struct step_row *row)
{
    if (metrics->pendings >= metrics->gather_at)
        TRY(metrics_flush(metrics, NULL));
    metrics->pending[metrics->pendings++] = *row;
    return STATUS_OK;
}

const struct step_row *metrics_rows(const struct metrics *metrics, size_t *count)
{
    *count = metrics->rows;
    return metrics->row;
}
