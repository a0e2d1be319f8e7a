/* spec.c - reading and writing specs: NAME[:key=value,...], nested ones in square brackets, lists. */
#include "algos/spec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define MAX_NESTING 16
#define BLANKS " \t\r\n"

static const struct option no_options[] = {{.key = NULL}};

static const struct option *table_of(const struct spec *spec)
{
    const struct option *table = spec->kind == SPEC_SCHEDULE ? spec->algorithm->options : spec->strategy->options;
    return table != NULL ? table : no_options;
}

static const char *name_of(const struct spec *spec)
{
    return spec->kind == SPEC_SCHEDULE ? spec->algorithm->name : spec->strategy->name;
}

/* ---- unknown names ---- */

/* Every name, and with `aliases` every alias, each followed by `separator`. */
static void add_known(struct text *text, bool strategies, bool aliases, char separator)
{
    size_t count;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++)
        text_addf(text, "%s%c%s%s", algorithms[i]->name, separator, aliases ? algorithms[i]->aliases : "",
                  aliases ? " " : "");
    const struct strategy *const *all = catalogue_strategies(&count);
    for (size_t i = 0; strategies && i < count; i++)
        text_addf(text, "%s%c%s%s", all[i]->name, separator, aliases ? all[i]->aliases : "", aliases ? " " : "");
}

/* The known name or alias nearest to `name`, appended to *nearest; nothing when none is near or memory is short. */
static void add_nearest(const char *name, bool strategies, struct text *nearest)
{
    struct text words = {0};
    add_known(&words, strategies, true, ' ');
    void *memory = NULL;
    if (words.failed || memory_zeroed(&memory, words.length, sizeof(const char *)) < 0)
        goto out;
    const char **candidates = memory;
    size_t count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(words.data, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        candidates[count++] = word;
    const char *found = nearest_spelling(name, candidates, count);
    if (found != NULL)
        text_add(nearest, found);
out:
    free(memory);
    text_release(&words);
}

static enum status unknown_name(const char *name, bool strategies)
{
    struct text nearest = {0}, known = {0};
    enum status status;
    add_nearest(name, strategies, &nearest);
    add_known(&known, strategies, false, ' ');
    if (nearest.length > 0)
        status = fail(STATUS_USAGE, "unknown algorithm %s: did you mean %s?", name, text_string(&nearest));
    else
        status = fail(STATUS_USAGE, "unknown algorithm %s: known are %s(see chorale list)", name, text_string(&known));
    text_release(&nearest);
    text_release(&known);
    return status;
}

/* ---- one spec ---- */

static enum status parse_at(const char *text, int depth, struct spec *spec);

/* The text of a nested spec: without its brackets, checked, in canonical spelling. `value` is cut in place. */
static enum status nested_canonical(const char *key, char *value, int depth, struct text *canonical)
{
    size_t length = strlen(value);
    if (value[0] == '[') {
        if (value[length - 1] != ']')
            return fail(STATUS_USAGE, "%s=%s: something follows the closing bracket", key, value);
        value[length - 1] = '\0';
        value++;
    } else if (strchr(value, ':') != NULL) {
        return fail(STATUS_USAGE, "%s=%s: a spec with options of its own stands in square brackets: %s=[%s]", key,
                    value, key, value);
    }
    struct spec inner = {0};
    enum status status = parse_at(value, depth + 1, &inner);
    if (status < 0)
        return fail_context(status, "%s", key);
    spec_canonical(&inner, canonical);
    spec_release(&inner);
    return text_check(canonical);
}

static const struct option *entry_of(const struct option *table, const char *key)
{
    while (table->key != NULL && strcmp(table->key, key) != 0)
        table++;
    return table->key != NULL ? table : NULL;
}

static enum status set_option(struct spec *spec, const char *key, char *value, int depth)
{
    const struct option *table = table_of(spec), *entry = entry_of(table, key);
    if (entry == NULL && table[0].key == NULL)
        return fail(STATUS_USAGE, "option %s: %s takes no options", key, name_of(spec));
    if (entry != NULL && spec->options.text[entry - table] != NULL)
        return fail(STATUS_USAGE, "%s is given twice", key);
    if (entry == NULL || entry->type != OPTION_SPEC)
        return option_set(&spec->options, key, value);
    if (value[0] == '\0')
        return fail(STATUS_USAGE, "%s is empty: it takes a schedule, such as ring", key);
    struct text canonical = {0};
    enum status status = nested_canonical(key, value, depth, &canonical);
    if (status >= 0)
        status = option_set(&spec->options, key, text_string(&canonical));
    text_release(&canonical);
    return status;
}

/* Ends the item at *rest at its comma of depth 0 and moves *rest past it (NULL at the end). */
static enum status take_item(char **rest, char **item)
{
    int depth = 0;
    char *c = *rest;
    *item = c;
    for (; *c != '\0' && (depth > 0 || *c != ','); c++) {
        depth += (*c == '[') - (*c == ']');
        if (depth < 0)
            return fail(STATUS_USAGE, "%s: a closing bracket without an opening one", *item);
    }
    if (depth > 0)
        return fail(STATUS_USAGE, "%s: a bracket is not closed", *item);
    *rest = *c == ',' ? c + 1 : NULL;
    *c = '\0';
    return STATUS_OK;
}

static enum status parse_options(char *rest, int depth, struct spec *spec)
{
    while (rest != NULL) {
        char *item;
        TRY(take_item(&rest, &item));
        char *equals = strchr(item, '=');
        if (equals == NULL || equals == item)
            return fail(STATUS_USAGE, "\"%s\" is no option: options are written key=value", item);
        *equals = '\0';
        TRY(set_option(spec, item, equals + 1, depth));
    }
    return STATUS_OK;
}

/* Kind and algorithm or strategy of `name`; only schedules may be nested. */
static enum status find_name(const char *name, int depth, struct spec *spec)
{
    *spec = (struct spec){.kind = SPEC_SCHEDULE, .algorithm = algorithm_find(name)};
    if (spec->algorithm != NULL)
        return STATUS_OK;
    *spec = (struct spec){.kind = SPEC_STRATEGY, .strategy = strategy_find(name)};
    if (spec->strategy == NULL)
        return unknown_name(name, depth == 0);
    if (depth > 0)
        return fail(STATUS_USAGE, "%s is a strategy: only a schedule, such as ring, can stand inside another spec",
                    name);
    return STATUS_OK;
}

static enum status parse_buffer(char *buffer, int depth, struct spec *spec)
{
    char *colon = strchr(buffer, ':');
    if (colon != NULL)
        *colon = '\0';
    if (buffer[0] == '\0')
        return fail(STATUS_USAGE, "an empty spec: name an algorithm, such as ring");
    if (strpbrk(buffer, ",=[]" BLANKS) != NULL)
        return fail(STATUS_USAGE, "%s: a spec is NAME or NAME:key=value,key=value with nested ones in [brackets]",
                    buffer);
    TRY(find_name(buffer, depth, spec));
    enum status status = option_values_init(&spec->options, table_of(spec));
    if (status >= 0 && colon != NULL)
        status = parse_options(colon + 1, depth, spec);
    if (status < 0) {
        status = fail_context(status, "%s", name_of(spec));
        spec_release(spec);
    }
    return status;
}

static enum status parse_at(const char *text, int depth, struct spec *spec)
{
    *spec = (struct spec){0};
    if (depth > MAX_NESTING)
        return fail(STATUS_USAGE, "specs are nested more than %d deep", MAX_NESTING);
    char *buffer = NULL;
    TRY(memory_string(&buffer, text));
    enum status status = parse_buffer(buffer, depth, spec);
    free(buffer);
    if (status < 0)
        *spec = (struct spec){0};
    return status;
}

enum status spec_parse(const char *text, struct spec *spec)
{
    return parse_at(text, 0, spec);
}

void spec_release(struct spec *spec)
{
    if (spec->options.text != NULL)
        option_values_release(&spec->options);
    *spec = (struct spec){0};
}

enum status spec_copy(const struct spec *from, struct spec *to)
{
    *to = *from;
    enum status status = option_values_copy(&to->options, &from->options);
    if (status < 0)
        *to = (struct spec){0};
    return status;
}

/* ---- canonical spelling ---- */

/* Whether option i was given and says something else than the default. */
static bool is_told(const struct spec *spec, size_t i)
{
    const char *text = spec->options.text[i], *standard = spec->options.table[i].default_text;
    return text != NULL && (standard == NULL || strcmp(text, standard) != 0);
}

/* The told option whose key comes next after `previous` (NULL: the first); NULL when there is none. */
static const struct option *next_told(const struct spec *spec, const char *previous)
{
    const struct option *next = NULL;
    for (size_t i = 0; i < spec->options.count; i++) {
        const struct option *entry = &spec->options.table[i];
        assert(entry->key != NULL);
        const bool after = previous == NULL || strcmp(entry->key, previous) > 0;
        if (is_told(spec, i) && after && (next == NULL || strcmp(entry->key, next->key) < 0))
            next = entry;
    }
    return next;
}

void spec_canonical(const struct spec *spec, struct text *text)
{
    text_add(text, name_of(spec));
    char separator = ':';
    for (const struct option *entry = next_told(spec, NULL); entry != NULL; entry = next_told(spec, entry->key)) {
        const char *value = spec->options.text[entry - spec->options.table];
        const bool bracketed = entry->type == OPTION_SPEC && strchr(value, ':') != NULL;
        text_addf(text, bracketed ? "%c%s=[%s]" : "%c%s=%s", separator, entry->key, value);
        separator = ',';
    }
}

/* ---- what a spec is ---- */

static bool inner_exact(const struct spec *spec)
{
    for (size_t i = 0; i < spec->options.count; i++) {
        if (spec->options.table[i].type != OPTION_SPEC)
            continue;
        struct spec inner = {0};
        const char *text = option_text(&spec->options, spec->options.table[i].key);
        const bool exact = text == NULL || (parse_at(text, 1, &inner) == STATUS_OK && spec_is_exact(&inner));
        spec_release(&inner);
        if (!exact)
            return false;
    }
    return true;
}

bool spec_is_exact(const struct spec *spec)
{
    const bool itself =
        spec->kind == SPEC_SCHEDULE ? (spec->algorithm->traits & TRAIT_INEXACT) == 0 : spec->strategy->exact;
    return itself && inner_exact(spec);
}

enum status spec_shape(const struct spec *spec, const struct layout *layout, uint64_t step, size_t count,
                       struct shape **shape)
{
    if (spec->kind == SPEC_STRATEGY)
        return spec->strategy->shape(&spec->options, layout, step, count, shape);
    const struct shape_request request = {.layout = layout, .options = &spec->options, .step = step, .count = count};
    return shape_create(spec->algorithm, &request, shape);
}

enum status spec_period(const struct spec *spec, const struct layout *layout, uint64_t *period)
{
    if (spec->kind == SPEC_STRATEGY)
        return spec->strategy->period(&spec->options, layout, period);
    *period = 1;
    return STATUS_OK;
}

enum status spec_as_strategy(const struct spec *spec, struct spec *strategy)
{
    if (spec->kind == SPEC_STRATEGY)
        return spec_copy(spec, strategy);
    struct text inner = {0};
    enum status status = spec_parse("synchronous", strategy);
    if (status < 0)
        return status;
    spec_canonical(spec, &inner);
    status = text_check(&inner);
    if (status >= 0)
        status = option_set(&strategy->options, "inner", text_string(&inner));
    if (status < 0)
        spec_release(strategy);
    text_release(&inner);
    return status;
}

enum status spec_plan(const struct spec *spec, uint64_t step, struct step_plan *plan)
{
    if (spec->kind == SPEC_STRATEGY)
        return spec->strategy->plan(&spec->options, step, plan);
    struct spec strategy;
    TRY(spec_as_strategy(spec, &strategy));
    enum status status = spec_plan(&strategy, step, plan);
    spec_release(&strategy);
    return status;
}

const struct graph *spec_graph(const struct spec *spec)
{
    if (spec->kind != SPEC_STRATEGY || entry_of(table_of(spec), "graph") == NULL)
        return NULL;
    return graph_find(option_text(&spec->options, "graph"));
}

/* ---- lists ---- */

struct list {
    void *specs;
    size_t count, capacity;
};

static enum status list_append(struct list *list, const char *text)
{
    TRY(memory_grow(&list->specs, &list->capacity, list->count + 1, sizeof(struct spec)));
    TRY(spec_parse(text, (struct spec *)list->specs + list->count));
    list->count++;
    return STATUS_OK;
}

static enum status list_append_all(struct list *list)
{
    size_t count;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++)
        if ((algorithms[i]->traits & TRAIT_INEXACT) == 0)
            TRY(list_append(list, algorithms[i]->name));
    return STATUS_OK;
}

/* Whether the comma at *c is followed by another option of the same spec: a token with '=' before any ':'. */
static bool option_follows(const char *c)
{
    return c[1 + strcspn(c + 1, "=:,[" BLANKS)] == '=';
}

/* Bytes of the spec that starts at `text`, up to a blank, or a comma that ends it, at depth 0. */
static size_t spec_length(const char *text)
{
    int depth = 0;
    const char *c = text;
    for (; *c != '\0'; c++) {
        depth += (*c == '[') - (*c == ']');
        if (depth <= 0 && (strchr(BLANKS, *c) != NULL || (*c == ',' && !option_follows(c))))
            break;
    }
    return (size_t)(c - text);
}

static enum status list_parse(char *text, struct list *list)
{
    bool wanted = true; /* at the start and after a comma */
    for (char *c = text + strspn(text, BLANKS); *c != '\0' || wanted; c += strspn(c, BLANKS)) {
        const size_t length = spec_length(c);
        const char end = c[length];
        if (length == 0)
            return fail(STATUS_USAGE, "a list of specs has an empty place: name an algorithm there, such as ring");
        c[length] = '\0';
        TRY(strcmp(c, "all") == 0 ? list_append_all(list) : list_append(list, c));
        c += length + (end != '\0');
        wanted = end == ',';
    }
    return STATUS_OK;
}

enum status spec_list_parse(const char *text, struct spec **specs, size_t *count)
{
    struct list list = {0};
    char *buffer = NULL;
    TRY(memory_string(&buffer, text));
    enum status status = list_parse(buffer, &list);
    free(buffer);
    if (status < 0) {
        spec_list_release(list.specs, list.count);
        return status;
    }
    *specs = list.specs;
    *count = list.count;
    return STATUS_OK;
}

void spec_list_release(struct spec *specs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        spec_release(&specs[i]);
    free(specs);
}
