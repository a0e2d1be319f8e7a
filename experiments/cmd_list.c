/* cmd_list.c - chorale list: the catalogue, for people and as JSON. */
#include <stdio.h>
#include <string.h>

#include "algos/spec.h"
#include "base/json.h"
#include "experiments/program.h"

static const char head[] = "usage: chorale list [--json | --canonical=SPECS]\n"
                           "Lists what --allreduce= takes: schedules, strategies, and the graphs of gossip. Options\n"
                           "follow a colon, a spec with options of its own stands in brackets; as in ring,rhd or\n"
                           "gossip:graph=ring or double-buffered:inner=[hierarchical:intra=ring,inter=rhd].\n"
                           "Inexact: does not compute the sum of all workers; so it is not in all.\n";

static const struct option options_table[] = {
    {.key = "json", .type = OPTION_FLAG, .help = "one JSON document"},
    {.key = "canonical",
     .repeats = true,
     .type = OPTION_SPEC,
     .help = "instead print the canonical spelling of each of these specs, one a line"},
    {.key = NULL},
};

static const struct {
    unsigned trait;
    const char *name;
} trait_names[] = {
    {TRAIT_ANY_SIZE, "any-size"},
    {TRAIT_POWER_OF_TWO, "power-of-two"},
    {TRAIT_EVEN, "even"},
    {TRAIT_SIZE_DEPENDENT, "size-dependent"},
    {TRAIT_PERIOD, "period"},
    {TRAIT_INEXACT, "inexact"},
    {TRAIT_HALVES, "halves"},
    {TRAIT_MIXING, "mixing"},
    {TRAIT_EQUAL_BITS, "equal-bits"},
    {TRAIT_SAME_ORDER, "same-order"},
    {TRAIT_WHOLE_INPUTS, "whole-inputs"},
};

/* ---- JSON ---- */

static const char *option_type_name(enum option_type type)
{
    static const char *const names[] = {"flag", "int", "size", "real", "seconds", "choice", "string", "spec"};
    return names[type];
}

static json_t *options_json(const struct option *table)
{
    json_t *list = json_array();
    for (; table != NULL && table->key != NULL; table++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s?, s:s?, s:s}", "key", table->key, "type",
                                              option_type_name(table->type), "default", table->default_text, "unit",
                                              table->unit, "help", table->help));
    return list;
}

static json_t *traits_json(unsigned traits)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof trait_names / sizeof *trait_names; i++)
        if (traits & trait_names[i].trait)
            json_array_append_new(list, json_string(trait_names[i].name));
    return list;
}

static json_t *entry_json(const char *name, const char *aliases, const char *kind, const char *summary,
                          const char *source, bool exact, unsigned traits, const struct option *options)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:o, s:o}", "name", name, "aliases", aliases, "kind", kind,
                     "summary", summary, "source", source, "exact", (int)exact, "traits", traits_json(traits),
                     "options", options_json(options));
}

static enum status list_json(void)
{
    size_t count = 0;
    json_t *list = json_array(), *graphs = json_array();
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++) {
        const struct algorithm *a = algorithms[i];
        json_array_append_new(list, entry_json(a->name, a->aliases, "schedule", a->summary, a->source,
                                               !(a->traits & TRAIT_INEXACT), a->traits, a->options));
    }
    const struct strategy *const *strategies = catalogue_strategies(&count);
    for (size_t i = 0; i < count; i++) {
        const struct strategy *s = strategies[i];
        json_array_append_new(
            list, entry_json(s->name, s->aliases, "strategy", s->summary, s->source, s->exact, 0, s->options));
    }
    const struct graph *const *all_graphs = catalogue_graphs(&count);
    for (size_t i = 0; i < count; i++)
        json_array_append_new(graphs, json_pack("{s:s, s:s, s:s}", "name", all_graphs[i]->name, "summary",
                                                all_graphs[i]->summary, "source", all_graphs[i]->source));
    json_t *document = json_pack("{s:o, s:o}", "algorithms", list, "graphs", graphs);
    const enum status status =
        document != NULL ? json_print(stdout, document) : fail(STATUS_NO_MEMORY, "list: no memory for the document");
    json_decref(document);
    return status;
}

/* ---- for people ---- */

static void say_options(const struct option *table)
{
    for (; table != NULL && table->key != NULL; table++)
        printf("      %s=%s  %s\n", table->key, table->default_text != NULL ? table->default_text : "", table->help);
}

static void say_entry(const char *name, const char *aliases, const char *kind, const char *summary, const char *source,
                      const struct option *options)
{
    printf("  %s%s%s%s  [%s]\n      %s\n      %s\n", name, aliases[0] != '\0' ? " (" : "", aliases,
           aliases[0] != '\0' ? ")" : "", kind, summary, source);
    say_options(options);
}

static enum status list_text(void)
{
    size_t count = 0;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++)
        say_entry(algorithms[i]->name, algorithms[i]->aliases,
                  algorithms[i]->traits & TRAIT_INEXACT ? "schedule, inexact" : "schedule", algorithms[i]->summary,
                  algorithms[i]->source, algorithms[i]->options);
    const struct strategy *const *strategies = catalogue_strategies(&count);
    for (size_t i = 0; i < count; i++)
        say_entry(strategies[i]->name, strategies[i]->aliases, strategies[i]->exact ? "strategy" : "strategy, inexact",
                  strategies[i]->summary, strategies[i]->source, strategies[i]->options);
    const struct graph *const *graphs = catalogue_graphs(&count);
    for (size_t i = 0; i < count; i++)
        say_entry(graphs[i]->name, graphs[i]->aliases, "graph of gossip", graphs[i]->summary, graphs[i]->source, NULL);
    return fflush(stdout) == 0 ? STATUS_OK : fail(STATUS_IO, "standard output: the list could not be written");
}

static enum status list_canonical(const char *specs_text)
{
    struct spec *specs = NULL;
    size_t count = 0;
    TRY(spec_list_parse(specs_text, &specs, &count));
    for (size_t i = 0; i < count; i++) {
        struct text text = {0};
        spec_canonical(&specs[i], &text);
        puts(text_string(&text));
        text_release(&text);
    }
    spec_list_release(specs, count);
    return fflush(stdout) == 0 ? STATUS_OK : fail(STATUS_IO, "standard output: the list could not be written");
}

int cmd_list(int argc, char **argv)
{
    struct option_values options;
    int exit_code = 0;
    enum status status = STATUS_OK;
    if (!program_options(head, options_table, argc, argv, &options, &exit_code))
        return exit_code;
    if (option_given(&options, "canonical"))
        status = list_canonical(option_text(&options, "canonical"));
    else
        status = option_flag(&options, "json") ? list_json() : list_text();
    option_values_release(&options);
    return status < 0 ? program_error(status) : 0;
}
