/* trivance_latency.c - whole vectors exchanged with both neighbours at distances of powers of three: fewer rounds than any
 * exchange of pairs, for small vectors and workers who send both ways at once.
 *
 * The core is 3^k or 2*3^k workers, whichever is the most (the others hand theirs to a neighbour first and get the result
 * at the end: fold.h). Distances shrink from round to round, so that the workers who have added the same are a residue
 * and meet two others, equal on all of them: for 2*3^k those who are opposite first, then c and c +- 3^(k-1), ...,
 * c +- 1. Growing distances, as published, would take the same rounds but leave every worker with an order of its own.
 *
 *   p = 9:   0 - 3 - 6   1 - 4 - 7   2 - 5 - 8     distance 3: three residues
 *            0 - 1 - 2   3 - 4 - 5   6 - 7 - 8     distance 1: everyone has everything
 *
 * (a + b) + c is not a + (b + c), so all three add in the order of the digit c / 3^s mod 3: digits 0 and 1 into their own
 * vector; digit 2 adds the other two in scratch first.
 *
 * Cost with one port, k = floor(log3 p): k (alpha + 2 n beta + 2 n gamma), for 2*3^k alpha + n beta + n gamma more, and
 * with folding 2 (alpha + n beta) + n gamma more; two ports halve beta. Source: A. Juerss, V. Addanki, S. Schmid, 2026,
 * arXiv:2602.17254.
 */
#include "algos/algorithms/fold.h"
#include "algos/schedule.h"

/* The core as fold.h has it; levels: rounds of three. */
static struct fold core_of(int workers)
{
    struct fold fold = {.levels = 0, .core = 1};
    while (fold.core <= workers / 3) {
        fold.core *= 3;
        fold.levels++;
    }
    if (fold.core <= workers / 2)
        fold.core *= 2;
    fold.extra = workers - fold.core;
    return fold;
}

static int opposites(const struct fold *fold)
{
    return fold->core % 2 == 0 ? 1 : 0;
}

static enum status trivance_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    const struct fold fold = core_of(shape->workers);
    shape->scratch = fold.levels > 0 ? 1 : 0;
    shape->rounds = (uint32_t)(fold.levels + opposites(&fold)) + (fold.extra > 0 ? 2 : 0);
    return STATUS_OK;
}

static enum status emit_opposite(const struct fold *fold, int core, struct sink *sink)
{
    const int peer = fold_rank_of(fold, (core + fold->core / 2) % fold->core);
    TRY(emit_send(sink, peer, 0, 1));
    return emit_recv_reduce(sink, peer, 0, 1, fold->levels == 0);
}

/* The sum of two others in scratch, then added to the own vector. */
static enum status emit_sum_of_others(int first, int second, bool final, struct sink *sink)
{
    const struct range scratch = {.chunks = 1, .buffer = BUFFER_SCRATCH}, vector = {.chunks = 1};
    const struct op take = {
        .kind = OP_RECV, .lane = sink->lane, .round = sink->round, .peer = first, .dst = scratch, .weight = 1};
    struct op add = take;
    add.kind = OP_RECV_REDUCE;
    add.peer = second;
    const struct op join = {.kind = OP_REDUCE,
                            .flags = final ? OP_FINAL : 0,
                            .lane = sink->lane,
                            .round = sink->round,
                            .peer = -1,
                            .src = scratch,
                            .dst = vector,
                            .weight = 1};
    TRY(sink->op(sink, &take));
    TRY(sink->op(sink, &add));
    return sink->op(sink, &join);
}

static enum status emit_three(const struct fold *fold, int core, int distance, struct sink *sink)
{
    const int up = fold_rank_of(fold, (core + distance) % fold->core);
    const int down = fold_rank_of(fold, (core + fold->core - distance) % fold->core);
    const int digit = core / distance % 3; /* up has the next one, down the one before */
    const bool final = distance == 1;
    TRY(emit_send(sink, up, 0, 1));
    TRY(emit_send(sink, down, 0, 1));
    if (digit == 2)
        return emit_sum_of_others(up, down, final, sink);
    TRY(emit_recv_reduce(sink, digit == 0 ? up : down, 0, 1, false));
    return emit_recv_reduce(sink, digit == 0 ? down : up, 0, 1, final);
}

static enum status trivance_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct fold fold = core_of(shape->workers);
    const int core = fold_core_of(&fold, rank);
    const int t = (int)round - (fold.extra > 0), exchanges = fold.levels + opposites(&fold);

    if (t < 0 || t >= exchanges) /* fold, unfold */
        return fold_emit(&fold, rank, t < 0, shape->chunks, sink);
    if (core < 0)
        return STATUS_OK;
    if (t < opposites(&fold))
        return emit_opposite(&fold, core, sink);
    int distance = 1;
    for (int i = t + 1; i < exchanges; i++)
        distance *= 3;
    return emit_three(&fold, core, distance, sink);
}

static void trivance_describe(const struct shape *shape, struct text *text)
{
    const struct fold fold = core_of(shape->workers);
    if (fold.extra > 0)
        text_addf(text, "%d workers exchange, %d hand theirs to a neighbour", fold.core, fold.extra);
}

static double trivance_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct fold fold = core_of(shape->workers);
    const double move = (double)bytes * model->seconds_per_byte, add = (double)bytes * model->reduce_s_per_byte;
    return fold.levels * (model->latency_s + 2 * (move + add)) + opposites(&fold) * (model->latency_s + move + add) +
           (fold.extra > 0 ? 2 * (model->latency_s + move) + add : 0);
}

const struct algorithm algorithm_trivance_latency = {
    .name = "trivance-latency",
    .aliases = "",
    .summary = "whole vectors exchanged with both neighbours at distances of powers of three: fewest rounds; for small "
               "vectors and two ports",
    .source = "Juerss, Addanki, Schmid 2026",
    .traits = TRAIT_ANY_SIZE | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .shape = trivance_shape,
    .emit = trivance_emit,
    .describe = trivance_describe,
    .cost = trivance_cost,
};
