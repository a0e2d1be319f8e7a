/* csv.h - RFC 4180 rows: fields with comma, quote or newline are quoted; numbers ignore the locale. */
#ifndef CHORALE_BASE_CSV_H
#define CHORALE_BASE_CSV_H

#include <stdbool.h>

#include "base/status.h"
#include "base/text.h"

/* Append one field to the row being built in `row` (a comma goes before it unless the row is empty or ends in \n).
 * NULL is an empty field; an empty first field is written as "", so that the row is not empty after it. */
void csv_add(struct text *row, const char *field);
void csv_add_real(struct text *row, double value, int digits); /* not finite: an empty field */
void csv_add_size(struct text *row, size_t value);
void csv_end(struct text *row); /* ends the row with \r\n-free "\n" */

/* Reading: the field at *at goes to *field (emptied first), without its quotes; *at moves behind it and its comma or
 * line end, *last says that a line end or the end of the text came after it. "\r\n" ends a line, too. At the end of the
 * text (**at == '\0' after a last field) there is no further field. STATUS_FORMAT: a quote that is not closed, or
 * followed by something else than a comma or a line end. */
enum status csv_next(const char **at, struct text *field, bool *last) MUST_CHECK;

#endif
