/* binary_blocks.c - recursive halving and doubling in blocks of powers of two, which hand their sums up and down.
 *
 * p as a sum of powers of two, the largest first: 13 = 8 + 4 + 1. Every block halves for itself, as recursive halving
 * does. Then the smallest block sends its sums to the next larger one, part by part to the workers that are responsible
 * for them, that one to the next, until the largest block has all. Results go down the same way, and every block
 * doubles for itself.
 *
 *   p = 7 = 4 + 2 + 1: workers 0 1 2 3 | 4 5 | 6; chunks 0..3
 *     rounds 0 1   halving in each block: worker r of the first has chunk r, 4 has 0 1, 5 has 2 3, 6 has all
 *     round  2     6 -> 4 (0 1), 5 (2 3)
 *     round  3     4 -> 0 (0), 1 (1)    5 -> 2 (2), 3 (3)    complete
 *     round  4     0, 1 -> 4    2, 3 -> 5
 *     round  5     4, 5 -> 6
 *     rounds 6 7   doubling in each block
 *
 * No vector is folded whole, but neighbouring blocks of very different size are slow: one worker then serves many.
 * Cost for powers of two: 2 lg p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma. Else each block is ready when both it and
 * what comes from the next smaller one are; a block of s workers takes n/s beta to send: cost() adds that up, an upper
 * bound (by up to a tenth, p <= 64), as what a block hands on arrives staggered at the next. Source: R. Rabenseifner, J. L. Traeff, EuroPVM/MPI 2004;
 * Gloo (halving-doubling).
 */
#include "algos/algorithms/message.h"

/* The workers [first, first + size) of p, size = 2^levels; number 0 is the largest. */
struct block {
    int number, first, size, levels;
};

static int levels_of(int value)
{
    int levels = 0;
    while (value >> (levels + 1) != 0)
        levels++;
    return levels;
}

static struct block block_at(int workers, int number)
{
    struct block block = {0};
    for (int rest = workers;; rest -= block.size) {
        block.levels = levels_of(rest);
        block.size = 1 << block.levels;
        if (block.number == number)
            return block;
        block.number++;
        block.first += block.size;
    }
}

static struct block block_of(int workers, int rank)
{
    struct block block = block_at(workers, 0);
    while (rank >= block.first + block.size)
        block = block_at(workers, block.number + 1);
    return block;
}

static int blocks_of(int workers)
{
    int blocks = 0;
    for (int rest = workers; rest > 0; rest &= rest - 1)
        blocks++;
    return blocks;
}

static enum status blocks_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    const struct block largest = block_at(shape->workers, 0);
    shape->chunks = (uint32_t)largest.size;
    shape->split = (uint32_t)(largest.levels + blocks_of(shape->workers) - 1);
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

/* Level t of halving, or of the doubling that undoes it, within a block. */
static enum status emit_within(const struct shape *shape, const struct block *block, int rank, int t, bool reducing,
                               struct sink *sink)
{
    if (t >= block->levels)
        return STATUS_OK;
    const int distance = block->size >> (t + 1), local = rank - block->first, begin = local & ~(distance - 1);
    const uint32_t own = shape->chunks / (uint32_t)block->size, n = (uint32_t)distance * own;
    const uint32_t mine = (uint32_t)begin * own, theirs = (uint32_t)(begin ^ distance) * own;
    const int peer = block->first + (local ^ distance);
    if (reducing) {
        const bool complete = distance == 1 && block->size == shape->workers;
        TRY(emit_send(sink, peer, theirs, n));
        return emit_recv_reduce(sink, peer, mine, n, complete);
    }
    TRY(emit_send(sink, peer, mine, n));
    return emit_recv(sink, peer, theirs, n);
}

/* A worker and the one of the next larger block that is responsible for chunk `chunk`, too: its part of the chunks. */
static enum status emit_between(const struct shape *shape, const struct block *from, const struct block *larger,
                                int rank, bool sends, bool reducing, struct sink *sink)
{
    const uint32_t smaller_own = shape->chunks / (uint32_t)from->size, own = shape->chunks / (uint32_t)larger->size;
    if (rank < from->first) { /* in the larger block */
        const uint32_t chunk = (uint32_t)(rank - larger->first) * own;
        const int peer = from->first + (int)(chunk / smaller_own);
        return sends ? emit_send(sink, peer, chunk, own)
                     : emit_recv_reduce(sink, peer, chunk, own, larger->number == 0);
    }
    const uint32_t begin = (uint32_t)(rank - from->first) * smaller_own;
    for (uint32_t chunk = begin; chunk < begin + smaller_own; chunk += own) {
        const int peer = larger->first + (int)(chunk / own);
        TRY(reducing ? emit_send(sink, peer, chunk, own) : emit_recv(sink, peer, chunk, own));
    }
    return STATUS_OK;
}

static enum status blocks_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct block block = block_of(shape->workers, rank);
    const bool reducing = round < shape->split;
    const int step = (int)(reducing ? round : shape->rounds - 1 - round);
    const int levels = levels_of((int)shape->chunks), steps = (int)shape->split;
    if (step < levels)
        return emit_within(shape, &block, rank, step, reducing, sink);
    const int smaller = steps - step; /* this block and the one before it */
    if (block.number != smaller && block.number != smaller - 1)
        return STATUS_OK;
    const struct block from = block_at(shape->workers, smaller), to = block_at(shape->workers, smaller - 1);
    return emit_between(shape, &from, &to, rank, !reducing, reducing, sink);
}

static int blocks_owner(const struct shape *shape, uint32_t chunk)
{
    (void)shape;
    return (int)chunk;
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double blocks_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double move = (double)bytes * model->seconds_per_byte, add = (double)bytes * model->reduce_s_per_byte;
    const int blocks = blocks_of(shape->workers);
    double reduced = 0, spread = 0, end = 0;
    for (int i = blocks - 1; i >= 0; i--) {
        const struct block block = block_at(shape->workers, i);
        const double alone = block.levels * model->latency_s + (block.size - 1.0) / block.size * (move + add);
        const double size = block.size;
        reduced = later(alone, reduced);
        if (i < blocks - 1)
            reduced += model->latency_s + move / block_at(shape->workers, i + 1).size + add / size;
    }
    for (int i = 0; i < blocks; i++) {
        const struct block block = block_at(shape->workers, i);
        if (i > 0)
            spread += model->latency_s + move / block.size;
        const double sent = i < blocks - 1 ? move / block.size : 0;
        end = later(end, spread + sent + block.levels * model->latency_s + (block.size - 1.0) / block.size * move);
    }
    return reduced + end;
}

const struct algorithm algorithm_binary_blocks = {
    .name = "binary-blocks",
    .aliases = "",
    .summary = "recursive halving and doubling in blocks of powers of two: least bytes without folding",
    .source = "Rabenseifner, Traeff 2004; Gloo",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .shape = blocks_shape,
    .emit = blocks_emit,
    .owner = blocks_owner,
    .cost = blocks_cost,
};
