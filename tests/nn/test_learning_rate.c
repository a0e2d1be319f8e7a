/* test_learning_rate.c - the learning rate of each step: scaling, warm-up, schedules. */
#include "nn/learning_rate.h"

#include <math.h>

#include "tests/base/expect.h"

Test(rate, scales_with_the_global_batch)
{
    struct learning_rate rate = {.rate = 0.1, .images = 256, .global_batch = 32};
    cr_expect_float_eq(learning_rate_at(&rate, 0), 0.0125, 1e-15);
    rate.global_batch = 256;
    cr_expect_float_eq(learning_rate_at(&rate, 1000000), 0.1, 1e-15);
    rate.global_batch = 8192;
    cr_expect_float_eq(learning_rate_at(&rate, 5), 3.2, 1e-12);
}

Test(rate, is_for_as_many_images_as_it_says_or_for_any_number)
{
    struct learning_rate rate = {.rate = 10, .images = 4096, .global_batch = 1024};
    cr_expect_float_eq(learning_rate_at(&rate, 0), 2.5, 1e-15);
    rate.images = 0;
    cr_expect_float_eq(learning_rate_at(&rate, 0), 10, 1e-15);
}

Test(rate, rises_linearly_over_the_warm_up)
{
    struct learning_rate rate = {.rate = 0.1, .images = 256, .global_batch = 256, .warmup = 5};
    for (uint64_t step = 0; step < 5; step++)
        cr_expect_float_eq(learning_rate_at(&rate, step), 0.02 * (double)(step + 1), 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 5), 0.1, 1e-15);
}

Test(rate, falls_to_a_tenth_at_each_milestone)
{
    struct learning_rate rate = {.schedule = RATE_STEP, .rate = 1, .images = 256, .global_batch = 256, .factor = 0.1};
    EXPECT_OK(learning_rate_milestones(&rate, "30,60,80", 10));
    cr_expect_eq(rate.milestones, 3);
    cr_expect_float_eq(learning_rate_at(&rate, 299), 1, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 300), 0.1, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 600), 0.01, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 800), 0.001, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 900), 0.001, 1e-15);
}

Test(rate, usual_milestones_are_fractions_of_the_run)
{
    struct learning_rate rate = {.schedule = RATE_STEP, .rate = 1, .images = 256, .global_batch = 256, .factor = 0.1};
    learning_rate_usual_milestones(&rate, 180);
    cr_expect_eq(rate.milestones, 3);
    cr_expect_eq(rate.milestone[0], 60);
    cr_expect_eq(rate.milestone[1], 120);
    cr_expect_eq(rate.milestone[2], 160);
    learning_rate_usual_milestones(&rate, 20); /* the first step that begins when so much is over */
    cr_expect_eq(rate.milestone[0], 7);
    cr_expect_eq(rate.milestone[1], 14);
    cr_expect_eq(rate.milestone[2], 18);
    learning_rate_usual_milestones(&rate, 1);
    cr_expect_float_eq(learning_rate_at(&rate, 0), 1, 1e-15, "the only step has the whole rate");
    for (uint64_t epoch = 1; epoch < 5000; epoch += 7) { /* 90 epochs of as many steps */
        learning_rate_usual_milestones(&rate, 90 * epoch);
        cr_expect_eq(rate.milestone[0], 30 * epoch);
        cr_expect_eq(rate.milestone[1], 60 * epoch);
        cr_expect_eq(rate.milestone[2], 80 * epoch);
    }
}

Test(rate, milestones_may_be_fractions_or_none)
{
    struct learning_rate rate = {.schedule = RATE_STEP, .rate = 1, .images = 256, .global_batch = 256, .factor = 0.1};
    EXPECT_OK(learning_rate_milestones(&rate, "0.5,2", 10));
    cr_expect_eq(rate.milestone[0], 5);
    cr_expect_eq(rate.milestone[1], 20);
    EXPECT_OK(learning_rate_milestones(&rate, "", 10));
    cr_expect_eq(rate.milestones, 0);
}

Test(rate, torn_milestones_are_refused)
{
    static const char *const torn[] = {",",    "1,",  ",1",   "1,,2",  "2,1",
                                       "1,1",  "x",   "1 ,2", "-1",    "0",
                                       "1e99", "nan", "1;2",  "1,inf", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"};
    struct learning_rate rate = {.schedule = RATE_STEP, .rate = 1, .images = 256, .global_batch = 256, .factor = 0.1};
    for (size_t i = 0; i < sizeof torn / sizeof torn[0]; i++)
        EXPECT_FAIL(STATUS_USAGE, "decay epochs", learning_rate_milestones(&rate, torn[i], 10));
}

/* ---- warm-up from a rate of its own, and smooth schedules ---- */

Test(rate, warm_up_starts_where_it_is_told_and_ends_at_the_scaled_rate)
{
    /* Goyal et al.: from 0.1 to 3.2 at 8192 images, in equal increments. */
    struct learning_rate rate = {.rate = 0.1, .images = 256, .global_batch = 8192, .warmup = 31, .warmup_from = 0.1};
    for (uint64_t step = 0; step < 31; step++)
        cr_expect_float_eq(learning_rate_at(&rate, step), 0.1 + 0.1 * (double)(step + 1), 1e-12);
    cr_expect_float_eq(learning_rate_at(&rate, 31), 3.2, 1e-12);
}

Test(rate, constant_stays)
{
    struct learning_rate rate = {
        .rate = 0.1, .images = 256, .global_batch = 512, .milestone = {3}, .milestones = 1, .steps = 10};
    for (uint64_t step = 0; step < 20; step++)
        cr_expect_float_eq(learning_rate_at(&rate, step), 0.2, 1e-15);
}

/* Numbers of the definitions, worked out by hand. */
Test(rate, cosine_is_half_a_wave_from_the_warm_up_to_the_end)
{
    struct learning_rate rate = {
        .schedule = RATE_COSINE, .rate = 1, .images = 256, .global_batch = 256, .warmup = 20, .steps = 100};
    cr_expect_float_eq(learning_rate_at(&rate, 9), 0.5, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 19), 1, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 20), 1, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 40), 0.853553390593273762, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 60), 0.5, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 80), 0.146446609406726238, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 100), 0, 1e-15);
    rate.end = 0.2;
    cr_expect_float_eq(learning_rate_at(&rate, 60), 0.6, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 1000), 0.2, 1e-15);
}

Test(rate, polynomial_is_mlperfs)
{
    /* base 10 at 4096 images, end 0.0001, power 2. */
    struct learning_rate rate = {.schedule = RATE_POLYNOMIAL,
                                 .rate = 0.625,
                                 .images = 256,
                                 .global_batch = 4096,
                                 .warmup = 50,
                                 .steps = 250,
                                 .end = 0.0001,
                                 .power = 2};
    cr_expect_float_eq(learning_rate_at(&rate, 24), 5, 1e-12);
    cr_expect_float_eq(learning_rate_at(&rate, 50), 10, 1e-12);
    cr_expect_float_eq(learning_rate_at(&rate, 150), 0.0001 + 9.9999 / 4, 1e-12);
    cr_expect_float_eq(learning_rate_at(&rate, 200), 0.0001 + 9.9999 / 16, 1e-12);
    cr_expect_float_eq(learning_rate_at(&rate, 250), 0.0001, 1e-12);
    rate.power = 1;
    cr_expect_float_eq(learning_rate_at(&rate, 150), 0.0001 + 9.9999 / 2, 1e-12);
}

Test(rate, a_warm_up_longer_than_the_run_only_rises)
{
    static const enum rate_schedule schedules[] = {RATE_CONSTANT, RATE_STEP, RATE_COSINE, RATE_POLYNOMIAL};
    for (size_t k = 0; k < sizeof schedules / sizeof schedules[0]; k++) {
        struct learning_rate rate = {.schedule = schedules[k],
                                     .rate = 1,
                                     .images = 256,
                                     .global_batch = 256,
                                     .warmup = 20,
                                     .steps = 10,
                                     .power = 2};
        for (uint64_t step = 0; step < 10; step++)
            cr_expect_float_eq(learning_rate_at(&rate, step), 0.05 * (double)(step + 1), 1e-15);
    }
}

Test(rate, a_milestone_within_the_warm_up_holds_there_too)
{
    struct learning_rate rate = {.schedule = RATE_STEP,
                                 .rate = 1,
                                 .images = 256,
                                 .global_batch = 256,
                                 .warmup = 10,
                                 .milestone = {5},
                                 .milestones = 1,
                                 .factor = 0.5};
    cr_expect_float_eq(learning_rate_at(&rate, 4), 0.5, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 5), 0.3, 1e-15);
    cr_expect_float_eq(learning_rate_at(&rate, 10), 0.5, 1e-15);
}

/* 5 of 10 epochs of 100 steps, then epochs of 50 or 200 steps: halfway is halfway. */
Test(rate, goes_on_from_the_same_place_where_epochs_become_longer_or_shorter)
{
    static const double epoch[] = {50, 200};
    for (size_t k = 0; k < 2; k++) {
        const double shift = 500 - 5 * epoch[k];
        struct learning_rate rate = {.schedule = RATE_COSINE, .rate = 1, .images = 0, .warmup_from = 0.5};
        rate.warmup = (uint64_t)epoch[k];
        rate.warmup_began = rate.began = shift;
        rate.steps = (uint64_t)(10 * epoch[k] + shift);
        cr_expect_float_eq(learning_rate_at(&rate, 500), (1 + cos(acos(-1) * 4 / 9)) / 2, 1e-12);
        cr_expect_float_eq(learning_rate_at(&rate, rate.steps - 1), (1 + cos(acos(-1) * (1 - 1 / (9 * epoch[k])))) / 2,
                           1e-12);
        /* a warm-up of 10 epochs is halfway, too */
        rate.schedule = RATE_CONSTANT;
        rate.warmup = (uint64_t)(10 * epoch[k]);
        cr_expect_float_eq(learning_rate_at(&rate, 500), 0.75 + 0.5 / (10 * epoch[k]), 1e-12);
    }
}
