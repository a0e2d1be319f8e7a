/* jobs.c - a board in shared memory says which job is next and what is done; a pipe from each child wakes the caller. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "base/jobs.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"

#define IDLE SIZE_MAX
#define DEATH_BYTES 96

struct board {
    atomic_size_t next;
};

struct child {
    pid_t pid;   /* 0: none             */
    int wake_fd; /* a byte for each job */
};

struct run {
    const struct jobs *jobs;
    struct board *board;
    atomic_size_t *current; /* of each child: the job that it is at, or IDLE */
    atomic_bool *finished;  /* of each job                                   */
    unsigned char *results;
    void *shared;
    size_t shared_bytes;

    struct child *child;
    struct pollfd *poll;
    char (*death)[DEATH_BYTES]; /* of each job, "" as long as it lives */
    size_t told;                /* jobs handed over                    */
};

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static enum status run_create(struct run *run)
{
    const struct jobs *jobs = run->jobs;
    const size_t processes = (size_t)jobs->processes, current = rounded(sizeof(struct board)),
                 finished = current + rounded(processes * sizeof(atomic_size_t)),
                 results = finished + rounded(jobs->count * sizeof(atomic_bool));
    size_t bytes = 0;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, processes, sizeof(struct child)));
    run->child = memory;
    TRY(memory_zeroed(&memory, processes, sizeof(struct pollfd)));
    run->poll = memory;
    TRY(memory_zeroed(&memory, jobs->count, DEATH_BYTES));
    run->death = memory;
    if (!checked_multiply(jobs->count, jobs->result_bytes, &bytes) || !checked_add(bytes, results, &bytes))
        return fail(STATUS_NO_MEMORY, "results of %zu jobs: too many bytes", jobs->count);
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, /* fd */ -1, 0);
    if (memory == MAP_FAILED)
        return fail(STATUS_NO_MEMORY, "%zu bytes of shared memory: %s", bytes, strerror(errno));
    run->shared = memory;
    run->shared_bytes = bytes;
    unsigned char *base = memory;
    run->board = memory;
    run->current = (atomic_size_t *)(void *)(base + current);
    run->finished = (atomic_bool *)(base + finished);
    run->results = base + results;
    return STATUS_OK;
}

static void run_release(struct run *run)
{
    if (run->shared != NULL)
        (void)munmap(run->shared, run->shared_bytes);
    free(run->child);
    free(run->poll);
    free(run->death);
}

/* ---- a child ---- */

_Noreturn static void work(struct run *run, int number, int wake_fd)
{
    const struct jobs *jobs = run->jobs;
    for (;;) {
        const size_t job = atomic_fetch_add(&run->board->next, 1);
        if (job >= jobs->count)
            _exit(0);
        atomic_store(&run->current[number], job);
        jobs->run(jobs->context, job, run->results + job * jobs->result_bytes);
        atomic_store(&run->finished[job], true);
        atomic_store(&run->current[number], IDLE);
        if (write(wake_fd, "", 1) != 1) /* nobody is waiting any more */
            _exit(1);
    }
}

static enum status spawn(struct run *run, int number)
{
    int ends[2];
    if (pipe(ends) != 0)
        return fail(STATUS_IO, "pipe: %s", strerror(errno));
    atomic_store(&run->current[number], IDLE);
    const pid_t pid = fork();
    if (pid < 0) {
        const int error = errno;
        (void)close(ends[0]);
        (void)close(ends[1]);
        return fail(STATUS_IO, "fork: %s", strerror(error));
    }
    if (pid == 0) {
        (void)close(ends[0]);
        work(run, number, ends[1]);
    }
    (void)close(ends[1]);
    run->child[number] = (struct child){.pid = pid, .wake_fd = ends[0]};
    return STATUS_OK;
}

/* ---- the caller ---- */

/* The child is gone: what it was at has failed, and another takes its place while there is work. */
static enum status bury(struct run *run, int number)
{
    struct child *child = &run->child[number];
    const size_t job = atomic_load(&run->current[number]);
    int how = 0;
    (void)close(child->wake_fd);
    while (waitpid(child->pid, &how, 0) < 0 && errno == EINTR)
        ;
    child->pid = 0;
    if (job == IDLE)
        return STATUS_OK;
    if (WIFSIGNALED(how))
        (void)snprintf(run->death[job], DEATH_BYTES, "signal %d (%s)", WTERMSIG(how), strsignal(WTERMSIG(how)));
    else
        (void)snprintf(run->death[job], DEATH_BYTES, "exit %d", WEXITSTATUS(how));
    return spawn(run, number);
}

static enum status hand_over(struct run *run)
{
    const struct jobs *jobs = run->jobs;
    for (; run->told < jobs->count; run->told++) {
        const char *death = run->death[run->told];
        if (death[0] == '\0' && !atomic_load(&run->finished[run->told]))
            break;
        TRY(jobs->done(jobs->context, run->told, run->results + run->told * jobs->result_bytes,
                       death[0] != '\0' ? death : NULL));
    }
    return STATUS_OK;
}

/* Wait until some child says something; bury those that are gone. */
static enum status listen_once(struct run *run, bool *alive)
{
    const int processes = run->jobs->processes;
    char bytes[256];
    *alive = false;
    for (int i = 0; i < processes; i++) {
        run->poll[i] = (struct pollfd){.fd = run->child[i].pid != 0 ? run->child[i].wake_fd : -1, .events = POLLIN};
        *alive |= run->child[i].pid != 0;
    }
    if (!*alive)
        return STATUS_OK;
    if (poll(run->poll, (nfds_t)processes, -1) < 0)
        return errno == EINTR ? STATUS_OK : fail(STATUS_IO, "poll: %s", strerror(errno));
    for (int i = 0; i < processes; i++)
        if (run->poll[i].revents != 0 && read(run->child[i].wake_fd, bytes, sizeof bytes) == 0)
            TRY(bury(run, i));
    return hand_over(run);
}

static void end_all(struct run *run)
{
    for (int i = 0; run->child != NULL && i < run->jobs->processes; i++)
        if (run->child[i].pid != 0) {
            (void)kill(run->child[i].pid, SIGKILL);
            (void)close(run->child[i].wake_fd);
            while (waitpid(run->child[i].pid, NULL, 0) < 0 && errno == EINTR)
                ;
        }
}

enum status jobs_run(const struct jobs *jobs)
{
    enum status status = STATUS_OK;
    struct run run = {.jobs = jobs};
    bool alive = true;
    if (jobs->count == 0)
        return STATUS_OK;
    TRY_TO(done, run_create(&run));
    for (int i = 0; i < jobs->processes && (size_t)i < jobs->count; i++)
        TRY_TO(done, spawn(&run, i));
    while (alive)
        TRY_TO(done, listen_once(&run, &alive));
    for (size_t job = run.told; job < jobs->count; job++) /* whoever took it was ended before it could say so */
        if (!atomic_load(&run.finished[job]) && run.death[job][0] == '\0')
            (void)snprintf(run.death[job], DEATH_BYTES, "its process was ended");
    TRY_TO(done, hand_over(&run));
done:
    end_all(&run);
    run_release(&run);
    return status;
}
