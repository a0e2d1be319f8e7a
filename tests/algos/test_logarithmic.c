/* test_logarithmic.c - what is particular to schedules of a logarithmic number of rounds. */
#include <criterion/criterion.h>

#include "tests/algos/support_schedule.h"

static uint32_t log2_up(int p)
{
    uint32_t levels = 0;
    while ((1LL << levels) < p)
        levels++;
    return levels;
}

Test(circulant, has_the_fewest_rounds_and_the_least_bytes_for_any_number)
{
    for (int p = 1; p <= 130; p++) {
        struct shape *shape = schedule_of("circulant", p);
        const uint32_t levels = log2_up(p);
        cr_expect_eq(shape->split, levels, "%d workers", p);
        cr_expect_eq(shape->rounds, 2 * levels, "%d workers", p);
        for (int r = 0; r < p; r++) {
            cr_expect_eq(shape->algorithm->owner(shape, (uint32_t)r), r);
            expect_sends(shape, r, 100 * (size_t)p, 200 * ((size_t)p - 1), 2 * levels);
        }
        shape_destroy(shape);
    }
}

Test(circulant, is_proved_with_equal_bits)
{
    for (int p = 1; p <= 13; p++)
        expect_proved("circulant", p);
}
