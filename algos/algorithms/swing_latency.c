/* swing_latency.c - whole vectors exchanged with peers that swing from side to side, nearest first: as few messages as
 * recursive doubling, over two thirds of its way on a ring.
 *
 * The core of 2^l workers (fold.h: the others hand theirs to a neighbour first and get the result at the end) meets at
 * distances 1, 1, 3, 5, 11, ... (negabinary.h) instead of 1, 2, 4, 8, 16.
 *
 *   p = 8:   0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7     rho = 1
 *            0 <-> 7   1 <-> 2   3 <-> 4   5 <-> 6     rho = -1
 *            0 <-> 3   2 <-> 5   4 <-> 7   6 <-> 1     rho = 3: 0 had 0 1 6 7, now all
 *
 * From 8 workers on they add up in different orders (0 has added 0 1 6 7 here, 1 has 0 1 2 3), so their bits may differ
 * and replicas drift apart: bine-latency meets the same peers farthest first, which doesn't.
 *
 * Cost, l = floor(lg p): l (alpha + n beta + n gamma), and with folding 2 (alpha + n beta) + n gamma more. Source: D. De
 * Sensi, T. Bonato, D. Saam, T. Hoefler, NSDI 2024, arXiv:2401.09356.
 */
#include "algos/algorithms/fold.h"
#include "algos/algorithms/negabinary.h"
#include "algos/schedule.h"

static enum status swing_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    const struct fold fold = fold_of(shape->workers);
    shape->rounds = (uint32_t)fold.levels + (fold.extra > 0 ? 2 : 0);
    if (fold.core <= 4) /* two halves are alike for all */
        shape->traits |= TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER;
    return STATUS_OK;
}

static enum status swing_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct fold fold = fold_of(shape->workers);
    const int core = fold_core_of(&fold, rank), step = (int)round - (fold.extra > 0);

    if (step < 0 || step >= fold.levels) /* fold, unfold */
        return fold_emit(&fold, rank, step < 0, shape->chunks, sink);
    if (core < 0)
        return STATUS_OK;
    const int peer = fold_rank_of(&fold, negabinary_peer(core, step, fold.core));
    TRY(emit_send(sink, peer, 0, 1));
    return emit_recv_reduce(sink, peer, 0, 1, step == fold.levels - 1);
}

static double swing_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct fold fold = fold_of(shape->workers);
    return fold_cost_of_vectors(&fold, model, bytes);
}

const struct algorithm algorithm_swing_latency = {
    .name = "swing-latency",
    .aliases = "",
    .summary = "whole vectors exchanged with peers that swing from side to side, nearest first; for small vectors on "
               "rings and tori; unequal bits from 8 workers on",
    .source = "De Sensi, Bonato, Saam, Hoefler 2024",
    .traits = TRAIT_ANY_SIZE,
    .shape = swing_shape,
    .emit = swing_emit,
    .cost = swing_cost,
};
