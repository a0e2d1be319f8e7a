/* text.c - growable strings, numbers in and out without the locale, and spelling help. */
#include "base/text.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* ---- the growable string ---- */

static bool text_reserve(struct text *text, size_t more)
{
    size_t needed;
    if (text->failed)
        return false;
    void *data = text->data;
    if (!checked_add(text->length, more, &needed) || !checked_add(needed, 1, &needed) ||
        memory_grow(&data, &text->capacity, needed, 1) < 0) {
        text->failed = true;
        return false;
    }
    text->data = data;
    return true;
}

void text_add_bytes(struct text *text, const char *bytes, size_t length)
{
    if (!text_reserve(text, length))
        return;
    if (length != 0)
        memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void text_add(struct text *text, const char *string)
{
    text_add_bytes(text, string, strlen(string));
}

void text_addf(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) {
        text->failed = true;
        return;
    }
    if (!text_reserve(text, (size_t)length))
        return;
    va_start(arguments, format);
    (void)vsnprintf(text->data + text->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    text->length += (size_t)length;
}

const char *plural(size_t count)
{
    return count == 1 ? "" : "s";
}

const char *text_string(const struct text *text)
{
    return text->data != NULL ? text->data : "";
}

enum status text_check(const struct text *text)
{
    if (text->failed)
        return fail(STATUS_NO_MEMORY, "out of memory: a text of more than %zu bytes", text->length);
    return STATUS_OK;
}

void text_clear(struct text *text)
{
    text->length = 0;
    text->failed = false;
    if (text->data != NULL)
        text->data[0] = '\0';
}

void text_release(struct text *text)
{
    free(text->data);
    *text = (struct text){0};
}

/* ---- numbers ----
 *
 * A program that calls setlocale() may have a comma as decimal point; files and specs never do. The C locale is
 * set for this thread only, and only around the one library call. (In glibc the "C" locale object is static, so
 * this costs no allocation.) */

struct locale_scope {
    locale_t c, previous;
};

static struct locale_scope locale_enter(void)
{
    struct locale_scope scope = {.c = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    scope.previous = uselocale(scope.c);
    return scope;
}

static void locale_leave(struct locale_scope scope)
{
    uselocale(scope.previous);
    if (scope.c != (locale_t)0)
        freelocale(scope.c);
}

static bool add_special(struct text *text, double value)
{
    if (isnan(value))
        text_add(text, "nan");
    else if (isinf(value))
        text_add(text, value < 0 ? "-inf" : "inf");
    else
        return false;
    return true;
}

void text_add_real(struct text *text, double value, int digits)
{
    if (add_special(text, value))
        return;
    char buffer[64];
    struct locale_scope scope = locale_enter();
    for (int precision = 1; precision <= digits || precision == 1; precision++) {
        (void)snprintf(buffer, sizeof buffer, "%.*g", precision, value);
        if (strtod(buffer, NULL) == value)
            break;
    }
    /* %g writes 30 as 3e+01: whole numbers of ordinary size are written out. */
    const double size = fabs(value);
    if (strchr(buffer, 'e') != NULL && size >= 10 && size < 1e15 && strtod(buffer, NULL) == floor(strtod(buffer, NULL)))
        (void)snprintf(buffer, sizeof buffer, "%.0f", strtod(buffer, NULL));
    locale_leave(scope);
    text_add(text, buffer);
}

void text_add_fixed(struct text *text, double value, int decimals)
{
    if (add_special(text, value))
        return;
    struct locale_scope scope = locale_enter();
    text_addf(text, "%.*f", decimals, value);
    locale_leave(scope);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A decimal number at the start of `string`: no white space before it, no hexadecimal, no nan, no overflow. */
static bool scan_real(const char *string, double *value, const char **end)
{
    const char *body = string + (*string == '-' || *string == '+');
    bool hexadecimal = body[0] == '0' && (body[1] == 'x' || body[1] == 'X');
    if (hexadecimal || !(is_digit(*body) || *body == '.' || *body == 'i'))
        return false;
    char *stop;
    struct locale_scope scope = locale_enter();
    errno = 0;
    double parsed = strtod(string, &stop);
    bool overflow = errno == ERANGE && fabs(parsed) > 1.0;
    locale_leave(scope);
    if (stop == string || overflow)
        return false;
    *value = parsed;
    *end = stop;
    return true;
}

enum status parse_real(const char *string, double *value)
{
    const char *end;
    double parsed;
    if (!scan_real(string, &parsed, &end) || *end != '\0')
        return fail(STATUS_FORMAT, "\"%s\" is not a number", string);
    *value = parsed;
    return STATUS_OK;
}

enum status parse_int(const char *string, long long *value)
{
    const char *body = string + (*string == '-' || *string == '+');
    if (!is_digit(*body))
        return fail(STATUS_FORMAT, "\"%s\" is not a whole number", string);
    char *end;
    errno = 0;
    long long parsed = strtoll(string, &end, 10);
    if (*end != '\0')
        return fail(STATUS_FORMAT, "\"%s\" is not a whole number", string);
    if (errno == ERANGE)
        return fail(STATUS_FORMAT, "\"%s\" does not fit 64 bits", string);
    *value = parsed;
    return STATUS_OK;
}

static enum status fail_size(const char *string)
{
    return fail(STATUS_FORMAT, "\"%s\" is not a size: give bytes with an optional K, M, G or T (1K = 1024)", string);
}

/* The bytes of a suffix such as "M"; "" is 1 and anything else 0. */
static size_t suffix_bytes(const char *suffix)
{
    static const char upper[] = "KMGT";
    static const char lower[] = "kmgt";
    if (suffix[0] == '\0')
        return 1;
    for (size_t i = 0; i < sizeof upper - 1; i++)
        if ((suffix[0] == upper[i] || suffix[0] == lower[i]) && suffix[1] == '\0')
            return (size_t)1 << (10 * (i + 1));
    return 0;
}

/* "1.5K" is 1536 bytes; what is not a whole number of bytes, or too large to tell, is refused. */
static enum status parse_size_fraction(const char *string, size_t *bytes)
{
    const double exact_limit = 9007199254740992.0; /* 2^53 */
    const char *end;
    double value;
    if (!scan_real(string, &value, &end))
        return fail_size(string);
    double product = value * (double)suffix_bytes(end);
    if (suffix_bytes(end) == 0 || !(product >= 0 && product <= exact_limit) || floor(product) != product)
        return fail_size(string);
    *bytes = (size_t)product;
    return STATUS_OK;
}

enum status parse_size(const char *string, size_t *bytes)
{
    size_t value = 0;
    bool fits = true;
    const char *end = string;
    for (; is_digit(*end); end++)
        fits = fits && checked_multiply(value, 10, &value) && checked_add(value, (size_t)(*end - '0'), &value);
    if (*end == '.' || *end == 'e' || *end == 'E')
        return parse_size_fraction(string, bytes);
    size_t unit = suffix_bytes(end);
    if (end == string || unit == 0)
        return fail_size(string);
    if (!fits || !checked_multiply(value, unit, &value))
        return fail(STATUS_FORMAT, "\"%s\" is more bytes than an address can name", string);
    *bytes = value;
    return STATUS_OK;
}

/* Small units divide, because 1e6 is exact in binary and 1e-6 is not. */
static const struct unit {
    const char *dimension, *name;
    double multiply, divide;
} units[] = {
    {"s", "s", 1, 1},
    {"s", "ms", 1, 1e3},
    {"s", "us", 1, 1e6},
    {"s", "ns", 1, 1e9},
    {"s", "ps", 1, 1e12},
    {"s", "min", 60, 1},
    {"B", "B", 1, 1},
    {"B", "kB", 1e3, 1},
    {"B", "KB", 1e3, 1},
    {"B", "MB", 1e6, 1},
    {"B", "GB", 1e9, 1},
    {"B", "TB", 1e12, 1},
    {"B", "KiB", 1024.0, 1},
    {"B", "MiB", 1048576.0, 1},
    {"B", "GiB", 1073741824.0, 1},
    {"B", "TiB", 1099511627776.0, 1},
    {"B/s", "B/s", 1, 1},
    {"B/s", "kB/s", 1e3, 1},
    {"B/s", "KB/s", 1e3, 1},
    {"B/s", "MB/s", 1e6, 1},
    {"B/s", "GB/s", 1e9, 1},
    {"B/s", "TB/s", 1e12, 1},
    {"B/s", "KiB/s", 1024.0, 1},
    {"B/s", "MiB/s", 1048576.0, 1},
    {"B/s", "GiB/s", 1073741824.0, 1},
    {"B/s", "bit/s", 1, 8},
    {"B/s", "kbit/s", 1e3, 8},
    {"B/s", "Kbit/s", 1e3, 8},
    {"B/s", "Mbit/s", 1e6, 8},
    {"B/s", "Gbit/s", 1e9, 8},
    {"B/s", "Tbit/s", 1e12, 8},
    {"s/B", "s/B", 1, 1},
    {"s/B", "us/B", 1, 1e6},
    {"s/B", "ns/B", 1, 1e9},
    {"s/B", "ps/B", 1, 1e12},
    {"images/s", "images/s", 1, 1},
    {"", "", 1, 1},
};

#define UNIT_COUNT (sizeof units / sizeof units[0])

static const struct unit *unit_find(const char *dimension, const char *name)
{
    for (size_t i = 0; i < UNIT_COUNT; i++)
        if (strcmp(units[i].dimension, dimension) == 0 && strcmp(units[i].name, name) == 0)
            return &units[i];
    return NULL;
}

static enum status fail_unit(const char *string, const char *dimension)
{
    struct text taken = {0};
    for (size_t i = 0; i < UNIT_COUNT; i++)
        if (strcmp(units[i].dimension, dimension) == 0)
            text_addf(&taken, "%s%s", taken.length != 0 ? ", " : "", units[i].name);
    enum status status = STATUS_FORMAT;
    if (taken.length == 0)
        (void)fail(status, "\"%s\" is not a plain number (it takes no unit)", string);
    else
        (void)fail(status, "\"%s\" is not a number with its unit: give one of %s", string, text_string(&taken));
    text_release(&taken);
    return status;
}

enum status parse_quantity(const char *string, const char *dimension, double *value)
{
    const char *end;
    double number;
    if (!scan_real(string, &number, &end))
        return fail_unit(string, dimension);
    while (*end == ' ' || *end == '\t')
        end++;
    const struct unit *unit = unit_find(dimension, end);
    if (unit == NULL)
        return fail_unit(string, dimension);
    *value = number * unit->multiply / unit->divide;
    return STATUS_OK;
}

/* ---- spelling ---- */

#define SPELLING_LIMIT 64 /* longer words are no typing slips */

/* Edits (insert, delete, change) from `a` to `b`, one row of the table at a time. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t row[SPELLING_LIMIT + 1];
    for (size_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t above = row[j];
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best)
                best = above + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = above;
            row[j] = best;
        }
    }
    return row[b_length];
}

const char *nearest_spelling(const char *word, const char *const *candidates, size_t count)
{
    size_t length = strlen(word);
    if (length > SPELLING_LIMIT)
        return NULL;
    const char *nearest = NULL;
    size_t nearest_distance = (length / 3 > 2 ? length / 3 : 2) + 1;
    for (size_t i = 0; i < count; i++) {
        size_t candidate_length = strlen(candidates[i]);
        if (candidate_length > SPELLING_LIMIT)
            continue;
        size_t distance = edit_distance(word, length, candidates[i], candidate_length);
        /* As many edits as letters means nothing in common: "x" is no misspelling of "op". */
        size_t longer = length > candidate_length ? length : candidate_length;
        if (distance < nearest_distance && (distance < longer || longer == 0)) {
            nearest = candidates[i];
            nearest_distance = distance;
        }
    }
    return nearest;
}
