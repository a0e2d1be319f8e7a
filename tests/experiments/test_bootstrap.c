/* test_bootstrap.c - the same training under every launcher that is here: equal losses and parameters, bit by bit; and the
 * death of a worker, which ends all of them and is named. Slurm has a script of its own, tests/slurm.sh.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/experiments/support_program.h"

TestSuite(bootstrap, .init = program_setup, .fini = program_teardown, .timeout = 600);

#define LIMIT 15.0 /* seconds from a death to the end of all: below the deadline, which would end them otherwise */
#define SCRIPT_BYTES 4096

#define TRAIN "train --allreduce=ring --model=cnn --image-size=28 --batch=8 --threads=1 --eval=never --deadline=20 "

/* "start N WORDS" runs chorale as N workers. */
static const struct launcher {
    const char *name;
    const char *needs; /* a command that succeeds where it is installed */
    const char *start;
    bool
        ends_at_once; /* kills all within milliseconds of a death: what is said and left behind then is its own affair */
} launchers[] = {
    {"chorale", "true", "start() { n=$1; shift; \"$CHORALE\" \"$@\" -n $n; }", false},
    {"openmpi", "command -v mpiexec.openmpi && test -r \"$(dirname \"$CHORALE\")/chorale-bootstrap-pmix.so\"",
     "start() { root=; if [ $(id -u) -eq 0 ]; then root=--allow-run-as-root; fi; n=$1; shift; "
     "mpiexec.openmpi $root --oversubscribe -n $n \"$CHORALE\" \"$@\"; }",
     false},
    {"mpich", "command -v mpiexec.mpich", "start() { n=$1; shift; mpiexec.mpich -n $n \"$CHORALE\" \"$@\"; }", true},
    {"variables", "true",
     "start() { n=$1; shift; export WORLD_SIZE=$n MASTER_ADDR=localhost MASTER_PORT=$PORT; pids=; rank=0; "
     "while [ $rank -lt $n ]; do RANK=$rank \"$CHORALE\" \"$@\" & pids=\"$pids $!\"; rank=$((rank + 1)); done; code=0; "
     "for pid in $pids; do wait $pid || code=$?; done; return $code; }",
     false},
    {"torchrun", "command -v torchrun && /usr/bin/python3 -c 'import torch'",
     "start() { n=$1; shift; /usr/bin/python3 /usr/bin/torchrun --nproc_per_node=$n --master_port=$PORT -r 1 -t 1 "
     "--log_dir=logs "
     "--no_python \"$CHORALE\" \"$@\"; }",
     false},
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

static const struct launcher *launcher_named(const char *name)
{
    for (int i = 0; i < LAUNCHERS; i++)
        if (strcmp(launchers[i].name, name) == 0)
            return &launchers[i];
    cr_assert_fail("no launcher %s", name);
    return NULL;
}

static void skip_without(const struct launcher *launcher)
{
    struct outcome outcome;
    char script[512];
    snprintf(script, sizeof script, "{ %s; } >/dev/null 2>&1", launcher->needs);
    script_run(script, &outcome);
    const bool there = outcome.exit_code == 0;
    outcome_release(&outcome);
    if (!there)
        cr_skip_test("%s or what chorale needs for it is not installed", launcher->name);
}

static void start(const struct launcher *launcher, int workers, const char *words, struct program *program)
{
    char script[SCRIPT_BYTES];
    snprintf(script, sizeof script, FREE_PORT "; %s; start %d %s", launcher->start, workers, words);
    program_start_script(program, script);
}

/* ---- the same everywhere ---- */

/* Losses and parameters' hashes of the run in `folder`. */
static char *result_of(const char *folder)
{
    char path[128];
    json_error_t error;
    snprintf(path, sizeof path, "%s/summary.json", folder);
    json_t *summary = json_load_file(path, 0, &error);
    cr_assert(summary != NULL, "%s: %s", path, error.text);
    json_t *kept = json_object();
    static const char *const keys[] = {"loss_first", "loss_last", "parameter_hash", "workers"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        cr_assert(json_object_get(summary, keys[i]) != NULL, "%s", keys[i]);
        json_object_set(kept, keys[i], json_object_get(summary, keys[i]));
    }
    char *text = json_dumps(kept, JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    json_decref(kept);
    json_decref(summary);
    return text;
}

static void train(const struct launcher *launcher, const char *folder)
{
    char words[512];
    struct program program;
    struct outcome outcome;
    snprintf(words, sizeof words, TRAIN "--steps=3 --out=%s", folder);
    start(launcher, 2, words, &program);
    program_wait(&program, 300, &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s: %s%s", launcher->name, outcome.out, outcome.err);
    outcome_release(&outcome);
}

static void same_as_ours(const char *name)
{
    const struct launcher *launcher = launcher_named(name);
    skip_without(launcher);
    train(launcher_named("chorale"), "ours");
    train(launcher, "theirs");
    char *ours = result_of("ours"), *theirs = result_of("theirs");
    cr_expect_str_eq(ours, theirs);
    cr_expect(contains(ours, "\"workers\": 2"), "%s", ours);
    free(ours);
    free(theirs);
}

Test(bootstrap, same_training_under_openmpi)
{
    same_as_ours("openmpi");
}

Test(bootstrap, same_training_under_mpich)
{
    same_as_ours("mpich");
}

Test(bootstrap, same_training_by_variables)
{
    same_as_ours("variables");
}

Test(bootstrap, same_training_under_torchrun)
{
    same_as_ours("torchrun");
}

/* ---- every worker count ---- */

static void reduces(const char *name)
{
    const struct launcher *launcher = launcher_named(name);
    skip_without(launcher);
    static const int counts[] = {1, 3, 5, 7};
    for (int i = 0; i < 4; i++) {
        struct program program;
        struct outcome outcome;
        start(launcher, counts[i],
              "bench --allreduce=ring --sizes=1000..1000 --iters=1 -w 0 --check --json --deadline=60", &program);
        program_wait(&program, 300, &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s -n %d: %s", name, counts[i], outcome.err);
        json_error_t error;
        json_t *document = json_loads(outcome.out, 0, &error);
        cr_assert(document != NULL, "%s: %s", error.text, outcome.out);
        const json_t *row = json_array_get(json_object_get(document, "rows"), 0);
        cr_expect_eq(integer_of(row, "workers"), counts[i]);
        cr_expect_eq(integer_of(row, "wrong"), 0);
        json_decref(document);
        outcome_release(&outcome);
    }
}

Test(bootstrap, all_counts_under_openmpi)
{
    reduces("openmpi");
}

Test(bootstrap, all_counts_under_mpich)
{
    reduces("mpich");
}

Test(bootstrap, all_counts_by_variables)
{
    reduces("variables");
}

/* ---- death ---- */

/* Until the run has begun: the first step's record is there. */
static void await_steps(const char *folder)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    for (uint64_t deadline = deadline_after(240); !deadline_passed(deadline); clock_sleep_ns(20000000)) {
        FILE *file = fopen(path, "r");
        const bool begun = file != NULL && fgets(line, sizeof line, file) != NULL && contains(line, "step");
        if (file != NULL)
            fclose(file);
        if (begun)
            return;
    }
    cr_assert_fail("no step within 240 s");
}

/* By mpiexec. It kills the others itself, and of ends that reach it together it names the lowest rank's. */
static bool names_victim_or_lower(const struct outcome *outcome, const struct process *workers, int victim)
{
    char words[64];
    for (int rank = 0; rank <= victim; rank++) {
        snprintf(words, sizeof words, "PID %ld RUNNING AT", workers[rank].pid);
        if (contains(outcome->out, words))
            return true;
    }
    return false;
}

static void kill_one(const struct launcher *launcher, int victim)
{
    char folder[32], words[512], culprit[64];
    struct program program;
    struct outcome outcome;
    struct process workers[3];
    snprintf(folder, sizeof folder, "run%d", victim);
    snprintf(words, sizeof words, TRAIN "--steps=1000000 --out=%s%s", folder,
             launcher->ends_at_once ? " --transport=tcp" : ""); /* which leaves nothing behind */
    start(launcher, 3, words, &program);
    cr_assert(program_foreign_workers(&program, workers, 3), "%s", launcher->name);
    await_steps(folder);
    cr_assert_eq(kill((pid_t)workers[victim].pid, SIGKILL), 0);
    const double seconds = processes_gone_after(workers, 3, LIMIT);
    cr_log_info("%s: rank %d killed: workers gone after %.3f s", launcher->name, victim, seconds);
    cr_expect(seconds <= LIMIT, "%s: %.3f s", launcher->name, seconds);
    program_wait(&program, 60, &outcome);
    cr_expect_neq(outcome.exit_code, 0, "%s", launcher->name);
    snprintf(culprit, sizeof culprit, "chorale: rank %d on ", victim);
    const bool named = launcher->ends_at_once ? names_victim_or_lower(&outcome, workers, victim)
                                              : contains(outcome.err, culprit) || contains(outcome.out, culprit);
    cr_expect(named, "%s: the end of rank %d is not named: %s%s", launcher->name, victim, outcome.out, outcome.err);
    for (int rank = 0; rank < 3; rank++)
        cr_expect(launcher->ends_at_once || !shared_memory_left(workers[rank].pid), "%s: rank %d", launcher->name,
                  rank);
    outcome_release(&outcome);
}

static void a_death_is_named(const char *name)
{
    const struct launcher *launcher = launcher_named(name);
    skip_without(launcher);
    kill_one(launcher, 0); /* which holds the others together */
    kill_one(launcher, 1 + (int)rng_below(rng_key(test_seed(), "victim", 0, 0), 0, 2));
}

Test(bootstrap, a_death_is_named_under_openmpi)
{
    a_death_is_named("openmpi");
}

Test(bootstrap, a_death_is_named_under_mpich)
{
    a_death_is_named("mpich");
}

Test(bootstrap, a_death_is_named_by_variables)
{
    a_death_is_named("variables");
}

/* Who is killed can't end its workers, and what they say goes nowhere: they end themselves. */
static void nobody_goes_on_without(const char *name)
{
    const struct launcher *launcher = launcher_named(name);
    struct program program;
    struct outcome outcome;
    struct process workers[3];
    skip_without(launcher);
    start(launcher, 3, TRAIN "--steps=1000000 --out=run --transport=tcp", &program);
    cr_assert(program_foreign_workers(&program, workers, 3), "%s", launcher->name);
    await_steps("run");
    cr_assert_eq(kill((pid_t)workers[0].parent, SIGKILL), 0);
    const double seconds = processes_gone_after(workers, 3, LIMIT);
    cr_expect(seconds <= LIMIT, "%s: %.3f s", launcher->name, seconds);
    program_wait(&program, 60, &outcome);
    cr_expect_neq(outcome.exit_code, 0, "%s", launcher->name);
    cr_expect_eq(outcome.left, 0);
    for (int rank = 0; rank < 3; rank++)
        cr_expect(launcher->ends_at_once || !shared_memory_left(workers[rank].pid), "rank %d", rank);
    outcome_release(&outcome);
}

/* The same with a shell between, which would not end. */
static void nobody_goes_on_behind_a_shell(const char *name)
{
    const struct launcher *launcher = launcher_named(name);
    struct program program;
    struct outcome outcome;
    struct process workers[4]; /* two, and their shells */
    char script[SCRIPT_BYTES];
    skip_without(launcher);
    (void)snprintf(script, sizeof script,
                   "printf '#!/bin/sh\\n%%s \"$@\"; exit $?\\n' \"$CHORALE\" >wrapped; chmod +x wrapped; %s; "
                   "CHORALE=$PWD/wrapped; start 2 " TRAIN "--steps=1000000 --out=run --transport=tcp",
                   launcher->start);
    program_start_script(&program, script);
    cr_assert(program_foreign_workers(&program, workers, 2), "%s", launcher->name);
    await_steps("run");
    for (int i = 0; i < 2; i++)
        cr_assert(process_find(workers[i].parent, &workers[2 + i]));
    cr_assert_eq(kill((pid_t)workers[2].parent, SIGKILL), 0);
    const double seconds = processes_gone_after(workers, 4, LIMIT);
    cr_expect(seconds <= LIMIT, "%s: %.3f s", launcher->name, seconds);
    program_wait(&program, 60, &outcome);
    cr_expect_neq(outcome.exit_code, 0, "%s", launcher->name);
    cr_expect_eq(outcome.left, 0);
    outcome_release(&outcome);
}

Test(bootstrap, nobody_goes_on_behind_a_shell_without_openmpis_mpiexec)
{
    nobody_goes_on_behind_a_shell("openmpi");
}

Test(bootstrap, nobody_goes_on_behind_a_shell_without_mpichs_proxy)
{
    nobody_goes_on_behind_a_shell("mpich");
}

Test(bootstrap, addresses_may_be_written_in_brackets)
{
    struct outcome outcome;
    script_run(FREE_PORT
               "; export WORLD_SIZE=2 "
               "MASTER_ADDR=[::1] MASTER_PORT=$PORT; test -e /proc/net/if_inet6 || exit 0; RANK=1 \"$CHORALE\" bench "
               "--sizes=8 --iters=1 & RANK=0 \"$CHORALE\" bench --sizes=8 --iters=1 && wait $!",
               &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    outcome_release(&outcome);
}

Test(bootstrap, nobody_goes_on_without_openmpis_mpiexec)
{
    nobody_goes_on_without("openmpi");
}

Test(bootstrap, nobody_goes_on_without_mpichs_proxy)
{
    nobody_goes_on_without("mpich");
}

/* It takes long to begin: one victim, another in each run. */
Test(bootstrap, a_death_is_named_under_torchrun)
{
    const struct launcher *launcher = launcher_named("torchrun");
    skip_without(launcher);
    kill_one(launcher, (int)rng_below(rng_key(test_seed(), "victim", 0, 0), 0, 3));
}

/* ---- environments that are torn ---- */

static void refused(const char *variables, const char *words, const char *what)
{
    char script[SCRIPT_BYTES];
    struct outcome outcome;
    snprintf(script, sizeof script, "env %s \"$CHORALE\" %s", variables, words);
    script_run(script, &outcome);
    cr_expect_eq(outcome.exit_code, 2, "%s: %s", variables, outcome.err);
    expect_one_line(&outcome, variables);
    cr_expect(contains(outcome.err, what), "%s: %s", variables, outcome.err);
    outcome_release(&outcome);
}

Test(bootstrap, nobody_trains_alone_by_mistake)
{
    static const char *const torn[][2] = {
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "PMIX_RANK is not"},
        {"PMI_RANK=0 PMI_SIZE=2", "PMI_FD is not"},
        {"PMIX_RANK=0", "PMIX_NAMESPACE is not"},
        {"RANK=1", "WORLD_SIZE is not"},
        {"WORLD_SIZE=4", "RANK is not"},
        {"SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID is not"},
        {"RANK=0 WORLD_SIZE=2", "MASTER_ADDR is not"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost", "MASTER_PORT is not"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=0", "MASTER_PORT=0"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 CHORALE_PORT=65536", "CHORALE_PORT=65536"},
        {"RANK=2 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=4711", "RANK=2"},
    };
    for (size_t i = 0; i < sizeof torn / sizeof *torn; i++) {
        refused(torn[i][0], TRAIN "--steps=1", torn[i][1]);
        refused(torn[i][0], "bench -n 2 --allreduce=ring --sizes=8..8", torn[i][1]);
    }
    refused("SLURM_JOB_ID=7 SLURM_NTASKS=4", TRAIN "--steps=1", "SLURM_NTASKS=4");
}

Test(bootstrap, a_missing_module_is_named)
{
    const struct launcher *launcher = launcher_named("openmpi");
    struct program program;
    struct outcome outcome;
    skip_without(launcher);
    program_start_script(&program,
                         "root=; if [ $(id -u) -eq 0 ]; then root=--allow-run-as-root; fi; mkdir none; "
                         "CHORALE_MODULES=$PWD/none mpiexec.openmpi $root --oversubscribe -n 2 \"$CHORALE\" " TRAIN
                         "--steps=1");
    program_wait(&program, 100, &outcome);
    cr_expect_neq(outcome.exit_code, 0);
    cr_expect(contains(outcome.err, "join through PMIx: no module ") && contains(outcome.err, "libpmix-dev"), "%s",
              outcome.err);
    outcome_release(&outcome);
}

Test(bootstrap, counts_that_disagree_are_said_once)
{
    const struct launcher *launcher = launcher_named("variables");
    struct program program;
    struct outcome outcome;
    start(launcher, 2, "bench -n 3 --allreduce=ring --sizes=8..8", &program);
    program_wait(&program, 100, &outcome);
    cr_expect_eq(outcome.exit_code, 2, "%s", outcome.err);
    cr_expect(contains(outcome.err, "-n 3: the job that started this program has 2 workers"), "%s", outcome.err);
    cr_expect_eq(lines_of(outcome.err), 1, "%s", outcome.err);
    outcome_release(&outcome);
}

static int lines_of_ours(const char *text)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, "chorale: ")) != NULL; at++)
        count++;
    return count;
}

/* What is wrong with the words is found by every worker before it joins. */
static void usage_is_said_once(const char *name)
{
    static const char *const words[] = {"bench --nonsense=3", "train --allreduce=nope"};
    static const char *const what[] = {"unknown option --nonsense", "unknown algorithm nope"};
    const struct launcher *launcher = launcher_named(name);
    skip_without(launcher);
    for (int i = 0; i < 2; i++) {
        struct program program;
        struct outcome outcome;
        start(launcher, 4, words[i], &program);
        program_wait(&program, 100, &outcome);
        cr_expect_eq(outcome.exit_code, 2, "%s: %s", name, outcome.err);
        cr_expect_eq(lines_of_ours(outcome.err), 1, "%s: %s", name, outcome.err);
        cr_expect(contains(outcome.err, what[i]), "%s: %s", name, outcome.err);
        outcome_release(&outcome);
    }
}

Test(bootstrap, wrong_usage_is_said_once_under_openmpi)
{
    usage_is_said_once("openmpi");
}

Test(bootstrap, wrong_usage_is_said_once_under_mpich)
{
    usage_is_said_once("mpich");
}

Test(bootstrap, wrong_usage_is_said_once_by_variables)
{
    usage_is_said_once("variables");
}

Test(bootstrap, wrong_usage_of_one_worker_is_its_own)
{
    struct outcome outcome;
    script_run("exec \"$CHORALE\" run -n 3 -- sh -c 'test $RANK = 1 && wrong=--nonsense; exec \"$CHORALE\" bench "
               "--allreduce=ring --sizes=8..8 $wrong'",
               &outcome);
    cr_expect_eq(outcome.exit_code, 2);
    expect_one_line(&outcome, "one worker's words");
    cr_expect(contains(outcome.err, "rank 1 on "), "%s", outcome.err);
    outcome_release(&outcome);
}

Test(bootstrap, an_option_that_one_worker_lacks_is_told)
{
    static const struct {
        const char *option, *told;
    } unlike[] = {{"--allreduce=gossip", "--allreduce=ring of rank 0, gossip of rank 1"},
                  {"--lr=0.5", "--lr=0.1 of rank 0, 0.5 of rank 1"},
                  {"--shard=fixed", "--shard=global of rank 0, fixed of rank 1"},
                  {"--label-smoothing=0.5", "--label-smoothing=0 of rank 0, 0.5 of rank 1"},
                  {"--steps=3", "--steps=2 of rank 0, 3 of rank 1"},
                  {"--overlap=none", "--overlap=the usual one of rank 0, none of rank 1"},
                  {"--inject=straggler=0:2", "--inject=nothing of rank 0, straggler=0:2 of rank 1"},
                  {"--checkpoint=1", "--checkpoint=never of rank 0, 1 of rank 1"},
                  {"--transport=tcp", "--transport=auto of rank 0, tcp of rank 1"},
                  {"--provider=net", "--provider=the usual one of rank 0, net of rank 1"},
                  {"--segment=64K", "--segment=the usual one of rank 0, 65536 of rank 1"},
                  {"--window=2", "--window=the usual one of rank 0, 2 of rank 1"},
                  {"--nodes=1+2", "--nodes=the usual one of rank 0, 1+2 of rank 1"}};
    for (size_t k = 0; k < sizeof unlike / sizeof *unlike; k++) {
        struct outcome outcome;
        char script[SCRIPT_BYTES];
        snprintf(script, sizeof script,
                 "exec \"$CHORALE\" run -n 3 -- sh -c 'test $RANK = 1 && unlike=%s; exec \"$CHORALE\" " TRAIN
                 "--steps=2 $unlike'",
                 unlike[k].option);
        script_run(script, &outcome);
        cr_expect_eq(outcome.exit_code, 1);
        expect_one_line(&outcome, unlike[k].option);
        cr_expect(contains(outcome.err, unlike[k].told), "%s", outcome.err);
        outcome_release(&outcome);
    }
}

Test(bootstrap, an_allocation_is_no_hindrance_to_who_says_how_many)
{
    struct outcome outcome;
    script_run("env SLURM_JOB_ID=7 SLURM_NTASKS=4 \"$CHORALE\" bench -n 2 --allreduce=ring --sizes=8..8 --iters=1 -w 0",
               &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    outcome_release(&outcome);
}
