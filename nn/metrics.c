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
#include <zlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/rng.h"
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
static enum status holds_no_run(const char *folder)
{
    struct text path = {0};
    uint64_t *steps = NULL;
    size_t checkpoints = 0;
    enum status status = STATUS_OK;
    if (checkpoint_list(folder, &steps, &checkpoints) < 0)
        checkpoints = 0; /* whoever makes the folder says why */
    if (checkpoints > 0) {
        checkpoint_path(folder, steps[0], -1, &path);
        status =
            fail(STATUS_REFUSED,
                 "--out=%s: it holds a run that was kept after step %llu (%s): add --resume to go on with it, or give "
                 "another folder",
                 folder, (unsigned long long)steps[0], text_string(&path));
    } else if (has_content(file_in(folder, "summary.json", &path))) {
        status = fail(STATUS_REFUSED, "--out=%s: it holds a run that has ended (%s): give another folder", folder,
                      text_string(&path));
    } else if (has_content(file_in(folder, "metrics.jsonl", &path))) {
        status = fail(STATUS_REFUSED,
                      "--out=%s: it holds a run (%s) that ended before its first checkpoint: give another folder, or "
                      "--resume to begin it anew",
                      folder, text_string(&path));
    }
    free(steps);
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

/* In a checkpoint, and after it the times: as many as timed, but at most METRICS_TIMES. */
struct kept {
    struct metrics_totals totals;
    double lines_bytes, lines_crc32; /* of metrics.jsonl so far */
    double holds;                    /* 1: the line of the latest step is not in it yet */
    struct step_row latest;
};

struct metrics {
    struct metrics_request request;
    FILE *log;                             /* rank 0; ours */
    struct step_row pending[PENDING_MOST]; /* this worker's */
    size_t pendings, gather_at;
    struct step_row *gathered; /* PENDING_MOST of each worker, in rank order */
    struct metrics_totals totals;
    double *time; /* drawn from the timed steps */
    size_t times, capacity;
    uint64_t key;
    bool holds; /* `latest` has no line yet */
    struct step_row latest;
    uint64_t lines_bytes; /* rank 0: of metrics.jsonl */
    uint32_t lines_crc32;
    bool lost_lines;
};

static size_t times_of(double timed)
{
    return timed < METRICS_TIMES ? (size_t)timed : METRICS_TIMES;
}

static bool is_count(double value, double most)
{
    return value >= 0 && value <= most && value == floor(value);
}

bool metrics_kept_is_good(const void *bytes, size_t length, uint64_t steps)
{
    struct kept kept;
    if (length < sizeof kept)
        return false;
    memcpy(&kept, bytes, sizeof kept);
    const struct metrics_totals *totals = &kept.totals;
    const double sums[] = {totals->images, totals->step_s,    totals->compute_s,
                           totals->comm_s, totals->exposed_s, totals->bytes};
    for (size_t k = 0; k < sizeof sums / sizeof sums[0]; k++)
        if (!isfinite(sums[k]))
            return false;
    return is_count(totals->steps, (double)steps) && totals->steps == (double)steps &&
           is_count(totals->timed, totals->steps) && is_count(totals->timed_from, 1e18) &&
           is_count(kept.lines_bytes, 1e15) && is_count(kept.lines_crc32, UINT32_MAX) && is_count(kept.holds, 1) &&
           length == sizeof kept + times_of(totals->timed) * sizeof(double);
}

/* ---- the lines of the steps before ---- */

/* The first bytes of `from`, which are to have that checksum, to the log; `to` < 0: they are there. *same: they are. */
static enum status take_bytes(int from, int to, const struct metrics *metrics, bool *same)
{
    enum { PIECE = 1 << 16 };
    char piece[PIECE];
    uint32_t crc = 0;
    *same = false;
    for (uint64_t done = 0; done < metrics->lines_bytes;) {
        const uint64_t left = metrics->lines_bytes - done;
        const ssize_t got = pread(from, piece, left < PIECE ? (size_t)left : PIECE, (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return STATUS_OK;
        crc = (uint32_t)crc32_z(crc, (const unsigned char *)piece, (size_t)got);
        if (to >= 0 && write(to, piece, (size_t)got) != got)
            return fail(STATUS_IO, "write metrics.jsonl: %s", strerror(errno));
        done += (uint64_t)got;
    }
    *same = crc == metrics->lines_crc32;
    return STATUS_OK;
}

static enum status cut_log(const struct metrics *metrics, uint64_t bytes)
{
    const int fd = fileno(metrics->log);
    if (ftruncate(fd, (off_t)bytes) != 0 && errno != EINVAL) /* a pipe has no length */
        return fail(STATUS_IO, "write metrics.jsonl: %s", strerror(errno));
    (void)lseek(fd, (off_t)bytes, SEEK_SET);
    return STATUS_OK;
}

/* In place, since the lock is that of the file, or from the folder of the earlier run. */
static enum status take_lines(struct metrics *metrics)
{
    struct text path = {0};
    struct stat ours, theirs;
    bool same = false;
    enum status status = STATUS_OK;
    const int log = fileno(metrics->log);
    const int from = open(file_in(metrics->request.kept_in, "metrics.jsonl", &path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (from >= 0 && fstat(from, &theirs) == 0 && S_ISREG(theirs.st_mode) && fstat(log, &ours) == 0) {
        const bool here = ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
        if (!here)
            status = cut_log(metrics, 0);
        if (status >= 0)
            status = take_bytes(from, here ? -1 : log, metrics, &same);
    }
    if (from >= 0)
        (void)close(from);
    text_release(&path);
    TRY(status);
    if (!same) {
        metrics->lost_lines = metrics->lines_bytes > 0;
        metrics->lines_bytes = metrics->lines_crc32 = 0;
    }
    return cut_log(metrics, metrics->lines_bytes);
}

static enum status take_kept(struct metrics *metrics)
{
    const struct metrics_request *request = &metrics->request;
    struct kept kept;
    void *memory = NULL;
    memcpy(&kept, request->kept, sizeof kept);
    metrics->totals = kept.totals;
    metrics->latest = kept.latest;
    metrics->holds = kept.holds > 0;
    metrics->lines_bytes = (uint64_t)kept.lines_bytes;
    metrics->lines_crc32 = (uint32_t)kept.lines_crc32;
    metrics->times = times_of(kept.totals.timed);
    TRY(memory_grow(&memory, &metrics->capacity, metrics->times + 1, sizeof(double)));
    metrics->time = memory;
    if (metrics->times > 0)
        memcpy(metrics->time, (const char *)request->kept + sizeof kept, metrics->times * sizeof(double));
    return STATUS_OK;
}

/* Times count anew where none of those before is wanted: of other workers. */
static void begin_times(struct metrics *metrics)
{
    struct metrics_totals *totals = &metrics->totals;
    const double from = (double)metrics->request.timed_from;
    if (from < totals->steps)
        return;
    totals->timed_from = from;
    totals->timed = totals->images = totals->bytes = 0;
    totals->step_s = totals->compute_s = totals->comm_s = totals->exposed_s = 0;
    metrics->times = 0;
}

static enum status begin_rows(struct metrics *metrics)
{
    if (metrics->request.kept != NULL)
        TRY(take_kept(metrics));
    begin_times(metrics);
    if (metrics->log == NULL)
        return STATUS_OK;
    return metrics->request.kept != NULL ? take_lines(metrics) : cut_log(metrics, 0);
}

enum status metrics_open(const struct metrics_request *request, struct metrics **out)
{
    *out = NULL;
    void *memory = NULL, *gathered = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct metrics)));
    struct metrics *metrics = memory;
    metrics->request = *request;
    metrics->gather_at = request->in_step ? 1 : APART_LEAST;
    metrics->key = rng_key(0, "times of steps", 0, 0);
    enum status status =
        memory_zeroed(&gathered, PENDING_MOST * (size_t)job_size(request->job), sizeof(struct step_row));
    metrics->gathered = gathered;
    metrics->log = request->log;
    if (status >= 0)
        status = begin_rows(metrics);
    metrics->request.kept = metrics->request.kept_in = NULL; /* the caller's */
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
    free(metrics->time);
    free(metrics);
}

/* ---- steps ---- */

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

static json_t *row_json(const struct step_row *row, uint64_t step)
{
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

/* The line of the latest step, which may have shares by now. */
static enum status write_latest(struct metrics *metrics)
{
    struct text line = {0};
    if (!metrics->holds)
        return STATUS_OK;
    metrics->holds = false;
    if (metrics->log == NULL)
        return STATUS_OK;
    json_t *object = row_json(&metrics->latest, (uint64_t)metrics->totals.steps - 1);
    char *dump = object != NULL ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    if (dump != NULL)
        text_addf(&line, "%s\n", dump);
    enum status status = dump == NULL || line.failed ? fail(STATUS_NO_MEMORY, "out of memory: a line of metrics.jsonl")
                                                     : write_line(metrics->log, &line);
    if (status >= 0) {
        metrics->lines_bytes += line.length;
        metrics->lines_crc32 = (uint32_t)crc32_z(metrics->lines_crc32, (const unsigned char *)line.data, line.length);
    }
    text_release(&line);
    free(dump);
    json_decref(object);
    return status;
}

/* Each of the timed steps is among those that are drawn with the same probability. */
static enum status draw_time(struct metrics *metrics, double step_s)
{
    const uint64_t number = (uint64_t)metrics->totals.timed;
    void *memory = metrics->time;
    if (number >= METRICS_TIMES) {
        const uint64_t place = rng_below(metrics->key, number, number + 1);
        if (place < METRICS_TIMES)
            metrics->time[place] = step_s;
        return STATUS_OK;
    }
    TRY(memory_grow(&memory, &metrics->capacity, metrics->times + 1, sizeof(double)));
    metrics->time = memory;
    metrics->time[metrics->times++] = step_s;
    return STATUS_OK;
}

/* The next step, of all workers together. */
static enum status take_row(struct metrics *metrics, const struct step_row *row)
{
    struct metrics_totals *totals = &metrics->totals;
    const double step = totals->steps;
    TRY(write_latest(metrics));
    if (step < METRICS_LOSSES)
        totals->first[(size_t)step] = row->loss;
    totals->last[(uint64_t)step % METRICS_LOSSES] = row->loss;
    if (step >= totals->timed_from) {
        TRY(draw_time(metrics, row->step_s));
        totals->timed++;
        totals->images += row->images;
        totals->step_s += row->step_s;
        totals->compute_s += row->compute_s;
        totals->comm_s += row->comm_s;
        totals->exposed_s += row->exposed_s;
        totals->bytes += row->bytes;
    }
    totals->steps++;
    metrics->latest = *row;
    metrics->holds = true;
    return STATUS_OK;
}

/* How many steps to gather next time, from the latest: the same on all workers, since the rows are. */
static size_t next_gathering(const struct metrics *metrics)
{
    double step_s = metrics->latest.step_s;
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
    for (size_t i = 0; i < count; i++) {
        const struct step_row row = combine(metrics, i);
        TRY(take_row(metrics, &row));
    }
    metrics->pendings = 0;
    metrics->gather_at = next_gathering(metrics);
    return STATUS_OK;
}

enum status metrics_flush(struct metrics *metrics, const struct shares *shares)
{
    TRY(metrics_gather(metrics));
    if (metrics->holds && shares != NULL)
        metrics->latest.shares = *shares;
    return write_latest(metrics);
}

enum status metrics_add(struct metrics *metrics, const struct step_row *row)
{
    if (metrics->pendings >= metrics->gather_at)
        TRY(metrics_flush(metrics, NULL));
    metrics->pending[metrics->pendings++] = *row;
    return STATUS_OK;
}

/* ---- what they come to ---- */

const struct metrics_totals *metrics_totals(const struct metrics *metrics)
{
    return &metrics->totals;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum status metrics_times(const struct metrics *metrics, double **sorted, size_t *count)
{
    void *memory = NULL;
    *sorted = NULL;
    *count = metrics->times;
    TRY(memory_zeroed(&memory, metrics->times, sizeof(double)));
    if (metrics->times > 0) {
        memcpy(memory, metrics->time, metrics->times * sizeof(double));
        qsort(memory, metrics->times, sizeof(double), by_value);
    }
    *sorted = memory;
    return STATUS_OK;
}

enum status metrics_keep(struct metrics *metrics, void **out, size_t *bytes)
{
    const struct kept kept = {.totals = metrics->totals,
                              .lines_bytes = (double)metrics->lines_bytes,
                              .lines_crc32 = (double)metrics->lines_crc32,
                              .holds = metrics->holds,
                              .latest = metrics->latest};
    void *memory = NULL;
    *out = NULL;
    if (metrics->log != NULL && fsync(fileno(metrics->log)) != 0 && errno != EINVAL)
        return fail(STATUS_IO, "write metrics.jsonl: %s", strerror(errno));
    *bytes = sizeof kept + metrics->times * sizeof(double);
    TRY(memory_zeroed(&memory, *bytes, 1));
    memcpy(memory, &kept, sizeof kept);
    if (metrics->times > 0)
        memcpy((char *)memory + sizeof kept, metrics->time, metrics->times * sizeof(double));
    *out = memory;
    return STATUS_OK;
}

bool metrics_lost_lines(const struct metrics *metrics)
{
    return metrics->lost_lines;
}
