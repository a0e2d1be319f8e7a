/* catalogue.c - the lines of catalogue.def as arrays, and finding by name. */
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"

#define ALGORITHM(stem) extern const struct algorithm algorithm_##stem;
#define STRATEGY(stem) extern const struct strategy strategy_##stem;
#define GRAPH(stem, name) extern const struct graph graph_##stem;
#include "algos/catalogue.def"

static const struct algorithm *const algorithms[] = {
#define ALGORITHM(stem) &algorithm_##stem,
#include "algos/catalogue.def"
};

static const struct strategy *const strategies[] = {
#define STRATEGY(stem) &strategy_##stem,
#include "algos/catalogue.def"
};

static const struct graph *const graphs[] = {
#define GRAPH(stem, name) &graph_##stem,
#include "algos/catalogue.def"
};

static const struct preset presets[] = {
#define PRESET(called, others, stands_for, says)                                                                       \
    {.name = (called), .aliases = (others), .spec = (stands_for), .summary = (says)},
#include "algos/catalogue.def"
};

static const struct external externals[] = {
#define EXTERNAL(module, called, says, from) {.stem = #module, .name = (called), .summary = (says), .source = (from)},
#include "algos/catalogue.def"
};

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

const struct algorithm *const *catalogue_algorithms(size_t *count)
{
    *count = LENGTH(algorithms);
    return algorithms;
}

const struct strategy *const *catalogue_strategies(size_t *count)
{
    *count = LENGTH(strategies);
    return strategies;
}

const struct graph *const *catalogue_graphs(size_t *count)
{
    *count = LENGTH(graphs);
    return graphs;
}

const struct preset *catalogue_presets(size_t *count)
{
    *count = LENGTH(presets);
    return presets;
}

const struct external *catalogue_externals(size_t *count)
{
    *count = LENGTH(externals);
    return externals;
}

/* Whether `word` is `name` or one of the words of `aliases`. */
static bool is_called(const char *name, const char *aliases, const char *word)
{
    const size_t length = strlen(word);
    if (length == 0)
        return false;
    if (strcmp(name, word) == 0)
        return true;
    while (*aliases != '\0') {
        const size_t alias = strcspn(aliases, " ");
        if (alias == length && memcmp(aliases, word, length) == 0)
            return true;
        aliases += alias;
        aliases += strspn(aliases, " ");
    }
    return false;
}

const struct algorithm *algorithm_find(const char *name)
{
    for (size_t i = 0; i < LENGTH(algorithms); i++)
        if (is_called(algorithms[i]->name, algorithms[i]->aliases, name))
            return algorithms[i];
    return NULL;
}

const struct strategy *strategy_find(const char *name)
{
    for (size_t i = 0; i < LENGTH(strategies); i++)
        if (is_called(strategies[i]->name, strategies[i]->aliases, name))
            return strategies[i];
    return NULL;
}

const struct graph *graph_find(const char *name)
{
    for (size_t i = 0; i < LENGTH(graphs); i++)
        if (is_called(graphs[i]->name, graphs[i]->aliases, name))
            return graphs[i];
    return NULL;
}

const struct preset *preset_find(const char *name)
{
    for (size_t i = 0; i < LENGTH(presets); i++)
        if (is_called(presets[i].name, presets[i].aliases, name))
            return &presets[i];
    return NULL;
}

const struct external *external_find(const char *name)
{
    for (size_t i = 0; i < LENGTH(externals); i++)
        if (is_called(externals[i].name, "", name))
            return &externals[i];
    return NULL;
}
