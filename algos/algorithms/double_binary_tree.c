/* double_binary_tree.c - two binary trees at once, each for half of the vector, in which nobody is interior twice: the
 * few rounds of a tree at the full bandwidth that one tree leaves unused at its leaves.
 *
 *   tree A, p = 8: 0                            tree B: its mirror, worker p-1-r where A has r
 *                  |                                    7
 *                  4            odd workers             |
 *                /   \          are leaves              3            even workers
 *               2     6                               /   \          are leaves
 *              / \   / \                             5     1
 *             1   3 5   7                           / \   / \
 *                                                  6   4 2   0
 *
 * Tree A hangs worker r, whose lowest set bit is b, under (r - b) with bit 2b set, or under r - b where there is no such
 * worker; worker 0 is the root. Tree B is the mirror of A for even p, and A shifted by one worker for odd p; then worker
 * 0 is interior in both, with one child in each. So over both trees a worker has two children at most.
 *
 * Tree A is lane 0 with the first half of the partition, B is lane 1 with the second; each half goes in `chunks` pieces
 * that follow one another (pipelined_tree.h).
 *
 * Rounds: 2 ceil(lg p) + chunks - 1. Sent: at most 2n bytes by any worker, so that large vectors take about 2 n beta +
 * O(alpha lg p). Source: P. Sanders, J. Speck, J. L. Traeff, Parallel Computing 35(12), 2009; NCCL 2.4.
 */
#include "algos/algorithms/pipelined_tree.h"

static const struct option double_options[] = {
    {.key = "chunks",
     .type = OPTION_INT,
     .default_text = "8",
     .min = 1,
     .max = TREE_MAX_PIECES,
     .help = "pieces of each tree's half of the vector, which follow one another; with 1 it has halves"},
    {.key = NULL},
};

static struct pipelined_tree tree_of(const struct shape *shape)
{
    struct pipelined_tree tree = {.pieces = shape->chunks / 2};
    while ((1LL << tree.height) < shape->workers)
        tree.height++;
    return tree;
}

static enum status double_shape(const struct shape_request *request, struct shape *shape)
{
    shape->chunks = 2 * (uint32_t)option_int(request->options, "chunks");
    shape->lanes = 2;
    const struct pipelined_tree tree = tree_of(shape);
    shape->rounds = pipelined_tree_rounds(&tree);
    shape->split = tree.pieces == 1 ? tree.height : 0;
    return STATUS_OK;
}

static long long parent_in_a(long long r, int p)
{
    const long long bit = r & -r, parent = (r - bit) | (2 * bit);
    return parent < p ? parent : r - bit;
}

/* Where position r of tree A stands, in positions of A. */
static struct tree_place place_in_a(long long r, int p)
{
    struct tree_place at = {.parent = TREE_NONE, .child = {TREE_NONE, TREE_NONE}};
    long long bit = r & -r;
    if (r == 0)
        for (bit = 1; bit < p;)
            bit *= 2;
    else
        at.parent = (int)parent_in_a(r, p);
    if (r > 0 && bit > 1)
        at.child[0] = (int)(r - bit / 2);
    long long reach = bit / 2;
    while (reach > 0 && r + reach >= p) /* the subtree is ragged */
        reach /= 2;
    if (reach > 0)
        at.child[at.child[0] == TREE_NONE ? 0 : 1] = (int)(r + reach);
    for (; r > 0; r = parent_in_a(r, p))
        at.level++;
    return at;
}

/* The worker at a position of tree B; mirroring is its own inverse, shifting goes back by p-1. */
static int worker_in_b(int position, int p)
{
    if (position == TREE_NONE)
        return TREE_NONE;
    return p % 2 == 0 ? p - 1 - position : (position + 1) % p;
}

static int position_in_b(int rank, int p)
{
    return p % 2 == 0 ? p - 1 - rank : (rank + p - 1) % p;
}

static enum status double_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const int p = shape->workers;
    struct pipelined_tree tree = tree_of(shape);
    struct tree_place at = place_in_a(rank, p);
    TRY(pipelined_tree_emit(&tree, &at, round, sink));

    tree.first = tree.pieces;
    at = place_in_a(position_in_b(rank, p), p);
    at.parent = worker_in_b(at.parent, p);
    at.child[0] = worker_in_b(at.child[0], p);
    at.child[1] = worker_in_b(at.child[1], p);
    sink->lane = 1;
    return pipelined_tree_emit(&tree, &at, round, sink);
}

static int double_owner(const struct shape *shape, uint32_t chunk)
{
    return chunk < shape->chunks / 2 ? 0 : worker_in_b(0, shape->workers);
}

const struct algorithm algorithm_double_binary_tree = {
    .name = "double-binary-tree",
    .aliases = "dbt",
    .summary = "two pipelined binary trees that share the work: few rounds and full bandwidth; best for many workers",
    .source = "Sanders, Speck, Traeff 2009; NCCL",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .options = double_options,
    .shape = double_shape,
    .emit = double_emit,
    .owner = double_owner,
};
