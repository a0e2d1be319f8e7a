/* test_death.c - whatever ends a worker or the launcher of the real program, at whatever moment: everything of the job
 * is gone within two seconds, and one line says who it was and why.
 *
 * A machine that is loaded or stands still for a while makes one end late, not each of many: every one is tested against
 * LIMIT, above which only a deadline (30 s) would have ended the job, and the quickest of a test against what is promised.
 */
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "support_program.h"
#include "tests/base/shared_memory.h"

#define LIMIT 20.0
#define PROMISED 2.0
#define PATIENCE 250.0 /* seconds that something may take to begin: ends a hang */
#define CNN "--model=cnn --image-size=28 --batch=8 --threads=1 --steps=1000000 --out=run"
#define BENCH "bench --sizes=8..16M --iters=3000 -w 0"

enum { WORKERS_MOST = 8 };

TestSuite(death, .init = program_setup, .fini = program_teardown, .timeout = 300);

/* A job under way. */
struct job_under_test {
    struct program program;
    struct process all[WORKERS_MOST + 1]; /* the workers by rank, then the launcher */
    int workers;
};

static void job_start(struct job_under_test *job, const char *words, int workers)
{
    job->workers = workers;
    program_start(&job->program, words);
    cr_assert(program_workers(&job->program, job->all, workers), "%s: the workers have not come", words);
    cr_assert(process_find((long)job->program.pid, &job->all[workers]));
}

/* Until what is written to stdout, or to a file, has a whole line that is no comment. */
static void await_line(FILE *stream, const char *path)
{
    static char text[1 << 16];
    bool found = false;
    for (uint64_t deadline = deadline_after(PATIENCE); !found && !deadline_passed(deadline); clock_sleep_ns(2000000)) {
        ssize_t count = 0;
        FILE *file = stream != NULL ? stream : fopen(path, "re");
        if (file == NULL)
            continue;
        count = pread(fileno(file), text, sizeof text - 1, 0);
        if (file != stream)
            (void)fclose(file);
        text[count > 0 ? count : 0] = '\0';
        for (const char *line = text; line != NULL && *line != '\0' && !found; line = strchr(line, '\n')) {
            line += *line == '\n';
            found = *line != '#' && *line != '\0' && strchr(line, '\n') != NULL;
        }
    }
    cr_assert(found, "nothing has begun");
}

static void sleep_at_random(uint64_t key, uint64_t round, double most)
{
    clock_sleep_ns((uint64_t)(rng_uniform(key, round) * most * 1e9));
}

static double quickest = INFINITY; /* of this test, which is a process of its own */

/* Everything is gone, nothing lies in /dev/shm. */
static void expect_gone(struct job_under_test *job, const char *what, struct outcome *outcome)
{
    double gone = processes_gone_after(job->all, job->workers + 1, LIMIT);
    printf("%s: gone after %.3f s\n", what, gone);
    (void)fflush(stdout);
    program_wait(&job->program, PATIENCE, outcome);
    cr_expect_lt(gone, LIMIT, "%s: not gone after %.3f s", what, gone);
    quickest = fmin(quickest, gone);
    cr_expect_not(outcome->timed_out, "%s", what);
    cr_expect_eq(outcome->left, 0, "%s: %d processes are left", what, outcome->left);
    for (int i = 0; i < job->workers; i++)
        cr_expect_not(shared_memory_left(job->all[i].pid), "%s: rank %d left shared memory", what, i);
}

static void expect_named(const struct outcome *outcome, const char *what, int rank, const char *how)
{
    char host[256] = "", named[512];
    cr_assert_eq(gethostname(host, sizeof host - 1), 0);
    (void)snprintf(named, sizeof named, "chorale: rank %d on %s: %s", rank, host, how);
    cr_expect_eq(strncmp(outcome->err, named, strlen(named)), 0, "%s: \"%s\" does not begin with \"%s\"", what,
                 outcome->err, named);
    expect_one_line(outcome, what);
}

static void kill_worker(struct job_under_test *job, const char *words, int victim)
{
    char what[256];
    struct outcome outcome;
    (void)snprintf(what, sizeof what, "%.200s: rank %d killed", words, victim);
    cr_assert_eq(kill((pid_t)job->all[victim].pid, SIGKILL), 0);
    expect_gone(job, what, &outcome);
    cr_expect_eq(outcome.exit_code, 1, "%s: exit code %d", what, outcome.exit_code);
    expect_named(&outcome, what, victim, "killed by signal 9 (SIGKILL): ");
    outcome_release(&outcome);
}

/* ---- one worker is killed ---- */

Test(death, a_killed_worker_ends_a_bench_at_any_moment)
{
    static const char *const jobs[] = {
        BENCH " -n 4 --allreduce=ring --transport=shm",
        BENCH " -n 3 --allreduce=recursive-halving-doubling --transport=tcp",
        BENCH " -n 5 --allreduce=gossip:graph=ring --transport=shm",
        BENCH " -n 4 --allreduce=naive --transport=tcp --json",
        BENCH " -n 2 --allreduce=double-buffered",
    };
    static const int workers[] = {4, 3, 5, 4, 2};
    need_shared_memory(5);
    uint64_t key = rng_key(test_seed(), "death", 1, 0);
    for (uint64_t round = 0; round < 10; round++) {
        struct job_under_test job;
        int victim = (int)rng_below(key, 2 * round, (uint64_t)workers[round % 5]);
        job_start(&job, jobs[round % 5], workers[round % 5]);
        sleep_at_random(key, 2 * round + 1, 1.2);
        kill_worker(&job, jobs[round % 5], victim);
    }
    cr_expect_lt(quickest, PROMISED);
}

static void kill_in_training(const char *words, int workers, uint64_t key, bool begun)
{
    struct job_under_test job;
    job_start(&job, words, workers);
    if (begun)
        await_line(NULL, "run/metrics.jsonl");
    sleep_at_random(key, 0, begun ? 0.3 : 1.5);
    kill_worker(&job, words, (int)rng_below(key, 1, (uint64_t)workers));
}

Test(death, a_killed_worker_ends_training_at_any_moment)
{
    static const char *const jobs[] = {
        "train " CNN " -n 3 --allreduce=ring",
        "train " CNN " -n 2 --allreduce=double-buffered --transport=tcp",
        "train " CNN " -n 3 --allreduce=gossip:graph=ring",
    };
    static const int workers[] = {3, 2, 3};
    uint64_t seed = test_seed();
    for (uint64_t round = 0; round < 6; round++) {
        kill_in_training(jobs[round % 3], workers[round % 3], rng_key(seed, "death", 2, round), round >= 3);
        program_teardown();
        program_setup();
    }
    cr_expect_lt(quickest, PROMISED);
}

Test(death, a_worker_killed_in_a_long_computation)
{
    kill_in_training("train --model=resnet18 --image-size=32 --batch=4 --threads=1 --steps=1000000 --out=run -n 2", 2,
                     rng_key(test_seed(), "death", 3, 0), true);
}

/* ---- one worker stops, or goes home early ---- */

/* A short deadline may pass on a loaded machine before all have come to what is tested, or before all have answered why they
 * wait: then the line names others, and the test goes on with a longer one. */
enum { DEADLINE_MOST = 60 };
#define NEXT_DEADLINE(deadline) ((deadline)*4)

static void stop_rank_1(const char *words, const char *begun, struct outcome *outcome)
{
    struct job_under_test job;
    job_start(&job, words, 3);
    await_line(begun == NULL ? job.program.out : NULL, begun);
    cr_assert_eq(kill((pid_t)job.all[1].pid, SIGSTOP), 0);
    program_wait(&job.program, PATIENCE, outcome);
    cr_expect_not(outcome->timed_out, "%s", words);
    cr_expect_eq(outcome->exit_code, 1, "%s", words);
    cr_expect_lt(processes_gone_after(job.all, 4, LIMIT), LIMIT, "%s", words);
    expect_one_line(outcome, words);
    for (int rank = 0; rank < 3; rank++)
        cr_expect_not(shared_memory_left(job.all[rank].pid), "rank %d", rank);
}

/* `begun`: the file that has a line once the job is under way; NULL: stdout. */
static void expect_stopped_named(const char *words, const char *begun)
{
    bool named = false;
    for (int deadline = 2; !named && deadline < DEADLINE_MOST; deadline = NEXT_DEADLINE(deadline)) {
        struct outcome outcome;
        char all[512], seconds[16];
        (void)snprintf(all, sizeof all, "%s --deadline=%d", words, deadline);
        (void)snprintf(seconds, sizeof seconds, "%d s", deadline);
        stop_rank_1(all, begun, &outcome);
        named = contains(outcome.err, seconds) && (contains(outcome.err, "rank 1") || contains(outcome.err, " to 1 ") ||
                                                   contains(outcome.err, " from 1 "));
        cr_expect(named || NEXT_DEADLINE(deadline) < DEADLINE_MOST, "%s: \"%s\" does not name rank 1", all,
                  outcome.err);
        outcome_release(&outcome);
        program_teardown();
        program_setup();
    }
}

Test(death, a_stopped_worker_is_named_at_the_deadline)
{
    expect_stopped_named(BENCH " -n 3 --allreduce=ring", NULL);
    expect_stopped_named("train " CNN " -n 3 --allreduce=ring", "run/metrics.jsonl");
}

Test(death, a_worker_that_ends_early_with_0_is_a_failure)
{
    struct outcome outcome;
    script_run("exec \"$CHORALE\" run -n 3 -- sh -c 'test $RANK = 1 && exit 0; exec \"$CHORALE\" " BENCH "'", &outcome);
    cr_expect_eq(outcome.exit_code, 1);
    expect_named(&outcome, "a worker that exits with 0", 1, "ended (exit 0) without joining");
    outcome_release(&outcome);
}

/* What all were asked, in the file that the line names. */
static char *answers_of(const struct outcome *outcome)
{
    char *path = strstr(outcome->err, "each waited for: "), *text = NULL;
    size_t length = 0;
    cr_assert_not_null(path, "%s", outcome->err);
    path += strlen("each waited for: ");
    path[strcspn(path, " \n")] = '\0'; /* where another serves: on which host */
    cr_assert_eq(file_read(path, 1 << 20, &text, &length), STATUS_OK, "%s", status_message());
    return text;
}

/* Runs a script in which rank 1 computes for so long that the others wait in vain. DEADLINE is the job's. */
static void run_straggler(const char *script, struct outcome *outcome)
{
    for (int deadline = 3;; deadline = NEXT_DEADLINE(deadline)) {
        char text[16];
        (void)snprintf(text, sizeof text, "%d", deadline);
        cr_assert_eq(setenv("DEADLINE", text, 1), 0); /* NOLINT(concurrency-mt-unsafe): one thread */
        script_run(script, outcome);
        if (contains(outcome->err, "(rank 1 on ") && contains(outcome->err, "waits for nobody"))
            return;
        cr_assert(NEXT_DEADLINE(deadline) < DEADLINE_MOST, "%s", outcome->err);
        outcome_release(outcome);
        program_teardown();
        program_setup();
    }
}

/* A thousand times its computing is long after any deadline. */
#define LONG "--model=cnn --image-size=28 --batch=64 --threads=1 --steps=1000000 --out=run"

/* Alive, but it does not come. */
Test(death, a_worker_that_does_not_come_is_named_and_all_say_what_they_wait_for)
{
    struct outcome outcome;
    run_straggler("exec \"$CHORALE\" train " LONG
                  " -n 3 --allreduce=ring --deadline=$DEADLINE --inject=straggler=1:1000",
                  &outcome);
    cr_expect_eq(outcome.exit_code, 1);
    expect_one_line(&outcome, "a straggler");
    char *answers = answers_of(&outcome);
    cr_expect(contains(answers, "rank 0 on ") && contains(answers, "rank 2 on "), "%s", answers);
    cr_expect(contains(answers, "answers, and waits for nobody"), "%s", answers);
    cr_expect(contains(answers, "ring of ") && contains(answers, "lane 0: ") && contains(answers, "next is number "),
              "%s", answers);
    free(answers);
    outcome_release(&outcome);
}

/* Rank 0 says what all know, also when it waits in vain itself. */
Test(death, the_same_where_rank_0_serves)
{
    struct outcome outcome;
    run_straggler(FREE_PORT
                  "; export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT; for RANK in 0 1 2; do export "
                  "RANK; \"$CHORALE\" train " LONG " --allreduce=ring --deadline=$DEADLINE "
                  "--inject=straggler=1:1000 >out$RANK 2>err$RANK & done; wait; cat err* >&2",
                  &outcome);
    expect_one_line(&outcome, "a straggler");
    char *answers = answers_of(&outcome);
    cr_expect(contains(answers, "rank 0 on ") && contains(answers, "rank 2 on "), "%s", answers);
    free(answers);
    outcome_release(&outcome);
}

/* A worker that is ended, or ends, between its connection and its greeting is no stranger. */
static void end_before_greeting(const char *rank_0, const char *rank_1, int victim, const char *how)
{
    char script[1024];
    struct outcome outcome;
    (void)snprintf(script, sizeof script,
                   "exec \"$CHORALE\" run -n 3 -- bash -c 'connect() { exec 3<>/dev/tcp/${CHORALE_CONTROL/:/\\/}; : "
                   ">connected; }; case $RANK in 0) %s;; 1) %s;; esac; until [ -e connected ]; do sleep 0.01; done; "
                   "exec \"$CHORALE\" " BENCH "'",
                   rank_0, rank_1);
    script_run(script, &outcome);
    cr_expect_eq(outcome.exit_code, 1);
    expect_named(&outcome, script, victim, how);
    outcome_release(&outcome);
}

Test(death, a_worker_that_ends_before_it_greets_is_no_stranger)
{
    end_before_greeting("connect; sleep 100", "until [ -e connected ]; do sleep 0.01; done; exit 0", 1,
                        "ended (exit 0) without joining");
}

Test(death, a_worker_killed_before_it_greets_is_named)
{
    end_before_greeting("connect; kill -9 $$", "sleep 100", 0, "killed by signal 9");
}

Test(death, a_worker_stopped_before_it_greets_is_named)
{
    struct outcome outcome;
    script_run("exec \"$CHORALE\" run -n 2 --deadline=1.5 -- bash -c 'if [ $RANK = 0 ]; then exec "
               "3<>/dev/tcp/${CHORALE_CONTROL/:/\\/}; kill -STOP $$; fi; exec \"$CHORALE\" bench --deadline=1.5'",
               &outcome);
    cr_expect_eq(outcome.exit_code, 1);
    expect_one_line(&outcome, "stopped before it greets");
    cr_expect(contains(outcome.err, "rank 0 on ") && contains(outcome.err, "is stopped"), "%s", outcome.err);
    outcome_release(&outcome);
}

Test(death, a_worker_with_other_calls_is_found_out)
{
    struct outcome outcome;
    script_run("exec \"$CHORALE\" run -n 2 -- sh -c 'exec \"$CHORALE\" bench --allreduce=ring -b $((RANK+1))K -e 2K "
               "-f 1024 --iters=2'",
               &outcome);
    cr_expect_eq(outcome.exit_code, 1);
    expect_one_line(&outcome, "other sizes");
    cr_expect(contains(outcome.err, "of 256 elements") && contains(outcome.err, "of 512 elements"), "%s", outcome.err);
    outcome_release(&outcome);
}

/* ---- the launcher ---- */

static void signal_launcher(const char *words, int workers, bool begun, int number, int exit_code, uint64_t key)
{
    struct job_under_test job;
    struct outcome outcome;
    job_start(&job, words, workers);
    if (begun)
        await_line(job.program.out, NULL);
    sleep_at_random(key, 0, 1);
    cr_assert_eq(kill(job.program.pid, number), 0);
    expect_gone(&job, words, &outcome);
    cr_expect_eq(outcome.exit_code, exit_code, "%s: exit code %d", words, outcome.exit_code);
    if (number != SIGKILL)
        cr_expect(contains(outcome.err, number == SIGINT ? "SIGINT" : "SIGTERM"), "%s", outcome.err);
    if (begun || number != SIGKILL)
        expect_one_line(&outcome, words);
    outcome_release(&outcome);
}

Test(death, ctrl_c_ends_the_job_with_130)
{
    uint64_t seed = test_seed();
    signal_launcher(BENCH " -n 4 --allreduce=ring", 4, false, SIGINT, 130, rng_key(seed, "death", 4, 0));
    signal_launcher(BENCH " -n 3 --allreduce=ring --transport=tcp", 3, true, SIGINT, 130, rng_key(seed, "death", 4, 1));
    signal_launcher("train " CNN " -n 2 --allreduce=ring", 2, false, SIGINT, 130, rng_key(seed, "death", 4, 2));
    signal_launcher(BENCH " -n 2 --allreduce=ring", 2, true, SIGTERM, 143, rng_key(seed, "death", 4, 3));
}

Test(death, workers_of_a_killed_launcher_go_and_one_says_why)
{
    need_shared_memory(4);
    uint64_t seed = test_seed();
    signal_launcher(BENCH " -n 4 --allreduce=ring --transport=shm", 4, true, SIGKILL, 137,
                    rng_key(seed, "death", 5, 0));
    signal_launcher(BENCH " -n 3 --allreduce=ring --transport=tcp", 3, true, SIGKILL, 137,
                    rng_key(seed, "death", 5, 1));
    signal_launcher(BENCH " -n 3 --allreduce=ring", 3, false, SIGKILL, 137, rng_key(seed, "death", 5, 2));
    signal_launcher("train " CNN " -n 3 --allreduce=double-buffered", 3, true, SIGKILL, 137,
                    rng_key(seed, "death", 5, 3));
}

/* ---- the tests' own time limit ---- */

Test(death, a_time_limit_reaches_what_workers_have_started)
{
    struct job_under_test job;
    struct outcome outcome;
    job_start(&job, "run -n 2 -- sh -c 'sleep 1000 & : > started$RANK; sleep 1000'", 2);
    while (access("started0", F_OK) != 0 || access("started1", F_OK) != 0)
        clock_sleep_ns(2000000);
    program_wait(&job.program, 0.1, &outcome);
    cr_expect(outcome.timed_out);
    cr_expect_lt(processes_gone_after(job.all, 3, LIMIT), LIMIT);
    cr_expect_eq(outcome.left, 0, "%d processes are left", outcome.left);
    outcome_release(&outcome);
}

/* ---- nothing stays that would disturb the next job ---- */

Test(death, the_next_job_runs)
{
    struct job_under_test job;
    struct outcome outcome;
    job_start(&job, BENCH " -n 4 --allreduce=ring", 4);
    await_line(job.program.out, NULL);
    kill_worker(&job, "the job before", 2);
    program_run("bench -n 4 --allreduce=ring -b 1M -e 1M --iters=2 --check", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    outcome_release(&outcome);
}
