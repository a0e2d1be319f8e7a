/* worker_job.c - the program that the tests of job and launcher start: worker_job MODE FOLDER [ARGUMENT].
 *
 * Each worker writes FOLDER/RANK (its process number) when it has joined, so that a test can pick its victim.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/job.h"

enum { MOST_WORKERS = 32 };

struct worker {
    struct job *job;
    const char *folder;
    const char *argument;
};

/* What every chorale program does when the job fails: clean up, speak if asked to, end. */
static void job_failed(void *context, enum status status, const char *message, bool speak)
{
    const char *mode = context;
    if (strcmp(mode, "stubborn") == 0)
        return;
    job_remove_leftovers(getpid());
    if (speak)
        (void)fprintf(stderr, "chorale: %s (%s)\n", message, status_name(status));
    _exit(1);
}

static void say_note(void *context, const char *line)
{
    (void)context;
    (void)fprintf(stderr, "note: %s\n", line);
}

static void write_file(const char *path, long number)
{
    FILE *file = fopen(path, "w");
    if (file == NULL || fprintf(file, "%ld\n", number) < 0 || fclose(file) != 0)
        _exit(90);
}

static void note(const struct worker *worker, const char *suffix, long number)
{
    char path[512], final[512];
    (void)snprintf(path, sizeof path, "%s/.%d%s", worker->folder, job_rank(worker->job), suffix);
    (void)snprintf(final, sizeof final, "%s/%d%s", worker->folder, job_rank(worker->job), suffix);
    write_file(path, number);
    if (rename(path, final) != 0)
        _exit(91);
}

/* The shared-memory file that libfabric would have made. */
static void leave_file(void)
{
    char path[128];
    (void)snprintf(path, sizeof path, "/dev/shm/%ld:%lu:0", (long)getpid(), (unsigned long)getuid());
    write_file(path, 0);
}

static enum status gather_once(struct job *job, size_t bytes, unsigned step)
{
    static unsigned char mine[65536], all[MOST_WORKERS * 65536];
    size_t size = (size_t)job_size(job);
    if (size > MOST_WORKERS)
        return fail(STATUS_USAGE, "%zu workers, at most %d", size, MOST_WORKERS);
    memset(mine, (int)((unsigned)job_rank(job) + step) & 0xff, bytes);
    TRY(job_allgather(job, mine, bytes, all));
    for (size_t i = 0; i < size * bytes; i++) {
        if (all[i] != (unsigned char)(i / bytes + step))
            return fail(STATUS_INTERNAL, "byte %zu of step %u is wrong", i, step);
    }
    return STATUS_OK;
}

static enum status mode_happy(struct worker *worker)
{
    const size_t sizes[] = {0, 1, 7, 4096, 65536};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        TRY(gather_once(worker->job, sizes[i], (unsigned)i));
    for (unsigned i = 0; i < 200; i++)
        TRY(job_barrier(worker->job));
    TRY(job_check(worker->job));
    return job_leave(worker->job);
}

static enum status mode_gather(struct worker *worker)
{
    for (unsigned step = 0;; step++)
        TRY(gather_once(worker->job, 512, step));
}

static enum status mode_compute(struct worker *worker)
{
    volatile double value = 1;
    while (worker->job != NULL) /* for ever, without a look at the job */
        value = value * 0.5 + 1;
    return STATUS_OK;
}

static enum status mode_wait(struct worker *worker)
{
    while (worker->job != NULL)
        pause();
    return STATUS_OK;
}

/* Rank 1 ends with the argument as its code, the others wait for it. */
static enum status mode_exit(struct worker *worker)
{
    if (job_rank(worker->job) == 1)
        _exit(atoi(worker->argument)); /* NOLINT(cert-err34-c) */
    return job_barrier(worker->job);
}

static enum status mode_abort(struct worker *worker)
{
    if (job_rank(worker->job) != 1)
        return job_barrier(worker->job);
    if (!job_abort(worker->job, STATUS_IO, "rank 1 on HERE: open data: no such file: make it"))
        _exit(92);
    _exit(5);
}

/* Rank 1 dies; rank 2 says that it has lost it before the launcher can know. */
static enum status mode_rumour(struct worker *worker)
{
    struct job *job = worker->job;
    if (job_rank(job) == 2) {
        (void)job_abort(job, STATUS_PEER_LOST, "rank 2 on HERE: receive from rank 1: connection lost");
        _exit(6);
    }
    if (job_rank(job) == 1) {
        clock_sleep_ns(30000000);
        (void)raise(SIGKILL);
    }
    return job_barrier(job);
}

/* Only a rumour: nobody dies. */
static enum status mode_lost(struct worker *worker)
{
    struct job *job = worker->job;
    if (job_rank(job) == 1 && job_abort(job, STATUS_PEER_LOST, "rank 1 on HERE: rank 0 does not answer"))
        return mode_wait(worker);
    return job_barrier(job);
}

static enum status mode_mismatch(struct worker *worker)
{
    unsigned char mine[8] = {0}, all[64];
    return job_allgather(worker->job, mine, job_rank(worker->job) == 1 ? 8 : 4, all);
}

static enum status mode_leave_early(struct worker *worker)
{
    if (job_rank(worker->job) == 1)
        return job_leave(worker->job);
    return job_barrier(worker->job);
}

/* Rank 1 stops: only a deadline can tell. */
static enum status mode_stop(struct worker *worker)
{
    if (job_rank(worker->job) == 1)
        (void)raise(SIGSTOP);
    return job_barrier(worker->job);
}

/* Rank 1 stops, and nobody waits for it. */
static enum status mode_doze(struct worker *worker)
{
    if (job_rank(worker->job) == 1)
        (void)raise(SIGSTOP);
    return mode_wait(worker);
}

/* Ends, and leaves a child behind that ignores SIGTERM. */
static enum status mode_family(struct worker *worker)
{
    pid_t child = fork();
    if (child == 0) {
        (void)signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    note(worker, ".child", child);
    TRY(job_barrier(worker->job));
    if (worker->argument != NULL)
        return mode_wait(worker);
    return job_leave(worker->job);
}

/* Closes the connection behind the job's back. */
static enum status mode_cut(struct worker *worker)
{
    for (int fd = 3; job_rank(worker->job) == 1 && fd < 64; fd++)
        (void)shutdown(fd, SHUT_WR);
    return mode_wait(worker);
}

static enum status mode_garbage(struct worker *worker)
{
    for (int fd = 3; job_rank(worker->job) == 1 && fd < 64; fd++)
        (void)send(fd, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, MSG_NOSIGNAL);
    return mode_wait(worker);
}

static const struct mode {
    const char *name;
    enum status (*run)(struct worker *worker);
} modes[] = {
    {"happy", mode_happy},       {"gather", mode_gather},     {"compute", mode_compute}, {"wait", mode_wait},
    {"exit", mode_exit},         {"abort", mode_abort},       {"rumour", mode_rumour},   {"lost", mode_lost},
    {"mismatch", mode_mismatch}, {"leave", mode_leave_early}, {"stop", mode_stop},       {"family", mode_family},
    {"cut", mode_cut},           {"garbage", mode_garbage},   {"stubborn", mode_wait},   {"doze", mode_doze}};

static enum status work(const char *mode, struct worker *worker)
{
    const char *deadline = getenv("TEST_DEADLINE");
    struct job_options options = {.deadline = deadline != NULL ? atof(deadline) : 0, /* NOLINT(cert-err34-c) */
                                  .failed = job_failed,
                                  .note = say_note,
                                  .context = (void *)(size_t)mode};
    TRY(job_join(&options, &worker->job));
    if (strcmp(mode, "stubborn") == 0)
        (void)signal(SIGTERM, SIG_IGN);
    /* our launcher removes it in any case; under others only the file of one that is killed is somebody's affair */
    if (getenv("CHORALE_CONTROL") != NULL || strcmp(mode, "wait") == 0)
        leave_file();
    note(worker, "", getpid());
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(mode, modes[i].name) == 0)
            return modes[i].run(worker);
    }
    return fail(STATUS_USAGE, "no mode %s", mode);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    struct worker worker = {.folder = argv[2], .argument = argc > 3 ? argv[3] : NULL};
    enum status status = work(argv[1], &worker);
    if (status != STATUS_OK) {
        job_remove_leftovers(getpid());
        if (worker.job == NULL || !job_abort(worker.job, status, status_message()))
            (void)fprintf(stderr, "worker: %s\n", status_message());
    }
    job_destroy(worker.job);
    return status_exit_code(status);
}
