/* support_launch.c - for tests of job and launcher. */
#include "support_launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

bool folder_make(char folder[FOLDER_BYTES])
{
    (void)snprintf(folder, FOLDER_BYTES, "/tmp/chorale-test-XXXXXX");
    return mkdtemp(folder) != NULL;
}

void folder_path(const char *folder, const char *name, char *path, size_t size)
{
    (void)snprintf(path, size, "%s/%s", folder, name);
}

void folder_remove(const char *folder)
{
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        (void)unlinkat(dirfd(entries), entry->d_name, 0);
    closedir(entries);
    (void)rmdir(folder);
}

bool folder_touch(const char *folder, const char *name)
{
    char path[512];
    folder_path(folder, name, path, sizeof path);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    return fd >= 0 && close(fd) == 0;
}

static long read_number(const char *path)
{
    char text[32] = "";
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    const char *line = fgets(text, sizeof text, file);
    (void)fclose(file);
    return line != NULL ? strtol(line, NULL, 10) : -1;
}

long folder_number(const char *folder, int rank, const char *suffix)
{
    char name[64], path[512];
    (void)snprintf(name, sizeof name, "%d%s", rank, suffix);
    folder_path(folder, name, path, sizeof path);
    long number = -1;
    for (uint64_t deadline = deadline_after(30); number < 0 && !deadline_passed(deadline);) {
        number = read_number(path);
        if (number < 0)
            clock_sleep_ns(2000000);
    }
    return number;
}

/* Signals are not ignored or blocked, as nohup and shells leave them; when the test ends, so does the job. */
static bool begin_afresh(pid_t test)
{
    sigset_t none;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    for (int number = 1; number < 32; number++)
        (void)sigaction(number, &action, NULL);
    sigemptyset(&none);
    return sigprocmask(SIG_SETMASK, &none, NULL) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 &&
           getppid() == test;
}

bool background_start(struct background *background, const struct launch_request *request)
{
    const pid_t test = getpid();
    int ends[2];
    if (pipe(ends) != 0)
        return false;
    (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    (void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    background->pid = fork();
    if (background->pid == 0) {
        struct outcome outcome;
        if (background->unwanted > 0)
            close(background->unwanted);
        if (!begin_afresh(test))
            _exit(98);
        memset(&outcome, 0, sizeof outcome);
        outcome.status = launch_local(request, &outcome.result);
        (void)snprintf(outcome.why, sizeof outcome.why, "%s", status_message());
        _exit(write(ends[1], &outcome, sizeof outcome) == (ssize_t)sizeof outcome ? 0 : 99);
    }
    close(ends[1]);
    background->pipe = ends[0];
    return background->pid > 0;
}

bool background_wait(struct background *background, struct outcome *outcome)
{
    size_t have = 0;
    while (have < sizeof *outcome) {
        ssize_t count = read(background->pipe, (char *)outcome + have, sizeof *outcome - have);
        if (count == 0 || (count < 0 && errno != EINTR))
            break;
        have += count > 0 ? (size_t)count : 0;
    }
    close(background->pipe);
    while (waitpid(background->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return have == sizeof *outcome;
}

bool process_gone(long pid)
{
    char path[64], line[512] = "";
    (void)snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return true;
    const char *end = fgets(line, sizeof line, file) != NULL ? strrchr(line, ')') : NULL;
    (void)fclose(file);
    return end == NULL || end[2] == 'Z' || end[2] == 'X';
}

double processes_gone_after(const long *pids, int count, double limit)
{
    double start = clock_seconds();
    for (int i = 0; i < count;) {
        if (process_gone(pids[i])) {
            i++;
            continue;
        }
        if (clock_seconds() - start > limit)
            break;
        clock_sleep_ns(1000000);
    }
    return clock_seconds() - start;
}

bool leftover_exists(long pid)
{
    char path[128];
    (void)snprintf(path, sizeof path, "/dev/shm/%ld:%lu:0", pid, (unsigned long)getuid());
    return access(path, F_OK) == 0;
}

int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL)
        return -1;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}
