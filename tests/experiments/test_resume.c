/* test_resume.c - `chorale train` that is kept and goes on: bit by bit what it would have been without an interruption, for
 * every strategy; killed at any moment; from damaged files; with other options; with other workers; on a full disk.
 */
#define _GNU_SOURCE /* vasprintf */
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "tests/base/expect.h"
#include "tests/experiments/support_program.h"
#include "tests/experiments/support_set.h"

/* The set has 50 training images: 6 steps of 8 images an epoch, of 2 workers with 4 each. The rate stays where it is, so
 * that runs may become longer. */
#define TINY " --model=cnn --image-size=9 --batch=4 --threads=1 --data=."
#define SMALL TINY " --lr-schedule=constant"

static void setup(void)
{
    program_setup();
    put_set();
}

TestSuite(resume, .init = setup, .fini = program_teardown, .timeout = 300);

/* ---- running and comparing ---- */

__attribute__((format(printf, 1, 2))) static char *words(const char *format, ...)
{
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    cr_assert_geq(vasprintf(&text, format, arguments), 0);
    va_end(arguments);
    return text;
}

/* `chorale train WORDS` succeeds; what it says on stderr, caller frees. */
static char *train(char *line)
{
    struct outcome outcome;
    char *all = words("train %s", line);
    program_run(all, &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s: exit code %d: %s", all, outcome.exit_code, outcome.err);
    char *said = strdup(outcome.err);
    outcome_release(&outcome);
    free(all);
    free(line);
    return said;
}

static void train_silently(char *line)
{
    char *said = train(line);
    cr_expect_str_empty(said);
    free(said);
}

static void expect_wrong(char *line, int exit_code, const char *fragment)
{
    char *all = words("train %s", line);
    REFUSED(all, exit_code, fragment);
    free(all);
    free(line);
}

static json_t *summary_of(const char *folder)
{
    json_error_t error;
    char *path = words("%s/summary.json", folder);
    json_t *summary = json_load_file(path, 0, &error);
    cr_assert_not_null(summary, "%s: %s", path, error.text);
    free(path);
    return summary;
}

/* The header of a checkpoint: from after its first line on, as long as that says. */
static json_t *header_of(const char *path)
{
    char *file = NULL;
    size_t length = 0;
    json_error_t error;
    EXPECT_OK(file_read(path, 1 << 24, &file, &length));
    cr_assert_not_null(file, "%s", path);
    const char *number = strstr(file, "header ");
    cr_assert_not_null(number);
    json_t *header = json_loadb(file + 62, strtoul(number + 7, NULL, 10), 0, &error);
    cr_assert_not_null(header, "%s: %s", path, error.text);
    free(file);
    return header;
}

/* Checksums of all that a model is; the rows of metrics.jsonl have times. */
static void expect_same_sections(const char *one, const char *two, const char *file)
{
    char *path_one = words("%s/%s", one, file), *path_two = words("%s/%s", two, file);
    json_t *ours = header_of(path_one), *theirs = header_of(path_two);
    json_t *sections = json_object_get(ours, "sections"), *others = json_object_get(theirs, "sections");
    cr_expect_eq(json_array_size(sections), json_array_size(others));
    for (size_t s = 0; s < json_array_size(sections); s++) {
        json_t *section = json_array_get(sections, s);
        if (strcmp(string_of(section, "name"), "metrics") != 0)
            cr_expect(json_equal(section, json_array_get(others, s)), "%s, %s: section %s", two, file,
                      string_of(section, "name"));
    }
    json_decref(ours);
    json_decref(theirs);
    free(path_one);
    free(path_two);
}

/* Lines from step 0 on, each step once, with what does not depend on the clock. */
static void expect_same_lines(const char *one, const char *two, int steps)
{
    static const char *const keys[] = {"step", "epoch", "loss", "lr", "top1", "top5", "top1_average"};
    char line[2][4096];
    FILE *file[2];
    int lines = 0;
    for (int f = 0; f < 2; f++) {
        char *path = words("%s/metrics.jsonl", f == 0 ? one : two);
        file[f] = fopen(path, "r");
        cr_assert_not_null(file[f], "%s", path);
        free(path);
    }
    while (fgets(line[0], sizeof line[0], file[0]) != NULL) {
        cr_assert_not_null(fgets(line[1], sizeof line[1], file[1]), "%s has %d lines", two, lines);
        json_t *row = json_loads(line[0], 0, NULL), *other = json_loads(line[1], 0, NULL);
        cr_assert(row != NULL && other != NULL, "%s", line[1]);
        cr_expect_eq(integer_of(other, "step"), lines, "%s: line %d is of step %lld", two, lines,
                     (long long)integer_of(other, "step"));
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_t *a = json_object_get(row, keys[k]), *b = json_object_get(other, keys[k]);
            cr_expect(a == b || json_equal(a, b), "%s, step %d: %s", two, lines, keys[k]);
        }
        json_decref(row);
        json_decref(other);
        lines++;
    }
    cr_expect_null(fgets(line[1], sizeof line[1], file[1]), "%s has more lines than %d", two, lines);
    cr_expect_eq(lines, steps);
    (void)fclose(file[0]);
    (void)fclose(file[1]);
}

static void expect_same(const char *one, const char *two, int steps, int workers, bool worker_files)
{
    static const char *const keys[] = {"parameter_hash", "state_hash",   "top1",
                                       "top5",           "top1_average", "test_loss",
                                       "consensus",      "steps",        "bytes_sent_per_step"};
    json_t *ours = summary_of(one), *theirs = summary_of(two);
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        cr_expect(json_equal(json_object_get(ours, keys[k]), json_object_get(theirs, keys[k])), "%s, %s: %s", one, two,
                  keys[k]);
    json_decref(ours);
    json_decref(theirs);
    expect_same_lines(one, two, steps);
    char *name = words("checkpoint-%09d", steps);
    expect_same_sections(one, two, name);
    for (int w = 0; worker_files && w < workers; w++) {
        char *of = words("%s.worker-%d", name, w);
        expect_same_sections(one, two, of);
        free(of);
    }
    free(name);
}

/* Until the file is there; false after 240 s. */
static bool await(const char *path)
{
    for (uint64_t deadline = deadline_after(240); !deadline_passed(deadline); clock_sleep_ns(200000))
        if (file_exists(path))
            return true;
    return false;
}

/* kill -9 of the launcher and all its workers. */
static void kill_all(struct program *program)
{
    struct outcome outcome;
    (void)kill(program->pid, SIGKILL);
    program_wait(program, 60, &outcome);
    outcome_release(&outcome);
}

/* ---- k + k steps with a kill in between are 2k steps ---- */

static const struct {
    const char *name, *options;
    int workers;
    bool worker_files;
} runs[] = {
    {"synchronous", "--allreduce=ring -n 2", 2, false},
    {"three", "--allreduce=rhd -n 3", 3, false},
    {"double-buffered", "--allreduce=double-buffered -n 2", 2, false},
    {"alone", "--allreduce=double-buffered -n 1", 1, false},
    {"gossip", "--allreduce=gossip:graph=ring -n 3", 3, true},
    {"one-peer", "--allreduce=gossip -n 4", 4, true},
    {"lars", "--allreduce=double-buffered -n 2 --bn=sync --optimizer=lars --clip=0.5 --bucket=tensor", 2, false},
    {"apart", "--allreduce=none -n 2", 2, true},
    {"top-k", "--allreduce=one-shot --wire=top-k:ratio=0.1 -n 2", 2, true},
    {"random-k", "--allreduce=double-buffered:inner=one-shot --wire=random-k:ratio=0.3 --bucket=tensor -n 2", 2, true},
    {"int8-gossip", "--allreduce=gossip --wire=int8 -n 4", 4, true},
    {"last", "--allreduce=double-buffered -n 3 --last=keep --bn=sync", 3, false},
    {"last-gossip", "--allreduce=gossip -n 4 --last=keep --shard=fixed", 4, true},
};

Test(resume, is_bit_by_bit_the_run_that_was_not_interrupted)
{
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
        struct outcome killed;
        char *cut = words("cut-%zu", r), *whole = words("whole-%zu", r);
        char *first = words("%s/checkpoint-000000005", cut);
        char *options = words("%s" SMALL " --checkpoint=5 --steps=20", runs[r].options);
        train_silently(words("%s --out=%s", options, whole));
        /* the run that is killed was meant to be longer; while it has no checkpoint after the first, which it would remove */
        char *line = words("train %s" SMALL " --checkpoint=5 --steps=100000 --out=%s --inject=die=0@7:kill",
                           runs[r].options, cut);
        program_run(line, &killed);
        cr_expect_neq(killed.exit_code, 0, "%s", runs[r].name);
        cr_expect(file_exists(first), "%s: %s", runs[r].name, killed.err);
        outcome_release(&killed);
        char *said =
            train(words("%s --out=%s --resume=%s --transport=tcp --deadline=60 --loaders=1", options, cut, first));
        cr_expect_str_empty(said, "%s: %s", runs[r].name, said);
        expect_same(whole, cut, 20, runs[r].workers, runs[r].worker_files);
        free(said);
        free(line);
        free(options);
        free(first);
        free(whole);
        free(cut);
    }
}

/* A run that came to its end goes on, too: what was applied in the end is not part of it. */
Test(resume, a_run_that_ended_goes_on_for_longer)
{
    static const char *const specs[] = {"ring", "double-buffered"};
    for (int i = 0; i < 2; i++) {
        char *options = words("--allreduce=%s -n 3" SMALL " --eval=never", specs[i]);
        char *whole = words("whole-%d", i), *longer = words("longer-%d", i);
        train_silently(words("%s --steps=12 --out=%s", options, whole));
        train_silently(words("%s --steps=4 --out=%s", options, longer)); /* the end of an epoch */
        train_silently(words("%s --steps=6 --out=%s --resume", options, longer));
        train_silently(words("%s --steps=12 --out=%s --resume", options, longer));
        expect_same(whole, longer, 12, 3, false);
        train_silently(words("%s --steps=12 --out=%s --resume", options, longer)); /* nothing left to do */
        expect_same(whole, longer, 12, 3, false);
        expect_wrong(words("%s --steps=11 --out=%s --resume", options, longer), 2, "--steps=11");
        free(options);
        free(whole);
        free(longer);
    }
}

Test(resume, a_run_that_ended_without_a_checkpoint_is_not_overwritten)
{
    char *before, *after;
    size_t length;
    train_silently(words("-n 2" SMALL " --eval=never --steps=2 --checkpoint=never --out=ended"));
    EXPECT_OK(file_read("ended/metrics.jsonl", 1 << 20, &before, &length));
    expect_wrong(words("-n 2" SMALL " --eval=never --steps=4 --out=ended --resume"), 2, "no checkpoint");
    EXPECT_OK(file_read("ended/metrics.jsonl", 1 << 20, &after, &length));
    cr_expect_str_eq(after, before);
    free(before);
    free(after);
}

Test(resume, checkpoints_alone_are_a_run_that_is_not_overwritten)
{
    train_silently(words("-n 2" SMALL " --eval=never --steps=2 --out=run"));
    cr_assert_eq(unlink("run/summary.json"), 0);
    cr_assert_eq(unlink("run/metrics.jsonl"), 0);
    expect_wrong(words("-n 2" SMALL " --eval=never --steps=1 --out=run"), 2, "run/checkpoint-000000002");
    free(train(words("-n 2" SMALL " --eval=never --steps=4 --out=run --resume")));
}

/* Wherever it is killed, a good checkpoint is there (or none yet), and it goes on. */
Test(resume, killed_at_random_moments_it_always_goes_on)
{
    const uint64_t key = rng_key(test_seed(), "kills", 0, 0);
    const char *options = "--allreduce=gossip -n 2" SMALL " --checkpoint=1 --steps=60 --eval=never";
    train_silently(words("%s --out=whole", options));
    for (uint64_t k = 0; k < 10; k++) {
        struct program program;
        char *line = words("train %s --out=cut --resume", options);
        program_start(&program, line);
        (void)await("cut/metrics.jsonl");
        clock_sleep_ns(rng_below(key, k, 60000000));
        kill_all(&program);
        free(line);
    }
    free(train(words("%s --out=cut --resume", options)));
    expect_same("whole", "cut", 60, 2, true);
}

/* ---- what is written ---- */

Test(resume, keeps_the_last_two_and_by_default_each_epoch)
{
    train_silently(words("-n 2" SMALL " --epochs=3 --out=run"));
    cr_expect_not(file_exists("run/checkpoint-000000006"));
    cr_expect(file_exists("run/checkpoint-000000012"));
    cr_expect(file_exists("run/checkpoint-000000018"));
    train_silently(words("-n 2" SMALL " --steps=5 --checkpoint=never --out=never"));
    cr_expect_not(file_exists("never/checkpoint-000000005"));
    train_silently(words("-n 2" SMALL " --epochs=2 --checkpoint=end --out=end"));
    cr_expect_not(file_exists("end/checkpoint-000000006"));
    cr_expect(file_exists("end/checkpoint-000000012"));
    json_t *shown = program_json("data inspect end/checkpoint-000000012");
    json_t *header = header_of("end/checkpoint-000000012");
    cr_expect(json_equal(json_object_get(shown, "options"), json_object_get(header, "options")));
    json_decref(shown);
    cr_expect_eq(integer_of(header, "step"), 12);
    cr_expect_eq(integer_of(header, "epoch"), 2);
    cr_expect_eq(integer_of(header, "position"), 0);
    json_decref(header);
}

Test(resume, the_schedule_of_the_learning_rate_goes_on)
{
    const char *options = "-n 1" TINY " --lr=1 --warmup-steps=5 --decay-epochs=1 --eval=never";
    train_silently(words("%s --steps=20 --out=whole", options));
    train_silently(words("%s --steps=3 --out=cut", options));
    train_silently(words("%s --steps=20 --out=cut --resume", options));
    expect_same("whole", "cut", 20, 1, false);
}

/* Those that are shares of the run go with its length, in steps and in epochs, on any number of workers. */
Test(resume, milestones_of_a_run_stay_where_they_were)
{
    static const char *const schedules[] = {"step", "cosine"};
    for (int i = 0; i < 2; i++) {
        char *options = words(TINY " --lr-schedule=%s --eval=never --out=run-%d", schedules[i], i);
        train_silently(words("-n 2 --steps=4 %s", options));
        expect_wrong(words("-n 2 --steps=8 --resume %s", options), 2, "the learning rate of the");
        expect_wrong(words("-n 1 --steps=8 --resume --change-workers %s", options), 2, "the learning rate of the");
        train_silently(words("-n 2 --steps=4 --resume %s", options));
        free(train(words("-n 1 --steps=4 --resume --change-workers %s", options)));
        free(options);
    }
}

/* ---- damaged ones ---- */

static void damage(const char *path, long offset, bool cut)
{
    FILE *file = fopen(path, "r+");
    cr_assert_not_null(file);
    if (cut) {
        cr_assert_eq(ftruncate(fileno(file), offset), 0);
    } else {
        cr_assert_eq(fseek(file, offset, SEEK_SET), 0);
        const int byte = fgetc(file);
        cr_assert_eq(fseek(file, offset, SEEK_SET), 0);
        cr_assert_eq(fputc(byte ^ 4, file), byte ^ 4);
    }
    cr_assert_eq(fclose(file), 0);
}

Test(resume, passes_over_what_is_damaged_and_says_so)
{
    const char *options = "--allreduce=gossip -n 2" SMALL " --checkpoint=4 --eval=never";
    train_silently(words("%s --steps=20 --out=whole", options));
    for (int way = 0; way < 4; way++) {
        static const char *const names[] = {"checkpoint-000000012", "checkpoint-000000012",
                                            "checkpoint-000000012.worker-1", "checkpoint-000000012.worker-0"};
        char *folder = words("cut-%d", way), *path = words("%s/%s", folder, names[way]);
        train_silently(words("%s --steps=12 --out=%s", options, folder));
        if (way == 3)
            cr_assert_eq(unlink(path), 0);
        else
            damage(path, 200, way == 0);
        char *said = train(words("%s --steps=20 --out=%s --resume", options, folder));
        cr_expect(contains(said, path), "%s does not name %s", said, path);
        cr_expect(contains(said, "going on with an earlier one"), "%s", said);
        cr_expect_eq(lines_of(said), 1, "%s", said);
        expect_same("whole", folder, 20, 2, true);
        free(said);
        free(path);
        free(folder);
    }
    damage("whole/checkpoint-000000020", 1000, false);
    damage("whole/checkpoint-000000016.worker-0", 3000, true);
    struct outcome outcome;
    program_run("train --allreduce=gossip -n 2" SMALL " --steps=30 --out=whole --resume", &outcome);
    cr_expect_eq(outcome.exit_code, 1, "%s", outcome.err);
    cr_expect(contains(outcome.err, "no checkpoint here is good"), "%s", outcome.err);
    outcome_release(&outcome);
    expect_wrong(words("--allreduce=gossip -n 2" SMALL " --steps=30 --out=new --resume=whole/checkpoint-000000020"), 1,
                 "was damaged");
    expect_wrong(words("-n 2" SMALL " --steps=30 --out=new --resume=t10k-labels-idx1-ubyte"), 1, "no checkpoint");
    expect_wrong(words("-n 2" SMALL " --steps=30 --out=new --resume=absent"), 1, "absent");
}

/* A header with another value, its checksum put right: what no damage makes, and no run has written. `path` names a key, or
 * a key within one ("sums.wait_s"); the value is JSON. */
static void alter(const char *from, const char *to, const char *path, const char *value)
{
    char *file = NULL, line[100];
    size_t length = 0, place = 0;
    EXPECT_OK(file_read(from, 1 << 24, &file, &length));
    cr_assert_not_null(file);
    const size_t bytes = strtoul(strstr(file, "header ") + 7, NULL, 10);
    json_t *header = header_of(from), *object = header;
    char *keys = strdup(path), *key = keys, *dot = NULL;
    while ((dot = strchr(key, '.')) != NULL) {
        *dot = '\0';
        object = json_is_array(object) ? json_array_get(object, strtoul(key, NULL, 10)) : json_object_get(object, key);
        cr_assert_not_null(object, "%s", path);
        key = dot + 1;
    }
    json_t *before = json_object_get(object, key), *after = json_loads(value, JSON_DECODE_ANY, NULL);
    cr_assert(before != NULL && after != NULL && !json_equal(before, after), "%s: %s", path, value);
    cr_assert_eq(json_object_set_new(object, key, after), 0);
    char *text = json_dumps(header, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    const size_t made = strlen(text);
    place = (size_t)snprintf(line, sizeof line, "chorale checkpoint 2, header %010zu bytes, crc32 %08x\n", made,
                             (unsigned)crc32_z(0, (const unsigned char *)text, made));
    FILE *out = fopen(to, "w");
    cr_assert_not_null(out);
    cr_assert_eq(fwrite(line, 1, place, out), place);
    cr_assert_eq(fwrite(text, 1, made, out), made);
    cr_assert_eq(fwrite(file + 62 + bytes, 1, length - 62 - bytes, out), length - 62 - bytes);
    cr_assert_eq(fclose(out), 0);
    json_decref(header);
    free(keys);
    free(text);
    free(file);
}

Test(resume, values_that_can_not_be_are_refused_before_they_are_used)
{
    const struct {
        const char *path, *value, *more;
    } cases[] = {{"workers", "1073741824", "--change-workers"},
                 {"workers", "0", ""},
                 {"workers", "\"2\"", ""},
                 {"workers", "3", "--change-workers"},
                 {"step", "576460752303423488", ""},
                 {"step", "5", ""},
                 {"step", "-4", ""},
                 {"epoch", "1", ""},
                 {"epoch", "4294967295", "--change-workers"},
                 {"position", "33", ""},
                 {"position", "4611686018427387904", "--change-workers"},
                 {"origin.position", "8", ""},
                 {"origin.epoch", "3", ""},
                 {"origin.step", "5", ""},
                 {"origin", "null", ""},
                 {"exact", "false", ""},
                 {"in_flight", "true", ""},
                 {"sums.wait_s", "-1", ""},
                 {"sums.skipped_images", "-1", ""},
                 {"sums.wire_nan", "1.5", ""},
                 {"sums", "[]", ""},
                 {"options", "7", ""},
                 {"worker_files", "[{\"bytes\": 1, \"crc32\": 2}]", ""},
                 {"sections.0.bytes", "9007199254740992", ""},
                 {"sections.0.name", "\"momentum\"", ""},
                 {"sections.3.name", "\"nothing\"", ""}};
    train_silently(words("-n 2" SMALL " --steps=4 --eval=never --out=run"));
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        alter("run/checkpoint-000000004", "altered", cases[k].path, cases[k].value);
        struct outcome outcome;
        char *line = words("train -n 2" SMALL " --steps=8 --eval=never --out=new --resume=altered %s", cases[k].more);
        program_run(line, &outcome);
        cr_expect(outcome.exit_code == 1 || outcome.exit_code == 2, "%s=%s: exit code %d: %s", cases[k].path,
                  cases[k].value, outcome.exit_code, outcome.err);
        expect_one_line(&outcome, line);
        cr_expect(contains(outcome.err, "altered"), "%s=%s: %s", cases[k].path, cases[k].value, outcome.err);
        outcome_release(&outcome);
        free(line);
    }
}

/* ---- lines of the steps before ---- */

static void expect_lines_from(const char *folder, int first, int steps)
{
    char line[4096], *path = words("%s/metrics.jsonl", folder);
    int step = first;
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    for (; fgets(line, sizeof line, file) != NULL; step++) {
        json_t *row = json_loads(line, 0, NULL);
        cr_assert_not_null(row, "%s", line);
        cr_expect_eq(integer_of(row, "step"), step);
        json_decref(row);
    }
    cr_expect_eq(step, steps);
    (void)fclose(file);
    free(path);
}

/* They are in metrics.jsonl beside the checkpoint; where they are not, that is said, and nothing is made up. */
Test(resume, lines_of_the_steps_before_are_taken_over_or_missed)
{
    const char *options = "-n 2" SMALL " --checkpoint=3 --eval=never";
    train_silently(words("%s --steps=5 --out=run", options));
    train_silently(words("%s --steps=8 --out=other --resume=run/checkpoint-000000003", options));
    expect_lines_from("other", 0, 8);
    expect_lines_from("run", 0, 5);
    damage("run/metrics.jsonl", 40, false);
    char *said = train(words("%s --steps=8 --out=third --resume=run/checkpoint-000000003", options));
    cr_expect(contains(said, "metrics.jsonl is not beside it"), "%s", said);
    cr_expect_eq(lines_of(said), 1, "%s", said);
    free(said);
    expect_lines_from("third", 2, 8); /* a checkpoint has the line of its latest step */
    cr_assert_eq(unlink("other/metrics.jsonl"), 0);
    said = train(words("%s --steps=9 --out=other --resume", options));
    cr_expect(contains(said, "metrics.jsonl is not beside it"), "%s", said);
    free(said);
    expect_lines_from("other", 7, 9);
}

/* ---- what must agree ---- */

Test(resume, options_that_change_the_result_must_agree)
{
    train_silently(words("--allreduce=ring -n 2" SMALL " --steps=4 --eval=never --out=run"));
    const struct {
        const char *option, *fragment;
    } wrong[] = {{"--allreduce=naive", "--allreduce=naive"},
                 {"--batch=5", "--batch=5"},
                 {"--seed=2", "--seed=2"},
                 {"--lr=0.2", "--lr=0.2"},
                 {"--momentum=0.5", "--momentum=0.5"},
                 {"--weight-decay=0", "--weight-decay=0"},
                 {"--warmup-steps=3", "--warmup-steps=3"},
                 {"--bucket=tensor", "--bucket=tensor"},
                 {"--overlap=none", "--overlap=none"},
                 {"--wire=f16", "--wire=f16"},
                 {"--shard=fixed", "--shard=fixed"},
                 {"--last=keep", "--last=keep"},
                 {"--label-smoothing=0.1", "--label-smoothing"},
                 {"--image-size=10", "--image-size=10"},
                 {"--augment=crop-flip", "--augment=crop-flip"},
                 {"--lr-schedule=step --decay-epochs=1", "--lr-schedule=step"}};
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++)
        expect_wrong(
            words("--allreduce=ring -n 2" SMALL " --steps=8 --eval=never --out=run --resume %s", wrong[w].option), 2,
            wrong[w].fragment);
    expect_wrong(words("--allreduce=ring -n 3" SMALL " --steps=8 --out=run --resume"), 2, "--change-workers");
    expect_wrong(words("--allreduce=ring -n 2" SMALL " --steps=8 --out=run"), 2, "--resume");
    expect_wrong(words("-n 2" SMALL " --steps=8 --resume"), 2, "--out=FOLDER");
    expect_wrong(words("-n 2" SMALL " --steps=8 --change-workers --out=x"), 2, "--resume");
    expect_wrong(words("-n 2" SMALL " --steps=8 --checkpoint=often --out=x"), 2, "--checkpoint=often");
    put_labels("train-labels-idx1-ubyte", SET_TRAIN, 1);
    expect_wrong(words("--allreduce=ring -n 2" SMALL " --steps=8 --out=run --resume"), 2, "--data");
    put_labels("train-labels-idx1-ubyte", SET_TRAIN, 0);
    put_images("train-images-idx3-ubyte", SET_TRAIN, 1);
    expect_wrong(words("--allreduce=ring -n 2" SMALL " --steps=8 --eval=never --out=run --resume"), 2,
                 "--data: its images");
    put_images("train-images-idx3-ubyte", SET_TRAIN, 0); /* the same contents in a file of another time */
    char *said =
        train(words("--allreduce=ring -n 2 --model=cnn --image-size=9 --batch=4 --threads=2 --data=. --steps=8 "
                    "--lr-schedule=constant --eval=never --out=run --resume"));
    cr_expect(contains(said, "--threads"), "%s", said);
    free(said);
    said = train(words("-n 1" SMALL " --steps=2 --eval=never --out=fresh --resume"));
    cr_expect(contains(said, "begins at step 0"), "%s", said);
    free(said);
}

/* ---- a full disk, a run that diverges ---- */

Test(resume, a_write_that_fails_ends_the_run_and_leaves_the_earlier_ones)
{
    struct outcome outcome;
    const char *options = "-n 1" SMALL " --eval=never --checkpoint=3";
    train_silently(words("%s --steps=12 --out=whole", options));
    train_silently(words("%s --steps=3 --out=run", options));
    char *script = words("ulimit -f 40; exec \"$CHORALE\" train %s --steps=12 --out=run --resume", options);
    script_run(script, &outcome);
    cr_expect_eq(outcome.exit_code, 1, "%s", outcome.err);
    expect_one_line(&outcome, script);
    cr_expect(contains(outcome.err, "checkpoint-000000006: File too large"), "%s", outcome.err);
    cr_expect_not(file_exists("run/checkpoint-000000006"));
    cr_expect_not(file_exists("run/checkpoint-000000006.tmp"));
    outcome_release(&outcome);
    train_silently(words("%s --steps=12 --out=run --resume", options));
    expect_same("whole", "run", 12, 1, false);
    free(script);
}

Test(resume, what_is_not_finite_is_never_kept)
{
    static const char *const specs[] = {"ring", "double-buffered", "gossip"};
    for (int i = 0; i < 3; i++) {
        struct outcome outcome;
        char *line = words("train --allreduce=%s -n 2" SMALL
                           " --lr=1e6 --weight-decay=1 --steps=60 --checkpoint=1 --eval=never --out=run-%d",
                           specs[i], i);
        program_run(line, &outcome);
        cr_expect_eq(outcome.exit_code, 1, "%s: %s", line, outcome.err);
        cr_expect(contains(outcome.err, "step "), "%s", outcome.err);
        outcome_release(&outcome);
        free(line);
        line = words("\"$CHORALE\" train --allreduce=%s -n 2" SMALL
                     " --lr=1e6 --weight-decay=1 --steps=60 --checkpoint=1 --eval=never --out=run-%d --resume",
                     specs[i], i);
        script_run(line, &outcome); /* it goes on with one that is good, and fails in the same step */
        cr_expect_eq(outcome.exit_code, 1, "%s: %s", line, outcome.err);
        cr_expect(contains(outcome.err, "step "), "%s", outcome.err);
        outcome_release(&outcome);
        free(line);
    }
}

/* The last training losses were finite, and so are the parameters: nobody would notice but the evaluation. */
Test(resume, what_can_not_be_evaluated_is_a_failure)
{
    static const char *const specs[] = {"double-buffered --steps=4", "gossip:graph=ring --steps=2"};
    for (int i = 0; i < 2; i++) {
        char *line =
            words("train --model=cnn --image-size=28 --threads=1 --batch=8 -n 2 --lr=1e6 --lr-batch=0 --allreduce=%s",
                  specs[i]);
        REFUSED(line, 1, "after step ", "the test loss is ");
        free(line);
    }
}

/* ---- other workers ---- */

/* One model, tested by any number of workers: each of the 21 images once, and sums of equal bits. */
Test(resume, evaluation_has_the_same_bits_on_any_number_of_workers)
{
    static const char *const keys[] = {"parameter_hash", "top1", "top5", "test_loss"};
    const char *options = "--model=cnn --image-size=9 --threads=1 --data=. --batch=2 --bn=sync --lr=1 --steps=7";
    train_silently(words("-n 1 %s --out=whole", options));
    json_t *whole = summary_of("whole");
    cr_expect_eq(fmod(number_of(whole, "top1") * SET_TEST + 1e-9, 1) < 1e-6, true, "a count of images");
    for (int workers = 2; workers <= 5; workers += workers == 3 ? 2 : 1) {
        free(train(words("-n %d %s --out=of-%d --resume=whole/checkpoint-000000007 --change-workers", workers, options,
                         workers)));
        char *folder = words("of-%d", workers);
        json_t *summary = summary_of(folder);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_t *ours = json_object_get(whole, keys[k]), *theirs = json_object_get(summary, keys[k]);
            if (json_is_array(ours))
                ours = json_array_get(ours, 0), theirs = json_array_get(theirs, (size_t)workers - 1);
            cr_expect(json_equal(ours, theirs), "%d workers: %s", workers, keys[k]);
        }
        json_decref(summary);
        free(folder);
    }
    json_decref(whole);
}

/* Its statistics are still each worker's own. */
Test(resume, what_was_kept_within_an_epoch_may_end_there_with_change_workers)
{
    train_silently(words("-n 2" SMALL " --eval=end --steps=3 --out=run"));
    free(train(words("-n 2" SMALL " --eval=end --steps=3 --out=run --resume --change-workers")));
    json_t *summary = summary_of("run");
    cr_expect_eq(integer_of(summary, "resumed_at"), 3);
    json_decref(summary);
}

/* 36 of 50 images are given in 3 steps, of the others 2 steps take 7 each: epoch 1 begins with step 5, later ones after 7. */
Test(resume, the_rate_falls_where_an_epoch_begins_with_change_workers)
{
    const char *options = "--model=cnn --image-size=9 --threads=1 --data=. --eval=never --decay-epochs=1,2";
    train_silently(words("-n 2 --batch=6 %s --steps=3 --out=run", options));
    free(train(words("-n 1 --batch=7 %s --steps=6 --out=run --resume --change-workers", options)));
    json_t *summary = summary_of("run");
    const json_t *falls = json_object_get(json_object_get(summary, "learning_rate"), "decay_steps");
    cr_expect_eq(json_integer_value(json_array_get(falls, 0)), 5);
    cr_expect_eq(json_integer_value(json_array_get(falls, 1)), 12);
    json_decref(summary);
}

/* As many images a step: the same samples in the same order, and nearly the same numbers. */
Test(resume, goes_on_with_other_workers)
{
    const char *options = "--model=cnn --image-size=9 --threads=1 --data=. --eval=never --lr-schedule=constant";
    char *said = NULL;
    train_silently(words("-n 2 --batch=6 %s --steps=10 --out=whole", options));
    train_silently(words("-n 2 --batch=6 %s --steps=3 --out=run", options));
    said = train(
        words("-n 3 --batch=4 %s --steps=10 --out=more --resume=run/checkpoint-000000003 --change-workers", options));
    cr_expect(contains(said, "of 2 workers goes on with 3"), "%s", said);
    free(said);
    json_t *whole = summary_of("whole"), *more = summary_of("more");
    cr_expect_float_eq(number_of(whole, "loss_last"), number_of(more, "loss_last"), 0.3);
    json_decref(whole);
    json_decref(more);
    json_t *one = header_of("whole/checkpoint-000000010"), *two = header_of("more/checkpoint-000000010");
    cr_expect_eq(integer_of(one, "epoch"), integer_of(two, "epoch"));
    cr_expect_eq(integer_of(one, "position"), integer_of(two, "position"));
    json_decref(one);
    json_decref(two);
    /* and back, and on from there as if nothing had been */
    free(train(words("-n 1 --batch=4 %s --steps=14 --out=more --resume --change-workers", options)));
    free(train(words("-n 1 --batch=4 %s --steps=16 --out=more --resume", options)));
    json_t *summary = summary_of("more");
    cr_expect_eq(number_of(summary, "bytes_sent_per_step"), 0, "of the steps of one worker");
    cr_expect_eq(integer_of(summary, "resumed_at"), 14);
    json_decref(summary);
    expect_same_lines("more", "more", 16);
    /* the rate's way is still that of the run */
    expect_wrong(
        words("-n 3 --batch=4 %s --steps=20 --lr-schedule=cosine --out=more --resume --change-workers", options), 2,
        "--lr-schedule=cosine");
    /* 14 images left of 50: 6, 6 and 2 */
    train_silently(words("-n 2 --batch=6 --last=keep %s --steps=3 --out=kept", options));
    free(train(words("-n 3 --batch=2 --last=keep %s --epochs=2 --out=kept --resume --change-workers", options)));
    summary = summary_of("kept");
    cr_expect_eq(integer_of(summary, "steps"), 3 + 3 + 9);
    cr_expect_float_eq(number_of(summary, "epochs"), 2, 1e-12);
    json_decref(summary);
    /* of workers that differ, all begin with the mean */
    train_silently(words("--allreduce=gossip -n 4 --batch=2 %s --steps=3 --out=gossip", options));
    said =
        train(words("--allreduce=gossip -n 2 --batch=2 %s --steps=5 --out=gossip --resume --change-workers", options));
    cr_expect(contains(said, "parameters, momentum"), "%s", said);
    free(said);
    train_silently(words("--shard=fixed -n 2 --batch=4 %s --steps=3 --out=fixed", options));
    expect_wrong(words("--shard=fixed -n 3 --batch=4 %s --steps=9 --out=fixed --resume --change-workers", options), 2,
                 "--shard=fixed");
}
