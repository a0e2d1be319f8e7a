/* test_layout.c - node layouts, from words and back. */
#include <criterion/criterion.h>
#include <string.h>

#include "algos/layout.h"

static void expect_layout(const char *text, int workers, const int *node_of, int count, const char *described)
{
    struct layout layout;
    struct text words = {0};
    cr_assert_eq(layout_parse(text, workers, &layout), STATUS_OK, "%s", status_message());
    cr_assert_eq(layout.workers, count);
    for (int i = 0; i < count; i++)
        cr_assert_eq(layout.node_of[i], node_of[i], "%s: worker %d", text, i);
    cr_assert_eq(layout.nodes, node_of[count - 1] + 1);
    layout_describe(&layout, &words);
    cr_assert_str_eq(text_string(&words), described);
    text_release(&words);
    layout_release(&layout);
}

static void expect_error(const char *text, int workers, const char *part)
{
    struct layout layout;
    cr_assert_eq(layout_parse(text, workers, &layout), STATUS_USAGE, "%s", text);
    cr_assert_not_null(strstr(status_message(), part), "%s", status_message());
    cr_assert_null(layout.node_of);
}

Test(layout, reads_grids_and_sums)
{
    expect_layout("2x4", 8, (const int[]){0, 0, 0, 0, 1, 1, 1, 1}, 8, "2x4");
    expect_layout("2x2", 0, (const int[]){0, 0, 1, 1}, 4, "2x2");
    expect_layout("4+2", 6, (const int[]){0, 0, 0, 0, 1, 1}, 6, "4+2");
    expect_layout("2+2", 0, (const int[]){0, 0, 1, 1}, 4, "2x2");
    expect_layout("1+1+3", 0, (const int[]){0, 1, 2, 2, 2}, 5, "1+1+3");
    expect_layout("3", 3, (const int[]){0, 0, 0}, 3, "1x3");
    expect_layout("1x1", 1, (const int[]){0}, 1, "1x1");
}

Test(layout, a_count_that_disagrees_is_named)
{
    expect_error("2x4", 6, "8 workers, but there are 6");
    expect_error("4+2", 8, "6 workers, but there are 8");
}

Test(layout, torn_words_are_refused_with_an_example)
{
    static const char *const torn[] = {"",     "x",    "2x",   "x4",  "2x4x2",       "4+",          "+4",
                                       "4++2", "0x4",  "4x0",  "0",   "4+0",         "a",           "4 2",
                                       " 4",   "-2x4", "2x4 ", "2X4", "99999999999", "99999x99999", "4+2147483647"};
    for (size_t i = 0; i < sizeof torn / sizeof torn[0]; i++)
        expect_error(torn[i], 0, "2x4");
}

Test(layout, flat_and_groups)
{
    struct layout layout, copy;
    cr_assert_eq(layout_flat(5, &layout), STATUS_OK);
    cr_assert_eq(layout.nodes, 1);
    layout_release(&layout);
    cr_assert_eq(layout_groups(10, 4, &layout), STATUS_OK);
    cr_assert_eq(layout.nodes, 3);
    cr_assert_eq(layout.node_of[9], 2);
    cr_assert_eq(layout_copy(&layout, &copy), STATUS_OK);
    layout_release(&layout);
    struct text words = {0};
    layout_describe(&copy, &words);
    cr_assert_str_eq(text_string(&words), "4+4+2");
    text_release(&words);
    layout_release(&copy);
    cr_assert_eq(layout_groups(4, 9, &layout), STATUS_OK);
    cr_assert_eq(layout.nodes, 1);
    layout_release(&layout);
    cr_assert_eq(layout_groups(4, 0, &layout), STATUS_USAGE);
    cr_assert_eq(layout_flat(0, &layout), STATUS_USAGE);
    layout_release(&layout);
}
