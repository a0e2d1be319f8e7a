/* test_replay.c - the emulated accelerator: takes the time of its profile, burns no processor, is reproducible. */
#include "nn/replay/replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "nn/backend.h"
#include "tests/base/expect.h"

static char path[] = "/tmp/chorale-replay-XXXXXX";

static void setup(void)
{
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(close(fd), 0);
}

static void teardown(void)
{
    cr_expect_eq(unlink(path), 0);
}

static void profile_is(const char *text)
{
    EXPECT_OK(file_write_atomic(path, text, strlen(text)));
}

static struct step_result one_step(struct backend *backend, float *gradients)
{
    struct step_result result;
    EXPECT_OK(backend_replay.step(backend, NULL, NULL, NULL, gradients, NULL));
    EXPECT_OK(backend_replay.collect(backend, &result));
    return result;
}

static double processor_seconds(void)
{
    struct timespec time;
    cr_assert_eq(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time), 0);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static struct backend *open_replay(const struct model *model, int batch)
{
    struct backend *backend = NULL;
    struct backend_request request = {.model = model, .batch = batch, .threads = 1, .profile = path, .seed = 3};
    EXPECT_OK(backend_replay.open(&request, &backend));
    cr_assert_not_null(backend);
    return backend;
}

TestSuite(replay, .init = setup, .fini = teardown);

#define AFFINE "model tiny parameters=1000\ndevice P100 of a test\nstep fixed=20ms per_image=5ms backward=0.5\n"

Test(replay, sleeps_for_the_profiles_times)
{
    struct model *model = NULL;
    struct step_result result;
    float gradients[1000];
    profile_is(AFFINE);
    EXPECT_OK(replay_model(path, &model));
    cr_assert_not_null(model);
    struct backend *backend = open_replay(model, 4); /* 20 + 4 * 5 ms */
    /* A crowded machine wakes late, but not each time. */
    double best = INFINITY, least = INFINITY;
    for (int step = 0; step < 5 || (step < 200 && (best > 0.06 || least > 0.004)); step++) {
        const double cpu = processor_seconds(), start = clock_seconds();
        result = one_step(backend, gradients);
        const double took = clock_seconds() - start;
        best = fmin(best, took);
        least = fmin(least, processor_seconds() - cpu);
        cr_expect_geq(took, 0.0398, "%f s", took);
        cr_expect_geq(result.forward_s, 0.0199);
        cr_expect_geq(result.forward_s + result.backward_s, 0.0399);
        cr_expect_eq(result.loss, 0);
    }
    cr_expect_leq(best, 0.06);
    cr_expect_leq(least, 0.004, "it sleeps");
    backend_replay.close(backend);
    model_destroy(model);
}

Test(replay, gradients_are_small_seeded_and_written_once)
{
    struct model *model = NULL;
    float gradients[1000], again[1000];
    profile_is("model tiny parameters=1000\ndevice D\nstep fixed=1ms per_image=0ms backward=0.5\n");
    EXPECT_OK(replay_model(path, &model));
    cr_assert_not_null(model);
    struct backend *one = open_replay(model, 1), *two = open_replay(model, 1);
    (void)one_step(one, gradients);
    (void)one_step(two, again);
    cr_expect_arr_eq(gradients, again, sizeof gradients);
    double sum = 0;
    for (int i = 0; i < 1000; i++) {
        cr_expect_leq(fabsf(gradients[i]), 1e-3F);
        sum += fabsf(gradients[i]);
    }
    cr_expect_gt(sum, 0.1);
    gradients[5] = 42; /* what an exchange leaves stays */
    (void)one_step(one, gradients);
    cr_expect_eq(gradients[5], 42);
    backend_replay.close(one);
    backend_replay.close(two);
    model_destroy(model);
}

Test(replay, describes_the_device_and_can_not_evaluate)
{
    struct model *model = NULL;
    struct text text = {0};
    profile_is(AFFINE);
    EXPECT_OK(replay_model(path, &model));
    cr_assert_not_null(model);
    struct backend *backend = open_replay(model, 1);
    backend_replay.describe(backend, &text);
    cr_expect_str_eq(text_string(&text), "replay of P100 of a test");
    cr_expect_null(backend_replay.evaluate);
    text_release(&text);
    backend_replay.close(backend);
    model_destroy(model);
}

Test(replay, knows_our_networks)
{
    struct model *model = NULL;
    profile_is("model resnet50 parameters=25557032 classes=1000 image_size=224 batch=32\ndevice D\n"
               "step fixed=36ms per_image=4ms backward=0.667\n");
    EXPECT_OK(replay_model(path, &model));
    cr_assert_not_null(model);
    cr_expect_eq(model->parameters, 25557032);
    cr_expect_eq(model->tensors, 161);
    cr_expect_eq(model->image_size, 224);
    model_destroy(model);
    profile_is(
        "model resnet50 parameters=25557032 classes=10\ndevice D\nstep fixed=36ms per_image=4ms backward=0.667\n");
    EXPECT_FAIL(STATUS_FORMAT, "23528522", replay_model(path, &model));
}

Test(replay, takes_any_network_layer_by_layer)
{
    struct model *model = NULL;
    profile_is("model bert parameters=30 batch=8\ndevice D\nlayer a parameters=10 forward=1ms backward=2ms\n"
               "layer b parameters=20 forward=1ms backward=2ms\n");
    EXPECT_OK(replay_model(path, &model));
    cr_assert_not_null(model);
    cr_expect_eq(model->tensors, 2);
    cr_expect_eq(model->tensor[1].offset, 10);
    cr_expect_eq(model->tensor[1].count, 20);
    cr_expect_str_eq(model->tensor[1].name, "b");
    model_destroy(model);
}

Test(replay, says_when_measured_times_are_scaled_to_another_batch)
{
    struct model *model = NULL;
    struct text text = {0};
    struct step_result result;
    float gradients[30];
    profile_is("model bert parameters=30 batch=8\ndevice D\nlayer a parameters=30 forward=8ms backward=16ms\n");
    EXPECT_OK(replay_model(path, &model));
    cr_assert_not_null(model);
    struct backend *backend = open_replay(model, 4);
    result = one_step(backend, gradients);
    cr_expect_geq(result.forward_s, 0.0039);
    backend_replay.describe(backend, &text);
    cr_expect_str_eq(text_string(&text), "replay of D, times scaled from batch 8");
    text_release(&text);
    backend_replay.close(backend);
    model_destroy(model);
}

Test(replay, a_missing_profile_is_named)
{
    struct model *model = NULL;
    EXPECT_FAIL(STATUS_IO, "/nowhere/profile", replay_model("/nowhere/profile", &model));
}
