/* bine_latency.c - whole vectors exchanged along Bine's butterfly, distances halving: as few messages as recursive
 * doubling, over two thirds of its way on a ring, and equal bits.
 *
 * Bine (binomial negabinary) has the peers of Swing, 1, 1, 3, 5, 11, ... away (negabinary.h). Here the core of 2^l
 * workers (fold.h) meets farthest first. Then all who have added the same workers are a class that no other overlaps:
 * the even workers of a residue mod 2^(s+1) and the odd ones that they meet from step s on. So every exchange is
 * between equal sums of two classes, and all workers add up in one order. Nearest first (swing-latency) they don't.
 *
 *   p = 8:   0 <-> 3   2 <-> 5   4 <-> 7   6 <-> 1     rho = 3
 *            0 <-> 7   2 <-> 1   4 <-> 3   6 <-> 5     rho = -1: 0, 3, 4, 7 have 0 3 4 7, the others 1 2 5 6
 *            0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7     rho = 1: everyone has everything
 *
 * Cost, l = floor(lg p): l (alpha + n beta + n gamma), and with folding 2 (alpha + n beta) + n gamma more. Source: D. De
 * Sensi et al., SC'25, arXiv:2508.17311.
 */
#include "algos/algorithms/fold.h"
#include "algos/algorithms/negabinary.h"
#include "algos/schedule.h"

static enum status bine_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    const struct fold fold = fold_of(shape->workers);
    shape->rounds = (uint32_t)fold.levels + (fold.extra > 0 ? 2 : 0);
    return STATUS_OK;
}

static enum status bine_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct fold fold = fold_of(shape->workers);
    const int core = fold_core_of(&fold, rank), t = (int)round - (fold.extra > 0);

    if (t < 0 || t >= fold.levels) /* fold, unfold */
        return fold_emit(&fold, rank, t < 0, shape->chunks, sink);
    if (core < 0)
        return STATUS_OK;
    const int peer = fold_rank_of(&fold, negabinary_peer(core, fold.levels - 1 - t, fold.core));
    TRY(emit_send(sink, peer, 0, 1));
    return emit_recv_reduce(sink, peer, 0, 1, t == fold.levels - 1);
}

static double bine_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct fold fold = fold_of(shape->workers);
    return fold_cost_of_vectors(&fold, model, bytes);
}

const struct algorithm algorithm_bine_latency = {
    .name = "bine-latency",
    .aliases = "",
    .summary = "whole vectors exchanged along Bine's butterfly, farthest first; for small vectors where links are "
               "shared",
    .source = "De Sensi et al. 2025",
    .traits = TRAIT_ANY_SIZE | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .shape = bine_shape,
    .emit = bine_emit,
    .cost = bine_cost,
};
