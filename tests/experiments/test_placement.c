/* test_placement.c - which CPUs, threads and nodes workers have, by whatever has started or bound them, and that it is stored.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/topology.h"
#include "support_program.h"

TestSuite(placement, .init = program_setup, .fini = program_teardown, .timeout = 300);

#define BENCH "bench --allreduce=hierarchical --sizes=64 --iters=1 --warmup=0 --in-place=no --json"
#define TRAIN "train --model=cnn --data=synthetic --image-size=28 --batch=4 --steps=1 --eval=never --json --out=out"

/* "placement" of what a script with "$CHORALE" printed: of the first row, or of the summary. */
static json_t *placement_of(const char *script)
{
    struct outcome outcome;
    script_run(script, &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s: %s", script, outcome.err);
    json_t *document = json_loads(outcome.out, 0, NULL);
    const json_t *row = json_array_get(json_object_get(document, "rows"), 0);
    json_t *placement = json_incref(json_object_get(row != NULL ? row : document, "placement"));
    cr_assert_not_null(placement, "%s: %s", script, outcome.out);
    json_decref(document);
    outcome_release(&outcome);
    return placement;
}

static const char *cpus_of(const json_t *placement, size_t rank)
{
    const char *text = json_string_value(json_array_get(json_object_get(placement, "cpus"), rank));
    cr_assert_not_null(text);
    return text;
}

static void expect_threads(const char *script, int threads)
{
    json_t *placement = placement_of(script);
    cr_expect_eq(integer_of(placement, "threads"), threads, "%s", script);
    json_decref(placement);
    cr_assert_eq(system("rm -rf out"), 0); /* NOLINT(concurrency-mt-unsafe,cert-env33-c) */
}

/* Cores and CPUs of this machine that we may use; suites run with whatever a person or a container has left them. */
static int cores(void)
{
    struct host_cpus allowed;
    struct topology topology;
    host_cpus_allowed(&allowed);
    cr_assert_eq(topology_read(&allowed, &topology), STATUS_OK);
    const int count = topology.cores;
    topology_release(&topology);
    return count;
}

static void need(bool there, const char *what)
{
    if (!there)
        cr_skip_test("needs %s", what);
}

/* The numbers of the first two CPUs that this process may use. */
static void two_cpus(int cpu[2])
{
    struct host_cpus allowed;
    host_cpus_allowed(&allowed);
    need(host_cpus_count(&allowed) >= 2, "two CPUs");
    for (int i = 0, found = 0; found < 2; i++)
        if ((allowed.word[i / 64] >> (i % 64) & 1) != 0)
            cpu[found++] = i;
}

Test(placement, workers_get_cores_of_their_own)
{
    need(cores() >= 2, "two cores");
    json_t *placement = placement_of("\"$CHORALE\" " BENCH " -n 2 --bind=core");
    cr_expect(json_is_true(json_object_get(placement, "bound")));
    cr_expect_str_neq(cpus_of(placement, 0), cpus_of(placement, 1));
    cr_expect_str_eq(string_of(placement, "nodes"), "1x2");
    json_decref(placement);
    placement = placement_of("\"$CHORALE\" " BENCH " -n 2 --bind=none");
    cr_expect(json_is_false(json_object_get(placement, "bound")));
    cr_expect_str_eq(cpus_of(placement, 0), cpus_of(placement, 1));
    json_decref(placement);
}

Test(placement, too_many_workers_for_their_cores)
{
    int cpu[2];
    char script[300];
    two_cpus(cpu);
    snprintf(script, sizeof script, "exec taskset -c %d \"$CHORALE\" " BENCH " -n 2", cpu[1]);
    json_t *placement = placement_of(script);
    cr_expect_str_eq(string_of(placement, "why"), "fewer cores than threads");
    json_decref(placement);
    struct outcome outcome;
    snprintf(script, sizeof script, "exec taskset -c %d \"$CHORALE\" " BENCH " -n 2 --bind=core", cpu[1]);
    script_run(script, &outcome);
    cr_expect_eq(outcome.exit_code, 2);
    cr_expect(contains(outcome.err, "--bind=core: 2 workers share 1 core: take --bind=none"), "%s", outcome.err);
    outcome_release(&outcome);
}

/* As srun, mpirun and numactl do. */
Test(placement, what_a_launcher_has_bound_stays)
{
    int cpu[2];
    char script[400], one[16], other[16];
    two_cpus(cpu);
    snprintf(
        script, sizeof script,
        "exec \"$CHORALE\" run -n 2 -- sh -c 'if [ $RANK = 0 ]; then cpu=%d; else cpu=%d; fi; exec taskset -c $cpu "
        "\"$0\" \"$@\"' \"$CHORALE\" " TRAIN,
        cpu[1], cpu[0]);
    json_t *placement = placement_of(script);
    snprintf(one, sizeof one, "%d", cpu[1]);
    snprintf(other, sizeof other, "%d", cpu[0]);
    cr_expect_str_eq(cpus_of(placement, 0), one);
    cr_expect_str_eq(cpus_of(placement, 1), other);
    cr_expect_str_eq(string_of(placement, "why"), "bound by the launcher");
    cr_expect_eq(integer_of(placement, "threads"), 1);
    json_decref(placement);
}

Test(placement, threads)
{
    char script[300];
    int cpu[2];
    expect_threads("unset OMP_NUM_THREADS; exec \"$CHORALE\" " TRAIN, host_cores() < cores() ? host_cores() : cores());
    expect_threads("export OMP_NUM_THREADS=3,2; exec \"$CHORALE\" " TRAIN, 3);
    expect_threads("export OMP_NUM_THREADS=3; exec \"$CHORALE\" " TRAIN " --threads=2", 2);
    const int share = (host_cores() < cores() ? host_cores() : cores()) / 3;
    expect_threads("export OMP_NUM_THREADS=many; exec \"$CHORALE\" " TRAIN " -n 3", share > 1 ? share : 1);
    two_cpus(cpu);
    snprintf(script, sizeof script, "unset OMP_NUM_THREADS; exec taskset -c %d \"$CHORALE\" " TRAIN, cpu[0]);
    expect_threads(script, 1);
}

Test(placement, what_the_environment_says_of_threads_is_said)
{
    struct outcome outcome;
    script_run(
        "export OMP_NUM_THREADS=3; exec \"$CHORALE\" train --model=cnn --data=synthetic --image-size=28 --batch=4 "
        "--steps=1 --eval=never --threads=2 --out=out",
        &outcome);
    cr_expect(contains(outcome.out, "2 threads each (not OMP_NUM_THREADS=3)"), "%s", outcome.out);
    outcome_release(&outcome);
    json_t *placement = placement_of("export OMP_PROC_BIND=close; exec \"$CHORALE\" " BENCH " -n 2");
    cr_expect_str_eq(string_of(placement, "why"), "OpenMP's variables place threads");
    json_decref(placement);
}

/* A container of its own for rank 1: it sees no process of the others. */
Test(placement, nodes_are_what_shares_memory)
{
    struct outcome outcome;
    script_run("unshare --pid --fork true", &outcome);
    const bool can = outcome.exit_code == 0;
    outcome_release(&outcome);
    need(can, "the right to unshare");
    json_t *placement =
        placement_of("exec \"$CHORALE\" run -n 3 -- sh -c 'if [ $RANK = 1 ]; then exec unshare --pid --fork "
                     "--kill-child \"$0\" \"$@\"; fi; exec \"$0\" \"$@\"' \"$CHORALE\" " BENCH);
    cr_expect_str_eq(string_of(placement, "nodes"), "2+1");
    json_decref(placement);
    placement =
        placement_of("exec \"$CHORALE\" run -n 3 -- sh -c 'export CHORALE_NODE=$((RANK % 2)); exec \"$0\" \"$@\"' "
                     "\"$CHORALE\" " BENCH);
    cr_expect_str_eq(string_of(placement, "nodes"), "2+1");
    json_decref(placement);
}

/* Two launchers that know nothing of each other, or a script that thinks of one worker a host. */
Test(placement, wrong_local_ranks_are_counted_anew)
{
    struct outcome outcome;
    script_run(FREE_PORT "; export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT LOCAL_RANK=0\n"
                         "RANK=1 \"$CHORALE\" " BENCH " & RANK=0 \"$CHORALE\" " BENCH "; code=$?; wait; exit $code",
               &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect(contains(outcome.err, "ranks 0 and 1 are on one machine and both have the local rank 0"), "%s",
              outcome.err);
    cr_expect_eq(lines_of(outcome.err), 1);
    outcome_release(&outcome);
}
