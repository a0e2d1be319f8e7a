/* dual_root.c - two binary trees, each of half the workers, whose roots add up what they have: a round less at the top
 * than one tree, and every link busy in both directions; any p.
 *
 *   p = 7    0 ------- 4        the roots exchange what their trees have summed, and both add it
 *          /   \      / \
 *         1     2    5   6      piece k:  round k    3 -> 1
 *        /                                round k+1  1 2 -> 0   5 6 -> 4
 *       3                                 round k+2  0 <-> 4
 *                                         round k+3  0 -> 1 2   4 -> 5 6
 *                                         round k+4  1 -> 3
 *
 * Workers 0 .. h-1, h = ceil(p / 2), are one tree, the others the second, each a binary heap. In a steady state a worker
 * exchanges one piece that goes up for one that comes down with each child and with its parent (pipelined_tree.h). The
 * paper numbers the trees in post-order, for operators that do not commute; here all do.
 *
 * Rounds: 2 floor(lg h) + chunks. Sent: 3n bytes by a worker with two children, of which a root sends one n to the other
 * root. Cost, in the paper's model of rounds: O(lg p + sqrt(n lg p)) + 3 n beta.
 * Source: J. L. Traeff, "A doubly-pipelined, dual-root reduction-to-all algorithm", arXiv:2109.12626.
 */
#include "algos/algorithms/pipelined_tree.h"

static const struct option dual_root_options[] = {
    {.key = "chunks",
     .type = OPTION_INT,
     .default_text = "8",
     .min = 1,
     .max = TREE_MAX_PIECES,
     .help = "pieces of the vector that follow one another"},
    {.key = NULL},
};

/* Workers of the first tree, which is as large as the second or larger by one. */
static int first_half(const struct shape *shape)
{
    return shape->workers / 2 + shape->workers % 2;
}

static struct pipelined_tree tree_of(const struct shape *shape)
{
    return (struct pipelined_tree){
        .pieces = shape->chunks, .height = heap_level(first_half(shape) - 1), .turn = shape->workers > 1};
}

static enum status dual_root_shape(const struct shape_request *request, struct shape *shape)
{
    shape->chunks = (uint32_t)option_int(request->options, "chunks");
    const struct pipelined_tree tree = tree_of(shape);
    shape->rounds = pipelined_tree_rounds(&tree);
    return STATUS_OK;
}

static enum status dual_root_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct pipelined_tree tree = tree_of(shape);
    const int half = first_half(shape), first = rank < half ? 0 : half;
    const struct tree_place at = heap_place(rank, first, first == 0 ? half : shape->workers - half);
    TRY(pipelined_tree_emit(&tree, &at, round, sink));
    uint32_t leaf;
    if (at.parent != TREE_NONE || !pipelined_tree_piece(&tree, round, tree.height, &leaf))
        return STATUS_OK;
    const int other_root = half - first;
    TRY(emit_send(sink, other_root, leaf, 1));
    return emit_recv_reduce(sink, other_root, leaf, 1, true);
}

const struct algorithm algorithm_dual_root = {
    .name = "dual-root",
    .aliases = "",
    .summary = "two pipelined binary trees of half the workers, joined at their roots: fewest rounds of the trees",
    .source = "Traeff 2021 (arXiv:2109.12626)",
    .traits = TRAIT_ANY_SIZE | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .options = dual_root_options,
    .shape = dual_root_shape,
    .emit = dual_root_emit,
};
