/* test_host.c - processes and sets of CPUs, as the system tells of them. */
#include <criterion/criterion.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/host.h"

TestSuite(host, .timeout = 60);

/* A name with brackets and blanks must not be taken for what follows it. */
Test(host, processes_by_state_parent_and_group)
{
    struct host_process process;
    int status = 0;
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        (void)setpgid(0, 0);
        (void)prctl(PR_SET_NAME, "a) Z 1 (b", 0, 0, 0);
        (void)raise(SIGSTOP);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, WUNTRACED), child);
    cr_assert(host_process(child, &process));
    cr_expect_eq(process.state, 'T');
    cr_expect_eq(process.parent, getpid());
    cr_expect_eq(process.group, child);
    cr_assert_eq(kill(child, SIGKILL), 0);
    cr_assert_eq(waitid(P_PID, (id_t)child, NULL, WEXITED | WNOWAIT), 0);
    cr_assert(host_process(child, &process));
    cr_expect_eq(process.state, 'Z');
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_not(host_process(child, &process));
}

/* A process that is killed has memory to give back before it is dead. */
static bool is_seen_dying(void)
{
    struct host_process process = {.state = 'R'};
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        enum { BYTES = 64 << 20 };
        volatile char *memory = malloc(BYTES);
        for (size_t i = 0; memory != NULL && i < BYTES; i += 4096)
            memory[i] = 1;
        (void)raise(SIGSTOP);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, NULL, WUNTRACED), child);
    cr_assert(host_process(child, &process));
    cr_expect_not(process.dying);
    cr_assert_eq(kill(child, SIGKILL), 0);
    bool dying = false;
    while (!dying && host_process(child, &process) && process.state != 'Z')
        dying = process.dying;
    cr_assert_eq(waitpid(child, NULL, 0), child);
    return dying;
}

Test(host, a_process_that_is_killed_is_dying_before_it_is_dead)
{
    bool seen = false;
    for (int turn = 0; turn < 100 && !seen; turn++)
        seen = is_seen_dying();
    cr_expect(seen);
}

Test(host, sets_of_cpus)
{
    struct host_cpus cpus = {{0}};
    struct text text = {0};
    static const unsigned some[] = {0, 1, 2, 63, 64, 200, HOST_CPUS - 1};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        host_cpus_add(&cpus, some[i]);
    host_cpus_describe(&cpus, &text);
    cr_expect_str_eq(text_string(&text), "0-2,63-64,200,1023");
    cr_expect_eq(host_cpus_count(&cpus), 7);
    cr_expect(host_cpus_has(&cpus, 64));
    cr_expect_not(host_cpus_has(&cpus, 65));
    cr_expect_not(host_cpus_has(&cpus, HOST_CPUS));
    text_release(&text);
}
