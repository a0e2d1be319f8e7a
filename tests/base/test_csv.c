/* test_csv.c - rows that every reader of RFC 4180 takes. */
#include <math.h>

#include "base/csv.h"
#include "tests/base/expect.h"

static void expect_row(struct text *row, const char *wanted)
{
    EXPECT_OK(text_check(row));
    cr_expect_str_eq(text_string(row), wanted);
    text_release(row);
}

Test(csv, plain_fields)
{
    struct text row = {0};
    csv_add(&row, "ring");
    csv_add_size(&row, 64);
    csv_add_real(&row, 0.1, 6);
    csv_add(&row, "");
    csv_add(&row, NULL);
    csv_end(&row);
    csv_add_size(&row, 7);
    csv_add(&row, "next row");
    csv_end(&row);
    expect_row(&row, "ring,64,0.1,,\n7,next row\n");
}

Test(csv, quotes_where_it_must)
{
    struct text row = {0};
    csv_add(&row, "hierarchical:intra=ring,inter=rhd");
    csv_add(&row, "say \"no\"");
    csv_add(&row, "two\nlines");
    csv_add(&row, "cr\r");
    csv_end(&row);
    expect_row(&row, "\"hierarchical:intra=ring,inter=rhd\",\"say \"\"no\"\"\",\"two\nlines\",\"cr\r\"\n");
}

Test(csv, an_empty_first_field_is_still_a_field)
{
    struct text row = {0};
    csv_add(&row, "");
    csv_add(&row, "b");
    csv_end(&row);
    csv_add_real(&row, (double)NAN, 6);
    csv_add_real(&row, (double)INFINITY, 6);
    csv_add_size(&row, 1);
    csv_end(&row);
    expect_row(&row, "\"\",b\n\"\",,1\n");
}

Test(csv, failure_is_seen)
{
    struct text row = {0};
    row.failed = true;
    csv_add(&row, "a");
    csv_add_real(&row, 1, 6);
    csv_end(&row);
    EXPECT_FAIL(STATUS_NO_MEMORY, "", text_check(&row));
    text_release(&row);
}
