/* test_data.c - chorale data, and training on what it makes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/experiments/support_program.h"

#define IMAGES CHORALE_SOURCE_DIR "/tests/nn/golden/images.txt"

TestSuite(data, .init = program_setup, .fini = program_teardown);

/* A CIFAR-100 of 40 + 10 black images of one class. */
static void make_set(void)
{
    struct outcome outcome;
    script_run("mkdir set && head -c 122960 /dev/zero >set/train.bin && head -c 30740 /dev/zero >set/test.bin",
               &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    outcome_release(&outcome);
}

static long long number(const json_t *document, const char *key)
{
    const json_t *value = json_object_get(document, key);
    cr_assert(json_is_integer(value), "%s is missing", key);
    return (long long)json_integer_value(value);
}

static const char *text(const json_t *document, const char *key)
{
    const json_t *value = json_object_get(document, key);
    cr_assert(json_is_string(value), "%s is missing", key);
    return json_string_value(value);
}

Test(data, inspect_tells_what_is_there_and_how_quick_it_is)
{
    make_set();
    json_t *document = program_json("data inspect set --decode --loaders=1 --json");
    cr_expect_str_eq(text(document, "format"), "cifar");
    cr_expect_eq(number(document, "train_images"), 40);
    cr_expect_eq(number(document, "test_images"), 10);
    cr_expect_eq(number(document, "classes"), 100);
    cr_expect_eq(number(document, "looked_at"), 50);
    cr_expect_eq(number(document, "bad_images"), 0);
    const json_t *rates = json_object_get(document, "decode");
    cr_assert_eq(json_array_size(rates), 1);
    cr_expect_gt(json_number_value(json_object_get(json_array_get(rates, 0), "images_per_s")), 0);
    json_decref(document);
}

/* Bits of the parameters after a few steps. */
static char *trained(const char *words)
{
    char command[300];
    (void)snprintf(command, sizeof command,
                   "train -n 2 --model=cnn --image-size=16 --batch=4 --steps=6 --threads=1 --json %s", words);
    json_t *summary = program_json(command);
    const json_t *hashes = json_object_get(summary, "parameter_hash");
    cr_expect_str_eq(json_string_value(json_array_get(hashes, 0)), json_string_value(json_array_get(hashes, 1)));
    char *hash = strdup(json_string_value(json_array_get(hashes, 0)));
    json_decref(summary);
    return hash;
}

Test(data, a_pack_trains_as_what_it_was_made_of_with_any_number_of_loaders)
{
    struct outcome outcome;
    make_set();
    program_run("data pack set --out=set.pack", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect_not_null(strstr(outcome.out, "40 + 10 images of 32 x 32 x 3 bytes"), "%s", outcome.out);
    outcome_release(&outcome);
    char *set = trained("--data=set --out=a"), *pack = trained("--data=set.pack --out=b");
    char *ahead = trained("--data=pack:set.pack --out=c --loaders=3");
    cr_expect_str_eq(set, pack);
    cr_expect_str_eq(set, ahead);
    free(set);
    free(pack);
    free(ahead);
}

Test(data, synthetic_images_train_and_are_not_evaluated)
{
    json_t *summary =
        program_json("train -n 1 --model=cnn --image-size=16 --batch=4 --steps=3 --data=synthetic --json");
    const json_t *data = json_object_get(summary, "data");
    cr_expect_str_eq(text(data, "format"), "synthetic");
    cr_expect_eq(number(data, "test_images"), 0);
    cr_expect(json_is_null(json_object_get(summary, "top1")));
    json_decref(summary);
    /* One worker without data: all that is left is computing. Another program may have had the processor while this one
     * waited, but not in every run. */
    double waited = INFINITY, exposed = INFINITY;
    for (int run = 0; run < 10 && (waited >= 0.5 || exposed >= 0.1); run++) {
        summary = program_json(
            "train -n 1 --model=resnet18 --image-size=64 --batch=8 --steps=4 --data=synthetic --eval=never --json");
        const double compute = number_of(summary, "compute_ms");
        waited = fmin(waited, number_of(json_object_get(summary, "data"), "wait_ms") / compute);
        exposed = fmin(exposed, number_of(summary, "exposed_ms") / compute);
        json_decref(summary);
    }
    cr_expect_lt(waited, 0.5);
    cr_expect_lt(exposed, 0.1);
}

/* That is no fault of the model, whose evaluation would have to be finite. */
Test(data, without_a_test_image_that_can_be_decoded_nothing_is_evaluated)
{
    struct outcome outcome;
    script_run(
        "/usr/bin/python3 -c 'import sys\n"
        "for line in open(sys.argv[1]):\n"
        "    words = line.split()\n"
        "    if words[:2] == [\"file\", \"grey\"]: open(\"grey.jpg\", \"wb\").write(bytes.fromhex(words[2]))' '" IMAGES
        "' && mkdir -p set/train/a set/val/a && for i in 1 2 3 4; do cp grey.jpg set/train/a/$i.jpg; done && "
        "echo torn >set/val/a/1.jpg && echo torn >set/val/a/2.jpg",
        &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    outcome_release(&outcome);
    program_run("train -n 2 --model=cnn --image-size=16 --batch=2 --steps=2 --threads=1 --data=set --json", &outcome);
    if (strstr(outcome.err, "libjpeg") != NULL)
        cr_skip_test("built without libjpeg-turbo");
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    json_t *summary = json_loads(outcome.out, 0, NULL);
    cr_assert_not_null(summary);
    cr_expect(json_is_null(json_object_get(summary, "top1")));
    json_decref(summary);
    outcome_release(&outcome);
}

/* Most that a worker of such a run had resident, in KiB. */
static long resident(const char *words)
{
    struct outcome outcome;
    char script[500];
    (void)snprintf(script, sizeof script,
                   "/usr/bin/python3 -c 'import resource, subprocess, sys; "
                   "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
                   "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' \"$CHORALE\" train -n 2 --model=cnn "
                   "--image-size=16 --batch=4 --threads=1 --loaders=2 --checkpoint=50 --data=set %s",
                   words);
    script_run(script, &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    const long most = strtol(outcome.out, NULL, 10);
    outcome_release(&outcome);
    cr_assert_gt(most, 0);
    return most;
}

/* Epochs of 5 steps with evaluations and checkpoints: the rows of all steps are what is kept. */
Test(data, memory_does_not_grow_with_epochs)
{
    make_set();
    const long few = resident("--epochs=20 --out=few"), many = resident("--epochs=200 --out=many");
    cr_expect_leq(many - few, 4096, "%ld KiB after 100 steps, %ld KiB after 1000", few, many);
}

/* The names of folders are bytes, JSON is UTF-8, and a listing has a line for each. */
Test(data, names_of_any_bytes_are_told)
{
    struct outcome outcome;
    script_run("mkdir -p set/train && cd set/train && mkdir \"$(printf 'a\\377')\" \"$(printf 'b\\nc')\" && "
               "echo no >\"$(printf 'a\\377/1\\n2.jpg')\"",
               &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    outcome_release(&outcome);
    json_t *document = program_json("data inspect set --json");
    const json_t *names = json_object_get(document, "class_names"), *bad = json_object_get(document, "bad");
    cr_assert(json_array_size(names) == 2 && json_array_size(bad) == 1);
    cr_expect_str_eq(json_string_value(json_array_get(names, 0)), "a\\xff");
    cr_expect_str_eq(json_string_value(json_array_get(names, 1)), "b\nc");
    cr_expect_str_eq(text(json_array_get(bad, 0), "name"), "set/train/a\\xff/1\n2.jpg");
    json_decref(document);
    program_run("data inspect set", &outcome);
    cr_expect_not_null(strstr(outcome.out, "  1 b?c: 0 + 0\n"), "%s", outcome.out);
    cr_expect_not_null(strstr(outcome.out, "/1?2.jpg: no JPEG file"), "%s", outcome.out);
    outcome_release(&outcome);
}

Test(data, words_that_are_wrong_are_told)
{
    make_set();
    REFUSED("data", 2, "inspect, pack or index");
    REFUSED("data inspec set", 2, "did you mean inspect");
    REFUSED("data inspect", 2, "of what");
    REFUSED("data pack set --out=file", 2, "--out=FILE.pack");
    REFUSED("data index set", 2, "no tar files");
    REFUSED("data inspect folder:", 2, "folder:", "a path is missing");
    REFUSED("train -n 1 --data=folder: --out=c", 2, "a path is missing");
    REFUSED("data inspect nothing", 1, "data nothing: no such file or folder: look at the path");
    REFUSED("data inspect synthetic:nothing", 2, "synthetic reads nothing");
    cr_assert_eq(mkdir("empty", 0755), 0);
    REFUSED("data inspect empty", 1, "data empty: no data set that is known here", "WebDataset", "ImageFolder");
    REFUSED("data index set --decode", 2, "--decode: data index has no use for it");
    REFUSED("data pack set --out=set.pack --json", 2, "--json: data pack has no use for it");
    REFUSED("data inspect set --seed=3", 2, "--seed: data inspect without --decode has no use for it");
    REFUSED("data inspect set --decode --out=set.pack", 2, "--out: data inspect has no use for it");
    REFUSED("train -n 1 --data=set --shard=labels --out=a", 2, "--shard", "label");
    REFUSED("train -n 1 --data=set --augment=crop --out=b", 2, "--augment", "crop-flip");
}
