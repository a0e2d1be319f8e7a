/* cmd_list.c - chorale list: the catalogue, for people and as JSON. */
#include <stdio.h>
#include <string.h>

#include "algos/spec.h"
#include "base/json.h"
#include "comm/codec.h"
#include "experiments/program.h"

static const char head[] =
    "usage: chorale list [--json | --canonical=SPECS | --identity=SPECS]\n"
    "Lists what --allreduce= takes: schedules, strategies, presets (names for specs), externals, and\n"
    "the graphs of gossip. Options follow a colon, a spec with options of its own stands in\n"
    "brackets; as in ring,rhd or gossip:graph=ring or\n"
    "double-buffered:inner=[hierarchical:intra=ring,inter=rhd].\n";

static const struct option options_table[] = {
    {.key = "json", .type = OPTION_FLAG, .help = "one JSON document"},
    {.key = "canonical",
     .repeats = true,
     .type = OPTION_SPEC,
     .help = "instead print the canonical spelling of each of these specs, one a line"},
    {.key = "identity",
     .repeats = true,
     .type = OPTION_SPEC,
     .help = "the same, with # and a hash of their contents after specs that name files"},
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
    {TRAIT_NEEDS_FILE, "needs-file"},
};

/* ---- JSON ---- */

static const char *option_type_name(enum option_type type)
{
    static const char *const names[] = {"flag", "int", "size", "real", "seconds", "choice", "string", "spec", "file"};
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

static void add_algorithms(json_t *list)
{
    size_t count = 0;
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
    const struct external *externals = catalogue_externals(&count);
    for (size_t i = 0; i < count; i++) {
        const struct external *e = &externals[i];
        json_array_append_new(list, entry_json(e->name, "", "external", e->summary, e->source, true, 0, NULL));
    }
}

static json_t *presets_json(void)
{
    size_t count = 0;
    json_t *list = json_array();
    const struct preset *presets = catalogue_presets(&count);
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:s}", "name", presets[i].name, "aliases", presets[i].aliases,
                                        "spec", presets[i].spec, "summary", presets[i].summary));
    return list;
}

static json_t *graphs_json(void)
{
    size_t count = 0;
    json_t *list = json_array();
    const struct graph *const *graphs = catalogue_graphs(&count);
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "name", graphs[i]->name, "summary", graphs[i]->summary,
                                              "source", graphs[i]->source));
    return list;
}

static json_t *wire_formats_json(void)
{
    size_t count = 0;
    json_t *list = json_array();
    const struct codec *const *codecs = codec_catalogue(&count);
    for (size_t i = 0; i < count; i++) {
        const unsigned traits = codecs[i]->traits;
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:b, s:b, s:o}", "name", codecs[i]->name, "summary", codecs[i]->summary,
                            "source", codecs[i]->source, "lossless", (traits & CODEC_LOSSLESS) != 0, "closed_under_sum",
                            (traits & CODEC_CLOSED_UNDER_SUM) != 0, "options", options_json(codecs[i]->options)));
    }
    return list;
}

static enum status list_json(void)
{
    json_t *list = json_array();
    add_algorithms(list);
    json_t *document =
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "algorithms", list, "presets", presets_json(), "graphs", graphs_json(),
                  "common_options", options_json(spec_common), "wire_formats", wire_formats_json());
    const enum status status =
        document != NULL ? json_print(stdout, document) : fail(STATUS_NO_MEMORY, "list: no memory for the document");
    json_decref(document);
    return status;
}

/* ---- for people ---- */

#define NAME_COLUMN 34

static void say_options(const struct option *table)
{
    for (; table != NULL && table->key != NULL; table++)
        printf("      %s=%s  %s\n", table->key, table->default_text != NULL ? table->default_text : "", table->help);
}

/* "  recursive-doubling (rd)          summary" */
static void say_name(const char *name, const char *aliases, const char *summary)
{
    struct text left = {0};
    text_addf(&left, "%s%s%s%s", name, aliases[0] != '\0' ? " (" : "", aliases, aliases[0] != '\0' ? ")" : "");
    printf("  %-*s  %s\n", NAME_COLUMN, text_string(&left), summary);
    text_release(&left);
}

static void say_schedules(void)
{
    size_t count = 0;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    puts("Schedules: how the vectors of all workers are reduced. `all` is every one without a remark.");
    for (size_t i = 0; i < count; i++) {
        const struct algorithm *a = algorithms[i];
        say_name(a->name, a->aliases, a->summary);
        printf("      %s", a->source);
        for (size_t k = 0; k < sizeof trait_names / sizeof *trait_names; k++)
            if ((a->traits & trait_names[k].trait) != 0 && trait_names[k].trait != TRAIT_ANY_SIZE)
                printf(", %s", trait_names[k].name);
        puts(algorithm_in_all(a) ? "" : " (not in all)");
        say_options(a->options);
    }
    puts("  Every schedule takes:");
    say_options(spec_common);
}

static void say_strategies(void)
{
    size_t count = 0;
    const struct strategy *const *strategies = catalogue_strategies(&count);
    puts("\nStrategies: what is exchanged in training, and when.");
    for (size_t i = 0; i < count; i++) {
        say_name(strategies[i]->name, strategies[i]->aliases, strategies[i]->summary);
        printf("      %s%s\n", strategies[i]->source, strategies[i]->exact ? "" : ", inexact");
        say_options(strategies[i]->options);
    }
    const struct graph *const *graphs = catalogue_graphs(&count);
    puts("\nGraphs of gossip: who takes from whom.");
    for (size_t i = 0; i < count; i++) {
        say_name(graphs[i]->name, graphs[i]->aliases, graphs[i]->summary);
        printf("      %s\n", graphs[i]->source);
    }
}

static void say_presets(void)
{
    size_t count = 0;
    const struct preset *presets = catalogue_presets(&count);
    puts("\nPresets: names for specs, ChainerMN's communicators among them (its spelling, two_dimensional, is taken, "
         "too).");
    for (size_t i = 0; i < count; i++) {
        say_name(presets[i].name, "", presets[i].spec);
        printf("      %s\n", presets[i].summary);
    }
    const struct external *externals = catalogue_externals(&count);
    puts("\nExternals: collectives of other libraries, without a schedule, for comparison (README, Specs).");
    for (size_t i = 0; i < count; i++) {
        say_name(externals[i].name, "", externals[i].summary);
        printf("      %s\n", externals[i].source);
    }
}

static void say_wire_formats(void)
{
    size_t count = 0;
    const struct codec *const *codecs = codec_catalogue(&count);
    puts("\nWire formats (--wire): what a vector of f32 looks like while it travels.");
    for (size_t i = 0; i < count; i++) {
        const bool any = codecs[i]->traits & CODEC_CLOSED_UNDER_SUM;
        say_name(codecs[i]->name, "", codecs[i]->summary);
        printf("      %s, %s\n", codecs[i]->source, any ? "every schedule" : "schedules with whole-inputs");
        say_options(codecs[i]->options);
    }
}

static enum status list_text(void)
{
    say_schedules();
    say_strategies();
    say_presets();
    say_wire_formats();
    return fflush(stdout) == 0 ? STATUS_OK : fail(STATUS_IO, "standard output: the list could not be written");
}

static enum status say_specs(const struct spec *specs, size_t count, void (*spell)(const struct spec *, struct text *))
{
    for (size_t i = 0; i < count; i++) {
        struct text text = {0};
        spell(&specs[i], &text);
        puts(text_string(&text));
        text_release(&text);
    }
    return fflush(stdout) == 0 ? STATUS_OK : fail(STATUS_IO, "standard output: the specs could not be written");
}

/* Spelling needs no files, identity does. */
static enum status list_specs(const char *text, bool identity)
{
    struct spec *specs = NULL;
    size_t count = 0;
    TRY(identity ? program_specs(text, &specs, &count) : spec_list_parse(text, &specs, &count));
    enum status status = say_specs(specs, count, identity ? spec_identity : spec_canonical);
    spec_list_release(specs, count);
    return status;
}

int cmd_list(int argc, char **argv)
{
    struct option_values options;
    int exit_code = 0;
    enum status status = STATUS_OK;
    if (!program_options(head, options_table, argc, argv, &options, &exit_code))
        return exit_code;
    if (option_given(&options, "canonical"))
        status = list_specs(option_text(&options, "canonical"), false);
    else if (option_given(&options, "identity"))
        status = list_specs(option_text(&options, "identity"), true);
    else
        status = option_flag(&options, "json") ? list_json() : list_text();
    option_values_release(&options);
    return status < 0 ? program_error(status) : 0;
}
