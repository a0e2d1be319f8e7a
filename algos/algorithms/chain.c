/* chain.c - reduction along a line of workers to its end and broadcast back, in pieces that follow one another: every
 * worker talks to two neighbours only, and the last piece is `chunks` - 1 steps behind the first.
 *
 *   p = 3, pieces a b:   round  0        1        2        3        4
 *                            0 -a-> 1 -a-> 2 -a-> 1 -a-> 0
 *                                     0 -b-> 1 -b-> 2 -b-> 1 -b-> 0
 *
 * Piece k leaves worker i upwards in round k + i and worker i downwards in round k + 2(p-1) - i (pipelined_tree.h).
 * Sums are taken in the order of ranks, as a loop over the workers would: ((x0 + x1) + x2) + ...
 *
 * Rounds: 2(p-1) + chunks - 1. Sent: 2n bytes in 2 chunks messages, half of that at both ends. Cost for chunks = 1:
 * (p-1) (2 (alpha + n beta) + n gamma); with more chunks it comes near 2 n beta. Source: libraries' "pipeline"
 * and "chain" trees (Open MPI); J. Worringen, LCN 2003; NCCL's trees are chains within a node.
 */
#include <math.h>

#include "algos/algorithms/pipelined_tree.h"

static const struct option chain_options[] = {
    {.key = "chunks",
     .type = OPTION_INT,
     .default_text = "8",
     .min = 1,
     .max = TREE_MAX_PIECES,
     .help = "pieces of the vector that follow one another; with 1 it has halves"},
    {.key = NULL},
};

static struct pipelined_tree chain_of(const struct shape *shape)
{
    return (struct pipelined_tree){.pieces = shape->chunks, .height = (uint32_t)shape->workers - 1};
}

static enum status chain_shape(const struct shape_request *request, struct shape *shape)
{
    shape->chunks = (uint32_t)option_int(request->options, "chunks");
    const struct pipelined_tree chain = chain_of(shape);
    shape->rounds = pipelined_tree_rounds(&chain);
    shape->split = shape->chunks == 1 ? chain.height : 0;
    return STATUS_OK;
}

static enum status chain_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct pipelined_tree chain = chain_of(shape);
    const int last = shape->workers - 1;
    const struct tree_place at = {.parent = rank == last ? TREE_NONE : rank + 1,
                                  .child = {rank == 0 ? TREE_NONE : rank - 1, TREE_NONE},
                                  .level = (uint32_t)(last - rank)};
    return pipelined_tree_emit(&chain, &at, round, sink);
}

static int chain_owner(const struct shape *shape, uint32_t chunk)
{
    (void)chunk;
    return shape->workers - 1;
}

static double chain_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    if (shape->chunks > 1)
        return NAN; /* where pieces that go up meet those that come down decides */
    const double n = (double)bytes, steps = shape->workers - 1;
    return steps * (2 * (model->latency_s + n * model->seconds_per_byte) + n * model->reduce_s_per_byte);
}

const struct algorithm algorithm_chain = {
    .name = "chain",
    .aliases = "pipeline",
    .summary = "pipelined reduction along a line and broadcast back: neighbours only, sums in the order of ranks",
    .source = "Worringen 2003; Open MPI, NCCL (within nodes)",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .options = chain_options,
    .shape = chain_shape,
    .emit = chain_emit,
    .owner = chain_owner,
    .cost = chain_cost,
};
