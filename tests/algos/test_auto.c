/* test_auto.c - auto takes what is quickest, says so, and is in all else the schedule that it took; files that specs name
 * are read by the caller, once each.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "algos/spec.h"
#include "algos/verify.h"
#include "base/memory.h"
#include "tests/base/expect.h"

/* ---- files of the tests, in memory ---- */

struct library {
    const char *path, *text;
    int reads;
};

static enum status read_from(void *context, const char *path, char **text, size_t *length)
{
    for (struct library *file = context; file->path != NULL; file++) {
        if (strcmp(file->path, path) != 0)
            continue;
        file->reads++;
        *length = strlen(file->text);
        return memory_string(text, file->text);
    }
    return fail(STATUS_IO, "open %s: no such file", path);
}

static enum status parse_with(const char *text, struct library *library, struct spec *spec)
{
    TRY(spec_parse(text, spec));
    enum status status = spec_read_files(spec, read_from, library);
    if (status < 0)
        spec_release(spec);
    return status;
}

static struct shape *shape_of(const char *text, const char *nodes, size_t count, struct library *library)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    EXPECT_OK(parse_with(text, library, &spec));
    EXPECT_OK(layout_parse(nodes, 0, &layout));
    EXPECT_OK(spec_shape(&spec, &layout, 0, count, &shape));
    cr_assert_not_null(shape, "%s", text);
    layout_release(&layout);
    spec_release(&spec);
    return shape;
}

static void expect_taken(const char *text, const char *nodes, size_t count, struct library *library, const char *wanted)
{
    struct text words = {0};
    struct shape *shape = shape_of(text, nodes, count, library);
    cr_expect(shape_describe(shape, &words));
    cr_expect_eq(strncmp(text_string(&words), wanted, strlen(wanted)), 0,
                 "%s on %s, %zu elements: \"%s\" is not \"%s\"", text, nodes, count, text_string(&words), wanted);
    text_release(&words);
    shape_destroy(shape);
}

static struct library no_files[] = {{.path = NULL}};

/* ---- closed forms ---- */

/* The least by the formulas of all candidates, found without auto. */
static double least_cost(const struct layout *layout, size_t count, double latency_us)
{
    size_t algorithms;
    const struct algorithm *const *all = catalogue_algorithms(&algorithms);
    const struct cost_model model = {.latency_s = latency_us * 1e-6, .seconds_per_byte = 1e-10, .reduce_s_per_byte = 0};
    double least = INFINITY;
    for (size_t i = 0; i < algorithms; i++) {
        const struct shape_request request = {.layout = layout};
        struct shape *shape;
        if (!algorithm_in_all(all[i]) || all[i]->cost == NULL || strcmp(all[i]->name, "auto") == 0 ||
            shape_create(all[i], &request, &shape) < 0)
            continue;
        if ((shape->traits & TRAIT_EQUAL_BITS) != 0)
            least = fmin(least, all[i]->cost(shape, &model, count * 4));
        shape_destroy(shape);
    }
    return least;
}

Test(automatic, takes_the_least_closed_form)
{
    static const size_t counts[] = {0, 1, 1000, 1000000, 100000000};
    static const int workers[] = {1, 2, 3, 5, 7, 8, 16, 33};
    const struct cost_model model = {.latency_s = 7e-6, .seconds_per_byte = 1e-10, .reduce_s_per_byte = 0};
    for (size_t w = 0; w < sizeof workers / sizeof workers[0]; w++) {
        char nodes[20];
        struct layout layout;
        (void)snprintf(nodes, sizeof nodes, "1x%d", workers[w]);
        EXPECT_OK(layout_parse(nodes, 0, &layout));
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            struct shape *shape =
                shape_of("auto:latency=7,bandwidth=10,overhead=0,reduce=0", nodes, counts[c], no_files);
            const double found = shape->algorithm->cost(shape, &model, counts[c] * 4);
            const double least = least_cost(&layout, counts[c], 7);
            cr_expect(fabs(found - least) <= 1e-9 * least, "%s, %zu elements: %g instead of %g", nodes, counts[c],
                      found, least);
            shape_destroy(shape);
        }
        layout_release(&layout);
    }
}

static size_t messages_of(const char *text)
{
    size_t messages = 0;
    struct shape *shape = shape_of(text, "1x33", 1, no_files);
    EXPECT_OK(shape_traffic(shape, 0, 1, 4, NULL, &messages));
    shape_destroy(shape);
    return messages;
}

Test(automatic, overhead_tells_against_many_messages_of_one_worker)
{
    cr_expect_geq(messages_of("auto:latency=1,overhead=0"), 32, "closed forms let a root talk to all at once");
    cr_expect_leq(messages_of("auto:latency=1,overhead=1"), 12);
}

Test(automatic, is_the_schedule_that_it_took)
{
    static const char *const nodes[] = {"1x1", "1x2", "1x5", "1x8", "2x3", "4+2"};
    static const size_t counts[] = {1, 10000, 10000000};
    for (size_t n = 0; n < sizeof nodes / sizeof nodes[0]; n++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            struct text words = {0};
            struct verify_result result;
            struct shape *shape = shape_of("auto", nodes[n], counts[c], no_files);
            cr_assert(shape_describe(shape, &words));
            words.data[strcspn(words.data, ",")] = '\0';
            struct shape *taken = shape_of(words.data, nodes[n], counts[c], no_files);
            cr_expect_eq(shape->chunks, taken->chunks);
            cr_expect_eq(shape->rounds, taken->rounds);
            cr_expect_eq(shape->lanes, taken->lanes);
            cr_expect_eq(shape->scratch, taken->scratch);
            cr_expect_eq(shape->traits, taken->traits | TRAIT_SIZE_DEPENDENT);
            cr_expect((shape->traits & TRAIT_EQUAL_BITS) != 0);
            cr_expect_eq(shape_has_halves(shape), shape_has_halves(taken));
            EXPECT_OK(verify_shape(shape, &result));
            cr_expect(result.ok, "%s: %s", words.data, result.reason);
            shape_destroy(taken);
            shape_destroy(shape);
            text_release(&words);
        }
}

Test(automatic, has_halves_where_they_are_needed)
{
    struct verify_result result;
    expect_taken("auto:overhead=0", "1x8", 10, no_files, "");
    for (size_t count = 1; count < 100000000; count *= 100) {
        struct shape *shape = shape_of("hierarchical:intra=auto,inter=auto", "2x4", count, no_files);
        EXPECT_OK(verify_shape(shape, &result));
        cr_expect(result.ok, "%s", result.reason);
        cr_expect((shape->traits & TRAIT_SIZE_DEPENDENT) != 0);
        shape_destroy(shape);
    }
}

Test(automatic, is_no_deterministic_choice)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape;
    EXPECT_OK(spec_parse("auto:deterministic=1", &spec));
    EXPECT_OK(layout_flat(4, &layout));
    EXPECT_FAIL(STATUS_REFUSED, "different schedules for different sizes", spec_shape(&spec, &layout, 0, 100, &shape));
    cr_expect(spec_is_exact(&spec) && spec_is_size_dependent(&spec));
    spec_release(&spec);
    EXPECT_OK(spec_parse("db:inner=[hierarchical:inter=auto]", &spec));
    cr_expect(spec_is_size_dependent(&spec));
    spec_release(&spec);
    EXPECT_OK(spec_parse("db:inner=hierarchical", &spec));
    cr_expect_not(spec_is_size_dependent(&spec));
    spec_release(&spec);
    layout_release(&layout);
}

/* ---- measured ---- */

#define HEAD "allreduce,workers,bytes,time_us,refused\n"

static struct library measured[] = {{.path = "a.csv",
                                     .text = HEAD
                                     "naive,4,8,5,\nring,4,8,10,\nnaive,4,1048576,900,\nring,4,1048576,300,\n"
                                     "naive,2,8,5,\nring,2,8,3,\n"
                                     "gossip,4,8,1,\nnone,4,8,1,\nauto,4,8,1,\n\"hierarchical:group=3+1\",4,8,2,\n"},
                                    {.path = "b.csv", .text = HEAD "recursive-doubling,8,8,5,\n"},
                                    {.path = "c.csv", .text = HEAD "no-such,8,8,5,\n"},
                                    {.path = "d.csv", .text = HEAD "gossip,8,8,5,\n"},
                                    {.path = NULL}};

Test(automatic, takes_the_least_measured_time)
{
    expect_taken("auto:costs=a.csv", "1x4", 2, measured, "hierarchical:group=3+1, as measured on 4 workers");
    expect_taken("auto:costs=a.csv", "1x5", 2, measured, "naive, as measured on 4 workers");
    expect_taken("auto:costs=a.csv", "1x5", 262144, measured, "ring, as measured on 4 workers");
    expect_taken("auto:costs=a.csv", "1x2", 2, measured, "ring, as measured on 2 workers");
    expect_taken("auto:costs=a.csv", "1x1", 2, measured, "ring, as measured on 2 workers");
    expect_taken("auto:costs=b.csv", "1x5", 2, measured, "recursive-doubling, as measured on 8 workers");
}

Test(automatic, says_why_a_table_of_costs_does_not_do)
{
    static const struct {
        const char *spec, *fragment;
        enum status status;
    } cases[] = {
        {"auto:costs=c.csv", "unknown algorithm no-such", STATUS_USAGE},
        {"auto:costs=d.csv", "no schedule measured in d.csv", STATUS_REFUSED},
        {"hierarchical:intra=[auto:costs=b.csv]", "no schedule measured in b.csv that has halves", STATUS_REFUSED},
    };
    struct layout layout;
    EXPECT_OK(layout_flat(4, &layout));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct spec spec;
        struct shape *shape;
        EXPECT_OK(parse_with(cases[i].spec, measured, &spec));
        EXPECT_FAIL(cases[i].status, cases[i].fragment, spec_shape(&spec, &layout, 0, 2, &shape));
        spec_release(&spec);
    }
    layout_release(&layout);
}

/* ---- files ---- */

Test(files, of_nested_specs_are_read_once_and_found)
{
    struct spec spec, copy, strategy;
    struct layout layout;
    struct shape *shape;
    uint64_t hash, other;
    struct text words = {0};
    EXPECT_OK(layout_parse("2x2", 0, &layout));
    EXPECT_OK(parse_with("hierarchical:intra=[auto:costs=a.csv],inter=[auto:costs=a.csv]", measured, &spec));
    cr_expect_eq(measured[0].reads, 1);
    cr_expect(spec_files_hash(&spec, &hash));
    EXPECT_OK(spec_as_strategy(&spec, &strategy));
    EXPECT_OK(spec_copy(&spec, &copy));
    spec_release(&spec);
    EXPECT_OK(spec_shape(&copy, &layout, 0, 2, &shape));
    shape_destroy(shape);
    EXPECT_OK(spec_shape(&strategy, &layout, 0, 2, &shape));
    shape_destroy(shape);
    cr_expect(spec_files_hash(&strategy, &other) && other == hash);
    spec_identity(&copy, &words);
    cr_expect_not_null(strstr(text_string(&words), "hierarchical:inter=[auto:costs=a.csv],intra=[auto:costs=a.csv]#"));
    text_release(&words);
    spec_release(&copy);
    spec_release(&strategy);
    layout_release(&layout);
}

Test(files, differ_in_the_identity_when_the_contents_do)
{
    struct library one[] = {{.path = "x", .text = HEAD "ring,4,8,1,\n"}, {.path = NULL}};
    struct library two[] = {{.path = "x", .text = HEAD "ring,4,8,2,\n"}, {.path = NULL}};
    struct spec a, b;
    struct text first = {0}, second = {0};
    EXPECT_OK(parse_with("auto:costs=x", one, &a));
    EXPECT_OK(parse_with("auto:costs=x", two, &b));
    spec_identity(&a, &first);
    spec_identity(&b, &second);
    cr_expect_str_neq(text_string(&first), text_string(&second));
    text_clear(&first);
    text_clear(&second);
    spec_canonical(&a, &first);
    spec_canonical(&b, &second);
    cr_expect_str_eq(text_string(&first), text_string(&second));
    text_release(&first);
    text_release(&second);
    spec_release(&a);
    spec_release(&b);
}

Test(files, missing_ones_are_told_with_their_option)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape;
    EXPECT_FAIL(STATUS_IO, "hierarchical: inter: auto: costs: open nix.csv",
                parse_with("hierarchical:inter=[auto:costs=nix.csv]", measured, &spec));
    EXPECT_OK(spec_parse("auto:costs=a.csv", &spec)); /* and nobody reads it */
    EXPECT_OK(layout_flat(2, &layout));
    EXPECT_FAIL(STATUS_REFUSED, "costs=a.csv", spec_shape(&spec, &layout, 0, 2, &shape));
    layout_release(&layout);
    spec_release(&spec);
    EXPECT_FAIL(STATUS_USAGE, "costs", spec_parse("auto:costs=", &spec));
}

Test(files, a_spec_without_any_has_no_hash)
{
    struct spec spec;
    uint64_t hash;
    EXPECT_OK(parse_with("hierarchical:intra=auto", no_files, &spec));
    cr_expect_not(spec_files_hash(&spec, &hash));
    spec_release(&spec);
}
