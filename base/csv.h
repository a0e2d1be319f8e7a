/* csv.h - RFC 4180 rows: fields with comma, quote or newline are quoted; numbers ignore the locale. */
#ifndef CHORALE_BASE_CSV_H
#define CHORALE_BASE_CSV_H

#include "base/text.h"

/* Append one field to the row being built in `row` (a comma goes before it unless the row is empty or ends in \n).
 * NULL is an empty field; an empty first field is written as "", so that the row is not empty after it. */
void csv_add(struct text *row, const char *field);
void csv_add_real(struct text *row, double value, int digits); /* not finite: an empty field */
void csv_add_size(struct text *row, size_t value);
void csv_end(struct text *row); /* ends the row with \r\n-free "\n" */

#endif
