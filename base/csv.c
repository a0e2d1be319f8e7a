/* csv.c - RFC 4180 rows, written and read. */
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

/* ---- reading ---- */

/* *at is behind the opening quote; afterwards behind the closing one. */
static enum status read_quoted(const char **at, struct text *field)
{
    for (;;) {
        const char *quote = strchr(*at, '"');
        if (quote == NULL)
            return fail(STATUS_FORMAT, "a quote is not closed");
        text_add_bytes(field, *at, (size_t)(quote - *at));
        *at = quote + 1;
        if (**at != '"')
            return STATUS_OK;
        text_add(field, "\""); /* "" stands for one */
        (*at)++;
    }
}

enum status csv_next(const char **at, struct text *field, bool *last)
{
    text_clear(field);
    if (**at == '"') {
        (*at)++;
        TRY(read_quoted(at, field));
    } else {
        const size_t length = strcspn(*at, ",\r\n");
        text_add_bytes(field, *at, length);
        *at += length;
    }
    TRY(text_check(field));
    const bool ends = **at == '\0' || **at == '\n' || (**at == '\r' && (*at)[1] == '\n');
    if (!ends && **at != ',')
        return fail(STATUS_FORMAT, "\"%s\" is followed by neither a comma nor the end of the line", text_string(field));
    *last = ends;
    if (**at == '\r')
        (*at)++;
    if (**at != '\0')
        (*at)++;
    return STATUS_OK;
}
