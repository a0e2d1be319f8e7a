/* test_memory.c - allocation, growth and arithmetic that cannot wrap. */
#include <stdint.h>
#include <stdlib.h>

#include "base/memory.h"
#include "tests/base/expect.h"

Test(memory, zeroed_is_zero_and_valid_when_empty)
{
    void *block = NULL;
    EXPECT_OK(memory_zeroed(&block, 1000, 4));
    const unsigned char *bytes = block;
    for (size_t i = 0; i < 4000; i++)
        cr_assert_eq(bytes[i], 0);
    free(block);
    EXPECT_OK(memory_zeroed(&block, 0, 8));
    cr_expect_not_null(block);
    free(block);
}

Test(memory, zeroed_refuses_what_wraps_and_names_what_is_too_much)
{
    void *block = &block;
    EXPECT_FAIL(STATUS_NO_MEMORY, "address space", memory_zeroed(&block, SIZE_MAX / 2, 3));
    cr_expect_null(block);
}

Test(memory, grow_keeps_contents_and_doubles)
{
    void *array = NULL;
    size_t capacity = 0, moves = 0;
    for (size_t i = 0; i < 10000; i++) {
        size_t before = capacity;
        cr_assert_eq(memory_grow(&array, &capacity, i + 1, sizeof(size_t)), STATUS_OK);
        moves += capacity != before;
        ((size_t *)array)[i] = i;
    }
    for (size_t i = 0; i < 10000; i++)
        cr_assert_eq(((size_t *)array)[i], i);
    cr_expect_leq(moves, 14, "%zu moves", moves);
    free(array);
}

Test(memory, grow_leaves_everything_when_it_fails)
{
    void *array = NULL;
    size_t capacity = 0;
    EXPECT_OK(memory_grow(&array, &capacity, 3, 8));
    void *before = array;
    size_t capacity_before = capacity;
    EXPECT_FAIL(STATUS_NO_MEMORY, "", memory_grow(&array, &capacity, SIZE_MAX, 8));
    cr_expect_eq(array, before);
    cr_expect_eq(capacity, capacity_before);
    free(array);
}

Test(memory, pages_are_aligned_and_zero)
{
    const size_t sizes[] = {0, 1, 4096, ((size_t)2 << 20) + 5};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *pages = NULL;
        EXPECT_OK(memory_pages(&pages, sizes[i]));
        cr_assert_not_null(pages);
        cr_expect_eq((uintptr_t)pages % 4096, 0);
        unsigned char *bytes = pages;
        if (sizes[i] != 0) {
            cr_expect_eq(bytes[0] | bytes[sizes[i] - 1], 0);
            bytes[sizes[i] - 1] = 1;
        }
        memory_pages_release(pages, sizes[i]);
    }
    memory_pages_release(NULL, 10);
    void *pages = NULL;
    EXPECT_FAIL(STATUS_NO_MEMORY, "bytes of pages", memory_pages(&pages, SIZE_MAX - 4096));
}

Test(memory, string_copies)
{
    char *copy = NULL;
    EXPECT_OK(memory_string(&copy, "chorale"));
    cr_expect_str_eq(copy, "chorale");
    free(copy);
    EXPECT_OK(memory_string(&copy, NULL));
    cr_expect_null(copy);
}

Test(memory, checked_arithmetic)
{
    size_t out = 5;
    cr_expect(checked_multiply(SIZE_MAX / 3, 3, &out));
    cr_expect_eq(out, SIZE_MAX / 3 * 3);
    cr_expect_not(checked_multiply(SIZE_MAX / 3 + 1, 3, &out));
    cr_expect(checked_multiply(SIZE_MAX, 0, &out));
    cr_expect_eq(out, 0);
    cr_expect(checked_add(SIZE_MAX - 1, 1, &out));
    cr_expect_eq(out, SIZE_MAX);
    cr_expect_not(checked_add(SIZE_MAX, 1, &out));
}
