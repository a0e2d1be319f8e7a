/* test_recipe.c - `chorale train --recipe=FILE` from the outside: what a recipe sets, what it does not, how it is refused. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/base/expect.h"
#include "tests/base/folder.h"

TestSuite(recipe, .init = enter_folder, .fini = leave_folder, .timeout = 300);

/* `chorale train --recipe=recipe WORDS`, after writing `text` to that file; standard error in `errors`. */
static int run(const char *text, const char *words, char *errors, size_t size)
{
    char command[1024];
    EXPECT_OK(file_write_atomic("recipe", text, strlen(text)));
    (void)snprintf(command, sizeof command, "'%s' train --recipe=recipe %s >out 2>err", CHORALE_PROGRAM, words);
    const int code = system(command);
    FILE *file = fopen("err", "r");
    cr_assert_not_null(file);
    errors[fread(errors, 1, size - 1, file)] = '\0';
    (void)fclose(file);
    cr_assert(WIFEXITED(code));
    return WEXITSTATUS(code);
}

static void expect_refused(const char *text, const char *words, const char *saying)
{
    char errors[2048];
    const int code = run(text, words, errors, sizeof errors);
    cr_expect_eq(code, 2, "%s: exit code %d: %s", text, code, errors);
    cr_expect_not_null(strstr(errors, saying), "\"%s\" does not say \"%s\"", errors, saying);
    const char *end = strchr(errors, '\n');
    cr_expect(end != NULL && end[1] == '\0', "one line: %s", errors);
}

static json_t *summary_of(const char *text, const char *words)
{
    char errors[2048];
    cr_assert_eq(run(text, words, errors, sizeof errors), 0, "%s", errors);
    json_t *summary = json_load_file("run/summary.json", 0, NULL);
    cr_assert_not_null(summary);
    return summary;
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

#define SMALL "model=cnn\nimage-size=28\nbatch=8\nthreads=1\neval=never\nout=run\n"

Test(recipe, sets_options_and_is_stored)
{
    json_t *summary =
        summary_of("# of nobody\n\n" SMALL "  steps=4  # few\nlr=0.5\t# high\r\nlr-schedule=cosine\nlr-end=0.25\n"
                   "warmup-steps=1\nzero-gamma=no\nworkers=2",
                   "");
    const json_t *rate = json_object_get(summary, "learning_rate");
    cr_expect_eq(number(summary, "steps"), 4);
    cr_expect_eq(number(summary, "workers"), 2);
    cr_expect_eq(number(summary, "lr"), 0.5);
    cr_expect_str_eq(json_string_value(json_object_get(rate, "schedule")), "cosine");
    cr_expect_eq(number(rate, "scaled"), 0.5 * 16 / 256);
    cr_expect_eq(number(rate, "end"), 0.25);
    cr_expect_eq(number(rate, "warmup_steps"), 1);
    cr_expect(json_is_false(json_object_get(summary, "zero_gamma")));
    cr_expect_str_eq(json_string_value(json_object_get(summary, "recipe")), "recipe");
    json_decref(summary);
}

Test(recipe, the_command_line_wins_wherever_it_stands)
{
    json_t *summary = summary_of(SMALL "epochs=90\nlr=0.5\nmomentum=0.5\n", "--lr=0.25 --steps=1");
    cr_expect_eq(number(summary, "lr"), 0.25);
    cr_expect_eq(number(summary, "momentum"), 0.5);
    cr_expect_eq(number(summary, "steps"), 1, "instead of 90 epochs");
    json_decref(summary);
}

/* What the recipe says of its own schedule goes with it. */
Test(recipe, a_schedule_of_the_command_line_takes_nothing_of_another)
{
    json_t *summary = summary_of(SMALL "lr-schedule=step\ndecay-epochs=30,60\n", "--lr-schedule=cosine --steps=1");
    cr_expect_str_eq(json_string_value(json_object_get(json_object_get(summary, "learning_rate"), "schedule")),
                     "cosine");
    json_decref(summary);
}

Test(recipe, faults_are_named_by_file_and_line)
{
    expect_refused(SMALL "lrr=1\n", "", "recipe:7: ");
    expect_refused(SMALL "lrr=1\n", "", "did you mean lr?");
    expect_refused("\nlr=fast\n", "", "recipe:2: ");
    expect_refused("lr=1\nbatch=2\nlr=2\n", "", "recipe:3: lr: it stands in line 1, too");
    expect_refused("lr=1\nbatch=2\nlr=2\n", "--lr=3", "recipe:3: lr: it stands in line 1, too");
    expect_refused("lr\n", "", "recipe:1: lr: not key=value");
    expect_refused(" lr =\tfast\n", "", "recipe:1: lr=fast: ");
    expect_refused("--lr=1\n", "", "recipe:1: ");
    expect_refused("recipe=other\n", "", "recipe:1: recipe: a recipe names no other");
    expect_refused("steps=1\nepochs=1\n", "", "give one of them");
    expect_refused("warmup-steps=1\nwarmup-epochs=1\n", "", "give one of them");
}

Test(recipe, what_a_schedule_lacks_is_refused_not_ignored)
{
    expect_refused("lr-schedule=step\nlr-end=1\n", "", "--lr-end: --lr-schedule=step has no such thing");
    expect_refused("lr-schedule=cosine\nlr-power=1\n", "", "--lr-power");
    expect_refused("lr-schedule=constant\ndecay-epochs=1\n", "", "--decay-epochs");
    expect_refused("lr-schedule=polynomial\ndecay-factor=0.5\n", "", "--decay-factor");
    expect_refused("warmup-lr=0.1\n", "", "--warmup-lr");
    expect_refused("warmup-steps=0\nwarmup-lr=0.1\n", "", "--warmup-lr");
}

Test(recipe, a_file_that_is_not_there_is_named)
{
    char command[1024];
    (void)snprintf(command, sizeof command, "'%s' train --recipe=/nowhere/r.txt >out 2>err", CHORALE_PROGRAM);
    cr_expect_neq(system(command), 0);
    cr_expect_eq(system("grep -q '^chorale: .*/nowhere/r.txt' err"), 0);
}

/* ---- those of the tree ---- */

/* All are read, and taken as they are but for what would take days. */
Test(recipe, every_recipe_of_the_tree_is_one)
{
    char command[2048];
    (void)snprintf(command, sizeof command,
                   "for recipe in '%s'/experiments/recipes/*.txt; do"
                   " grep -q '^# Source:\\|^# ResNet-50' \"$recipe\" || exit 3;"
                   " '%s' train --recipe=\"$recipe\" --model=cnn --image-size=28 --batch=8 --steps=1 --eval=never"
                   " --threads=1 --out=\"$(basename \"$recipe\")\" >out 2>err || { cat err >&2; exit 4; }; done;"
                   " test \"$(ls -d *.txt | wc -l)\" -ge 10",
                   CHORALE_SOURCE_DIR, CHORALE_PROGRAM);
    cr_expect_eq(system(command), 0);
}

Test(recipe, goyals_keeps_the_batch_of_a_worker_and_scales_the_rate)
{
    char errors[2048], words[1024];
    for (int workers = 1; workers <= 2; workers++) {
        (void)snprintf(words, sizeof words,
                       "-n %d --recipe='%s/experiments/recipes/goyal.txt' --model=cnn --image-size=28 --steps=1"
                       " --eval=never --threads=1 --out=run%d",
                       workers, CHORALE_SOURCE_DIR, workers);
        cr_assert_eq(run("", words, errors, sizeof errors), 0, "%s", errors);
        (void)snprintf(words, sizeof words, "run%d/summary.json", workers);
        json_t *summary = json_load_file(words, 0, NULL);
        cr_assert_not_null(summary);
        cr_expect_eq(number(summary, "batch"), 32);
        cr_expect_eq(number(summary, "global_batch"), 32 * workers);
        cr_expect_float_eq(number(json_object_get(summary, "learning_rate"), "scaled"), 0.0125 * workers, 1e-12);
        cr_expect_str_eq(json_string_value(json_object_get(summary, "optimizer")), "nesterov");
        json_decref(summary);
    }
}
