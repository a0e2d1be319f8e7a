/* test_launch.c - whatever ends a job, everything of it goes within two seconds and the first cause is named.
 *
 * A machine that is loaded or stands still for a while makes one end late, not each of many: every one is tested against
 * LIMIT, above which only a deadline (30 s) would have ended the workers, and the quickest against what is promised.
 */
#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "comm/launch.h"
#include "support_launch.h"

#define WORKER CHORALE_WORKERS "/comm_worker_job"
#define LIMIT 20.0
#define PROMISED 2.0
#define SHELL "/bin/sh"

static char folder[FOLDER_BYTES];

static void setup(void)
{
    cr_assert(folder_make(folder));
}

static void teardown(void)
{
    folder_remove(folder);
}

TestSuite(launch, .init = setup, .fini = teardown, .timeout = 300);

/* Run worker_job in `mode` to its end. */
static void run_mode(const char *mode, const char *argument, int workers, struct launch_result *result)
{
    char *argv[] = {(char *)(size_t)WORKER, (char *)(size_t)mode, folder, (char *)(size_t)argument, NULL};
    const struct launch_request request = {.workers = workers, .argv = argv, .must_join = true};
    double start = clock_seconds();
    enum status status = launch_local(&request, result);
    cr_log_info("%s: %.3f s, exit %d: %s", mode, clock_seconds() - start, result->exit_code, result->message);
    cr_assert_eq(status, STATUS_OK, "%s", status_message());
    for (int i = 0; i < workers; i++) {
        char name[16], path[512];
        (void)snprintf(name, sizeof name, "%d", i);
        folder_path(folder, name, path, sizeof path);
        if (access(path, F_OK) != 0)
            continue;
        long pid = folder_number(folder, i, "");
        cr_expect(process_gone(pid), "rank %d still runs", i);
        cr_expect_not(leftover_exists(pid), "rank %d left a file", i);
    }
}

static void expect_contains(const char *text, const char *part)
{
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in \"%s\"", part, text);
}

/* Run a shell script as every worker. */
static enum status run_shell(const char *script, int workers, struct launch_result *result)
{
    char *argv[] = {(char *)(size_t)SHELL, (char *)(size_t) "-c", (char *)(size_t)script, folder, NULL};
    const struct launch_request request = {.workers = workers, .argv = argv};
    return launch_local(&request, result);
}

/* --- all goes well --- */

Test(launch, jobs_of_1_3_7_and_32_workers_exchange_and_leave)
{
    const int sizes[] = {1, 3, 7, 32};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct launch_result result;
        run_mode("happy", NULL, sizes[i], &result);
        cr_expect_eq(result.exit_code, 0);
        cr_expect_str_eq(result.message, "");
    }
}

Test(launch, many_trivial_commands)
{
    struct launch_result result;
    cr_assert_eq(run_shell("exit 0", 64, &result), STATUS_OK, "%s", status_message());
    cr_expect_eq(result.exit_code, 0);
    cr_expect_str_eq(result.message, "");
}

Test(launch, workers_get_their_environment)
{
    struct launch_result result;
    cr_assert_eq(setenv("RANK", "77", 1), 0);
    cr_assert_eq(run_shell("test $RANK -lt 3 -a $WORLD_SIZE = 3 -a $LOCAL_RANK = $RANK -a $LOCAL_WORLD_SIZE = 3 -a "
                           "$MASTER_ADDR = 127.0.0.1 -a $MASTER_PORT -gt 0 -a ${#CHORALE_TOKEN} = 32 -a "
                           "$CHORALE_CONTROL != 127.0.0.1:$MASTER_PORT -a ${CHORALE_DEADLINE%%.*} = 30 -a "
                           "$IPATH_NO_BACKTRACE = 1 && : > $0/$RANK",
                           3, &result),
                 STATUS_OK);
    cr_expect_eq(result.exit_code, 0);
    for (int i = 0; i < 3; i++) {
        char path[512], name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        folder_path(folder, name, path, sizeof path);
        cr_expect_eq(access(path, F_OK), 0, "no worker was rank %d", i);
    }
}

Test(launch, only_rank_0_reads_stdin)
{
    struct launch_result result;
    char path[512];
    int ends[2];
    struct stat facts;
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], "hello", 5), 5);
    close(ends[1]);
    cr_assert_geq(dup2(ends[0], 0), 0);
    cr_assert_eq(run_shell("cat > $0/$RANK", 2, &result), STATUS_OK);
    folder_path(folder, "0", path, sizeof path);
    cr_assert_eq(stat(path, &facts), 0);
    cr_expect_eq(facts.st_size, 5);
    folder_path(folder, "1", path, sizeof path);
    cr_assert_eq(stat(path, &facts), 0);
    cr_expect_eq(facts.st_size, 0);
}

Test(launch, everything_of_the_process_is_put_back)
{
    struct launch_result result;
    sigset_t before, after;
    struct sigaction action;
    int descriptors = open_descriptors();
    sigprocmask(SIG_SETMASK, NULL, &before);
    cr_assert_neq(signal(SIGCHLD, SIG_IGN), SIG_ERR);
    cr_assert_eq(run_shell("exit 0", 3, &result), STATUS_OK);
    cr_expect_eq(run_shell("exit 4", 3, &result), STATUS_OK);
    cr_expect_eq(result.exit_code, 4); /* although children are not waited for when SIGCHLD is ignored */
    sigprocmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < 32; number++)
        cr_expect_eq(sigismember(&before, number), sigismember(&after, number), "mask of signal %d", number);
    cr_assert_eq(sigaction(SIGCHLD, NULL, &action), 0);
    cr_expect_eq(action.sa_handler, SIG_IGN);
    cr_expect_eq(open_descriptors(), descriptors);
    cr_expect_eq(waitpid(-1, NULL, WNOHANG), -1, "a zombie is left");
}

Test(launch, standard_descriptors_may_be_closed)
{
    char *argv[] = {(char *)(size_t)WORKER, (char *)(size_t) "happy", folder, NULL};
    const struct launch_request request = {.workers = 2, .argv = argv, .must_join = true};
    struct background background = {.unwanted = 0};
    struct outcome outcome;
    close(0);
    close(1);
    cr_assert(background_start(&background, &request));
    cr_assert(background_wait(&background, &outcome));
    cr_expect_eq(outcome.result.exit_code, 0, "%s", outcome.result.message);
}

Test(launch, a_closed_output_can_not_be_written)
{
    struct launch_result result;
    (void)fflush(stdout);
    int saved = dup(1);
    close(1);
    enum status status = run_shell("echo word 2>/dev/null", 2, &result);
    cr_assert(dup2(saved, 1) == 1);
    cr_assert_eq(status, STATUS_OK);
    cr_expect_neq(result.exit_code, 0, "the workers' words went nowhere, and nobody noticed");
}

/* --- one worker fails --- */

/* Returns after how many seconds all were gone. */
static double kill_one(const char *mode, uint64_t key, uint64_t round)
{
    enum { WORKERS = 4 };
    char *argv[] = {(char *)(size_t)WORKER, (char *)(size_t)mode, folder, NULL};
    const struct launch_request request = {.workers = WORKERS, .argv = argv, .must_join = true};
    struct background background = {.unwanted = 0};
    struct outcome outcome;
    long pids[WORKERS];
    char expected[64];
    int victim = (int)rng_below(key, 2 * round, WORKERS);
    cr_assert(background_start(&background, &request));
    for (int i = 0; i < WORKERS; i++) {
        pids[i] = folder_number(folder, i, "");
        cr_assert_gt(pids[i], 1);
    }
    clock_sleep_ns(rng_below(key, 2 * round + 1, 20000000));
    double start = clock_seconds();
    cr_assert_eq(kill((pid_t)pids[victim], SIGKILL), 0);
    double gone = processes_gone_after(pids, WORKERS, LIMIT);
    cr_assert(background_wait(&background, &outcome));
    printf("%s: rank %d killed: workers gone after %.3f s, launcher returned after %.3f s\n", mode, victim, gone,
           clock_seconds() - start);
    cr_expect_lt(gone, LIMIT);
    cr_expect_eq(outcome.status, STATUS_OK);
    cr_expect_eq(outcome.result.exit_code, 1);
    (void)snprintf(expected, sizeof expected, "rank %d on ", victim);
    expect_contains(outcome.result.message, expected);
    expect_contains(outcome.result.message, ": killed by signal 9 (SIGKILL): ");
    for (int i = 0; i < WORKERS; i++)
        cr_expect_not(leftover_exists(pids[i]), "rank %d left a file", i);
    return gone;
}

Test(launch, killed_worker_is_named_and_the_others_end)
{
    double quickest = LIMIT;
    const char *given = getenv("CHORALE_TEST_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : clock_ns();
    uint64_t key = rng_key(seed, "kill", 0, 0);
    printf("CHORALE_TEST_SEED=%llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 20; round++) {
        quickest = fmin(quickest, kill_one(round % 2 == 0 ? "gather" : "compute", key, round));
        folder_remove(folder);
        setup();
    }
    cr_expect_lt(quickest, PROMISED);
}

Test(launch, exit_code_is_the_failing_workers_own)
{
    struct launch_result result;
    run_mode("exit", "3", 3, &result);
    cr_expect_eq(result.exit_code, 3);
    expect_contains(result.message, "rank 1 on ");
    expect_contains(result.message, ": exit 3: ");
}

Test(launch, early_exit_0_is_a_failure)
{
    struct launch_result result;
    run_mode("exit", "0", 3, &result);
    cr_expect_eq(result.exit_code, 1);
    expect_contains(result.message, "rank 1 on ");
    expect_contains(result.message, ": ended early (exit 0) while others were still in the job: ");
}

Test(launch, exit_0_without_joining_is_a_failure_where_joining_is_a_must)
{
    char *argv[] = {(char *)(size_t) "true", NULL};
    const struct launch_request request = {.workers = 2, .argv = argv, .must_join = true};
    struct launch_result result;
    cr_assert_eq(launch_local(&request, &result), STATUS_OK);
    cr_expect_eq(result.exit_code, 1);
    expect_contains(result.message, "without joining");
}

Test(launch, exit_0_without_joining_is_a_failure_when_others_have_joined)
{
    struct launch_result result;
    cr_assert_eq(run_shell("test $RANK = 1 || exec " WORKER " happy $0", 3, &result), STATUS_OK);
    cr_expect_eq(result.exit_code, 1);
    expect_contains(result.message, "rank 1 on ");
}

Test(launch, text_of_the_failing_worker_stands)
{
    struct launch_result result;
    run_mode("abort", NULL, 3, &result);
    cr_expect_eq(result.exit_code, 5);
    cr_expect_str_eq(result.message, "rank 1 on HERE: open data: no such file: make it");
}

/* The death comes 30 ms after the rumour, and is waited for: on a loaded machine in vain, but not each time. */
Test(launch, a_death_explains_the_loss_that_a_peer_reports)
{
    struct launch_result result;
    bool explained = false;
    for (int turn = 0; turn < 10 && !explained; turn++) {
        run_mode("rumour", NULL, 4, &result);
        cr_expect_eq(result.exit_code, 1);
        explained = strstr(result.message, "SIGKILL") != NULL;
    }
    cr_expect(explained, "%s", result.message);
    expect_contains(result.message, "rank 1 on ");
}

Test(launch, a_loss_without_a_death_is_told_as_reported)
{
    struct launch_result result;
    run_mode("lost", NULL, 3, &result);
    cr_expect_eq(result.exit_code, 1);
    cr_expect_str_eq(result.message, "rank 1 on HERE: rank 0 does not answer");
}

Test(launch, different_calls_are_noticed)
{
    struct launch_result result;
    run_mode("mismatch", NULL, 3, &result);
    cr_expect_eq(result.exit_code, 1);
    expect_contains(result.message, "all workers must make the same calls");
    run_mode("leave", NULL, 3, &result);
    cr_expect_eq(result.exit_code, 1);
    expect_contains(result.message, "all workers must make the same calls");
}

Test(launch, stopped_worker_is_named_at_the_deadline)
{
    struct launch_result result;
    char text[16], wanted[64];
    bool named = false;
    for (int turn = 0; !named && turn < DEADLINE_TURNS; turn++) {
        (void)snprintf(text, sizeof text, "%d", DEADLINE_OF(turn, 1));
        cr_assert_eq(setenv("TEST_DEADLINE", text, 1), 0);
        run_mode("stop", NULL, 3, &result);
        cr_expect_eq(result.exit_code, 1);
        (void)snprintf(wanted, sizeof wanted, ": not at barrier 2 within %s s of rank ", text); /* 1 is job_join()'s */
        named = strstr(result.message, wanted) != NULL;
    }
    cr_expect(named, "%s", result.message);
    expect_contains(result.message, "rank 1 on ");
}

Test(launch, stopped_worker_is_named_though_nobody_waits_for_it)
{
    char *argv[] = {(char *)(size_t)WORKER, (char *)(size_t) "doze", folder, NULL};
    const struct launch_request request = {.workers = 3, .argv = argv, .deadline = 6, .must_join = true};
    struct launch_result result;
    cr_assert_eq(launch_local(&request, &result), STATUS_OK);
    cr_expect_eq(result.exit_code, 1);
    expect_contains(result.message, "rank 1 on ");
    expect_contains(result.message, "does not answer for 6 s");
}

Test(launch, worker_that_never_joins_is_named_at_the_deadline)
{
    char *argv[] = {(char *)(size_t)SHELL, (char *)(size_t) "-c",
                    (char *)(size_t) "test $RANK = 0 && exec " WORKER " happy $0; sleep 100", folder, NULL};
    struct launch_result result = {.message = ""};
    char wanted[64];
    bool named = false;
    for (int turn = 0; !named && turn < DEADLINE_TURNS; turn++) {
        const struct launch_request request = {.workers = 3, .argv = argv, .deadline = DEADLINE_OF(turn, 0.5)};
        cr_assert_eq(launch_local(&request, &result), STATUS_OK);
        cr_expect_eq(result.exit_code, 1);
        (void)snprintf(wanted, sizeof wanted, "not joined within %g s", request.deadline);
        named = strstr(result.message, wanted) != NULL;
    }
    cr_expect(named, "%s", result.message);
    expect_contains(result.message, "ranks 1, 2 on ");
}

Test(launch, broken_control_channel_is_noticed)
{
    struct launch_result result;
    run_mode("cut", NULL, 3, &result);
    cr_expect_eq(result.exit_code, 1);
    expect_contains(result.message, "rank 1 on ");
    expect_contains(result.message, "closed its control channel");
    run_mode("garbage", NULL, 3, &result);
    cr_expect_eq(result.exit_code, 1);
    expect_contains(result.message, "rank 1 on ");
    expect_contains(result.message, "unknown message type");
}

Test(launch, workers_that_ignore_everything_are_killed)
{
    enum { WORKERS = 3 };
    char *argv[] = {(char *)(size_t)WORKER, (char *)(size_t) "stubborn", folder, NULL};
    const struct launch_request request = {.workers = WORKERS, .argv = argv, .must_join = true};
    struct background background = {.unwanted = 0};
    struct outcome outcome;
    long pids[WORKERS];
    cr_assert(background_start(&background, &request));
    for (int i = 0; i < WORKERS; i++)
        pids[i] = folder_number(folder, i, "");
    cr_assert_eq(kill((pid_t)pids[1], SIGKILL), 0);
    double gone = processes_gone_after(pids, WORKERS, LIMIT);
    printf("stubborn workers: gone after %.3f s\n", gone);
    cr_expect_lt(gone, LIMIT);
    cr_assert(background_wait(&background, &outcome));
    expect_contains(outcome.result.message, "rank 1 on ");
    for (int i = 0; i < WORKERS; i++)
        cr_expect_not(leftover_exists(pids[i]), "rank %d left a file", i);
}

/* --- children of workers --- */

static void expect_children_gone(int workers)
{
    for (int i = 0; i < workers; i++) {
        long child = folder_number(folder, i, ".child");
        cr_expect_gt(child, 1);
        cr_expect(process_gone(child), "the child of rank %d still runs", i);
    }
}

Test(launch, children_of_workers_go_when_all_went_well)
{
    struct launch_result result;
    run_mode("family", NULL, 3, &result);
    cr_expect_eq(result.exit_code, 0, "%s", result.message);
    expect_children_gone(3);
}

Test(launch, children_of_workers_go_when_one_failed)
{
    char *argv[] = {(char *)(size_t)WORKER, (char *)(size_t) "family", folder, (char *)(size_t) "stay", NULL};
    const struct launch_request request = {.workers = 3, .argv = argv, .must_join = true};
    struct background background = {.unwanted = 0};
    struct outcome outcome;
    cr_assert(background_start(&background, &request));
    for (int i = 0; i < 3; i++)
        cr_assert_gt(folder_number(folder, i, ".child"), 1);
    cr_assert_eq(kill((pid_t)folder_number(folder, 2, ""), SIGUSR1), 0);
    cr_assert(background_wait(&background, &outcome));
    expect_contains(outcome.result.message, "rank 2 on ");
    expect_contains(outcome.result.message, "(SIGUSR1)");
    expect_children_gone(3);
}

/* --- signals to the launcher --- */

/* Returns after how many seconds it did. */
static double signal_launcher(const char *mode, int number, int times, const char *name)
{
    enum { WORKERS = 3 };
    char *worker[] = {(char *)(size_t)WORKER, (char *)(size_t)mode, folder, NULL};
    const struct launch_request request = {.workers = WORKERS, .argv = worker, .must_join = true};
    struct background background = {.unwanted = 0};
    struct outcome outcome;
    char expected[64];
    long pids[WORKERS];
    cr_assert(background_start(&background, &request));
    for (int i = 0; i < WORKERS; i++)
        pids[i] = folder_number(folder, i, "");
    double start = clock_seconds();
    for (int i = 0; i < times; i++) {
        cr_assert_eq(kill(background.pid, number), 0);
        clock_sleep_ns(50000000);
    }
    cr_assert(background_wait(&background, &outcome));
    double seconds = clock_seconds() - start;
    printf("%s x%d to the launcher of %s: returned after %.3f s\n", name, times, mode, seconds);
    cr_expect_lt(seconds, LIMIT);
    cr_expect_eq(outcome.result.exit_code, 128 + number);
    (void)snprintf(expected, sizeof expected, "interrupted by %s", name);
    cr_expect_str_eq(outcome.result.message, expected);
    for (int i = 0; i < WORKERS; i++) {
        cr_expect(process_gone(pids[i]));
        cr_expect_not(leftover_exists(pids[i]));
    }
    folder_remove(folder);
    setup();
    return seconds;
}

Test(launch, signals_end_the_job)
{
    (void)signal_launcher("gather", SIGINT, 1, "SIGINT");
    (void)signal_launcher("compute", SIGTERM, 1, "SIGTERM");
    (void)signal_launcher("compute", SIGHUP, 1, "SIGHUP");
    (void)signal_launcher("stubborn", SIGINT, 1, "SIGINT");
}

/* Without it, SIGKILL comes after one and a half seconds, and never before. */
Test(launch, a_second_signal_speeds_it_up)
{
    double quickest = LIMIT;
    for (int turn = 0; turn < 10 && quickest >= 1.4; turn++)
        quickest = fmin(quickest, signal_launcher("stubborn", SIGINT, 2, "SIGINT"));
    cr_expect_lt(quickest, 1.4);
}

Test(launch, foreign_commands_get_the_signal_itself)
{
    char *argv[] = {(char *)(size_t)SHELL, (char *)(size_t) "-c",
                    (char *)(size_t) "trap 'echo 1 > $0/$RANK.int; exit 0' INT; echo $$ > $0/tmp.$RANK; "
                                     "mv $0/tmp.$RANK $0/$RANK; while :; do sleep 0.05; done",
                    folder, NULL};
    const struct launch_request request = {.workers = 2, .argv = argv};
    struct background background = {.unwanted = 0};
    struct outcome outcome;
    cr_assert(background_start(&background, &request));
    for (int i = 0; i < 2; i++)
        cr_assert_gt(folder_number(folder, i, ""), 1);
    cr_assert_eq(kill(background.pid, SIGINT), 0);
    cr_assert(background_wait(&background, &outcome));
    cr_expect_eq(outcome.result.exit_code, 130);
    for (int i = 0; i < 2; i++)
        cr_expect_eq(folder_number(folder, i, ".int"), 1);
}

/* --- the launcher is killed --- */

Test(launch, workers_end_with_a_killed_launcher_and_clean_up)
{
    enum { WORKERS = 3 };
    const char *const names[] = {"gather", "compute", "wait"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        char *argv[] = {(char *)(size_t)WORKER, (char *)(size_t)names[k], folder, NULL};
        const struct launch_request request = {.workers = WORKERS, .argv = argv, .must_join = true};
        struct background background = {.unwanted = 0};
        struct outcome outcome;
        long pids[WORKERS];
        cr_assert(background_start(&background, &request));
        for (int i = 0; i < WORKERS; i++) {
            pids[i] = folder_number(folder, i, "");
            cr_assert(leftover_exists(pids[i]));
        }
        cr_assert_eq(kill(background.pid, SIGKILL), 0);
        double gone = processes_gone_after(pids, WORKERS, LIMIT);
        printf("launcher of %s killed: workers gone after %.3f s\n", names[k], gone);
        cr_expect_lt(gone, LIMIT);
        cr_expect_not(background_wait(&background, &outcome));
        for (int i = 0; i < WORKERS; i++)
            cr_expect_not(leftover_exists(pids[i]), "rank %d left a file", i);
        folder_remove(folder);
        setup();
    }
}

Test(launch, foreign_commands_end_with_a_killed_launcher)
{
    char *argv[] = {(char *)(size_t)SHELL, (char *)(size_t) "-c",
                    (char *)(size_t) "echo $$ > $0/tmp.$RANK; mv $0/tmp.$RANK $0/$RANK; exec sleep 100", folder, NULL};
    const struct launch_request request = {.workers = 2, .argv = argv};
    struct background background = {.unwanted = 0};
    struct outcome outcome;
    long pids[2];
    cr_assert(background_start(&background, &request));
    for (int i = 0; i < 2; i++)
        pids[i] = folder_number(folder, i, "");
    cr_assert_eq(kill(background.pid, SIGKILL), 0);
    double gone = processes_gone_after(pids, 2, LIMIT);
    printf("launcher of foreign commands killed: gone after %.3f s\n", gone);
    cr_expect_lt(gone, LIMIT);
    cr_expect_not(background_wait(&background, &outcome));
}

/* --- strangers --- */

/* Waits for FOLDER/go, then becomes worker_job; FOLDER/RANK.port and FOLDER/RANK.pid tell where it is. */
#define GATED                                                                                                          \
    "echo ${CHORALE_CONTROL#*:} > $0/p.$RANK; mv $0/p.$RANK $0/$RANK.port; "                                           \
    "while ! test -e $0/go; do sleep 0.02; done; "

static int stranger(long port, const char *bytes, size_t length)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0, "%s", strerror(errno));
    if (length > 0)
        cr_assert_eq(send(fd, bytes, length, MSG_NOSIGNAL), (ssize_t)length);
    return fd;
}

/* A process that knows the address and not the token. */
static int impostor(long port, const char *token)
{
    char control[64];
    (void)snprintf(control, sizeof control, "127.0.0.1:%ld", port);
    pid_t pid = fork();
    if (pid == 0) {
        (void)setenv("CHORALE_CONTROL", control, 1);
        (void)setenv("CHORALE_TOKEN", token, 1);
        (void)setenv("RANK", "0", 1);
        (void)setenv("WORLD_SIZE", "2", 1);
        (void)execl(WORKER, "worker_job", "happy", folder, (char *)NULL);
        _exit(127);
    }
    int code = 0;
    cr_assert_eq(waitpid(pid, &code, 0), pid);
    cr_assert(WIFEXITED(code));
    return WEXITSTATUS(code);
}

/* One line each in FOLDER/notes. */
static void note(void *context, const char *line)
{
    char path[512];
    folder_path(context, "notes", path, sizeof path);
    FILE *file = fopen(path, "a");
    if (file != NULL) {
        (void)fprintf(file, "%s\n", line);
        (void)fclose(file);
    }
}

/* How many lines of FOLDER/notes say it; NULL: how many there are. */
static int noted(const char *what)
{
    char path[512], line[512];
    int count = 0;
    folder_path(folder, "notes", path, sizeof path);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        count += what == NULL || strstr(line, what) != NULL ? 1 : 0;
    if (file != NULL)
        (void)fclose(file);
    return count;
}

Test(launch, strangers_do_not_disturb_the_job)
{
    char *argv[] = {(char *)(size_t)SHELL, (char *)(size_t) "-c", (char *)(size_t)(GATED "exec " WORKER " happy $0"),
                    folder, NULL};
    const struct launch_request request = {
        .workers = 2, .argv = argv, .must_join = true, .note = note, .context = folder};
    struct background background = {.unwanted = 0};
    struct outcome outcome;
    int silent[60];
    cr_assert(background_start(&background, &request));
    long port = folder_number(folder, 0, ".port");
    cr_assert_gt(port, 0);
    for (int i = 0; i < 60; i++) /* more than the launcher keeps */
        silent[i] = stranger(port, "", 0);
    char flood[4096];
    memset(flood, 'x', sizeof flood);
    close(stranger(port, flood, sizeof flood));
    close(stranger(port, "GET / HTTP/1.0\r\n\r\n", 18));
    int half = stranger(port, "\x24\x00\x00\x00\x02", 5);
    int empty_hello = stranger(port, "\x00\x00\x00\x00\x02\x00\x00\x00", 8);
    int unknown = stranger(port, "\x04\x00\x00\x00\x63\x00\x00\x00", 8);
    int early = stranger(port, "\x04\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00", 12); /* GATHER before HELLO */
    cr_expect_eq(impostor(port, "00000000000000000000000000000000"), 2);
    cr_expect_eq(impostor(port, "not hexadecimal"), 2);
    cr_assert(folder_touch(folder, "go"));
    cr_assert(background_wait(&background, &outcome));
    cr_expect_eq(outcome.result.exit_code, 0, "%s", outcome.result.message);
    for (int i = 0; i < 60; i++)
        close(silent[i]);
    close(half);
    close(empty_hello);
    close(unknown);
    close(early);
    cr_expect_eq(noted("turned away 127.0.0.1:"), 8); /* the rest in silence */
    cr_expect_eq(noted(NULL), 9);
}

/* A job that a stranger comes to before its workers do: with `silence` it is that old by then, else it has been named. */
static void receive_stranger(const char *bytes, size_t length, bool closes, double silence, struct outcome *outcome)
{
    char *argv[] = {(char *)(size_t)SHELL, (char *)(size_t) "-c", (char *)(size_t)(GATED "exec " WORKER " happy $0"),
                    folder, NULL};
    const struct launch_request request = {
        .workers = 3, .argv = argv, .must_join = true, .deadline = silence, .note = note, .context = folder};
    struct background background = {.unwanted = 0};
    cr_assert(background_start(&background, &request));
    long port = folder_number(folder, 0, ".port");
    cr_assert_gt(port, 0);
    int fd = stranger(port, bytes, length);
    if (closes)
        close(fd);
    for (uint64_t deadline = deadline_after(30); silence == 0 && noted(NULL) == 0 && !deadline_passed(deadline);)
        clock_sleep_ns(2000000);
    clock_sleep_ns((uint64_t)(silence * 1.2e9));
    cr_assert(folder_touch(folder, "go"));
    cr_assert(background_wait(&background, outcome));
    if (!closes)
        close(fd);
}

/* The job went on, and one line said why it was turned away. */
static void expect_turned_away(const struct outcome *outcome, const char *why)
{
    cr_expect_eq(outcome->result.exit_code, 0, "%s", outcome->result.message);
    cr_expect_eq(noted(why), 1, "%s", why);
    cr_expect_eq(noted(NULL), 1, "%s", why);
}

/* It is given up when it is older than the deadline and no worker is awaited any more. */
Test(launch, a_silent_stranger_is_named_once)
{
    struct outcome outcome = {.why = ""};
    for (int turn = 0; turn < DEADLINE_TURNS; turn++) {
        receive_stranger("", 0, false, DEADLINE_OF(turn, 1), &outcome);
        if (strstr(outcome.result.message, "not joined within") == NULL)
            break;
        folder_remove(folder);
        setup();
    }
    expect_turned_away(&outcome, "it said nothing");
}

Test(launch, a_stranger_that_closes_is_named_once)
{
    struct outcome outcome;
    receive_stranger("", 0, true, 0, &outcome);
    expect_turned_away(&outcome, "it closed without a greeting");
}

Test(launch, garbage_is_named_once)
{
    struct outcome outcome;
    receive_stranger("GET / HTTP/1.0\r\n\r\n", 18, false, 0, &outcome);
    expect_turned_away(&outcome, "no greeting of this program");
}

Test(launch, a_length_of_4_GiB_is_named_once)
{
    struct outcome outcome;
    receive_stranger("\xff\xff\xff\xff\x02\x00\x00\x00", 8, false, 0, &outcome);
    expect_turned_away(&outcome, "no greeting of this program");
}

Test(launch, a_wrong_token_is_named_once)
{
    char *argv[] = {(char *)(size_t)SHELL, (char *)(size_t) "-c", (char *)(size_t)(GATED "exec " WORKER " happy $0"),
                    folder, NULL};
    const struct launch_request request = {
        .workers = 2, .argv = argv, .must_join = true, .note = note, .context = folder};
    struct background background = {.unwanted = 0};
    struct outcome outcome;
    cr_assert(background_start(&background, &request));
    long port = folder_number(folder, 0, ".port");
    cr_assert_gt(port, 0);
    cr_expect_eq(impostor(port, "00000000000000000000000000000000"), 2);
    cr_assert(folder_touch(folder, "go"));
    cr_assert(background_wait(&background, &outcome));
    cr_expect_eq(outcome.result.exit_code, 0, "%s", outcome.result.message);
    cr_expect_eq(noted("does not know the job's token"), 1);
    cr_expect_eq(noted(NULL), 1);
}

Test(launch, a_rank_can_be_taken_once)
{
    struct launch_result result;
    cr_assert_eq(run_shell("RANK=0 exec " WORKER " happy $0", 2, &result), STATUS_OK);
    cr_expect_eq(result.exit_code, 2);
    expect_contains(result.message, "has joined as this rank");
}

Test(launch, a_changed_world_is_refused)
{
    struct launch_result result;
    cr_assert_eq(run_shell("WORLD_SIZE=5 RANK=4 exec " WORKER " happy $0", 2, &result), STATUS_OK);
    cr_expect_eq(result.exit_code, 2);
    expect_contains(result.message, "joins as rank 4 of 5, but the job has 2 workers");
}

/* --- labels --- */

static void check_label_lines(const char *path, const char *word)
{
    int seen[3] = {0, 0, 0}, others = 0;
    char line[256], expected[64];
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        int before = seen[0] + seen[1] + seen[2];
        for (int i = 0; i < 3; i++) {
            (void)snprintf(expected, sizeof expected, "[%d] %s %d\n", i, word, i);
            seen[i] += strcmp(line, expected) == 0 ? 1 : 0;
        }
        others += before == seen[0] + seen[1] + seen[2] ? 1 : 0;
    }
    (void)fclose(file);
    cr_expect_eq(others, 0);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(seen[i], 1000, "rank %d: %d lines", i, seen[i]);
}

Test(launch, labels_stand_before_whole_lines)
{
    char *argv[] = {
        (char *)(size_t)SHELL, (char *)(size_t) "-c",
        (char *)(size_t) "i=0; while test $i -lt 999; do echo out $RANK; echo err $RANK >&2; "
                         "i=$((i+1)); done; printf 'out '; sleep 0.01; printf $RANK; printf 'err '$RANK >&2",
        NULL};
    const struct launch_request request = {.workers = 3, .argv = argv, .label = true};
    struct launch_result result;
    char out[512], err[512];
    folder_path(folder, "out", out, sizeof out);
    folder_path(folder, "err", err, sizeof err);
    (void)fflush(stdout);
    int saved_out = dup(1), saved_err = dup(2);
    int to_out = open(out, O_CREAT | O_WRONLY, 0600), to_err = open(err, O_CREAT | O_WRONLY, 0600);
    cr_assert(to_out >= 0 && to_err >= 0 && dup2(to_out, 1) == 1 && dup2(to_err, 2) == 2);
    enum status status = launch_local(&request, &result);
    cr_assert(dup2(saved_out, 1) == 1 && dup2(saved_err, 2) == 2);
    cr_assert_eq(status, STATUS_OK);
    cr_expect_eq(result.exit_code, 0);
    check_label_lines(out, "out");
    check_label_lines(err, "err");
}

Test(launch, labelled_lines_that_are_lost_are_a_failure)
{
    struct launch_result result;
    char *argv[] = {(char *)(size_t) "echo", (char *)(size_t) "word", NULL};
    const struct launch_request request = {.workers = 2, .argv = argv, .label = true};
    (void)fflush(stdout);
    int saved = dup(1), full = open("/dev/full", O_WRONLY);
    cr_assert(full >= 0 && dup2(full, 1) == 1);
    enum status status = launch_local(&request, &result);
    cr_assert(dup2(saved, 1) == 1);
    cr_assert_eq(status, STATUS_OK);
    cr_expect_eq(result.exit_code, 1);
    expect_contains(result.message, "standard output: No space left on device");
}

Test(launch, labelled_workers_end_when_nobody_reads)
{
    char *argv[] = {(char *)(size_t) "yes", NULL};
    const struct launch_request request = {.workers = 2, .argv = argv, .label = true};
    struct background background = {.unwanted = 0};
    struct outcome outcome;
    int ends[2], saved = dup(1);
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(dup2(ends[1], 1), 1);
    close(ends[1]);
    background.unwanted = ends[0];
    cr_assert(background_start(&background, &request));
    cr_assert_eq(dup2(saved, 1), 1);
    char some[100];
    cr_expect_gt(read(ends[0], some, sizeof some), 0);
    clock_sleep_ns(100000000); /* the pipe and the launcher's buffer are full by now */
    close(ends[0]);
    cr_assert(background_wait(&background, &outcome));
    expect_contains(outcome.result.message, "(SIGPIPE)");
}

/* --- what can't be started --- */

Test(launch, bad_requests_are_refused)
{
    char *nothing[] = {NULL};
    char *missing[] = {(char *)(size_t) "no-such-command", NULL};
    char *folder_itself[] = {folder, NULL};
    char *fine[] = {(char *)(size_t) "true", NULL};
    struct launch_result result;
    struct launch_request request = {.workers = 0, .argv = fine};
    cr_expect_eq(launch_local(&request, &result), STATUS_USAGE);
    request.workers = 1025;
    cr_expect_eq(launch_local(&request, &result), STATUS_USAGE);
    request = (struct launch_request){.workers = 2, .argv = nothing};
    cr_expect_eq(launch_local(&request, &result), STATUS_USAGE);
    request.argv = missing;
    cr_expect_eq(launch_local(&request, &result), STATUS_USAGE);
    expect_contains(status_message(), "no-such-command: No such file or directory");
    request.argv = folder_itself;
    cr_expect_eq(launch_local(&request, &result), STATUS_USAGE);
    cr_expect_eq(waitpid(-1, NULL, WNOHANG), -1, "a zombie is left");
}

Test(launch, too_few_open_files_are_named)
{
    struct rlimit limit = {.rlim_cur = 32, .rlim_max = 32};
    struct launch_result result;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_expect_eq(run_shell("exit 0", 16, &result), STATUS_UNAVAILABLE);
    expect_contains(status_message(), "open files");
    expect_contains(status_message(), "32");
}

Test(launch, a_low_soft_limit_is_raised_for_the_launcher_only)
{
    struct rlimit before, after;
    struct launch_result result;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    before.rlim_cur = 32;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert_eq(run_shell("test $(ulimit -S -n) = 32", 16, &result), STATUS_OK, "%s", status_message());
    cr_expect_eq(result.exit_code, 0);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &after), 0);
    cr_expect_eq(after.rlim_cur, 32);
}
