/* test_device_train.c - `chorale train` over a device's memory, from the outside. The device is a toy (tests/nn/toy) whose
 * queues run late and in any order that is legal, and whose backend is the cpu backend: so whatever --device=cpu computes
 * is to be found again, to the bit.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "tests/base/expect.h"
#include "tests/experiments/support_program.h"
#include "tests/experiments/support_set.h"

/* Modules are looked for in that folder of the build. False: there is none, as this build was without what it needs. */
static bool use(const char *folder)
{
    char modules[4096], file[4200];
    (void)snprintf(modules, sizeof modules, "%s", CHORALE_PROGRAM);
    char *slash = strrchr(modules, '/');
    cr_assert_not_null(slash);
    (void)snprintf(slash, sizeof modules - (size_t)(slash - modules), "/%s", folder);
    cr_assert_eq(setenv("CHORALE_MODULES", modules, 1), 0);
    (void)snprintf(file, sizeof file, "%s/chorale-device-cuda.so", modules);
    return file_exists(file);
}

static void setup(void)
{
    program_setup();
    put_set();
    cr_assert(use("toy"));
    char here[4096];
    cr_assert_not_null(getcwd(here, sizeof here)); /* the test's own folder */
    cr_assert_eq(setenv("XDG_CACHE_HOME", here, 1), 0);
}

TestSuite(device, .init = setup, .fini = program_teardown, .timeout = 300);

#define SMALL "train --data=. --model=cnn --image-size=9 --batch=4 --threads=1 --lr=3 --label-smoothing=0.1 --json "
#define TOY " --device=cuda --precision=f32"

static void toy(const char *settings)
{
    cr_assert_eq(setenv("CHORALE_TOY", settings, 1), 0);
}

static json_t *summary_of(const char *words, const char *more)
{
    struct text all = {0};
    text_addf(&all, SMALL "%s%s", words, more);
    json_t *summary = program_json(text_string(&all));
    text_release(&all);
    return summary;
}

/* ---- equal bits ---- */

static void expect_same(const json_t *host, const json_t *device, const char *words)
{
    static const char *const keys[] = {"parameter_hash", "state_hash", "loss_first",          "loss_last",
                                       "top1",           "test_loss",  "top1_of_workers",     "consensus",
                                       "steps",          "epochs",     "bytes_sent_per_step", "allreduce"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const json_t *wanted = json_object_get(host, keys[k]), *found = json_object_get(device, keys[k]);
        char *text = json_dumps(found, JSON_ENCODE_ANY), *right = json_dumps(wanted, JSON_ENCODE_ANY);
        cr_expect(json_equal(wanted, found), "%s: %s is %s, on the host %s", words, keys[k], text, right);
        free(text);
        free(right);
    }
}

/* Over the end of an epoch, with what is then examined. Each case has another order of the queues. */
static void same_as_host(const char *words)
{
    static uint64_t order;
    char settings[64];
    if (order == 0)
        order = test_seed() / 1000 * 1000;
    (void)snprintf(settings, sizeof settings, "seed=%" PRIu64, ++order);
    json_t *host = summary_of(words, "");
    toy(settings);
    json_t *device = summary_of(words, TOY);
    expect_same(host, device, words);
    json_decref(host);
    json_decref(device);
}

/* Kept and gone on with on a device: the bits of a run `on` the host, or there, that was never interrupted. */
static void goes_on(const char *words, const char *folder, const char *on)
{
    struct text text = {0};
    text_addf(&text, "%s --steps=9 --lr-schedule=constant", on);
    json_t *whole = summary_of(words, text_string(&text));
    text_clear(&text);
    toy("seed=4711");
    text_addf(&text, TOY " --steps=5 --lr-schedule=constant --checkpoint=2 --out=%s", folder);
    json_decref(summary_of(words, text_string(&text)));
    text_clear(&text);
    toy("seed=815");
    text_addf(&text, TOY " --steps=9 --lr-schedule=constant --out=%s --resume", folder);
    json_t *device = summary_of(words, text_string(&text));
    expect_same(whole, device, words);
    json_decref(whole);
    json_decref(device);
    text_release(&text);
}

Test(device, goes_on_from_a_checkpoint)
{
    goes_on("--allreduce=ring -n 2", "ring", "");
    goes_on("--allreduce=double-buffered -n 3 --bucket=tensor", "double-buffered", "");
    goes_on("--allreduce=double-buffered -n 1", "alone", "");
    goes_on("--allreduce=gossip -n 2", "gossip", "");
}

Test(device, one_worker)
{
    same_as_host("--allreduce=ring -n 1 --epochs=1.5");
    same_as_host("--allreduce=double-buffered -n 1 --epochs=1.5");
    same_as_host("--allreduce=gossip -n 1 --epochs=1.5");
}

Test(device, synchronous)
{
    same_as_host("--allreduce=ring -n 2 --epochs=1.5");
    same_as_host("--allreduce=rhd -n 3 --epochs=2 --bucket=tensor");
    same_as_host("--allreduce=hierarchical -n 4 --nodes=2x2 --epochs=2");
    same_as_host("--allreduce=naive -n 3 --epochs=1.2 --wire=f16");
    same_as_host("--allreduce=rhd -n 2 --epochs=1.2 --bucket=tensor --overlap=none");
    same_as_host("--allreduce=ring -n 3 --epochs=1.2 --bucket=tensor --wire=f16 --transport=tcp");
    same_as_host("--allreduce=double-binary-tree -n 5 --epochs=2 --transport=tcp");
}

Test(device, rules_and_decays_of_the_update)
{
    same_as_host("--allreduce=ring -n 2 --epochs=1.2 --optimizer=nesterov --norm-weight-decay=0.01 "
                 "--bias-weight-decay=0.02 --zero-gamma=no");
    same_as_host("--allreduce=double-buffered -n 2 --epochs=1.2 --optimizer=nesterov --lr-schedule=cosine "
                 "--warmup-epochs=0.5");
    REFUSED(SMALL "--clip=1" TOY, 2, "clip: a device computes no norm of the whole gradient");
    REFUSED(SMALL "--optimizer=lars --steps=2" TOY, 2, "the toy device has no LARS");
}

Test(device, double_buffered)
{
    same_as_host("--allreduce=double-buffered -n 2 --epochs=2.3");
    same_as_host("--allreduce=double-buffered:inner=rhd -n 3 --epochs=1 --bucket=2000");
    same_as_host("--allreduce=double-buffered -n 3 --epochs=1 --bucket=tensor");
    same_as_host("--allreduce=double-buffered -n 2 --epochs=1 --bucket=tensor --overlap=none");
    same_as_host("--allreduce=double-buffered -n 2 --steps=1");
}

Test(device, gossip)
{
    same_as_host("--allreduce=gossip -n 3 --epochs=2.3");
    same_as_host("--allreduce=gossip:graph=one-peer-exponential -n 4 --epochs=2");
}

Test(device, none)
{
    same_as_host("--allreduce=none -n 3 --epochs=1.3");
}

/* ---- the module of CUDA on a fake card ---- */

#define NEAR(a, b, key, most)                                                                                          \
    cr_expect_float_eq(number_of(a, key), number_of(b, key), most, "%s: %.8g, on the host %.8g", key,                  \
                       number_of(a, key), number_of(b, key))

Test(device, the_cuda_backend_trains_like_the_host)
{
    if (!use("fake"))
        cr_skip_test("this build has no fake card: it was made without the CUDA toolkit");
    json_t *host = summary_of("--allreduce=ring -n 2 --steps=4", "");
    json_t *ring = summary_of("--allreduce=ring -n 2 --steps=4", " --device=cuda --precision=f32");
    json_t *rhd = summary_of("--allreduce=rhd -n 2 --steps=4 --bucket=tensor", " --device=cuda --precision=f32");
    json_t *half = summary_of("--allreduce=ring -n 2 --steps=4", " --device=cuda");
    const json_t *hashes = json_object_get(ring, "parameter_hash");
    cr_expect_str_eq(string_of(ring, "device"), "cuda");
    cr_expect(json_equal(json_array_get(hashes, 0), json_array_get(hashes, 1)));
    cr_expect(json_equal(hashes, json_object_get(rhd, "parameter_hash")), "two addends have one sum");
    NEAR(ring, host, "loss_first", 1e-5);
    NEAR(ring, host, "loss_last", 1e-4);
    NEAR(ring, host, "test_loss", 1e-4);
    NEAR(half, host, "loss_first", 2e-2);
    NEAR(half, host, "loss_last", 1e-1);
    cr_expect_gt(integer_of(ring, "device_memory_bytes"), 12 * integer_of(ring, "parameters"));
    json_decref(host);
    json_decref(ring);
    json_decref(rhd);
    json_decref(half);
}

Test(device, the_cuda_backend_updates_like_the_host)
{
    static const char *const words[] = {
        "--allreduce=ring -n 2 --steps=4 --optimizer=lars --lr-schedule=polynomial --weight-decay=0.01",
        "--allreduce=ring -n 2 --steps=4 --optimizer=nesterov --norm-weight-decay=0.1 --bias-weight-decay=0.2"};
    if (!use("fake"))
        cr_skip_test("this build has no fake card: it was made without the CUDA toolkit");
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
        json_t *host = summary_of(words[k], ""), *card = summary_of(words[k], " --device=cuda --precision=f32");
        NEAR(card, host, "loss_first", 1e-5);
        NEAR(card, host, "loss_last", 1e-4);
        NEAR(card, host, "test_loss", 1e-4);
        json_decref(host);
        json_decref(card);
    }
}

/* The last step's gradient is in flight when the run is kept, and is the card's when it goes on. */
Test(device, the_cuda_backend_goes_on_from_a_checkpoint)
{
    if (!use("fake"))
        cr_skip_test("this build has no fake card: it was made without the CUDA toolkit");
    goes_on("--allreduce=double-buffered -n 2 --deterministic", "whole", TOY);
}

/* ---- what is told ---- */

Test(device, the_summary_tells_of_it)
{
    toy("cards=1");
    json_t *summary = summary_of("-n 2 --steps=3 --profile-out=profile.txt", " --device=cuda");
    cr_expect_str_eq(string_of(summary, "device"), "cuda");
    cr_expect_str_eq(string_of(summary, "precision"), "bf16");
    cr_expect_str_eq(string_of(summary, "mode"), "measured");
    cr_expect_eq(integer_of(summary, "workers_per_card"), 2);
    /* parameters, gradient and momentum, the running statistics, and what the toy says to have taken */
    const json_int_t parameters = integer_of(summary, "parameters");
    cr_expect_gt(integer_of(summary, "device_memory_bytes"), 12 * parameters + 1000);
    cr_expect_lt(integer_of(summary, "device_memory_bytes"), 12 * parameters + 1000 + 8 * 1024);
    const json_t *versions = json_object_get(summary, "versions");
    cr_expect_str_eq(string_of(versions, "device"), "toy card 0");
    cr_expect(contains(string_of(versions, "backend"), "toy backend"));
    const double step = number_of(summary, "step_ms"), exposed = number_of(summary, "exposed_ms");
    cr_expect(exposed >= 0 && exposed <= step && number_of(summary, "comm_ms") >= 0 &&
              number_of(summary, "compute_ms") > 0);
    cr_expect(file_exists("profile.txt"));
    json_decref(summary);

    toy("cards=2");
    summary = summary_of("-n 2 --steps=3", " --device=cuda");
    cr_expect_eq(integer_of(summary, "workers_per_card"), 1);
    json_decref(summary);
    summary = summary_of("-n 2 --steps=3", " --device=cuda:1 --precision=f16");
    cr_expect_eq(integer_of(summary, "workers_per_card"), 2);
    cr_expect_eq(number_of(summary, "loss_scale"), 1024);
    cr_expect_str_eq(string_of(json_object_get(summary, "versions"), "device"), "toy card 1");
    json_decref(summary);
}

Test(device, the_start_tells_of_it)
{
    struct outcome outcome;
    program_run("train --data=. --model=cnn --image-size=9 --batch=4 --threads=1 -n 2 --steps=3 --device=cuda "
                "--precision=f16 --loss-scale=512 --engines=e.txt",
                &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect(contains(outcome.out, "rank 0 computes on toy card 0, a card that 2 workers share; f16, loss scale 512, "
                                    "engines remembered in e.txt\n"),
              "%s", outcome.out);
    cr_expect(contains(outcome.out, "step 3 of 3"), "the last result is told, too: %s", outcome.out);
    outcome_release(&outcome);
}

Test(device, metrics_have_every_step)
{
    struct outcome outcome;
    script_run("\"$CHORALE\" " SMALL "-n 2 --allreduce=double-buffered --epochs=2 --out=o --device=cuda >/dev/null && "
               "wc -l <o/metrics.jsonl && grep -c '\"loss\":[0-9]' o/metrics.jsonl && grep -c top1 o/metrics.jsonl",
               &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect_str_eq(outcome.out, "12\n12\n2\n");
    outcome_release(&outcome);
}

/* ---- what goes wrong ---- */

/* Only rank 0 knows of the loss, and only when the next step is under way. */
Test(device, a_loss_that_is_not_finite_ends_the_run_on_all)
{
    toy("nan=2");
    REFUSED(SMALL "-n 3 --allreduce=ring --steps=9" TOY, 1, "rank 0", "step 2: the loss is nan");
    REFUSED(SMALL "-n 2 --allreduce=double-buffered --steps=9" TOY, 1, "rank 0", "step 2: the loss is nan");
    REFUSED(SMALL "-n 3 --allreduce=gossip --steps=9" TOY, 1, "rank 0", "step 2: the loss is nan");
    REFUSED(SMALL "-n 1 --allreduce=ring --steps=9" TOY, 1, "step 2: the loss is nan");
    toy("nan=5"); /* the last one of the run, and of an epoch */
    REFUSED(SMALL "-n 2 --allreduce=ring --steps=6" TOY, 1, "rank 0", "step 5: the loss is nan");
    REFUSED(SMALL "-n 2 --allreduce=double-buffered --steps=6" TOY, 1, "rank 0", "step 5: the loss is nan");
    REFUSED(SMALL "-n 2 --allreduce=ring --steps=9" TOY, 1, "rank 0", "step 5: the loss is nan");
}

/* Step 5 ends an epoch: what it has spoiled is not evaluated. */
Test(device, what_is_not_finite_is_not_examined)
{
    struct outcome outcome;
    toy("nan=3");
    program_run("train --data=. --model=cnn --image-size=9 --batch=4 --threads=1 -n 2 --steps=9" TOY, &outcome);
    cr_expect_eq(outcome.exit_code, 1);
    cr_expect(contains(outcome.err, "step 3: the loss is nan"), "%s", outcome.err);
    cr_expect(!contains(outcome.out, "top-1"), "%s", outcome.out);
    cr_expect(!contains(outcome.out, "step 9 of 9"), "the run ends at once: %s", outcome.out);
    outcome_release(&outcome);
}

Test(device, a_gradient_that_is_not_finite_ends_the_run)
{
    REFUSED(SMALL "-n 2 --lr=1000000 --weight-decay=1 --steps=30" TOY, 1, "lower --lr");
    REFUSED(SMALL "-n 2 --allreduce=gossip --lr=1000000 --weight-decay=1 --steps=30" TOY, 1, "lower --lr");
}

Test(device, a_device_that_fails_ends_the_job)
{
    toy("end=4");
    REFUSED(SMALL "-n 3 --allreduce=rhd --steps=9" TOY, 1, "the toy is lost");
    REFUSED(SMALL "-n 2 --allreduce=double-buffered --steps=9" TOY, 1, "the toy is lost");
}

Test(device, a_death_ends_the_job_and_leaves_nothing)
{
    struct program program;
    struct process workers[3];
    struct outcome outcome;
    program_start(&program, "train --data=. --model=cnn --image-size=9 --batch=4 --threads=1 -n 3 --steps=1000000 "
                            "--eval=never --out=o" TOY);
    cr_assert(program_workers(&program, workers, 3));
    for (int tries = 0; tries < 5000 && !file_exists("o/metrics.jsonl"); tries++)
        clock_sleep_ns(50000000);
    clock_sleep_ns(300000000);
    cr_assert_eq(kill((pid_t)workers[1].pid, SIGKILL), 0);
    cr_expect_lt(processes_gone_after(workers, 3, 20), 20, "not even when they have waited for long");
    program_wait(&program, 60, &outcome);
    expect_one_line(&outcome, "a death");
    cr_expect(contains(outcome.err, "rank 1"), "%s", outcome.err);
    outcome_release(&outcome);
}

Test(device, what_is_not_there_is_said)
{
    toy("cards=0");
    REFUSED(SMALL TOY, 1, "the toy has 0 cards");
    REFUSED(SMALL "-n 2" TOY, 1, "the toy has 0 cards");
    toy("cards=1");
    REFUSED(SMALL "--device=cuda:1", 1, "the toy has 1 cards");
    cr_assert_eq(setenv("CHORALE_MODULES", ".", 1), 0);
    REFUSED(SMALL "--device=cuda -n 2", 1, "device cuda: no module", "CUDA toolkit");
}

Test(device, batch_norms_over_workers_are_refused)
{
    REFUSED(SMALL "--allreduce=ring -n 2 --steps=1 --bn=sync" TOY, 2, "exchanges nothing");
    if (use("fake"))
        REFUSED(SMALL "--allreduce=ring -n 2 --steps=1 --bn=sync" TOY, 2, "--bn=averaged");
}

Test(device, words_that_do_not_go_together_are_refused)
{
    REFUSED(SMALL "--last=keep" TOY, 2, "--last=keep", "--last=drop");
    REFUSED(SMALL "--device=gpu", 2, "--device=gpu", "cuda:NUMBER");
    REFUSED(SMALL "--device=cuda:", 2, "cuda:NUMBER");
    REFUSED(SMALL "--device=cuda:1x", 2, "cuda:NUMBER");
    REFUSED(SMALL "--precision=bf16", 2, "computes in f32", "--device=cuda");
    REFUSED(SMALL "--workspace=1M", 2, "--workspace", "--device=cuda");
    REFUSED(SMALL "--convolutions=legacy", 2, "--convolutions", "--device=cuda");
    REFUSED(SMALL "--device=cuda --loss-scale=8", 2, "bf16 needs none");
    REFUSED(SMALL "--device=cuda --precision=f16 --loss-scale=9", 2, "power of two");
    REFUSED(SMALL "--device=cuda --wire=top-k --allreduce=naive -n 2", 2, "top-k");
}
