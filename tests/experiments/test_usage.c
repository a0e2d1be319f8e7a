/* test_usage.c - wrong words, wrong files, shapes that can't be: exit code 2 or 1, and one line that names the thing and
 * what to do; nothing half-done stays behind.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "support_program.h"

#define CNN "train --model=cnn --image-size=28 --batch=8 --threads=1 --steps=1 --eval=never"
#define IDEAL CHORALE_SOURCE_DIR "/experiments/platforms/ideal.txt"
#define PROFILE CHORALE_SOURCE_DIR "/experiments/profiles/p100-fp32.txt"
#define NO_HALVES "hierarchical:intra=recursive-doubling"

TestSuite(usage, .init = program_setup, .fini = program_teardown, .timeout = 300);

/* ---- words ---- */

Test(usage, commands)
{
    struct outcome outcome;
    REFUSED("", 2, "no command", "--help");
    REFUSED("bnch", 2, "bnch", "did you mean bench?");
    REFUSED("xyzzy", 2, "xyzzy", "--help");
    REFUSED("sim", 2, "sim allreduce");
    REFUSED("sim reduce --platform=" IDEAL, 2, "sim reduce", "sim allreduce");
    program_run("--help", &outcome);
    cr_expect_eq(outcome.exit_code, 0);
    cr_expect(contains(outcome.out, "bench") && contains(outcome.out, "train"));
    cr_expect_str_empty(outcome.err);
    outcome_release(&outcome);
}

Test(usage, help_of_every_command_tells_its_options)
{
    static const char *const commands[] = {"list",    "bench",  "train", "sim",       "verify",
                                           "explain", "export", "run",   "calibrate", "doctor"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct outcome outcome;
        char words[64], begin[64];
        (void)snprintf(words, sizeof words, "%s --help", commands[i]);
        (void)snprintf(begin, sizeof begin, "usage: chorale %s", commands[i]);
        program_run(words, &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s", words);
        cr_expect_eq(strncmp(outcome.out, begin, strlen(begin)), 0, "%s: %s", words, outcome.out);
        cr_expect(contains(outcome.out, "\n  --") || contains(outcome.out, "\n  -"), "%s: %s", words, outcome.out);
        cr_expect_str_empty(outcome.err, "%s", words);
        outcome_release(&outcome);
    }
}

Test(usage, options)
{
    REFUSED("bench --alreduce=ring", 2, "--alreduce", "did you mean --allreduce?");
    REFUSED("list --jsn", 2, "--jsn", "did you mean --json?");
    REFUSED("bench -n", 2, "--workers");
    REFUSED("bench -n 2 ring", 2, "\"ring\"");
    REFUSED("bench --iters=0", 2, "--iters=0", "from 1");
    REFUSED("bench --iters=3x", 2, "--iters=3x", "whole number");
    REFUSED("bench --dtype=f33", 2, "element type f33", "did you mean f32?");
    REFUSED("bench --op=mean", 2, "--op=mean", "avg");
    REFUSED("bench --format=xml", 2, "--format=xml", "nccl");
    REFUSED("bench --transport=smh", 2, "--transport=smh", "did you mean shm?");
    REFUSED("bench --deadline=0", 2, "--deadline=0", "seconds");
    REFUSED("bench --segment=5Q", 2, "--segment=5Q", "size");
    REFUSED(CNN " --batch=0", 2, "--batch=0", "from 1");
    REFUSED(CNN " --lr=nan", 2, "--lr=nan");
    REFUSED(CNN " --model=resnet51", 2, "did you mean resnet50?");
    REFUSED("explain --bytes=many", 2, "--bytes=many", "size");
    REFUSED("calibrate", 2, "--bench=FILE");
}

/* Words of nccl-tests and OSU's benchmarks that mean something else here, or nothing. */
Test(usage, words_of_other_benchmarks)
{
    REFUSED("bench -b 8 -i 100", 2, "-i", "--iters=N", "-f");
    REFUSED("bench -i100", 2, "-i", "--iters=N");
    REFUSED("bench -x 10", 2, "-x", "--warmup=N");
    REFUSED("bench -m 8:64", 2, "-m", "--sizes=");
    REFUSED("bench -g 2", 2, "-g", "-n");
    REFUSED("bench -z 0", 2, "-z", "leave it out");
    REFUSED("bench -c 1", 2, "-c 1", "--check");
    REFUSED("bench --minbytes=8", 2, "--minbytes", "-b");
    REFUSED("bench --full", 2, "--full", "--extended");
    REFUSED("bench -d cuda", 2, "element type cuda", "float");
}

Test(usage, counts_and_sizes)
{
    static const char *const counts[] = {"0", "x", "2,", ",2", "2,,3", "3..2", "5000", "-1", "2..", "1.5", "''"};
    static const char *const sizes[] = {"64..8",   "8:x2", "",    "8..64:2", "8..64:x1",
                                        "8..64:x", "..64", "8..", "a..b",    "8..9Q"};
    char words[100];
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        (void)snprintf(words, sizeof words, "bench --workers=%s", counts[i]);
        REFUSED(words, 2, "2,3,5");
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        (void)snprintf(words, sizeof words, "bench --sizes=%s", sizes[i]);
        REFUSED(words, 2, "--sizes=", "8..64M");
    }
    REFUSED("bench -b 64 -e 8", 2, "-e 8", "-b 64");
    REFUSED("bench -f 1", 2, "--factor=1");
    REFUSED("verify -n 0", 2, "-n 0");
    REFUSED("sim allreduce -n 20000 --platform=" IDEAL, 2, "-n 20000", "16384");
    REFUSED("explain -n 0", 2, "--workers=0");
    REFUSED(CNN " -n 0", 2, "--workers=0");
    REFUSED("run -n 0 -- true", 2, "--workers=0");
}

Test(usage, specs)
{
    static const char *const commands[] = {"bench -n 2",  CNN " -n 2",
                                           "verify -n 2", "sim allreduce --platform=" IDEAL,
                                           "explain",     "list --canonical=ring"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const char *key = i == 5 ? "canonical" : "allreduce";
        char words[300];
        (void)snprintf(words, sizeof words, "%s --%s=rong", commands[i], key);
        REFUSED(words, 2, "rong", "did you mean ring?");
        (void)snprintf(words, sizeof words, "%s --%s=ring:chunk=2", commands[i], key);
        REFUSED(words, 2, "ring", "chunk");
        (void)snprintf(words, sizeof words, "%s --%s=double-buffered:inner=[ring", commands[i], key);
        REFUSED(words, 2, "inner=[ring", "bracket");
        (void)snprintf(words, sizeof words, "%s --%s=ring]", commands[i], key);
        REFUSED(words, 2, "ring]", "[brackets]");
        (void)snprintf(words, sizeof words, "%s --%s=gossip:graph=rng", commands[i], key);
        REFUSED(words, 2, "graph=rng", "did you mean ring?");
        (void)snprintf(words, sizeof words, "%s --%s=", commands[i], key);
        REFUSED(words, 2, key);
    }
}

/* ---- shapes ---- */

Test(usage, shapes_that_can_not_be)
{
    REFUSED("bench -n 2,3 --allreduce=" NO_HALVES, 2, "recursive-doubling", "no halves", "inter");
    REFUSED("bench -n 2 --json --allreduce=" NO_HALVES, 2, "no halves");
    REFUSED(CNN " -n 2 --out=run --allreduce=" NO_HALVES, 2, "no halves");
    REFUSED(CNN " -n 8 --out=run --allreduce=swing-latency", 2, "drift apart", "equal-bits");
    REFUSED("verify -n 1..4 --allreduce=" NO_HALVES, 2, "no halves");
    REFUSED("sim allreduce -n 4 --platform=" IDEAL " --allreduce=" NO_HALVES, 2, "no halves");
    REFUSED("sim train -n 4 --platform=" IDEAL " --profile=" PROFILE " --allreduce=" NO_HALVES, 2, "no halves");
    REFUSED("explain -n 4 --allreduce=" NO_HALVES, 2, "no halves");
    REFUSED("bench -n 2 --allreduce=gossip --dtype=i32", 2, "--dtype=f32");
}

Test(usage, nodes)
{
    REFUSED("bench -n 4 --nodes=2x4", 2, "2x4", "8 workers");
    REFUSED("bench -n 4 --nodes=0x4", 2, "0x4", "2x4");
    REFUSED("bench -n 4 --nodes=2+x", 2, "2+x", "4+2");
    REFUSED(CNN " -n 3 --out=run --nodes=2x4", 2, "2x4", "8 workers");
    REFUSED("verify -n 4 --nodes=2x4", 2, "2x4", "8 workers");
    REFUSED("explain -n 3 --nodes=2x4", 2, "2x4", "8 workers");
    REFUSED("sim allreduce -n 3 --nodes=2x4 --platform=" IDEAL, 2, "2x4", "8 workers");
}

Test(usage, transports)
{
    REFUSED("bench -n 2 --transport=loopback -b 8 -e 8", 2, "--transport=loopback", "2 workers", "--transport=auto");
    REFUSED("bench -n 2 --transport=tcp --interface=nope0 -b 8 -e 8", 2, "nope0", "lo");
    REFUSED("bench -n 2 --provider=nope -b 8 -e 8", 1, "nope", "fi_info");
    REFUSED("run -n 2 -- \"$CHORALE\" bench -n 3 -b 8 -e 8", 2, "-n 3", "2 workers", "-n 2");
}

/* ---- files ---- */

Test(usage, files_that_are_not_there)
{
    REFUSED("bench -n 2 --platform=/nowhere", 1, "/nowhere", "No such file");
    REFUSED("sim allreduce --platform=/nowhere", 1, "/nowhere", "No such file");
    REFUSED("sim allreduce", 2, "--platform=FILE");
    REFUSED("sim train --platform=" IDEAL, 2, "--profile=FILE");
    REFUSED("sim train --profile=/nowhere --platform=" IDEAL, 1, "/nowhere", "No such file");
    REFUSED("explain --platform=/nowhere", 1, "/nowhere");
    REFUSED("calibrate --bench=/nowhere", 1, "/nowhere", "No such file");
    REFUSED(CNN " -n 2 --device=replay:/nowhere --out=run", 1, "/nowhere");
}

Test(usage, files_with_wrong_content_are_named_with_the_line)
{
    program_write("platform", "platform x\n# fast\nlink intra latency=1us bandwith=1GB/s\n");
    program_write("unit", "platform x\nlink intra latency=1 bandwidth=1GB/s\n");
    program_write("profile", "model tiny parameters=1000\ndevice emulated\nstep fixed=30 ms\n");
    program_write("numbers", "model tiny parameters=0\n");
    program_write("empty", "");
    program_write("rows", "{\"rows\": [}");
    REFUSED("sim allreduce --platform=platform", 1, "platform:3", "bandwith");
    REFUSED("sim allreduce --platform=unit", 1, "unit:2", "latency", "us");
    REFUSED("sim allreduce --platform=empty", 1, "empty");
    REFUSED("sim allreduce --platform=.", 1, "directory");
    REFUSED("bench -n 2 -b 8 -e 8 --platform=platform", 1, "platform:3");
    REFUSED("sim train --platform=" IDEAL " --profile=profile", 1, "profile:3");
    REFUSED("sim train --platform=" IDEAL " --profile=platform", 1, "platform:1");
    REFUSED(CNN " -n 2 --device=replay:numbers --out=run", 1, "numbers:1", "parameters=0");
    REFUSED("calibrate --bench=rows", 1, "rows:1", "bench --json");
}

Test(usage, data_that_are_missing_or_cut_short)
{
    cr_assert_eq(mkdir("data", 0777), 0);
    REFUSED(CNN " -n 2 --data=/nowhere --out=a", 1, "data /nowhere: no such file or folder: look at the path");
    REFUSED(CNN " -n 2 --data=data --out=b", 1, "data data: no data set", "train-images-idx3-ubyte", "--data=FOLDER");
    int fd = open("data/train-images-idx3-ubyte", O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    static const unsigned char head[16] = {0, 0, 8, 3,  0, 0, 0xea, 0x60,
                                           0, 0, 0, 28, 0, 0, 0,    28}; /* 60000 x 28 x 28 */
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, head, sizeof head), (ssize_t)sizeof head);
    cr_assert_eq(ftruncate(fd, 5000), 0);
    close(fd);
    REFUSED(CNN " -n 2 --data=data --out=c", 1, "data/train-images-idx3-ubyte", "5000 of 47040016 bytes");
    for (const char *name = "a\0b\0c\0"; *name != '\0'; name += 2) {
        char summary[32];
        (void)snprintf(summary, sizeof summary, "%s/summary.json", name);
        cr_expect_not(file_exists(summary), "%s holds results of a run that has not been", name);
    }
    struct outcome outcome;
    program_run(CNN " -n 1 --out=c", &outcome); /* and doesn't stand in the way of one */
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    outcome_release(&outcome);
}

/* ---- results ---- */

Test(usage, results_that_can_not_be_written)
{
    program_write("file", "");
    REFUSED(CNN " -n 2 --out=file/run", 1, "--out=file/run", "file");
    REFUSED(CNN " -n 2 --out=file", 1, "--out=file");
    REFUSED(CNN " -n 1 --out=file/run", 1, "--out=file/run");
    REFUSED(CNN " -n 1 --out=run --profile-out=file/profile", 1, "file/profile");
    cr_expect(file_exists("file"));
}

Test(usage, a_run_is_never_written_over)
{
    struct outcome outcome;
    char *before = NULL, *after = NULL;
    size_t length = 0, length_after = 0;
    program_run(CNN " -n 2 --out=run", &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    outcome_release(&outcome);
    cr_assert_eq(file_read("run/metrics.jsonl", 1 << 20, &before, &length), STATUS_OK);
    REFUSED(CNN " -n 2 --out=run --seed=2", 2, "--out=run", "holds a run");
    REFUSED(CNN " -n 1 --out=run/../run", 2, "holds a run");
    cr_assert_eq(file_read("run/metrics.jsonl", 1 << 20, &after, &length_after), STATUS_OK);
    cr_expect(length == length_after && memcmp(before, after, length) == 0);
    free(before);
    free(after);
}

Test(usage, a_full_disk_is_a_failure)
{
    static const char *const commands[] = {
        "--help",
        "list",
        "list --json",
        "list --canonical=all",
        "bench --help",
        "run --help",
        "verify -n 3",
        "verify -n 3 --json",
        "explain",
        ("sim allreduce --platform=" IDEAL),
        ("sim allreduce --json --platform=" IDEAL),
        "bench -n 2 -b 8 -e 8 --iters=1",
        "bench -n 2 -b 8 -e 8 --iters=1 --json",
        "bench -n 2 -b 8 -e 8 --iters=1 --format=csv",
    };
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct outcome outcome;
        char script[300];
        (void)snprintf(script, sizeof script, "exec \"$CHORALE\" %s >/dev/full", commands[i]);
        script_run(script, &outcome);
        cr_expect_eq(outcome.exit_code, 1, "%s: exit code %d: %s", script, outcome.exit_code, outcome.err);
        expect_one_line(&outcome, script);
        outcome_release(&outcome);
    }
}

/* ---- limits ---- */

Test(usage, too_few_open_files_are_told_before_anything_starts)
{
    struct outcome outcome;
    script_run("ulimit -n 32; exec \"$CHORALE\" bench -n 16 -b 8 -e 8 --iters=1", &outcome);
    cr_expect_eq(outcome.exit_code, 1);
    expect_one_line(&outcome, "ulimit -n 32");
    cr_expect(contains(outcome.err, "open files") && contains(outcome.err, "32") && contains(outcome.err, "ulimit"),
              "%s", outcome.err);
    cr_expect_str_empty(outcome.out);
    outcome_release(&outcome);
}

/* ---- chorale run ---- */

static void expect_run(const char *words, int exit_code, const char *out, const char *said)
{
    struct outcome outcome;
    program_run(words, &outcome);
    cr_expect_eq(outcome.exit_code, exit_code, "%s: exit code %d", words, outcome.exit_code);
    cr_expect_str_eq(outcome.out, out, "%s", words);
    if (said != NULL) {
        expect_one_line(&outcome, words);
        cr_expect(contains(outcome.err, said), "%s: \"%s\" does not say \"%s\"", words, outcome.err, said);
    } else {
        cr_expect_str_empty(outcome.err, "%s", words);
    }
    outcome_release(&outcome);
}

Test(usage, run_returns_the_first_failing_workers_code)
{
    expect_run("run -n 3 -- true", 0, "", NULL);
    expect_run("run -n 3 -- sh -c 'exit 3'", 3, "", "exit 3");
    expect_run("run -n 4 -- sh -c 'test $RANK = 2 && exit 7; exec sleep 60'", 7, "", "rank 2 on ");
    expect_run("run -n 3 -- sh -c 'test $RANK = 1 && kill -9 $$; exec sleep 60'", 1, "", "SIGKILL");
    expect_run("run -n 2 -- sh -c 'test $RANK = 1 && kill -SEGV $$; exec sleep 60'", 1, "", "SIGSEGV");
    expect_run("run", 2, "", "after --");
    expect_run("run -n 2 -- nonesuch-program", 2, "", "nonesuch-program");
    program_write("not-executable", "");
    expect_run("run -n 2 -- ./not-executable", 2, "", "./not-executable");
}

Test(usage, run_labels_lines_by_rank)
{
    expect_run("run -n 1 --label -- sh -c 'echo one; echo two'", 0, "[0] one\n[0] two\n", NULL);
    expect_run("run -n 3 --label -- sh -c 'test $RANK = 1 && echo $RANK of $WORLD_SIZE || true'", 0, "[1] 1 of 3\n",
               NULL);
}
