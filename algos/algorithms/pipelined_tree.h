/* pipelined_tree.h - reduction up a rooted tree and broadcast down it, piece by piece, both at once.
 *
 * Piece k leaves level l upwards in round k + height - l and reaches level l downwards in round k + height + turn +
 * l - 1: while the first pieces come down, the last ones still go up. No op depends on another one of its round.
 *
 *   height 2, 3 pieces:  round      0     1     2     3     4     5
 *     level 2 -> 1                 a     b     c
 *     level 1 -> 0                       a     b     c
 *     level 0 -> 1                             a     b     c
 *     level 1 -> 2                                   a     b     c
 *
 * Up and down share a lane: that a piece goes down only when it has come up is the order of conflicting ops. With
 * several pieces there are no halves, since they overlap; with one there are.
 */
#ifndef CHORALE_ALGOS_ALGORITHMS_PIPELINED_TREE_H
#define CHORALE_ALGOS_ALGORITHMS_PIPELINED_TREE_H

#include "algos/schedule.h"

#define TREE_NONE (-1)
#define TREE_MAX_PIECES 4096

/* Where a worker stands in a tree. */
struct tree_place {
    int parent, child[2]; /* ranks, TREE_NONE for none; child[0] is added before child[1] */
    uint32_t level;       /* 0: the root                                                   */
};

struct pipelined_tree {
    uint32_t first, pieces; /* leaves of the partition that go through this tree     */
    uint32_t height;        /* at least the level of every place                     */
    uint32_t turn;          /* rounds in which roots finish a piece among themselves */
};

static inline uint32_t pipelined_tree_rounds(const struct pipelined_tree *tree)
{
    const uint32_t steps = 2 * tree->height + tree->turn;
    return steps > 0 ? steps + tree->pieces - 1 : 0;
}

/* The piece whose turn `round` is when the first one's is `start`; false where there is none. */
static inline bool pipelined_tree_piece(const struct pipelined_tree *tree, uint32_t round, uint32_t start,
                                        uint32_t *leaf)
{
    if (round < start || round - start >= tree->pieces)
        return false;
    *leaf = tree->first + round - start;
    return true;
}

/* Everything of one worker in one round but what roots do among themselves, in the lane of the sink. */
static inline enum status pipelined_tree_emit(const struct pipelined_tree *tree, const struct tree_place *at,
                                              uint32_t round, struct sink *sink)
{
    const uint32_t down = tree->height + tree->turn + at->level; /* when the first piece leaves this level downwards */
    const bool root = at->parent == TREE_NONE;
    uint32_t leaf;
    if (!root && pipelined_tree_piece(tree, round, tree->height - at->level, &leaf))
        TRY(emit_send(sink, at->parent, leaf, 1));
    for (int i = 0; i < 2; i++)
        if (at->child[i] != TREE_NONE && pipelined_tree_piece(tree, round, down, &leaf))
            TRY(emit_send(sink, at->child[i], leaf, 1));
    for (int i = 0; i < 2; i++) {
        const bool complete = root && tree->turn == 0 && (i == 1 || at->child[1] == TREE_NONE);
        if (at->child[i] != TREE_NONE && pipelined_tree_piece(tree, round, tree->height - at->level - 1, &leaf))
            TRY(emit_recv_reduce(sink, at->child[i], leaf, 1, complete));
    }
    if (!root && pipelined_tree_piece(tree, round, down - 1, &leaf))
        TRY(emit_recv(sink, at->parent, leaf, 1));
    return STATUS_OK;
}

/* Level of `rank` in a binary heap; that of the last one is the height. */
static inline uint32_t heap_level(int rank)
{
    uint32_t level = 0;
    for (long long last = 0; last < rank; last = 2 * last + 2)
        level++;
    return level;
}

/* The binary heap of workers first .. first + count - 1: children of i are 2i+1 and 2i+2, counted from `first`. */
static inline struct tree_place heap_place(int rank, int first, int count)
{
    const long long i = rank - first, left = 2 * i + 1;
    return (struct tree_place){
        .parent = i == 0 ? TREE_NONE : first + (int)((i - 1) / 2),
        .child = {left < count ? first + (int)left : TREE_NONE, left + 1 < count ? first + (int)left + 1 : TREE_NONE},
        .level = heap_level((int)i)};
}

#endif
