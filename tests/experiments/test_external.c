/* test_external.c - the program started by an MPI's mpiexec: MPI's own allreduce beside ours in one run. */
#include <stdlib.h>
#include <string.h>

#include "tests/experiments/support_program.h"

TestSuite(external, .init = program_setup, .fini = program_teardown, .timeout = 600);

#define SAME_SHELL                                                                                                     \
    "mpi() { case $1 in openmpi) root=; if [ $(id -u) -eq 0 ]; then root=--allow-run-as-root; fi; n=$2; shift 2; "     \
    "mpiexec.openmpi $root --oversubscribe -n $n \"$@\";; "                                                            \
    "mpich) n=$2; shift 2; mpiexec.mpich -n $n \"$@\";; esac; }; "

static bool is_there(const char *mpi)
{
    char script[512];
    struct outcome outcome;
    snprintf(script, sizeof script,
             "command -v mpiexec.%s >/dev/null && test -r \"$(dirname \"$CHORALE\")/chorale-external-%s.so\"", mpi,
             mpi);
    script_run(script, &outcome);
    const bool there = outcome.exit_code == 0;
    outcome_release(&outcome);
    return there;
}

static void run(const char *mpi, int workers, const char *words, struct outcome *outcome)
{
    char script[2048];
    struct program program;
    snprintf(script, sizeof script, SAME_SHELL "mpi %s %d \"$CHORALE\" %s", mpi, workers, words);
    program_start_script(&program, script);
    program_wait(&program, 300, outcome); /* what mpiexec leaves running for a moment is its affair */
    cr_assert(!outcome->timed_out, "%s", script);
}

static void beside_ours(const char *mpi)
{
    if (!is_there(mpi))
        cr_skip_test("mpiexec.%s or its module is not installed", mpi);
    for (int workers = 1; workers <= 3; workers += 2) {
        struct outcome outcome;
        json_error_t error;
        size_t i, rows = 0;
        json_t *row;
        run(mpi, workers,
            "bench --allreduce=mpi,ring,one-shot --sizes=0..4K:x512 --iters=2 -w 1 --check --json --transport=shm",
            &outcome);
        cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
        json_t *document = json_loads(outcome.out, 0, &error);
        cr_assert(document != NULL, "%s: %s", error.text, outcome.out);
        json_array_foreach(json_object_get(document, "rows"), i, row)
        {
            const bool foreign = strcmp(json_string_value(json_object_get(row, "allreduce")), "mpi") == 0;
            cr_expect_eq(json_integer_value(json_object_get(row, "workers")), workers);
            cr_expect_eq(json_integer_value(json_object_get(row, "wrong")), 0);
            cr_expect(json_is_integer(json_object_get(row, "wrong")));
            cr_expect_eq(json_is_null(json_object_get(row, "wire_bytes")), foreign);
            cr_expect_eq(json_is_string(json_object_get(row, "decided")), foreign);
            rows++;
        }
        cr_expect_eq(rows, 6u, "%zu rows", rows);
        json_decref(document);
        outcome_release(&outcome);
    }
}

static void every_type_and_operator(const char *mpi)
{
    static const char *const types[] = {"f32", "f64", "i32", "i64"}, *const operators[] = {"sum", "min", "max", "avg"};
    if (!is_there(mpi))
        cr_skip_test("mpiexec.%s or its module is not installed", mpi);
    for (int i = 0; i < 4; i++) {
        char words[256];
        struct outcome outcome;
        snprintf(words, sizeof words,
                 "bench --allreduce=mpi --sizes=1000..1000 --iters=1 -w 0 --check --dtype=%s --op=%s", types[i],
                 operators[i]);
        run(mpi, 2, words, &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s %s: %s", types[i], operators[i], outcome.err);
        outcome_release(&outcome);
    }
}

static void a_count_that_disagrees(const char *mpi)
{
    struct outcome outcome;
    if (!is_there(mpi))
        cr_skip_test("mpiexec.%s or its module is not installed", mpi);
    run(mpi, 2, "bench -n 3 --allreduce=mpi --sizes=8..8", &outcome);
    cr_expect_neq(outcome.exit_code, 0);
    cr_expect(strstr(outcome.err, "the job that started this program has 2 workers") != NULL, "%s", outcome.err);
    outcome_release(&outcome);
}

Test(external, beside_ours_openmpi)
{
    beside_ours("openmpi");
}

Test(external, beside_ours_mpich)
{
    beside_ours("mpich");
}

Test(external, every_type_and_operator_openmpi)
{
    every_type_and_operator("openmpi");
}

Test(external, every_type_and_operator_mpich)
{
    every_type_and_operator("mpich");
}

Test(external, a_count_that_disagrees_openmpi)
{
    a_count_that_disagrees("openmpi");
}

Test(external, a_count_that_disagrees_mpich)
{
    a_count_that_disagrees("mpich");
}

Test(external, without_mpiexec_it_says_how_to_start)
{
    REFUSED("bench -n 2 --allreduce=mpi --sizes=8..8", 2, "no MPI has started this job", "mpiexec -n 2");
}
