/* csv.c - RFC 4180 rows. */
#include "base/csv.h"

#include <math.h>
#include <string.h>

static bool at_row_start(const struct text *row)
{
    return row->length == 0 || row->data[row->length - 1] == '\n';
}

static void add_quoted(struct text *row, const char *field)
{
    text_add(row, "\"");
    for (const char *quote; (quote = strchr(field, '"')) != NULL; field = quote + 1) {
        text_add_bytes(row, field, (size_t)(quote - field));
        text_add(row, "\"\"");
    }
    text_add(row, field);
    text_add(row, "\"");
}

void csv_add(struct text *row, const char *field)
{
    if (field == NULL)
        field = "";
    bool first = at_row_start(row);
    if (!first)
        text_add(row, ",");
    /* An empty first field is quoted, or the next one could not tell that it is not the first. */
    if (strpbrk(field, ",\"\r\n") != NULL || (first && field[0] == '\0'))
        add_quoted(row, field);
    else
        text_add(row, field);
}

void csv_add_real(struct text *row, double value, int digits)
{
    struct text field = {0};
    if (isfinite(value))
        text_add_real(&field, value, digits);
    if (field.failed)
        row->failed = true;
    csv_add(row, text_string(&field));
    text_release(&field);
}

void csv_add_size(struct text *row, size_t value)
{
    if (!at_row_start(row))
        text_add(row, ",");
    text_addf(row, "%zu", value);
}

void csv_end(struct text *row)
{
    text_add(row, "\n");
}
