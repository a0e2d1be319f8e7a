/* test_jobs.c - jobs in forked processes: every result, in order, and the deaths of some. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/jobs.h"
#include "tests/base/expect.h"

#define MOST 500

struct outcome {
    size_t crash_every; /* every so many jobs one dies, 0: none */
    int crash;          /* 0: exit, else this signal            */
    size_t stop_at;     /* `done` fails here                    */
    size_t told, deaths;
    char last_death[100];
};

static void square(void *context, size_t job, void *result)
{
    const struct outcome *outcome = context;
    if (outcome->crash_every > 0 && job % outcome->crash_every == outcome->crash_every - 1) {
        if (outcome->crash == 0)
            _exit(3);
        (void)signal(outcome->crash, SIG_DFL);
        (void)raise(outcome->crash);
    }
    *(size_t *)result = job * job + 1;
}

static enum status note(void *context, size_t job, const void *result, const char *death)
{
    struct outcome *outcome = context;
    if (outcome->stop_at > 0 && job == outcome->stop_at)
        return fail(STATUS_REFUSED, "enough");
    cr_expect_eq(job, outcome->told, "in order");
    outcome->told++;
    if (death != NULL) {
        outcome->deaths++;
        (void)snprintf(outcome->last_death, sizeof outcome->last_death, "%s", death);
    } else {
        cr_expect_eq(*(const size_t *)result, job * job + 1);
    }
    return STATUS_OK;
}

static enum status run(struct outcome *outcome, size_t count, int processes)
{
    const struct jobs jobs = {.count = count,
                              .processes = processes,
                              .result_bytes = sizeof(size_t),
                              .context = outcome,
                              .run = square,
                              .done = note};
    return jobs_run(&jobs);
}

Test(jobs, come_in_order_from_any_number_of_processes)
{
    const int processes[] = {1, 2, 3, 7};
    const size_t counts[] = {0, 1, 2, 5, MOST};
    for (size_t i = 0; i < sizeof processes / sizeof processes[0]; i++)
        for (size_t j = 0; j < sizeof counts / sizeof counts[0]; j++) {
            struct outcome outcome = {.crash_every = 0};
            EXPECT_OK(run(&outcome, counts[j], processes[i]));
            cr_expect_eq(outcome.told, counts[j]);
            cr_expect_eq(outcome.deaths, 0);
        }
}

Test(jobs, that_die_cost_only_themselves)
{
    struct outcome killed = {.crash_every = 7, .crash = SIGKILL};
    EXPECT_OK(run(&killed, 100, 3));
    cr_expect_eq(killed.told, 100);
    cr_expect_eq(killed.deaths, 14);
    cr_expect(strstr(killed.last_death, "signal 9") != NULL, "%s", killed.last_death);
    struct outcome left = {.crash_every = 1};
    EXPECT_OK(run(&left, 5, 2));
    cr_expect_eq(left.deaths, 5);
    cr_expect_str_eq(left.last_death, "exit 3");
}

Test(jobs, end_when_the_caller_has_enough)
{
    struct outcome outcome = {.stop_at = 3};
    EXPECT_FAIL(STATUS_REFUSED, "enough", run(&outcome, MOST, 4));
    cr_expect_eq(outcome.told, 3);
}
