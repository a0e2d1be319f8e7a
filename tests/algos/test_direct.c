/* test_direct.c - what is particular to schedules in which everyone sends to everyone. */
#include <criterion/criterion.h>

#include "tests/algos/support_schedule.h"

Test(one_shot, is_one_round_of_whole_vectors)
{
    for (int p = 2; p <= 17; p++) {
        struct shape *shape = schedule_of("one-shot", p);
        const size_t others = (size_t)p - 1;
        cr_expect_eq(shape->rounds, 1);
        cr_expect_eq(shape->chunks, 1);
        cr_expect_eq(shape->scratch, p > 2);
        cr_expect_not(shape_has_halves(shape));
        for (int r = 0; r < p; r++)
            expect_sends(shape, r, 100, others * 100, others);
        shape_destroy(shape);
    }
}

Test(all_pairs, is_two_rounds_at_the_least_bytes)
{
    for (int p = 2; p <= 17; p++) {
        struct shape *shape = schedule_of("all-pairs", p);
        const size_t others = (size_t)p - 1;
        cr_expect_eq(shape->rounds, 2);
        cr_expect_eq(shape->split, 1);
        cr_expect_eq(shape->scratch, p > 2);
        for (int r = 0; r < p; r++) {
            cr_expect_eq(shape->algorithm->owner(shape, (uint32_t)r), r);
            expect_sends(shape, r, 100 * (size_t)p, 2 * others * 100, 2 * others);
        }
        shape_destroy(shape);
    }
}

Test(all_pairs, goes_by_the_names_of_others)
{
    static const char *const names[] = {"two-shot", "direct"};
    for (size_t i = 0; i < 2; i++) {
        struct shape *shape = schedule_of(names[i], 3);
        cr_expect_str_eq(shape->algorithm->name, "all-pairs");
        shape_destroy(shape);
    }
}

Test(direct, adds_in_rank_order_on_every_worker)
{
    static const char *const specs[] = {"one-shot", "all-pairs"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (int p = 1; p <= 9; p++)
            expect_proved(specs[i], p);
}

struct senders {
    struct sink sink; /* first */
    int first;        /* whom the worker sends to first */
};

static enum status note_first(struct sink *sink, const struct op *op)
{
    struct senders *senders = (struct senders *)sink;
    if (op->kind == OP_SEND && senders->first < 0)
        senders->first = op->peer;
    return STATUS_OK;
}

Test(direct, nobody_is_the_first_of_two)
{
    static const char *const specs[] = {"one-shot", "all-pairs"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        struct shape *shape = schedule_of(specs[i], 7);
        for (uint32_t round = 0; round < shape->rounds; round++)
            for (int r = 0; r < 7; r++) {
                struct senders senders = {.sink = {.op = note_first, .round = round}, .first = -1};
                cr_assert_eq(shape->algorithm->emit(shape, r, round, &senders.sink), STATUS_OK);
                cr_expect_eq(senders.first, (r + 1) % 7);
            }
        shape_destroy(shape);
    }
}

/* The scratch of both parts is mapped to planes of the whole. */
Test(direct, stands_inside_a_hierarchy_with_its_scratch)
{
    static const char *const specs[] = {"hierarchical:group=3,intra=all-pairs,inter=one-shot",
                                        "hierarchical:group=4,intra=k-nomial-sra,inter=allgather-reduce",
                                        "hierarchical:group=3,intra=bcube,inter=recursive-exchange"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (int p = 3; p <= 13; p += 5)
            expect_proved(specs[i], p);
    expect_schedule_refused("hierarchical:group=2,intra=one-shot", 4, "halves");
}
