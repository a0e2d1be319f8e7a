/* lines.h - line-based text files of words and key=value fields: '#' begins a comment, messages name file and line.
 *
 * Profiles (base/profile.h) and platforms (sim/platform.h) are read with it.
 */
#ifndef CHORALE_BASE_LINES_H
#define CHORALE_BASE_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define LINE_BYTES 512
#define LINE_WORDS 16

struct lines {
    const char *name; /* the file's, for messages                                     */
    const char *next; /* what has not been read yet                                   */
    int number;       /* of the line at hand, from 1                                  */
    size_t count;     /* words of the line at hand, at least 1                        */
    char *word[LINE_WORDS];
    char words[LINE_BYTES]; /* the words' own memory                                        */
    char plain[LINE_BYTES]; /* the line without comment and white space around it           */
};

/* `text` and `name` must outlive *lines. */
void lines_begin(struct lines *lines, const char *text, const char *name);
/* The next line that has a word. STATUS_AGAIN at the end of the text; STATUS_FORMAT for a line that is too long. */
enum status lines_next(struct lines *lines) MUST_CHECK;
/* The plain text from word `first` on ("" when there is none): for free text. */
const char *lines_rest(const struct lines *lines, size_t first);
/* STATUS_FORMAT with "file:line: " before the explanation. */
enum status lines_fail(const struct lines *lines, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Copy word `index` into a field of `size` bytes; STATUS_FORMAT when the word (named `what`) is missing or too long. */
enum status lines_word(const struct lines *lines, size_t index, const char *what, char *out, size_t size) MUST_CHECK;

/* One key=value of a line. */
struct field {
    const char *key;
    const char *dimension; /* of parse_quantity()                                          */
    double min, max;       /* taken: min <= value <= max                                   */
    bool whole, optional;
    bool given; /* set by lines_fields()                                                   */
    double value;
};

/* Read words first .. count-1 as fields. STATUS_FORMAT for what is no field, unknown (with the nearest key), given
 * twice, out of bounds, without its unit, or missing. Fields that are not given keep their value. */
enum status lines_fields(const struct lines *lines, size_t first, struct field *fields, size_t count) MUST_CHECK;

#endif
