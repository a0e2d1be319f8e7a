/* test_train.c - the program `chorale train` from the outside: what it writes, that it does what each algorithm is
 * defined to do, bit by bit, and how it refuses.
 */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "nn/backend.h"
#include "nn/data.h"
#include "nn/examine.h"
#include "nn/learning_rate.h"
#include "nn/optimizer.h"
#include "tests/base/expect.h"
#include "tests/base/folder.h"
#include "tests/experiments/support_set.h"

#define CNN " --model=cnn --image-size=28 --batch=8 --threads=1"
#define SMALL CNN " --data=."
#define CONSTANT SMALL " --lr-schedule=constant"

static void setup(void)
{
    enter_folder();
    put_photographs();
}

TestSuite(train, .init = setup, .fini = leave_folder, .timeout = 300);

/* ---- running it ---- */

struct outcome {
    int exit_code;
    char out[65536], err[4096];
};

static void read_into(FILE *stream, char *text, size_t size)
{
    size_t length = fread(text, 1, size - 1, stream);
    text[length] = '\0';
}

/* `chorale train WORDS` */
static void run(const char *words, struct outcome *outcome)
{
    struct text command = {0};
    text_addf(&command, "'%s' train %s 2>stderr.txt", CHORALE_PROGRAM, words);
    FILE *out = popen(text_string(&command), "r");
    cr_assert_not_null(out);
    read_into(out, outcome->out, sizeof outcome->out);
    int status = pclose(out);
    outcome->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    FILE *err = fopen("stderr.txt", "r");
    cr_assert_not_null(err);
    read_into(err, outcome->err, sizeof outcome->err);
    cr_assert_eq(fclose(err), 0);
    text_release(&command);
}

/* The summary of a run that succeeds. */
static json_t *summary_of(const char *words)
{
    static struct outcome outcome;
    json_error_t error;
    struct text all = {0};
    text_addf(&all, "%s --json", words);
    run(text_string(&all), &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s: exit code %d: %s", words, outcome.exit_code, outcome.err);
    json_t *summary = json_loads(outcome.out, 0, &error);
    cr_assert_not_null(summary, "%s: nothing but one document on stdout: %s", words, error.text);
    text_release(&all);
    return summary;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_number(value), "%s is no number", key);
    return json_number_value(value);
}

static const char *hash_of(const json_t *summary, size_t rank)
{
    const char *hash = json_string_value(json_array_get(json_object_get(summary, "parameter_hash"), rank));
    cr_assert_not_null(hash);
    return hash;
}

static void expect_hashes(const json_t *summary, size_t workers, bool equal)
{
    cr_expect_eq(json_array_size(json_object_get(summary, "parameter_hash")), workers);
    for (size_t rank = 1; rank < workers; rank++)
        cr_expect_eq(strcmp(hash_of(summary, 0), hash_of(summary, rank)) == 0, equal, "rank %zu", rank);
}

/* ---- what specs promise ---- */

Test(train, deterministic_means_that_buckets_change_no_bit)
{
    json_t *whole = summary_of("--allreduce=rhd:deterministic=1 -n 3 --steps=3 --eval=never" SMALL);
    json_t *cut = summary_of("--allreduce=rhd:deterministic=1 -n 3 --steps=3 --eval=never --bucket=tensor" SMALL);
    expect_hashes(whole, 3, true);
    cr_expect_str_eq(hash_of(whole, 0), hash_of(cut, 0));
    json_decref(whole);
    json_decref(cut);
}

Test(train, auto_says_what_it_takes_for_its_buckets)
{
    static struct outcome outcome;
    json_t *summary = summary_of("--allreduce=auto:latency=1000 -n 3 --steps=2 --eval=never --bucket=tensor" SMALL);
    const char *decided = json_string_value(json_object_get(summary, "decided"));
    cr_assert_not_null(decided);
    cr_expect_not_null(strstr(decided, ", by the closed forms"), "%s", decided);
    cr_expect_not_null(strstr(decided, " buckets of "), "%s", decided);
    cr_expect(json_is_null(json_object_get(summary, "files_hash")));
    expect_hashes(summary, 3, true);
    json_decref(summary);
    run("--allreduce=auto -n 2 --steps=1 --eval=never" SMALL, &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect_not_null(strstr(outcome.out, "\ndecided: "), "%s", outcome.out);
    summary = summary_of("--allreduce=ring -n 2 --steps=1 --eval=never" SMALL);
    cr_expect(json_is_null(json_object_get(summary, "decided")));
    json_decref(summary);
}

/* ---- what it writes ---- */

Test(train, writes_a_summary_with_every_key)
{
    static const char *const keys[] = {"allreduce",  "workers",      "device",        "model",
                                       "steps",      "images_per_s", "step_ms_p50",   "step_ms_p99",
                                       "compute_ms", "comm_ms",      "exposed_ms",    "bytes_sent_per_step",
                                       "loss_first", "loss_last",    "top1",          "consensus",
                                       "seed",       "versions",     "parameter_hash"};
    json_error_t error;
    json_t *printed = summary_of("--allreduce=ring -n 2 --steps=4 --eval=end --out=run --seed=5" SMALL);
    json_t *written = json_load_file("run/summary.json", 0, &error);
    cr_assert_not_null(written, "%s", error.text);
    cr_expect(json_equal(printed, written));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        cr_expect_not_null(json_object_get(written, keys[i]), "%s is missing", keys[i]);
    cr_expect_str_eq(json_string_value(json_object_get(written, "allreduce")), "ring");
    cr_expect_str_eq(json_string_value(json_object_get(written, "model")), "cnn");
    cr_expect_str_eq(json_string_value(json_object_get(written, "device")), "cpu");
    cr_expect_eq(number(written, "workers"), 2);
    cr_expect_eq(number(written, "steps"), 4);
    cr_expect_eq(number(written, "seed"), 5);
    cr_expect_eq(number(written, "consensus"), 0);
    double top1 = number(written, "top1");
    cr_expect(top1 >= 0 && top1 <= 1);
    cr_expect_eq(fmod(top1 * SET_PHOTOGRAPHS + 1e-6, 1) < 1e-3, true, "a count of the test images");
    cr_expect(number(written, "compute_ms") + number(written, "exposed_ms") <= number(written, "step_ms") * 1.0001);
    cr_expect_leq(number(written, "comm_ms"), number(written, "step_ms") * 1.0001);
    json_decref(printed);
    json_decref(written);
}

/* In steps, and whether any of them is one of this run. */
Test(train, says_where_the_rate_changes)
{
    static const struct {
        const char *words, *said;
    } cases[] = {{"--steps=20", ", step x0.1 at steps 7, 14, 18, warm-up 0 steps"},
                 {"--steps=3 --decay-epochs=0.001 --decay-factor=0.5",
                  ", step x0.5 at step 8 (beyond this run: the rate stays)"},
                 {"--steps=3 --decay-epochs=", ", step (no milestones: the rate stays)"},
                 {"--steps=3 --lr-schedule=cosine --lr-end=0.01 --warmup-steps=1",
                  ", cosine to 0.01 at step 3, warm-up 1 step\n"},
                 {"--steps=2 --warmup-steps=5",
                  "\nthe warm-up ends at step 5, after the run: the rate of 0.003125 is not reached\n"},
                 {"--steps=20 --warmup-steps=8", "\nthe rate falls at step 7 already, within the warm-up\n"},
                 {"--steps=1 --lr-schedule=constant",
                  "1 step, global batch 8, lr 0.1 for 256 images: 0.003125 for 8, constant"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        static struct outcome outcome;
        struct text words = {0};
        text_addf(&words, "-n 1 --eval=never %s" CNN, cases[k].words);
        run(text_string(&words), &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
        cr_expect_not_null(strstr(outcome.out, cases[k].said), "%s: %s", cases[k].words, outcome.out);
        text_release(&words);
    }
}

Test(train, writes_one_line_for_each_step)
{
    static const char *const keys[] = {"step",         "epoch",      "loss",    "lr",
                                       "images_per_s", "compute_ms", "comm_ms", "exposed_ms"};
    char line[4096];
    int lines = 0;
    json_decref(summary_of("--allreduce=ring -n 2 --steps=7 --eval=never --warmup-steps=4 --out=run" CONSTANT));
    FILE *file = fopen("run/metrics.jsonl", "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *row = json_loads(line, 0, NULL);
        cr_assert_not_null(row, "%s", line);
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            cr_expect(json_is_number(json_object_get(row, keys[i])), "%s", keys[i]);
        cr_expect_eq(number(row, "step"), lines);
        double wanted = 0.1 * 16 / 256 * (lines < 4 ? (lines + 1) / 4.0 : 1);
        cr_expect_float_eq(number(row, "lr"), wanted, 1e-9);
        json_decref(row);
        lines++;
    }
    cr_expect_eq(lines, 7);
    cr_assert_eq(fclose(file), 0);
}

Test(train, names_a_fresh_folder_when_it_gets_none)
{
    static struct outcome outcome;
    run("-n 1 --steps=1 --eval=never" CNN, &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect_not_null(strstr(outcome.out, "results/train-20"), "%s", outcome.out);
    cr_expect_not_null(strstr(outcome.out, "-1/summary.json"));
    run("-n 1 --steps=1 --eval=never" CNN, &outcome);
    cr_expect_not_null(strstr(outcome.out, "-2/summary.json"));
}

Test(train, learns)
{
    json_t *summary = summary_of("--allreduce=ring -n 2 --steps=60 --eval=end --lr=0.4 --out=run" SMALL);
    cr_expect_lt(number(summary, "loss_last"), number(summary, "loss_first") - 0.3);
    cr_expect_gt(number(summary, "top1"), 0.4);
    json_decref(summary);
}

/* ---- what the algorithms are defined to do ---- */

Test(train, exact_algorithms_leave_equal_bits_on_any_number_of_workers)
{
    static const char *const specs[] = {"naive", "ring", "recursive-doubling", "synchronous:inner=binomial",
                                        "double-buffered"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        for (int workers = 1; workers <= 3; workers++) {
            struct text words = {0};
            text_addf(&words, "--allreduce=%s -n %d --steps=3 --eval=never --out=run-%zu-%d" SMALL, specs[i], workers,
                      i, workers);
            json_t *summary = summary_of(text_string(&words));
            expect_hashes(summary, (size_t)workers, true);
            cr_expect_eq(number(summary, "consensus"), 0);
            json_decref(summary);
            text_release(&words);
        }
    }
}

Test(train, is_reproducible_and_depends_on_the_seed)
{
    json_t *one = summary_of("--allreduce=ring -n 2 --steps=3 --eval=never --out=one" SMALL);
    json_t *two =
        summary_of("--allreduce=ring -n 2 --steps=3 --eval=never --transport=tcp --segment=4K --out=two" SMALL);
    json_t *three = summary_of("--allreduce=ring -n 2 --steps=3 --eval=never --seed=2 --out=three" SMALL);
    cr_expect_str_eq(hash_of(one, 0), hash_of(two, 0), "whatever carries the bytes");
    cr_expect_str_neq(hash_of(one, 0), hash_of(three, 0));
    json_decref(one);
    json_decref(two);
    json_decref(three);
}

Test(train, buckets_change_no_bit)
{
    json_t *whole = summary_of("--allreduce=naive -n 2 --steps=3 --eval=never --out=whole" SMALL);
    json_t *some = summary_of("--allreduce=naive -n 2 --steps=3 --eval=never --bucket=64K --out=some" SMALL);
    json_t *tensor = summary_of("--allreduce=naive -n 2 --steps=3 --eval=never --bucket=tensor --out=tensor" SMALL);
    cr_expect_str_eq(hash_of(whole, 0), hash_of(some, 0));
    cr_expect_str_eq(hash_of(whole, 0), hash_of(tensor, 0));
    cr_expect_eq(number(whole, "bytes_sent_per_step"), number(tensor, "bytes_sent_per_step"));
    json_decref(whole);
    json_decref(some);
    json_decref(tensor);
}

/* With the same buckets. */
static void overlap_changes_no_bit(const char *words)
{
    static const char form[] = "%s --steps=4 --eval=never --bucket=tensor --overlap=%s" SMALL;
    char all[200];
    (void)snprintf(all, sizeof all, form, words, "none");
    json_t *none = summary_of(all);
    (void)snprintf(all, sizeof all, form, words, "bucket");
    json_t *bucket = summary_of(all);
    cr_expect_str_eq(json_string_value(json_object_get(none, "overlap")), "none");
    cr_expect_str_eq(json_string_value(json_object_get(bucket, "overlap")), "bucket");
    static const char *const keys[] = {"parameter_hash", "state_hash", "loss_last"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        cr_expect(json_equal(json_object_get(none, keys[k]), json_object_get(bucket, keys[k])), "%s: %s", words,
                  keys[k]);
    cr_expect_eq(number(none, "bytes_sent_per_step"), number(bucket, "bytes_sent_per_step"));
    cr_expect_leq(number(bucket, "compute_ms") + number(bucket, "exposed_ms"), number(bucket, "step_ms") * 1.000001);
    cr_expect_leq(number(bucket, "comm_ms"), number(bucket, "step_ms") * 1.000001);
    json_decref(none);
    json_decref(bucket);
}

Test(train, overlap_changes_no_bit)
{
    overlap_changes_no_bit("--allreduce=ring -n 3");
    overlap_changes_no_bit("--allreduce=rhd -n 2 --transport=tcp");
    overlap_changes_no_bit("--allreduce=hierarchical -n 4 --nodes=2x2 --wire=bf16");
    overlap_changes_no_bit("--allreduce=double-buffered -n 3");
    overlap_changes_no_bit("--allreduce=double-buffered:inner=rhd -n 2 --transport=tcp");
    overlap_changes_no_bit("--allreduce=allgather-reduce -n 3 --wire=top-k:ratio=0.1");
    overlap_changes_no_bit("--allreduce=ring -n 1");
    overlap_changes_no_bit("--allreduce=ring -n 2 --clip=0.5");
    overlap_changes_no_bit("--allreduce=ring -n 2 --optimizer=lars --nodes=2x1");
}

Test(train, overlap_is_taken_where_it_can_be)
{
    json_t *exact = summary_of("--allreduce=ring -n 2 --steps=1 --eval=never" SMALL);
    json_t *gossip = summary_of("--allreduce=gossip -n 2 --steps=1 --eval=never" SMALL);
    cr_expect_str_eq(json_string_value(json_object_get(exact, "overlap")), "bucket");
    cr_expect_eq(number(exact, "bucket_bytes"), 4 << 20);
    const char *progress = json_string_value(json_object_get(exact, "progress")); /* as cores are left over, or not */
    cr_expect(strcmp(progress, "between-layers") == 0 || strcmp(progress, "thread") == 0, "%s", progress);
    cr_expect_str_eq(json_string_value(json_object_get(gossip, "overlap")), "none");
    cr_expect_eq(number(gossip, "bucket_bytes"), 0);
    json_decref(exact);
    json_decref(gossip);
}

/* Every worker's trace: steps, each with its phases, and every bucket of every step in flight, begun during backward. */
Test(train, traces_show_what_overlaps)
{
    enum { STEPS = 3 };
    json_error_t error;
    cr_assert_eq(mkdir("traces", 0755), 0);
    cr_assert_eq(system("touch traces/trace.0.json traces/trace.1.json traces/trace.2.json traces/trace.3.json"),
                 0); /* of more workers */
    json_t *summary = summary_of("--allreduce=ring -n 2 --steps=3 --eval=never --bucket=tensor --trace=traces" SMALL);
    cr_expect_eq(system("test $(ls traces | wc -l) -eq 2"), 0);
    double backward_end[STEPS] = {0}, first_flight[STEPS] = {0}, whole[STEPS] = {0}, parts[STEPS] = {0};
    size_t steps = 0, flights = 0, updates[STEPS] = {0}, k;
    json_t *event, *trace = json_load_file("traces/trace.1.json", 0, &error);
    cr_assert_not_null(trace, "%s", error.text);
    json_array_foreach(trace, k, event)
    {
        const char *name = json_string_value(json_object_get(event, "name"));
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0)
            continue;
        const size_t step = (size_t)number(json_object_get(event, "args"), "step");
        const double begin = number(event, "ts");
        cr_assert_lt(step, STEPS);
        cr_expect_geq(number(event, "dur"), 0);
        steps += strcmp(name, "step") == 0;
        whole[step] += strcmp(name, "step") == 0 ? number(event, "dur") : 0;
        updates[step] += strcmp(name, "update") == 0;
        if (strcmp(name, "backward") == 0)
            backward_end[step] = begin + number(event, "dur");
        if (strcmp(name, "images") == 0 || strcmp(name, "forward") == 0 || strcmp(name, "backward") == 0 ||
            ((strcmp(name, "wait") == 0 || strcmp(name, "update") == 0 || strcmp(name, "start") == 0) &&
             begin >= backward_end[step] && backward_end[step] > 0))
            parts[step] += number(event, "dur");
        if (strcmp(name, "in flight") != 0)
            continue;
        flights++;
        if (first_flight[step] <= 0 || begin < first_flight[step])
            first_flight[step] = begin;
    }
    cr_expect_eq(steps, STEPS);
    cr_expect_eq(flights % STEPS, 0);
    cr_expect_gt(flights / STEPS, 5, "a bucket for each tensor");
    for (size_t step = 0; step < STEPS; step++) {
        cr_expect_lt(first_flight[step], backward_end[step]);
        cr_expect_gt(updates[step], 0);
        cr_expect_leq(parts[step], whole[step] + 0.1, "what a step is made of is no longer than it, in us");
    }
    json_decref(trace);
    json_decref(summary);
    cr_expect_eq(access("traces/trace.0.json", R_OK), 0);
}

/* ---- batch norm ---- */

enum { LOSSES = 5 };

/* Of the first `count` steps. */
static void losses_of(const char *words, double *losses, int count)
{
    char line[1024];
    struct text all = {0};
    json_error_t error;
    const char *steps = strstr(words, "--steps=") != NULL || strstr(words, "--epochs=") != NULL ? "" : "--steps=5";
    text_addf(&all, "--threads=1 %s --eval=never %s --out=run", steps, words);
    json_decref(summary_of(text_string(&all)));
    text_release(&all);
    FILE *file = fopen("run/metrics.jsonl", "r");
    cr_assert_not_null(file);
    for (int k = 0; k < count; k++) {
        cr_assert_not_null(fgets(line, sizeof line, file));
        json_t *row = json_loads(line, 0, &error);
        cr_assert_not_null(row);
        losses[k] = number(row, "loss");
        json_decref(row);
    }
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(system("rm -r run"), 0); /* NOLINT(concurrency-mt-unsafe): nothing else runs */
}

/* `parts` share the batch that `whole` has alone. */
static void norms_like_one_worker(const char *whole, const char *parts)
{
    double wanted[LOSSES], found[LOSSES];
    losses_of(whole, wanted, LOSSES);
    losses_of(parts, found, LOSSES);
    for (int k = 0; k < LOSSES; k++)
        cr_expect_float_eq(found[k], wanted[k], 1e-5 * wanted[k], "%s: step %d: %.9g, of one worker %.9g", parts, k,
                           found[k], wanted[k]);
}

Test(train, batch_norm_over_all_workers_is_that_of_the_whole_batch)
{
#define WHOLE "--data=. --model=cnn --image-size=28 --batch=24 -n 1"
#define PARTS "--data=. --model=cnn --image-size=28 --bn=sync"
#define DEEP "--model=resnet18 --image-size=32 --lr=0.01"
    norms_like_one_worker(WHOLE, PARTS " --batch=12 -n 2");
    norms_like_one_worker(WHOLE, PARTS " --batch=8 -n 3 --allreduce=rhd --bucket=tensor");
    norms_like_one_worker(WHOLE " --allreduce=double-buffered",
                          PARTS " --batch=12 -n 2 --allreduce=double-buffered --bucket=tensor --transport=tcp");
    norms_like_one_worker(DEEP " --batch=24 -n 1", DEEP " --batch=8 -n 3 --bn=sync");
}

/* ---- what training comes to ---- */

/* The same numbers on every processor but for rounding; a change of images, order, initial weights, loss, gradient or update
 * moves them by far more. */
Test(train, losses_of_twenty_steps_are_these)
{
    static const double wanted[] = {7.071478, 6.633450, 6.130746, 5.641884, 5.180290, 4.647139, 4.061574,
                                    3.441253, 2.827229, 2.230805, 1.690371, 1.228622, 0.863074, 0.595747,
                                    0.427689, 0.326862, 0.266529, 0.231159, 0.211977, 0.202291};
    static const char *const runs[] = {"--batch=8 -n 1", "--batch=4 -n 2 --bn=sync", "--batch=8 -n 1 --loaders=2"};
    enum { STEPS = sizeof wanted / sizeof *wanted };
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        struct text words = {0};
        double found[STEPS];
        text_addf(&words,
                  "--data=synthetic --model=resnet18 --image-size=32 --seed=3 --steps=20 --lr-schedule=constant %s",
                  runs[k]);
        losses_of(text_string(&words), found, STEPS);
        for (int i = 0; i < STEPS; i++)
            cr_expect_float_eq(found[i], wanted[i], 1e-3 * wanted[i], "%s: step %d: %.9g", runs[k], i, found[i]);
        text_release(&words);
    }
}

/* ---- the last batch of an epoch ---- */

enum { SIDE = 16, LEFT = 62, TESTS = 37 };

/* 62 training images of 16x16: two batches of 30, and 2 left. */
static void put_part(const char *part, int count)
{
    unsigned char images[16 + LEFT * SIDE * SIDE] = {0, 0, 8, 3,    0, 0, 0, (unsigned char)count,
                                                     0, 0, 0, SIDE, 0, 0, 0, SIDE};
    unsigned char labels[8 + LEFT] = {0, 0, 8, 1, 0, 0, 0, (unsigned char)count};
    char path[64];
    for (int n = 0; n < count; n++) {
        labels[8 + n] = (unsigned char)(n % 3);
        for (int i = 0; i < SIDE * SIDE; i++)
            images[16 + n * SIDE * SIDE + i] = (unsigned char)(n * 37 + i * (n % 3 + 5) + n * i * 7);
    }
    (void)snprintf(path, sizeof path, "%s-images-idx3-ubyte", part);
    EXPECT_OK(file_write_atomic(path, images, 16 + (size_t)count * SIDE * SIDE));
    (void)snprintf(path, sizeof path, "%s-labels-idx1-ubyte", part);
    EXPECT_OK(file_write_atomic(path, labels, 8 + (size_t)count));
}

static void put_data(void)
{
    put_part("train", LEFT);
    put_part("t10k", TESTS);
}

#define LAST "--last=keep --model=cnn --image-size=16 --data=. --epochs=2 "

/* Two images in step 2: of five workers three have none. `both` is of the one worker, too. */
Test(train, the_last_batch_is_that_of_one_worker)
{
    static const struct {
        const char *both, *parts;
        double tolerance;
    } cases[] = {
        {"", "--batch=15 -n 2", 2e-5},
        {"", "--batch=6 -n 5 --overlap=bucket --bucket=4k", 2e-5},
        {"--optimizer=lars --clip=0.5", "--batch=6 -n 5 --overlap=none --bucket=tensor", 2e-5},
        {"--allreduce=double-buffered", "--batch=10 -n 3", 2e-5},
        {"", "--batch=10 -n 3 --wire=f16", 1e-2},
    };
    put_data();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct text one = {0}, some = {0};
        double wanted[LOSSES], found[LOSSES];
        text_addf(&one, LAST "--lr=0.5 --batch=30 -n 1 %s", cases[k].both);
        text_addf(&some, LAST "--bn=sync --lr=0.5 %s %s", cases[k].both, cases[k].parts);
        losses_of(text_string(&one), wanted, LOSSES);
        losses_of(text_string(&some), found, LOSSES);
        for (int i = 0; i < LOSSES; i++)
            cr_expect_float_eq(found[i], wanted[i], cases[k].tolerance * wanted[i],
                               "%s: step %d: %.9g, of one worker %.9g", text_string(&some), i, found[i], wanted[i]);
        text_release(&one);
        text_release(&some);
    }
}

/* Buckets that leave during backward carry the same bits. */
Test(train, the_last_batch_is_the_same_with_overlap)
{
    static const char *const specs[] = {"ring", "double-buffered", "double-buffered --optimizer=lars",
                                        "ring --optimizer=nesterov --clip=0.3"};
    put_data();
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
        json_t *summary[2];
        for (int o = 0; o < 2; o++) {
            struct text words = {0};
            text_addf(&words,
                      LAST "--batch=6 -n 5 --bucket=4k --threads=1 --overlap=%s --allreduce=%s --checkpoint=never",
                      o == 0 ? "none" : "bucket", specs[k]);
            summary[o] = summary_of(text_string(&words));
            expect_hashes(summary[o], 5, true);
            text_release(&words);
        }
        cr_expect_str_eq(hash_of(summary[0], 0), hash_of(summary[1], 0), "%s", specs[k]);
        cr_expect_eq(number(summary[0], "steps"), 6);
        json_decref(summary[0]);
        json_decref(summary[1]);
    }
}

Test(train, what_an_epoch_leaves_out_is_said)
{
    static struct outcome outcome;
    put_data();
    run("--model=cnn --image-size=16 --data=. --epochs=1 --batch=10 -n 3 --threads=1 --eval=never", &outcome);
    cr_expect_eq(outcome.exit_code, 0);
    cr_expect_not_null(strstr(outcome.out, "each epoch leaves out 2 images: --last=keep"), "%s", outcome.out);
    run(LAST "--batch=10 -n 3 --threads=1 --eval=never --allreduce=gossip --out=kept", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect_not_null(strstr(outcome.out, "the last batch of an epoch has 2 images"), "%s", outcome.out);
    FILE *file = fopen("kept/metrics.jsonl", "r");
    char line[1024];
    for (int step = 0; step < 6; step++) {
        cr_assert_not_null(fgets(line, sizeof line, file));
        json_t *row = json_loads(line, 0, NULL);
        cr_expect_eq(number(row, "images"), step % 3 == 2 ? 2 : 30, "step %d", step);
        json_decref(row);
    }
    cr_expect_eq(fclose(file), 0);
    run(LAST "--batch=70 -n 1 --threads=1", &outcome); /* nothing but a last batch */
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
}

Test(train, batch_norms_of_gossip)
{
    json_t *local = summary_of("--allreduce=gossip -n 3 --steps=3 --eval=never" SMALL);
    json_t *averaged = summary_of("--allreduce=gossip -n 3 --steps=3 --eval=never --bn=averaged" SMALL);
    const json_t *states = json_object_get(averaged, "state_hash");
    cr_expect(json_equal(json_array_get(states, 0), json_array_get(states, 2)));
    cr_expect(!json_equal(json_object_get(local, "state_hash"), states));
    cr_expect(json_equal(json_object_get(local, "parameter_hash"), json_object_get(averaged, "parameter_hash")));
    cr_expect_str_eq(json_string_value(json_object_get(averaged, "batch_norm_statistics")), "averaged");
    json_decref(local);
    json_decref(averaged);
}

Test(train, none_lets_workers_drift_apart)
{
    json_t *summary = summary_of("--allreduce=none -n 3 --steps=3 --eval=never --out=run" SMALL);
    expect_hashes(summary, 3, false);
    cr_expect_gt(number(summary, "consensus"), 0);
    cr_expect_eq(number(summary, "bytes_sent_per_step"), 0);
    json_decref(summary);
}

Test(train, gossip_keeps_workers_near_each_other)
{
    json_t *alone = summary_of("--allreduce=none -n 4 --steps=6 --eval=never --out=alone" SMALL);
    json_t *gossip = summary_of("--allreduce=gossip:graph=ring -n 4 --steps=6 --eval=end --out=gossip" SMALL);
    expect_hashes(gossip, 4, false);
    cr_expect_gt(number(gossip, "consensus"), 0);
    cr_expect_lt(number(gossip, "consensus"), 0.5 * number(alone, "consensus"));
    cr_expect_eq(json_array_size(json_object_get(gossip, "top1_of_workers")), 4);
    cr_expect_str_eq(json_string_value(json_object_get(gossip, "batch_norm_statistics")), "local");
    json_decref(alone);
    json_decref(gossip);
}

Test(train, sends_what_the_schedule_tells)
{
    enum { PARAMETERS = 61338 };
    json_t *ring = summary_of("--allreduce=ring -n 3 --steps=3 --eval=never --out=ring" SMALL);
    json_t *doubling = summary_of("--allreduce=recursive-doubling -n 4 --steps=3 --eval=never --out=rd" SMALL);
    cr_expect_eq(number(ring, "parameters"), PARAMETERS);
    cr_expect_eq(number(ring, "bytes_sent_per_step"), 4.0 * 2 * 2 * PARAMETERS / 3, "2 n (p-1)/p");
    cr_expect_eq(number(doubling, "bytes_sent_per_step"), 4.0 * 2 * PARAMETERS, "n log2 p");
    json_decref(ring);
    json_decref(doubling);
}

/* A learning rate of nearly 0: every number of workers has the same model, and each test image counts once. */
Test(train, evaluation_does_not_depend_on_the_number_of_workers)
{
    double top1 = 0, top5 = 0, loss = 0;
    for (int workers = 1; workers <= 5; workers += workers == 3 ? 2 : 1) {
        struct text words = {0};
        text_addf(&words,
                  "--allreduce=ring -n %d --steps=1 --lr=0 --eval=end --model=cnn --image-size=28 --batch=30 --data=. "
                  "--threads=1 --shard=fixed --checkpoint=never --out=eval-%d",
                  workers, workers);
        json_t *summary = summary_of(text_string(&words));
        if (workers == 1) {
            top1 = number(summary, "top1");
            top5 = number(summary, "top5");
            loss = number(summary, "test_loss");
            cr_expect(top5 > top1 && top5 < 1);
        }
        cr_expect_eq(fmod(number(summary, "top5") * SET_PHOTOGRAPHS + 1e-6, 1) < 1e-3, true,
                     "a count of the test images");
        cr_expect_float_eq(number(summary, "top1"), top1, 0.05, "%d workers",
                           workers); /* statistics are of other images */
        cr_expect_float_eq(number(summary, "test_loss"), loss, 0.05, "%d workers", workers);
        cr_expect(json_is_null(json_object_get(summary, "top1_average")));
        json_decref(summary);
        text_release(&words);
    }
}

Test(train, workers_that_differ_are_evaluated_alone_and_as_their_average)
{
    json_t *summary = summary_of("--allreduce=none -n 3 --steps=20 --lr=0.4 --eval=end --out=run" SMALL);
    const json_t *each = json_object_get(summary, "top1_of_workers");
    double sum = 0;
    for (size_t r = 0; r < 3; r++)
        sum += json_number_value(json_array_get(each, r));
    cr_expect_float_eq(number(summary, "top1"), sum / 3, 1e-9);
    cr_expect_gt(number(summary, "top1_average"), 0.05);
    cr_expect_geq(number(summary, "top5_average"), number(summary, "top1_average"));
    cr_expect_neq(number(summary, "test_loss_average"), number(summary, "test_loss"));
    json_decref(summary);
}

/* ---- a reference in one process ---- */

enum { VIRTUAL = 2, BATCH = 8 };

/* Two workers, one after the other, with what the program is made of except the trainer and everything that talks. */
struct reference {
    struct model *model;
    struct data *data;
    struct data_order order;
    struct learning_rate rate;
    struct backend *backend;
    struct optimizer *optimizer;
    float *parameters, *gradient, *mean[2], *images, *canonical;
    float *state[VIRTUAL];
    int32_t labels[BATCH];
};

static float *floats(size_t count)
{
    float *values = calloc(count, sizeof(float));
    cr_assert_not_null(values);
    return values;
}

static void reference_open(struct reference *reference)
{
    *reference =
        (struct reference){.order = {.seed = 1, .samples = SET_PHOTOGRAPHS, .workers = VIRTUAL, .batch = BATCH},
                           .rate = {.rate = 0.1, .images = 256, .global_batch = VIRTUAL * BATCH}};
    struct data_request data = {.path = ".", .image_size = 28};
    EXPECT_OK(data_open(&data, &reference->data));
    EXPECT_OK(model_create("cnn", 10, 28, &reference->model));
    cr_assert_not_null(reference->data);
    cr_assert_not_null(reference->model);
    size_t count = reference->model->parameters;
    struct backend_request request = {.model = reference->model, .batch = BATCH, .threads = 1};
    EXPECT_OK(backend_cpu.open(&request, &reference->backend));
    EXPECT_OK(optimizer_create(reference->model, &(struct optimizer_settings){.momentum = 0.9, .weight_decay = 1e-4},
                               NULL, &reference->optimizer));
    cr_assert_not_null(reference->backend);
    cr_assert_not_null(reference->optimizer);
    reference->parameters = floats(count);
    reference->canonical = floats(count);
    reference->gradient = floats(count);
    reference->mean[0] = floats(count);
    reference->mean[1] = floats(count);
    reference->images = floats((size_t)BATCH * 3 * 28 * 28);
    for (int r = 0; r < VIRTUAL; r++) {
        reference->state[r] = floats(reference->model->state);
        model_initialise(reference->model, 1, reference->canonical, reference->state[r]);
    }
    EXPECT_OK(backend_cpu.to_native(reference->backend, reference->canonical, reference->parameters));
}

static void reference_close(struct reference *reference)
{
    backend_cpu.close(reference->backend);
    optimizer_destroy(reference->optimizer);
    model_destroy(reference->model);
    data_close(reference->data);
    for (int r = 0; r < VIRTUAL; r++)
        free(reference->state[r]);
    free(reference->parameters);
    free(reference->canonical);
    free(reference->gradient);
    free(reference->mean[0]);
    free(reference->mean[1]);
    free(reference->images);
}

/* mean = (g of worker 0 + g of worker 1) / 2, of the parameters as they are */
static void reference_gradient(struct reference *reference, uint64_t step, float *mean)
{
    size_t count = reference->model->parameters;
    for (int r = 0; r < VIRTUAL; r++) {
        struct step_result result;
        EXPECT_OK(data_train_batch(reference->data, &reference->order, step, r, reference->images, reference->labels));
        const struct batch batch = {.count = BATCH, .canonical = reference->images, .labels = reference->labels};
        EXPECT_OK(backend_cpu.step(reference->backend, reference->parameters, reference->state[r], &batch,
                                   reference->gradient, NULL));
        EXPECT_OK(backend_cpu.collect(reference->backend, &result));
        for (size_t i = 0; i < count; i++)
            mean[i] = r == 0 ? reference->gradient[i] : mean[i] + reference->gradient[i];
    }
    for (size_t i = 0; i < count; i++)
        mean[i] /= VIRTUAL;
}

static void reference_update(struct reference *reference, uint64_t step, const float *mean)
{
    bool finite = true;
    EXPECT_OK(optimizer_step(reference->optimizer, learning_rate_at(&reference->rate, step), mean,
                             reference->parameters, &finite));
    cr_expect(finite);
}

static void expect_hash(struct reference *reference, const char *words)
{
    char text[17];
    EXPECT_OK(backend_cpu.to_canonical(reference->backend, reference->parameters, reference->canonical));
    uint64_t hash = examine_hash(reference->canonical, reference->model->parameters);
    (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    json_t *summary = summary_of(words);
    expect_hashes(summary, VIRTUAL, true);
    cr_expect_str_eq(hash_of(summary, 0), text, "%s", words);
    json_decref(summary);
}

Test(train, synchronous_is_bitwise_its_definition)
{
    struct reference reference;
    reference_open(&reference);
    for (uint64_t step = 0; step < 5; step++) {
        reference_gradient(&reference, step, reference.mean[0]);
        reference_update(&reference, step, reference.mean[0]);
    }
    expect_hash(&reference, "--allreduce=ring -n 2 --steps=5 --eval=never --out=ring" CONSTANT);
    expect_hash(&reference, "--allreduce=naive -n 2 --steps=5 --eval=never --out=naive" CONSTANT);
    reference_close(&reference);
}

Test(train, double_buffered_is_bitwise_its_definition)
{
    struct reference reference;
    reference_open(&reference);
    for (uint64_t step = 0; step < 5; step++) {
        reference_gradient(&reference, step, reference.mean[step % 2]);
        if (step > 0) /* w(k+1) = w(k) - lr mean g(w(k-1)) */
            reference_update(&reference, step, reference.mean[(step + 1) % 2]);
    }
    reference_update(&reference, 5, reference.mean[0]);
    expect_hash(&reference, "--allreduce=double-buffered -n 2 --steps=5 --eval=never --out=db" CONSTANT);
    expect_hash(&reference, "--allreduce=double-buffered:inner=naive -n 2 --steps=5 --eval=never --out=db2" CONSTANT);
    reference_close(&reference);
}

/* ---- an emulated device ---- */

static double least_of_steps(const char *path, const char *key)
{
    char line[4096];
    double least = INFINITY;
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *row = json_loads(line, 0, NULL);
        least = fmin(least, number(row, key));
        json_decref(row);
    }
    cr_assert_eq(fclose(file), 0);
    return least;
}

#define PROFILE "model tiny parameters=100000\ndevice emulated\nstep fixed=30ms per_image=0ms backward=0.5\n"

Test(train, replay_takes_the_profiles_time_on_many_workers)
{
    EXPECT_OK(file_write_atomic("profile", PROFILE, strlen(PROFILE)));
    json_t *summary = summary_of("--allreduce=ring -n 6 --device=replay:profile --steps=10 --out=run");
    cr_expect_str_eq(json_string_value(json_object_get(summary, "device")), "replay");
    cr_expect_str_eq(json_string_value(json_object_get(summary, "model")), "tiny");
    cr_expect_geq(number(summary, "compute_ms"), 29.9);
    cr_expect_lt(least_of_steps("run/metrics.jsonl", "compute_ms"), 45); /* a crowded machine wakes late now and then */
    cr_expect_gt(number(summary, "bytes_sent_per_step"), 0);
    cr_expect(json_is_null(json_object_get(summary, "top1")));
    json_decref(summary);
}

Test(train, layer_times_of_a_run_can_be_replayed)
{
    json_decref(summary_of("-n 1 --steps=3 --eval=never --profile-out=profile --out=measured" SMALL));
    json_t *summary = summary_of("-n 2 --device=replay:profile --steps=3 --batch=8 --out=replayed");
    cr_expect_str_eq(json_string_value(json_object_get(summary, "model")), "cnn");
    cr_expect_eq(number(summary, "parameters"), 61338);
    json_decref(summary);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of more steps than are remembered one by one: near those of all lines, by rank. */
Test(train, quantiles_of_a_long_run_are_of_steps_drawn_evenly)
{
    enum { STEPS = 12000, TIMES = 8192 };
    static const struct {
        const char *key;
        double q, off;
    } quantiles[] = {{"step_ms_p50", 0.5, 0.05}, {"step_ms_p99", 0.99, 0.008}};
    static double ms[STEPS];
    char line[1024];
    const char *profile = "model tiny parameters=10\ndevice emulated\nstep fixed=1us per_image=0ms backward=0.5\n";
    EXPECT_OK(file_write_atomic("profile", profile, strlen(profile)));
    json_t *summary = summary_of("-n 1 --device=replay:profile --steps=12000 --timing-skip=0 --out=run");
    FILE *file = fopen("run/metrics.jsonl", "r");
    cr_assert_not_null(file);
    for (int k = 0; k < STEPS; k++) {
        cr_assert_not_null(fgets(line, sizeof line, file));
        json_t *row = json_loads(line, 0, NULL);
        cr_assert_not_null(row);
        cr_expect_eq(number(row, "step"), k);
        ms[k] = number(row, "step_ms");
        json_decref(row);
    }
    cr_expect_null(fgets(line, sizeof line, file));
    cr_assert_eq(fclose(file), 0);
    qsort(ms, STEPS, sizeof ms[0], by_value);
    for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; i++) {
        const double found = number(summary, quantiles[i].key);
        cr_expect_geq(found, ms[(int)((quantiles[i].q - quantiles[i].off) * STEPS)] * (1 - 1e-9));
        cr_expect_leq(found, ms[(int)((quantiles[i].q + quantiles[i].off) * STEPS)] * (1 + 1e-9));
    }
    cr_expect_eq(number(summary, "steps_timed"), STEPS);
    cr_expect_eq(number(summary, "quantiles_of_steps"), TIMES);
    json_decref(summary);
}

/* ---- refusals ---- */

static void expect_refused(const char *words, int exit_code, const char *saying)
{
    static struct outcome outcome;
    run(words, &outcome);
    cr_expect_eq(outcome.exit_code, exit_code, "%s: exit code %d: %s", words, outcome.exit_code, outcome.err);
    cr_expect_not_null(strstr(outcome.err, saying), "%s: \"%s\" does not say \"%s\"", words, outcome.err, saying);
    cr_expect_eq(strncmp(outcome.err, "chorale: ", 9), 0, "%s", outcome.err);
    const char *end = strchr(outcome.err, '\n');
    cr_expect(end != NULL && end[1] == '\0', "%s: one line: %s", words, outcome.err);
}

Test(train, wrong_usage_is_said_in_one_line)
{
    EXPECT_OK(file_write_atomic("profile", PROFILE, strlen(PROFILE)));
    expect_refused("-n 2 --steps=1 --last=keep --device=replay:profile --out=b", 2, "--last=drop");
    expect_refused("-n 2 --steps=1 --data=/nowhere --device=replay:profile --out=b", 2, "reads no images");
    expect_refused("--allreduce=rong" SMALL, 2, "did you mean ring?");
    expect_refused("--allreduce=ring:chunk=3" SMALL, 2, "chunk");
    expect_refused("--allreduce=double-buffered:inner=[ring" SMALL, 2, "bracket");
    expect_refused("--allreduce=ring --bach=8", 2, "did you mean --batch?");
    expect_refused("--batch=0 -n 2", 2, "--batch=0");
    expect_refused("--model=resnet51", 2, "did you mean resnet50?");
    expect_refused("--steps=2 --epochs=2" SMALL, 2, "one of them");
    expect_refused("--bucket=many" SMALL, 2, "--bucket=many");
    expect_refused("--device=tpu" SMALL, 2, "--device=tpu");
    expect_refused("-n 2 --bn=shared" SMALL, 2, "--bn=shared");
    expect_refused("-n 2 --allreduce=gossip --bn=sync --steps=1" SMALL, 2, "--bn=averaged");
    expect_refused("-n 2 --overlap=some" SMALL, 2, "--overlap=some");
    expect_refused("-n 2 --allreduce=gossip --overlap=bucket --steps=1" SMALL, 2, "--overlap=none");
    expect_refused("-n 0" SMALL, 2, "workers");
    expect_refused("--steps=2 --warmup-steps=0 --warmup-lr=0.1" SMALL, 2, "there is no warm-up");
    expect_refused("-n 2 --steps=1 --out=a --model=cnn --image-size=28 --batch=30001", 2, "60000");
    expect_refused("-n 2 --steps=1 --out=b --transport=loopback" SMALL, 2, "loopback");
    expect_refused("-n 3 --steps=1 --out=c --nodes=2x4" SMALL, 2, "8 workers");
    expect_refused("-n 2 --steps=1 --out=d --decay-epochs=3,2" SMALL, 2, "decay epochs");
}

Test(train, what_can_not_be_read_or_written_is_named)
{
    expect_refused("-n 2 --steps=1 --data=/nowhere --out=a" CNN, 1,
                   "data /nowhere: no such file or folder: look at the path");
    expect_refused("-n 2 --steps=1 --out=/proc/run" SMALL, 1, "/proc/run");
    expect_refused("-n 2 --steps=1 --device=replay:/nowhere --out=b", 1, "/nowhere");
}

Test(train, a_folder_that_holds_a_run_is_kept)
{
    char *before = NULL, *after = NULL;
    size_t length = 0, length_after = 0;
    json_decref(summary_of("-n 1 --steps=1 --eval=never --out=run" SMALL));
    EXPECT_OK(file_read("run/summary.json", 1 << 20, &before, &length));
    expect_refused("-n 2 --steps=1 --eval=never --out=run" SMALL, 2, "run/checkpoint-000000001): add --resume");
    EXPECT_OK(file_read("run/summary.json", 1 << 20, &after, &length_after));
    cr_expect_eq(length, length_after);
    cr_expect_arr_eq(before, after, length);
    free(before);
    free(after);
}

Test(train, a_folder_that_another_run_writes_to_is_refused)
{
    cr_assert_eq(mkdir("run", 0700), 0);
    int fd = open("run/metrics.jsonl", O_WRONLY | O_CREAT, 0600); /* empty until the other has done a step */
    cr_assert_geq(fd, 0);
    cr_assert_eq(flock(fd, LOCK_EX), 0);
    expect_refused("-n 2 --steps=1 --eval=never --out=run" SMALL, 2, "another run");
    close(fd);
    json_decref(summary_of("-n 2 --steps=1 --eval=never --out=run" SMALL));
}

Test(train, what_is_written_at_the_end_is_tried_at_the_start)
{
    expect_refused("-n 2 --steps=100000 --profile-out=absent/file --out=run" SMALL, 1, "absent/file");
    EXPECT_OK(file_write_atomic("file", "", 0));
    expect_refused("-n 2 --steps=100000 --trace=file --out=traced" SMALL, 1, "--trace: ");
    EXPECT_OK(folder_create("kept/checkpoint-000000007"));
    expect_refused("-n 2 --steps=100000 --out=kept --resume" SMALL, 2, "kept/checkpoint-000000007: a folder");
}

Test(train, a_run_that_diverges_fails_everywhere_naming_the_step)
{
    expect_refused("-n 2 --steps=50 --eval=never --lr=1e6 --out=a" CNN, 1, "lower --lr");
    char *rows = NULL;
    size_t length = 0;
    EXPECT_OK(file_read("a/metrics.jsonl", (size_t)1 << 20, &rows, &length));
    cr_expect_not_null(strstr(rows, "{\"step\":0,"), "the steps before can be looked at: %s", rows);
    free(rows);
    expect_refused("-n 2 --allreduce=double-buffered --steps=50 --eval=never --lr=1e6 --out=b" CNN, 1, "step ");
    expect_refused("-n 2 --allreduce=gossip --steps=50 --eval=never --lr=1e6 --out=c" CNN, 1, "rank ");
}
