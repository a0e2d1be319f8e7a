/* test_blocks.c - sets of blocks by distance, and the joined messages they make. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/blocks.h"
#include "base/text.h"
#include "tests/base/expect.h"

struct recorder {
    struct sink sink; /* first */
    struct text text;
};

static enum status record(struct sink *sink, const struct op *op)
{
    struct recorder *recorder = (struct recorder *)sink;
    const bool sends = op->kind == OP_SEND;
    const struct range *range = sends ? &op->src : &op->dst;
    text_addf(&recorder->text, "%s%d[%u+%u]%s%s ",
              sends                 ? "S>"
              : op->kind == OP_RECV ? "R<"
                                    : "RR<",
              op->peer, range->chunk, range->chunks, op->flags & OP_FINAL ? "*" : "", op->flags & OP_MORE ? "+" : "");
    cr_expect(op->weight == 1 && op->round == sink->round && op->lane == sink->lane);
    return STATUS_OK;
}

static void expect_ops(const struct block_sets *sets, int rank, struct block_move move, const char *wanted)
{
    struct recorder recorder = {.sink = {.op = record, .round = 3, .lane = 2}};
    EXPECT_OK(blocks_emit(sets, rank, &move, &recorder.sink));
    cr_expect_str_eq(text_string(&recorder.text), wanted);
    text_release(&recorder.text);
}

static struct block_sets *sets_of(const uint32_t *set_of, uint32_t blocks, uint32_t count, uint32_t radix)
{
    struct block_sets *sets = NULL;
    EXPECT_OK(block_sets_create(set_of, blocks, count, radix, &sets));
    return sets;
}

Test(blocks, digits_are_reversed)
{
    cr_expect_eq(reversed_digits(6, 2, 3), 3);
    cr_expect_eq(reversed_digits(1, 2, 4), 8);
    cr_expect_eq(reversed_digits(5, 3, 3), 21); /* 012 -> 210 */
    cr_expect_eq(reversed_digits(0, 3, 0), 0);
}

/* Of 7: deltas 1, 2 and 5 in set 0, the others in set 1. */
static const uint32_t seven[] = {BLOCKS_OWN, 0, 0, 1, 1, 0, 1};

Test(blocks, of_a_set_travel_as_one_message_of_neighbours_joined)
{
    struct block_sets *sets = sets_of(seven, 7, 2, 0);
    struct block_move move = {.set = 0, .from = 1, .to = 4, .reducing = true, .final = true};
    expect_ops(sets, 1, move, "S>4[2+2]+ S>4[6+1] ");
    expect_ops(sets, 4, move, "RR<1[2+2]*+ RR<1[6+1]* ");
    move.from = 5; /* blocks 6, 0, 3: a range does not go around the end */
    expect_ops(sets, 5, move, "S>4[6+1]+ S>4[0+1]+ S>4[3+1] ");
    block_sets_destroy(sets);
}

Test(blocks, go_back_the_way_they_came)
{
    struct block_sets *sets = sets_of(seven, 7, 2, 0);
    const struct block_move move = {.set = 1, .from = 1, .to = 4, .final = true};
    expect_ops(sets, 4, move, "S>1[4+2]+ S>1[0+1] ");
    expect_ops(sets, 1, move, "R<4[4+2]+ R<4[0+1] ");
    block_sets_destroy(sets);
}

Test(blocks, of_a_mirrored_sender_count_downwards)
{
    struct block_sets *sets = sets_of(seven, 7, 2, 0);
    const struct block_move move = {.set = 0, .from = 4, .to = 0, .mirrored = true, .reducing = true};
    expect_ops(sets, 4, move, "S>0[6+1]+ S>0[2+2] "); /* 4-5, 4-2, 4-1 */
    block_sets_destroy(sets);
}

Test(blocks, of_a_residue_are_one_range_of_chunks)
{
    static const uint32_t eight[] = {BLOCKS_OWN, 2, 1, 2, 0, 2, 1, 2};
    struct block_sets *sets = sets_of(eight, 8, 3, 2);
    const struct block_move move = {.set = 2, .from = 5, .to = 4, .reducing = true};
    expect_ops(sets, 5, move, "S>4[0+4] "); /* 6, 0, 2, 4 are chunks 3, 0, 2, 1 */
    for (uint32_t c = 0; c < 8; c++)
        cr_expect_eq(block_of_chunk(sets, block_of_chunk(sets, c)), c);
    cr_expect_eq(block_of_chunk(sets, 1), 4);
    block_sets_destroy(sets);
}

Test(blocks, without_any_there_is_no_message)
{
    struct block_sets *sets = sets_of(seven, 7, 3, 0);
    expect_ops(sets, 1, (struct block_move){.set = 2, .from = 1, .to = 2, .reducing = true}, "");
    block_sets_destroy(sets);
    block_sets_destroy(NULL);
}

Test(blocks, that_nobody_passes_on_are_an_error)
{
    static const uint32_t lost[] = {BLOCKS_OWN, 0, BLOCKS_OWN, 1};
    struct block_sets *sets = NULL;
    EXPECT_FAIL(STATUS_INTERNAL, "2 of 4", block_sets_create(lost, 4, 2, 0, &sets));
    cr_expect_null(sets);
}
