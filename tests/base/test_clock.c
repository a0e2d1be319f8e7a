/* test_clock.c - time that only goes forward, and deadlines. */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "tests/base/expect.h"

Test(clock, never_goes_back)
{
    uint64_t previous = clock_ns();
    for (int i = 0; i < 100000; i++) {
        uint64_t now = clock_ns();
        cr_assert_geq(now, previous);
        previous = now;
    }
    cr_expect_geq(clock_seconds(), (double)previous / 1e9);
}

Test(clock, sleeps_at_least_as_long_as_told)
{
    uint64_t start = clock_ns();
    clock_sleep_ns(0);
    clock_sleep_ns(3000000);
    cr_expect_geq(clock_ns() - start, 3000000);
}

Test(deadline, passes)
{
    uint64_t deadline = deadline_after(0.002);
    cr_expect_leq(deadline_left_ns(deadline), 2000000);
    clock_sleep_ns(2500000);
    cr_expect(deadline_passed(deadline));
    cr_expect_eq(deadline_left_ns(deadline), 0);
    uint64_t far = deadline_after(1000);
    cr_expect_not(deadline_passed(far));
    cr_expect_gt(deadline_left_ns(far), UINT64_C(900000000000));
}

Test(deadline, none_never_passes)
{
    const double never[] = {0, -1, (double)INFINITY, (double)NAN, 1e300};
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
        uint64_t deadline = deadline_after(never[i]);
        cr_expect_not(deadline_passed(deadline));
        cr_expect_eq(deadline_left_ns(deadline), UINT64_MAX);
    }
}

Test(clock, wall_text_is_a_date)
{
    char text[21];
    int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, end = 0;
    clock_wall_text(text, sizeof text);
    int fields = sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2dZ%n", &year, &month, &day, &hour, &minute, &second, &end);
    cr_expect_eq(fields, 6, "%s", text);
    cr_expect_eq(end, 20);
    cr_expect_geq(year, 2024);
    clock_wall_text(text, 5);
    cr_expect_str_eq(text, "");
}
