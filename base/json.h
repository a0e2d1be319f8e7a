/* json.h - building and writing JSON documents; jansson does the work (its output ignores the locale). */
#ifndef CHORALE_BASE_JSON_H
#define CHORALE_BASE_JSON_H

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"

/* A JSON number, or null where value is not finite (JSON knows no nan). New reference. */
json_t *json_number(double value);
/* A name of a file, a path, a message about one: of any bytes, while JSON is UTF-8. Where it is not that, each byte above
 * 127 stands as "\xff". null for NULL. New reference. */
json_t *json_name(const char *name);
/* One document and a newline on `stream`, real numbers with 12 significant digits. */
enum status json_print(FILE *stream, const json_t *document) MUST_CHECK;
/* The same into a file, atomically (file_write_atomic). */
enum status json_write(const char *path, const json_t *document) MUST_CHECK;

#endif
