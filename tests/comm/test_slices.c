/* test_slices.c - how large slices are; that they give right results is tested with the executor. */
#include <criterion/criterion.h>

#include "comm/slices.h"
#include "tests/base/expect.h"

/* The planes stay within the bound, whatever their number, up to vectors beyond 2^31 bytes; the slices cover the vector. */
Test(slices, keep_planes_within_the_bound)
{
    static const size_t counts[] = {1, 1000, 65537, 1000003, (size_t)3 << 30};
    const size_t bound = (size_t)64 << 20;
    for (uint32_t planes = 1; planes <= 64; planes *= 2)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            const struct shape shape = {.scratch = planes};
            const size_t slice = slice_elements(&shape, counts[k], 4, bound);
            size_t bytes = 0;
            EXPECT_OK(slices_scratch(&shape, counts[k], 4, slice, &bytes));
            cr_assert(slice >= 1 && slice <= counts[k]);
            cr_assert_leq((counts[k] - 1) / slice + 1, SLICES_MOST);
            cr_assert(bytes <= bound || slice == (counts[k] - 1) / SLICES_MOST + 1, "%u planes of %zu: %zu bytes",
                      (unsigned)planes, counts[k], bytes);
            cr_assert((size_t)planes * counts[k] * 4 > bound || slice == counts[k], "cut without need");
        }
}

Test(slices, are_not_cut_without_scratch)
{
    const struct shape shape = {.scratch = 0};
    cr_assert_eq(slice_elements(&shape, SIZE_MAX / 16, 8, 1), SIZE_MAX / 16);
    cr_assert_eq(slice_elements(&shape, 0, 8, 1), 0);
    const struct shape planes = {.scratch = 3};
    cr_assert_eq(slice_elements(&planes, 0, 8, 1), 0);
}

Test(slices, what_cant_be_addressed_is_said)
{
    const struct shape shape = {.scratch = 1U << 31};
    size_t bytes = 0;
    EXPECT_FAIL(STATUS_NO_MEMORY, "addressed", slices_scratch(&shape, SIZE_MAX / 8, 8, SIZE_MAX / 8, &bytes));
}
