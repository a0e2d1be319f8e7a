/* test_job.c - a job of one, and environments that are torn. What needs several workers is in test_launch.c. */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/host.h"
#include "comm/job.h"

TestSuite(job, .timeout = 60);

static void environment_clear(void)
{
    const char *const names[] = {"CHORALE_CONTROL", "CHORALE_TOKEN", "CHORALE_DEADLINE", "RANK",
                                 "WORLD_SIZE",      "LOCAL_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        cr_assert_eq(unsetenv(names[i]), 0);
}

static void environment_fill(void)
{
    environment_clear();
    cr_assert_eq(setenv("CHORALE_CONTROL", "127.0.0.1:1", 1), 0);
    cr_assert_eq(setenv("CHORALE_TOKEN", "0123456789abcdef0123456789abcdef", 1), 0);
    cr_assert_eq(setenv("RANK", "1", 1), 0);
    cr_assert_eq(setenv("WORLD_SIZE", "2", 1), 0);
}

/* The number of this process's threads, from /proc/self/status. */
static int threads(void)
{
    char line[256];
    int count = -1;
    FILE *file = fopen("/proc/self/status", "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "Threads:", 8) == 0)
            count = (int)strtol(line + 8, NULL, 10);
    }
    (void)fclose(file);
    return count;
}

Test(job, one_worker_without_a_launcher)
{
    const struct job_options options = {.deadline = 12};
    struct job *job = NULL;
    int mine = 42, all = 0, before = threads();
    environment_clear();
    cr_expect_not(job_is_worker());
    cr_assert_eq(job_join(&options, &job), STATUS_OK, "%s", status_message());
    cr_expect_eq(threads(), before);
    cr_expect_eq(job_rank(job), 0);
    cr_expect_eq(job_size(job), 1);
    cr_expect_eq(job_local_rank(job), 0);
    cr_expect_eq(job_local_size(job), 1);
    cr_expect_eq(job_share_rank(job), 0);
    cr_expect_eq(job_share_size(job), 1);
    cr_expect_eq(job_layout(job)->nodes, 1);
    cr_expect_eq(job_layout(job)->workers, 1);
    cr_expect_eq(job_is_crowded(job), host_cpu_quota() > 0 && host_cpu_quota() < 1);
    cr_expect_gt(strlen(job_host(job)), 0);
    cr_expect_eq(job_deadline(job), 12.0);
    cr_expect_eq(job_allgather(job, &mine, sizeof mine, &all), STATUS_OK);
    cr_expect_eq(all, 42);
    cr_expect_eq(job_barrier(job), STATUS_OK);
    cr_expect_eq(job_check(job), STATUS_OK);
    cr_expect_not(job_abort(job, STATUS_IO, "nobody prints this"));
    cr_expect_eq(job_leave(job), STATUS_OK);
    cr_expect_eq(job_leave(job), STATUS_OK);
    cr_expect_eq(job_barrier(job), STATUS_USAGE);
    job_destroy(job);
    job_destroy(NULL);
}

Test(job, the_deadline_is_30_seconds_unless_something_says_otherwise)
{
    struct job *job = NULL;
    environment_clear();
    cr_assert_eq(job_join(NULL, &job), STATUS_OK);
    cr_expect_eq(job_deadline(job), 30.0);
    job_destroy(job);
    cr_assert_eq(setenv("CHORALE_DEADLINE", "2.5", 1), 0);
    cr_assert_eq(job_join(NULL, &job), STATUS_OK);
    cr_expect_eq(job_deadline(job), 2.5);
    job_destroy(job);
}

Test(job, too_large_a_gather_is_refused)
{
    static char mine[65537], all[65537];
    struct job *job = NULL;
    environment_clear();
    cr_assert_eq(job_join(NULL, &job), STATUS_OK);
    cr_expect_eq(job_allgather(job, mine, sizeof mine, all), STATUS_USAGE);
    cr_expect_eq(job_allgather(job, mine, sizeof mine - 1, all), STATUS_OK);
    job_destroy(job);
}

/* Joining fails with STATUS_USAGE, and the text names the variable. */
static void expect_torn(const char *variable, const char *value)
{
    struct job *job = NULL;
    environment_fill();
    if (value != NULL)
        cr_assert_eq(setenv(variable, value, 1), 0);
    else
        cr_assert_eq(unsetenv(variable), 0);
    cr_expect_eq(job_join(NULL, &job), STATUS_USAGE, "%s=%s", variable, value != NULL ? value : "(unset)");
    cr_expect_not_null(strstr(status_message(), variable), "%s is not in \"%s\"", variable, status_message());
    cr_expect_null(job);
}

Test(job, torn_environments_name_the_variable)
{
    expect_torn("RANK", NULL);
    expect_torn("RANK", "");
    expect_torn("RANK", "one");
    expect_torn("RANK", "1x");
    expect_torn("RANK", "-1");
    expect_torn("RANK", "2");
    expect_torn("RANK", "99999999999999999999");
    expect_torn("WORLD_SIZE", NULL);
    expect_torn("WORLD_SIZE", "0");
    expect_torn("WORLD_SIZE", "1025");
    expect_torn("LOCAL_RANK", "7");
    expect_torn("CHORALE_CONTROL", NULL);
    expect_torn("CHORALE_CONTROL", "localhost");
    expect_torn("CHORALE_CONTROL", "127.0.0.1:0");
    expect_torn("CHORALE_CONTROL", "127.0.0.1:65536");
    expect_torn("CHORALE_CONTROL", ":99");
    expect_torn("CHORALE_CONTROL", "[]:99");
    expect_torn("CHORALE_TOKEN", NULL);
    expect_torn("CHORALE_TOKEN", "0123");
    expect_torn("CHORALE_TOKEN", "g123456789abcdef0123456789abcdef");
    expect_torn("CHORALE_DEADLINE", "soon");
    expect_torn("CHORALE_DEADLINE", "-3");
}

Test(job, nobody_at_the_address_is_a_timeout)
{
    const struct job_options options = {.deadline = 0.3};
    struct job *job = NULL;
    environment_fill();
    cr_expect(job_is_worker());
    cr_expect_eq(job_join(&options, &job), STATUS_TIMEOUT, "%s", status_message());
    cr_expect_not_null(strstr(status_message(), "127.0.0.1:1"));
}

static void make_file(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    cr_assert_geq(fd, 0);
    close(fd);
}

Test(job, stale_files_are_removed_and_those_in_use_are_not)
{
    char stale[96], used[96];
    long pid = getpid(), uid = (long)getuid();
    (void)snprintf(stale, sizeof stale, "/dev/shm/%ld:%ld:0", pid, uid);
    (void)snprintf(used, sizeof used, "/dev/shm/%ld:%ld:1", pid, uid);
    make_file(stale);
    int fd = open(used, O_CREAT | O_RDWR, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, 4096), 0);
    void *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(mapped, MAP_FAILED);
    close(fd); /* as the provider does */
    job_remove_stale(pid);
    cr_expect_neq(access(stale, F_OK), 0);
    cr_expect_eq(access(used, F_OK), 0);
    cr_expect_eq(munmap(mapped, 4096), 0);
    job_remove_stale(pid);
    cr_expect_neq(access(used, F_OK), 0);
}

Test(job, leftovers_of_this_process_and_no_other_are_removed)
{
    char ours[96], second[96], other[96];
    long pid = getpid(), uid = (long)getuid();
    (void)snprintf(ours, sizeof ours, "/dev/shm/%ld:%ld:0", pid, uid);
    (void)snprintf(second, sizeof second, "/dev/shm/%ld:%ld:17", pid, uid);
    (void)snprintf(other, sizeof other, "/dev/shm/%ld0:%ld:0", pid, uid);
    make_file(ours);
    make_file(second);
    make_file(other);
    job_remove_leftovers(pid);
    job_remove_leftovers(0);
    job_remove_leftovers(-1);
    cr_expect_neq(access(ours, F_OK), 0);
    cr_expect_neq(access(second, F_OK), 0);
    cr_expect_eq(access(other, F_OK), 0);
    cr_expect_eq(unlink(other), 0);
}
