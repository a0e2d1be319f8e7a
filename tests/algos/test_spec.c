/* test_spec.c - the grammar that users type. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"

static void expect_canonical(const char *text, const char *canonical)
{
    struct spec spec, again;
    struct text words = {0}, twice = {0};
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s: %s", text, status_message());
    spec_canonical(&spec, &words);
    cr_assert_str_eq(text_string(&words), canonical);
    cr_assert_eq(spec_parse(canonical, &again), STATUS_OK, "%s: %s", canonical, status_message());
    spec_canonical(&again, &twice);
    cr_assert_str_eq(text_string(&twice), canonical);
    text_release(&words);
    text_release(&twice);
    spec_release(&spec);
    spec_release(&again);
}

static void expect_usage(const char *text, const char *part)
{
    struct spec spec;
    cr_assert_eq(spec_parse(text, &spec), STATUS_USAGE, "\"%s\" is taken", text);
    cr_assert_not_null(strstr(status_message(), part), "\"%s\": \"%s\" does not say \"%s\"", text, status_message(),
                       part);
    spec_release(&spec);
}

Test(spec, canonical_spelling_has_full_names_sorted_keys_and_no_defaults)
{
    expect_canonical("ring", "ring");
    expect_canonical("rd", "recursive-doubling");
    expect_canonical("rhd", "recursive-halving-doubling");
    expect_canonical("hierarchical:intra=ring,inter=rhd", "hierarchical:inter=recursive-halving-doubling");
    expect_canonical("hierarchical:intra=rhd,inter=ring", "hierarchical:intra=recursive-halving-doubling");
    expect_canonical("hierarchical:intra=rhd,inter=rd,group=4+2",
                     "hierarchical:group=4+2,inter=recursive-doubling,intra=recursive-halving-doubling");
    expect_canonical("hierarchical:intra=ring,inter=ring", "hierarchical");
    expect_canonical("hierarchical:intra=[ring]", "hierarchical");
    expect_canonical("sync", "synchronous");
    expect_canonical("db:inner=[ring]", "double-buffered");
    expect_canonical("db:inner=[hierarchical:intra=ring,inter=rhd]",
                     "double-buffered:inner=[hierarchical:inter=recursive-halving-doubling]");
    expect_canonical("db:inner=[hierarchical:intra=[hierarchical:group=2,inter=rd],inter=rhd]",
                     "double-buffered:inner=[hierarchical:inter=recursive-halving-doubling,"
                     "intra=[hierarchical:group=2,inter=recursive-doubling]]");
    expect_canonical("gossip:graph=ring,weights=metropolis", "gossip:graph=ring");
    expect_canonical("gossip:graph=one-peer-exponential", "gossip");
}

Test(spec, unknown_words_come_with_the_nearest_spelling)
{
    expect_usage("rign", "did you mean ring?");
    expect_usage("hierarchicl", "did you mean hierarchical?");
    expect_usage("gosip", "did you mean gossip?");
    expect_usage("qqqqqqqqqqqq", "known are");
    expect_usage("hierarchical:inta=ring", "did you mean intra?");
    expect_usage("double-buffered:iner=ring", "did you mean inner?");
    expect_usage("gossip:graph=rinng", "did you mean ring?");
    expect_usage("gossip:graph=rinng", "one-peer-exponential");
    expect_usage("db:inner=rign", "did you mean ring?");
    expect_usage("db:inner=gosip", "known are"); /* strategies are no candidates there */
    expect_usage("ring:chunks=2", "known are deterministic");
    expect_usage("ring:determinstic=1", "did you mean deterministic?");
    expect_usage("nccl:chunks=2", "takes no options");
    expect_usage("two_dimensonal", "did you mean two-dimensional?");
    expect_usage("Ring", "did you mean ring?");
}

Test(spec, torn_specs_are_refused)
{
    expect_usage("", "empty");
    expect_usage(":", "empty");
    expect_usage(":inner=ring", "empty");
    expect_usage("ring:", "key=value");
    expect_usage("db:inner", "key=value");
    expect_usage("db:=ring", "key=value");
    expect_usage("db:inner=", "empty");
    expect_usage("db:inner=[]", "empty");
    expect_usage("db:inner=[ring", "not closed");
    expect_usage("db:inner=ring]", "closing bracket");
    expect_usage("db:inner=]ring[", "closing bracket");
    expect_usage("db:inner=[ring]x", "closing bracket");
    expect_usage("db:inner=[[ring]]", "[brackets]");
    expect_usage("db:inner=ring,", "key=value");
    expect_usage("db:,inner=ring", "key=value");
    expect_usage("db:inner=ring,inner=rd", "twice");
    expect_usage("db:inner=hierarchical:intra=rhd", "square brackets");
    expect_usage("ring,rhd", "NAME:key=value");
    expect_usage("ring rhd", "NAME:key=value");
    expect_usage("[ring]", "NAME:key=value");
    expect_usage("inter=ring", "NAME:key=value");
}

Test(spec, only_schedules_can_be_nested)
{
    expect_usage("db:inner=gossip", "strategy");
    expect_usage("hierarchical:intra=[double-buffered:inner=ring]", "strategy");
    expect_usage("hierarchical:intra=nccl", "external");
    expect_usage("db:inner=pure_nccl", "external");
}

Test(spec, nesting_has_a_limit)
{
    char text[2000] = "ring";
    for (int i = 0; i < 40; i++) {
        char outer[2000];
        (void)snprintf(outer, sizeof outer, "hierarchical:intra=[%.1900s]", text);
        memcpy(text, outer, sizeof text);
    }
    expect_usage(text, "nested");
}

Test(spec, kinds_and_exactness_follow_from_the_parts)
{
    static const struct {
        const char *text;
        enum spec_kind kind;
        bool exact;
    } cases[] = {
        {"ring", SPEC_SCHEDULE, true},
        {"none", SPEC_SCHEDULE, false},
        {"hierarchical", SPEC_SCHEDULE, true},
        {"sync", SPEC_STRATEGY, true},
        {"db", SPEC_STRATEGY, true},
        {"gossip", SPEC_STRATEGY, false},
        {"sync:inner=none", SPEC_STRATEGY, false},
        {"hierarchical:inter=none", SPEC_SCHEDULE, false},
        {"two_dimensional", SPEC_SCHEDULE, true},
        {"dummy", SPEC_SCHEDULE, false},
        {"nccl", SPEC_EXTERNAL, true},
        {"pure-nccl", SPEC_EXTERNAL, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct spec spec;
        cr_assert_eq(spec_parse(cases[i].text, &spec), STATUS_OK);
        cr_assert_eq(spec.kind, cases[i].kind, "%s", cases[i].text);
        cr_assert_eq(spec_is_exact(&spec), cases[i].exact, "%s", cases[i].text);
        spec_release(&spec);
    }
}

/* ---- presets and externals ---- */

Test(preset, stands_for_its_spec)
{
    expect_canonical("two-dimensional", "hierarchical");
    expect_canonical("two_dimensional", "hierarchical");
    expect_canonical("chainermn_two_dimensional", "hierarchical");
    expect_canonical("chainermn-hierarchical", "hierarchical:intra=binomial");
    expect_canonical("hierarchical", "hierarchical"); /* ours, not ChainerMN's */
    expect_canonical("dummy", "none");
    expect_canonical("pure_nccl", "nccl");
    expect_canonical("db:inner=non_cuda_aware", "double-buffered:inner=[hierarchical:intra=binomial]");
    expect_canonical("recursive_doubling", "recursive-doubling");
}

Test(preset, options_replace_and_join_its_own)
{
    expect_canonical("two-dimensional:group=4", "hierarchical:group=4");
    expect_canonical("chainermn-hierarchical:inter=rd", "hierarchical:inter=recursive-doubling,intra=binomial");
    expect_canonical("chainermn-hierarchical:intra=ring", "hierarchical");
    expect_canonical("flat:deterministic=1", "recursive-halving-doubling:deterministic=1");
    expect_usage("two-dimensional:group=4,group=2", "twice");
    expect_usage("two-dimensional:gruop=4", "did you mean group?");
}

Test(preset, names_are_no_other_names_and_every_spec_is_one)
{
    size_t count;
    const struct preset *presets = catalogue_presets(&count);
    cr_assert_gt(count, 7);
    for (size_t i = 0; i < count; i++) {
        struct spec spec;
        cr_assert_eq(preset_find(presets[i].name), &presets[i]);
        cr_assert_null(algorithm_find(presets[i].name));
        cr_assert_null(strategy_find(presets[i].name));
        cr_assert_null(external_find(presets[i].name));
        cr_assert_null(strchr(presets[i].name, '_'), "%s: '_' is read as '-'", presets[i].name);
        cr_assert_eq(spec_parse(presets[i].name, &spec), STATUS_OK, "%s", status_message());
        spec_release(&spec);
    }
}

Test(external, has_no_shape_and_no_strategy)
{
    struct spec spec, strategy;
    struct layout layout;
    struct shape *shape = NULL;
    struct step_plan plan;
    uint64_t period;
    cr_assert_eq(spec_parse("nccl", &spec), STATUS_OK);
    cr_assert_eq(layout_flat(4, &layout), STATUS_OK);
    cr_assert_eq(spec_shape(&spec, &layout, 0, 100, &shape), STATUS_REFUSED);
    cr_assert_null(shape);
    cr_assert_not_null(strstr(status_message(), "external"));
    cr_assert_eq(spec_as_strategy(&spec, &strategy), STATUS_REFUSED);
    cr_assert_eq(spec_period(&spec, &layout, &period), STATUS_OK);
    cr_assert_eq(period, 1);
    cr_assert_eq(spec_plan(&spec, 0, &plan), STATUS_OK);
    cr_assert(plan.exchanges && plan.exchange.object == EXCHANGE_GRADIENT);
    layout_release(&layout);
    spec_release(&spec);
}

/* ---- deterministic=1 ---- */

static enum status shape_status(const char *text, const char *nodes, size_t count)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    cr_assert_eq(layout_parse(nodes, 0, &layout), STATUS_OK, "%s", status_message());
    const enum status status = spec_shape(&spec, &layout, 0, count, &shape);
    cr_assert_eq(status == STATUS_OK, shape != NULL);
    shape_destroy(shape);
    layout_release(&layout);
    spec_release(&spec);
    return status;
}

Test(deterministic, is_part_of_the_canonical_spelling)
{
    expect_canonical("rhd:deterministic=1", "recursive-halving-doubling:deterministic=1");
    expect_canonical("rhd:deterministic=0", "recursive-halving-doubling");
    expect_canonical("hierarchical:inter=rhd,deterministic=1,intra=binomial",
                     "hierarchical:deterministic=1,inter=recursive-halving-doubling,intra=binomial");
    expect_canonical("db:inner=[rhd:deterministic=1]",
                     "double-buffered:inner=[recursive-halving-doubling:deterministic=1]");
    expect_usage("rhd:deterministic=2", "0 or 1");
    expect_usage("db:deterministic=1", "known are inner");
}

Test(deterministic, follows_the_traits_of_the_shape)
{
    cr_expect_eq(shape_status("rhd:deterministic=1", "1x5", 100), STATUS_OK);
    cr_expect_eq(shape_status("hierarchical:intra=rhd,inter=rd,deterministic=1", "2x3", 100), STATUS_OK);
    cr_expect_eq(shape_status("hierarchical:intra=rhd,inter=ring,deterministic=1", "2x3", 100), STATUS_REFUSED);
    cr_expect_eq(shape_status("ring", "1x5", 100), STATUS_OK);
    cr_expect_eq(shape_status("ring:deterministic=1", "1x5", 100), STATUS_REFUSED);
    cr_expect_not_null(strstr(status_message(), "added up in different orders"), "%s", status_message());
    cr_expect_not_null(strstr(status_message(), "does it"), "%s", status_message());
    cr_expect_eq(shape_status("none:deterministic=1", "1x5", 100), STATUS_REFUSED);
    cr_expect_not_null(strstr(status_message(), "does not compute the sum"), "%s", status_message());
    cr_expect_eq(shape_status("sync:inner=[ring:deterministic=1]", "1x5", 100), STATUS_REFUSED);
}

Test(spec, copies_stand_alone)
{
    struct spec spec, copy;
    struct text words = {0};
    cr_assert_eq(spec_parse("hierarchical:inter=rhd", &spec), STATUS_OK);
    cr_assert_eq(spec_copy(&spec, &copy), STATUS_OK);
    spec_release(&spec);
    spec_release(&spec); /* harmless */
    spec_canonical(&copy, &words);
    cr_assert_str_eq(text_string(&words), "hierarchical:inter=recursive-halving-doubling");
    text_release(&words);
    spec_release(&copy);
}

Test(spec, a_schedule_in_training_is_synchronous)
{
    struct spec spec, strategy;
    struct text words = {0};
    cr_assert_eq(spec_parse("hierarchical:inter=rhd", &spec), STATUS_OK);
    cr_assert_eq(spec_as_strategy(&spec, &strategy), STATUS_OK);
    spec_canonical(&strategy, &words);
    cr_assert_str_eq(text_string(&words), "synchronous:inner=[hierarchical:inter=recursive-halving-doubling]");
    cr_assert_eq(strategy.kind, SPEC_STRATEGY);
    spec_release(&spec);
    cr_assert_eq(spec_as_strategy(&strategy, &spec), STATUS_OK);
    cr_assert_eq(spec.strategy, strategy.strategy);
    text_release(&words);
    spec_release(&spec);
    spec_release(&strategy);
}

/* ---- the catalogue ---- */

Test(catalogue, names_and_aliases_are_unique_and_found)
{
    size_t algorithms, strategies;
    const struct algorithm *const *a = catalogue_algorithms(&algorithms);
    const struct strategy *const *s = catalogue_strategies(&strategies);
    for (size_t i = 0; i < algorithms; i++) {
        cr_assert_eq(algorithm_find(a[i]->name), a[i]);
        cr_assert_null(strategy_find(a[i]->name));
    }
    for (size_t i = 0; i < strategies; i++) {
        cr_assert_eq(strategy_find(s[i]->name), s[i]);
        cr_assert_null(algorithm_find(s[i]->name));
    }
    cr_assert_eq(algorithm_find("rabenseifner"), algorithm_find("rhd"));
    cr_assert_not_null(algorithm_find("rhd"));
    cr_assert_null(algorithm_find(""));
    cr_assert_null(algorithm_find("rh"));
    cr_assert_null(algorithm_find("rhd rabenseifner"));
}

static void check_defaults(const struct option *table, const char *name)
{
    struct option_values values;
    if (table == NULL)
        return;
    cr_assert_eq(option_values_init(&values, table), STATUS_OK);
    for (size_t i = 0; table[i].key != NULL; i++) {
        cr_assert_not_null(table[i].help, "%s: %s", name, table[i].key);
        if (table[i].default_text == NULL)
            continue;
        cr_assert_eq(option_set(&values, table[i].key, table[i].default_text), STATUS_OK, "%s", status_message());
        cr_assert_str_eq(values.text[i], table[i].default_text, "%s: the default of %s is not spelt canonically", name,
                         table[i].key);
    }
    option_values_release(&values);
}

Test(catalogue, defaults_are_spelt_as_they_are_stored)
{
    size_t count;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++)
        check_defaults(algorithms[i]->options, algorithms[i]->name);
    const struct strategy *const *strategies = catalogue_strategies(&count);
    for (size_t i = 0; i < count; i++)
        check_defaults(strategies[i]->options, strategies[i]->name);
}

/* ---- lists ---- */

static void expect_list(const char *text, const char *joined)
{
    struct spec *specs;
    size_t count;
    struct text words = {0};
    cr_assert_eq(spec_list_parse(text, &specs, &count), STATUS_OK, "%s: %s", text, status_message());
    for (size_t i = 0; i < count; i++) {
        text_add(&words, i > 0 ? " " : "");
        spec_canonical(&specs[i], &words);
    }
    cr_assert_str_eq(text_string(&words), joined);
    text_release(&words);
    spec_list_release(specs, count);
}

Test(list, commas_at_depth_0_separate_unless_an_option_follows)
{
    expect_list("ring", "ring");
    expect_list("ring naive", "ring naive");
    expect_list("  ring\t naive ", "ring naive");
    expect_list("ring,naive", "ring naive");
    expect_list("ring, naive", "ring naive");
    expect_list("hierarchical:intra=binomial,inter=naive", "hierarchical:inter=naive,intra=binomial");
    expect_list("hierarchical:intra=binomial,inter=naive,ring", "hierarchical:inter=naive,intra=binomial ring");
    expect_list("ring,hierarchical:intra=binomial,naive", "ring hierarchical:intra=binomial naive");
    expect_list("hierarchical:inter=naive,gossip:graph=ring", "hierarchical:inter=naive gossip:graph=ring");
    expect_list("db:inner=[hierarchical:intra=binomial,inter=naive],ring",
                "double-buffered:inner=[hierarchical:inter=naive,intra=binomial] ring");
    expect_list("hierarchical:intra=[hierarchical:group=2,inter=naive],inter=binomial naive",
                "hierarchical:inter=binomial,intra=[hierarchical:group=2,inter=naive] naive");
}

Test(list, all_is_every_exact_schedule)
{
    struct spec *specs;
    size_t count, algorithms, exact = 0;
    const struct algorithm *const *catalogue = catalogue_algorithms(&algorithms);
    for (size_t i = 0; i < algorithms; i++)
        exact += (catalogue[i]->traits & (TRAIT_INEXACT | TRAIT_NEEDS_FILE)) == 0;
    cr_assert_eq(spec_list_parse("all", &specs, &count), STATUS_OK);
    cr_assert_eq(count, exact);
    for (size_t i = 0; i < count; i++)
        cr_assert(specs[i].kind == SPEC_SCHEDULE && spec_is_exact(&specs[i]));
    spec_list_release(specs, count);
    cr_assert_eq(spec_list_parse("none,all gossip", &specs, &count), STATUS_OK);
    cr_assert_eq(count, exact + 2);
    spec_list_release(specs, count);
}

Test(list, torn_lists_are_refused)
{
    static const char *const torn[] = {"",
                                       " ",
                                       ",",
                                       "ring,",
                                       ",ring",
                                       "ring,,naive",
                                       "ring ,naive",
                                       "ring rign",
                                       "db:inner=[ring naive",
                                       "ring,inter=naive",
                                       "ring] naive"};
    for (size_t i = 0; i < sizeof torn / sizeof torn[0]; i++) {
        struct spec *specs;
        size_t count;
        cr_assert_eq(spec_list_parse(torn[i], &specs, &count), STATUS_USAGE, "\"%s\" is taken", torn[i]);
    }
}
