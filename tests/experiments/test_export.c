/* test_export.c - chorale export and msccl:file=X.xml as users meet them: files written whole or not at all, what is
 * refused, and schedules that give the same bits after a trip through a file.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "algos/export.h"
#include "algos/spec.h"
#include "base/file.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "comm/transport.h"
#include "support_program.h"
#include "tests/base/expect.h"

#define DATA CHORALE_SOURCE_DIR "/tests/algos/data/"
#define FDR CHORALE_SOURCE_DIR "/experiments/platforms/fdr-4gpu.txt"
#define MOST_WORKERS 8

TestSuite(export, .init = program_setup, .fini = program_teardown, .timeout = 300);

static void succeeds(const char *words, const char *said)
{
    struct outcome outcome;
    program_run(words, &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s: %s", words, outcome.err);
    cr_expect(contains(outcome.out, said), "%s: %s", words, outcome.out);
    cr_expect_str_empty(outcome.err, "%s", words);
    outcome_release(&outcome);
}

/* ---- the command ---- */

Test(export, writes_every_format)
{
    succeeds("export --allreduce=ring -n 3 --out=ring.xml", "ring.xml: ");
    succeeds("export --allreduce=ring -n 3 --format=goal --bytes=1200 --platform=" FDR " --out=ring.goal",
             "ring on 3 workers: 12 messages, 4800 bytes sent, 6 reductions and copies");
    succeeds("export --allreduce=ring -n 3 --format=simgrid --out=ring.ti", "ring.ti: ");
    succeeds("export --allreduce=ring -n 3 --format=chakra --out=ring", "ring.*.et: ");
    cr_expect(file_exists("ring.xml") && file_exists("ring.goal") && file_exists("ring.ti"));
    cr_expect(file_exists("ring.0.et") && file_exists("ring.2.et") && !file_exists("ring.3.et"));
    succeeds("export --allreduce=hierarchical -n 6 --nodes=4+2 --out=h.xml", "hierarchical on 6 workers");
}

Test(export, what_was_exported_is_verified_explained_simulated_and_benched)
{
    succeeds("export --allreduce=double-binary-tree -n 5 --out=tree.xml", "tree.xml");
    succeeds("verify --allreduce=msccl:file=tree.xml -n 5", "1 proved, 0 refused, 0 broken");
    succeeds("explain --allreduce=msccl:file=tree.xml -n 5", "double-binary-tree");
    succeeds("sim allreduce --allreduce=msccl:file=tree.xml -n 5 --bytes=1M --platform=" FDR, "msccl:file=tree.xml");
    struct outcome outcome;
    program_run("bench --allreduce=msccl:file=tree.xml -n 5 -b 4 -e 64K -f 16 --iters=2 -w 1 --check", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s%s", outcome.out, outcome.err);
    outcome_release(&outcome);
}

Test(export, an_example_of_the_readme_runs)
{
    struct outcome outcome;
    program_run("bench --allreduce=msccl:file=" DATA "exchange2.xml -n 2 -b 4 -e 1K -f 16 --iters=2 -w 1 --check",
                &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s%s", outcome.out, outcome.err);
    outcome_release(&outcome);
}

Test(export, refuses_what_it_cannot_write)
{
    REFUSED("export -n 2", 2, "no file to write", "--out=FILE");
    REFUSED("export -n 2 --out=no/such/x.xml", 1, "no/such");
    REFUSED("export -n 2 --out=x.xml --format=xml", 2, "--format=xml", "one of msccl, goal, simgrid, chakra");
    REFUSED("export -n 65 --out=x.xml", 2, "ring as msccl: 65 workers, but at most 64 are written");
    REFUSED("export -n 2 --out=x.xml --allreduce=none", 2, "none is no allreduce");
    REFUSED("export -n 2 --out=x.xml --allreduce=gossip", 2, "no allreduce");
    REFUSED("export -n 3 --out=x.xml --allreduce=neighbor-exchange", 2, "even number of workers");
    REFUSED("export -n 2 --out=x.xml --allreduce=nccl", 2, "nccl");
    REFUSED("export -n 2 --out=x.xml --nodes=2x4", 2, "8 workers, but there are 2");
    REFUSED("export -n 2 --out=x.xml --platform=none.txt", 1, "none.txt");
    REFUSED("export -n 4096 --format=goal --out=x.goal", 2, "ring on 4096 workers has");
    cr_expect_not(file_exists("x.xml"));
    cr_expect_not(file_exists("x.goal"));
}

Test(export, wrong_files_are_refused_by_name_and_line)
{
    program_write("bad.xml", "<algo coll=\"allreduce\"\n ngpus=\"2\" nchannels=\"1\">\n");
    program_write("other.xml", "<algo coll=\"alltoall\"/>\n");
    REFUSED("explain --allreduce=msccl:file=bad.xml -n 2", 1, "bad.xml:1: <algo> has no nchunksperloop");
    REFUSED("explain --allreduce=msccl:file=other.xml -n 2", 2, "other.xml:1: coll=\"alltoall\": only allreduce");
    REFUSED("explain --allreduce=msccl:file=missing.xml -n 2", 1, "missing.xml");
    REFUSED("explain --allreduce=msccl -n 2", 2, "msccl:file=");
    REFUSED("explain --allreduce=msccl:file=" DATA "exchange2.xml -n 3", 2, "is for 2 workers, not for 3");
}

/* ---- another simulator ---- */

/* SimGrid's replay of an exported trace, in seconds: fair sharing of a link, no factors that it has for TCP and MPI. */
static double simgrid_seconds(const char *name, int workers)
{
    struct outcome outcome;
    char script[1200];
    (void)snprintf(script, sizeof script,
                   "$CHORALE export --allreduce=%s -n %d --format=simgrid --bytes=4M --out=trace.ti >/dev/null\n"
                   "echo \"$PWD/trace.ti\" > traces\n"
                   "smpirun -np %d -platform star.xml -hostfile hosts -replay traces --cfg=network/model:CM02 "
                   "--cfg=network/crosstraffic:0 --cfg=network/bandwidth-factor:1 --cfg=network/latency-factor:1 "
                   "--cfg=network/TCP-gamma:1e15 --cfg=network/weight-S:0 --cfg=smpi/host-speed:1Gf "
                   "--cfg=smpi/send-is-detached-thresh:0 --cfg=smpi/async-small-thresh:0 2>&1",
                   name, workers, workers);
    script_run(script, &outcome);
    const char *words = "Simulation time ", *at = strstr(outcome.out, words);
    cr_assert_not_null(at, "%s: %s", name, outcome.out);
    const double seconds = strtod(at + strlen(words), NULL);
    outcome_release(&outcome);
    return seconds;
}

static double our_seconds(const char *name, int workers)
{
    char words[300];
    (void)snprintf(words, sizeof words,
                   "sim allreduce --allreduce=%s -n %d --bytes=4M --platform=star.txt --segment=0 "
                   "--overlap-reduction=no --json",
                   name, workers);
    json_t *document = program_json(words);
    const double seconds = number_of(document, "time_us") * 1e-6;
    json_decref(document);
    return seconds;
}

/* Where no two messages share a link, SimGrid and our simulator must agree: same schedule, two simulators. */
Test(export, simgrid_agrees_with_our_simulator)
{
    static const char *const names[] = {"ring", "rd", "rhd", "circulant", "bucket"};
    if (system("command -v smpirun >/dev/null") != 0)
        cr_skip_test("smpirun is missing (Debian: libsimgrid-dev)");
    program_write("star.xml",
                  "<?xml version='1.0'?>\n"
                  "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
                  "<platform version=\"4.1\"><zone id=\"all\" routing=\"Full\">\n"
                  "<cluster id=\"star\" prefix=\"n\" suffix=\"\" radical=\"0-15\" speed=\"1Gf\" bw=\"1GBps\" "
                  "lat=\"1us\" sharing_policy=\"SPLITDUPLEX\"/></zone></platform>\n");
    program_write("hosts", "n0\nn1\nn2\nn3\nn4\nn5\nn6\nn7\nn8\nn9\nn10\nn11\nn12\nn13\nn14\nn15\n");
    program_write("star.txt", "platform star\nnode workers=1\nlink intra latency=2us bandwidth=1GB/s\n"
                              "link inter latency=2us bandwidth=1GB/s\nreduce cost=0.25ns/B\n");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int p = 2; p <= 16; p *= 2) {
            const double theirs = simgrid_seconds(names[i], p), ours = our_seconds(names[i], p);
            cr_expect_float_eq(theirs / ours, 1, 2e-4, "%s on %d workers: SimGrid %g s, we %g s", names[i], p, theirs,
                               ours);
        }
}

/* ---- the same bits ---- */

struct run {
    struct comm *comm[MOST_WORKERS];
    float *input[MOST_WORKERS], *output[MOST_WORKERS];
};

static void reduce(const struct shape *shape, size_t count, struct run *run)
{
    struct transport *transports[MOST_WORKERS];
    struct collective *collective[MOST_WORKERS];
    const int p = shape->workers;
    EXPECT_OK(loopback_open(p, LOOPBACK_SHUFFLED, 5, transports));
    for (int r = 0; r < p; r++) {
        const struct comm_request request = {.transport = transports[r], .segment = 4096, .window = 3, .deadline = 60};
        EXPECT_OK(comm_open(&request, &run->comm[r]));
        const struct collective_request wanted = {.team = comm_world(run->comm[r]),
                                                  .shape = shape,
                                                  .name = "test",
                                                  .count = count,
                                                  .dtype = DTYPE_F32,
                                                  .op = REDUCE_AVG};
        EXPECT_OK(collective_create(&wanted, &collective[r]));
        EXPECT_OK(collective_start(collective[r], run->input[r], run->output[r]));
    }
    for (int left = p; left > 0;) {
        left = 0;
        for (int r = 0; r < p; r++) {
            const enum status status = collective_test(collective[r]);
            cr_assert_geq((int)status, 0, "%s", status_message());
            left += status == STATUS_AGAIN;
        }
    }
    for (int r = 0; r < p; r++)
        collective_destroy(collective[r]);
    for (int r = 0; r < p; r++)
        comm_close(run->comm[r]);
}

static struct shape *shape_of(const char *text, int workers)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    EXPECT_OK(layout_flat(workers, &layout));
    if (spec_shape(&spec, &layout, 0, 1000, &shape) < 0)
        shape = NULL;
    layout_release(&layout);
    spec_release(&spec);
    return shape;
}

static enum status give(void *context, const char *path, char **text, size_t *length)
{
    const struct text *content = context;
    (void)path;
    *text = strdup(text_string(content));
    *length = content->length;
    return *text != NULL ? STATUS_OK : fail(STATUS_NO_MEMORY, "no memory");
}

static struct shape *there_and_back(const struct shape *shape)
{
    struct text text = {0};
    struct exporter exporter;
    struct spec spec;
    struct layout layout;
    struct shape *back = NULL;
    const struct export_request request = {.shape = shape, .name = "test", .count = 1000, .element_bytes = 4};
    EXPECT_OK(export_begin(&request, EXPORT_MSCCL, &exporter));
    EXPECT_OK(export_file(&exporter, 0, &text));
    export_end(&exporter);
    EXPECT_OK(spec_parse("msccl:file=exported.xml", &spec));
    EXPECT_OK(spec_read_files(&spec, give, &text));
    EXPECT_OK(layout_flat(shape->workers, &layout));
    EXPECT_OK(spec_shape(&spec, &layout, 0, 0, &back));
    layout_release(&layout);
    spec_release(&spec);
    text_release(&text);
    return back;
}

static void expect_equal_bits(const char *name, int workers, size_t count)
{
    struct run run[2] = {{.comm = {NULL}}, {.comm = {NULL}}};
    struct shape *shape = shape_of(name, workers);
    if (shape == NULL)
        return;
    struct shape *back = there_and_back(shape);
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < workers; r++) {
            run[k].input[r] = calloc(count + 1, sizeof(float));
            run[k].output[r] = calloc(count + 1, sizeof(float));
            cr_assert(run[k].input[r] != NULL && run[k].output[r] != NULL);
            for (size_t i = 0; i < count; i++)
                run[k].input[r][i] = (float)rng_normal(17 + (uint64_t)r, i);
        }
    reduce(shape, count, &run[0]);
    reduce(back, count, &run[1]);
    for (int r = 0; r < workers; r++) {
        cr_assert_eq(memcmp(run[0].output[r], run[1].output[r], count * sizeof(float)), 0,
                     "%s on %d workers, %zu elements: worker %d has other bits", name, workers, count, r);
        double mean = 0;
        for (int q = 0; q < workers && count > 0; q++)
            mean += (double)run[0].input[q][count - 1] / workers;
        if (count > 0)
            cr_assert_float_eq(run[1].output[r][count - 1], mean, 1e-5, "%s: not the mean", name);
    }
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < workers; r++) {
            free(run[k].input[r]);
            free(run[k].output[r]);
        }
    shape_destroy(back);
    shape_destroy(shape);
}

Test(export, a_trip_through_a_file_changes_no_bit)
{
    static const int sizes[] = {1, 2, 3, 5, 7, 8};
    size_t algorithms = 0;
    const struct algorithm *const *list = catalogue_algorithms(&algorithms);
    for (size_t a = 0; a < algorithms; a++)
        for (size_t s = 0; algorithm_in_all(list[a]) && s < sizeof sizes / sizeof *sizes; s++) {
            expect_equal_bits(list[a]->name, sizes[s], 10007);
            expect_equal_bits(list[a]->name, sizes[s], (size_t)sizes[s] - 1);
        }
}
