/* test_logarithmic.c - what is particular to schedules of a logarithmic number of rounds. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/algos/support_schedule.h"

static uint32_t log2_up(int p)
{
    uint32_t levels = 0;
    while ((1LL << levels) < p)
        levels++;
    return levels;
}

Test(circulant, has_the_fewest_rounds_and_the_least_bytes_for_any_number)
{
    for (int p = 1; p <= 130; p++) {
        struct shape *shape = schedule_of("circulant", p);
        const uint32_t levels = log2_up(p);
        cr_expect_eq(shape->split, levels, "%d workers", p);
        cr_expect_eq(shape->rounds, 2 * levels, "%d workers", p);
        for (int r = 0; r < p; r++) {
            cr_expect_eq(shape->algorithm->owner(shape, (uint32_t)r), r);
            expect_sends(shape, r, 100 * (size_t)p, 200 * ((size_t)p - 1), 2 * levels);
        }
        shape_destroy(shape);
    }
}

/* A run of chunks around the end is one message, on both sides. */
struct joins {
    struct sink sink; /* first */
    size_t sends, receives;
};

static enum status count_joins(struct sink *sink, const struct op *op)
{
    struct joins *joins = (struct joins *)sink;
    joins->sends += op->kind == OP_SEND && (op->flags & OP_MORE);
    joins->receives += op->kind != OP_SEND && (op->flags & OP_MORE);
    return STATUS_OK;
}

Test(circulant, joins_what_goes_around_the_end)
{
    static const int joined[] = {[3] = 0, [4] = 2, [5] = 2, [8] = 8};
    for (int p = 3; p <= 8; p = p == 5 ? 8 : p + 1) {
        struct shape *shape = schedule_of("circulant", p);
        struct joins joins = {.sink = {.op = count_joins}};
        for (int r = 0; r < p; r++)
            for (joins.sink.round = 0; joins.sink.round < shape->rounds; joins.sink.round++)
                cr_assert_eq(shape->algorithm->emit(shape, r, joins.sink.round, &joins.sink), STATUS_OK);
        cr_expect_eq(joins.sends, joins.receives);
        cr_expect_eq(joins.sends, (size_t)joined[p], "%d workers: %zu", p, joins.sends);
        shape_destroy(shape);
    }
}

/* ---- groups ---- */

static void expect_described(const char *spec, int workers, uint32_t rounds, const char *words)
{
    struct shape *shape = schedule_of(spec, workers);
    struct text text = {0};
    shape->algorithm->describe(shape, &text);
    cr_expect_str_eq(text_string(&text), words, "%s for %d workers: %s", spec, workers, text_string(&text));
    cr_expect_eq(shape->rounds, rounds, "%s for %d workers: %u rounds", spec, workers, shape->rounds);
    text_release(&text);
    shape_destroy(shape);
}

Test(recursive_exchange, takes_factors_up_to_the_radix_or_folds)
{
    expect_described("recursive-exchange", 1, 0, "groups of 1");
    expect_described("recursive-exchange", 4, 1, "groups of 4");
    expect_described("recursive-exchange", 12, 2, "groups of 4x3");
    expect_described("recursive-exchange", 64, 3, "groups of 4x4x4");
    expect_described("recursive-exchange", 5, 3, "groups of 3, 2 workers folded");
    expect_described("recursive-exchange", 11, 3, "groups of 4, 7 workers folded");
    expect_described("recursive-exchange:radix=2", 11, 5, "groups of 2x2x2, 3 workers folded");
    expect_described("recursive-exchange:radix=8", 128, 3, "groups of 8x4x4");
    expect_described("recursive-exchange:radix=256", 251, 1, "groups of 251");
}

/* Rounds of recursive doubling and of MPICH's recursive exchange, for powers of the radix. */
Test(recursive_exchange, sends_k_minus_1_vectors_a_round)
{
    for (int radix = 2, p = 1; radix <= 5; radix++, p = 1)
        for (uint32_t rounds = 0; p <= 130; rounds++, p *= radix) {
            char spec[40];
            (void)snprintf(spec, sizeof spec, "recursive-exchange:radix=%d", radix);
            struct shape *shape = schedule_of(spec, p);
            cr_expect_eq(shape->rounds, rounds);
            for (int r = 0; r < p; r++)
                expect_sends(shape, r, 100, 100 * rounds * ((size_t)radix - 1), rounds * ((size_t)radix - 1));
            shape_destroy(shape);
        }
}

Test(k_nomial_sra, takes_factors_up_to_the_radix_or_folds_in_pairs)
{
    expect_described("k-nomial-sra", 1, 0, "groups of 1");
    expect_described("k-nomial-sra", 6, 4, "groups of 3x2");
    expect_described("k-nomial-sra", 72, 8, "groups of 4x3x3x2");
    expect_described("k-nomial-sra", 7, 4, "groups of 4, 3 workers folded");
    expect_described("k-nomial-sra", 97, 8, "groups of 4x4x4, 33 workers folded");
    expect_described("k-nomial-sra:radix=2", 97, 14, "groups of 2x2x2x2x2x2, 33 workers folded");
}

Test(bcube, takes_the_base_and_what_is_left)
{
    expect_described("bcube", 8, 6, "groups of 2x2x2");
    expect_described("bcube", 12, 6, "groups of 2x2x3");
    expect_described("bcube", 7, 2, "groups of 7");
    expect_described("bcube:base=3", 12, 4, "groups of 3x4");
    expect_described("bcube:base=5", 12, 2, "groups of 12");
}

Test(groups, without_folding_every_worker_sends_the_least_bytes)
{
    static const char *const specs[] = {"k-nomial-sra", "k-nomial-sra:radix=3", "bcube", "bcube:base=3"};
    static const int workers[] = {2, 4, 6, 9, 12, 16, 27, 48};
    for (size_t i = 0; i < 4; i++)
        for (size_t w = 0; w < sizeof workers / sizeof workers[0]; w++) {
            const int p = workers[w];
            struct shape *shape = schedule_of(specs[i], p);
            size_t owned = 0;
            for (int r = 0; r < p; r++) {
                size_t bytes = 0;
                cr_assert_eq(shape_traffic(shape, r, 10 * (size_t)p, 1, &bytes, NULL), STATUS_OK);
                cr_expect_eq(bytes, 20 * ((size_t)p - 1), "%s: worker %d of %d sends %zu", specs[i], r, p, bytes);
                for (uint32_t c = 0; c < shape->chunks; c++)
                    owned += shape->algorithm->owner(shape, c) == r;
            }
            cr_expect_eq(owned, (size_t)p);
            shape_destroy(shape);
        }
}

/* The header's example: two workers of bcube that are neighbours have halves, not the chunks next to each other. */
Test(bcube, gives_the_largest_parts_to_neighbours)
{
    static const uint32_t chunk_of[] = {0, 3, 1, 4, 2, 5};
    struct shape *shape = schedule_of("bcube", 6);
    for (int r = 0; r < 6; r++)
        cr_expect_eq(shape->algorithm->owner(shape, chunk_of[r]), r);
    shape_destroy(shape);
}

/* ---- allgather-reduce ---- */

Test(allgather_reduce, gathers_in_joined_messages)
{
    for (int p = 1; p <= 33; p++) {
        struct shape *shape = schedule_of("allgather-reduce", p);
        const uint32_t levels = log2_up(p);
        cr_expect_eq(shape->rounds, levels + (p > 1), "%d workers", p);
        cr_expect_eq(shape->scratch, (uint32_t)p - 1);
        for (int r = 0; r < p; r++)
            expect_sends(shape, r, 100, 100 * ((size_t)p - 1), levels);
        shape_destroy(shape);
    }
}

/* ---- binary blocks ---- */

Test(binary_blocks, every_block_hands_its_vector_up_once_and_the_result_down_once)
{
    struct shape *shape = schedule_of("binary-blocks", 13); /* 8 + 4 + 1 */
    cr_expect_eq(shape->chunks, 8);
    cr_expect_eq(shape->split, 3 + 2);
    cr_expect_eq(shape->rounds, 10);
    for (int r = 0; r < 8; r++) /* halving 700, doubling 700, a chunk down */
        expect_sends(shape, r, 800, 1400 + 100, 7);
    for (int r = 8; r < 12; r++) /* halving and doubling 600 each, two chunks up, two chunks down */
        expect_sends(shape, r, 800, 1200 + 200 + 200, 2 + 2 + 2 + 1);
    expect_sends(shape, 12, 800, 800, 4);
    shape_destroy(shape);
}

Test(binary_blocks, is_recursive_halving_for_powers_of_two)
{
    for (int p = 1; p <= 64; p *= 2) {
        struct shape *shape = schedule_of("binary-blocks", p);
        const uint32_t levels = log2_up(p);
        cr_expect_eq(shape->rounds, 2 * levels);
        for (int r = 0; r < p; r++)
            expect_sends(shape, r, 100 * (size_t)p, 200 * ((size_t)p - 1), 2 * levels);
        shape_destroy(shape);
    }
}

/* ---- folding of recursive halving and doubling ---- */

static double cost_of(const char *spec, int workers, const struct cost_model *model)
{
    struct shape *shape = schedule_of(spec, workers);
    const double seconds = shape->algorithm->cost(shape, model, 1000);
    shape_destroy(shape);
    return seconds;
}

Test(rhd, splitting_the_fold_halves_its_adding_for_one_message)
{
    static const struct cost_model latency = {.latency_s = 1}, bytes = {.seconds_per_byte = 1e-3},
                                   adding = {.reduce_s_per_byte = 1e-3};
    cr_expect_float_eq(cost_of("rhd:fold=split", 6, &latency), cost_of("rhd", 6, &latency) + 1, 1e-12);
    cr_expect_float_eq(cost_of("rhd:fold=split", 6, &bytes), cost_of("rhd", 6, &bytes), 1e-12);
    cr_expect_float_eq(cost_of("rhd:fold=split", 6, &adding), cost_of("rhd", 6, &adding) - 0.5, 1e-12);
    cr_expect_float_eq(cost_of("rhd:fold=split", 8, &latency), cost_of("rhd", 8, &latency), 1e-12);
    struct shape *shape = schedule_of("rhd:fold=split", 6);
    cr_expect_eq(shape->split, 4);
    cr_expect_eq(shape->rounds, 7);
    expect_sends(shape, 0, 100, 50 + 50, 2);           /* half to add, half added */
    expect_sends(shape, 1, 100, 50 + 2 * 75 + 100, 6); /* half to add, core of four, the result */
    expect_sends(shape, 5, 100, 2 * 75, 4);
    shape_destroy(shape);
}

/* ---- all ---- */

Test(logarithmic, is_proved_with_what_it_claims)
{
    static const char *const specs[] = {
        "circulant", "recursive-exchange", "recursive-exchange:radix=3", "k-nomial-sra",  "k-nomial-sra:radix=3",
        "bcube",     "bcube:base=3",       "allgather-reduce",           "binary-blocks", "rhd:fold=split"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (int p = 1; p <= 13; p++)
            expect_proved(specs[i], p);
}
