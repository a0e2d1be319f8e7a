/* option.h - declared options: one table gives parsing, checks, --help and the documentation.
 *
 * The same tables serve command lines (--key=value, --key value, -k value) and algorithm specs (key=value).
 * A table is a constant array ended by an entry whose key is NULL.
 */
#ifndef CHORALE_BASE_OPTION_H
#define CHORALE_BASE_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum option_type {
    OPTION_FLAG,    /* on the command line without a value; in specs 0 or 1               */
    OPTION_INT,     /* whole number in [min, max]                                          */
    OPTION_SIZE,    /* bytes, with K M G                                                   */
    OPTION_REAL,    /* number in [min, max]                                                */
    OPTION_SECONDS, /* a real number of seconds in [min, max]; "30" or "1.5"               */
    OPTION_CHOICE,  /* one of `choices`, separated by '|'                                  */
    OPTION_STRING,  /* anything                                                            */
    OPTION_SPEC,    /* the text of an algorithm spec, kept as text; checked by its reader  */
    OPTION_FILE     /* the path of a file, kept as text; read by whoever may do I/O        */
};

struct option {
    const char *key; /* "segment"; on the command line --segment                                   */
    char letter;     /* 'n' for -n, 0 for none                                                      */
    bool repeats;    /* given again, the values are joined with a space (--allreduce=a --allreduce=b) */
    enum option_type type;
    const char *default_text; /* what stands when not given; NULL = unset; shown in help                    */
    const char *bare;         /* what stands for --key without a value, which then must follow an =; or NULL */
    const char *unit;         /* "B", "s", "workers", ...; NULL = none                                       */
    const char *choices;      /* OPTION_CHOICE: "auto|shm|tcp"                                                */
    double min, max;          /* both 0: no bounds                                                           */
    const char *help;         /* one line                                                                    */
};

/* Parsed values, one slot for each entry of the table. Owned; release with option_values_release(). */
struct option_values {
    const struct option *table;
    size_t count;
    char **text; /* text[i] NULL = not given (the default stands) */
};

enum status option_values_init(struct option_values *values, const struct option *table) MUST_CHECK;
enum status option_values_copy(struct option_values *to, const struct option_values *from) MUST_CHECK;
void option_values_release(struct option_values *values);

/* Check and store one value, in its canonical spelling (64M for 65536K, 0.1 for 0.10). STATUS_USAGE with the nearest
 * key, or with the key, the value and what is taken. Set again, the later value stands (`repeats`: both). */
enum status option_set(struct option_values *values, const char *key, const char *text) MUST_CHECK;
bool option_given(const struct option_values *values, const char *key);
void option_unset(struct option_values *values, const char *key); /* as if it had not been given */

/* Reading. The key must be in the table and of that type: anything else is a programming error (assert).
 * An unset option without a default reads as 0, NULL or false. */
long long option_int(const struct option_values *values, const char *key);
size_t option_size(const struct option_values *values, const char *key);
double option_real(const struct option_values *values, const char *key); /* REAL and SECONDS */
bool option_flag(const struct option_values *values, const char *key);
const char *option_text(const struct option_values *values, const char *key); /* any type */

/* Parse argv[1..]. Options may stand anywhere; "--" ends them. Words that are no options go to `rest`
 * (pointers into argv, array allocated, caller frees; pass NULL to refuse them with STATUS_USAGE).
 * Long options take "--key=value" or "--key value"; letters "-n 4" or "-n4". "--help" and "-h"
 * (unless the table has these) set *help_wanted and nothing else is parsed; NULL: no help here. A word that looks like
 * an option is never taken as a value: write --key=-n. */
enum status option_parse(struct option_values *values, int argc, char **argv, bool *help_wanted, char ***rest,
                         size_t *rest_count) MUST_CHECK;

/* The help text of a table, one option a line: "  --segment=SIZE   help (default 256K, B)". */
void option_help(const struct option *table, struct text *text);

/* The options given whose values differ from the default, as "key=value key=value", sorted by key. */
void option_describe(const struct option_values *values, struct text *text);

/* For tests: STATUS_INTERNAL when a key or letter stands twice or a default is not a value of its own option. */
enum status option_table_check(const struct option *table) MUST_CHECK;

#endif
