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

/* ---- reading ---- */

/* Fields of `text`, each followed by ';', rows by '/'. */
static void expect_read(const char *text, const char *wanted)
{
    struct text field = {0}, found = {0};
    const char *at = text;
    while (*at != '\0') {
        bool last = false;
        EXPECT_OK(csv_next(&at, &field, &last));
        text_addf(&found, "%s;%s", text_string(&field), last ? "/" : "");
    }
    cr_expect_str_eq(text_string(&found), wanted);
    text_release(&field);
    text_release(&found);
}

Test(csv, reads_rows)
{
    expect_read("a,b\n1,2\n", "a;b;/1;2;/");
    expect_read("a,b\r\n1,2", "a;b;/1;2;/");
    expect_read(",,\n", ";;;/");
    expect_read("\"a,\nb\",\"say \"\"x\"\"\",\"\"\n", "a,\nb;say \"x\";;/");
}

Test(csv, reads_what_it_writes)
{
    struct text row = {0}, field = {0};
    const char *const words[] = {"", "plain", "a,b", "\"", "line\nend", "\r", "x\"y"};
    for (size_t i = 0; i < 7; i++)
        csv_add(&row, words[i]);
    csv_end(&row);
    const char *at = text_string(&row);
    for (size_t i = 0; i < 7; i++) {
        bool last = false;
        EXPECT_OK(csv_next(&at, &field, &last));
        cr_expect_str_eq(text_string(&field), words[i]);
        cr_expect_eq(last, i == 6);
    }
    cr_expect_eq(*at, '\0');
    text_release(&row);
    text_release(&field);
}

Test(csv, torn_quotes_are_refused)
{
    static const char *const torn[] = {"\"a", "\"a\"b,c\n", "\"a\"\"\n"};
    for (size_t i = 0; i < 3; i++) {
        struct text field = {0};
        bool last = false;
        const char *at = torn[i];
        EXPECT_FAIL(STATUS_FORMAT, "", csv_next(&at, &field, &last));
        text_release(&field);
    }
}
