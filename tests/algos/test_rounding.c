/* test_rounding.c - where the sender's copy is rounded: by hand for known schedules, refusals, and that nothing else
 * changes in any schedule of the catalogue. That workers end with equal bits is proved by algos/verify.c.
 */
#include "algos/rounding.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "algos/spec.h"
#include "base/text.h"
#include "tests/algos/support_toy.h"
#include "tests/base/expect.h"

static struct shape *shape_of(const char *name, int workers)
{
    struct layout layout;
    struct spec spec;
    struct shape *shape = NULL;
    EXPECT_OK(layout_flat(workers, &layout));
    EXPECT_OK(spec_parse(name, &spec));
    EXPECT_OK(spec_shape(&spec, &layout, 0, 0, &shape));
    spec_release(&spec);
    layout_release(&layout);
    return shape;
}

/* "2.0:3+1" for a rounding of chunk 3 in round 2 before op 0; fences are "|". */
struct teller {
    struct sink sink; /* first */
    struct text text;
    unsigned op;
};

static enum status tell(struct sink *sink, const struct op *op)
{
    struct teller *teller = (struct teller *)sink;
    if (op->kind == OP_FENCE)
        text_add(&teller->text, "| ");
    else if (op->flags & OP_ROUND_SOURCE)
        text_addf(&teller->text, "%u.%u:%u+%u ", (unsigned)op->round, teller->op, (unsigned)op->dst.chunk,
                  (unsigned)op->dst.chunks);
    else
        teller->op++;
    return STATUS_OK;
}

static void expect_roundings(const struct shape *shape, int rank, enum rounding kind, const char *wanted)
{
    struct shape *all = NULL, *one = NULL;
    EXPECT_OK(rounding_shape(shape, ROUNDING_ALL_RANKS, kind, &all));
    EXPECT_OK(rounding_shape(shape, rank, kind, &one));
    for (int k = 0; k < 2; k++) {
        const struct shape *rounded = k == 0 ? all : one;
        struct teller teller = {.sink = {.op = tell}};
        for (uint32_t round = 0; round < rounded->rounds; round++) {
            teller.sink.round = round;
            teller.sink.lane = 0;
            teller.op = 0;
            EXPECT_OK(rounded->algorithm->emit(rounded, rank, round, &teller.sink));
        }
        cr_expect_str_eq(text_string(&teller.text), wanted, "%s, worker %d of %d: \"%s\", not \"%s\"",
                         shape->algorithm->name, rank, shape->workers, text_string(&teller.text), wanted);
        text_release(&teller.text);
    }
    shape_destroy(all);
    shape_destroy(one);
}

static void expect_spec(const char *name, int workers, int rank, enum rounding kind, const char *wanted)
{
    struct shape *shape = shape_of(name, workers);
    expect_roundings(shape, rank, kind, wanted);
    shape_destroy(shape);
}

Test(rounding, of_results_that_are_spread)
{
    for (int r = 0; r < 4; r++) { /* the owner, once, before it spreads its chunk */
        char wanted[16];
        snprintf(wanted, sizeof wanted, "3.0:%d+1 ", (r + 1) % 4);
        expect_spec("ring", 4, r, ROUNDING_ELEMENTS, wanted);
    }
    expect_spec("naive", 4, 0, ROUNDING_ELEMENTS, "3.0:0+1 ");
    expect_spec("naive", 4, 1, ROUNDING_ELEMENTS, "");
    expect_spec("rhd", 4, 0, ROUNDING_ELEMENTS, "2.0:0+1 ");
    expect_spec("rhd", 4, 3, ROUNDING_ELEMENTS, "2.0:3+1 ");
}

/* Both sides of an exchange add the same two values; what nobody sends in the end is rounded, too. */
Test(rounding, of_what_is_exchanged)
{
    expect_spec("rd", 4, 2, ROUNDING_ELEMENTS, "0.0:0+1 1.0:0+1 1.2:0+1 ");
    expect_spec("rd", 6, 0, ROUNDING_ELEMENTS, "");
    expect_spec("rd", 6, 1, ROUNDING_ELEMENTS, "1.0:0+1 2.0:0+1 3.0:0+1 ");
    expect_spec("rd", 6, 4, ROUNDING_ELEMENTS, "1.0:0+1 2.0:0+1 3.0:0+1 ");
    expect_spec("rd", 1, 0, ROUNDING_ELEMENTS, "");
    expect_spec("none", 3, 1, ROUNDING_ELEMENTS, "");
}

Test(rounding, of_segments_once_by_whoever_made_them)
{
    expect_spec("naive", 4, 0, ROUNDING_SEGMENTS, "3.0:0+1 ");
    expect_spec("naive", 4, 2, ROUNDING_SEGMENTS, "1.0:0+1 ");
    struct shape *shape = shape_of("rd", 4), *rounded = NULL;
    EXPECT_FAIL(STATUS_REFUSED, "recursive-doubling: worker 0 sends a second value of one chunk",
                rounding_shape(shape, ROUNDING_ALL_RANKS, ROUNDING_SEGMENTS, &rounded));
    shape_destroy(shape);
}

/* Gossip: everyone's parameters are mixed as the others decode them. */
Test(rounding, of_what_is_mixed)
{
    struct shape *shape = shape_of("gossip:graph=ring", 5);
    expect_roundings(shape, 3, ROUNDING_ELEMENTS, "0.0:0+1 ");
    expect_roundings(shape, 3, ROUNDING_SEGMENTS, "0.0:0+1 ");
    shape_destroy(shape);
}

#define PEER(kind_, flags_, lane_, c, n)                                                                               \
    {                                                                                                                  \
        0,                                                                                                             \
        {                                                                                                              \
            .kind = (kind_), .flags = (flags_), .lane = (lane_), .peer = 1, .src = TOY_LEAVES(c, n),                   \
            .dst = TOY_LEAVES(c, n), .weight = 1                                                                       \
        }                                                                                                              \
    }

/* Nothing stands between the SENDs of one message. */
TOY(joined, PEER(OP_RECV, 0, 0, 5, 1), PEER(OP_SEND, OP_MORE, 0, 0, 1), PEER(OP_SEND, OP_MORE, 0, 2, 2),
    PEER(OP_SEND, 0, 0, 5, 1));

Test(rounding, before_joined_messages)
{
    struct shape shape = toy_shape(&joined, 2, 6, 1);
    expect_roundings(&shape, 0, ROUNDING_ELEMENTS, "0.1:0+1 0.1:2+2 ");
}

/* A SEND whose range is received anew is not rounded where no part of it is used before. */
TOY(overwritten, PEER(OP_SEND, 0, 0, 0, 4), PEER(OP_RECV, 0, 0, 0, 4), PEER(OP_SEND, 0, 0, 0, 2));
TOY(used_in_part, PEER(OP_SEND, 0, 0, 0, 4), PEER(OP_RECV, 0, 0, 0, 3));
TOY(sent_twice, PEER(OP_SEND, 0, 0, 0, 4), PEER(OP_SEND, 0, 0, 0, 4), PEER(OP_RECV, 0, 0, 0, 4));

Test(rounding, only_of_what_is_used_again)
{
    struct shape shape = toy_shape(&overwritten, 2, 4, 1);
    expect_roundings(&shape, 0, ROUNDING_ELEMENTS, "");
    shape = toy_shape(&used_in_part, 2, 4, 1);
    expect_roundings(&shape, 0, ROUNDING_ELEMENTS, "0.0:0+4 ");
    shape = toy_shape(&sent_twice, 2, 4, 1);
    expect_roundings(&shape, 0, ROUNDING_ELEMENTS, "0.0:0+4 ");
    expect_roundings(&shape, 0, ROUNDING_SEGMENTS, "0.0:0+4 ");
}

/* Two lanes send one range: nothing else would order the rounding before the other lane's SEND. */
TOY(two_lanes, PEER(OP_SEND, 0, 0, 0, 2), PEER(OP_SEND, 0, 1, 0, 2), PEER(OP_SEND, 0, 1, 2, 1));

Test(rounding, is_fenced_where_lanes_share)
{
    struct shape shape = toy_shape(&two_lanes, 2, 3, 2);
    expect_roundings(&shape, 0, ROUNDING_ELEMENTS, "| 0.0:0+2 | 0.2:2+1 ");
}

TOY(other_pieces, PEER(OP_SEND, 0, 0, 0, 4), PEER(OP_SEND, 0, 0, 0, 2));
TOY(in_part, PEER(OP_RECV, 0, 0, 0, 1), PEER(OP_SEND, 0, 0, 0, 2));
TOY(wild, PEER(OP_SEND, 0, 0, 3, 2));

Test(rounding, refuses_what_segments_do_not_allow)
{
    struct shape shape = toy_shape(&other_pieces, 2, 4, 1), *rounded = NULL;
    EXPECT_FAIL(STATUS_REFUSED, "in other pieces", rounding_shape(&shape, 0, ROUNDING_SEGMENTS, &rounded));
    shape = toy_shape(&in_part, 2, 4, 1);
    EXPECT_FAIL(STATUS_REFUSED, "rounded in part", rounding_shape(&shape, 0, ROUNDING_SEGMENTS, &rounded));
    shape = toy_shape(&wild, 2, 4, 1);
    EXPECT_FAIL(STATUS_FORMAT, "bad-op", rounding_shape(&shape, 0, ROUNDING_ELEMENTS, &rounded));
    cr_expect_null(rounded);
}

/* ---- the catalogue ---- */

struct recorder {
    struct sink sink; /* first */
    struct op op[4096];
    size_t count;
};

static enum status record(struct sink *sink, const struct op *op)
{
    struct recorder *recorder = (struct recorder *)sink;
    cr_assert_lt(recorder->count, 4096);
    if (!(op->flags & OP_ROUND_SOURCE) && op->kind != OP_FENCE)
        recorder->op[recorder->count++] = *op;
    return STATUS_OK;
}

static bool is_same(const struct op *a, const struct op *b)
{
    return a->kind == b->kind && a->flags == b->flags && a->lane == b->lane && a->peer == b->peer &&
           a->src.chunk == b->src.chunk && a->src.chunks == b->src.chunks && a->dst.chunk == b->dst.chunk &&
           a->dst.chunks == b->dst.chunks && a->weight == b->weight && a->round == b->round;
}

Test(rounding, leaves_all_else_as_it_is)
{
    static struct recorder before, after;
    size_t algorithms = 0;
    const struct algorithm *const *list = catalogue_algorithms(&algorithms);
    for (size_t a = 0; a < algorithms; a++) {
        if (list[a]->traits & (TRAIT_EVEN | TRAIT_POWER_OF_TWO | TRAIT_INEXACT | TRAIT_NEEDS_FILE))
            continue;
        struct shape *shape = shape_of(list[a]->name, 7), *rounded = NULL;
        EXPECT_OK(rounding_shape(shape, ROUNDING_ALL_RANKS, ROUNDING_ELEMENTS, &rounded));
        for (int rank = 0; rank < 7; rank++)
            for (uint32_t round = 0; round < shape->rounds; round++) {
                before.count = after.count = 0;
                before.sink = after.sink = (struct sink){.op = record, .round = round};
                EXPECT_OK(shape->algorithm->emit(shape, rank, round, &before.sink));
                EXPECT_OK(rounded->algorithm->emit(rounded, rank, round, &after.sink));
                cr_assert_eq(before.count, after.count, "%s: worker %d round %u", list[a]->name, rank, (unsigned)round);
                for (size_t i = 0; i < before.count; i++)
                    cr_assert(is_same(&before.op[i], &after.op[i]), "%s: worker %d round %u op %zu", list[a]->name,
                              rank, (unsigned)round, i);
            }
        shape_destroy(rounded);
        shape_destroy(shape);
    }
}
