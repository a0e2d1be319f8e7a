/* test_cuda.c - `chorale --device=cuda` from the outside: what it says without a card, and the whole program on the fake
 * device (tests/nn/cuda/fake/fake.h) where that was built.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "support_program.h"

#define SMALL " --model=cnn --image-size=16 --batch=4 --threads=1 --steps=4 --seed=3 --eval=never"
#define ON_CUDA " --device=cuda --precision=f32 --deterministic"

TestSuite(cuda, .init = program_setup, .fini = program_teardown, .timeout = 300);

/* The folder of the build, or one below it. */
static void folder_of_build(struct text *folder, const char *below)
{
    text_add(folder, CHORALE_PROGRAM);
    folder->length = (size_t)(strrchr(folder->data, '/') - folder->data);
    text_add(folder, below);
    cr_assert_geq(text_check(folder), 0);
}

/* Where the real module or the fake one lies; the test is skipped where it was not built. */
static void take_modules(const char *below)
{
    struct text folder = {0}, module = {0};
    folder_of_build(&folder, below);
    text_addf(&module, "%s/chorale-device-cuda.so", text_string(&folder));
    if (access(text_string(&module), R_OK) != 0)
        cr_skip_test("%s was not built: no CUDA toolkit", text_string(&module));
    cr_assert_eq(setenv("CHORALE_MODULES", text_string(&folder), 1), 0);
    text_release(&folder);
    text_release(&module);
}

Test(cuda, without_a_module_one_line_tells_what_it_is_built_with)
{
    cr_assert_eq(setenv("CHORALE_MODULES", "/nonexistent", 1), 0);
    REFUSED("train --allreduce=ring -n 1 --device=cuda" SMALL, 1,
            "device cuda: no module /nonexistent/chorale-device-cuda.so", "CUDA toolkit");
}

Test(cuda, without_a_driver_one_line_tells_it)
{
    take_modules("");
    if (access("/proc/driver/nvidia/version", R_OK) == 0)
        cr_skip_test("this machine has an NVIDIA driver");
    REFUSED("train --allreduce=ring -n 1 --device=cuda" SMALL, 1, "device cuda: no NVIDIA driver on this machine");
}

static const char *hash_of(const json_t *summary, size_t worker)
{
    const char *hash = json_string_value(json_array_get(json_object_get(summary, "parameter_hash"), worker));
    cr_assert_not_null(hash);
    return hash;
}

/* At least the update: five floats a parameter. */
static void expect_moved(const json_t *summary)
{
    json_int_t sum = 0;
    const char *name;
    json_t *part;
    json_object_foreach(json_object_get(summary, "bytes_moved"), name, part) sum += json_integer_value(part);
    cr_expect_eq(integer_of(summary, "bytes_moved_per_step"), sum);
    cr_expect_geq(json_integer_value(json_object_get(json_object_get(summary, "bytes_moved"), "update")),
                  20 * integer_of(summary, "parameters"));
}

/* Stored bytes are resized on the device, steps run ahead, gradients travel: the losses are the cpu's all the same. */
Test(cuda, two_workers_train_as_on_the_cpu)
{
    take_modules("/fake");
    json_t *ours = program_json("train --allreduce=ring -n 2 --out=cuda --json" ON_CUDA SMALL);
    json_t *theirs = program_json("train --allreduce=ring -n 2 --out=cpu --json --device=cpu" SMALL);
    static const char *const losses[] = {"loss_first", "loss_last"};
    for (size_t k = 0; k < 2; k++) {
        const double loss = json_number_value(json_object_get(theirs, losses[k]));
        cr_expect_float_eq(json_number_value(json_object_get(ours, losses[k])), loss, 1e-5 * loss, "%s", losses[k]);
    }
    cr_expect_str_eq(string_of(ours, "device"), "cuda");
    expect_moved(ours);
    cr_expect(json_is_null(json_object_get(theirs, "bytes_moved_per_step")), "nobody counts there");
    cr_expect_eq(json_number_value(json_object_get(ours, "flop_per_step")),
                 json_number_value(json_object_get(theirs, "flop_per_step")));
    cr_expect_str_eq(hash_of(ours, 0), hash_of(ours, 1), "both workers hold the same");
    json_decref(ours);
    json_decref(theirs);
}

Test(cuda, bits_are_the_same_in_every_order_of_queues)
{
    take_modules("/fake");
    json_t *one = program_json("train --allreduce=ring -n 1 --out=one --json" ON_CUDA SMALL);
    cr_assert_eq(setenv("CHORALE_FAKE", "seed=5", 1), 0);
    json_t *other = program_json("train --allreduce=ring -n 1 --out=other --json" ON_CUDA SMALL);
    cr_expect_str_eq(hash_of(one, 0), hash_of(other, 0));
    json_decref(one);
    json_decref(other);
}

static void skip_without_nccl(void)
{
    struct text module = {0};
    text_addf(&module, "%s/chorale-external-nccl.so", getenv("CHORALE_MODULES"));
    if (access(text_string(&module), R_OK) != 0)
        cr_skip_test("NCCL's module was not built: no NCCL");
    text_release(&module);
}

/* NCCL as it is played adds in the order of ranks: with two workers there is one sum, ours or its. */
Test(cuda, nccl_trains_like_ours)
{
    take_modules("/fake");
    skip_without_nccl();
    cr_assert_eq(setenv("CHORALE_FAKE", "cards=2", 1), 0);
    json_t *ours = program_json("train --allreduce=ring -n 2 --bucket=64K --json --out=a" SMALL ON_CUDA);
    json_t *theirs = program_json("train --allreduce=pure_nccl -n 2 --bucket=64K --json --out=b" SMALL ON_CUDA);
    cr_expect_str_eq(hash_of(theirs, 0), hash_of(ours, 0));
    cr_expect_str_eq(hash_of(theirs, 1), hash_of(ours, 1));
    cr_expect(json_is_null(json_object_get(theirs, "bytes_sent_per_step")), "nobody counts there");
    json_decref(ours);
    json_decref(theirs);
    REFUSED("train --allreduce=nccl -n 2 --wire=f16 --out=c" SMALL ON_CUDA, 2, "its library decides", "--wire=");
}

Test(cuda, nccl_sums_halves)
{
    take_modules("/fake");
    skip_without_nccl();
    cr_assert_eq(setenv("CHORALE_FAKE", "cards=3", 1), 0);
    static const char *const words[] = {"--dtype=f16", "--dtype=bf16 --op=avg", "--dtype=f16 --op=max"};
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
        struct text all = {0};
        struct outcome outcome;
        text_addf(&all, "bench --device=cuda -n 3 --allreduce=nccl --sizes=64..64K:x1024 --iters=1 -w 0 --check %s",
                  words[k]);
        program_run(text_string(&all), &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s: %s%s", words[k], outcome.out, outcome.err);
        cr_expect_not_null(strstr(outcome.out, "# Out of bounds values : 0 OK"), "%s", outcome.out);
        outcome_release(&outcome);
        text_release(&all);
    }
}

/* ---- engines ---- */

/* Each worker tells how many convolutions it has put: training's, and each engine once; one has timed them besides. */
Test(cuda, one_worker_measures_and_the_others_wait_for_what_it_writes)
{
    take_modules("/fake");
    struct outcome outcome;
    script_run("mkdir puts && export CHORALE_FAKE='cards=2 report=puts' && \"$CHORALE\" train --allreduce=ring -n 3 "
               "--engines=e.txt --device=cuda --out=o" SMALL " >log && cat puts/* | sort -n | uniq -c && rm puts/* && "
               "\"$CHORALE\" train --allreduce=ring -n 3 --engines=e.txt --device=cuda --out=p" SMALL
               " >>log && cat puts/* | sort -n | uniq -c | wc -l",
               &outcome);
    int workers[2] = {0, 0}, puts[2] = {0, 0}, kinds = 0;
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect_str_eq(outcome.err, "");
    cr_assert_eq(sscanf(outcome.out, "%d %d %d %d %d", &workers[0], &puts[0], &workers[1], &puts[1], &kinds), 5, "%s",
                 outcome.out);
    cr_expect(workers[0] == 2 && workers[1] == 1 && puts[1] > 2 * puts[0], "%s", outcome.out);
    cr_expect_eq(kinds, 1, "the second start times nothing: %s", outcome.out);
    outcome_release(&outcome);
}

/* Without a home it is kept in a folder of the user's in $TMPDIR, unless others may write there, or it leads elsewhere. */
Test(cuda, a_folder_that_others_may_write_to_is_not_trusted)
{
    static const char *const makes[] = {"true", "mkdir t/chorale-$(id -u)", "mkdir -m 777 t/chorale-$(id -u)",
                                        "mkdir e && ln -s ../e t/chorale-$(id -u)"};
    take_modules("/fake");
    for (size_t k = 0; k < 4; k++) {
        struct text script = {0};
        struct outcome outcome;
        text_addf(
            &script,
            "rm -rf t e o && mkdir t && umask 022 && %s && unset HOME XDG_CACHE_HOME && TMPDIR=$PWD/t \"$CHORALE\" "
            "train --allreduce=ring -n 1 --device=cuda --out=o" SMALL " && ls t/chorale-$(id -u)/ | wc -l",
            makes[k]);
        script_run(text_string(&script), &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
        cr_expect_eq(strstr(outcome.out, "remembered in no file") != NULL, k >= 2, "%s: %s", makes[k], outcome.out);
        outcome_release(&outcome);
        text_release(&script);
    }
}

/* Whoever holds it may be another job. */
Test(cuda, a_lock_that_is_held_costs_a_run_its_timing_and_no_more)
{
    take_modules("/fake");
    struct outcome outcome;
    script_run("flock e.txt.lock \"$CHORALE\" train --allreduce=ring -n 2 --deadline=2 --engines=e.txt --device=cuda "
               "--out=o" SMALL " >log && test ! -e e.txt",
               &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect_not_null(strstr(outcome.err, "another process has held the lock of the engine file for 1.5 s"), "%s",
                       outcome.err);
    outcome_release(&outcome);
}

Test(cuda, an_engine_file_that_can_t_be_is_told_at_the_start)
{
    take_modules("/fake");
    cr_assert_eq(mkdir("folder", 0700), 0);
    cr_assert_eq(mkfifo("pipe", 0600), 0);
    REFUSED("train --allreduce=ring -n 2 --device=cuda --engines=folder" SMALL, 2, "--engines=folder: no plain file");
    REFUSED("train --allreduce=ring -n 2 --device=cuda --engines=pipe" SMALL, 2, "--engines=pipe: no plain file");
    REFUSED("train --allreduce=ring -n 2 --device=cuda --engines=none/e.txt" SMALL, 2, "--engines: ", "none");
}

/* Each worker may see its own card as number 0, and two numbers may be one card. */
Test(cuda, cards_are_told_apart_by_what_they_say_of_themselves)
{
    static const struct {
        const char *fake, *more, *sharers;
    } cases[] = {{"first=$RANK", ":0", "\"workers_per_card\":1"},
                 {"first=1", ":0", "\"workers_per_card\":2"},
                 {"cards=2", "", "\"workers_per_card\":1"}};
    take_modules("/fake");
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct text script = {0};
        struct outcome outcome;
        text_addf(&script,
                  "\"$CHORALE\" run -n 2 -- sh -c 'CHORALE_FAKE=\"%s\" exec \"$CHORALE\" train --allreduce=ring --json "
                  "--device=cuda%s --precision=f32 --deterministic --out=o%zu" SMALL "' | tr -d ' \n'",
                  cases[k].fake, cases[k].more, k);
        script_run(text_string(&script), &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
        cr_expect_not_null(strstr(outcome.out, cases[k].sharers), "%s: %s%s", cases[k].fake, outcome.out, outcome.err);
        outcome_release(&outcome);
        text_release(&script);
    }
}

/* ---- memory that can't be imported after all ---- */

static int lines_with(const char *text, const char *part)
{
    int lines = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        lines++;
    return lines;
}

/* The probe has imported two workers' memory; the next import fails, or the one after it. Halves are converted on the way. */
Test(cuda, what_can_t_be_imported_comes_through_pinned_memory)
{
    static const char *const wires[] = {"", " --wire=bf16"};
    static const char *const imports[] = {"import=3", "import=4"};
    take_modules("/fake");
    for (size_t k = 0; k < 2; k++) {
        struct text words = {0};
        struct outcome outcome;
        cr_assert_eq(setenv("CHORALE_FAKE", imports[k], 1), 0);
        text_addf(&words,
                  "bench --device=cuda -n 3 --allreduce=ring,naive,one-shot --sizes=128K --iters=1 -w 0 --check "
                  "%s",
                  wires[k]);
        program_run(text_string(&words), &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s%s", outcome.out, outcome.err);
        const int said = lines_with(outcome.err, "can't be read in place any more");
        cr_expect(said > 0 && said <= 6, "each pair once: %s", outcome.err);
        outcome_release(&outcome);
        text_release(&words);
    }
}
