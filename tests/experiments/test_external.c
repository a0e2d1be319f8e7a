/* test_external.c - the program started by an MPI's mpiexec, MPI's own allreduce beside ours in one run; and ours under
 * a program of MPI's (mpi_program.c). */
#include <stdlib.h>
#include <string.h>

#include "tests/base/shared_memory.h"
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
    need_shared_memory(4); /* the MPI takes some, too */
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

/* ---- ours under MPI_Allreduce ---- */

/* `library`: preloaded; `settings`: CHORALE_... as a shell sets them. */
static void run_preloaded(const char *library, const char *mpi, int workers, const char *settings, const char *words,
                          struct outcome *outcome)
{
    char script[4096];
    struct program program;
    snprintf(script, sizeof script,
             SAME_SHELL "mpi %s %d env LD_PRELOAD=%s %s \"" CHORALE_WORKERS "/mpi_program_%s\" %s", mpi, workers,
             library, settings, mpi, words);
    program_start_script(&program, script);
    program_wait(&program, 300, outcome);
    cr_assert(!outcome->timed_out, "%s: %s", script, outcome->err);
}

static void run_under(const char *mpi, int workers, const char *settings, const char *words, struct outcome *outcome)
{
    char library[256];
    snprintf(library, sizeof library, "\"$(dirname \"$CHORALE\")/libchorale-mpi-%s.so\"", mpi);
    run_preloaded(library, mpi, workers, settings, words, outcome);
}

static bool has_interposer(const char *mpi)
{
    char script[512];
    struct outcome outcome;
    snprintf(script, sizeof script, "test -r \"$(dirname \"$CHORALE\")/libchorale-mpi-%s.so\"", mpi);
    script_run(script, &outcome);
    const bool there = outcome.exit_code == 0;
    outcome_release(&outcome);
    return there && is_there(mpi);
}

static void under_a_program(const char *mpi)
{
    static const struct {
        int workers;
        const char *settings, *words;
    } runs[] = {{1, "CHORALE_ALLREDUCE=ring", ""},
                {2, "CHORALE_ALLREDUCE=rhd CHORALE_TRANSPORT=tcp", ""},
                {3, "CHORALE_ALLREDUCE=ring CHORALE_TRANSPORT=shm", ""},
                {2, "CHORALE_ALLREDUCE=auto", ""},
                {2, "CHORALE_ALLREDUCE=ring CHORALE_TRANSPORT=shm", "threads"}};
    if (!has_interposer(mpi))
        cr_skip_test("mpiexec.%s or what is built for it is not here", mpi);
    need_shared_memory(4);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct outcome outcome;
        unsigned long long calls = 0, other = 0;
        char line[128];
        const bool threads = runs[i].words[0] != '\0';
        run_under(mpi, runs[i].workers, runs[i].settings, runs[i].words, &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s: %s%s", runs[i].settings, outcome.out, outcome.err);
        const char *said = strstr(outcome.out, "calls ");
        cr_assert(said != NULL && sscanf(said, "calls %llu other %llu", &calls, &other) == 2, "%s", outcome.out);
        cr_expect(other >= 3 && calls > 100 && strstr(outcome.out, "WRONG") == NULL, "%s", outcome.out);
        snprintf(line, sizeof line, "calls of all: %llu by ", threads ? 0 : calls - other);
        cr_expect(contains(outcome.err, line), "%s: %s", line, outcome.err);
        snprintf(line, sizeof line, ", %llu by MPI itself (", threads ? calls : other);
        cr_expect(contains(outcome.err, line), "%s: %s", line, outcome.err);
        if (threads)
            cr_expect(contains(outcome.err, ": MPI_THREAD_MULTIPLE)"), "%s", outcome.err);
        else
            cr_expect(contains(outcome.err, ": type, ") && contains(outcome.err, ": operator"), "%s", outcome.err);
        outcome_release(&outcome);
    }
}

/* Two nodes of one worker: on one of two there would be nobody to exchange with between the nodes, which is refused. */
static void on_nodes_under_a_program(const char *mpi)
{
    struct outcome outcome;
    if (!has_interposer(mpi))
        cr_skip_test("mpiexec.%s or what is built for it is not here", mpi);
    run_under(mpi, 2,
              "CHORALE_ALLREDUCE=hierarchical:inter=neighbor-exchange sh -c "
              "'CHORALE_NODE=${OMPI_COMM_WORLD_RANK-$PMI_RANK} exec \"$0\"'",
              "", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s%s", outcome.out, outcome.err);
    cr_expect(contains(outcome.out, "calls ") && !contains(outcome.out, "WRONG"), "%s", outcome.out);
    cr_expect(contains(outcome.err, " by hierarchical:inter=neighbor-exchange over tcp, "), "%s", outcome.err);
    cr_expect(!contains(outcome.err, "refuses"), "%s", outcome.err);
    outcome_release(&outcome);
    run_under(mpi, 2, "CHORALE_ALLREDUCE=hierarchical:inter=neighbor-exchange", "", &outcome);
    cr_expect_neq(outcome.exit_code, 0);
    cr_expect(contains(outcome.err, "CHORALE_ALLREDUCE: neighbor-exchange needs an even number"), "%s", outcome.err);
    outcome_release(&outcome);
}

static void refused_under_a_program(const char *mpi)
{
    static const char *const cases[][2] = {
        {"CHORALE_ALLREDUCE=rong", "CHORALE_ALLREDUCE: unknown algorithm rong"},
        {"CHORALE_ALLREDUCE=", "CHORALE_ALLREDUCE: not set"},
        {"CHORALE_ALLREDUCE=gossip", "CHORALE_ALLREDUCE: gossip: MPI_Allreduce needs a schedule"},
        {"CHORALE_ALLREDUCE=ring CHORALE_TRANSPORT=pigeons", "CHORALE_TRANSPORT: transport pigeons: unknown"}};
    if (!has_interposer(mpi))
        cr_skip_test("mpiexec.%s or what is built for it is not here", mpi);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct outcome outcome;
        run_under(mpi, 2, cases[i][0], "", &outcome);
        cr_expect_neq(outcome.exit_code, 0, "%s", cases[i][0]);
        cr_expect(contains(outcome.err, cases[i][1]), "%s: %s", cases[i][0], outcome.err);
        cr_expect(!contains(outcome.out, "calls "), "%s: %s", cases[i][0], outcome.out);
        outcome_release(&outcome);
    }
}

/* tcp: what a killed process leaves in /dev/shm only a launcher of ours would remove. */
static void a_death_under_a_program(const char *mpi)
{
    struct outcome outcome;
    if (!has_interposer(mpi))
        cr_skip_test("mpiexec.%s or what is built for it is not here", mpi);
    run_under(mpi, 3, "CHORALE_ALLREDUCE=ring CHORALE_TRANSPORT=tcp", "die", &outcome);
    cr_expect_neq(outcome.exit_code, 0);
    cr_expect(!contains(outcome.out, "calls "), "%s", outcome.out);
    outcome_release(&outcome);
}

/* Under its plain name it finds out itself which MPI that is. */
static void picked_under_a_program(const char *mpi)
{
    struct outcome outcome;
    if (!has_interposer(mpi))
        cr_skip_test("mpiexec.%s or what is built for it is not here", mpi);
    run_preloaded("\"$(dirname \"$CHORALE\")/libchorale-mpi.so\"", mpi, 2,
                  "CHORALE_ALLREDUCE=rhd CHORALE_TRANSPORT=shm", "", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s%s", outcome.out, outcome.err);
    cr_expect(contains(outcome.out, "calls ") && !contains(outcome.out, "WRONG"), "%s", outcome.out);
    cr_expect(contains(outcome.err, " by recursive-halving-doubling over shm, "), "%s", outcome.err);
    outcome_release(&outcome);
    run_preloaded("\"$(dirname \"$CHORALE\")/libchorale-mpi.so\"", mpi, 2, "CHORALE_ALLREDUCE=rong", "", &outcome);
    cr_expect_neq(outcome.exit_code, 0);
    cr_expect(contains(outcome.err, "unknown algorithm rong"), "%s", outcome.err);
    outcome_release(&outcome);
}

/* libfabric reads its settings once: before MPI's transport, which may be the first to call it. */
Test(external, settings_come_before_mpi)
{
    struct outcome outcome;
    if (!has_interposer("openmpi"))
        cr_skip_test("mpiexec.openmpi or what is built for it is not here");
    run_under("openmpi", 2,
              "CHORALE_ALLREDUCE=ring CHORALE_TRANSPORT=tcp OMPI_MCA_mtl=ofi FI_LOG_LEVEL=info FI_LOG_PROV=net", "",
              &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.out);
    cr_expect(contains(outcome.err, "read int var staging_sbuf_size=0"));
    cr_expect_not(contains(outcome.err, "variable staging_sbuf_size=<not set>"));
    outcome_release(&outcome);
    cr_assert_eq(setenv("OMPI_MCA_mtl", "ofi", 1) | setenv("FI_LOG_LEVEL", "info", 1) | setenv("FI_LOG_PROV", "net", 1),
                 0);
    run("openmpi", 2, "bench --allreduce=mpi,ring --transport=tcp --sizes=8..8 --iters=1 -w 0", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.out);
    cr_expect(contains(outcome.err, "read int var staging_sbuf_size=0"));
    cr_expect_not(contains(outcome.err, "variable staging_sbuf_size=<not set>"));
    outcome_release(&outcome);
}

/* A copy that has no interposer beside it. */
static void nothing_to_pick(const char *mpi)
{
    struct outcome outcome;
    if (!has_interposer(mpi))
        cr_skip_test("mpiexec.%s or what is built for it is not here", mpi);
    run_preloaded("$(cp \"$(dirname \"$CHORALE\")/libchorale-mpi.so\" . && echo \"$PWD/libchorale-mpi.so\")", mpi, 1,
                  "CHORALE_ALLREDUCE=ring", "", &outcome);
    cr_expect_neq(outcome.exit_code, 0);
    cr_expect(contains(outcome.err, "libchorale-mpi.so: for ") && contains(outcome.err, "cannot open"), "%s",
              outcome.err);
    outcome_release(&outcome);
}

Test(external, picked_under_a_program_openmpi)
{
    picked_under_a_program("openmpi");
}

Test(external, picked_under_a_program_mpich)
{
    picked_under_a_program("mpich");
}

Test(external, nothing_to_pick)
{
    nothing_to_pick("openmpi");
}

/* Two workers have one sum, whoever computes it. */
static void trains_like_ours(const char *mpi)
{
    static const char *const specs[] = {"ring", "mpi"};
    char hashes[2][64] = {""};
    if (!is_there(mpi))
        cr_skip_test("%s is not installed or its module was not built", mpi);
    for (int k = 0; k < 2; k++) {
        char words[256];
        struct outcome outcome;
        snprintf(words, sizeof words,
                 "train --allreduce=%s --model=cnn --image-size=16 --batch=4 --threads=1 --steps=4 --eval=never --json "
                 "--out=%s",
                 specs[k], specs[k]);
        run(mpi, 2, words, &outcome);
        cr_assert_eq(outcome.exit_code, 0, "%s: %s", words, outcome.err);
        const char *hash = strstr(outcome.out, "\"parameter_hash\"");
        cr_assert_not_null(hash, "%s", outcome.out);
        snprintf(hashes[k], sizeof hashes[k], "%.*s", (int)strcspn(hash, "]"), hash);
        outcome_release(&outcome);
    }
    cr_expect_str_eq(hashes[0], hashes[1]);
}

Test(external, trains_like_ours_openmpi)
{
    trains_like_ours("openmpi");
}

Test(external, trains_like_ours_mpich)
{
    trains_like_ours("mpich");
}

Test(external, under_a_program_openmpi)
{
    under_a_program("openmpi");
}

Test(external, under_a_program_mpich)
{
    under_a_program("mpich");
}

Test(external, on_nodes_under_a_program_openmpi)
{
    on_nodes_under_a_program("openmpi");
}

Test(external, on_nodes_under_a_program_mpich)
{
    on_nodes_under_a_program("mpich");
}

Test(external, refused_under_a_program_openmpi)
{
    refused_under_a_program("openmpi");
}

Test(external, refused_under_a_program_mpich)
{
    refused_under_a_program("mpich");
}

Test(external, a_death_under_a_program_openmpi)
{
    a_death_under_a_program("openmpi");
}

Test(external, a_death_under_a_program_mpich)
{
    a_death_under_a_program("mpich");
}

/* ---- beside MPI ---- */

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
