/* lines.c - line-based text files. */
#include "base/lines.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

#define FIELD_KEYS 16

void lines_begin(struct lines *lines, const char *text, const char *name)
{
    lines->name = name;
    lines->next = text;
    lines->number = 0;
    lines->count = 0;
}

enum status lines_fail(const struct lines *lines, const char *format, ...)
{
    char reason[768];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return fail(STATUS_FORMAT, "%s:%d: %s", lines->name, lines->number, reason);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Copy the line without its comment and the white space around it into `plain`. */
static enum status take_line(struct lines *lines)
{
    const char *begin = lines->next;
    const char *newline = strchr(begin, '\n');
    const char *end = newline != NULL ? newline : begin + strlen(begin);
    lines->next = newline != NULL ? newline + 1 : end;
    lines->number++;
    const char *comment = memchr(begin, '#', (size_t)(end - begin));
    if (comment != NULL)
        end = comment;
    while (begin < end && is_blank(*begin))
        begin++;
    while (begin < end && is_blank(end[-1]))
        end--;
    size_t length = (size_t)(end - begin);
    if (length >= LINE_BYTES)
        return lines_fail(lines, "a line of %zu bytes: at most %d are taken", length, LINE_BYTES - 1);
    memcpy(lines->plain, begin, length);
    lines->plain[length] = '\0';
    return STATUS_OK;
}

static enum status split_words(struct lines *lines)
{
    memcpy(lines->words, lines->plain, sizeof lines->words);
    lines->count = 0;
    for (char *at = lines->words; *at != '\0';) {
        if (lines->count == LINE_WORDS)
            return lines_fail(lines, "a line of more than %d words", LINE_WORDS);
        lines->word[lines->count++] = at;
        while (*at != '\0' && !is_blank(*at))
            at++;
        while (is_blank(*at))
            *at++ = '\0';
    }
    return STATUS_OK;
}

enum status lines_next(struct lines *lines)
{
    while (*lines->next != '\0') {
        TRY(take_line(lines));
        TRY(split_words(lines));
        if (lines->count > 0)
            return STATUS_OK;
    }
    return STATUS_AGAIN;
}

const char *lines_rest(const struct lines *lines, size_t first)
{
    return first < lines->count ? lines->plain + (lines->word[first] - lines->words) : "";
}

enum status lines_word(const struct lines *lines, size_t index, const char *what, char *out, size_t size)
{
    if (index >= lines->count)
        return lines_fail(lines, "\"%s\" lacks its %s", lines->word[0], what);
    size_t length = strlen(lines->word[index]);
    if (length >= size)
        return lines_fail(lines, "the %s \"%s\" is longer than %zu bytes", what, lines->word[index], size - 1);
    memcpy(out, lines->word[index], length + 1);
    return STATUS_OK;
}

static enum status fail_key(const struct lines *lines, const char *word, size_t length, const struct field *fields,
                            size_t count)
{
    const char *keys[FIELD_KEYS] = {NULL};
    char key[LINE_BYTES];
    for (size_t i = 0; i < count; i++)
        keys[i] = fields[i].key;
    memcpy(key, word, length);
    key[length] = '\0';
    const char *nearest = nearest_spelling(key, keys, count);
    if (nearest != NULL)
        return lines_fail(lines, "unknown field \"%s\" of \"%s\": did you mean %s=?", key, lines->word[0], nearest);
    struct text taken = {0};
    for (size_t i = 0; i < count; i++)
        text_addf(&taken, " %s=", keys[i]);
    enum status status =
        lines_fail(lines, "unknown field \"%s\" of \"%s\": it takes%s", key, lines->word[0], text_string(&taken));
    text_release(&taken);
    return status;
}

static enum status read_value(const struct lines *lines, const char *string, struct field *field)
{
    double value;
    if (parse_quantity(string, field->dimension, &value) < 0)
        return fail_context(STATUS_FORMAT, "%s:%d: %s", lines->name, lines->number, field->key);
    if (field->whole && floor(value) != value)
        return lines_fail(lines, "%s=%s: give a whole number", field->key, string);
    if (!(value >= field->min && value <= field->max)) {
        struct text bounds = {0};
        text_add_real(&bounds, field->min, 6);
        text_add(&bounds, " to ");
        text_add_real(&bounds, field->max, 6);
        enum status status = lines_fail(lines, "%s=%s is out of bounds: give %s%s%s", field->key, string,
                                        text_string(&bounds), *field->dimension != '\0' ? " " : "", field->dimension);
        text_release(&bounds);
        return status;
    }
    field->value = value;
    field->given = true;
    return STATUS_OK;
}

static enum status read_field(const struct lines *lines, const char *word, struct field *fields, size_t count)
{
    const char *equals = strchr(word, '=');
    if (equals == NULL)
        return lines_fail(lines, "\"%s\" is no key=value", word);
    size_t length = (size_t)(equals - word);
    for (size_t i = 0; i < count; i++) {
        if (strlen(fields[i].key) != length || memcmp(fields[i].key, word, length) != 0)
            continue;
        if (fields[i].given)
            return lines_fail(lines, "%s= stands twice: keep one", fields[i].key);
        return read_value(lines, equals + 1, &fields[i]);
    }
    return fail_key(lines, word, length, fields, count);
}

enum status lines_fields(const struct lines *lines, size_t first, struct field *fields, size_t count)
{
    if (count > FIELD_KEYS)
        return fail(STATUS_INTERNAL, "a table of %zu fields: at most %d", count, FIELD_KEYS);
    for (size_t i = first; i < lines->count; i++)
        TRY(read_field(lines, lines->word[i], fields, count));
    for (size_t i = 0; i < count; i++)
        if (!fields[i].given && !fields[i].optional)
            return lines_fail(lines, "\"%s\" lacks %s=", lines->word[0], fields[i].key);
    return STATUS_OK;
}
