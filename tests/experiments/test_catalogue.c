/* test_catalogue.c - what `list` promises holds: every entry can be proved, simulated and explained by its name, and
 * the JSON of these commands has its keys.
 */
#include <stdio.h>
#include <string.h>

#include "support_program.h"

#define PLATFORM CHORALE_SOURCE_DIR "/experiments/platforms/fdr-4gpu.txt"
#define PROFILE CHORALE_SOURCE_DIR "/experiments/profiles/p100-fp32.txt"

TestSuite(catalogue, .init = program_setup, .fini = program_teardown, .timeout = 300);

static json_t *catalogue(void)
{
    json_t *document = program_json("list --json");
    json_t *list = json_incref(json_object_get(document, "algorithms"));
    cr_assert(json_is_array(list));
    cr_assert_gt(json_array_size(list), 0);
    json_decref(document);
    return list;
}

/* Can't stand without options, so it is in no walk. */
static bool needs_file(const json_t *entry)
{
    size_t index = 0;
    const json_t *trait = NULL;
    json_array_foreach(json_object_get(entry, "traits"), index, trait)
    {
        if (strcmp(json_string_value(trait), "needs-file") == 0)
            return true;
    }
    return false;
}

static bool is_exact_schedule(const json_t *entry)
{
    return strcmp(string_of(entry, "kind"), "schedule") == 0 && json_is_true(json_object_get(entry, "exact")) &&
           !needs_file(entry);
}

/* ---- list ---- */

static void expect_option(const json_t *option)
{
    cr_expect_str_not_empty(string_of(option, "key"));
    cr_expect_str_not_empty(string_of(option, "type"));
    cr_expect_str_not_empty(string_of(option, "help"));
    const json_t *standard = json_object_get(option, "default"), *unit = json_object_get(option, "unit");
    cr_expect(json_is_string(standard) || json_is_null(standard));
    cr_expect(json_is_string(unit) || json_is_null(unit));
}

Test(catalogue, entries_have_every_key)
{
    json_t *list = catalogue(), *entry = NULL, *item = NULL;
    size_t index = 0, inner = 0;
    json_array_foreach(list, index, entry)
    {
        const char *kind = string_of(entry, "kind");
        cr_expect_str_not_empty(string_of(entry, "name"));
        cr_expect_str_not_empty(string_of(entry, "summary"));
        cr_expect_str_not_empty(string_of(entry, "source"));
        cr_expect(strcmp(kind, "schedule") == 0 || strcmp(kind, "strategy") == 0 || strcmp(kind, "external") == 0, "%s",
                  kind);
        cr_expect(json_is_boolean(json_object_get(entry, "exact")));
        cr_expect(json_is_array(json_object_get(entry, "traits")));
        cr_expect(json_is_array(json_object_get(entry, "options")));
        json_array_foreach(json_object_get(entry, "traits"), inner, item) cr_expect(json_is_string(item));
        json_array_foreach(json_object_get(entry, "options"), inner, item) expect_option(item);
    }
    json_decref(list);
}

static const json_t *entry_of(const json_t *list, const char *name)
{
    size_t index = 0;
    json_t *entry = NULL;
    json_array_foreach(list, index, entry) if (strcmp(string_of(entry, "name"), name) == 0) return entry;
    return NULL;
}

Test(catalogue, holds_what_everyone_expects)
{
    static const struct {
        const char *name, *kind;
        bool exact;
    } expected[] = {
        {"naive", "schedule", true},
        {"binomial", "schedule", true},
        {"ring", "schedule", true},
        {"recursive-doubling", "schedule", true},
        {"recursive-halving-doubling", "schedule", true},
        {"hierarchical", "schedule", true},
        {"synchronous", "strategy", true},
        {"double-buffered", "strategy", true},
        {"gossip", "strategy", false},
    };
    json_t *list = catalogue();
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const json_t *entry = entry_of(list, expected[i].name);
        cr_assert_not_null(entry, "%s", expected[i].name);
        cr_expect_str_eq(string_of(entry, "kind"), expected[i].kind);
        cr_expect_eq(json_is_true(json_object_get(entry, "exact")), expected[i].exact, "%s", expected[i].name);
    }
    json_decref(list);
}

Test(catalogue, text_names_the_same_entries)
{
    struct outcome outcome;
    json_t *list = catalogue(), *entry = NULL;
    size_t index = 0;
    program_run("list", &outcome);
    cr_expect_eq(outcome.exit_code, 0);
    json_array_foreach(list, index, entry)
        cr_expect(contains(outcome.out, string_of(entry, "name")), "%s", string_of(entry, "name"));
    outcome_release(&outcome);
    json_decref(list);
}

Test(catalogue, all_is_every_exact_schedule_and_nothing_else)
{
    struct outcome outcome;
    char *rest = NULL;
    json_t *list = catalogue(), *entry = NULL;
    size_t index = 0, exact = 0, found = 0;
    program_run("list --canonical=all", &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    for (char *line = strtok_r(outcome.out, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        const json_t *named = entry_of(list, line);
        cr_assert_not_null(named, "%s", line);
        cr_expect(is_exact_schedule(named), "%s", line);
        found++;
    }
    json_array_foreach(list, index, entry) exact += is_exact_schedule(entry);
    cr_expect_eq(found, exact);
    outcome_release(&outcome);
    json_decref(list);
}

Test(catalogue, canonical_spellings)
{
    static const struct {
        const char *words, *lines;
    } cases[] = {
        {"--canonical=rhd", "recursive-halving-doubling\n"},
        {"--canonical=rd", "recursive-doubling\n"},
        {"--canonical='ring naive'", "ring\nnaive\n"},
        {"--canonical=ring,naive", "ring\nnaive\n"},
        {"--canonical=ring --canonical=naive", "ring\nnaive\n"},
        {"--canonical=hierarchical:intra=ring,inter=ring", "hierarchical\n"},
        {"--canonical=hierarchical:intra=naive,inter=rhd",
         "hierarchical:inter=recursive-halving-doubling,intra=naive\n"},
        {"--canonical=hierarchical:inter=rhd,ring", "hierarchical:inter=recursive-halving-doubling\nring\n"},
        {"--canonical=double-buffered:inner=[hierarchical:intra=ring,inter=rhd]",
         "double-buffered:inner=[hierarchical:inter=recursive-halving-doubling]\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct outcome outcome;
        char words[200];
        (void)snprintf(words, sizeof words, "list %s", cases[i].words);
        program_run(words, &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s: %s", words, outcome.err);
        cr_expect_str_eq(outcome.out, cases[i].lines, "%s: \"%s\"", words, outcome.out);
        outcome_release(&outcome);
    }
}

Test(catalogue, a_canonical_spelling_is_its_own)
{
    json_t *list = catalogue(), *entry = NULL;
    size_t index = 0;
    json_array_foreach(list, index, entry)
    {
        struct outcome once;
        char words[200], expected[200];
        if (needs_file(entry))
            continue;
        (void)snprintf(words, sizeof words, "list --canonical=%s", string_of(entry, "name"));
        (void)snprintf(expected, sizeof expected, "%s\n", string_of(entry, "name"));
        program_run(words, &once);
        cr_expect_eq(once.exit_code, 0, "%s", once.err);
        cr_expect_str_eq(once.out, expected);
        outcome_release(&once);
    }
    json_decref(list);
}

Test(catalogue, presets_are_no_algorithms_and_stand_for_canonical_specs)
{
    static const char *const chainermn[] = {"naive",       "flat",           "hierarchical", "two_dimensional",
                                            "single_node", "non_cuda_aware", "pure_nccl",    "dummy"};
    json_t *document = program_json("list --json"), *preset = NULL;
    const json_t *presets = json_object_get(document, "presets"), *list = json_object_get(document, "algorithms");
    size_t index = 0;
    cr_assert_geq(json_array_size(presets), 8);
    json_array_foreach(presets, index, preset)
    {
        cr_expect_str_not_empty(string_of(preset, "spec"));
        cr_expect_str_not_empty(string_of(preset, "summary"));
        cr_expect_null(entry_of(list, string_of(preset, "name")), "%s", string_of(preset, "name"));
    }
    cr_expect_not_null(entry_of(presets, "two-dimensional"));
    json_decref(document);
    for (size_t i = 0; i < sizeof chainermn / sizeof chainermn[0]; i++) {
        struct outcome outcome;
        char words[100];
        (void)snprintf(words, sizeof words, "list --canonical=chainermn_%s", chainermn[i]);
        program_run(words, &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s: %s", words, outcome.err);
        outcome_release(&outcome);
    }
}

Test(catalogue, externals_are_refused_with_the_reason_and_not_in_all)
{
    static const char *const commands[] = {"verify --allreduce=nccl -n 4",
                                           "explain --allreduce=nccl -n 4",
                                           "sim allreduce --allreduce=nccl --platform=" PLATFORM,
                                           "bench --allreduce=nccl -n 2 -e 8",
                                           "train --allreduce=pure_nccl -n 2",
                                           "sim train --allreduce=mpi --platform=" PLATFORM " --profile=" PROFILE};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct outcome outcome;
        program_run(commands[i], &outcome);
        cr_expect_eq(outcome.exit_code, 2, "%s", commands[i]);
        cr_expect(contains(outcome.err, "external"), "%s: %s", commands[i], outcome.err);
        outcome_release(&outcome);
    }
}

/* Files are read by every command, and hashed into the identity. */
Test(catalogue, files_that_specs_name)
{
    static const char *const commands[] = {
        "explain --allreduce=auto:costs=costs.csv -n 4", "verify --allreduce=auto:costs=costs.csv -n 4",
        "sim allreduce --allreduce=auto:costs=costs.csv --platform=" PLATFORM,
        "sim train --allreduce=db:inner=[auto:costs=costs.csv] --platform=" PLATFORM " --profile=" PROFILE,
        "list --identity=auto:costs=costs.csv"};
    struct outcome outcome;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        program_run(commands[i], &outcome);
        cr_expect_eq(outcome.exit_code, 1, "%s", commands[i]);
        cr_expect(contains(outcome.err, "costs: open costs.csv: No such file"), "%s: %s", commands[i], outcome.err);
        outcome_release(&outcome);
    }
    FILE *file = fopen("costs.csv", "w");
    cr_assert_not_null(file);
    cr_expect_gt(fputs("allreduce,workers,bytes,time_us\nnaive,4,8,1\n", file), 0);
    cr_expect_eq(fclose(file), 0);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        program_run(commands[i], &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s: %s", commands[i], outcome.err);
        outcome_release(&outcome);
    }
    program_run("list --identity='auto:costs=costs.csv ring'", &outcome);
    cr_expect(contains(outcome.out, "auto:costs=costs.csv#") && contains(outcome.out, "\nring\n"), "%s", outcome.out);
    outcome_release(&outcome);
    json_t *row = program_json("sim allreduce --allreduce=auto:costs=costs.csv -n 4 --json --platform=" PLATFORM);
    cr_expect_str_eq(string_of(row, "decided"), "naive, as measured on 4 workers");
    json_decref(row);
}

/* ---- verify ---- */

Test(catalogue, every_exact_schedule_is_proved_for_1_to_8_workers)
{
    static const char *const signature[] = {"equal_bits", "same_order", "whole_inputs"};
    json_t *list = catalogue(), *document = program_json("verify --allreduce=all -n 1..8 --json");
    json_t *results = json_object_get(document, "results"), *result = NULL;
    size_t index = 0, exact = 0, proved = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        exact += is_exact_schedule(json_array_get(list, i));
    cr_expect_eq(json_array_size(results), 8 * exact);
    json_array_foreach(results, index, result)
    {
        const char *name = string_of(result, "allreduce");
        bool ok = json_is_true(json_object_get(result, "ok")),
             refused = json_is_true(json_object_get(result, "refused"));
        cr_assert_not_null(entry_of(list, name), "%s", name);
        cr_expect_eq(integer_of(result, "workers"), (json_int_t)(index % 8 + 1));
        cr_expect(ok != refused, "%s on %lld workers", name, integer_of(result, "workers"));
        cr_expect_eq(json_is_string(json_object_get(result, "reason")), refused, "%s", name);
        for (size_t i = 0; i < sizeof signature / sizeof signature[0]; i++)
            cr_expect_eq(json_is_boolean(json_object_get(result, signature[i])), ok, "%s: %s", name, signature[i]);
        proved += ok;
    }
    cr_expect_gt(proved, 4 * exact);
    json_decref(document);
    json_decref(list);
}

Test(catalogue, strategies_are_proved_by_their_schedules)
{
    json_t *document =
        program_json("verify --allreduce='double-buffered gossip:graph=ring gossip synchronous' -n 2,4,7 --json");
    json_t *results = json_object_get(document, "results"), *result = NULL;
    size_t index = 0;
    cr_expect_eq(json_array_size(results), 12);
    json_array_foreach(results, index, result)
        cr_expect(json_is_true(json_object_get(result, "ok")), "%s on %lld: %s", string_of(result, "allreduce"),
                  integer_of(result, "workers"), json_string_value(json_object_get(result, "reason")));
    json_decref(document);
}

/* One-shot and naive send whole inputs; ring, which is quickest for 6 MiB alone, does not. */
Test(catalogue, what_auto_takes_between_powers_of_two_is_proved)
{
    program_write("costs.csv", "allreduce,workers,bytes,time_us\n"
                               "one-shot,4,4194304,10\none-shot,4,8388608,40\n"
                               "ring,4,4194304,30\nring,4,6291456,15\nring,4,8388608,30\n"
                               "naive,4,4194304,40\nnaive,4,8388608,20\n");
    json_t *document = program_json("verify --allreduce=auto:costs=costs.csv -n 4 --json");
    const json_t *result = json_array_get(json_object_get(document, "results"), 0);
    cr_expect(json_is_true(json_object_get(result, "ok")));
    cr_expect(json_is_false(json_object_get(result, "whole_inputs")));
    json_decref(document);
}

/* ---- sim ---- */

static void expect_simulated(const json_t *row, const json_t *list)
{
    const char *name = string_of(row, "allreduce");
    cr_assert_not_null(entry_of(list, name), "%s", name);
    cr_expect_eq(integer_of(row, "bytes"), 1 << 20);
    cr_expect_str_not_empty(string_of(row, "engine"));
    cr_expect_geq(number_of(row, "wall_s"), 0);
    if (json_is_string(json_object_get(row, "refused")))
        return;
    cr_expect_gt(number_of(row, "time_us"), 0, "%s", name);
    cr_expect_gt(integer_of(row, "events"), 0, "%s", name);
}

Test(catalogue, every_exact_schedule_is_simulated_on_2_to_9_workers)
{
    json_t *list = catalogue();
    json_t *document = program_json("sim allreduce --allreduce=all -n 2..9 --bytes=1M --json --platform=" PLATFORM);
    json_t *rows = json_object_get(document, "rows"), *row = NULL;
    size_t index = 0, exact = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        exact += is_exact_schedule(json_array_get(list, i));
    cr_expect_eq(json_array_size(rows), 8 * exact);
    json_array_foreach(rows, index, row)
    {
        expect_simulated(row, list);
        cr_expect_eq(integer_of(row, "workers"), (json_int_t)(index % 8 + 2));
    }
    json_decref(document);
    json_decref(list);
}

Test(catalogue, one_simulation_is_one_object)
{
    json_t *list = catalogue();
    json_t *row = program_json("sim allreduce --allreduce=ring -n 16 --bytes=1M --json --platform=" PLATFORM);
    expect_simulated(row, list);
    cr_expect_str_eq(string_of(row, "allreduce"), "ring");
    cr_expect_eq(integer_of(row, "workers"), 16);
    json_decref(row);
    json_decref(list);
}

Test(catalogue, simulated_training_has_its_keys)
{
    json_t *row =
        program_json("sim train --allreduce=double-buffered -n 8 --json --platform=" PLATFORM " --profile=" PROFILE);
    double step_ms = number_of(row, "step_ms");
    cr_expect_gt(number_of(row, "compute_ms"), 0);
    cr_expect_geq(number_of(row, "exposed_ms"), 0);
    cr_expect_geq(step_ms * (1 + 1e-9), number_of(row, "compute_ms") + number_of(row, "exposed_ms"));
    cr_expect_gt(number_of(row, "images_per_s"), 0);
    cr_expect_gt(number_of(row, "efficiency"), 0);
    cr_expect_leq(number_of(row, "efficiency"), 1 + 1e-9);
    cr_expect_str_eq(string_of(row, "allreduce"), "double-buffered");
    cr_expect_eq(integer_of(row, "workers"), 8);
    json_decref(row);
}

Test(catalogue, a_refused_simulation_is_a_row_among_others)
{
    json_t *document =
        program_json("sim allreduce --allreduce='ring hierarchical:intra=recursive-doubling' -n 4 --json "
                     "--platform=" PLATFORM);
    json_t *rows = json_object_get(document, "rows");
    cr_assert_eq(json_array_size(rows), 2);
    cr_expect(json_is_null(json_object_get(json_array_get(rows, 0), "refused")));
    cr_expect(contains(string_of(json_array_get(rows, 1), "refused"), "no halves"));
    cr_expect(json_is_null(json_object_get(json_array_get(rows, 1), "time_us")));
    json_decref(document);
}

/* ---- explain ---- */

Test(catalogue, every_entry_can_be_explained)
{
    json_t *list = catalogue(), *entry = NULL;
    size_t index = 0;
    json_array_foreach(list, index, entry)
    {
        struct outcome outcome;
        char words[300];
        if (strcmp(string_of(entry, "kind"), "external") == 0 || needs_file(entry))
            continue;
        (void)snprintf(words, sizeof words, "explain --allreduce=%s -n 4 --bytes=4K --platform=" PLATFORM,
                       string_of(entry, "name"));
        program_run(words, &outcome);
        cr_expect_eq(outcome.exit_code, 0, "%s: %s", words, outcome.err);
        cr_expect_str_empty(outcome.err, "%s", words);
        cr_expect(contains(outcome.out, string_of(entry, "name")), "%s: %s", words, outcome.out);
        outcome_release(&outcome);
    }
    json_decref(list);
}
