/* spawn.c - fork, exec, and what lies between them. */
#define _GNU_SOURCE /* execvpe, pipe2 */
#include "comm/bootstrap/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"

/* --- environment --- */

static const char *const replaced[] = {
    "RANK=",        "WORLD_SIZE=",      "LOCAL_RANK=",    "LOCAL_WORLD_SIZE=", "MASTER_ADDR=",
    "MASTER_PORT=", "CHORALE_CONTROL=", "CHORALE_TOKEN=", "CHORALE_DEADLINE=", "IPATH_NO_BACKTRACE="};
enum { REPLACED = sizeof replaced / sizeof replaced[0] };

static int is_replaced(const char *variable)
{
    for (size_t i = 0; i < REPLACED; i++) {
        if (strncmp(variable, replaced[i], strlen(replaced[i])) == 0)
            return 1;
    }
    return 0;
}

void environment_release(char **environment)
{
    if (environment == NULL)
        return;
    for (size_t i = 0; environment[i] != NULL; i++)
        free(environment[i]);
    free(environment);
}

/* The values in the order of `replaced`, each as "NAME=value". */
static enum status add_place(const struct spawn_place *place, char **list)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < REPLACED && status == STATUS_OK; i++) {
        struct text text = {.length = 0};
        text_add(&text, replaced[i]);
        switch (i) {
        case 0: /* RANK */
        case 2: /* LOCAL_RANK: all workers are on this host */
            text_addf(&text, "%d", place->rank);
            break;
        case 1: /* WORLD_SIZE */
        case 3: /* LOCAL_WORLD_SIZE */
            text_addf(&text, "%d", place->size);
            break;
        case 4:
            text_add(&text, "127.0.0.1");
            break;
        case 5:
            text_addf(&text, "%d", place->master_port);
            break;
        case 6:
            text_addf(&text, "127.0.0.1:%d", place->control_port);
            break;
        case 7:
            text_add(&text, place->token);
            break;
        case 8:
            text_add_fixed(&text, place->deadline, 6);
            break;
        default: /* IPATH_NO_BACKTRACE: libfabric's psm library would take over the signal handlers */
            text_add(&text, "1");
            break;
        }
        status = text_check(&text);
        if (status == STATUS_OK)
            status = memory_string(&list[i], text.data);
        text_release(&text);
    }
    return status;
}

enum status environment_build(const struct spawn_place *place, char ***out)
{
    extern char **environ;
    size_t count = 0;
    void *memory = NULL;
    while (environ != NULL && environ[count] != NULL)
        count++;
    TRY(memory_zeroed(&memory, count + REPLACED + 1, sizeof(char *)));
    char **list = memory;
    enum status status = add_place(place, list);
    size_t used = REPLACED;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        if (!is_replaced(environ[i]))
            status = memory_string(&list[used++], environ[i]);
    }
    if (status != STATUS_OK) {
        environment_release(list);
        return status;
    }
    *out = list;
    return STATUS_OK;
}

/* --- the child, between fork and exec: async-signal-safe calls only --- */

static int place_descriptor(int from, int to)
{
    if (from == to)
        return fcntl(to, F_SETFD, 0); /* dup2() would leave it close-on-exec */
    return dup2(from, to) < 0 ? -1 : 0;
}

static void default_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    for (int number = 1; number < NSIG; number++)
        (void)sigaction(number, &action, NULL); /* SIGKILL, SIGSTOP and the C library's own refuse: they are default */
}

/* Becomes the worker, or returns with errno. */
static void child_start(const struct spawn_request *request, pid_t launcher)
{
    if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0)
        return;
    if (getppid() != launcher) /* it died before the line above */
        _exit(1);
    default_signals();
    if (place_descriptor(request->in, 0) != 0 || place_descriptor(request->out, 1) != 0 ||
        place_descriptor(request->err, 2) != 0)
        return;
    if (setrlimit(RLIMIT_NOFILE, request->files) != 0 || sigprocmask(SIG_SETMASK, request->mask, NULL) != 0)
        return;
    execvpe(request->argv[0], request->argv, request->environment);
}

/* --- the parent --- */

static enum status fork_failed(int error)
{
    struct rlimit limit = {.rlim_cur = 0};
    if (error == EAGAIN && getrlimit(RLIMIT_NPROC, &limit) == 0)
        return fail(STATUS_UNAVAILABLE, "fork: %s: raise the limit on processes (ulimit -u, now %llu) or start fewer",
                    strerror(error), (unsigned long long)limit.rlim_cur);
    return fail(STATUS_UNAVAILABLE, "fork: %s", strerror(error));
}

static enum status exec_failed(const char *command, int error)
{
    if (error == ENOENT || error == EACCES || error == ENOTDIR || error == ENOEXEC)
        return fail(STATUS_USAGE, "start %.200s: %s: check the name and PATH", command, strerror(error));
    return fail(STATUS_IO, "start %.200s: %s", command, strerror(error));
}

/* The child's errno, 0 when the exec has closed the pipe. */
static int exec_error(int pipe)
{
    int error = 0;
    ssize_t count;
    do {
        count = read(pipe, &error, sizeof error);
    } while (count < 0 && errno == EINTR);
    return count == (ssize_t)sizeof error ? error : 0;
}

enum status spawn_worker(const struct spawn_request *request, pid_t *out)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0)
        return fail(STATUS_UNAVAILABLE, "pipe: %s", strerror(errno));
    pid_t launcher = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        child_start(request, launcher);
        int error = errno;
        while (write(report[1], &error, sizeof error) < 0 && errno == EINTR)
            ;
        _exit(127);
    }
    int error = errno;
    close(report[1]);
    if (pid < 0) {
        close(report[0]);
        return fork_failed(error);
    }
    (void)setpgid(pid, pid); /* whoever is first, child or parent; after the exec it is refused and not needed */
    error = exec_error(report[0]);
    close(report[0]);
    if (error != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        return exec_failed(request->argv[0], error);
    }
    *out = pid;
    return STATUS_OK;
}
