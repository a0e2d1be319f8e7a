/* spec.c - reading and writing specs: NAME[:key=value,...], nested ones in square brackets, lists. */
#include "algos/spec.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"

#define MAX_NESTING 16
#define BLANKS " \t\r\n"

const struct option spec_common[] = {
    {.key = "deterministic",
     .type = OPTION_FLAG,
     .default_text = "0",
     .help = "1: an element's bits depend only on its values, not on its place or the vector's size"},
    {.key = NULL},
};

static const char *name_of(const struct spec *spec)
{
    if (spec->kind == SPEC_SCHEDULE)
        return spec->algorithm->name;
    return spec->kind == SPEC_STRATEGY ? spec->strategy->name : spec->external->name;
}

bool algorithm_in_all(const struct algorithm *algorithm)
{
    return (algorithm->traits & (TRAIT_INEXACT | TRAIT_NEEDS_FILE)) == 0;
}

/* ---- unknown names ---- */

static void add_word(struct text *text, const char *word)
{
    if (word[0] != '\0')
        text_addf(text, "%s ", word);
}

/* Names of algorithms and, with `outermost`, of strategies: each followed by a blank. */
static void add_names(struct text *text, bool outermost)
{
    size_t count;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++)
        add_word(text, algorithms[i]->name);
    const struct strategy *const *strategies = catalogue_strategies(&count);
    for (size_t i = 0; outermost && i < count; i++)
        add_word(text, strategies[i]->name);
}

/* What else can be written in their place: aliases, presets, externals. */
static void add_other_names(struct text *text, bool outermost)
{
    size_t count;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++)
        add_word(text, algorithms[i]->aliases);
    const struct strategy *const *strategies = catalogue_strategies(&count);
    for (size_t i = 0; outermost && i < count; i++)
        add_word(text, strategies[i]->aliases);
    const struct preset *presets = catalogue_presets(&count);
    for (size_t i = 0; i < count; i++) {
        add_word(text, presets[i].name);
        add_word(text, presets[i].aliases);
    }
    const struct external *externals = catalogue_externals(&count);
    for (size_t i = 0; outermost && i < count; i++)
        add_word(text, externals[i].name);
}

/* What can be written that is nearest to `name`, appended to *nearest; nothing when nothing is near or memory is
 * short. */
static void add_nearest(const char *name, bool outermost, struct text *nearest)
{
    struct text words = {0};
    add_names(&words, outermost);
    add_other_names(&words, outermost);
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

static enum status unknown_name(const char *name, bool outermost)
{
    struct text nearest = {0}, known = {0};
    enum status status;
    add_nearest(name, outermost, &nearest);
    add_names(&known, outermost);
    if (nearest.length > 0)
        status = fail(STATUS_USAGE, "unknown algorithm %s: did you mean %s?", name, text_string(&nearest));
    else
        status = fail(STATUS_USAGE, "unknown algorithm %s: known are %s(see chorale list)", name, text_string(&known));
    text_release(&nearest);
    text_release(&known);
    return status;
}

/* ---- the table of options ---- */

static const struct option no_options[] = {{.key = NULL}};

static size_t table_length(const struct option *table)
{
    size_t length = 0;
    while (table[length].key != NULL)
        length++;
    return length;
}

static enum status make_table(const struct option *own, const struct option *common, struct option **table)
{
    const size_t first = table_length(own), second = table_length(common);
    void *memory = NULL;
    TRY(memory_zeroed(&memory, first + second + 1, sizeof(struct option)));
    *table = memory;
    for (size_t i = 0; i < first; i++)
        (*table)[i] = own[i];
    for (size_t i = 0; i < second; i++)
        (*table)[first + i] = common[i];
    return STATUS_OK;
}

/* Of a spec whose kind is known: its table, and no option given yet. */
static enum status begin_options(struct spec *spec)
{
    const struct option *own = NULL;
    assert(spec->kind != SPEC_SCHEDULE || spec->algorithm != NULL);
    if (spec->kind == SPEC_SCHEDULE)
        own = spec->algorithm->options;
    else if (spec->kind == SPEC_STRATEGY)
        own = spec->strategy->options;
    TRY(make_table(own != NULL ? own : no_options, spec->kind == SPEC_SCHEDULE ? spec_common : no_options,
                   &spec->table));
    return option_values_init(&spec->options, spec->table);
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
    const struct option *entry = entry_of(spec->table, key);
    if (spec->table[0].key == NULL)
        return fail(STATUS_USAGE, "option %s: %s takes no options", key, name_of(spec));
    if (entry != NULL && spec->options.text[entry - spec->table] != NULL)
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

/* Kind and algorithm, strategy or external of `name`; only schedules may be nested. */
static enum status find_name(const char *name, int depth, struct spec *spec)
{
    *spec = (struct spec){.kind = SPEC_SCHEDULE, .algorithm = algorithm_find(name)};
    if (spec->algorithm != NULL)
        return STATUS_OK;
    *spec = (struct spec){.kind = SPEC_STRATEGY, .strategy = strategy_find(name)};
    if (spec->strategy == NULL)
        *spec = (struct spec){.kind = SPEC_EXTERNAL, .external = external_find(name)};
    if (spec->strategy == NULL && spec->external == NULL)
        return unknown_name(name, depth == 0);
    if (depth > 0)
        return fail(STATUS_USAGE, "%s is %s: only a schedule, such as ring, can stand inside another spec", name,
                    spec->kind == SPEC_STRATEGY ? "a strategy" : "an external");
    return STATUS_OK;
}

/* What `name` stands for: the spec of a preset with its options, else *spec without any. */
static enum status find_meaning(const char *name, int depth, struct spec *spec)
{
    const struct preset *preset = preset_find(name);
    if (preset == NULL)
        return find_name(name, depth, spec);
    enum status status = parse_at(preset->spec, depth, spec);
    return status < 0 ? fail_context(status, "%s", name) : status;
}

/* What a preset says stands where the user has said nothing. */
static enum status fill_in(const struct spec *meaning, struct spec *spec)
{
    for (size_t i = 0; i < meaning->options.count; i++)
        if (meaning->options.text[i] != NULL && spec->options.text[i] == NULL)
            TRY(option_set(&spec->options, meaning->table[i].key, meaning->options.text[i]));
    return STATUS_OK;
}

static enum status need_file(const struct spec *spec)
{
    if (spec->kind != SPEC_SCHEDULE || (spec->algorithm->traits & TRAIT_NEEDS_FILE) == 0)
        return STATUS_OK;
    for (size_t i = 0; i < spec->options.count; i++)
        if (spec->table[i].type == OPTION_FILE && spec->options.text[i] == NULL)
            return fail(STATUS_USAGE, "it runs what a file says: give %s:%s=PATH", name_of(spec), spec->table[i].key);
    return STATUS_OK;
}

static enum status finish_spec(char *options, int depth, const struct spec *meaning, struct spec *spec)
{
    TRY(begin_options(spec));
    TRY(parse_options(options, depth, spec));
    TRY(fill_in(meaning, spec));
    return need_file(spec);
}

/* ChainerMN's users write two_dimensional. */
static void hyphenate(char *name)
{
    for (; *name != '\0'; name++)
        if (*name == '_')
            *name = '-';
}

static enum status parse_buffer(char *buffer, int depth, struct spec *spec)
{
    char *colon = strchr(buffer, ':');
    struct spec meaning = {0};
    if (colon != NULL)
        *colon = '\0';
    if (buffer[0] == '\0')
        return fail(STATUS_USAGE, "an empty spec: name an algorithm, such as ring");
    if (strpbrk(buffer, ",=[]" BLANKS) != NULL)
        return fail(STATUS_USAGE, "%s: a spec is NAME or NAME:key=value,key=value with nested ones in [brackets]",
                    buffer);
    hyphenate(buffer);
    TRY(find_meaning(buffer, depth, &meaning));
    *spec = (struct spec){.kind = meaning.kind,
                          .algorithm = meaning.algorithm,
                          .strategy = meaning.strategy,
                          .external = meaning.external};
    enum status status = finish_spec(colon != NULL ? colon + 1 : NULL, depth, &meaning, spec);
    if (status < 0) {
        status = fail_context(status, "%s", name_of(spec));
        spec_release(spec);
    }
    spec_release(&meaning);
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
    assert(status < 0 || spec->algorithm != NULL || spec->strategy != NULL || spec->external != NULL);
    return status;
}

enum status spec_parse(const char *text, struct spec *spec)
{
    return parse_at(text, 0, spec);
}

static void attachments_release(struct attachments *attachments)
{
    for (size_t i = 0; attachments != NULL && i < attachments->count; i++) {
        free(attachments->file[i].path);
        free(attachments->file[i].text);
    }
    if (attachments != NULL)
        free(attachments->file);
    free(attachments);
}

void spec_release(struct spec *spec)
{
    option_values_release(&spec->options);
    free(spec->table);
    attachments_release(spec->own_attachments);
    *spec = (struct spec){0};
}

/* ---- files ---- */

struct reading {
    struct attachments *read;
    size_t capacity;
    spec_reader *reader;
    void *context;
};

static bool was_read(const struct attachments *read, const char *path)
{
    for (size_t i = 0; i < read->count; i++)
        if (strcmp(read->file[i].path, path) == 0)
            return true;
    return false;
}

/* Takes `text` over, also on failure. */
static enum status attach(struct reading *reading, const char *path, char *text, size_t length)
{
    struct attachment added = {.text = text, .length = length, .hash = hash_bytes(HASH_START, text, length)};
    struct attachments *read = reading->read;
    void *file = read->file;
    enum status status;
    TRY_TO(failed, memory_string(&added.path, path));
    TRY_TO(failed, memory_grow(&file, &reading->capacity, read->count + 1, sizeof added));
    read->file = file;
    read->file[read->count++] = added;
    return STATUS_OK;
failed:
    free(added.path);
    free(text);
    return status;
}

static enum status read_file(struct reading *reading, const char *path)
{
    char *text = NULL;
    size_t length = 0;
    if (was_read(reading->read, path))
        return STATUS_OK;
    TRY(reading->reader(reading->context, path, &text, &length));
    return attach(reading, path, text, length);
}

static enum status read_files(const struct spec *spec, int depth, struct reading *reading)
{
    for (size_t i = 0; i < spec->options.count; i++) {
        const struct option *entry = &spec->table[i];
        const char *value = option_text(&spec->options, entry->key);
        enum status status = STATUS_OK;
        if (value != NULL && entry->type == OPTION_FILE)
            status = read_file(reading, value);
        if (value != NULL && entry->type == OPTION_SPEC) {
            struct spec nested;
            TRY(parse_at(value, depth + 1, &nested));
            status = read_files(&nested, depth + 1, reading);
            spec_release(&nested);
        }
        if (status < 0)
            return fail_context(status, "%s: %s", name_of(spec), entry->key);
    }
    return STATUS_OK;
}

static enum status begin_reading(struct reading *reading)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct attachments)));
    reading->read = memory;
    return STATUS_OK;
}

/* The spec has what was read, unless it is nothing. */
static void end_reading(struct reading *reading, struct spec *spec)
{
    attachments_release(spec->own_attachments);
    if (reading->read->count == 0) {
        attachments_release(reading->read);
        reading->read = NULL;
    }
    spec->own_attachments = reading->read;
    spec->attachments = reading->read;
}

enum status spec_read_files(struct spec *spec, spec_reader *reader, void *context)
{
    struct reading reading = {.reader = reader, .context = context};
    TRY(begin_reading(&reading));
    enum status status = read_files(spec, 0, &reading);
    if (status < 0)
        reading.read->count = 0;
    end_reading(&reading, spec);
    return status;
}

static enum status copy_attachments(const struct attachments *from, struct spec *to)
{
    struct reading reading = {.capacity = 0};
    enum status status = STATUS_OK;
    if (from == NULL)
        return STATUS_OK;
    TRY(begin_reading(&reading));
    for (size_t i = 0; i < from->count && status >= 0; i++) {
        void *text = NULL;
        status = memory_zeroed(&text, from->file[i].length + 1, 1);
        if (status < 0)
            break;
        memcpy(text, from->file[i].text, from->file[i].length);
        status = attach(&reading, from->file[i].path, text, from->file[i].length);
    }
    end_reading(&reading, to);
    return status;
}

enum status spec_copy(const struct spec *from, struct spec *to)
{
    enum status status;
    *to = (struct spec){
        .kind = from->kind, .algorithm = from->algorithm, .strategy = from->strategy, .external = from->external};
    TRY_TO(failed, begin_options(to));
    TRY_TO(failed, fill_in(from, to));
    TRY_TO(failed, copy_attachments(from->attachments, to));
    return STATUS_OK;
failed:
    spec_release(to);
    return status;
}

bool spec_files_hash(const struct spec *spec, uint64_t *hash)
{
    *hash = HASH_START;
    for (size_t i = 0; spec->attachments != NULL && i < spec->attachments->count; i++)
        *hash = hash_bytes(*hash, &spec->attachments->file[i].hash, sizeof(uint64_t));
    return spec->attachments != NULL;
}

void spec_call_name(const struct spec *spec, const struct shape *shape, struct text *text)
{
    struct text decided = {0};
    spec_identity(spec, text);
    if (shape_describe(shape, &decided))
        text_addf(text, " (%s)", text_string(&decided));
    text_release(&decided);
}

void spec_identity(const struct spec *spec, struct text *text)
{
    uint64_t hash;
    spec_canonical(spec, text);
    if (spec_files_hash(spec, &hash))
        text_addf(text, "#%016llx", (unsigned long long)hash);
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

/* Whether `holds` of this spec and of every spec in it. */
static bool all_parts(const struct spec *spec, int depth, bool (*holds)(const struct spec *spec))
{
    if (!holds(spec))
        return false;
    for (size_t i = 0; i < spec->options.count; i++) {
        const char *text = option_text(&spec->options, spec->table[i].key);
        struct spec inner;
        if (spec->table[i].type != OPTION_SPEC || text == NULL)
            continue;
        if (parse_at(text, depth + 1, &inner) < 0)
            return false;
        const bool held = all_parts(&inner, depth + 1, holds);
        spec_release(&inner);
        if (!held)
            return false;
    }
    return true;
}

static bool is_exact_itself(const struct spec *spec)
{
    if (spec->kind == SPEC_SCHEDULE)
        return (spec->algorithm->traits & TRAIT_INEXACT) == 0;
    return spec->kind == SPEC_EXTERNAL || spec->strategy->exact;
}

bool spec_is_exact(const struct spec *spec)
{
    return all_parts(spec, 0, is_exact_itself);
}

static bool is_for_all_sizes(const struct spec *spec)
{
    return spec->kind != SPEC_SCHEDULE || (spec->algorithm->traits & TRAIT_SIZE_DEPENDENT) == 0;
}

bool spec_is_size_dependent(const struct spec *spec)
{
    return !all_parts(spec, 0, is_for_all_sizes);
}

/* ---- deterministic=1 ---- */

static const char *why_not_deterministic(const struct shape *shape)
{
    if ((shape->traits & TRAIT_INEXACT) != 0)
        return "it does not compute the sum";
    if ((shape->traits & TRAIT_SIZE_DEPENDENT) != 0)
        return "it takes different schedules for different sizes, and these add up in different orders";
    if ((shape->traits & TRAIT_SAME_ORDER) == 0)
        return "its chunks are added up in different orders";
    return (shape->traits & TRAIT_EQUAL_BITS) == 0 ? "its workers may end with different bits" : NULL;
}

/* Seconds for 1 MiB by the closed form, on a network of no particular make: for advice only. NAN: it can't do it. */
static double deterministic_cost(const struct algorithm *algorithm, const struct layout *layout, bool halves)
{
    static const struct cost_model model = {.latency_s = 5e-6, .seconds_per_byte = 1e-10, .reduce_s_per_byte = 1e-10};
    const struct shape_request request = {.layout = layout};
    struct shape *shape;
    double seconds = NAN;
    if (!algorithm_in_all(algorithm) || algorithm->cost == NULL || shape_create(algorithm, &request, &shape) < 0)
        return NAN;
    if (why_not_deterministic(shape) == NULL && (!halves || shape_has_halves(shape)))
        seconds = algorithm->cost(shape, &model, 1 << 20);
    shape_destroy(shape);
    return seconds;
}

/* The quickest schedule of the catalogue that can, for this team; one with halves if `halves` and there is one. */
static const char *find_deterministic(const struct layout *layout, bool halves)
{
    size_t count;
    double least = INFINITY;
    const char *found = NULL;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++) {
        const double seconds = deterministic_cost(algorithms[i], layout, halves);
        if (seconds < least) { /* not for NAN */
            least = seconds;
            found = algorithms[i]->name;
        }
    }
    return found == NULL && halves ? find_deterministic(layout, false) : found;
}

static enum status check_deterministic(const struct spec *spec, const struct layout *layout, const struct shape *shape)
{
    const char *reason = why_not_deterministic(shape);
    if (!option_flag(&spec->options, "deterministic") || reason == NULL)
        return STATUS_OK;
    const char *other = find_deterministic(layout, shape_has_halves(shape));
    return fail(STATUS_REFUSED, "%s:deterministic=1: %s: %s%s", name_of(spec), reason,
                other != NULL ? other : "no schedule", other != NULL ? " does it" : " does it for this team");
}

/* ---- shapes and plans ---- */

static enum status schedule_shape(const struct spec *spec, const struct shape_request *request, struct shape **shape)
{
    TRY(shape_create(spec->algorithm, request, shape));
    enum status status = check_deterministic(spec, request->layout, *shape);
    if (status < 0) {
        shape_destroy(*shape);
        *shape = NULL;
    }
    return status;
}

enum status spec_shape_for(const struct spec *spec, const struct shape_request *request, struct shape **shape)
{
    struct shape_request own = *request;
    *shape = NULL;
    own.options = &spec->options;
    own.attachments = spec->attachments;
    if (spec->kind == SPEC_SCHEDULE)
        return schedule_shape(spec, &own, shape);
    if (spec->kind == SPEC_STRATEGY)
        return spec->strategy->shape(&own, shape);
    return fail(STATUS_REFUSED, "%s is external: its library decides how, so there is no schedule to look at",
                spec->external->name);
}

enum status spec_shape(const struct spec *spec, const struct layout *layout, uint64_t step, size_t count,
                       struct shape **shape)
{
    const struct shape_request request = {.layout = layout, .step = step, .count = count};
    return spec_shape_for(spec, &request, shape);
}

enum status spec_nested(const struct shape_request *request, const char *key, struct spec *nested)
{
    TRY(parse_at(option_text(request->options, key), 1, nested));
    nested->attachments = request->attachments;
    return STATUS_OK;
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
    enum status status;
    struct text inner = {0};
    if (spec->kind == SPEC_STRATEGY)
        return spec_copy(spec, strategy);
    if (spec->kind == SPEC_EXTERNAL)
        return fail(STATUS_REFUSED, "%s is external: its library decides how, so there is no schedule to look at",
                    spec->external->name);
    TRY(parse_at("synchronous", 0, strategy));
    spec_canonical(spec, &inner);
    TRY_TO(failed, text_check(&inner));
    TRY_TO(failed, option_set(&strategy->options, "inner", text_string(&inner)));
    TRY_TO(failed, copy_attachments(spec->attachments, strategy));
    text_release(&inner);
    return STATUS_OK;
failed:
    text_release(&inner);
    spec_release(strategy);
    return status;
}

enum status spec_plan(const struct spec *spec, uint64_t step, struct step_plan *plan)
{
    struct spec synchronous;
    if (spec->kind == SPEC_STRATEGY)
        return spec->strategy->plan(&spec->options, step, plan);
    TRY(parse_at("synchronous", 0, &synchronous));
    assert(synchronous.strategy != NULL);
    enum status status = synchronous.strategy->plan(&synchronous.options, step, plan);
    spec_release(&synchronous);
    return status;
}

const struct graph *spec_graph(const struct spec *spec)
{
    if (spec->kind != SPEC_STRATEGY || entry_of(spec->table, "graph") == NULL)
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
        if (algorithm_in_all(algorithms[i]))
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
