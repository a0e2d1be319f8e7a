/* option.c - one table for parsing, checking, help and the canonical description. */
#include "base/option.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define HELP_COLUMN 34 /* the widest left part that other lines are aligned to */

/* ---- the table ---- */

static size_t table_count(const struct option *table)
{
    size_t count = 0;
    while (table[count].key != NULL)
        count++;
    return count;
}

/* The entry whose key is the first `length` bytes of `key`, or NULL. */
static const struct option *table_find(const struct option *table, const char *key, size_t length)
{
    for (const struct option *option = table; option->key != NULL; option++)
        if (strlen(option->key) == length && memcmp(option->key, key, length) == 0)
            return option;
    return NULL;
}

static const struct option *table_find_letter(const struct option *table, char letter)
{
    for (const struct option *option = table; option->key != NULL; option++)
        if (option->letter == letter && letter != '\0')
            return option;
    return NULL;
}

static bool has_bounds(const struct option *option)
{
    return option->min != 0 || option->max != 0;
}

static bool in_bounds(const struct option *option, double value)
{
    return !has_bounds(option) || (value >= option->min && value <= option->max);
}

/* 67108864 becomes 64M: the largest suffix that loses nothing. */
static void add_size(struct text *text, size_t bytes)
{
    static const char *const suffixes[] = {"", "K", "M", "G"};
    size_t suffix = 0;
    while (bytes != 0 && bytes % 1024 == 0 && suffix < 3) {
        bytes /= 1024;
        suffix++;
    }
    text_addf(text, "%zu%s", bytes, suffixes[suffix]);
}

/* A bound in the spelling of its option: 64M, 1000000, 0.5. */
static void add_bound(const struct option *option, double bound, struct text *text)
{
    const double size_limit = 9e18;
    if (option->type == OPTION_SIZE && bound >= 0 && bound < size_limit)
        add_size(text, (size_t)bound);
    else if (option->type == OPTION_INT)
        text_add_fixed(text, bound, 0);
    else
        text_add_real(text, bound, 15);
}

/* " from 1 to 64" (the words before are `from`), " at least 1", " at most 9" or nothing. */
static void add_bounds(const struct option *option, const char *from, struct text *text)
{
    if (!has_bounds(option) || (isinf(option->min) && isinf(option->max)))
        return;
    if (isinf(option->max) || isinf(option->min)) {
        text_add(text, isinf(option->max) ? " at least " : " at most ");
        add_bound(option, isinf(option->max) ? option->min : option->max, text);
        return;
    }
    text_add(text, from);
    add_bound(option, option->min, text);
    text_add(text, " to ");
    add_bound(option, option->max, text);
}

/* ---- values ---- */

/* The strings between the '|' of `choices`: pointers into *storage; release both with free(). */
static enum status choices_split(const char *choices, char **storage, const char ***list, size_t *count)
{
    enum status status = STATUS_OK;
    void *pointers = NULL;
    *count = 1;
    for (const char *c = choices; *c != '\0'; c++)
        *count += *c == '|';
    TRY(memory_string(storage, choices));
    TRY_TO(failed, memory_zeroed(&pointers, *count, sizeof(const char *)));
    *list = pointers;
    char *word = *storage;
    for (size_t i = 0; i < *count; i++) {
        (*list)[i] = word;
        char *bar = strchr(word, '|');
        if (bar != NULL) {
            *bar = '\0';
            word = bar + 1;
        }
    }
    return STATUS_OK;
failed:
    free(*storage);
    *storage = NULL;
    return status;
}

static bool choice_known(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *word = choices;; word++) {
        size_t word_length = strcspn(word, "|");
        if (word_length == length && memcmp(word, text, length) == 0)
            return length != 0;
        word += word_length;
        if (*word == '\0')
            return false;
    }
}

static const char *choice_nearest(const char *choices, const char *text, struct text *nearest)
{
    char *storage = NULL;
    const char **list = NULL;
    size_t count = 0;
    if (choices_split(choices, &storage, &list, &count) < 0)
        return NULL;
    const char *found = nearest_spelling(text, list, count);
    if (found != NULL)
        text_add(nearest, found);
    free(list);
    free(storage);
    return found != NULL ? text_string(nearest) : NULL;
}

static bool accept_int(const struct option *option, const char *text, struct text *canonical)
{
    long long value;
    if (parse_int(text, &value) < 0 || !in_bounds(option, (double)value))
        return false;
    text_addf(canonical, "%lld", value);
    return true;
}

static bool accept_size(const struct option *option, const char *text, struct text *canonical)
{
    size_t value;
    if (parse_size(text, &value) < 0 || !in_bounds(option, (double)value))
        return false;
    add_size(canonical, value);
    return true;
}

static bool accept_real(const struct option *option, const char *text, struct text *canonical)
{
    double value;
    if (parse_real(text, &value) < 0 || !in_bounds(option, value))
        return false;
    text_add_real(canonical, value, 17);
    return true;
}

/* Whether `text` is a value of this option; its one canonical spelling goes to `canonical`. */
static bool value_accept(const struct option *option, const char *text, struct text *canonical)
{
    switch (option->type) {
    case OPTION_INT:
        return accept_int(option, text, canonical);
    case OPTION_SIZE:
        return accept_size(option, text, canonical);
    case OPTION_REAL:
    case OPTION_SECONDS:
        return accept_real(option, text, canonical);
    case OPTION_FLAG:
        text_add(canonical, text);
        return strcmp(text, "0") == 0 || strcmp(text, "1") == 0;
    case OPTION_CHOICE:
        text_add(canonical, text);
        return choice_known(option->choices, text);
    case OPTION_STRING:
        text_add(canonical, text);
        return true;
    case OPTION_SPEC:
    case OPTION_FILE:
        text_add(canonical, text);
        return text[0] != '\0';
    }
    return false;
}

static void add_choices(const char *choices, struct text *text)
{
    for (const char *c = choices; *c != '\0'; c++) {
        if (*c == '|')
            text_add(text, ", ");
        else
            text_add_bytes(text, c, 1);
    }
}

/* What an option takes, in words, for messages. */
static void add_taken(const struct option *option, struct text *text)
{
    switch (option->type) {
    case OPTION_FLAG:
        text_add(text, "0 or 1");
        return;
    case OPTION_INT:
        text_add(text, "a whole number");
        break;
    case OPTION_SIZE:
        text_add(text, "a size (bytes with an optional K, M or G)");
        break;
    case OPTION_REAL:
        text_add(text, "a number");
        break;
    case OPTION_SECONDS:
        text_add(text, "a number of seconds");
        break;
    case OPTION_CHOICE:
        text_add(text, "one of ");
        add_choices(option->choices, text);
        return;
    case OPTION_STRING:
        text_add(text, "any text");
        return;
    case OPTION_SPEC:
        text_add(text, "an algorithm spec, such as ring:chunks=4");
        return;
    case OPTION_FILE:
        text_add(text, "the path of a file");
        return;
    }
    add_bounds(option, " from ", text);
    if (option->unit != NULL && option->type == OPTION_INT)
        text_addf(text, " (%s)", option->unit);
}

static enum status value_error(const struct option *option, const char *dashes, const char *value)
{
    struct text taken = {0}, nearest = {0};
    add_taken(option, &taken);
    const char *meant = option->type == OPTION_CHOICE ? choice_nearest(option->choices, value, &nearest) : NULL;
    enum status status = STATUS_USAGE;
    if (meant != NULL)
        (void)fail(status, "%s%s=%s: did you mean %s? it takes %s", dashes, option->key, value, meant,
                   text_string(&taken));
    else
        (void)fail(status, "%s%s=%s: it takes %s", dashes, option->key, value, text_string(&taken));
    text_release(&nearest);
    text_release(&taken);
    return status;
}

/* ---- storing ---- */

enum status option_values_init(struct option_values *values, const struct option *table)
{
    *values = (struct option_values){.table = table, .count = table_count(table)};
    void *slots = NULL;
    enum status status = memory_zeroed(&slots, values->count, sizeof values->text[0]);
    values->text = slots;
    return status;
}

enum status option_values_copy(struct option_values *to, const struct option_values *from)
{
    enum status status = STATUS_OK;
    TRY(option_values_init(to, from->table));
    for (size_t i = 0; i < from->count; i++)
        TRY_TO(failed, memory_string(&to->text[i], from->text[i]));
    return STATUS_OK;
failed:
    option_values_release(to);
    return status;
}

void option_values_release(struct option_values *values)
{
    for (size_t i = 0; values->text != NULL && i < values->count; i++)
        free(values->text[i]);
    free(values->text);
    *values = (struct option_values){0};
}

static enum status value_store(struct option_values *values, const struct option *option, const char *dashes,
                               const char *value)
{
    char **slot = &values->text[option - values->table];
    struct text stored = {0};
    if (option->repeats && *slot != NULL)
        text_addf(&stored, "%s ", *slot);
    enum status status =
        value_accept(option, value, &stored) ? text_check(&stored) : value_error(option, dashes, value);
    if (status < 0) {
        text_release(&stored);
        return status;
    }
    if (stored.data == NULL) /* an empty string is a value, too */
        text_add(&stored, "");
    if (stored.data == NULL)
        return text_check(&stored);
    free(*slot);
    *slot = stored.data;
    return STATUS_OK;
}

/* The nearest key of the table; `extra` is one more candidate, or NULL. */
static const char *key_nearest(const struct option *table, const char *key, const char *extra)
{
    void *memory = NULL;
    size_t count = table_count(table);
    if (memory_zeroed(&memory, count + 1, sizeof(const char *)) < 0)
        return NULL;
    const char **keys = memory;
    for (size_t i = 0; i < count; i++)
        keys[i] = table[i].key;
    if (extra != NULL)
        keys[count++] = extra;
    const char *nearest = nearest_spelling(key, keys, count);
    free(memory);
    return nearest;
}

static enum status key_error(const struct option *table, const char *key)
{
    const char *nearest = key_nearest(table, key, NULL);
    if (nearest != NULL)
        return fail(STATUS_USAGE, "unknown option %s: did you mean %s?", key, nearest);
    if (table[0].key == NULL)
        return fail(STATUS_USAGE, "unknown option %s: none is taken here", key);
    struct text known = {0};
    for (const struct option *option = table; option->key != NULL; option++)
        text_addf(&known, "%s%s", known.length != 0 ? ", " : "", option->key);
    enum status status = fail(STATUS_USAGE, "unknown option %s: known are %s", key, text_string(&known));
    text_release(&known);
    return status;
}

enum status option_set(struct option_values *values, const char *key, const char *text)
{
    const struct option *option = table_find(values->table, key, strlen(key));
    if (option == NULL)
        return key_error(values->table, key);
    return value_store(values, option, "", text);
}

/* ---- reading ---- */

static const struct option *known(const struct option_values *values, const char *key)
{
    const struct option *option = table_find(values->table, key, strlen(key));
    assert(option != NULL && "the key is not in the table");
    return option;
}

bool option_given(const struct option_values *values, const char *key)
{
    const struct option *option = known(values, key);
    return option != NULL && values->text[option - values->table] != NULL;
}

void option_unset(struct option_values *values, const char *key)
{
    const struct option *option = known(values, key);
    if (option == NULL)
        return;
    free(values->text[option - values->table]);
    values->text[option - values->table] = NULL;
}

const char *option_text(const struct option_values *values, const char *key)
{
    const struct option *option = known(values, key);
    if (option == NULL)
        return NULL;
    const char *text = values->text[option - values->table];
    return text != NULL ? text : option->default_text;
}

/* The text of an option whose type is one of two; NULL, without asserts, for any other. */
static const char *text_of(const struct option_values *values, const char *key, enum option_type type,
                           enum option_type other)
{
    const struct option *option = known(values, key);
    bool right = option != NULL && (option->type == type || option->type == other);
    assert(right && "the option is of another type");
    return right ? option_text(values, key) : NULL;
}

long long option_int(const struct option_values *values, const char *key)
{
    const char *text = text_of(values, key, OPTION_INT, OPTION_INT);
    long long value = 0;
    return text != NULL && parse_int(text, &value) == STATUS_OK ? value : 0;
}

size_t option_size(const struct option_values *values, const char *key)
{
    const char *text = text_of(values, key, OPTION_SIZE, OPTION_SIZE);
    size_t value = 0;
    return text != NULL && parse_size(text, &value) == STATUS_OK ? value : 0;
}

double option_real(const struct option_values *values, const char *key)
{
    const char *text = text_of(values, key, OPTION_REAL, OPTION_SECONDS);
    double value = 0;
    return text != NULL && parse_real(text, &value) == STATUS_OK ? value : 0;
}

bool option_flag(const struct option_values *values, const char *key)
{
    const char *text = text_of(values, key, OPTION_FLAG, OPTION_FLAG);
    return text != NULL && strcmp(text, "1") == 0;
}

/* ---- command lines ---- */

struct command_line {
    struct option_values *values;
    int argc, next; /* argv[next] is read next */
    char **argv;
    bool help_taken; /* --help is one of the options */
};

static enum status dashed_key_error(const struct command_line *line, const char *dashes, const char *name,
                                    size_t length)
{
    char *key = NULL;
    TRY(memory_string(&key, name));
    key[length] = '\0';
    const char *nearest = key_nearest(line->values->table, key, line->help_taken ? "help" : NULL);
    enum status status = STATUS_USAGE;
    if (nearest != NULL)
        (void)fail(status, "unknown option %s%s: did you mean --%s?", dashes, key, nearest);
    else
        (void)fail(status, "unknown option %s%s: --help lists the options", dashes, key);
    free(key);
    return status;
}

/* "--x" or "-n" where n is a letter of the table; "-3" and "-" are values. */
static bool looks_like_option(const struct command_line *line, const char *word)
{
    if (word[0] != '-' || word[1] == '\0')
        return false;
    return word[1] == '-' || table_find_letter(line->values->table, word[1]) != NULL;
}

/* Store the value in the next word of the command line. */
static enum status store_next(struct command_line *line, const struct option *option)
{
    if (line->next >= line->argc || looks_like_option(line, line->argv[line->next])) {
        struct text taken = {0};
        add_taken(option, &taken);
        enum status status = fail(STATUS_USAGE, "--%s needs a value: it takes %s", option->key, text_string(&taken));
        text_release(&taken);
        return status;
    }
    return value_store(line->values, option, "--", line->argv[line->next++]);
}

static enum status parse_long(struct command_line *line, const char *name)
{
    size_t length = strcspn(name, "=");
    const struct option *option = table_find(line->values->table, name, length);
    if (option == NULL)
        return dashed_key_error(line, "--", name, length);
    if (name[length] == '=')
        return value_store(line->values, option, "--", name + length + 1);
    if (option->type == OPTION_FLAG)
        return value_store(line->values, option, "--", "1");
    if (option->bare != NULL)
        return value_store(line->values, option, "--", option->bare);
    return store_next(line, option);
}

static enum status parse_letter(struct command_line *line, const char *name)
{
    const struct option *option = table_find_letter(line->values->table, name[0]);
    if (option == NULL)
        return dashed_key_error(line, "-", name, strcspn(name, "="));
    if (option->type == OPTION_FLAG && name[1] != '\0')
        return fail(STATUS_USAGE, "-%s: -%c takes no value", name, option->letter);
    if (option->type == OPTION_FLAG)
        return value_store(line->values, option, "--", "1");
    if (name[1] != '\0')
        return value_store(line->values, option, "--", name + 1);
    return store_next(line, option);
}

static bool wants_help(const struct option *table, int argc, char **argv)
{
    if (table_find(table, "help", strlen("help")) != NULL)
        return false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        bool letter = strcmp(argv[i], "-h") == 0 && table_find_letter(table, 'h') == NULL;
        if (letter || strcmp(argv[i], "--help") == 0)
            return true;
    }
    return false;
}

static enum status parse_words(struct command_line *line, char **rest, size_t *rest_count)
{
    bool ended = false;
    while (line->next < line->argc) {
        char *word = line->argv[line->next++];
        if (!ended && strcmp(word, "--") == 0)
            ended = true;
        else if (!ended && word[0] == '-' && word[1] == '-')
            TRY(parse_long(line, word + 2));
        else if (!ended && word[0] == '-' && word[1] != '\0')
            TRY(parse_letter(line, word + 1));
        else if (rest == NULL)
            return fail(STATUS_USAGE, "unexpected word \"%s\": options begin with --", word);
        else
            rest[(*rest_count)++] = word;
    }
    return STATUS_OK;
}

enum status option_parse(struct option_values *values, int argc, char **argv, bool *help_wanted, char ***rest,
                         size_t *rest_count)
{
    void *words = NULL;
    size_t word_count = 0;
    if (rest != NULL) {
        *rest = NULL;
        *rest_count = 0;
        TRY(memory_zeroed(&words, argc > 0 ? (size_t)argc : 0, sizeof(char *)));
    }
    struct command_line line = {
        .values = values, .argc = argc, .next = 1, .argv = argv, .help_taken = help_wanted != NULL};
    enum status status = STATUS_OK;
    /* Somebody who asks for help gets it, whatever else is wrong with the line. */
    bool help = help_wanted != NULL && wants_help(values->table, argc, argv);
    if (!help)
        status = parse_words(&line, words, &word_count);
    if (help_wanted != NULL)
        *help_wanted = help;
    if (status < 0 || rest == NULL) {
        free(words);
        return status;
    }
    *rest = words;
    *rest_count = word_count;
    return STATUS_OK;
}

/* ---- help and description ---- */

static const char *value_word(const struct option *option)
{
    switch (option->type) {
    case OPTION_FLAG:
        return "";
    case OPTION_INT:
        return "INT";
    case OPTION_SIZE:
        return "SIZE";
    case OPTION_REAL:
        return "REAL";
    case OPTION_SECONDS:
        return "SECONDS";
    case OPTION_CHOICE:
        return option->choices;
    case OPTION_STRING:
        return "TEXT";
    case OPTION_SPEC:
        return "SPEC";
    case OPTION_FILE:
        return "FILE";
    }
    return "";
}

/* "  -n, --workers=INT" */
static void add_help_left(const struct option *option, struct text *text)
{
    text_add(text, "  ");
    if (option->letter != '\0')
        text_addf(text, "-%c, ", option->letter);
    text_addf(text, "--%s", option->key);
    if (option->bare != NULL)
        text_addf(text, "[=%s]", value_word(option));
    else if (option->type != OPTION_FLAG)
        text_addf(text, "=%s", value_word(option));
}

static size_t help_column(const struct option *table)
{
    size_t column = 0;
    for (const struct option *option = table; option->key != NULL; option++) {
        struct text left = {0};
        add_help_left(option, &left);
        if (left.length > column && left.length <= HELP_COLUMN)
            column = left.length;
        text_release(&left);
    }
    return column + 2;
}

/* " (default 4, 1 to 64, workers)", or nothing where there is nothing to say. */
static void add_help_facts(const struct option *option, struct text *text)
{
    struct text facts = {0};
    if (option->default_text != NULL && option->default_text[0] != '\0' && option->type != OPTION_FLAG)
        text_addf(&facts, ", default %s", option->default_text);
    if (has_bounds(option) && !(isinf(option->min) && isinf(option->max))) {
        text_add(&facts, ",");
        add_bounds(option, " ", &facts);
    }
    if (option->unit != NULL)
        text_addf(&facts, ", %s", option->unit);
    if (option->repeats)
        text_add(&facts, ", may be repeated");
    if (facts.length > 2)
        text_addf(text, " (%s)", text_string(&facts) + 2);
    text_release(&facts);
}

void option_help(const struct option *table, struct text *text)
{
    size_t column = help_column(table);
    for (const struct option *option = table; option->key != NULL; option++) {
        struct text left = {0};
        add_help_left(option, &left);
        size_t spaces = left.length + 2 < column ? column - left.length : 2;
        text_addf(text, "%s%*s%s", text_string(&left), (int)spaces, "", option->help != NULL ? option->help : "");
        add_help_facts(option, text);
        text_add(text, "\n");
        text_release(&left);
    }
}

/* Whether the value given for entry `i` says the same as leaving it out. */
static bool is_default(const struct option_values *values, size_t i)
{
    const struct option *option = &values->table[i];
    const char *standing = option->default_text;
    if (standing == NULL && option->type == OPTION_FLAG)
        standing = "0";
    struct text canonical = {0};
    bool same = standing != NULL && value_accept(option, standing, &canonical) &&
                strcmp(text_string(&canonical), values->text[i]) == 0;
    text_release(&canonical);
    return same;
}

/* The entry after `previous` in the order of keys whose value is given and is not the default; count if none. */
static size_t next_described(const struct option_values *values, const char *previous)
{
    size_t next = values->count;
    for (size_t i = 0; i < values->count; i++) {
        const char *key = values->table[i].key;
        if (values->text[i] == NULL || (previous != NULL && strcmp(key, previous) <= 0))
            continue;
        if ((next == values->count || strcmp(key, values->table[next].key) < 0) && !is_default(values, i))
            next = i;
    }
    return next;
}

void option_describe(const struct option_values *values, struct text *text)
{
    const char *space = "";
    for (size_t i = next_described(values, NULL); i < values->count; i = next_described(values, values->table[i].key)) {
        text_addf(text, "%s%s=%s", space, values->table[i].key, values->text[i]);
        space = " ";
    }
}

/* ---- checking a table ---- */

enum status option_table_check(const struct option *table)
{
    for (const struct option *option = table; option->key != NULL; option++) {
        if (table_find(table, option->key, strlen(option->key)) != option)
            return fail(STATUS_INTERNAL, "option %s: the key stands twice", option->key);
        if (option->letter != '\0' && table_find_letter(table, option->letter) != option)
            return fail(STATUS_INTERNAL, "option %s: the letter %c stands twice", option->key, option->letter);
        if (option->type == OPTION_CHOICE && option->choices == NULL)
            return fail(STATUS_INTERNAL, "option %s: a choice without choices", option->key);
        struct text canonical = {0};
        bool accepted = option->default_text == NULL || value_accept(option, option->default_text, &canonical);
        text_release(&canonical);
        if (!accepted)
            return fail(STATUS_INTERNAL, "option %s: its own default %s is no value of it", option->key,
                        option->default_text);
    }
    return STATUS_OK;
}
