/* test_verify.c - the verifier proves what is right: the catalogue, hierarchies, mixing steps; and says what is equal.
 * What is wrong is in test_mutants.c.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "algos/verify.h"
#include "tests/algos/support_toy.h"

/* The shape of a spec, NULL when it is refused. */
static struct shape *shape_of(const char *text, const struct layout *layout)
{
    struct spec spec;
    struct shape *shape = NULL;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    const enum status status = spec_shape(&spec, layout, 0, 1000, &shape);
    cr_assert(status == STATUS_OK || status == STATUS_REFUSED, "%s: %s", text, status_message());
    spec_release(&spec);
    return shape;
}

static struct verify_result result_of(const struct shape *shape)
{
    struct verify_result result;
    cr_assert_eq(verify_shape(shape, &result), STATUS_OK, "%s", status_message());
    return result;
}

/* ---- the catalogue ---- */

static void expect_all_proved(int workers)
{
    struct spec *specs = NULL;
    size_t count = 0;
    struct layout layout;
    cr_assert_eq(layout_flat(workers, &layout), STATUS_OK);
    cr_assert_eq(spec_list_parse("all", &specs, &count), STATUS_OK, "%s", status_message());
    cr_assert_gt(count, 0);
    for (size_t i = 0; i < count; i++) {
        struct shape *shape = NULL;
        const char *name = specs[i].algorithm->name;
        const enum status status = spec_shape(&specs[i], &layout, 0, 1000, &shape);
        if (status == STATUS_REFUSED && !(specs[i].algorithm->traits & TRAIT_ANY_SIZE))
            continue;
        cr_assert_eq(status, STATUS_OK, "%s: %s", name, status_message());
        const struct verify_result result = result_of(shape);
        cr_expect(result.ok, "%s, %d workers: %s", name, workers, result.reason);
        cr_expect_eq(result.fault, FAULT_NONE);
        shape_destroy(shape);
    }
    spec_list_release(specs, count);
    layout_release(&layout);
}

Test(verify, proves_the_catalogue_on_small_teams)
{
    for (int p = 1; p <= 33; p++)
        expect_all_proved(p);
}

Test(verify, proves_the_catalogue_where_a_set_of_workers_needs_another_word)
{
    const int sizes[] = {64, 65, 128, 129}; /* chorale verify goes through all up to 130 (tests/run.sh) */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        expect_all_proved(sizes[i]);
}

/* ---- hierarchies ---- */

/* All pairs of what can be inside and between nodes; how many were not refused. */
static int expect_hierarchies_proved(const char *nodes, int workers)
{
    size_t count = 0;
    int proved = 0;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    struct layout layout;
    cr_assert_eq(layout_parse(nodes, workers, &layout), STATUS_OK, "%s", status_message());
    for (size_t a = 0; a < count; a++)
        for (size_t b = 0; b < count; b++) {
            char text[256];
            if (algorithms[a]->owner == NULL || !algorithm_in_all(algorithms[b]))
                continue;
            (void)snprintf(text, sizeof text, "hierarchical:intra=%s,inter=%s", algorithms[a]->name,
                           algorithms[b]->name);
            struct shape *shape = shape_of(text, &layout);
            if (shape == NULL)
                continue;
            const struct verify_result result = result_of(shape);
            cr_expect(result.ok, "%s on %s: %s", text, nodes, result.reason);
            proved++;
            shape_destroy(shape);
        }
    layout_release(&layout);
    return proved;
}

Test(verify, proves_hierarchies_of_unequal_nodes)
{
    cr_expect_geq(expect_hierarchies_proved("4+2", 6), 9);
    cr_expect_geq(expect_hierarchies_proved("3+3+3+2", 11), 9);
    cr_expect_geq(expect_hierarchies_proved("5+6+7+8", 26), 3, "what has one chunk goes on any nodes");
}

Test(verify, proves_hierarchies_of_equal_nodes)
{
    cr_expect_geq(expect_hierarchies_proved("2x4", 8), 9);
    cr_expect_geq(expect_hierarchies_proved("4x2", 8), 9);
    cr_expect_geq(expect_hierarchies_proved("1x6", 6), 9);
    cr_expect_geq(expect_hierarchies_proved("6x1", 6), 9);
}

Test(verify, proves_hierarchies_in_hierarchies)
{
    const char *const specs[] = {"hierarchical:group=4,intra=ring,inter=[hierarchical:group=2,intra=rhd,inter=rd]",
                                 "hierarchical:group=8,intra=[hierarchical:group=2,intra=ring,inter=rhd],inter=ring"};
    struct layout layout;
    cr_assert_eq(layout_flat(16, &layout), STATUS_OK);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        struct shape *shape = shape_of(specs[i], &layout);
        cr_assert_not_null(shape, "%s", status_message());
        const struct verify_result result = result_of(shape);
        cr_expect(result.ok, "%s: %s", specs[i], result.reason);
        shape_destroy(shape);
    }
    layout_release(&layout);
}

static struct verify_result flat_result(const char *text, int workers)
{
    struct layout layout;
    cr_assert_eq(layout_flat(workers, &layout), STATUS_OK);
    struct shape *shape = shape_of(text, &layout);
    cr_assert_not_null(shape, "%s", status_message());
    const struct verify_result result = result_of(shape);
    shape_destroy(shape);
    layout_release(&layout);
    return result;
}

/* Lanes of one phase touch what other lanes of the next do: FENCEs between the phases order them. */
Test(verify, proves_compositions_of_several_lanes)
{
    static const char *const specs[] = {
        "hierarchical:group=4,intra=multi-ring,inter=[dbt:chunks=3]",
        "hierarchical:group=4,intra=[dbt:chunks=1],inter=[multi-ring:rings=3]",
        "hierarchical:group=6,intra=[hierarchical:group=2,intra=multi-ring,inter=all-pairs],inter=dbt",
        "hierarchical:group=2,inter=[hierarchical:group=3,intra=[dbt:chunks=1],inter=one-shot]",
    };
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        const struct verify_result result = flat_result(specs[i], 12);
        cr_expect(result.ok, "%s: %s", specs[i], result.reason);
    }
}

/* ---- what is equal ---- */

Test(verify, tells_whether_the_result_depends_on_the_count)
{
    const int sizes[] = {4, 6, 7, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cr_expect(flat_result("rd", sizes[i]).equal_bits);
        cr_expect(flat_result("ring", sizes[i]).equal_bits);
        cr_expect_not(flat_result("ring", sizes[i]).same_order, "another order of additions in each chunk");
        cr_expect(flat_result("rhd", sizes[i]).same_order);
        cr_expect(flat_result("binomial", sizes[i]).same_order);
    }
}

/* Everyone adds the others to its own, in ascending order: ((0+1)+2), ((1+0)+2), ((2+0)+1). */
TOY(own_first, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_SEND(0, 0, 0, 2, 0, 1), TOY_REDUCE(0, 0, 0, 1, 0, 1),
    TOY_FINAL(0, 0, 0, 2, 0, 1), TOY_SEND(1, 0, 0, 0, 0, 1), TOY_SEND(1, 0, 0, 2, 0, 1), TOY_REDUCE(1, 0, 0, 0, 0, 1),
    TOY_FINAL(1, 0, 0, 2, 0, 1), TOY_SEND(2, 0, 0, 0, 0, 1), TOY_SEND(2, 0, 0, 1, 0, 1), TOY_REDUCE(2, 0, 0, 0, 0, 1),
    TOY_FINAL(2, 0, 0, 1, 0, 1));

Test(verify, tells_whether_workers_have_equal_bits)
{
    const struct shape shape = toy_shape(&own_first, 3, 1, 1);
    const struct verify_result result = result_of(&shape);
    cr_expect(result.ok, "%s", result.reason);
    cr_expect_not(result.equal_bits);
    cr_expect_not(result.same_order);
}

static const struct {
    unsigned trait;
    const char *name;
} signatures[] = {
    {TRAIT_EQUAL_BITS, "equal bits"}, {TRAIT_SAME_ORDER, "same order"}, {TRAIT_WHOLE_INPUTS, "whole inputs"}};

static bool has_trait(const struct verify_result *result, unsigned trait)
{
    return trait == TRAIT_EQUAL_BITS   ? result->equal_bits
           : trait == TRAIT_SAME_ORDER ? result->same_order
                                       : result->whole_inputs;
}

/* A trait that is claimed and not there is a fault; one that is there on all of these teams must be claimed. */
static void expect_traits_declared(const struct algorithm *algorithm)
{
    unsigned undeclared = 0, lacking = 0;
    for (int p = 1; p <= 16; p++) {
        struct layout layout;
        cr_assert_eq(layout_flat(p, &layout), STATUS_OK);
        struct shape *shape = shape_of(algorithm->name, &layout);
        layout_release(&layout);
        if (shape == NULL)
            continue;
        const struct verify_result result = result_of(shape);
        cr_expect(result.ok, "%s, %d workers: %s", algorithm->name, p, result.reason);
        for (size_t i = 0; i < sizeof signatures / sizeof signatures[0]; i++) {
            lacking |= has_trait(&result, signatures[i].trait) ? 0 : signatures[i].trait;
            undeclared |= shape->traits & signatures[i].trait ? 0 : signatures[i].trait;
        }
        shape_destroy(shape);
    }
    for (size_t i = 0; i < sizeof signatures / sizeof signatures[0]; i++)
        cr_expect(!(undeclared & signatures[i].trait) || (lacking & signatures[i].trait),
                  "%s has %s on all teams up to 16 and does not say so", algorithm->name, signatures[i].name);
}

Test(verify, algorithms_say_what_their_additions_have)
{
    size_t count = 0;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++)
        if (algorithm_in_all(algorithms[i]))
            expect_traits_declared(algorithms[i]);
}

static void expect_claim(struct shape shape, unsigned claim, enum fault fault)
{
    shape.traits |= claim;
    const struct verify_result result = result_of(&shape);
    cr_expect_eq(result.fault, fault, "%s instead of %s: %s", fault_name(result.fault), fault_name(fault),
                 result.reason);
}

/* A part of the sum travels, and whole inputs do. */
TOY(passed_on, TOY_SEND(2, 0, 0, 1, 0, 1), TOY_REDUCE(1, 0, 0, 2, 0, 1), TOY_SEND(1, 1, 0, 0, 0, 1),
    TOY_FINAL(0, 1, 0, 1, 0, 1), TOY_SEND(0, 2, 0, 1, 0, 1), TOY_SEND(0, 2, 0, 2, 0, 1), TOY_RECV(1, 2, 0, 0, 0, 1),
    TOY_RECV(2, 2, 0, 0, 0, 1));

Test(verify, finds_traits_that_are_claimed_and_not_there)
{
    expect_claim(toy_shape(&own_first, 3, 1, 1), 0, FAULT_NONE);
    expect_claim(toy_shape(&own_first, 3, 1, 1), TRAIT_EQUAL_BITS, FAULT_TRAIT);
    expect_claim(toy_shape(&own_first, 3, 1, 1), TRAIT_SAME_ORDER, FAULT_TRAIT);
    expect_claim(toy_shape(&own_first, 3, 1, 1), TRAIT_WHOLE_INPUTS, FAULT_NONE);
    expect_claim(toy_shape(&passed_on, 3, 1, 1), TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER, FAULT_NONE);
    expect_claim(toy_shape(&passed_on, 3, 1, 1), TRAIT_WHOLE_INPUTS, FAULT_TRAIT);
}

/* ---- what is no reduction ---- */

Test(verify, says_what_none_lacks)
{
    cr_expect(flat_result("none", 1).ok);
    const struct verify_result result = flat_result("none", 3);
    cr_expect_not(result.ok);
    cr_expect_eq(result.fault, FAULT_MISSING);
    cr_expect_str_eq(result.reason, "missing-contribution: worker 0 chunk 0 lacks worker 1 (round 0)");
}

Test(verify, proves_mixing_steps_of_all_graphs)
{
    size_t count = 0;
    const struct graph *const *graphs = catalogue_graphs(&count);
    for (size_t g = 0; g < count; g++)
        for (int p = 1; p <= 20; p++) {
            if (graphs[g]->check(p) < 0)
                continue;
            for (uint64_t step = 0; step < graphs[g]->period(p); step++) {
                struct shape *shape = NULL;
                cr_assert_eq(mixing_shape(graphs[g], p, step, &shape), STATUS_OK, "%s", status_message());
                const struct verify_result result = result_of(shape);
                cr_expect(result.ok, "%s, %d workers, step %llu: %s", graphs[g]->name, p, (unsigned long long)step,
                          result.reason);
                shape_destroy(shape);
            }
        }
}

#define TOY_SCALE(r, w)                                                                                                \
    {                                                                                                                  \
        (r),                                                                                                           \
        {                                                                                                              \
            .kind = OP_SCALE, .peer = -1, .dst = TOY_LEAVES(0, 1), .weight = (w)                                       \
        }                                                                                                              \
    }
#define TOY_MIX(r, q, w)                                                                                               \
    {                                                                                                                  \
        (r),                                                                                                           \
        {                                                                                                              \
            .kind = OP_RECV_REDUCE, .peer = (q), .dst = TOY_LEAVES(0, 1), .weight = (w)                                \
        }                                                                                                              \
    }
TOY(fair, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_SCALE(0, 0.75), TOY_MIX(0, 1, 0.25), TOY_SEND(1, 0, 0, 0, 0, 1),
    TOY_SCALE(1, 0.75), TOY_MIX(1, 0, 0.25));
TOY(row_of_more, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_SCALE(0, 0.75), TOY_MIX(0, 1, 0.25), TOY_SEND(1, 0, 0, 0, 0, 1),
    TOY_SCALE(1, 0.75), TOY_MIX(1, 0, 0.5));
TOY(one_gives_more, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_SCALE(0, 0.75), TOY_MIX(0, 1, 0.25), TOY_SEND(1, 0, 0, 0, 0, 1),
    TOY_SCALE(1, 0.5), TOY_MIX(1, 0, 0.5));
TOY(sent_too_late, TOY_SCALE(0, 0.75), TOY_SEND(0, 0, 0, 1, 0, 1), TOY_MIX(0, 1, 0.25), TOY_SEND(1, 0, 0, 0, 0, 1),
    TOY_SCALE(1, 0.75), TOY_MIX(1, 0, 0.25));

/* The same matrix, but of an op that no worker weights. */
TOY(weighted_copy, TOY_SEND(0, 0, 0, 1, 0, 1),
    {0, {.kind = OP_COPY, .peer = -1, .src = TOY_LEAVES(0, 1), .dst = TOY_LEAVES(0, 1), .weight = 0.75}},
    TOY_MIX(0, 1, 0.25), TOY_SEND(1, 0, 0, 0, 0, 1), TOY_SCALE(1, 0.75), TOY_MIX(1, 0, 0.25));

static void expect_mixing(struct toy *toy, enum fault fault)
{
    struct shape shape = toy_shape(toy, 2, 1, 1);
    struct algorithm algorithm = *shape.algorithm;
    algorithm.traits = TRAIT_INEXACT | TRAIT_MIXING;
    shape.algorithm = &algorithm;
    const struct verify_result result = result_of(&shape);
    cr_expect_eq(result.fault, fault, "%s instead of %s: %s", fault_name(result.fault), fault_name(fault),
                 result.reason);
}

Test(verify, finds_rows_and_columns_that_do_not_sum_to_one)
{
    expect_mixing(&fair, FAULT_NONE);
    expect_mixing(&row_of_more, FAULT_WEIGHTS);
    expect_mixing(&one_gives_more, FAULT_WEIGHTS);
    expect_mixing(&sent_too_late, FAULT_WEIGHTS);
    expect_mixing(&weighted_copy, FAULT_BAD_OP);
}

/* ---- large teams ---- */

static struct verify_result result_within(const char *text, int workers, size_t bytes, enum status wanted)
{
    struct layout layout;
    struct verify_result result;
    cr_assert_eq(layout_flat(workers, &layout), STATUS_OK);
    struct shape *shape = shape_of(text, &layout);
    cr_assert_not_null(shape, "%s", status_message());
    status_clear();
    const enum status status = verify_shape_within(shape, bytes, &result);
    cr_expect_eq(status, wanted, "%s, %d workers: %s", text, workers, status_message());
    shape_destroy(shape);
    layout_release(&layout);
    return result;
}

Test(verify, proves_large_teams_by_sums)
{
    const char *const specs[] = {"rd", "binomial", "naive", "rhd", "circulant"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (int p = VERIFY_EXACT_WORKERS; p <= VERIFY_EXACT_WORKERS + 1; p++) {
            const struct verify_result result = result_within(specs[i], p, VERIFY_BYTES, STATUS_OK);
            cr_expect(result.ok, "%s, %d workers: %s", specs[i], p, result.reason);
            cr_expect_eq(result.exact, p == VERIFY_EXACT_WORKERS);
            cr_expect(result.equal_bits);
        }
}

/* All send to worker 0, which hands out the result; but one sends twice and another not at all: as many contributions
 * as there are workers, and not one of each. */
static enum status unfair_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const int p = shape->workers;
    for (int r = 1; r < p; r++) {
        const int sender = r == 2 ? 1 : r;
        if (round == 0 && rank == 0)
            TRY(emit_recv_reduce(sink, sender, 0, 1, r == p - 1));
        else if (round == 0 && rank == sender)
            TRY(emit_send(sink, 0, 0, 1));
        else if (round == 1 && rank == 0)
            TRY(emit_send(sink, r, 0, 1));
        else if (round == 1 && rank == r)
            TRY(emit_recv(sink, 0, 0, 1));
    }
    return STATUS_OK;
}

Test(verify, finds_by_sums_what_is_there_twice_and_what_is_missing)
{
    static const struct algorithm unfair = {.name = "unfair", .emit = unfair_emit};
    const struct {
        int workers;
        enum fault fault;
    } cases[] = {{VERIFY_EXACT_WORKERS, FAULT_DOUBLED}, {VERIFY_EXACT_WORKERS + 1, FAULT_MISSING}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct shape shape = {
            .algorithm = &unfair, .workers = cases[i].workers, .chunks = 1, .rounds = 2, .lanes = 1};
        const struct verify_result result = result_of(&shape);
        cr_expect_eq(result.fault, cases[i].fault, "%s", result.reason);
    }
}

Test(verify, follows_a_sample_of_chunks_where_all_take_too_much)
{
    const size_t all = (size_t)64 * 64 * 64; /* bytes enough for all chunks of 64 workers, and more */
    cr_expect_eq(result_within("ring", 64, all, STATUS_OK).chunks, 64);
    const struct verify_result half = result_within("ring", 64, all / 4, STATUS_OK);
    cr_expect(half.ok, "%s", half.reason);
    cr_expect(half.chunks > 0 && half.chunks < 64, "%u chunks", (unsigned)half.chunks);
    cr_expect(half.equal_bits);
    cr_expect(result_within("rhd", 50, all / 4, STATUS_OK).ok);
    cr_expect(result_within("circulant", 50, all / 4, STATUS_OK).ok);
    result_within("rd", 64, 1000, STATUS_REFUSED);
    cr_expect(strstr(status_message(), "planes of one chunk") != NULL, "%s", status_message());
}

/* Leaf 0 of each worker becomes leaf 1 of the other, and the reverse. */
TOY(crossed, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_FINAL(0, 0, 0, 1, 1, 1), TOY_SEND(1, 0, 0, 0, 0, 1),
    TOY_FINAL(1, 0, 0, 0, 1, 1));

Test(verify, takes_no_sample_of_chunks_that_move)
{
    const struct shape shape = toy_shape(&crossed, 2, 2, 1);
    struct verify_result result;
    cr_expect_eq(verify_shape_within(&shape, 100, &result), STATUS_REFUSED);
    cr_expect(strstr(status_message(), "moves chunks") != NULL, "%s", status_message());
    cr_expect_eq(result_of(&shape).fault, FAULT_MISSING);
}

Test(verify, finds_in_mixing_on_large_teams_rows_and_columns_that_do_not_sum_to_one)
{
    size_t count = 0;
    const struct graph *const *graphs = catalogue_graphs(&count);
    const int p = 2 * VERIFY_EXACT_WORKERS;
    for (size_t g = 0; g < count; g++) {
        struct shape *shape = NULL;
        if (graphs[g]->check(p) < 0)
            continue;
        cr_assert_eq(mixing_shape(graphs[g], p, 1, &shape), STATUS_OK, "%s", status_message());
        const struct verify_result result = result_of(shape);
        cr_expect(result.ok, "%s: %s", graphs[g]->name, result.reason);
        cr_expect_not(result.exact);
        shape_destroy(shape);
    }
}

/* Ring of averages with the next: rows of one; with `uneven`, worker 0 gives its neighbour less than it gets. */
static enum status averages_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const int p = shape->workers;
    const double taken = *(const double *)shape->state;
    const double weight = rank == 1 ? taken : 0.5;
    (void)round;
    TRY(emit_send(sink, (rank + 1) % p, 0, 1));
    TRY(emit_scale(sink, 0, 1, 1 - weight));
    return emit_recv_mix(sink, (rank + p - 1) % p, 0, 1, weight);
}

Test(verify, finds_one_wrong_weight_of_many)
{
    static const struct algorithm averages = {
        .name = "averages", .traits = TRAIT_INEXACT | TRAIT_MIXING, .emit = averages_emit};
    const int workers[] = {5, 2 * VERIFY_EXACT_WORKERS};
    for (size_t i = 0; i < sizeof workers / sizeof workers[0]; i++) {
        double taken = 0.5;
        const struct shape shape = {
            .algorithm = &averages, .workers = workers[i], .chunks = 1, .rounds = 1, .lanes = 1, .state = &taken};
        cr_expect_eq(result_of(&shape).fault, FAULT_NONE);
        taken = 0.5 + 1e-6; /* its row still sums to one */
        cr_expect_eq(result_of(&shape).fault, FAULT_WEIGHTS);
    }
}

Test(verify, has_a_name_for_every_fault)
{
    for (int a = FAULT_NONE; a <= FAULT_ROUNDING; a++)
        for (int b = FAULT_NONE; b < a; b++)
            cr_expect_str_neq(fault_name((enum fault)a), fault_name((enum fault)b));
}

/* ---- rounding on the wire ---- */

/* Worker 0 keeps a copy of its input from before it was sent, and adds that: the same sum, but not of what worker 1
 * gets when the wire format rounds. */
TOY(kept_unrounded, TOY_LOCAL(0, 0, 0, OP_COPY, 0, TOY_VECTOR, 0), TOY_SEND(0, 0, 0, 1, 0, 1),
    TOY_RECV(0, 0, 0, 1, 0, 1), TOY_LOCAL(0, 0, 0, OP_REDUCE, OP_FINAL, 0, TOY_VECTOR), TOY_SEND(1, 0, 0, 0, 0, 1),
    TOY_FINAL(1, 0, 0, 0, 0, 1));
TOY(copied_after, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_LOCAL(0, 0, 0, OP_COPY, 0, TOY_VECTOR, 0), TOY_RECV(0, 0, 0, 1, 0, 1),
    TOY_LOCAL(0, 0, 0, OP_REDUCE, OP_FINAL, 0, TOY_VECTOR), TOY_SEND(1, 0, 0, 0, 0, 1), TOY_FINAL(1, 0, 0, 0, 0, 1));

Test(verify, equal_bits_hold_where_the_wire_format_rounds)
{
    struct shape shape = toy_shape(&copied_after, 2, 1, 1);
    shape.scratch = 1;
    struct verify_result result = result_of(&shape);
    cr_expect(result.ok && result.equal_bits, "%s", result.reason);
    shape = toy_shape(&kept_unrounded, 2, 1, 1);
    shape.scratch = 1;
    result = result_of(&shape);
    cr_expect_eq(result.fault, FAULT_ROUNDING, "%s", result.reason);
}
