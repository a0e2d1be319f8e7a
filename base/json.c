/* json.c - writing JSON documents. */
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"

#define LAYOUT (JSON_INDENT(2) | JSON_REAL_PRECISION(12) | JSON_ENCODE_ANY)

json_t *json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *json_name(const char *name)
{
    struct text text = {0};
    if (name == NULL)
        return json_null();
    json_t *json = json_string(name);
    if (json != NULL)
        return json;
    for (const char *at = name; *at != '\0'; at++)
        text_addf(&text, (unsigned char)*at > 127 ? "\\x%02x" : "%c", (unsigned char)*at);
    json = text.failed ? NULL : json_string(text_string(&text));
    text_release(&text);
    return json;
}

/* The document and its newline. A missing document is what jansson hands on when it ran out of memory earlier. */
static enum status json_text(const json_t *document, struct text *text)
{
    if (document == NULL)
        return fail(STATUS_NO_MEMORY, "out of memory: building a JSON document");
    char *dump = json_dumps(document, LAYOUT);
    if (dump == NULL)
        return fail(STATUS_NO_MEMORY, "out of memory: writing a JSON document");
    text_add(text, dump);
    text_add(text, "\n");
    free(dump);
    return text_check(text);
}

enum status json_print(FILE *stream, const json_t *document)
{
    struct text text = {0};
    enum status status = json_text(document, &text);
    if (status == STATUS_OK && (fwrite(text.data, 1, text.length, stream) != text.length || fflush(stream) != 0))
        status = fail(STATUS_IO, "write JSON: %s", strerror(errno));
    text_release(&text);
    return status;
}

enum status json_write(const char *path, const json_t *document)
{
    struct text text = {0};
    enum status status = json_text(document, &text);
    if (status == STATUS_OK)
        status = file_write_atomic(path, text.data, text.length);
    text_release(&text);
    return status;
}
