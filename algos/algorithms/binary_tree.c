/* binary_tree.c - reduction up a balanced binary tree to worker 0 and broadcast down it, in pieces that follow one
 * another; any p.
 *
 *   p = 6        0            children of i: 2i+1 and 2i+2; height H = floor(lg p) = 2
 *              /   \
 *             1     2         piece k:  round k    3 4 -> 1   5 -> 2      round k+2  0 -> 1 2
 *            / \   /                    round k+1  1 2 -> 0               round k+3  1 -> 3 4   2 -> 5
 *           3   4 5
 *
 * While the first pieces come down, the last ones still go up (pipelined_tree.h).
 *
 * Rounds: 2H + chunks - 1. A worker with two children sends and receives 3n bytes, 3 messages a piece; a leaf n. So
 * large vectors take about 3 n beta, whatever p. Source: folklore; compared with in P. Sanders, J. Speck, J. L. Traeff,
 * Parallel Computing 35(12), 2009.
 */
#include "algos/algorithms/pipelined_tree.h"

static const struct option binary_options[] = {
    {.key = "chunks",
     .type = OPTION_INT,
     .default_text = "8",
     .min = 1,
     .max = TREE_MAX_PIECES,
     .help = "pieces of the vector that follow one another; with 1 it has halves"},
    {.key = NULL},
};

static struct pipelined_tree tree_of(const struct shape *shape)
{
    return (struct pipelined_tree){.pieces = shape->chunks, .height = heap_level(shape->workers - 1)};
}

static enum status binary_shape(const struct shape_request *request, struct shape *shape)
{
    shape->chunks = (uint32_t)option_int(request->options, "chunks");
    const struct pipelined_tree tree = tree_of(shape);
    shape->rounds = pipelined_tree_rounds(&tree);
    shape->split = shape->chunks == 1 ? tree.height : 0;
    return STATUS_OK;
}

static enum status binary_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct pipelined_tree tree = tree_of(shape);
    const struct tree_place at = heap_place(rank, 0, shape->workers);
    return pipelined_tree_emit(&tree, &at, round, sink);
}

static int binary_owner(const struct shape *shape, uint32_t chunk)
{
    (void)shape, (void)chunk;
    return 0;
}

const struct algorithm algorithm_binary_tree = {
    .name = "binary-tree",
    .aliases = "",
    .summary = "pipelined reduction up a binary tree and broadcast down it: few rounds, and bytes that do not grow",
    .source = "folklore; see Sanders, Speck, Traeff 2009",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .options = binary_options,
    .shape = binary_shape,
    .emit = binary_emit,
    .owner = binary_owner,
};
