/* recursive_doubling.c - whole vectors exchanged with the partner at distance 1, 2, 4, ...: fewest messages.
 *
 * Where p is no power of two, the workers beyond it fold into a neighbour first and get the result at the end (fold.h).
 *
 *   p = 4:  0 <-> 1   2 <-> 3      distance 1
 *           0 <-> 2   1 <-> 3      distance 2: everyone has everything
 *
 * No worker holds a part for others, so there are no halves, and each finalises its own copy (the operands meet in the
 * same tree everywhere: equal bits). Cost, l = floor(lg p): l (alpha + n beta + n gamma), and with folding 2 (alpha + n
 * beta) + n gamma more. Source: MPICH; R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005.
 */
#include "algos/algorithms/fold.h"
#include "algos/schedule.h"

static enum status doubling_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    const struct fold fold = fold_of(shape->workers);
    shape->rounds = (uint32_t)fold.levels + (fold.extra > 0 ? 2 : 0);
    return STATUS_OK;
}

static enum status doubling_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct fold fold = fold_of(shape->workers);
    const int core = fold_core_of(&fold, rank), level = (int)round - (fold.extra > 0);

    if (level < 0 || level >= fold.levels) /* fold, unfold */
        return fold_emit(&fold, rank, level < 0, shape->chunks, sink);
    if (core < 0)
        return STATUS_OK;
    const int peer = fold_rank_of(&fold, core ^ (1 << level)); /* exchange */
    TRY(emit_send(sink, peer, 0, 1));
    return emit_recv_reduce(sink, peer, 0, 1, level == fold.levels - 1);
}

static double doubling_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct fold fold = fold_of(shape->workers);
    return fold_cost_of_vectors(&fold, model, bytes);
}

const struct algorithm algorithm_recursive_doubling = {
    .name = "recursive-doubling",
    .aliases = "rd",
    .summary = "whole vectors exchanged at doubling distances: fewest messages; best for small vectors",
    .source = "MPICH; Thakur, Rabenseifner, Gropp 2005",
    .traits = TRAIT_ANY_SIZE | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .shape = doubling_shape,
    .emit = doubling_emit,
    .cost = doubling_cost,
};
