/* The shim itself: right kernels give right results in every order, wrong ones are noticed. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>

#include "misuse.h"
#include "support_kernels.h"

enum { BLOCKS = 3, THREADS = 96 };

Test(shim, barriers_and_shared_memory)
{
    EACH_ORDER(order)
    {
        int x[BLOCKS * THREADS];
        for (int i = 0; i < BLOCKS * THREADS; i++)
            x[i] = i;
        DONE(misuse_reverse(x, BLOCKS, THREADS, true));
        for (int i = 0; i < BLOCKS * THREADS; i++)
            cr_assert_eq(x[i], i / THREADS * THREADS + THREADS - 1 - i % THREADS);
    }
}

Test(shim, warp_operations)
{
    EACH_ORDER(order)
    {
        int x[BLOCKS * THREADS];
        for (int i = 0; i < BLOCKS * THREADS; i++)
            x[i] = i * i;
        DONE(misuse_warp_sum(x, BLOCKS, THREADS));
        for (int i = 0; i < BLOCKS * THREADS; i++) {
            int sum = 0;
            for (int k = i / 32 * 32; k < i / 32 * 32 + 32; k++)
                sum += k * k;
            cr_assert_eq(x[i], sum);
        }
    }
}

/* A missing barrier: some order of threads shows it. */
Test(shim, race_shows)
{
    int wrong = 0;
    EACH_ORDER(order)
    {
        int x[THREADS];
        for (int i = 0; i < THREADS; i++)
            x[i] = i;
        DONE(misuse_reverse(x, 1, THREADS, false));
        for (int i = 0; i < THREADS; i++)
            wrong += x[i] != THREADS - 1 - i;
    }
    cr_assert_gt(wrong, 0);
}

Test(shim, shared_memory_is_poisoned_for_each_block)
{
    float x[BLOCKS * 32];
    DONE(misuse_garbage(x, BLOCKS, 32));
    for (int i = 0; i < BLOCKS * 32; i++)
        cr_assert(isnan(x[i]));
}

Test(shim, impossible_launches)
{
    cr_assert_eq(misuse_launch(0, 1, 32, 1, 0), SHIM_BAD_CONFIGURATION);
    cr_assert_eq(misuse_launch(1, 65536, 32, 1, 0), SHIM_BAD_CONFIGURATION);
    cr_assert_eq(misuse_launch(1, 1, 1025, 1, 0), SHIM_BAD_CONFIGURATION);
    cr_assert_eq(misuse_launch(1, 1, 1, 65, 0), SHIM_BAD_CONFIGURATION);
    cr_assert_eq(misuse_launch(1, 1, 0, 1, 0), SHIM_BAD_CONFIGURATION);
    cr_assert_eq(misuse_launch(1, 1, 512, 3, 0), SHIM_BAD_CONFIGURATION);
    cr_assert_eq(misuse_launch(1, 1, 32, 1, (48 << 10) + 1), SHIM_BAD_CONFIGURATION);
}

static int scratch[64];

Test(shim, barrier_that_half_of_the_threads_reach, .signal = SIGABRT)
{
    (void)misuse_run(HALF_AT_BARRIER, scratch);
}

Test(shim, barriers_at_two_places, .signal = SIGABRT)
{
    (void)misuse_run(TWO_BARRIERS, scratch);
}

Test(shim, half_a_warp, .signal = SIGABRT)
{
    (void)misuse_run(HALF_A_WARP, scratch);
}

Test(shim, lanes_that_left, .signal = SIGABRT)
{
    (void)misuse_run(LANES_LEAVE, scratch);
}

Test(shim, write_beyond_shared_memory, .signal = SIGABRT)
{
    (void)misuse_run(BEYOND_SHARED, scratch);
}

/* ---- a queue of its own instead of launches at once ---- */

static void *queued_kernel, *queued_stream;

static void queue(void *stream, void *kernel)
{
    queued_stream = stream;
    queued_kernel = kernel;
}

Test(shim, launcher_decides_when)
{
    uint32_t flag = 0;
    float *x = device(8 * sizeof(float)); /* NaN */
    shim_set_launcher(queue);
    DONE(cuda_check_finite((cuda_stream)&flag, DTYPE_F32, x, 8, &flag));
    cr_assert_eq(flag, 0);
    cr_assert_eq(queued_stream, (void *)&flag);
    shim_run(queued_kernel);
    cr_assert_eq(flag, 1);
    flag = 0;
    shim_run(queued_kernel);
    cr_assert_eq(flag, 1, "a launch that comes twice");
    shim_release(queued_kernel);
    shim_set_launcher(NULL);
    devices_release();
}
