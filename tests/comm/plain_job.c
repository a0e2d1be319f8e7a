/* plain_job.c - job and launcher under ThreadSanitizer: it is its own worker. ROUNDS jobs of four workers, of which
 * each third ends well, each third with an abort from a second thread, and each third with a death.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/job.h"
#include "comm/launch.h"

enum { WORKERS = 4, ROUNDS = 9, ALARM_SECONDS = 120 };

static void job_failed(void *context, enum status status, const char *message, bool speak)
{
    (void)context;
    (void)status;
    (void)message;
    (void)speak;
    _exit(1);
}

/* Looks at the job while the main thread uses it, as a progress thread does. */
static void *watch(void *argument)
{
    struct job *job = argument;
    const char *mode = getenv("PLAIN_MODE");
    for (int i = 0; i < 20 && job_check(job) == STATUS_OK; i++)
        clock_sleep_ns(1000000);
    if (mode != NULL && strcmp(mode, "abort") == 0 && job_rank(job) == 2)
        (void)job_abort(job, STATUS_IO, "rank 2 on HERE: as asked");
    if (mode != NULL && strcmp(mode, "death") == 0 && job_rank(job) == 2)
        (void)raise(SIGKILL);
    return NULL;
}

static enum status exchange(struct job *job, bool for_ever)
{
    int mine = job_rank(job), all[WORKERS];
    for (int i = 0; for_ever || i < 100; i++) {
        TRY(job_allgather(job, &mine, sizeof mine, all));
        for (int rank = 0; rank < WORKERS; rank++) {
            if (all[rank] != rank)
                return fail(STATUS_INTERNAL, "wrong contents");
        }
        TRY(job_barrier(job));
    }
    return STATUS_OK;
}

static int worker(void)
{
    const char *mode = getenv("PLAIN_MODE");
    const struct job_options options = {.failed = job_failed};
    struct job *job = NULL;
    pthread_t thread;
    if (job_join(&options, &job) != STATUS_OK || pthread_create(&thread, NULL, watch, job) != 0)
        return 10;
    enum status status = exchange(job, mode != NULL && strcmp(mode, "well") != 0);
    pthread_join(thread, NULL);
    if (status == STATUS_OK)
        status = job_leave(job);
    job_destroy(job);
    return status == STATUS_OK ? 0 : 11;
}

static int round_fails(char *program, const char *mode, int exit_code, const char *message)
{
    char *argv[] = {program, (char *)(size_t) "worker", NULL};
    const struct launch_request request = {.workers = WORKERS, .argv = argv, .must_join = true};
    struct launch_result result;
    if (setenv("PLAIN_MODE", mode, 1) != 0 || launch_local(&request, &result) != STATUS_OK)
        return 1;
    if ((exit_code < 0 || result.exit_code == exit_code) && strstr(result.message, message) != NULL)
        return 0;
    (void)fprintf(stderr, "%s: exit %d: %s\n", mode, result.exit_code, result.message);
    return 1;
}

int main(int argc, char **argv)
{
    alarm(ALARM_SECONDS);
    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return worker();
    char program[] = "/proc/self/exe";
    int failures = 0;
    for (int i = 0; i < ROUNDS; i += 3) {
        failures += round_fails(program, "well", 0, "");
        failures += round_fails(program, "abort", -1, "rank 2 on HERE: as asked");
        failures += round_fails(program, "death", 1, "killed by signal 9 (SIGKILL)");
    }
    return failures == 0 ? 0 : 1;
}
