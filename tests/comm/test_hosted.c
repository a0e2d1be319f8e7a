/* test_hosted.c - jobs whose workers somebody else has started: rank 0 serves them, and whatever is wrong with who comes, when,
 * where, and how they end, every worker ends by itself, with the reason named.
 *
 * Workers are worker_job with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; what they say is in FOLDER/err.N.
 */
#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "comm/host.h"
#include "comm/job.h"
#include "support_launch.h"

#define WORKER CHORALE_WORKERS "/comm_worker_job"
#define LIMIT 20.0   /* from a death to the end of the others, which would else wait for 30 s */
#define PROMISED 2.0 /* and once of some */
enum { MOST = 8, TEXT_BYTES = 4096 };

static char folder[FOLDER_BYTES];
static long pids[MOST];
static int started;
static int port;

static bool is_free(int number)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const bool free = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return free;
}

/* A port that is free, and the next one, too; none that the kernel gives to connections of others meanwhile. */
static int free_port(void)
{
    const uint64_t key = rng_key(clock_ns(), "port", (uint64_t)getpid(), 0);
    for (uint64_t turn = 0;; turn++) {
        const int found = 10000 + (int)rng_below(key, turn, 22000);
        const bool both = is_free(found) && is_free(found + 1);
        if (both)
            return found;
    }
}

static void setup(void)
{
    cr_assert(folder_make(folder));
    port = free_port();
    started = 0;
}

static void teardown(void)
{
    for (int i = 0; i < started; i++)
        if (pids[i] > 0) {
            kill((pid_t)pids[i], SIGKILL);
            (void)waitpid((pid_t)pids[i], NULL, 0);
            job_remove_leftovers(pids[i]);
        }
    folder_remove(folder);
}

TestSuite(hosted, .init = setup, .fini = teardown, .timeout = 300);

/* "NAME=VALUE NAME=VALUE": for the process that is about to be. */
static void set_all(const char *variables)
{
    char text[1024], *rest = NULL;
    (void)snprintf(text, sizeof text, "%s", variables);
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        (void)setenv(word, equals + 1, 1);
    }
}

/* Starts one more process; its number among them all. */
static int start(const char *mode, int rank, int size, const char *address, const char *variables)
{
    char path[512], name[32], text[16];
    const int number = started++;
    (void)snprintf(name, sizeof name, "err.%d", number);
    folder_path(folder, name, path, sizeof path);
    pids[number] = fork();
    if (pids[number] == 0) {
        (void)snprintf(text, sizeof text, "%d", rank);
        (void)setenv("RANK", text, 1);
        (void)snprintf(text, sizeof text, "%d", size);
        (void)setenv("WORLD_SIZE", text, 1);
        (void)snprintf(text, sizeof text, "%d", port);
        (void)setenv("MASTER_PORT", text, 1);
        (void)setenv("MASTER_ADDR", address, 1);
        set_all(variables);
        if (freopen(path, "w", stderr) == NULL)
            _exit(98);
        (void)execl(WORKER, "worker_job", mode, folder, (char *)NULL);
        _exit(127);
    }
    return number;
}

/* The exit code; 128 + signal. */
static int end_of(int number)
{
    int status = 0;
    cr_assert_eq(waitpid((pid_t)pids[number], &status, 0), pids[number]);
    pids[number] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static const char *said_by(int number)
{
    static char text[TEXT_BYTES];
    char path[512], name[32];
    (void)snprintf(name, sizeof name, "err.%d", number);
    folder_path(folder, name, path, sizeof path);
    FILE *file = fopen(path, "r");
    const size_t length = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL)
        (void)fclose(file);
    text[length] = '\0';
    return text;
}

static void expect_said(int number, const char *what)
{
    const char *text = said_by(number);
    cr_expect_not_null(strstr(text, what), "%d: \"%s\" is not in \"%s\"", number, what, text);
}

static void expect_lines(int number, int lines)
{
    int count = 0;
    for (const char *c = said_by(number); *c != '\0'; c++)
        count += *c == '\n' ? 1 : 0;
    cr_expect_eq(count, lines, "%d: %s", number, said_by(number));
}

/* Starts a job with such a deadline, and looks whether what ended it is what was to be seen, but for what it says. */
typedef bool attempt(const char *variables);

/* With longer and longer deadlines, until it is. */
static void attempt_until(attempt *one, double first)
{
    for (int turn = 0; turn < DEADLINE_TURNS; turn++) {
        char variables[32];
        (void)snprintf(variables, sizeof variables, "TEST_DEADLINE=%g", DEADLINE_OF(turn, first));
        if (one(variables))
            return;
        teardown();
        setup();
    }
    cr_assert_fail("no deadline was long enough");
}

static bool said(int number, const char *what)
{
    return strstr(said_by(number), what) != NULL;
}

/* --- all goes well --- */

static void run_happy(int workers, const char *address, const char *variables)
{
    const int first = started;
    for (int rank = workers - 1; rank >= 0; rank--) /* rank 0 last */
        (void)start("happy", rank, workers, address, variables);
    for (int i = first; i < started; i++)
        cr_expect_eq(end_of(i), 0, "%d workers at %s: %s", workers, address, said_by(i));
    started = first;
}

Test(hosted, every_count)
{
    static const int counts[] = {1, 2, 3, 5, 7};
    for (int i = 0; i < 5; i++)
        run_happy(counts[i], "127.0.0.1", "UNUSED=1");
}

Test(hosted, every_kind_of_address)
{
    char name[256] = "";
    run_happy(3, "::1", "UNUSED=1");
    run_happy(3, "localhost", "UNUSED=1");
    run_happy(3, "127.0.1.1", "UNUSED=1");
    cr_assert_eq(gethostname(name, sizeof name - 1), 0);
    run_happy(3, name, "LOCAL_WORLD_SIZE=3"); /* one host: whatever the name stands for */
    run_happy(3, name, "CHORALE_JOB_TOKEN=0123456789abcdef");
}

Test(hosted, an_address_of_the_network_needs_a_secret)
{
    char address[HOST_ADDRESS_BYTES];
    if (host_outward_address(address) != STATUS_OK)
        cr_skip_test("this host has a loopback interface only");
    run_happy(3, address, "CHORALE_JOB_TOKEN=0123456789abcdef");
    for (int rank = 0; rank < 2; rank++)
        (void)start("happy", rank, 2, address, "UNUSED=1");
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(end_of(i), 2);
        expect_said(i, "set CHORALE_JOB_TOKEN alike");
    }
}

Test(hosted, an_agents_port_is_left_alone)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int agent = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(agent, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(agent, 8), 0);
    run_happy(2, "127.0.0.1", "TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True");
    close(agent);
}

Test(hosted, torchrun_stands_above_what_it_was_started_by)
{
    run_happy(2, "127.0.0.1",
              "TORCHELASTIC_RUN_ID=none PMIX_NAMESPACE=other PMIX_RANK=0 SLURM_STEP_ID=0 SLURM_PROCID=0 "
              "SLURM_STEP_NUM_TASKS=4");
}

Test(hosted, slurms_variables_alone)
{
    char variables[512];
    for (int rank = 0; rank < 3; rank++) {
        (void)snprintf(variables, sizeof variables,
                       "SLURM_STEP_ID=0 SLURM_JOB_ID=12 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=1 "
                       "SLURM_STEP_NODELIST=n[1-3] CHORALE_PORT=%d SLURM_PROCID=%d RANK= MASTER_ADDR=",
                       port, rank);
        (void)start("happy", 0, 1, "", variables);
    }
    for (int i = 0; i < 3; i++)
        cr_expect_eq(end_of(i), 0, "%s", said_by(i));
}

/* --- who comes, and when --- */

Test(hosted, late_workers_are_awaited)
{
    for (int rank = 1; rank < 3; rank++)
        (void)start("happy", rank, 3, "127.0.0.1", "UNUSED=1");
    clock_sleep_ns(500000000);
    (void)start("happy", 0, 3, "127.0.0.1", "UNUSED=1");
    for (int i = 0; i < 3; i++)
        cr_expect_eq(end_of(i), 0, "%s", said_by(i));
}

static bool miss_rank_2(const char *variables)
{
    for (int rank = 0; rank < 2; rank++)
        (void)start("happy", rank, 3, "127.0.0.1", variables);
    for (int i = 0; i < 2; i++)
        cr_expect_eq(end_of(i), 1);
    return !said(0, "ranks 1, 2, awaited by rank 0 on ");
}

Test(hosted, a_missing_worker_is_named_at_the_deadline)
{
    attempt_until(miss_rank_2, 0.5);
    expect_said(0, "rank 2, awaited by rank 0 on ");
}

Test(hosted, without_rank_0_everyone_says_so)
{
    for (int rank = 1; rank < 3; rank++)
        (void)start("happy", rank, 3, "127.0.0.1", "TEST_DEADLINE=0.5");
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(end_of(i), 1);
        expect_said(i, "connect to rank 0 at 127.0.0.1:");
        expect_said(i, "Connection refused");
    }
}

Test(hosted, an_unknown_name_is_asked_for_until_the_deadline)
{
    (void)start("happy", 1, 2, "no-such-host.invalid", "TEST_DEADLINE=0.3");
    cr_expect_neq(end_of(0), 0);
    expect_said(0, "no-such-host.invalid");
}

Test(hosted, two_workers_of_one_rank_are_named)
{
    static const int ranks[] = {0, 1, 1, 2};
    for (int i = 0; i < 4; i++)
        (void)start("wait", ranks[i], 4, "127.0.0.1", "TEST_DEADLINE=20");
    for (int i = 0; i < 4; i++)
        cr_expect_neq(end_of(i), 0);
    expect_said(0, "joins although process");
    expect_said(0, "rank 1 on ");
}

Test(hosted, two_workers_of_rank_0_are_named)
{
    for (int i = 0; i < 2; i++)
        (void)start("wait", 0, 3, "127.0.0.1", "TEST_DEADLINE=20");
    for (int i = 0; i < 2; i++) {
        cr_expect_neq(end_of(i), 0);
        expect_said(i, "joins although process");
    }
}

Test(hosted, counts_that_disagree_are_named)
{
    (void)start("wait", 0, 2, "127.0.0.1", "CHORALE_JOB_TOKEN=0123456789abcdef");
    (void)start("wait", 1, 3, "127.0.0.1", "CHORALE_JOB_TOKEN=0123456789abcdef");
    for (int i = 0; i < 2; i++)
        cr_expect_neq(end_of(i), 0);
    expect_said(0, "joins as rank 1 of 3, but the job has 2 workers");
}

static bool disagree(const char *variables)
{
    (void)start("happy", 0, 2, "127.0.0.1", variables);
    (void)start("happy", 1, 3, "127.0.0.1", variables);
    for (int i = 0; i < 2; i++)
        cr_expect_neq(end_of(i), 0);
    return said(0, "turned away") && !said(1, "connect to rank 0");
}

/* Without a secret the number is part of the token: the line still says what differs. */
Test(hosted, counts_that_disagree_are_named_without_a_secret)
{
    attempt_until(disagree, 1);
    expect_said(0, "does not know the job's token, and is a worker of 3, not of 2");
    expect_said(1, "this is a worker of 3, and the job at the address has 2");
}

/* Who knows another secret is a stranger: the job waits for the right one, which is missing in the end. */
Test(hosted, another_token_is_turned_away_with_one_line)
{
    (void)start("happy", 0, 2, "127.0.0.1", "CHORALE_JOB_TOKEN=0123456789abcdef");
    (void)start("happy", 1, 2, "127.0.0.1", "CHORALE_JOB_TOKEN=fedcba9876543210");
    cr_expect_eq(end_of(1), 2);
    expect_said(1, "wrong token");
    (void)start("happy", 1, 2, "127.0.0.1", "CHORALE_JOB_TOKEN=0123456789abcdef");
    cr_expect_eq(end_of(2), 0, "%s", said_by(2));
    cr_expect_eq(end_of(0), 0, "%s", said_by(0));
    expect_said(0, "note: control channel: turned away 127.0.0.1:");
    expect_said(0, "does not know the job's token");
    expect_lines(0, 1);
}

Test(hosted, a_short_secret_is_refused)
{
    (void)start("happy", 0, 2, "127.0.0.1", "CHORALE_JOB_TOKEN=secret");
    cr_expect_eq(end_of(0), 2);
    expect_said(0, "CHORALE_JOB_TOKEN has 6 characters");
}

/* --- strangers at rank 0 --- */

static int stranger(const char *bytes, size_t length)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    for (uint64_t deadline = deadline_after(30); connect(fd, (struct sockaddr *)&address, sizeof address) != 0;) {
        cr_assert(!deadline_passed(deadline));
        clock_sleep_ns(5000000);
    }
    if (length > 0)
        cr_assert_eq(send(fd, bytes, length, MSG_NOSIGNAL), (ssize_t)length);
    return fd;
}

static void turned_away(const char *bytes, size_t length, const char *why)
{
    (void)start("happy", 0, 2, "127.0.0.1", "TEST_DEADLINE=10");
    int fd = stranger(bytes, length);
    for (uint64_t deadline = deadline_after(5); /* silence takes as long as the job's: it must not wait for it */
         length > 0 && said_by(0)[0] == '\0' && !deadline_passed(deadline);)
        clock_sleep_ns(5000000);
    (void)start("happy", 1, 2, "127.0.0.1", "TEST_DEADLINE=10");
    cr_expect_eq(end_of(1), 0, "%s", said_by(1));
    cr_expect_eq(end_of(0), 0, "%s", said_by(0));
    if (why != NULL) {
        expect_said(0, why);
        expect_lines(0, 1);
    }
    close(fd);
}

Test(hosted, garbage_is_turned_away)
{
    turned_away("GET / HTTP/1.0\r\n\r\n", 18, "no greeting of this program");
}

Test(hosted, a_length_of_4_GiB_is_turned_away)
{
    turned_away("\xff\xff\xff\xff\x02\x00\x00\x00", 8, "no greeting of this program");
}

Test(hosted, silence_holds_nobody_up)
{
    turned_away("", 0, NULL);
}

/* --- a port that is somebody's --- */

Test(hosted, a_port_that_is_taken_is_named)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int squatter = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(squatter, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(squatter, 8), 0);
    for (int rank = 0; rank < 2; rank++)
        (void)start("happy", rank, 2, "127.0.0.1", "TEST_DEADLINE=1");
    for (int i = 0; i < 2; i++)
        cr_expect_eq(end_of(i), 1);
    expect_said(0, "Address already in use: free it, or set CHORALE_PORT");
    expect_said(1, "it takes connections and says nothing");
    close(squatter);
}

Test(hosted, an_address_of_another_host_is_refused_by_rank_0)
{
    (void)start("happy", 0, 2, "192.0.2.1", "CHORALE_JOB_TOKEN=0123456789abcdef LOCAL_WORLD_SIZE=1 TEST_DEADLINE=1");
    cr_expect_neq(end_of(0), 0); /* listens everywhere, as behind an address that is translated; nobody comes */
    expect_said(0, "rank 1, awaited by rank 0");
}

/* --- how they end --- */

/* Returns after how many seconds the others were gone. */
static double kill_one(int victim)
{
    char name[16];
    const int first = started;
    for (int rank = 0; rank < 3; rank++)
        (void)start("wait", rank, 3, "127.0.0.1", "UNUSED=1");
    for (int rank = 0; rank < 3; rank++)
        cr_assert_gt(folder_number(folder, rank, ""), 0);
    cr_assert_eq(kill((pid_t)pids[first + victim], SIGKILL), 0);
    long victim_pid = pids[first + victim], others[2];
    for (int i = 0, j = 0; i < 3; i++)
        if (i != victim)
            others[j++] = pids[first + i];
    const double gone = processes_gone_after(others, 2, LIMIT);
    cr_expect_leq(gone, LIMIT);
    cr_log_info("rank %d killed: gone after %.3f s", victim, gone);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(end_of(first + i), i == victim ? 128 + SIGKILL : 1);
    const int speaker = first + (victim == 0 ? 1 : 0);
    (void)snprintf(name, sizeof name, "rank %d on ", victim);
    expect_said(speaker, name);
    expect_lines(speaker, 1);
    for (int i = 0; i < 3; i++)
        if (first + i != speaker)
            expect_lines(first + i, 0);
    cr_expect_not(leftover_exists(victim_pid), "of rank %d", victim);
    folder_remove(folder);
    cr_assert(folder_make(folder));
    started = first;
    port = free_port();
    return gone;
}

Test(hosted, a_killed_worker_is_named_once_and_the_others_end)
{
    cr_expect_lt(fmin(fmin(kill_one(0), kill_one(1)), kill_one(2)), PROMISED);
}

Test(hosted, the_text_of_a_failing_worker_is_said_once)
{
    for (int rank = 0; rank < 3; rank++)
        (void)start("abort", rank, 3, "127.0.0.1", "UNUSED=1");
    cr_expect_eq(end_of(0), 1);
    cr_expect_eq(end_of(1), 5);
    cr_expect_eq(end_of(2), 1);
    expect_said(0, "rank 1 on HERE: open data: no such file: make it");
    expect_lines(0, 1);
    expect_lines(1, 0);
    expect_lines(2, 0);
}

Test(hosted, different_calls_are_noticed)
{
    for (int rank = 0; rank < 3; rank++)
        (void)start("mismatch", rank, 3, "127.0.0.1", "UNUSED=1");
    for (int i = 0; i < 3; i++)
        cr_expect_eq(end_of(i), 1);
    expect_said(0, "all workers must make the same calls");
}

Test(hosted, an_early_leaver_is_named)
{
    for (int rank = 0; rank < 3; rank++)
        (void)start("leave", rank, 3, "127.0.0.1", "UNUSED=1");
    cr_expect_eq(end_of(0), 1);
    (void)end_of(1);
    cr_expect_eq(end_of(2), 1);
    expect_said(0, "rank 1");
    expect_said(0, "all workers must make the same calls");
}

static bool stop_rank_1(const char *variables)
{
    for (int rank = 0; rank < 3; rank++)
        (void)start("stop", rank, 3, "127.0.0.1", variables);
    cr_expect_eq(end_of(0), 1);
    cr_expect_eq(end_of(2), 1);
    return said(0, "not at barrier 2 ");
}

Test(hosted, a_stopped_worker_is_named_at_the_deadline)
{
    attempt_until(stop_rank_1, 0.5);
    expect_said(0, "rank 1 on ");
}

static bool stop_rank_0(const char *variables)
{
    for (int rank = 0; rank < 2; rank++)
        (void)start("gather", rank, 2, "127.0.0.1", variables);
    for (int rank = 0; rank < 2; rank++)
        if (folder_number(folder, rank, "") < 0)
            return false;
    cr_assert_eq(kill((pid_t)pids[0], SIGSTOP), 0);
    cr_expect_neq(end_of(1), 0);
    return said(1, "no answer from rank 0");
}

/* Nobody serves then: the others' own bound stands behind. */
Test(hosted, a_stopped_rank_0_is_named)
{
    attempt_until(stop_rank_0, 0.5);
    expect_said(1, "(rank 0 on ");
}

/* Its heartbeats are missing. */
Test(hosted, a_stopped_rank_0_is_named_though_nobody_waits_for_it)
{
    for (int rank = 0; rank < 2; rank++)
        (void)start("wait", rank, 2, "127.0.0.1", "TEST_DEADLINE=6");
    for (int rank = 0; rank < 2; rank++)
        cr_assert_gt(folder_number(folder, rank, ""), 0);
    clock_sleep_ns(100000000); /* the first one, which says how often they come, was sent before all had joined */
    cr_assert_eq(kill((pid_t)pids[0], SIGSTOP), 0);
    cr_expect_neq(end_of(1), 0);
    expect_said(1, ": nothing was heard of it for 6 s");
}
