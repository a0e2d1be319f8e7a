/* recipe.c - see recipe.h. */
#include "experiments/recipe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

#define RECIPE_MOST ((size_t)1 << 20)

struct recipe {
    const char *path;
    const struct recipe_instead *instead;
    size_t count;
    struct option_values *values;
    bool *given;   /* [values->count]: by the command line */
    size_t *where; /* [values->count]: the line of this file that has it; 0: none */
};

/* `line` becomes "key\0" and *value, without comment and white space around them. False: nothing stands there. */
static bool split_line(char *line, char **key, char **value)
{
    static const char white[] = " \t\r";
    for (char *at = line; *at != '\0'; at++)
        if (*at == '#' && (at == line || strchr(white, at[-1]) != NULL))
            *at = '\0';
    *key = line + strspn(line, white);
    for (size_t end = strlen(*key); end > 0 && strchr(white, (*key)[end - 1]) != NULL; end--)
        (*key)[end - 1] = '\0';
    if (**key == '\0')
        return false;
    *value = strchr(*key, '=');
    if (*value == NULL)
        return true;
    char *end = *value;
    *(*value)++ = '\0';
    *value += strspn(*value, white);
    while (end > *key && strchr(white, end[-1]) != NULL)
        *--end = '\0';
    return true;
}

static bool find(const struct option_values *values, const char *key, size_t *index)
{
    for (*index = 0; values->table[*index].key != NULL; ++*index)
        if (strcmp(values->table[*index].key, key) == 0)
            return true;
    return false;
}

/* By the command line, or something that stands for it. */
static bool is_given(const struct recipe *recipe, const char *key, size_t index)
{
    bool given = recipe->given[index];
    for (size_t k = 0; k < recipe->count; k++) {
        const struct recipe_instead *pair = &recipe->instead[k];
        const char *other = strcmp(pair->one, key) == 0     ? pair->other
                            : strcmp(pair->other, key) == 0 ? pair->one
                                                            : NULL;
        size_t at = 0;
        if (other != NULL && find(recipe->values, other, &at))
            given = given || recipe->given[at];
    }
    return given;
}

static enum status take_line(const struct recipe *recipe, size_t line, const char *key, const char *value)
{
    size_t index = 0;
    if (value == NULL)
        return fail(STATUS_USAGE, "%s:%zu: %s: not key=value", recipe->path, line, key);
    const bool known = find(recipe->values, key, &index);
    if (known && strcmp(key, "recipe") == 0)
        return fail(STATUS_USAGE, "%s:%zu: recipe: a recipe names no other", recipe->path, line);
    if (known && recipe->where[index] > 0)
        return fail(STATUS_USAGE, "%s:%zu: %s: it stands in line %zu, too", recipe->path, line, key,
                    recipe->where[index]);
    if (known) {
        recipe->where[index] = line;
        if (is_given(recipe, key, index))
            return STATUS_OK;
    }
    const enum status status = option_set(recipe->values, key, value);
    return status < 0 ? fail(status, "%s:%zu: %s", recipe->path, line, status_message()) : status;
}

static enum status take_all(const struct recipe *recipe, char *text)
{
    char *next = text, *key, *value;
    for (size_t line = 1; next != NULL; line++) {
        char *start = next, *end = strchr(next, '\n');
        next = end != NULL ? end + 1 : NULL;
        if (end != NULL)
            *end = '\0';
        if (split_line(start, &key, &value))
            TRY(take_line(recipe, line, key, value));
    }
    return STATUS_OK;
}

enum status recipe_read(const char *path, const struct recipe_instead *instead, size_t count,
                        struct option_values *values)
{
    struct recipe recipe = {.path = path, .instead = instead, .count = count, .values = values};
    void *given = NULL, *where = NULL;
    char *text = NULL;
    size_t length = 0;
    enum status status;
    status = file_read(path, RECIPE_MOST, &text, &length);
    if (status < 0)
        TRY_TO(done, fail(status, "--recipe=%s: %s: give a file of options, such as those in experiments/recipes", path,
                          status_message()));
    TRY_TO(done, memory_zeroed(&given, values->count, sizeof *recipe.given));
    TRY_TO(done, memory_zeroed(&where, values->count, sizeof *recipe.where));
    recipe.given = given;
    recipe.where = where;
    for (size_t k = 0; k < values->count; k++)
        recipe.given[k] = values->text[k] != NULL;
    if (strlen(text) != length)
        TRY_TO(done, fail(STATUS_USAGE, "%s: a recipe is text, this file has zero bytes", path));
    TRY_TO(done, take_all(&recipe, text));
done:
    free(given);
    free(where);
    free(text);
    return status;
}
