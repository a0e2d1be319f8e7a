/* text.h - a growable string, with number formatting that ignores the locale.
 *
 * A zeroed `struct text` is empty and valid. The first failed allocation sets `failed`; later calls do nothing,
 * so a caller may build a whole text and check once with text_check().
 */
#ifndef CHORALE_BASE_TEXT_H
#define CHORALE_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct text {
    char *data;    /* always terminated by NUL when not NULL */
    size_t length; /* bytes, without the NUL                 */
    size_t capacity;
    bool failed;
};

void text_add(struct text *text, const char *string);
void text_add_bytes(struct text *text, const char *bytes, size_t length);
/* printf-style; a `%g`, `%f` or `%e` would follow the locale: use text_add_real() for fractions. */
void text_addf(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Shortest decimal form with at most `digits` significant digits (17 = exact round trip); the decimal separator is
 * always a point, and a whole number has none: 0.1, 5, 1e+20. Not finite: nan, inf, -inf. */
void text_add_real(struct text *text, double value, int digits);
/* value with `decimals` places, e.g. 12.50, always with a point. */
void text_add_fixed(struct text *text, double value, int decimals);
const char *text_string(const struct text *text); /* never NULL */
enum status text_check(const struct text *text) MUST_CHECK;
void text_clear(struct text *text); /* empties, keeps the memory */
void text_release(struct text *text);

/* "s", but "" where there is one of it: "%d worker%s". */
const char *plural(size_t count);

/* strtod in the C locale. Whole string must be a decimal number or inf; STATUS_FORMAT otherwise (also for white
 * space, hexadecimal, nan and what overflows). On failure *value is unchanged, here and below. */
enum status parse_real(const char *string, double *value) MUST_CHECK;
enum status parse_int(const char *string, long long *value) MUST_CHECK;
/* Bytes with an optional K, M, G, T suffix (binary: 1K = 1024), as nccl-tests take them: "8", "64M", "1.5k".
 * STATUS_FORMAT for anything else, for a fraction of a byte and for what does not fit size_t. */
enum status parse_size(const char *string, size_t *bytes) MUST_CHECK;
/* A number with a unit, into SI base units: seconds ("1.9us", "30 s"), bytes per second ("12.5GB/s", "56Gbit/s"),
 * seconds per byte ("0.1ns/B"), bytes ("4KiB", "100MB"), plain count (""). `dimension` is one of
 * "s", "B/s", "s/B", "B", "images/s", "". A value without its unit is STATUS_FORMAT and the text names the units taken.
 */
enum status parse_quantity(const char *string, const char *dimension, double *value) MUST_CHECK;

/* The candidate nearest to `word` by edit distance, NULL when none is near (distance > max(2, length/3), or nothing in
 * common). Of equally near ones the first. The result is one of the candidates' pointers. */
const char *nearest_spelling(const char *word, const char *const *candidates, size_t count);

#endif
